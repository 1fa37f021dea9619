"""CUDA kernels of the event-level exchange, around the same scalar functions as `cuda_env.kernels_quotes`. Import it only where CUDA is
wanted. Kernels compile when they are specialised.
"""

import lob.jit
from cuda_env.arrays import LANES
from cuda_env.kernels_moves import moves
from cuda_env.quotes import quote
from cuda_env.step_live import live_close_lane, live_drain_lane, live_step_lane

cuda = lob.jit.cuda()


step, drain, close_all, run, follow = moves(live_step_lane, live_drain_lane, live_close_lane)


@cuda.jit
def quotes(script, market, params, state, out):
    """All decisions of a script (`cuda_env.quotes.Quotes`) in one launch: one thread a lane."""
    lane = cuda.grid(1)
    if lane < params[LANES]:
        for decision in range(script.ts_ns.shape[0]):
            quote(lane, decision, script, market, params, state, out)
