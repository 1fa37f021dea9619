"""The feature cache: normalised features of a run's window, beside the market data that they were made from.

    <store>/features/<key>.parquet     columns: the slots that are not all zero, float32; file metadata: `tapeproof` (JSON)

The key is a hash of what was asked for (data hash, window, clock, …). Whether an entry may be used is told apart from that: `WIRE_VERSION`
is the form of the file, the *schema hash* is over the bytes of every source module that shapes a value. An entry of another version or
schema is refused, never recomputed behind the user's back. An entry appears by one rename; equal writers write equal bytes.
"""

import ast
import contextlib
import hashlib
import json
import os
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from lob.errors import BadInput, StaleCache, first_line
from lob.layout import OFFSET, SLOTS, STATE_DIM

WIRE_VERSION = 1
ENTRY_MODULES = ("lob.prepare", "lob.normalise")
"""Where a feature's value comes from; `schema_sources` follows their imports within the house."""

_HOUSE = Path(__file__).resolve().parent.parent
_METADATA = b"tapeproof"


def schema_sources(house: Path = _HOUSE, entries: tuple[str, ...] = ENTRY_MODULES) -> tuple[str, ...]:
    """Paths, relative to the house, of the entry modules and of all that they import from it, wherever in a module the import stands."""
    found: set[str] = set()
    waiting = list(entries)
    while waiting:
        path = house / (waiting.pop().replace(".", "/") + ".py")
        name = path.relative_to(house).as_posix()
        if name in found or not path.is_file():
            continue
        found.add(name)
        waiting += _imports(path.read_bytes())
    return tuple(sorted(found))


@lru_cache(256)
def _imports(source: bytes) -> tuple[str, ...]:
    """Dotted names that a module may be importing: `from a import b` may mean the module a or a.b. Parsed once a text: every window of a
    training asks."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(names)


def schema_hash(house: Path = _HOUSE, entries: tuple[str, ...] = ENTRY_MODULES) -> str:
    """64 hex digits over path, length and raw bytes of `schema_sources`: an edited comment changes it, undoing the edit brings it back."""
    digest = hashlib.sha256()
    for name in schema_sources(house, entries):
        content = (house / name).read_bytes()
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def cache_key(parameters: Mapping[str, Any]) -> str:
    """32 hex digits over the canonical JSON of integers, strings and nulls."""
    return hashlib.sha256(json.dumps(parameters, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()).hexdigest()[:32]


def cache_path(store: str | os.PathLike, parameters: Mapping[str, Any]) -> Path:
    return Path(store) / "features" / f"{cache_key(parameters)}.parquet"


def read_features(store: str | os.PathLike, parameters: Mapping[str, Any], rebuild_command: str) -> np.ndarray | None:
    """float32[n, 128] of an entry, or None when there is none.

    Raises StaleCache, one line with what was found, what was expected and `rebuild_command`: another wire version or schema hash, an
    entry that is damaged or that belongs to other parameters.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = cache_path(store, parameters)
    try:
        with open(path, "rb") as file:
            table = pq.read_table(file, use_threads=False)
        head = json.loads(table.schema.metadata[_METADATA])
        found = {name: head[name] for name in ("wire_version", "schema_hash", "parameters", "rows", "content_hash", "normaliser")}
    except FileNotFoundError:
        return None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise _stale(path, f"damaged ({first_line(error)})", "a feature cache", rebuild_command) from None
    if found["wire_version"] != WIRE_VERSION:
        raise _stale(path, f"wire version {found['wire_version']}", f"version {WIRE_VERSION}", rebuild_command)
    if found["schema_hash"] != (expected := schema_hash()):
        what = f"schema hash {str(found['schema_hash'])[:16]} (the sources that shape features have changed since it was built)"
        raise _stale(path, what, expected[:16], rebuild_command)
    if found["parameters"] != dict(parameters):
        raise _stale(path, "an entry of other parameters", "this run's", rebuild_command)
    try:
        if type(found["rows"]) is not int or found["rows"] != table.num_rows:
            raise ValueError("the rows are not as many as the entry says")
        features = np.zeros((found["rows"], STATE_DIM), dtype=np.float32)
        for name in table.column_names:
            features[:, OFFSET[name]] = table[name].to_numpy()
    except (ValueError, TypeError, KeyError):
        raise _stale(path, "damaged (columns)", "the columns that it names", rebuild_command) from None
    if (given := _content_hash(found, features)) != found["content_hash"]:
        raise _stale(path, f"damaged content of hash {given[:16]}", str(found["content_hash"])[:16], rebuild_command)
    return features


def _stale(path: Path, found: str, expected: str, command: str) -> StaleCache:
    return StaleCache(f"Stale feature cache {path}: found {found}, expected {expected}. Rebuild it: {command}")


def features_hash(features: np.ndarray) -> str:
    """64 hex digits over the values, row by row."""
    return hashlib.sha256(np.ascontiguousarray(features, dtype="<f4").tobytes()).hexdigest()


def _remove_leftovers(path: Path) -> None:
    """What writers of this entry that were killed more than an hour ago left beside it."""
    for left in path.parent.glob(f"{path.stem}.*.part"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > 3600:
                left.unlink()


def _content_hash(head: Mapping[str, Any], features: np.ndarray) -> str:
    """64 hex digits over everything that an entry says."""
    said = json.dumps({name: value for name, value in head.items() if name != "content_hash"}, sort_keys=True)
    return hashlib.sha256(said.encode() + features_hash(features).encode()).hexdigest()


def write_features(
    store: str | os.PathLike, parameters: Mapping[str, Any], features: np.ndarray, mean: np.ndarray, std: np.ndarray, label: str
) -> Path:
    """Write an entry (features float32[n, 128]; mean, std float64[128] of its normaliser, kept exactly as hex floats), replacing any other.

    Raises BadInput when the folder cannot be written; nothing half written stays.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    head = {
        "wire_version": WIRE_VERSION,
        "schema_hash": schema_hash(),
        "parameters": dict(parameters),
        "rows": len(features),
        "normaliser": {"label": label, "mean": [float(x).hex() for x in mean], "std": [float(x).hex() for x in std]},
    }
    head["content_hash"] = _content_hash(head, features)
    used = [slot for slot in range(STATE_DIM) if features[:, slot].any()] or [0]
    table = pa.table(
        {SLOTS[slot]: pa.array(np.ascontiguousarray(features[:, slot])) for slot in used},
    ).replace_schema_metadata({_METADATA: json.dumps(head, sort_keys=True).encode()})
    path = cache_path(store, parameters)
    aside = path.with_name(f"{path.stem}.{os.getpid()}.{os.urandom(4).hex()}.part")
    try:
        path.parent.mkdir(exist_ok=True)
        _remove_leftovers(path)
        with open(aside, "xb") as file:
            pq.write_table(table, file, compression="zstd", compression_level=1, use_dictionary=False, write_statistics=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise BadInput(f"{path.parent}: the feature cache cannot be written: {error.strerror or error}") from None
    return path
