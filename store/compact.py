"""Compaction: all parts of an instrument's day, of whatever source files, into one file, so that thousands of small files are not thousands
of readers. And the way back, for a source that is taken out.

Catalogue records are not touched: `store.merged` says where a part's rows stand. Each part is read, held against its content hash and
written into the day's file in the order in which rows are read, so every data hash stays what it was.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lob.errors import BadInput, NotFound
from store.catalog import (
    check_store,
    clean,
    read_records,
    remove_parts,
    staging,
    store_fault,
    store_lock,
    sync_folder,
    write_durably,
)
from store.catalog_record import Part, SourceRecord
from store.hashes import canonical_hash
from store.market_read import in_order
from store.market_schema import (
    ROW_GROUP_ROWS,
    arrow_schema,
    is_nullable,
    parquet_options,
    part_folder,
    store_columns,
    to_arrow,
)
from store.merged import MERGED, RETIRED, Merged, Place, folder_of, merged_file, places_of, read_merged, reading, sweep, to_json
from store.part_read import choose, damaged, read_chosen

_ATTEMPTS = 5
_Columns = dict[str, np.ndarray]


@dataclass(frozen=True)
class CompactedDay:
    """A day whose parts lay in `files_before` files and lie in one. `bytes_before` and `bytes` are of these files."""

    schema: str
    instrument: str
    date: str
    rows: int
    files_before: int
    bytes_before: int
    bytes: int


@dataclass(frozen=True)
class _Day:
    """Where the parts of a day's folder lie: its parts in the order in which their rows are read, and what is merged."""

    folder: str
    parts: tuple[Part, ...]
    merged: Merged | None

    @property
    def places(self) -> dict[str, Place]:
        own = {part.path: Place(part.path, 0, part.rows, part.rows, part.bytes) for part in self.parts}
        moved = places_of([self.merged] if self.merged else [])
        return own | {path: place for path, place in moved.items() if path in own}

    @property
    def files(self) -> dict[str, int]:
        """{path: bytes} of the files that are there now, also one of which no row is named any more."""
        found = {place.path: place.file_bytes for place in self.places.values()}
        return found | ({self.merged.path: self.merged.bytes} if self.merged else {})

    @property
    def is_compact(self) -> bool:
        members = tuple((part.path, part.rows) for part in self.parts)
        return len(members) < 2 if self.merged is None else len(members) > 1 and self.merged.members == members


class _Catalogue:
    """The store's parts by day, read anew when the folder of records changes: five thousand records take a second."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.stamp: object = None
        self.parts: dict[str, list[Part]] = {}

    def day(self, folder: str) -> _Day:
        self._refresh()
        return _Day(folder, tuple(self.parts.get(folder, ())), read_merged(merged_file(self.root, folder)))

    def folders(self, instrument: str | None) -> list[str]:
        self._refresh()
        return [folder for folder, parts in self.parts.items() if instrument in (None, parts[0].instrument)]

    def instruments(self) -> list[str]:
        return sorted({parts[0].instrument for parts in self.parts.values()})

    def _refresh(self) -> None:
        with os.scandir(self.root / "catalog") as entries:
            stamp = sorted((entry.name, entry.inode(), entry.stat().st_mtime_ns) for entry in entries)
        if stamp != self.stamp:
            self.parts = {}
            for part in in_order(read_records(self.root)):
                self.parts.setdefault(part_folder(part.schema, part.instrument, part.date), []).append(part)
            self.stamp = stamp


def compact(store: str | os.PathLike, instrument: str | None = None) -> list[CompactedDay]:
    """Merges the parts of each day of each schema into one file; of `instrument` alone where it is given. Returns the days that were
    merged: none when all were before.

    Each day is one rename, so a kill at any moment leaves days merged or as they were, and the next compaction, ingest or removal removes
    what else is left. Raises NotFound (no store, no such instrument), BadInput (a part is damaged: its day stays as it was; or the store
    cannot be written), StaleCache.
    """
    root = check_store(store)
    try:
        (root / "staging").mkdir(exist_ok=True)
        clean(root)
        catalogue = _Catalogue(root)
        folders = catalogue.folders(instrument)
        if instrument is not None and not folders:
            held = ", ".join(catalogue.instruments()[:20]) or "nothing yet"
            raise NotFound(f"{root}: no instrument {instrument}; the store holds {held}")
        done = [_compact_day(catalogue, folder) for folder in folders]
        _drop_empty(catalogue)
    except OSError as error:
        raise store_fault(root, error) from None
    return [day for day in done if day is not None]


def _compact_day(catalogue: _Catalogue, folder: str) -> CompactedDay | None:
    for _ in range(_ATTEMPTS):
        day = catalogue.day(folder)
        if day.is_compact:
            return None
        merged = _lay_out(catalogue, day, [list(day.parts)])
        if merged is not None:
            first, before, after = day.parts[0], day.files, merged.files
            rows = sum(part.rows for part in day.parts)
            return CompactedDay(first.schema, first.instrument, first.date, rows, len(before), sum(before.values()), sum(after.values()))
    raise BadInput(f"{catalogue.root / folder}: kept changing while it was compacted: run again when no ingest is under way")


def _drop_empty(catalogue: _Catalogue) -> None:
    """Removes merged days of which no record names a part any more: their records were removed by hand."""
    for path in sorted((catalogue.root / MERGED).glob("*.json")):
        merged = read_merged(path)
        if merged is not None and not (day := catalogue.day(folder_of(merged.path))).parts:
            _lay_out(catalogue, day, [])


def split_off(root: Path, record: SourceRecord) -> None:
    """Gives each part of a source a file of its own again, and leaves those of other sources that lay with it merged. Raises BadInput."""
    catalogue = _Catalogue(root)
    own = {part.path for part in record.parts}
    for folder in sorted({folder_of(part.path) for part in record.parts}):
        for _ in range(_ATTEMPTS):
            day = catalogue.day(folder)
            if day.merged is None or not any(path in own for path, _ in day.merged.members):
                break
            members = {path for path, _ in day.merged.members}
            rest = [part for part in day.parts if part.path in members and part.path not in own]
            alone = [[part] for part in day.parts if part.path not in members or part.path in own]
            _lay_out(catalogue, day, [rest, *alone] if rest else alone)


def is_split_off(root: Path, record: SourceRecord) -> bool:
    """Whether every part of a source lies in a file of its own."""
    own = {part.path for part in record.parts}
    days = (read_merged(merged_file(root, folder)) for folder in {folder_of(path) for path in own})
    return not any(path in own for day in days if day is not None for path, _ in day.members)


def _lay_out(catalogue: _Catalogue, day: _Day, groups: Sequence[Sequence[Part]]) -> _Day | None:
    """Puts the parts of each group into one file; a part alone into its own. None: the day was changed meanwhile, and nothing was done.

    At most one group has several parts.
    """
    root, places = catalogue.root, day.places
    merged: Merged | None = None
    staged: dict[str, Path] = {}
    with staging(root) as aside:
        try:
            with reading(root):
                for group in groups:
                    if len(group) == 1 and places[group[0].path].path == group[0].path:
                        continue
                    path = group[0].path if len(group) == 1 else f"{day.folder}/{_name_of(group)}"
                    staged[path] = aside / path.rpartition("/")[2]
                    _write(root, group, places, staged[path])
                    if len(group) > 1:
                        members = tuple((part.path, part.rows) for part in group)
                        merged = Merged(path, staged[path].stat().st_size, members)
        except BadInput:
            if catalogue.day(day.folder) != day:  # a source was taken out: its file is gone
                return None
            raise
        after = _Day(day.folder, day.parts, merged)
        with store_lock(root):
            if catalogue.day(day.folder) != day:
                return None
            _switch(root, day, after, staged)
    return after


def _name_of(parts: Sequence[Part]) -> str:
    listed = "\n".join(f"{part.path} {part.content_hash}" for part in parts)
    return f"day-{hashlib.sha256(listed.encode()).hexdigest()[:16]}.parquet"


def _switch(root: Path, before: _Day, after: _Day, staged: dict[str, Path]) -> None:
    """Moves staged files into place and names them by one rename; under the store's lock. What is not named by then, or not any more, is
    listed before the first step: a kill between any two leaves the list to the next `remove_leftovers`."""
    retired = root / "staging" / f"{os.getpid()}.{os.urandom(8).hex()}"
    retired.mkdir()
    write_durably(retired / RETIRED, json.dumps(sorted({*before.files, *staged})))
    for path, file in staged.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        os.rename(file, root / path)
    if staged:
        sync_folder(root / after.folder)
    record = merged_file(root, after.folder)
    if after.merged is not None:
        record.parent.mkdir(exist_ok=True)
        sync_folder(root)
        write_durably(record, to_json(after.merged), aside=retired / "record.json")
    else:
        record.unlink(missing_ok=True)
        sync_folder(record.parent)
    sweep(root, retired, {place.path for place in after.places.values()}.__contains__)
    if not after.parts:
        remove_parts(root, [f"{after.folder}/none.parquet"])  # the folders that nothing lies in any more


def _write(root: Path, parts: Sequence[Part], places: dict[str, Place], target: Path) -> None:
    """The rows of parts, one after another, into one Parquet file, durably. Raises BadInput when a part is not what was put in."""
    import pyarrow.parquet as pq

    schema = parts[0].schema
    with open(target, "wb") as sink:
        with pq.ParquetWriter(sink, arrow_schema(schema), **parquet_options(schema)) as writer:
            for columns, undefined in _row_groups(_part_columns(root, part, places[part.path]) for part in parts):
                writer.write_table(to_arrow(columns, undefined, schema), row_group_size=ROW_GROUP_ROWS)
        sink.flush()
        os.fsync(sink.fileno())


def _row_groups(parts: Iterator[tuple[_Columns, _Columns]]) -> Iterator[tuple[_Columns, _Columns]]:
    """(columns, masks) of several parts cut anew into whole row groups, the last one shorter."""
    waiting: list[tuple[_Columns, _Columns]] = []
    rows = 0
    for part in parts:
        waiting.append(part)
        rows += len(next(iter(part[0].values())))
        if rows >= ROW_GROUP_ROWS:
            columns, undefined = (_join([piece[i] for piece in waiting]) for i in (0, 1))
            whole = rows // ROW_GROUP_ROWS * ROW_GROUP_ROWS
            for first in range(0, whole, ROW_GROUP_ROWS):
                yield _cut(columns, first, first + ROW_GROUP_ROWS), _cut(undefined, first, first + ROW_GROUP_ROWS)
            waiting, rows = [(_cut(columns, whole, rows), _cut(undefined, whole, rows))], rows - whole
    if rows:
        yield _join([piece[0] for piece in waiting]), _join([piece[1] for piece in waiting])


def _join(pieces: list[_Columns]) -> _Columns:
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def _cut(columns: _Columns, first: int, end: int) -> _Columns:
    return {name: values[first:end] for name, values in columns.items()}


def _part_columns(root: Path, part: Part, place: Place) -> tuple[_Columns, _Columns]:
    """(columns, masks of undefined rows) of one part, held against its content hash."""
    known = store_columns(part.schema)
    columns = {name: np.empty(part.rows, dtype) for name, dtype in known.items()}
    undefined = {name: np.zeros(part.rows, bool) for name in known if is_nullable(name)}
    at = 0
    for batch in choose(root / place.path, part.schema, place.file_rows, place.first, place.first + place.rows, None):
        read_chosen(batch, part.schema, None, columns, undefined, at)
        at += batch.rows
    if at != part.rows or canonical_hash(columns, undefined) != part.content_hash:
        raise damaged(root / place.path, ValueError(f"its rows are not those of {part.path.rpartition('/')[2]} that were put in"))
    return columns, undefined
