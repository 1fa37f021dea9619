"""The type with which a log table is declared. One declaration; the writer, the SQL views, the docs and the tests derive from it."""

from collections.abc import Mapping
from dataclasses import dataclass

LEVELS = ("full", "sampled", "fills", "trades", "diag")
"""Log levels from the most to the least that is kept; `sampled` is written `sampled:n` by users."""

DTYPES = ("int8", "int16", "int32", "int64", "float32", "float64", "str")


@dataclass(frozen=True)
class Column:
    """One column: its stored type, its unit, and, when it is coded, the name of each code.

    `unit` is one of the house's units ("ns", "lots", "ticks", "usd_micros", "ppm", "bps", "1" for a plain number or id, "code").
    Only a column declared `nullable` may hold null.
    """

    name: str
    dtype: str
    unit: str
    doc: str
    codes: Mapping[int, str] | None = None
    nullable: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"column {self.name}: dtype {self.dtype} is none of {DTYPES}")
        if "usd" in self.name and not (self.dtype == "int64" and "_usd_micros" in self.name):
            raise ValueError(f"column {self.name}: USD is int64 micro-dollars and says so (`_usd_micros`)")


@dataclass(frozen=True)
class Table:
    """A log table: `key` are the columns that order its rows; `levels` are the log levels at which it is written.

    `hashed=False` keeps a table (wall-clock, hosts, paths) out of every hash.
    """

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    levels: tuple[str, ...]
    doc: str
    hashed: bool = True

    def __post_init__(self) -> None:
        seen = [column.name for column in self.columns]
        if len(set(seen)) != len(seen):
            raise ValueError(f"table {self.name}: a column name stands twice")
        missing = [name for name in self.key if name not in seen]
        if missing:
            raise ValueError(f"table {self.name}: key columns {missing} are not declared")

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)
