"""Mutations of JSON documents, of the chain (hashed anew: what lies behind the hashes is met too), of Parquet parts and of folders."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.fuzz.command import names_of
from tests.fuzz.mutate import NAMES, bytes_changed, pick

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 2**31, 2**63, -(2**63) - 1, 10**30, 1e308, -0.5, 0.1, "", "0", "x", "1/0", "1/4",
    "1e999999999", [], {}, [[]],
    [None], {"": None}, {"k": 1}, "../../etc/passwd", "/etc/passwd", "a\nb", "\x1b[31m", "\ud800", "9" * 5000, "x" * 10_000, [0] * 1000,
    "full", "trades", "sampled:0", "sampled:99999999999", "sampled:²", "mbp-10", "ohlcv-1m", "train", "eval", "replay", "cme_globex",
)  # fmt: skip
TEXTS = (
    b"",
    b"{}",
    b"[]",
    b"null",
    b"0",
    b'"x"',
    b"{",
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"9" * 5000,
    b"NaN",
    b"\xff\xfe",
    b"\0" * 100,
    b"\n",
)


def places(value: Any, path: tuple = ()) -> list[tuple]:
    """The path of every value inside a document but the whole, some levels deep."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if len(path) > 12:
        return []
    return [found for key, item in inside for found in [(*path, key), *places(item, (*path, key))]]


def changed(document: Any, rng: np.random.Generator, under: tuple = ()) -> Any:
    """A document with one or two of its values (below a path) replaced, taken out, renamed or doubled."""
    document = json.loads(json.dumps(document))
    for _ in range(rng.integers(1, 3)):
        found = [path for path in places(document) if path[: len(under)] == under]
        if not found:
            break
        # Deep values are many: half of the time one near the top.
        path = pick(rng, [path for path in found if len(path) <= 3 + len(under)] if rng.random() < 0.5 else found)
        holder = document
        for key in path[:-1]:
            holder = holder[key]
        key = path[-1]
        match rng.integers(0, 6):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[pick(rng, NAMES)] = holder.pop(key)
            case 2 if isinstance(holder, list):
                holder.insert(key, holder[key])
            case 3 if isinstance(holder[key], int):
                holder[key] += int(pick(rng, (-1, 1, 10**6, 2**62)))
            case _:
                holder[key] = pick(rng, VALUES)
    return document


def json_bytes(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, indent=2).encode()


def canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def rehash(run: Path, lines: list[dict]) -> None:
    """Writes the chain of these lines anew from the manifest as it stands: a forger's chain holds; and the manifest's head follows it."""
    manifest = json.loads((run / "manifest.json").read_bytes())
    head, out = "", []
    for number, line in enumerate(lines):
        body = {key: value for key, value in line.items() if key != "hash"}
        if number == 0:
            head = hashlib.sha256(canonical({key: manifest.get(key) for key in ("format", "identity", "log")})).hexdigest()
        else:
            head = hashlib.sha256(bytes.fromhex(head) + canonical(body)).hexdigest()
        out.append(canonical({**body, "hash": head}) + b"\n")
    (run / "chain.jsonl").write_bytes(b"".join(out))
    if manifest.get("head") is not None:
        manifest["head"] = head
        (run / "manifest.json").write_bytes(json_bytes(manifest))


def chain_of(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "chain.jsonl").read_bytes().splitlines()]


def other_rows(path: Path, rng: np.random.Generator) -> None:
    """Writes a Parquet file anew: a column gone, renamed, of another type, nulls or extremes in it; rows cut, doubled or shuffled."""
    table = pq.read_table(path, partitioning=None)
    name = pick(rng, table.column_names)
    at = table.column_names.index(name)
    match rng.integers(0, 8):
        case 0:
            table = table.drop_columns([name])
        case 1:
            table = table.rename_columns([pick(rng, NAMES) if one == name else one for one in table.column_names])
        case 2:
            kind = pick(rng, (pa.int8(), pa.int64(), pa.uint64(), pa.float64(), pa.string(), pa.binary(), pa.bool_(), pa.list_(pa.int8())))
            table = table.set_column(at, name, pa.nulls(len(table), kind))
        case 3:
            table = table.slice(0, int(rng.integers(0, 1 + len(table))))
        case 4:
            table = pa.concat_tables([table] * 2)
        case 5:
            table = table.take(pa.array(rng.permutation(len(table))))
        case _:
            kind = table.schema.field(at).type
            if pa.types.is_integer(kind):
                width = kind.bit_width
                limits = (0, 1, -1, 2 ** (width - 1) - 1, -(2 ** (width - 1)))
                if not pa.types.is_signed_integer(kind):
                    limits = (0, 1, 2**width - 1, 2 ** (width - 1))
                values = table.column(at).to_pylist()
                for row in range(len(values)) if rng.random() < 0.3 else rng.integers(0, len(values), min(len(values), 2)):
                    values[row] = int(pick(rng, limits))
                table = table.set_column(at, name, pa.array(values, kind))
            else:
                table = table.append_column(pick(rng, NAMES), pa.array([1] * len(table)))
    pq.write_table(table, path, compression=pick(rng, ("none", "zstd", "snappy")), row_group_size=int(pick(rng, (7, 65536))))


def bytes_damaged(path: Path, rng: np.random.Generator) -> None:
    """A file's bytes changed; or the file replaced: by nothing, other text, a folder, a link that leads to itself, another file's bytes."""
    match rng.integers(0, 12):
        case 0:
            path.unlink()
        case 1:
            path.unlink()
            path.mkdir()
        case 2:
            path.unlink()
            os.symlink(path.name, path)
        case 3:
            path.write_bytes(pick(rng, TEXTS))
        case 4:
            path.write_bytes(pick(rng, names_of(path.parent)).read_bytes())
        case 5:
            os.truncate(path, int(rng.integers(0, 1 + path.stat().st_size)))
        case _:
            path.write_bytes(bytes_changed(path.read_bytes(), rng))
