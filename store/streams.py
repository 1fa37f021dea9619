"""Bytes of a file, plain or compressed (zstd, gzip; told by their first bytes), as one stream that never ends silently in mid-frame.

The decompressor is Arrow's: unlike `zstandard`'s stream reader it reports a stream that stops inside a frame, and it continues over
concatenated frames. It holds about 1 MB.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lob.errors import BadInput

ZSTD_MAGIC, GZIP_MAGIC = b"\x28\xb5\x2f\xfd", b"\x1f\x8b"
HEAD_BYTES = 65536


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
        if compression != "none":
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
        reason = str(error).splitlines()[0]
        if "runcated" in reason:
            raise BadInput(f"{path}: the {compression} stream is cut off before its end: fetch the file again") from None
        raise BadInput(f"{path}: the {compression} stream is damaged ({reason}): fetch the file again") from None
