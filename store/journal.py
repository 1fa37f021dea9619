"""The journal: what a living run has logged and not yet sealed. `journal/<k>/` holds the rows of segment k-to-be.

Each table is an Arrow IPC stream, `<table>.arrows`. A flush appends to all of them and then one record to `commits`, a text line

    <crc32 of the JSON, 8 hex digits> {"steps": …, "step": …, "tables": {"<table>": [<byte length>, <crc32 of the bytes added>]}}

`steps` counts the run's steps up to and with this commit, `step` is the number of the last of them. A stream cut at a batch's border reads
as a clean end and a flipped bit goes unnoticed, so the streams prove nothing: readers cut every table back to the last valid commit.
A commit survives `kill -9`; power loss may take what was not yet sealed.
"""

import mmap
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from isal.isal_zlib import crc32

from lob.errors import first_line
from lob.tables import Table
from store.manifest import canonical_json, parse_json
from store.segments import arrow_schema

JOURNAL = "journal"
COMMITS = "commits"
_NUMBER = re.compile(r"[0-9]{8,18}")


class _Stream:
    """A file that is only appended to, as Arrow's writer wants one: counts and checksums what passes through.

    `length` of its bytes stay, what stands behind them goes.
    """

    def __init__(self, path: Path, length: int = 0) -> None:
        self.closed = False
        self.handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.ftruncate(self.handle, length)
        self.length = length
        self.checksum = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.checksum = crc32(view, self.checksum)
        self.length += len(view)
        rest = view
        while len(rest):
            rest = rest[os.write(self.handle, rest) :]
        return len(view)

    def flush(self) -> None:
        pass

    def cut(self, length: int) -> None:
        os.ftruncate(self.handle, length)
        self.length, self.checksum = length, 0

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self.handle)


class _Continuation:
    """Arrow's writer of a stream that has begun: batches alone, for the schema stands in it."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream

    def write_batch(self, batch: pa.RecordBatch) -> None:
        self._stream.write(batch.serialize())


class Journal:
    """The writer of one segment's journal. Not safe for several threads. A commit that broke off midway is undone by the next one.

    `kept`: go on with what stands there, up to the last commit of this part; without it the journal begins.
    """

    def __init__(self, run_dir: Path, k: int, tables: Mapping[str, Table], kept: "JournalPart | None" = None) -> None:
        self.folder = Path(run_dir) / JOURNAL / f"{k:08d}"
        self.folder.mkdir(parents=True, exist_ok=kept is not None)
        self._schemas = {name: arrow_schema(table) for name, table in tables.items()}
        lengths = kept.lengths if kept else {}
        self._streams = {name: _Stream(self.folder / f"{name}.arrows", length) for name, length in lengths.items()}
        self._writers: dict[str, Any] = {name: _Continuation(stream) for name, stream in self._streams.items()}
        self._commits = _Stream(self.folder / COMMITS, kept.commits_length if kept else 0)
        # Bytes of each stream, and of `commits`, that count, and the `what` of the last commit: one attribute, so that an interrupt
        # finds both or neither.
        self._committed: tuple[dict[str, int], object] = (lengths | {COMMITS: self._commits.length}, None)
        self._midway = False

    def commit(self, batches: Mapping[str, pa.RecordBatch], steps: int, step: int, what: object) -> None:
        """Append the batches, then the commit record that makes them count. Raises OSError; what was committed before stays committed.

        `what` names the commit: done again after an interrupt, it changes nothing when it had been whole.
        """
        if self._committed[1] is what:
            return
        if self._midway:
            self._undo()
        self._midway = True
        for name, batch in batches.items():
            if name not in self._streams:
                self._streams[name] = _Stream(self.folder / f"{name}.arrows")
                self._writers[name] = pa.ipc.new_stream(self._streams[name], self._schemas[name])
            self._writers[name].write_batch(batch)
        marks = {name: [stream.length, stream.checksum] for name, stream in sorted(self._streams.items())}
        record = canonical_json({"steps": steps, "step": step, "tables": marks})
        self._commits.write(b"%08x %s\n" % (crc32(record), record))
        lengths = {name: stream.length for name, stream in self._streams.items()} | {COMMITS: self._commits.length}
        self._committed = (lengths, what)
        for stream in self._streams.values():
            stream.checksum = 0
        self._midway = False

    def _undo(self) -> None:
        """Cut every file back to what is committed."""
        lengths, _ = self._committed
        for name, stream in list(self._streams.items()):
            stream.cut(lengths.get(name, 0))
            if not stream.length:  # its schema may be half written
                del self._streams[name]
                stream.close()
        self._commits.cut(lengths.get(COMMITS, 0))

    def sync(self) -> None:
        """Make what is committed durable: it then survives power loss too. Raises OSError."""
        sync_journal(self.folder)

    def close(self) -> None:
        """Close the files. The streams get no end mark: the commits say where they end."""
        self._writers.clear()
        for stream in (self._commits, *self._streams.values()):
            stream.close()


@dataclass(frozen=True)
class JournalPart:
    """What one journal folder proves: its rows up to the last valid commit, and why it ends there."""

    k: int
    folder: Path
    steps: int
    """The run's steps up to the last valid commit; -1: none is valid."""
    step: int
    tables: dict[str, pa.Table]
    tail: str
    """What stands after the last valid commit, in words; empty when nothing does."""
    damage: tuple[tuple[str | None, int, str], ...]
    """(table or None for `commits`, byte, message) of bytes that were committed and no longer read back."""
    lengths: dict[str, int]
    """Bytes of each table's stream, if it has begun, up to the last valid commit."""
    commits_length: int
    """Bytes of `commits` up to there."""


def journal_folders(run_dir: Path) -> dict[int, Path]:
    """{k: folder} of the journals that lie there, in order of k."""
    root = Path(run_dir) / JOURNAL
    names = sorted(entry.name for entry in root.iterdir() if _NUMBER.fullmatch(entry.name)) if root.is_dir() else []
    return {int(name): root / name for name in names}


def sync_journal(folder: Path) -> None:
    """fsync a journal folder's files, its names, and its own name."""
    for path in (*folder.iterdir(), folder, folder.parent):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _parse_commit(line: bytes) -> dict[str, Any] | None:
    checksum, _, record = line.partition(b" ")
    try:
        if int(checksum, 16) != crc32(record):
            return None
        commit = parse_json(record)
        numbers = [commit["steps"], commit["step"], *(number for length, crc in commit["tables"].values() for number in (length, crc))]
        return commit if all(type(number) is int and number >= -1 for number in numbers) else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _map(path: Path) -> memoryview:
    """The file's bytes, mapped: they stay readable when the journal is dropped meanwhile. A file that cannot be read has none."""
    try:
        with open(path, "rb") as handle:
            if os.fstat(handle.fileno()).st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError:
        return memoryview(b"")


def read_journal(folder: Path, tables: Mapping[str, Table], check: bool = True, until: int | None = None) -> JournalPart:
    """The committed rows of one journal folder, cut back to its last valid commit; nothing is modified.

    `until`: cut back to the first commit that reaches so many steps of the run, or to the last one before them. `check=False` skips the
    payload's checksums: for the writer, which wrote them a moment ago. Raises FileNotFoundError when the folder has gone.
    """
    try:
        text = (folder / COMMITS).read_bytes()
    except FileNotFoundError:
        if not folder.is_dir():
            raise
        text = b""  # killed between making the folder and its first file
    except OSError as error:
        return JournalPart(int(folder.name), folder, -1, -1, {}, "", ((None, 0, f"cannot be read ({error.strerror})"),), {}, 0)
    lines = text.split(b"\n")
    torn = lines.pop()
    content = {name: _map(folder / f"{name}.arrows") for name in tables}
    ends = dict.fromkeys(tables, 0)
    steps = step = -1
    damage: list[tuple[str | None, int, str]] = []
    read = 0
    for number, line in enumerate(lines, 1):
        record = _parse_commit(line)
        if record is None:
            damage.append((None, read, f"commit {number} of {len(lines)} does not match its own checksum"))
            break
        if until is not None and (steps == until or record["steps"] > until):
            break
        damage += _payload_damage(record["tables"], content, ends, number, check)
        if damage:
            break
        ends |= {name: length for name, (length, _) in record["tables"].items()}
        steps, step = record["steps"], record["step"]
        read += len(line) + 1
    tail = []
    if torn:
        tail.append(f"a commit record cut short after {len(torn)} bytes")
    if not damage:
        tail += [f"{len(content[name]) - end} uncommitted bytes of {name}" for name, end in ends.items() if len(content[name]) > end]
    rows = {}
    for name, table in tables.items():
        try:
            if ends[name]:
                rows[name] = _read_stream(content[name][: ends[name]], table, check)
        except (pa.ArrowException, OSError, ValueError) as error:
            damage.append((name, 0, f"its checksums hold, but it cannot be read ({first_line(error)})"))
            steps, step, rows = -1, -1, {}
            break
    lengths = {name: end for name, end in ends.items() if end}
    return JournalPart(int(folder.name), folder, steps, step, rows, ", ".join(tail), tuple(damage), lengths, read)


def _payload_damage(
    lengths: Mapping[str, Any], content: Mapping[str, memoryview], ends: Mapping[str, int], number: int, check: bool
) -> list[tuple[str | None, int, str]]:
    damage: list[tuple[str | None, int, str]] = []
    for name, (length, checksum) in lengths.items():
        held = content.get(name, memoryview(b""))
        if name not in ends or length < ends[name]:
            damage.append((name, 0, f"commit {number} counts {length} bytes of it, which no commit of this run can"))
        elif len(held) < length:
            damage.append((name, len(held), f"commit {number} counts {length} bytes, but the stream has {len(held)}"))
        elif check and crc32(held[ends[name] : length]) != checksum:
            damage.append(
                (name, ends[name], f"bytes {ends[name]} to {length - 1}, which commit {number} covers, do not match its checksum")
            )
    return damage


def _read_stream(content: memoryview, table: Table, check: bool) -> pa.Table:
    schema = arrow_schema(table)
    rows = pa.ipc.open_stream(pa.py_buffer(content)).read_all()
    if check:
        rows.validate(full=True)  # Arrow believes the lengths and offsets that a stream states
    if not rows.schema.equals(schema):
        raise ValueError(f"the journal of {table.name} holds {rows.schema}, declared is {schema}")
    return rows
