"""Databento's MBP-10 CSV to MBP_10 records: decimal or 1e-9 integer prices, ISO or ns times, empty cells as undefined."""

import os
from collections.abc import Iterator

import numpy as np

from lob.errors import BadInput
from lob.records import MBP_10, RTYPE
from lob.units import UNDEFINED_PRICE, UNDEFINED_TIMESTAMP
from store.csv_cells import CHAR, MOMENT, PRICE, TEXT, UNDEFINED_TIME, WHOLE
from store.csv_rows import Column, Rows, Symbols, collect_symbols, parse_rows, prices_are_fixed, read_start
from store.detect import refuse_unless_csv
from store.streams import Stream, open_stream

_PRICES = frozenset(name for name in MBP_10.names or () if name == "price" or "_px_" in name)
_TIMES = ("ts_event", "ts_recv")


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
        fixed = prices_are_fixed(stream, start.rows[1:], names, [places[name] for name in places if name in _PRICES])
        seen: set[int] = set()
        for rows in parse_rows(stream, start, 1, names, _columns(names, start.rows[1], fixed)):
            records = _records(rows, places)
            stamps = np.where(records["ts_recv"] == UNDEFINED_TIMESTAMP, records["ts_event"], records["ts_recv"])
            place = names.index("symbol") if "symbol" in names else None
            collect_symbols(stream, rows, place, records["instrument_id"], stamps.astype(np.int64), {} if symbols is None else symbols)
            seen.update(np.unique(records["instrument_id"]).tolist())
            if place is None and len(seen) > 1:
                raise BadInput(
                    f"{path}: holds instruments {', '.join(map(str, sorted(seen)[:5]))} and no symbol column: fetch it with symbols"
                )
            yield records


def _places(stream: Stream, names: tuple[str, ...]) -> dict[str, int]:
    wanted = [name for name in MBP_10.names or () if name != "length"]
    missing = [name for name in wanted if name not in names]
    if "bid_px_01" not in names:
        raise BadInput(f"{stream.path}: a CSV of one level (MBP-1?); as CSV only MBP-10 and bars are read: fetch it as DBN")
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


def _records(rows: Rows, places: dict[str, int]) -> np.ndarray:
    records = np.zeros(len(rows.lines), MBP_10)
    records["length"] = MBP_10.itemsize // 4
    for name, place in places.items():
        column = rows.values[:, place]
        records[name] = column.astype("u1").view("S1") if MBP_10[name].kind == "S" else column.astype(MBP_10[name])
    return records
