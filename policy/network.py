"""A small distributional network: a trunk, then one dueling C51 head per branch of the action.

C51: Bellemare, Dabney, Munos, "A Distributional Perspective on Reinforcement Learning" (2017). Dueling: Wang et al. (2016). Branching:
Tavakoli, Pardo, Kormushev, "Action Branching Architectures for Deep Reinforcement Learning" (2018). The pick is greedy per branch.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from lob.actions import encode_action
from lob.errors import ForeignCheckpoint
from lob.layout import STATE_DIM
from lob.picks import Picks
from policy.heads import BRANCHES
from policy.protocol import constant_picks
from policy.select import to_ppm
from policy.tables import DIAG, NO_VALUES

BATCH = 64
"""Rows of every forward pass; the last one is padded. A matrix product's last bits depend on its shape, so a fixed shape makes a lane's
pick independent of how many lanes run beside it."""


@dataclass(frozen=True)
class Architecture:
    """Everything from which the network is built; a checkpoint states it. Values lie on `atoms` points from `value_min` to `value_max`."""

    hidden: tuple[int, ...] = (128, 64)
    atoms: int = 51
    value_min: float = -10.0
    value_max: float = 10.0
    conviction_scale: float = 1.0  # advantage of the best direction over the mean one that counts as full conviction

    def __post_init__(self) -> None:
        widths = self.hidden
        if not (1 <= len(widths) <= 8 and all(type(width) is int and 1 <= width <= 4096 for width in widths)):
            raise ForeignCheckpoint(f"hidden widths {list(widths)} are not 1 to 8 whole numbers of 1 to 4096; make the checkpoint anew")
        if not (type(self.atoms) is int and 2 <= self.atoms <= 1024):
            raise ForeignCheckpoint(f"atoms is {self.atoms!r}, not a whole number of 2 to 1024; make the checkpoint anew")
        numbers = (self.value_min, self.value_max, self.conviction_scale)
        if not all(type(number) is float and math.isfinite(number) for number in numbers):
            raise ForeignCheckpoint("value_min, value_max and conviction_scale must be finite decimals; make the checkpoint anew")
        if not (self.value_min < self.value_max and self.conviction_scale > 0):
            raise ForeignCheckpoint("value_min must lie below value_max and conviction_scale above 0; make the checkpoint anew")

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self) | {"hidden": list(self.hidden)}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every tensor of the network, known before any is allocated."""
        widths = (STATE_DIM, *self.hidden)
        layers = {f"trunk.{2 * i}": (widths[i + 1], widths[i]) for i in range(len(self.hidden))}
        layers |= {f"heads.{name}": ((choices + 1) * self.atoms, widths[-1]) for name, choices in BRANCHES.items()}
        weights: dict[str, tuple[int, ...]] = {}
        for name, shape in layers.items():
            weights |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
        return weights


class Network(nn.Module):
    """Observation float32[batch, 128] -> per branch the probabilities float32[batch, choices, atoms]."""

    def __init__(self, architecture: Architecture, device: str = "cpu") -> None:
        super().__init__()
        self.architecture = architecture
        widths = (STATE_DIM, *architecture.hidden)
        layers = [(_linear(widths[i], widths[i + 1], device), nn.ReLU()) for i in range(len(architecture.hidden))]
        self.trunk = nn.Sequential(*(module for pair in layers for module in pair))
        self.heads = nn.ModuleDict({name: _linear(widths[-1], (n + 1) * architecture.atoms, device) for name, n in BRANCHES.items()})

    def forward(self, observation: torch.Tensor) -> dict[str, torch.Tensor]:
        features = self.trunk(observation)
        probabilities = {}
        for name, head in self.heads.items():
            value, advantage = head(features).unflatten(1, (-1, self.architecture.atoms)).split((1, BRANCHES[name]), dim=1)
            probabilities[name] = torch.softmax(value + advantage - advantage.mean(dim=1, keepdim=True), dim=2)
        return probabilities


def initialise(architecture: Architecture, seed: int) -> Network:
    """A network with weights and biases uniform in +-1/sqrt(fan in), each layer from a generator of its own, seeded
    by `seed` and the layer's name: equal for equal seeds, and unchanged when another layer is added."""
    network = Network(architecture)
    with torch.no_grad():
        for name, layer in network.named_modules():
            if not isinstance(layer, nn.Linear):
                continue
            word = hashlib.sha256(f"{seed} {name}".encode()).digest()[:8]
            generator = torch.Generator().manual_seed(int.from_bytes(word, "big") >> 1)
            bound = 1 / math.sqrt(layer.in_features)
            for tensor in (layer.weight, layer.bias):
                tensor.copy_(torch.rand(tensor.shape, generator=generator) * (2 * bound) - bound)
    return network


class NetworkPolicy:
    """Greedy: the choice of greatest expected value in each branch; of equal ones the lowest code.

    conviction = clip((max E - mean E) / conviction_scale, 0, 1) over the directions; variance scale = 1/(1+sqrt(var)) of the picked
    direction's value; health is the checkpoint's. All are quantised once to ppm, halves to even.
    """

    def __init__(self, network: Network, health_ppm: int, content_hash: str, lanes: int, device: str = "cpu") -> None:
        self.name = "network"
        self.health_ppm = health_ppm
        self.network = network.to(device).eval().requires_grad_(False)
        self._content_hash = content_hash
        self._picks = constant_picks(lanes, device)
        self._picks.health_ppm.fill_(health_ppm)
        self._rows = torch.zeros(-(-lanes // BATCH) * BATCH, STATE_DIM, device=device)
        spread = self.network.architecture
        self._support = torch.linspace(spread.value_min, spread.value_max, spread.atoms, device=device)
        self._diagnostics = NO_VALUES

    def identity(self) -> dict[str, Any]:
        return {"name": self.name, "checkpoint": self._content_hash}

    @torch.inference_mode()
    def act(self, observation: torch.Tensor, bus: torch.Tensor | None, step: int) -> Picks:
        lanes = len(observation)
        self._rows[:lanes] = observation
        parts = [greedy(self.network(rows), self._support, self.network.architecture.conviction_scale) for rows in self._rows.split(BATCH)]
        action, conviction, variance_scale, q_range, sigma = (torch.cat(columns)[:lanes] for columns in zip(*parts, strict=True))
        if not bool(torch.isfinite(q_range + sigma).all()):
            raise ForeignCheckpoint(f"the network's values are not finite at step {step}: the checkpoint is damaged; make it anew")
        self._picks.action.copy_(action)
        self._picks.conviction_ppm.copy_(to_ppm(conviction))
        self._picks.variance_scale_ppm.copy_(to_ppm(variance_scale))
        names = [column.name for column in DIAG if column.nullable]
        self._diagnostics = dict(zip(names, (int(to_ppm(values).sum()) for values in (q_range, sigma)), strict=True))
        return self._picks

    def diagnostics(self) -> dict[str, int | None]:
        return self._diagnostics


def greedy(probabilities: dict[str, torch.Tensor], support: torch.Tensor, conviction_scale: float) -> tuple[torch.Tensor, ...]:
    """(action, conviction, variance scale, q range, sigma), each [batch], of every branch's probabilities [batch, choices, atoms]."""
    expected = {name: (p * support).sum(dim=2) for name, p in probabilities.items()}
    codes = [values.argmax(dim=1) for values in expected.values()]  # torch returns the first of equal maxima
    direction = expected["direction"]
    best = direction.max(dim=1).values
    conviction = ((best - direction.mean(dim=1)) / conviction_scale).clamp(0, 1)
    picked = probabilities["direction"].gather(1, codes[0].view(-1, 1, 1).expand(-1, 1, len(support))).squeeze(1)
    # Centred, so that it is no small difference of large numbers: sum p (z - E)^2.
    variance = (picked * (support - best.unsqueeze(1)) ** 2).sum(dim=1)
    sigma = variance.sqrt()
    return encode_action.py_func(*codes), conviction, 1 / (1 + sigma), best - direction.min(dim=1).values, sigma


def _linear(inputs: int, outputs: int, device: str) -> nn.Linear:
    """A layer whose values are set by whoever builds the network: torch's own initialisation would draw from the global generator."""
    return nn.utils.skip_init(nn.Linear, inputs, outputs, device=device)
