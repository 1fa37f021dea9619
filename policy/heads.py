"""What a network says of every choice: the vocabulary that networks, selection and learning share.

The thirteen choices of the four branches lie side by side in the order of the action code: direction 0-3, magnitude 4-6, order 7-9,
urgency 10-12.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from lob.actions import Direction, Magnitude, OrderKind, Urgency

BRANCHES: dict[str, int] = {
    "direction": len(Direction),
    "magnitude": len(Magnitude),
    "order": len(OrderKind),
    "urgency": len(Urgency),
}
"""branch -> number of its choices."""

BRANCH_SIZES: tuple[int, ...] = tuple(BRANCHES.values())
BRANCH_FIRST: tuple[int, ...] = tuple(sum(BRANCH_SIZES[:i]) for i in range(len(BRANCH_SIZES)))
CHOICES = sum(BRANCH_SIZES)


class HeadOutput(NamedTuple):
    """Both value distributions of every choice, dueling already combined; A atoms, T quantiles."""

    logits: torch.Tensor  # [batch, CHOICES, A]: C51, before the softmax over atoms
    quantiles: torch.Tensor  # [batch, CHOICES, T]: IQN's values at the fractions `taus(T)`


def taus(quantiles: int, device: str = "cpu") -> torch.Tensor:
    """float32[quantiles]: midpoints (2i + 1) / 2T of equal shares of probability; five of them are .1 .3 .5 .7 .9."""
    return (torch.arange(quantiles, dtype=torch.float32, device=device) * 2 + 1) / (2 * quantiles)
