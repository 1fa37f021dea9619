"""An order book: every order in a queue of its price, best price first, first come first served. Compiled; no allocation, no I/O.

State is four int64 arrays (the table: int32), made by `empty_arrays` and passed to every function in this order:

- `orders` [slots, 6]: an order's id, price, side, lots, and the slots before and after it in its queue (-1: none).
- `table` [2^k]: an open-addressing hash from order id to slot + 1 (0: empty), linear probing, deletion by shifting back: no tombstones.
- `levels` [2, room, 6]: per side the prices that hold lots, ascending by key (a bid's price, an ask's negative price), so the best is the
  *last*: what happens near the touch moves few entries. Each: key, lots shown, known orders, first and last slot of its queue, and the lots
  that no known order explains (`REST`: of a book that stood before its messages begin; they count as first in the queue).
- `counts` [5]: bid levels, ask levels, orders, head of the list of free slots (-1: none), first slot never used.

Nothing here grows: make room for n messages with `reserve` first (each adds at most one order and one level).
"""

from typing import NamedTuple

import numpy as np

from lob.jit import called, scalar

BID, ASK = 0, 1
ID, PRICE, SIDE, LOTS, BEFORE, AFTER = range(6)
KEY, SHOWN, COUNT, FIRST, LAST, REST = range(6)
ORDERS, FREE, FRESH = 2, 3, 4

_GOLDEN = -7046029254386353131  # 2^64 divided by the golden ratio, odd, as int64: spreads ids that count upwards (Knuth, TAOCP 6.4)
_NEAR = 8  # levels from the touch that are walked before the rest is searched by halves: most messages are there
_LEAST_ROOM = 1024


class Arrays(NamedTuple):
    """The state of one book."""

    orders: np.ndarray
    table: np.ndarray
    levels: np.ndarray
    counts: np.ndarray


def empty_arrays(room: int = _LEAST_ROOM) -> Arrays:
    """An empty book with room for `room` orders and as many prices a side."""
    slots = max(room, _LEAST_ROOM)
    table = np.zeros(1 << (2 * slots - 1).bit_length(), np.int32)
    counts = np.array([0, 0, 0, -1, 0], np.int64)
    return Arrays(np.zeros((slots, 6), np.int64), table, np.zeros((2, slots, 6), np.int64), counts)


def reserve(book: Arrays, messages: int) -> Arrays:
    """The same book with room for so many more messages; itself when it has it."""
    slots = int(book.counts[FRESH]) + messages
    prices = int(book.counts[:2].max()) + messages
    orders, table, levels, counts = book
    if slots > len(orders):
        bigger = np.zeros((max(slots, 2 * len(orders)), 6), np.int64)
        bigger[: len(orders)] = orders
        orders = bigger
        table = np.zeros(1 << (2 * len(orders) - 1).bit_length(), np.int32)
        _fill_table(orders, table, levels, counts)
    if prices > levels.shape[1]:
        wider = np.zeros((2, max(prices, 2 * levels.shape[1]), 6), np.int64)
        wider[:, : levels.shape[1]] = levels
        levels = wider
    return Arrays(orders, table, levels, counts)


@scalar
def key_of(side, price):
    """What a side's prices ascend by towards the touch; its own inverse."""
    return price if side == BID else -price


@scalar
def home_of(table, order_id):
    """Where an order's search begins."""
    spread = order_id * _GOLDEN
    return (spread ^ (spread >> 32)) & (len(table) - 1)


@called
def find_order(orders, table, order_id):
    """Place of an order in the table, or -1."""
    at = home_of(table, order_id)
    while table[at] != 0:
        if orders[table[at] - 1, ID] == order_id:
            return at
        at = (at + 1) & (len(table) - 1)
    return -1


@called
def _enter(orders, table, slot):
    at = home_of(table, orders[slot, ID])
    while table[at] != 0:
        at = (at + 1) & (len(table) - 1)
    table[at] = slot + 1


@called
def _forget(orders, table, at):
    """Empties a place of the table and closes the gap: who comes after it and could stand there moves back."""
    mask = len(table) - 1
    hole, probe = at, (at + 1) & mask
    while table[probe] != 0:
        home = home_of(table, orders[table[probe] - 1, ID])
        if ((probe - home) & mask) >= ((probe - hole) & mask):
            table[hole] = table[probe]
            hole = probe
        probe = (probe + 1) & mask
    table[hole] = 0


@called
def _fill_table(orders, table, levels, counts):
    for side in range(2):
        for i in range(counts[side]):
            slot = levels[side, i, FIRST]
            while slot >= 0:
                _enter(orders, table, slot)
                slot = orders[slot, AFTER]


@called
def level_at(levels, counts, side, key):
    """Where the level of that key stands, or would: the first whose key is not below it."""
    at = counts[side]
    low = max(0, at - _NEAR)
    while at > low and levels[side, at - 1, KEY] >= key:
        at -= 1
    if at > low:
        return at
    low = 0
    while low < at:
        middle = (low + at) >> 1
        if levels[side, middle, KEY] < key:
            low = middle + 1
        else:
            at = middle
    return at


@scalar
def holds_level(levels, counts, side, at, key):
    return at < counts[side] and levels[side, at, KEY] == key


@called
def open_level(levels, counts, side, at, key):
    """Puts an empty level at a place found by `level_at`."""
    for i in range(counts[side], at, -1):
        for j in range(6):
            levels[side, i, j] = levels[side, i - 1, j]
    levels[side, at, KEY] = key
    levels[side, at, SHOWN] = 0
    levels[side, at, COUNT] = 0
    levels[side, at, FIRST] = -1
    levels[side, at, LAST] = -1
    levels[side, at, REST] = 0
    counts[side] += 1


@called
def close_level(levels, counts, side, at):
    counts[side] -= 1
    for i in range(at, counts[side]):
        for j in range(6):
            levels[side, i, j] = levels[side, i + 1, j]


@called
def _join(orders, levels, counts, slot):
    """Puts an order at the end of its price's queue; returns the level's place."""
    side = orders[slot, SIDE]
    key = key_of(side, orders[slot, PRICE])
    at = level_at(levels, counts, side, key)
    if not holds_level(levels, counts, side, at, key):
        open_level(levels, counts, side, at, key)
    last = levels[side, at, LAST]
    orders[slot, BEFORE] = last
    orders[slot, AFTER] = -1
    if last >= 0:
        orders[last, AFTER] = slot
    else:
        levels[side, at, FIRST] = slot
    levels[side, at, LAST] = slot
    levels[side, at, SHOWN] += orders[slot, LOTS]
    levels[side, at, COUNT] += 1
    return at


@called
def _leave(orders, levels, counts, slot):
    """Takes an order out of its queue, and its level away when nothing is left there; returns how many levels were better."""
    side = orders[slot, SIDE]
    at = level_at(levels, counts, side, key_of(side, orders[slot, PRICE]))
    depth = counts[side] - 1 - at
    before, after = orders[slot, BEFORE], orders[slot, AFTER]
    if before >= 0:
        orders[before, AFTER] = after
    else:
        levels[side, at, FIRST] = after
    if after >= 0:
        orders[after, BEFORE] = before
    else:
        levels[side, at, LAST] = before
    levels[side, at, SHOWN] -= orders[slot, LOTS]
    levels[side, at, COUNT] -= 1
    if levels[side, at, SHOWN] == 0:
        close_level(levels, counts, side, at)
    return depth


@called
def add_order(orders, table, levels, counts, order_id, side, price, lots):
    """A new order (its id is not in the book, `lots` > 0) at the end of its queue. Returns its level's depth, 0 the best."""
    slot = counts[FREE]
    if slot >= 0:
        counts[FREE] = orders[slot, AFTER]
    else:
        slot = counts[FRESH]
        counts[FRESH] += 1
    orders[slot, ID] = order_id
    orders[slot, PRICE] = price
    orders[slot, SIDE] = side
    orders[slot, LOTS] = lots
    _enter(orders, table, slot)
    counts[ORDERS] += 1
    at = _join(orders, levels, counts, slot)
    return counts[side] - 1 - at


@called
def reduce_order(orders, table, levels, counts, at, lots):
    """Takes lots from the order at a place of the table; it keeps its turn, and leaves when none remain. Returns its level's depth."""
    slot = table[at] - 1
    if lots >= orders[slot, LOTS]:
        depth = _leave(orders, levels, counts, slot)
        _forget(orders, table, at)
        orders[slot, AFTER] = counts[FREE]
        counts[FREE] = slot
        counts[ORDERS] -= 1
        return depth
    side = orders[slot, SIDE]
    level = level_at(levels, counts, side, key_of(side, orders[slot, PRICE]))
    orders[slot, LOTS] -= lots
    levels[side, level, SHOWN] -= lots
    return counts[side] - 1 - level


@called
def move_order(orders, table, levels, counts, at, side, price, lots):
    """The order at a place of the table anew, at the end of the queue of its side and price. Returns the depths that it left, came to."""
    slot = table[at] - 1
    left = _leave(orders, levels, counts, slot)
    orders[slot, SIDE] = side
    orders[slot, PRICE] = price
    orders[slot, LOTS] = lots
    level = _join(orders, levels, counts, slot)
    return left, counts[side] - 1 - level


@called
def drop_level(orders, table, levels, counts, side, at):
    """Takes a level out with all of its orders."""
    slot = levels[side, at, FIRST]
    while slot >= 0:
        after = orders[slot, AFTER]
        _forget(orders, table, find_order(orders, table, orders[slot, ID]))
        orders[slot, AFTER] = counts[FREE]
        counts[FREE] = slot
        counts[ORDERS] -= 1
        slot = after
    close_level(levels, counts, side, at)


@called
def clear_book(table, counts):
    """Takes every order out."""
    if counts[FRESH] > 0:
        for i in range(len(table)):
            table[i] = 0
    counts[0] = 0
    counts[1] = 0
    counts[ORDERS] = 0
    counts[FREE] = -1
    counts[FRESH] = 0


def queue(book: Arrays, side: int, price: int) -> list[tuple[int, int]]:
    """(order id, lots) of the known orders at a price, first in the queue first."""
    at = level_at(book.levels, book.counts, side, key_of(side, price))
    if not holds_level(book.levels, book.counts, side, at, key_of(side, price)):
        return []
    found, slot = [], int(book.levels[side, at, FIRST])
    while slot >= 0:
        found.append((int(book.orders[slot, ID]) % 2**64, int(book.orders[slot, LOTS])))
        slot = int(book.orders[slot, AFTER])
    return found


def side_levels(book: Arrays, side: int) -> list[tuple[int, int, int]]:
    """(price, lots shown, known orders) of every level of a side, the best first."""
    held = book.levels[side, : book.counts[side]][::-1]
    return [(int(key_of(side, int(level[KEY]))), int(level[SHOWN]), int(level[COUNT])) for level in held]
