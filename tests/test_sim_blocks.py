"""Blocks of the environment's rows in the run log: cut at segments' borders, they seal to the bytes of rows that came a step at a time."""

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from cuda_env.blocks import BlockLog
from cuda_env.diag import DIAG
from sim.tables import ENV_TABLES, RUN_TABLES
from store.run_check import verify_chain
from store.run_read import read_run, read_table
from store.runlog import RunLog
from tests.env_builds import CASES, WINDOWED, Njit, make_env, random_inputs
from tests.env_play import HOLD
from tests.test_env_blocks import LEVELS

SEGMENT_STEPS = 5
CASES_PLAYED = {"one window": CASES[0], "windows with restarts": WINDOWED[0]}


def diag_table():
    """`diag` as an environment alone can write it."""
    return replace(RUN_TABLES[0], columns=DIAG)


def write(folder, case, level, steps, sparse, flush_rows):
    """The case's run, `steps` at a time (None: a row and a table at a time); its head."""
    env = make_env(case, emit=LEVELS[level])
    inputs = random_inputs(case, case.steps or env.schedule.decisions)
    if sparse:
        inputs[np.arange(len(inputs)) % 4 != 0, 0] = HOLD
    player, block = Njit(env), BlockLog(env, steps or 1)
    options = {"segment_steps": SEGMENT_STEPS, "flush_rows": flush_rows, "flush_seconds": 3600}
    with RunLog.create(folder, identity={"case": case.seed}, tables=(diag_table(), *ENV_TABLES), level=level, **options) as log:
        for step in range(len(inputs) + 1):
            if step < len(inputs):
                player.step(inputs[step])
            else:
                env.close_all()
            if steps is None:
                log.append_row("diag", env.diag())
                for table in env.emit:
                    log.append(table, env.rows(table))
                log.end_step(step)
                continue
            block.capture()
            if (step + 1) % steps == 0 or step == len(inputs):
                rows = block.drain()
                for table, columns in rows.items():
                    log.append(table, columns)
                log.end_step(step, len(rows["diag"]["step"]))
        return log.finish("finished")


def sealed(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted((folder / "segments").rglob("*")) if path.is_file()}


@pytest.mark.parametrize("played", CASES_PLAYED)
@pytest.mark.parametrize("level", ["trades", "full"])
def test_blocks_of_any_length_seal_to_the_bytes_of_single_steps(tmp_path, played, level):
    case = CASES_PLAYED[played]
    head = write(tmp_path / "single", case, level, None, False, 10**9)
    wanted = sealed(tmp_path / "single")
    assert len(wanted) > 10
    for steps, flush_rows in ((1, 10**9), (3, 1), (3, 10**9), (64, 1)):
        folder = tmp_path / f"{steps}-{flush_rows}"
        assert write(folder, case, level, steps, False, flush_rows) == head
        assert sealed(folder) == wanted
        assert verify_chain(folder) == []


@pytest.mark.parametrize("steps", [1, 3, 7, 64])
def test_steps_without_trades_shift_no_row_into_another_segment(tmp_path, steps):
    head = write(tmp_path / "single", CASES[0], "trades", None, True, 10**9)
    assert write(tmp_path / "blocks", CASES[0], "trades", steps, True, 10**9) == head
    run = read_run(tmp_path / "blocks")
    trades = read_table(run, "trades", ["step"])["step"].to_numpy()
    every = read_table(run, "diag", ["step"])["step"].to_numpy()
    without = np.setdiff1d(every, trades)
    assert len(without) > 0.4 * len(every) and len(trades) > 10, "the case has what the test is about"
    for k, path in enumerate(run.parts["diag"]):
        assert pq.read_table(path)["step"].to_pylist() == list(range(k * SEGMENT_STEPS, min(len(every), (k + 1) * SEGMENT_STEPS)))
    for path in run.parts["trades"]:
        held = pq.read_table(path)["step"].to_numpy()
        assert len(set(held // SEGMENT_STEPS)) <= 1, "rows of one segment alone"
