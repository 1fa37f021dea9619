"""The market as verify sees it: raw store columns, and for each row whether an order may meet it, judged anew from those columns.

Shares nothing with `lob.tape_build`: the rules are docs/step.md's, written again in numpy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from sim.run_data import distinct

F_LAST, F_MAYBE_BAD_BOOK = 0x80, 0x04
NS = 10**9
BAR_NS = {"ohlcv-1s": NS, "ohlcv-1m": 60 * NS, "ohlcv-1h": 3600 * NS, "ohlcv-1d": 86_400 * NS}
POINTS = ("open", "low", "high", "close")
_ROW_BITS = 40


class Columns(Protocol):
    """What `store.market_read.read_columns` returns."""

    @property
    def arrays(self) -> dict[str, np.ndarray]: ...

    @property
    def undefined(self) -> dict[str, np.ndarray]: ...

    @property
    def source(self) -> np.ndarray: ...

    @property
    def row(self) -> np.ndarray: ...

    @property
    def sources(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Market:
    """n events: book rows, or four per bar (open, low, high, close). Prices in ticks; a level that shows nothing holds 0 lots."""

    key: np.ndarray  # int64[n]: source and row
    ts_event: np.ndarray  # int64[n], running maximum
    ts_recv: np.ndarray  # int64[n], running maximum
    trusted: np.ndarray  # bool[n]
    tradable: np.ndarray  # bool[n]
    session: np.ndarray  # int32[n]: trade date, -1 outside
    bid: np.ndarray  # int64[n, L] ticks
    ask: np.ndarray
    bid_lots: np.ndarray  # int64[n, L]
    ask_lots: np.ndarray
    opens: np.ndarray  # int64[S]: sessions
    closes: np.ndarray
    dates: np.ndarray
    bars: bool
    printed: np.ndarray  # int64[n]: lots that the row printed (action T)
    parts: tuple[tuple[int, int], ...] = ()  # for each window the events [first, last) that were read for it; none: all, for one window
    aggressor: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # int64[n]: side of a print's aggressor, 0 none,
    print_ticks: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # its price,
    print_on_tick: np.ndarray = field(default_factory=lambda: np.empty(0, bool))  # and whether that is whole; empty without `price`
    goes_on_until_ns: int = -1  # time of the last row that the store holds, also behind what was read; -1: not known

    @property
    def mid2(self) -> np.ndarray:
        return self.bid[:, 0] + self.ask[:, 0]

    def of_window(self, window: int) -> "tuple[Market, int]":
        """(the events that were read for a window, the index of their first one): what lies in other reads cannot be met or seen there."""
        if not self.parts:
            return self, 0
        first, last = self.parts[window]
        return replace(self, parts=(), **{name: getattr(self, name)[first:last] for name in _PER_EVENT}), first

    def find(self, source: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Index of the first event of each (source, row), -1 where the store has none."""
        wanted = row_key(source, row)
        order = np.argsort(self.key, kind="stable")
        at = np.searchsorted(self.key[order], wanted)
        index = order[np.minimum(at, len(order) - 1)] if len(order) else np.zeros(len(wanted), np.int64)
        return np.where((at < len(order)) & (self.key[index] == wanted), index, -1) if len(order) else np.full(len(wanted), -1)

    def session_of(self, ts: np.ndarray) -> np.ndarray:
        """Trade date of each time, -1 outside every session."""
        at = np.searchsorted(self.opens, ts, side="right") - 1
        inside = (at >= 0) & (ts < self.closes[np.maximum(at, 0)]) if len(self.opens) else np.zeros(len(ts), bool)
        return np.where(inside, self.dates[np.maximum(at, 0)], -1) if len(self.opens) else np.full(len(ts), -1)


_PER_EVENT = (
    "key", "ts_event", "ts_recv", "trusted", "tradable", "session", "bid", "ask", "bid_lots", "ask_lots", "printed", "aggressor",
    "print_ticks", "print_on_tick",
)  # fmt: skip


def join_markets(markets: Sequence[Market], windows: Sequence[int]) -> Market:
    """The events of several reads, one after another; `windows[w]` is the read that serves window w."""
    begins = np.cumsum([0, *(len(market.key) for market in markets)])
    sessions = {name: np.concatenate([getattr(market, name) for market in markets]) for name in ("opens", "closes", "dates")}
    _, first = np.unique(sessions["opens"], return_index=True)
    joined: dict[str, Any] = {name: np.concatenate([getattr(market, name) for market in markets]) for name in _PER_EVENT}
    joined |= {name: values[first] for name, values in sessions.items()}
    return Market(
        **joined,
        bars=markets[0].bars,
        parts=tuple((int(begins[read]), int(begins[read + 1])) for read in windows),
    )


def meets(market: Market, arrival: np.ndarray) -> np.ndarray:
    """Index of the event that an order arriving at each time meets; -1 none. docs/step.md, "Time"."""
    n = len(market.key)
    if not n:
        return np.full(len(arrival), -1)
    ahead = np.append(np.where(market.tradable & ((np.arange(n) % 4 == 0) | (not market.bars)), np.arange(n), n), n)
    following = np.minimum.accumulate(ahead[::-1])[::-1]  # first tradable event at or after i
    if market.bars:
        first = np.searchsorted(market.ts_event[0::4], arrival, side="left") * 4
        return _or_none(following[np.minimum(first, n)], n)
    trusted = np.maximum.accumulate(np.where(market.trusted, np.arange(n), -1))
    last = np.searchsorted(market.ts_event, arrival, side="right") - 1
    standing = np.where(last >= 0, trusted[np.maximum(last, 0)], -1)
    at = np.maximum(standing, 0)
    session = market.session_of(arrival)
    stands = (standing >= 0) & market.tradable[at] & (market.session[at] == session) & (session >= 0)
    return _or_none(np.where(stands, standing, following[last + 1]), n)


def _or_none(index: np.ndarray, n: int) -> np.ndarray:
    return np.where(index < n, index, -1)


def met_in(market: Market, arrival: np.ndarray, window: np.ndarray) -> np.ndarray:
    """`meets` for arrivals int64[n] of orders in windows int64[n]: among the events that were read for each."""
    out = np.full(len(arrival), -1, np.int64)
    for one in distinct(window).tolist():
        rows = window == one
        part, first = market.of_window(one)
        index = meets(part, arrival[rows])
        out[rows] = np.where(index >= 0, index + first, -1)
    return out


def received_in(market: Market, ts: np.ndarray, windows: np.ndarray) -> np.ndarray:
    """Index int64[S, G] of the last event received at or before each time, in windows int64[G]; -1 none."""
    out = np.empty(ts.shape, np.int64)
    for g, window in enumerate(windows.tolist()):
        part, first = market.of_window(window)
        index = np.searchsorted(part.ts_recv, ts[:, g], side="right") - 1
        out[:, g] = np.where(index >= 0, index + first, -1)
    return out


def row_key(source: np.ndarray, row: np.ndarray) -> np.ndarray:
    return source.astype(np.int64) << _ROW_BITS | row.astype(np.int64)


def market_of(columns: Columns, schema: str, tick_e9: int, slippage_ticks: int, sessions: Any, sources: tuple[str, ...]) -> Market:
    """The market of raw columns. `sessions` has `trade_date`, `open_ns`, `close_ns`; `sources` is the run's own list of files."""
    place = {sha: i for i, sha in enumerate(sources)}
    names = np.array([place.get(sha, (1 << 20) + i) for i, sha in enumerate(columns.sources)], np.int64)
    key = row_key(names[columns.source] if len(columns.source) else columns.source, columns.row)
    shared: dict[str, Any] = {"opens": sessions.open_ns, "closes": sessions.close_ns, "dates": sessions.trade_date}
    if schema in BAR_NS:
        return _bars(columns, schema, tick_e9, slippage_ticks, key, shared)
    return _books(columns, tick_e9, key, shared)


def book_columns(schema: str, prints: bool = False) -> list[str]:
    """The store columns that a book market needs; with `prints`, one in which orders wait for prints."""
    levels = 1 if schema == "mbp-1" else 10
    parts = [f"{side}_{what}_{i:02d}" for i in range(levels) for side in ("bid", "ask") for what in ("px", "sz")]
    return ["ts_event", "ts_recv", "flags", "action", "size", *(["side", "price"] if prints else []), *parts]


BAR_COLUMNS = ["ts_event", "open", "high", "low", "close"]


def _books(columns: Columns, tick_e9: int, key: np.ndarray, shared: dict[str, Any]) -> Market:
    arrays, undefined, n = columns.arrays, columns.undefined, len(key)
    levels = sum(name.startswith("bid_px_") for name in arrays)
    event, recv = _time(arrays, undefined, "ts_event", "ts_recv"), _time(arrays, undefined, "ts_recv", "ts_event")
    flags = arrays["flags"].astype(np.uint8)
    clear = arrays["action"].astype("S1") == b"R"
    on_tick = np.ones(n, bool)
    ticks = {side: np.zeros((n, levels), np.int64) for side in ("bid", "ask")}
    lots = {side: np.zeros((n, levels), np.int64) for side in ("bid", "ask")}
    for side in ("bid", "ask"):
        for i in range(levels):
            price, size = arrays[f"{side}_px_{i:02d}"], arrays[f"{side}_sz_{i:02d}"]
            shown = (size > 0) & ~undefined.get(f"{side}_px_{i:02d}", np.zeros(n, bool)) & ~clear
            whole = price // tick_e9
            on_tick &= ~shown | (whole * tick_e9 == price)
            ticks[side][:, i] = np.where(shown, whole, 0)
            lots[side][:, i] = np.where(shown, size, 0)
    event, recv = np.maximum.accumulate(event), np.maximum.accumulate(recv)
    market = Market(
        key,
        event,
        recv,
        clear | (flags & F_LAST > 0),
        clear,
        np.empty(0),
        ticks["bid"],
        ticks["ask"],
        lots["bid"],
        lots["ask"],
        bars=False,
        printed=np.where(arrays["action"].astype("S1") == b"T", arrays["size"].astype(np.int64), 0),
        **_prints(columns, tick_e9),
        **shared,
    )
    session = market.session_of(event)
    two_sided = (market.bid_lots[:, 0] > 0) & (market.ask_lots[:, 0] > 0) & (market.bid[:, 0] < market.ask[:, 0])
    tradable = market.trusted & ~clear & (flags & F_MAYBE_BAD_BOOK == 0) & (session >= 0) & two_sided & on_tick
    return Market(**{**market.__dict__, "tradable": tradable, "session": session})


def _prints(columns: Columns, tick_e9: int) -> dict[str, Any]:
    """Side, price and soundness of every print, where the columns hold a price."""
    arrays = columns.arrays
    if "price" not in arrays or "side" not in arrays:
        return {}
    trade, side = arrays["action"].astype("S1") == b"T", arrays["side"].astype("S1")
    whole = arrays["price"] // tick_e9
    null = columns.undefined.get("price", np.zeros(len(whole), bool))
    return {
        "aggressor": np.where(trade & (side == b"B"), 1, np.where(trade & (side == b"A"), -1, 0)),
        "print_ticks": np.where(trade & ~null, whole, 0).astype(np.int64),
        "print_on_tick": trade & ~null & (whole * tick_e9 == arrays["price"]),
    }


def _bars(columns: Columns, schema: str, tick_e9: int, slippage: int, key: np.ndarray, shared: dict[str, Any]) -> Market:
    arrays, undefined, n = columns.arrays, columns.undefined, len(key)
    start = np.maximum.accumulate(arrays["ts_event"].astype(np.int64)) if n else np.empty(0, np.int64)
    end = start + BAR_NS[schema]
    prices = np.stack([arrays[point].astype(np.int64) for point in POINTS], axis=1)
    known = ~np.logical_or.reduce([undefined.get(point, np.zeros(n, bool)) for point in POINTS])
    whole = prices // tick_e9
    on_tick = (whole * tick_e9 == prices).all(axis=1)
    consistent = (whole[:, 1] <= whole.min(axis=1)) & (whole[:, 2] >= whole.max(axis=1))
    event = np.repeat(end, 4)
    event[0::4] = start
    flat = whole.reshape(-1, 1)
    room = np.full_like(flat, 2**40)
    empty = np.empty(0)
    market = Market(
        np.repeat(key, 4),
        np.maximum.accumulate(event),
        np.repeat(end, 4),
        np.ones(4 * n, bool),
        empty,
        empty,
        flat - slippage,
        flat + slippage,
        room,
        room,
        bars=True,
        printed=empty,
        **shared,
    )
    session = market.session_of(start)
    tradable = known & on_tick & consistent & (session >= 0)
    return Market(**{**market.__dict__, "tradable": np.repeat(tradable, 4), "session": np.repeat(session, 4)})


def _time(arrays: dict[str, np.ndarray], undefined: dict[str, np.ndarray], name: str, other: str) -> np.ndarray:
    """int64 times; an undefined one stands at the other one."""
    values = arrays[name].astype(np.int64)
    missing = undefined.get(name)
    if missing is None:
        return values
    fallback = np.where(undefined.get(other, np.zeros(len(values), bool)), 0, arrays[other].astype(np.int64))
    return np.where(missing, fallback, values)
