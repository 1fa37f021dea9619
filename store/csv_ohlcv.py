"""CSV bars to OHLCV records. Prices are exact; times are UTC ns of the bar's open, as in DBN.

What is told from the file: delimiter, header or none, column names in their usual spellings, the form of the times. What the user
states: the time zone (unless the times carry one), whether bars are stamped at their start or end, and month-first or day-first where
dates are so written.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from zoneinfo import ZoneInfo

import numpy as np

from lob.errors import BadInput
from lob.records import BAR_NS, OHLCV, RTYPE
from store.bar_order import BarOrder
from store.csv_cells import CLOCK, DATE, DAY_FIRST, MOMENT, MONTH_FIRST, PRICE, TEXT, WHOLE, YEAR_FIRST
from store.csv_rows import Column, Rows, Start, Symbols, collect_symbols, column_name, parse_rows, prices_are_fixed, read_start
from store.detect import refuse_unless_csv
from store.local_time import RepeatedHour, finish, to_utc, zone_of
from store.streams import Stream, open_stream

STAMPS = ("start", "end")
DATE_ORDERS = {"ymd": YEAR_FIRST, "mdy": MONTH_FIRST, "dmy": DAY_FIRST}
_SPELLINGS = {
    "time": {
        "timestamp", "timestamputc", "timestampgmt", "datetime", "datetimeutc", "dateandtime", "datetimegmt", "tsevent", "ts",
        "opentime", "bartime", "starttime", "endtime", "closetime", "gmttime", "timeutc", "utctime", "localtime", "unixtime",
        "unix", "epoch",
    },
    "date": {"date", "day", "dateutc", "tradedate", "bardate"},
    "clock": {"time", "hour", "timeofday"},
    "open": {"open", "o", "openprice", "first", "op"},
    "high": {"high", "h", "highprice", "max", "hi"},
    "low": {"low", "l", "lowprice", "min", "lo"},
    "close": {"close", "c", "closeprice", "last", "cl"},
    "volume": {"volume", "v", "vol", "totalvolume", "tradevolume", "qty", "quantity"},
    "symbol": {"symbol", "ticker", "instrument", "contract", "sym"},
    "instrument_id": {"instrumentid"},
    "publisher_id": {"publisherid"},
    "rtype": {"rtype"},
}  # fmt: skip
_PRICES = ("open", "high", "low", "close")
_EPOCH_UNITS_NS = {9: 10**9, 10: 10**9, 13: 10**6, 16: 10**3, 19: 1}
"""Digits of a whole number that counts from 1970 -> the unit that it counts."""
_DATE_ONLY = re.compile(r"\d{8}|\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}")
_YEAR_LAST = re.compile(r"\d{1,2}[-/.]\d{1,2}[-/.]\d{4}")
_ZONED = re.compile(r".*\d(Z|\s*UTC|\s*[+-]\d\d(:?\d\d)?)")


@dataclass(frozen=True)
class _Layout:
    """Where the parts of a bar stand: column of each part ("time", or "date" and maybe "clock"; prices; volume), names, lines to skip."""

    places: dict[str, int]
    names: tuple[str, ...]
    skip: int


def read_ohlcv_csv(
    path: str | os.PathLike[str],
    schema: str,
    timezone: str | None = None,
    stamp: str = "start",
    delimiter: str | None = None,
    columns: Mapping[str, str] | None = None,
    date_order: str | None = None,
    symbols: Symbols | None = None,
) -> Iterator[np.ndarray]:
    """OHLCV records (`lob.records.OHLCV`) of a CSV of bars, plain, gzip or zstd, in file order; `ts_event` is the bar's open.

    `timezone` is the IANA zone of times without one; `stamp` says whether a time is its bar's "start" or "end"; `columns` names the column
    of a part ("time", "date", "clock", "open", "high", "low", "close", "volume"), or its number from 1 where there is no header;
    `date_order` is "mdy" or "dmy" for dates with the year last. `symbols`, when given, is filled from a column of symbols as
    batches are read; instrument_id comes from its column, else it counts the symbols from 1, else it is 0. Databento's own CSV (it has
    `rtype`) may hold prices in 1e-9.

    Bars out of time order are kept. Raises BadInput naming line and column of a damaged cell, the line of a bar given twice or closer to
    the one before than the schema's bar, and whatever the file leaves open.
    """
    check_options(path, schema, stamp, date_order)
    with open_stream(path) as stream:
        refuse_unless_csv(stream)
        start = read_start(stream, delimiter)
        layout = _layout(stream, start, columns or {})
        if len(start.rows) <= layout.skip:
            return
        example = start.rows[layout.skip]
        order = _date_order(stream, layout, example, date_order)
        parsed = parse_rows(stream, start, layout.skip, layout.names, _columns(stream, start, layout, schema), order)
        yield from _bars(stream, layout, parsed, schema, timezone, stamp, {} if symbols is None else symbols)


def parse_columns(text: str | None) -> dict[str, str]:
    """`time=When,open=O` as a mapping from parts of a bar to columns. Raises BadInput."""
    pairs = [pair.partition("=") for pair in (text or "").split(",") if pair.strip()]
    bad = next((part for part, equals, column in pairs if not (part.strip() in _SPELLINGS and equals and column.strip())), None)
    if bad is not None:
        raise BadInput(f"--columns {text!r}: write parts and columns like time=When,open=O; the parts are {', '.join(_SPELLINGS)}")
    return {part.strip(): column.strip() for part, _, column in pairs}


def check_options(path: str | os.PathLike[str], schema: str, stamp: str, date_order: str | None) -> None:
    """Raises BadInput when an option is none of its values."""
    if schema not in BAR_NS:
        raise BadInput(f"{path}: a CSV of bars cannot have schema {schema}; these can: {', '.join(BAR_NS)}")
    if stamp not in STAMPS:
        raise BadInput(f"{path}: bars are stamped at their {' or '.join(STAMPS)}, not at {stamp!r}")
    if date_order is not None and date_order not in DATE_ORDERS:
        raise BadInput(f"{path}: a date order is one of {', '.join(DATE_ORDERS)}, not {date_order!r}")


def told_bars(path: str | os.PathLike[str], delimiter: str | None = None) -> str | None:
    """The schema of a CSV of bars that says it: Databento's, by the `rtype` of its first row. None where nothing is said."""
    with open_stream(path) as stream:
        refuse_unless_csv(stream)
        start = read_start(stream, delimiter)
    names = [name.lower() for name in start.rows[0]]
    if "rtype" not in names or len(start.rows) < 2 or len(start.rows[1]) != len(names):
        return None
    cell = start.rows[1][names.index("rtype")]
    return next((schema for schema in BAR_NS if str(RTYPE[schema]) == cell), None)


def _bars(
    stream: Stream, layout: _Layout, parsed: Iterator[Rows], schema: str, timezone: str | None, stamp: str, symbols: Symbols
) -> Iterator[np.ndarray]:
    where = str(stream.path)
    before_ns = BAR_NS[schema] if stamp == "end" else 0
    zone, zoned = None, None
    seen: dict[int, tuple[RepeatedHour, BarOrder]] = {}
    numbers: dict[bytes, int] = {}
    for rows in parsed:
        if zoned is None:
            zoned = bool(rows.zoned[0])
            zone = None if zoned else zone_of(_stated_zone(stream, layout, timezone), where)
        odd = rows.zoned != zoned
        if odd.any():
            line = int(rows.lines[np.argmax(odd)])
            raise BadInput(f"{where}: line {line}: its time names {'no ' if zoned else 'a '}zone, unlike the lines before: make them alike")
        stamps = sum(rows.values[:, layout.places[part]] for part in ("time", "date", "clock") if part in layout.places)
        assert isinstance(stamps, np.ndarray)
        ids = _instrument_ids(rows, layout, numbers)
        opens = np.empty_like(stamps)
        for instrument_id in np.unique(ids):
            its = np.flatnonzero(ids == instrument_id)
            hour, order = seen.setdefault(int(instrument_id), (RepeatedHour(), BarOrder(where, schema)))
            opens[its] = _opens(stamps[its], before_ns, schema, zone, hour, rows.lines[its], where)
            order.check(opens[its], rows.lines[its])
        records = np.zeros(len(opens), OHLCV)
        records["length"], records["rtype"], records["ts_event"] = OHLCV.itemsize // 4, RTYPE[schema], opens
        records["instrument_id"] = ids
        if "publisher_id" in layout.places:
            records["publisher_id"] = rows.values[:, layout.places["publisher_id"]]
        for part in (*_PRICES, "volume"):
            records[part] = rows.values[:, layout.places[part]]
        collect_symbols(stream, rows, layout.places.get("symbol"), ids, opens, symbols)
        if "symbol" not in layout.places and len(seen) > 1:
            raise BadInput(
                f"{where}: holds instruments {', '.join(map(str, list(seen)[:5]))} and no column that names them: add their symbols"
            )
        yield records
    if zone is not None:
        for hour, _ in seen.values():
            finish(hour, zone, where)


def _instrument_ids(rows: Rows, layout: _Layout, numbers: dict[bytes, int]) -> np.ndarray:
    """Instrument of each row, int64[rows]: its id, else its symbol's number in order of appearance (kept in `numbers`), else 0."""
    if "instrument_id" in layout.places:
        return rows.values[:, layout.places["instrument_id"]]
    if "symbol" not in layout.places:
        return np.zeros(len(rows.lines), np.int64)
    names, firsts, of_row = np.unique(rows.text(layout.places["symbol"]), return_index=True, return_inverse=True)
    for i in np.argsort(firsts):
        numbers.setdefault(bytes(names[i]), len(numbers) + 1)
    return np.array([numbers[bytes(name)] for name in names], np.int64)[of_row]


def _opens(
    stamps: np.ndarray, before_ns: int, schema: str, zone: ZoneInfo | None, hour: RepeatedHour, lines: np.ndarray, where: str
) -> np.ndarray:
    """UTC ns of the bars' opens. A day's bar stamped at its end opens a *local* day earlier; shorter bars are a fixed time."""
    if zone is None:
        opens = stamps - before_ns
    elif schema == "ohlcv-1d":
        opens = to_utc(stamps - before_ns, lines, zone, hour, True, where)
    else:
        opens = to_utc(stamps, lines, zone, hour, False, where) - before_ns
    if (opens < 0).any():
        raise BadInput(f"{where}: line {int(lines[np.argmax(opens < 0)])}: its bar opens before 1970")
    return opens


def _stated_zone(stream: Stream, layout: _Layout, timezone: str | None) -> str:
    """The zone of times that carry none: the user's, else UTC where the column's name says so."""
    place = layout.places.get("time", layout.places.get("date", 0))
    says_utc = re.search(r"utc|gmt", layout.names[place].lower()) is not None
    if timezone is None and not says_utc:
        raise BadInput(f"{stream.path}: its times name no time zone: state it, like --timezone America/New_York or --timezone UTC")
    if timezone is not None and says_utc and timezone.upper() not in ("UTC", "GMT", "ETC/UTC", "ETC/GMT"):
        raise BadInput(
            f"{stream.path}: {column_name(layout.names, place)} says UTC, but --timezone is {timezone}: leave it out, or rename the column"
        )
    return timezone or "UTC"


def _layout(stream: Stream, start: Start, stated: Mapping[str, str]) -> _Layout:
    first = start.rows[0]
    unknown = sorted(set(stated) - set(_SPELLINGS))
    if unknown:
        raise BadInput(f"{stream.path}: no such part of a bar: {', '.join(unknown)}; the parts are {', '.join(_SPELLINGS)}")
    if _is_header(first):
        return _Layout(_places_by_name(stream, first, stated), first, 1)
    names = [""] * len(first)
    places = _places_by_number(stream, first, stated) if stated else _places_by_shape(stream, first)
    for part, place in places.items():
        names[place] = part
    return _Layout(places, tuple(names), 0)


def _is_header(cells: tuple[str, ...]) -> bool:
    """A header has at most one cell that begins like a number; a bar has five or more."""
    return sum(re.match(r"[-+]?\.?\d", cell) is not None for cell in cells) <= 1


def _places_by_name(stream: Stream, names: tuple[str, ...], stated: Mapping[str, str]) -> dict[str, int]:
    plain = [re.sub(r"[^a-z0-9]", "", name.lower()) for name in names]
    places: dict[str, int] = {}
    for part, spellings in _SPELLINGS.items():
        wanted = stated.get(part)
        hits = [i for i, name in enumerate(names) if (name == wanted if wanted is not None else plain[i] in spellings)]
        if wanted is not None and not hits:
            raise BadInput(f"{stream.path}: no column is named {wanted!r}; the columns are {', '.join(names)}")
        if len(hits) > 1:
            both = " and ".join(column_name(names, i) for i in hits)
            remedy = "rename one" if len({names[i] for i in hits}) < len(hits) else f"say which, like --columns {part}={names[hits[0]]}"
            raise BadInput(f"{stream.path}: {both} could both be the {part}: {remedy}")
        if hits:
            places[part] = hits[0]
    return _complete(stream, places, ", ".join(names))


def _complete(stream: Stream, places: dict[str, int], found: str) -> dict[str, int]:
    """The places that make up a bar: of the times, one column alone or a date and a clock. Raises BadInput when a part is missing."""
    if "time" in places:
        places = {part: place for part, place in places.items() if part not in ("date", "clock")}
    elif "date" not in places and "clock" in places:
        places = {("time" if part == "clock" else part): place for part, place in places.items()}
    missing = [part for part in (*_PRICES, "volume") if part not in places]
    if "time" not in places and "date" not in places:
        missing.insert(0, "time")
    if missing:
        raise BadInput(f"{stream.path}: no column for {', '.join(missing)} among: {found[:200]}: name it, like --columns {missing[0]}=NAME")
    return places


def _places_by_number(stream: Stream, first: tuple[str, ...], stated: Mapping[str, str]) -> dict[str, int]:
    places = {}
    for part, number in stated.items():
        if not number.isascii() or not number.isdigit() or not 1 <= int(number) <= len(first):
            raise BadInput(f"{stream.path}: has no header, so a column is a number from 1 to {len(first)}, not {number!r}")
        places[part] = int(number) - 1
    if len(set(places.values())) < len(places):
        raise BadInput(f"{stream.path}: one column is stated for two parts of a bar")
    return _complete(stream, places, f"{len(first)} columns without a header")


def _places_by_shape(stream: Stream, first: tuple[str, ...]) -> dict[str, int]:
    """time, open, high, low, close, volume; or the same with date and clock apart."""
    parts: tuple[str, ...] = ("time", *_PRICES, "volume")
    if len(first) == 7 and _DATE_ONLY.fullmatch(first[0]) and re.fullmatch(r"\d{1,2}:\d\d(:\d\d(\.\d+)?)?|\d{4}|\d{6}", first[1]):
        parts = ("date", "clock", *_PRICES, "volume")
    if len(first) != len(parts):
        raise BadInput(
            f"{stream.path}: {len(first)} columns and no header; without one they are time,open,high,low,close,volume "
            "(time may be date,time): state them, like --columns time=1,open=2,high=3,low=4,close=5,volume=6"
        )
    return {part: place for place, part in enumerate(parts)}


def _columns(stream: Stream, start: Start, layout: _Layout, schema: str) -> list[Column]:
    """How each column is parsed; whether times count from 1970, in what unit, and whether prices are in 1e-9, is told by the first bars."""
    example = start.rows[layout.skip]
    prices = [layout.places[part] for part in _PRICES]
    fixed = "rtype" in layout.places and prices_are_fixed(stream, start.rows[layout.skip :], layout.names, prices)
    columns = [Column() for _ in layout.names]
    for part, place in layout.places.items():
        text = example[place] if place < len(example) else ""
        if part in ("time", "date"):
            unit_ns = _EPOCH_UNITS_NS.get(len(text), 0) if part == "time" and text.isascii() and text.isdigit() else 0
            columns[place] = Column(DATE if part == "date" and "clock" in layout.places else MOMENT, unit_ns)
        elif part == "clock":
            columns[place] = Column(CLOCK)
        elif part == "symbol":
            columns[place] = Column(TEXT)
        elif part == "rtype":
            columns[place] = Column(WHOLE, low=RTYPE[schema], high=RTYPE[schema])
        elif part == "instrument_id":
            columns[place] = Column(WHOLE, high=2**32 - 1)
        elif part == "publisher_id":
            columns[place] = Column(WHOLE, high=2**16 - 1)
        elif part in _PRICES:
            columns[place] = Column(WHOLE, low=-(2**63) + 1, high=2**63 - 2) if fixed else Column(PRICE)
        else:
            columns[place] = Column(WHOLE)
    return columns


def _date_order(stream: Stream, layout: _Layout, example: tuple[str, ...], stated: str | None) -> int:
    place = layout.places.get("time", layout.places.get("date", 0))
    text = example[place] if place < len(example) else ""
    if _YEAR_LAST.match(text) and stated is None:
        raise BadInput(f"{stream.path}: is {text!r} month first or day first? State --date-order mdy or dmy")
    return DATE_ORDERS[stated or "ymd"]
