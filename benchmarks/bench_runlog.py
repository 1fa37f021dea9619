"""How many rows a second the run log takes at level `full` while the environment that makes them runs on the same cores.

    python -m benchmarks.bench_runlog [--lanes 1024] [--steps 2000] [--runs DIR]

A synthetic ES day, the real environment with observations, the policy `random` (the worst case: most steps trade, so `orders`, `fills` and
`trades` are as full as they get). Sealing, fsync and the end of the chain are inside the time. Each lane's cash at the end is recomputed
from the log before any number is printed. The same loop without a log, and with rows made but not logged, stand beside it.
"""

import argparse
import datetime as dt
import resource
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

TARGET_ROWS_S = 1.5e6


def market(events: int, steps: int, max_lots: int) -> tuple[Any, Any]:
    """(tape, schedule) of a synthetic day with one decision every few events."""
    from lob.calendar import sessions
    from lob.instruments import resolve
    from lob.schedule import schedule
    from lob.synth import synthesize_day
    from lob.tape_build import book_tape

    instrument = resolve("ES")
    records = synthesize_day(instrument, dt.date(2024, 3, 5), events, seed=1)
    columns = {name: np.ascontiguousarray(records[name]) for name in records.dtype.names if records[name].ndim == 1}
    undefined = {name: values == 2**63 - 1 for name, values in columns.items() if "_px_" in name}
    start, end = int(columns["ts_recv"][0]), int(columns["ts_recv"][-1]) + 1
    tape = book_tape(
        columns,
        undefined,
        np.zeros(events, np.int32),
        np.arange(events),
        ("0" * 64,),
        instrument,
        sessions(instrument.calendar, start, end),
    )
    return tape, schedule(tape, f"{max(1, events // (steps + 50))}e", start, end, 0, max_lots, step_limit=steps)


@dataclass(frozen=True)
class Played:
    """One run of the loop: wall and CPU seconds, rows made, cash of each lane at the end."""

    wall_s: float
    cpu_s: float
    rows: int
    cash: np.ndarray


def play(tape: Any, plan: Any, lanes: int, log: Any, emit: tuple[str, ...], threads: int) -> Played:
    """Every decision and the drain, with a log or without one."""
    from cuda_env import state
    from cuda_env.config import EnvConfig
    from cuda_env.env import Env
    from policy.builtin import make

    features = np.zeros((plan.decisions + 1, 128), np.float32)
    capital = 100_000_000 * 1_000_000  # nobody dies: every lane plays to the end
    env = Env(tape, plan, features, EnvConfig(capital_usd_micros=capital), lanes, 1, emit=emit, threads=threads)
    policy = make("random", 1, lanes)
    rows = 0
    started, cpu = time.perf_counter(), time.process_time()
    for step in range(plan.decisions + 1):
        if step < plan.decisions:
            env.step(policy.act(env.observe(), None, step))
        else:
            env.drain()
        for table in emit:
            made = env.rows(table)
            rows += len(made["lane"])
            if log is not None:
                log.append(table, made)
        if log is not None:
            log.end_step(step)
    if log is not None:
        log.finish("finished", {"rows": rows})
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    return Played(wall_s, cpu_s, rows, env.state[state.CASH, :lanes].numpy().copy())


def check(run_dir: Path, cash: np.ndarray, rows: int) -> float:
    """Assert that the log holds what was played; returns the bytes a row takes once sealed."""
    from store.run_check import verify_chain
    from store.run_read import read_run, read_table

    run = read_run(run_dir)
    logged = read_table(run, "steps", ["lane", "realized_usd_micros", "cash_usd_micros", "is_drain"])
    realized = np.zeros(len(cash), np.int64)
    np.add.at(realized, logged["lane"].to_numpy(), logged["realized_usd_micros"].to_numpy())
    last = logged.filter(logged["is_drain"].to_numpy() == 1)["cash_usd_micros"].to_numpy()
    assert (last == cash).all(), "the log's cash is not the environment's"
    trades = read_table(run, "trades", ["lane", "realized_usd_micros"])
    closed = np.zeros(len(cash), np.int64)
    np.add.at(closed, trades["lane"].to_numpy(), trades["realized_usd_micros"].to_numpy())
    assert (closed == realized).all(), "steps and trades do not agree"
    held = sum(read_table(run, name, ["lane"]).num_rows for name in ("steps", "orders", "fills", "trades"))
    assert held == rows, f"{held} rows logged, {rows} made"
    assert verify_chain(run_dir) == []
    return sum(path.stat().st_size for path in run_dir.rglob("*.parquet")) / rows


BLOCK_STEPS = 64
"""Steps that are gathered before their rows are made, where blocks are timed."""


@dataclass(frozen=True)
class DiagCost:
    """Seconds of the same steps without a log, at level `diag` a row at a time, and in blocks; and of the two in log and rows alone."""

    steps: int
    bare_s: float
    by_row_s: float
    by_row_log_s: float
    blocks_s: float
    blocks_log_s: float


def diag_cost(tape: Any, plan: Any, lanes: int, threads: int, folder: Path) -> DiagCost:
    """Three environments side by side, the same picks for all, turn by turn, so that load meets them alike."""
    from cuda_env import state
    from cuda_env.blocks import NULL, BlockLog
    from cuda_env.config import EnvConfig
    from cuda_env.env import Env
    from policy.builtin import make
    from policy.tables import DIAG, diag_row, no_picks_row
    from sim.tables import RUN_TABLES
    from store.run_check import verify_chain
    from store.run_read import read_run, read_table
    from store.runlog import RunLog

    features = np.zeros((plan.decisions + 1, 128), np.float32)
    config = EnvConfig(capital_usd_micros=10**14)
    bare, single, blocked = (
        Env(tape, plan, features, config, lanes, 1, emit=(), threads=threads, diag=diag) for diag in (False, True, True)
    )
    policy, block = make("random", 1, lanes), BlockLog(blocked, BLOCK_STEPS, DIAG)
    now = time.perf_counter
    spent = {name: np.zeros(plan.decisions + 1) for name in DiagCost.__dataclass_fields__ if name != "steps"}
    logs = [RunLog.create(folder / name, identity={}, tables=RUN_TABLES, level="diag") for name in ("single", "blocks")]

    def moved(env: Env, picks: Any) -> dict[str, int | None]:
        if picks is None:
            env.drain()
            return no_picks_row()
        env.observe()
        env.step(picks)
        return diag_row(picks, policy.diagnostics(), env.decided)

    with logs[0] as by_row, logs[1] as by_block:
        for step in range(plan.decisions + 1):
            picks = policy.act(bare.observe(), None, step) if step < plan.decisions else None
            begun = now()
            if picks is None:
                bare.drain()
            else:
                bare.observe()
                bare.step(picks)
            spent["bare_s"][step] = now() - begun

            begun = now()
            of_policy = moved(single, picks)
            at_log = now()
            by_row.append_row("diag", single.diag() | of_policy)
            by_row.end_step(step)
            ended = now()
            spent["by_row_s"][step], spent["by_row_log_s"][step] = ended - begun, ended - at_log

            begun = now()
            of_policy = moved(blocked, picks)
            at_log = now()
            block.put(np.array([NULL if value is None else value for value in of_policy.values()], np.int64))
            block.capture()
            if (step + 1) % BLOCK_STEPS == 0 or picks is None:
                rows = block.drain()["diag"]
                by_block.append("diag", rows)
                by_block.end_step(step, len(rows["step"]))
            ended = now()
            spent["blocks_s"][step], spent["blocks_log_s"][step] = ended - begun, ended - at_log
        heads = {by_row.finish("finished"), by_block.finish("finished")}
    assert len(heads) == 1, "blocks and single rows do not make the same log"
    assert verify_chain(folder / "blocks") == []
    rows = read_table(read_run(folder / "blocks"), "diag", ["trading.realized_pnl_usd_micros_cum"])
    total = rows.column(0)[-1].as_py()
    assert rows.num_rows == plan.decisions + 1
    cash = blocked.state[state.CASH, :lanes]
    assert total == int((cash - config.capital_usd_micros).sum()), "diag's cumulative is not what the lanes earned"
    warm = slice(BLOCK_STEPS, None)  # compiled by then, and at a block's border
    return DiagCost(plan.decisions + 1 - BLOCK_STEPS, **{name: float(times[warm].sum()) for name, times in spent.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=1, help="of the environment; the sealer has the other core")
    parser.add_argument("--segment-steps", type=int, default=512)
    parser.add_argument("--runs", type=Path, default=None, help="where the run is written (default: the temporary folder)")
    arguments = parser.parse_args()
    from cuda_env.tables import TABLES
    from store.runlog import RunLog

    tape, plan = market(events=max(200_000, arguments.steps * 20), steps=arguments.steps, max_lots=4)
    everything = tuple(table.name for table in TABLES)
    folder = Path(tempfile.mkdtemp(prefix="bench_runlog_", dir=arguments.runs))
    try:
        warm_tape, warm_plan = market(events=200_000, steps=20, max_lots=4)
        with RunLog.create(folder / "warm", identity={}, tables=TABLES) as log:
            play(warm_tape, warm_plan, arguments.lanes, log, everything, arguments.threads)  # compile, import
        bare = play(tape, plan, arguments.lanes, None, (), arguments.threads)
        made = play(tape, plan, arguments.lanes, None, everything, arguments.threads)
        with RunLog.create(folder / "run", identity={}, tables=TABLES, segment_steps=arguments.segment_steps) as log:
            logged = play(tape, plan, arguments.lanes, log, everything, arguments.threads)
        cost = diag_cost(tape, plan, 8192, arguments.threads, folder)
        size = check(folder / "run", logged.cash, logged.rows)
    finally:
        shutil.rmtree(folder)
    rows, steps = logged.rows, arguments.lanes * (plan.decisions + 1)
    own = (logged.cpu_s - made.cpu_s) / rows
    waits = log.waited_s > 0.1 * logged.wall_s
    print(f"{arguments.lanes} lanes x {plan.decisions + 1} steps: {rows / steps:.2f} rows a step over all tables, {size:.1f} bytes a row")
    print(f"environment alone      {steps / bare.wall_s / 1e6:6.2f} M steps/s")
    print(f"rows made, not logged  {rows / made.wall_s / 1e6:6.2f} M rows/s")
    slower = logged.wall_s / made.wall_s
    print(f"level full, sealed     {rows / logged.wall_s / 1e6:6.2f} M rows/s (target {TARGET_ROWS_S / 1e6} M), {slower:.2f} x making them")
    print(f"  the log's own CPU    {own * 1e6:6.2f} us a row = {1 / own / 1e6:.2f} M rows per CPU-second (load changes this little)")
    print(f"  {logged.cpu_s / logged.wall_s:.2f} cores busy; waited {log.waited_s:.2f} of {logged.wall_s:.2f} s for the sealer")
    print(f"  peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    print(f"level diag, 8192 lanes, over a bare step of {cost.bare_s / cost.steps * 1e6:.0f} us (target 5 %):")
    ways = (("a row a step", cost.by_row_s, cost.by_row_log_s), (f"blocks of {BLOCK_STEPS}", cost.blocks_s, cost.blocks_log_s))
    for name, whole, log_s in ways:
        more, in_log = whole / cost.bare_s - 1, log_s / cost.bare_s
        print(f"  {name:13} +{more:.1%}, of it {in_log:.1%} rows and log, the rest sums over lanes")
    print(f"  blocks take {cost.blocks_log_s / cost.by_row_log_s:.2f} of the time that single rows take in rows and log")
    print(f"level full limited by {'the sealer: one core encodes' if waits else 'the loop that makes the rows'}")


if __name__ == "__main__":
    main()
