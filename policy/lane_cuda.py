"""CUDA kernels around the scalar functions of `policy.lane_kernels`. Import only where CUDA is wanted; they compile when specialised."""

import lob.jit
from policy.lane_kernels import of_lane, whiten

cuda = lob.jit.cuda()

THREADS = 128
"""Threads in a block."""


@cuda.jit
def of_lanes(given, state, params, bus, gamma, out):
    """One thread a lane."""
    lane = cuda.grid(1)
    if lane < given.raw.size:
        of_lane(lane, given, state, params, 1.0 * bus[gamma[0]], out)


@cuda.jit
def whitener(totals, params, state):
    """One thread."""
    if cuda.grid(1) == 0:
        whiten(totals, params, state)
