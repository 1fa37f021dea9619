"""The policy's columns of the `diag` table. Sums over lanes, as integers, so that their order cannot matter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lob.actions import NOT_PLAYED
from lob.jit import kernel_cpu
from lob.tables import Column

if TYPE_CHECKING:
    import torch

    from lob.picks import Picks

_GATE_INPUTS = (
    Column("policy.conviction_ppm_sum", "int64", "ppm", "conviction, summed over the lanes that played"),
    Column("policy.health_ppm_sum", "int64", "ppm", "learning health, summed over the lanes that played"),
    Column("policy.variance_scale_ppm_sum", "int64", "ppm", "variance scale, summed over the lanes that played"),
)
_VALUES = (
    Column("policy.q_range_ppm_sum", "int64", "ppm", "best less worst expected value of a direction, over all lanes", nullable=True),
    Column("policy.q_sigma_ppm_sum", "int64", "ppm", "sd of the picked direction's value, over all lanes", nullable=True),
)
DIAG = _GATE_INPUTS + _VALUES

_GATE_NAMES = tuple(column.name for column in _GATE_INPUTS)

NO_VALUES: dict[str, int | None] = {column.name: None for column in _VALUES}
"""What a policy without a value distribution says of itself."""


@kernel_cpu
def sum_played(conviction, health, variance_scale, end_reason):
    """The sums of three int32[lanes] over the lanes that played: one pass, where torch would take ten and wake its threads."""
    of_conviction, of_health, of_variance = 0, 0, 0
    for lane in range(end_reason.size):
        played = 1 if end_reason[lane] != NOT_PLAYED else 0
        of_conviction += conviction[lane] * played
        of_health += health[lane] * played
        of_variance += variance_scale[lane] * played
    return of_conviction, of_health, of_variance


def diag_row(picks: Picks, diagnostics: dict[str, int | None], end_reason: torch.Tensor) -> dict[str, int | None]:
    """The policy's part of one decision's `diag` row. `end_reason` is int8[lanes]: lanes that were dead before count in no sum."""
    inputs = (picks.conviction_ppm, picks.health_ppm, picks.variance_scale_ppm)
    if end_reason.device.type == "cpu":
        sums = sum_played(*(values.numpy() for values in inputs), end_reason.numpy())
    else:
        sums = tuple(int((values * (end_reason != NOT_PLAYED)).sum()) for values in inputs)
    return dict(zip(_GATE_NAMES, sums, strict=True)) | {name: diagnostics[name] for name in NO_VALUES}


def no_picks_row() -> dict[str, int | None]:
    """The policy's part of the `diag` row of a drain, where nothing is picked."""
    return {column.name: 0 for column in _GATE_INPUTS} | NO_VALUES
