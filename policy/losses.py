"""What the learner minimises: both heads' losses with their gradient, the experts' balance, ranks and the scale of returns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from lob.errors import BadInput
from policy import loss_kernels as k
from policy.heads import CHOICES, HeadOutput
from policy.launch import Launcher
from policy.loss_kernels import SCALE_FLOOR

TIE_THRESHOLD = 1e-5
"""Returns closer to zero than this count as zero where returns are ranked (seed H8): micro-rewards below it are noise."""


class Board(NamedTuple):
    """What `policy.loss_kernels` reads and writes, for B rows of W columns: 13 choices of A logits and T quantiles each, and padding."""

    action: torch.Tensor  # int32[B]
    returns: torch.Tensor  # float32[B]
    discount: torch.Tensor  # float32[B]
    weights: torch.Tensor  # float32[B]: importance
    label: torch.Tensor  # float32[B]
    aux: torch.Tensor  # float32[B]
    seen: torch.Tensor  # float32[B]: sum of the observation, which is finite if it is
    next_seen: torch.Tensor  # float32[B]: of the next one
    support: torch.Tensor  # float32[A]
    dials: torch.Tensor  # float32[7]
    values: torch.Tensor  # float32[B, 13]: blended, of the next observation
    here: torch.Tensor  # float32[B, 13]: blended, of the observation
    top: torch.Tensor  # float32[B, 13]: greatest logit here
    total: torch.Tensor  # float32[B, 13]: sum of the weights here
    mean: torch.Tensor  # float32[B, 13]: C51's mean here
    target: torch.Tensor  # float32[B, 4, A]
    mass: torch.Tensor  # float32[B, 4]: sum of a target's probabilities
    slope: torch.Tensor  # float32[B, 4, T]: gradient at the chosen choice's quantiles
    pull: torch.Tensor  # float32[B, W]: the gradient at what the online network says of the observation
    pull_aux: torch.Tensor  # float32[B]
    errors: torch.Tensor  # float32[B]: mean over branches of |target - value|
    facts: torch.Tensor  # float32[B, FACTS]: `loss_kernels` names the columns
    bad: torch.Tensor  # int32[B]: place in `loss_kernels.LOOKED_AT` of the first thing that is not finite; its length if all is


class HeadLosses:
    """The losses of `batch` rows of `columns` columns over float32[A] values, their buffers made once.

    `quantiles` is T, `cql` the weight of CQL's loss, `sarsa` whether the target is expected SARSA's instead of the maximum. Raises BadInput
    on a support of no width.
    """

    def __init__(self, batch: int, columns: int, support: torch.Tensor, quantiles: int, cql: float, sarsa: bool) -> None:
        atoms, device = len(support), support.device
        if not (atoms >= 2 and bool(torch.isfinite(support).all()) and bool((support.diff() > 0).all())):
            raise BadInput(f"a support of {atoms} atoms, {support.tolist()[:3]}..., has no width: give two values at least, ascending")

        choices = (batch, CHOICES)
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(Board._fields, (batch,))  # of what is one number a row
        shapes |= {"pull": (batch, columns), "support": (atoms,), "dials": (k.DIALS,)}
        shapes |= dict.fromkeys(("values", "here", "top", "total", "mean"), choices)
        shapes |= {"target": (batch, k.BRANCHES, atoms), "mass": (batch, k.BRANCHES), "slope": (batch, k.BRANCHES, quantiles)}
        shapes |= {"facts": (batch, k.FACTS)}
        whole = {"action": torch.int32, "bad": torch.int32}
        self.board = Board(
            **{name: torch.zeros(shape, dtype=whole.get(name, torch.float32), device=device) for name, shape in shapes.items()}
        )
        self.board.support.copy_(support)
        self.board.dials[k.CQL_WEIGHT] = cql
        self.sarsa = sarsa
        if device.type == "cuda":
            from policy import loss_cuda as c

            blocks = -(-batch // c.rows_of(atoms, quantiles))
            example = torch.zeros(1, columns, device=device)
            kernel = c.kernel(atoms, quantiles)
            self._run = Launcher(device).bind(kernel, blocks * c.THREADS, c.THREADS, self.board, given=(example,) * 3)
        else:
            arrays, soft = Board(*(tensor.numpy() for tensor in self.board)), np.zeros(CHOICES * atoms, np.float32)
            self._run = lambda *said: k.measure(*(tensor.numpy() for tensor in said), soft, arrays)

    def set_dials(self, shares: tuple[torch.Tensor, ...], label_scale: torch.Tensor, sarsa_ratio: torch.Tensor) -> None:
        """Shares of the gradient budget (c51, iqn, cql, aux), the divisor of labels, expected SARSA's temperature: float32[] each."""
        ratio = sarsa_ratio.clamp(min=0) if self.sarsa else torch.full_like(sarsa_ratio, -1.0)
        self.board.dials[: k.CQL_WEIGHT] = torch.stack((*shares, label_scale, ratio))

    def __call__(
        self,
        online: torch.Tensor,
        lagged: torch.Tensor,
        now: torch.Tensor,
        aux: torch.Tensor,
        action: torch.Tensor,
        returns: torch.Tensor,
        discount: torch.Tensor,
        weights: torch.Tensor,
        label: torch.Tensor,
        observation: torch.Tensor,
        next_observation: torch.Tensor,
    ) -> Board:
        """Take in a batch and compute; the result is the one board, overwritten by the next call.

        `online` and `lagged` are float32[B, W], what the two networks say of the next observation; `now` is what the online network says of
        the observation.
        """
        torch.sum(observation, dim=1, out=self.board.seen)
        torch.sum(next_observation, dim=1, out=self.board.next_seen)
        given = (action, returns, discount, weights, label, aux)
        for kept, tensor in zip(self.board, given, strict=False):
            kept.copy_(tensor)
        self._run(*(said.detach().float().contiguous() for said in (online, lagged, now)))
        return self.board


def said_matrix(heads: HeadOutput) -> torch.Tensor:
    """[B, W]: the one matrix that both heads are views of (`policy.model.say`), through which gradients flow. Raises BadInput."""
    logits, quantiles = heads
    matrix = logits._base
    each = logits.shape[2] + quantiles.shape[2]
    beside = quantiles.storage_offset() - logits.storage_offset() == logits.shape[2] and logits.storage_offset() == 0
    if matrix is None or matrix.dim() != 2 or not beside or logits.stride() != (matrix.shape[1], each, 1) or quantiles._base is not matrix:
        raise BadInput("the learner reads heads that are views of one matrix, each choice's logits followed by its quantiles")
    return matrix


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
    add_returns(scale, grow_returns(scale, reward, valid, ends, gamma))


def grow_returns(scale: ReturnScale, reward: torch.Tensor, valid: torch.Tensor, ends: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    """float64[3]: number, sum and sum of squares of the lanes' running returns, which take the step in."""
    real = valid & torch.isfinite(reward)
    grown = scale.running * gamma + reward.double()
    counted = torch.where(real, grown, 0.0)
    scale.running.copy_(torch.where(ends, 0.0, torch.where(real, grown, scale.running)))
    return torch.stack((real.sum().double(), counted.sum(), counted.square().sum()))


def add_returns(scale: ReturnScale, sums: torch.Tensor) -> None:
    """Take in what `grow_returns` summed, over all lanes."""
    for kept, more in zip((scale.count, scale.total, scale.square), sums, strict=True):
        kept.add_(more)


def deviation(scale: ReturnScale) -> torch.Tensor:
    """float32[]: standard deviation of the running returns; 1 until two were seen or while they do not vary."""
    many = scale.count.clamp(min=1)
    variance = (scale.square / many - (scale.total / many).square()).clamp(min=0)
    spread = variance.sqrt()
    return torch.where((scale.count >= 2) & (spread > SCALE_FLOOR), spread, 1.0).float()
