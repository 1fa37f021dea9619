"""`verify_chain`: whether a run's folder still is what its writer left, and if not, what was changed."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lob.errors import DamagedLog
from lob.tables import Table
from store.chain import CHAIN, UNHASHED_INDEX, Chain, read_chain, read_unhashed, start_hash
from store.journal import journal_folders, read_journal
from store.manifest import MANIFEST, declared_tables, read_manifest
from store.segments import ROW_GROUP_ROWS, SEGMENTS, UNHASHED, arrow_schema, checksum_rows, file_sha256, part_path


@dataclass(frozen=True)
class Finding:
    """One thing in a run's folder that is not as it was written. `part` is a path inside the folder; what is unknown is None."""

    message: str
    table: str | None = None
    part: str | None = None
    row: int | None = None
    byte: int | None = None
    column: str | None = None


def verify_chain(run_dir: Path | str, head: str | None = None) -> list[Finding]:
    """Every deviation of a run's folder from its chain, the first in the log first; an empty list when there is none.

    Reads every sealed byte once. `head` is the head that was printed when the run ended: only it tells a log that was rewritten whole
    from the original. An unfinished run is no deviation: its end is where `read_run` says. Tables outside every hash are only looked for,
    not proved. Raises NotFound when the folder is no run; damage is never raised, always found.
    """
    run_dir = Path(run_dir)
    try:
        manifest = read_manifest(run_dir)
        tables = declared_tables(manifest)
    except DamagedLog as error:
        return [Finding(str(error), part=MANIFEST)]
    try:
        chain = read_chain(run_dir)
    except FileNotFoundError:
        return [Finding(f"{CHAIN} is missing", part=CHAIN)]
    if not chain.lines:
        return [Finding(f"{CHAIN}: {chain.fault or 'empty'}", part=CHAIN, byte=0)]
    findings = _check_ends(run_dir, manifest, chain, head)
    for k in range(1, chain.sealed + 1):
        for name, entry in chain.lines[k]["tables"].items():
            findings += _check_part(run_dir, k, tables.get(name), name, entry)
    findings += _check_unhashed(run_dir, chain, tables)
    findings += _check_strangers(run_dir, chain, tables)
    findings += _check_journals(run_dir, chain, tables)
    return findings


def _check_ends(run_dir: Path, manifest: dict[str, Any], chain: Chain, head: str | None) -> list[Finding]:
    findings = []
    if start_hash(manifest) != chain.lines[0]["hash"]:
        findings.append(
            Finding(
                f"{MANIFEST}: identity or declared tables were changed: they do not give the hash that {CHAIN} starts from", part=MANIFEST
            )
        )
    if chain.fault:
        findings.append(Finding(f"{CHAIN}: {chain.fault}", part=CHAIN, byte=chain.length))
    if head is not None and head.lower() != chain.head:
        known = [line["k"] for line in chain.lines if line["hash"] == head.lower()]
        what = (
            f"that is the head after line {known[0] + 1}: the log went on or its end was changed"
            if known
            else "this is not the log that had it"
        )
        findings.append(Finding(f"{CHAIN}: the head is {chain.head}, given was {head}: {what}", part=CHAIN))
    if chain.end is None:
        if manifest["end_state"] is not None:
            findings.append(
                Finding(f"{MANIFEST} says the run ended ({manifest['end_state']}), but {CHAIN} has no end", part=CHAIN, byte=chain.length)
            )
        return findings
    noted = (manifest["head"], manifest["end_state"], manifest.get("steps"))
    if noted != (None, None, None) and noted != (chain.head, chain.end["state"], chain.end["steps"]):
        findings.append(Finding(f"{MANIFEST}: head, end state or steps are not those of {CHAIN}", part=MANIFEST))
    summary = chain.end["summary"]
    for path in sorted(run_dir.glob("*_summary.json")):
        if summary is None or path.name != summary["file"]:
            findings.append(Finding(f"{path.name} is not covered by {CHAIN}: it was put there after the run ended", part=path.name))
    if summary is not None:
        path = run_dir / summary["file"]
        if not path.is_file():
            findings.append(Finding(f"{summary['file']} is missing", part=summary["file"]))
        elif hashlib.sha256(path.read_bytes()).hexdigest() != summary["sha256"]:
            findings.append(Finding(f"{summary['file']} was changed after the run ended", part=summary["file"]))
    return findings


def _check_part(run_dir: Path, k: int, table: Table | None, name: str, entry: dict[str, Any]) -> list[Finding]:
    if table is None:
        return [Finding(f"segment {k} has a table {name} that {MANIFEST} does not declare", table=name)]
    path = part_path(run_dir, k, table)
    part = str(path.relative_to(run_dir))
    if not path.is_file():
        return [Finding(f"{part} is missing: it was removed after it was sealed", table=name, part=part)]
    if path.stat().st_size == entry["bytes"] and file_sha256(path) == entry["sha256"]:
        return []
    return diagnose_part(path, part, table, entry)


def diagnose_part(path: Path, part: str, table: Table, entry: dict[str, Any]) -> list[Finding]:
    """What differs in a part whose bytes are not those that were sealed: rows, columns, or bytes alone."""
    size = path.stat().st_size
    changed = f"{part} was changed" + (f" ({size} bytes, sealed were {entry['bytes']})" if size != entry["bytes"] else "")
    try:
        metadata = pq.read_metadata(path)
        places = {metadata.row_group(0).column(i).path_in_schema: i for i in range(metadata.num_columns)}
        chunks = {name: metadata.row_group(0).column(i) for name, i in places.items()}
        starts = {name: chunk.dictionary_page_offset or chunk.data_page_offset for name, chunk in chunks.items()}
    except Exception as error:  # whatever a reader of damaged bytes may say
        return [Finding(f"{changed}: no longer a Parquet file ({_first_line(error)})", table=table.name, part=part)]
    if metadata.num_rows != entry["rows"]:
        return [Finding(f"{changed}: it has {metadata.num_rows} rows, sealed were {entry['rows']}", table=table.name, part=part)]
    faults = {name: fault for name in table.names if (fault := _column_fault(path, table, name, entry["columns"].get(name)))}
    if not faults:
        return [Finding(f"{changed}: its bytes differ, the values that they hold do not", table=table.name, part=part)]
    first = next(iter(faults))
    others = f"; so do {len(faults) - 1} other columns: {', '.join(list(faults)[1:])}" if len(faults) > 1 else ""
    message = f"{changed}: column {first} {faults[first]}{others}"
    return [Finding(message, table=table.name, part=part, byte=starts.get(first), column=first)]


def _column_fault(path: Path, table: Table, name: str, sealed: str | None) -> str:
    field = arrow_schema(table).field(name)
    sums: dict[str, int] = {}
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(ROW_GROUP_ROWS, columns=[name]):
                checksum_rows(pa.Table.from_batches([batch]).cast(pa.schema([field])).combine_chunks(), sums)
    except Exception as error:  # whatever a reader of damaged bytes may say
        return f"cannot be read ({_first_line(error)})"
    return "" if f"{sums.get(name, 0):08x}" == sealed else "holds other values"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _check_unhashed(run_dir: Path, chain: Chain, tables: dict[str, Table]) -> list[Finding]:
    findings = []
    for k, entries in read_unhashed(run_dir).items():
        for name in entries if k <= chain.sealed else ():
            path = part_path(run_dir, k, tables[name]) if name in tables else run_dir / UNHASHED / f"{k:08d}" / f"{name}.parquet"
            if not path.is_file():
                part = str(path.relative_to(run_dir))
                findings.append(Finding(f"{part} is missing (outside every hash: {UNHASHED_INDEX} lists it)", table=name, part=part))
    return findings


def _grown(run_dir: Path, chain: Chain) -> Chain:
    """The chain as it stands now, if it has only grown since."""
    now = read_chain(run_dir)
    return now if now.lines[: len(chain.lines)] == chain.lines else chain


def _check_strangers(run_dir: Path, chain: Chain, tables: dict[str, Table]) -> list[Finding]:
    """Files under `segments/` that the chain does not know. What an interrupted seal left is no stranger while the run is unfinished."""
    paths = sorted((run_dir / SEGMENTS).rglob("*"))
    if chain.end is None:
        chain = _grown(run_dir, chain)  # a living writer may have sealed since the chain was read, but nothing that was listed after it
    known = {part_path(run_dir, k, tables[name]) for k in range(1, chain.sealed + 1) for name in chain.lines[k]["tables"] if name in tables}
    open_run = chain.end is None
    under_way = {f"{chain.sealed + 1:08d}", f"{chain.sealed + 1:08d}.tmp"} if open_run and journal_folders(run_dir) else set()
    findings = []
    for path in paths:
        if path.is_dir() or path in known or path.parent.name in under_way:
            continue
        part = str(path.relative_to(run_dir))
        findings.append(Finding(f"{part} is no part of the run: {CHAIN} does not list it", part=part, table=path.stem))
    return findings


def _check_journals(run_dir: Path, chain: Chain, tables: dict[str, Table]) -> list[Finding]:
    findings = []
    folders = journal_folders(run_dir)
    if chain.end is None:
        chain = _grown(run_dir, chain)
    k = chain.sealed + 1
    for number, folder in folders.items():
        if number < k:
            continue  # sealed; the writer died before it dropped it
        where = str(folder.relative_to(run_dir))
        if chain.end is not None or number != k:
            findings.append(Finding(f"{where} does not follow the log: {CHAIN} ends at segment {chain.sealed}", part=where))
            continue
        try:
            part = read_journal(folder, tables)
        except FileNotFoundError:
            continue  # sealed and dropped while we looked
        if part.damage and read_chain(run_dir).sealed >= number:
            continue
        for table, byte, message in part.damage:
            name = f"{where}/{table}.arrows" if table else f"{where}/commits"
            findings.append(Finding(f"{name}: {message}; the log ends after step {part.steps}", table=table, part=name, byte=byte))
        k += 1
    return findings
