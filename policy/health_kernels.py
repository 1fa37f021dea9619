"""Learning health and controls as scalar functions over the bus, and their calls on the CPU; `policy.health` says what they are for.

One thread runs each: a few hundred operations on numbers that depend on each other. (As torch operations they were a hundred and fifty
launches, half a training step on a GPU.) Arithmetic is float64, the bus float32.
"""

import math
from typing import NamedTuple

from lob.jit import kernel_cpu, scalar
from lob.units import PPM
from policy.explore import branch_epsilon, count_bonus, passive_pressure, scheduled_epsilon
from policy.signals import BRANCH_CHOICES, COMPONENTS, EXPERTS, FAST, INDEX, MEMBERS, SLOW


class Part(NamedTuple):
    """One component of health: its weight in percent, its formula over bus slots, and why it weighs as much."""

    percent: int
    formula: str
    reason: str


PARTS = {
    "q_gap": Part(
        25,
        "q_range.direction / (q_range.direction + q_dir_abs_ref); 0 where both are 0",
        "values that no longer differ between choices are the collapse that this signal is there to sense",
    ),
    "grad_stability": Part(
        15,
        "1 / (1 + grad_log_square - grad_log^2), the variance of the norm's logarithm; 0 before there is a gradient",
        "an erratic gradient spoils every other figure, but clipping bounds the harm",
    ),
    "loss_trend": Part(
        15,
        "1 where loss <= loss_slow, else loss_slow / loss; 0 before there is a gradient",
        "a rising loss is the plainest sign of divergence, and the slowest",
    ),
    "td_calibration": Part(
        15,
        "mean of q_sigma / td_abs, at most 1, and 1 where td_abs is 0; 0 before there is a gradient",
        "errors beyond the stated spread mean that conviction and variance scale are not to be believed",
    ),
    "entropy": Part(10, "entropy of pick_share.direction / ln 4: hold and flat apart", "selection keeps it up by itself"),
    "expert_use": Part(10, "(exp(entropy of expert_use) - 1) / 7", "the load-balance loss keeps it up by itself"),
    "spectral_gap_norm": Part(10, "1 - spectral_gap", "features on one line foretell a collapse, but a small problem may need no more"),
}
"""Component -> weight, formula, reason. The percents sum to 100."""

assert tuple(PARTS) == COMPONENTS and sum(part.percent for part in PARTS.values()) == 100

CONVICTION_FLOOR = 0.01
"""Least scale of conviction (C11): before values have a size, an advantage of a hundredth of a whitened reward counts as full."""

NORM_FLOOR = 1e-6
"""Least gradient norm whose logarithm is taken: below it there is no gradient, and how far below says nothing."""

FINITE = 3.4e38
"""What float32 holds, nearly: a value of which this is not the greater is no number to learn from."""

STEPS, UPDATES = range(2)
"""Places of the clock, int64[2]."""

# Places of what a step counted, int64: lanes that decided, of them flat ones, of those the ones that picked long or short, lanes that
# explored, and from PICKED on lanes per choice.
DECIDED, FLAT_LANES, ATTEMPTS, EXPLORED, PICKED = range(5)
CHOICES = len(BRANCH_CHOICES)
COUNTS = PICKED + CHOICES

# Places of the parameters, float64: offset and slope of each response, then what `select` and `control` say.
RESPONSES = 9
OFFSET, SLOPE = 0, RESPONSES
EPSILON_START, EPSILON_END, EPSILON_STEPS, BONUS, TAU_FLOOR, TAU_REFERENCE, TARGET_STEP = range(2 * RESPONSES, 2 * RESPONSES + 7)
PARAMS = 2 * RESPONSES + 7

# Places of a measured update, float32: the slots from `v_half.direction` to `q_dir_abs_ref`, then losses, then norms, then the gate.
BLOCK = INDEX["q_dir_abs_ref"] + 1 - INDEX["v_half.direction"]
LOSSES = 6
NORMS = 5
GATE = BLOCK + LOSSES + NORMS
MEASURED = GATE + EXPERTS + 1

HEALTH = INDEX["learning_health"]
PART = INDEX[f"health.{COMPONENTS[0]}"]
V_HALF, Q_RANGE, Q_SIGMA = (INDEX[f"{name}.direction"] for name in ("v_half", "q_range", "q_sigma"))
TD_ABS, Q_SIZE, GAP = INDEX["td_abs"], INDEX["q_dir_abs_ref"], INDEX["spectral_gap"]
LOSS, LOSS_SLOW = INDEX["loss"], INDEX["loss_slow"]
NORM, NORM_LOG, NORM_LOG_SQUARE, NORM_PARTS = (INDEX[name] for name in ("grad_norm", "grad_log", "grad_log_square", "grad.c51"))
LR, SHARE_CQL, SHARE_AUX = INDEX["lr"], INDEX["share_cql"], INDEX["share_aux"]
IQN_RATIO, SHARE_C51, SHARE_IQN = INDEX["iqn_ratio"], INDEX["share_c51"], INDEX["share_iqn"]
EPSILON, TAU, CONVICTION = INDEX["epsilon.direction"], INDEX["tau_floor.direction"], INDEX["conviction_scale"]
PRESSURE, EXPLORED_RATE = INDEX["passive_pressure"], INDEX["explored_rate"]
ATTEMPT_RATE, TARGET_RATE = INDEX["trade_attempt_rate_ema"], INDEX["trade_target_rate"]
PICK_SHARE, PICK_BONUS = INDEX[f"pick_share.{BRANCH_CHOICES[0]}"], INDEX[f"bonus.{BRANCH_CHOICES[0]}"]
EXPERT_USE = INDEX["expert_use.0"]
BRANCHES = len(MEMBERS)
DIRECTIONS = len(MEMBERS["direction"])
PERCENT = tuple(part.percent for part in PARTS.values())


@scalar
def weight_of(seen, least):
    """1 / (values seen + 1), never below `least`: a plain mean at first, an EMA from then on."""
    return max(1.0 / (seen + 1.0), least)


@scalar
def move(bus, place, value, weight):
    """Move a slot towards a value; one that is not finite moves nothing."""
    if abs(value) <= FINITE:
        bus[place] = bus[place] + (value - bus[place]) * weight


@scalar
def ratio(part, whole):
    """part / whole, 0 where whole is not above 0."""
    return part / whole if whole > 0.0 else 0.0


@scalar
def within_one(value):
    """The value within 0..1; what is no number is 0."""
    return min(max(value, 0.0), 1.0) if value == value else 0.0


@scalar
def entropy(bus, first, count):
    """In nats, of `count` slots as shares, normalised here; 0 where they sum to 0."""
    total, sum_ = 0.0, 0.0
    for i in range(count):
        total += max(1.0 * bus[first + i], 0.0)
    for i in range(count):
        share = ratio(max(1.0 * bus[first + i], 0.0), total)
        if share > 0.0:
            sum_ -= share * math.log(share)
    return sum_


@scalar
def component(which, bus):
    """One part of health by its formula in `PARTS`, within 0..1: total, whatever the bus holds."""
    learned = bus[NORM] > 0.0
    value = 0.0
    if which == 0:
        gap = max(1.0 * bus[Q_RANGE], 0.0)
        value = ratio(gap, gap + max(1.0 * bus[Q_SIZE], 0.0))
    elif which == 1 and learned:
        mean = 1.0 * bus[NORM_LOG]
        value = 1.0 / (1.0 + max(bus[NORM_LOG_SQUARE] - mean * mean, 0.0))
    elif which == 2 and learned:
        fast, slow = 1.0 * bus[LOSS], 1.0 * bus[LOSS_SLOW]
        value = 1.0 if fast <= slow else ratio(slow, fast)
    elif which == 3 and learned:
        sigma = 0.0
        for branch in range(BRANCHES):
            sigma += 1.0 * bus[Q_SIGMA + branch] / BRANCHES
        value = ratio(sigma, 1.0 * bus[TD_ABS]) if bus[TD_ABS] > 0.0 else 1.0
    elif which == 4:
        value = entropy(bus, PICK_SHARE, DIRECTIONS) / math.log(1.0 * DIRECTIONS)
    elif which == 5:
        value = (math.exp(entropy(bus, EXPERT_USE, EXPERTS)) - 1.0) / (EXPERTS - 1)
    elif which == 6:
        value = 1.0 - bus[GAP]
    return within_one(value)


@scalar
def take_step(counts, bus, clock, picks, params):
    """Take in one environment step's counts. A share of nothing leaves its slot as it was."""
    weight = weight_of(clock[STEPS], FAST)
    if counts[FLAT_LANES] > 0:
        move(bus, ATTEMPT_RATE, counts[ATTEMPTS] / counts[FLAT_LANES], weight)
    if counts[DECIDED] > 0:
        move(bus, EXPLORED_RATE, counts[EXPLORED] / counts[DECIDED], weight)
        for choice in range(CHOICES):
            move(bus, PICK_SHARE + choice, counts[PICKED + choice] / counts[DECIDED], weight)
            picks[choice] += counts[PICKED + choice]
    clock[STEPS] += 1
    if clock[STEPS] == params[TARGET_STEP]:
        bus[TARGET_RATE] = bus[ATTEMPT_RATE]


@scalar
def take_update(measured, has_gate, bus, clock):
    """Take in what one update of the learner measured, float32[MEASURED]; `has_gate` int64[1]: whether its last nine say anything."""
    weight = weight_of(clock[UPDATES], FAST)
    for i in range(BLOCK):
        move(bus, V_HALF + i, measured[i], 1.0 if i < BRANCHES else weight)
    for i in range(LOSSES):
        move(bus, LOSS + i, measured[BLOCK + i], weight)
    move(bus, LOSS_SLOW, measured[BLOCK], weight_of(clock[UPDATES], SLOW))
    norm = measured[BLOCK + LOSSES]
    if abs(norm) <= FINITE:
        size = math.log(max(1.0 * norm, NORM_FLOOR))
        move(bus, NORM, norm, weight)
        move(bus, NORM_LOG, size, weight)
        move(bus, NORM_LOG_SQUARE, size * size, weight)
    for i in range(NORMS - 1):
        move(bus, NORM_PARTS + i, measured[BLOCK + LOSSES + 1 + i], weight)
    if has_gate[0] != 0:
        for i in range(EXPERTS + 1):
            move(bus, EXPERT_USE + i, measured[GATE + i], weight)
    clock[UPDATES] += 1


@scalar
def settle(bus, clock, picks, params, drives, health_ppm):
    """Health from the slots, then every control, then int32[1] `health_ppm`."""
    health = 0.0
    for i in range(len(PERCENT)):
        part = component(i, bus)
        bus[PART + i] = part
        health += part * PERCENT[i] / 100.0
    health = within_one(health)
    bus[HEALTH] = health
    health_ppm[0] = int(health * PPM + 0.5)
    for i in range(RESPONSES):
        bus[LR + i] = params[OFFSET + i] + params[SLOPE + i] * bus[drives[i]]
    budget = 1.0 - bus[SHARE_CQL] - bus[SHARE_AUX]
    iqn = bus[IQN_RATIO] * budget
    bus[SHARE_IQN] = iqn
    bus[SHARE_C51] = budget - iqn
    pressure = passive_pressure(1.0 * bus[ATTEMPT_RATE], 1.0 * bus[TARGET_RATE])
    bus[PRESSURE] = pressure
    scheduled = scheduled_epsilon(params[EPSILON_START], params[EPSILON_END], params[EPSILON_STEPS], 1.0 * clock[STEPS])
    size = 1.0 * bus[Q_SIZE]
    for branch in range(BRANCHES):
        bus[EPSILON + branch] = branch_epsilon(branch, scheduled, pressure)
        bus[TAU + branch] = max(params[TAU_FLOOR], params[TAU_REFERENCE] * size) if branch == 0 else params[TAU_FLOOR]
    bus[CONVICTION] = max(size, CONVICTION_FLOOR)
    for choice in range(CHOICES):
        bus[PICK_BONUS + choice] = count_bonus(params[BONUS], picks[choice])


@kernel_cpu
def observe_step(counts, bus, clock, picks, params):
    take_step(counts, bus, clock, picks, params)


@kernel_cpu
def observe_update(measured, has_gate, bus, clock):
    take_update(measured, has_gate, bus, clock)


@kernel_cpu
def update_controls(bus, clock, picks, params, drives, health_ppm):
    settle(bus, clock, picks, params, drives, health_ppm)
