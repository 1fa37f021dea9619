"""CUDA kernels that move lanes, made once for market orders (`cuda_env.kernels_cuda`) and once for orders that work in the book
(`cuda_env.kernels_live_cuda`): these take registers that a lane of market orders should not pay for.
"""

from typing import Any, NamedTuple

import lob.jit
from cuda_env.arrays import LANES
from cuda_env.kernels_cpu import followed
from cuda_env.step import restart_lane

cuda = lob.jit.cuda()


class Moves(NamedTuple):
    """Kernels of one thread a lane, at least `lanes` threads."""

    step: Any
    drain: Any
    close_all: Any
    run: Any
    follow: Any


def moves(step_lane, drain_lane, close_lane) -> Moves:
    """The kernels around three scalar functions of a lane."""

    @cuda.jit
    def step(picks, w):
        """One step."""
        lane = cuda.grid(1)
        if lane < w.params[LANES]:
            step_lane(lane, picks, w.market, w.plan, w.params, w.state, w.out)

    @cuda.jit
    def drain(w):
        """The drain."""
        lane = cuda.grid(1)
        if lane < w.params[LANES]:
            drain_lane(lane, w.market, w.plan, w.params, w.state, w.out)

    @cuda.jit
    def close_all(w):
        """The drain of all lanes where they stand."""
        lane = cuda.grid(1)
        if lane < w.params[LANES]:
            close_lane(lane, w.market, w.plan, w.params, w.state, w.out)

    @cuda.jit
    def run(actions, picks, w):
        """All steps of `actions`, int32[T, lanes], in one launch."""
        lane = cuda.grid(1)
        if lane < w.params[LANES]:
            for at in range(actions.shape[0]):
                picks.action[lane] = actions[at, lane]
                step_lane(lane, picks, w.market, w.plan, w.params, w.state, w.out)
                if w.starts.rows.size > 0:
                    restart_lane(lane, w.params, w.starts, w.state)

    @cuda.jit
    def follow(actions, part, steps, picks, w):
        """`steps` steps of lanes that follow rules (`cuda_env.kernels_cpu.followed`), in one launch."""
        lane = cuda.grid(1)
        if lane < w.params[LANES]:
            for _ in range(steps):
                picks.action[lane] = followed(lane, actions, part, w.state)
                step_lane(lane, picks, w.market, w.plan, w.params, w.state, w.out)
                if w.starts.rows.size > 0:
                    restart_lane(lane, w.params, w.starts, w.state)

    return Moves(step, drain, close_all, run, follow)
