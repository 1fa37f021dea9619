"""A run's log as TensorBoard event files: every number of `diag` and `timing`, step by step. A picture of the log, rounded to TensorBoard's
float32; the log stays the record.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lob.errors import BadInput, first_line
from lob.units import USD_MICROS

if TYPE_CHECKING:
    import pyarrow as pa

    from store.run_read import RunFiles

HASHES = "checksum"
"""Prefix of the columns that are numbers without a size."""

NS_PER_MS, NS_PER_S = 10**6, 10**9


@dataclass(frozen=True)
class Exported:
    """Where the files lie, one folder a phase, and what they hold: `steps` rows of `diag`, `values` numbers of `tags` different ones."""

    folders: tuple[Path, ...]
    steps: int
    values: int
    tags: int


def export_tensorboard(run_dir: Path, out: Path) -> Exported:
    """Write `out/<run>/<phase>/` from what the run has committed; money in dollars, durations in milliseconds, nulls left out.

    A tag is `group/name` of a column `group.name`; an event's wall time is that of its step. Raises BadInput (TensorBoard is not installed,
    or the files are there already), NotFound, DamagedLog.
    """
    from store.manifest import pretty_json
    from store.run_read import read_run

    try:
        from torch.utils.tensorboard import FileWriter, summary
    except ImportError as error:
        raise BadInput(f"TensorBoard cannot be written here ({first_line(error)}): pip install 'tapeproof[tensorboard]'") from None
    run = read_run(run_dir)
    target = Path(out) / Path(run_dir).resolve().name
    if target.exists():
        raise BadInput(f"{target}: this run was exported there already; give another --out, or remove it first")
    if "diag" not in run.tables:
        raise BadInput(f"{run_dir}: this run logs no table diag, so there is nothing to export")
    diag = run.tables["diag"]
    tags = {column.name: _tag(column.name) for column in diag.columns if "." in column.name and column.dtype != "str"}
    tags = {name: tag for name, tag in tags.items() if not tag.startswith(f"{HASHES}/")}
    dollars = {column.name for column in diag.columns if column.unit == "usd_micros"}
    phases = diag.column("phase").codes or {}
    clock = _timing(run)
    writers: dict[int, Any] = {}
    steps = values = 0
    used: set[str] = set()

    def write(phase: int, step: int, wall_s: float, content: Any) -> None:
        if phase not in writers:
            writers[phase] = FileWriter(target / phases.get(phase, str(phase)))
            said = "\n".join(f"    {line}" for line in pretty_json(run.manifest["identity"]).decode().splitlines())
            writers[phase].add_summary(summary.text("identity", said), step, wall_s)
        writers[phase].add_summary(content, step, wall_s)

    try:
        for rows in _parts(run, "diag", ["phase", "step", *tags]):
            columns = {name: rows.column(name).to_pylist() for name in rows.column_names}
            keys = list(zip(columns["phase"], columns["step"], strict=True))
            for at, (key, (wall_s, spent)) in enumerate(zip(keys, clock.of(keys), strict=True)):
                numbers = {
                    tag: columns[name][at] / (USD_MICROS if name in dollars else 1)
                    for name, tag in tags.items()
                    if columns[name][at] is not None
                } | spent
                one = summary.Summary.Value
                write(*key, wall_s, summary.Summary(value=[one(tag=tag, simple_value=number) for tag, number in numbers.items()]))
                steps, values = steps + 1, values + len(numbers)
                used |= numbers.keys()
    finally:
        for writer in writers.values():
            writer.close()
    return Exported(tuple(target / phases.get(phase, str(phase)) for phase in sorted(writers)), steps, values, len(used))


def _tag(name: str) -> str:
    group, _, rest = name.partition(".")
    return f"{group}/{rest.replace('_usd_micros', '_usd')}"


def _parts(run: RunFiles, name: str, columns: list[str]) -> Iterator[pa.Table]:
    """The rows of a table, a part of the log at a time. Raises DamagedLog."""
    from dataclasses import replace

    from store.run_read import read_table

    nothing = run.journal[name].slice(0, 0)
    for path in run.parts[name]:
        yield read_table(replace(run, parts={name: (path,)}, journal={name: nothing}), name, columns)
    yield read_table(replace(run, parts={name: ()}), name, columns)


@dataclass(frozen=True)
class _Timing:
    """Rows of `timing` as arrays, found by (phase, step): a long run has a million."""

    keys: np.ndarray  # int64[n], ascending
    wall_s: np.ndarray  # float64[n]
    tags: tuple[str, ...]
    ms: np.ndarray  # float64[n, tags], NaN where the log holds null

    def of(self, wanted: list[tuple[int, int]]) -> Iterator[tuple[float, dict[str, float]]]:
        """(wall-clock, {tag: milliseconds}) of each step; 0 and none where a step was not timed."""
        for key in _keys(*(np.array(part, np.int64) for part in zip(*wanted, strict=True))) if wanted else ():
            at = int(np.searchsorted(self.keys, key))
            if at < len(self.keys) and self.keys[at] == key:
                spent = dict(zip(self.tags, self.ms[at].tolist(), strict=True))
                yield float(self.wall_s[at]), {tag: ms for tag, ms in spent.items() if not math.isnan(ms)}
            else:
                yield 0.0, {}


def _keys(phase: np.ndarray, step: np.ndarray) -> np.ndarray:
    return phase.astype(np.int64) << 32 | step.astype(np.int64)


def _timing(run: RunFiles) -> _Timing:
    from store.run_read import read_table

    names = [c.name for c in run.tables["timing"].columns if c.unit == "ns" and c.name != "wall_ns"] if "timing" in run.tables else []
    if not names:
        return _Timing(np.empty(0, np.int64), np.empty(0), (), np.empty((0, 0)))
    rows = read_table(run, "timing", ["phase", "step", "wall_ns", *names])
    column = {name: rows.column(name).to_numpy() for name in rows.column_names}
    order = np.argsort(_keys(column["phase"], column["step"]), kind="stable")
    ms = np.column_stack([column[name] for name in names]) / NS_PER_MS
    tags = tuple(f"timing/{name.removesuffix('_ns')}_ms" for name in names)
    return _Timing(_keys(column["phase"], column["step"])[order], column["wall_ns"][order] / NS_PER_S, tags, ms[order])
