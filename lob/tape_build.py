"""From the market store's columns to a `Tape`.

Which rows count, for books (every MBP row carries the whole standing book, whatever its action):

- A row ends an event, and is *trusted*, when it carries `F_LAST`. A row without it shows a book in the middle of an event. A clear
  (action R) is trusted too, whatever its flags: it ends the book that stood before it, and its own levels are empty. Snapshot rows
  are rows like any other: the one with `F_LAST` is the first book of the stream.
- A trusted row is *tradable* when it is no clear, its book is not flagged `F_MAYBE_BAD_BOOK`, its event time lies in a session, both best
  levels are defined, every defined level is a whole number of ticks, and bid < ask. Otherwise it is counted in `Tape.barred` under the
  first reason that holds, in the order of `BAR_REASONS`. A crossed book out of session is `outside_session`, inside an event
  `mid_event`; `crossed` and `locked` are what is left: faults of the data.
- A level is defined when its price is and its size is not 0. Undefined levels hold 0 lots and 0 ticks.
- Only action T prints: aggressor side and size go to `trade_side` and `trade_lots` (an auction print has side 0), its price, where the
  columns hold `price`, to `trade_ticks`; a price off the tick stays NO_PRICE and bars nothing. F and N print nothing.
- `F_BAD_TS_RECV` rows are noted and stay; so are rows without one of the two times, which then stand at the other one.
"""

from typing import Any

import numpy as np

from lob.book import CROSSED, EMPTY, LOCKED, ONE_SIDED, shape_of
from lob.errors import BadInput
from lob.instruments import Instrument
from lob.jit import kernel_cpu
from lob.records import BAR_NS, F_BAD_TS_RECV, F_LAST, F_MAYBE_BAD_BOOK, F_SNAPSHOT
from lob.tape import NO_PRICE, Tape

BAR_REASONS = (
    "mid_event", "cleared", "maybe_bad_book", "outside_session", "no_book", "one_sided", "off_tick", "inconsistent_bar", "crossed",
    "locked",
)  # fmt: skip
"""Why a row is untradable, in the order in which the reasons are asked."""

BAR_LOTS = 1_000_000_000
"""What each side of a bar's event shows: room for any size."""

OPEN, LOW, HIGH, CLOSE = range(4)

_MAX_TICKS = 2**31 - 1
_BLOCK = 1 << 12  # rows converted at a time: a block's levels stay in the second-level cache
_ACTION_CLEAR, _ACTION_TRADE = ord("R"), ord("T")
_SIDE_BID, _SIDE_ASK = ord("B"), ord("A")
_NONE = np.zeros(0, dtype=np.bool_)


def book_tape(
    columns: dict[str, np.ndarray],
    undefined: dict[str, np.ndarray],
    source: np.ndarray,
    row: np.ndarray,
    sources: tuple[str, ...],
    instrument: Instrument,
    sessions: Any,
) -> Tape:
    """The tape of MBP columns (`ts_event`, `ts_recv`, `action`, `side`, `size`, `flags`, and per level `bid_px_NN`, `ask_px_NN`,
    `bid_sz_NN`, `ask_sz_NN`; `price`, where prints are to have one), each of length E, in file order; prices in 1e-9.

    `undefined[name]` marks what is null in a column (a column without a mask has no nulls). `source` and `row` say where each row
    came from; `sessions` are the `lob.calendar.Sessions` that touch the range. Raises BadInput: no rows, no book columns, a price or a
    size that an int32 cannot hold.
    """
    levels = 0
    while f"bid_px_{levels:02d}" in columns:
        levels += 1
    if levels == 0:
        raise BadInput(f"{instrument.root}: these columns hold no book (no bid_px_00): use a schema with levels, like mbp-10")
    events = len(row)
    if events == 0:
        raise BadInput(f"{instrument.root}: no rows to make a tape of: widen the range")

    noted: dict[str, int] = {}
    ts_event, ts_recv = _times(columns, undefined, noted)
    flags = np.ascontiguousarray(columns["flags"]).astype(np.uint8, copy=False)
    for name, flag in (("bad_ts_recv", F_BAD_TS_RECV), ("snapshot", F_SNAPSHOT)):
        if count := int(np.count_nonzero(flags & flag)):
            noted[name] = count

    ticks = {side: np.empty((events, levels), dtype=np.int32) for side in ("bid", "ask")}
    lots = {side: np.empty((events, levels), dtype=np.int32) for side in ("bid", "ask")}
    off_tick = np.zeros(events, dtype=np.int8)
    planes = [
        (
            level, columns[f"{side}_px_{level:02d}"], undefined.get(f"{side}_px_{level:02d}", _NONE),
            columns[f"{side}_sz_{level:02d}"], undefined.get(f"{side}_sz_{level:02d}", _NONE), ticks[side], lots[side],
        )
        for level in range(levels)
        for side in ("bid", "ask")
    ]  # fmt: skip
    tick_e9 = instrument.tick_price_e9  # a Fraction's product: once, not per block
    for first in range(0, events, _BLOCK):
        block = slice(first, first + _BLOCK)
        for level, price, no_price, size, no_size, out_ticks, out_lots in planes:
            fault = _convert_level(
                price[block], no_price[block], size[block], no_size[block], tick_e9, level,
                out_ticks[block], out_lots[block], off_tick[block],
            )  # fmt: skip
            if fault >= 0:
                side = "bid" if out_ticks is ticks["bid"] else "ask"
                _refuse(first + fault, f"{side}_px_{level:02d}", price, size, row, source, sources, instrument)

    action, side_code = _codes(columns["action"]), _codes(columns["side"])
    size = np.ascontiguousarray(columns["size"]).astype(np.int64, copy=False)
    if (mask := undefined.get("size")) is not None:
        size = np.where(mask, 0, size)
    trusted, tradable = np.empty(events, np.bool_), np.empty(events, np.bool_)
    session, trade_side = np.empty(events, np.int32), np.empty(events, np.int8)
    trade_lots = np.empty(events, np.int64)
    counts = _classify_books(
        ts_event, flags, action, side_code, size, ticks["bid"], ticks["ask"], lots["bid"], lots["ask"], off_tick,
        sessions.trade_date, sessions.open_ns, sessions.close_ns, trusted, tradable, session, trade_side, trade_lots,
    )  # fmt: skip
    named_levels = [
        (f"{side}_px_{level:02d}", columns[f"{side}_px_{level:02d}"], lots[side][:, level])
        for level in range(levels)
        for side in ("bid", "ask")
    ]
    return Tape(
        instrument=instrument,
        schema=f"mbp-{levels}",
        ts_event_ns=ts_event,
        ts_recv_ns=ts_recv,
        bid_ticks=ticks["bid"],
        ask_ticks=ticks["ask"],
        bid_lots=lots["bid"],
        ask_lots=lots["ask"],
        trusted=trusted,
        tradable=tradable,
        trade_side=trade_side,
        trade_lots=trade_lots,
        point=np.full(events, -1, dtype=np.int8),
        source=np.ascontiguousarray(source, dtype=np.int32),
        row=np.ascontiguousarray(row, dtype=np.int64),
        session=session,
        sources=tuple(sources),
        session_dates=np.ascontiguousarray(sessions.trade_date, dtype=np.int32),
        session_open_ns=np.ascontiguousarray(sessions.open_ns, dtype=np.int64),
        session_close_ns=np.ascontiguousarray(sessions.close_ns, dtype=np.int64),
        barred=_named(counts),
        noted=noted,
        notes=_off_tick_notes(off_tick, named_levels, row, source, sources, instrument),
        trade_ticks=_print_ticks(columns["price"], undefined.get("price", _NONE), trade_lots, tick_e9) if "price" in columns else None,
    )


def bar_tape(
    columns: dict[str, np.ndarray],
    undefined: dict[str, np.ndarray],
    source: np.ndarray,
    row: np.ndarray,
    sources: tuple[str, ...],
    instrument: Instrument,
    schema: str,
    sessions: Any,
    slippage_ticks: int,
) -> Tape:
    """The tape of B bars (`ts_event` = the bar's start, `open`, `high`, `low`, `close` in 1e-9, `volume`): 4*B one-level events.

    Events of a bar stand in the order open, low, high, close. Bid and ask are the price minus and plus `slippage_ticks`, each side with
    room for any size. The open is stamped with the bar's start, the other three with its end, by when they have surely traded; all
    four are received at its end. The session is that of the bar's start. A bar is barred whole: an undefined or off-tick price, a start
    outside every session, a low above or a high below another price (`inconsistent_bar`). Raises BadInput as `book_tape` does.
    """
    if schema not in BAR_NS:
        raise BadInput(f"{instrument.root}: {schema} holds no bars: use one of {', '.join(BAR_NS)}")
    if slippage_ticks < 1:
        raise BadInput(f"slippage of {slippage_ticks} ticks: a bar has no spread of its own, so give it at least 1")
    bars = len(row)
    if bars == 0:
        raise BadInput(f"{instrument.root}: no bars to make a tape of: widen the range")

    noted: dict[str, int] = {}
    stamps = {"ts_event": columns["ts_event"], "ts_recv": columns["ts_event"]}
    start_ns, _ = _times(stamps, {name: undefined[name] for name in ("ts_event",) if name in undefined}, noted)
    prices = np.empty((4, bars), dtype=np.int32)
    defined = np.empty((4, bars), dtype=np.int32)
    off_tick = np.zeros(bars, dtype=np.int8)
    names = ("open", "low", "high", "close")
    one = np.ones(bars, dtype=np.int64)
    for point, name in enumerate(names):
        fault = _convert_level(
            columns[name], undefined.get(name, _NONE), one, _NONE, instrument.tick_price_e9, 0,
            prices[point].reshape(-1, 1), defined[point].reshape(-1, 1), off_tick,
        )  # fmt: skip
        if fault < 0 and len(over := np.nonzero(np.abs(prices[point].astype(np.int64)) > _MAX_TICKS - slippage_ticks)[0]):
            fault = int(over[0])
        if fault >= 0:
            _refuse(fault, name, columns[name], one, row, source, sources, instrument)

    volume = np.ascontiguousarray(columns["volume"]).astype(np.int64, copy=False)
    if (mask := undefined.get("volume")) is not None:
        volume = np.where(mask, 0, volume)
    bar_session, tradable = np.empty(bars, np.int32), np.empty(bars, np.bool_)
    counts = _classify_bars(
        start_ns, prices, defined, off_tick, sessions.trade_date, sessions.open_ns, sessions.close_ns, bar_session, tradable
    )  # fmt: skip
    end_ns = start_ns + BAR_NS[schema]
    by_point = np.ascontiguousarray(prices.T).reshape(-1)
    trade_lots = np.zeros(4 * bars, dtype=np.int64)
    trade_lots[CLOSE::4] = volume
    ts_event = np.repeat(end_ns, 4)
    ts_event[OPEN::4] = start_ns
    return Tape(
        instrument=instrument,
        schema=schema,
        ts_event_ns=np.maximum.accumulate(ts_event),  # a gap never goes backwards, overlapping bars would
        ts_recv_ns=np.repeat(end_ns, 4),
        bid_ticks=(by_point - np.int32(slippage_ticks)).reshape(-1, 1),
        ask_ticks=(by_point + np.int32(slippage_ticks)).reshape(-1, 1),
        bid_lots=np.full((4 * bars, 1), BAR_LOTS, dtype=np.int32),
        ask_lots=np.full((4 * bars, 1), BAR_LOTS, dtype=np.int32),
        trusted=np.ones(4 * bars, dtype=np.bool_),
        tradable=np.repeat(tradable, 4),
        trade_side=np.zeros(4 * bars, dtype=np.int8),
        trade_lots=trade_lots,
        point=np.tile(np.arange(4, dtype=np.int8), bars),
        source=np.repeat(np.asarray(source, dtype=np.int32), 4),
        row=np.repeat(np.asarray(row, dtype=np.int64), 4),
        session=np.repeat(bar_session, 4),
        sources=tuple(sources),
        session_dates=np.ascontiguousarray(sessions.trade_date, dtype=np.int32),
        session_open_ns=np.ascontiguousarray(sessions.open_ns, dtype=np.int64),
        session_close_ns=np.ascontiguousarray(sessions.close_ns, dtype=np.int64),
        barred=_named(counts),
        noted=noted,
        notes=_off_tick_notes(
            off_tick, [(name, columns[name], defined[point]) for point, name in enumerate(names)], row, source, sources, instrument
        ),
    )


def _times(columns: dict[str, np.ndarray], undefined: dict[str, np.ndarray], noted: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Running maxima of event and receive time, int64[E] each. A null time takes the other one; both null, the running maximum."""
    event = columns["ts_event"].astype(np.int64)
    recv = columns["ts_recv"].astype(np.int64)
    no_event, no_recv = (undefined.get(name) for name in ("ts_event", "ts_recv"))
    for name, mask in (("no_ts_event", no_event), ("no_ts_recv", no_recv)):
        if mask is not None and (count := int(np.count_nonzero(mask))):
            noted[name] = count
    if no_event is not None:
        event[no_event] = 0
    if no_recv is not None:
        recv[no_recv] = event[no_recv]
    if no_event is not None:
        event[no_event] = recv[no_event]
    for name, times in (("ts_event_out_of_order", event), ("ts_recv_out_of_order", recv)):
        if count := int(np.count_nonzero(times[1:] < times[:-1])):
            noted[name] = count
    return np.maximum.accumulate(event), np.maximum.accumulate(recv)


def _codes(column: np.ndarray) -> np.ndarray:
    """uint8 character codes of a column of one-byte strings, or of the codes themselves."""
    if column.dtype.kind == "S":
        return np.ascontiguousarray(column).view(np.uint8)[:: column.dtype.itemsize]
    if column.dtype.kind in "UO":
        return np.ascontiguousarray(column.astype("S1")).view(np.uint8)
    return np.ascontiguousarray(column).astype(np.uint8, copy=False)


def _named(counts: np.ndarray) -> dict[str, int]:
    return {name: int(count) for name, count in zip(BAR_REASONS, counts, strict=True) if count}


def _refuse(fault, name, price, size, row, source, sources, instrument) -> None:
    where = f"row {int(row[fault])} of source {sources[int(source[fault])][:12]}"
    raise BadInput(
        f"{instrument.root}: {name} of {where} is {int(price[fault])}e-9 for {int(size[fault])} lots, beyond what an int32 holds in "
        f"ticks of {instrument.tick} or in lots: check the instrument's tick, or leave that row out of the range"
    )


def _off_tick_notes(off_tick, named_prices, row, source, sources, instrument) -> tuple[str, ...]:
    """One line that names the first row whose price is no whole number of ticks, if there is one."""
    rows = np.nonzero(off_tick)[0]
    if not len(rows):
        return ()
    first, tick = int(rows[0]), instrument.tick_price_e9
    name, price = next((name, int(prices[first])) for name, prices, shown in named_prices if shown[first] and int(prices[first]) % tick)
    return (
        f"{len(rows)} rows hold a price that is no multiple of the tick {instrument.tick} ({tick}e-9) and are barred from trading: "
        f"first row {int(row[first])} of source {sources[int(source[first])][:12]}, {name} = {price}e-9",
    )


@kernel_cpu
def _convert_level(price, no_price, size, no_size, tick_e9, level, ticks, lots, off_tick):
    """Write one level of a block: ticks and lots, 0 where undefined; mark rows off the tick. Returns the first row that an int32 cannot
    hold, or -1.

    `rint(price / tick)` in float64 is the exact quotient whenever price is a multiple of the tick and the quotient is below 2^31 (its
    relative error is some 2^-52), and the integer product tells whether it is one: exact, without a 64-bit division.
    """
    inverse = 1.0 / tick_e9
    for i in range(len(price)):
        if (len(no_price) and no_price[i]) or (len(no_size) and no_size[i]) or size[i] == 0:
            ticks[i, level] = 0
            lots[i, level] = 0
            continue
        quotient = np.rint(price[i] * inverse)
        if abs(quotient) > _MAX_TICKS or size[i] > _MAX_TICKS:
            return i
        whole = np.int64(quotient)
        if whole * tick_e9 != price[i]:
            off_tick[i] = 1
        ticks[i, level] = whole
        lots[i, level] = size[i]
    return -1


@kernel_cpu
def _print_ticks(price, no_price, lots, tick_e9):
    """int32[E]: the price of every row that prints, NO_PRICE of the others and where it is null, off the tick or beyond an int32."""
    ticks = np.full(len(price), NO_PRICE, np.int32)
    for i in range(len(price)):
        if lots[i] == 0 or (len(no_price) and no_price[i]):
            continue
        whole = price[i] // tick_e9
        if whole * tick_e9 == price[i] and abs(whole) <= _MAX_TICKS:
            ticks[i] = whole
    return ticks


@kernel_cpu
def _classify_books(
    ts_event, flags, action, side, size, bid_ticks, ask_ticks, bid_lots, ask_lots, off_tick,
    dates, opens, closes, trusted, tradable, session, trade_side, trade_lots,
):  # fmt: skip
    """Fill the last five arrays row by row and clear the levels of R rows; returns how many rows each of `BAR_REASONS` bars."""
    counts = np.zeros(len(BAR_REASONS), np.int64)
    s = 0
    for i in range(len(ts_event)):
        while s < len(opens) and closes[s] <= ts_event[i]:
            s += 1
        session[i] = dates[s] if s < len(opens) and opens[s] <= ts_event[i] else -1
        clear = action[i] == _ACTION_CLEAR
        if clear:
            for level in range(bid_lots.shape[1]):
                bid_lots[i, level] = 0
                ask_lots[i, level] = 0
        trusted[i] = clear or (flags[i] & F_LAST) != 0
        trade_side[i] = 0
        trade_lots[i] = 0
        if action[i] == _ACTION_TRADE:
            trade_lots[i] = size[i]
            if side[i] == _SIDE_BID:
                trade_side[i] = 1
            elif side[i] == _SIDE_ASK:
                trade_side[i] = -1
        shape = shape_of(bid_ticks[i, 0], ask_ticks[i, 0], bid_lots[i, 0], ask_lots[i, 0])
        reason = -1
        if not trusted[i]:
            reason = 0
        elif clear:
            reason = 1
        elif flags[i] & F_MAYBE_BAD_BOOK:
            reason = 2
        elif session[i] < 0:
            reason = 3
        elif shape == EMPTY:
            reason = 4
        elif shape == ONE_SIDED:
            reason = 5
        elif off_tick[i]:
            reason = 6
        elif shape == CROSSED:
            reason = 8
        elif shape == LOCKED:
            reason = 9
        tradable[i] = reason < 0
        if reason >= 0:
            counts[reason] += 1
    return counts


@kernel_cpu
def _classify_bars(start_ns, prices, defined, off_tick, dates, opens, closes, session, tradable):
    """Fill `session` and `tradable` bar by bar; returns how many bars each of `BAR_REASONS` bars."""
    counts = np.zeros(len(BAR_REASONS), np.int64)
    s = 0
    for i in range(len(start_ns)):
        while s < len(opens) and closes[s] <= start_ns[i]:
            s += 1
        session[i] = dates[s] if s < len(opens) and opens[s] <= start_ns[i] else -1
        known = defined[0, i] > 0 and defined[1, i] > 0 and defined[2, i] > 0 and defined[3, i] > 0
        first, low, high, last = prices[0, i], prices[1, i], prices[2, i], prices[3, i]
        reason = -1
        if session[i] < 0:
            reason = 3
        elif not known:
            reason = 4
        elif off_tick[i]:
            reason = 6
        elif low > min(first, last) or high < max(first, last):
            reason = 7
        tradable[i] = reason < 0
        if reason >= 0:
            counts[reason] += 1
    return counts
