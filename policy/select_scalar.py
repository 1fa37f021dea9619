"""Selection of one lane as scalar functions in float32: the fused CUDA kernel runs them, and as njit or plain Python they can be followed.

The definitions are those of `policy.select`. `cells` holds the heads of some lanes; a choice's part of it begins at `first`: its logits,
then its quantiles. `judge` turns the logits into weights in place, which the other functions of a choice then read.

Loops over atoms count in `while`: of a `range`, the CUDA compiler does not see that its numbers are not negative, and every access would
pay for the wrap-around of negative indices.
"""

import math

import numpy as np

from lob.jit import scalar
from lob.philox import below, draw
from lob.units import PPM
from policy.distributions import BLEND, IQR_OF_NORMAL
from policy.draws import BRANCH_PURPOSE, UNIFORM_BITS
from policy.heads import BRANCH_SIZES

SELECTORS = ("greedy", "boltzmann", "thompson")
GREEDY, BOLTZMANN, THOMPSON = range(len(SELECTORS))

DIRECTIONS = BRANCH_SIZES[0]

# Bare names: a compiled function must not meet a 64-bit literal in float32 arithmetic, or it computes in 64 bits.
_f32 = np.float32
_ZERO, _HALF, _ONE = _f32(0), _f32(0.5), _f32(1)
_BLEND, _IQR = _f32(BLEND), _f32(IQR_OF_NORMAL)
_UPPER, _LOWER = _f32(0.75), _f32(0.25)
_UNIT = _f32(2.0**-UNIFORM_BITS)
_DROPPED_BITS = 32 - UNIFORM_BITS


@scalar
def bfloat16_value(bits):
    """The float32 whose upper half is a bfloat16, given as a 16-bit integer."""
    return np.int32(np.int32(bits) << 16).view(np.float32)


@scalar
def uniform(word):
    """float32 in [0, 1) of a 32-bit word: its upper 24 bits over 2^24."""
    return _f32(word >> _DROPPED_BITS) * _UNIT


@scalar
def judge(cells, first, atoms, quantiles, support):
    """(value, C51's mean, total weight) of a choice. Its logits become weights e^(logit - greatest), in place."""
    top, k = cells[first], 1
    while k < atoms:
        top = max(top, cells[first + k])
        k += 1
    total, moment, k = _ZERO, _ZERO, 0
    while k < atoms:
        weight = _f32(math.exp(cells[first + k] - top))
        cells[first + k] = weight
        total += weight
        moment += weight * support[k]
        k += 1
    level, k = _ZERO, 0
    while k < quantiles:
        level += cells[first + atoms + k]
        k += 1
    mean = moment / total
    return _BLEND * mean + (_ONE - _BLEND) * (level / _f32(quantiles)), mean, total


@scalar
def at_fraction(cells, first, count, fraction):
    """IQN's value at a fraction: linear between neighbouring quantiles, constant beyond the outermost."""
    place = min(max(fraction * _f32(count) - _HALF, _ZERO), _f32(count - 1))
    low = int(place)
    high = min(low + 1, count - 1)
    below_it = cells[first + low]
    return below_it + (cells[first + high] - below_it) * (place - _f32(low))


@scalar
def spread(cells, first, atoms, quantiles, support, mean, total):
    """Sigma of a judged choice's value."""
    square, k = _ZERO, 0
    while k < atoms:
        distance = support[k] - mean
        square += cells[first + k] * distance * distance
        k += 1
    between = at_fraction(cells, first + atoms, quantiles, _UPPER) - at_fraction(cells, first + atoms, quantiles, _LOWER)
    return _BLEND * _f32(math.sqrt(square / total)) + (_ONE - _BLEND) * (between / _IQR)


@scalar
def sample(cells, first, atoms, quantiles, support, total, of_atoms, of_quantiles):
    """A judged choice's value at two draws in [0, 1): C51's by inverse CDF, IQN's by interpolation."""
    bar, cumulated, at, k = of_atoms * total, _ZERO, 0, 0
    while k < atoms - 1:
        cumulated += cells[first + k]
        if cumulated <= bar:
            at += 1
        k += 1
    return _BLEND * support[at] + (_ONE - _BLEND) * at_fraction(cells, first + atoms, quantiles, of_quantiles)


@scalar
def argmax(scores, first, count):
    """The lowest code of the greatest of some scores."""
    best = 0
    for code in range(1, count):
        if scores[first + code] > scores[first + best]:
            best = code
    return best


@scalar
def boltzmann(scores, first, count, tau_floor, level):
    """(code at a draw in [0, 1), probability of the best one, temperature)."""
    top, bottom = scores[first], scores[first]
    for code in range(1, count):
        top, bottom = max(top, scores[first + code]), min(bottom, scores[first + code])
    tau = max(top - bottom, tau_floor)
    total = _ZERO
    for code in range(count):
        total += _f32(math.exp((scores[first + code] - top) / tau))
    bar, cumulated, picked = level * total, _ZERO, 0
    for code in range(count - 1):
        cumulated += _f32(math.exp((scores[first + code] - top) / tau))
        if cumulated <= bar:
            picked += 1
    return picked, _ONE / total, tau


@scalar
def pick(scores, first, branch, count, samples, sampled, selector, explore, epsilon, tau_floor, seed, lane, step):
    """(code, whether it was drawn uniformly, probability of the best, temperature) of a branch.

    `scores` has the branch's from `first` on, `samples` the directions' samples from `sampled` on (read by Thompson alone). A probability
    of the best that has no closed form is 1 or 0, as in `policy.select`.
    """
    coin, anywhere, level, _ = draw(seed, lane, step, BRANCH_PURPOSE + branch)
    p_best, tau = _ONE, _ZERO
    if selector == GREEDY:
        code = argmax(scores, first, count)
    elif selector == THOMPSON and branch == 0:
        code = argmax(samples, sampled, count)
        if code != argmax(scores, first, count):
            p_best = _ZERO
    else:
        code, p_best, tau = boltzmann(scores, first, count, tau_floor, uniform(level))
    uniformly = explore and uniform(coin) < epsilon
    if uniformly:
        code = below(anywhere, count)
    return code, uniformly, p_best, tau


@scalar
def extent(values, first):
    """(best, worst, mean) of the directions' values, from `first` on."""
    best, worst, total = values[first], values[first], _ZERO
    for code in range(DIRECTIONS):
        best, worst = max(best, values[first + code]), min(worst, values[first + code])
        total += values[first + code]
    return best, worst, total / _f32(DIRECTIONS)


@scalar
def conviction(best, mean, scale):
    """How far the best value stands above the mean one, over the scale, within 0..1; what is no number stays none."""
    share = (best - mean) / scale
    if share > _ONE:
        return _ONE
    if share < _ZERO:
        return _ZERO
    return share


@scalar
def variance_scale(sigma):
    """1 / (1 + sigma)."""
    return _ONE / (_ONE + sigma)


@scalar
def to_ppm(value):
    """Parts per million of a float32 in 0..1, to the nearest, halves to even, computed in 64 bits; 0 of what is no number."""
    if not value >= _ZERO:
        return 0
    scaled = np.float64(value) * PPM
    whole = int(scaled)
    rest = scaled - whole
    if rest > 0.5 or (rest == 0.5 and whole % 2 == 1):
        whole += 1
    return whole
