"""The CUDA kernel around `policy.optimiser_kernels.step_one`. Import only where CUDA is wanted; it compiles when specialised."""

import lob.jit
from policy.optimiser_kernels import CLIP, FIRST_SHARE, GOING, KEEP, LR, POLYAK, SECOND_SHARE, step_one

cuda = lob.jit.cuda()

THREADS = 128
"""Threads in a block."""


@cuda.jit
def step_all(weights, target, first, second, gradient, rates):
    """One thread a weight; as on the CPU, none steps where `rates[GOING]` is 0."""
    i = cuda.grid(1)
    if i < weights.size and rates[GOING] > 0:
        step_one(
            i, weights, target, first, second, gradient, rates[CLIP], rates[LR], rates[KEEP], rates[FIRST_SHARE], rates[SECOND_SHARE],
            rates[POLYAK],
        )  # fmt: skip
