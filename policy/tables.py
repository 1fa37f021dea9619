"""The policy's columns of the `diag` table. Sums over lanes, as integers, so that their order cannot matter."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


def diag_row(picks: Picks, diagnostics: dict[str, int | None], played: torch.Tensor) -> dict[str, int | None]:
    """The policy's part of one `diag` row. `played` is bool[lanes]: dead lanes count in no sum of gate inputs."""
    inputs = (picks.conviction_ppm, picks.health_ppm, picks.variance_scale_ppm)
    # A product, not a mask index: torch spreads an index over threads, which at 8,192 lanes takes milliseconds beside a busy core.
    row: dict[str, int | None] = {column.name: int((values * played).sum()) for column, values in zip(_GATE_INPUTS, inputs, strict=True)}
    return row | {column.name: diagnostics[column.name] for column in _VALUES}


def no_picks_row() -> dict[str, int | None]:
    """The policy's part of the `diag` row of a drain, where nothing is picked."""
    return {column.name: 0 for column in _GATE_INPUTS} | NO_VALUES
