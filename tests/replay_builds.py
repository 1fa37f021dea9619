"""Plays one replay memory in a build of its kernels: njit here, plain Python with unbounded integers and the CUDA simulator in a process of
their own (`python -m tests.replay_builds plain|cudasim FILE`), since their switches must be set before numba loads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from policy import replay_kernels as k
from policy.memory import Memory
from tests.env_builds import Grid, each

LANES, STEPS, BATCH, N_STEP = 5, 13, 7, 3


class Grids:
    """Runs a memory's kernels on lists of Python numbers, copied in and out around each call."""

    def __init__(self, memory: Memory) -> None:
        self.m = memory

    def _run(self, call, *tensors) -> None:
        grids = [each(tensor, lambda t: Grid(t.numpy())) for tensor in tensors]
        call(*grids)
        for tensor, grid in zip(tensors, grids, strict=True):
            pairs = zip(tensor, grid, strict=True) if isinstance(tensor, tuple) else [(tensor, grid)]
            for one, its in pairs:
                if one.dtype != torch.float32 or one.dim() == 1:  # the float view of the records is read only
                    one.copy_(torch.from_numpy(its.numpy()))

    def store(self) -> None:
        m = self.m
        self._run(self.calls()["store"], m.sums, m.words, m._stage, m._params, m.written, m.greatest)

    def sample(self) -> None:
        m = self.m
        self._run(self.calls()["sample"], m.sums, m.words, m.words.view(torch.float32), m._params, m.drawn, m._gamma, m._out)

    def mark(self) -> None:
        m = self.m
        self._run(self.calls()["mark"], m.sums, m.words, m._params, m._alpha, m._slots, m._generation, m._errors, m._marked)


class Plain(Grids):
    def calls(self):
        assert not hasattr(k.sample, "py_func"), "numba compiles: NUMBA_DISABLE_JIT=1 must be set"
        return {"store": k.store, "sample": k.sample, "mark": k.mark}


class Simulated(Grids):
    def calls(self):
        from policy import replay_cuda as c

        assert os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
        levels = int(self.m._params[k.LEVELS])

        def launch(kernel, threads, *arguments):
            kernel[-(-threads // c.THREADS), c.THREADS](*arguments)

        def store(sums, words, stage, params, written, greatest):
            launch(c.store, LANES * k.WORDS, sums, words, stage, params, written, greatest)
            for level in range(1, levels):
                launch(c.refresh_above_row, LANES // k.FAN**level + 2, sums, params, written, Grid(np.array([level])))

        def mark(sums, words, params, alpha, slots, *rest):
            launch(c.mark, BATCH, sums, words, params, alpha, slots, *rest)
            for level in range(1, levels):
                launch(c.refresh_above_batch, BATCH, sums, params, slots, Grid(np.array([level])))

        return {"store": store, "sample": lambda *a: launch(c.sample, BATCH, *a), "mark": mark}


def trace(build: type | None, device: str = "cpu", steps: int = 20) -> dict[str, np.ndarray]:
    """Everything that random episodes, samples and updates left behind."""
    memory = Memory(LANES, STEPS, BATCH, N_STEP, 0.6, 2**63 + 9, device)
    if build is not None:
        memory._runner = build(memory)
    rng = np.random.default_rng(4)
    left: dict[str, list[np.ndarray]] = {}
    for time in range(steps):
        memory.add(**{name: values.to(device) for name, values in random_step(rng, time).items()})
        sample = memory.sample(torch.tensor(0.99, device=device), torch.tensor(0.4, device=device))
        for name, values in sample._asdict().items():
            left.setdefault(name, []).append(values.cpu().numpy().copy())
        memory.update(sample, torch.from_numpy(rng.random(BATCH, np.float32)).to(device) * 4)
        left.setdefault("sums", []).append(memory.sums.cpu().numpy().copy())
    left |= {name: [values.numpy()] for name, values in memory.state_dict().items() if isinstance(values, torch.Tensor)}
    return {name: np.stack(values) for name, values in left.items()}


def random_step(rng: np.random.Generator, time: int) -> dict[str, torch.Tensor]:
    ends = rng.random(LANES) < 0.2
    integers = {name: rng.integers(0, 1000, LANES) for name in ("row", "action", "next_row")}
    floats = {"reward": rng.normal(size=LANES), "lane_row": rng.normal(size=(LANES, 16)), "next_lane_row": rng.normal(size=(LANES, 16))}
    flags = {"ends": ends, "terminated": ends & (rng.random(LANES) < 0.5), "valid": rng.random(LANES) < 0.8}
    rows = integers | floats | flags | {"episode": np.zeros(LANES, int), "step": np.full(LANES, time)}
    return {name: torch.from_numpy(values) for name, values in rows.items()}


def trace_elsewhere(build: str, folder: Path) -> dict[str, np.ndarray]:
    """`trace` in a process of its own, with the switches that the build needs."""
    switches = {"NUMBA_DISABLE_JIT": "1"} | ({"NUMBA_ENABLE_CUDASIM": "1"} if build == "cudasim" else {})
    command = [sys.executable, "-m", "tests.replay_builds", build, str(folder / "trace.npz")]
    house = Path(__file__).resolve().parent.parent
    done = subprocess.run(command, cwd=house, env=os.environ | switches, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(np.load(folder / "trace.npz"))


if __name__ == "__main__":
    np.savez(sys.argv[2], **trace({"plain": Plain, "cudasim": Simulated}[sys.argv[1]]))
