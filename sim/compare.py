"""Two runs that should be equal, compared: the first difference of their logs, checkpoints and summaries, named.

Only what the hashes cover is compared; `timing` and `attempts` differ by nature. Equal heads already prove equal logs; this says *where*
two logs part.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sim.checkpoints import CHECKPOINTS
from sim.run_data import SUMMARY_FILES
from store.manifest import ABSENT, differing_leaves
from store.run_read import RunFiles, read_run, read_table


@dataclass(frozen=True)
class Difference:
    """`where` names table, row's key and column (or file and key); `first` and `second` are what the two runs hold there."""

    where: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.where}: {self.first} in the first run, {self.second} in the second"


def first_difference(first: Path, second: Path) -> Difference | None:
    """The first difference of two runs, None when there is none. Raises NotFound and DamagedLog as `read_run` does."""
    return next(differences(read_run(first), read_run(second)), None)


def differences(a: RunFiles, b: RunFiles) -> Iterator[Difference]:
    """Differences in the order: what the runs were, their tables (earliest row first), checkpoints, summaries, heads."""
    yield from _of_documents("manifest.json identity", a.manifest["identity"], b.manifest["identity"])
    for name, table in a.tables.items():
        if table.hashed:
            difference = _of_tables(name, table.key, read_table(a, name), read_table(b, name))
            if difference:
                yield difference
    yield from _of_checkpoints(a.run_dir, b.run_dir)
    for file in dict.fromkeys(SUMMARY_FILES.values()):
        one, other = a.run_dir / file, b.run_dir / file
        if one.exists() or other.exists():
            yield from _of_documents(file, _read(one), _read(other))
    if a.head != b.head:
        yield Difference("chain.jsonl head", a.head, b.head)


def _read(path: Path) -> Any:
    return json.loads(path.read_bytes()) if path.exists() else None


def _of_documents(where: str, a: Any, b: Any) -> Iterator[Difference]:
    """Leaves of two JSON documents that differ; one that a document lacks is null there."""
    for path, *found in differing_leaves(a, b, where):
        yield Difference(path, *(json.dumps(None if value is ABSENT else value) for value in found))


def _of_tables(name: str, key: tuple[str, ...], a: pa.Table, b: pa.Table) -> Difference | None:
    """The first row at which two tables differ, by its key; of its columns the first in declared order, or that one run lacks the row."""
    rows = min(len(a), len(b))
    earliest, column = rows, ""
    for held in a.column_names:
        x, y = (_bits(table[held].slice(0, rows).combine_chunks()) for table in (a, b))
        at = rows if x.equals(y) else int(np.flatnonzero(_unequal(x, y))[0])
        if at < earliest:
            earliest, column = at, held
    one, other = (tuple(table[part][earliest].as_py() for part in key) if earliest < len(table) else None for table in (a, b))
    if one == other:
        return None if one is None else Difference(f"{_row(name, key, one)}, {column}", *(str(t[column][earliest].as_py()) for t in (a, b)))
    if other is None or (one is not None and one < other):  # rows are in key order: the lower key's row is the one that the other run lacks
        return Difference(_row(name, key, one), "there", "missing")
    return Difference(_row(name, key, other), "missing", "there")


def _row(table: str, key: tuple[str, ...], values: Any) -> str:
    return ", ".join([table, *(f"{part} {value}" for part, value in zip(key, values, strict=True))])


def _bits(values: pa.Array) -> pa.Array:
    """Floats as the integers that their bytes are: 0.0 and -0.0 are equal numbers and different bytes."""
    floats = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}
    return values.view(floats[values.type]) if values.type in floats else values


def _unequal(x: pa.Array, y: pa.Array) -> np.ndarray:
    """bool[rows]: values that differ, nulls by their place."""
    one, other = (np.asarray(values.to_pylist(), dtype=object) for values in (x, y))
    return np.array([p != q for p, q in zip(one, other, strict=True)])


def _of_checkpoints(a: Path, b: Path) -> Iterator[Difference]:
    """What the checkpoints' JSON documents say, which hold the SHA-256 of every tensor."""
    folders = sorted({path.name for run in (a, b) for path in (run / CHECKPOINTS).glob("*") if path.is_dir()})
    for folder in folders:
        one, other = a / CHECKPOINTS / folder, b / CHECKPOINTS / folder
        if not (one.exists() and other.exists()):
            yield Difference(f"{CHECKPOINTS}/{folder}", *("there" if path.exists() else "missing" for path in (one, other)))
            continue
        for file in sorted({path.name for path in (*one.glob("*.json"), *other.glob("*.json"))}):
            yield from _of_documents(f"{CHECKPOINTS}/{folder}/{file}", _read(one / file), _read(other / file))
