"""LOBSTER pairs: a file of messages and the order book after each of them, as `mbp-10` records (`lob.book_lobster` says what a row means).

The levels are the book file's own, ten at most; the messages are played as well, and where the two disagree the row says so (a flag) and is
counted. Neither file names its date: the name does, as LOBSTER writes it (`AAPL_2012-06-21_34200000_57600000_message_10.csv`).
"""

import datetime as dt
import re
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import numpy as np

from lob.book_lobster import FAULTS, MESSAGE_COLUMNS, PRICE_E9, SAME, LobsterBook, follow
from lob.errors import BadInput
from lob.records import LEVELS
from lob.units import NS_PER_SECOND, UNDEFINED_PRICE
from store.books import Faults
from store.csv_cells import PRICE, WHOLE
from store.csv_rows import Column, Rows, Start, parse_rows, read_start
from store.detect import kind_of
from store.local_time import RepeatedHour, finish, to_utc, zone_of
from store.streams import Stream, open_stream

TIMEZONE = "America/New_York"
"""Where LOBSTER's seconds after midnight are counted: its exchange's."""
MOST_LEVELS = 50
MOST_MISMATCHES = 0.1
"""Share of rows on which the book may differ from the messages; beyond it the two files are no pair."""

_NAME = re.compile(r"([A-Z][A-Z0-9.\-]*)_(\d{4}-\d\d-\d\d)_.*message", re.IGNORECASE)
_COUNTED = {
    "unknown_orders": "unknown_orders", "duplicate_orders": "duplicate_orders", "oversized": "oversized_cancels",
    "size_differs": "book_mismatches", "price_differs": "book_mismatches",
}  # fmt: skip
"""Fault of a book -> quality counter."""
_DAY_NS = 86_400 * NS_PER_SECOND
_MOST_PRICE = 10**13  # in LOBSTER's unit; as 1e-9 it stays far inside int64
_MESSAGE = (
    Column(PRICE), Column(WHOLE, low=1, high=7), Column(WHOLE), Column(WHOLE, high=2**32 - 1),
    Column(WHOLE, low=-1, high=_MOST_PRICE), Column(WHOLE, low=-1, high=1),
)  # fmt: skip
_LEVEL = (Column(WHOLE, low=-_MOST_PRICE, high=_MOST_PRICE), Column(WHOLE, high=2**32 - 1))


def told_by_name(path: Path) -> tuple[str | None, str | None]:
    """(symbol, date) in the name of a message file as LOBSTER writes it; None where it is another."""
    found = _NAME.match(path.name)
    return (found[1].upper(), found[2]) if found else (None, None)


def order_pair(one: Path, other: Path) -> tuple[Path, Path]:
    """(message file, book file) of two files in any order. Raises BadInput when they are not one of each."""
    kinds = []
    for path in (one, other):
        with open_stream(path) as stream:
            kinds.append(kind_of(stream.head))
    if kinds.count("lobster") != 1:
        which = "neither is a LOBSTER message file" if "lobster" not in kinds else "both are LOBSTER message files"
        raise BadInput(f"{one} and {other}: {which}: two files are taken together only as a LOBSTER message file and its order book file")
    return (one, other) if kinds[0] == "lobster" else (other, one)


def read_pair(message: Path, book: Path, date: str | None, timezone: str | None, faults: Faults) -> Iterator[np.ndarray]:
    """MBP_10 records of a pair, one a row, in file order; instrument_id 0. Adds to `faults`.

    Raises BadInput: a date that is not known, a damaged cell (file, line, column), files of unequal length, or files that do not pair.
    """
    zone, day = zone_of(timezone or TIMEZONE, str(message)), _date(message, date)
    state, follower = RepeatedHour(), LobsterBook()
    rows = differing = 0
    with ExitStack() as stack:
        texts = [stack.enter_context(open_stream(path)) for path in (message, book)]
        starts = [read_start(text) for text in texts]
        levels = _levels(texts[1], starts[1])
        columns = [[*_MESSAGE, *[Column()] * (len(starts[0].rows[0]) - len(_MESSAGE))], [*_LEVEL] * (2 * levels)]
        names = [[*MESSAGE_COLUMNS, *[""] * (len(columns[0]) - len(_MESSAGE))], _level_names(levels)]
        streams = [parse_rows(texts[i], starts[i], 0, names[i], columns[i]) for i in range(2)]
        for messages, lines, shown in _paired(streams, (message, book)):
            late = messages[:, 0] >= _DAY_NS
            if late.any():
                raise BadInput(
                    f"{message}: line {int(lines[np.argmax(late)])}: a time after the end of the day: mend the line or remove it"
                )
            utc = to_utc(day * _DAY_NS + messages[:, 0], lines, zone, state, False, str(message))
            edges = [0, *(np.flatnonzero(np.diff(utc // _DAY_NS)) + 1), len(utc)]
            pieces = []
            for a, b in pairwise(edges):
                counts = np.zeros(len(FAULTS), np.int64)
                records, verdict = follow(
                    follower, messages[a:b, : len(_MESSAGE)], shown[a:b], utc[a:b], np.arange(rows + a, rows + b), counts
                )
                _show(records, shown[a:b], verdict != SAME)
                differing += int(np.count_nonzero(verdict))
                held = faults.setdefault((0, int(utc[a] // _DAY_NS)), dict.fromkeys(_COUNTED.values(), 0))
                for name, count in zip(FAULTS, counts.tolist(), strict=True):
                    if name in _COUNTED:
                        held[_COUNTED[name]] += count
                pieces.append(records)
            rows += len(utc)
            yield pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        finish(state, zone, str(message))
    if differing > MOST_MISMATCHES * rows:
        raise BadInput(
            f"{message} and {book}: on {differing:,} of {rows:,} rows the book is not what the messages make: these two files are not a "
            "pair; name the book file of the same symbol, date and levels"
        )


def _date(message: Path, date: str | None) -> int:
    """Days since 1970 of the stated date, else of the one in the name."""
    text = date or told_by_name(message)[1]
    if text is None:
        raise BadInput(f"{message}: neither the file nor its name says its date: state it, like --date 2012-06-21")
    try:
        return (dt.date.fromisoformat(text) - dt.date(1970, 1, 1)).days
    except ValueError:
        raise BadInput(f"{message}: {text!r} is no date: write it like --date 2012-06-21") from None


def _levels(text: Stream, start: Start) -> int:
    cells = start.rows[0]
    if len(cells) % 4 or len(cells) > 4 * MOST_LEVELS or not all(re.fullmatch(r"-?\d+", cell) for cell in cells):
        raise BadInput(
            f"{text.path}: no LOBSTER order book file: its first line has {len(cells)} cells, and not ask price, ask size, bid price, "
            f"bid size of each of 1 to {MOST_LEVELS} levels"
        )
    return len(cells) // 4


def _level_names(levels: int) -> list[str]:
    return [f"{side} {what} {level}" for level in range(1, levels + 1) for side in ("ask", "bid") for what in ("price", "size")]


def _paired(streams: list[Iterator[Rows]], paths: tuple[Path, Path]) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(messages, their lines, books) of equal length, as both streams have rows. Raises BadInput when one ends before the other."""
    held: list[np.ndarray] = [np.empty((0, 1), np.int64)] * 2
    lines = np.empty(0, np.int64)
    seen = 0
    while True:
        for i, stream in enumerate(streams):
            if len(held[i]) == 0:
                found = next(stream, None)
                held[i] = np.empty((0, 1), np.int64) if found is None else found.values
                if i == 0 and found is not None:
                    lines = found.lines
        count = min(map(len, held))
        if count == 0:
            break
        yield held[0][:count], lines[:count], held[1][:count]
        held, lines, seen = [values[count:] for values in held], lines[count:], seen + count
    lengths = [seen + len(held[i]) + sum(len(rows.values) for rows in streams[i]) for i in range(2)]
    if lengths[0] != lengths[1]:
        raise BadInput(
            f"{paths[0]} has {lengths[0]:,} rows and {paths[1]} has {lengths[1]:,}: a message file and its order book file have a row for "
            "each other: fetch both again"
        )


def _show(records: np.ndarray, shown: np.ndarray, differs: np.ndarray) -> None:
    """Puts the book file's own levels into the records of rows that differ; nobody can count the orders there."""
    if not differs.any():
        return
    levels = shown.shape[1] // 4
    for i in range(LEVELS):
        for side, at in (("ask", 4 * i), ("bid", 4 * i + 2)):
            size = shown[differs, at + 1] if i < levels else np.zeros(int(differs.sum()), np.int64)
            price = shown[differs, at] * PRICE_E9 if i < levels else size
            records[f"{side}_px_{i:02d}"][differs] = np.where(size > 0, price, UNDEFINED_PRICE)
            records[f"{side}_sz_{i:02d}"][differs] = size
            records[f"{side}_ct_{i:02d}"][differs] = 0
