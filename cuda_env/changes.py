"""What each row of a book changes, in a few numbers, made once for a tape: most rows concern no order of a lane, which then passes them by
(`cuda_env.interest`; docs/exchange.md, "Rows that concern nobody")."""

import numpy as np

from lob.jit import kernel_cpu

CHANGES = ("bid_low", "bid_high", "bid_edge", "ask_low", "ask_high", "ask_edge", "standing", "unused")
"""Columns of a row's changes, int32: eight of them, so that no row straddles two cache lines.

Against the tradable row before it, sizes that both rows have in sight differ at prices from `low` to `high` at most; a bid at or below
`bid_edge`, an ask at or above `ask_edge` came in sight or went out of it. A print counts as a size at its price on its aggressor's side:
`bid_high` of a buy, `ask_low` of a sell. `standing` is the last trusted row up to this one, -1: none."""

BID_LOW, BID_HIGH, BID_EDGE, ASK_LOW, ASK_HIGH, ASK_EDGE, STANDING, _ = range(len(CHANGES))

BOTTOM, TOP = -(2**31), 2**31 - 1
"""At or beyond every price of an int32."""


@kernel_cpu
def row_changes(bid_ticks, bid_lots, ask_ticks, ask_lots, tradable, trusted, print_side, trade_ticks):
    """int32[E, 8]: `CHANGES` of every row. `print_side`: the aggressor's, of prints that can fill an order, else 0."""
    changes = np.zeros((len(tradable), len(CHANGES)), np.int32)
    before = standing = -1
    for event in range(len(tradable)):
        row = changes[event]
        row[BID_LOW], row[BID_HIGH], row[BID_EDGE] = TOP, BOTTOM, BOTTOM
        row[ASK_LOW], row[ASK_HIGH], row[ASK_EDGE] = TOP, BOTTOM, TOP
        if tradable[event]:
            row[BID_LOW], row[BID_HIGH], row[BID_EDGE] = _side_changes(bid_ticks, bid_lots, before, event, 1)
            row[ASK_LOW], row[ASK_HIGH], row[ASK_EDGE] = _side_changes(ask_ticks, ask_lots, before, event, -1)
            before = event
        if print_side[event] > 0:
            row[BID_HIGH] = max(row[BID_HIGH], trade_ticks[event])
        if print_side[event] < 0:
            row[ASK_LOW] = min(row[ASK_LOW], trade_ticks[event])
        if trusted[event]:
            standing = event
        row[STANDING] = standing
    return changes


@kernel_cpu
def _edge(ticks, lots, event, side, none):
    """(price of the last level of a full row, else `none`; whether its prices get worse from level to level, without a hole)."""
    levels = ticks.shape[1]
    shown = 0
    for level in range(levels):
        if lots[event, level] > 0:
            if shown < level or (level > 0 and (int(ticks[event, level]) - int(ticks[event, level - 1])) * side >= 0):
                return none, False
            shown += 1
    return (int(ticks[event, levels - 1]) if shown == levels else none), True


@kernel_cpu
def _side_changes(ticks, lots, before, event, side):
    """(low, high, edge) of a side between two rows; `low` above `high` when nothing in sight of both changed."""
    far, near = (BOTTOM, TOP) if side > 0 else (TOP, BOTTOM)
    if before < 0:
        return BOTTOM, TOP, near
    edge_before, plain_before = _edge(ticks, lots, before, side, far)
    edge_after, plain_after = _edge(ticks, lots, event, side, far)
    if not plain_before or not plain_after:
        return BOTTOM, TOP, near
    sight = max(edge_before, edge_after) if side > 0 else min(edge_before, edge_after)
    levels = ticks.shape[1]
    low, high = TOP, BOTTOM
    one = two = 0
    while True:
        has_one, has_two = one < levels and lots[before, one] > 0, two < levels and lots[event, two] > 0
        if not has_one and not has_two:
            break
        price_one, price_two = int(ticks[before, one]) if has_one else far, int(ticks[event, two]) if has_two else far
        ahead = (price_one - price_two) * side
        price = price_one if ahead >= 0 else price_two
        if (price - sight) * side < 0:
            break
        if ahead != 0 or lots[before, one] != lots[event, two]:
            low, high = min(low, price), max(high, price)
        if ahead >= 0:
            one += 1
        if ahead <= 0:
            two += 1
    return low, high, (far if edge_before == edge_after else sight - side)
