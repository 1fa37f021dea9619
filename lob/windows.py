"""Several windows in one plan: schedules joined row by row, and where a lane that plays no further closes.

A *window* is [start, end) of decisions with a drain of its own. Joined, the rows of all windows stand one after another, each window's
decisions and then its drain; a lane plays the rows of one window and never leaves it.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from lob.records import BAR_NS
from lob.tape import Schedule, Tape, WindowRows

TAPE_ROWS = (
    "ts_event_ns", "ts_recv_ns", "bid_ticks", "ask_ticks", "bid_lots", "ask_lots", "trusted", "tradable", "trade_side", "trade_lots",
    "point", "source", "row", "session",
)  # fmt: skip
TAPE_SESSIONS = ("session_dates", "session_open_ns", "session_close_ns")
"""Columns of a tape over its rows, and over its sessions."""


def join(schedules: Sequence[Schedule], first_events: Sequence[int] | None = None) -> Schedule:
    """One schedule of all windows, in the order given. `first_events[i]` is where the i-th schedule's tape begins in the tape of all (0).

    Columns that a drain does not have are 0 in the rows of the inner drains. The result says that it is joined even when there is one
    window: its lanes are drained by the step that follows their last decision.
    """
    offsets = list(first_events) if first_events is not None else [0] * len(schedules)
    windows, at = [], 0
    for schedule in schedules:
        windows += [WindowRows(at + first, at + drain, reason) for first, drain, reason in schedule.windows]
        at += schedule.rows

    def rows(name: str) -> np.ndarray:
        return np.concatenate([getattr(schedule, name) for schedule in schedules])

    def events(name: str) -> np.ndarray:
        return np.concatenate([getattr(schedule, name) + offset for schedule, offset in zip(schedules, offsets, strict=True)])

    def of_decisions(name: str) -> np.ndarray:
        parts = [getattr(schedule, name) for schedule in schedules]
        drain = np.zeros(1, parts[0].dtype)
        return np.concatenate([part for values in parts for part in (values, drain)][:-1])

    return Schedule(
        clock=schedules[0].clock,
        latency_ns=schedules[0].latency_ns,
        ts_decided_ns=rows("ts_decided_ns"),
        observed_event=events("observed_event"),
        ts_observed_ns=rows("ts_observed_ns"),
        mark_event=events("mark_event"),
        fill_event=events("fill_event"),
        ts_arrived_ns=rows("ts_arrived_ns"),
        ts_filled_ns=rows("ts_filled_ns"),
        low_held_mid2=of_decisions("low_held_mid2"),
        high_held_mid2=of_decisions("high_held_mid2"),
        low_after_mid2=of_decisions("low_after_mid2"),
        high_after_mid2=of_decisions("high_after_mid2"),
        session=rows("session"),
        closes_session=of_decisions("closes_session"),
        ticks_skipped=sum(schedule.ticks_skipped for schedule in schedules),
        final_reason=schedules[-1].final_reason,
        joined=tuple(windows),
    )


def join_tapes(tapes: Sequence[Tape]) -> tuple[Tape, list[int]]:
    """One tape of the rows of all, one tape after another in order of time, and the row at which each begins.

    Times ascend within each part; sources are merged, counts of barred and noted rows added. The parts have one schema.
    """
    sources = tuple(dict.fromkeys(sha for tape in tapes for sha in tape.sources))
    place = {sha: i for i, sha in enumerate(sources)}
    firsts = np.cumsum([0, *(tape.events for tape in tapes[:-1])]).tolist()
    rows = {name: np.concatenate([getattr(tape, name) for tape in tapes]) for name in (*TAPE_ROWS, *TAPE_SESSIONS)}
    renamed = [np.array([place[sha] for sha in tape.sources], np.int32)[tape.source] for tape in tapes]
    return Tape(
        instrument=tapes[0].instrument,
        schema=tapes[0].schema,
        **rows | {"source": np.concatenate(renamed)},
        sources=sources,
        barred=_added(tape.barred for tape in tapes),
        noted=_added(tape.noted for tape in tapes),
        notes=tuple(dict.fromkeys(note for tape in tapes for note in tape.notes)),
        trade_ticks=np.concatenate([t.trade_ticks for t in tapes if t.trade_ticks is not None])
        if tapes[0].trade_ticks is not None
        else None,
    ), firsts


def _added(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            total[name] = total.get(name, 0) + count
    return total


class WindowOf(NamedTuple):
    """Of every row of a plan, int64[R]: its window's first row, its drain row, and the end reason there."""

    first_row: np.ndarray
    last_row: np.ndarray
    final_reason: np.ndarray


def window_of(schedule: Schedule) -> WindowOf:
    """The window that each row belongs to."""
    counts = [drain - first + 1 for first, drain, _ in schedule.windows]
    return WindowOf(*(np.repeat(np.array(column, np.int64), counts) for column in zip(*schedule.windows, strict=True)))


def decision_rows(schedule: Schedule) -> np.ndarray:
    """int64: the rows that are decided on, ascending; drains are left out."""
    rows = np.arange(schedule.rows)
    return rows[rows != window_of(schedule).last_row]


class Closes(NamedTuple):
    """Where and when a lane closes that stands before a row and plays no further, int64[R]: docs/step.md, "Time"."""

    event: np.ndarray
    ts_ns: np.ndarray  # event time of it, at which the close is decided, arrives and fills
    ts_observed_ns: np.ndarray  # receive time of the last row received by then


def closes(tape: Tape, schedule: Schedule, max_lots: int) -> Closes:
    """For the lane before row d: the first tradable row after the fill of d-1 that shows `max_lots` on both sides (bars: a close) and
    happened at or after the decision d that comes no more, which is the rule of a step limit; the window's drain where d is the drain.
    """
    deep = tape.tradable & (np.minimum(tape.bid_lots.sum(axis=1), tape.ask_lots.sum(axis=1)) >= max_lots)
    if tape.schema in BAR_NS:
        deep &= tape.point == 3
    ahead = np.append(np.where(deep, np.arange(tape.events), tape.events), tape.events)
    following = np.minimum.accumulate(ahead[::-1])[::-1]  # the first deep row at or after each
    event, observed = np.empty(schedule.rows, np.int64), np.empty(schedule.rows, np.int64)
    for first, drain, _ in schedule.windows:
        # Times ascend within a window's own rows of the tape, and are looked up there alone.
        begin, end = int(schedule.mark_event[first]), int(schedule.fill_event[drain])
        fills = schedule.fill_event[first:drain]
        after = np.append(begin, fills + 1)
        happened = begin + np.searchsorted(tape.ts_event_ns[begin : end + 1], schedule.ts_decided_ns[first : drain + 1], side="left")
        event[first : drain + 1] = np.minimum(following[np.maximum(after, happened)], end)
        event[drain] = end
        times = tape.ts_event_ns[event[first : drain + 1]]
        seen = np.searchsorted(tape.ts_recv_ns[begin : end + 1], times, side="right") - 1
        observed[first : drain + 1] = tape.ts_recv_ns[begin + np.maximum(seen, 0)]
        observed[drain] = schedule.ts_observed_ns[drain]
    return Closes(event, tape.ts_event_ns[event], observed)
