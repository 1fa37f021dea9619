"""The exchange between two decisions: a lane lives through every row of the book and through what it has on its way. docs/exchange.md."""

from cuda_env import arrays as a
from cuda_env import state as s
from cuda_env import working as w
from cuda_env.exchange import Order, book_fill
from cuda_env.interest import NO_STOP, NOTHING, concerns, interest, standing_before, stop_band, stopped
from cuda_env.physics import magnitude_bin, trail_met, unrealized
from lob.actions import NOT_PLAYED, FillReason, OrderKind, OrderState
from lob.jit import called, scalar

QUEUE, TRADE_THROUGH = int(FillReason.QUEUE), int(FillReason.TRADE_THROUGH)
STOP, FLOOR_STOP = int(FillReason.STOP), int(FillReason.FLOOR)
FILLED, PARTLY_FILLED, UNFILLED = int(OrderState.FILLED), int(OrderState.PARTLY_FILLED), int(OrderState.UNFILLED)
CANCELLED, EXPIRED = int(OrderState.CANCELLED), int(OrderState.EXPIRED)
MARKET = int(OrderKind.MARKET)


@scalar
def log_ended(lane, slot, ended, ts, state, out):
    """Write the row of an order that ends at `ts`, if orders are emitted."""
    if out.orders.shape[0] == 0:
        return
    row = out.counts[a.ORDERS_WRITTEN, lane]
    if row >= out.orders.shape[1]:
        out.fault[lane] = a.FAULT_SLOTS
        return
    out.counts[a.ORDERS_WRITTEN, lane] = row + 1
    lots = state[w.at(slot, w.ORDER_LOTS), lane]
    out.orders[lane, row, 0] = state[s.CLOCK, lane]
    out.orders[lane, row, 1] = state[s.EPISODE, lane]
    out.orders[lane, row, 2] = state[w.at(slot, w.ID), lane]
    out.orders[lane, row, 3] = state[w.at(slot, w.SUBMITTED), lane]
    out.orders[lane, row, 4] = state[w.at(slot, w.ACCEPTED), lane]
    out.orders[lane, row, 5] = state[w.at(slot, w.SIDE), lane]
    out.orders[lane, row, 6] = state[w.at(slot, w.KIND), lane]
    out.orders[lane, row, 7] = state[w.at(slot, w.PICKED_KIND), lane]
    out.orders[lane, row, 8] = state[w.at(slot, w.URGENCY), lane]
    out.orders[lane, row, 9] = lots
    out.orders[lane, row, 10] = lots - state[w.at(slot, w.LEFT), lane]
    out.orders[lane, row, 11] = state[w.at(slot, w.REASON), lane]
    out.orders[lane, row, 12] = ended
    out.orders[lane, row, 13] = state[w.at(slot, w.LIMIT), lane]
    out.orders[lane, row, 14] = state[w.at(slot, w.ASKED), lane]
    out.orders[lane, row, 15] = ts
    out.orders[lane, row, 16] = state[w.at(slot, w.JOINED), lane]


@scalar
def end_order(lane, slot, ended, ts, state, out):
    """Take an order out at `ts`: its row is written and its slot free."""
    log_ended(lane, slot, ended, ts, state, out)
    state[w.at(slot, w.PHASE), lane] = w.FREE


@scalar
def is_older(lane, slot, other, state):
    """Whether an order was sent before another one; `other` -1: there is none."""
    return other < 0 or state[w.at(slot, w.ID), lane] < state[w.at(other, w.ID), lane]


@scalar
def cancel_all(lane, ended, ts, state, out):
    """Take out at `ts` whatever the lane has in the book or on its way, the older first. One that never arrived is logged as met at
    `ts`."""
    for _ in range(w.SLOTS):
        oldest = -1
        for slot in range(w.SLOTS):
            if state[w.at(slot, w.PHASE), lane] != w.FREE and is_older(lane, slot, oldest, state):
                oldest = slot
        if oldest >= 0:
            end_order(lane, oldest, ended, ts, state, out)
    state[w.DUE, lane] = w.FAR


@scalar
def stands(event, ts, market):
    """Whether a tradable book of the session of `ts` stands at `ts`, `event` being the last trusted row by then."""
    if event < 0 or market.marks[event] & a.TRADABLE == 0:
        return False
    first, last = 0, market.open_ns.shape[0]  # the last session that opened at or before ts
    while last - first > 1:
        middle = (first + last) // 2
        if market.open_ns[middle] <= ts:
            first = middle
        else:
            last = middle
    return market.open_ns[first] <= market.ts_event[event] and ts < market.close_ns[first]


@scalar
def meet(lane, slot, event, ts, printed, market, params, state, out):
    """What an order gets at one row: of its print (`printed` lots of the aggressor that it waits for), then of what the row displays.

    One that takes walks the opposite side at its prices. A resting one fills at its limit: where the print was at its price, what that left
    over from the queue ahead; where it went through, all that was printed; and what the opposite side displays at its limit or beyond.
    What the lane has consumed of a displayed price is not there. Returns the lots that it took from the print.
    """
    side, limit, left = state[w.at(slot, w.SIDE), lane], state[w.at(slot, w.LIMIT), lane], state[w.at(slot, w.LEFT), lane]
    takes = state[w.at(slot, w.STYLE), lane] != w.POST
    displays = market.marks[event] & a.TRADABLE != 0
    from_print = 0
    for level in range(-1, market.bid_lots.shape[1]):
        lots, ticks, reason, fee = 0, limit, TRADE_THROUGH, params[a.MAKER_FEE]
        if level < 0:
            if takes or printed <= 0:
                continue
            through = (limit - market.trade_ticks[event]) * side
            if through > 0:
                lots = min(left, printed)
                state[w.at(slot, w.AHEAD), lane] = 0
            elif through == 0:
                free = printed - w.lots_ahead(lane, slot, state)
                lots = max(0, min(left, free))
                reason = QUEUE
                state[w.at(slot, w.AHEAD), lane] = max(0, state[w.at(slot, w.AHEAD), lane] - printed * w.ONE)
                state[w.at(slot, w.PRINTED), lane] += market.trade_lots[event]
            from_print = lots
        else:
            if not displays:
                break
            shown = market.ask_lots[event, level] if side > 0 else market.bid_lots[event, level]
            price = market.ask_ticks[event, level] if side > 0 else market.bid_ticks[event, level]
            if shown == 0:
                continue
            if takes:
                ticks, reason, fee = price, state[w.at(slot, w.REASON), lane], params[a.FEE]
            elif (limit - price) * side < 0:
                break
            lots = min(left, shown - w.taken_at(lane, side, price, state))
            if lots > 0:
                w.note_taken(lane, side, price, lots, state)
        if lots <= 0:
            continue
        size_bin = state[w.at(slot, w.BIN), lane]
        if size_bin < 0:
            size_bin = magnitude_bin(state[s.POSITION, lane], params[a.MAX_LOTS])
            state[w.at(slot, w.BIN), lane] = size_bin
        submitted, joined = state[w.at(slot, w.SUBMITTED), lane], state[w.at(slot, w.JOINED), lane]
        order = Order(state[w.at(slot, w.ID), lane], side, reason, size_bin, submitted, fee, joined)
        book_fill(lane, order, lots, ticks, event, level, ts, params, state, out)
        left -= lots
        state[w.at(slot, w.LEFT), lane] = left
        if left == 0:
            break
    return from_print


@scalar
def end_met(lane, slot, ts, state, out):
    """After an order met a row: a filled one ends, and so does what a market order did not find."""
    left = state[w.at(slot, w.LEFT), lane]
    if left == 0:
        end_order(lane, slot, FILLED, ts, state, out)
    elif state[w.at(slot, w.STYLE), lane] == w.TAKE:
        ended = UNFILLED if left == state[w.at(slot, w.ORDER_LOTS), lane] else PARTLY_FILLED
        end_order(lane, slot, ended, ts, state, out)


@scalar
def trim(lane, slot, ts, state, out):
    """At its arrival an order that a pick sent is cut to what its target still needs; returns whether anything of it is left."""
    target = state[w.at(slot, w.TARGET), lane]
    if target == w.FAR:
        return True
    needed = (target - state[s.POSITION, lane]) * state[w.at(slot, w.SIDE), lane]
    if needed <= 0:
        end_order(lane, slot, CANCELLED, ts, state, out)
        return False
    if needed < state[w.at(slot, w.LEFT), lane]:
        state[w.at(slot, w.ORDER_LOTS), lane] -= state[w.at(slot, w.LEFT), lane] - needed
        state[w.at(slot, w.LEFT), lane] = needed
    return True


@scalar
def apply_change(lane, slot, ts, state, out):
    """A change of an order arrives. Returns whether the order now comes to the book anew: crossing, or at the back of a queue."""
    what = state[w.at(slot, w.CHANGE), lane]
    state[w.at(slot, w.CHANGE), lane] = w.NO_CHANGE
    state[w.at(slot, w.CHANGE_AT), lane] = w.FAR
    if what == w.CANCEL:
        end_order(lane, slot, CANCELLED, ts, state, out)
        return False
    if what == w.CROSS:
        state[w.at(slot, w.STYLE), lane] = w.TAKE
        return True
    lots, limit = state[w.at(slot, w.CHANGE_LOTS), lane], state[w.at(slot, w.CHANGE_LIMIT), lane]
    filled = state[w.at(slot, w.ORDER_LOTS), lane] - state[w.at(slot, w.LEFT), lane]
    keeps = limit == state[w.at(slot, w.LIMIT), lane] and lots <= state[w.at(slot, w.ORDER_LOTS), lane]
    state[w.at(slot, w.ORDER_LOTS), lane] = max(lots, filled)
    state[w.at(slot, w.LEFT), lane] = max(lots - filled, 0)
    state[w.at(slot, w.LIMIT), lane] = limit
    state[w.at(slot, w.ASKED), lane] = limit
    if lots <= filled:
        end_order(lane, slot, CANCELLED if lots < filled or filled == 0 else FILLED, ts, state, out)
        return False
    return not keeps


@scalar
def arm_stop(lane, mid2, ts, params, state, out):
    """The stops that rest at the exchange: where the equity at a row's mid is at or below the floor, or the trail is met, everything that
    works is cancelled and a stop comes that closes what is open, from this row on. Returns whether one does."""
    position = state[s.POSITION, lane]
    for slot in range(w.SLOTS):
        if state[w.at(slot, w.PHASE), lane] != w.FREE and state[w.at(slot, w.STYLE), lane] == w.SWEEP:
            return False
    reason = -1
    worth = unrealized(position, state[s.COST, lane], mid2, params[a.TICK_VALUE])
    if state[s.CASH, lane] + worth <= params[a.FLOOR]:
        reason = FLOOR_STOP
        state[s.BREACHED, lane] = 1
    elif params[a.TRAIL_TICKS] > 0 and state[s.TRAIL, lane] != s.NONE_MID2 and trail_met(position, mid2, state[s.TRAIL, lane]):
        reason = STOP
    if reason < 0:
        return False
    cancel_all(lane, CANCELLED, ts, state, out)
    side = -1 if position > 0 else 1
    w.place(lane, 0, side, w.SWEEP, w.FAR, abs(position), ts, ts, reason, MARKET, NOT_PLAYED, NOT_PLAYED, w.FAR, params, state)
    state[w.at(0, w.PHASE), lane] = w.WAITING
    state[w.DUE, lane] = w.FAR
    return True


@scalar
def first_of(lane, pair, state):
    """Which of two neighbouring slots comes first to a print: the better limit, then the older order; the lower slot where they are on
    two sides or not both in the book."""
    one, two = pair, pair + 1
    if state[w.at(one, w.PHASE), lane] != w.RESTING or state[w.at(two, w.PHASE), lane] != w.RESTING:
        return one
    side = state[w.at(one, w.SIDE), lane]
    if side != state[w.at(two, w.SIDE), lane]:
        return one
    better = (state[w.at(two, w.LIMIT), lane] - state[w.at(one, w.LIMIT), lane]) * side
    if better > 0 or (better == 0 and state[w.at(two, w.ID), lane] < state[w.at(one, w.ID), lane]):
        return two
    return one


@scalar
def next_waiting(lane, done, state):
    """The oldest order that waits for a book, of those younger than `done`; -1: none."""
    found = -1
    for slot in range(w.SLOTS):
        waits = state[w.at(slot, w.PHASE), lane] == w.WAITING and state[w.at(slot, w.ID), lane] > done
        if waits and is_older(lane, slot, found, state):
            found = slot
    return found


@called
def live(lane, last, until, watch, market, params, state, out):
    """Live through the rows from the lane's next one to `last`, as far as `until` (ns, event time), and through all that arrives by then.

    A message that arrives at t comes after every row with ts_event <= t, and meets the book that then stands, if it is tradable and of the
    session of t; else the next tradable row. With `watch` the floor and the trail are looked for at every tradable row.
    """
    event, events = state[w.NEXT, lane], market.ts_event.shape[0]
    wants, stops, stale = NOTHING, NO_STOP, True
    while True:
        due = state[w.DUE, lane]
        horizon = min(due, until)
        while event <= last and market.ts_event[event] <= horizon:
            if stale:
                wants, stops, stale = interest(lane, state), stop_band(lane, watch, params, state), False
            if market.marks[event] & a.NEW_SESSION != 0 or concerns(event, wants, market) or stopped(event, stops, market):
                break
            event += 1
        now = market.ts_event[event] if event < events else w.FAR
        if due < now:
            if due > until:
                break
            take_message(lane, due, standing_before(event, market), market, params, state, out)
            stale = True
        elif event > last or now > until:
            break
        else:
            stale = take_row(lane, event, now, watch, market, params, state, out)
            event += 1
    state[w.NEXT, lane] = event


@scalar
def take_message(lane, ts, standing, market, params, state, out):
    """What arrives next, at `ts`, on the book of the last trusted row."""
    slot, _ = w.next_due(lane, state)
    comes = True
    if state[w.at(slot, w.PHASE), lane] == w.IN_FLIGHT:
        comes = trim(lane, slot, ts, state, out)
    else:
        comes = apply_change(lane, slot, ts, state, out)
    if comes:
        if not stands(standing, ts, market):
            state[w.at(slot, w.PHASE), lane] = w.WAITING
        elif state[w.at(slot, w.STYLE), lane] == w.POST:
            w.rest(lane, slot, standing, ts, market, state)
        else:
            meet(lane, slot, standing, ts, 0, market, params, state, out)
            end_met(lane, slot, ts, state, out)
    _, due = w.next_due(lane, state)
    state[w.DUE, lane] = due


@scalar
def expire(lane, ts, state, out):
    """The session is over: what rested in its book expires, the older first. What is on its way, or waits for a book, goes on."""
    for _ in range(w.SLOTS):
        oldest = -1
        for slot in range(w.SLOTS):
            if state[w.at(slot, w.PHASE), lane] == w.RESTING and is_older(lane, slot, oldest, state):
                oldest = slot
        if oldest >= 0:
            end_order(lane, oldest, EXPIRED, ts, state, out)
    _, due = w.next_due(lane, state)
    state[w.DUE, lane] = due


@scalar
def take_row(lane, event, now, watch, market, params, state, out):
    """One row: the end of the session before it, its print and its book for every resting order, then the stops, then the orders that wait
    for a tradable book. Returns whether more than a place in a queue may have changed."""
    marks = market.marks[event]
    if marks & a.NEW_SESSION != 0:
        expire(lane, now, state, out)
    tradable = marks & a.TRADABLE != 0
    if tradable and state[w.TAKEN_BUYS, lane] + state[w.TAKEN_SELLS, lane] > 0:
        w.forget_taken(lane, event, market, state)
    hit_side = -1 if marks & a.PRINT_BUY != 0 else (1 if marks & a.PRINT_SELL != 0 else 0)
    printed = market.trade_lots[event] if hit_side != 0 else 0
    waits, ended, slot, done = False, False, 0, -1
    for turn in range(2 * w.SLOTS):
        if turn == w.SLOTS:
            if watch and tradable and state[s.POSITION, lane] != 0:
                mid2 = market.bid_ticks[event, 0] + market.ask_ticks[event, 0]
                waits = arm_stop(lane, mid2, now, params, state, out) or waits
            if not (waits and tradable):
                break
        if turn >= w.SLOTS:
            slot = next_waiting(lane, done, state)
            if slot < 0:
                break
            done = state[w.at(slot, w.ID), lane]
            if not trim(lane, slot, now, state, out):
                continue
            if state[w.at(slot, w.STYLE), lane] == w.POST:
                w.rest(lane, slot, event, now, market, state)
                continue
            if state[w.at(slot, w.STYLE), lane] == w.TAKE and state[w.at(slot, w.JOINED), lane] < 0:
                state[w.at(slot, w.ACCEPTED), lane] = now
        else:
            slot = first_of(lane, turn, state) if turn % 2 == 0 else turn - 1 + turn - slot
            phase = state[w.at(slot, w.PHASE), lane]
            waits = waits or phase == w.WAITING
            if phase != w.RESTING:
                continue
        side, limit = state[w.at(slot, w.SIDE), lane], state[w.at(slot, w.LIMIT), lane]
        of_print, meets = 0, turn >= w.SLOTS
        if not meets:
            if side == hit_side and (limit - market.trade_ticks[event]) * side >= 0:
                of_print, meets = printed, True
            elif tradable:
                touch = market.ask_ticks[event, 0] if side > 0 else market.bid_ticks[event, 0]
                meets = (limit - touch) * side >= 0
        if meets:
            printed -= meet(lane, slot, event, now, of_print, market, params, state, out)
            end_met(lane, slot, now, state, out)
            ended = True
        if tradable and turn < w.SLOTS and state[w.at(slot, w.PHASE), lane] == w.RESTING:
            w.requeue(lane, slot, w.shown_at(side, limit, event, market), params, state)
    if ended or waits:
        _, due = w.next_due(lane, state)
        state[w.DUE, lane] = due
    return ended or waits or marks & a.NEW_SESSION != 0
