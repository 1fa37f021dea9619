"""CUDA kernels around the same scalar functions as `cuda_env.kernels_cpu`.

Import this module only where CUDA is wanted: numba's CUDA side is slow to import. Kernels compile when they are specialised.
"""

import lob.jit
from cuda_env.arrays import FIRST_LANE, LANES, MARK_MID2
from cuda_env.diag import BINS, CASH_SUM, CHUNK, EQUITY_SUM, FEES_SUM, MERGED, amount_rows, amounts_of, bins_of, carry
from cuda_env.observe import lane_slots, market_slots
from cuda_env.state import CURSOR
from cuda_env.step import close_lane, drain_lane, restart_lane, step_lane

cuda = lob.jit.cuda()
int64 = lob.jit.int64

THREADS = 128
"""Threads in a block."""

WARP = 32
"""Threads that assemble one lane's observation together, so that neighbouring threads write neighbouring floats."""


@cuda.jit
def step(picks, w):
    """One step: one thread a lane, at least `lanes` threads."""
    lane = cuda.grid(1)
    if lane < w.params[LANES]:
        step_lane(lane, picks, w.market, w.plan, w.params, w.state, w.out)


@cuda.jit
def drain(w):
    """The drain: one thread a lane."""
    lane = cuda.grid(1)
    if lane < w.params[LANES]:
        drain_lane(lane, w.market, w.plan, w.params, w.state, w.out)


@cuda.jit
def close_all(w):
    """The drain of all lanes where they stand: one thread a lane."""
    lane = cuda.grid(1)
    if lane < w.params[LANES]:
        close_lane(lane, w.market, w.plan, w.params, w.state, w.out)


@cuda.jit
def restart(w):
    """Begin anew the lanes whose episode has ended for good, after `carry_on`: one thread a lane. Integers, so the order of the additions
    cannot matter."""
    lane = cuda.grid(1)
    if lane < w.params[LANES]:
        cash, fees, equity = restart_lane(lane, w.params, w.starts, w.state)
        if cash != 0 or fees != 0 or equity != 0:
            cuda.atomic.add(w.sums.previous, CASH_SUM, cash)
            cuda.atomic.add(w.sums.previous, FEES_SUM, fees)
            cuda.atomic.add(w.sums.previous, EQUITY_SUM, equity)


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
            w.out.last_row[lane] = cursor
            lane_slots(lane, cursor, w.plan[cursor, MARK_MID2], w.params, w.state, w.last_observation[lane])


@cuda.jit
def count(w):
    """What `diag` counts of a chunk of lanes: one block of CHUNK threads a chunk; integers, so their order cannot matter."""
    sums = cuda.shared.array(MERGED, int64)
    chunk, thread = cuda.blockIdx.x, cuda.threadIdx.x
    first, last = chunk * CHUNK, min(w.params[LANES], (chunk + 1) * CHUNK)
    for place in range(thread, MERGED, CHUNK):
        sums[place] = 0
    cuda.syncthreads()
    lane = first + thread
    if lane < last:
        for place in bins_of(lane, w.out):
            cuda.atomic.add(sums, place, 1)
        for which, value in enumerate(amounts_of(lane, w.params[FIRST_LANE] + lane, amount_rows(0, last, w.state))):
            cuda.atomic.add(sums, BINS + which, value)
    cuda.syncthreads()
    for place in range(thread, MERGED, CHUNK):
        w.sums.partials[chunk, place] = sums[place]


@cuda.jit
def carry_on(w):
    """`carry`, on one thread."""
    if cuda.grid(1) == 0:
        carry(w.sums)
