"""One step's tensors as the values of the policy's `diag` columns (`policy.diag_columns`): on the device, without waiting for it."""

from __future__ import annotations

import torch

from lob.layout import OFFSET
from lob.picks import Picks
from lob.units import PPM
from policy.bus import UPDATES, ControlState
from policy.diag_columns import LEARN, LEARN_FIGURES
from policy.health import LearnStats
from policy.rewards import Rewards
from policy.select import Chosen, to_ppm
from policy.signals import IN_USE

MOST_TAU_RATIO = 1000.0
"""Temperature over range beyond which it says no more: the floor rules, and picks are uniform within a thousandth."""


def pack_integers(
    picks: Picks, chosen: Chosen, observation: torch.Tensor, decided: torch.Tensor, rewards: Rewards, state: ControlState
) -> torch.Tensor:
    """int64[20], on the device, of one step: values of `INTEGERS`.

    `observation` float32[lanes, 128] that was decided on, `decided` bool[lanes]. Does not wait for the device.
    """
    kelly = to_ppm(observation[:, OFFSET["kelly_fraction"]])
    floor = torch.maximum(picks.conviction_ppm, PPM // 2 + picks.health_ppm // 2)
    ranged = decided & (chosen.q_range > 0)
    ratio = (chosen.tau / torch.where(ranged, chosen.q_range, 1.0)).clamp(max=MOST_TAU_RATIO)
    over_all = torch.stack((to_ppm(chosen.q_range), to_ppm(chosen.q_sigma))).sum(dim=1)
    of_played = [part.long() for part in (picks.conviction_ppm, picks.health_ppm, picks.variance_scale_ppm)]
    of_played += [chosen.explored.long(), to_ppm(chosen.p_best), to_ppm(ratio) * ranged, ranged.long(), (kelly > floor).long()]
    sums = torch.where(decided, torch.stack(of_played), 0).sum(dim=1)
    return torch.cat((sums[:3], over_all, sums[3:], rewards.sums, state.clock[UPDATES : UPDATES + 1]))


def pack_floats(state: ControlState, stats: LearnStats | None) -> torch.Tensor:
    """float64[112], on the device: values of `FLOATS`, NaN where there is none (`stats` None: no update). Does not wait for the device."""
    bus = state.bus
    if stats is None:
        figures = torch.full((len(LEARN),), torch.nan, device=bus.device)
    else:
        given = stats._asdict()
        missing = torch.full((), torch.nan, device=bus.device)
        figures = torch.stack([missing if given[name] is None else given[name].float() for name in LEARN_FIGURES])
    signals = torch.cat([bus[first : last + 1] for first, last in _runs(IN_USE)])
    values = torch.cat((figures, signals)).double()
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
