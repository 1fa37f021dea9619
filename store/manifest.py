"""`manifest.json`: what a run is, written at its start; its chain head and end state are added at the end by atomic replace.

`identity` (config, seeds, data, schema, layout and code hashes, device class) and `log` (level, steps per segment, declared tables) are
what the chain starts from. `attributes` (host, paths, times) stand beside them and are in no hash.
"""

import errno
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
_NAME = re.compile(r"[a-z][a-z0-9_]{0,60}")
_COLUMN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,120}")


def canonical_json(value: Any) -> bytes:
    """The one byte form of a JSON value: sorted keys, no blanks, ASCII. Raises ValueError on NaN and Infinity."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def pretty_json(value: Any) -> bytes:
    """Sorted, indented, strict (no NaN, no Infinity), one newline at the end: the form of the files that people read."""
    return (json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def parse_json(text: bytes) -> Any:
    """The value of a JSON document that may be damaged. Raises ValueError, and nothing else, for what is none: text that nests deeper than
    can be read, and strings that are no text (half a surrogate pair), too."""
    try:
        value = json.loads(text)
        if b"\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    return value


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
            _word(_COLUMN_NAME, column["name"]),
            column["dtype"],
            str(column["unit"]),
            str(column["doc"]),
            {int(code): str(name) for code, name in column["codes"].items()} if "codes" in column else None,
            column.get("nullable", False) is True,
        )
        for column in entry["columns"]
    )
    if not columns:
        raise ValueError(f"table {entry['name']} has no column")
    levels = tuple(str(level) for level in entry["levels"])
    return Table(_word(_NAME, entry["name"]), columns, tuple(entry["key"]), levels, str(entry["doc"]), entry["hashed"] is True)


def _word(form: re.Pattern[str], name: Any) -> str:
    if not isinstance(name, str) or not form.fullmatch(name):
        raise ValueError(f"{str(name)[:40]!r} is no name of a table or column")
    return name


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
        manifest = parse_json(path.read_bytes())
        version = manifest["format"]
        fault = "" if version != FORMAT else _misshapen(manifest)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"{run_dir}: not a run folder (no {MANIFEST}); give the folder that holds {MANIFEST} and chain.jsonl") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise NotFound(f"{run_dir}: not a run folder ({error.strerror}); give the folder that holds {MANIFEST}") from None
        raise DamagedLog(f"{path}: cannot be read ({error.strerror}); restore it from a copy of the run") from None
    except (ValueError, KeyError, TypeError) as error:
        fault, version = f"{type(error).__name__}: {error}"[:200], FORMAT
    if fault:
        raise DamagedLog(f"{path}: cannot be read as a run's manifest ({fault}); restore it from a copy of the run")
    if version != FORMAT:
        raise DamagedLog(f"{path}: format {str(version)[:20]}, but this version reads format {FORMAT}; use the version that wrote the run")
    return manifest


def _misshapen(manifest: Mapping[str, Any]) -> str:
    """Which member that every reader relies on is missing or no value of its kind; empty when none is."""
    kinds: dict[str, tuple[type, ...]] = {"identity": (dict,), "log": (dict,), "attributes": (dict,)}
    kinds |= {"head": (str, type(None)), "end_state": (str, type(None)), "steps": (int, type(None))}
    if set(kinds) - set(manifest):
        return f"{min(set(kinds) - set(manifest))} is missing"
    wrong = [name for name, kind in kinds.items() if type(manifest[name]) not in kind]
    log = {"level": str, "segment_steps": int, "tables": list}
    wrong += [f"log.{name}" for name, kind in log.items() if not wrong and type(manifest["log"].get(name)) is not kind]
    if not wrong and not 1 <= manifest["log"]["segment_steps"] < 2**31:
        wrong = ["log.segment_steps"]
    return f"{wrong[0]} is no value of its kind" if wrong else ""


def declared_tables(manifest: Mapping[str, Any]) -> dict[str, Table]:
    """{name: table} as the run's writer declared them, in its order. Raises DamagedLog."""
    try:
        tables = [parse_table(entry) for entry in manifest["log"]["tables"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedLog(f"{MANIFEST}: the declared tables cannot be read ({error}); restore it from a copy of the run") from None
    return {table.name: table for table in tables}
