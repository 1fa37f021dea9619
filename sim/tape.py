"""From the store to what an environment plays on: tape, schedule, features, and where they came from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from lob.tape import Schedule, Tape
    from sim.config import RunConfig

_BOOK_COLUMNS = ("ts_event", "ts_recv", "action", "side", "size", "flags")


@dataclass(frozen=True)
class LoadedTape:
    """`features` is float32[D+1, 128], shifted by `mean` and divided by `std` (float64[128]); `provenance` goes into the run's identity."""

    tape: Tape
    schedule: Schedule
    features: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    provenance: dict[str, Any]


def load(store: Path, config: RunConfig) -> LoadedTape:
    """The market of a run, read from the open of the session that holds its start, so that features depend on no window.

    Raises NotFound and BadInput, as the store, the tape and the schedule do.
    """
    from lob.calendar import sessions
    from lob.features import market_features
    from lob.layout import STATE_DIM
    from lob.records import BAR_NS, LEVELS
    from lob.schedule import schedule
    from lob.tape_build import bar_tape, book_tape
    from store.market import read_columns

    terms, instrument = config.tape, config.instrument.instrument()
    held = sessions(instrument.calendar, terms.start_ns, terms.end_ns)
    read_start = min([terms.start_ns, *held.open_ns[:1].tolist()])
    bars = terms.market_schema in BAR_NS
    levels = [f"{side}_{kind}_{i:02d}" for i in range(LEVELS) for side in ("bid", "ask") for kind in ("px", "sz")]
    names = ["ts_event", "open", "high", "low", "close", "volume"] if bars else [*_BOOK_COLUMNS, *levels]
    market = read_columns(store, config.instrument.symbol, terms.market_schema, read_start, terms.end_ns, names)
    rows = (market.arrays, market.undefined, market.source, market.row, market.sources, instrument)
    tape = bar_tape(*rows, terms.market_schema, held, terms.slippage_ticks) if bars else book_tape(*rows, held)
    plan = schedule(tape, terms.clock, terms.start_ns, terms.end_ns, terms.latency_ns, config.env.max_lots, terms.step_limit)
    provenance = {
        "sources": list(market.sources),
        "data_hash": market.data_hash,
        "columns": names,
        "read_start_ns": read_start,
        "read_end_ns": terms.end_ns,
    }
    return LoadedTape(tape, plan, market_features(tape, plan), np.zeros(STATE_DIM), np.ones(STATE_DIM), provenance)
