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
from cuda_env import kernels_cuda
from cuda_env.blocks import BlockLog
from cuda_env.run_cpu import as_numpy
from lob.picks import Picks
from tests.env_builds import CASES, make_env

CAPABILITY = (9, 0)
"""Of the H200."""


def without_a_device() -> None:
    """Functions that a kernel calls are compiled for the device that numba finds: let it find the reference card."""
    for name in ("dispatcher", "compiler", "api"):
        importlib.import_module(f"numba.cuda.{name}").get_current_device = lambda: SimpleNamespace(compute_capability=CAPABILITY)


def kernels():
    """(name, kernel, arguments) of every kernel of the environment."""
    from cuda_env import kernels_blocks

    env = make_env(CASES[0])
    w, picks = as_numpy(env.world), Picks(*(np.zeros(env.lanes, np.int32) for _ in range(4)))
    yield "step", kernels_cuda.step, (picks, w)
    for name in ("drain", "close_all", "restart", "observe", "keep_last", "count", "carry_on"):
        yield name, getattr(kernels_cuda, name), (w,)
    actions, part = np.zeros((2, env.lanes), np.int32), np.zeros(env.lanes, np.int64)
    yield "run", kernels_cuda.run, (actions, picks, w)
    yield "follow", kernels_cuda.follow, (np.zeros((1, env.schedule.rows, 3), np.int32), part, 2, picks, w)
    block = BlockLog(env, 4)._capture.block
    for kernel, _ in kernels_blocks.launches(env.world, env.lanes):
        yield kernel.py_func.__name__, kernel, (w, block)


def main() -> int:
    without_a_device()
    for name, kernel, arguments in kernels():
        ptx, _ = lob.jit.cuda().compile_ptx(kernel.py_func, tuple(numba.typeof(one) for one in arguments), cc=CAPABILITY)
        print(f"{name:24s} {len(ptx):9,d} bytes of PTX")
    return 0


if __name__ == "__main__":
    sys.exit(main())
