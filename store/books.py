"""Books that are built while a source is read: `mbp-10` of a file of single orders (DBN `mbo`)."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np

from lob.book_mbo import FAULTS, MboBook, Room, build, finish
from lob.errors import BadInput
from lob.units import UNDEFINED_TIMESTAMP

BOOKS = "books 1"
"""What the identity of books holds beside the file's: the number changes when the rules of building do."""

Faults = dict[tuple[int, int], dict[str, int]]
"""(instrument_id, UTC day since 1970) -> quality counter -> count."""

_COUNTED = {
    "unknown_cancels": "unknown_orders", "unknown_modifies": "unknown_orders", "duplicate_adds": "duplicate_orders",
    "oversized_cancels": "oversized_cancels", "bad_messages": "bad_messages", "unfounded_rows": "unfounded_books",
}  # fmt: skip
"""Fault of a book -> quality counter."""
_DAY_NS = 86_400 * 10**9


def books_of(path: Path, batches: Callable[[], Iterable[np.ndarray]], faults: Faults) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(MBP_10 records, int64 number of the message that each came from) of the MBO records in `batches()`, instruments interleaved.

    Records are good until the next are asked for. Adds to `faults`. Raises BadInput when two venues' orders share an instrument, and as
    `lob.book_mbo.build` does.
    """
    books: dict[int, MboBook] = {}
    venues: dict[int, int] = {}
    room = Room()
    done = 0
    for messages in batches():
        numbers = np.arange(done, done + len(messages))
        done += len(messages)
        for ident, places in _by_instrument(messages["instrument_id"]):
            mine, rows = (messages, numbers) if places is None else (messages[places], numbers[places])
            venue = venues.setdefault(ident, int(mine["publisher_id"][0]))
            foreign = mine["publisher_id"] != venue
            if foreign.any():
                row = int(np.argmax(foreign))
                raise BadInput(
                    f"{path}: record {int(rows[row])} of instrument_id {ident} is of publisher {int(mine['publisher_id'][row])}, those "
                    f"before it of {venue}: order ids of two venues cannot share a book; fetch one publisher alone"
                )
            days, periods = np.unique(_days(mine), return_inverse=True)
            counts = np.zeros((len(days), len(FAULTS)), np.int64)
            try:
                found = build(books.setdefault(ident, MboBook()), mine, rows, periods.astype(np.int64), counts, room)
            except BadInput as error:
                raise BadInput(f"{path}: {error}") from None
            for day, line in zip(days.tolist(), counts.tolist(), strict=True):
                held = faults.setdefault((ident, day), dict.fromkeys(_COUNTED.values(), 0))
                for name, count in zip(FAULTS, line, strict=True):
                    held[_COUNTED[name]] += count
            if len(found[0]):
                yield found
    for book in books.values():
        last = finish(book)
        if len(last[0]):
            yield last


def _by_instrument(ids: np.ndarray) -> Iterator[tuple[int, np.ndarray | None]]:
    """(instrument id, its places in the batch, None: all), in the order of their first record."""
    if (ids == ids[0]).all():
        yield int(ids[0]), None
        return
    known, first = np.unique(ids, return_index=True)
    for ident in known[np.argsort(first)]:
        yield int(ident), np.flatnonzero(ids == ident)


def _days(records: np.ndarray) -> np.ndarray:
    """UTC day since 1970 of the time that dates each record."""
    recv, event = records["ts_recv"], records["ts_event"]
    return (np.where(recv == UNDEFINED_TIMESTAMP, event, recv) // np.uint64(_DAY_NS)).astype(np.int64)
