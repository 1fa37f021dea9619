"""Small tapes for tests, built through `book_tape` and `bar_tape` from columns as the market store gives them."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lob.instruments import Instrument
from lob.tape import Tape
from lob.tape_build import bar_tape, book_tape

ES = Instrument("ES", Fraction(1, 4), Fraction(50), 2_250_000, 17_900_000_000, "cme_globex")
TICK_E9 = 250_000_000
SECOND = 10**9
UNDEFINED = 2**63 - 1


@dataclass(frozen=True)
class Hours:
    """The shape of `lob.calendar.Sessions`, made by hand."""

    trade_date: np.ndarray
    open_ns: np.ndarray
    close_ns: np.ndarray


def hours(*spans: tuple[int, int]) -> Hours:
    """Sessions 20240101, 20240102, … over (open, close) pairs in ns."""
    return Hours(
        np.array([20240101 + i for i in range(len(spans))], np.int32),
        np.array([span[0] for span in spans], np.int64),
        np.array([span[1] for span in spans], np.int64),
    )


def book_columns(events: list[dict], levels: int = 2) -> dict[str, np.ndarray]:
    """MBP columns of events as dicts: `at`, `recv`, `bids` and `asks` as [(ticks, lots), …], `action`, `side`, `size`, `flags`."""
    n = len(events)
    columns: dict[str, np.ndarray] = {
        "ts_event": np.array([e["at"] for e in events], np.int64),
        "ts_recv": np.array([e.get("recv", e["at"]) for e in events], np.int64),
        "action": np.array([e.get("action", "A").encode() for e in events], "S1"),
        "side": np.array([e.get("side", "N").encode() for e in events], "S1"),
        "size": np.array([e.get("size", 1) for e in events], np.uint32),
        "flags": np.array([e.get("flags", 0x80) for e in events], np.uint8),
    }
    for level in range(levels):
        for side, key in (("bid", "bids"), ("ask", "asks")):
            shown = [e.get(key, [])[level] if level < len(e.get(key, [])) else None for e in events]
            columns[f"{side}_px_{level:02d}"] = np.array([UNDEFINED if x is None else round(x[0] * TICK_E9) for x in shown], np.int64)
            columns[f"{side}_sz_{level:02d}"] = np.array([0 if x is None else x[1] for x in shown], np.uint32)
    assert all(len(column) == n for column in columns.values())
    return columns


def undefined_prices(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: column == UNDEFINED for name, column in columns.items() if "_px_" in name and (column == UNDEFINED).any()}


def book(events: list[dict], sessions: Hours, levels: int = 2, instrument: Instrument = ES) -> Tape:
    columns = book_columns(events, levels)
    n = len(events)
    return book_tape(columns, undefined_prices(columns), np.zeros(n, np.int32), np.arange(n), ("f" * 64,), instrument, sessions)


def bar_columns(bars: list[tuple]) -> dict[str, np.ndarray]:
    """OHLCV columns of (start_ns, open, high, low, close, volume) with prices in ticks."""
    columns = {"ts_event": np.array([b[0] for b in bars], np.int64)}
    for i, name in enumerate(("open", "high", "low", "close"), start=1):
        columns[name] = np.array([round(b[i] * TICK_E9) for b in bars], np.int64)
    columns["volume"] = np.array([b[5] for b in bars], np.uint64)
    return columns


def bars(rows: list[tuple], sessions: Hours, slippage_ticks: int = 1, schema: str = "ohlcv-1m", instrument: Instrument = ES) -> Tape:
    n = len(rows)
    return bar_tape(bar_columns(rows), {}, np.zeros(n, np.int32), np.arange(n), ("f" * 64,), instrument, schema, sessions, slippage_ticks)


def random_events(rng: np.random.Generator, count: int, sessions: Hours, levels: int = 2) -> list[dict]:
    """A rough market: equal times, gaps longer than a second, times out of order, halts, crossed runs, mid-event rows, clears."""
    at = int(sessions.open_ns[0]) - int(rng.integers(0, 3)) * SECOND
    mid = 20_000
    events, crossed = [], 0
    for _ in range(count):
        at += int(rng.choice([0, 1_000, 300_000_000, 900_000_000, 4_000_000_000], p=[0.2, 0.3, 0.3, 0.15, 0.05]))
        mid += int(rng.integers(-1, 2))
        crossed = max(0, crossed - 1) if crossed else int(rng.choice([0, 4], p=[0.95, 0.05]))
        spread = -1 if crossed else int(rng.integers(1, 4))
        kind = rng.random()
        event = {
            "at": at - (int(rng.integers(0, SECOND)) if rng.random() < 0.05 else 0),
            "recv": at + int(rng.integers(0, 400_000_000)) - (SECOND if rng.random() < 0.03 else 0),
            "bids": [(mid - level, int(rng.integers(1, 6))) for level in range(levels)],
            "asks": [(mid + spread + level, int(rng.integers(1, 6))) for level in range(levels)],
            "flags": 0x80 if kind < 0.8 else 0x00,
        }
        if rng.random() < 0.15:
            event |= {"action": "T", "side": str(rng.choice(["B", "A", "N"])), "size": int(rng.integers(1, 9))}
        if rng.random() < 0.02:
            event |= {"action": "R", "bids": [], "asks": []}
        if rng.random() < 0.03:
            event["asks"] = []
        if rng.random() < 0.02:
            event["flags"] |= 0x04
        events.append(event)
    return events
