"""What a policy hands to the environment at one decision: an action and the three gate inputs of every lane."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


class Picks(NamedTuple):
    """Four int32[lanes] tensors on the environment's device.

    `action` is a code 0..107 (`lob.actions`); the others are parts per million in 0..1 000 000, quantised once from what the policy's
    network and controllers say: conviction in the pick, learning health, and 1/(1+sqrt(var q)). What a dead lane picks is never read.
    """

    action: torch.Tensor
    conviction_ppm: torch.Tensor
    health_ppm: torch.Tensor
    variance_scale_ppm: torch.Tensor
