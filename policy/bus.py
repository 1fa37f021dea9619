"""The signal bus on the device: 127 numbers that say how learning stands (`policy.signals` declares them). All that controllers remember
lies in it.

Selection and learning read their controls as views of it (`controls_of`), the network reads all of it as its second input, `diag` logs
every slot in use.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from policy.controls import LearnControls, SelectControls
from policy.heads import BRANCH_SIZES, CHOICES
from policy.signals import BRANCH_CHOICES, INDEX, LABEL_SCALE_WEIGHT, SLOTS

LABEL_SCALE_FLOOR = 1e-6
"""Least divisor of a label (F11): a batch whose labels are all zero must not divide by zero."""


class ControlState(NamedTuple):
    """All that the controllers remember, on the device: saved with a checkpoint, it resumes as if never stopped."""

    bus: torch.Tensor  # float32[127]
    clock: torch.Tensor  # int64[2]: environment steps and learner updates observed
    picks: torch.Tensor  # int64[13]: how often each choice was picked


def control_state(device: str | torch.device = "cpu") -> ControlState:
    """A bus at its reset values, clocks and counts at 0."""
    resets = torch.tensor([slot.reset for slot in SLOTS], dtype=torch.float32, device=device)
    return ControlState(resets, *(torch.zeros(size, dtype=torch.int64, device=device) for size in (2, CHOICES)))


def reset_controls(state: ControlState) -> None:
    """Put every slot, clock and count back, in place: the start of a fold (I14)."""
    for held, fresh in zip(state, control_state(), strict=True):
        held.copy_(fresh)


def controls_of(bus: torch.Tensor) -> tuple[SelectControls, LearnControls]:
    """The controls as views of the bus: what an update writes there is what selection and learning read next."""

    def block(first: str, size: int) -> torch.Tensor:
        return bus[INDEX[first] : INDEX[first] + size]

    branches = len(BRANCH_SIZES)
    select = SelectControls(
        epsilon=block("epsilon.direction", branches),
        tau_floor=block("tau_floor.direction", branches),
        bonus=block(f"bonus.{BRANCH_CHOICES[0]}", CHOICES),
        contrarian=bus[INDEX["contrarian"]],
        conviction_scale=bus[INDEX["conviction_scale"]],
    )
    return select, LearnControls(**{name: bus[INDEX[name]] for name in LearnControls._fields})


def label_scale(bus: torch.Tensor) -> torch.Tensor:
    """float32[]: what labels of the auxiliary head are divided by, never below `LABEL_SCALE_FLOOR`."""
    return bus[INDEX["aux_label_scale"]].clamp(min=LABEL_SCALE_FLOOR)


def observe_labels(bus: torch.Tensor, label: torch.Tensor, valid: torch.Tensor) -> None:
    """Move the label scale to a batch's mean absolute label, in place: before the loss that divides by it, and outside any forward pass.

    `label` float32[batch], `valid` bool[batch]: the rest is not looked at. A batch without a valid label, or with one that is not finite,
    changes nothing.
    """
    move_label_scale(bus, sum_labels(label, valid))


def sum_labels(label: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    """float32[2]: the sum of absolute valid labels, and their number."""
    return torch.stack((torch.where(valid, label.abs(), 0.0).sum(), valid.sum().float()))


def move_label_scale(bus: torch.Tensor, sums: torch.Tensor) -> None:
    """`observe_labels` from the sums of a batch, or of its parts, added."""
    scale, mean = bus[INDEX["aux_label_scale"]], sums[0] / sums[1]
    scale.lerp_(torch.where(torch.isfinite(mean), mean, scale), LABEL_SCALE_WEIGHT)
