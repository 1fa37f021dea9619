"""DBN files to numpy records and back: streaming, without a Python object per record.

A batch is the file's own bytes seen through `lob.records.RECORDS[schema]`: nothing is converted, but for the definitions and statistics of
versions 1 and 2, whose records are narrower (`lob.records.upgraded`). With `ts_out` each record carries eight more bytes (the gateway's
send time); they are stripped.
"""

import datetime as dt
import os
import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lob.errors import BadInput
from lob.records import RECORDS, RTYPE, layout, upgraded
from lob.units import NS_PER_SECOND
from store.dbn_metadata import PREFIX_BYTES, DbnMetadata, Interval, Mapping, encode_metadata, parse_metadata, parse_prefix
from store.detect import refuse_unless_dbn, rtype_name
from store.streams import Stream, open_stream

BLOCK_BYTES = 1 << 19
"""Records are read and checked in blocks of about this size: a block that was just read is still in the processor's cache."""
ZSTD_LEVEL = 3


def read_metadata(path: str | os.PathLike[str]) -> DbnMetadata:
    """What the DBN file (plain or zstd) says about itself. Raises BadInput."""
    with open_dbn(path) as (metadata, _, _):
        return metadata


def usable_schema(path: str | os.PathLike[str]) -> str:
    """The schema of the DBN file, one of `RECORDS`. Raises BadInput for any other, and for a live recording (`store.dbn_live`)."""
    with open_dbn(path) as (metadata, _, stream):
        return _usable_schema(metadata, stream)


def read_batches(path: str | os.PathLike[str], schema: str | None = None, batch_records: int = 65536) -> Iterator[np.ndarray]:
    """Structured arrays of dtype `RECORDS[schema]`, at most `batch_records` each, in file order.

    `schema`, when given, must be the file's. A batch belongs to the caller for as long as any array over it is alive: its memory is used
    again only after that, so a loop that drops each batch runs in two buffers. Raises BadInput, which names the record and the byte offset
    (in the decompressed stream), when a record has another length or type than the schema's, or the file ends inside one.
    """
    with open_dbn(path) as (metadata, start, stream):
        found = _usable_schema(metadata, stream)
        if schema is not None and schema != found:
            raise BadInput(f"{path}: holds schema {found}, not {schema}")
        dtype = layout(found, metadata.version)
        records = _records(stream, found, stored_layout(dtype, metadata.ts_out), start, batch_records)
        if not metadata.ts_out and dtype == RECORDS[found]:
            yield from records
            return
        for wide in records:
            yield plain_records(wide, found)


def stored_layout(dtype: np.dtype, ts_out: bool) -> np.dtype:
    """A record as it lies in the file: with `ts_out` eight bytes more."""
    return np.dtype([("record", dtype), ("ts_out", "<u8")]) if ts_out else dtype


def plain_records(stored: np.ndarray, schema: str) -> np.ndarray:
    """Records as they lie in a file (`stored_layout`), as `RECORDS[schema]`; a copy where that is something else."""
    if "ts_out" in (stored.dtype.names or ()):
        stored = stored["record"].copy()
        stored["length"] = stored.dtype.itemsize // 4
    return upgraded(stored, schema)


def plain_text(padded: bytes) -> str:
    """A record's text up to its first NUL; what of it is not UTF-8 is replaced."""
    return padded.split(b"\0", 1)[0].decode("utf-8", "replace")


@contextmanager
def open_dbn(path: str | os.PathLike[str]) -> Iterator[tuple[DbnMetadata, int, Stream]]:
    """(metadata, byte offset of the first record, stream standing there)."""
    with open_stream(path) as stream:
        refuse_unless_dbn(stream)
        where = str(path)
        version, length = parse_prefix(stream.read(PREFIX_BYTES), where)
        body = stream.read(length)
        if len(body) < length:
            raise BadInput(f"{where}: ends inside its metadata ({len(body)} of {length} bytes): fetch the file again")
        yield parse_metadata(version, body, where), PREFIX_BYTES + length, stream


def _records(stream: Stream, schema: str, stored: np.dtype, offset: int, batch_records: int) -> Iterator[np.ndarray]:
    size = stored.itemsize
    block = max(1, BLOCK_BYTES // size) * size
    tag = size // 4 | RTYPE[schema] << 8
    pool = _Pool(batch_records * size)
    done = 0
    while True:
        storage = pool.take()
        view = storage.data
        filled = 0
        while filled < len(view):
            got = stream.readinto(view[filled : filled + block])
            # The first two bytes of a record are its length in words and its type: one comparison checks both.
            tags = np.ndarray(got // size, "<u2", storage, filled, (size,))
            if not (tags == tag).all():
                first = int(np.argmax(tags != tag))
                at = filled + first * size
                raise _foreign_record(stream, schema, done + at // size, offset + done * size + at, view[at : at + size], size)
            filled += got
            if got == 0 or got % size:
                break
        count, rest = divmod(filled, size)
        if rest:
            at = offset + (done + count) * size
            raise BadInput(f"{stream.path}: ends inside record {done + count} at byte {at} ({rest} of {size} bytes): fetch the file again")
        if count == 0:
            return
        yield pool.lend(storage, filled).view(stored)
        done += count


class _Lease:
    """What every array over a lent block refers to, however often it is sliced: alive for exactly as long as one of them is."""

    def __init__(self, block: np.ndarray, size: int) -> None:
        self.block = block
        self.__array_interface__ = {**block.__array_interface__, "shape": (size,)}


class _Pool:
    """Two blocks of memory, each used again only when no array over it is left; while both are held, blocks of their own."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.slots: list[tuple[np.ndarray, Any]] = []

    def take(self) -> np.ndarray:
        free = next((i for i, (_, lease) in enumerate(self.slots) if lease() is None), None)
        return np.empty(self.size, "u1") if free is None else self.slots.pop(free)[0]

    def lend(self, block: np.ndarray, size: int) -> np.ndarray:
        lease = _Lease(block, size)
        if len(self.slots) < 2:
            self.slots.append((block, weakref.ref(lease)))
        return np.asarray(lease)


def _foreign_record(stream: Stream, schema: str, index: int, at: int, record: memoryview, size: int) -> BadInput:
    length, rtype = record[0] * 4, record[1]
    found = f"a record of {length} bytes and type {rtype_name(rtype)}"
    due = f"{schema} has {size} bytes and type {rtype_name(RTYPE[schema])}"
    return BadInput(
        f"{stream.path}: record {index} at byte {at} is {found}, but {due}: the file is mixed or damaged, fetch this schema alone"
    )


def _usable_schema(metadata: DbnMetadata, stream: Stream) -> str:
    if metadata.schema is None:
        inside = _census(stream) or "no record at all"
        raise BadInput(f"{stream.path}: a live recording, its schema not stated (it starts with: {inside}): say which one to read")
    if metadata.schema not in RECORDS:
        raise BadInput(f"{stream.path}: schema {metadata.schema} cannot be used; these can: {', '.join(RECORDS)}")
    return metadata.schema


def _census(stream: Stream, limit: int = 1 << 16) -> str:
    """`trades 4, mbp-1 10, …` of the first 64 KiB of records, as far as their lengths lead."""
    data = stream.read(limit)
    counts: Counter[str] = Counter()
    at = 0
    while at + 2 <= len(data) and data[at] >= 4:
        counts[rtype_name(data[at + 1])] += 1
        at += data[at] * 4
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def write_dbn(
    path: str | os.PathLike[str],
    records: np.ndarray,
    schema: str,
    symbol: str,
    instrument_id: int,
    dataset: str,
    start_ns: int,
    end_ns: int,
) -> None:
    """Writes `records` (dtype `RECORDS[schema]`, of one instrument) as DBN version 3, zstd when `path` ends in `.zst`.

    The metadata maps `symbol` to `instrument_id` on every UTC date that [start_ns, end_ns) touches. The same arguments give the same bytes
    (one zstd version, level 3, one thread). The file appears whole or not at all. Raises BadInput when the folder cannot be written, the
    disk is full, or the records are not what the other arguments say.
    """
    path = Path(path)
    _check_records(path, records, schema, instrument_id, start_ns, end_ns)
    metadata = DbnMetadata(
        version=3,
        dataset=dataset,
        schema=schema,
        start_ns=start_ns,
        end_ns=end_ns,
        limit=None,
        stype_in="raw_symbol",
        stype_out="instrument_id",
        ts_out=False,
        symbol_bytes=71,
        symbols=(symbol,),
        partial=(),
        not_found=(),
        mappings=(Mapping(symbol, (Interval(_date(start_ns), _date(end_ns - 1) + dt.timedelta(days=1), str(instrument_id)),)),),
    )
    header = encode_metadata(metadata)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(aside, "wb") as file:
            if path.name.endswith(".zst"):
                import zstandard

                compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True)
                with compressor.stream_writer(file, size=len(header) + records.nbytes, closefd=False) as sink:
                    _write_blocks(sink, header, records)
            else:
                _write_blocks(file, header, records)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        raise BadInput(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        aside.unlink(missing_ok=True)


def _write_blocks(sink: Any, header: bytes, records: np.ndarray) -> None:
    sink.write(header)
    step = max(1, (4 * BLOCK_BYTES) // records.dtype.itemsize)
    for at in range(0, len(records), step):
        sink.write(np.ascontiguousarray(records[at : at + step]).view("u1").data)


def _check_records(path: Path, records: np.ndarray, schema: str, instrument_id: int, start_ns: int, end_ns: int) -> None:
    if schema not in RECORDS:
        raise BadInput(f"{path}: schema {schema} cannot be written; these can: {', '.join(RECORDS)}")
    if records.dtype != RECORDS[schema] or records.ndim != 1:
        raise BadInput(f"{path}: the records are not a plain array of {schema} records")
    if not 0 <= start_ns < end_ns < 2**63:
        raise BadInput(f"{path}: the span {start_ns} to {end_ns} ns is empty or out of range")
    for name, value in (("length", records.dtype.itemsize // 4), ("rtype", RTYPE[schema]), ("instrument_id", instrument_id)):
        wrong = records[name] != value
        if wrong.any():
            row = int(np.argmax(wrong))
            raise BadInput(f"{path}: record {row} has {name} {int(records[name][row])}, not {value}: nothing was written")


def _date(ns: int) -> dt.date:
    return dt.date(1970, 1, 1) + dt.timedelta(days=ns // (86400 * NS_PER_SECOND))


assert sys.byteorder == "little", "DBN records are read as they lie in memory: a little-endian machine is needed"
