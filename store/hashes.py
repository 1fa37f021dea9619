"""Hashes of content: of a file's bytes, and of columns by their values, however they are stored."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lob.errors import BadInput, NotFound

_BLOCK_BYTES = 1 << 20


def open_to_read(path: str | os.PathLike):
    """The file, open for reading bytes. Raises NotFound or BadInput with one line."""
    try:
        return open(path, "rb")
    except FileNotFoundError:
        raise NotFound(f"{path}: no such file") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None


def sha256_file(path: str | os.PathLike) -> str:
    """64 hex digits over the file's bytes, read in blocks."""
    digest = hashlib.sha256()
    with open_to_read(path) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def file_stamp(path: str | os.PathLike) -> tuple[int, int, int]:
    """(inode, size, mtime_ns): differs when a file was replaced or written to."""
    stat = Path(path).stat()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def canonical_hash(columns: Mapping[str, np.ndarray], undefined: Mapping[str, np.ndarray]) -> str:
    """SHA-256 (hex) over columns of equal length by value: names in order, dtypes, which rows are undefined, and the values.

    It knows nothing of files, encodings, row groups or of the order in which columns were asked for. `undefined` holds bool masks of
    the columns that have undefined rows (an absent mask and an all-false one are the same); undefined rows hash as 0, whatever they hold.
    """
    rows = len(next(iter(columns.values()))) if columns else 0
    digest = hashlib.sha256(f"columns {len(columns)} rows {rows}\n".encode())
    for name in sorted(columns):
        values = np.ascontiguousarray(columns[name])
        dtype = values.dtype.newbyteorder("<")
        mask = undefined.get(name)
        absent = np.flatnonzero(mask).astype("<i8") if mask is not None else np.empty(0, "<i8")
        if len(absent) and values[absent].any():
            values = values.copy()
            values[absent] = np.zeros((), values.dtype)
        values_hex = hashlib.sha256(values.astype(dtype, copy=False).view(np.uint8).data).hexdigest()
        absent_hex = hashlib.sha256(absent.view(np.uint8).data).hexdigest()
        digest.update(f"{name} {dtype.str} {len(values)} {values_hex} {absent_hex}\n".encode())
    return digest.hexdigest()
