"""The market store's catalogue: which parts there are. A part exists for readers when, and only when, a catalogue record names it.

    store.json            format version
    catalog/<sha256>.json one record per ingested source file: its parts, spans and quality
    market/…              Parquet parts
    merged/…              which parts lie together in one file (`store.merged`)
    staging/…             ingests and removals under way; what a killed one left is removed by the next

A record appears by one rename after every part lies durably in its place, so a kill at any moment leaves all of a file or nothing.
"""

import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from lob.errors import BadInput, NotFound, StaleCache, TapeproofError, first_line
from lob.units import format_time_ns
from store.catalog_record import Part, SourceRecord, is_part_path, is_source_hash, record_from_json, record_to_json
from store.merged import RETIRED, places_of, read_all_merged, sweep

__all__ = ["Part", "SourceRecord"]

STORE_VERSION = 1
_FORMAT = "tapeproof market store"
_FOLDERS = ("staging", "catalog", "market")
_ATTEMPTS = 100


def check_store(store: str | os.PathLike) -> Path:
    """The folder of an existing store. Raises NotFound when there is none, StaleCache when it is of a newer version."""
    root = Path(store)
    try:
        text = (root / "store.json").read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"{root}: no market store is here; `sim ingest FILE --store {root}` makes one") from None
    except OSError as error:
        raise BadInput(f"{root}: the store cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        text = ""
    try:
        head = json.loads(text)
        version = head["version"]
        known = head["format"] == _FORMAT and isinstance(version, int)
    except (ValueError, TypeError, KeyError, RecursionError):
        known = False
    if not known:
        raise BadInput(f"{root / 'store.json'}: is not the head of a market store: choose another folder")
    if version > STORE_VERSION:
        raise StaleCache(f"{root}: a store of version {version}, but this program reads up to {STORE_VERSION}: use a newer program")
    return root


def ensure_store(store: str | os.PathLike) -> tuple[Path, bool]:
    """(folder of the store, whether it was made just now). Raises BadInput when it cannot be written."""
    root = Path(store)
    for attempt in range(_ATTEMPTS):
        try:
            is_new = _make_head(root)
            check_store(root)
            for folder in _FOLDERS:
                (root / folder).mkdir(exist_ok=True)
            return root, is_new
        except (FileNotFoundError, NotFound) as error:
            # Another ingest, from which nothing came, has just taken the empty store away.
            if attempt == _ATTEMPTS - 1:
                raise store_fault(root, error) if isinstance(error, OSError) else error from None
        except OSError as error:
            raise store_fault(root, error) from None
    raise AssertionError("the last attempt returns or raises")


def _make_head(root: Path) -> bool:
    """Writes `store.json` where there is none; never over one, whose lock another may hold. Returns whether it was made here."""
    head = root / "store.json"
    if head.exists():
        return False
    root.mkdir(parents=True, exist_ok=True)
    aside = root / f".store.json.{os.getpid()}.{os.urandom(8).hex()}"
    write_durably(aside, json.dumps({"format": _FORMAT, "version": STORE_VERSION}) + "\n")
    try:
        os.link(aside, head)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        os.replace(aside, head)  # a file system without links
    finally:
        aside.unlink(missing_ok=True)
    sync_folder(root)
    return True


def remove_empty_store(root: Path) -> None:
    """Undoes `ensure_store` when nothing came of it; a store that another ingest has begun to use stays."""
    try:
        with store_lock(root):
            if any(any((root / folder).iterdir()) for folder in _FOLDERS):
                return
            for folder in _FOLDERS:
                (root / folder).rmdir()
            (root / "store.json").unlink()
            root.rmdir()
    except OSError:
        return


def store_fault(root: Path, error: OSError) -> TapeproofError:
    """One line for an operating-system error while writing the store."""
    remedy = "free some space and run again" if error.errno == 28 else "make the folder writable or choose another"
    return BadInput(f"{root}: the store cannot be written: {error.strerror or error}; {remedy}; nothing was changed")


def read_records(root: Path) -> list[SourceRecord]:
    """Every catalogue record, by source hash. Raises BadInput for one that is damaged."""
    try:
        with os.scandir(root / "catalog") as entries:
            names = sorted(entry.name for entry in entries if entry.name.endswith(".json") and not entry.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = (_read_record(f"{root}/catalog/{name}") for name in names)
    return [record for record in found if record is not None]


def find_record(root: Path, sha256: str) -> SourceRecord | None:
    """The record of a source; None where there is none. Raises BadInput when it is damaged."""
    return _read_record(f"{root}/catalog/{sha256}.json")


_SETTLED_NS = 2 * 10**9
"""A file that was last changed longer ago than this, and whose times and size are still the same, has not been changed since: a file system
may stamp changes within some milliseconds alike."""
_MOST_PARSED = 20_000
_parsed: dict[str, tuple[tuple[int, int, int], SourceRecord]] = {}
"""Records as they were read, under the stamps of their files: an ingest looks at all of them twice, and of five thousand files that are
ingested one after another each would parse all before it."""


def _read_record(file: str) -> SourceRecord | None:
    """None: it is not there (any more)."""
    try:
        stat = os.stat(file)
    except FileNotFoundError:
        return None
    except OSError:
        return _parse_record(Path(file))
    stamp = (stat.st_ino, stat.st_size, stat.st_ctime_ns)
    held = _parsed.get(file)
    if held is not None and held[0] == stamp:
        return held[1]
    record = _parse_record(Path(file))
    if record is not None and time.time_ns() - stat.st_ctime_ns > _SETTLED_NS:
        if len(_parsed) >= _MOST_PARSED:
            _parsed.clear()
        _parsed[file] = (stamp, record)
    return record


def _parse_record(path: Path) -> SourceRecord | None:
    """None: it is not there (any more). Raises BadInput for one that is damaged."""
    try:
        record = record_from_json(path.read_text(encoding="utf-8"))
        if record.sha256 != path.stem:
            raise ValueError("it is another source's")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadInput(f"{path}: the catalogue record cannot be read ({error.strerror}): make it readable, or remove it") from None
    except ValueError as error:
        fault = first_line(error)[:120]
        raise BadInput(f"{path}: the catalogue record is damaged ({fault}): remove it and ingest its source again") from None
    return record


def refuse_overlap(records: list[SourceRecord], name: str, schema: str, spans: list[tuple[str, int, int]]) -> None:
    """Raises BadInput when a source other than this one covers part of the same instrument, schema and span."""
    for record in records:
        if record.schema != schema:
            continue
        held = {instrument: (start, end) for instrument, start, end in record.spans}
        for instrument, start, end in spans:
            if instrument in held and start <= held[instrument][1] and end >= held[instrument][0]:
                first, last = format_time_ns(max(start, held[instrument][0])), format_time_ns(min(end, held[instrument][1]))
                raise BadInput(
                    f"{name}: {instrument} {schema} from {first} to {last} is in the store already, from {record.name} "
                    f"(sha256 {record.sha256[:12]}): two files over one span cannot both hold; use another store or another span"
                )


@contextmanager
def store_lock(root: Path) -> Iterator[None]:
    """Held for the moments in which the store changes; others wait."""
    while True:
        with open(root / "store.json", "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # Who held it before may have taken the empty store away, or another have made it anew: then this lock locks nothing.
            if not os.path.samestat(os.fstat(file.fileno()), os.stat(root / "store.json")):
                continue
            yield
            return


@contextmanager
def staging(root: Path) -> Iterator[Path]:
    """A folder of this ingest alone, gone afterwards. What a killed ingest left is removed first.

    A store that another ingest, from which nothing came, has taken away meanwhile is made again.
    """
    with _lock_of_made(root):
        remove_leftovers(root)
        folder = root / "staging" / f"{os.getpid()}.{os.urandom(8).hex()}"
        folder.mkdir()
        # The lock says that the ingest lives: it is the kernel's, so it goes with the process.
        alive = open(folder / "lock", "wb")  # noqa: SIM115
        fcntl.flock(alive, fcntl.LOCK_EX)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        alive.close()


@contextmanager
def _lock_of_made(root: Path) -> Iterator[None]:
    """`store_lock`, of a store that is made where it is not."""
    with ExitStack() as stack:
        while True:
            ensure_store(root)
            try:
                stack.enter_context(store_lock(root))
            except FileNotFoundError:
                continue
            if all((root / folder).is_dir() for folder in _FOLDERS):
                break
            stack.close()
        yield


def clean(root: Path) -> None:
    """`remove_leftovers` for a store that will not be written to otherwise: where it cannot be written, they stay."""
    try:
        with store_lock(root):
            remove_leftovers(root)
    except OSError:
        return


def remove_leftovers(root: Path) -> None:
    """Removes what killed ingests left, staging folders and parts moved into place without a record, and what compactions had to leave to
    their readers. Call it under the lock."""
    named: set[str] | None = None
    for folder in sorted((root / "staging").iterdir()):
        lock = folder / "lock"
        if lock.exists():
            try:
                with open(lock, "rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, FileNotFoundError):
                continue  # it lives, or has just ended and clears up behind itself
        if (folder / RETIRED).exists():
            if named is None:
                named = named_files(root)
            sweep(root, folder, named.__contains__)
            continue
        sha256, parts = _read_plan(folder / "plan.json")
        if parts and not (root / "catalog" / f"{sha256}.json").exists():
            remove_parts(root, parts)
        shutil.rmtree(folder, ignore_errors=True)


def named_files(root: Path) -> set[str]:
    """The files in which the parts of the store lie, and the parts' own."""
    merged = places_of(read_all_merged(root))
    own = {part.path for record in read_records(root) for part in record.parts if part.path not in merged}
    return own | {place.path for place in merged.values()}


def _read_plan(path: Path) -> tuple[str, list[str]]:
    """(source, its parts) that a killed ingest or removal was moving; no part where there is no plan, or none that an ingest writes: parts
    that no record names are seen by nobody."""
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
        sha256, parts = plan["sha256"], plan["parts"]
        return (sha256, parts) if is_source_hash(sha256) and all(map(is_part_path, parts)) else ("", [])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "", []


def remove_parts(root: Path, paths: list[str]) -> None:
    """Removes parts and the folders that they leave empty."""
    for path in paths:
        part = root / path
        part.unlink(missing_ok=True)
        for folder in list(part.parents)[:3]:  # date=, instrument=, schema=
            try:
                folder.rmdir()
            except OSError:
                break


def commit(root: Path, folder: Path, record: SourceRecord, staged: dict[str, Path]) -> SourceRecord | None:
    """Moves staged parts ({final relative path: staged file}) into place, then makes the record visible.

    Returns the record that was there already when another ingest of the same file came first, else None. Raises BadInput on an overlap.
    """
    with store_lock(root):
        if (earlier := find_record(root, record.sha256)) is not None:
            return earlier
        refuse_overlap(read_records(root), record.name, record.schema, list(record.spans))
        write_durably(folder / "plan.json", json.dumps({"sha256": record.sha256, "parts": list(staged)}))
        try:
            folders = set()
            for path, file in staged.items():
                target = root / path
                target.parent.mkdir(parents=True, exist_ok=True)
                os.rename(file, target)
                folders.update(list(target.parents)[:4])
            for changed in sorted(folders):
                sync_folder(changed)
            write_durably(root / "catalog" / f"{record.sha256}.json", record_to_json(record), aside=folder / "record.json")
        except BaseException:
            (root / "catalog" / f"{record.sha256}.json").unlink(missing_ok=True)
            remove_parts(root, list(staged))
            raise
    return None


def write_durably(path: Path, text: str, aside: Path | None = None) -> None:
    """Writes aside, fsyncs, renames, fsyncs the folder."""
    aside = aside or path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(8).hex()}")
    try:
        with open(aside, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
