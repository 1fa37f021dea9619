"""The tape: one instrument's immutable columnar market data, and the decision schedule laid over it.

Rows are *events*, in file order; both time columns are running maxima, so a search on them is a search in order. A price that is no whole
number of ticks, a side without a price, a crossed, locked or untrusted book makes a row untradable; it never makes it disappear.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from lob.instruments import Instrument
from lob.records import BAR_NS

NO_PRICE = -(2**31)
"""In `trade_ticks`: the row prints nothing, or at no whole number of ticks."""

HOLE_NS = 7 * 86_400 * 10**9
"""Silence longer than this is a hole in the data: no exchange of `lob.calendar` has been closed for as long."""


@dataclass(frozen=True)
class Tape:
    """E events of L book levels. An undefined level holds 0 lots (its price is then meaningless and never read).

    Bars become four one-level events each (open, low, high, close; `point` 0..3) whose bid and ask are the bar's price minus and plus the
    slippage, with room for any size; their `ts_recv_ns` is the bar's end. For books `point` is -1.
    """

    instrument: Instrument
    schema: str
    ts_event_ns: np.ndarray  # int64[E], running maximum
    ts_recv_ns: np.ndarray  # int64[E], running maximum
    bid_ticks: np.ndarray  # int32[E, L], best first
    ask_ticks: np.ndarray  # int32[E, L]
    bid_lots: np.ndarray  # int32[E, L]
    ask_lots: np.ndarray  # int32[E, L]
    trusted: np.ndarray  # bool[E]: ends an event (F_LAST) or clears the book: the standing book is the last trusted row
    tradable: np.ndarray  # bool[E]: trusted (F_LAST), both sides defined, bid < ask, on the tick, inside a session
    trade_side: np.ndarray  # int8[E]: aggressor of a trade row, +1 buy, -1 sell, 0 none; bars: 0
    trade_lots: np.ndarray  # int64[E]: size printed by the row, 0 for book rows; bars: the bar's volume on its close event
    point: np.ndarray  # int8[E]
    source: np.ndarray  # int32[E]: index of the row's file in `sources`
    row: np.ndarray  # int64[E]: the row's `row` in the market store
    session: np.ndarray  # int32[E]: trade date yyyymmdd, -1 outside every session
    sources: tuple[str, ...]  # SHA-256 of each file
    session_dates: np.ndarray  # int32[S]: the sessions that the tape may touch: trade date,
    session_open_ns: np.ndarray  # int64[S]: first nanosecond,
    session_close_ns: np.ndarray  # int64[S]: and the first one after it; ascending, disjoint
    barred: dict[str, int]  # why rows are untradable -> how many (each row counts once, under the first reason that holds)
    noted: dict[str, int] = field(default_factory=dict)  # what was seen and does not bar a row -> how many
    notes: tuple[str, ...] = ()  # one line per fault that a person should read: what, how many, the first row
    trade_ticks: np.ndarray | None = None  # int32[E]: price of a trade row, NO_PRICE elsewhere; None: its columns held no `price`

    @property
    def events(self) -> int:
        return len(self.ts_event_ns)

    @property
    def records(self) -> int:
        """How many rows of the store the events come from: a bar makes four events. `barred` and `noted` count these."""
        return self.events // 4 if self.schema in BAR_NS else self.events


class WindowRows(NamedTuple):
    """One window's rows in a plan: its first decision, its drain, and the end reason (`EndReason`) of who lives there."""

    first: int
    drain: int
    final_reason: int

    @property
    def decisions(self) -> int:
        return self.drain - self.first


@dataclass(frozen=True)
class Schedule:
    """D decisions and the drain, the same for every lane of a run: a function of tape, clock, latency and window alone.

    Decision d observes every event up to `observed_event[d]` (received at or before it), and its order meets the book of `fill_event[d]`:
    the one standing at arrival by `ts_event`, or the next tradable one. The next decision comes only after that fill has been received:
    one order in flight per lane, and clock ticks that would come earlier are skipped and counted. Index D is the drain: the last tradable
    event of the window that shows `max_lots` on both sides; nothing is decided there.

    `lob.windows.join` puts several windows into one such plan, each window's decisions and then its drain; R rows in all (D+1 for one).
    """

    clock: str
    latency_ns: int
    ts_decided_ns: np.ndarray  # int64[D+1]; [D] is the drain's time
    observed_event: np.ndarray  # int64[D+1]: last event received at or before the decision
    ts_observed_ns: np.ndarray  # int64[D+1]: its receive time
    mark_event: np.ndarray  # int64[D+1]: last tradable event at or before `observed_event`: the mark before d and after d-1
    fill_event: np.ndarray  # int64[D+1]: where an order decided at d executes; [D] the drain event
    ts_arrived_ns: np.ndarray  # int64[D+1]: decision + latency; [D] the drain's event time
    ts_filled_ns: np.ndarray  # int64[D+1]: max(arrival, event time of fill_event)
    low_held_mid2: np.ndarray  # int64[D]: least bid+ask over tradable events in (observed_event[d], observed_event[d+1]]; 2^62 if none
    high_held_mid2: np.ndarray  # int64[D]: greatest; -2^62 if none
    low_after_mid2: np.ndarray  # int64[D]: the same over (fill_event[d], observed_event[d+1]]
    high_after_mid2: np.ndarray  # int64[D]
    session: np.ndarray  # int32[D+1]
    closes_session: np.ndarray  # bool[D]: the session of d is over before d+1
    ticks_skipped: int
    final_reason: int  # EndReason of the drain: WINDOW_END, STEP_LIMIT or TAPE_END
    joined: tuple[WindowRows, ...] = ()  # the windows of a joined plan; none: these rows are one window's, and nothing was joined

    @property
    def windows(self) -> tuple[WindowRows, ...]:
        return self.joined or (WindowRows(0, self.rows - 1, self.final_reason),)

    @property
    def rows(self) -> int:
        """Decisions and drains."""
        return len(self.ts_decided_ns)

    @property
    def longest(self) -> int:
        """Decisions of the longest window: a lane that plays it has one step more, its drain."""
        return max(window.decisions for window in self.windows)

    @property
    def decisions(self) -> int:
        return self.rows - len(self.windows)
