"""Ingest: one source file into the market store, streaming, all or nothing.

The calling thread reads, splits by instrument and UTC date, copies columns out and counts quality; two more hash and write the parts. Part
boundaries depend on the file alone, so the same file gives the same parts.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lob.errors import BadInput, NotFound, printable
from lob.instruments import REGISTRY, Instrument, resolve
from lob.records import SPARSE, has_receive_time
from lob.units import UNDEFINED_TIMESTAMP
from store.catalog import (
    Part,
    SourceRecord,
    check_store,
    clean,
    commit,
    ensure_store,
    find_record,
    read_records,
    refuse_overlap,
    remove_empty_store,
    staging,
    store_fault,
)
from store.hashes import canonical_hash, file_stamp, sha256_file
from store.ingest_report import IngestReport, report_of
from store.market_schema import (
    ROW,
    ROW_GROUP_ROWS,
    TIMES,
    checked_symbol,
    index_time,
    parquet_options,
    part_folder,
    records_to_columns,
    take_out_sentinels,
    to_arrow,
)
from store.quality import CURSOR, InstrumentQuality, add_batch, add_faults, report
from store.quality_limits import DEFAULT, Limits, refuse_beyond

PART_ROWS = ROW_GROUP_ROWS
"""A part is written once this many rows of one instrument and date have come together (it may hold up to one batch more). Three parts
are in memory at a time."""
BUFFER_BYTES = 192 << 20
"""What may wait in memory over all instruments; beyond it the largest are written early."""
HASH_FIRST_BYTES = 32 << 20
"""Up to this size a file is hashed before it is read, so that one that is held already costs nothing; a larger one is hashed meanwhile."""
WRITERS = 2
_DAY_NS = 86400 * 10**9
_LAST_TIME = 2**63 - 1


class Source(Protocol):
    """What an ingest needs of an open source file: records in file order, and the symbol of an instrument id on a UTC date."""

    @property
    def schema(self) -> str: ...

    def batches(self) -> Iterable[np.ndarray]: ...

    def symbol_of(self, instrument_id: int, date: Any) -> str | None: ...


def _numbered(source: Source) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """(records, int64 number of each in the source): the source's own numbers (`store.readers.Source.numbered`), or a count."""
    own = getattr(source, "numbered", None)
    if own is not None:
        yield from own()
        return
    rows = 0
    for records in source.batches():
        yield records, np.arange(rows, rows + len(records))
        rows += len(records)
        del records


@dataclass
class _Pending:
    """Rows of one instrument and date that wait to become a part."""

    pieces: list[dict[str, np.ndarray]] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0


@dataclass
class _Work:
    """State of one ingest."""

    path: Path
    source: Source
    root: Path
    folder: Path
    instrument: str | None
    registry: Mapping[str, Instrument]
    hashing: Future[str]
    held: list[SourceRecord]
    pool: ThreadPoolExecutor
    unmapped: set[int] = field(default_factory=set)  # instrument ids that only `instrument` names
    hash_checked: bool = False
    pending: dict[tuple[str, str], _Pending] = field(default_factory=dict)
    running: list[Future] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    staged: dict[str, Path] = field(default_factory=dict)

    @property
    def schema(self) -> str:
        return self.source.schema


class _HeldAlready(Exception):
    """The file turned out to be in the store."""

    def __init__(self, record: SourceRecord) -> None:
        self.record = record


def ingest_file(
    path: str | os.PathLike,
    store: str | os.PathLike,
    *,
    open_source: Callable[[Path], Source],
    instrument: str | None = None,
    options: Mapping[str, str | None] | None = None,
    registry: Mapping[str, Instrument] = REGISTRY,
    progress: Callable[[int], None] | None = None,
    also: Path | None = None,
    derived: str = "",
    limits: Limits = DEFAULT,
) -> IngestReport:
    """Puts the file at `path` into the store, once and wholly, or raises and leaves the store as it was.

    `also` is a second file that the source reads, `derived` says what it makes of the file (`store.books.BOOKS`): both are part of its
    identity, which is the SHA-256 of the file alone without them.
    `open_source` opens it (see `store.readers`). `instrument` names the records of a file that names no symbols itself. `options` are those
    that `open_source` works with: the ones that shape values (`Source.options`) are kept, and the same file with others is refused.
    `registry` gives tick and calendar for the quality report, `limits` say what of it is warned of and what is refused. `progress` is
    called with the rows read so far. Raises BadInput (unreadable, empty, cut, overlapping, beyond the limits, no space …), NotFound,
    StaleCache (the store is of a newer version).
    """
    path = Path(path)
    stamp = [_stamp(file) for file in (path, also) if file is not None]
    size = sum(file_size for _, file_size, _ in stamp)
    exists = (Path(store) / "store.json").exists()
    if exists:
        clean(check_store(store))
    with ThreadPoolExecutor(1) as hasher:
        hashing = hasher.submit(_identity, path, also, derived)
        if exists and size <= HASH_FIRST_BYTES and (earlier := find_record(Path(store), hashing.result())) is not None:
            _refuse_other_options(earlier, path, Path(store), instrument, options or {})
            return report_of(earlier, str(path), already=True, limits=limits)
        source = open_source(path)  # before the store is made: a file that cannot be read leaves none behind
        root, is_new = ensure_store(store)
        others: list[SourceRecord] = []
        try:
            with staging(root) as folder, ThreadPoolExecutor(WRITERS) as pool:
                work = _Work(path, source, root, folder, instrument, registry, hashing, read_records(root), pool)
                others = work.held
                rows, qualities = _convert(work, progress)
                _refuse_known(work, wait=True)
                if [file_stamp(file) for file in (path, also) if file is not None] != stamp:
                    raise BadInput(f"{path}: changed while it was read: wait until it is complete and run again; nothing was kept")
                name = printable(f"{path.name} ({derived})" if derived else path.name)
                record = _record(work, name, size, rows, qualities, options or {})
                refuse_beyond(record.quality, limits, path)
                earlier = commit(root, folder, record, work.staged)
        except _HeldAlready as found:
            earlier = record = found.record
        except BaseException as error:
            if is_new:
                remove_empty_store(root)
            if isinstance(error, OSError):
                raise store_fault(root, error) from None
            raise
    if earlier is not None:
        _refuse_other_options(earlier, path, root, instrument, options or {})
    return report_of(earlier or record, str(path), earlier is not None, others, registry, limits)


def _identity(path: Path, also: Path | None, derived: str) -> str:
    """The file's SHA-256, or one over it, what is derived from it, and the second file's."""
    own = sha256_file(path)
    if also is None and not derived:
        return own
    parts = [own, derived, *([sha256_file(also)] if also is not None else [])]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _refuse_other_options(record: SourceRecord, path: Path, root: Path, instrument: str | None, options: Mapping[str, str | None]) -> None:
    """Raises BadInput when the file was ingested with other options than these: nothing would be done, and its values are of those."""
    held = {symbol for symbol, _, _ in record.spans}
    differing: list[tuple[str, str | None, str | None]] = []
    if instrument is not None and held != {instrument}:
        differing.append(("instrument", ", ".join(sorted(held)), instrument))
    if (schema := options.get("schema")) not in (None, record.schema):
        differing.append(("schema", record.schema, schema))
    differing += [(name, kept, options.get(name)) for name, kept in (record.options or {}).items() if options.get(name) != kept]
    if differing:
        name, kept, given = differing[0]
        option = "--" + name.replace("_", "-")
        was = f"with {option} {kept}" if kept is not None else f"without {option}"
        now = f"with {option} {given}" if given is not None else f"without {option}"
        raise BadInput(
            f"{path}: is in the store already, ingested {was}, and not {now}: to ingest it anew, take it out first with "
            f"`sim store rm --store {root} --source {record.sha256[:12]}`"
        )


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        if path.exists() and not path.is_file():
            raise BadInput(f"{path}: cannot be read: it is no regular file; name one data file")
        return file_stamp(path)
    except FileNotFoundError:
        raise NotFound(f"{path}: no such file") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None


def _refuse_known(work: _Work, wait: bool = False) -> None:
    """Raises _HeldAlready once the hash of the file is there and the store has a record of it."""
    if not work.hash_checked and (wait or work.hashing.done()):
        if (record := find_record(work.root, work.hashing.result())) is not None:
            raise _HeldAlready(record)
        work.hash_checked = True


def _convert(work: _Work, progress: Callable[[int], None] | None) -> tuple[int, dict[str, InstrumentQuality]]:
    """Reads the source to its end and writes its parts into the staging folder. Returns the rows, and the quality counts per instrument."""
    try:
        found = _stream(work, progress)
        for key in sorted(work.pending, key=lambda key: (key[1], key[0])):
            _write_pending(work, key)
        _collect(work, 0)
    finally:
        for future in work.running:
            future.cancel()
    return found


def _stream(work: _Work, progress: Callable[[int], None] | None) -> tuple[int, dict[str, InstrumentQuality]]:
    rows = 0
    qualities: dict[str, InstrumentQuality] = {}
    symbols: dict[tuple[int, int], str] = {}
    identities: dict[int, str] = {}
    for records, numbers in _numbered(work.source):
        _refuse_known(work)
        index = _index_times(work, records, numbers)
        for instrument_id, day, places in _split(records, index):
            if (instrument_id, day) not in symbols:
                symbols[instrument_id, day] = checked_symbol(_symbol(work, instrument_id, day), work.path)
            symbol, date = symbols[instrument_id, day], _date(day)
            chosen, times = (records, index) if places is None else (records[places], index[places])
            positions = numbers if places is None else numbers[places]
            start_ns, end_ns = int(times.min()), int(times.max())
            if work.hash_checked:
                refuse_overlap(work.held, str(work.path), work.schema, [(symbol, start_ns, end_ns)])
            if symbol not in qualities:
                qualities[symbol] = _quality_of(symbol, work.schema, work.registry)
            identities[instrument_id] = symbol
            _cover(qualities[symbol], symbol, work.registry, start_ns, end_ns)
            add_batch(qualities[symbol], date, chosen, times)
            _wait(work, (symbol, date), records_to_columns(chosen, work.schema, positions))
        rows += len(records)
        del records, numbers, chosen, times, index, places, positions  # the reader lends its memory again once nothing looks at it
        if progress is not None:
            progress(rows)
    if rows == 0:
        empty = "no message in it makes a book" if getattr(work.source, "numbered", None) is not None else "holds no records"
        raise BadInput(f"{work.path}: {empty}: nothing to ingest")
    for (instrument_id, day), counts in getattr(work.source, "faults", {}).items():
        # A day whose messages touch no level in view has no row, and then no line of the report either: the nearest before it takes them.
        if instrument_id in identities:
            add_faults(qualities[identities[instrument_id]], _date(day), counts)
    return rows, qualities


def _index_times(work: _Work, records: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """int64[n]: receive time, else event time, of each record."""
    times = {name: np.ascontiguousarray(records[name]) for name in TIMES if name in (records.dtype.names or ())}
    late = np.zeros(len(records), bool)
    for values in times.values():
        late |= (values > _LAST_TIME) & (values != UNDEFINED_TIMESTAMP)
    index = times["ts_event"]
    if has_receive_time(work.schema):
        index = np.where(times["ts_recv"] == UNDEFINED_TIMESTAMP, index, times["ts_recv"])
    late |= index == UNDEFINED_TIMESTAMP
    if late.any():
        row = int(np.argmax(late))
        what = "no time at all" if index[row] == UNDEFINED_TIMESTAMP else "a time after the year 2262"
        raise BadInput(f"{work.path}: record {int(numbers[row])} has {what}: the file is damaged, fetch it again")
    return index.view(np.int64)


def _split(records: np.ndarray, index: np.ndarray) -> Iterable[tuple[int, int, np.ndarray | None]]:
    """(instrument id, UTC day since 1970, places in the batch, ascending); places None: all of them."""
    ids = records["instrument_id"]
    first_day, last_day = int(index.min()) // _DAY_NS, int(index.max()) // _DAY_NS
    if first_day == last_day and (ids == ids[0]).all():
        yield int(ids[0]), first_day, None
        return
    days = index // _DAY_NS
    keys = np.ascontiguousarray(ids).astype(np.int64) * 2**20 + days  # days since 1970 fit in 20 bits until the year 4840
    order = np.argsort(keys, kind="stable")
    bounds = np.flatnonzero(np.diff(keys[order])) + 1
    groups = np.split(order, bounds)
    for places in sorted(groups, key=lambda places: int(places[0])):
        yield int(ids[places[0]]), int(days[places[0]]), places


def _date(day: int) -> str:
    return str(np.datetime64(day, "D"))


def _symbol(work: _Work, instrument_id: int, day: int) -> str:
    found = work.source.symbol_of(instrument_id, np.datetime64(day, "D").astype(object))
    if found is None:
        if work.instrument is None:
            raise BadInput(f"{work.path}: does not say what instrument_id {instrument_id} was on {_date(day)}: name it with --instrument")
        work.unmapped.add(instrument_id)
        if len(work.unmapped) > 1:
            ids = " and ".join(map(str, sorted(work.unmapped)))
            raise BadInput(
                f"{work.path}: does not say what instrument_id {ids} are, and --instrument {work.instrument} can name only one: ask for "
                "the file with symbol mappings, or for one instrument"
            )
        return work.instrument
    if work.instrument is not None and work.instrument != found:
        raise BadInput(f"{work.path}: holds {found} by its own metadata, not {work.instrument}: leave --instrument away")
    return found


def _quality_of(symbol: str, schema: str, registry: Mapping[str, Instrument]) -> InstrumentQuality:
    if schema in SPARSE:
        return InstrumentQuality(symbol, schema, None, None, None, None)
    try:
        known = resolve(symbol, registry)
    except NotFound:
        reason = f"{symbol} is in no registry of instruments"
        return InstrumentQuality(symbol, schema, None, reason, None, reason)
    return InstrumentQuality(symbol, schema, known.tick_price_e9, None, None, None)


def _cover(quality: InstrumentQuality, symbol: str, registry: Mapping[str, Instrument], start_ns: int, end_ns: int) -> None:
    """Makes the sessions known for the times of the next batch."""
    if quality.tick_e9 is None or (quality.covered[0] <= start_ns and end_ns <= quality.covered[1]):
        return
    from lob.calendar import sessions

    covered = (min(start_ns, quality.covered[0]) - 4 * _DAY_NS, max(end_ns, quality.covered[1]) + 32 * _DAY_NS)
    quality.sessions = sessions(resolve(symbol, registry).calendar, *covered)
    quality.covered = covered
    quality.carried[CURSOR] = 0


def _wait(work: _Work, key: tuple[str, str], columns: dict[str, np.ndarray]) -> None:
    """Keeps columns until their part is full, and all parts within the budget of memory."""
    pending = work.pending.setdefault(key, _Pending())
    pending.pieces.append(columns)
    pending.rows += len(columns["row"])
    pending.bytes += sum(values.nbytes for values in columns.values())
    if pending.rows >= PART_ROWS:
        _write_pending(work, key)
    if len(work.pending) > 1 and sum(waiting.bytes for waiting in work.pending.values()) > BUFFER_BYTES:
        for largest in sorted(work.pending, key=lambda key: (-work.pending[key].bytes, key))[: max(1, len(work.pending) // 4)]:
            _write_pending(work, largest)


def _write_pending(work: _Work, key: tuple[str, str]) -> None:
    _collect(work, WRITERS - 1)
    pieces = work.pending.pop(key).pieces
    work.running.append(work.pool.submit(_write_part, work, key, pieces))


def _collect(work: _Work, still: int) -> None:
    """Waits until at most `still` parts are being written, oldest first."""
    while len(work.running) > still:
        part, file = work.running.pop(0).result()
        work.parts.append(part)
        work.staged[part.path] = file


def _write_part(work: _Work, key: tuple[str, str], pieces: list[dict[str, np.ndarray]]) -> tuple[Part, Path]:
    """Hashes and writes one part into the staging folder; runs in a writer thread."""
    import pyarrow.parquet as pq

    symbol, date = key
    columns = {name: np.concatenate([piece.pop(name) for piece in pieces]) for name in list(pieces[0])}
    undefined = take_out_sentinels(columns)
    index = columns[index_time(work.schema)]
    if "ts_recv" in undefined:
        index = np.where(undefined["ts_recv"], columns["ts_event"], index)
    content_hash = canonical_hash(columns, undefined)
    try:
        table = to_arrow(columns, undefined, work.schema)
    except BadInput as error:
        raise BadInput(f"{work.path}: {symbol} on {date}: {error}: the file is damaged, fetch it again") from None
    first_row = int(columns[ROW][0])
    name = f"{first_row:012d}-{content_hash[:16]}.parquet"
    file = work.folder / name
    with open(file, "wb") as sink:
        pq.write_table(table, sink, row_group_size=ROW_GROUP_ROWS, **parquet_options(work.schema))
        sink.flush()
        os.fsync(sink.fileno())
    part = Part(
        path=f"{part_folder(work.schema, symbol, date)}/{name}",
        schema=work.schema,
        instrument=symbol,
        date=date,
        rows=len(index),
        first_row=first_row,
        start_ns=int(index.min()),
        end_ns=int(index.max()),
        bytes=file.stat().st_size,
        content_hash=content_hash,
    )
    return part, file


def _record(
    work: _Work, name: str, size: int, rows: int, qualities: dict[str, InstrumentQuality], options: Mapping[str, str | None]
) -> SourceRecord:
    spans = []
    for symbol in sorted(qualities):
        days = qualities[symbol].spans.values()
        spans.append((symbol, min(first for first, _ in days), max(last for _, last in days)))
    parts = sorted(work.parts, key=lambda part: (part.instrument, part.first_row))
    quality = [row for symbol in sorted(qualities) for row in report(qualities[symbol])]
    kept = {name: options.get(name) for name in getattr(work.source, "options", ())}
    return SourceRecord(work.hashing.result(), name, size, work.schema, rows, tuple(spans), tuple(parts), tuple(quality), kept)
