"""Compiles the environment's CUDA kernels where no GPU is: typed, checked and lowered to PTX for the reference card.

    python -m tests.cuda_compile

The simulator runs kernels as Python, so it accepts what a compiler refuses.
"""

import importlib
import sys
from types import SimpleNamespace

import numba
import numpy as np

import lob.jit
from cuda_env import arrays as a
from cuda_env import kernels_blocks, kernels_cuda, kernels_live_cuda
from cuda_env.blocks import BlockLog
from cuda_env.quotes import quote_buffers
from cuda_env.run_cpu import as_numpy
from lob.picks import Picks
from tests.env_builds import CASES, LIVE, make_env
from tests.exchange_builds import Terms, script_of

CAPABILITY = (9, 0)
"""Of the H200."""


def without_a_device() -> None:
    """Functions that a kernel calls are compiled for the device that numba finds: let it find the reference card."""
    for name in ("dispatcher", "compiler", "api"):
        importlib.import_module(f"numba.cuda.{name}").get_current_device = lambda: SimpleNamespace(compute_capability=CAPABILITY)


def kernels():
    """(name, kernel, arguments) of every kernel of the environment."""
    for module, case in ((kernels_cuda, CASES[0]), (kernels_live_cuda, LIVE[0])):
        env = make_env(case)
        w, picks = as_numpy(env.world), Picks(*(np.zeros(env.lanes, np.int32) for _ in range(4)))
        actions, rules = np.zeros((2, env.lanes), np.int32), np.zeros((1, env.schedule.rows, 3), np.int32)
        moving = {
            "step": (picks, w),
            "drain": (w,),
            "close_all": (w,),
            "run": (actions, picks, w),
            "follow": (rules, np.zeros(env.lanes, np.int64), 2, picks, w),
        }
        for name, arguments in moving.items():
            yield named(module, name), getattr(module, name), arguments
    for name in ("restart", "observe", "keep_last", "count", "carry_on"):
        yield named(kernels_cuda, name), getattr(kernels_cuda, name), (w,)
    block = BlockLog(env, 4)._capture.block
    for kernel, _ in kernels_blocks.launches(env.world, env.lanes):
        yield named(kernels_blocks, kernel.py_func.__name__), kernel, (w, block)
    tape, script = script_of(1)
    config = Terms().config().resolved(tape.instrument)
    script = script._replace(from_touch=np.int64(script.from_touch))
    params = a.params_vector(config, tape.instrument, 1, 0, False, 64, 0)
    market = a.market_arrays(tape, working=True)
    yield named(kernels_live_cuda, "quotes"), kernels_live_cuda.quotes, (script, market, params, *quote_buffers(config, 1, 16))


def named(module, kernel: str) -> str:
    return f"{module.__name__.removeprefix('cuda_env.')}.{kernel}"


def main() -> int:
    without_a_device()
    for name, kernel, arguments in kernels():
        ptx, _ = lob.jit.cuda().compile_ptx(kernel.py_func, tuple(numba.typeof(one) for one in arguments), cc=CAPABILITY)
        print(f"{name:32s} {len(ptx):9,d} bytes of PTX")
    return 0


if __name__ == "__main__":
    sys.exit(main())
