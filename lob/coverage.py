"""What a reader of a run should know of window and data: one sentence each. Nothing here changes a decision."""

import numpy as np

from lob.actions import EndReason
from lob.records import BAR_NS
from lob.schedule import TAPE_END_NS, parse_clock
from lob.tape import Schedule, Tape
from lob.units import format_length_ns, format_time_ns

SHOWN_DATES = 10


def window_notes(tape: Tape, plan: Schedule, start_ns: int, end_ns: int) -> tuple[str, ...]:
    """Notes on [start, end): what the data does not cover, sessions without a row, a late first decision, a clock that bars slow down."""
    return (
        *_coverage(tape, plan, start_ns, end_ns),
        *_empty_sessions(tape, start_ns, end_ns),
        *_late_first_decision(tape, plan, start_ns),
        *_clock_on_bars(tape, plan),
    )


def _patience_ns(tape: Tape, plan: Schedule) -> int:
    """Silence up to this says nothing: an interval of the clock, a bar, or TAPE_END_NS, whichever is longest."""
    kind, size = parse_clock(plan.clock)
    return max(TAPE_END_NS, BAR_NS.get(tape.schema, 0), size if kind == "time" else 0)


def _session_time_ns(tape: Tape, from_ns: int, to_ns: int) -> int:
    opens, closes = np.maximum(tape.session_open_ns, from_ns), np.minimum(tape.session_close_ns, to_ns)
    return int(np.maximum(closes - opens, 0).sum())


def _received(tape: Tape, end_ns: int) -> tuple[int, int]:
    """First and last receive time of the rows that the window may see; a bar's first time is its start."""
    rows = int(np.searchsorted(tape.ts_recv_ns, end_ns, side="left"))
    return int(min(tape.ts_recv_ns[0], tape.ts_event_ns[0])), int(tape.ts_recv_ns[rows - 1])


def _coverage(tape: Tape, plan: Schedule, start_ns: int, end_ns: int) -> tuple[str, ...]:
    """Only time inside sessions counts: that nothing trades over a weekend is no lack of data."""
    first, last = _received(tape, end_ns)
    ended = plan.final_reason != EndReason.STEP_LIMIT
    late = _session_time_ns(tape, start_ns, first) > _patience_ns(tape, plan)
    early = ended and _session_time_ns(tape, last, end_ns) > _patience_ns(tape, plan)
    if not late and not early:
        return ()
    covers = f"the data covers {format_time_ns(max(first, start_ns))} to {format_time_ns(last)} of the window"
    return (f"{covers} {format_time_ns(start_ns)} to {format_time_ns(end_ns)}: nothing is decided in the rest",)


def _empty_sessions(tape: Tape, start_ns: int, end_ns: int) -> tuple[str, ...]:
    """Sessions of the calendar between the first and the last row of the window that have no row at all."""
    first, last = _received(tape, end_ns)
    inside = (tape.session_open_ns >= max(first, start_ns)) & (tape.session_close_ns <= last)
    dates = tape.session_dates[inside & ~np.isin(tape.session_dates, tape.session)]
    if not len(dates):
        return ()
    shown = ", ".join(f"{date // 10_000}-{date // 100 % 100:02d}-{date % 100:02d}" for date in dates[:SHOWN_DATES].tolist())
    more = f" and {len(dates) - SHOWN_DATES} more" if len(dates) > SHOWN_DATES else ""
    count = f"{len(dates)} sessions of the calendar within the window have" if len(dates) > 1 else "1 session of the calendar has"
    return (f"{count} no rows (data that is not in the store): {shown}{more}",)


def _late_first_decision(tape: Tape, plan: Schedule, start_ns: int) -> tuple[str, ...]:
    decided = int(plan.ts_decided_ns[0])
    covered = max(start_ns, int(tape.ts_recv_ns[0]))
    if decided - covered <= _patience_ns(tape, plan):
        return ()
    opened = int(tape.session_open_ns[np.searchsorted(tape.session_open_ns, decided, side="right") - 1])
    why = f"its session opens at {format_time_ns(opened)}" if opened > start_ns else "no tradable book was there before"
    return (
        f"the first decision comes {format_length_ns(decided - start_ns)} after the window's start, at {format_time_ns(decided)}: {why}",
    )


def _clock_on_bars(tape: Tape, plan: Schedule) -> tuple[str, ...]:
    """How bars slow a clock down: a decision needs a bar's end, an order a bar's open."""
    if tape.schema not in BAR_NS:
        return ()
    bar_ns = BAR_NS[tape.schema]
    kind, size = parse_clock(plan.clock)
    tick_ns = size if kind == "time" else bar_ns
    notes = []
    if tick_ns < bar_ns:
        notes.append(f"the clock {plan.clock} is finer than the bars of {tape.schema}: decisions come at bar ends")
    if plan.latency_ns:
        apart = 1 + -(-plan.latency_ns // bar_ns)
        slows = f", so decisions come {apart} bars apart at least" if tick_ns < apart * bar_ns else ""
        notes.append(f"with latency an order arrives after a bar's open and waits for the next bar's open{slows}")
    return tuple(notes)
