"""Rewinding a broken-off run's log to exactly its first N steps, so that a resumed run goes on as if it had never stopped.

N comes from a checkpoint, before which the log was committed and made durable (`RunLog.sync`), so a commit ends exactly there. Sealed
segments stay: they lie behind checkpoints. Of the journal, what leads up to that commit stays in place, byte for byte. What was logged
after it is no part of the run any more, because the resumed run logs those steps again; it moves to `abandoned/<n>/journal/`, raw, with
`rewind.json` {kept_steps, steps, rows: {table: rows}} beside it, and readers, chain and `verify` pass it over.

The files move in an order that leaves a readable log at every moment, and `pending` stands in `abandoned/<n>/` until all of them have: a
rewind that was killed is completed by the next one, or by `seal`.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lob.errors import BadInput, DamagedLog
from lob.tables import Table
from lob.units import counted
from store.chain import CHAIN, UNHASHED_INDEX, Chain, read_chain, start_hash
from store.journal import COMMITS, JOURNAL, JournalPart, journal_folders, read_journal, sync_journal
from store.manifest import ABSENT, MANIFEST, describe_table, differing_leaves, parse_json, pretty_json, replace_file, sync_folder
from store.segments import SEGMENTS, UNHASHED

ABANDONED = "abandoned"
REWIND = "rewind.json"
PENDING = "pending"
_MOST_SHOWN = 60
"""Characters of a value that a message shows."""


class Place(NamedTuple):
    """Where in a run's files its first `steps` steps end."""

    steps: int
    step: int
    """Number of the last of them; -1 when there is none."""
    head: str
    held: tuple[tuple[int, int, int], ...]
    """(k, first step, end) of full journals that are not sealed."""
    k: int
    """The journal that goes on."""
    first: int
    """Steps before journal k."""
    part: JournalPart | None = None
    """What of journal k stays; None: it begins there."""
    complete: bool = False
    """The last segment is shorter than the others: the run was broken off while it finished, and takes no more rows."""


@dataclass(frozen=True)
class Abandoned:
    """What one rewind set aside: the rows of steps [kept_steps, steps) that were logged before it."""

    folder: Path
    kept_steps: int
    steps: int
    rows: dict[str, int]


def _shown(value: Any) -> str:
    if value is ABSENT:
        return "absent"
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 1] + "…"


def check_same(run_dir: Path, manifest: Mapping[str, Any], identity: Mapping[str, Any], tables: Sequence[Table]) -> None:
    """Raises BadInput with the first field in which a run differs from how it would be started now."""
    now = {"identity": identity, "log": {**manifest["log"], "tables": [describe_table(table) for table in tables]}}
    for name, *found in differing_leaves({name: manifest[name] for name in now}, now):
        stated, value = map(_shown, found)
        remedy = "resume it as it was started, or start a new run"
        raise BadInput(f"{run_dir}: {name.removeprefix('identity.')} is {stated} in the run and {value} now; {remedy}")


def reopen(run_dir: Path, manifest: Mapping[str, Any], tables: Mapping[str, Table], steps: int, head: str | None) -> Place:
    """Check that a run can go on from the checkpoint after its first `steps` steps, when `head` was its head, and rewind it to there.

    The caller holds the run's lock. Raises BadInput (it has ended), DamagedLog (it is not the checkpoint's log), OSError.
    """
    chain = mend_chain(run_dir, "the run cannot be resumed")
    if chain.lines[0]["hash"] != start_hash(manifest):
        raise DamagedLog(f"{run_dir / MANIFEST}: it was changed: {CHAIN} starts from another one; restore it from a copy of the run")
    if chain.end is not None:
        raise BadInput(f"{run_dir}: the run has ended ({chain.end['state']}, {chain.end['steps']} steps): nothing is left to resume")
    if head is not None and head not in [line["hash"] for line in chain.lines]:
        raise DamagedLog(f"{run_dir}: the checkpoint was taken with the log whose head was {head}, and this is not that log")
    return rewind(run_dir, chain, tables, manifest["log"]["segment_steps"], steps)


def mend_chain(run_dir: Path, remedy: str) -> Chain:
    """The chain, cut back to its last whole line when the line being written was torn: its segment is still in the journal.

    Raises DamagedLog, which ends with the remedy, when it was broken in another way.
    """
    try:
        chain = read_chain(run_dir)
    except FileNotFoundError:
        raise DamagedLog(f"{run_dir / CHAIN}: missing; without it no part of the run can be told to belong to it") from None
    if not chain.lines:
        raise DamagedLog(f"{run_dir / CHAIN}: {chain.fault or 'empty'}; nothing of the run can be trusted")
    if not chain.fault:
        return chain
    if chain.end is not None or chain.sealed + 1 not in journal_folders(run_dir):
        raise DamagedLog(f"{run_dir / CHAIN}: {chain.fault}; {remedy}, `sim verify {run_dir}` says what was changed")
    replace_file(run_dir / CHAIN, (run_dir / CHAIN).read_bytes()[: chain.length])
    return read_chain(run_dir)


def mend_unhashed(run_dir: Path) -> None:
    """Cut a torn last line off the index of unhashed parts, so that the next line does not join it."""
    path = run_dir / UNHASHED_INDEX
    if path.exists() and not (text := path.read_bytes()).endswith(b"\n") and text:
        replace_file(path, text[: text.rfind(b"\n") + 1])


def locate(run_dir: Path, chain: Chain, tables: Mapping[str, Table], segment_steps: int, steps: int) -> Place:
    """Where the run's first `steps` steps end. Modifies nothing. Raises DamagedLog when the log has no commit exactly there."""
    if chain.steps > steps:
        raise DamagedLog(
            f"{run_dir}: the log is sealed up to step {chain.steps}, beyond the checkpoint after step {steps}, and training seals only "
            f"behind its checkpoints: `sim seal` began to close the run, or the checkpoint is another's; `sim seal {run_dir}` closes it"
        )
    last = chain.lines[-1]
    step = last["step"] if chain.sealed else -1
    if chain.sealed and last["steps"][1] - last["steps"][0] < segment_steps:
        if steps > chain.steps:
            raise _no_commit(run_dir, chain.steps, steps, "it is sealed to its end there")
        return Place(steps, step, chain.head, (), chain.sealed + 1, chain.steps, complete=True)
    folders = journal_folders(run_dir)
    k, first = chain.sealed + 1, chain.steps
    held: list[tuple[int, int, int]] = []
    while first < steps:
        if k not in folders:
            raise _no_commit(run_dir, first, steps, "the journal ends there")
        part = read_journal(folders[k], tables, until=steps)
        full = part.steps == first + segment_steps
        if part.steps == steps and not full:
            return Place(steps, part.step, chain.head, tuple(held), k, first, part)
        if not full:
            where, _, message = part.damage[0] if part.damage else (None, 0, "")
            name = f"{where}.arrows" if where else COMMITS
            why = f"journal/{folders[k].name}/{name} is damaged: {message}" if message else "no commit ends at the checkpoint"
            raise _no_commit(run_dir, max(first, part.steps), steps, why)
        held.append((k, first, part.steps))
        k, first, step = k + 1, part.steps, part.step
    return Place(steps, step, chain.head, tuple(held), k, first)


def _no_commit(run_dir: Path, found: int, steps: int, why: str) -> DamagedLog:
    return DamagedLog(
        f"{run_dir}: the log holds the run up to step {found} ({why}), but the checkpoint was taken after step {steps}: a part of the "
        f"log is lost or the checkpoint is another run's; `sim verify {run_dir}` says what was changed"
    )


def rewind(run_dir: Path, chain: Chain, tables: Mapping[str, Table], segment_steps: int, steps: int) -> Place:
    """Rewind the log to its first `steps` steps; the caller holds the run's lock. Returns where they end.

    Killed at any moment, it can be repeated. Raises DamagedLog before anything is changed, and OSError (nothing is lost then).
    """
    complete_rewind(run_dir, chain, tables, segment_steps)
    place = locate(run_dir, chain, tables, segment_steps, steps)
    for number, folder in journal_folders(run_dir).items():
        if number <= chain.sealed:
            shutil.rmtree(folder)  # sealed; the writer died before it dropped it
    aside = _set_aside(run_dir, tables, place)
    _cut(run_dir, place, aside)
    _sweep(run_dir)
    return place


def complete_rewind(run_dir: Path, chain: Chain, tables: Mapping[str, Table], segment_steps: int) -> None:
    """Bring a rewind that was broken off to its end, if there is one. Raises DamagedLog and OSError."""
    for found in read_abandoned(run_dir):
        if (found.folder / PENDING).exists():
            _cut(run_dir, locate(run_dir, chain, tables, segment_steps, found.kept_steps), found.folder)


def read_abandoned(run_dir: Path) -> tuple[Abandoned, ...]:
    """What rewinds have set aside, in their order. It lies outside the chain: what cannot be read is passed over."""
    found = []
    for folder in _numbered(run_dir / ABANDONED):
        try:
            facts = parse_json((folder / REWIND).read_bytes())
            rows = {str(name): int(count) for name, count in facts["rows"].items()}
            found.append(Abandoned(folder, int(facts["kept_steps"]), int(facts["steps"]), rows))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue
    return tuple(found)


def describe_abandoned(abandoned: Sequence[Abandoned]) -> str:
    """What resumes have set aside, in words; empty when nothing."""
    parts = [
        f"{sum(found.rows.values()):,} rows of {counted(found.steps - found.kept_steps, 'step')} after step {found.kept_steps:,} in "
        f"{ABANDONED}/{found.folder.name}"
        for found in abandoned
    ]
    return f"set aside when the run was resumed, and no part of it: {', '.join(parts)}" if parts else ""


def _numbered(root: Path) -> list[Path]:
    folders = [entry for entry in root.iterdir() if re.fullmatch(r"[0-9]{1,18}", entry.name)] if root.is_dir() else []
    return sorted(folders, key=lambda folder: int(folder.name))


def _set_aside(run_dir: Path, tables: Mapping[str, Table], place: Place) -> Path | None:
    """Announce the rewind in a new `abandoned/<n>/`, with a copy of the journal of which a part stays. None: nothing was logged later."""
    rows = dict.fromkeys(tables, 0)
    last, damaged = place.steps, False
    folders = {number: folder for number, folder in journal_folders(run_dir).items() if number >= place.k}
    for number, folder in folders.items():
        whole = read_journal(folder, tables)
        kept = place.part.tables if place.part and number == place.k else {}
        for name, table in whole.tables.items():
            rows[name] += table.num_rows - (kept[name].num_rows if name in kept else 0)
        last, damaged = max(last, whole.steps), damaged or bool(whole.damage)
    if last == place.steps and not damaged and not any(rows.values()):
        return None
    root = run_dir / ABANDONED
    root.mkdir(exist_ok=True)
    number = max([0, *(int(folder.name) for folder in _numbered(root))]) + 1
    aside, folder = root / f"{number}.tmp", root / str(number)
    shutil.rmtree(aside, ignore_errors=True)
    (aside / JOURNAL).mkdir(parents=True)
    if place.part:
        copy = aside / JOURNAL / folders[place.k].name
        shutil.copytree(folders[place.k], copy)
        sync_journal(copy)
    (aside / PENDING).touch()
    facts = {"kept_steps": place.steps, "steps": last, "rows": {name: count for name, count in rows.items() if count}}
    replace_file(aside / REWIND, pretty_json(facts))
    os.rename(aside, folder)
    for path in (root, run_dir):
        sync_folder(path)
    return folder


def _cut(run_dir: Path, place: Place, aside: Path | None) -> None:
    """Leave the log's files as they were after `place.steps` steps: later journals first, and the commits before what they count."""
    later = [folder for number, folder in journal_folders(run_dir).items() if number > place.k or (number == place.k and not place.part)]
    for folder in reversed(later):
        if aside is None:
            shutil.rmtree(folder)
        else:
            os.rename(folder, aside / JOURNAL / folder.name)
    if later:
        sync_folder(run_dir / JOURNAL)
    if place.part:
        os.truncate(place.part.folder / COMMITS, place.part.commits_length)
        for stream in place.part.folder.glob("*.arrows"):
            length = place.part.lengths.get(stream.stem, 0)
            os.truncate(stream, length) if length else stream.unlink()
        sync_journal(place.part.folder)
    if aside is not None:
        sync_folder(aside / JOURNAL)
        (aside / PENDING).unlink(missing_ok=True)
        sync_folder(aside)


def _sweep(run_dir: Path) -> None:
    """Clear what the writer that died left half done."""
    mend_unhashed(run_dir)
    folders = (run_dir / SEGMENTS, run_dir / UNHASHED, run_dir / ABANDONED)
    for leftover in [path for folder in folders for path in folder.glob("*.tmp")] + list(run_dir.glob("*.json*.tmp")):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    for summary in run_dir.glob("*_summary.json"):  # written, but the line that proves it was not
        (run_dir / ABANDONED).mkdir(exist_ok=True)
        os.rename(summary, run_dir / ABANDONED / summary.name)
