"""What one row of a book shows: its shape, its balance, its centre. Scalar functions, compiled into whoever asks.

Prices are whole ticks (or any integers of one scale), sizes whole lots; a level or a side that is not there shows 0 lots.
"""

from lob.jit import scalar

TWO_SIDED, EMPTY, ONE_SIDED, CROSSED, LOCKED = 0, 1, 2, 3, 4


@scalar
def shape_of(bid, ask, bid_lots, ask_lots):
    """TWO_SIDED, EMPTY, ONE_SIDED, CROSSED (bid > ask) or LOCKED (bid = ask), from the best prices and the lots that they show."""
    if bid_lots == 0 and ask_lots == 0:
        return EMPTY
    if bid_lots == 0 or ask_lots == 0:
        return ONE_SIDED
    if bid > ask:
        return CROSSED
    if bid == ask:
        return LOCKED
    return TWO_SIDED


@scalar
def imbalance(bid_lots, ask_lots):
    """(B - A) / (B + A) in [-1, 1], of one level or of sums over levels; 0 where nothing shows."""
    total = bid_lots + ask_lots
    return (bid_lots - ask_lots) / total if total > 0 else 0.0


@scalar
def microprice_offset(spread, bid_lots, ask_lots):
    """The size-weighted mid (ask x bid lots + bid x ask lots) / (bid lots + ask lots), less the mid, in the units of `spread`."""
    return 0.5 * spread * imbalance(bid_lots, ask_lots)
