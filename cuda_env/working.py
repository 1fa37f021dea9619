"""Orders that work in the book: a lane's few of them, their place in the queue, and what the lane has consumed. docs/exchange.md.

They live in rows of the lane's state behind those of `cuda_env.state`: SLOTS orders of `ORDER` fields each, then `LANE`, then what was
taken: for buys and for sells TAKEN_LEVELS pairs of (price, lots).
"""

from cuda_env import arrays as a
from cuda_env import state as s
from cuda_env.exchange import row_id
from lob.jit import scalar
from lob.philox import draw

SLOTS = 4
"""Orders that a lane can have: two of a side for a script that quotes both (one being cancelled, one on its way)."""

FAR = 2**62
"""A time that never comes; the limit of an order that has none."""

FREE, IN_FLIGHT, WAITING, RESTING = range(4)
"""Phases: the slot is free; sent and not yet arrived; arrived where no tradable book stood; in the book."""

POST, TAKE, SWEEP = range(3)
"""Styles: a post-only limit order; a market order, whose rest expires; a stop, whose rest goes on to the next rows."""

NO_CHANGE, CANCEL, CROSS, MODIFY = range(4)
"""What is on its way to an order, one at a time."""

ORDER = (
    "phase", "style", "side", "limit", "asked", "lots", "left", "ahead", "joined", "shown", "printed", "arrival", "accepted", "change",
    "change_at", "change_lots", "change_limit", "submitted", "id", "reason", "bin", "kind", "picked_kind", "urgency", "target",
)  # fmt: skip
"""Fields of an order. `ahead` is in 1/ONE of a lot; `joined` are the lots ahead when it was accepted, -1 before; `shown` is what its price
last displayed, UNSEEN when it was not in sight; `printed` what was printed there since; `target` the position that it is to reach."""

(
    PHASE, STYLE, SIDE, LIMIT, ASKED, ORDER_LOTS, LEFT, AHEAD, JOINED, SHOWN, PRINTED, ARRIVAL, ACCEPTED, CHANGE, CHANGE_AT, CHANGE_LOTS,
    CHANGE_LIMIT, SUBMITTED, ID, REASON, BIN, KIND, PICKED_KIND, URGENCY, TARGET,
) = range(len(ORDER))  # fmt: skip

LANE = ("next_event", "due", "taken_buys", "taken_sells", "played_ns")
"""Fields of the lane: the row that the exchange comes to next, the earliest time at which something of the
lane arrives, how many prices it has taken from, and the time of the decision before the last."""

TAKEN_LEVELS = 10
"""Prices of a side of which the lane knows what it took: no more are displayed."""

_FIRST = len(s.FIELDS)
_LANE_FIRST = _FIRST + SLOTS * len(ORDER)
NEXT, DUE, TAKEN_BUYS, TAKEN_SELLS, PLAYED_NS = (_LANE_FIRST + i for i in range(len(LANE)))
_TAKEN_FIRST = _LANE_FIRST + len(LANE)
ORDER_FIELDS = len(ORDER)
FIELDS = SLOTS * len(ORDER) + len(LANE) + 4 * TAKEN_LEVELS
"""Rows of state that orders in the book add."""

ONE = 2**16
"""A lot, in the unit of `ahead`: shares of a decrease are fractions of lots."""

ALMOST_NONE = ONE // 256
"""Less than this ahead counts as nothing: what rounding down has left of a queue that is gone."""

UNSEEN = -1
"""Lots displayed at a price that is out of sight, behind the last level of a full book."""

UNKNOWN = 2**31 * ONE
"""`ahead` of an order whose price was out of sight when it was accepted: longer than any queue."""

ENTRY_PURPOSE, CANCEL_PURPOSE, ACK_PURPOSE = 0x656E7472, 0x63616E63, 0x61636B6E
"""Philox streams of the latencies ("entr", "canc", "ackn"): by lane and order, the last by lane and decision."""

PLACES = 20
"""Bits of the fraction between two quantiles, and of the share of a decrease."""


def initial_values() -> list[int]:
    """What the FIELDS rows hold before a lane's first step, and after a reset. `next_event` -1: not begun."""
    values = [0] * FIELDS
    values[NEXT - _FIRST] = -1
    values[DUE - _FIRST] = FAR
    return values


@scalar
def at(slot, field):
    """Row of state of an order's field."""
    return _FIRST + slot * ORDER_FIELDS + field


@scalar
def latency(lane, number, purpose, begin, count, params):
    """Nanoseconds drawn from `count` quantiles in params[begin:], straight lines between them; the only one where there is one."""
    if count == 1:
        return params[begin]
    word, _, _, _ = draw(params[a.LATENCY_SEED], params[a.FIRST_LANE] + lane, number, purpose)
    place = word * (count - 1)
    index = place >> 32
    fraction = (place & 0xFFFFFFFF) >> (32 - PLACES)
    low = params[begin + index]
    return low + ((params[begin + index + 1] - low) * fraction >> PLACES)


@scalar
def entry_latency(lane, number, params):
    """Of the lane's order of this count."""
    return latency(lane, number, ENTRY_PURPOSE, params[a.ENTRY_AT], params[a.ENTRY_COUNT], params)


@scalar
def cancel_latency(lane, number, params):
    """Of the cancel (or crossing, or change) of the lane's order of this count."""
    return latency(lane, number, CANCEL_PURPOSE, params[a.CANCEL_AT], params[a.CANCEL_COUNT], params)


@scalar
def ack_latency(lane, number, params):
    """Of what the lane knows at its decision of this count."""
    return latency(lane, number, ACK_PURPOSE, params[a.ACK_AT], params[a.ACK_COUNT], params)


@scalar
def due_of(lane, slot, state):
    """When the next thing of an order arrives: itself, or a change of it."""
    phase = state[at(slot, PHASE), lane]
    if phase == FREE:
        return FAR
    if phase == IN_FLIGHT:
        return state[at(slot, ARRIVAL), lane]
    return state[at(slot, CHANGE_AT), lane]


@scalar
def next_due(lane, state):
    """(slot, time) of what arrives next, the older order first at equal times; slot -1 when nothing is on its way."""
    found, when = -1, FAR
    for slot in range(SLOTS):
        due = due_of(lane, slot, state)
        if due < when or (due == when and found >= 0 and state[at(slot, ID), lane] < state[at(found, ID), lane]):
            found, when = slot, due
    return found, when


@scalar
def place(lane, slot, side, style, limit, lots, ts, arrival, reason, kind, picked_kind, urgency, target, params, state):
    """Send an order from a free slot at `ts`, to arrive at `arrival`. `limit` FAR: none."""
    count = state[s.ORDER_COUNT, lane]
    state[s.ORDER_COUNT, lane] = count + 1
    state[at(slot, PHASE), lane] = IN_FLIGHT
    state[at(slot, STYLE), lane] = style
    state[at(slot, SIDE), lane] = side
    state[at(slot, LIMIT), lane] = limit
    state[at(slot, ASKED), lane] = limit
    state[at(slot, ORDER_LOTS), lane] = lots
    state[at(slot, LEFT), lane] = lots
    state[at(slot, AHEAD), lane] = 0
    state[at(slot, JOINED), lane] = -1
    state[at(slot, SHOWN), lane] = UNSEEN
    state[at(slot, PRINTED), lane] = 0
    state[at(slot, ARRIVAL), lane] = arrival
    state[at(slot, ACCEPTED), lane] = arrival
    state[at(slot, CHANGE), lane] = NO_CHANGE
    state[at(slot, CHANGE_AT), lane] = FAR
    state[at(slot, CHANGE_LOTS), lane] = 0
    state[at(slot, CHANGE_LIMIT), lane] = 0
    state[at(slot, SUBMITTED), lane] = ts
    state[at(slot, ID), lane] = row_id(lane, count, params)
    state[at(slot, REASON), lane] = reason
    state[at(slot, BIN), lane] = -1
    state[at(slot, KIND), lane] = kind
    state[at(slot, PICKED_KIND), lane] = picked_kind
    state[at(slot, URGENCY), lane] = urgency
    state[at(slot, TARGET), lane] = target
    state[DUE, lane] = min(state[DUE, lane], arrival)


@scalar
def change(lane, slot, what, when, lots, limit, state):
    """Send a change of an order, to arrive at `when`: it never overtakes the order. One is on its way at a time: a second takes the
    place of the first."""
    state[at(slot, CHANGE), lane] = what
    state[at(slot, CHANGE_AT), lane] = max(when, state[at(slot, ARRIVAL), lane])
    state[at(slot, CHANGE_LOTS), lane] = lots
    state[at(slot, CHANGE_LIMIT), lane] = limit
    _, due = next_due(lane, state)
    state[DUE, lane] = due


@scalar
def cancel(lane, slot, ts, params, state):
    """Send a cancel at `ts`, unless one is on its way."""
    if state[at(slot, CHANGE), lane] != CANCEL:
        count = state[at(slot, ID), lane] & 0xFFFFFFFF
        change(lane, slot, CANCEL, ts + cancel_latency(lane, count, params), 0, 0, state)


@scalar
def modify(lane, slot, lots, limit, ts, params, state):
    """Send at `ts` that the order be of `lots` in all, filled ones included, at `limit`. Fewer lots at the same limit keep their place."""
    count = state[at(slot, ID), lane] & 0xFFFFFFFF
    change(lane, slot, MODIFY, ts + cancel_latency(lane, count, params), lots, limit, state)


@scalar
def shown_at(side, limit, event, market):
    """Lots that a row displays at a price on this side: 0 where it shows none there, UNSEEN behind the last level of a full book."""
    full = True
    for level in range(market.bid_lots.shape[1]):
        if side > 0:
            lots, ticks = market.bid_lots[event, level], market.bid_ticks[event, level]
        else:
            lots, ticks = market.ask_lots[event, level], market.ask_ticks[event, level]
        if lots > 0:
            if ticks == limit:
                return lots
            if (ticks - limit) * side < 0:
                return 0
        else:
            full = False
    return UNSEEN if full else 0


@scalar
def rest(lane, slot, event, ts, market, state):
    """Accept a post-only order at `ts` on the book of `event`: one that would cross is re-priced a tick behind the opposite touch; what is
    displayed at its price stands ahead of it."""
    side, limit = state[at(slot, SIDE), lane], state[at(slot, LIMIT), lane]
    touch = market.ask_ticks[event, 0] if side > 0 else market.bid_ticks[event, 0]
    if (limit - touch) * side >= 0:
        limit = touch - side
    shown = shown_at(side, limit, event, market)
    state[at(slot, LIMIT), lane] = limit
    state[at(slot, SHOWN), lane] = shown
    state[at(slot, AHEAD), lane] = UNKNOWN if shown == UNSEEN else shown * ONE
    if state[at(slot, JOINED), lane] < 0:
        state[at(slot, ACCEPTED), lane] = ts
        state[at(slot, JOINED), lane] = a.LOTS_LIMIT if shown == UNSEEN else shown
    state[at(slot, PRINTED), lane] = 0
    state[at(slot, PHASE), lane] = RESTING


@scalar
def power(base, exponent):
    """base ** exponent for an exponent of 1, 2 or 3."""
    if exponent == 1:
        return base
    if exponent == 2:
        return base * base
    return base * base * base


@scalar
def share_ahead(front, back, exponent):
    """front^n / (front^n + back^n) in 2^-PLACES, rounded down, for a queue that is not empty. Both are first halved until the power
    fits."""
    bits = 42 // exponent
    while max(front, back) >> bits != 0:
        front >>= 1
        back >>= 1
    ahead, behind = power(front, exponent), power(back, exponent)
    return (ahead << PLACES) // (ahead + behind) if ahead > 0 else 0


@scalar
def requeue(lane, slot, shown, params, state):
    """What a new displayed size at an order's price makes of its place. Risk-averse: no more can be ahead than is shown. Else a decrease
    that prints do not explain is shared by back^n / (back^n + front^n) behind it and the rest ahead of it, ahead rounded down."""
    last = state[at(slot, SHOWN), lane]
    if shown == last:
        return
    state[at(slot, SHOWN), lane] = shown
    printed = state[at(slot, PRINTED), lane]
    state[at(slot, PRINTED), lane] = 0
    if shown == UNSEEN:
        return
    ahead = state[at(slot, AHEAD), lane]
    if params[a.QUEUE_MODEL] == a.PROBABLE and last != UNSEEN:
        gone = last - shown - printed
        behind = max(0, last * ONE - ahead)
        if gone > 0 and ahead > 0:
            share = share_ahead(ahead, behind, params[a.QUEUE_POWER])
            moved = gone * share >> (PLACES - 16)
            ahead = max(0, ahead - max(moved, gone * ONE - behind))
    state[at(slot, AHEAD), lane] = min(ahead, shown * ONE)


@scalar
def lots_ahead(lane, slot, state):
    """Whole lots ahead of an order: a part of a lot is one."""
    return (state[at(slot, AHEAD), lane] + (ONE - 1 - ALMOST_NONE)) // ONE


@scalar
def taken_row(side, index, what):
    """Row of state of the price (0) or the lots (1) of something taken."""
    return _TAKEN_FIRST + ((0 if side > 0 else TAKEN_LEVELS) + index) * 2 + what


@scalar
def taken_at(lane, side, ticks, state):
    """Lots that the lane's buys (sells) have consumed of what is displayed at a price."""
    count = state[TAKEN_BUYS if side > 0 else TAKEN_SELLS, lane]
    for index in range(count):
        if state[taken_row(side, index, 0), lane] == ticks:
            return state[taken_row(side, index, 1), lane]
    return 0


@scalar
def note_taken(lane, side, ticks, lots, state):
    """Remember what was consumed at a price until it leaves the book."""
    field = TAKEN_BUYS if side > 0 else TAKEN_SELLS
    count = state[field, lane]
    for index in range(count):
        if state[taken_row(side, index, 0), lane] == ticks:
            state[taken_row(side, index, 1), lane] += lots
            return
    if count < TAKEN_LEVELS:
        state[taken_row(side, count, 0), lane] = ticks
        state[taken_row(side, count, 1), lane] = lots
        state[field, lane] = count + 1


@scalar
def forget_taken(lane, event, market, state):
    """A price that a tradable row no longer displays has left the book: what was consumed there is no more."""
    for which in range(2):
        side = 1 if which == 0 else -1
        field = TAKEN_BUYS if side > 0 else TAKEN_SELLS
        count = state[field, lane]
        kept = 0
        for index in range(count):
            ticks, lots = state[taken_row(side, index, 0), lane], state[taken_row(side, index, 1), lane]
            if shown_at(-side, ticks, event, market) > 0:
                state[taken_row(side, kept, 0), lane] = ticks
                state[taken_row(side, kept, 1), lane] = lots
                kept += 1
        state[field, lane] = kept
