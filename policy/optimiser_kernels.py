"""One weight's step of AdamW (Loshchilov and Hutter 2019, algorithm 2) and of its lagged target, and the loop of it on the CPU.

In torch the same takes twenty passes over all weights.
"""

import math

import numpy as np

from lob.jit import kernel_cpu, scalar

BETA_FIRST, BETA_SECOND = 0.9, 0.999
"""Memory of the first and of the second moment: the values of Kingma and Ba (2015), which nothing here asks to change."""

EPSILON = 1e-8
"""Least divisor of a step (Kingma and Ba 2015)."""

# Places of `rates`, float32.
CLIP, LR, KEEP, FIRST_SHARE, SECOND_SHARE, POLYAK, GOING, RATES = range(8)

_f32 = np.float32
_B1, _B2, _EPSILON = _f32(BETA_FIRST), _f32(BETA_SECOND), _f32(EPSILON)
_NEW_1, _NEW_2 = _f32(1 - BETA_FIRST), _f32(1 - BETA_SECOND)


@scalar
def step_one(i, weights, target, first, second, gradient, clip, lr, keep, first_share, second_share, polyak):
    """Weight i and all that belongs to it; `keep` is 1 - lr * decay."""
    pull = gradient[i] * clip
    first_moment = _B1 * first[i] + _NEW_1 * pull
    second_moment = _B2 * second[i] + _NEW_2 * (pull * pull)
    step = (first_moment / first_share) / (_f32(math.sqrt(second_moment / second_share)) + _EPSILON)
    weight = weights[i] * keep - lr * step
    first[i], second[i], weights[i] = first_moment, second_moment, weight
    target[i] += polyak * (weight - target[i])


@kernel_cpu
def step_all(weights, target, first, second, gradient, rates):
    """Every weight; none where `rates[GOING]` is 0, whatever the gradient holds."""
    if rates[GOING] > 0:
        clip, lr, keep = rates[CLIP], rates[LR], rates[KEEP]
        first_share, second_share, polyak = rates[FIRST_SHARE], rates[SECOND_SHARE], rates[POLYAK]
        for i in range(weights.size):
            step_one(i, weights, target, first, second, gradient, clip, lr, keep, first_share, second_share, polyak)
