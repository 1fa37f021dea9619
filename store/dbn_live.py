"""Live recordings: DBN whose metadata state no schema, because records of several kinds follow one another in it.

Each kind that the store holds is read as a schema of its own, a record's number being its place among all; the other kinds are counted by
type. What instruments are called is told by the symbol mappings in the stream, by date.
"""

import datetime as dt
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from lob.errors import BadInput
from lob.jit import kernel_cpu
from lob.records import RECORDS, RTYPE, layout
from lob.units import UNDEFINED_TIMESTAMP
from store.dbn import open_dbn, plain_records, plain_text, stored_layout
from store.detect import rtype_name
from store.streams import Stream

BLOCK_BYTES = 1 << 20
MAPPING = 0x16
HEADER_BYTES = 16
SCHEMA_OF = {rtype: schema for schema, rtype in RTYPE.items() if schema != "tbbo"}
"""DBN record type -> the schema that holds it. A `tbbo` record cannot be told from `mbp-1`, and is held as that."""

_DAY_NS = 86400 * 10**9


@dataclass
class Recording:
    """What a live recording holds: records by type, and the names of its instruments."""

    counts: Counter[int]
    _mapped: dict[int, list[tuple[int, int, int, str]]] = field(default_factory=dict)  # id -> (told at, start, end, symbol), file order

    @property
    def schemas(self) -> tuple[str, ...]:
        """The schemas that can be held, in the order of `RECORDS`."""
        return tuple(schema for schema in RECORDS if schema != "tbbo" and self.counts[RTYPE[schema]])

    @property
    def others(self) -> dict[str, int]:
        """{type: records} that no schema of the store holds."""
        return {rtype_name(rtype): count for rtype, count in sorted(self.counts.items()) if rtype not in SCHEMA_OF}

    def symbol_of(self, instrument_id: int, date: dt.date) -> str | None:
        """The symbol that `instrument_id` stood for on a UTC date.

        A mapping with an interval holds in it; one without holds from the day on which it was told until the next, and the first also
        before that day (a capture may begin with days gone by). Of several on one day the last told holds.
        """
        told = self._mapped.get(instrument_id, [])
        day = (date - dt.date(1970, 1, 1)).days
        dated = [symbol for _, start, end, symbol in told if start >= 0 and start <= day < max(end, start + 1)]
        if dated:
            return dated[-1]
        open_ended = [(at, symbol) for at, start, _, symbol in told if start < 0]
        before = [symbol for at, symbol in open_ended if at <= day]
        return before[-1] if before else open_ended[0][1] if open_ended else None


def read_recording(path: str | os.PathLike[str]) -> Recording:
    """Counts a live recording's records and reads its mappings. Raises BadInput when a record cannot be or the file ends inside one."""
    counts = np.zeros(256, np.int64)
    found = Recording(Counter())
    with open_dbn(path) as (metadata, start, stream):
        dtype = stored_layout(layout("symbol-mapping", metadata.version), metadata.ts_out)
        for mappings, _ in _picked(stream, MAPPING, dtype, start, counts):
            records = mappings["record"] if metadata.ts_out else mappings
            for record in records:
                found._mapped.setdefault(int(record["instrument_id"]), []).append(_mapping(record))
    found.counts.update({rtype: int(count) for rtype, count in enumerate(counts) if count})
    return found


def read_live(path: str | os.PathLike[str], schema: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(records of dtype `RECORDS[schema]`, int64 number of each among all records of the file), in file order. Raises BadInput."""
    with open_dbn(path) as (metadata, start, stream):
        dtype = stored_layout(layout(schema, metadata.version), metadata.ts_out)
        for records, numbers in _picked(stream, RTYPE[schema], dtype, start, np.zeros(256, np.int64)):
            yield plain_records(records, schema), numbers


def _mapping(record: np.void) -> tuple[int, int, int, str]:
    """(day told, first day or -1, end day or -1, symbol)."""

    def day(name: str) -> int:
        return -1 if record[name] in (0, UNDEFINED_TIMESTAMP) else int(record[name]) // _DAY_NS

    end = day("end_ts")
    return int(record["ts_event"]) // _DAY_NS, day("start_ts"), end if end >= 0 else 2**31, plain_text(record["stype_out_symbol"])


def _picked(stream: Stream, rtype: int, dtype: np.dtype, offset: int, counts: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(records of a type, number of each in the file), block by block; adds to `counts` (int64[256]) all records by type. `offset`: bytes
    before the first."""
    size = dtype.itemsize
    data = np.empty(BLOCK_BYTES, np.uint8)
    places = np.empty((BLOCK_BYTES // HEADER_BYTES, 2), np.int64)
    filled = done = 0
    while True:
        got = stream.readinto(data.data[filled:])
        filled += got
        at, done, found, fault = _walk(data, filled, rtype, size, done, counts, places)
        if fault:
            length = int(data[at]) * 4
            what = f"a record of {length} bytes and type {rtype_name(int(data[at + 1]))}"
            due = f", which has {size}" if fault == _ODD_LENGTH else ", which cannot be"
            raise BadInput(f"{stream.path}: record {done} at byte {offset + at} is {what}{due}: the file is damaged, fetch it again")
        if found:
            taken = data[places[:found, 0, None] + np.arange(size)]
            yield taken.reshape(-1).view(dtype), places[:found, 1].copy()
        rest = filled - at
        if got == 0:
            if rest:
                raise BadInput(f"{stream.path}: ends inside record {done} at byte {offset + at} ({rest} bytes of it): fetch the file again")
            return
        data[:rest] = data[at:filled].copy()
        filled, offset = rest, offset + at


_ODD_LENGTH, _IMPOSSIBLE = 1, 2


@kernel_cpu
def _walk(data, filled, rtype, size, done, counts, places):
    """Walks the whole records in data[:filled]: counts them by type and notes (place, number) of those of one type.

    Returns (where it stopped, number of the record there, noted, fault)."""
    at, noted = 0, 0
    while at + 2 <= filled:
        length = int(data[at]) * 4
        if length < HEADER_BYTES:
            return at, done, noted, _IMPOSSIBLE
        if at + length > filled:
            break
        kind = data[at + 1]
        if kind == rtype:
            if length != size:
                return at, done, noted, _ODD_LENGTH
            places[noted, 0] = at
            places[noted, 1] = done
            noted += 1
        counts[kind] += 1
        at += length
        done += 1
    return at, done, noted, 0
