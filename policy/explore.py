"""How much training explores: scalar functions of counters, which the controllers' kernels run on the device, so that a captured graph
follows them.

Nothing here is read in evaluation or replay (`select` with `explore` False).
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from lob.jit import scalar

TAU_FLOOR = 0.01
"""Least Boltzmann temperature (seed E8): well below a range of values that means anything, and not zero, for it divides."""

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


@scalar
def scheduled_epsilon(start, end, steps, step):
    """Epsilon at `step`: half a cosine from start to end over `steps` decisions, then the end (seed E11)."""
    share = min(step / steps, 1.0)
    return end + (start - end) * 0.5 * (1.0 + math.cos(math.pi * share))


@scalar
def passive_pressure(attempt_rate, target_rate):
    """In 0..1: clip(1 - rate / max(target, 1e-4)): 1 for a policy that never goes in, 0 for one that does at the target's rate.

    `attempt_rate` (bus slot 71) is the moving average of the share of flat lanes that go long or short, `target_rate` (72) what it was when
    it was frozen, and 0 before: then any rate from 1e-4 on is enough. Seed rows E9, I10.
    """
    return min(max(1.0 - attempt_rate / max(target_rate, TARGET_FLOOR), 0.0), 1.0)


@scalar
def branch_epsilon(branch, scheduled, pressure):
    """A branch's epsilon: the schedule, no less than `EPSILON_FLOOR`, and on the direction (0) no less than half the passive pressure.

    No deadlock: a policy that stopped trading is pushed until it trades again.
    """
    least = max(scheduled, EPSILON_FLOOR)
    return max(least, PASSIVE_CEILING * pressure) if branch == 0 else least


@scalar
def count_bonus(coefficient, picks):
    """coefficient / sqrt(1 + picks of the choice so far) (seed E25). 0 for a coefficient of 0."""
    return coefficient / math.sqrt(1.0 + picks)
