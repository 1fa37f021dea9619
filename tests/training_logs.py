"""Logs as a training run writes them, made by the run log's own writer from values that follow from the step alone: what dashboards and
exporters read, without a training.

`python -m tests.training_logs DIR STEPS PAUSE_S` writes one slowly: the process that tests look at from another.
"""

import sys
import time
from pathlib import Path
from typing import Any

from lob.tables import Column
from sim.tables import TRAIN_TABLES
from store.runlog import RunLog

LANES, PLANNED = 4, 100
DIAG, TIMED = TRAIN_TABLES[0], next(table for table in TRAIN_TABLES if table.name == "timing")
IDENTITY = {
    "config": {"phase": "train", "instrument": {"symbol": "ESH4"}, "lanes": LANES, "loop": {"steps": PLANNED}},
    "device": "cpu-test",
}
WALL_NS = 1_700_000_000 * 10**9
SPENT = {"observe_ns": 1_000, "physics_ns": 2_000, "policy_ns": 3_000, "log_ns": 1_000, "learn_ns": 13_000}


def value(column: Column, at: int, step: int) -> int | float | None:
    """A number of the column's kind; a nullable one is null on every third step, a loss until step 5."""
    if column.nullable and (step % 3 == at % 3 or (column.name == "learn.loss" and step < 5)):
        return None
    if column.dtype.startswith("float"):
        return (at + 1) / (step + 2)
    if column.unit == "usd_micros":
        return -1_000_000 * at - 250_000 * step
    return at % 5 + step % 7


def diag_row(step: int) -> dict[str, Any]:
    row = {column.name: value(column, at, step) for at, column in enumerate(DIAG.columns)}
    return row | {"phase": 0, "step": step, "ts_observed_ns": WALL_NS + step, "ts_decided_ns": WALL_NS + step, "lanes.played": LANES}


def timing_row(step: int, told_apart: bool = True) -> dict[str, int | None]:
    """`told_apart`: as on a CPU; otherwise as on a GPU, where the log's part alone is known."""
    spent: dict[str, int | None] = {name: ns if told_apart or name == "log_ns" else None for name, ns in SPENT.items()}
    spent |= {"elapsed_ns": 20_000, "waited_ns": 5 * 10**8}
    return {"phase": 0, "step": step, "wall_ns": WALL_NS + step * 10**9} | spent


def write_training(
    run_dir: Path, steps: int, pause_s: float = 0.0, finish: bool = True, segment_steps: int = 16, told_apart: bool = True
) -> str:
    """A run of so many steps; returns its head, or "" when it is left unfinished."""
    often = {"flush_seconds": 0.0} if pause_s else {}
    with RunLog.create(run_dir, identity=IDENTITY, tables=TRAIN_TABLES, level="trades", segment_steps=segment_steps, **often) as log:
        for step in range(steps):
            if step in (3, 7):
                event = {"phase": 0, "step": step, "seq": 0, "lane": None, "severity": 1, "kind": "band.left", "message": f"at {step}"}
                log.append_row("events", event | {"value": None})
            log.append_row("diag", diag_row(step))
            log.append_row("timing", timing_row(step, told_apart))
            log.end_step(step)
            time.sleep(pause_s)
        return log.finish("finished") if finish else ""


if __name__ == "__main__":
    write_training(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
