"""The CPU side of an environment: numpy views of its torch buffers, and the calls of the njit kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from cuda_env import kernels_cpu as k
from cuda_env.arrays import Market, Out
from lob.jit import MAX_THREADS, set_threads
from lob.picks import Picks

if TYPE_CHECKING:
    from typing import Any


def _writable(array: np.ndarray) -> np.ndarray:
    """numba compiles anew for a read-only array: a mapped file is copied."""
    return array if array.flags.writeable else array.copy()


class CpuRunner:
    """Calls the kernels with the few structures that they take; one thread for few lanes."""

    def __init__(
        self,
        market: Market,
        plan: np.ndarray,
        params: np.ndarray,
        features: np.ndarray,
        state: torch.Tensor,
        out: Out,
        observation: torch.Tensor,
        last_observation: torch.Tensor,
        threads: int | None,
    ) -> None:
        self.lanes = int(params[0])
        self.threads = min(MAX_THREADS, threads or MAX_THREADS)
        self.parallel = self.threads > 1 and self.lanes >= k.PARALLEL_FROM
        self.market = Market(*(_writable(array) for array in market))
        self.plan, self.params, self.features = plan, params, _writable(features)
        self.state, self.out = state.numpy(), Out(*(tensor.numpy() for tensor in out))
        self.observation, self.last_observation = observation.numpy(), last_observation.numpy()

    def _picks(self, picks: Picks) -> Any:
        return Picks(*(tensor.numpy() for tensor in picks))

    def observe(self) -> None:
        call = k.observe_many if self.parallel else k.observe_one
        if self.parallel:
            set_threads(self.threads)
        call(self.lanes, self.features, self.plan, self.params, self.state, self.observation)

    def step(self, picks: Picks) -> bool:
        call = k.step_many if self.parallel else k.step_one
        if self.parallel:
            set_threads(self.threads)
        arrays = self._picks(picks)
        return call(self.lanes, arrays, self.market, self.plan, self.params, self.state, self.out, self.features, self.last_observation)

    def drain(self) -> bool:
        return k.drain(self.lanes, self.market, self.plan, self.params, self.state, self.out, self.features, self.last_observation)

    def fetch(self) -> Out:
        """The outputs as numpy arrays."""
        return self.out
