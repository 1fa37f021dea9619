"""Loops over lanes on the CPU: each kernel once for one thread and once for several, around the same scalar functions."""

from cuda_env.arrays import LANES, World
from cuda_env.diag import CHUNK, clear_words, total_up, unpack_chunk
from cuda_env.observe import observe_lane
from cuda_env.step import drain_lane, step_lane
from lob.jit import kernel_cpu, kernel_cpu_parallel, prange

# A `prange` cannot capture a tuple of tuples: the parallel kernels take a `World`'s parts and put it together inside.
# CHUNK lanes are also what one thread takes at a time: their state and outputs stay in the first-level cache.

PARALLEL_FROM = 4 * CHUNK
"""Fewer lanes run on one thread: starting the others costs more than they save."""


@kernel_cpu
def _after_chunk(chunk, first, last, w):
    """Keep the last observation of lanes that ended, and sum the chunk's words for `diag`."""
    for lane in range(first, last):
        if w.out.terminated[lane] != 0 or w.out.truncated[lane] != 0:
            observe_lane(lane, w.features, w.plan, w.params, w.state, w.last_observation[lane])
    if w.out.words.shape[0] > 0:
        unpack_chunk(chunk, chunk, w.sums.unpack, w.out, w.sums.partials)


@kernel_cpu
def _step_chunk(chunk, picks, w):
    first, last = chunk * CHUNK, min(w.params[LANES], (chunk + 1) * CHUNK)
    if w.out.words.shape[0] > 0:
        clear_words(chunk, w.out)
    for lane in range(first, last):
        step_lane(lane, picks, w.market, w.plan, w.params, w.state, w.out)
    _after_chunk(chunk, first, last, w)


@kernel_cpu
def _observe_chunk(chunk, w):
    for lane in range(chunk * CHUNK, min(w.params[LANES], (chunk + 1) * CHUNK)):
        observe_lane(lane, w.features, w.plan, w.params, w.state, w.observation[lane])


@kernel_cpu
def _close(chunks, w):
    """Total the sums of the chunks; returns whether a lane has a fault."""
    if w.out.words.shape[0] > 0:
        total_up(chunks, w.sums.partials, w.sums.totals, w.sums.cumulated)
    found = 0
    for lane in range(w.out.fault.size):
        found |= w.out.fault[lane]
    return found != 0


@kernel_cpu
def step_one(picks, w):
    """One step of all lanes of a `World` on this thread; returns whether a lane has a fault."""
    chunks = (w.params[LANES] + CHUNK - 1) // CHUNK
    for chunk in range(chunks):
        _step_chunk(chunk, picks, w)
    return _close(chunks, w)


@kernel_cpu_parallel
def step_many(picks, market, plan, params, features, state, out, observation, last_observation, sums):
    """`step_one` on several threads, a chunk of lanes at a time."""
    chunks = (params[LANES] + CHUNK - 1) // CHUNK
    for chunk in prange(chunks):
        _step_chunk(chunk, picks, World(market, plan, params, features, state, out, observation, last_observation, sums))
    return _close(chunks, World(market, plan, params, features, state, out, observation, last_observation, sums))


@kernel_cpu
def observe_one(w):
    """Observations of all lanes on this thread."""
    for chunk in range((w.params[LANES] + CHUNK - 1) // CHUNK):
        _observe_chunk(chunk, w)


@kernel_cpu_parallel
def observe_many(market, plan, params, features, state, out, observation, last_observation, sums):
    """`observe_one` on several threads."""
    for chunk in prange((params[LANES] + CHUNK - 1) // CHUNK):
        _observe_chunk(chunk, World(market, plan, params, features, state, out, observation, last_observation, sums))


@kernel_cpu
def drain(w):
    """The drain of all lanes; returns whether a lane has a fault."""
    chunks = (w.params[LANES] + CHUNK - 1) // CHUNK
    for chunk in range(chunks):
        first, last = chunk * CHUNK, min(w.params[LANES], (chunk + 1) * CHUNK)
        if w.out.words.shape[0] > 0:
            clear_words(chunk, w.out)
        for lane in range(first, last):
            drain_lane(lane, w.market, w.plan, w.params, w.state, w.out)
        _after_chunk(chunk, first, last, w)
    return _close(chunks, w)


@kernel_cpu
def _run_chunk(chunk, actions, picks, observe, w):
    """All steps of `actions` for one chunk of lanes. What they add to the words is cleared by the next single step."""
    for lane in range(chunk * CHUNK, min(w.params[LANES], (chunk + 1) * CHUNK)):
        for step in range(actions.shape[0]):
            if observe:
                observe_lane(lane, w.features, w.plan, w.params, w.state, w.observation[lane])
            picks.action[lane] = actions[step, lane]
            step_lane(lane, picks, w.market, w.plan, w.params, w.state, w.out)


@kernel_cpu_parallel
def run_many(actions, picks, observe, market, plan, params, features, state, out, observation, last_observation, sums):
    """Many steps at once, for picks that are known beforehand: actions int32[T, lanes]; returns whether a lane has a fault.

    Lane by lane, so each lane's state stays in registers' reach; only state, reward and end reason of the last step are left.
    """
    chunks = (params[LANES] + CHUNK - 1) // CHUNK
    for chunk in prange(chunks):
        _run_chunk(chunk, actions, picks, observe, World(market, plan, params, features, state, out, observation, last_observation, sums))
    found = 0
    for lane in range(out.fault.size):
        found |= out.fault[lane]
    return found != 0
