"""Reading the market store: what it holds, and columns of a range of one instrument's rows."""

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lob.calendar import sessions
from lob.errors import BadInput, NotFound
from lob.instruments import REGISTRY, Instrument, resolve
from lob.records import BAR_NS, SPARSE
from lob.units import format_time_ns
from store.catalog import Part, SourceRecord, check_store, read_records
from store.hashes import canonical_hash
from store.holes import Holes, Span, find_holes
from store.market_schema import ROW, is_nullable, store_columns
from store.merged import Held, read_held, reading
from store.part_read import choose, read_chosen
from store.quality import BOOK_GAP_NS

_EXTREMES = {"longest_gap_ns": max, "traded_low_e9": min, "traded_high_e9": max}


@dataclass(frozen=True)
class MarketColumns:
    """Rows of one instrument and schema, ordered by (source, `row`), sources by the start of their span.

    `arrays`: the columns asked for, in the store's dtypes (times int64, prices int64 1e-9); undefined entries hold 0. `undefined`: a bool
    mask for each nullable column among them. `source` int32[n] indexes `sources` (SHA-256 of the files), `row` int64[n] is the position in
    that file. `data_hash`: SHA-256 (hex) over the values of all of these and the sources (`store.hashes.canonical_hash`).
    """

    instrument: str
    schema: str
    arrays: dict[str, np.ndarray]
    undefined: dict[str, np.ndarray]
    source: np.ndarray
    row: np.ndarray
    sources: tuple[str, ...]
    data_hash: str

    @property
    def rows(self) -> int:
        return len(self.row)


def list_parts(store: str | os.PathLike) -> list[Part]:
    """Every part of the store, by schema, instrument, source span and row. Raises NotFound, StaleCache, BadInput."""
    return in_order(read_records(check_store(store)))


def in_order(records: list[SourceRecord]) -> list[Part]:
    """The parts of records by schema, instrument, source span and row: the order in which their rows are read."""
    return [
        part for _, part in sorted(((_order(record, part), part) for record in records for part in record.parts), key=lambda pair: pair[0])
    ]


def _order(record: SourceRecord, part: Part) -> tuple:
    start = next(first for symbol, first, _ in record.spans if symbol == part.instrument)
    return part.schema, part.instrument, start, record.sha256, part.first_row


def summarize_store(store: str | os.PathLike, registry: Mapping[str, Instrument] = REGISTRY) -> list[dict[str, Any]]:
    """One row per instrument and schema: span, rows, dates, files, bytes, holes (`store.holes`), and the sums of its quality counts (None:
    could not be made), silences from one file to the next among its gaps. `registry` gives the calendar.
    """
    held_now = read_held(check_store(store), read_records)
    records = held_now.records
    parts: dict[tuple[str, str], list[Part]] = defaultdict(list)
    sources: dict[tuple[str, str], list[str]] = defaultdict(list)
    quality: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    spans: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for record in records:
        for symbol, _, _ in record.spans:
            sources[symbol, record.schema].append(record.name)
        for part in record.parts:
            parts[part.instrument, part.schema].append(part)
        for day in record.quality:
            quality[day["instrument"], record.schema].append(day)
        for (symbol, _), (start_ns, end_ns) in _dates(record).items():
            spans[symbol, record.schema].append(Span(start_ns, end_ns, record.sha256))
    rows = []
    for symbol, schema in sorted(parts):
        held = parts[symbol, schema]
        files = {place.path: place.file_bytes for place in map(held_now.of, held)}
        row: dict[str, Any] = {
            "instrument": symbol,
            "schema": schema,
            "start": format_time_ns(min(part.start_ns for part in held)),
            "end": format_time_ns(max(part.end_ns for part in held)),
            "rows": sum(part.rows for part in held),
            "dates": len({part.date for part in held}),
            "sources": sorted(sources[symbol, schema]),
            "parts": len(files),
            "bytes": sum(files.values()),
        }
        found = _holes(symbol, schema, spans[symbol, schema], registry)
        row["holes"] = [{"start": format_time_ns(first), "end": format_time_ns(last), "ns": last - first} for first, last in found.holes]
        row["missing_sessions"] = found.missing_sessions
        row["quality"] = _total(quality[symbol, schema])
        if schema not in SPARSE:
            row["quality"]["gaps"] += found.gaps
            row["quality"]["longest_gap_ns"] = max(row["quality"]["longest_gap_ns"], found.longest_gap_ns)
        rows.append(row)
    return rows


def _holes(symbol: str, schema: str, spans: list[Span], registry: Mapping[str, Instrument]) -> Holes:
    if schema in SPARSE:
        return Holes((), None, 0, 0)
    try:
        calendar = resolve(symbol, registry).calendar
    except NotFound:
        known = None
    else:
        known = sessions(calendar, min(span.start_ns for span in spans), max(span.end_ns for span in spans) + 1)
    return find_holes(spans, known, BAR_NS.get(schema, BOOK_GAP_NS))


def _dates(record: SourceRecord) -> dict[tuple[str, str], tuple[int, int]]:
    """(instrument, UTC date) -> (first, last) index time over the sessions of the date."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for day in record.quality:
        key = day["instrument"], day["date"]
        start_ns, end_ns = found.get(key, (day["start_ns"], day["end_ns"]))
        found[key] = min(start_ns, day["start_ns"]), max(end_ns, day["end_ns"])
    return found


def _total(days: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums over dates and sessions (of the longest gap and prices: the extreme); a count that is None on all of them stays None."""
    total: dict[str, Any] = {}
    for name in dict.fromkeys(name for day in days for name in day):
        if name in ("instrument", "schema", "date", "session_id", "start_ns", "end_ns", "rows"):
            continue
        values = [day[name] for day in days if day.get(name) is not None]  # a record may be older than a count
        if name.endswith("_reason"):
            total[name] = values[0] if values else None
        else:
            total[name] = _EXTREMES.get(name, sum)(values) if values else None
    return total


def quality_rows(store: str | os.PathLike) -> list[dict[str, Any]]:
    """The quality report: one row per source file, instrument, schema, UTC date and session (`session_id`: its trade date yyyymmdd;
    None outside every session, and in a record that is older than they are)."""
    records = read_records(check_store(store))
    rows = [{"source": record.name, "source_sha256": record.sha256} | row for record in records for row in record.quality]
    return sorted(rows, key=lambda row: (row["schema"], row["instrument"], row["date"], row.get("session_id") or 0, row["source_sha256"]))


def read_columns(
    store: str | os.PathLike, instrument: str, schema: str, start_ns: int, end_ns: int, columns: tuple[str, ...] | list[str] | None = None
) -> MarketColumns:
    """The rows whose index time (`ts_recv`, else `ts_event`) lies in [start_ns, end_ns). `columns` None: all of the schema's.

    Raises NotFound for an instrument, schema or column that is not there (naming what is), BadInput for an empty range or one without rows.
    """
    root = check_store(store)
    if start_ns >= end_ns:
        raise BadInput(f"the range is empty: it starts at {format_time_ns(start_ns)} and ends at {format_time_ns(end_ns)}")
    with reading(root):
        return _read_held(root, read_held(root, read_records), instrument, schema, start_ns, end_ns, columns)


def _read_held(
    root: Path, held: Held, instrument: str, schema: str, start_ns: int, end_ns: int, columns: tuple[str, ...] | list[str] | None
) -> MarketColumns:
    records = _holding(root, held.records, instrument, schema)
    names = _known(schema, columns)
    stretches = _stretches(held, records, instrument, start_ns, end_ns)
    chosen = [
        (stretch, batch)
        for stretch in stretches
        for batch in choose(root / stretch.path, schema, stretch.file_rows, stretch.first, stretch.end, (start_ns, end_ns))
    ]
    room = sum(batch.rows for _, batch in chosen)
    dtypes = store_columns(schema)
    arrays = {name: np.empty(room, dtypes[name]) for name in (*names, ROW)} | {"source": np.empty(room, np.int32)}
    undefined = {name: np.zeros(room, bool) for name in names if is_nullable(name)}
    at, of_record = 0, np.zeros(len(records), np.int64)
    for stretch, batch in chosen:
        inside = read_chosen(batch, schema, (start_ns, end_ns), arrays, undefined, at)
        owners = stretch.owners(batch.first, batch.end)
        owners = owners if isinstance(inside, int) else owners[inside]
        arrays["source"][at : at + len(owners)] = owners
        of_record += np.bincount(owners, minlength=len(records))
        at += len(owners)
    with_rows = np.flatnonzero(of_record)
    sources = [records[i].sha256 for i in with_rows]
    ends = np.cumsum(of_record)
    for i in with_rows:
        _into_file_order(arrays, undefined, slice(ends[i] - of_record[i], ends[i]))
    if not sources:
        spans = ", ".join(f"{format_time_ns(first)} to {format_time_ns(last)}" for first, last in _spans(records, instrument))
        asked = f"{format_time_ns(start_ns)} to {format_time_ns(end_ns)}"
        raise BadInput(f"{root}: {instrument} {schema} has no rows from {asked}; it has rows from {spans}")
    arrays = {name: values[:at] for name, values in arrays.items()}
    arrays["source"] = np.searchsorted(with_rows, arrays["source"]).astype(np.int32)
    undefined = {name: mask[:at] for name, mask in undefined.items()}
    origin = {f"sha256_{i}": np.frombuffer(bytes.fromhex(sha256), np.uint8) for i, sha256 in enumerate(sources)}
    data_hash = canonical_hash(arrays | origin, undefined)
    source, row = arrays.pop("source"), arrays[ROW] if ROW in names else arrays.pop(ROW)
    return MarketColumns(instrument, schema, arrays, undefined, source, row, tuple(sources), data_hash)


def _into_file_order(arrays: dict[str, np.ndarray], undefined: dict[str, np.ndarray], rows: slice) -> None:
    """Puts one source's rows, which stand part by part, into the order of `row`: where times go back over midnight its parts interleave."""
    numbers = arrays[ROW][rows]
    if (numbers[1:] < numbers[:-1]).any():
        order = np.argsort(numbers, kind="stable")
        for values in (*arrays.values(), *undefined.values()):
            values[rows] = values[rows][order]


@dataclass
class _Stretch:
    """Rows of one file that follow one another, of one or more parts; `ends` and `records` say up to which row they are of which record."""

    path: str
    file_rows: int
    first: int
    ends: list[int]
    records: list[int]

    @property
    def end(self) -> int:
        return self.ends[-1]

    def owners(self, first: int, end: int) -> np.ndarray:
        """int32[end - first]: the record of each row of [first, end)."""
        bounds = np.clip([first, *self.ends], first, end)
        return np.repeat(np.array(self.records, np.int32), np.diff(bounds))


def _stretches(held: Held, records: list[SourceRecord], instrument: str, start_ns: int, end_ns: int) -> list[_Stretch]:
    """Where the parts lie that may hold rows of the range, in the order of sources and rows."""
    found: list[_Stretch] = []
    for i, record in enumerate(records):
        parts = [part for part in record.parts if part.instrument == instrument and part.start_ns < end_ns and part.end_ns >= start_ns]
        for part in sorted(parts, key=lambda part: part.first_row):
            place = held.of(part)
            if found and (found[-1].path, found[-1].end) == (place.path, place.first):
                found[-1].ends.append(place.first + place.rows)
                found[-1].records.append(i)
            else:
                found.append(_Stretch(place.path, place.file_rows, place.first, [place.first + place.rows], [i]))
    return found


def _holding(root: Path, records: list[SourceRecord], instrument: str, schema: str) -> list[SourceRecord]:
    """The records that hold the instrument in the schema, by the start of their span. Raises NotFound."""
    held: dict[str, set[str]] = defaultdict(set)
    for record in records:
        for symbol, _, _ in record.spans:
            held[symbol].add(record.schema)
    if instrument not in held:
        raise NotFound(
            f"{root}: no instrument {instrument}; the store holds {_some(held) or 'nothing yet: `sim ingest FILE` puts data in'}"
        )
    if schema not in held[instrument]:
        raise NotFound(f"{root}: {instrument} has no {schema}; it has {_some(held[instrument])}")
    chosen = [record for record in records if record.schema == schema and any(symbol == instrument for symbol, _, _ in record.spans)]
    return sorted(chosen, key=lambda record: next((first, record.sha256) for symbol, first, _ in record.spans if symbol == instrument))


def _some(names) -> str:
    shown = sorted(names)
    return ", ".join(shown[:20]) + (f" and {len(shown) - 20} more" if len(shown) > 20 else "")


def _spans(records: list[SourceRecord], instrument: str) -> list[tuple[int, int]]:
    return [(first, last) for record in records for symbol, first, last in record.spans if symbol == instrument]


def _known(schema: str, columns: tuple[str, ...] | list[str] | None) -> list[str]:
    known = store_columns(schema)
    unknown = [name for name in columns or () if name not in known]
    if unknown:
        raise NotFound(f"{schema} has no column {unknown[0]}; it has {', '.join(known)}")
    return list(dict.fromkeys(columns)) if columns is not None else list(known)
