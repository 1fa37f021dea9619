"""Brute force over synthetic days, for the tests of their laws: plain numpy and Python on the records; of `lob` only the market itself."""

import datetime as dt
from collections.abc import Iterator

import numpy as np

from lob.instruments import REGISTRY
from lob.synth import SyntheticDay, synthesize

ES = REGISTRY["ES"]
TICK_E9 = 250_000_000
TICK_USD, FEE_USD = 12.50, 2.25
F_LAST = 0x80


def trade_dates(count: int) -> list[dt.date]:
    """The first weekdays from Monday 2024-03-04 on."""
    return [dt.date(2024, 3, 4) + dt.timedelta(days=i // 5 * 7 + i % 5) for i in range(count)]


def days(count: int, events: int, edge: float, seed: int = 7) -> Iterator[SyntheticDay]:
    """One after another, so that only one lies in memory."""
    return (synthesize(ES, date, events, seed, edge) for date in trade_dates(count))


def first_day(events: int, edge: float) -> SyntheticDay:
    return next(days(1, events, edge))


def lots(records: np.ndarray, side: str) -> np.ndarray:
    """int64[n, 10] of one side."""
    return np.stack([records[f"{side}_sz_{i:02d}"].astype(np.int64) for i in range(10)], axis=1)


def displayed_imbalance(records: np.ndarray) -> np.ndarray:
    bids, asks = lots(records, "bid").sum(axis=1), lots(records, "ask").sum(axis=1)
    return (bids - asks) / (bids + asks)


def best(records: np.ndarray, side: str) -> np.ndarray:
    """Best price in ticks."""
    return records[f"{side}_px_00"] // TICK_E9


def is_last(records: np.ndarray) -> np.ndarray:
    return (records["flags"] & F_LAST) != 0


def z(sample: np.ndarray) -> float:
    """Mean over its standard error."""
    return float(sample.mean() / (sample.std(ddof=1) / np.sqrt(len(sample))))


def trade_each_second(records: np.ndarray, wants) -> list[tuple[float, float]]:
    """Market orders of one lot, decided on each second from what has been received, filled at the book that stands by event time.

    `wants(seen, position) -> position` is asked with the index of the last closed event received. Returns, round trip by round trip, USD
    before and after fees. What is open at the end closes at the last book.
    """
    closed = records[is_last(records)]
    event, receive = closed["ts_event"].astype(np.int64), closed["ts_recv"].astype(np.int64)
    ticks = np.arange(int(receive[0]) // 10**9 + 1, int(receive[-1]) // 10**9 + 1) * 10**9
    seen = (np.searchsorted(receive, ticks, side="right") - 1).tolist()
    standing = (np.searchsorted(event, ticks, side="right") - 1).tolist()
    bid, ask = best(closed, "bid").tolist(), best(closed, "ask").tolist()
    trips, position, entry = [], 0, 0
    for s, f in [*zip(seen, standing, strict=True), (None, len(bid) - 1)]:
        want = 0 if s is None else wants(s, position)
        if want == position:
            continue
        if position:
            gross = (bid[f] - entry if position > 0 else entry - ask[f]) * TICK_USD
            trips.append((gross, gross - 2 * FEE_USD))
        position, entry = want, ask[f] if want > 0 else bid[f]
    return trips


def imbalance_rule(records: np.ndarray):
    """In at |I| > 0.5, out at the change of sign."""
    shown = displayed_imbalance(records[is_last(records)]).tolist()

    def wants(seen: int, position: int) -> int:
        if position == 0:
            return 1 if shown[seen] > 0.5 else -1 if shown[seen] < -0.5 else 0
        return 0 if shown[seen] * position < 0 else position

    return wants
