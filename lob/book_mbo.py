"""From messages about single orders (DBN's schema `mbo`) to the ten best levels of each side (`mbp-10`).

A row is written for every trade (T), every clear (R), every A, C or M that touches one of the ten levels in view before or after it, and
for the message that ends an event (F_LAST) where a row of the event was written before: so a book is always shown at F_LAST, where it may
be trusted. A row carries its message's own fields; `depth` is the level that was touched (a move to another price: the new one where it
is in view, else the old one), 0 for trades and clears, 10 for a message beyond the view. T, F and N change no book (docs/book.md).

A snapshot (F_SNAPSHOT rows) begins a new book, with or without a clear before it, and gives one row at its end: action A, side N, F_LAST,
as Databento writes it. Until a snapshot or a clear has come, the book's beginning is unknown and every row carries F_MAYBE_BAD_BOOK.
"""

from dataclasses import dataclass, field

import numpy as np

from lob.errors import BadInput
from lob.jit import called, kernel_cpu
from lob.order_book import (
    ASK,
    BID,
    COUNT,
    KEY,
    LOTS,
    PRICE,
    SHOWN,
    SIDE,
    Arrays,
    add_order,
    clear_book,
    empty_arrays,
    find_order,
    key_of,
    move_order,
    reduce_order,
    reserve,
)
from lob.records import F_LAST, F_MAYBE_BAD_BOOK, F_SNAPSHOT, F_TOB, LEVELS, MBO, MBP_10, RTYPE
from lob.units import UNDEFINED_PRICE

FAULTS = ("unknown_cancels", "unknown_modifies", "duplicate_adds", "oversized_cancels", "bad_messages", "unfounded_rows")
"""What is counted: messages that a sound stream does not hold, and rows that show a book whose beginning is unknown. A cancel of an order
that is not in the book and an add of one that is are refused; a modify of an unknown order is taken as an add (as in Databento's own
example of a book), a cancel of more lots than are left as one of all; a bad message (no side, no price, no lots where there must be some,
an unknown action) is refused."""
_UNKNOWN_CANCEL, _UNKNOWN_MODIFY, _DUPLICATE, _OVERSIZED, _BAD, _UNFOUNDED = range(len(FAULTS))

MESSAGE_WORDS, ROW_WORDS = MBO.itemsize // 8, MBP_10.itemsize // 8
_STARTED, _IN_SNAPSHOT, _EVENT_OPEN, _PENDING = range(4)  # from _PENDING on: the last message of a snapshot, and its row
_ADD, _CANCEL, _MODIFY, _CLEAR, _TRADE, _FILL, _NONE = (ord(letter) for letter in "ACMRTFN")
_SIDE_BID, _SIDE_ASK = ord("B"), ord("A")
_MOST = 2**32 - 1  # what a record can show of sizes and counts
_HEADER = MBP_10.itemsize // 4 | RTYPE["mbp-10"] << 8


@dataclass
class MboBook:
    """One instrument's book between two batches of its messages."""

    arrays: Arrays = field(default_factory=empty_arrays)
    state: np.ndarray = field(default_factory=lambda: np.zeros(_PENDING + MESSAGE_WORDS + 1, np.int64))


@dataclass
class Room:
    """Memory that `build` may write into again and again."""

    rows: np.ndarray = field(default_factory=lambda: np.empty((0, ROW_WORDS), np.int64))
    numbers: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))


def build(
    book: MboBook, messages: np.ndarray, rows: np.ndarray, periods: np.ndarray, faults: np.ndarray, room: Room | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(MBP_10 records, int64 row of the message that each came from) of a batch of one instrument's messages (dtype MBO), in their order.

    `rows` int64[n]: the messages' own numbers. `faults` int64[P, len(FAULTS)] is counted up, message i in line `periods[i]` (int64).
    Changes `book`. With `room` the records lie in it, and only until it is used again. Raises BadInput for a feed that gives the best
    prices and no orders (F_TOB).
    """
    no_orders = messages["flags"] & F_TOB != 0
    if no_orders.any():
        raise BadInput(
            f"record {int(rows[np.argmax(no_orders)])} carries the flag F_TOB: this venue gives its best prices and no orders, of which no "
            "book can be built; fetch schema mbp-1"
        )
    room = room or Room()
    most = 2 * len(messages)  # a message's row, and that of a snapshot which it ends
    if len(room.rows) < most:
        room.rows, room.numbers = np.empty((most, ROW_WORDS), np.int64), np.empty(most, np.int64)
    words = np.ascontiguousarray(messages).view(np.int64).reshape(-1, MESSAGE_WORDS)
    book.arrays = reserve(book.arrays, len(words))
    count = _apply(words, rows, periods, *book.arrays, book.state, faults, room.rows, room.numbers)
    return room.rows[:count].reshape(-1).view(MBP_10), room.numbers[:count].copy()


def finish(book: MboBook) -> tuple[np.ndarray, np.ndarray]:
    """The row of a snapshot that the stream ends in, as `build` gives rows; none where it does not."""
    out, from_row = np.empty((1, ROW_WORDS), np.int64), np.empty(1, np.int64)
    count = _end_snapshot(book.arrays.levels, book.arrays.counts, book.state, out, from_row, 0)
    return out[:count].reshape(-1).view(MBP_10), from_row[:count]


@called
def write_levels(levels, counts, out):
    """The ten best levels of both sides into an MBP-10 record's words."""
    for i in range(LEVELS):
        bid, ask = counts[BID] - 1 - i, counts[ASK] - 1 - i
        at = 6 + 4 * i
        out[at], out[at + 1], out[at + 2], out[at + 3] = UNDEFINED_PRICE, UNDEFINED_PRICE, 0, 0
        if bid >= 0:
            out[at] = levels[BID, bid, KEY]
            out[at + 2] = min(levels[BID, bid, SHOWN], _MOST)
            out[at + 3] = min(levels[BID, bid, COUNT], _MOST)
        if ask >= 0:
            out[at + 1] = key_of(ASK, levels[ASK, ask, KEY])
            out[at + 2] |= min(levels[ASK, ask, SHOWN], _MOST) << 32
            out[at + 3] |= min(levels[ASK, ask, COUNT], _MOST) << 32


@called
def _write_row(levels, counts, header, ts_event, price, size, action, side, flags, depth, ts_recv, rest, out):
    out[0] = (header & ~0xFFFF) | _HEADER
    out[1] = ts_event
    out[2] = price
    out[3] = size | action << 32 | side << 40 | flags << 48 | depth << 56
    out[4] = ts_recv
    out[5] = rest
    write_levels(levels, counts, out)


@called
def _end_snapshot(levels, counts, state, out, from_row, count):
    """Writes the row of a snapshot that is complete, if there is one; returns how many rows there are then."""
    if state[_IN_SNAPSHOT] == 0:
        return count
    state[_IN_SNAPSHOT] = 0
    state[_EVENT_OPEN] = 0
    packed = state[_PENDING + 4]
    size, flags = packed & 0xFFFFFFFF, (packed >> 32) & 0xFF
    _write_row(
        levels, counts, state[_PENDING], state[_PENDING + 1], state[_PENDING + 3], size, _ADD, _NONE, flags | F_LAST, 0,
        state[_PENDING + 5], state[_PENDING + 6], out[count],
    )  # fmt: skip
    from_row[count] = state[_PENDING + MESSAGE_WORDS]
    return count + 1


@called
def _change(orders, table, levels, counts, faults, order_id, price, size, action, side):
    """What an A, C or M does to the book. Returns the depth that it touched, -1 where it did nothing; of a move both (left, came to)."""
    at = find_order(orders, table, order_id)
    if action == _CANCEL:
        if size == 0:
            faults[_BAD] += 1
            return -1, -1
        if at < 0:
            faults[_UNKNOWN_CANCEL] += 1
            return -1, -1
        if size > orders[table[at] - 1, LOTS]:
            faults[_OVERSIZED] += 1
        depth = reduce_order(orders, table, levels, counts, at, size)
        return depth, depth
    known_side = side in (_SIDE_BID, _SIDE_ASK)
    if not known_side or price == UNDEFINED_PRICE or (size == 0 and action == _ADD):
        faults[_BAD] += 1
        return -1, -1
    to = BID if side == _SIDE_BID else ASK
    if at < 0:
        if action == _MODIFY:
            faults[_UNKNOWN_MODIFY] += 1
            if size == 0:
                return -1, -1
        depth = add_order(orders, table, levels, counts, order_id, to, price, size)
        return depth, depth
    if action == _ADD:
        faults[_DUPLICATE] += 1
        return -1, -1
    slot = table[at] - 1
    if size == 0 or (orders[slot, SIDE] == to and orders[slot, PRICE] == price and size <= orders[slot, LOTS]):
        depth = reduce_order(orders, table, levels, counts, at, orders[slot, LOTS] - size)
        return depth, depth
    return move_order(orders, table, levels, counts, at, to, price, size)


@kernel_cpu
def _apply(words, rows, periods, orders, table, levels, counts, state, faults, out, from_row):
    """Messages int64[n, 7] (MBO records as words: header, ts_event, order id, price, size|flags|channel|action|side, ts_recv,
    delta|sequence) into rows int64[:, 46] (MBP-10 as words); returns how many."""
    count = 0
    for i in range(len(words)):
        price, packed = words[i, 3], words[i, 4]
        size, flags = packed & 0xFFFFFFFF, (packed >> 32) & 0xFF
        action, side = (packed >> 48) & 0xFF, (packed >> 56) & 0xFF
        fault = faults[periods[i]]
        in_snapshot = (flags & F_SNAPSHOT) != 0
        if in_snapshot and state[_IN_SNAPSHOT] == 0:
            clear_book(table, counts)
            state[_IN_SNAPSHOT] = 1
            state[_STARTED] = 1
        elif not in_snapshot:
            count = _end_snapshot(levels, counts, state, out, from_row, count)
        left = came = -1
        if action in (_ADD, _CANCEL, _MODIFY):
            left, came = _change(orders, table, levels, counts, fault, words[i, 2], price, size, action, side)
        elif action == _CLEAR:
            clear_book(table, counts)
            state[_STARTED] = 1
        elif action not in (_TRADE, _FILL, _NONE):
            fault[_BAD] += 1
        ends = (flags & F_LAST) != 0
        if in_snapshot:
            for j in range(MESSAGE_WORDS):
                state[_PENDING + j] = words[i, j]
            state[_PENDING + MESSAGE_WORDS] = rows[i]
            if ends:
                count = _end_snapshot(levels, counts, state, out, from_row, count)
            continue
        depth = LEVELS
        if action in (_TRADE, _CLEAR):
            depth = 0
        elif 0 <= came < LEVELS:
            depth = came
        elif 0 <= left < LEVELS:
            depth = left
        if depth < LEVELS or (ends and state[_EVENT_OPEN] != 0):
            if state[_STARTED] == 0:
                flags |= F_MAYBE_BAD_BOOK
                fault[_UNFOUNDED] += 1
            _write_row(
                levels, counts, words[i, 0], words[i, 1], price, size, action, side, flags, depth, words[i, 5], words[i, 6], out[count]
            )
            from_row[count] = rows[i]
            count += 1
            state[_EVENT_OPEN] = 1
        if ends:
            state[_EVENT_OPEN] = 0
    return count
