"""From ten-level books to hftbacktest's event array: what one row changed, one price at a time.

A row of ours shows the whole book; hftbacktest wants the new size of each price that changed. Only tradable rows change the book (a row in
the middle of an event shows a book that nobody could trade on; one out of session, or crossed, is waited out), and a clear empties it. In
a row, prices that are gone come first, on both sides, then the sizes that are new: the book is never crossed on the way from one row to
the next, which hftbacktest would take for a fill. Prints keep their place in the file; those without an aggressor (auctions) are left out.

**What is lost.** A price that has fallen out of the ten levels is not gone, and what happens to its queue is not shown. It keeps the size
that was last seen until the ten levels reach it again: then the row shows it, or shows that it has left.
"""

from typing import NamedTuple

import numpy as np

from lob.jit import kernel_cpu
from lob.tape import NO_PRICE, Tape

# hftbacktest 2.4: kinds, and flags for who sees an event (exchange, strategy) and for its side.
DEPTH, TRADE, CLEAR, SNAPSHOT = 1, 2, 3, 4
SEEN_BY_BOTH, BUY, SELL = (1 << 31) | (1 << 30), 1 << 29, 1 << 28
EVENT = np.dtype(
    [
        ("ev", "u8"), ("exch_ts", "i8"), ("local_ts", "i8"), ("px", "f8"), ("qty", "f8"),
        ("order_id", "u8"), ("ival", "i8"), ("fval", "f8"),
    ],
    align=True,
)  # fmt: skip


class Converted(NamedTuple):
    events: np.ndarray  # EVENT[n]; `ival` holds the row of the tape
    out_of_sight: int  # how often a price fell out of the ten levels with its size still standing
    low_ticks: int
    high_ticks: int


def to_events(tape: Tape, first: int = 0, last: int | None = None) -> Converted:
    """The rows [first, last) of a book tape whose prints have prices."""
    assert tape.trade_ticks is not None
    rows = slice(first, tape.events if last is None else last)
    tradable = tape.tradable[rows]
    bids, asks = tape.bid_lots[rows][tradable] > 0, tape.ask_lots[rows][tradable] > 0
    seen = np.concatenate([tape.bid_ticks[rows][tradable][bids], tape.ask_ticks[rows][tradable][asks]])
    prints = (tape.trade_side[rows] != 0) & (tape.session[rows] >= 0) & (tape.trade_ticks[rows] != NO_PRICE)
    seen = np.concatenate([seen, tape.trade_ticks[rows][prints]])
    low, high = int(seen.min()), int(seen.max())
    cleared = tape.trusted[rows] & (tape.bid_lots[rows].sum(axis=1) == 0) & (tape.ask_lots[rows].sum(axis=1) == 0)
    words = np.zeros((len(tradable) * 4 + 2 * (high - low + 1) + 64, 5), np.int64)
    books = tape.bid_ticks[rows], tape.bid_lots[rows], tape.ask_ticks[rows], tape.ask_lots[rows]
    printed = tape.trade_side[rows], tape.trade_lots[rows], tape.trade_ticks[rows]
    while True:  # the number of events is known once they are made
        known = np.zeros((2, high - low + 1), np.int64)
        count, hidden = _emit(*books, tradable, cleared, prints, *printed, low, known, words)
        if count <= len(words):
            break
        words = np.zeros((count, 5), np.int64)
    kind, side, ticks, lots, row = words[:count].T
    events = np.zeros(count, EVENT)
    events["ev"] = kind | SEEN_BY_BOTH | np.where(side > 0, BUY, np.where(side < 0, SELL, 0))
    events["exch_ts"], events["local_ts"] = tape.ts_event_ns[rows][row], tape.ts_recv_ns[rows][row]
    events["px"] = ticks * float(tape.instrument.tick)
    events["qty"], events["ival"] = lots, row + first
    return Converted(events, hidden, low, high)


@kernel_cpu
def _put(words, count, kind, side, ticks, lots, row):
    if count < len(words):
        words[count, 0], words[count, 1], words[count, 2], words[count, 3], words[count, 4] = kind, side, ticks, lots, row
    return count + 1


@kernel_cpu
def _shown(ticks, lots, row, price):
    """Lots that a row shows at a price."""
    for level in range(ticks.shape[1]):
        if lots[row, level] > 0 and ticks[row, level] == price:
            return lots[row, level]
    return 0


@kernel_cpu
def _emit(bid_ticks, bid_lots, ask_ticks, ask_lots, tradable, cleared, prints, trade_side, trade_lots, print_ticks, low, known, words):
    """(events, prices that fell out of sight). `known[side, tick - low]`: the size last seen."""
    count, hidden, started = 0, 0, False
    levels = bid_ticks.shape[1]
    size = known.shape[1]
    reach = np.array([low + size, low - 1])  # the worst price of each side that the last row showed
    best = np.array([low - 1, low + size])  # the best known price of each side
    for row in range(len(tradable)):
        if prints[row] and started:
            count = _put(words, count, TRADE, trade_side[row], print_ticks[row], trade_lots[row], row)
        if cleared[row] and started:
            count = _put(words, count, CLEAR, 0, 0, 0, row)
            known[:] = 0
            best[0], best[1] = low - 1, low + size
        if not tradable[row]:
            continue
        kind = DEPTH if started else SNAPSHOT
        started = True
        for side in range(2):  # gone: known, in sight, and not shown
            ticks, lots = (bid_ticks, bid_lots) if side == 0 else (ask_ticks, ask_lots)
            step = -1 if side == 0 else 1
            shown = levels
            while shown > 0 and lots[row, shown - 1] == 0:
                shown -= 1
            worst = ticks[row, shown - 1] if shown == levels else (low if side == 0 else low + size - 1)
            price = best[side]
            while 0 <= price - low < size and (price - worst) * step <= 0:
                if known[side, price - low] > 0 and _shown(ticks, lots, row, price) == 0:
                    count = _put(words, count, DEPTH, -step, price, 0, row)
                    known[side, price - low] = 0
                price += step
            if (reach[side] - worst) * step > 0:  # less deep than before: what stood beyond is out of sight
                while 0 <= price - low < size and (price - reach[side]) * step <= 0:
                    hidden += known[side, price - low] > 0
                    price += step
            reach[side] = worst
        for side in range(2):
            ticks, lots = (bid_ticks, bid_lots) if side == 0 else (ask_ticks, ask_lots)
            step = -1 if side == 0 else 1
            for level in range(levels):
                if lots[row, level] > 0 and known[side, ticks[row, level] - low] != lots[row, level]:
                    count = _put(words, count, kind, -step, ticks[row, level], lots[row, level], row)
                    known[side, ticks[row, level] - low] = lots[row, level]
            best[side] = ticks[row, 0]
    return count, hidden
