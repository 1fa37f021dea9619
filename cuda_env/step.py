"""One lane's whole step, and its drain: observe nothing, decide nothing, do what docs/step.md says.

`picks` are the four arrays of `lob.picks.Picks`; `plan`, `params`, `out` are declared in `cuda_env.arrays`, `state` in `cuda_env.state`.
"""

from typing import Any, NamedTuple

from cuda_env import arrays as a
from cuda_env import state as s
from cuda_env.diag import UNPLAYED, gate_code, write_codes
from cuda_env.exchange import log_order, new_order, walk
from cuda_env.physics import PPM, kelly_cap_lots, magnitude_bin, margin_cap_lots, scaled_lots, trail_met, unrealized
from lob.actions import ACTIONS, NOT_PLAYED, Direction, EndReason, FillReason, decode_action, encode_action
from lob.jit import scalar
from lob.philox import below, draw

SHORT, HOLD, LONG, FLAT = int(Direction.SHORT), int(Direction.HOLD), int(Direction.LONG), int(Direction.FLAT)
CROSSED, STOP, FLOOR_STOP, WINDOW_END = (
    int(FillReason.CROSSED),
    int(FillReason.STOP),
    int(FillReason.FLOOR),
    int(FillReason.WINDOW_END),
)
RUNNING, SESSION_CLOSE, CAPITAL_FLOOR = int(EndReason.RUNNING), int(EndReason.SESSION_CLOSE), int(EndReason.CAPITAL_FLOOR)
STEP_LIMIT = int(EndReason.STEP_LIMIT)

START_PURPOSE = 0x73747274
"""Philox stream of the rows at which lanes begin ("strt")."""


class Gates(NamedTuple):
    """What the gates made of a pick."""

    direction: Any  # after the plan lock
    scaled: Any
    margin_cap: Any
    kelly_cap: Any
    trail: Any  # 1: the trail stop forced the target
    target: Any
    reason: Any  # of an order for it


@scalar
def gate(lane, action, conviction, health, variance_scale, mid2, params, state):
    """Gates 1 to 6 in their order. Marks the lane as breached when the equity at the decision mark is at or below the floor."""
    direction, magnitude, _, _ = decode_action(action)
    position = state[s.POSITION, lane]
    max_lots = params[a.MAX_LOTS]
    if position != 0 and state[s.CURSOR, lane] - state[s.OPENED_AT, lane] < params[a.PLAN_LOCK]:
        direction = HOLD
    margin_cap = margin_cap_lots(state[s.EQUITY, lane], params[a.MARGIN])
    kelly_cap = kelly_cap_lots(state[s.KELLY, lane], conviction, health, max_lots)
    scaled = -1
    target = position
    if direction in (LONG, SHORT):
        scaled = scaled_lots(magnitude, variance_scale, max_lots)
        target = min(min(scaled, margin_cap), kelly_cap)
        if direction == SHORT:
            target = -target
    elif direction == FLAT:
        scaled = 0
        target = 0
    reason = CROSSED
    trail = 0
    if params[a.TRAIL_TICKS] > 0 and position != 0 and trail_met(position, mid2, state[s.TRAIL, lane]):
        trail = 1
        target = 0
        reason = STOP
    if state[s.EQUITY, lane] <= params[a.FLOOR]:
        state[s.BREACHED, lane] = 1
    if state[s.BREACHED, lane] != 0:
        target = 0
        reason = FLOOR_STOP
    return Gates(direction, scaled, margin_cap, kelly_cap, trail, target, reason)


@scalar
def execute(lane, gates, order_kind, urgency, row, market, plan, params, state, out):
    """Send a market order for the difference to the target, if there is one; returns the last event that it was in flight for."""
    delta = gates.target - state[s.POSITION, lane]
    if delta == 0:
        return plan[row, a.OBSERVED]
    event = plan[row, a.FILL_EVENT]
    side = 1 if delta > 0 else -1
    order = new_order(lane, side, gates.reason, plan[row, a.TS_DECIDED], params, state)
    ts_filled = plan[row, a.TS_FILLED]
    filled = walk(lane, order, abs(delta), event, ts_filled, market, params, state, out)
    picked_kind, picked_urgency = order_kind, urgency
    if gates.reason != CROSSED:
        picked_kind, picked_urgency = NOT_PLAYED, NOT_PLAYED
    log_order(lane, order, ts_filled, picked_kind, picked_urgency, abs(delta), filled, state, out)
    return event


@scalar
def floor_stop(lane, after, last, market, params, state, out):
    """The stop that rests at the exchange: the first tradable row in (after, last] at which the equity is at or below the floor closes
    the position; what that row does not show goes on to the next tradable rows."""
    event = after + 1
    while event <= last:
        if market.tradable[event] != 0:
            mid2 = market.bid_ticks[event, 0] + market.ask_ticks[event, 0]
            worth = unrealized(state[s.POSITION, lane], state[s.COST, lane], mid2, params[a.TICK_VALUE])
            if state[s.CASH, lane] + worth <= params[a.FLOOR]:
                break
        event += 1
    if event > last:
        return
    state[s.BREACHED, lane] = 1
    position = state[s.POSITION, lane]
    side = -1 if position > 0 else 1
    submitted = market.ts_event[event]
    order = new_order(lane, side, FLOOR_STOP, submitted, params, state)
    left = abs(position)
    while event <= last and left > 0:
        if market.tradable[event] != 0:
            left -= walk(lane, order, left, event, market.ts_event[event], market, params, state, out)
        event += 1
    log_order(lane, order, submitted, NOT_PLAYED, NOT_PLAYED, abs(position), abs(position) - left, state, out)


@scalar
def meet_floor(lane, after, row, market, plan, params, state, out):
    """Look for the floor over the tradable rows in (after, observed_event[row + 1]]; the schedule's extremes spare the search."""
    position = state[s.POSITION, lane]
    in_flight = after != plan[row, a.OBSERVED]
    if position > 0:
        worst = plan[row, a.LOW_AFTER] if in_flight else plan[row, a.LOW_HELD]
    else:
        worst = plan[row, a.HIGH_AFTER] if in_flight else plan[row, a.HIGH_HELD]
    if position == 0 or abs(worst) == s.NONE_MID2:
        return
    if state[s.CASH, lane] + unrealized(position, state[s.COST, lane], worst, params[a.TICK_VALUE]) <= params[a.FLOOR]:
        floor_stop(lane, after, plan[row + 1, a.OBSERVED], market, params, state, out)


@scalar
def mark(lane, mid2, params, state):
    """Mark at a row's mid: equity, its peak, the trail and the excursions. Returns the unrealised."""
    position = state[s.POSITION, lane]
    worth = 0
    if position == 0:
        state[s.TRAIL, lane] = s.NONE_MID2
    else:
        worth = unrealized(position, state[s.COST, lane], mid2, params[a.TICK_VALUE])
        distance = 2 * params[a.TRAIL_TICKS]
        level = mid2 - distance if position > 0 else mid2 + distance
        if state[s.HIGH, lane] == s.NONE_MID2:
            state[s.HIGH, lane] = mid2
            state[s.LOW, lane] = mid2
        else:
            state[s.HIGH, lane] = max(state[s.HIGH, lane], mid2)
            state[s.LOW, lane] = min(state[s.LOW, lane], mid2)
            level = max(level, state[s.TRAIL, lane]) if position > 0 else min(level, state[s.TRAIL, lane])
        if distance > 0:
            state[s.TRAIL, lane] = level
    equity = state[s.CASH, lane] + worth
    state[s.EQUITY, lane] = equity
    state[s.PEAK_EQUITY, lane] = max(state[s.PEAK_EQUITY, lane], equity)
    return worth


@scalar
def actual_branches(direction, traded, position, max_lots):
    """(direction, magnitude) that physics made of a pick: hold when it was hold and nothing traded, else the position's sign and bin."""
    if direction == HOLD and not traded:
        return HOLD, 0
    if position == 0:
        return FLAT, 0
    return (LONG if position > 0 else SHORT), magnitude_bin(position, max_lots)


@scalar
def set_end(lane, reason, out):
    """Write the end reason of a played step and the two flags that follow from it."""
    out.end_reason[lane] = reason
    out.terminated[lane] = 1 if reason == CAPITAL_FLOOR else 0
    out.truncated[lane] = 1 if reason != CAPITAL_FLOOR and reason != RUNNING else 0


@scalar
def account(lane, state):
    """What a step's changes are taken from: (cash, equity, fees, fills)."""
    return state[s.CASH, lane], state[s.EQUITY, lane], state[s.FEES, lane], state[s.FILL_COUNT, lane]


@scalar
def log_step(lane, pick, gates, kelly, floor_met, actual, row, before, worth, reason, is_drain, state, out):
    """Write the step's row, if steps are emitted. `pick` is (action, conviction, health, variance scale), `before` from `account`."""
    if out.steps.shape[1] == 0:
        return
    out.steps[0, lane] = state[s.CLOCK, lane]
    out.steps[1, lane] = state[s.EPISODE, lane]
    out.steps[2, lane] = row
    out.steps[3, lane] = pick[0]
    out.steps[4, lane] = pick[1]
    out.steps[5, lane] = pick[2]
    out.steps[6, lane] = pick[3]
    out.steps[7, lane] = gates.direction
    out.steps[8, lane] = gates.scaled
    out.steps[9, lane] = gates.margin_cap
    out.steps[10, lane] = kelly
    out.steps[11, lane] = gates.kelly_cap
    out.steps[12, lane] = gates.trail
    out.steps[13, lane] = floor_met
    out.steps[14, lane] = gates.target
    out.steps[15, lane] = actual
    out.steps[16, lane] = state[s.POSITION, lane]
    out.steps[17, lane] = state[s.COST, lane]
    out.steps[18, lane] = state[s.TRAIL, lane]
    out.steps[19, lane] = state[s.CASH, lane]
    out.steps[20, lane] = state[s.EQUITY, lane]
    out.steps[21, lane] = state[s.CASH, lane] - before[0]
    out.steps[22, lane] = worth
    out.steps[23, lane] = state[s.FEES, lane] - before[2]
    out.steps[24, lane] = state[s.EQUITY, lane] - before[1]
    out.steps[25, lane] = reason
    out.steps[26, lane] = is_drain


@scalar
def log_unplayed(lane, row, reason, before, is_drain, state, out):
    """The row of a dead lane, or of the drain: no pick, no gate."""
    if out.codes.shape[1] > 0:
        write_codes(lane, UNPLAYED, UNPLAYED, 0, out)
    none = NOT_PLAYED
    gates = Gates(none, none, none, none, none, 0, CROSSED)
    log_step(lane, (none, none, none, none), gates, none, none, none, row, before, 0, reason, is_drain, state, out)


@scalar
def begin(lane, row, out):
    """Nothing decided, closed or written yet in this step, which plays `row`."""
    out.row[lane] = row
    out.decided[lane] = 0
    out.closed[lane] = 0
    if out.counts.shape[1] > 0:
        out.counts[a.ORDERS_WRITTEN, lane] = 0
        out.counts[a.FILLS_WRITTEN, lane] = 0
        out.counts[a.TRADES_WRITTEN, lane] = 0


@scalar
def finish(lane, row, plan, state):
    """Advance the lane's clocks; a closed session begins the next episode, for dead lanes too."""
    state[s.CLOCK, lane] += 1
    state[s.CURSOR, lane] = row + 1
    state[s.EPISODE, lane] += plan[row, a.CLOSES]


@scalar
def skip_dead(lane, row, is_drain, state, out):
    """The step of a lane that is dead or at its end: nothing happens, and the log says so."""
    begin(lane, row, out)
    out.closed[lane] = is_drain
    out.reward[lane] = 0
    out.end_reason[lane] = NOT_PLAYED
    out.terminated[lane] = 0
    out.truncated[lane] = 0
    before = account(lane, state)
    log_unplayed(lane, row, NOT_PLAYED, before, is_drain, state, out)


@scalar
def is_over(lane, state, out):
    """Whether a lane that is to be closed is dead or past its end already; if so, its step is none."""
    if state[s.STATUS, lane] == s.LIVING:
        return False
    skip_dead(lane, state[s.CURSOR, lane], 0 if state[s.STATUS, lane] == s.DRAINED else 1, state, out)
    state[s.CLOCK, lane] += 1
    state[s.STATUS, lane] = s.DRAINED
    return True


@scalar
def close_lane(lane, market, plan, params, state, out):
    """Close what is open where the lane stands: at the drain of its window, or before it at the next row that is deep enough. Nothing is
    decided, and no gate acts; a lane that had breached ends by the floor. One that is past its end stays there."""
    if is_over(lane, state, out):
        return
    begin(lane, state[s.CURSOR, lane], out)
    close_open(lane, account(lane, state), market, plan, params, state, out)


@scalar
def close_open(lane, before, market, plan, params, state, out):
    """The close itself; `before` is the account at the beginning of its step."""
    row = state[s.CURSOR, lane]
    out.closed[lane] = 1
    position = state[s.POSITION, lane]
    if position != 0:
        event = plan[row, a.CLOSE_EVENT]
        ts = market.ts_event[event]
        side = -1 if position > 0 else 1
        order = new_order(lane, side, WINDOW_END, ts, params, state)
        filled = walk(lane, order, abs(position), event, ts, market, params, state, out)
        log_order(lane, order, ts, NOT_PLAYED, NOT_PLAYED, abs(position), filled, state, out)
        if filled != abs(position):
            out.fault[lane] = a.FAULT_DRAIN
    mark(lane, plan[row, a.MARK_MID2], params, state)
    reason = STEP_LIMIT
    if row == plan[row, a.LAST_ROW]:
        reason = plan[row, a.FINAL_REASON]
    if state[s.BREACHED, lane] != 0:
        reason = CAPITAL_FLOOR
    state[s.LAST_DIRECTION, lane] = 0
    out.reward[lane] = state[s.EQUITY, lane] - before[1]
    set_end(lane, reason, out)
    log_unplayed(lane, row, reason, before, 1, state, out)
    state[s.CLOCK, lane] += 1
    state[s.STATUS, lane] = s.DRAINED


@scalar
def pick_of(lane, picks):
    """(action, conviction, health, variance scale) of a lane."""
    return picks.action[lane], picks.conviction_ppm[lane], picks.health_ppm[lane], picks.variance_scale_ppm[lane]


@scalar
def is_possible(lane, pick, out):
    """Whether a pick is in range; if not, the lane has its fault."""
    action, conviction, health, variance_scale = pick
    if action < 0 or action >= ACTIONS:
        out.fault[lane] = a.FAULT_ACTION
        return False
    if min(conviction, min(health, variance_scale)) < 0 or max(conviction, max(health, variance_scale)) > PPM:
        out.fault[lane] = a.FAULT_INPUT
        return False
    return True


@scalar
def step_lane(lane, picks, market, plan, params, state, out):
    """One decision of one lane (docs/step.md), or its drain where windows end by themselves. A fault leaves the lane as it was, with its
    code in `out.fault`."""
    row = state[s.CURSOR, lane]
    if row == plan[row, a.LAST_ROW]:
        if params[a.DRAINS] != 0:
            close_lane(lane, market, plan, params, state, out)
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

    gates = gate(lane, pick[0], pick[1], pick[2], pick[3], plan[row, a.MARK_MID2], params, state)
    after = execute(lane, gates, order_kind, urgency, row, market, plan, params, state, out)
    meet_floor(lane, after, row, market, plan, params, state, out)
    worth = mark(lane, plan[row + 1, a.MARK_MID2], params, state)
    if state[s.EQUITY, lane] <= params[a.FLOOR]:
        state[s.BREACHED, lane] = 1
    conclude(lane, row, pick, gates, kelly, 0, before, worth, plan, params, state, out)


@scalar
def conclude(lane, row, pick, gates, kelly, actual_order, before, worth, plan, params, state, out):
    """The end of a step that was played: how the episode stands, the reward, what the log says of it; then the clocks move on."""
    action, _, _, variance_scale = pick
    branches = decode_action(action)
    position = state[s.POSITION, lane]
    breached = state[s.BREACHED, lane]
    reason = SESSION_CLOSE if plan[row, a.CLOSES] != 0 else RUNNING
    if breached != 0 and position == 0:
        reason = CAPITAL_FLOOR
        state[s.STATUS, lane] = s.DEAD
    traded = state[s.FILL_COUNT, lane] != before[3]
    direction, magnitude = actual_branches(gates.direction, traded, position, params[a.MAX_LOTS])
    state[s.LAST_DIRECTION, lane] = 1 if direction == LONG else (-1 if direction == SHORT else 0)
    out.reward[lane] = state[s.EQUITY, lane] - before[1]
    set_end(lane, reason, out)
    actual = encode_action(direction, magnitude, actual_order, branches[3])
    if out.codes.shape[1] > 0:
        write_codes(lane, action, actual, gate_code(branches[0], gates, variance_scale, breached), out)
    log_step(lane, pick, gates, kelly, breached, actual, row, before, worth, reason, 0, state, out)
    finish(lane, row, plan, state)


@scalar
def drain_lane(lane, market, plan, params, state, out):
    """Close at the window's drain row what is open; a fault before it and after it."""
    row = state[s.CURSOR, lane]
    if row != plan[row, a.LAST_ROW]:
        out.fault[lane] = a.FAULT_NOT_AT_END
    elif state[s.STATUS, lane] == s.DRAINED:
        out.fault[lane] = a.FAULT_PAST_END
    else:
        close_lane(lane, market, plan, params, state, out)


@scalar
def start_row(lane, episode, params, starts):
    """The row at which a lane begins an episode: uniform over the rows that may be drawn, a function of seed, lane and episode alone."""
    word, _, _, _ = draw(params[a.SEED], params[a.FIRST_LANE] + lane, episode, START_PURPOSE)
    return starts.rows[below(word, starts.rows.shape[0])]


@scalar
def restart_lane(lane, params, starts, state):
    """Begin anew a lane that is dead or drained: capital, next episode, a row drawn anew; log counters go on.

    Returns what that adds to (cash, fees, equity), which is neither gain nor loss.
    """
    if state[s.STATUS, lane] == s.LIVING:
        return 0, 0, 0
    cash, fees, equity = state[s.CASH, lane], state[s.FEES, lane], state[s.EQUITY, lane]
    episode = state[s.EPISODE, lane] + 1
    for field in range(starts.fresh.shape[0]):
        if starts.fresh[field] != s.KEPT:
            state[field, lane] = starts.fresh[field]
    state[s.EPISODE, lane] = episode
    state[s.CURSOR, lane] = start_row(lane, episode, params, starts)
    return params[a.INITIAL] - cash, -fees, params[a.INITIAL] - equity
