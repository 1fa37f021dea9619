"""One way into every source file: what it is, its schema, its records in batches, and what its instruments are called."""

import datetime as dt
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lob.errors import BadInput
from lob.records import RECORDS, RTYPE
from store.books import Faults, books_of
from store.csv_databento import databento_schema, read_databento_csv
from store.csv_ohlcv import check_options, read_ohlcv_csv, told_bars
from store.csv_rows import Symbols
from store.dbn import plain_text, read_batches, read_metadata, usable_schema
from store.dbn_live import Recording, read_live, read_recording
from store.dbn_metadata import DbnMetadata
from store.detect import kind_of, refuse_unless_readable
from store.lobster import read_pair, told_by_name
from store.streams import open_stream

BAR_OPTIONS = ("timezone", "stamp", "delimiter", "columns", "date_order")


@dataclass(frozen=True)
class Source:
    """An opened source file. `format` is one of `store.detect.FORMATS`; `metadata` is there for DBN. `options` are the names of those that
    shape what its records hold; the others mean nothing to the format.

    `batches()` starts at the first record each time it is called and yields arrays of dtype `RECORDS[schema]`.
    `symbol_of(instrument_id, date)` is the name on a UTC date, or None where the file does not say. A CSV with a column of symbols
    names the instruments of a batch only once that batch was read. `numbered()`, where a record is made of several of the file's, yields
    (records, int64 number of the file's record that each came from); `faults` is then filled while they are read.
    """

    path: Path
    format: str
    schema: str
    metadata: DbnMetadata | None
    batches: Callable[[], Iterator[np.ndarray]]
    symbol_of: Callable[[int, dt.date], str | None]
    options: tuple[str, ...] = ()
    numbered: Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]] | None = None
    faults: Faults = field(default_factory=dict)


def holds_messages(path: str | os.PathLike[str]) -> bool:
    """Whether the file is DBN of schema `mbo`. False for one that cannot be read: who opens it says why."""
    try:
        with open_stream(path) as stream:
            if kind_of(stream.head) != "dbn":
                return False
        return read_metadata(path).schema == "mbo"
    except BadInput:
        return False


def open_books(path: str | os.PathLike[str]) -> Source:
    """The `mbp-10` that the messages of a DBN file of schema `mbo` make (`store.books`). Raises BadInput."""
    messages = open_source(path, schema="mbo")
    faults: Faults = {}

    def numbered() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        faults.clear()
        return books_of(messages.path, messages.batches, faults)

    def batches() -> Iterator[np.ndarray]:
        return (records for records, _ in numbered())

    return Source(messages.path, "dbn", "mbp-10", messages.metadata, batches, messages.symbol_of, (), numbered, faults)


def recording_of(path: str | os.PathLike[str]) -> Recording | None:
    """What a live recording holds; None for any other file, and for one that cannot be read: who opens it says why. Raises BadInput for
    a recording that is damaged."""
    try:
        with open_stream(path) as stream:
            if kind_of(stream.head) != "dbn":
                return None
        if read_metadata(path).schema is not None:
            return None
    except BadInput:
        return None
    return read_recording(path)


def open_live(path: str | os.PathLike[str], schema: str, recording: Recording) -> Source:
    """The records of one schema in a live recording. Raises BadInput when it holds none."""
    path = Path(path)
    if schema not in RECORDS or not recording.counts[RTYPE[schema]]:
        raise BadInput(f"{path}: a live recording without {schema}; it holds {', '.join(recording.schemas) or 'nothing that can be used'}")

    def numbered() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        return read_live(path, schema)

    def batches() -> Iterator[np.ndarray]:
        return (records for records, _ in numbered())

    return Source(path, "dbn", schema, None, batches, recording.symbol_of, (), numbered)


def open_pair(
    message: str | os.PathLike[str],
    book: str | os.PathLike[str],
    schema: str | None = None,
    date: str | None = None,
    timezone: str | None = None,
) -> Source:
    """A LOBSTER message file and its order book file, as `mbp-10` (`store.lobster.read_pair`). Raises BadInput."""
    message, book = Path(message), Path(book)
    faults: Faults = {}
    _same(message, schema, "mbp-10")
    name = told_by_name(message)[0]

    def batches() -> Iterator[np.ndarray]:
        faults.clear()
        return read_pair(message, book, date, timezone, faults)

    return Source(message, "lobster", "mbp-10", None, batches, lambda ident, day: name, ("timezone", "date"), None, faults)


def open_source(
    path: str | os.PathLike[str],
    *,
    schema: str | None = None,
    timezone: str | None = None,
    stamp: str = "start",
    delimiter: str | None = None,
    columns: Mapping[str, str] | None = None,
    date_order: str | None = None,
) -> Source:
    """Tells what the file is by its content and prepares to read it; records are read by `batches()`.

    `schema` is needed for a CSV of bars, else checked; the options after it are those of `read_ohlcv_csv`. Raises BadInput.
    """
    path = Path(path)
    with open_stream(path) as stream:
        kind = refuse_unless_readable(stream)
    if kind == "dbn":
        metadata = read_metadata(path)
        found = usable_schema(path)
        _same(path, schema, found)
        if found == "definition":
            return _definitions(path, metadata)
        return Source(path, kind, found, metadata, lambda: read_batches(path), metadata.symbol_of)
    symbols: Symbols = {}

    def symbol_of(instrument_id: int, date: dt.date) -> str | None:
        return symbols.get((instrument_id, date))

    if kind == "csv-databento":
        told = databento_schema(path, schema, delimiter)
        _same(path, schema, told)
        return Source(path, kind, told, None, lambda: read_databento_csv(path, told, delimiter, symbols), symbol_of, ("delimiter",))
    schema = schema or told_bars(path, delimiter)
    if schema is None:
        raise BadInput(f"{path}: a CSV of bars does not say how long they are: state it, like --schema ohlcv-1m")
    check_options(path, schema, stamp, date_order)

    def bars() -> Iterator[np.ndarray]:
        return read_ohlcv_csv(path, schema, timezone, stamp, delimiter, columns, date_order, symbols)

    return Source(path, kind, schema, None, bars, symbol_of, BAR_OPTIONS)


def _definitions(path: Path, metadata: DbnMetadata) -> Source:
    """A definition says itself what its instrument is called, where the file's mappings do not."""
    names: dict[int, str] = {}

    def batches() -> Iterator[np.ndarray]:
        for records in read_batches(path):
            for ident, name in set(zip(records["instrument_id"].tolist(), records["raw_symbol"].tolist(), strict=True)):
                names[ident] = plain_text(name)
            yield records

    def symbol_of(instrument_id: int, date: dt.date) -> str | None:
        return metadata.symbol_of(instrument_id, date) or names.get(instrument_id) or None

    return Source(path, "dbn", "definition", metadata, batches, symbol_of)


def _same(path: Path, asked: str | None, found: str) -> None:
    if asked is not None and asked != found:
        raise BadInput(f"{path}: holds schema {found}, not {asked}")
