"""Small recorded runs for the run log's tests: declared tables of every type, rows that follow from (seed, step) alone, in plain Python.

`python -m tests.runlog_runs DIR STEPS [key=value …]` writes one: the subprocess that tests kill, starve or run under other settings.
"""

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

from lob.tables import Column, Table
from store.runlog import RunLog

_KEY = (
    Column("phase", "int8", "code", "phase", {0: "train", 1: "eval"}),
    Column("lane", "int32", "1", "lane"),
    Column("step", "int32", "1", "step"),
)
WIDE = Table(
    "wide",
    _KEY
    + (
        Column("small", "int16", "1", "a small number"),
        Column("cash_usd_micros", "int64", "usd_micros", "money of any size"),
        Column("stop_ticks", "int64", "ticks", "null when there is none", nullable=True),
        Column("score", "float32", "1", "a float"),
        Column("precise", "float64", "1", "null when undefined", nullable=True),
    ),
    key=("phase", "step", "lane"),
    levels=("full", "sampled"),
    doc="a row per lane and step",
)
DEALS = Table(
    "deals",
    _KEY + (Column("deal_id", "int64", "1", "id"), Column("lots", "int32", "lots", "size")),
    key=("phase", "step", "lane", "deal_id"),
    levels=("full", "sampled", "fills", "trades"),
    doc="now and then a row",
)
NOTES = Table(
    "notes",
    (
        Column("step", "int32", "1", "step"),
        Column("seq", "int32", "1", "count within the step"),
        Column("text", "str", "1", "what happened"),
        Column("reason", "str", "1", "null when none", nullable=True),
    ),
    key=("step", "seq"),
    levels=("full", "sampled", "fills", "trades", "diag"),
    doc="words",
)
CLOCK = Table(
    "clock",
    (Column("step", "int32", "1", "step"), Column("wall_ns", "int64", "ns", "wall-clock")),
    key=("step",),
    levels=("full", "sampled", "fills", "trades", "diag"),
    doc="outside every hash",
    hashed=False,
)
TABLES = (WIDE, DEALS, NOTES, CLOCK)
IDENTITY = {"config": {"capital": 250_000, "fee": 2.25}, "seeds": {"run": 7}, "code": "abc", "device": "cpu"}
LANES = 5


def plain_rows(seed: int, step: int, lanes: int = LANES) -> dict[str, list[dict[str, Any]]]:
    """{table: rows as dicts} of one step; None is null."""
    draw = random.Random(f"{seed}/{step}")
    wide = [
        {
            "phase": 1,
            "lane": lane,
            "step": step,
            "small": draw.randint(-(2**15), 2**15 - 1),
            "cash_usd_micros": draw.choice([0, -1, 2**63 - 1, -(2**63), draw.randint(-(10**12), 10**12)]),
            "stop_ticks": draw.choice([None, draw.randint(0, 10**6)]),
            "score": float(np.float32(draw.choice([0.0, -0.0, 1e-40, 3.4e38, draw.gauss(0, 1)]))),
            "precise": draw.choice([None, draw.gauss(0, 1), 5e-324]),
        }
        for lane in range(lanes)
    ]
    deals = [
        {"phase": 1, "lane": lane, "step": step, "deal_id": lane * 2**32 + step, "lots": draw.randint(1, 9)}
        for lane in range(lanes)
        if draw.random() < 0.2
    ]
    words = ["", "naïve", "stop\nfired", "零", "plain"]
    notes = [
        {"step": step, "seq": seq, "text": draw.choice(words) * draw.randint(0, 3), "reason": draw.choice([None, "", "why"])}
        for seq in range(draw.choice([0, 0, 0, 2]))
    ]
    return {"wide": wide, "deals": deals, "notes": notes, "clock": [{"step": step, "wall_ns": 10**18 + step}]}


def as_arrays(table: Table, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Plain rows as the columns that `RunLog.append` takes."""
    columns: dict[str, Any] = {}
    for column in table.columns:
        values = [row[column.name] for row in rows]
        if column.dtype == "str" and not column.nullable:
            columns[column.name] = values
        elif column.nullable:
            filler = "" if column.dtype == "str" else 0
            data = np.array([filler if value is None else value for value in values], object if column.dtype == "str" else column.dtype)
            columns[column.name] = np.ma.MaskedArray(data, [value is None for value in values])
        else:
            columns[column.name] = np.array(values, column.dtype)
    return columns


def expected(name: str, seed: int, steps: int, lanes: int = LANES) -> list[dict[str, Any]]:
    """All rows of a table after so many steps."""
    return [row for step in range(steps) for row in plain_rows(seed, step, lanes)[name]]


def write_steps(log: RunLog, seed: int, first: int, stop: int, block: int = 1, lanes: int = LANES, shuffle: bool = False) -> None:
    """Append steps [first, stop), `block` at a time."""
    for start in range(first, stop, block):
        count = min(block, stop - start)
        made = [plain_rows(seed, step, lanes) for step in range(start, start + count)]
        for table in TABLES:
            rows = [row for step in made for row in step[table.name]]
            if shuffle:
                random.Random(start).shuffle(rows)
            if rows:
                log.append(table.name, as_arrays(table, rows))
        log.end_step(start + count - 1, count)


def write_run(
    run_dir: Path | str,
    steps: int,
    seed: int = 7,
    block: int = 1,
    lanes: int = LANES,
    shuffle: bool = False,
    finish: bool = True,
    attributes: dict[str, Any] | None = None,
    **options: Any,
) -> str:
    """One whole run; returns its head (empty when it was closed without finishing)."""
    options = {"segment_steps": 16, "flush_rows": 40, **options}
    with RunLog.create(run_dir, identity=IDENTITY, attributes=attributes, tables=TABLES, **options) as log:
        write_steps(log, seed, 0, steps, block, lanes, shuffle)
        log.checkpointed(steps)
        return log.finish("finished", {"total_pnl_usd_micros": 12, "win_rate": None}) if finish else ""


def same_rows(found: Any, wanted: list[dict[str, Any]]) -> bool:
    """Whether a pyarrow Table holds exactly these rows, floats bit for bit (-0.0 is not 0.0)."""
    return found.num_rows == len(wanted) and repr(found.to_pylist()) == repr(wanted)


def main(arguments: list[str]) -> None:
    import ast

    options = {key: ast.literal_eval(value) for key, value in (argument.split("=", 1) for argument in arguments[2:])}
    print(write_run(arguments[0], int(arguments[1]), **options), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
