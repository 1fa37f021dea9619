"""Taking a source file out of the market store, wholly or not at all."""

import json
import os
import shutil
from pathlib import Path

from lob.errors import BadInput, NotFound, printable
from store.catalog import (
    SourceRecord,
    check_store,
    read_records,
    remove_leftovers,
    remove_parts,
    store_fault,
    store_lock,
    sync_folder,
    write_durably,
)
from store.compact import is_split_off, split_off


def remove_source(store: str | os.PathLike, sha256: str | None = None, name: str | None = None) -> SourceRecord:
    """Takes one source file out of the store, by the first digits of its SHA-256 or by its name. Returns the record that was removed.

    Where it was compacted, its parts first get files of their own again, and the rest of each day another file (`store.compact`). Then the
    record goes, by one rename into a staging folder that names its parts: a kill before the rename leaves all of it, and what a kill after
    it leaves is no longer seen and is removed by the next ingest or removal. Raises NotFound (none fits), BadInput (several fit, or the
    store cannot be written), StaleCache.
    """
    root = check_store(store)
    try:
        (root / "staging").mkdir(exist_ok=True)
        record = _only_record(root, sha256, name)
        split_off(root, record)
        with store_lock(root):
            remove_leftovers(root)
            record = _only_record(root, sha256, name)
            if not is_split_off(root, record):
                raise BadInput(f"{root}: a compaction is under way: wait until it has ended, and run again; nothing was changed")
            aside = root / "staging" / f"{os.getpid()}.{os.urandom(8).hex()}"
            aside.mkdir()
            paths = [part.path for part in record.parts]
            write_durably(aside / "plan.json", json.dumps({"sha256": record.sha256, "parts": paths}))
            os.rename(root / "catalog" / f"{record.sha256}.json", aside / "record.json")
            sync_folder(root / "catalog")
            remove_parts(root, paths)
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise store_fault(root, error) from None
    return record


def _only_record(root: Path, sha256: str | None, name: str | None) -> SourceRecord:
    records = read_records(root)
    if sha256 is not None:
        asked, fitting = f"SHA-256 {sha256}…", [record for record in records if record.sha256.startswith(sha256.lower())]
    else:
        asked, fitting = f"name {name}", [record for record in records if record.name == printable(name or "")]
    named = ", ".join(f"{record.name} ({record.sha256[:12]})" for record in (fitting or records)[:20])
    if not fitting:
        raise NotFound(f"{root}: no source file of {asked}; the store holds {named or 'nothing yet'}")
    if len(fitting) > 1:
        raise BadInput(f"{root}: {len(fitting)} source files of {asked}: {named}: name one by its SHA-256")
    return fitting[0]
