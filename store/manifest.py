"""`manifest.json`: what a run is, written at its start; its chain head and end state are added at the end by atomic replace.

`identity` (config, seeds, data, schema, layout and code hashes, device class) and `log` (level, steps per segment, declared tables) are
what the chain starts from. `attributes` (host, paths, times) stand beside them and are in no hash.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lob.errors import DamagedLog, NotFound
from lob.tables import Column, Table

FORMAT = 1
"""Version of the run folder's layout; a reader refuses a greater one."""

MANIFEST = "manifest.json"
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def canonical_json(value: Any) -> bytes:
    """The one byte form of a JSON value: sorted keys, no blanks, ASCII. Raises ValueError on NaN and Infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def pretty_json(value: Any) -> bytes:
    """Sorted, indented, strict (no NaN, no Infinity), one newline at the end: the form of the files that people read."""
    return (json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


ABSENT = object()
"""In `differing_leaves`: the document has no such key."""


def differing_leaves(a: Any, b: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(dotted name, value in `a`, value in `b`) of every leaf at which two JSON values differ, in the order of names."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in sorted({*a, *b}):
            yield from differing_leaves(a.get(key, ABSENT), b.get(key, ABSENT), f"{path}.{key}" if path else str(key))
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from differing_leaves(x, y, f"{path}[{i}]")
    elif a is ABSENT or b is ABSENT or canonical_json(a) != canonical_json(b):
        yield path, a, b


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_file(path: Path, content: bytes) -> None:
    """Write aside, fsync, rename over `path`, fsync the folder: a reader sees the old bytes or the new ones, never a mixture."""
    aside = path.with_name(path.name + ".tmp")
    with open(aside, "wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    os.replace(aside, path)
    sync_folder(path.parent)


def describe_table(table: Table) -> dict[str, Any]:
    """A declared table as JSON."""
    columns = []
    for column in table.columns:
        entry: dict[str, Any] = {"name": column.name, "dtype": column.dtype, "unit": column.unit, "doc": column.doc}
        if column.codes is not None:
            entry["codes"] = {str(code): name for code, name in column.codes.items()}
        if column.nullable:
            entry["nullable"] = True
        columns.append(entry)
    return {
        "name": table.name,
        "columns": columns,
        "key": list(table.key),
        "levels": list(table.levels),
        "hashed": table.hashed,
        "doc": table.doc,
    }


def parse_table(entry: Mapping[str, Any]) -> Table:
    """The declared table of `describe_table`'s JSON."""
    columns = tuple(
        Column(
            column["name"],
            column["dtype"],
            column["unit"],
            column["doc"],
            {int(code): name for code, name in column["codes"].items()} if "codes" in column else None,
            column.get("nullable", False),
        )
        for column in entry["columns"]
    )
    return Table(entry["name"], columns, tuple(entry["key"]), tuple(entry["levels"]), entry["doc"], entry["hashed"])


def new_manifest(
    identity: Mapping[str, Any], attributes: Mapping[str, Any], level: str, segment_steps: int, tables: Sequence[Table]
) -> dict[str, Any]:
    """The manifest of a run that begins."""
    return {
        "format": FORMAT,
        "identity": dict(identity),
        "log": {"level": level, "segment_steps": segment_steps, "tables": [describe_table(table) for table in tables]},
        "attributes": dict(attributes),
        "head": None,
        "end_state": None,
        "steps": None,
    }


def read_manifest(run_dir: Path) -> dict[str, Any]:
    """Raises NotFound when the folder is no run, DamagedLog when the manifest is unreadable or of a newer format."""
    path = Path(run_dir) / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
        version = manifest["format"]
        if {"identity", "log", "head", "end_state"} - set(manifest):
            raise ValueError("keys are missing")
    except FileNotFoundError:
        raise NotFound(f"{run_dir}: not a run folder (no {MANIFEST}); give the folder that holds {MANIFEST} and chain.jsonl") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedLog(f"{path}: not a run's manifest ({error}); restore it from a copy of the run") from None
    if version != FORMAT:
        raise DamagedLog(f"{path}: format {version}, but this version reads format {FORMAT}; use the version that wrote the run")
    return manifest


def declared_tables(manifest: Mapping[str, Any]) -> dict[str, Table]:
    """{name: table} as the run's writer declared them, in its order. Raises DamagedLog."""
    try:
        tables = [parse_table(entry) for entry in manifest["log"]["tables"]]
        if any(not _NAME.fullmatch(table.name) for table in tables):
            raise ValueError("a table's name is no word")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedLog(f"{MANIFEST}: the declared tables cannot be read ({error}); restore it from a copy of the run") from None
    return {table.name: table for table in tables}
