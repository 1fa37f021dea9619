"""The reward chain raw -> shaped -> scaled -> whitened: four tensors, none computed in place, so that no reader can meet one as another.

`raw` is the environment's exact change of equity. `shaped` adds weighted terms, `scaled` divides by the reward scale, `whitened` by the
size that rewards of open positions have had so far; replay stores the last. No dollar of the log comes from any but the first.

Every weight is 0 by default, and every term is computed and logged at any weight. Terms are dimensionless, of the order of 1 for a full
position: a weight is what one unit is worth in scaled reward. There is no inventory penalty (J4): it makes flat the best policy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field

from lob.layout import OFFSET, STATE_DIM
from lob.units import PPM, USD_MICROS
from policy.diag_columns import REWARD_TERMS

SHARPE_WEIGHT = 0.01
"""Weight of the newest reward in the moments of the differential Sharpe ratio: a hundred decisions, the horizon of gamma 0.99."""

SQUARE_AT_START = 1.0
"""The second moment before any reward: a variance of 1 divides by nothing (lesson 29), and fades with the EMA."""

VARIANCE_FLOOR = 1e-6
"""Least variance under the differential Sharpe ratio, in scaled reward squared: a dollar of a thousand. A lane that has never held a
position has none of its own."""

SHARPE_CLIP = 10.0
"""The ratio's derivative says no more beyond ten: one reward after a long calm must not outweigh an episode."""

CHURN_DECISIONS = 10.0
"""Decisions held at which a reversal costs half: one sooner is a flip, one much later a change of view."""

ATR_FLOOR_TICKS = 1.0
"""Least average range by which a spread is divided: a market that moves less than a tick has no smaller unit."""

CAPTURE_FLOOR = 1.0 / 32
"""Least best excursion that an exit is measured against: one tick, in the units of the observation's slot."""

EDGE_CLIP = 1.0
"""Most predicted edge that idleness can cost, in units of value: values that run away must not drag the reward with them."""

WHITEN_WEIGHT = 1e-3
"""Weight of the newest step in the mean square that whitens: slow, for what lies in the replay was whitened by an older one. A plain mean
until a thousand steps have been seen."""

WHITEN_FLOOR = 1e-4
"""Least root mean square that whitens, in scaled reward: ten cents of a thousand dollars."""

SQUARE_UNIT = 2**-24
"""Squares are summed as whole multiples of this, so that the sum does not depend on the order of lanes or processes: a quarter of a dollar
of a thousand is one unit."""

SQUARE_MOST = 2**42
"""A lane's square counts for no more units: a reward of half a million dollars, and 2^20 lanes of it stay below 2^63."""


class RewardConfig(BaseModel):
    """Weight of each term, in scaled reward per unit of the term. 0: it is logged and changes nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    micro: float = Field(0.0, ge=0, le=100)
    """J1: what the position made of the interval's own move, over the average range, less the half spread paid for the change."""
    flow: float = Field(0.0, ge=0, le=100)
    """J2: standing with an order flow that the price confirms."""
    inaction: float = Field(0.0, ge=0, le=100)
    """J3: less the edge that the policy itself predicts, while flat."""
    churn: float = Field(0.0, ge=0, le=100)
    """J5: less a cost per reversal, the higher the sooner it comes."""
    hold: float = Field(0.0, ge=0, le=100)
    """J6: at a close, the share kept of the best open profit."""
    sharpe: float = Field(0.0, ge=0, le=100)
    """J7: the differential Sharpe ratio."""
    potential: float = Field(0.0, ge=0, le=100)
    """J8: gamma * Phi(s') - Phi(s), which leaves the optimal policy as it is."""
    whitening: float = Field(1.0, ge=0, le=1)
    """Power of the root mean square that divides the scaled reward; 0: whitened is scaled."""


TERMS: tuple[str, ...] = tuple(REWARD_TERMS)
"""The terms in the order of `Rewards.terms`: J1, J2, J3, J5, J6, J7, J8."""


class Undo(NamedTuple):
    """The normaliser of the observations that the terms read, as float32[128] tensors: raw = slot * std + mean."""

    mean: torch.Tensor
    std: torch.Tensor


class RewardState(NamedTuple):
    """What the terms remember of each lane, and the whitener of all. Saved with a checkpoint."""

    direction: torch.Tensor  # float32[lanes]: sign of the last open position of the episode; 0: none yet
    held: torch.Tensor  # float32[lanes]: decisions for which it was held
    best: torch.Tensor  # float32[lanes]: best open profit per lot of the position, in 32 ticks
    mean: torch.Tensor  # float32[lanes]: EMA of scaled raw rewards
    square: torch.Tensor  # float32[lanes]: EMA of their squares
    mean_square: torch.Tensor  # float32[]: of scaled rewards of lanes that held a position
    steps: torch.Tensor  # int64[]: steps that it has seen such lanes in


class Rewards(NamedTuple):
    """One step's rewards. Lanes that did not decide hold 0 throughout."""

    raw: torch.Tensor  # int64[lanes], micro-dollars
    shaped: torch.Tensor  # float32[lanes], dollars
    scaled: torch.Tensor  # float32[lanes]
    whitened: torch.Tensor  # float32[lanes]: what replay stores
    terms: torch.Tensor  # float32[7, lanes], unweighted
    sums: torch.Tensor  # int64[9]: each term, scaled, whitened, summed over lanes in ppm


def undo(mean: torch.Tensor | None = None, std: torch.Tensor | None = None, device: str = "cpu") -> Undo:
    """From a normaliser's float64[128] statistics; from none: observations that are not normalised."""
    wanted = (torch.zeros(STATE_DIM) if mean is None else mean, torch.ones(STATE_DIM) if std is None else std)
    return Undo(*(torch.as_tensor(values).to(device=device, dtype=torch.float32) for values in wanted))


def reward_state(lanes: int, device: str = "cpu") -> RewardState:
    """Nothing remembered."""
    zeros = lambda *shape: torch.zeros(*shape, dtype=torch.float32, device=device)  # noqa: E731
    square = torch.full((lanes,), SQUARE_AT_START, dtype=torch.float32, device=device)
    steps = torch.zeros((), dtype=torch.int64, device=device)
    return RewardState(zeros(lanes), zeros(lanes), zeros(lanes), zeros(lanes), square, torch.ones((), device=device), steps)


def reset_rewards(state: RewardState) -> None:
    """Forget everything, in place: the start of a fold."""
    for held, fresh in zip(state, reward_state(len(state.held)), strict=True):
        held.copy_(fresh)


class Step(NamedTuple):
    """What a step's rewards are computed from."""

    raw: torch.Tensor  # int64[lanes]: change of equity, micro-dollars
    observation: torch.Tensor  # float32[lanes, 128]: what was decided on
    next_observation: torch.Tensor  # float32[lanes, 128]: what it led to; the last one of the old episode where one ended
    decided: torch.Tensor  # bool[lanes]: the pick was used
    terminated: torch.Tensor  # bool[lanes]: nothing follows, so the potential ends at 0
    ends: torch.Tensor  # bool[lanes]: the episode ended, in either way
    q_range: torch.Tensor  # float32[lanes]: best less worst expected value of a direction


def reward_terms(step: Step, gamma: torch.Tensor, scale_usd_micros: int, state: RewardState, raw_of: Undo) -> torch.Tensor:
    """float32[7, lanes]: every term at weight 1, 0 where a lane did not decide. `gamma` float32[]: the learner's discount.

    J1, J2: dense rewards of the interval; J3: Q spread while flat; J5, J6: at a reversal and a close; J7: Moody and Saffell, "Learning to
    Trade via Direct Reinforcement" (2001); J8: Ng, Harada and Russell, "Policy Invariance under Reward Transformations" (1999).

    A position that was closed within the interval (stop, floor) earns no J1 or J2 for it, and J6 takes it to have left at the decision.
    """
    before, after = step.observation, step.next_observation
    at = lambda rows, name: rows[:, OFFSET[name]] * raw_of.std[OFFSET[name]] + raw_of.mean[OFFSET[name]]  # noqa: E731
    position, sign = after[:, OFFSET["position_fraction"]], after[:, OFFSET["position_sign"]]
    was = before[:, OFFSET["position_fraction"]]
    move = at(after, "move_over_atr")
    spread = at(before, "spread_ticks").clamp(min=0) / at(before, "atr_ticks").clamp(min=ATR_FLOOR_TICKS)
    micro = position * move - (position - was).abs() * spread / 2

    flow = torch.tanh(at(after, "ofi_7"))
    confirmed = torch.tanh(move)
    with_flow = position * flow * confirmed.abs() * (flow * confirmed > 0)

    inaction = -step.q_range.clamp(0, EDGE_CLIP) * ((position == 0) & (was == 0))
    reversal = sign * state.direction < 0
    churn = -(CHURN_DECISIONS / (CHURN_DECISIONS + state.held)) * reversal

    closed = (before[:, OFFSET["position_sign"]] != 0) & (sign != before[:, OFFSET["position_sign"]])
    exit_ = before[:, OFFSET["unrealized_ticks_per_lot"]]
    best = torch.maximum(state.best, exit_).clamp(min=CAPTURE_FLOOR)
    hold = (exit_ / best).clamp(-1, 1) * closed

    reward = (step.raw.double() / scale_usd_micros).float()
    from_mean, from_square = reward - state.mean, reward.square() - state.square
    variance = (state.square - state.mean.square()).clamp(min=VARIANCE_FLOOR)
    sharpe = (state.square * from_mean - 0.5 * state.mean * from_square) / variance.pow(1.5)

    gained = gamma * torch.where(step.terminated, 0.0, potential(after)) - potential(before)
    terms = torch.stack((micro, with_flow, inaction, churn, hold, sharpe.clamp(-SHARPE_CLIP, SHARPE_CLIP), gained))
    return torch.where(step.decided & torch.isfinite(terms), terms, 0.0)


def potential(observation: torch.Tensor) -> torch.Tensor:
    """Phi, float32[lanes]: the position's share times the displayed imbalance, which leans towards the next move. A function of the
    observation alone, as policy invariance asks."""
    return observation[:, OFFSET["position_fraction"]] * observation[:, OFFSET["imbalance_10"]]


def remember(step: Step, scale_usd_micros: int, state: RewardState) -> None:
    """Take a step in, in place, once its terms are computed; a lane whose episode ended starts anew, its moments aside."""
    sign = step.next_observation[:, OFFSET["position_sign"]]
    profit = step.next_observation[:, OFFSET["unrealized_ticks_per_lot"]]
    same = sign == step.observation[:, OFFSET["position_sign"]]
    held = torch.where(sign != 0, torch.where(same, state.held, 0.0) + 1, state.held)
    best = torch.where(sign != 0, torch.maximum(profit, torch.where(same, state.best, 0.0)), 0.0)
    direction = torch.where(sign != 0, sign, state.direction)
    for kept, value in ((state.held, held), (state.best, best), (state.direction, direction)):
        kept.copy_(torch.where(step.ends, 0.0, torch.where(step.decided, value, kept)))
    reward = (step.raw.double() / scale_usd_micros).float()
    weight = SHARPE_WEIGHT * step.decided
    state.mean.lerp_(reward, weight)
    state.square.lerp_(reward.square(), weight)


def reward_chain(
    step: Step,
    config: RewardConfig,
    weights: torch.Tensor,
    gamma: torch.Tensor,
    scale_usd_micros: int,
    state: RewardState,
    raw_of: Undo,
    combine: Callable[[torch.Tensor], torch.Tensor] = lambda exposed: exposed,
) -> Rewards:
    """The four tensors of one step, and what is logged of them; `state` is moved in place.

    `weights` is `weights_of(config)`. `combine` adds an int64[2] over the processes that share a run's lanes.
    """
    terms = reward_terms(step, gamma, scale_usd_micros, state, raw_of)
    remember(step, scale_usd_micros, state)
    raw = torch.where(step.decided, step.raw, 0)
    added = (weights.unsqueeze(1) * terms).sum(dim=0).double()
    shaped = (raw.double() / USD_MICROS + added * (scale_usd_micros / USD_MICROS)).float()
    scaled = (raw.double() / scale_usd_micros + added).float()
    observe_size(combine(exposure(step, scaled)), state)
    whitened = scaled / state.mean_square.sqrt().clamp(min=WHITEN_FLOOR).pow(config.whitening)
    sums = (torch.cat((terms, torch.stack((scaled, whitened)))).double() * PPM).round().long().sum(dim=1)
    return Rewards(raw, shaped, scaled, whitened, terms, sums)


def exposure(step: Step, scaled: torch.Tensor) -> torch.Tensor:
    """int64[2]: squares of scaled rewards of the lanes that held a position before or after, in SQUARE_UNIT, and the number of lanes.

    Only these: a policy that turns passive would else shrink the unit, and inflate the few rewards that it still earns.
    """
    sign = OFFSET["position_sign"]
    held = step.decided & ((step.observation[:, sign] != 0) | (step.next_observation[:, sign] != 0))
    squares = (torch.where(held, scaled, 0.0).double().square() / SQUARE_UNIT).round().clamp(max=SQUARE_MOST).long()
    return torch.stack((squares.sum(), held.sum()))


def observe_size(exposed: torch.Tensor, state: RewardState) -> None:
    """Move the whitener, in place, by the `exposure` of one step (or of several processes', added); no lane, no move."""
    lanes = exposed[1]
    weight = torch.where(lanes > 0, (1 / (state.steps.float() + 1)).clamp(min=WHITEN_WEIGHT), 0.0)
    mean = (exposed[0].double() * SQUARE_UNIT / lanes.clamp(min=1)).float()
    state.mean_square.lerp_(mean, weight)
    state.steps.add_((lanes > 0).long())


def weights_of(config: RewardConfig, device: str = "cpu") -> torch.Tensor:
    """float32[7]: the terms' weights."""
    return torch.tensor([getattr(config, name) for name in TERMS], dtype=torch.float32, device=device)


assert {*TERMS, "whitening"} == set(RewardConfig.model_fields)
