"""Small random markets for the event-level exchange, as the oracle's rows and as a tape; and scripts over them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lob.tape import NO_PRICE, Tape
from tests.exchange_oracle import Row, Script
from tests.market_maker import ES

SECOND = 10**9


@dataclass(frozen=True)
class Market:
    rows: list[Row]
    sessions: list[tuple[int, int]]
    depth: int

    def tape(self) -> Tape:
        """The same market as the house's tape."""
        count = len(self.rows)
        ticks = {side: np.zeros((count, self.depth), np.int32) for side in ("bids", "asks")}
        lots = {side: np.zeros((count, self.depth), np.int32) for side in ("bids", "asks")}
        for i, row in enumerate(self.rows):
            for side in ("bids", "asks"):
                for level, (price, size) in enumerate(getattr(row, side)):
                    ticks[side][i, level], lots[side][i, level] = price, size
        column = lambda name, dtype: np.array([getattr(row, name) for row in self.rows], dtype)  # noqa: E731
        prices = np.array([NO_PRICE if row.print_ticks is None else row.print_ticks for row in self.rows], np.int32)
        return Tape(
            instrument=ES, schema="mbp-10", ts_event_ns=column("ts", np.int64), ts_recv_ns=column("recv", np.int64),
            bid_ticks=ticks["bids"], ask_ticks=ticks["asks"], bid_lots=lots["bids"], ask_lots=lots["asks"], trusted=column("trusted", bool),
            tradable=column("tradable", bool), trade_side=column("aggressor", np.int8), trade_lots=column("print_lots", np.int64),
            point=np.full(count, -1, np.int8), source=np.zeros(count, np.int32), row=np.arange(count, dtype=np.int64),
            session=column("session", np.int32), sources=("a" * 64,),
            session_dates=np.array([20240101 + i for i in range(len(self.sessions))], np.int32),
            session_open_ns=np.array([first for first, _ in self.sessions], np.int64),
            session_close_ns=np.array([last for _, last in self.sessions], np.int64), barred={}, trade_ticks=prices,
        )  # fmt: skip


def random_market(seed: int, count: int = 120, depth: int = 3, sessions: int = 2, calm: bool = False) -> Market:
    """A book that walks by a tick at a time, prints before the rows that show what they did, rows in mid-event, halts, crossed books,
    auction prints, equal times, thin books, rows between sessions. `calm`: none of the faults."""
    rng = np.random.default_rng(seed)
    per = count // sessions
    spans = [(1 * SECOND + i * 3600 * SECOND, 1 * SECOND + i * 3600 * SECOND + 600 * SECOND) for i in range(sessions)]
    rows: list[Row] = []
    recv = 0
    for number, (first, last) in enumerate(spans):
        ts, mid = first, 100 + int(rng.integers(-3, 4))
        size = {side: {} for side in (1, -1)}
        spread = 1
        for _ in range(per):
            ts += int(rng.choice([0, 1, 1_000_000, 40_000_000, 300_000_000], p=[0.2, 0.1, 0.3, 0.3, 0.1]))
            if rng.random() < 0.3:
                mid += int(rng.integers(-1, 2))
                spread = int(rng.integers(1, 4))
            books = {}
            for side in (1, -1):
                best = mid if side > 0 else mid + spread
                prices = [best - side * k for k in range(depth + 3)]
                size[side] = {p: max(0, size[side].get(p, int(rng.integers(0, 7))) + int(rng.integers(-2, 3))) for p in prices}
                shown = [(p, n) for p, n in size[side].items() if n > 0][: depth - int(rng.random() < 0.1)]
                books[side] = shown or [(best, 1)]
            row = Row(ts, 0, books[1], books[-1], True, True, 20240101 + number)
            if rng.random() < 0.35:
                row.aggressor = int(rng.choice([-1, 1]))
                row.print_ticks = (row.bids if row.aggressor < 0 else row.asks)[0][0] + row.aggressor * int(rng.integers(0, 2))
                row.print_lots = int(rng.integers(1, 9))
                row.trusted = row.tradable = bool(rng.random() < 0.3)
            fault = rng.random()
            if not calm and fault < 0.16:
                if fault < 0.04:
                    row.trusted = row.tradable = False
                elif fault < 0.08:
                    row.tradable, row.trusted = False, True
                    row.asks = [(row.bids[0][0], 1)]
                elif fault < 0.10:
                    row.tradable, row.trusted, row.bids, row.asks = False, True, [], []
                elif fault < 0.13:
                    row.tradable, row.session = False, -1
                else:
                    row.aggressor, row.print_ticks, row.print_lots = int(rng.choice([0, 1, -1])), None, 3
            recv = max(recv, row.ts + int(rng.integers(0, 3_000_000)))
            row.recv = recv
            rows.append(row)
        assert ts < last
    return Market(rows, spans, depth)


def random_script(seed: int, market: Market, decisions: int = 60, most: int = 4, takes: bool = True) -> Script:
    """Quotes near the touch as seen at the decision, now and then crossing, deep, changed in size or taken away; and market orders."""
    rng = np.random.default_rng(seed + 10_000)
    first, last = market.rows[0].recv, market.rows[-1].ts + SECOND
    ts = sorted(int(t) for t in rng.choice([row.ts for row in market.rows[1:]], decisions) + rng.integers(0, 50_000_000, decisions))
    ts = [min(max(t, first), last) for t in ts]
    bid, ask, take = [], [], []
    held = {1: (100, 1), -1: (102, 1)}
    for t in ts:
        seen = [row for row in market.rows if row.recv <= t and row.tradable]
        for side, out in ((1, bid), (-1, ask)):
            if rng.random() < 0.5 and seen:
                best = (seen[-1].bids if side > 0 else seen[-1].asks)[0][0]
                held[side] = (best + int(rng.integers(-3, 3)), int(rng.integers(0, most + 1)))
            elif rng.random() < 0.2:
                held[side] = (held[side][0], int(rng.integers(0, most + 1)))
            out.append(held[side])
        take.append(int(rng.integers(-6, 7)) if takes and rng.random() < 0.15 else 0)
    return Script(ts, bid, ask, take)
