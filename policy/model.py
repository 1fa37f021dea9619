"""The network: an observation, the market's recent rows and the signal bus in, two value distributions of every choice out.

C51: Bellemare, Dabney, Munos (2017). IQN at fixed fractions: Dabney et al. (2018). Blocks and their papers: `policy.blocks`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from lob.layout import BUS_SLOTS, LANE, STATE_DIM
from policy import blocks, temporal
from policy.architecture import Architecture
from policy.heads import BRANCH_FIRST, CHOICES, HeadOutput, taus
from policy.weights import Layout, count, first_values, linear, offsets, views

HISTORY_SLOTS = LANE
"""Slots of a row of the history: those that come from the market alone."""


FIRST_DEVIATION = 1.0
"""Deviation of every choice's value before anything is learnt: rewards are whitened so that the return of a held position has it. A uniform
distribution over the support would call every choice six times as uncertain, and orders are sized by that."""

TAPE_ROWS = 65_536
"""Rows of a tape that are encoded at a time: their windows of sixteen rows then take 400 MB."""


class ModelOutput(NamedTuple):
    """What a forward pass says of `batch` rows."""

    heads: HeadOutput
    aux: torch.Tensor  # [batch]: the next bar's return, in the units of the learner's label
    gate: torch.Tensor | None  # [batch, experts]: shares of the mixture; None without experts
    features: torch.Tensor  # [batch, hidden[-1]]: what the heads read


@lru_cache
def layout(architecture: Architecture) -> Layout:
    """The one manifest of the network's tensors, in order: counts, buffers, checkpoints and fingerprints derive from it."""
    width = architecture.hidden[-1]
    inputs = STATE_DIM + (2 * architecture.width if architecture.window else 0)
    return (
        *blocks.selection_layout(architecture),
        *temporal.temporal_layout(architecture),
        *blocks.trunk_layout(inputs, BUS_SLOTS, architecture),
        *blocks.experts_layout(architecture),
        *blocks.head_layout(width, architecture.atoms, architecture.quantiles),
        *linear("aux", width, 1),
    )


def parameters(architecture: Architecture) -> int:
    """How many weights the network has, known before any is allocated."""
    return count(layout(architecture))


class Model(nn.Module):
    """The network on one device. `flat` (float32) holds every parameter, in the order of the layout; the parameters are views of it, so
    that one operation on `flat` reaches them all. `weights` maps a tensor's name to its parameter.

    Made on its device: `Module.to` would part the parameters from `flat`. A copy (`copy.deepcopy`) has a buffer of its own.
    """

    def __init__(self, architecture: Architecture, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.architecture = architecture
        self.window = architecture.window
        specs = layout(architecture)
        self.flat = torch.zeros(offsets(specs)[-1], dtype=dtype, device=device)
        self.weights = {name: nn.Parameter(view) for name, view in views(self.flat, specs).items()}
        for name, parameter in self.weights.items():
            _attach(self, name, parameter)
        self.combine = blocks.duel(device)
        self._groups = blocks.grouping(device, dtype)
        self._temporal = temporal.constants(architecture, device, dtype)

    def __deepcopy__(self, memo: dict) -> Model:
        other = Model(self.architecture, self.flat.device, self.flat.dtype)
        other.flat.copy_(self.flat)
        return other.requires_grad_(next(self.parameters()).requires_grad).train(self.training)

    def forward(
        self, observation: torch.Tensor, history: torch.Tensor | None, bus: torch.Tensor, dtype: torch.dtype = torch.float32
    ) -> ModelOutput:
        """float32[batch, 128], float32[batch, window, 96] (None when the window is 0) and float32[127] -> what it says.

        `dtype` bfloat16 computes the products in it (autocast; the weights stay float32), and the outputs are bfloat16 then.
        """
        folded = fold(self)
        with _autocast(observation, dtype):
            features, gate = self.body(observation, history, bus)
            aux = F.linear(features, self.weights["aux.weight"], self.weights["aux.bias"]).squeeze(1)
            return ModelOutput(say(features, *folded, self.architecture), aux, gate, features)

    def body(
        self, observation: torch.Tensor, history: torch.Tensor | None, bus: torch.Tensor, encoded: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(features [batch, hidden[-1]], gate [batch, experts] or None): everything below the heads, in the type of the weights.

        `encoded` [batch, ...] is `encode(history)` where it is known already; the history is not looked at then.
        """
        w, a = self.weights, self.architecture
        # Signals have no common size, and a gradient norm may run away: what the network sees of one is linear near 0, then its logarithm.
        observation, bus = observation.to(self.flat.dtype), torch.asinh(bus).to(self.flat.dtype)
        x = blocks.selected(w, observation, self._groups) if a.selection else observation
        if a.window:
            x = torch.cat([x, self.encode(history) if encoded is None else encoded], dim=1)
        x = blocks.trunk(w, x, bus, a)
        if not a.experts:
            return x, None
        shares = blocks.gate(w, observation)
        return blocks.mixture(w, x, shares), shares

    def encode(self, history: torch.Tensor | None) -> torch.Tensor:
        """[batch, 2 * (row + flow)]: what the temporal encoder says of the last row of each history float32[batch, window, 96]."""
        if history is None:
            raise ValueError(f"this network reads the market's last {self.window} rows: pass their history")
        return temporal.encode(self.weights, history, self._temporal, self.architecture.attention_heads)


def fold(model: Model) -> tuple[torch.Tensor, torch.Tensor]:
    """The head's (weight, bias) with dueling combined (`blocks.fold_heads`). Gradients flow through."""
    return blocks.fold_heads(model.weights, model.combine)


class Actor:
    """A model's picking form: the head folded once instead of at every forward pass, in `dtype`. It allocates when made and never again:
    `refresh` copies the model's present weights into the same buffers, and can be captured in a CUDA graph, as a call can.

    In float32 it reads the model's own weights; in bfloat16, a copy of them, so that a forward pass converts none.
    """

    def __init__(self, model: Model, dtype: torch.dtype = torch.float32) -> None:
        self.model, self.dtype = model, dtype
        self.body = model if dtype == torch.float32 else Model(model.architecture, model.flat.device, dtype).requires_grad_(False)
        with torch.no_grad():
            self.weight, self.bias = (tensor.to(dtype).clone() for tensor in fold(model))
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the model's weights as they are now."""
        if self.body is not self.model:
            self.body.flat.copy_(self.model.flat)
        for target, folded in zip((self.weight, self.bias), fold(self.model), strict=True):
            target.copy_(folded)

    @torch.no_grad()
    def __call__(
        self, observation: torch.Tensor, history: torch.Tensor | None, bus: torch.Tensor, encoded: torch.Tensor | None = None
    ) -> HeadOutput:
        """As `Model.forward`, the heads alone, in the actor's dtype. `encoded` as in `Model.body`."""
        features, _ = self.body.body(observation, history, bus, encoded)
        return say(features, self.weight, self.bias, self.model.architecture)

    @torch.no_grad()
    def encode_tape(self, history: Callable[[torch.Tensor], torch.Tensor], rows: int) -> torch.Tensor:
        """[rows, 2 * (row + flow)]: what the temporal encoder says of every row of a tape, with the weights as they are now.

        `history(int64[n])` gives float32[n, window, 96] (`cuda_env.env.Env.history`). While the weights stand still, a step then looks its
        lanes' rows up (`encoded=table[row]`) instead of encoding each lane's window anew: the encoder sees the market alone.
        """
        each = torch.arange(rows, device=self.weight.device).split(TAPE_ROWS)
        return torch.cat([self.body.encode(history(part)) for part in each])


def say(features: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, architecture: Architecture) -> HeadOutput:
    """The heads' output from features [batch, width] and a folded head: views of one product [batch, rows], each choice's logits
    followed by its quantiles."""
    each = architecture.atoms + architecture.quantiles
    said = F.linear(features, weight, bias)[:, : CHOICES * each].unflatten(1, (CHOICES, each))
    return HeadOutput(said[..., : architecture.atoms], said[..., architecture.atoms :])


def initialise(architecture: Architecture, seed: int, device: str | torch.device = "cpu") -> Model:
    """A network of first values (`weights.first_values`): equal seeds give equal bytes on every device. Raises ValueError for a layout with
    a tensor that nothing reads."""
    model = Model(architecture, device)
    with torch.no_grad():
        for spec in layout(architecture):
            model.weights[spec.name].copy_(first_values(spec, seed))
        model.weights["heads.bias"][_VALUE_STREAMS] += _first_distribution(architecture).to(device)
    if idle := unreached(model):
        raise ValueError(f"no output depends on {', '.join(idle)}: take it out of the layout, or read it")
    return model


_VALUE_STREAMS = [first + branch for branch, first in enumerate(BRANCH_FIRST)]
"""Rows of the head that say a branch's value; its advantages follow each."""


def _first_distribution(architecture: Architecture) -> torch.Tensor:
    """[atoms + quantiles]: the normal distribution of deviation FIRST_DEVIATION, as logits of the atoms and as quantiles."""
    atoms = support(architecture)
    deviation = max(FIRST_DEVIATION, float(atoms[1] - atoms[0]))  # narrower than an atom, it would be a point
    return torch.cat((-0.5 * (atoms / deviation).square(), deviation * torch.special.ndtri(taus(architecture.quantiles))))


def unreached(model: Model) -> list[str]:
    """Names of the tensors that no output is computed from (lesson 39): they would be saved, optimised, and mean nothing."""
    device = model.flat.device
    history = torch.zeros(1, model.window, HISTORY_SLOTS, device=device)
    with torch.enable_grad():
        said = model(torch.zeros(1, STATE_DIM, device=device), history, torch.zeros(BUS_SLOTS, device=device))
        total = said.heads.logits.sum() + said.heads.quantiles.sum() + said.aux.sum()
        gradients = torch.autograd.grad(total, list(model.weights.values()), allow_unused=True)
    return [name for name, gradient in zip(model.weights, gradients, strict=True) if gradient is None]


def support(architecture: Architecture, device: str | torch.device = "cpu") -> torch.Tensor:
    """float32[atoms]: the values that C51's atoms stand for. Computed on the CPU: devices round them differently."""
    return torch.linspace(architecture.value_min, architecture.value_max, architecture.atoms).to(device)


def _autocast(like: torch.Tensor, dtype: torch.dtype):
    return nullcontext() if dtype == torch.float32 else torch.autocast(like.device.type, dtype, cache_enabled=False)


def _attach(root: nn.Module, name: str, parameter: nn.Parameter) -> None:
    """Register `a.b.c` as the parameter c of a module b of a module a, so that torch knows it by its name in the layout."""
    *path, last = name.split(".")
    for part in path:
        if not hasattr(root, part):
            root.add_module(part, nn.Module())
        root = getattr(root, part)
    root.register_parameter(last, parameter)
