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


BLEND = 0.5
"""Weight of each head in a choice's value (seed E19): structural, since both describe the same return."""

_NORMAL_IQR = 1.349
"""Distance between the quartiles of the standard normal distribution."""


def c51_mean(logits: torch.Tensor, support: torch.Tensor) -> torch.Tensor:
    """Expected value [...] of logits [..., A] over support float32[A] (Bellemare, Dabney, Munos 2017), in float32."""
    # A product and a sum per row, no matrix product: its last bits do not depend on how many rows stand beside.
    return (torch.softmax(logits.float(), -1) * support).sum(-1)


def c51_sigma(logits: torch.Tensor, support: torch.Tensor) -> torch.Tensor:
    """Standard deviation [...] of logits [..., A]: root of sum p (z - E)^2, centred so that it is no small difference of large numbers."""
    probabilities = torch.softmax(logits.float(), -1)
    mean = (probabilities * support).sum(-1, keepdim=True)
    return (probabilities * (support - mean).square()).sum(-1).sqrt()


def c51_sample(logits: torch.Tensor, support: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """One draw [...] of logits [..., A] by inverse CDF: the first atom whose cumulative probability exceeds `uniform` [...] in [0, 1)."""
    cumulative = torch.softmax(logits.float(), -1).cumsum(-1)
    passed = (cumulative <= uniform.unsqueeze(-1)).sum(-1)
    return support[passed.clamp(max=len(support) - 1)]  # a cumulative sum may end a rounding below 1


def iqn_mean(quantiles: torch.Tensor) -> torch.Tensor:
    """Expected value [...] of quantiles [..., T] at the midpoints of equal shares (Dabney et al. 2018), in float32."""
    return quantiles.float().mean(-1)


def iqn_sigma(quantiles: torch.Tensor) -> torch.Tensor:
    """Standard deviation [...] of quantiles [..., T] as that of a normal of equal quartiles, IQR / 1.349 (seed F4), the quartiles by linear
    interpolation: 5.8 % too wide on a normal for five quantiles, below 0.1 % for fifty. Crossed quartiles count by their distance."""
    values = quantiles.float()
    count = values.shape[-1]
    lower, upper = (_interpolated(values, share * count - 0.5) for share in (0.25, 0.75))
    return (upper - lower).abs() / _NORMAL_IQR


def iqn_sample(quantiles: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """One draw [...] of quantiles [..., T]: linear interpolation at the fraction `uniform` [...] in [0, 1) between neighbouring quantiles;
    outside the outermost fractions the outermost quantile, since nothing is known of the tails."""
    values = quantiles.float()
    last = values.shape[-1] - 1
    position = (uniform * (last + 1) - 0.5).clamp(0, last)
    below = position.floor()
    first = below.long().unsqueeze(-1)
    lower, upper = (values.gather(-1, index).squeeze(-1) for index in (first, (first + 1).clamp(max=last)))
    return lower + (upper - lower) * (position - below)


def blended_mean(heads: HeadOutput, support: torch.Tensor) -> torch.Tensor:
    """float32[batch, CHOICES]: the mean of both heads' expected values, in equal parts (seed E15)."""
    return BLEND * (c51_mean(heads.logits, support) + iqn_mean(heads.quantiles))


def _interpolated(values: torch.Tensor, position: float) -> torch.Tensor:
    last = values.shape[-1] - 1
    position = min(max(position, 0.0), float(last))
    below = int(position)
    return torch.lerp(values[..., below], values[..., min(below + 1, last)], position - below)
