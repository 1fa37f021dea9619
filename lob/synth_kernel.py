"""The loop of the synthetic market (`lob.synth` says what it is and why its laws hold): one event after another into MBP-10 records.

Floats here see only + - * / sqrt and comparisons, which IEEE 754 fixes to the last bit, and every draw is a Philox word: a seed gives the
same bytes on every machine.
"""

import math

import numpy as np

from lob.book import imbalance as displayed_imbalance
from lob.jit import kernel_cpu, scalar
from lob.philox import below, draw

RECORD_WORDS = 46
"""An MBP-10 record (368 bytes) as 64-bit little-endian words: 6 of header and event, then 4 for each of the ten levels."""

LEVELS = 10
MOST_ROWS = 6
"""Rows that one event can take: three prints, the old best level leaves, the new one comes, the closing row."""
SWEEP_PRINTS = 3

DEPTH_PROFILE = np.array([40, 70, 90, 100, 105, 110, 110, 110, 110, 110], np.int64)
"""Lots that a level shows on average, best first."""
_SIDE = 955  # sum of the profile
_BOOK = 2 * _SIDE
_MOST_IMBALANCE = 0.98  # so that each of the ten levels can show a lot

_ADD, _CANCEL, _MODIFY, _TRADE = ord("A"), ord("C"), ord("M"), ord("T")
_ASK, _BID = ord("A"), ord("B")
_F_LAST = 0x80
_UNIT = 1.0 / 4294967296.0
_HALF_LIFE_S = 30.0
_DRIFT_TICKS_PER_S = 0.2
_LN2 = 0.6931471805599453


@scalar
def half_to_the(y):
    """2 to the power -y for y >= 0, by Taylor's series on the fraction and exact halvings: no library function, so the same everywhere."""
    whole = int(min(y, 1100.0))
    x = -_LN2 * (min(y, 1100.0) - whole)
    value = 1.0
    for i in range(18, 0, -1):
        value = 1.0 + value * x / i
    for _ in range(whole):
        value *= 0.5
    return value


@scalar
def signed_unit(word):
    """A 32-bit word as a number in (-1, 1), symmetric about 0."""
    return (2.0 * word + 1.0) * _UNIT - 1.0


@scalar
def print_lots(word, most):
    """Size of a print: uniform in 1..2^(t+1) with t geometric (mean 4.5, at most 128), and no more than `most`."""
    trailing = 0
    while trailing < 6 and word & (1 << trailing):
        trailing += 1
    return min(most, 1 + below(word >> 8 << 8, 2 << trailing))


@scalar
def new_lots(word, level, side_lots):
    """Size of a level that comes into view: its average in a side of `side_lots`, times 1/2 to 3/2."""
    return max(1, int(DEPTH_PROFILE[level]) * side_lots * (512 + below(word, 1024)) // (1024 * _SIDE))


@kernel_cpu
def put(words, row, stamp, action, side, flags, depth, price, size, best_bid, best_ask, bids, asks):
    """Writes one record: an event (price in ticks) and ten levels a side. `stamp` is (event, receive, delta in ns, tick in 1e-9)."""
    ts, recv, delta, tick = stamp
    out = words[row]
    out[1] = ts
    out[2] = price * tick
    out[3] = size | action << 32 | side << 40 | flags << 48 | depth << 56
    out[4] = recv
    out[5] = delta | (row + 1) << 32
    for i in range(LEVELS):
        out[6 + 4 * i] = (best_bid - i) * tick
        out[7 + 4 * i] = (best_ask + i) * tick
        out[8 + 4 * i] = bids[i] | asks[i] << 32
        out[9 + 4 * i] = (bids[i] + 3) // 4 | (asks[i] + 3) // 4 << 32


@kernel_cpu
def touch(words, row, stamp, sign, lots, bid, bids, asks):
    """A print that leaves the price standing, and what it takes from the level; sign of the aggressor. Returns the next row."""
    resting = asks if sign > 0 else bids
    price = bid + 1 if sign > 0 else bid
    put(words, row, stamp, _TRADE, _BID if sign > 0 else _ASK, 0, 0, price, lots, bid, bid + 1, bids, asks)
    resting[0] -= lots
    put(words, row + 1, stamp, _CANCEL, _ASK if sign > 0 else _BID, 0, 0, price, lots, bid, bid + 1, bids, asks)
    return row + 2


@kernel_cpu
def sweep(words, row, stamp, moved, print_words, size_words, bid, bids, asks):
    """The book moves by `moved` ticks: at most three of the levels swept print, all leave, the other side follows. Returns next row."""
    up = moved > 0
    count = abs(moved)
    swept = asks if up else bids
    following = bids if up else asks
    best = bid + 1 if up else bid
    for i in range(min(count, SWEEP_PRINTS)):
        price = best + i if up else best - i
        lots = print_lots(print_words[i], swept[i])
        put(words, row, stamp, _TRADE, _BID if up else _ASK, 0, i, price, lots, bid, bid + 1, bids, asks)
        row += 1
    gone, total = swept[0], swept.sum()
    for i in range(LEVELS):
        swept[i] = swept[i + count] if i + count < LEVELS else new_lots(size_words[i & 3], i, total)
    bid_between = bid if up else bid + moved
    ask_between = bid + 1 + moved if up else bid + 1
    put(words, row, stamp, _CANCEL, _ASK if up else _BID, 0, 0, best, gone, bid_between, ask_between, bids, asks)
    total = following.sum()
    for i in range(LEVELS - 1, -1, -1):
        following[i] = following[i - count] if i - count >= 0 else new_lots(size_words[3 - (i & 3)], i, total)
    bid += moved
    price = bid if up else bid + 1
    put(words, row + 1, stamp, _ADD, _BID if up else _ASK, 0, 0, price, following[0], bid, bid + 1, bids, asks)
    return row + 2


@kernel_cpu
def rescale(lots, total, start):
    """Brings a side's ten levels to `total` lots (at least ten) in proportion, each at least one."""
    before = lots.sum()
    rest = total
    for i in range(LEVELS):
        lots[i] = max(1, lots[i] * total // before)
        rest -= lots[i]
    i = start
    while rest != 0:
        if rest > 0:
            lots[i] += 1
            rest -= 1
        elif lots[i] > 1:
            lots[i] -= 1
            rest += 1
        i = (i + 1) % LEVELS


@scalar
def totals_for(imbalance, bid_lots, ask_lots):
    """(bid lots, ask lots) that show the imbalance: one side changes, whichever keeps the book nearer to its usual depth, else both do."""
    bids = int(ask_lots * (1.0 + imbalance) / (1.0 - imbalance) + 0.5)
    asks = int(bid_lots * (1.0 - imbalance) / (1.0 + imbalance) + 0.5)
    if abs(bids + ask_lots - _BOOK) <= abs(bid_lots + asks - _BOOK):
        asks = ask_lots
    else:
        bids = bid_lots
    if bids < LEVELS or asks < LEVELS or 2 * (bids + asks) < _BOOK or bids + asks > 2 * _BOOK:
        bids = int(_SIDE * (1.0 + imbalance) + 0.5)
        asks = _BOOK - bids
    return bids, asks


@kernel_cpu
def change_level(lots, delta, word):
    """Adds delta lots to (or cancels them from) one of two levels drawn, the one further from the profile; -1 when neither can bear it."""
    i = below(word & 0xFFFF, LEVELS << 16)
    j = below(word >> 16, LEVELS << 16)
    fuller = i if lots[i] * DEPTH_PROFILE[j] >= lots[j] * DEPTH_PROFILE[i] else j
    level = (i + j - fuller) if delta > 0 else fuller
    if lots[level] + delta < 1 or lots[level] + delta > 4 * DEPTH_PROFILE[level]:
        return -1
    lots[level] += delta
    return level


@kernel_cpu
def close(words, row, stamp, opens, imbalance, word, bid, bids, asks):
    """The row that ends an event: it brings the displayed imbalance to the hidden one, by one level of one side where that can be."""
    bid_lots, ask_lots = bids.sum(), asks.sum()
    want_bid, want_ask = totals_for(imbalance, bid_lots, ask_lots)
    changes_bid = want_bid != bid_lots
    change = want_bid - bid_lots if changes_bid else want_ask - ask_lots
    level = -1
    if not opens and change != 0 and (not changes_bid or want_ask == ask_lots):
        level = change_level(bids if changes_bid else asks, change, word)
    action = _ADD if opens or (level >= 0 and change > 0) else _CANCEL if level >= 0 else _MODIFY
    size = abs(change)
    if level < 0:
        rescale(bids, want_bid, below(word, LEVELS))
        rescale(asks, want_ask, below(word, LEVELS))
        level = 0
        size = bids[0] if changes_bid else asks[0]
    price = bid - level if changes_bid else bid + 1 + level
    put(words, row, stamp, action, _BID if changes_bid else _ASK, _F_LAST, level, price, size, bid, bid + 1, bids, asks)


@kernel_cpu
def generate(words, fair, imbalance, seed, date, edge, open_ns, span_ns, cumulative, start_ticks, tick):
    """Fills words int64[n, 46] (but for word 0, the record header), and the hidden fair[n] in ticks and imbalance[n] at each row's event.

    `cumulative` float64[h+1] is the share of rows before each of the session's h equal parts; `edge` is K.
    """
    n = len(words)
    parts = len(cumulative) - 1
    bids = DEPTH_PROFILE.copy()
    asks = DEPTH_PROFILE.copy()
    part = 0
    row = 0
    event = 0
    ts = open_ns - 1
    recv = open_ns
    value = float(start_ticks)
    bid = start_ticks
    hidden = 0.0
    while row < n:
        first = row
        u0, u1, u2, u3 = draw(seed, date, event, 0)
        v0, v1, v2, v3 = draw(seed, date, event, 1)

        # When: the rows' positions spread over the session by the hour's share. It depends on nothing hidden.
        position = (row + u0 * _UNIT) / n
        while part < parts - 1 and position >= cumulative[part + 1]:
            part += 1
        within = (position - cumulative[part]) / (cumulative[part + 1] - cumulative[part])
        previous = ts
        ts = max(previous + 1, open_ns + int((part + within) / parts * span_ns))
        delay = 20_000 + below(u1, 80_000)
        recv = max(recv, ts + delay)
        stamp = (ts, recv, delay // 4, tick)
        elapsed_s = (ts - previous) * 1e-9

        # The imbalance: a coordinate of a point that turns on the 3-sphere; AR(1), bounded, standard deviation 1/2 exactly.
        shown = displayed_imbalance(bids.sum(), asks.sum())
        if event == 0:
            k = 1
            hidden = signed_unit(u2)
            other = signed_unit(u3)
            while hidden * hidden + other * other >= 1.0:  # x of a point of the unit disc: the stationary law
                w0, w1, _w2, _w3 = draw(seed, date, k, 3)
                hidden = signed_unit(w0)
                other = signed_unit(w1)
                k += 1
            value += v0 * _UNIT
        else:
            kept = half_to_the(elapsed_s / _HALF_LIFE_S)
            hidden = kept * hidden + math.sqrt((1.0 - kept * kept) * (1.0 - hidden * hidden)) * signed_unit(u2)
        hidden = min(_MOST_IMBALANCE, max(-_MOST_IMBALANCE, hidden))

        # The fair value, the prints that its path makes, and the move of the book. The last few rows leave it where it is.
        if event > 0 and n - row >= MOST_ROWS:
            start = value + edge * _DRIFT_TICKS_PER_S * shown * elapsed_s
            reach = math.sqrt(3.0 * elapsed_s)
            value = start + reach * signed_unit(u3)
            moved = math.floor(value) - bid
            if moved == 0:
                if value <= 2 * bid - start + reach and bids[0] > 1:
                    row = touch(words, row, stamp, -1, print_lots(v0, bids[0] - 1), bid, bids, asks)
                if value >= 2 * (bid + 1) - start - reach and asks[0] > 1:
                    row = touch(words, row, stamp, 1, print_lots(v1, asks[0] - 1), bid, bids, asks)
            else:
                row = sweep(words, row, stamp, moved, (v0, v1, v2), draw(seed, date, event, 2), bid, bids, asks)
                bid += moved

        close(words, row, stamp, event == 0, hidden, v3, bid, bids, asks)
        row += 1
        for i in range(first, row):
            fair[i] = value
            imbalance[i] = hidden
        event += 1
    return event
