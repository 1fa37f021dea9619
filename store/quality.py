"""The quality report of an ingest: what is odd in the data, counted per instrument, UTC date and trading session while it streams by.
It changes nothing. A session that goes over midnight UTC has a line on either date (the parts of a store are cut by date), and rows outside
every session have lines of their own: the lines of a session, or of a date, add up.

A crossed or locked book is put in the first class that fits: *pre-open* (outside every session of the instrument's calendar), *mid-event*
(the record does not end its event: no F_LAST), else a *data fault*.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lob.calendar import Sessions, session_of
from lob.jit import kernel_cpu
from lob.records import BAR_NS, F_BAD_TS_RECV, F_LAST, F_MAYBE_BAD_BOOK, F_SNAPSHOT, RECORDS, SPARSE, TRADE
from lob.units import UNDEFINED_PRICE, UNDEFINED_TIMESTAMP

BOOK_GAP_NS = 60 * 10**9
"""Silence inside a session that counts as a gap, for records that are events; for bars it is a bar that is missing."""

COUNTERS = (
    "rows", "gaps", "longest_gap_ns", "out_of_order_recv", "out_of_order_event", "undefined_prices", "undefined_times", "off_tick_prices",
    "off_tick_rows", "crossed_pre_open", "crossed_mid_event", "crossed_fault", "locked_pre_open", "locked_mid_event", "locked_fault",
    "one_sided_books", "empty_books", "bad_ts_recv", "maybe_bad_book", "snapshots", "outside_session", "trades", "traded_lots",
    "duplicate_rows", "inconsistent_bars", "unknown_orders", "duplicate_orders", "oversized_cancels", "bad_messages", "book_mismatches",
    "unfounded_books",
)  # fmt: skip
"""What is counted, in the kernels' order; the last six where a book is built, by the builder."""
BUILT = COUNTERS[COUNTERS.index("inconsistent_bars") + 1 :]
TRADED = ("traded_low_e9", "traded_high_e9")
"""Least and greatest price of the trades (of bars: their lows and highs), in 1e-9; None where none is known."""
OUTSIDE = -1
"""Stands for no session: rows outside all of them, or of an instrument whose hours are not known."""

(
    _ROWS, _GAPS, _LONGEST_GAP, _RECV_ORDER, _EVENT_ORDER, _UNDEFINED_PRICES, _UNDEFINED_TIMES, _OFF_TICK_PRICES, _OFF_TICK_ROWS,
    _CROSSED, _CROSSED_MID, _CROSSED_FAULT, _LOCKED, _LOCKED_MID, _LOCKED_FAULT, _ONE_SIDED, _EMPTY, _BAD_RECV, _BAD_BOOK, _SNAPSHOTS,
    _OUTSIDE, _TRADES, _TRADED, _DUPLICATE, _INCONSISTENT,
) = range(len(COUNTERS) - len(BUILT))  # fmt: skip
# What is carried from batch to batch of one instrument.
_MAX_RECV, _MAX_EVENT, _LAST_INDEX, _LAST_SESSION, CURSOR = range(5)

_NEVER = -(2**62)
_NO_TIME = -1  # UNDEFINED_TIMESTAMP seen as int64
_TRADE_ACTION = ord("T")


@dataclass
class InstrumentQuality:
    """Running counts of one instrument of one source, by (UTC date, trade date yyyymmdd of the session or OUTSIDE).

    `days` has the counters, `spans` the (first, last) index time, `traded` the (least, greatest) price traded.
    """

    instrument: str
    schema: str
    tick_e9: int | None
    off_tick_reason: str | None
    sessions: Sessions | None
    session_reason: str | None
    days: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)
    spans: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    traded: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    last_row: bytes = b""
    is_built: bool = False  # whether a builder of books has counted its faults
    covered: tuple[int, int] = (2**62, -(2**62))  # the times for which `sessions` is known
    carried: np.ndarray = field(default_factory=lambda: np.array([_NEVER, _NEVER, _NEVER, _NEVER, 0], np.int64))


def add_faults(quality: InstrumentQuality, date: str, counts: Mapping[str, int]) -> None:
    """Adds what a builder of books counted (names of BUILT) on a date; where that has no row, to the last date before it that has, else
    to the first."""
    quality.is_built = True
    earlier = [day for day in quality.days if day[0] <= date]
    line = quality.days[max(earlier) if earlier else min(quality.days)]
    for name, count in counts.items():
        line[COUNTERS.index(name)] += count


def add_batch(quality: InstrumentQuality, date: str, records: np.ndarray, index_ns: np.ndarray) -> None:
    """Counts a batch of one instrument and date into its sessions. `index_ns` int64[n]: the time that dates each row."""
    held, place = _places(quality, index_ns)
    table = np.zeros((len(held), len(COUNTERS)), np.int64)
    for at, session in enumerate(held):
        _widen(quality.spans, (date, session), index_ns if len(held) == 1 else index_ns[place == at])
    if quality.schema in SPARSE:
        _count_facts(records, table[0], quality.carried)
    else:
        _count_duplicates(quality, records, place, table)
        _note_traded(quality, date, held, place, records)
        _count_rows(quality, records, place, table)
    for at, session in enumerate(held):
        quality.days.setdefault((date, session), np.zeros(len(COUNTERS), np.int64))
        longest = max(quality.days[date, session][_LONGEST_GAP], table[at, _LONGEST_GAP])
        quality.days[date, session] += table[at]
        quality.days[date, session][_LONGEST_GAP] = longest


def _places(quality: InstrumentQuality, index_ns: np.ndarray) -> tuple[list[int], np.ndarray]:
    """(sessions of a batch, int64[n] which of them each row is in)."""
    found = np.full(1, OUTSIDE, np.int32)
    if quality.sessions is not None:
        found = session_of(quality.sessions, np.array([index_ns.min(), index_ns.max()]))
        if found[0] != found[1] or found[0] == OUTSIDE:  # two times outside may have a session between them
            held, place = np.unique(session_of(quality.sessions, index_ns), return_inverse=True)
            return held.tolist(), place.astype(np.int64)
    return [int(found[0])], np.zeros(len(index_ns), np.int64)


def _widen(ranges: dict[tuple[str, int], tuple[int, int]], key: tuple[str, int], values: np.ndarray) -> None:
    low, high = int(values.min()), int(values.max())
    known = ranges.get(key, (low, high))
    ranges[key] = (min(low, known[0]), max(high, known[1]))


def _count_duplicates(quality: InstrumentQuality, records: np.ndarray, place: np.ndarray, table: np.ndarray) -> None:
    """Rows that equal the row before them in every byte."""
    words = _words(records)
    again = np.zeros(len(words), bool)
    _mark_repeats(words, again)
    again[0] = words[0].tobytes() == quality.last_row
    np.add.at(table[:, _DUPLICATE], place[again], 1)
    quality.last_row = words[-1].tobytes()


def _words(records: np.ndarray) -> np.ndarray:
    """int64[n, words of a record]: the records' bytes; a copy where these are not aligned."""
    words = np.require(records, requirements=["C", "A"]).view(np.int64).reshape(len(records), -1)
    return words if words.flags.aligned else words.copy()


@kernel_cpu
def _mark_repeats(words, again):
    """again[i]: row i is row i - 1, word by word up to the first that differs."""
    for i in range(1, words.shape[0]):
        same = True
        for k in range(1, words.shape[1]):  # the event time first: the words before it are alike
            if words[i, k] != words[i - 1, k]:
                same = False
                break
        again[i] = same and words[i, 0] == words[i - 1, 0]


def _note_traded(quality: InstrumentQuality, date: str, held: list[int], place: np.ndarray, records: np.ndarray) -> None:
    if quality.schema in BAR_NS:
        columns = [records["low"], records["high"]]
    elif quality.schema.startswith("bbo"):
        columns = [records["price"]]
    else:
        chosen = np.flatnonzero(records["action"].view(np.uint8) == _TRADE_ACTION)
        columns, place = [records["price"][chosen]], place[chosen]
    for prices in columns:
        known = prices != UNDEFINED_PRICE
        for at, session in enumerate(held):
            mine = prices[known & (place == at)]
            if len(mine):
                _widen(quality.traded, (date, session), mine)


def _count_rows(quality: InstrumentQuality, records: np.ndarray, place: np.ndarray, table: np.ndarray) -> None:
    if quality.schema == "mbo":
        records = _as_trades(records)
    words = _words(records)
    known, tick = quality.sessions is not None, quality.tick_e9 or 0
    none = np.empty(0, np.int64)
    opens, closes = (quality.sessions.open_ns, quality.sessions.close_ns) if quality.sessions is not None else (none, none)
    if quality.schema in BAR_NS:
        _count_bars(words, tick, opens, closes, known, BAR_NS[quality.schema], place, table, quality.carried)
    else:
        levels = (records.dtype.itemsize - TRADE.itemsize) // 32
        _count_book(words, levels, tick, opens, closes, known, BOOK_GAP_NS, place, table, quality.carried)


def _count_facts(records: np.ndarray, counts: np.ndarray, carried: np.ndarray) -> None:
    """Of facts about an instrument only their times are looked at."""
    counts[_ROWS] += len(records)
    for name, place, latest in (("ts_recv", _RECV_ORDER, _MAX_RECV), ("ts_event", _EVENT_ORDER, _MAX_EVENT)):
        times = np.ascontiguousarray(records[name]).view(np.int64)
        known = times[times != _NO_TIME]
        counts[_UNDEFINED_TIMES] += len(times) - len(known)
        if len(known):
            before = np.maximum.accumulate(np.concatenate([carried[latest : latest + 1], known]))
            counts[place] += int((known < before[:-1]).sum())
            carried[latest] = before[-1]


def _as_trades(messages: np.ndarray) -> np.ndarray:
    """MBO records as records of trades: what is counted of both stands in fields that both have."""
    trades = np.zeros(len(messages), TRADE)
    for name in TRADE.names or ():
        if name in (messages.dtype.names or ()):
            trades[name] = messages[name]
    return trades


@kernel_cpu
def _session_at(ts, opens, closes, cursor):
    """Index of the session that holds ts, or -1, and where the search may go on from."""
    n = len(opens)
    while cursor > 0 and ts < opens[cursor]:
        cursor -= 1
    while cursor + 1 < n and ts >= opens[cursor + 1]:
        cursor += 1
    if n > 0 and opens[cursor] <= ts < closes[cursor]:
        return cursor, cursor
    return -1, cursor


@kernel_cpu
def _count_time(index, session, opens, known_sessions, gap_ns, counts, carried):
    """Gaps between rows of one session (of the whole file where sessions are unknown). A session is known by its opening time."""
    opened = opens[session] if session >= 0 else _NEVER
    same = opened == carried[_LAST_SESSION] and session >= 0 if known_sessions else carried[_LAST_INDEX] != _NEVER
    silence = index - carried[_LAST_INDEX]
    if same and silence > gap_ns:
        counts[_GAPS] += 1
        counts[_LONGEST_GAP] = max(counts[_LONGEST_GAP], silence)
    carried[_LAST_INDEX] = index
    carried[_LAST_SESSION] = opened
    if known_sessions and session < 0:
        counts[_OUTSIDE] += 1


@kernel_cpu
def _count_book(words, levels, tick, opens, closes, known_sessions, gap_ns, place, table, carried):
    """Records of trades, mbp-1 and mbp-10, as 64-bit words: header, ts_event, price, size|action|side|flags|depth, ts_recv, delta|sequence,
    then per level bid price, ask price, sizes, counts."""
    cursor = carried[CURSOR]
    checked = np.zeros(2 * levels + 1, np.int64)  # a price that repeats the one that stood there is not divided again
    checked_off = np.zeros(2 * levels + 1, np.int64)
    for i in range(words.shape[0]):
        counts = table[place[i]]
        counts[_ROWS] += 1
        event, recv, packed = words[i, 1], words[i, 4], words[i, 3]
        counts[_UNDEFINED_TIMES] += (event == _NO_TIME) + (recv == _NO_TIME)
        if recv != _NO_TIME:
            counts[_RECV_ORDER] += recv < carried[_MAX_RECV]
            carried[_MAX_RECV] = max(carried[_MAX_RECV], recv)
        if event != _NO_TIME:
            counts[_EVENT_ORDER] += event < carried[_MAX_EVENT]
            carried[_MAX_EVENT] = max(carried[_MAX_EVENT], event)
        index = recv if recv != _NO_TIME else event
        session, cursor = _session_at(index, opens, closes, cursor)
        _count_time(index, session, opens, known_sessions, gap_ns, counts, carried)
        action = (packed >> 32) & 0xFF
        flags = (packed >> 48) & 0xFF
        counts[_BAD_RECV] += (flags & F_BAD_TS_RECV) != 0
        counts[_BAD_BOOK] += (flags & F_MAYBE_BAD_BOOK) != 0
        counts[_SNAPSHOTS] += (flags & F_SNAPSHOT) != 0
        if action == _TRADE_ACTION:
            counts[_TRADES] += 1
            counts[_TRADED] += packed & 0xFFFFFFFF
        off = 0
        for k in range(2 * levels + 1):
            price = words[i, 2] if k == 0 else words[i, 6 + 4 * ((k - 1) >> 1) + ((k - 1) & 1)]
            if price == UNDEFINED_PRICE:
                counts[_UNDEFINED_PRICES] += 1
            elif tick > 0:
                if price != checked[k]:
                    checked[k] = price
                    checked_off[k] = price % tick != 0
                off += checked_off[k]
        counts[_OFF_TICK_PRICES] += off
        counts[_OFF_TICK_ROWS] += off > 0
        if levels > 0:
            bid, ask = words[i, 6], words[i, 7]
            if bid == UNDEFINED_PRICE and ask == UNDEFINED_PRICE:
                counts[_EMPTY] += 1
            elif bid == UNDEFINED_PRICE or ask == UNDEFINED_PRICE:
                counts[_ONE_SIDED] += 1
            elif bid >= ask:
                kind = _CROSSED if bid > ask else _LOCKED
                if not (known_sessions and session < 0):
                    kind += 1 if (flags & F_LAST) == 0 else 2
                counts[kind] += 1
    carried[CURSOR] = cursor


@kernel_cpu
def _count_bars(words, tick, opens, closes, known_sessions, bar_ns, place, table, carried):
    """OHLCV records as 64-bit words: header, ts_event, open, high, low, close, volume."""
    cursor = carried[CURSOR]
    for i in range(words.shape[0]):
        counts = table[place[i]]
        counts[_ROWS] += 1
        event = words[i, 1]
        counts[_EVENT_ORDER] += event < carried[_MAX_EVENT]
        carried[_MAX_EVENT] = max(carried[_MAX_EVENT], event)
        session, cursor = _session_at(event, opens, closes, cursor)
        _count_time(event, session, opens, known_sessions, bar_ns, counts, carried)
        off, undefined = 0, 0
        for k in range(2, 6):
            if words[i, k] == UNDEFINED_PRICE:
                undefined += 1
            elif tick > 0:
                off += words[i, k] % tick != 0
        counts[_UNDEFINED_PRICES] += undefined
        counts[_OFF_TICK_PRICES] += off
        counts[_OFF_TICK_ROWS] += off > 0
        low, high = words[i, 4], words[i, 3]
        if undefined == 0 and not (low <= words[i, 2] <= high and low <= words[i, 5] <= high):
            counts[_INCONSISTENT] += 1
        counts[_TRADED] += words[i, 6]
    carried[CURSOR] = cursor


def report(quality: InstrumentQuality) -> list[dict[str, Any]]:
    """One row per date and session. A count that cannot be made is None, with the reason beside it if it needs one."""
    bars = quality.schema in BAR_NS
    book = "bid_px_00" in (RECORDS[quality.schema].names or ())
    absent: set[str] = set()
    if bars:
        absent |= {"out_of_order_recv", "bad_ts_recv", "maybe_bad_book", "snapshots", "trades"}
    else:
        absent.add("inconsistent_bars")
    if quality.schema.startswith("bbo"):
        absent |= {"trades", "traded_lots"}
    if quality.schema in SPARSE:
        absent |= set(COUNTERS) - {"rows", "out_of_order_recv", "out_of_order_event", "undefined_times"}
    if not book:
        absent |= {name for name in COUNTERS if name.startswith(("crossed", "locked")) or name.endswith("_books")}
    if not quality.is_built:
        absent |= set(BUILT)
    if quality.tick_e9 is None:
        absent |= {"off_tick_prices", "off_tick_rows"}
    if quality.sessions is None:
        absent |= {"outside_session", "crossed_pre_open", "locked_pre_open"}
    rows = []
    for key in sorted(quality.days):
        date, session = key
        counts = dict(zip(COUNTERS, quality.days[key].tolist(), strict=True))
        row: dict[str, Any] = {"instrument": quality.instrument, "schema": quality.schema, "date": date}
        row |= {"session_id": None if session == OUTSIDE else session}
        row |= {"start_ns": quality.spans[key][0], "end_ns": quality.spans[key][1]}
        for kind in ("crossed", "locked"):
            row[kind] = sum(counts[name] for name in COUNTERS if name.startswith(kind)) if book else None
        row |= {name: None if name in absent else counts[name] for name in COUNTERS}
        row |= dict(zip(TRADED, quality.traded.get(key, (None, None)), strict=True))
        row |= {"off_tick_reason": quality.off_tick_reason, "session_reason": quality.session_reason}
        rows.append(row)
    return rows


assert UNDEFINED_TIMESTAMP == 2**64 - 1, "the kernels see the undefined time as -1"
