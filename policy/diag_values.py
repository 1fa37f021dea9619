"""One step's numbers as the values of the policy's `diag` columns (`policy.diag_columns`): on the device, without waiting for it."""

from __future__ import annotations

import torch

from policy.diag_columns import LEARN, LEARN_FIGURES
from policy.health import LearnStats
from policy.health_kernels import UPDATES
from policy.lane_kernels import LOGGED
from policy.signals import IN_USE


def pack_integers(totals: torch.Tensor, clock: torch.Tensor) -> torch.Tensor:
    """int64: values of `INTEGERS` from a step's totals (`policy.lane_pass`) and the controllers' clock."""
    return torch.cat((totals[:LOGGED], clock[UPDATES : UPDATES + 1]))


def pack_floats(unit: torch.Tensor, bus: torch.Tensor, stats: LearnStats | None) -> torch.Tensor:
    """float64: values of `FLOATS`, NaN where there is none (`stats` None: no update in this step).

    `unit` float32[1] is the whitener's (`policy.rewards.RewardState`), `bus` float32[127].
    """
    if stats is None:
        figures = [torch.full((len(LEARN),), torch.nan, device=bus.device)]
    else:
        given = stats._asdict()
        figures = [given[name].reshape(1) for name in LEARN_FIGURES]
    signals = [bus[first : last + 1] for first, last in _runs(IN_USE)]
    values = torch.cat((unit, *figures, *signals)).double()
    return torch.where(torch.isfinite(values), values, torch.nan)


def _runs(places: tuple[int, ...]) -> list[tuple[int, int]]:
    """Consecutive places as (first, last): slices of the bus, where an index list would be one more tensor to keep."""
    runs: list[tuple[int, int]] = []
    for place in places:
        if runs and runs[-1][1] == place - 1:
            runs[-1] = (runs[-1][0], place)
        else:
            runs.append((place, place))
    return runs
