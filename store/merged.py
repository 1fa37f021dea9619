"""Where parts lie: each in a file of its own, or, after a compaction, as a range of rows of its day's file.

    merged/<sha256 of the day's folder>.json   the day's file, and the parts in it, in their order

Catalogue records stay as their ingests wrote them: a part's path is its name, and a record here says that its rows stand in another file.
So one rename moves all parts of a day, whatever sources they are of, and no source's identity, spans, quality or hashes change by it.

Readers hold a shared lock on the folder `catalog` while they look at files; files that are no longer named are removed only by someone who
has that lock for himself. A reader that began before a compaction so ends with the files that it began with.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lob.errors import BadInput, first_line
from store.catalog_record import Part, SourceRecord, is_part_path

MERGED = "merged"
RETIRED = "retired.json"
"""In a folder of `staging/`: files of which those that nothing names are to be removed."""
_ATTEMPTS = 5


@dataclass(frozen=True)
class Merged:
    """A day's file: its path, its bytes, and (path of the part in the catalogue, rows) of each part in it, in their order."""

    path: str
    bytes: int
    members: tuple[tuple[str, int], ...]

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.members)


@dataclass(frozen=True)
class Place:
    """Rows [first, first + rows) of the file at `path` (relative to the store), which holds `file_rows` rows and `file_bytes` bytes."""

    path: str
    first: int
    rows: int
    file_rows: int
    file_bytes: int


@dataclass(frozen=True)
class Held:
    """What a store holds at one moment: its records, and where each of their parts lies ({path of the part: place})."""

    records: list[SourceRecord]
    places: dict[str, Place]

    def of(self, part: Part) -> Place:
        return self.places.get(part.path) or Place(part.path, 0, part.rows, part.rows, part.bytes)


def merged_file(root: Path, folder: str) -> Path:
    """The record of what is merged in a day's folder (relative to the store)."""
    return root / MERGED / f"{hashlib.sha256(folder.encode()).hexdigest()}.json"


def folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def to_json(merged: Merged) -> str:
    members = [list(member) for member in merged.members]
    return json.dumps({"path": merged.path, "bytes": merged.bytes, "members": members}, indent=1) + "\n"


def read_merged(path: Path) -> Merged | None:
    """None: it is not there (any more). Raises BadInput for one that is damaged."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        members = tuple((part, rows) for part, rows in fields["members"])
        merged = Merged(fields["path"], fields["bytes"], members)
        _check(merged, path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadInput(f"{path}: the record of merged parts cannot be read ({error.strerror}): make it readable") from None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        fault = first_line(error)[:120]
        raise BadInput(f"{path}: the record of merged parts is damaged ({fault}): restore it or rebuild the store") from None
    return merged


def _check(merged: Merged, path: Path) -> None:
    """Raises ValueError for what no compaction writes."""
    names = [merged.path, *(part for part, _ in merged.members)]
    if not all(map(is_part_path, names)) or len(set(names)) < len(names):
        raise ValueError("a path is none of a part's")
    folder = folder_of(merged.path)
    if {folder_of(name) for name in names} != {folder} or path.stem != hashlib.sha256(folder.encode()).hexdigest():
        raise ValueError("it is another day's")
    if not all(type(count) is int and 0 <= count < 2**63 for count in (merged.bytes, *(rows for _, rows in merged.members))):
        raise ValueError("bytes or rows are no counts")


def read_all_merged(root: Path) -> list[Merged]:
    found = (read_merged(path) for path in sorted((root / MERGED).glob("*.json")))
    return [merged for merged in found if merged is not None]


def places_of(merged: list[Merged]) -> dict[str, Place]:
    """{path of a part in the catalogue: where its rows stand} of every part that is merged."""
    places = {}
    for one in merged:
        at = 0
        for part, rows in one.members:
            places[part] = Place(one.path, at, rows, one.rows, one.bytes)
            at += rows
    return places


def read_held(root: Path, read_records: Callable[[Path], list[SourceRecord]]) -> Held:
    """What the store holds now. Raises BadInput.

    The merged days are read before the records: of a source that is taken out meanwhile, its day's file is split before its record goes,
    so a part that no record names says that the days are old, and all is read again.
    """
    lost = ""
    for _ in range(_ATTEMPTS):
        places = places_of(read_all_merged(root))
        records = read_records(root)
        named = {part.path: part.rows for record in records for part in record.parts}
        lost = next((part for part, place in places.items() if named.get(part) != place.rows), "")
        if not lost:
            return Held(records, places)
    raise BadInput(
        f"{root / places[lost].path}: holds rows of {lost.rpartition('/')[2]}, which no record of the catalogue names: "
        f"`sim store compact --store {root}` takes them out"
    )


def hold_files(root: Path) -> Callable[[], None]:
    """Keeps the files that are named now, until what is returned is called. Takes no lock where the file system has none."""
    try:
        folder = os.open(root / "catalog", os.O_RDONLY)
    except OSError:
        return lambda: None
    with suppress(OSError):
        fcntl.flock(folder, fcntl.LOCK_SH)
    return lambda: os.close(folder)


@contextmanager
def reading(root: Path) -> Iterator[None]:
    """`hold_files` for a block."""
    release = hold_files(root)
    try:
        yield
    finally:
        release()


def sweep(root: Path, aside: Path, is_named: Callable[[str], bool]) -> bool:
    """Removes the files that the staging folder `aside` lists and nothing names any more, and the folder; call it under the store's lock.
    False: someone reads, and they stay for the next."""
    try:
        paths = json.loads((aside / RETIRED).read_text(encoding="utf-8"))
        paths = [path for path in paths if is_part_path(path)]
    except (OSError, ValueError, TypeError, RecursionError):
        paths = []
    folder = os.open(root / "catalog", os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for path in paths:
            if not is_named(path):
                (root / path).unlink(missing_ok=True)
    except BlockingIOError:
        return False
    finally:
        os.close(folder)
    shutil.rmtree(aside, ignore_errors=True)
    return True
