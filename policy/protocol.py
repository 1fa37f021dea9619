"""What a policy follows. `sim` makes one, asks it once a step, and writes its identity into the run's config hash."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from lob.picks import Picks
from lob.units import PPM

if TYPE_CHECKING:
    import torch

FULL_PPM = PPM
"""Conviction, health and variance scale of a policy that has no view of its own: they shrink nothing."""


class Policy(Protocol):
    """A decision rule over lanes. It keeps no state between steps, so that a resumed run picks what the uninterrupted one would have."""

    name: str
    window: int
    """Past market rows that it reads, the present one included; 0: none."""

    def identity(self) -> dict[str, Any]:
        """What of the policy the run depends on (name, parameters, content hashes): JSON values, no paths."""

    def act(self, observation: torch.Tensor, history: torch.Tensor | None, step: int) -> Picks:
        """Picks for float32[lanes, 128] observations at decision `step`, in the policy's own buffers: copy to keep.

        `history` is float32[lanes, window, 96]: the market slots of the rows up to the present one, oldest first, zeros before the start;
        None where `window` is 0.
        """

    def diagnostics(self) -> dict[str, int | None]:
        """Its own part of the `diag` row of the step just picked (`policy.tables`); None where it has none to give."""


def constant_picks(lanes: int, device: str) -> Picks:
    """Preallocated buffers: int32[lanes] zeros for the action, full ppm for the gate inputs."""
    import torch

    action = torch.zeros(lanes, dtype=torch.int32, device=device)
    return Picks(action, *(torch.full((lanes,), FULL_PPM, dtype=torch.int32, device=device) for _ in range(3)))
