"""Markets that ours and the peers replay: the real ES hour, and synthetic days."""

import datetime as dt
from pathlib import Path

import numpy as np

from lob.calendar import sessions
from lob.instruments import resolve
from lob.prepare import columns_of, tape_of
from lob.synth import synthesize_day
from lob.tape import Tape
from lob.tape_build import book_tape
from sim.ingest import ingest
from store.market_read import list_parts, read_columns

ES_HOUR = "mbp10/esh4_20231225_derived.mbp-10.dbn.zst"


def es_hour(shared_data: Path, folder: Path) -> Tape:
    """Two hours of ES: one before the opening, and one of trading."""
    ingest(shared_data / ES_HOUR, folder / "store")
    parts = list_parts(folder / "store")
    span = min(part.start_ns for part in parts), max(part.end_ns for part in parts) + 1
    columns = read_columns(folder / "store", "ESH4", "mbp-10", *span, columns_of("mbp-10", prints=True))
    instrument = resolve("ESH4")
    return tape_of(columns.arrays, columns.undefined, columns.source, columns.row, columns.sources, instrument, "mbp-10", span, 1)


def synthetic_day(rows: int, seed: int) -> Tape:
    """A synthetic ES day."""
    instrument = resolve("ESH4")
    records = synthesize_day(instrument, dt.date(2024, 1, 3), rows, seed)
    held = sessions(instrument.calendar, int(records["ts_event"][0]), int(records["ts_recv"][-1]))
    columns = {name: records[name] for name in records.dtype.names}
    return book_tape(columns, {}, np.zeros(rows, np.int32), np.arange(rows), ("0" * 64,), instrument, held)


def decisions(tape: Tape, period_ns: int) -> np.ndarray:
    """Decision times from a second after the first tradable book has been received to the last row."""
    first = int(tape.ts_recv_ns[tape.tradable][0])
    return np.arange(first + 10**9, int(tape.ts_recv_ns[-1]), period_ns)
