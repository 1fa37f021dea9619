"""The reward chain raw -> shaped -> scaled -> whitened: four tensors, none computed in place, so that no reader can meet one as another.

`raw` is the environment's exact change of equity. `shaped` adds weighted terms, `scaled` divides by the reward scale, `whitened` by the
size that rewards of open positions have had so far; replay stores the last. No dollar of the log comes from any but the first.

Every weight is 0 by default, and every term is computed and logged at any weight. Terms are dimensionless, of the order of 1 for a full
position: a weight is what one unit is worth in scaled reward. There is no inventory penalty (J4): it makes flat the best policy.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field

from policy.diag_columns import REWARD_TERMS
from policy.lane_kernels import SQUARE_AT_START


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
    """Power of the unit that divides the scaled reward: root mean square times the root of the horizon; 0: whitened is scaled."""
    horizon: float = Field(50.0, ge=1, le=1e6)
    """Decisions over which returns are reckoned: 1 / (1 - gamma^2), 50 at a gamma of 0.99. So the return of a held position has a deviation
    of 1: it fits the support of C51, and the variance scale that sizes orders speaks of returns."""


class RewardState(NamedTuple):
    """What the terms remember of each lane, and the whitener of all. Saved with a checkpoint."""

    direction: torch.Tensor  # float32[lanes]: sign of the last open position of the episode; 0: none yet
    held: torch.Tensor  # float32[lanes]: decisions for which it was held
    best: torch.Tensor  # float32[lanes]: best open profit per lot of the position, in 32 ticks
    mean: torch.Tensor  # float32[lanes]: EMA of scaled raw rewards
    square: torch.Tensor  # float32[lanes]: EMA of their squares
    mean_square: torch.Tensor  # float32[1]: of scaled rewards of lanes that held a position
    unit: torch.Tensor  # float32[1]: what the last step's scaled rewards were divided by
    steps: torch.Tensor  # int64[1]: steps in which some lane held a position


def reward_state(lanes: int, device: str | torch.device = "cpu") -> RewardState:
    """Nothing remembered."""
    floats = lambda value, size: torch.full((size,), value, dtype=torch.float32, device=device)  # noqa: E731
    return RewardState(
        direction=floats(0.0, lanes),
        held=floats(0.0, lanes),
        best=floats(0.0, lanes),
        mean=floats(0.0, lanes),
        square=floats(SQUARE_AT_START, lanes),
        mean_square=floats(1.0, 1),
        unit=floats(1.0, 1),
        steps=torch.zeros(1, dtype=torch.int64, device=device),
    )


def reset_rewards(state: RewardState) -> None:
    """Forget everything, in place: the start of a fold."""
    for held, fresh in zip(state, reward_state(len(state.held)), strict=True):
        held.copy_(fresh)


assert {*REWARD_TERMS, "whitening", "horizon"} == set(RewardConfig.model_fields)
