"""What a network is built from: sizes, and the range of the values that it can say. A checkpoint states them, a config chooses them."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

from lob.errors import BadInput, NotFound
from policy.signals import EXPERTS

WIDEST = 4096
"""No layer is wider: a checkpoint's sizes are believed before its tensors are read."""


@dataclass(frozen=True)
class Architecture:
    """Sizes of a network, whole numbers; 0 leaves a part out. `ModelConfig` says what each is. The defaults are the profile `small`. Raises
    BadInput for sizes that cannot be built."""

    hidden: tuple[int, ...] = (128, 64)
    gated: bool = False
    selection: int = 0
    window: int = 0
    row: int = 0
    flow: int = 0
    states: int = 0
    scan_heads: int = 0
    attention_heads: int = 0
    experts: int = 0
    bottleneck: int = 0
    gate: int = 0
    atoms: int = 51
    quantiles: int = 5
    value_min: float = -10.0
    value_max: float = 10.0

    def __post_init__(self) -> None:
        if not (1 <= len(self.hidden) <= 8 and all(_whole(width, 1, WIDEST) for width in self.hidden)):
            raise BadInput(f"hidden widths {list(self.hidden)}: give 1 to 8 whole numbers of 1 to {WIDEST}")
        if type(self.gated) is not bool:
            raise BadInput(f"gated is {self.gated!r}: give true or false")
        for name, least, most in _BOUNDS:
            if not _whole(getattr(self, name), least, most):
                raise BadInput(f"{name} is {getattr(self, name)!r}: give a whole number of {least} to {most}")
        for names in (_TEMPORAL, _MIXTURE):
            missing = [name for name in names if not getattr(self, name)]
            if missing and len(missing) < len(names):
                raise BadInput(f"{missing[0]} is 0, and {', '.join(n for n in names if n not in missing)} not: give all of them or none")
        for name in ("scan_heads", "attention_heads"):
            if self.window and self.width % getattr(self, name):
                raise BadInput(f"{name} is {getattr(self, name)}: row + flow, {self.width}, must be a multiple of it")
        if self.experts == 1:
            raise BadInput("experts is 1: a gate over one expert learns nothing; give 0 or 2 and more")
        if not all(type(number) is float and math.isfinite(number) for number in (self.value_min, self.value_max)):
            raise BadInput(f"the values' range is {self.value_min!r} to {self.value_max!r}: give finite decimals")
        if not self.value_min < self.value_max:
            raise BadInput(f"the values' range is {self.value_min} to {self.value_max}: its start must lie below its end")

    @property
    def width(self) -> int:
        """Of a row in the temporal encoder: its embedding and that of its order flow."""
        return self.row + self.flow

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self) | {"hidden": list(self.hidden)}


def _whole(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


_TEMPORAL = ("window", "row", "flow", "states", "scan_heads", "attention_heads")
_MIXTURE = ("experts", "bottleneck", "gate")
_BOUNDS = (
    ("selection", 0, WIDEST),
    ("window", 0, 1024),
    ("row", 0, WIDEST),
    ("flow", 0, WIDEST),
    ("states", 0, 256),
    ("scan_heads", 0, 256),
    ("attention_heads", 0, 256),
    ("experts", 0, EXPERTS),  # each has a slot on the signal bus
    ("bottleneck", 0, WIDEST),
    ("gate", 0, WIDEST),
    ("atoms", 2, 1024),
    ("quantiles", 1, 256),
)

PROFILES: dict[str, Architecture] = {
    "small": Architecture(),
    "trunk": Architecture(hidden=(256, 256)),
    "default": Architecture(
        hidden=(256, 256),  # seed G1: 128 -> 256
        gated=True,
        selection=64,
        window=16,  # a quarter of a minute at the one-second clock; longer spans are features already
        row=54,  # with the flow's ten 64, a width that a matrix product of the GPU likes
        flow=10,  # G11
        states=16,
        scan_heads=8,
        attention_heads=4,
        experts=8,  # G2
        bottleneck=64,
        gate=64,  # G4
    ),
}
"""`small` trains in minutes on two cores; `trunk` is the network of the GPU's throughput figure; `default` is everything."""


def profile(name: str) -> Architecture:
    """The architecture of a named profile. Raises NotFound."""
    if name not in PROFILES:
        raise NotFound(f"there is no network profile {name!r}: choose one of {', '.join(PROFILES)}")
    return PROFILES[name]


class ModelConfig(BaseModel):
    """The network of a run: a profile, and what of it is to differ (`None`: nothing)."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    profile: str = "small"
    """small, trunk or default"""
    hidden: tuple[int, ...] | None = None
    """widths of the trunk's layers"""
    gated: bool | None = None
    """the trunk's layers are gated residual networks, not rectified linear ones"""
    selection: int | None = None
    """hidden width of the variable selection over groups of the observation"""
    window: int | None = None
    """past market rows that the temporal encoder reads, the present one included"""
    row: int | None = None
    """width of a row's embedding; the order-flow embedding stands beside it"""
    flow: int | None = None
    """width of the order-flow embedding"""
    states: int | None = None
    """size of the state-space block's state, for each number that it carries"""
    scan_heads: int | None = None
    """heads of the state-space block: each forgets at a rate of its own"""
    attention_heads: int | None = None
    """heads of the attention block"""
    experts: int | None = None
    """experts of the mixture"""
    bottleneck: int | None = None
    """hidden width of an expert"""
    gate: int | None = None
    """hidden width of the experts' gate"""
    atoms: int | None = None
    """atoms of C51, evenly spaced from value_min to value_max"""
    quantiles: int | None = None
    """quantiles of IQN, at the midpoints of equal shares of probability"""
    value_min: float | None = None
    """least value that C51 can say, in units of the reward that is learned from"""
    value_max: float | None = None
    """greatest one"""

    @model_validator(mode="after")
    def _can_be_built(self) -> ModelConfig:
        try:
            self.architecture()
        except (BadInput, NotFound) as error:
            raise ValueError(str(error)) from None
        return self

    def architecture(self) -> Architecture:
        """The sizes that result. Raises NotFound for an unknown profile, BadInput for sizes that cannot be built."""
        stated = {field.name: getattr(self, field.name) for field in fields(Architecture)}
        return replace(profile(self.profile), **{name: value for name, value in stated.items() if value is not None})
