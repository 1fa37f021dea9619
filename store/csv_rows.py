"""A CSV as a stream of parsed rows: its first line, its delimiter, its columns, and faults that name line and column."""

import csv
import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lob.errors import BadInput
from store.csv_cells import OK, REASONS, SKIP, WRONG_COUNT, YEAR_FIRST, empty_fault, parse_lines
from store.streams import HEAD_BYTES, Stream

BLOCK_BYTES = 4 << 20
"""The text is read in blocks of this size; no line may be longer."""
DELIMITERS = ",;\t|"
SMALLEST_FIXED_PRICE = 10**6
"""Below a thousandth a whole number is rather a price in full units than one in 1e-9."""
_DAY_NS = 86_400 * 10**9
_BOM = b"\xef\xbb\xbf"


Symbols = dict[tuple[int, dt.date], str]
"""(instrument_id, UTC date) -> what the instrument is called."""


@dataclass(frozen=True)
class Column:
    """How one column is parsed (see `store.csv_cells`): what it holds, its range, and its value when empty (None: a fault)."""

    kind: int = SKIP
    unit_ns: int = 0
    low: int = 0
    high: int = 2**63 - 1
    empty: int | None = None


@dataclass(frozen=True)
class Rows:
    """Parsed rows: `values` int64[rows, columns], `zoned` bool[rows], `lines` int64[rows] (1-based), and the text they came from."""

    values: np.ndarray
    zoned: np.ndarray
    lines: np.ndarray
    data: np.ndarray

    def text(self, column: int) -> np.ndarray:
        """The cells of a TEXT column, bytes[rows]. Ask before the next batch: `data` is read into again."""
        starts, sizes = np.divmod(self.values[:, column], 65536)
        width = max(1, int(sizes.max(initial=1)))
        inside = np.arange(width) < sizes[:, None]
        cells = np.where(inside, self.data[np.minimum(starts[:, None] + np.arange(width), len(self.data) - 1)], 0)
        return np.ascontiguousarray(cells.astype("u1")).view(f"S{width}")[:, 0]


@dataclass(frozen=True)
class Start:
    """The beginning of a CSV: its delimiter, the first lines as cells, and where each of them ends (byte, number of the next line)."""

    delimiter: str
    rows: tuple[tuple[str, ...], ...]
    ends: tuple[tuple[int, int], ...]
    begin: int


def read_start(stream: Stream, delimiter: str | None = None, count: int = 3) -> Start:
    """The first `count` lines that are not blank. Raises BadInput when there is none, or no delimiter can be told."""
    begin = len(_BOM) if stream.head.startswith(_BOM) else 0
    lines: list[str] = []
    ends: list[tuple[int, int]] = []
    at, number = begin, 1
    while at < len(stream.head) and len(lines) < count:
        stop = stream.head.find(b"\n", at)
        if stop < 0 and len(stream.head) == HEAD_BYTES:
            break
        stop = len(stream.head) if stop < 0 else stop
        line = stream.head[at:stop].removesuffix(b"\r")
        at, number = min(stop + 1, len(stream.head)), number + 1
        if line.strip():
            lines.append(line.decode("utf-8", "replace"))
            ends.append((at, number))
    if not lines:
        what = f"its first line is longer than {HEAD_BYTES} bytes: not a CSV" if at == begin and stream.head else "holds no line of text"
        raise BadInput(f"{stream.path}: {what}")
    if any("\r" in line for line in lines):
        raise BadInput(f"{stream.path}: has CR inside its first lines: save it with LF or CRLF line ends")
    chosen = delimiter or _sniff(stream, lines)
    if len(chosen) != 1 or chosen in '"\r\n ' or not chosen.isascii():
        raise BadInput(f"{stream.path}: {chosen!r} cannot be a delimiter: state one character, like ',' or ';'")
    rows = tuple(tuple(cell.strip() for cell in next(csv.reader([line], delimiter=chosen))) for line in lines)
    return Start(chosen, rows, tuple(ends), begin)


def _sniff(stream: Stream, lines: list[str]) -> str:
    """The delimiter that splits the first lines into the same number (> 1) of cells, the most if several do."""
    counts = {mark: {len(next(csv.reader([line], delimiter=mark))) for line in lines} for mark in DELIMITERS}
    fitting = {mark: sizes.pop() for mark, sizes in counts.items() if len(sizes) == 1 and max(sizes) > 1}
    if not fitting:
        in_first = {mark: len(next(csv.reader([lines[0]], delimiter=mark))) for mark in DELIMITERS}
        fitting = {mark: size for mark, size in in_first.items() if size > 1}
    if not fitting:
        raise BadInput(f"{stream.path}: line 1 ({lines[0][:40]!r}) has one cell whatever the delimiter: not a CSV, or state the delimiter")
    return max(fitting, key=lambda mark: fitting[mark])


def parse_rows(
    stream: Stream, start: Start, skip: int, names: Sequence[str], columns: Sequence[Column], order: int = YEAR_FIRST
) -> Iterator[Rows]:
    """The rows after the first `skip` lines that are not blank. Raises BadInput naming line and column of the first bad cell.

    `names` are for messages. Rows come block by block of text, so in batches of uneven length.
    """
    at, line = start.ends[skip - 1] if skip else (start.begin, 1)
    table = np.array([(c.kind, c.unit_ns, c.low, c.high, c.empty is not None, c.empty or 0) for c in columns], np.int64)
    room = max(16, BLOCK_BYTES // (2 * len(columns)))
    data = np.empty(BLOCK_BYTES + 1, np.uint8)
    filled, last = stream.readinto(data.data[:BLOCK_BYTES]), False
    while True:
        if filled < BLOCK_BYTES and not last:
            last = True
            data[filled] = 10  # the last line may have no newline; an empty line more does no harm
            filled += 1
        values, zoned, lines = np.empty((room, len(columns)), np.int64), np.empty(room, np.bool_), np.empty(room, np.int64)
        fault = empty_fault()
        rows, after, line = parse_lines(data, at, filled, ord(start.delimiter), order, table, values, zoned, lines, line, fault)
        if fault[0] != OK:
            raise _cell_fault(stream, data, fault, names)
        if rows:
            yield Rows(values[:rows], zoned[:rows], lines[:rows], data)
        if rows == room:
            at = after
            continue
        if last:
            return
        if after == at and at == 0:
            raise BadInput(f"{stream.path}: line {line} is longer than {BLOCK_BYTES} bytes: not a CSV")
        left = filled - after
        data[:left] = data[after:filled].copy()
        filled, at = left + stream.readinto(data.data[left:BLOCK_BYTES]), 0


def _cell_fault(stream: Stream, data: np.ndarray, fault: np.ndarray, names: Sequence[str]) -> BadInput:
    code, line, column, start, end = (int(number) for number in fault)
    if code == WRONG_COUNT:
        return BadInput(f"{stream.path}: line {line} has {column} cells, not {len(names)}: mend the line or remove it")
    text = bytes(data[start:end])[:40].decode("utf-8", "replace")
    return BadInput(f"{stream.path}: line {line}, {column_name(names, column)}: {text!r} {REASONS[code]}: mend the cell or remove the line")


def column_name(names: Sequence[str], column: int) -> str:
    """`column 3 (high)`."""
    name = names[column] if column < len(names) else ""  # a line may have more cells than there are columns
    return f"column {column + 1} ({name})" if name else f"column {column + 1}"


def prices_are_fixed(stream: Stream, rows: Sequence[Sequence[str]], names: Sequence[str], places: Sequence[int]) -> bool:
    """Whether a Databento CSV has its prices as whole numbers of 1e-9, told by the first rows: decimal prices have a point somewhere."""
    cells = [row[place] for row in rows for place in places if place < len(row) and row[place]]
    if not cells or any("." in cell or "e" in cell.lower() for cell in cells):
        return False
    largest = max((abs(int(cell)) for cell in cells if cell.lstrip("-").isdecimal() and len(cell) < 21), default=0)
    if largest < SMALLEST_FIXED_PRICE:
        raise BadInput(
            f"{stream.path}: prices are whole numbers ({column_name(names, places[0])}: {cells[0][:20]!r}) too small to be in 1e-9: "
            "write decimal prices with a point, like 4365.00"
        )
    return True


def collect_symbols(stream: Stream, rows: Rows, place: int | None, ids: np.ndarray, ns: np.ndarray, symbols: Symbols) -> None:
    """Adds to `symbols` what each instrument is called on each UTC day, by the column at `place`. Raises BadInput when it has two names.

    `ids` and `ns` (int64, negative where undefined) have one value a row.
    """
    if place is None:
        return
    names = rows.text(place)
    days = ns // _DAY_NS
    # A row is looked at when anything in it differs from the row before: most do not.
    differs = np.ones(len(names), np.bool_)
    differs[1:] = (names[1:] != names[:-1]) | (ids[1:] != ids[:-1]) | (days[1:] != days[:-1])
    for i in np.flatnonzero(differs & (ns >= 0) & (names != b"")):
        key = (int(ids[i]), dt.date(1970, 1, 1) + dt.timedelta(days=int(days[i])))
        name = names[i].decode("utf-8", "replace")
        if symbols.setdefault(key, name) != name:
            raise BadInput(f"{stream.path}: line {int(rows.lines[i])}: instrument {key[0]} is called {name}, but {symbols[key]} before it")
