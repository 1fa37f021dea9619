"""The policy's part of a `diag` row of a run that does not train (`policy.diag_columns` declares all of it)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lob.jit import kernel_cpu
from policy.diag_columns import GATE_INPUTS, NO_VALUES, VALUES

if TYPE_CHECKING:
    import torch

    from lob.picks import Picks

DIAG = GATE_INPUTS + VALUES
"""What every run says of its policy; a training run adds `policy.diag_columns.TRAINING`."""

_GATE_NAMES = tuple(column.name for column in GATE_INPUTS)


@kernel_cpu
def sum_played(conviction, health, variance_scale, decided):
    """The sums of three int32[lanes] over the lanes that played: one pass, where torch would take ten and wake its threads."""
    of_conviction, of_health, of_variance = 0, 0, 0
    for lane in range(decided.size):
        played = 1 if decided[lane] else 0
        of_conviction += conviction[lane] * played
        of_health += health[lane] * played
        of_variance += variance_scale[lane] * played
    return of_conviction, of_health, of_variance


def diag_row(picks: Picks, diagnostics: dict[str, int | None], decided: torch.Tensor) -> dict[str, int | None]:
    """The policy's part of one decision's `diag` row. `decided` is bool[lanes]: lanes whose pick was not used count in no sum."""
    inputs = (picks.conviction_ppm, picks.health_ppm, picks.variance_scale_ppm)
    if decided.device.type == "cpu":
        sums = sum_played(*(values.numpy() for values in inputs), decided.numpy())
    else:
        sums = tuple(int((values * decided).sum()) for values in inputs)
    return dict(zip(_GATE_NAMES, sums, strict=True)) | {name: diagnostics[name] for name in NO_VALUES}


def no_picks_row() -> dict[str, int | None]:
    """The policy's part of the `diag` row of a drain, where nothing is picked."""
    return {column.name: 0 for column in GATE_INPUTS} | NO_VALUES
