"""Blocks of the environment's rows in the run log: cut at segments' borders, they seal to the bytes of rows that came a step at a time."""

import time
from dataclasses import replace
from itertools import count

import numpy as np
import pyarrow.parquet as pq
import pytest

from cuda_env import blocks_cpu
from cuda_env.arrays import TRADE_SLOTS
from cuda_env.blocks import BlockLog
from cuda_env.diag import DIAG
from lob.errors import BadInput
from policy.builtin import Rule
from sim.tables import ENV_TABLES, RUN_TABLES
from store.run_check import verify_chain
from store.run_read import read_run, read_table
from store.runlog import RunLog
from tests.env_builds import CASES, WINDOWED, Njit, make_env, random_inputs
from tests.env_play import HOLD
from tests.replays import replayed, synthetic_store
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


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return synthetic_store(tmp_path_factory.mktemp("market"), events=150_000)


PLAYED = {"minutes": 5, "lanes": 3, "segment_steps": 100}


@pytest.fixture(scope="module")
def whole(store, tmp_path_factory):
    run = replayed(store, tmp_path_factory.mktemp("whole"), **PLAYED)
    assert run.steps > 290
    return run.run_dir


def replay_until(store, runs, monkeypatch, step, fault, at):
    """A replay in which `fault` is raised in decision `step`: where the policy is asked, or in the midst of the capture."""
    warming = {"policy": 1, "capture": 2}[at]
    asked, captured = count(-warming), count(-warming)
    act, capture, pack_rows = Rule.act, blocks_cpu.CpuCapture.capture, blocks_cpu.pack_rows
    here = [-1]

    def failing_act(*arguments):
        if next(asked) == step and at == "policy":
            raise fault
        return act(*arguments)

    def watched_capture(*arguments):
        here[0] = next(captured)
        return capture(*arguments)

    def failing_pack_rows(stored, *rest):
        if here[0] == step and at == "capture" and stored.shape[2] == len(TRADE_SLOTS):
            raise fault  # orders and fills are packed by then
        return pack_rows(stored, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Rule, "act", failing_act)
        patch.setattr(blocks_cpu.CpuCapture, "capture", watched_capture)
        patch.setattr(blocks_cpu, "pack_rows", failing_pack_rows)
        with pytest.raises(type(fault)):
            replayed(store, runs, **PLAYED, execution={"flush_ms": 3_600_000})
    [run] = runs.iterdir()
    return run


@pytest.mark.parametrize("at", ["policy", "capture"])
@pytest.mark.parametrize("fault", [KeyboardInterrupt(), BadInput("lane 0: refused")], ids=["interrupt", "refusal"])
@pytest.mark.parametrize("step", [0, 1, 37, 255, 256, 290])
def test_a_replay_broken_off_keeps_every_step_that_was_played(store, whole, tmp_path, monkeypatch, step, fault, at):
    run = replay_until(store, tmp_path / "broken", monkeypatch, step, fault, at)
    kept, all_of_it = read_run(run), read_run(whole)
    assert kept.steps == step and kept.state == "unfinished"
    for name in ("diag", "steps", "orders", "fills", "trades"):
        rows, of_whole = read_table(kept, name), read_table(all_of_it, name)
        before = of_whole.filter(of_whole["step"].to_numpy() < step)
        assert rows.equals(before), name
    assert read_table(kept, "timing")["step"].to_pylist() == list(range(step))


def test_what_was_played_is_committed_after_flush_ms_however_slow_the_policy(store, tmp_path, monkeypatch):
    """Blocks are far from full here: it is the clock that hands them over, and commits them at once.

    A step has been looked at by the time the next one is asked for, and the last look came after the last pick: so no load on the machine
    can make this fail.
    """
    flush_s, act = 0.4, Rule.act
    asked: list[float] = []
    picked: list[float] = []
    waiting: list[int] = []

    def slow(*arguments):
        asked.append(time.monotonic())
        runs = list(tmp_path.iterdir())
        if runs:
            committed = read_run(runs[0]).steps
            assert committed >= sum(done < picked[-1] - flush_s for done in asked[2:]), "asked[1] began the first step, asked[0] warmed up"
            waiting.append(len(asked) - 2 - committed)
        time.sleep(0.015)
        picks = act(*arguments)
        picked.append(time.monotonic())
        return picks

    monkeypatch.setattr(Rule, "act", slow)
    replayed(store, tmp_path, minutes=1, lanes=2, execution={"flush_ms": int(flush_s * 1000)})
    assert len(waiting) > 50 and max(waiting) >= 2, "steps were gathered"
