"""The layout manifest of a network: every tensor's name, shape, first values and place in one flat float32 buffer.

Whatever counts, allocates, saves or fingerprints weights derives from such a tuple of specs: there is no second list of sizes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import NamedTuple

import torch

Weights = Mapping[str, torch.Tensor]
"""A network's tensors by name."""

ALIGN = 8
"""Every tensor starts at a multiple of this many elements of the flat buffer: 16 bytes in bfloat16, what a matrix product loads at once."""


class TensorSpec(NamedTuple):
    """One tensor. Its first values are uniform in `centre` +- `spread`."""

    name: str
    shape: tuple[int, ...]
    centre: float = 0.0
    spread: float = 0.0

    @property
    def size(self) -> int:
        return math.prod(self.shape)


Layout = tuple[TensorSpec, ...]


def linear(name: str, inputs: int, outputs: int, bias: bool = True) -> Layout:
    """`name`.weight [outputs, inputs] and `name`.bias [outputs], uniform in +-1/sqrt(inputs)."""
    bound = 1 / math.sqrt(inputs)
    weight = TensorSpec(f"{name}.weight", (outputs, inputs), spread=bound)
    return (weight, TensorSpec(f"{name}.bias", (outputs,), spread=bound)) if bias else (weight,)


def xavier(inputs: int, outputs: int) -> float:
    """Glorot and Bengio (2010): the bound of a uniform that keeps the variance of both signal and gradient."""
    return math.sqrt(6 / (inputs + outputs))


def count(layout: Layout) -> int:
    """How many numbers the tensors hold."""
    return sum(spec.size for spec in layout)


def offsets(layout: Layout) -> tuple[int, ...]:
    """Where each tensor starts in the flat buffer, and last the buffer's length, in elements."""
    places = [0]
    for spec in layout:
        places.append(places[-1] + -(-spec.size // ALIGN) * ALIGN)
    return tuple(places)


def fingerprint(layout: Layout, *more: str) -> str:
    """64 hex digits over place, name, shape and type of every tensor, and over `more`."""
    lines = [f"{place} {spec.name} float32 {'x'.join(map(str, spec.shape))}" for place, spec in zip(offsets(layout), layout, strict=False)]
    return hashlib.sha256("\n".join((*lines, *more)).encode()).hexdigest()


def first_values(spec: TensorSpec, seed: int) -> torch.Tensor:
    """float32[shape] from a generator of the tensor's own, seeded by `seed` and its name: equal for equal seeds, and unchanged when
    another tensor is added. The global generator is not touched."""
    word = hashlib.sha256(f"{seed} {spec.name}".encode()).digest()[:8]
    generator = torch.Generator().manual_seed(int.from_bytes(word, "big") >> 1)
    return (torch.rand(spec.shape, generator=generator) * 2 - 1) * spec.spread + spec.centre


def views(flat: torch.Tensor, layout: Layout) -> dict[str, torch.Tensor]:
    """The tensors as views of the flat buffer."""
    return {spec.name: flat[place : place + spec.size].view(spec.shape) for place, spec in zip(offsets(layout), layout, strict=False)}
