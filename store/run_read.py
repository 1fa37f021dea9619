"""Reading a run's log, finished, living or broken off; and sealing one that was broken off.

Parts come from the chain, never from a glob; after them comes the journal, cut back to its last valid commit.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lob.errors import DamagedLog, NotFound, first_line
from lob.tables import Table
from store.chain import CHAIN, Chain, read_chain, read_unhashed
from store.journal import JOURNAL, JournalPart, journal_folders, read_journal
from store.manifest import declared_tables, read_manifest
from store.reopen import ABANDONED, Abandoned, complete_rewind, mend_chain, mend_unhashed, read_abandoned
from store.runlog import end_chain, lock_run, note_end, seal_journal
from store.segments import arrow_schema, part_path

UNFINISHED = "unfinished"
"""State of a run whose chain has no end line."""

_TRIES = 5


@dataclass(frozen=True)
class RunFiles:
    """What a run's folder holds of its log, as of one moment.

    `parts[name]` are a table's sealed files in order, `journal[name]` its committed rows after them (no row: an empty table of the declared
    schema). Only the tables that the run's level keeps have rows. `steps` are the run's steps so far, `sealed_steps` those in segments.
    `state` is the end state, or `unfinished`; `ends` says in words where the log ends and why. `abandoned` is what resumes have set aside.
    """

    run_dir: Path
    manifest: dict[str, Any]
    tables: dict[str, Table]
    parts: dict[str, tuple[Path, ...]]
    journal: dict[str, pa.Table]
    head: str
    sealed_steps: int
    steps: int
    state: str
    ends: str
    abandoned: tuple[Abandoned, ...] = ()


def read_run(run_dir: Path | str) -> RunFiles:
    """The run's log as it stands; modifies nothing, also beside a living writer.

    Raises NotFound when the folder is no run, DamagedLog when manifest or chain cannot be read at all. Damage further on ends the log
    there, and `ends` says so; `verify_chain` names it.
    """
    run_dir = Path(run_dir)
    manifest = read_manifest(run_dir)
    tables = declared_tables(manifest)
    for _ in range(_TRIES):
        chain = _chain(run_dir)
        try:
            journals = living_journals(run_dir, chain, tables)
        except FileNotFoundError:
            continue  # sealed and dropped between two looks
        if _chain(run_dir).sealed == chain.sealed:
            break
    else:
        raise DamagedLog(f"{run_dir}: the run is sealed faster than it can be read; try again")
    unhashed = read_unhashed(run_dir)
    parts = {
        name: tuple(
            part_path(run_dir, k, table)
            for k in range(1, chain.sealed + 1)
            if name in (chain.lines[k]["tables"] if table.hashed else unhashed.get(k, {}))
        )
        for name, table in tables.items()
    }
    rows = {
        name: pa.concat_tables([arrow_schema(table).empty_table(), *(part.tables[name] for part in journals if name in part.tables)])
        for name, table in tables.items()
    }
    steps = max([chain.steps, *(part.steps for part in journals)])
    state = chain.end["state"] if chain.end else UNFINISHED
    ends = describe_end(chain, journals, steps)
    return RunFiles(run_dir, manifest, tables, parts, rows, chain.head, chain.steps, steps, state, ends, read_abandoned(run_dir))


def read_table(run: RunFiles, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """All rows of a table (or some of its columns), sealed and journaled, in the order of the log. Raises NotFound and DamagedLog."""
    if name not in run.tables:
        raise NotFound(f"{run.run_dir}: no table {name}; the run declares {', '.join(run.tables)}")
    schema = arrow_schema(run.tables[name])
    if columns is not None:
        unknown = [column for column in columns if column not in schema.names]
        if unknown:
            raise NotFound(f"{run.run_dir}: table {name} has no column {unknown[0]}; it has {', '.join(schema.names)}")
        schema = pa.schema([schema.field(column) for column in columns])
    pieces = []
    for path in run.parts[name]:
        try:
            rows = pq.read_table(path, columns=schema.names, partitioning=None).select(schema.names).cast(schema)
            for field in schema:
                if pa.types.is_string(field.type):
                    rows.column(field.name).validate(full=True)  # Parquet's text is bytes until somebody looks
            pieces.append(rows)
        except (OSError, pa.ArrowException, KeyError, ValueError) as error:
            first = first_line(error)
            raise DamagedLog(f"{path}: cannot be read ({first}); run `sim verify {run.run_dir}` to see what was changed") from None
    return pa.concat_tables([*pieces, run.journal[name].select(schema.names)])


def _chain(run_dir: Path) -> Chain:
    try:
        chain = read_chain(run_dir)
    except FileNotFoundError:
        raise DamagedLog(f"{run_dir / CHAIN}: missing; without it no part of the run can be told to belong to it") from None
    if not chain.lines:
        raise DamagedLog(f"{run_dir / CHAIN}: {chain.fault or 'empty'}; nothing of the run can be trusted")
    return chain


def living_journals(run_dir: Path, chain: Chain, tables: dict[str, Table]) -> list[JournalPart]:
    """The journal parts that carry the log on after the chain, in order, up to the first gap or damage. None after the end line."""
    parts: list[JournalPart] = []
    folders = journal_folders(run_dir) if chain.end is None and not chain.fault else {}
    k = chain.sealed + 1
    while k in folders:
        part = read_journal(folders[k], tables)
        parts.append(part)
        if part.damage or part.tail or part.steps < 0:
            break
        k += 1
    return parts


def describe_end(chain: Chain, journals: Sequence[JournalPart], steps: int) -> str:
    """Where a log ends and why, in words."""
    if chain.fault:
        return f"after step {steps} of the run: {CHAIN} {chain.fault}"
    if chain.end:
        return f"after step {steps} of the run, sealed: {chain.end['state']}"
    last = journals[-1] if journals else None
    if last and last.damage:
        table, byte, message = last.damage[0]
        return f"after step {steps} of the run: {last.folder.name}/{table or 'commits'} is damaged at byte {byte} ({message})"
    tail = f"; after it stand {last.tail}" if last and last.tail else ""
    return f"after step {steps} of the run, at the last commit of an unfinished run{tail}"


def seal(run_dir: Path | str) -> str:
    """Close a run where it stands: seal every committed step, end the chain. Returns the head. Idempotent; safe to kill and repeat.

    A full segment gives the same bytes as if the run had sealed it. The end state is `sealed_where_it_stood`. Journals behind a
    damaged one, and a summary that the chain does not cover, which no unbroken log can hold, move to `abandoned/`. Raises BadInput
    when a writer is alive, NotFound, and DamagedLog when the chain itself is broken.
    """
    run_dir = Path(run_dir)
    manifest = read_manifest(run_dir)
    tables = declared_tables(manifest)
    lock = lock_run(run_dir)
    try:
        chain = mend_chain(run_dir, "the run cannot be sealed")
        if chain.end is None:
            complete_rewind(run_dir, chain, tables, manifest["log"]["segment_steps"])
        folders = journal_folders(run_dir)
        if chain.end is not None:
            if manifest["head"] != chain.head:
                note_end(run_dir, manifest, chain.head, chain.end)
            _drop_journals(run_dir, folders, len(folders) + chain.sealed)
            return chain.head
        mend_unhashed(run_dir)
        head, first, k = chain.head, chain.steps, chain.sealed
        for part in living_journals(run_dir, chain, tables):
            if part.steps > first or part.tables:
                k = part.k
                head = seal_journal(run_dir, k, tables, head, first, part)
                first = part.steps
        _drop_journals(run_dir, journal_folders(run_dir), k)
        for leftover in list(run_dir.rglob("*.tmp")):
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        for summary in run_dir.glob("*_summary.json"):  # written, but the line that proves it was not
            _set_aside(run_dir, summary, summary.name)
        return end_chain(run_dir, manifest, head, k + 1, {"state": "sealed_where_it_stood", "steps": first, "summary": None})
    finally:
        os.close(lock)


def _set_aside(run_dir: Path, path: Path, name: str) -> None:
    (run_dir / ABANDONED).mkdir(exist_ok=True)
    os.rename(path, run_dir / ABANDONED / name)


def _drop_journals(run_dir: Path, folders: dict[int, Path], sealed: int) -> None:
    """Drop the journals of sealed segments and empty ones; what else is left moves to `abandoned/`."""
    for k, folder in folders.items():
        if k > sealed and any(entry.stat().st_size for entry in folder.iterdir()):
            _set_aside(run_dir, folder, f"journal-{folder.name}")
        else:
            shutil.rmtree(folder)
    if (run_dir / JOURNAL).is_dir():
        (run_dir / JOURNAL).rmdir()
