"""Bytes of a file, plain or compressed (zstd, gzip; told by their first bytes), as one stream that never ends silently in mid-frame.

`zstandard`'s stream reader is the fastest there is but ends quietly where a stream is cut off, so at its end the frames of the file are
walked, header by header. gzip is read through Arrow, which reports the cut itself.
"""

import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lob.errors import BadInput, first_line

ZSTD_MAGIC, GZIP_MAGIC = b"\x28\xb5\x2f\xfd", b"\x1f\x8b"
HEAD_BYTES = 65536
ZSTD_READ_BYTES = 1 << 20
ZSTD_WINDOW_BYTES = 1 << 27
"""The largest window that is allocated, zstd's own default: a damaged frame header may ask for gigabytes."""


@dataclass
class Stream:
    """A readable stream: `head` are its first bytes (up to 64 KiB, decompressed), served again by the reads that follow."""

    path: Path
    compression: str
    head: bytes
    file_bytes: int
    _source: Any
    _served: int = 0

    def readinto(self, view: memoryview) -> int:
        """Fills `view` from the stream and returns the bytes filled: fewer than its length only at the end. Raises BadInput."""
        filled = 0
        if self._served < len(self.head):
            filled = min(len(view), len(self.head) - self._served)
            view[:filled] = self.head[self._served : self._served + filled]
            self._served += filled
        while filled < len(view):
            got = _read_some(self._source, view[filled:], self.path, self.compression)
            if got == 0:
                if self.compression == "zstd":
                    _refuse_cut_frames(self.path)
                break
            filled += got
        return filled

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, fewer only at the end. Memory grows with what is there, not with `size`."""
        parts, left = [], size
        while left > 0:
            block = bytearray(min(left, 1 << 20))
            got = self.readinto(memoryview(block))
            parts.append(bytes(block[:got]))
            left -= got
            if got < len(block):
                break
        return b"".join(parts)


@contextmanager
def open_stream(path: str | os.PathLike[str]) -> Iterator[Stream]:
    """The stream of the file at `path`. Raises BadInput when there is none, or it cannot be read or decompressed."""
    path = Path(path)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise BadInput(f"{path}: not a regular file; name one data file")
        source: Any = open(path, "rb", buffering=0)  # noqa: SIM115  (closed below, or by the decompressor around it)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from None
    try:
        start = _read_raw(source, 4, path)
        source.seek(0)
        compression = "zstd" if start == ZSTD_MAGIC else "gzip" if start[:2] == GZIP_MAGIC else "none"
        if compression == "zstd":
            import zstandard

            decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES)
            source = decompressor.stream_reader(source, read_size=ZSTD_READ_BYTES, read_across_frames=True)
        elif compression == "gzip":
            import pyarrow

            source = pyarrow.CompressedInputStream(source, compression)
        stream = Stream(path, compression, b"", status.st_size, source)
        stream.head = stream.read(HEAD_BYTES)
        yield stream
    finally:
        source.close()


def _read_raw(source: Any, size: int, path: Path) -> bytes:
    view = bytearray(size)
    filled = 0
    while filled < size and (got := _read_some(source, memoryview(view)[filled:], path, "none")):
        filled += got
    return bytes(view[:filled])


def _read_some(source: Any, view: memoryview, path: Path, compression: str) -> int:
    try:
        return source.readinto(view) or 0
    except OSError as error:
        if compression == "none" or error.errno is not None:
            raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from None
        reason = first_line(error)
        raise _cut_off(path, compression) if "runcated" in reason else _damaged(path, compression, reason) from None
    except Exception as error:
        if type(error).__name__ != "ZstdError":
            raise
        raise _damaged(path, compression, first_line(error)) from None


def _cut_off(path: Path, compression: str) -> BadInput:
    return BadInput(f"{path}: the {compression} stream is cut off before its end: fetch the file again")


def _damaged(path: Path, compression: str, reason: str) -> BadInput:
    return BadInput(f"{path}: the {compression} stream is damaged ({reason}): fetch the file again")


def _refuse_cut_frames(path: Path) -> None:
    """Raises BadInput unless the file is whole zstd frames from its first byte to its last (RFC 8878, section 3.1)."""
    with open(path, "rb", buffering=0) as file:
        size, at = os.fstat(file.fileno()).st_size, 0

        def peek(count: int) -> bytes:
            found = os.pread(file.fileno(), count, at)
            if len(found) < count:
                raise _cut_off(path, "zstd")
            return found

        while at < size:
            magic = int.from_bytes(peek(4), "little")
            at += 4
            if magic & 0xFFFFFFF0 == 0x184D2A50:
                at += 4 + struct.unpack("<I", peek(4))[0]
                continue
            if magic != int.from_bytes(ZSTD_MAGIC, "little"):
                raise _damaged(path, "zstd", f"no frame begins at byte {at - 4}")
            descriptor = peek(1)[0]
            single_segment, has_checksum = descriptor >> 5 & 1, descriptor >> 2 & 1
            content_size_bytes = (single_segment, 2, 4, 8)[descriptor >> 6]
            at += 1 + (1 - single_segment) + (0, 1, 2, 4)[descriptor & 3] + content_size_bytes
            last = 0
            while not last:
                header = int.from_bytes(peek(3), "little")
                last, kind, length = header & 1, header >> 1 & 3, header >> 3
                at += 3 + (1 if kind == 1 else length)
            at += 4 * has_checksum
        if at > size:
            raise _cut_off(path, "zstd")
