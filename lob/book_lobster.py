"""From a LOBSTER pair (messages, and the book after each) to `mbp-10` records, and whether the two files say the same.

The book is built from the messages by the same queues as DBN's (`lob.order_book`). Three things are in no message and come from the book
file: the book that stood before the first row; a level that comes into view from beyond the file's depth; and, after a row whose prices
differ, that side. A level that goes out of view is forgotten with its orders, for what happens to it there is in neither file.

Events: 1 is an add, 2 and 3 a cancel, 4 an execution (a trade and what it takes from the book, in one row), 5 a trade against a hidden
order, 6 the print of an auction, 7 a halt (price -1) and its end (price 1; 0 lets orders in again, not trades). Direction is the resting
order's side; a record's side of a trade is the aggressor's, the other one.
"""

from dataclasses import dataclass, field

import numpy as np

from lob.book_mbo import ROW_WORDS
from lob.jit import called, kernel_cpu
from lob.order_book import (
    ASK,
    BID,
    COUNT,
    KEY,
    LOTS,
    REST,
    SHOWN,
    Arrays,
    add_order,
    close_level,
    drop_level,
    empty_arrays,
    find_order,
    holds_level,
    key_of,
    level_at,
    open_level,
    reduce_order,
    reserve,
)
from lob.records import F_LAST, F_MAYBE_BAD_BOOK, LEVELS, MBP_10, RTYPE
from lob.units import UNDEFINED_PRICE

FAULTS = ("unknown_orders", "duplicate_orders", "oversized", "size_differs", "price_differs", "revealed_levels")
"""What is counted: messages about an order at a price that is not in view (refused); an add of an order that is there (refused); a cancel
or an execution of more than is left, taken as one of all; rows on which the book file shows another size, or another price, than the
messages make; and, no fault, levels that came into view from beyond the file's depth."""
_UNKNOWN, _DUPLICATE, _OVERSIZED, _SIZE, _PRICE, _REVEALED = range(len(FAULTS))

SAME, SIZES_DIFFER, PRICES_DIFFER = 0, 1, 2
"""What a row of the book file says, held against the messages."""

MESSAGE_COLUMNS = ("time", "type", "order_id", "size", "price", "direction")
PRICE_E9 = 100_000
"""LOBSTER's price unit, a ten-thousandth of a dollar, in 1e-9."""

_TYPE, _ID, _SIZE_AT, _PRICE_AT, _DIRECTION = range(1, 6)
_STARTED, _HALTED = range(2)
_MOST = 2**32 - 1
_HEADER = MBP_10.itemsize // 4 | RTYPE["mbp-10"] << 8
_A, _B, _C, _N, _T = (ord(letter) for letter in "ABCNT")


@dataclass
class LobsterBook:
    """The book between two batches of rows."""

    arrays: Arrays = field(default_factory=empty_arrays)
    state: np.ndarray = field(default_factory=lambda: np.zeros(2, np.int64))


def follow(
    book: LobsterBook, messages: np.ndarray, shown: np.ndarray, utc_ns: np.ndarray, rows: np.ndarray, faults: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(MBP_10 records as the messages make them, verdict uint8[n]: SAME, SIZES_DIFFER or PRICES_DIFFER) of n rows of a pair.

    `messages` int64[n, 6]: MESSAGE_COLUMNS; `shown` int64[n, 4 L]: ask price, ask size, bid price, bid size of each level (size 0: none);
    `utc_ns` and `rows` int64[n]: time and number of each row. `faults` int64[len(FAULTS)] is counted up. Changes `book`. A level's count
    of orders is 0 where some of its lots stood before the messages; a row that differs, or lies in a halt, carries F_MAYBE_BAD_BOOK.
    """
    levels = shown.shape[1] // 4
    book.arrays = reserve(book.arrays, len(messages) + 2 * levels)
    out, verdict = np.empty((len(messages), ROW_WORDS), np.int64), np.zeros(len(messages), np.uint8)
    _follow(messages, shown, utc_ns, rows, *book.arrays, book.state, faults, out, verdict)
    return out.reshape(-1).view(MBP_10), verdict


@called
def _write_view(levels, counts, out):
    """The ten best levels into an MBP-10 record's words; counts of orders only where every lot is known."""
    for i in range(LEVELS):
        bid, ask = counts[BID] - 1 - i, counts[ASK] - 1 - i
        at = 6 + 4 * i
        out[at], out[at + 1], out[at + 2], out[at + 3] = UNDEFINED_PRICE, UNDEFINED_PRICE, 0, 0
        if bid >= 0:
            out[at] = levels[BID, bid, KEY] * PRICE_E9
            out[at + 2] = min(levels[BID, bid, SHOWN], _MOST)
            if levels[BID, bid, REST] == 0:
                out[at + 3] = levels[BID, bid, COUNT]
        if ask >= 0:
            out[at + 1] = -levels[ASK, ask, KEY] * PRICE_E9
            out[at + 2] |= min(levels[ASK, ask, SHOWN], _MOST) << 32
            if levels[ASK, ask, REST] == 0:
                out[at + 3] |= levels[ASK, ask, COUNT] << 32


@called
def _stand(levels, counts, side, at, key, lots):
    """A level of lots that no message explains, at a place found by `level_at`."""
    open_level(levels, counts, side, at, key)
    levels[side, at, SHOWN] = lots
    levels[side, at, REST] = lots


@called
def _take(orders, table, levels, counts, faults, message, side):
    """A cancel or an execution. Returns the depth of its level, -1 where it is not in view."""
    size, key = message[_SIZE_AT], key_of(side, message[_PRICE_AT])
    place = find_order(orders, table, message[_ID])
    if place >= 0:
        left = orders[table[place] - 1, LOTS]
        faults[_OVERSIZED] += size > left
        return reduce_order(orders, table, levels, counts, place, left if message[_TYPE] == 3 else size)
    at = level_at(levels, counts, side, key)
    if not holds_level(levels, counts, side, at, key):
        faults[_UNKNOWN] += 1
        return -1
    depth = counts[side] - 1 - at
    faults[_OVERSIZED] += size > levels[side, at, REST]
    taken = min(size, levels[side, at, REST])
    levels[side, at, REST] -= taken
    levels[side, at, SHOWN] -= taken
    if levels[side, at, SHOWN] == 0:
        close_level(levels, counts, side, at)
    return depth


@called
def _change(orders, table, levels, counts, faults, message, full, deepest):
    """What a message does to the book. Returns the depth that it touched, LEVELS where none."""
    side = BID if message[_DIRECTION] > 0 else ASK
    depth = -1
    if message[_TYPE] == 1:
        key = key_of(side, message[_PRICE_AT])
        beyond = full and (counts[side] == 0 or key < levels[side, 0, KEY])
        if beyond:
            faults[_UNKNOWN] += 1
        elif find_order(orders, table, message[_ID]) >= 0:
            faults[_DUPLICATE] += 1
        elif message[_SIZE_AT] > 0:
            depth = add_order(orders, table, levels, counts, message[_ID], side, message[_PRICE_AT], message[_SIZE_AT])
            while counts[side] > deepest:
                drop_level(orders, table, levels, counts, side, 0)
    elif message[_TYPE] <= 4:
        depth = _take(orders, table, levels, counts, faults, message, side)
    return depth if 0 <= depth < LEVELS else LEVELS


@called
def _compare(levels, counts, side, full, shown, faults):
    """Holds one side against its row of the book file; takes in levels that came into view. Returns a verdict."""
    deepest = len(shown) // 4
    price_at = 0 if side == ASK else 2
    there = 0
    while there < deepest and shown[4 * there + price_at + 1] > 0:
        there += 1
    ours = counts[side]
    verdict = SAME
    for i in range(min(there, ours)):
        level = levels[side, ours - 1 - i]
        if level[KEY] != key_of(side, shown[4 * i + price_at]):
            return PRICES_DIFFER
        if level[SHOWN] != shown[4 * i + price_at + 1]:
            verdict = SIZES_DIFFER
    if there < ours or (there > ours and not full):
        return PRICES_DIFFER
    for i in range(ours, there):
        key = key_of(side, shown[4 * i + price_at])
        if counts[side] > 0 and key >= levels[side, 0, KEY]:
            return PRICES_DIFFER
        _stand(levels, counts, side, 0, key, shown[4 * i + price_at + 1])
        faults[_REVEALED] += 1
    return verdict


@called
def _take_over(orders, table, levels, counts, side, shown):
    """Makes a side what the book file shows."""
    while counts[side] > 0:
        drop_level(orders, table, levels, counts, side, counts[side] - 1)
    price_at = 0 if side == ASK else 2
    for i in range(len(shown) // 4):
        key = key_of(side, shown[4 * i + price_at])
        at = level_at(levels, counts, side, key)
        if shown[4 * i + price_at + 1] > 0 and not holds_level(levels, counts, side, at, key):
            _stand(levels, counts, side, at, key, shown[4 * i + price_at + 1])


@kernel_cpu
def _follow(messages, shown, utc_ns, rows, orders, table, levels, counts, state, faults, out, verdict):
    deepest = shown.shape[1] // 4
    for i in range(len(messages)):
        kind, size, price = messages[i, _TYPE], messages[i, _SIZE_AT], messages[i, _PRICE_AT]
        buys = messages[i, _DIRECTION] > 0
        bids_full, asks_full = counts[BID] == deepest, counts[ASK] == deepest
        depth = LEVELS
        if state[_STARTED] == 0:
            state[_STARTED] = 1
            _take_over(orders, table, levels, counts, BID, shown[i])
            _take_over(orders, table, levels, counts, ASK, shown[i])
        else:
            depth = _change(orders, table, levels, counts, faults, messages[i], bids_full if buys else asks_full, deepest)
        bids = _compare(levels, counts, BID, bids_full, shown[i], faults)
        asks = _compare(levels, counts, ASK, asks_full, shown[i], faults)
        verdict[i] = max(bids, asks)
        faults[_SIZE] += verdict[i] == SIZES_DIFFER
        faults[_PRICE] += verdict[i] == PRICES_DIFFER
        _write_view(levels, counts, out[i])
        if bids == PRICES_DIFFER:
            _take_over(orders, table, levels, counts, BID, shown[i])
        if asks == PRICES_DIFFER:
            _take_over(orders, table, levels, counts, ASK, shown[i])
        action, side = _N, _N
        if kind == 7:
            state[_HALTED] = price == -1 or (price == 0 and state[_HALTED] != 0)
        elif kind <= 3:
            action, side = _A if kind == 1 else _C, _B if buys else _A
        else:
            action, depth = _T, 0
            if kind < 6:
                side = _A if buys else _B
        bad = state[_HALTED] != 0 or verdict[i] != SAME
        out[i, 0] = _HEADER
        out[i, 1] = utc_ns[i]
        out[i, 2] = UNDEFINED_PRICE if kind == 7 else price * PRICE_E9
        out[i, 3] = size | action << 32 | side << 40 | (F_LAST | (F_MAYBE_BAD_BOOK if bad else 0)) << 48 | depth << 56
        out[i, 4] = utc_ns[i]
        out[i, 5] = (rows[i] & _MOST) << 32
