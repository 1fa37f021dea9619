"""Runs the losses of a few rows in a build of their kernels: njit here, plain Python and the CUDA simulator in a process of their own
(`python -m tests.loss_builds plain|cudasim FILE`), since their switches must be set before numba loads."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np

from policy import loss_kernels as k
from policy.losses import Board, HeadLosses


def simulate(board: Board, *said) -> None:
    """The launch of `HeadLosses` on CUDA, in the simulator."""
    from policy import loss_cuda as c

    assert os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
    atoms, quantiles = len(board.support), board.slope.shape[2]
    blocks = -(-len(board.weights) // c.rows_of(atoms, quantiles))
    c.kernel(atoms, quantiles)[blocks, c.THREADS](*(tensor.numpy() for tensor in said), Board(*(tensor.numpy() for tensor in board)))


def boards(build: str) -> dict[str, np.ndarray]:
    """Every tensor of the board after a case with the maximum for its target, and after one with expected SARSA."""
    from tests.test_policy_losses import case

    assert build == "njit" or not hasattr(k.measure, "py_func"), "numba compiles: NUMBA_DISABLE_JIT=1 must be set"
    left = {}
    for sarsa in (False, True):
        made, given = case(11, sarsa, batch=6)
        assert isinstance(made, HeadLosses)
        if build == "cudasim":
            made._run = partial(simulate, made.board)
        left |= {f"{name}.{sarsa}": tensor.numpy().copy() for name, tensor in made(**given)._asdict().items()}
    return left


def boards_elsewhere(build: str, folder: Path) -> dict[str, np.ndarray]:
    """`boards` in a process of its own, with the switches that the build needs."""
    switches = {"NUMBA_DISABLE_JIT": "1"} | ({"NUMBA_ENABLE_CUDASIM": "1"} if build == "cudasim" else {})
    command = [sys.executable, "-m", "tests.loss_builds", build, str(folder / "boards.npz")]
    house = Path(__file__).resolve().parent.parent
    done = subprocess.run(command, cwd=house, env=os.environ | switches, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(np.load(folder / "boards.npz"))


if __name__ == "__main__":
    np.savez(sys.argv[2], **boards(sys.argv[1]))
