"""From the store's columns of a range to what a run is played on: tape, schedule and raw features.

The entry module of the feature cache's schema hash: whatever shapes a value of a feature is imported from here.
"""

from dataclasses import dataclass

import numpy as np

from lob.calendar import Sessions, sessions
from lob.errors import BadInput
from lob.features import market_features
from lob.instruments import Instrument
from lob.records import BAR_NS, LEVELS
from lob.schedule import schedule
from lob.tape import Schedule, Tape
from lob.tape_build import bar_tape, book_tape

_DAY_NS = 86_400 * 10**9


@dataclass(frozen=True)
class Window:
    """[start, end) of the decisions, and the clock that makes them (docs/step.md, "Time")."""

    clock: str
    start_ns: int
    end_ns: int
    latency_ns: int
    max_lots: int
    step_limit: int | None = None
    slippage_ticks: int = 1


def columns_of(schema: str, prints: bool = False) -> tuple[str, ...]:
    """The store columns that a tape of this schema is made of; with `prints`, the price of every trade row too.

    Raises BadInput for a schema without books and without usable bars, and for the prints of bars.
    """
    if schema in BAR_NS:
        if BAR_NS[schema] >= _DAY_NS:
            raise BadInput(f"{schema}: a bar as long as a day spans sessions and cannot be replayed: use ohlcv-1h or finer")
        if prints:
            raise BadInput(f"{schema} holds no queue that an order could stand in: leave env.queue_model at none, or replay mbp-10")
        return ("ts_event", "open", "high", "low", "close", "volume")
    levels = {"mbp-1": 1, "mbp-10": LEVELS}.get(schema)
    if levels is None:
        raise BadInput(f"{schema} holds neither books nor bars: replay mbp-10, mbp-1 or ohlcv-*")
    shown = (f"{side}_{what}_{i:02d}" for i in range(levels) for side in ("bid", "ask") for what in ("px", "sz"))
    return ("ts_event", "ts_recv", "action", "side", "size", "flags", *(("price",) if prints else ()), *shown)


def read_range(instrument: Instrument, start_ns: int, end_ns: int) -> tuple[int, int]:
    """What to read for a window: from the open of the session that holds its start, so that no feature depends on the window."""
    held = sessions(instrument.calendar, start_ns, start_ns + 1)
    return (int(held.open_ns[0]) if len(held.open_ns) else start_ns), end_ns


def prepare(
    arrays: dict[str, np.ndarray],
    undefined: dict[str, np.ndarray],
    source: np.ndarray,
    row: np.ndarray,
    sources: tuple[str, ...],
    instrument: Instrument,
    schema: str,
    window: Window,
) -> tuple[Tape, Schedule]:
    """Tape and schedule of the columns `columns_of(schema)` over `read_range`. Raises BadInput as tape and schedule do."""
    tape = tape_of(
        arrays, undefined, source, row, sources, instrument, schema, read_range(instrument, window.start_ns, window.end_ns),
        window.slippage_ticks,
    )  # fmt: skip
    return tape, plan_of(tape, window)


def tape_of(
    arrays: dict[str, np.ndarray],
    undefined: dict[str, np.ndarray],
    source: np.ndarray,
    row: np.ndarray,
    sources: tuple[str, ...],
    instrument: Instrument,
    schema: str,
    read: tuple[int, int],
    slippage_ticks: int,
) -> Tape:
    """The tape of the columns read over the range `read`. Raises BadInput."""
    held: Sessions = sessions(instrument.calendar, *read)
    if schema in BAR_NS:
        return bar_tape(arrays, undefined, source, row, sources, instrument, schema, held, slippage_ticks)
    return book_tape(arrays, undefined, source, row, sources, instrument, held)


def plan_of(tape: Tape, window: Window) -> Schedule:
    """The window's schedule on a tape that begins at the open of the session that holds its start. Raises BadInput."""
    return schedule(tape, window.clock, window.start_ns, window.end_ns, window.latency_ns, window.max_lots, window.step_limit)


def raw_features(tape: Tape, plan: Schedule) -> np.ndarray:
    """`lob.features.market_features`: what the cache keeps normalised."""
    return market_features(tape, plan)
