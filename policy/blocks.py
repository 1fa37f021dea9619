"""The parts of the network: each a pair of pure functions, one that lists its tensors and one that applies them.

Dueling: Wang et al. (2016). Branching: Tavakoli, Pardo, Kormushev (2018), with a value of its own for each branch.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch.nn import functional as F

from policy.heads import BRANCH_FIRST, BRANCH_SIZES, CHOICES
from policy.weights import Layout, TensorSpec, Weights, linear

STREAMS = CHOICES + len(BRANCH_SIZES)
"""Rows of the head: per branch one value, then its choices' advantages."""


def trunk_layout(inputs: int, context: int, hidden: tuple[int, ...]) -> Layout:
    """A plain trunk: linear layers of the widths `hidden`; the context enters the first one's sum through a matrix of its own."""
    widths = (inputs, *hidden)
    first, *rest = (linear(f"trunk.{i}", widths[i], widths[i + 1]) for i in range(len(hidden)))
    return (*first, *linear("bus", context, hidden[0], bias=False), *(spec for layer in rest for spec in layer))


def trunk(w: Weights, x: torch.Tensor, context: torch.Tensor, depth: int) -> torch.Tensor:
    """[batch, inputs] and [context] -> [batch, hidden[-1]]: rectified linear layers."""
    # One context for the whole batch is a constant of the first layer: it costs nothing per row.
    x = F.relu(F.linear(x, w["trunk.0.weight"], w["trunk.0.bias"] + F.linear(context, w["bus.weight"])))
    for i in range(1, depth):
        x = F.relu(F.linear(x, w[f"trunk.{i}.weight"], w[f"trunk.{i}.bias"]))
    return x


def head_layout(inputs: int, atoms: int, quantiles: int) -> Layout:
    """One matrix for all that is said of the choices: a row of `atoms` logits and `quantiles` values for each of the 17 streams."""
    spread = linear("heads", inputs, 1)[0].spread
    shape = (STREAMS, atoms + quantiles)
    return TensorSpec("heads.weight", (*shape, inputs), spread=spread), TensorSpec("heads.bias", shape, spread=spread)


@lru_cache
def _duel() -> tuple[tuple[float, ...], ...]:
    """[CHOICES][STREAMS]: 1 at the branch's value, 1 at the choice's advantage, less the mean of its branch's advantages."""
    rows = []
    for branch, (first, size) in enumerate(zip(BRANCH_FIRST, BRANCH_SIZES, strict=True)):
        value = first + branch
        for choice in range(size):
            row = [0.0] * STREAMS
            row[value] = 1.0
            for other in range(size):
                row[value + 1 + other] = float(other == choice) - 1 / size
            rows.append(tuple(row))
    return tuple(rows)


def duel(device: torch.device | str) -> torch.Tensor:
    """float32[CHOICES, STREAMS]: the matrix that combines streams into choices, value + advantage - mean advantage of the branch."""
    return torch.tensor(_duel(), dtype=torch.float32, device=device)


def fold_heads(w: Weights, combine: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(weight [rows, inputs], bias [rows]) of the head with dueling done in the weights, rows = 13 * (atoms + quantiles) rounded up to a
    multiple of 8. Dueling is linear, so combining the weights once equals combining what they say of every row of a batch."""
    weight, bias = w["heads.weight"], w["heads.bias"]
    rows = CHOICES * weight.shape[1]
    padding = -rows % 8  # a matrix product whose width is no multiple of 8 leaves the GPU's fast path
    folded = torch.mm(combine, weight.flatten(1)).view(rows, -1)
    return F.pad(folded, (0, 0, 0, padding)), F.pad(torch.mm(combine, bias).view(-1), (0, padding))
