"""The market as verify sees it: raw store columns, and for each row whether an order may meet it, judged anew from those columns.

Shares nothing with `lob.tape_build`: the rules are docs/step.md's, written again in numpy.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

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

    @property
    def mid2(self) -> np.ndarray:
        return self.bid[:, 0] + self.ask[:, 0]

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


def row_key(source: np.ndarray, row: np.ndarray) -> np.ndarray:
    return source.astype(np.int64) << _ROW_BITS | row.astype(np.int64)


def market_of(columns: Columns, schema: str, tick_e9: int, slippage_ticks: int, sessions: Any, sources: tuple[str, ...]) -> Market:
    """The market of raw columns. `sessions` has `trade_date`, `open_ns`, `close_ns`; `sources` is the run's own list of files."""
    place = {sha: i for i, sha in enumerate(sources)}
    names = np.array([place.get(sha, (1 << 20) + i) for i, sha in enumerate(columns.sources)], np.int64)
    key = row_key(names[columns.source] if len(columns.source) else columns.source, columns.row)
    shared = {"opens": sessions.open_ns, "closes": sessions.close_ns, "dates": sessions.trade_date}
    if schema in BAR_NS:
        return _bars(columns, schema, tick_e9, slippage_ticks, key, shared)
    return _books(columns, tick_e9, key, shared)


def book_columns(schema: str) -> list[str]:
    """The store columns that a book market needs."""
    levels = 1 if schema == "mbp-1" else 10
    parts = [f"{side}_{what}_{i:02d}" for i in range(levels) for side in ("bid", "ask") for what in ("px", "sz")]
    return ["ts_event", "ts_recv", "flags", "action", "size", *parts]


BAR_COLUMNS = ["ts_event", "open", "high", "low", "close"]


def _books(columns: Columns, tick_e9: int, key: np.ndarray, shared: dict[str, np.ndarray]) -> Market:
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
        **shared,
    )
    session = market.session_of(event)
    two_sided = (market.bid_lots[:, 0] > 0) & (market.ask_lots[:, 0] > 0) & (market.bid[:, 0] < market.ask[:, 0])
    tradable = market.trusted & ~clear & (flags & F_MAYBE_BAD_BOOK == 0) & (session >= 0) & two_sided & on_tick
    return Market(**{**market.__dict__, "tradable": tradable, "session": session})


def _bars(columns: Columns, schema: str, tick_e9: int, slippage: int, key: np.ndarray, shared: dict[str, np.ndarray]) -> Market:
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
