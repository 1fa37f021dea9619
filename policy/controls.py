"""What controllers hand to selection and learning: tensors on the device, so that a captured graph reads their present values."""

from __future__ import annotations

from typing import NamedTuple

import torch

from policy.explore import TAU_FLOOR
from policy.heads import BRANCH_SIZES, CHOICES


class SelectControls(NamedTuple):
    """How the next picks explore. Evaluation and replay read neither `epsilon` nor `bonus`."""

    epsilon: torch.Tensor  # float32[4]: per branch, probability of a uniform choice instead of the selector's
    tau_floor: torch.Tensor  # float32[4]: per branch, least Boltzmann temperature, in units of value
    bonus: torch.Tensor  # float32[13]: count bonus added to each choice's value; zeros: none
    contrarian: torch.Tensor  # float32[]: +1, or -1 to turn the sign of every direction's value
    conviction_scale: torch.Tensor  # float32[]: advantage of the best direction over the mean one that is full conviction


class LearnControls(NamedTuple):
    """What one update of the learner uses; all float32[] (0-dimensional)."""

    lr: torch.Tensor
    gamma: torch.Tensor
    polyak: torch.Tensor  # share of the online weights that the target takes over in one update
    sarsa_ratio: torch.Tensor  # expected SARSA only: its temperature over the state's value range, at most 0.1
    share_c51: torch.Tensor  # shares of the gradient budget; the four sum to 1
    share_iqn: torch.Tensor
    share_cql: torch.Tensor
    share_aux: torch.Tensor
    balance: torch.Tensor  # weight of the experts' load-balance loss
    beta: torch.Tensor  # exponent of the importance weights


def select_controls(device: str = "cpu", epsilon: float = 0.0, conviction_scale: float = 1.0) -> SelectControls:
    """Tensors of their own: no exploration but `epsilon`, the floor `TAU_FLOOR` on each branch, values as they are."""

    def fill(value: float, *shape: int) -> torch.Tensor:
        return torch.full(shape, value, dtype=torch.float32, device=device)

    branches = len(BRANCH_SIZES)
    return SelectControls(fill(epsilon, branches), fill(TAU_FLOOR, branches), fill(0.0, CHOICES), fill(1.0), fill(conviction_scale))


def learn_controls(device: str = "cpu", **values: float) -> LearnControls:
    """The base values, with those of `values` in their place."""
    base = {
        "lr": 3e-4,
        "gamma": 0.99,
        "polyak": 0.01,
        "sarsa_ratio": 0.1,
        "share_c51": 0.5,
        "share_iqn": 0.5,
        "share_cql": 0.0,
        "share_aux": 0.0,
        "balance": 0.01,
        "beta": 0.4,
    }
    if unknown := sorted(set(values) - set(base)):
        raise ValueError(f"no such control: {', '.join(unknown)}")
    stated = base | values
    return LearnControls(**{name: torch.tensor(value, dtype=torch.float32, device=device) for name, value in stated.items()})
