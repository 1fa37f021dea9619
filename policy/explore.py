"""How much training explores: tensor functions of counters on the device, so that a captured graph follows them.

Nothing here is read in evaluation or replay (`select` with `explore` False).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field

from policy.controls import TAU_FLOOR
from policy.heads import BRANCH_SIZES

EPSILON_FLOOR = 0.02
"""Least epsilon of every branch while training: half a percent for each direction, so that none is ever wholly unseen (seed E10)."""

PASSIVE_CEILING = 0.5
"""Epsilon of the direction branch of a policy that never trades: half random, half its own, the most that still lets its values show in
what is remembered (seed E9)."""

TARGET_FLOOR = 1e-4
"""Least attempt rate that is divided by: one attempt in ten thousand decisions is none (seed E9)."""


class SelectConfig(BaseModel):
    """How a training run picks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    selector: Literal["boltzmann", "thompson", "greedy"] = "boltzmann"
    """Of training. Boltzmann at tau = range of values keeps every direction above a tenth; evaluation is greedy, whatever this says."""

    epsilon_start: float = Field(0.2, ge=0, le=1)
    """Share of uniform choices in each branch at the first step. Boltzmann explores by itself; this is for what it would rarely see."""

    epsilon_end: float = Field(0.02, ge=0, le=1)
    """The same from `epsilon_steps` on."""

    epsilon_steps: int = Field(1_000, ge=1)
    """Decisions over which a half cosine leads from the first to the second: half of a run of the default length."""

    bonus: float = Field(0.0, ge=0)
    """Coefficient of the count bonus, in units of value; 0: none."""

    tau_floor: float = Field(TAU_FLOOR, gt=0)
    """Least Boltzmann temperature of every branch, in units of value."""


def scheduled_epsilon(config: SelectConfig, step: torch.Tensor) -> torch.Tensor:
    """float32, of the shape of `step` (int64, decisions since the start): half a cosine from start to end, then the end (seed E11)."""
    share = (step.float() / config.epsilon_steps).clamp(max=1.0)
    return config.epsilon_end + (config.epsilon_start - config.epsilon_end) * 0.5 * (1 + torch.cos(math.pi * share))


def passive_pressure(attempt_rate: torch.Tensor, target_rate: torch.Tensor) -> torch.Tensor:
    """float32[] in 0..1: clamp(1 - rate / max(target, 1e-4)): 1 for a policy that never goes in, 0 for one that does at the target's rate.

    `attempt_rate` (bus slot 71) is the moving average of the share of flat lanes that go long or short, `target_rate` (72) what it was when
    it was frozen, and 0 before: then any rate from 1e-4 on is enough. Seed rows E9, I10.
    """
    return (1 - attempt_rate / target_rate.clamp(min=TARGET_FLOOR)).clamp(0, 1)


def branch_epsilon(config: SelectConfig, step: torch.Tensor, attempt_rate: torch.Tensor, target_rate: torch.Tensor) -> torch.Tensor:
    """float32[4]: per branch the schedule, no less than `EPSILON_FLOOR`, and on the direction no less than half the passive pressure.

    `step` is int64[1], the rates are float32[]. No deadlock: a policy that stopped trading is pushed until it trades again.
    """
    scheduled = scheduled_epsilon(config, step).clamp(min=EPSILON_FLOOR)
    direction = torch.maximum(scheduled, PASSIVE_CEILING * passive_pressure(attempt_rate, target_rate))
    return torch.cat([direction, scheduled.expand(len(BRANCH_SIZES) - 1)])


def count_bonus(coefficient: float, counts: torch.Tensor) -> torch.Tensor:
    """float32[13]: coefficient / sqrt(1 + picks of the choice so far), counts int64[13] (seed E25). All zero for a coefficient of 0."""
    return coefficient / (1 + counts).float().sqrt()


def count_picks(counts: torch.Tensor, codes: torch.Tensor, decided: torch.Tensor) -> None:
    """Add a step's picks to int64[13] `counts`, in place: codes int64[lanes, 4] of the lanes where `decided` bool[lanes] is true."""
    for branch, of_branch in enumerate(counts.split(BRANCH_SIZES)):
        choices = torch.arange(BRANCH_SIZES[branch], device=codes.device)
        of_branch += ((codes[:, branch : branch + 1] == choices) & decided.unsqueeze(1)).sum(dim=0)
