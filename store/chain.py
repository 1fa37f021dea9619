"""The chain: one line per sealed segment in `chain.jsonl`, each hash covering everything before it.

    H_0 = SHA-256(canonical JSON of {format, identity, log})                     line 0, written at the start
    H_k = SHA-256(bytes of H_{k-1} || canonical JSON of line k without its hash)   one line per segment, then one for the end

A segment's line holds {k, steps: [first, end), step, tables: {name: {rows, bytes, sha256, columns: {name: crc32}}}}; `steps` counts the
run's steps, `step` is the number of the last one. The SHA-256 is of the file's bytes, so any changed byte is detected; the CRC-32 of
every column's values tells whether the content changed with them, and where. The last line holds {k, end: {state, steps, summary: {file,
sha256}}}, so the head covers the summary too. Nothing here depends on wall-clock, host, paths or the run's name.

`unhashed.jsonl` lists the parts of tables outside every hash: {k, tables: {name: {rows, bytes}}, crc}; of two lines with one k the later
holds.
"""

import hashlib
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from store.manifest import canonical_json, parse_json

CHAIN = "chain.jsonl"
UNHASHED_INDEX = "unhashed.jsonl"
_SUMMARY = re.compile(r"[a-z_]+\.json")


@dataclass(frozen=True)
class Chain:
    """The chain as far as it holds.

    `lines[0]` is the start; `head` is the hash of the last line that holds; `end` is the end line's content.
    """

    lines: tuple[dict[str, Any], ...]
    head: str
    sealed: int
    """Segments 1..sealed are in the chain."""
    steps: int
    """Steps of the run that they hold."""
    end: dict[str, Any] | None
    length: int
    """Bytes of the file up to the last line that holds."""
    fault: str
    """Why the chain ends there when bytes follow, in words; empty when none do."""


def start_hash(manifest: Mapping[str, Any]) -> str:
    """H_0 of a manifest."""
    return hashlib.sha256(canonical_json({key: manifest[key] for key in ("format", "identity", "log")})).hexdigest()


def link_hash(previous: str, body: Mapping[str, Any]) -> str:
    """H_k of the line `body` (without its hash) after the hash `previous`."""
    return hashlib.sha256(bytes.fromhex(previous) + canonical_json(body)).hexdigest()


def append_line(path: Path, body: Mapping[str, Any]) -> None:
    """Append one JSON line in a single write and fsync it. Raises OSError."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        before = os.fstat(handle).st_size
        line = canonical_json(body) + b"\n"
        written = os.write(handle, line)
        if written != len(line):
            os.ftruncate(handle, before)
            raise OSError(28, "No space left on device", str(path))
        os.fsync(handle)
    finally:
        os.close(handle)


def append_link(run_dir: Path, previous: str, body: Mapping[str, Any]) -> str:
    """Append a line to the chain; returns its hash, the new head."""
    head = link_hash(previous, body)
    append_line(Path(run_dir) / CHAIN, {**body, "hash": head})
    return head


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        value = parse_json(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) and isinstance(value.get("hash"), str) else None


def _well_formed(line: Mapping[str, Any], k: int, steps: int) -> bool:
    """Whether line k, after a chain of so many steps, has the members that its readers rely on."""
    try:
        if line["k"] != k or type(line["k"]) is not int:
            return False
        if k == 0:
            return set(line) == {"k", "hash"}
        if "end" in line:
            end = line["end"]
            summary = end["summary"]
            covered = summary is None or (_SUMMARY.fullmatch(summary["file"]) is not None and isinstance(summary["sha256"], str))
            return set(line) == {"k", "end", "hash"} and isinstance(end["state"], str) and end["steps"] == steps and covered
        first, end_step = line["steps"]
        counts = [entry[name] for entry in line["tables"].values() for name in ("rows", "bytes")]
        whole = all(type(number) is int and number >= 0 for number in (first, end_step, *counts)) and type(line["step"]) is int
        texts = [entry["sha256"] for entry in line["tables"].values()] + [s for e in line["tables"].values() for s in e["columns"].values()]
        return whole and first == steps <= end_step and all(isinstance(text, str) for text in texts)
    except (KeyError, TypeError, ValueError, AttributeError):
        return False


def read_chain(run_dir: Path) -> Chain:
    """The chain up to the first line that does not hold. Never raises on damage: `fault` says it. Raises FileNotFoundError."""
    try:
        text = (Path(run_dir) / CHAIN).read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        return Chain((), "", 0, 0, None, 0, f"cannot be read ({error.strerror})")
    lines: list[dict[str, Any]] = []
    head, steps, sealed, read = "", 0, 0, 0
    end: dict[str, Any] | None = None
    fault = ""
    while read < len(text):
        stop = text.find(b"\n", read)
        number = len(lines) + 1
        if stop < 0:
            fault = f"line {number} is cut short after {len(text) - read} bytes"
            break
        line = _parse(text[read:stop])
        if line is None:
            fault = f"line {number} is no chain record"
        elif end is not None:
            fault = f"line {number} follows the end of the run"
        elif canonical_json(line) != text[read:stop] or not _well_formed(line, len(lines), steps):
            fault = f"line {number} is not the record of segment {len(lines)} as it was written"
        elif lines and link_hash(head, {key: value for key, value in line.items() if key != "hash"}) != line["hash"]:
            fault = f"line {number} does not follow from the line before it"
        if fault or line is None:
            break
        lines.append(line)
        head, read = line["hash"], stop + 1
        if "end" in line:
            end = line["end"]
        elif line["k"]:
            sealed, steps = line["k"], line["steps"][1]
    return Chain(tuple(lines), head, sealed, steps, end, read, fault)


def read_unhashed(run_dir: Path) -> dict[int, dict[str, Any]]:
    """{k: {table: {rows, bytes}}} of the parts outside every hash. Lines that do not match their checksum are passed over."""
    try:
        text = (Path(run_dir) / UNHASHED_INDEX).read_bytes()
    except OSError:
        return {}
    parts = {}
    for line in text.split(b"\n")[:-1]:
        try:
            record = parse_json(line)
            if record.pop("crc") == zlib.crc32(canonical_json(record)) and isinstance(record["tables"], dict):
                parts[int(record["k"])] = record["tables"]
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return parts


def append_unhashed(run_dir: Path, k: int, tables: Mapping[str, Any]) -> None:
    """Append the index line of segment k's unhashed parts."""
    record = {"k": k, "tables": dict(tables)}
    append_line(Path(run_dir) / UNHASHED_INDEX, {**record, "crc": zlib.crc32(canonical_json(record))})
