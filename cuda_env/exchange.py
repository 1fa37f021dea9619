"""The exchange: a market order walks the levels of one row; every fill is booked at average cost, remainders kept with the open lots."""

from typing import Any, NamedTuple

from cuda_env import state as s
from cuda_env.arrays import (
    FAULT_MONEY,
    FAULT_SLOTS,
    FEE,
    FILLS_WRITTEN,
    FIRST_LANE,
    MAX_LOTS,
    ORDERS_WRITTEN,
    TICK_VALUE,
    TRADES_WRITTEN,
)
from cuda_env.config import MONEY_LIMIT_USD_MICROS
from cuda_env.physics import kelly_ppm, magnitude_bin, share
from lob.jit import scalar

IDS_PER_LANE = 2**32
"""An id is `lane * 2^32 + count`, the lane counted over all processes."""


class Order(NamedTuple):
    """An order while it is being executed."""

    id: Any
    side: Any  # +1 buy, -1 sell
    reason: Any  # FillReason
    bin: Any  # magnitude bin of the position before the order
    ts_submitted: Any
    fee: Any  # per lot, micro-dollars
    ahead: Any  # lots that stood before it in the queue when it was accepted; -1 for one that takes


@scalar
def row_id(lane, count, params):
    """Id of a lane's order, fill or trade."""
    return (params[FIRST_LANE] + lane) * IDS_PER_LANE + count


@scalar
def new_order(lane, side, reason, ts_submitted, params, state):
    """Take the lane's next order id."""
    count = state[s.ORDER_COUNT, lane]
    state[s.ORDER_COUNT, lane] = count + 1
    size_bin = magnitude_bin(state[s.POSITION, lane], params[MAX_LOTS])
    return Order(row_id(lane, count, params), side, reason, size_bin, ts_submitted, params[FEE], -1)


@scalar
def log_order(lane, order, ts_event, picked_kind, urgency, lots, filled, state, out):
    """Write the order's row, if orders are emitted."""
    if out.orders.shape[0] == 0:
        return
    slot = out.counts[ORDERS_WRITTEN, lane]
    if slot >= out.orders.shape[1]:
        out.fault[lane] = FAULT_SLOTS
        return
    out.counts[ORDERS_WRITTEN, lane] = slot + 1
    ended = 2
    if filled == lots:
        ended = 0
    elif filled > 0:
        ended = 1
    out.orders[lane, slot, 0] = state[s.CLOCK, lane]
    out.orders[lane, slot, 1] = state[s.EPISODE, lane]
    out.orders[lane, slot, 2] = order.id
    out.orders[lane, slot, 3] = order.ts_submitted
    out.orders[lane, slot, 4] = ts_event
    out.orders[lane, slot, 5] = order.side
    out.orders[lane, slot, 6] = 0
    out.orders[lane, slot, 7] = picked_kind
    out.orders[lane, slot, 8] = urgency
    out.orders[lane, slot, 9] = lots
    out.orders[lane, slot, 10] = filled
    out.orders[lane, slot, 11] = order.reason
    out.orders[lane, slot, 12] = ended
    if out.orders.shape[2] > 13:
        out.orders[lane, slot, 13] = s.NONE_MID2
        out.orders[lane, slot, 14] = s.NONE_MID2
        out.orders[lane, slot, 15] = ts_event
        out.orders[lane, slot, 16] = -1


@scalar
def log_fill(lane, order, fill_id, lots, price, fee, event, level, ts_filled, state, out):
    """Write the fill's row, if fills are emitted."""
    if out.fills.shape[0] == 0:
        return
    slot = out.counts[FILLS_WRITTEN, lane]
    if slot >= out.fills.shape[1]:
        out.fault[lane] = FAULT_SLOTS
        return
    out.counts[FILLS_WRITTEN, lane] = slot + 1
    out.fills[lane, slot, 0] = state[s.CLOCK, lane]
    out.fills[lane, slot, 1] = state[s.EPISODE, lane]
    out.fills[lane, slot, 2] = fill_id
    out.fills[lane, slot, 3] = order.id
    out.fills[lane, slot, 4] = order.ts_submitted
    out.fills[lane, slot, 5] = ts_filled
    out.fills[lane, slot, 6] = order.side
    out.fills[lane, slot, 7] = lots
    out.fills[lane, slot, 8] = price
    out.fills[lane, slot, 9] = fee
    out.fills[lane, slot, 10] = order.reason
    out.fills[lane, slot, 11] = event
    out.fills[lane, slot, 12] = level
    if out.fills.shape[2] > 13:
        out.fills[lane, slot, 13] = order.ahead


@scalar
def log_trade(lane, order, fill_id, lots, cost_out, price, realized, fee, ts_filled, params, state, out):
    """Write the row of a closed part, if trades are emitted. Excursions are those of these lots at the marks since the opening and at the
    exit."""
    if out.trades.shape[0] == 0:
        return
    slot = out.counts[TRADES_WRITTEN, lane]
    if slot >= out.trades.shape[1]:
        out.fault[lane] = FAULT_SLOTS
        return
    out.counts[TRADES_WRITTEN, lane] = slot + 1
    signed = -order.side * lots
    half_tick = params[TICK_VALUE] // 2
    at_exit = 2 * (signed * price - cost_out) * half_tick
    best, worst = max(0, at_exit), min(0, at_exit)
    if state[s.HIGH, lane] != s.NONE_MID2:
        at_high = (signed * state[s.HIGH, lane] - 2 * cost_out) * half_tick
        at_low = (signed * state[s.LOW, lane] - 2 * cost_out) * half_tick
        best = max(best, max(at_high, at_low))
        worst = min(worst, min(at_high, at_low))
    out.trades[lane, slot, 0] = state[s.CLOCK, lane]
    out.trades[lane, slot, 1] = state[s.EPISODE, lane]
    out.trades[lane, slot, 2] = row_id(lane, state[s.TRADE_COUNT, lane], params)
    out.trades[lane, slot, 3] = fill_id
    out.trades[lane, slot, 4] = state[s.OPENED_NS, lane]
    out.trades[lane, slot, 5] = ts_filled
    out.trades[lane, slot, 6] = -order.side
    out.trades[lane, slot, 7] = lots
    out.trades[lane, slot, 8] = cost_out
    out.trades[lane, slot, 9] = price
    out.trades[lane, slot, 10] = state[s.CURSOR, lane] - state[s.OPENED_AT, lane]
    out.trades[lane, slot, 11] = best
    out.trades[lane, slot, 12] = worst
    out.trades[lane, slot, 13] = order.bin
    out.trades[lane, slot, 14] = realized
    out.trades[lane, slot, 15] = fee
    out.trades[lane, slot, 16] = order.reason


@scalar
def count_trade(lane, realized, state):
    """Add a closed trade row to the Kelly statistics; a zero counts as neither."""
    if realized > 0:
        state[s.WINS, lane] += 1
        state[s.SUM_WIN, lane] += realized
    elif realized < 0:
        state[s.LOSSES, lane] += 1
        state[s.SUM_LOSS, lane] -= realized
    state[s.KELLY, lane] = kelly_ppm(state[s.WINS, lane], state[s.LOSSES, lane], state[s.SUM_WIN, lane], state[s.SUM_LOSS, lane])
    state[s.TRADES, lane] += 1
    state[s.TRADE_COUNT, lane] += 1


@scalar
def book_fill(lane, order, lots, price, event, level, ts_filled, params, state, out):
    """Book `lots` at `price` (ticks): close what opposes, open the rest. Cash moves by the closed difference minus the fee.

    A fill that straddles zero is one fill and one trade; its fee splits by lots. Cost and entry fees leave in floored shares, and the
    remainder stays with the open lots, so that a position that ends flat has given back every micro-dollar.
    """
    position = state[s.POSITION, lane]
    fee = lots * order.fee
    fill_id = row_id(lane, state[s.FILL_COUNT, lane], params)
    state[s.FILL_COUNT, lane] += 1
    log_fill(lane, order, fill_id, lots, price, fee, event, level, ts_filled, state, out)
    gross = 0
    opened = lots
    if position * order.side < 0:
        size = abs(position)
        closed = min(lots, size)
        opened = lots - closed
        cost_out = share(state[s.COST, lane], closed, size)
        entry_fee = share(state[s.OPEN_FEE, lane], closed, size)
        exit_fee = closed * order.fee
        gross = (-order.side * closed * price - cost_out) * params[TICK_VALUE]
        state[s.COST, lane] -= cost_out
        state[s.OPEN_FEE, lane] -= entry_fee
        position += order.side * closed
        realized = gross - exit_fee - entry_fee
        log_trade(lane, order, fill_id, closed, cost_out, price, realized, exit_fee + entry_fee, ts_filled, params, state, out)
        count_trade(lane, realized, state)
        if abs(realized) > MONEY_LIMIT_USD_MICROS or state[s.SUM_WIN, lane] > MONEY_LIMIT_USD_MICROS:
            out.fault[lane] = FAULT_MONEY
    if opened > 0:
        if position == 0:
            state[s.OPENED_AT, lane] = state[s.CURSOR, lane]
            state[s.OPENED_NS, lane] = ts_filled
            state[s.HIGH, lane] = s.NONE_MID2
            state[s.LOW, lane] = s.NONE_MID2
            state[s.TRAIL, lane] = s.NONE_MID2
        state[s.COST, lane] += order.side * opened * price
        state[s.OPEN_FEE, lane] += opened * order.fee
        position += order.side * opened
    state[s.POSITION, lane] = position
    state[s.FEES, lane] += fee
    cash = state[s.CASH, lane] + gross - fee
    state[s.CASH, lane] = cash
    if abs(cash) > MONEY_LIMIT_USD_MICROS:
        out.fault[lane] = FAULT_MONEY


@scalar
def walk(lane, order, lots, event, ts_filled, market, params, state, out):
    """Take up to `lots` from the levels of one row, best first, and book them; returns the lots filled.

    What the lane took from that side of that very row before is gone from its top. An undefined level shows 0 lots.
    """
    if state[s.TAKEN_EVENT, lane] != event:
        state[s.TAKEN_EVENT, lane] = event
        state[s.TAKEN_BUYS, lane] = 0
        state[s.TAKEN_SELLS, lane] = 0
    taken_field = s.TAKEN_BUYS if order.side > 0 else s.TAKEN_SELLS
    gone = state[taken_field, lane]
    point = market.point[event]
    left = lots
    for level in range(market.ask_lots.shape[1]):
        shown = market.ask_lots[event, level] if order.side > 0 else market.bid_lots[event, level]
        skipped = min(gone, shown)
        gone -= skipped
        taken = min(shown - skipped, left)
        if taken > 0:
            price = market.ask_ticks[event, level] if order.side > 0 else market.bid_ticks[event, level]
            book_fill(lane, order, taken, price, event, level if point < 0 else point, ts_filled, params, state, out)
            left -= taken
        if left == 0:
            break
    state[taken_field, lane] += lots - left
    return lots - left
