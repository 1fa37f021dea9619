"""The oracle's market: raw rows to events, in plain Python and Fractions. Shares no code with `lob.tape_build` or `cuda_env`.

A `Row` is one raw record. `events` gives each its running-maximum times and says whether an order may meet it (docs/step.md, "Time").
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path

F_LAST, F_MAYBE_BAD_BOOK = 0x80, 0x04
UNDEFINED = 2**63 - 1
E9 = 10**9


@dataclass(frozen=True)
class Row:
    source: int
    row: int
    ts_event: int
    ts_recv: int
    flags: int
    bids: tuple[tuple[int, int], ...]  # (price in 1e-9, size), best first; an undefined price is UNDEFINED
    asks: tuple[tuple[int, int], ...]
    action: str = "A"


@dataclass(frozen=True)
class Event:
    source: int
    row: int
    ts_event: int  # running maximum
    ts_recv: int  # running maximum
    trusted: bool
    tradable: bool
    session: int  # trade date, -1 outside
    bids: tuple[tuple[int, int], ...]  # (ticks, lots)
    asks: tuple[tuple[int, int], ...]
    level: int = -1  # bars: 0 open, 1 low, 2 high, 3 close; books: -1, the level is the index

    @property
    def mid2(self) -> int:
        return self.bids[0][0] + self.asks[0][0]


def rows_of_dbn(path: Path, instrument_id: int | None = None) -> list[Row]:
    """The MBP-10 rows of a DBN file, read by the public decoder. `row` counts every record of the file, as the store does."""
    import databento_dbn as dbn

    compression = dbn.Compression.ZSTD if path.suffix == ".zst" else dbn.Compression.NONE
    decoder = dbn.DBNDecoder(compression=compression, upgrade_policy=dbn.VersionUpgradePolicy.AS_IS)
    decoder.write(path.read_bytes())
    records = [record for record in decoder.decode() if isinstance(record, dbn.MBP10Msg)]
    return [
        Row(
            0,
            i,
            record.ts_event,
            record.ts_recv,
            int(record.flags),
            tuple((level.bid_px, level.bid_sz) for level in record.levels),
            tuple((level.ask_px, level.ask_sz) for level in record.levels),
            str(record.action),
        )
        for i, record in enumerate(records)
        if instrument_id is None or record.instrument_id == instrument_id
    ]


def session_at(sessions: Sequence[tuple[int, int, int]], ts: int) -> int:
    """Trade date of the (date, open, close) session that holds `ts`, else -1."""
    return next((date for date, start, end in sessions if start <= ts < end), -1)


@cache
def _in_ticks(price: int, tick: Fraction) -> Fraction:
    return Fraction(price, E9) / tick


def _shown(side: tuple[tuple[int, int], ...], tick: Fraction) -> list[tuple[Fraction, int]]:
    """(price in ticks, lots) per level; a level without a price or a size shows nothing."""
    return [(_in_ticks(price, tick), size) if price != UNDEFINED and size else (Fraction(0), 0) for price, size in side]


def events(rows: Iterable[Row], tick: Fraction, sessions: Sequence[tuple[int, int, int]]) -> list[Event]:
    """A row is trusted when it ends an event or clears the book, and tradable when it is trusted, no clear, not flagged as a maybe bad
    book, in a session, two-sided, uncrossed, and every level that it shows is on the tick."""
    out: list[Event] = []
    ts_event = ts_recv = 0
    for row in rows:
        ts_event, ts_recv = max(ts_event, row.ts_event), max(ts_recv, row.ts_recv)
        clear = row.action == "R"
        bids, asks = ([], []) if clear else (_shown(row.bids, tick), _shown(row.asks, tick))
        session = session_at(sessions, ts_event)
        trusted = clear or bool(row.flags & F_LAST)
        tradable = trusted and not clear and not row.flags & F_MAYBE_BAD_BOOK and session >= 0
        tradable = tradable and bids[0][1] > 0 and asks[0][1] > 0 and bids[0][0] < asks[0][0]
        tradable = tradable and all(ticks.denominator == 1 for ticks, _ in bids + asks)
        ticks = [tuple((int(price), lots) for price, lots in side) for side in (bids, asks)]
        out.append(Event(row.source, row.row, ts_event, ts_recv, trusted, tradable, session, ticks[0], ticks[1]))
    return out


@dataclass(frozen=True)
class Bar:
    row: int
    start: int
    prices: tuple[int, int, int, int]  # open, low, high, close in 1e-9; UNDEFINED where there is none


ROOM = 10**9
"""Lots that a bar's event shows: room for any size."""


def bar_events(bars: Iterable[Bar], length: int, tick: Fraction, slippage: int, sessions: Sequence[tuple[int, int, int]]) -> list[Event]:
    """Four events a bar. The open stands at the bar's start, the others at its end, by when all are received (docs/step.md, "Bars")."""
    out: list[Event] = []
    for bar in bars:
        session = session_at(sessions, bar.start)
        prices = [_in_ticks(price, tick) for price in bar.prices]
        first, low, high, last = prices
        usable = session >= 0 and UNDEFINED not in bar.prices and all(price.denominator == 1 for price in prices)
        usable = usable and low <= min(first, last) and high >= max(first, last)
        for level, price in enumerate(prices):
            ticks = int(price)
            ts = bar.start if level == 0 else bar.start + length
            book = (((ticks - slippage, ROOM),), ((ticks + slippage, ROOM),))
            out.append(Event(0, bar.row, ts, bar.start + length, True, usable, session, *book, level=level))
    return out


@dataclass(frozen=True)
class Decision:
    """One decision (or the drain): indices into the events, times in ns."""

    ts: int
    observed: int
    mark: int
    fill: int
    ts_filled: int
    session: int


def last_received(tape: Sequence[Event], ts: int) -> int:
    """Index of the last event with `ts_recv <= ts`, -1 if none."""
    return bisect_right(tape, ts, key=lambda event: event.ts_recv) - 1


def last_tradable(tape: Sequence[Event], index: int) -> int:
    """The last tradable event at or before `index`, -1 if none."""
    return next((i for i in range(index, -1, -1) if tape[i].tradable), -1)


def meets(tape: Sequence[Event], sessions: Sequence[tuple[int, int, int]], arrival: int) -> int:
    """The event that an order arriving then meets: the standing book if tradable in that session, else the next tradable; -1 none."""
    if tape[0].level >= 0:  # bars: the open of the first bar that begins at or after the arrival
        return next((i for i, event in enumerate(tape) if event.tradable and event.level == 0 and event.ts_event >= arrival), -1)
    standing = bisect_right(tape, arrival, key=lambda event: event.ts_event) - 1
    while standing >= 0 and not tape[standing].trusted:
        standing -= 1
    if standing >= 0 and tape[standing].tradable and tape[standing].session == session_at(sessions, arrival):
        return standing
    return next((i for i in range(standing + 1, len(tape)) if tape[i].tradable), -1)


def drain_event(tape: Sequence[Event], end: int, max_lots: int) -> int:
    """The last tradable event received before `end` that shows `max_lots` on both sides, -1 if none."""
    last = bisect_left(tape, end, key=lambda event: event.ts_recv) - 1
    for i in range(last, -1, -1):
        shown = min(sum(lots for _, lots in tape[i].bids), sum(lots for _, lots in tape[i].asks))
        if tape[i].tradable and shown >= max_lots and tape[i].level in (-1, 3):
            return i
    return -1


def schedule(
    tape: Sequence[Event],
    sessions: Sequence[tuple[int, int, int]],
    ticks: Sequence[int],
    end: int,
    latency: int,
    max_lots: int,
) -> list[Decision]:
    """Decisions at those of the clock's `ticks` that the one-order-in-flight rule leaves; the last entry is the drain. Empty: none."""
    drain = drain_event(tape, end, max_lots)
    decisions: list[Decision] = []
    ready = -1
    for ts in ticks:
        observed = last_received(tape, ts)
        mark = last_tradable(tape, observed)
        session = session_at(sessions, ts)
        if ts < ready or mark < 0 or session < 0 or tape[mark].session != session:
            continue
        fill = meets(tape, sessions, ts + latency)
        if fill < 0 or fill >= drain:
            break
        ts_filled = max(ts + latency, tape[fill].ts_event)
        ready = max(tape[fill].ts_recv, ts_filled, ts + 1)
        if max(tape[fill].ts_recv, ts_filled) > tape[drain].ts_event:
            break
        decisions.append(Decision(ts, observed, mark, fill, ts_filled, session))
    if not decisions:
        return []
    last = tape[drain]
    observed = last_received(tape, last.ts_event)
    return [*decisions, Decision(last.ts_event, observed, last_tradable(tape, observed), drain, last.ts_event, last.session)]
