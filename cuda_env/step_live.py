"""One lane's whole step, and its drain, where orders work in the book: docs/step.md with docs/exchange.md, "A step"."""

from cuda_env import arrays as a
from cuda_env import state as s
from cuda_env import working as w
from cuda_env.live import CANCELLED, cancel_all, live
from cuda_env.physics import PPM, share
from cuda_env.quotes import begin_live
from cuda_env.step import (
    CROSSED,
    account,
    begin,
    close_open,
    conclude,
    finish,
    gate,
    is_over,
    is_possible,
    mark,
    pick_of,
    skip_dead,
)
from lob.actions import NOT_PLAYED, OrderKind, Urgency, decode_action
from lob.jit import scalar

MARKET, JOIN, IMPROVE = int(OrderKind.MARKET), int(OrderKind.JOIN), int(OrderKind.IMPROVE)
PATIENT, AGGRESSIVE = int(Urgency.PATIENT), int(Urgency.AGGRESSIVE)


@scalar
def limit_of(kind, side, event, market):
    """(kind as executed, limit) of a pick's order, from the row that its decision last saw tradable: at the touch of its own side, or a
    tick better where the spread has room."""
    bid, ask = market.bid_ticks[event, 0], market.ask_ticks[event, 0]
    touch = bid if side > 0 else ask
    if kind == IMPROVE and ask - bid >= 2:
        return IMPROVE, touch + side
    return JOIN, touch + 0


@scalar
def is_sent(lane, slot, ts, state):
    """Whether an order is a market order, or its crossing was on its way at `ts`: then nothing can be changed any more."""
    if state[w.at(slot, w.STYLE), lane] != w.POST:
        return True
    if state[w.at(slot, w.CHANGE), lane] != w.CROSS:
        return False
    took = state[w.at(slot, w.ARRIVAL), lane] - state[w.at(slot, w.SUBMITTED), lane]
    return state[w.at(slot, w.CHANGE_AT), lane] - took <= ts


@scalar
def settle_working(lane, gates, picked_kind, ts, params, state):
    """What a decision does with the orders that work or are on their way: a patient one stays where the pick agrees, what was sent to take
    goes through, a stop goes on, the rest is cancelled. Returns (whether an order stays that does the pick's work, a free slot or -1,
    the time before which nothing sent now may arrive)."""
    stays, free, behind = False, -1, ts
    for back in range(w.SLOTS):
        slot = w.SLOTS - 1 - back
        if state[w.at(slot, w.PHASE), lane] == w.FREE:
            free = slot
            continue
        target = state[w.at(slot, w.TARGET), lane]
        agrees = gates.reason == CROSSED and target == gates.target and state[w.at(slot, w.PICKED_KIND), lane] == picked_kind
        if state[w.at(slot, w.STYLE), lane] == w.SWEEP:
            stays = True
        elif is_sent(lane, slot, ts, state):
            stays = stays or target == gates.target
        elif agrees and state[w.at(slot, w.URGENCY), lane] == PATIENT and state[w.at(slot, w.CHANGE), lane] == w.NO_CHANGE:
            stays = True
        else:
            w.cancel(lane, slot, ts, params, state)
        if state[w.at(slot, w.PHASE), lane] == w.IN_FLIGHT:
            behind = max(behind, state[w.at(slot, w.ARRIVAL), lane])
        if state[w.at(slot, w.CHANGE), lane] != w.NO_CHANGE:
            behind = max(behind, state[w.at(slot, w.CHANGE_AT), lane])
    return stays, free, behind


@scalar
def send_order(lane, gates, picked_kind, urgency, row, market, plan, params, state, out):
    """Cancel what does not agree and send what the gates' target asks for; returns the kind of order that was sent, market if none was."""
    ts = plan[row, a.TS_DECIDED]
    if state[s.BREACHED, lane] != 0:
        cancel_all(lane, CANCELLED, ts, state, out)
    stays, slot, behind = settle_working(lane, gates, picked_kind, ts, params, state)
    delta = gates.target - state[s.POSITION, lane]
    if stays or delta == 0 or slot < 0:
        return MARKET
    side = 1 if delta > 0 else -1
    kind, limit, style = MARKET, w.FAR, w.TAKE
    said_kind, said_urgency = NOT_PLAYED, NOT_PLAYED
    if gates.reason == CROSSED:
        said_kind, said_urgency = picked_kind, urgency
        if picked_kind != MARKET:
            kind, limit = limit_of(picked_kind, side, plan[row, a.MARK_EVENT], market)
            style = w.POST
    takes = w.entry_latency(lane, state[s.ORDER_COUNT, lane], params)
    arrival = max(ts + takes, behind)
    w.place(
        lane, slot, side, style, limit, abs(delta), ts, arrival, gates.reason, kind, said_kind, said_urgency, gates.target, params, state
    )
    if style == w.POST and urgency == AGGRESSIVE:
        length = 0
        if state[w.PLAYED_NS, lane] != 0:
            length = ts - state[w.PLAYED_NS, lane]
        wait = share(length, params[a.CROSS_AFTER], PPM)
        w.change(lane, slot, w.CROSS, ts + wait + (arrival - ts), 0, 0, state)
    return kind


@scalar
def live_close_lane(lane, market, plan, params, state, out):
    """Live up to the row at which the lane closes, take out what works, and close what is open there."""
    if is_over(lane, state, out):
        return
    row = state[s.CURSOR, lane]
    begin(lane, row, out)
    before = account(lane, state)
    event = plan[row, a.CLOSE_EVENT]
    ts = market.ts_event[event]
    if state[w.NEXT, lane] >= 0:
        live(lane, event - 1, ts, True, market, params, state, out)
        cancel_all(lane, CANCELLED, ts, state, out)
    close_open(lane, before, market, plan, params, state, out)


@scalar
def live_step_lane(lane, picks, market, plan, params, state, out):
    """One decision of one lane, or its drain where windows end by themselves. A fault leaves the lane as it was, with its code in
    `out.fault`."""
    row = state[s.CURSOR, lane]
    if row == plan[row, a.LAST_ROW]:
        if params[a.DRAINS] != 0:
            live_close_lane(lane, market, plan, params, state, out)
        else:
            out.fault[lane] = a.FAULT_PAST_END
        return
    if state[s.STATUS, lane] != s.LIVING:
        skip_dead(lane, row, 0, state, out)
        finish(lane, row, plan, state)
        return
    pick = pick_of(lane, picks)
    if not is_possible(lane, pick, out):
        return
    begin(lane, row, out)
    out.decided[lane] = 1
    before = account(lane, state)
    kelly = state[s.KELLY, lane]
    _, _, order_kind, urgency = decode_action(pick[0])
    if state[w.NEXT, lane] < 0:
        begin_live(lane, plan[row, a.OBSERVED], state)

    gates = gate(lane, pick[0], pick[1], pick[2], pick[3], plan[row, a.MARK_MID2], params, state)
    kind = send_order(lane, gates, order_kind, urgency, row, market, plan, params, state, out)
    state[w.PLAYED_NS, lane] = plan[row, a.TS_DECIDED]
    last, coming = plan[row + 1, a.OBSERVED], plan[row + 1, a.TS_DECIDED]
    if row + 1 == plan[row, a.LAST_ROW]:
        last = min(last, plan[row + 1, a.FILL_EVENT] - 1)
    live(lane, last, coming - w.ack_latency(lane, state[s.CLOCK, lane], params), True, market, params, state, out)
    worth = mark(lane, plan[row + 1, a.MARK_MID2], params, state)
    if state[s.EQUITY, lane] <= params[a.FLOOR]:
        state[s.BREACHED, lane] = 1
    if state[s.BREACHED, lane] != 0 and state[s.POSITION, lane] == 0:
        cancel_all(lane, CANCELLED, coming, state, out)
    conclude(lane, row, pick, gates, kelly, kind, before, worth, plan, params, state, out)


@scalar
def live_drain_lane(lane, market, plan, params, state, out):
    """Close at the window's drain row what is open; a fault before it and after it."""
    row = state[s.CURSOR, lane]
    if row != plan[row, a.LAST_ROW]:
        out.fault[lane] = a.FAULT_NOT_AT_END
    elif state[s.STATUS, lane] == s.DRAINED:
        out.fault[lane] = a.FAULT_PAST_END
    else:
        live_close_lane(lane, market, plan, params, state, out)
