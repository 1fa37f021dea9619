"""A record of the market store's catalogue: what one ingested file put in. Written as JSON and read back with every member checked.

A record names files that are read and, when its source is taken out, removed: a path that is not where this store keeps parts is refused.
"""

import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from store.market_schema import part_folder

PART_PATH = re.compile(r"market/schema=[^/]+/instrument=[^/]+/date=[^/]+/[A-Za-z0-9_-][A-Za-z0-9_.-]*\.parquet")
"""Where parts lie, relative to the store: no component can lead out of it."""
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_LIMIT = 2**63


@dataclass(frozen=True)
class Part:
    """One Parquet file. `path` is relative to the store; times are of the index column (`ts_recv`, else `ts_event`), both ends included."""

    path: str
    schema: str
    instrument: str
    date: str  # UTC, yyyy-mm-dd
    rows: int
    first_row: int  # `row` of its first record in the source
    start_ns: int
    end_ns: int
    bytes: int
    content_hash: str


@dataclass(frozen=True)
class SourceRecord:
    """One ingested file: `spans` are (instrument, first ns, last ns) of the index time, `quality` one dict per instrument and date.

    `options`: those that shaped its values, None where one was not given; None as a whole in a record that is older than they are.
    """

    sha256: str
    name: str
    bytes: int
    schema: str
    rows: int
    spans: tuple[tuple[str, int, int], ...]
    parts: tuple[Part, ...]
    quality: tuple[dict[str, Any], ...]
    options: dict[str, str | None] | None = None


def is_source_hash(text: Any) -> bool:
    """Whether this is the SHA-256 of a source file, which names its record."""
    return isinstance(text, str) and _SHA256.fullmatch(text) is not None


def is_part_path(path: Any) -> bool:
    """Whether this is a path, relative to the store, at which parts lie."""
    return isinstance(path, str) and PART_PATH.fullmatch(path) is not None and "\0" not in path


def record_to_json(record: SourceRecord) -> str:
    fields = asdict(record)
    for part in fields["parts"]:
        del part["schema"]
    return json.dumps(fields, indent=1, allow_nan=False) + "\n"


def record_from_json(text: str) -> SourceRecord:
    """The record of `record_to_json`'s text. Raises ValueError that says which member is none of a record's."""
    try:
        fields = json.loads(text)
        parts = tuple(Part(schema=fields["schema"], **part) for part in fields.pop("parts"))
        spans = tuple((name, start, end) for name, start, end in fields.pop("spans"))
        record = SourceRecord(parts=parts, spans=spans, quality=tuple(fields.pop("quality")), **fields)
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    if (fault := _fault(record)) is not None:
        raise ValueError(f"{fault} is none of a record's")
    return record


def _fault(record: SourceRecord) -> str | None:
    """Which member no ingest writes; None when there is none."""
    if not is_source_hash(record.sha256):
        return "sha256"
    if not (_is_text(record.name) and _is_text(record.schema) and _are_counts(record.bytes, record.rows)):
        return "name, schema, bytes or rows"
    if not record.spans or not all(_is_text(name) and _are_times(start, end) for name, start, end in record.spans):
        return "a span"
    symbols = {name for name, _, _ in record.spans}
    if len(symbols) < len(record.spans):
        return "a span"
    for part in record.parts:
        stated = all(map(_is_text, (part.date, part.instrument, part.content_hash))) and part.instrument in symbols
        counted = _are_times(part.start_ns, part.end_ns) and _are_counts(part.rows, part.first_row, part.bytes)
        if not (stated and counted and _DATE.fullmatch(part.date) and is_part_path(part.path)):
            return "a part"
        if not part.path.startswith(f"{part_folder(record.schema, part.instrument, part.date)}/"):
            return "a part's path"
    if not all(isinstance(day, dict) and _is_day(day, symbols) for day in record.quality):
        return "a day of the quality report"
    if not (record.options is None or isinstance(record.options, dict)):
        return "options"
    return None if all(value is None or _is_text(value) for value in (record.options or {}).values()) else "an option"


def _is_day(day: dict[str, Any], symbols: set[str]) -> bool:
    named = day.get("instrument") in symbols if isinstance(day.get("instrument"), str) else False
    dated = _is_text(day.get("date")) and _DATE.fullmatch(day["date"]) is not None and _is_text(day.get("schema"))
    if not (named and dated and _are_times(day.get("start_ns"), day.get("end_ns")) and _are_counts(day.get("rows"))):
        return False
    rest = {name: value for name, value in day.items() if name not in ("instrument", "date", "schema") and value is not None}
    return all(_is_text(value) if name.endswith("_reason") else _is_whole(value) for name, value in rest.items())


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_whole(value: Any) -> bool:
    return type(value) is int and -_LIMIT <= value < _LIMIT


def _are_counts(*values: Any) -> bool:
    return all(_is_whole(value) and value >= 0 for value in values)


def _are_times(start: Any, end: Any) -> bool:
    return _is_whole(start) and _is_whole(end) and start <= end
