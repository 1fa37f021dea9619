"""Databento's MBP-10 CSV to MBP_10 records: decimal or 1e-9 integer prices, ISO or ns times, empty cells as undefined."""

import datetime as dt
import os
from collections.abc import Iterator

import numpy as np

from lob.errors import BadInput
from lob.records import MBP_10, RTYPE
from lob.units import UNDEFINED_PRICE
from store.csv_cells import CHAR, MOMENT, PRICE, TEXT, UNDEFINED_TIME, WHOLE
from store.csv_rows import Column, Rows, Start, column_name, parse_rows, read_start
from store.detect import refuse_unless_csv
from store.streams import Stream, open_stream

_DAY_NS = 86_400 * 10**9
_PRICES = frozenset(name for name in MBP_10.names or () if name == "price" or "_px_" in name)
_TIMES = ("ts_event", "ts_recv")
_SMALLEST_FIXED_PRICE = 10**6
"""Below a thousandth a whole number is rather a price in full units than one in 1e-9."""

Symbols = dict[tuple[int, dt.date], str]
"""(instrument_id, UTC date of ts_recv) -> symbol."""


def read_mbp10_csv(path: str | os.PathLike[str], delimiter: str | None = None, symbols: Symbols | None = None) -> Iterator[np.ndarray]:
    """MBP_10 records of the CSV (plain, gzip or zstd) in file order. Columns are known by their names and may stand in any order.

    `symbols`, when given, is filled from the `symbol` column as batches are read. Empty prices and times become DBN's undefined
    values. Raises BadInput naming line and column of a damaged cell, and a column that is missing or stands twice.
    """
    with open_stream(path) as stream:
        refuse_unless_csv(stream)
        start = read_start(stream, delimiter)
        names = tuple(name.lower() for name in start.rows[0])
        places = _places(stream, names)
        if len(start.rows) < 2:
            return
        fixed = _prices_are_fixed(stream, names, start)
        for rows in parse_rows(stream, start, 1, names, _columns(names, start.rows[1], fixed)):
            records = _records(rows, places)
            if symbols is not None and "symbol" in names:
                _collect_symbols(stream, rows, names.index("symbol"), records, symbols)
            yield records


def _places(stream: Stream, names: tuple[str, ...]) -> dict[str, int]:
    wanted = [name for name in MBP_10.names or () if name != "length"]
    missing = [name for name in wanted if name not in names]
    if missing:
        raise BadInput(f"{stream.path}: an MBP-10 CSV without {', '.join(missing[:5])}: fetch it with all columns")
    for name in (*wanted, "symbol"):
        if names.count(name) > 1:
            raise BadInput(f"{stream.path}: column {name} stands {names.count(name)} times in line 1: remove the others")
    return {name: names.index(name) for name in wanted}


def _columns(names: tuple[str, ...], example: tuple[str, ...], fixed: bool) -> list[Column]:
    return [_column(name, cell, fixed) for name, cell in zip(names, example + ("",) * len(names), strict=False)]


def _column(name: str, example: str, fixed: bool) -> Column:
    if name == "symbol":
        return Column(TEXT, empty=0)
    if name not in (MBP_10.names or ()) or name == "length":
        return Column()
    if name in _PRICES:
        return Column(WHOLE, low=-(2**63) + 1, empty=UNDEFINED_PRICE) if fixed else Column(PRICE, empty=UNDEFINED_PRICE)
    if name in _TIMES:
        return Column(MOMENT, unit_ns=int(example.isdigit()), empty=UNDEFINED_TIME)
    if name == "rtype":
        return Column(WHOLE, low=RTYPE["mbp-10"], high=RTYPE["mbp-10"])
    dtype = MBP_10[name]
    if dtype.kind == "S":
        return Column(CHAR)
    limits = np.iinfo(dtype)
    return Column(WHOLE, low=int(limits.min), high=int(limits.max))


def _prices_are_fixed(stream: Stream, names: tuple[str, ...], start: Start) -> bool:
    """Whether prices are whole numbers of 1e-9, told by the first rows: decimal prices have a point somewhere among twenty-one."""
    cells = [cell for row in start.rows[1:] for name, cell in zip(names, row, strict=False) if name in _PRICES and cell]
    if not cells or any("." in cell or "e" in cell.lower() for cell in cells):
        return False
    largest = max((abs(int(cell)) for cell in cells if cell.lstrip("-").isdigit() and len(cell) < 21), default=0)
    if largest < _SMALLEST_FIXED_PRICE:
        first = next(i for i, name in enumerate(names) if name in _PRICES)
        raise BadInput(
            f"{stream.path}: prices are whole numbers ({column_name(names, first)}: {cells[0]!r}) too small to be 1e-9 units: "
            "write decimal prices with a point, like 4365.00"
        )
    return True


def _records(rows: Rows, places: dict[str, int]) -> np.ndarray:
    records = np.zeros(len(rows.lines), MBP_10)
    records["length"] = MBP_10.itemsize // 4
    for name, place in places.items():
        column = rows.values[:, place]
        records[name] = column.astype("u1").view("S1") if MBP_10[name].kind == "S" else column.astype(MBP_10[name])
    return records


def _collect_symbols(stream: Stream, rows: Rows, place: int, records: np.ndarray, symbols: Symbols) -> None:
    """Adds what each instrument is called on each day; two names for one are a fault."""
    names = rows.text(place)
    stamps = np.where(records["ts_recv"] == 2**64 - 1, records["ts_event"], records["ts_recv"])
    keys = np.rec.fromarrays([records["instrument_id"], (stamps // np.uint64(_DAY_NS)).astype("u4"), names])
    _, firsts = np.unique(keys, return_index=True)
    for i in np.sort(firsts):
        if not names[i] or stamps[i] == 2**64 - 1:
            continue
        key = (int(records["instrument_id"][i]), dt.date(1970, 1, 1) + dt.timedelta(days=int(stamps[i]) // _DAY_NS))
        name = names[i].decode("utf-8", "replace")
        if symbols.setdefault(key, name) != name:
            raise BadInput(f"{stream.path}: line {int(rows.lines[i])}: instrument {key[0]} is called {name}, but {symbols[key]} before it")
