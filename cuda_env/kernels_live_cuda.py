"""CUDA kernels of the event-level exchange, around the same scalar functions as `cuda_env.kernels_quotes`. Import it only where CUDA is
wanted. Kernels compile when they are specialised.
"""

import lob.jit
from cuda_env.arrays import LANES
from cuda_env.kernels_cpu import followed
from cuda_env.quotes import quote
from cuda_env.step import restart_lane
from cuda_env.step_live import live_close_lane, live_drain_lane, live_step_lane

cuda = lob.jit.cuda()


@cuda.jit
def step(picks, w):
    """One step: one thread a lane, at least `lanes` threads."""
    lane = cuda.grid(1)
    if lane < w.params[LANES]:
        live_step_lane(lane, picks, w.market, w.plan, w.params, w.state, w.out)


@cuda.jit
def drain(w):
    """The drain: one thread a lane."""
    lane = cuda.grid(1)
    if lane < w.params[LANES]:
        live_drain_lane(lane, w.market, w.plan, w.params, w.state, w.out)


@cuda.jit
def close_all(w):
    """The drain of all lanes where they stand: one thread a lane."""
    lane = cuda.grid(1)
    if lane < w.params[LANES]:
        live_close_lane(lane, w.market, w.plan, w.params, w.state, w.out)


@cuda.jit
def run(actions, picks, w):
    """All steps of `actions`, int32[T, lanes], in one launch: one thread a lane."""
    lane = cuda.grid(1)
    if lane < w.params[LANES]:
        for step in range(actions.shape[0]):
            picks.action[lane] = actions[step, lane]
            live_step_lane(lane, picks, w.market, w.plan, w.params, w.state, w.out)
            if w.starts.rows.size > 0:
                restart_lane(lane, w.params, w.starts, w.state)


@cuda.jit
def follow(actions, part, steps, picks, w):
    """`steps` steps of lanes that follow rules (`cuda_env.kernels_cpu.followed`), in one launch: one thread a lane."""
    lane = cuda.grid(1)
    if lane < w.params[LANES]:
        for _ in range(steps):
            picks.action[lane] = followed(lane, actions, part, w.state)
            live_step_lane(lane, picks, w.market, w.plan, w.params, w.state, w.out)
            if w.starts.rows.size > 0:
                restart_lane(lane, w.params, w.starts, w.state)


@cuda.jit
def quotes(script, market, params, state, out):
    """All decisions of a script (`cuda_env.quotes.Quotes`) in one launch: one thread a lane."""
    lane = cuda.grid(1)
    if lane < params[LANES]:
        for decision in range(script.ts_ns.shape[0]):
            quote(lane, decision, script, market, params, state, out)
