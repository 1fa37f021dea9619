"""Bars for the tools that decide at a bar's end: markets read without our readers, strategies in plain Python, and our replay of them."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from lob.actions import Direction, Magnitude, OrderKind, Urgency, encode_action
from lob.instruments import REGISTRY, resolve
from lob.synth import synthesize_day
from sim.ingest import ingest
from sim.plan import plan_replay
from sim.replay import replay
from sim.run_data import load

KEEP = 99
"""In a list of targets: nothing is decided at this bar."""

MAX_LOTS = 4
MINUTE = 60 * 10**9
HEADER = "timestamp,open,high,low,close,volume"
NEW_YORK = ZoneInfo("America/New_York")
ACCOUNT = {"capital_usd_micros": 10**15, "max_lots": MAX_LOTS, "trail_ticks": 0, "margin_usd_micros": 1}
"""So much that no gate touches a pick: what is wanted is what is held."""


@dataclass(frozen=True)
class Market:
    """One-minute bars of a window, and the store that holds them with what lies around it."""

    store: Path
    symbol: str
    start_ns: np.ndarray  # int64[n]: each bar's open
    prices: np.ndarray  # float64[n, 4]: open, high, low, close

    @property
    def window(self) -> tuple[int, int]:
        """[start, end) that holds exactly these bars' ends."""
        return int(self.start_ns[0]) + MINUTE, int(self.start_ns[-1]) + MINUTE + 1

    @property
    def closes_session(self) -> np.ndarray:
        """bool[n]: bars whose end is 17:00 in New York, when Globex closes."""
        ends = (dt.datetime.fromtimestamp((start + MINUTE) / 1e9, NEW_YORK) for start in self.start_ns.tolist())
        return np.array([(end.hour, end.minute) == (17, 0) for end in ends])


def market_of_file(path: Path, folder: Path, symbol: str, zone: str, stamp: str, start: str, end: str) -> Market:
    """The bars of a CSV file that open within [start, end), UTC; the store holds the whole file. `stamp`: what its times are of a bar."""
    first, last = (int(dt.datetime.fromisoformat(f"{text}+00:00").timestamp()) * 10**9 for text in (start, end))
    early = MINUTE if stamp == "end" else 0
    rows = [(opens, *prices) for time, *prices in _rows(path, ZoneInfo(zone)) if first <= (opens := time - early) < last]
    ingest(path, folder, instrument=symbol, schema="ohlcv-1m", timezone=zone, stamp=stamp)
    return Market(folder, symbol, np.array([row[0] for row in rows]), np.array([row[1:] for row in rows]))


def _rows(path: Path, zone: ZoneInfo) -> Iterator[tuple[int, float, float, float, float]]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        for line in csv.reader(file):
            if line[0][:1].isdigit():
                time = dt.datetime.fromisoformat(line[0]).replace(tzinfo=zone)
                yield int(time.timestamp()) * 10**9, float(line[1]), float(line[2]), float(line[3]), float(line[4])


def synthetic_market(folder: Path, symbol: str = "NQH4", events: int = 60_000, seed: int = 5) -> Market:
    """The best bid of a day of our own generator, minute by minute; minutes without a row are missing, as on a real tape."""
    records = synthesize_day(resolve(symbol), dt.date(2024, 3, 5), events, seed)
    minute = records["ts_recv"].astype(np.int64) // MINUTE
    starts = np.flatnonzero(np.diff(minute, prepend=-1))
    bid = records["bid_px_00"]
    last = bid[np.append(starts[1:], len(bid)) - 1]
    columns = (bid[starts], np.maximum.reduceat(bid, starts), np.minimum.reduceat(bid, starts), last)
    prices = np.stack(columns, axis=1) / 1e9
    lines = [HEADER]
    for start, row in zip(minute[starts].tolist(), prices.tolist(), strict=True):
        lines.append(f"{dt.datetime.fromtimestamp(start * 60, dt.UTC):%Y-%m-%d %H:%M:%S},{','.join(f'{price:.2f}' for price in row)},1")
    path = folder / "bars.csv"
    path.write_text("\n".join(lines) + "\n")
    ingest(path, folder / "store", instrument=symbol, schema="ohlcv-1m", timezone="UTC")
    return Market(folder / "store", symbol, minute[starts] * MINUTE, prices)


# --- what is wanted after each bar's end ---


def crossing(close: list[float], fast: int = 5, slow: int = 20) -> list[int]:
    """Always in the market: full size, long where the mean of the last `fast` closes is above that of the last `slow`, short below."""
    targets = [KEEP] * len(close)
    for bar in range(slow - 1, len(close)):
        short_mean = sum(close[bar + 1 - fast : bar + 1]) / fast
        long_mean = sum(close[bar + 1 - slow : bar + 1]) / slow
        if short_mean != long_mean:
            targets[bar] = MAX_LOTS if short_mean > long_mean else -MAX_LOTS
    return targets


def breakout(close: list[float], back: int = 15) -> list[int]:
    """Half size behind a close beyond all of the last `back` ones, flat when the close is back in the middle of them."""
    targets = [KEEP] * len(close)
    for bar in range(back, len(close)):
        past = close[bar - back : bar]
        if close[bar] > max(past):
            targets[bar] = MAX_LOTS // 2
        elif close[bar] < min(past):
            targets[bar] = -MAX_LOTS // 2
        elif sorted(past)[back // 3] < close[bar] < sorted(past)[2 * back // 3]:
            targets[bar] = 0
    return targets


def sizing(close: list[float], seed: int = 11) -> list[int]:
    """Any of the sizes that can be picked, changed at a third of the bars: adds, reduces, closes and turns through zero."""
    rng = np.random.default_rng(seed)
    sizes = (-4, -2, -1, 0, 1, 2, 4)
    return [KEEP, *(int(rng.choice(sizes)) if rng.random() < 1 / 3 else KEEP for _ in close[1:])]


STRATEGIES = {"crossing": crossing, "breakout": breakout, "sizing": sizing}


def targets(market: Market, strategy: str, closed: bool = True) -> np.ndarray:
    """int64[n]: what a strategy wants after each bar. No decision is made at a session's last bar, for the exchange closes then, nor at the
    window's last one, which no bar follows. `closed`: flat before the end, so that nothing is left to close there."""
    wanted = np.array(STRATEGIES[strategy](market.prices[:, 3].tolist()))
    if closed:
        wanted[-3:] = 0
    wanted[market.closes_session] = KEEP
    wanted[-1] = KEEP
    return wanted


# --- ours ---

_MAGNITUDE = {1: Magnitude.QUARTER, 2: Magnitude.HALF, 4: Magnitude.FULL}


def action_of(lots: int) -> int:
    """The pick that makes a position of so many lots out of any."""
    if lots == KEEP:
        direction, magnitude = Direction.HOLD, Magnitude.QUARTER
    elif lots == 0:
        direction, magnitude = Direction.FLAT, Magnitude.QUARTER
    else:
        direction, magnitude = (Direction.LONG if lots > 0 else Direction.SHORT), _MAGNITUDE[abs(lots)]
    return encode_action.py_func(direction, magnitude, OrderKind.MARKET, Urgency.NORMAL)


def decides(market: Market) -> np.ndarray:
    """int64[d]: bars at whose end a decision is made, by the rules of `targets`."""
    return np.flatnonzero(~market.closes_session[:-1])


def replayed(market: Market, wanted: np.ndarray, folder: Path, slippage_ticks: int = 1, **account: Any) -> dict[str, dict[str, list]]:
    """{table: {column: values}} of our replay of the targets, decision by decision, by a script."""
    bars = decides(market)
    folder.mkdir()
    script = folder / "script.csv"
    script.write_text("step,action\n" + "".join(f"{step},{action_of(wanted[bar])}\n" for step, bar in enumerate(bars.tolist())))
    start, end = market.window
    tape = {"clock": "bar", "start_ns": start, "end_ns": end, "latency_ns": 0, "slippage_ticks": slippage_ticks}
    config = plan_replay(market.store, market.symbol, REGISTRY, tape, ACCOUNT | account, {}, policy=f"script:{script}", lanes=1)
    tables = load(replay(config, market.store, folder / "runs").run_dir).tables
    return {name: tables[name].to_pydict() for name in ("steps", "fills", "trades")}
