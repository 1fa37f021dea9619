"""Loops over lanes on the CPU: each kernel once for one thread and once for several, around the same scalar functions."""

from cuda_env.observe import observe_lane
from cuda_env.step import drain_lane, step_lane
from lob.jit import kernel_cpu, kernel_cpu_parallel, prange

CHUNK = 64
"""Lanes that one thread takes at a time: their state (31 fields) and their outputs stay in the first-level cache."""

PARALLEL_FROM = 4 * CHUNK
"""Fewer lanes run on one thread: starting the others costs more than they save."""


@kernel_cpu
def _step_range(first, last, picks, market, plan, params, state, out):
    for lane in range(first, last):
        step_lane(lane, picks, market, plan, params, state, out)


@kernel_cpu
def _observe_range(first, last, features, plan, params, state, observation):
    for lane in range(first, last):
        observe_lane(lane, features, plan, params, state, observation[lane])


@kernel_cpu
def _keep_last_range(first, last, features, plan, params, state, out, last_observation):
    for lane in range(first, last):
        if out.terminated[lane] != 0 or out.truncated[lane] != 0:
            observe_lane(lane, features, plan, params, state, last_observation[lane])


@kernel_cpu
def any_fault(fault):
    """Whether some lane has a fault code."""
    found = 0
    for lane in range(fault.size):
        found |= fault[lane]
    return found != 0


@kernel_cpu
def step_one(lanes, picks, market, plan, params, state, out, features, last_observation):
    """One step of all lanes on this thread; ended lanes' last observation is kept. Returns whether a lane has a fault."""
    _step_range(0, lanes, picks, market, plan, params, state, out)
    _keep_last_range(0, lanes, features, plan, params, state, out, last_observation)
    return any_fault(out.fault)


@kernel_cpu_parallel
def step_many(lanes, picks, market, plan, params, state, out, features, last_observation):
    """`step_one` over chunks of lanes on several threads."""
    chunks = (lanes + CHUNK - 1) // CHUNK
    for chunk in prange(chunks):
        first, last = chunk * CHUNK, min(lanes, (chunk + 1) * CHUNK)
        _step_range(first, last, picks, market, plan, params, state, out)
        _keep_last_range(first, last, features, plan, params, state, out, last_observation)
    return any_fault(out.fault)


@kernel_cpu
def observe_one(lanes, features, plan, params, state, observation):
    """Observations of all lanes, float32[lanes, 128], on this thread."""
    _observe_range(0, lanes, features, plan, params, state, observation)


@kernel_cpu_parallel
def observe_many(lanes, features, plan, params, state, observation):
    """`observe_one` over chunks of lanes on several threads."""
    chunks = (lanes + CHUNK - 1) // CHUNK
    for chunk in prange(chunks):
        _observe_range(chunk * CHUNK, min(lanes, (chunk + 1) * CHUNK), features, plan, params, state, observation)


@kernel_cpu
def drain(lanes, market, plan, params, state, out, features, last_observation):
    """The drain of all lanes. Returns whether a lane has a fault."""
    for lane in range(lanes):
        drain_lane(lane, market, plan, params, state, out)
    _keep_last_range(0, lanes, features, plan, params, state, out, last_observation)
    return any_fault(out.fault)
