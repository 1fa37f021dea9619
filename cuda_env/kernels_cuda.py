"""CUDA kernels around the same scalar functions as `cuda_env.kernels_cpu`.

Import this module only where CUDA is wanted: numba's CUDA side is slow to import. Kernels compile when they are specialised.
"""

import lob.jit
from cuda_env.arrays import FIRST_LANE, LANES, MARK_MID2
from cuda_env.diag import (
    AMOUNTS,
    BINS,
    CASH_SUM,
    CHUNK,
    END_BIN,
    EQUITY_SUM,
    FEES_SUM,
    MERGED,
    RUNNING_BIN,
    amount_rows,
    amounts_of,
    bins_of,
    carry,
)
from cuda_env.kernels_moves import moves
from cuda_env.observe import SLOT_COUNT, lane_slots, market_slots
from cuda_env.state import CURSOR
from cuda_env.step import close_lane, drain_lane, restart_lane, step_lane
from lob.layout import LANE

cuda = lob.jit.cuda()
int64, float32 = lob.jit.int64, lob.jit.float32

THREADS = 128
"""Threads in a block."""

WARP = 32
"""Threads that assemble one lane's observation together, so that neighbouring threads write neighbouring floats."""

OBSERVED = WARP
"""Lanes whose observations a block assembles: their own slots by one warp, a thread a lane, then their rows by all warps."""

OBSERVERS = 8 * WARP
"""Threads in such a block."""

PITCH = CHUNK + 1
"""Cells from one amount to the next: odd, so that threads of different amounts meet different banks."""

TELLERS = CHUNK // AMOUNTS
"""Threads of a block that sum each of its amounts."""


step, drain, close_all, run, follow = moves(step_lane, drain_lane, close_lane)


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
    """Observations: a block for OBSERVED lanes. A lane's divisions on one thread of the warp that writes its row would leave the other
    31 waiting, and the memory with them."""
    own = cuda.shared.array((OBSERVED, SLOT_COUNT), float32)
    cursors = cuda.shared.array(OBSERVED, int64)
    thread, begin = cuda.threadIdx.x, cuda.blockIdx.x * OBSERVED
    count = min(OBSERVED, w.params[LANES] - begin)
    if thread < count:
        cursor = w.state[CURSOR, begin + thread]
        cursors[thread] = cursor
        lane_slots(begin + thread, cursor, w.plan[cursor, MARK_MID2], w.params, w.state, own[thread], 0)
    cuda.syncthreads()
    place = thread % WARP
    for at in range(thread // WARP, count, OBSERVERS // WARP):
        template, row = w.features[cursors[at]], w.observation[begin + at]
        # All reads before the first write: the four then wait for memory together.
        first, second, third = template[place], template[place + WARP], template[place + 2 * WARP]
        last = own[at, place] if place < SLOT_COUNT else template[place + LANE]
        row[place], row[place + WARP], row[place + 2 * WARP], row[place + LANE] = first, second, third, last


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
            lane_slots(lane, cursor, w.plan[cursor, MARK_MID2], w.params, w.state, w.last_observation[lane], LANE)


@cuda.jit
def count(w):
    """What `diag` counts of a chunk of lanes: one block of CHUNK threads a chunk; integers, so their order cannot matter.

    Amounts are summed by TELLERS threads each: added to one place by all threads at once, each would wait for all the others. So would
    the lanes that go on running, which are nearly all: they are what the others leave.
    """
    sums = cuda.shared.array(MERGED, int64)
    amounts = cuda.shared.array((AMOUNTS, PITCH), int64)
    chunk, thread = cuda.blockIdx.x, cuda.threadIdx.x
    first, last = chunk * CHUNK, min(w.params[LANES], (chunk + 1) * CHUNK)
    for place in range(thread, MERGED, CHUNK):
        sums[place] = 0
    cuda.syncthreads()
    lane = first + thread
    if lane < last:
        picked, actual, gates, end = bins_of(lane, w.out)
        cuda.atomic.add(sums, picked, 1)
        cuda.atomic.add(sums, actual, 1)
        cuda.atomic.add(sums, gates, 1)
        if end != RUNNING_BIN:
            cuda.atomic.add(sums, end, 1)
        for which, value in enumerate(amounts_of(lane, w.params[FIRST_LANE] + lane, amount_rows(0, last, w.state))):
            amounts[which, thread] = value
    cuda.syncthreads()
    which, teller = thread // TELLERS, thread % TELLERS
    if which < AMOUNTS:
        total = 0
        for i in range(teller, last - first, TELLERS):
            total += amounts[which, i]
        cuda.atomic.add(sums, BINS + which, total)
    if thread == 0:
        running = last - first
        for place in range(END_BIN, BINS):
            running -= sums[place]
        sums[RUNNING_BIN] = running
    cuda.syncthreads()
    for place in range(thread, MERGED, CHUNK):
        w.sums.partials[chunk, place] = sums[place]


@cuda.jit
def carry_on(w):
    """`carry`, on one thread."""
    if cuda.grid(1) == 0:
        carry(w.sums)
