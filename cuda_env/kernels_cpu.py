"""Loops over lanes on the CPU: each kernel once for one thread and once for several, around the same scalar functions."""

from cuda_env.arrays import CHUNK_LANES, FIRST_LANE, LANES, World
from cuda_env.diag import CASH_SUM, CHUNK, EQUITY_SUM, FEES_SUM, carry, count_chunk, merge, rebase
from cuda_env.observe import observe_lane
from cuda_env.state import CURSOR, POSITION
from cuda_env.step import close_lane, drain_lane, restart_lane, start_row, step_lane
from cuda_env.step_live import live_close_lane, live_drain_lane, live_step_lane
from lob.jit import kernel_cpu, kernel_cpu_parallel, prange, scalar

# `live` is None where every order is a market order: numba then compiles nothing of orders that work in the book, which would take as long
# again. Else it is 1. The branch is told by the argument's type, so it stands wherever a lane is stepped or closed.
# A `prange` cannot capture a tuple of tuples: the parallel kernels take a `World`'s parts and put it together inside.

PARALLEL_FROM = 2 * CHUNK
"""Fewer lanes run on one thread: starting the others costs more than they save."""


@scalar
def chunk_count(params):
    """Number of chunks of lanes."""
    return (params[LANES] + params[CHUNK_LANES] - 1) // params[CHUNK_LANES]


@scalar
def chunk_range(chunk, params):
    """(first, last) lane of a chunk, last exclusive."""
    return chunk * params[CHUNK_LANES], min(params[LANES], (chunk + 1) * params[CHUNK_LANES])


@scalar
def _step(lane, picks, w, live):
    """One step of a lane, as the queue model has it."""
    if live is None:
        step_lane(lane, picks, w.market, w.plan, w.params, w.state, w.out)
    else:
        live_step_lane(lane, picks, w.market, w.plan, w.params, w.state, w.out)


@kernel_cpu
def _after_chunk(chunk, first, last, w):
    """Keep the last observation of lanes that ended, and count the chunk for `diag`."""
    for lane in range(first, last):
        if w.out.terminated[lane] != 0 or w.out.truncated[lane] != 0:
            w.out.last_row[lane] = w.state[CURSOR, lane]
            observe_lane(lane, w.features, w.plan, w.params, w.state, w.last_observation[lane])
    if w.out.codes.shape[1] > 0:
        count_chunk(first, last, chunk, w.params[FIRST_LANE], w.state, w.out, w.sums.partials)


@kernel_cpu
def _restart_chunk(chunk, first, last, w):
    """Begin anew the lanes whose episode has ended for good, once outputs and sums of the step are taken."""
    cash, fees, equity = 0, 0, 0
    for lane in range(first, last):
        more_cash, more_fees, more_equity = restart_lane(lane, w.params, w.starts, w.state)
        cash += more_cash
        fees += more_fees
        equity += more_equity
    w.sums.restarted[chunk, CASH_SUM] = cash
    w.sums.restarted[chunk, FEES_SUM] = fees
    w.sums.restarted[chunk, EQUITY_SUM] = equity


@kernel_cpu
def _step_chunk(chunk, picks, w, live):
    first, last = chunk_range(chunk, w.params)
    for lane in range(first, last):
        _step(lane, picks, w, live)
    _after_chunk(chunk, first, last, w)
    if w.starts.rows.size > 0:
        _restart_chunk(chunk, first, last, w)


@kernel_cpu
def _observe_chunk(chunk, w):
    first, last = chunk_range(chunk, w.params)
    for lane in range(first, last):
        observe_lane(lane, w.features, w.plan, w.params, w.state, w.observation[lane])


@kernel_cpu
def _any_fault(out):
    """Whether a lane has a fault."""
    found = 0
    for lane in range(out.fault.size):
        found |= out.fault[lane]
    return found != 0


@kernel_cpu
def _close(chunks, restarts, w):
    """Total the sums of the chunks; returns whether a lane has a fault."""
    if w.out.codes.shape[1] > 0:
        merge(chunks, w.sums)
        carry(w.sums)
    if restarts and w.starts.rows.size > 0:
        rebase(chunks, w.sums)
    return _any_fault(w.out)


@kernel_cpu
def step_one(picks, w, live):
    """One step of all lanes of a `World` on this thread; returns whether a lane has a fault."""
    chunks = chunk_count(w.params)
    for chunk in range(chunks):
        _step_chunk(chunk, picks, w, live)
    return _close(chunks, True, w)


@kernel_cpu_parallel
def step_many(live, picks, market, plan, params, starts, features, state, out, observation, last_observation, sums):
    """`step_one` on several threads, a chunk of lanes at a time."""
    chunks = chunk_count(params)
    for chunk in prange(chunks):
        world = World(market, plan, params, starts, features, state, out, observation, last_observation, sums)
        _step_chunk(chunk, picks, world, live)
    return _close(chunks, True, World(market, plan, params, starts, features, state, out, observation, last_observation, sums))


@kernel_cpu
def observe_one(w):
    """Observations of all lanes on this thread."""
    for chunk in range(chunk_count(w.params)):
        _observe_chunk(chunk, w)


@kernel_cpu_parallel
def observe_many(market, plan, params, starts, features, state, out, observation, last_observation, sums):
    """`observe_one` on several threads."""
    for chunk in prange(chunk_count(params)):
        _observe_chunk(chunk, World(market, plan, params, starts, features, state, out, observation, last_observation, sums))


@kernel_cpu
def drain(w, live):
    """The drain of all lanes at the end of their window; returns whether a lane has a fault."""
    chunks = chunk_count(w.params)
    for chunk in range(chunks):
        first, last = chunk_range(chunk, w.params)
        for lane in range(first, last):
            if live is None:
                drain_lane(lane, w.market, w.plan, w.params, w.state, w.out)
            else:
                live_drain_lane(lane, w.market, w.plan, w.params, w.state, w.out)
        _after_chunk(chunk, first, last, w)
    return _close(chunks, False, w)


@kernel_cpu
def close_all(w, live):
    """The drain of all lanes where they stand, after which none begins anew; returns whether a lane has a fault."""
    chunks = chunk_count(w.params)
    for chunk in range(chunks):
        first, last = chunk_range(chunk, w.params)
        for lane in range(first, last):
            if live is None:
                close_lane(lane, w.market, w.plan, w.params, w.state, w.out)
            else:
                live_close_lane(lane, w.market, w.plan, w.params, w.state, w.out)
        _after_chunk(chunk, first, last, w)
    return _close(chunks, False, w)


@kernel_cpu
def draw_starts(params, starts, rows):
    """The row at which each lane begins its first episode, into int64[lanes]."""
    for lane in range(rows.size):
        rows[lane] = start_row(lane, 0, params, starts)


@kernel_cpu
def _run_chunk(chunk, actions, picks, observe, w, live):
    """All steps of `actions` for one chunk of lanes."""
    first, last = chunk_range(chunk, w.params)
    for lane in range(first, last):
        for step in range(actions.shape[0]):
            if observe:
                observe_lane(lane, w.features, w.plan, w.params, w.state, w.observation[lane])
            picks.action[lane] = actions[step, lane]
            _step(lane, picks, w, live)
            if w.starts.rows.size > 0:
                restart_lane(lane, w.params, w.starts, w.state)


@scalar
def followed(lane, actions, part, state):
    """The action that a lane's rule has for the row it stands at, of int32[rules, rows, 3]: for a lane that is short, flat or long."""
    position = state[POSITION, lane]
    sign = 2 if position > 0 else (0 if position < 0 else 1)
    return actions[part[lane], state[CURSOR, lane], sign]


@kernel_cpu
def _follow_chunk(chunk, actions, part, steps, picks, w, live):
    """`steps` steps of one chunk of lanes, each after its rule."""
    first, last = chunk_range(chunk, w.params)
    for lane in range(first, last):
        for _ in range(steps):
            picks.action[lane] = followed(lane, actions, part, w.state)
            _step(lane, picks, w, live)
            if w.starts.rows.size > 0:
                restart_lane(lane, w.params, w.starts, w.state)


@kernel_cpu
def follow_one(actions, part, steps, picks, w, live):
    """`run_one` for rules in place of known picks; returns whether a lane has a fault."""
    for chunk in range(chunk_count(w.params)):
        _follow_chunk(chunk, actions, part, steps, picks, w, live)
    return _any_fault(w.out)


@kernel_cpu_parallel
def follow_many(live, actions, part, steps, picks, market, plan, params, starts, features, state, out, observation, last_observation, sums):
    """`follow_one` on several threads."""
    chunks = chunk_count(params)
    for chunk in prange(chunks):
        world = World(market, plan, params, starts, features, state, out, observation, last_observation, sums)
        _follow_chunk(chunk, actions, part, steps, picks, world, live)
    return _any_fault(out)


@kernel_cpu
def run_one(actions, picks, observe, w, live):
    """Many steps at once on this thread, for picks that are known beforehand: actions int32[T, lanes]; returns whether a lane has a fault.

    Lane by lane, so each lane's state stays in registers' reach; only state, reward and end reason of the last step are left.
    """
    for chunk in range(chunk_count(w.params)):
        _run_chunk(chunk, actions, picks, observe, w, live)
    return _any_fault(w.out)


@kernel_cpu_parallel
def run_many(live, actions, picks, observe, market, plan, params, starts, features, state, out, observation, last_observation, sums):
    """`run_one` on several threads."""
    chunks = chunk_count(params)
    for chunk in prange(chunks):
        world = World(market, plan, params, starts, features, state, out, observation, last_observation, sums)
        _run_chunk(chunk, actions, picks, observe, world, live)
    return _any_fault(out)
