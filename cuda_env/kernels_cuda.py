"""CUDA kernels around the same scalar functions as `cuda_env.kernels_cpu`.

Import this module only where CUDA is wanted: numba's CUDA side is slow to import. Kernels compile when they are specialised.
"""

import lob.jit
from cuda_env.arrays import LANES, MARK_MID2
from cuda_env.diag import CHUNK, chunk_leaf, clear_words
from cuda_env.observe import lane_slots, market_slots
from cuda_env.state import CURSOR
from cuda_env.step import drain_lane, step_lane

cuda = lob.jit.cuda()

THREADS = 128
"""Threads in a block."""

WARP = 32
"""Threads that assemble one lane's observation together, so that neighbouring threads write neighbouring floats."""


@cuda.jit
def step(picks, w):
    """One step: one thread a lane, at least `lanes` threads."""
    lane = cuda.grid(1)
    if lane < w.params[LANES]:
        if w.out.words.shape[0] > 0:
            clear_words(lane, w.out)
        step_lane(lane, picks, w.market, w.plan, w.params, w.state, w.out)


@cuda.jit
def drain(w):
    """The drain: one thread a lane."""
    lane = cuda.grid(1)
    if lane < w.params[LANES]:
        if w.out.words.shape[0] > 0:
            clear_words(lane, w.out)
        drain_lane(lane, w.market, w.plan, w.params, w.state, w.out)


@cuda.jit
def observe(w):
    """Observations: one warp a lane."""
    thread = cuda.grid(1)
    lane = thread // WARP
    if lane < w.params[LANES]:
        cursor = w.state[CURSOR, lane]
        market_slots(cursor, thread % WARP, WARP, w.features, w.observation[lane])
        if thread % WARP == 0:
            lane_slots(lane, cursor, w.plan[cursor, MARK_MID2], w.params, w.state, w.observation[lane])


@cuda.jit
def keep_last(w):
    """The last observation of lanes whose episode has just ended: one warp a lane."""
    thread = cuda.grid(1)
    lane = thread // WARP
    if lane < w.params[LANES] and (w.out.terminated[lane] != 0 or w.out.truncated[lane] != 0):
        cursor = w.state[CURSOR, lane]
        market_slots(cursor, thread % WARP, WARP, w.features, w.last_observation[lane])
        if thread % WARP == 0:
            lane_slots(lane, cursor, w.plan[cursor, MARK_MID2], w.params, w.state, w.last_observation[lane])


@cuda.jit
def sum_words(w):
    """Partial sums of `diag`: one thread for each chunk of lanes and leaf."""
    thread = cuda.grid(1)
    leaves = w.sums.unpack.shape[0]
    chunk = thread // leaves
    if chunk < w.sums.partials.shape[0]:
        leaf = thread % leaves
        last = min(w.params[LANES], (chunk + 1) * CHUNK)
        w.sums.partials[chunk, leaf] = chunk_leaf(chunk * CHUNK, last, leaf, w.sums.unpack, w.out)
