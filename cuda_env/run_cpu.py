"""The CPU side of an environment: numpy views of its torch buffers, and the calls of the njit kernels."""

from __future__ import annotations

from typing import Any

import torch

from cuda_env import kernels_cpu as k
from cuda_env.arrays import LANES, NO_QUEUE, QUEUE_MODEL, Out, World
from lob.jit import MAX_THREADS, set_threads
from lob.picks import Picks


def as_numpy(structure: Any) -> Any:
    """The same (nested) structure with a numpy view in place of each tensor."""
    if isinstance(structure, torch.Tensor):
        return structure.numpy()
    return type(structure)(*(as_numpy(part) for part in structure))


class CpuRunner:
    """Calls the kernels with their one structure; one thread for few lanes."""

    def __init__(self, world: World, threads: int | None) -> None:
        self.world = as_numpy(world)
        self.live = None if int(self.world.params[QUEUE_MODEL]) == NO_QUEUE else 1
        self.threads = min(MAX_THREADS, threads or MAX_THREADS)
        self.parallel = self.threads > 1 and int(self.world.params[LANES]) >= k.PARALLEL_FROM

    def observe(self) -> None:
        if self.parallel:
            set_threads(self.threads)
            k.observe_many(*self.world)
        else:
            k.observe_one(self.world)

    def step(self, picks: Picks) -> bool:
        """Returns whether a lane has a fault."""
        arrays = as_numpy(picks)
        if self.parallel:
            set_threads(self.threads)
            return k.step_many(self.live, arrays, *self.world)
        return k.step_one(arrays, self.world, self.live)

    def run(self, actions: torch.Tensor, picks: Picks, observe: bool) -> bool:
        """Returns whether a lane has a fault."""
        if self.parallel:
            set_threads(self.threads)
            return k.run_many(self.live, actions.numpy(), as_numpy(picks), observe, *self.world)
        return k.run_one(actions.numpy(), as_numpy(picks), observe, self.world, self.live)

    def follow(self, actions: torch.Tensor, part: torch.Tensor, steps: int, picks: Picks) -> bool:
        """Returns whether a lane has a fault."""
        if self.parallel:
            set_threads(self.threads)
            return k.follow_many(self.live, actions.numpy(), part.numpy(), steps, as_numpy(picks), *self.world)
        return k.follow_one(actions.numpy(), part.numpy(), steps, as_numpy(picks), self.world, self.live)

    def drain(self) -> bool:
        """Returns whether a lane has a fault."""
        return k.drain(self.world, self.live)

    def close_all(self) -> bool:
        """Returns whether a lane has a fault."""
        return k.close_all(self.world, self.live)

    def faulty(self) -> bool:
        """Whether a lane has a fault."""
        return bool(self.world.out.fault.any())

    def fetch(self) -> Out:
        """The outputs as numpy arrays."""
        return self.world.out
