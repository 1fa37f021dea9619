"""Random small tapes and a slow decision schedule, for tests of the environment. Plain loops; shares no code with `lob.schedule`."""

from dataclasses import replace
from fractions import Fraction

import numpy as np

from lob.actions import EndReason
from lob.instruments import Instrument
from lob.tape import NO_PRICE, Schedule, Tape
from lob.windows import TAPE_ROWS, join

SECOND = 10**9
ES = Instrument("ES", Fraction(1, 4), Fraction(50), 2_250_000, 17_900_000_000, "cme_globex")


def random_tape(
    seed: int, events: int = 400, sessions: int = 2, volatility: float = 2.0, depth: int = 6, levels: int = 10, instrument: Instrument = ES
) -> Tape:
    """A random walk of books: thin and missing levels, crossed, untrusted and out-of-session rows, equal times, jumps and a halt.

    `depth` bounds the lots of a level; the last rows of each session are deep, so that a drain exists.
    """
    rng = np.random.default_rng(seed)
    per = events // sessions
    open_ns = np.arange(sessions, dtype=np.int64) * 3600 * SECOND + SECOND
    ts_event = np.concatenate([start + np.cumsum(rng.choice([0, 1, 10**6, 10**8, SECOND], per)) for start in open_ns])
    ts_recv = np.maximum.accumulate(ts_event + rng.integers(0, 5 * 10**6, len(ts_event)))
    session = np.repeat(20240101 + np.arange(sessions, dtype=np.int32), per)
    count = len(ts_event)
    jumps = rng.normal(0, volatility, count) + (rng.random(count) < 0.02) * rng.normal(0, 40 * volatility, count)
    base = int(rng.integers(-500, 20_000))
    bid0 = base + np.cumsum(jumps).astype(np.int64)
    spread = rng.integers(1, 4, count)
    gaps = np.cumsum(rng.integers(0, 3, (count, levels)) + 1, axis=1) - 1
    gaps -= gaps[:, :1]
    bid = (bid0[:, None] - gaps).astype(np.int32)
    ask = (bid0[:, None] + spread[:, None] + gaps).astype(np.int32)
    bid_lots = rng.integers(0, depth + 1, (count, levels)).astype(np.int32)
    ask_lots = rng.integers(0, depth + 1, (count, levels)).astype(np.int32)
    for lots in (bid_lots, ask_lots):
        lots[:, 0] = np.maximum(lots[:, 0], 1)
    trusted = rng.random(count) < 0.8
    crossed = rng.random(count) < 0.05
    ask[crossed] = bid[crossed] - 1
    session[rng.random(count) < 0.03] = -1
    for end in range(per, count + 1, per):
        deep = slice(end - 3, end)
        bid_lots[deep, 0] = ask_lots[deep, 0] = 1_000_000
        ask[deep] = bid[deep] + 1
        trusted[deep], session[deep], crossed[deep] = True, 20240101 + end // per - 1, False
    tradable = trusted & ~crossed & (session >= 0)
    first = max(0, int(rng.integers(0, 10)))
    tradable[:first] = False
    return Tape(
        instrument=instrument, schema="mbp-10", ts_event_ns=ts_event, ts_recv_ns=ts_recv, bid_ticks=bid, ask_ticks=ask, bid_lots=bid_lots,
        ask_lots=ask_lots, trusted=trusted, tradable=tradable, trade_side=np.zeros(count, np.int8), trade_lots=np.zeros(count, np.int64),
        point=np.full(count, -1, np.int8), source=rng.integers(0, 2, count).astype(np.int32), row=np.arange(count, dtype=np.int64) * 3 + 7,
        session=session, sources=("a" * 64, "b" * 64), session_dates=np.unique(session[session >= 0]), session_open_ns=open_ns,
        session_close_ns=open_ns + 3000 * SECOND, barred={},
    )  # fmt: skip


def with_prints(tape: Tape, seed: int) -> Tape:
    """The same rows, three in ten of them prints of either side, at the touch or a tick beyond it, auctions among them."""
    rng = np.random.default_rng(seed + 500)
    count = tape.events
    side = np.where(rng.random(count) < 0.3, rng.choice([-1, 1], count), 0).astype(np.int8)
    touch = np.where(side < 0, tape.bid_ticks[:, 0], tape.ask_ticks[:, 0]).astype(np.int64)
    prices = np.where(side != 0, touch + side * rng.integers(0, 2, count), NO_PRICE).astype(np.int32)
    lots = np.where(side != 0, rng.integers(1, 12, count), 0)
    auction = rng.random(count) < 0.02
    return replace(tape, trade_side=np.where(auction, 0, side).astype(np.int8), trade_lots=lots.astype(np.int64), trade_ticks=prices)


def bar_tape(
    opens: list[int], highs: list[int], lows: list[int], closes: list[int], slippage: int = 1, instrument: Instrument = ES
) -> Tape:
    """One-minute bars as four events each (open, low, high, close), in one session."""
    bars = len(opens)
    prices = np.array([[o, low, high, c] for o, low, high, c in zip(opens, lows, highs, closes, strict=True)], np.int64).reshape(-1)
    start = np.arange(bars, dtype=np.int64) * 60 * SECOND + SECOND
    event_ns = np.stack([start, start, start, start + 60 * SECOND], axis=1).reshape(-1)
    count = 4 * bars
    big = np.full((count, 1), 2**31 - 1, np.int32)
    return Tape(
        instrument=instrument, schema="ohlcv-1m", ts_event_ns=event_ns, ts_recv_ns=np.repeat(start + 60 * SECOND, 4),
        bid_ticks=(prices - slippage).astype(np.int32)[:, None], ask_ticks=(prices + slippage).astype(np.int32)[:, None], bid_lots=big,
        ask_lots=big.copy(), trusted=np.ones(count, bool), tradable=np.ones(count, bool), trade_side=np.zeros(count, np.int8),
        trade_lots=np.zeros(count, np.int64), point=np.tile(np.arange(4, dtype=np.int8), bars), source=np.zeros(count, np.int32),
        row=np.repeat(np.arange(bars, dtype=np.int64), 4), session=np.full(count, 20240101, np.int32), sources=("a" * 64,),
        session_dates=np.array([20240101], np.int32), session_open_ns=np.array([0], np.int64),
        session_close_ns=np.array([10**18], np.int64), barred={},
    )  # fmt: skip


def book_tape(books: list[tuple], seconds: list[float] | None = None, instrument: Instrument = ES) -> Tape:
    """A tape written by hand: each book is (bids, asks), lists of (ticks, lots) best first; one row a second unless times are given."""
    count, levels = len(books), 10
    times = np.array([(i + 1) if seconds is None else seconds[i] for i in range(count)])
    ns = np.round(times * SECOND).astype(np.int64)
    arrays = {name: np.zeros((count, levels), np.int32) for name in ("bid", "ask", "bid_lots", "ask_lots")}
    for i, (bids, asks) in enumerate(books):
        for side, entries in (("bid", bids), ("ask", asks)):
            for level, (ticks, lots) in enumerate(entries):
                arrays[side][i, level], arrays[f"{side}_lots"][i, level] = ticks, lots
    return Tape(
        instrument=instrument, schema="mbp-10", ts_event_ns=ns, ts_recv_ns=ns.copy(), bid_ticks=arrays["bid"], ask_ticks=arrays["ask"],
        bid_lots=arrays["bid_lots"], ask_lots=arrays["ask_lots"], trusted=np.ones(count, bool), tradable=np.ones(count, bool),
        trade_side=np.zeros(count, np.int8), trade_lots=np.zeros(count, np.int64), point=np.full(count, -1, np.int8),
        source=np.zeros(count, np.int32), row=np.arange(count, dtype=np.int64), session=np.full(count, 20240101, np.int32),
        sources=("a" * 64,), session_dates=np.array([20240101], np.int32), session_open_ns=np.array([0], np.int64),
        session_close_ns=np.array([10**18], np.int64), barred={},
    )  # fmt: skip


def slow_schedule(tape: Tape, ticks_ns: list[int], latency_ns: int, max_lots: int, final_reason: int = EndReason.WINDOW_END) -> Schedule:
    """docs/step.md, "Time", by linear search over given clock ticks. Raises ValueError when there is no decision."""
    event_ns, recv_ns = tape.ts_event_ns.tolist(), tape.ts_recv_ns.tolist()
    tradable, session = tape.tradable.tolist(), tape.session.tolist()
    count, bars = len(event_ns), tape.schema != "mbp-10"
    drain = max(
        e for e in range(count)
        if tradable[e] and min(tape.bid_lots[e].sum(), tape.ask_lots[e].sum()) >= max_lots and (not bars or tape.point[e] == 3)
    )  # fmt: skip
    decisions: list[tuple[int, int, int, int, int]] = []  # tick, observed, mark, fill, filled
    ready = -1
    for tick in ticks_ns:
        observed = max((e for e in range(count) if recv_ns[e] <= tick), default=-1)
        mark = max((e for e in range(observed + 1) if tradable[e]), default=-1)
        if tick < ready or mark < 0:
            continue
        arrival = tick + latency_ns
        if bars:
            fill = min((e for e in range(count) if tape.point[e] == 0 and event_ns[e] >= arrival and tradable[e]), default=-1)
        else:
            standing = max((e for e in range(count) if tape.trusted[e] and event_ns[e] <= arrival), default=-1)
            if standing >= 0 and tradable[standing] and session[standing] == session[mark]:
                fill = standing
            else:
                fill = min((e for e in range(standing + 1, count) if tradable[e]), default=-1)
        if fill < 0 or fill >= drain:
            break
        filled = max(arrival, event_ns[fill])
        decisions.append((tick, observed, mark, fill, filled))
        ready = max(recv_ns[fill], filled)
    while decisions and (recv_ns[decisions[-1][3]] > event_ns[drain] or decisions[-1][4] > event_ns[drain]):
        decisions.pop()
    if not decisions:
        raise ValueError("no decision")
    drain_ns = event_ns[drain]
    seen = max(e for e in range(count) if recv_ns[e] <= drain_ns)
    last_mark = max(e for e in range(seen + 1) if tradable[e])
    table = np.array([*decisions, (drain_ns, seen, last_mark, drain, drain_ns)], np.int64)
    mid2 = (tape.bid_ticks[:, 0].astype(np.int64) + tape.ask_ticks[:, 0]).tolist()

    def extremes(starts):
        pairs = []
        for start, stop in zip(starts, table[1:, 1], strict=True):
            inside = [mid2[e] for e in range(start + 1, stop + 1) if tradable[e]]
            pairs.append((min(inside, default=2**62), max(inside, default=-(2**62))))
        return np.array(pairs, np.int64).T

    held, after = extremes(table[:-1, 1]), extremes(table[:-1, 3])
    dates = np.array([session[e] for e in table[:, 2]], np.int32)
    return Schedule(
        clock="test", latency_ns=latency_ns, ts_decided_ns=table[:, 0].copy(), observed_event=table[:, 1].copy(),
        ts_observed_ns=tape.ts_recv_ns[table[:, 1]], mark_event=table[:, 2].copy(), fill_event=table[:, 3].copy(),
        ts_arrived_ns=np.append(table[:-1, 0] + latency_ns, drain_ns), ts_filled_ns=table[:, 4].copy(), low_held_mid2=held[0],
        high_held_mid2=held[1], low_after_mid2=after[0], high_after_mid2=after[1], session=dates, closes_session=dates[:-1] != dates[1:],
        ticks_skipped=0, final_reason=int(final_reason),
    )  # fmt: skip


def until(tape: Tape, stop: int) -> Tape:
    """The tape's first rows."""
    return replace(tape, **{name: getattr(tape, name)[:stop] for name in TAPE_ROWS})


def session_windows(tape: Tape, sessions: int, latency_ns: int, max_lots: int, period_s: float = 1.0, reasons=(EndReason.WINDOW_END,)):
    """A plan joined of one window for each session of a `random_tape`; `reasons` are their ends in turn."""
    ticks, per, parts = second_ticks(tape, period_s), tape.events // sessions, []
    for i, open_ns in enumerate(tape.session_open_ns.tolist()):
        own = [t for t in ticks if open_ns <= t < open_ns + 3600 * SECOND]
        parts.append(slow_schedule(until(tape, per * (i + 1)), own, latency_ns, max_lots, reasons[i % len(reasons)]))
    return join(parts)


def second_ticks(tape: Tape, period_s: float = 1.0) -> list[int]:
    """Clock ticks over a tape's whole span."""
    period = int(period_s * SECOND)
    first = int(tape.ts_recv_ns[0]) // period
    spans = []
    for open_ns, close_ns in zip(tape.session_open_ns.tolist(), tape.session_close_ns.tolist(), strict=True):
        inside = (tape.ts_recv_ns >= open_ns) & (tape.ts_recv_ns < close_ns)
        if inside.any():
            last = int(tape.ts_recv_ns[inside].max())
            first = -(-max(open_ns, int(tape.ts_recv_ns[inside].min())) // period)
            spans += range(first * period, last + period, period)
    return spans


def features(schedule: Schedule, seed: int = 0) -> np.ndarray:
    """Random market slots, zeros in the lane's: float32[R, 128]."""
    values = np.random.default_rng(seed).normal(size=(schedule.rows, 128)).astype(np.float32)
    values[:, 96:] = 0
    return values
