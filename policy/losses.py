"""What the learner minimises: pure functions of tensors, most of them giving a loss together with its gradient in closed form.

The losses end at the network's outputs, so their gradients there are short formulas; autograd takes over below. Shapes: B rows, 13
choices, 4 branches, A atoms, T quantiles. `columns` int64[B, 4] says which of the thirteen choices each branch means.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import torch

from lob.errors import BadInput
from policy.heads import BRANCH_FIRST, BRANCH_SIZES, CHOICES, taus
from policy.launch import Launcher
from policy.projection import project_rows

BRANCHES = len(BRANCH_SIZES)

KAPPA = 1.0
"""Where the quantile loss turns from square to linear (seed F2; Dabney et al. 2018), in units of value."""

SARSA_RATIO_LIMIT = 0.1
"""Expected SARSA's greatest temperature over the state's value range: at a ratio of 1 the greedy policy went flat (measured)."""

TIE_THRESHOLD = 1e-5
"""Returns closer to zero than this count as zero where returns are ranked (seed H8): micro-rewards below it are noise."""

SCALE_FLOOR = 1e-6
"""Least divisor of labels and returns (seed F11): a batch of zeros must not divide by zero."""


@lru_cache
def _branch_of(device: torch.device) -> torch.Tensor:
    """int64[13]: the branch of each choice."""
    return torch.tensor([branch for branch, size in enumerate(BRANCH_SIZES) for _ in range(size)], device=device)


def chosen_columns(action: torch.Tensor) -> torch.Tensor:
    """int64[B, 4] of action codes int32[B] (direction * 27 + magnitude * 9 + order * 3 + urgency)."""
    code = action.long()
    codes = (code // 27, code // 9 % 3, code // 3 % 3, code % 3)
    return torch.stack([first + part for first, part in zip(BRANCH_FIRST, codes, strict=True)], dim=1)


def of_branches(values: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """[B, 4, K] of [B, 13, K] (or [B, 4] of [B, 13]): the values of the choices that `columns` names. No gradient flows through."""
    if values.dim() == 2:
        return values.gather(1, columns)
    return values.gather(1, columns.unsqueeze(2).expand(-1, -1, values.shape[2]))


def at_choices(values: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """[B, 13, K] with values[B, 4, K] at the choices that `columns` names and 0 elsewhere; elementwise, so that nothing is scattered."""
    branch = _branch_of(values.device)
    places = torch.arange(CHOICES, device=values.device)
    named = (columns.index_select(1, branch) == places).unsqueeze(2)
    return values.index_select(1, branch) * named


def by_branch(values: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Views [B, size, ...] of [B, 13, ...]."""
    ends = (*BRANCH_FIRST, CHOICES)
    return tuple(values[:, first:end] for first, end in pairwise(ends))


def best_columns(values: torch.Tensor) -> torch.Tensor:
    """int64[B, 4]: in each branch the choice of greatest value[B, 13]; of equal ones the first."""
    parts = zip(BRANCH_FIRST, by_branch(values), strict=True)
    return torch.stack([first + part.argmax(dim=1) for first, part in parts], dim=1)


def value_range(values: torch.Tensor) -> torch.Tensor:
    """[B, 4]: greatest less least value of each branch of [B, 13]."""
    return torch.stack([part.amax(dim=1) - part.amin(dim=1) for part in by_branch(values)], dim=1)


def sarsa_policy(values: torch.Tensor, ratio: torch.Tensor) -> torch.Tensor:
    """[B, 13]: Boltzmann probabilities within each branch, at `ratio` (clamped to SARSA_RATIO_LIMIT) times the branch's value range.

    At that limit the best choice's odds over the worst are e^10, whatever the values' scale. Equal values give a uniform branch.
    """
    parts = []
    for part in by_branch(values):
        best = part.amax(dim=1, keepdim=True)
        tau = (best - part.amin(dim=1, keepdim=True)) * ratio.clamp(0.0, SARSA_RATIO_LIMIT)
        parts.append(torch.softmax((part - best) / tau.clamp(min=torch.finfo(part.dtype).tiny), dim=1))
    return torch.cat(parts, dim=1)


def branch_mixture(values: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """[B, 4, K]: in each branch the sum over choices of shares[B, 13] * values[B, 13, K]."""
    return torch.stack([part.sum(dim=1) for part in by_branch(values * shares.unsqueeze(2))], dim=1)


def quantile_mixture(quantiles: torch.Tensor, shares: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """([B, 4, 13 T], [B, 4, 13 T]): each branch's mixture, by shares[B, 13], of its choices' quantiles [B, 13, T], as all thirteen choices'
    quantiles and their weights, which are 0 in other branches and sum to 1 in each."""
    batch, choices, count = quantiles.shape
    branch = _branch_of(quantiles.device)
    own = (branch == torch.arange(BRANCHES, device=quantiles.device).unsqueeze(1)) * shares.unsqueeze(1) / count  # [B, 4, 13]
    every = quantiles.reshape(batch, 1, choices * count).expand(-1, BRANCHES, -1)
    return every, own.unsqueeze(3).expand(-1, -1, -1, count).flatten(2)


class Projection:
    """C51's projection of `batch` rows of four branches onto `atoms` values from `low` to `high` (see `policy.projection`).

    Buffers are made once and the result is one of them. Raises BadInput on a support of no width.
    """

    def __init__(self, batch: int, atoms: int, low: float, high: float, device: torch.device) -> None:
        if not (atoms >= 2 and low < high and high - low < float("inf")):
            raise BadInput(f"a support of {atoms} atoms from {low} to {high} has no width: give two atoms at least and low < high")
        zeros = lambda *shape: torch.zeros(shape, device=device)  # noqa: E731
        self._given = zeros(batch * BRANCHES, atoms)
        self._returns, self._discount = zeros(batch), zeros(batch)
        self._out = zeros(batch * BRANCHES, atoms)
        self._branches = torch.tensor([BRANCHES], device=device)
        span = torch.tensor([low, high], dtype=torch.float64, device=device)
        tensors = (self._branches, self._given, self._returns, self._discount, span, self._out)
        if device.type == "cuda":
            from policy import projection_cuda as kernels

            self._run = Launcher(device).bind(kernels.project_rows, len(self._out), kernels.THREADS, *tensors)
        else:
            arrays = [tensor.numpy() for tensor in tensors]
            self._run = lambda: project_rows(*arrays)

    def __call__(self, probabilities: torch.Tensor, returns: torch.Tensor, discount: torch.Tensor) -> torch.Tensor:
        """float32[B, 4, A] of probabilities [B, 4, A] whose value z becomes returns[B] + discount[B] * z, clipped to the support."""
        self._given.copy_(probabilities.flatten(0, 1))
        self._returns.copy_(returns)
        self._discount.copy_(discount)
        self._run()
        return self._out.view(probabilities.shape)


def cross_entropy(logits: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """C51's loss [B, 4] of logits [B, 4, A] against probabilities [B, 4, A], and its gradient [B, 4, A]: softmax * mass - target."""
    log_p = torch.log_softmax(logits, dim=2)
    return -(target * log_p).sum(dim=2), log_p.exp() * target.sum(dim=2, keepdim=True) - target


def quantile_huber(quantiles: torch.Tensor, target: torch.Tensor, shares: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantile regression's loss [B, 4] of quantiles [B, 4, T] at the fractions `taus(T)`, and its gradient [B, 4, T].

    Sum over fractions i, mean over targets j (of weights shares[B, 4, S], summing to 1, where given) of |tau_i - (u < 0)| * huber(u),
    u = target_j - quantile_i (Dabney, Rowland, Bellemare, Munos 2018, equation 10). target [B, 4, S].
    """
    fractions = taus(quantiles.shape[2], quantiles.device.type).unsqueeze(1)
    u = target.unsqueeze(2) - quantiles.unsqueeze(3)
    slope = u.clamp(-KAPPA, KAPPA)
    tilt = torch.where(u < 0, 1 - fractions, fractions) / KAPPA
    if shares is None:
        tilt = tilt / target.shape[2]
    else:
        tilt = tilt * shares.unsqueeze(2)
    # huber(u) = c * (u - c / 2) with c = clip(u): u^2 / 2 within kappa, kappa (|u| - kappa / 2) beyond.
    return (tilt * slope * (u - slope / 2)).sum(dim=(2, 3)), -(tilt * slope).sum(dim=3)


def conservative(values: torch.Tensor, columns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """CQL's loss [B] of values [B, 13], mean over branches of logsumexp - chosen, and its gradient [B, 13] (Kumar et al. 2020, eq. 4)."""
    parts = by_branch(values)
    highest = torch.stack([torch.logsumexp(part, dim=1) for part in parts], dim=1)
    shares = torch.cat([torch.softmax(part, dim=1) for part in parts], dim=1)
    chosen = at_choices(torch.ones_like(highest).unsqueeze(2), columns).squeeze(2)
    return (highest - of_branches(values, columns)).mean(dim=1), (shares - chosen) / BRANCHES


def through_mean(probabilities: torch.Tensor, support: torch.Tensor, mean: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """[B, 13, A]: the gradient at logits of a gradient [B, 13] at their expected value: p * (z - E) * gradient."""
    return probabilities * (support - mean.unsqueeze(2)) * gradient.unsqueeze(2)


def auxiliary(prediction: torch.Tensor, label: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The next-bar head's loss [B], (prediction - label / scale)^2, and its gradient [B] (seed F10)."""
    residual = prediction - label / scale.clamp(min=SCALE_FLOOR)
    return residual.square(), 2 * residual


def balance(gate: torch.Tensor) -> torch.Tensor:
    """[]: K * sum of squared mean shares of gate[B, K] (seed G6 for a soft gate): 1 when experts are used alike, K when only one is."""
    return gate.shape[1] * gate.float().mean(dim=0).square().sum()


def ranked(returns: torch.Tensor) -> torch.Tensor:
    """[B] in -1..1: each return's mean rank in the batch less that of zero, over B. Returns within TIE_THRESHOLD of zero are zero, and
    zero stays zero: whoever does nothing must not be paid by who else is in the batch."""
    values = torch.where(returns.abs() < TIE_THRESHOLD, 0.0, returns)
    ordered = values.sort().values
    asked = torch.cat((values, values.new_zeros(1)))
    rank = torch.searchsorted(ordered, asked) + torch.searchsorted(ordered, asked, right=True)
    return (rank[:-1] - rank[-1]).to(returns.dtype) / (2 * len(returns))


class ReturnScale(NamedTuple):
    """Running size of discounted returns, for dividing rewards by it (the part of PopArt, van Hasselt et al. 2016, that fits here).

    PopArt shifts and scales targets and rewrites the last layer so that its outputs stay. Quantiles can be rewritten so; C51's
    probabilities on fixed atoms cannot, for a softmax has no weights that move mass between atoms. So nothing is rewritten: every reward
    is divided by one positive number when it is learned from. That changes no order of policies, while a shift would pay for every
    step that an episode lasts. The number is the deviation over all real rewards so far, so its drift fades as 1 / rewards, and values
    follow it through the Bellman update as they follow the policy. The stored rewards are never touched.
    """

    running: torch.Tensor  # float64[lanes]: sum of gamma^k r of the episode so far
    count: torch.Tensor  # float64[]
    total: torch.Tensor  # float64[]: of the running sums
    square: torch.Tensor  # float64[]: of their squares


def return_scale(lanes: int, device: torch.device) -> ReturnScale:
    """Nothing seen yet."""
    zeros = lambda *shape: torch.zeros(shape, dtype=torch.float64, device=device)  # noqa: E731
    return ReturnScale(zeros(lanes), zeros(), zeros(), zeros())


def observe_rewards(scale: ReturnScale, reward: torch.Tensor, valid: torch.Tensor, ends: torch.Tensor, gamma: torch.Tensor) -> None:
    """Take in one step's real rewards [lanes], in place: of lanes that decided (`valid`), starting anew where an episode `ends`."""
    real = valid & torch.isfinite(reward)
    grown = scale.running * gamma + reward.double()
    counted = torch.where(real, grown, 0.0)
    scale.count.add_(real.sum())
    scale.total.add_(counted.sum())
    scale.square.add_(counted.square().sum())
    scale.running.copy_(torch.where(ends, 0.0, torch.where(real, grown, scale.running)))


def deviation(scale: ReturnScale) -> torch.Tensor:
    """float32[]: standard deviation of the running returns; 1 until two were seen or while they do not vary."""
    many = scale.count.clamp(min=1)
    variance = (scale.square / many - (scale.total / many).square()).clamp(min=0)
    spread = variance.sqrt()
    return torch.where((scale.count >= 2) & (spread > SCALE_FLOOR), spread, 1.0).float()
