"""The policy's columns of the `diag` table. Sums over lanes, as integers, so that their order cannot matter."""

from __future__ import annotations

from typing import TYPE_CHECKING

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

NO_VALUES: dict[str, int | None] = {column.name: None for column in _VALUES}
"""What a policy without a value distribution says of itself."""


@kernel_cpu
def sum_played(conviction, health, variance_scale, played):
    """The sums of three int32[lanes] over the lanes of a bool mask: one pass, where torch would take six and wake its threads."""
    of_conviction, of_health, of_variance = 0, 0, 0
    for lane in range(played.size):
        if played[lane]:
            of_conviction += conviction[lane]
            of_health += health[lane]
            of_variance += variance_scale[lane]
    return of_conviction, of_health, of_variance


def diag_row(picks: Picks, diagnostics: dict[str, int | None], played: torch.Tensor) -> dict[str, int | None]:
    """The policy's part of one `diag` row. `played` is bool[lanes]: dead lanes count in no sum of gate inputs."""
    inputs = (picks.conviction_ppm, picks.health_ppm, picks.variance_scale_ppm)
    if played.device.type == "cpu":
        sums = sum_played(*(values.numpy() for values in inputs), played.numpy())
    else:
        sums = tuple(int((values * played).sum()) for values in inputs)
    row: dict[str, int | None] = {column.name: total for column, total in zip(_GATE_INPUTS, sums, strict=True)}
    return row | {column.name: diagnostics[column.name] for column in _VALUES}


def no_picks_row() -> dict[str, int | None]:
    """The policy's part of the `diag` row of a drain, where nothing is picked."""
    return {column.name: 0 for column in _GATE_INPUTS} | NO_VALUES
