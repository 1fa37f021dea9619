"""Rows of one table between two flushes: a growing array per column, checked as they come in."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from lob.errors import CheckFailed
from lob.tables import Column, Table
from store.segments import arrow_schema

_START_ROWS = 4096
_UNDEFINED = "log an undefined number as null, with a reason beside it"


class RowBuffer:
    """`rows` appended rows of a table. An interrupt inside any method but `drop` leaves the rows that were there as they were."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._schema = arrow_schema(table)
        self._names = frozenset(table.names)
        self._capacity = _START_ROWS
        self._numbers = [(c.name, np.dtype(c.dtype), c.dtype.startswith("float"), c.nullable) for c in table.columns if c.dtype != "str"]
        self._texts = [(c.name, c.nullable) for c in table.columns if c.dtype == "str"]
        self._values = {name: np.empty(self._capacity, dtype) for name, dtype, _, _ in self._numbers}
        self._nulls = {c.name: np.zeros(self._capacity, bool) for c in table.columns if c.nullable and c.dtype != "str"}
        self._strings: dict[str, list[str | None]] = {name: [] for name, _ in self._texts}
        self._floats = [name for name, _, is_float, _ in self._numbers if is_float]
        self._required = [column.name for column in table.columns if not column.nullable]
        # Rows in the columns, and rows given one by one that follow them: one attribute, so that an interrupt finds them in one place.
        self._held: tuple[int, list[Mapping[str, Any]]] = (0, [])

    @property
    def rows(self) -> int:
        return self._held[0] + len(self._held[1])

    def append(self, columns: Mapping[str, Any], lanes: int | None) -> None:
        """Check and copy rows in.

        `lanes`: keep only rows of lanes below it. Raises ValueError and CheckFailed; the buffer is then as before.
        """
        self._check_names(columns)
        count = len(columns[self.table.columns[0].name])
        self._check(columns, count)
        self._settle()
        self._copy(columns, count, lanes)

    def append_row(self, row: Mapping[str, Any], lanes: int | None) -> None:
        """Keep one row of plain numbers and strings, None where null: microseconds for a table of one wide row a step, where `append`
        pays a few numpy calls a column. Integers are held against their types when the row is flushed.
        """
        self._check_names(row)
        if None in row.values() and (empty := [name for name in self._required if row[name] is None]):
            self._refuse({name: [value] for name, value in row.items()}, empty[0], 0, "null in a column that is not nullable")
        for name in self._floats:
            if row[name] is not None and not math.isfinite(row[name]):
                self._refuse({name: [value] for name, value in row.items()}, name, 0, f"value {row[name]}: {_UNDEFINED}")
        if lanes is None or row["lane"] < lanes:
            self._held[1].append(row)

    def _settle(self) -> None:
        """Move the rows that were given one by one, which are the last ones, into the columns."""
        placed, single = self._held
        if single:
            columns = {column.name: self._column(column, [row[column.name] for row in single]) for column in self.table.columns}
            self._place(columns, placed, len(single))
            self._held = (placed + len(single), [])

    def _column(self, column: Column, values: list[Any]) -> Any:
        if column.dtype == "str":
            if any(not isinstance(value, str) for value in values if value is not None):
                raise ValueError(f"table {self.table.name}, column {column.name}: {values!r} are no strings")
            return [np.ma.masked if value is None else value for value in values]
        nulls = [value is None for value in values] if column.nullable else None
        found = np.array([0 if value is None else value for value in values] if column.nullable else values)
        exact = found.dtype.kind in ("iub" if column.dtype.startswith("int") else "iubf")
        if not exact or (column.dtype.startswith("int") and (found.astype(column.dtype) != found).any()):
            raise ValueError(f"table {self.table.name}, column {column.name}: {values!r} do not fit {column.dtype}")
        typed = found.astype(column.dtype)
        return typed if nulls is None else np.ma.MaskedArray(typed, nulls)

    def _check_names(self, columns: Mapping[str, Any]) -> None:
        if columns.keys() != self._names:
            missing, unknown = sorted(self._names - columns.keys()), sorted(columns.keys() - self._names)
            raise ValueError(f"table {self.table.name}: columns missing {missing}, not declared {unknown}")

    def _copy(self, columns: Mapping[str, Any], count: int, lanes: int | None) -> None:
        if lanes is not None:
            kept = np.flatnonzero(columns["lane"] < lanes)
            if len(kept) < count:
                columns = {
                    name: values[kept] if isinstance(values, np.ndarray) else [values[i] for i in kept] for name, values in columns.items()
                }
                count = len(kept)
        placed = self._held[0]
        self._place(columns, placed, count)
        self._held = (placed + count, [])

    def _place(self, columns: Mapping[str, Any], start: int, count: int) -> None:
        stop = start + count
        if stop > self._capacity:
            self._grow(stop)
        for name, _, _, nullable in self._numbers:
            values = columns[name]
            if nullable:
                nulls = np.ma.getmaskarray(values)
                self._nulls[name][start:stop] = nulls
                values = np.where(nulls, 0, np.ma.getdata(values))
            self._values[name][start:stop] = values
        for name, _ in self._texts:
            self._strings[name][start:] = [None if value is np.ma.masked else value for value in columns[name]]

    def _check(self, columns: Mapping[str, Any], count: int) -> None:
        for name, dtype, is_float, nullable in self._numbers:
            values = columns[name]
            if type(values) is not np.ndarray and not isinstance(values, np.ma.MaskedArray):
                raise ValueError(f"table {self.table.name}, column {name}: {type(values).__name__} given, a {dtype} array is declared")
            if values.dtype != dtype or values.shape != (count,):
                raise ValueError(
                    f"table {self.table.name}, column {name}: {values.dtype}{list(values.shape)} given, {dtype}[{count}] is declared"
                )
            if not nullable and type(values) is not np.ndarray and np.ma.is_masked(values):
                self._refuse(columns, name, int(np.flatnonzero(np.ma.getmaskarray(values))[0]), "null in a column that is not nullable")
            if is_float and not (finite := np.isfinite(np.ma.filled(values, 0))).all():
                row = int(np.flatnonzero(~finite)[0])
                self._refuse(columns, name, row, f"value {values[row]}: {_UNDEFINED}")
        for name, nullable in self._texts:
            texts = columns[name]
            if len(texts) != count:
                raise ValueError(f"table {self.table.name}, column {name}: {len(texts)} strings given for {count} rows")
            for row, text in enumerate(texts):
                if not isinstance(text, str) and not (nullable and text is np.ma.masked):
                    raise ValueError(f"table {self.table.name}, column {name}, row {row}: {text!r} is no string")

    def _refuse(self, columns: Mapping[str, Any], name: str, row: int, found: str) -> None:
        place = ", ".join(f"{key} {columns[key][row]}" for key in self.table.key)
        raise CheckFailed(f"table {self.table.name}, column {name}, row {row} ({place}): {found}")

    def _grow(self, rows: int) -> None:
        capacity = self._capacity
        while capacity < rows:
            capacity *= 2
        self._values = {name: np.concatenate([old, np.empty(max(0, capacity - len(old)), old.dtype)]) for name, old in self._values.items()}
        self._nulls = {name: np.concatenate([old, np.empty(max(0, capacity - len(old)), bool)]) for name, old in self._nulls.items()}
        self._capacity = capacity

    def rows_until(self, last_step: int, settled: int) -> int:
        """How many rows belong to steps up to `last_step`, which move in front of the others. The first `settled` rows stay as they are."""
        if "step" not in self._names:
            return self.rows
        self._settle()
        later = self._values["step"][settled : self.rows] > last_step
        order = np.argsort(later, kind="stable")
        if not (order[1:] > order[:-1]).all():
            for held in (self._values, self._nulls):
                for values in held.values():
                    values[settled : self.rows] = values[settled : self.rows][order]
            for texts in self._strings.values():
                texts[settled:] = [texts[settled + i] for i in order]
        return self.rows - int(np.count_nonzero(later))

    def batch(self, count: int) -> pa.RecordBatch:
        """The first `count` rows as an Arrow batch over the buffers themselves: use it before the next append."""
        self._settle()
        arrays = []
        for field in self._schema:
            if field.name in self._strings:
                arrays.append(pa.array(self._strings[field.name][:count], pa.string()))
                continue
            validity = None
            nulls = self._nulls.get(field.name)
            if nulls is not None and nulls[:count].any():
                validity = pa.py_buffer(np.packbits(~nulls[:count], bitorder="little"))
            arrays.append(pa.Array.from_buffers(field.type, count, [validity, pa.py_buffer(self._values[field.name][:count])]))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def drop(self, count: int) -> None:
        """Forget the first `count` rows; the others move to the front."""
        self._settle()
        rest = self.rows - count
        if rest:
            for held in (self._values, self._nulls):
                for values in held.values():
                    values[:rest] = values[count : self.rows].copy()
        for texts in self._strings.values():
            del texts[:count]
        self._held = (rest, [])
