"""The use case behind `sim ingest` of several files, folders and globs: which sources they name, and putting each of them in.

A source is a file, or the two files of a LOBSTER pair. Each goes in wholly or not at all (`sim.ingest`), whatever becomes of the others.
"""

import glob
import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lob.errors import BadInput, NotFound, TapeproofError
from sim.ingest import ingest

SUFFIX = re.compile(r".*\.(dbn|dbz|csv|tsv)(\.zst|\.gz)?", re.IGNORECASE)
"""What of a folder's files is taken for market data; a file that is named itself may be called anything."""
AT_ONCE = 2
"""Sources that are read at a time. Eight days of 300,000 books on two cores: 7.7 s one by one, 5.7 s two at a time, 5.2 s four at a time;
each holds a source's batches in memory."""

_MESSAGE = re.compile(r"(.*)message(.*)", re.IGNORECASE)
_BOOK = re.compile(r".*orderbook.*", re.IGNORECASE)


@dataclass(frozen=True)
class Found:
    """One source: `path`, and `also` the other file of a LOBSTER pair. `refusal`: why it cannot go in, where its name says so."""

    path: Path
    also: Path | None = None
    refusal: str | None = None


def find_sources(named: Sequence[str | os.PathLike], store: str | os.PathLike | None = None) -> tuple[list[Found], list[Path]]:
    """(the sources that files, folders and globs name, each once and in their order; files of the folders that are no market data).

    A folder is searched wholly, hidden files and folders and what lies in `store` aside. The files of a LOBSTER pair stand together by
    their names; two files that are named alone, of which one is a LOBSTER message file, are a pair however they are called. Raises NotFound
    for a glob or a folder that holds nothing.
    """
    paths: list[Path] = []
    passed: list[Path] = []
    own = None if store is None else Path(store).resolve()
    for given in named:
        one, path = os.fspath(given), Path(given)
        if path.is_dir():
            inside = [file for file in sorted(path.rglob("*")) if file.is_file() and not _is_hidden(file.relative_to(path))]
            inside = [file for file in inside if own is None or own not in file.resolve().parents]
            chosen = [file for file in inside if SUFFIX.fullmatch(file.name)]
            passed += [file for file in inside if not SUFFIX.fullmatch(file.name)]
            if not chosen:
                raise NotFound(f"{path}: this folder holds no file whose name ends like .dbn, .dbn.zst, .csv or .csv.gz: name the files")
            paths += chosen
        elif not path.exists() and glob.has_magic(one):
            matches = [Path(match) for match in sorted(glob.glob(one, recursive=True)) if Path(match).is_file()]
            if not matches:
                raise NotFound(f"{one}: no file fits this pattern")
            paths += matches
        else:
            paths.append(path)
    return _paired(list(dict.fromkeys(paths)), alone=len(named) == 2 == len(paths)), passed


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _paired(paths: list[Path], alone: bool) -> list[Found]:
    by_name = {path: i for i, path in enumerate(paths)}
    books: dict[Path, Path] = {}
    for path in paths:
        if found := _MESSAGE.fullmatch(path.name):
            for word in ("orderbook", "OrderBook", "ORDERBOOK"):
                book = path.with_name(found[1] + word + found[2])
                if book in by_name:
                    books[path] = book
    if alone and not books and _holds_lobster(paths):
        return [Found(paths[0], paths[1])]
    taken = set(books.values())
    return [Found(path, books.get(path), _lone_book(path)) for path in paths if path not in taken]


def _lone_book(path: Path) -> str | None:
    """The line for an order book file by itself, which has neither times nor orders."""
    if _BOOK.fullmatch(path.name) is None or _kind(path) != "csv-ohlcv":
        return None
    return f"{path}: looks like a LOBSTER order book file, which goes in with its message file: name that too"


def _holds_lobster(paths: Sequence[Path]) -> bool:
    """Whether one of the files is a LOBSTER message file."""
    return any(_kind(path) == "lobster" for path in paths)


def _kind(path: Path) -> str | None:
    """What a file is by its content (`store.detect`); None for what cannot be read: who opens it says why."""
    from store.detect import kind_of
    from store.streams import open_stream

    try:
        with open_stream(path) as stream:
            return kind_of(stream.head)
    except BadInput:
        return None


def ingest_one(source: Found, store: str | os.PathLike, **options: Any) -> dict[str, Any]:
    """Puts one source in: the report of `sim.ingest.ingest`, whose options these are. Raises as it does."""
    if source.refusal is not None:
        raise BadInput(source.refusal)
    return ingest(source.path, store, also=source.also, **options)


def ingest_many(
    sources: Sequence[Found],
    store: str | os.PathLike,
    done: Callable[[dict[str, Any]], None],
    at_once: int = AT_ONCE,
    progress: Callable[[int], None] | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Puts the sources in, `at_once` at a time; `options` are those of `sim.ingest.ingest`. One report for each, in their order:
    `sim.ingest`'s, or {"source", "error"}. `done` is called with each, in order, as soon as it and those before it are there; `progress`
    with the records read of all. What is held already is passed by, so a call that was broken off can be made again.
    """
    stop, lock = threading.Event(), threading.Lock()
    read: dict[int, int] = {}

    def one(number: int, source: Found) -> dict[str, Any]:
        def update(rows: int) -> None:
            if stop.is_set():
                raise KeyboardInterrupt
            with lock:
                read[number] = rows
                total = sum(read.values())
            if progress is not None:
                progress(total)

        try:
            return ingest_one(source, store, progress=update, **options)
        except TapeproofError as error:
            line = str(error)
            return {"source": str(source.path), "error": line if str(source.path) in line else f"{source.path}: {line}"}
        except MemoryError:
            return {"source": str(source.path), "error": f"{source.path}: out of memory while it was read: put it in by itself"}

    reports: list[dict[str, Any]] = []
    with ThreadPoolExecutor(at_once) as pool:
        try:
            for future in [pool.submit(one, number, source) for number, source in enumerate(sources)]:
                reports.append(future.result())
                done(reports[-1])
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    return reports
