"""CUDA kernels that copy a step's outputs into a block of the log. None of them writes into a block that is full.

Import this module only where CUDA is wanted, like `cuda_env.kernels_cuda`. `w` is a `World`, `b` a `Block`.
"""

import lob.jit
from cuda_env.arrays import FILLS_WRITTEN, LANES, ORDERS_WRITTEN, TRADES_WRITTEN
from cuda_env.blocks import CAPTURED, CUMULATED, HEAD, MOVED, PLACE
from cuda_env.kernels_cuda import WARP
from cuda_env.state import CLOCK

cuda = lob.jit.cuda()

FIRST_COUNTER = CAPTURED + 1


@cuda.jit
def keep_head(w, b):
    """What `diag` needs: at least HEAD threads."""
    at, step = cuda.grid(1), b.counters[CAPTURED]
    if at >= HEAD or step >= b.head.shape[0]:
        return
    if at < MOVED:
        value = w.sums.merged[at]
    elif at < CUMULATED:
        value = w.sums.moved[at - MOVED]
    elif at < PLACE:
        value = w.sums.cumulated[at - CUMULATED]
    elif at == PLACE:
        value = w.out.row[0]
    elif at == PLACE + 1:
        value = w.out.closed[0]
    else:
        value = w.state[CLOCK, 0]
    b.head[step, at] = value


@cuda.jit
def keep_steps(w, b):
    """The stored `steps`: one thread a lane."""
    lane, step = cuda.grid(1), b.counters[CAPTURED]
    if lane < w.params[LANES] and step < b.head.shape[0]:
        for field in range(w.out.steps.shape[0]):
            b.steps[step, field, lane] = w.out.steps[field, lane]


@cuda.jit(device=True)
def _append(thread, lane, table, stored, counts, rows, b):
    """A lane's rows of one table, by the threads of a warp. `b.ends` says behind whose rows they go."""
    if stored.shape[0] == 0:
        return
    written = counts[table, lane]
    first = b.counters[FIRST_COUNTER + table] + b.ends[table, lane] - written
    columns = stored.shape[2]
    for at in range(thread, written * (columns + 1), WARP):
        slot, column = at // (columns + 1), at % (columns + 1)
        rows[first + slot, column] = stored[lane, slot, column] if column < columns else lane


@cuda.jit
def keep_rows(w, b):
    """The rows of `orders`, `fills` and `trades`: one warp a lane."""
    at = cuda.grid(1)
    lane, thread = at // WARP, at % WARP
    if lane < w.params[LANES] and b.counters[CAPTURED] < b.head.shape[0]:
        _append(thread, lane, ORDERS_WRITTEN, w.out.orders, w.out.counts, b.orders, b)
        _append(thread, lane, FILLS_WRITTEN, w.out.fills, w.out.counts, b.fills, b)
        _append(thread, lane, TRADES_WRITTEN, w.out.trades, w.out.counts, b.trades, b)


@cuda.jit
def advance(w, b):
    """The counters, on one thread, after everything else. A step too many is counted, so that `fetch` can tell."""
    if cuda.grid(1) == 0:
        if b.counters[CAPTURED] < b.head.shape[0]:
            for table in range(b.ends.shape[0]):
                if b.ends.shape[1] > 0:
                    b.counters[FIRST_COUNTER + table] += b.ends[table, w.params[LANES] - 1]
        b.counters[CAPTURED] += 1
        b.slot[0] = min(b.counters[CAPTURED], b.head.shape[0])


def launches(world, lanes: int) -> list[tuple]:
    """(kernel, threads) of a capture, in order, for the tables that the world emits; `b.ends` must stand before the first."""
    out = world.out
    chosen = [
        (keep_rows, lanes * WARP, out.counts.shape[1] > 0),
        (keep_steps, lanes, out.steps.shape[1] > 0),
        (keep_head, HEAD, out.codes.shape[1] > 0),
        (advance, 1, True),
    ]
    return [(kernel, threads) for kernel, threads, needed in chosen if needed]
