"""The decision schedule: docs/step.md, "Time", as code. One pass over the ticks of the clock and the rows of the tape."""

import re

import numpy as np

from lob.actions import EndReason
from lob.errors import BadInput
from lob.jit import kernel_cpu
from lob.records import BAR_NS
from lob.tape import HOLE_NS, Schedule, Tape
from lob.units import format_length_ns, format_time_ns, parse_duration_ns

NONE_LOW, NONE_HIGH = 2**62, -(2**62)
"""Least and greatest bid+ask over no rows."""

MAX_TICKS = 10**8
"""The most clock ticks that a window may hold (a millisecond clock over a 23-hour session has 82.8 million)."""

TAPE_END_NS = 60 * 10**9
"""A tape that stops with more than this much session time left before the window's end has ended early."""

_COUNT = re.compile(r"(\d+)([ev])")


def parse_clock(clock: str) -> tuple[str, int]:
    """("time", ns), ("events", n), ("volume", lots) or ("bar", 0) of `1s`, `100e`, `500v`, `bar`. Raises BadInput."""
    if clock == "bar":
        return "bar", 0
    match = _COUNT.fullmatch(clock)
    try:
        kind = {"e": "events", "v": "volume"}[match[2]] if match else "time"
        size = int(match[1]) if match else parse_duration_ns(clock)
    except BadInput:
        size = 0
    if size < 1 or size >= 2**62:
        raise BadInput(f"clock {clock!r} is none of: a duration (1s, 250ms, 1m), events (100e), volume (500v), bar")
    return kind, size


def clock_ticks(tape: Tape, clock: str, from_ns: int, to_ns: int) -> tuple[np.ndarray, np.ndarray]:
    """(times int64[N] strictly ascending, trade date int32[N] of each) of the clock's ticks in [from_ns, to_ns) inside a session.

    Event and volume ticks are counted from the tape's first row of the session on, so the tape has to begin at the session's open. A tick
    that several rows make (equal receive times, a print that passes two multiples) is one tick. Raises BadInput: a clock that the
    tape's schema cannot drive, more than MAX_TICKS ticks.
    """
    kind, size = parse_clock(clock)
    bars = tape.schema in BAR_NS
    if kind == "bar" and not bars:
        raise BadInput(f"clock bar needs bars, and {tape.schema} holds books: use a duration (1s), events (100e) or volume (500v)")
    if kind in ("events", "volume") and bars:
        raise BadInput(f"clock {clock} needs books, and {tape.schema} holds bars: use bar or a duration (5m)")
    if kind == "time":
        return _time_ticks(tape, size, from_ns, to_ns)
    if kind == "events":
        rows = _every_nth_row(tape.session, size)
    elif kind == "volume":
        rows = _volume_rows(tape.session, tape.trade_lots, size)
    else:
        rows = np.nonzero(tape.point == 3)[0]
    times = tape.ts_recv_ns[rows]
    rows = rows[np.diff(times, prepend=-1) > 0]
    times = tape.ts_recv_ns[rows]
    dates = session_of(tape, times)
    if kind != "bar":  # a row that is received after its session's close makes no tick
        dates = np.where(dates == tape.session[rows], dates, -1).astype(np.int32)
    keep = (times >= from_ns) & (times < to_ns) & (dates >= 0)
    return times[keep], dates[keep]


def session_of(tape: Tape, times_ns: np.ndarray) -> np.ndarray:
    """Trade date int32[n] of each time by the tape's own sessions, -1 outside all of them."""
    if not len(tape.session_dates):
        return np.full(len(times_ns), -1, dtype=np.int32)
    at = np.searchsorted(tape.session_open_ns, times_ns, side="right") - 1
    inside = (at >= 0) & (times_ns < tape.session_close_ns[np.maximum(at, 0)])
    return np.where(inside, tape.session_dates[np.maximum(at, 0)], -1).astype(np.int32)


def schedule(tape: Tape, clock: str, start_ns: int, end_ns: int, latency_ns: int, max_lots: int, step_limit: int | None = None) -> Schedule:
    """Lay decisions over [start_ns, end_ns): docs/step.md, "Time".

    Beyond that page: a session's decisions begin when a tradable book *of that session* has been received. The drain is decided,
    arrives and fills at its row's event time, and the last decision's fill has been received by then. With a step limit that bites, the
    drain is the first row deep enough whose event time is at or after the decision that comes no more. Ticks skipped are those
    between the first and the last decision that an order in flight took.

    Raises BadInput, one line, when no run is possible: see `_refuse_*` below.
    """
    if start_ns >= end_ns:
        raise BadInput(f"the window starts at {format_time_ns(start_ns)} and ends at {format_time_ns(end_ns)}: the start must come first")
    if latency_ns < 0 or max_lots < 1 or (step_limit is not None and step_limit < 1):
        raise BadInput(f"latency {latency_ns} ns must be >= 0, max lots {max_lots} >= 1 and the step limit {step_limit} >= 1 or none")
    ticks, tick_dates = clock_ticks(tape, clock, start_ns, end_ns)
    bars = tape.schema in BAR_NS
    received = int(np.searchsorted(tape.ts_recv_ns, end_ns, side="left"))  # rows received before the window's end
    first = int(np.searchsorted(tape.ts_recv_ns, start_ns, side="left"))
    _refuse_empty(tape, first, received, start_ns, end_ns)

    decided, observed, mark, fill, filled, skipped = _decide(
        ticks, tick_dates, tape.ts_event_ns[:received], tape.ts_recv_ns[:received], tape.trusted, tape.tradable, tape.session, tape.point,
        tape.session_dates, tape.session_open_ns, tape.session_close_ns, latency_ns, bars,
    )  # fmt: skip
    drain, deepest = _last_deep_row(tape.tradable, tape.point, tape.bid_lots, tape.ask_lots, received, max_lots, bars)
    if drain < first:
        raise BadInput(
            f"{_named(tape)}: no row between {format_time_ns(start_ns)} and {format_time_ns(end_ns)} shows {max_lots} lots on both sides, "
            f"so a position could not be closed there; the deepest shows {deepest}: lower --max-lots"
        )
    # A prefix: receive times of fills never fall. The fill of the last decision precedes the drain and has been received by then.
    ready = np.maximum(tape.ts_recv_ns[fill], filled)
    count = int(np.count_nonzero((fill < drain) & (ready <= tape.ts_event_ns[drain])))
    reason = _final_reason(tape, received, end_ns)
    if step_limit is not None and count > step_limit:
        after, from_ns = int(fill[step_limit - 1]) + 1, int(decided[step_limit])
        drain = _next_deep_row(tape.tradable, tape.point, tape.bid_lots, tape.ask_lots, tape.ts_event_ns, after, from_ns, max_lots, bars)
        count, reason = step_limit, EndReason.STEP_LIMIT
    if count == 0:
        _refuse_no_decision(tape, clock, ticks, decided, fill, drain)

    _refuse_hole(tape, int(observed[0]), drain)
    drain_ns = int(tape.ts_event_ns[drain])
    seen = int(np.searchsorted(tape.ts_recv_ns, drain_ns, side="right")) - 1
    observed = np.append(observed[:count], seen)
    mark = np.append(mark[:count], _last_tradable(tape.tradable, seen))
    fill = np.append(fill[:count], drain)
    decided = np.append(decided[:count], drain_ns)
    arrived = decided + latency_ns
    arrived[count] = drain_ns
    dates = np.append(session_of(tape, decided[:count]), tape.session[drain]).astype(np.int32)
    mid2 = tape.bid_ticks[:, 0].astype(np.int64) + tape.ask_ticks[:, 0]
    low_held, high_held = _range_between(mid2, tape.tradable, observed[:-1], observed[1:])
    low_after, high_after = _range_between(mid2, tape.tradable, fill[:-1], observed[1:])
    return Schedule(
        clock=clock,
        latency_ns=latency_ns,
        ts_decided_ns=decided,
        observed_event=observed,
        ts_observed_ns=tape.ts_recv_ns[observed],
        mark_event=mark,
        fill_event=fill,
        ts_arrived_ns=arrived,
        ts_filled_ns=np.maximum(arrived, tape.ts_event_ns[fill]),
        low_held_mid2=low_held,
        high_held_mid2=high_held,
        low_after_mid2=low_after,
        high_after_mid2=high_after,
        session=dates,
        closes_session=dates[:-1] != dates[1:],
        ticks_skipped=int(skipped[count - 1]),
        final_reason=int(reason),
    )


def _named(tape: Tape) -> str:
    return f"{tape.instrument.root} {tape.schema}"


def _refuse_empty(tape: Tape, first: int, received: int, start_ns: int, end_ns: int) -> None:
    window = f"between {format_time_ns(start_ns)} and {format_time_ns(end_ns)}"
    if first >= received:
        span = (
            f"the rows at hand were received from {format_time_ns(tape.ts_recv_ns[0])} to {format_time_ns(tape.ts_recv_ns[-1])}"
            if tape.events
            else "there are none at all"
        )
        raise BadInput(f"{_named(tape)}: no rows were received {window}; {span}")
    if not tape.tradable[first:received].any():
        why = ", ".join(f"{count} {name}" for name, count in sorted(tape.barred.items())) or "none"
        raise BadInput(f"{_named(tape)}: none of the {received - first} rows {window} is a tradable book (of all rows barred: {why})")


def _refuse_no_decision(tape: Tape, clock: str, ticks: np.ndarray, decided: np.ndarray, fill: np.ndarray, drain: int) -> None:
    last = f"the last tradable row of the window is at {format_time_ns(tape.ts_event_ns[drain])}"
    if not len(ticks):
        found = "it has no tick inside a session in the window"
    elif not len(decided):
        found = f"of its {len(ticks)} ticks none has a tradable book of its session and a row to fill at after it"
    else:
        found = f"an order of its first decision, {format_time_ns(decided[0])}, would fill at {format_time_ns(tape.ts_event_ns[fill[0]])}"
    raise BadInput(f"{_named(tape)}: clock {clock} makes no decision: {found}; {last}: widen the window or take a finer clock")


def _refuse_hole(tape: Tape, first: int, drain: int) -> None:
    """Positions and orders are not carried over a hole in the data (more than HOLE_NS without a row) between first decision and drain."""
    silence_ns = np.diff(tape.ts_recv_ns[first : drain + 1])
    holes = np.nonzero(silence_ns > HOLE_NS)[0]
    if len(holes):
        last, following = (format_time_ns(tape.ts_recv_ns[first + int(holes[0]) + i]) for i in (0, 1))
        more = f" (and {len(holes) - 1} more)" if len(holes) > 1 else ""
        raise BadInput(
            f"{_named(tape)}: no rows for {format_length_ns(int(silence_ns[holes[0]]))} between {last} and {following}{more}, and no "
            "position is carried over such a hole: end the window before it or start after it, or ingest what is missing"
        )


def _final_reason(tape: Tape, received: int, end_ns: int) -> EndReason:
    """TAPE_END when the rows stop with more than TAPE_END_NS of session time to go before the window's end and none comes after it."""
    if received < tape.events:
        return EndReason.WINDOW_END
    last_ns = int(tape.ts_recv_ns[received - 1])
    opens, closes = np.maximum(tape.session_open_ns, last_ns), np.minimum(tape.session_close_ns, end_ns)
    left_ns = int(np.maximum(closes - opens, 0).sum())
    return EndReason.TAPE_END if left_ns > TAPE_END_NS else EndReason.WINDOW_END


def _time_ticks(tape: Tape, period_ns: int, from_ns: int, to_ns: int) -> tuple[np.ndarray, np.ndarray]:
    """Multiples of the period since 1970 in [from_ns, to_ns) inside a session."""
    first = -(-np.maximum(tape.session_open_ns, from_ns) // period_ns)
    last = -(-np.minimum(tape.session_close_ns, to_ns) // period_ns)
    counts = np.maximum(last - first, 0)
    if (total := int(counts.sum())) > MAX_TICKS:
        raise BadInput(f"a clock of {period_ns} ns ticks {total} times in this window, more than {MAX_TICKS}: take a coarser clock")
    times = [np.arange(f, f + n, dtype=np.int64) * period_ns for f, n in zip(first, counts, strict=True)]
    return np.concatenate(times or [np.zeros(0, np.int64)]), np.repeat(tape.session_dates, counts)


@kernel_cpu
def _every_nth_row(session, n):
    rows = np.empty(len(session), np.int64)
    found, count, current = 0, 0, -1
    for i in range(len(session)):
        if session[i] != current:
            current, count = session[i], 0
        count += 1
        if current >= 0 and count % n == 0:
            rows[found] = i
            found += 1
    return rows[:found].copy()


@kernel_cpu
def _volume_rows(session, trade_lots, lots):
    rows = np.empty(len(session), np.int64)
    found, current = 0, -1
    total = np.int64(0)
    for i in range(len(session)):
        if session[i] != current:
            current = session[i]
            total = np.int64(0)
        before = total // lots
        total += trade_lots[i]
        if current >= 0 and total // lots > before:
            rows[found] = i
            found += 1
    return rows[:found].copy()


@kernel_cpu
def _decide(
    ticks, tick_dates, ts_event, ts_recv, trusted, tradable, session, point, dates, opens, closes, latency_ns, bars
):  # fmt: skip
    """Every decision that the rows allow, drain and step limit aside: times, events, and how many ticks were skipped so far."""
    events, n = len(ts_event), len(ticks)
    decided, observed, mark = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    fill, filled, skipped = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    count, in_flight = 0, np.int64(0)
    seen, seen_tradable = -1, -1  # last row, last tradable row received by the tick
    happened, standing, candidate = -1, -1, 0  # last row, last trusted row that happened by the arrival; next row to try
    s = 0
    ready = np.int64(-(2**62))
    for k in range(n):
        t = ticks[k]
        while seen + 1 < events and ts_recv[seen + 1] <= t:
            seen += 1
            if tradable[seen]:
                seen_tradable = seen
        if seen_tradable < 0 or session[seen_tradable] != tick_dates[k]:
            continue
        if t < ready:
            in_flight += 1
            continue
        arrival = t + latency_ns
        row = -1
        if bars:
            while candidate < events and not (tradable[candidate] and point[candidate] == 0 and ts_event[candidate] >= arrival):
                candidate += 1
        else:
            while happened + 1 < events and ts_event[happened + 1] <= arrival:
                happened += 1
                if trusted[happened]:
                    standing = happened
            while s < len(opens) and closes[s] <= arrival:
                s += 1
            in_session = s < len(opens) and opens[s] <= arrival
            if standing >= 0 and tradable[standing] and in_session and session[standing] == dates[s]:
                row = standing
            candidate = max(candidate, happened + 1)
            while row < 0 and candidate < events and not tradable[candidate]:
                candidate += 1
        if row < 0:
            if candidate == events:
                break
            row = candidate
        decided[count], observed[count], mark[count], fill[count] = t, seen, seen_tradable, row
        filled[count] = max(arrival, ts_event[row])
        skipped[count] = in_flight
        ready = max(filled[count], ts_recv[row])
        count += 1
    return decided[:count], observed[:count], mark[:count], fill[:count], filled[:count], skipped[:count]


@kernel_cpu
def _depth(bid_lots, ask_lots, row):
    """Lots shown over all levels, on the thinner side."""
    bid, ask = np.int64(0), np.int64(0)
    for level in range(bid_lots.shape[1]):
        bid += bid_lots[row, level]
        ask += ask_lots[row, level]
    return min(bid, ask)


@kernel_cpu
def _last_deep_row(tradable, point, bid_lots, ask_lots, received, max_lots, bars):
    """(last tradable row before `received` with the depth, or -1; the greatest depth of a row from there on)."""
    deepest = np.int64(0)
    for i in range(received - 1, -1, -1):
        if tradable[i] and (not bars or point[i] == 3):
            depth = _depth(bid_lots, ask_lots, i)
            deepest = max(deepest, depth)
            if depth >= max_lots:
                return i, deepest
    return -1, deepest


@kernel_cpu
def _next_deep_row(tradable, point, bid_lots, ask_lots, ts_event, first, from_ns, max_lots, bars):
    """First tradable row from `first` on with the depth and an event time at or after `from_ns`, or -1."""
    for i in range(first, len(tradable)):
        deep = tradable[i] and ts_event[i] >= from_ns and (not bars or point[i] == 3)
        if deep and _depth(bid_lots, ask_lots, i) >= max_lots:
            return i
    return -1


@kernel_cpu
def _last_tradable(tradable, row):
    while not tradable[row]:
        row -= 1
    return row


@kernel_cpu
def _range_between(mid2, tradable, after, upto):
    """Least and greatest `mid2` over the tradable rows in (after[d], upto[d]] for every d."""
    low, high = np.full(len(after), NONE_LOW, np.int64), np.full(len(after), NONE_HIGH, np.int64)
    for d in range(len(after)):
        for i in range(after[d] + 1, upto[d] + 1):
            if tradable[i]:
                low[d] = min(low[d], mid2[i])
                high[d] = max(high[d], mid2[i])
    return low, high
