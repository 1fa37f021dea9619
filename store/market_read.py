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
from lob.records import BAR_NS, SPARSE, has_receive_time
from lob.units import format_time_ns
from store.catalog import Part, SourceRecord, check_store, read_records
from store.hashes import canonical_hash
from store.holes import Holes, Span, find_holes
from store.market_schema import ROW, arrow_schema, chunk_values, index_time, is_nullable, is_text, store_columns
from store.quality import BOOK_GAP_NS


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
    records = read_records(check_store(store))
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
    records = read_records(check_store(store))
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
            spans[day["instrument"], record.schema].append(Span(day["start_ns"], day["end_ns"], record.sha256))
    rows = []
    for symbol, schema in sorted(parts):
        held = parts[symbol, schema]
        row: dict[str, Any] = {
            "instrument": symbol,
            "schema": schema,
            "start": format_time_ns(min(part.start_ns for part in held)),
            "end": format_time_ns(max(part.end_ns for part in held)),
            "rows": sum(part.rows for part in held),
            "dates": len({part.date for part in held}),
            "sources": sorted(sources[symbol, schema]),
            "parts": len(held),
            "bytes": sum(part.bytes for part in held),
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


def _total(days: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums over dates (the longest gap: its maximum); a count that is None on every date stays None."""
    total: dict[str, Any] = {}
    for name in days[0]:
        if name in ("instrument", "schema", "date", "start_ns", "end_ns", "rows"):
            continue
        values = [day[name] for day in days if day.get(name) is not None]  # a record may be older than a count
        if name.endswith("_reason"):
            total[name] = values[0] if values else None
        else:
            total[name] = (max(values) if name == "longest_gap_ns" else sum(values)) if values else None
    return total


def quality_rows(store: str | os.PathLike) -> list[dict[str, Any]]:
    """The quality report: one row per source file, instrument, schema and UTC date."""
    records = read_records(check_store(store))
    rows = [{"source": record.name, "source_sha256": record.sha256} | row for record in records for row in record.quality]
    return sorted(rows, key=lambda row: (row["schema"], row["instrument"], row["date"], row["source_sha256"]))


def read_columns(
    store: str | os.PathLike, instrument: str, schema: str, start_ns: int, end_ns: int, columns: tuple[str, ...] | list[str] | None = None
) -> MarketColumns:
    """The rows whose index time (`ts_recv`, else `ts_event`) lies in [start_ns, end_ns). `columns` None: all of the schema's.

    Raises NotFound for an instrument, schema or column that is not there (naming what is), BadInput for an empty range or one without rows.
    """
    root = check_store(store)
    if start_ns >= end_ns:
        raise BadInput(f"the range is empty: it starts at {format_time_ns(start_ns)} and ends at {format_time_ns(end_ns)}")
    records = _holding(root, read_records(root), instrument, schema)
    names = _known(schema, columns)
    chosen = [_chosen_groups(root, record, instrument, start_ns, end_ns) for record in records]
    room = sum(rows for groups in chosen for *_, rows in groups)
    dtypes = store_columns(schema)
    arrays = {name: np.empty(room, dtypes[name]) for name in (*names, ROW)} | {"source": np.empty(room, np.int32)}
    undefined = {name: np.zeros(room, bool) for name in names if is_nullable(name)}
    sources: list[str] = []
    at = 0
    for record, groups in zip(records, chosen, strict=True):
        begin = at
        for path, numbers, _ in groups:
            at += _read_groups(path, numbers, schema, start_ns, end_ns, arrays, undefined, at)
        if at > begin:
            arrays["source"][begin:at] = len(sources)
            sources.append(record.sha256)
            _into_file_order(arrays, undefined, slice(begin, at))
    if not sources:
        spans = ", ".join(f"{format_time_ns(first)} to {format_time_ns(last)}" for first, last in _spans(records, instrument))
        asked = f"{format_time_ns(start_ns)} to {format_time_ns(end_ns)}"
        raise BadInput(f"{root}: {instrument} {schema} has no rows from {asked}; it has rows from {spans}")
    arrays = {name: values[:at] for name, values in arrays.items()}
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


def _damaged(path: Path, error: Exception) -> BadInput:
    reason = (str(error).splitlines() or ["unreadable"])[0]
    return BadInput(f"{path}: the part cannot be read ({reason}): restore it or rebuild the store")


def _chosen_groups(root: Path, record: SourceRecord, instrument: str, start_ns: int, end_ns: int) -> list[tuple[Path, list[int], int]]:
    """(part, row groups that may hold rows of the range, their rows), in the order of the source."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = [part for part in record.parts if part.instrument == instrument and part.start_ns < end_ns and part.end_ns >= start_ns]
    chosen = []
    for part in sorted(parts, key=lambda part: part.first_row):
        path = root / part.path
        try:
            metadata = pq.read_metadata(path)
            if metadata.num_rows != part.rows or index_time(part.schema) not in metadata.schema.names:
                raise pa.ArrowInvalid(f"it holds {metadata.num_rows:,} rows, and not the {part.rows:,} that were put in")
        except (OSError, ValueError, pa.ArrowException) as error:
            raise _damaged(path, error) from None
        groups = [g for g in range(metadata.num_row_groups) if _may_hold(metadata.row_group(g), part.schema, start_ns, end_ns)]
        if groups:
            chosen.append((path, groups, sum(metadata.row_group(g).num_rows for g in groups)))
    return chosen


def _read_groups(
    path: Path,
    groups: list[int],
    schema: str,
    start_ns: int,
    end_ns: int,
    arrays: dict[str, np.ndarray],
    undefined: dict[str, np.ndarray],
    at: int,
) -> int:
    """Writes the row groups' rows of the range into `arrays` and `undefined` from `at` on; returns how many they are."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    known = store_columns(schema)
    wanted = [name for name in known if name in arrays or name in ("ts_event", "ts_recv")]
    try:
        file = pq.ParquetFile(path, read_dictionary=[name for name in known if is_text(schema, name)])
        table = file.read_row_groups(groups, columns=wanted)
        _check_columns(table, schema, wanted)
        inside = _inside(table, schema, start_ns, end_ns)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _damaged(path, error) from None
    rows = table.num_rows if inside is None else int(inside.sum())
    for name in wanted:
        if name in arrays:
            mask = undefined[name][at : at + rows] if name in undefined else None
            _copy(table[name], known[name], inside, arrays[name][at : at + rows], mask)
    return rows


def _check_columns(table, schema: str, wanted: list[str]) -> None:
    """Raises ArrowInvalid for a column that is not there, or not as a part's is: of another type, with nulls where none may be."""
    import pyarrow as pa

    if missing := set(wanted) - set(table.column_names):
        raise pa.ArrowInvalid(f"column {min(missing)} is missing")
    if len(set(table.column_names)) < len(table.column_names):
        raise pa.ArrowInvalid("a column stands twice")
    for name in wanted:
        column, size = table[name], store_columns(schema)[name].itemsize
        if is_text(schema, name):
            alike = pa.types.is_dictionary(column.type) and pa.types.is_string(column.type.value_type)
            texts = {text for chunk in column.chunks for text in chunk.dictionary.to_pylist()} if alike else set()
            form = "latin-1" if size == 1 else "utf-8"
            alike = alike and all(text is not None and len(text.encode(form)) <= size for text in texts)
        else:
            alike = column.type == arrow_schema(schema).field(name).type
        if not alike or (column.null_count and not is_nullable(name)):
            raise pa.ArrowInvalid(f"column {name} is not what the store writes")


def _inside(table, schema: str, start_ns: int, end_ns: int) -> np.ndarray | None:
    """Which rows lie in the range; None: all."""
    times = {name: np.empty(table.num_rows, np.int64) for name in ("ts_event", index_time(schema))}
    late = np.zeros(table.num_rows, bool)
    for name, values in times.items():
        _copy(table[name], np.dtype(np.int64), None, values, late if name == "ts_recv" else None)
    index = np.where(late, times["ts_event"], times["ts_recv"]) if has_receive_time(schema) else times["ts_event"]
    inside = (index >= start_ns) & (index < end_ns)
    return None if inside.all() else inside


def _copy(column, dtype: np.dtype, inside: np.ndarray | None, values: np.ndarray, mask: np.ndarray | None) -> None:
    """Copies the rows `inside` of a column into `values`, and where they are undefined into `mask`."""
    read = at = 0
    for chunk in column.chunks:
        found, absent = chunk_values(chunk, dtype)
        if inside is not None:
            pick = inside[read : read + len(chunk)]
            found, absent = found[pick], None if absent is None else absent[pick]
        values[at : at + len(found)] = found
        if mask is not None and absent is not None:
            mask[at : at + len(found)] = absent
        read, at = read + len(chunk), at + len(found)


def _may_hold(group, schema: str, start_ns: int, end_ns: int) -> bool:
    """Whether a row group can hold rows of the range, by its statistics; undefined times make it uncertain."""
    column = next(group.column(i) for i in range(group.num_columns) if group.column(i).path_in_schema == index_time(schema))
    statistics = column.statistics
    if statistics is None or not statistics.has_min_max or statistics.null_count or type(statistics.min) is not int:
        return True
    return statistics.min < end_ns and statistics.max >= start_ns
