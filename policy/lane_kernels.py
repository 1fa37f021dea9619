"""What one lane earned in a step and what is counted of it: scalar functions, and their loop on the CPU.

`policy.lane_pass` calls them, `policy.rewards` says what the terms are for. Arithmetic is float64, what is kept float32. (As torch
operations they were a hundred launches.)
"""

import math

from lob.actions import Direction, decode_action
from lob.jit import kernel_cpu, scalar
from lob.units import PPM, USD_MICROS
from policy.diag_columns import REWARD_TERMS
from policy.health_kernels import ATTEMPTS, COUNTS, DECIDED, EXPLORED, FINITE, FLAT_LANES, PICKED
from policy.signals import MEMBERS

SHARPE_WEIGHT = 0.01
"""Weight of the newest reward in the moments of the differential Sharpe ratio: a hundred decisions, the horizon of gamma 0.99."""

SQUARE_AT_START = 1.0
"""The second moment before any reward: a variance of 1 divides by nothing (lesson 29), and fades with the EMA."""

VARIANCE_FLOOR = 1e-6
"""Least variance under the differential Sharpe ratio, in scaled reward squared: a dollar of a thousand. A lane that has never held a
position has none of its own."""

SHARPE_CLIP = 10.0
"""The ratio's derivative says no more beyond ten: one reward after a long calm must not outweigh an episode."""

CHURN_DECISIONS = 10.0
"""Decisions held at which a reversal costs half: one sooner is a flip, one much later a change of view."""

ATR_FLOOR_TICKS = 1.0
"""Least average range by which a spread is divided: a market that moves less than a tick has no smaller unit."""

CAPTURE_FLOOR = 1.0 / 32
"""Least best excursion that an exit is measured against: one tick, in the units of the observation's slot."""

EDGE_CLIP = 1.0
"""Most predicted edge that idleness can cost, in units of value: values that run away must not drag the reward with them."""

WHITEN_WEIGHT = 1e-3
"""Weight of the newest step in the mean square that whitens: slow, for what lies in the replay was whitened by an older one. A plain mean
until a thousand steps have been seen."""

WHITEN_FLOOR = 1e-4
"""Least root mean square that whitens, in scaled reward: ten cents of a thousand dollars."""

SQUARE_UNIT = 2**-24
"""Squares are summed as whole multiples of this, so that the sum does not depend on the order of lanes or processes: a quarter of a dollar
of a thousand is one unit."""

SQUARE_MOST = 2**42
"""A lane's square counts for no more units: a reward of half a million dollars, and 2^20 lanes of it stay below 2^63."""

MOST_TAU_RATIO = 1000.0
"""Temperature over range beyond which it says no more: the floor rules, and picks are uniform within a thousandth."""

PPM_MOST = 1e6
"""Largest absolute value that is summed in parts per million: 2^20 lanes of it stay below 2^63."""

BEFORE = (
    "position_fraction", "position_sign", "unrealized_ticks_per_lot", "imbalance_10", "kelly_fraction", "spread_ticks", "atr_ticks",
)  # fmt: skip
"""Slots of the observation that was decided on, in the order in which they are staged. The last two are normalised."""
AFTER = ("position_fraction", "position_sign", "unrealized_ticks_per_lot", "imbalance_10", "move_over_atr", "ofi_7")
"""Likewise of the one that it led to."""
FRACTION, SIGN, PROFIT, IMBALANCE = range(4)
KELLY, SPREAD, ATR = range(4, 7)
MOVE, OFI = range(4, 6)

# Places of the parameters, float64: micro-dollars of one scaled unit, the whitening power, the root of the horizon, mean and std of the
# four normalised slots, weights of the terms.
UNIT, POWER, ROOT_HORIZON, RAW_OF, WEIGHTS = 0, 1, 2, 3, 11
TERMS = len(REWARD_TERMS)
PARAMS = WEIGHTS + TERMS

# Places of what is counted of a step, int64, one column a lane before it is summed: first the log's, in the order of its columns.
CONVICTION_SUM, HEALTH_SUM, VARIANCE_SUM, RANGE_SUM, SIGMA_SUM = range(5)
LOGGED_EXPLORED, P_BEST_SUM, TAU_SUM, RANGED, KELLY_ABOVE = range(5, 10)
TERM_SUMS = 10
SCALED_SUM = TERM_SUMS + TERMS
LOGGED = SCALED_SUM + 1
EXPOSED_SQUARES, EXPOSED_LANES = LOGGED + COUNTS, LOGGED + COUNTS + 1
TOTALS = LOGGED + COUNTS + 2

SHORT, LONG = int(Direction.SHORT), int(Direction.LONG)
SIZES = tuple(len(members) for members in MEMBERS.values())


@scalar
def in_ppm(value):
    """Parts per million, to the nearest; 0 of what is no number."""
    if not abs(value) <= FINITE:
        return 0
    scaled = min(max(1.0 * value, -PPM_MOST), PPM_MOST) * PPM
    return int(scaled + 0.5) if scaled >= 0.0 else -int(0.5 - scaled)


@scalar
def term(value):
    """A term as it is kept: 0 of what is no number."""
    return value if abs(value) <= FINITE else 0.0


@scalar
def raw_value(lane, rows, place, params, which):
    """A normalised slot as it was before: slot * std + mean; `which` of the four of RAW_OF."""
    return rows[lane, place] * params[RAW_OF + 4 + which] + params[RAW_OF + which]


@scalar
def reward_terms(lane, given, state, params, reward, gamma, terms):
    """Write a lane's seven terms at weight 1 into float32[TERMS, lanes]; `reward` is its raw one, scaled."""
    before, after = given.before, given.after
    was, position = 1.0 * before[lane, FRACTION], 1.0 * after[lane, FRACTION]
    held_sign, sign = before[lane, SIGN], after[lane, SIGN]
    move = raw_value(lane, after, MOVE, params, 2)
    atr = max(raw_value(lane, before, ATR, params, 1), ATR_FLOOR_TICKS)
    spread = max(raw_value(lane, before, SPREAD, params, 0), 0.0) / atr
    terms[0, lane] = term(position * move - abs(position - was) * spread / 2)

    flow, confirmed = math.tanh(raw_value(lane, after, OFI, params, 3)), math.tanh(move)
    terms[1, lane] = term(position * flow * abs(confirmed) if flow * confirmed > 0.0 else 0.0)

    idle = position == 0.0 and was == 0.0
    terms[2, lane] = term(-min(max(1.0 * given.q_range[lane], 0.0), EDGE_CLIP) if idle else 0.0)
    terms[3, lane] = -CHURN_DECISIONS / (CHURN_DECISIONS + state.held[lane]) if sign * state.direction[lane] < 0.0 else 0.0

    leaving = 1.0 * before[lane, PROFIT]
    best = max(max(1.0 * state.best[lane], leaving), CAPTURE_FLOOR)
    closed = held_sign != 0.0 and sign != held_sign
    terms[4, lane] = term(min(max(leaving / best, -1.0), 1.0) if closed else 0.0)

    mean, square = 1.0 * state.mean[lane], 1.0 * state.square[lane]
    variance = max(square - mean * mean, VARIANCE_FLOOR)
    ratio = (square * (reward - mean) - 0.5 * mean * (reward * reward - square)) / (variance * math.sqrt(variance))
    terms[5, lane] = term(min(max(ratio, -SHARPE_CLIP), SHARPE_CLIP))

    ahead = 0.0 if given.terminated[lane] else position * after[lane, IMBALANCE]
    terms[6, lane] = term(gamma * ahead - was * before[lane, IMBALANCE])


@scalar
def remember(lane, given, state, reward):
    """Take a lane's step into what the terms remember; a lane whose episode ended starts anew, its moments aside."""
    sign = given.after[lane, SIGN]
    if given.ends[lane]:
        state.held[lane], state.best[lane], state.direction[lane] = 0.0, 0.0, 0.0
    elif given.decided[lane]:
        same = sign == given.before[lane, SIGN]
        if sign != 0.0:
            state.held[lane] = (state.held[lane] if same else 0.0) + 1.0
            state.best[lane] = max(1.0 * given.after[lane, PROFIT], 1.0 * state.best[lane] if same else 0.0)
            state.direction[lane] = sign
        else:
            state.best[lane] = 0.0
    if given.decided[lane]:
        state.mean[lane] += (reward - state.mean[lane]) * SHARPE_WEIGHT
        state.square[lane] += (reward * reward - state.square[lane]) * SHARPE_WEIGHT


@scalar
def count(lane, given, counted):
    """Write what is counted of a lane that decided, but for its rewards, into int64[TOTALS, lanes]."""
    conviction, health = given.conviction_ppm[lane], given.health_ppm[lane]
    q_range = given.q_range[lane]
    counted[CONVICTION_SUM, lane], counted[HEALTH_SUM, lane] = conviction, health
    counted[VARIANCE_SUM, lane] = given.variance_scale_ppm[lane]
    explored = 1 if given.explored[lane] else 0
    counted[LOGGED_EXPLORED, lane] = explored
    counted[P_BEST_SUM, lane] = in_ppm(given.p_best[lane])
    ranged = q_range > 0.0
    counted[TAU_SUM, lane] = in_ppm(min(given.tau[lane] / (1.0 * q_range), MOST_TAU_RATIO)) if ranged else 0
    counted[RANGED, lane] = 1 if ranged else 0
    floor = max(conviction, PPM // 2 + health // 2)
    counted[KELLY_ABOVE, lane] = 1 if in_ppm(given.before[lane, KELLY]) > floor else 0

    codes = decode_action(given.action[lane])
    flat = given.before[lane, SIGN] == 0.0
    counted[LOGGED + DECIDED, lane] = 1
    counted[LOGGED + FLAT_LANES, lane] = 1 if flat else 0
    counted[LOGGED + ATTEMPTS, lane] = 1 if flat and (codes[0] == SHORT or codes[0] == LONG) else 0
    counted[LOGGED + EXPLORED, lane] = explored
    first = LOGGED + PICKED
    for branch in range(len(SIZES)):
        counted[first + codes[branch], lane] = 1
        first += SIZES[branch]


@scalar
def of_lane(lane, given, state, params, gamma, out):
    """One lane's step: its terms, its rewards but for the whitening, what is counted of it, and what it remembers."""
    for row in range(TOTALS):
        out.counted[row, lane] = 0
    out.counted[RANGE_SUM, lane], out.counted[SIGMA_SUM, lane] = in_ppm(given.q_range[lane]), in_ppm(given.q_sigma[lane])
    reward = given.raw[lane] / params[UNIT]
    for row in range(TERMS):
        out.terms[row, lane] = 0.0
    if given.decided[lane]:
        reward_terms(lane, given, state, params, reward, gamma, out.terms)
        added = 0.0
        for row in range(TERMS):
            added += params[WEIGHTS + row] * out.terms[row, lane]
            out.counted[TERM_SUMS + row, lane] = in_ppm(out.terms[row, lane])
        out.raw[lane] = given.raw[lane]
        out.shaped[lane] = given.raw[lane] / USD_MICROS + added * (params[UNIT] / USD_MICROS)
        scaled = reward + added
        out.scaled[lane] = scaled
        out.counted[SCALED_SUM, lane] = in_ppm(out.scaled[lane])
        if given.before[lane, SIGN] != 0.0 or given.after[lane, SIGN] != 0.0:
            units = min(scaled * scaled / SQUARE_UNIT, 1.0 * SQUARE_MOST)
            out.counted[EXPOSED_SQUARES, lane] = int(units + 0.5)
            out.counted[EXPOSED_LANES, lane] = 1
        count(lane, given, out.counted)
    else:
        out.raw[lane], out.shaped[lane], out.scaled[lane] = 0, 0.0, 0.0
    remember(lane, given, state, reward)


@scalar
def whiten(totals, params, state):
    """Move the whitener by the totals of one step, over all lanes of all processes, and write the unit that rewards are divided by.

    A step in which no lane held a position moves nothing.
    """
    lanes = totals[EXPOSED_LANES]
    if lanes > 0:
        weight = max(1.0 / (state.steps[0] + 1.0), WHITEN_WEIGHT)
        mean = totals[EXPOSED_SQUARES] * SQUARE_UNIT / lanes
        state.mean_square[0] += (mean - state.mean_square[0]) * weight
        state.steps[0] += 1
    size = max(math.sqrt(1.0 * state.mean_square[0]), WHITEN_FLOOR)
    state.unit[0] = (size * params[ROOT_HORIZON]) ** params[POWER]


@kernel_cpu
def of_lanes_cpu(given, state, params, bus, gamma, out):
    """`bus` holds the discount at place `gamma` (int64[1])."""
    for lane in range(given.raw.size):
        of_lane(lane, given, state, params, 1.0 * bus[gamma[0]], out)


@kernel_cpu
def whiten_cpu(totals, params, state):
    whiten(totals, params, state)
