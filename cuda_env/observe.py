"""The one assembler of observations: the market's template row, then the lane's own slots. Train, eval and replay call it.

Every lane slot is one float64 division of two integers (exact as float64: below 2^53), rounded once to float32: plain Python, njit and
CUDA give the same bits.
"""

from cuda_env import arrays as a
from cuda_env import state as s
from cuda_env.physics import PPM, margin_cap_lots, unrealized
from lob.jit import scalar
from lob.layout import LANE, LANE_SLOTS, STATE_DIM

TICKS_UNIT = 32
"""Slots in ticks are in units of 32 ticks (eight ES points), which keeps an ordinary excursion below 1."""
TICKS_CLIP = 8 * TICKS_UNIT
"""and stop at 8 units: a gap must not swamp a network."""
HELD_HALF = 60
"""Decisions held at which `held` is one half."""
TRADES_HALF = 10
"""Closed trades at which `trades_closed` is one half: the seed's maturity (C5) as a smooth share."""

SLOT_COUNT = len(LANE_SLOTS)


@scalar
def clip(value, limit):
    """value within +-limit."""
    return max(-limit, min(limit, value))


@scalar
def lane_slots(lane, cursor, mid2, params, state, row, first):
    """Fill float32 cells first..first + 15 of `row`, an observation's slots from LANE on, from the lane's state, in the order of
    `lob.layout.LANE_SLOTS`."""
    position, equity, capital = state[s.POSITION, lane], state[s.EQUITY, lane], params[a.INITIAL]
    max_lots = params[a.MAX_LOTS]
    size = abs(position)
    sign = 1 if position > 0 else (-1 if position < 0 else 0)
    open_ticks2, trail2, held, locked = 0, 0, 0, 0
    if size > 0:
        open_ticks2 = clip(unrealized(position, state[s.COST, lane], mid2, 2) // size, 2 * TICKS_CLIP)
        if params[a.TRAIL_TICKS] > 0 and state[s.TRAIL, lane] != s.NONE_MID2:
            trail2 = clip(abs(mid2 - state[s.TRAIL, lane]), 2 * TICKS_CLIP)
        held = cursor - state[s.OPENED_AT, lane]
        locked = max(0, params[a.PLAN_LOCK] - held)
    decided = state[s.WINS, lane] + state[s.LOSSES, lane]
    row[first + 0] = position / max_lots
    row[first + 1] = sign
    row[first + 2] = open_ticks2 / (2 * TICKS_UNIT)
    row[first + 3] = (equity - capital) / capital
    row[first + 4] = (state[s.PEAK_EQUITY, lane] - equity) / capital
    row[first + 5] = (equity - params[a.FLOOR]) / capital
    row[first + 6] = trail2 / (2 * TICKS_UNIT)
    row[first + 7] = held / (held + HELD_HALF)
    row[first + 8] = (state[s.CASH, lane] - capital) / capital
    row[first + 9] = min(margin_cap_lots(equity, params[a.MARGIN]), max_lots) / max_lots
    row[first + 10] = state[s.KELLY, lane] / PPM
    row[first + 11] = state[s.WINS, lane] / max(1, decided)
    row[first + 12] = state[s.TRADES, lane] / (state[s.TRADES, lane] + TRADES_HALF)
    row[first + 13] = locked / max(1, params[a.PLAN_LOCK])
    row[first + 14] = state[s.LAST_DIRECTION, lane]
    row[first + 15] = state[s.FEES, lane] / capital


@scalar
def market_slots(cursor, first, stride, features, row):
    """Copy slots first, first + stride, ... of the market's template row; the lane's slots are left alone."""
    for slot in range(first, LANE, stride):
        row[slot] = features[cursor, slot]
    for slot in range(LANE + SLOT_COUNT + first, STATE_DIM, stride):
        row[slot] = features[cursor, slot]


@scalar
def observe_lane(lane, features, plan, params, state, row):
    """One lane's observation: the template row of its cursor (its lane slots are 0 there), then the lane's slots."""
    cursor = state[s.CURSOR, lane]
    market_slots(cursor, 0, 1, features, row)
    lane_slots(lane, cursor, plan[cursor, a.MARK_MID2], params, state, row, LANE)
