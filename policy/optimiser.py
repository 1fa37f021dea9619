"""AdamW, gradient clipping and the lagged target on one flat buffer, with every changing quantity a tensor, so that a graph can hold them.

Torch's own AdamW takes a tensor for its rate on CUDA alone; this one runs alike on both.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from policy import optimiser_kernels as k
from policy.launch import Launcher

CLIP_FLOOR = 1e-6
"""Added to a norm before dividing by it, as torch's clip_grad_norm_ does."""


class Moments(NamedTuple):
    """AdamW's memory of a flat float32 buffer of n weights."""

    first: torch.Tensor  # float32[n]
    second: torch.Tensor  # float32[n]
    steps: torch.Tensor  # int64[]: updates applied


def moments(like: torch.Tensor) -> Moments:
    """Before the first step."""
    return Moments(torch.zeros_like(like), torch.zeros_like(like), torch.zeros((), dtype=torch.int64, device=like.device))


class Optimiser:
    """Steps of `weights` float32[n] along `gradient`, with `target` following them, all in place."""

    def __init__(
        self, weights: torch.Tensor, target: torch.Tensor, state: Moments, gradient: torch.Tensor, decay: float, clip_norm: float
    ) -> None:
        device = weights.device
        self.state, self.clip_norm, self._decay = state, clip_norm, decay
        self._betas = torch.tensor([k.BETA_FIRST, k.BETA_SECOND], dtype=torch.float64, device=device)
        self._rates = torch.zeros(k.RATES, device=device)
        flat = [tensor.detach() for tensor in (weights, target, state.first, state.second, gradient, self._rates)]
        if device.type == "cuda":
            from policy import optimiser_cuda as kernels

            self._run = Launcher(device).bind(kernels.step_all, weights.numel(), kernels.THREADS, *flat)
        else:
            arrays = [tensor.numpy() for tensor in flat]
            self._run = lambda: k.step_all(*arrays)

    def step(self, norm: torch.Tensor, lr: torch.Tensor, polyak: torch.Tensor, going: torch.Tensor) -> None:
        """One step: the gradient times min(1, clip_norm / norm), AdamW at `lr`, then target + polyak * (weights - target).

        float32[] each. `going` is 1, or 0 for a step that must leave weights, target, moments and count exactly as they are.
        """
        clip = (self.clip_norm / (norm + CLIP_FLOOR)).clamp(max=1)
        first, second = (1 - self._betas ** (self.state.steps + 1)).float()
        torch.stack((clip, lr, 1 - lr * self._decay, first, second, polyak, going), out=self._rates)
        self._run()
        self.state.steps.add_(going.long())
