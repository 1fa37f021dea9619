"""Databento's CSV to records of its schema: decimal or 1e-9 integer prices, ISO or ns times, empty cells as undefined.

The schema is told by the `rtype` of the first row. Bars have a reader of their own (`store.csv_ohlcv`), which knows other vendors' too;
definitions, which are mostly text, are read as DBN alone.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lob.errors import BadInput
from lob.records import BAR_NS, RECORDS, RTYPE
from lob.units import UNDEFINED_PRICE, UNDEFINED_TIMESTAMP
from store.csv_cells import CHAR, MOMENT, PRICE, TEXT, UNDEFINED_TIME, WHOLE
from store.csv_rows import Column, Rows, Start, Symbols, collect_symbols, column_name, parse_rows, prices_are_fixed, read_start
from store.detect import refuse_unless_csv
from store.market_schema import TIMES, is_price
from store.streams import Stream, open_stream

SCHEMAS = tuple(schema for schema in RECORDS if schema not in BAR_NS and schema != "definition")
"""The schemas whose CSV this reads."""
_SCHEMA_OF = {str(RTYPE[schema]): schema for schema in RECORDS if schema != "tbbo"}
_AGAIN = "ts_event (again)"
"""What the second of two `ts_event` columns is called here."""
_COUNTS = ("quantity",)  # whole numbers that may be undefined, as prices may
_LARGEST = 2**63 - 1


@dataclass(frozen=True)
class _Layout:
    """Column of each field that the file has; names, with the second of two `ts_event` columns as _AGAIN."""

    schema: str
    names: tuple[str, ...]
    places: dict[str, int]


def databento_schema(path: str | os.PathLike[str], asked: str | None = None, delimiter: str | None = None) -> str:
    """The schema of a Databento CSV. `asked` tells `tbbo` from `mbp-1`, whose rows look alike. Raises BadInput."""
    with open_stream(path) as stream:
        refuse_unless_csv(stream)
        start = read_start(stream, delimiter)
    return _schema(stream, start, _names(stream, start), asked)


def read_databento_csv(
    path: str | os.PathLike[str], schema: str, delimiter: str | None = None, symbols: Symbols | None = None
) -> Iterator[np.ndarray]:
    """Records (dtype `RECORDS[schema]`) of the CSV (plain, gzip or zstd) in file order. Columns are known by their names and may stand in
    any order.

    `symbols`, when given, is filled from the `symbol` column as batches are read. Empty prices and times become DBN's undefined values.
    Where `ts_event` stands twice and `ts_recv` nowhere, the receive time was lost: it is undefined, if the two columns are equal. Raises
    BadInput naming line and column of a damaged cell, and a column that is missing or stands twice.
    """
    with open_stream(path) as stream:
        refuse_unless_csv(stream)
        start = read_start(stream, delimiter)
        names = _names(stream, start)
        layout = _Layout(schema, names, _places(stream, names, schema))
        if len(start.rows) < 2:
            return
        prices = [place for name, place in layout.places.items() if is_price(name) and name not in _COUNTS]
        fixed = prices_are_fixed(stream, start.rows[1:], names, prices)
        seen: set[int] = set()
        place = names.index("symbol") if "symbol" in names else None
        for rows in parse_rows(stream, start, 1, names, _columns(layout, start.rows[1], fixed)):
            records = _records(stream, rows, layout)
            stamps = np.where(records["ts_recv"] == UNDEFINED_TIMESTAMP, records["ts_event"], records["ts_recv"])
            collect_symbols(stream, rows, place, records["instrument_id"], stamps.astype(np.int64), {} if symbols is None else symbols)
            seen.update(np.unique(records["instrument_id"]).tolist())
            if place is None and len(seen) > 1:
                raise BadInput(
                    f"{path}: holds instruments {', '.join(map(str, sorted(seen)[:5]))} and no symbol column: fetch it with symbols"
                )
            yield records


def _names(stream: Stream, start: Start) -> tuple[str, ...]:
    """The header in small letters; of two `ts_event` (pandas writes the second `ts_event.1`) without `ts_recv` the second is _AGAIN."""
    names = [name.lower() for name in start.rows[0]]
    if "ts_recv" not in names:
        places = [i for i, name in enumerate(names) if name in ("ts_event", "ts_event.1")]
        if len(places) == 2:
            names[places[0]], names[places[1]] = "ts_event", _AGAIN
    return tuple(names)


def _schema(stream: Stream, start: Start, names: tuple[str, ...], asked: str | None) -> str:
    if "rtype" not in names:
        raise BadInput(f"{stream.path}: a Databento CSV without rtype: fetch it with all columns")
    place = names.index("rtype")
    cell = start.rows[1][place] if len(start.rows) > 1 and place < len(start.rows[1]) else None
    if cell is None:
        found = "mbp-10" if "bid_px_01" in names else asked
        if found is None:
            raise BadInput(f"{stream.path}: holds no records: nothing to ingest")
        return found
    found = _SCHEMA_OF.get(cell)
    if found == "mbp-1" and asked == "tbbo":
        found = "tbbo"
    if found not in SCHEMAS:
        what = f"schema {found}" if found else f"{cell[:40]!r} in line 2, {column_name(names, place)}"
        raise BadInput(f"{stream.path}: a Databento CSV of {what}; as CSV {', '.join(SCHEMAS)} and bars can be read: fetch it as DBN")
    return found


def _fields(schema: str) -> list[str]:
    return [name for name in RECORDS[schema].names or () if name != "length" and not name.startswith("_")]


def _places(stream: Stream, names: tuple[str, ...], schema: str) -> dict[str, int]:
    wanted = [name for name in _fields(schema) if not (name == "ts_recv" and _AGAIN in names)]
    missing = [name for name in wanted if name not in names]
    if missing:
        raise BadInput(f"{stream.path}: a CSV of {schema} without {', '.join(missing[:5])}: fetch it with all columns")
    for name in (*wanted, "symbol"):
        if names.count(name) > 1:
            raise BadInput(f"{stream.path}: column {name} stands {names.count(name)} times in line 1: remove the others")
    return {name: names.index(name) for name in wanted}


def _columns(layout: _Layout, example: tuple[str, ...], fixed: bool) -> list[Column]:
    cells = example + ("",) * len(layout.names)
    return [_column(name, cell, fixed, layout.schema) for name, cell in zip(layout.names, cells, strict=False)]


def _column(name: str, example: str, fixed: bool, schema: str) -> Column:
    if name == "symbol":
        return Column(TEXT, empty=0)
    if name in TIMES or name == _AGAIN:
        return Column(MOMENT, unit_ns=int(example.isdigit()), empty=UNDEFINED_TIME)
    if name not in _fields(schema):
        return Column()
    if name == "rtype":
        return Column(WHOLE, low=RTYPE[schema], high=RTYPE[schema])
    if is_price(name):
        whole = fixed or name in _COUNTS
        return Column(WHOLE, low=-_LARGEST, empty=UNDEFINED_PRICE) if whole else Column(PRICE, empty=UNDEFINED_PRICE)
    dtype = RECORDS[schema][name]
    if dtype.kind == "S":
        return Column(CHAR)
    limits = np.iinfo(dtype)
    return Column(WHOLE, low=int(limits.min), high=min(int(limits.max), _LARGEST))


def _records(stream: Stream, rows: Rows, layout: _Layout) -> np.ndarray:
    dtype = RECORDS[layout.schema]
    records = np.zeros(len(rows.lines), dtype)
    records["length"] = dtype.itemsize // 4
    for name, place in layout.places.items():
        column = rows.values[:, place]
        records[name] = column.astype("u1").view("S1") if dtype[name].kind == "S" else column.astype(dtype[name])
    if _AGAIN in layout.names:
        records["ts_recv"] = UNDEFINED_TIMESTAMP
        differs = rows.values[:, layout.names.index(_AGAIN)] != rows.values[:, layout.places["ts_event"]]
        if differs.any():
            line = int(rows.lines[np.argmax(differs)])
            raise BadInput(
                f"{stream.path}: line {line}: the two columns ts_event differ, and there is no ts_recv: name the one that holds the "
                "receive time ts_recv"
            )
    return records
