"""What a lane waits for in the book. A row that changes, prints and displays none of it leaves the lane as it was, and is passed by:
docs/exchange.md, "Rows that concern nobody"."""

from cuda_env import arrays as a
from cuda_env import changes as c
from cuda_env import state as s
from cuda_env import working as w
from lob.jit import scalar

NOTHING = (w.FAR, -w.FAR, w.FAR, -w.FAR, -w.FAR, w.FAR)
"""`interest` of a lane that waits for nothing."""

NO_STOP = (-w.FAR, w.FAR)
"""`stop_band` of a lane without a position."""


@scalar
def standing_before(event, market):
    """The last trusted row before a row, -1: none."""
    return market.changes[event - 1, c.STANDING] if event > 0 else -1


@scalar
def interest(lane, state):
    """(from, to) of the bids whose sizes matter to a lane, its own and those that its sells consumed; (from, to) of the asks; the ask at
    or below which its best buy is met, and the bid at or above which its best sell is. An order that waits for a book is met by any row."""
    bid_from, bid_to, ask_from, ask_to, buy, sell = NOTHING
    for slot in range(w.SLOTS):
        phase = state[w.at(slot, w.PHASE), lane]
        if phase == w.RESTING:
            limit = state[w.at(slot, w.LIMIT), lane]
            if state[w.at(slot, w.SIDE), lane] > 0:
                bid_from, bid_to, buy = min(bid_from, limit), max(bid_to, limit), max(buy, limit)
            else:
                ask_from, ask_to, sell = min(ask_from, limit), max(ask_to, limit), min(sell, limit)
        elif phase == w.WAITING:
            buy, sell = w.FAR, -w.FAR
    for index in range(state[w.TAKEN_SELLS, lane]):
        ticks = state[w.taken_row(-1, index, 0), lane]
        bid_from, bid_to = min(bid_from, ticks), max(bid_to, ticks)
    for index in range(state[w.TAKEN_BUYS, lane]):
        ticks = state[w.taken_row(1, index, 0), lane]
        ask_from, ask_to = min(ask_from, ticks), max(ask_to, ticks)
    return bid_from, bid_to, ask_from, ask_to, buy, sell


@scalar
def concerns(event, wants, market):
    """Whether a row changes, prints or displays something that a lane waits for."""
    bid_from, bid_to, ask_from, ask_to, buy, sell = wants
    bid_low, bid_high = market.changes[event, c.BID_LOW], market.changes[event, c.BID_HIGH]
    ask_low, ask_high = market.changes[event, c.ASK_LOW], market.changes[event, c.ASK_HIGH]
    at_bid = (bid_low <= bid_to and bid_high >= bid_from) or market.changes[event, c.BID_EDGE] >= bid_from
    at_ask = (ask_low <= ask_to and ask_high >= ask_from) or market.changes[event, c.ASK_EDGE] <= ask_to
    return at_bid or at_ask or ask_low <= buy or bid_high >= sell


@scalar
def stop_band(lane, watch, params, state):
    """(low, high): the floor or the trail is met where bid + ask of a tradable row is at or below `low`, or at or above `high`."""
    position = state[s.POSITION, lane]
    if not watch or position == 0:
        return NO_STOP
    size = abs(position)
    room = (params[a.FLOOR] - state[s.CASH, lane]) // (params[a.TICK_VALUE] // 2) + 2 * state[s.COST, lane]
    trail = state[s.TRAIL, lane] if params[a.TRAIL_TICKS] > 0 else s.NONE_MID2
    if position > 0:
        low = room // size
        return low if trail == s.NONE_MID2 else max(low, trail), w.FAR
    high = -(room // size)
    return -w.FAR, high if trail == s.NONE_MID2 else min(high, trail)


@scalar
def stopped(event, stops, market):
    """Whether a tradable row meets the floor or the trail."""
    if (stops[0] == -w.FAR and stops[1] == w.FAR) or market.marks[event] & a.TRADABLE == 0:
        return False
    mid2 = market.bid_ticks[event, 0] + market.ask_ticks[event, 0]
    return mid2 <= stops[0] or mid2 >= stops[1]
