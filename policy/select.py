"""From what a network says of every choice to a pick: one function for training, evaluation and replay.

Value of a choice: half C51's mean, half IQN's. Selectors: `greedy`; `boltzmann` per branch at temperature max(range of the branch's scores,
floor); `thompson` (Thompson, 1933) on the direction branch, with Boltzmann on the others. Exploration adds a count bonus and, with
probability epsilon, a uniform choice; it happens only when it is asked for. `docs/selection.md` says how this meets the other mechanisms.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from lob.actions import encode_action
from lob.errors import BadInput
from lob.picks import Picks
from lob.units import PPM
from policy.controls import SelectControls
from policy.distributions import Atoms, Distribution, Quantiles, blend, distributions, first_beyond
from policy.draws import BRANCH_PURPOSE, SAMPLE_PURPOSE, below, draw, uniform
from policy.heads import BRANCH_FIRST, BRANCH_SIZES, HeadOutput
from policy.select_scalar import SELECTORS

DIRECTIONS = BRANCH_SIZES[0]


class Chosen(NamedTuple):
    """The picks of `batch` lanes, and what is to be known of them."""

    action: torch.Tensor  # int32[batch]: 0..107
    conviction: torch.Tensor  # float32[batch] in 0..1: how far the best direction's value stands above the mean of all, over the scale
    variance_scale: torch.Tensor  # float32[batch]: 1 / (1 + sigma)
    q_range: torch.Tensor  # float32[batch]: best less worst direction's value
    q_sigma: torch.Tensor  # float32[batch]: sigma of the picked direction's value
    explored: torch.Tensor  # bool[batch]: a branch, or more, was drawn uniformly
    p_best: torch.Tensor  # float32[batch]: probability that the selector picks the direction of the best score (see `select`)
    tau: torch.Tensor  # float32[batch]: the direction branch's Boltzmann temperature; 0 where the selector has none
    codes: torch.Tensor  # int64[batch, 4]: the choice in each branch


def boltzmann(scores: torch.Tensor, tau_floor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(probabilities [batch, n], temperature [batch]) of scores [batch, n]: softmax(scores / tau), tau = max(their range, the floor).

    So the scores' scale does not matter above the floor, and whatever they are, no choice is likelier than e / (e + n - 1), none less
    likely than 1 / (1 + (n - 1) e): .4754 and .1092 of four, .5761 and .1554 of three.
    """
    best = scores.amax(dim=1, keepdim=True)
    tau = torch.maximum(best - scores.amin(dim=1, keepdim=True), tau_floor)
    return torch.softmax((scores - best) / tau, dim=1), tau.squeeze(1)


def select(
    heads: HeadOutput,
    support: torch.Tensor,
    controls: SelectControls,
    selector: str,
    explore: bool,
    seed: int,
    lanes: torch.Tensor,
    step: torch.Tensor,
) -> Chosen:
    """Pick for `batch` lanes. A lane's pick depends on its row of the heads, the controls, and (seed, lane id, step) alone.

    `support` is float32[A], `lanes` int64[batch] global ids, `step` int64[1]. Of equal best scores the lowest code wins. The contrarian
    sign multiplies the directions' values (under Thompson their samples) before the bonus, which is no opinion on value, is added.
    Without `explore` epsilon and bonus are not read. Conviction comes from values: from samples it would make the Kelly cap jitter.

    `p_best` is 1 under `greedy`, the softmax's under `boltzmann`. Under `thompson` it has no closed form: there it is 1 where the sample
    picked the direction of the best value and 0 elsewhere, whose mean over lanes estimates it. Raises BadInput for an unknown selector.
    """
    if selector not in SELECTORS:
        raise BadInput(f"there is no selector {selector!r}: choose one of {', '.join(SELECTORS)}")
    c51, iqn = distributions(heads, support)
    values = blend(c51.mean(), iqn.mean())
    signed = values[:, :DIRECTIONS] * controls.contrarian
    scores = torch.cat([signed, values[:, DIRECTIONS:]], dim=1)
    if explore:
        scores = scores + controls.bonus
    at_directions: tuple[Distribution, ...] = (Atoms(c51.probabilities[:, :DIRECTIONS], support), Quantiles(iqn.values[:, :DIRECTIONS]))
    draws = explore or selector != "greedy"
    coin, anywhere, level, _ = draw(seed, lanes, step, BRANCH_PURPOSE, len(BRANCH_SIZES)) if draws else (lanes,) * 4
    codes, explored = [], torch.zeros_like(lanes, dtype=torch.bool)
    best = scores[:, :DIRECTIONS].argmax(dim=1)
    p_best, tau = torch.ones_like(values[:, 0]), torch.zeros_like(values[:, 0])
    for branch, (first, count) in enumerate(zip(BRANCH_FIRST, BRANCH_SIZES, strict=True)):
        of_branch = scores[:, first : first + count]
        if selector == "greedy":
            code = of_branch.argmax(dim=1)  # the first of equal maxima, as torch promises
        elif selector == "thompson" and branch == 0:
            uniforms = uniform(torch.stack(draw(seed, lanes, step, SAMPLE_PURPOSE, 2), dim=2))  # [2, batch, DIRECTIONS]
            samples = (head.sample(drawn) for head, drawn in zip(at_directions, uniforms, strict=True))
            sample = blend(*samples) * controls.contrarian
            code = (sample + controls.bonus[:DIRECTIONS] if explore else sample).argmax(dim=1)
            p_best = (code == best).float()
        else:
            probabilities, temperature = boltzmann(of_branch, controls.tau_floor[branch])
            code = first_beyond(probabilities.cumsum(dim=1), uniform(level[branch]))
            if branch == 0:
                p_best, tau = probabilities.gather(1, best.unsqueeze(1)).squeeze(1), temperature
        if explore:
            uniformly = uniform(coin[branch]) < controls.epsilon[branch]
            code = torch.where(uniformly, below(anywhere[branch], count), code)
            explored = explored | uniformly
        codes.append(code)
    conviction = (signed.amax(dim=1) - signed.mean(dim=1)) / controls.conviction_scale
    sigma = blend(*(head.sigma() for head in at_directions)).gather(1, codes[0].unsqueeze(1)).squeeze(1)
    return Chosen(
        action=encode_action.py_func(*codes).int(),
        conviction=conviction.clamp(0, 1),
        variance_scale=1 / (1 + sigma),
        q_range=signed.amax(dim=1) - signed.amin(dim=1),
        q_sigma=sigma,
        explored=explored,
        p_best=p_best,
        tau=tau,
        codes=torch.stack(codes, dim=1),
    )


def to_ppm(values: torch.Tensor) -> torch.Tensor:
    """int64 parts per million of floats, to the nearest, halves to even. What is not finite becomes 0: who reads `q_range` finds it."""
    return (torch.nan_to_num(values.double(), nan=0.0, posinf=0.0, neginf=0.0) * PPM).round().long()


def to_picks(chosen: Chosen, health_ppm: torch.Tensor, out: Picks) -> Picks:
    """The picks as the environment takes them, written into `out` (which is returned): the one place where they are quantised.

    `health_ppm` is an integer tensor of one element, or one of a lane each.
    """
    out.action.copy_(chosen.action)
    out.conviction_ppm.copy_(to_ppm(chosen.conviction))
    out.health_ppm.copy_(health_ppm.expand_as(out.health_ppm))
    out.variance_scale_ppm.copy_(to_ppm(chosen.variance_scale))
    return out
