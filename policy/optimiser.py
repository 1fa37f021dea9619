"""AdamW, gradient clipping and the lagged target on one flat buffer, with every changing quantity a tensor, so that a graph can hold them.

Torch's own AdamW takes a tensor for its rate on CUDA alone; this one runs alike on both.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

BETA_FIRST, BETA_SECOND = 0.9, 0.999
"""Memory of the first and of the second moment: the values of Kingma and Ba (2015), which nothing here asks to change."""

EPSILON = 1e-8
"""Least divisor of a step (Kingma and Ba 2015)."""

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


def clipped(gradient: torch.Tensor, norm: torch.Tensor, most: float) -> torch.Tensor:
    """The gradient times min(1, most / norm), what is not finite in it 0."""
    return torch.nan_to_num(gradient * (most / (norm + CLIP_FLOOR)).clamp(max=1), nan=0.0, posinf=0.0, neginf=0.0)


def apply(weights: torch.Tensor, gradient: torch.Tensor, state: Moments, lr: torch.Tensor, decay: float, going: torch.Tensor) -> None:
    """One step of AdamW (Loshchilov and Hutter 2019, algorithm 2), in place. `gradient` is finite; `lr` and `going` are float32[].

    `going` is 1, or 0 for a step that must leave weights, moments and count exactly as they are.
    """
    count = (state.steps + 1).double()
    state.first.lerp_(gradient, (1 - BETA_FIRST) * going)
    state.second.lerp_(gradient.square(), (1 - BETA_SECOND) * going)
    first_share = (1 - BETA_FIRST**count).float()
    second_share = (1 - BETA_SECOND**count).float()
    step = (state.first / first_share) / ((state.second / second_share).sqrt() + EPSILON)
    rate = lr * going
    weights.mul_(1 - rate * decay).sub_(step * rate)
    state.steps.add_(going.long())


def follow(target: torch.Tensor, weights: torch.Tensor, share: torch.Tensor) -> None:
    """Polyak averaging, in place: target + share * (weights - target); a share of 0 leaves it whatever the weights are."""
    target.copy_(torch.where(share > 0, torch.lerp(target, weights, share), target))
