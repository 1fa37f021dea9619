"""What a network is built from: sizes, and the range of the values that it can say. A checkpoint states them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from lob.errors import BadInput, NotFound

WIDEST = 4096
"""No layer is wider: a checkpoint's sizes are believed before its tensors are read."""


@dataclass(frozen=True)
class Architecture:
    """Sizes of a network, whole numbers; the defaults are the profile `small`. Raises BadInput for sizes that cannot be built."""

    hidden: tuple[int, ...] = (128, 64)  # widths of the trunk
    atoms: int = 51  # of C51, evenly spaced from value_min to value_max
    quantiles: int = 5  # of IQN, at fixed fractions (`policy.heads.taus`)
    value_min: float = -10.0
    value_max: float = 10.0

    def __post_init__(self) -> None:
        if not (1 <= len(self.hidden) <= 8 and all(_whole(width, 1, WIDEST) for width in self.hidden)):
            raise BadInput(f"hidden widths {list(self.hidden)}: give 1 to 8 whole numbers of 1 to {WIDEST}")
        for name, least, most in _BOUNDS:
            if not _whole(getattr(self, name), least, most):
                raise BadInput(f"{name} is {getattr(self, name)!r}: give a whole number of {least} to {most}")
        if not all(type(number) is float and math.isfinite(number) for number in (self.value_min, self.value_max)):
            raise BadInput(f"the values' range is {self.value_min!r} to {self.value_max!r}: give finite decimals")
        if not self.value_min < self.value_max:
            raise BadInput(f"the values' range is {self.value_min} to {self.value_max}: its start must lie below its end")

    @property
    def window(self) -> int:
        """Past market rows, the present one included, that the network reads; 0: none."""
        return 0

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self) | {"hidden": list(self.hidden)}


def _whole(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


_BOUNDS = (("atoms", 2, 1024), ("quantiles", 1, 256))

PROFILES: dict[str, Architecture] = {
    "small": Architecture(),
    "trunk": Architecture(hidden=(256, 256)),
}
"""`small` trains in minutes on two cores; `trunk` is the network of the GPU's throughput figure."""


def profile(name: str) -> Architecture:
    """The architecture of a named profile. Raises NotFound."""
    if name not in PROFILES:
        raise NotFound(f"there is no network profile {name!r}: choose one of {', '.join(PROFILES)}")
    return PROFILES[name]
