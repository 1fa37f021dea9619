"""The parts of the network: each a pair of pure functions, one that lists its tensors and one that applies them.

Gated residual network and variable selection: Lim, Arik, Loeff, Pfister, "Temporal Fusion Transformers" (2021). Soft mixture of experts:
Jacobs, Jordan, Nowlan, Hinton (1991). Dueling: Wang et al. (2016). Branching: Tavakoli, Pardo, Kormushev (2018), with a value of its own
for each branch.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch.nn import functional as F

from lob.layout import LANE_SLOTS, SLOTS, STATE_DIM
from policy.architecture import Architecture
from policy.heads import BRANCH_FIRST, BRANCH_SIZES, CHOICES
from policy.weights import Layout, TensorSpec, Weights, linear, xavier

STREAMS = CHOICES + len(BRANCH_SIZES)
"""Rows of the head: per branch one value, then its choices' advantages."""


_GROUPS: dict[str, tuple[str, ...]] = {
    "returns": ("log_return_",),
    "volatility": ("volatility_",),
    "quote": ("spread_ticks", "microprice_offset_ticks"),
    "queues": ("queue_imbalance_",),
    "depth": ("imbalance_10", "imbalance_weighted", "centre_of_mass_", "depth_slope_", "log_depth_"),
    "trades": ("trade_imbalance", "signed_volume", "log_volume", "log_events", "kyle_lambda_60", "toxicity_60"),
    "clock": ("session_", "log_bar_duration_s", "log_staleness_s"),
    "range": ("atr_ticks", "move_over_atr", "range_over_atr"),
    "trend": ("adx", "cusum", "momentum_60"),
    "order_flow": ("ofi_",),
    "lane": LANE_SLOTS,
}

GROUPS: dict[str, tuple[int, ...]] = {
    group: tuple(i for i, name in enumerate(SLOTS) if name.startswith(beginnings)) for group, beginnings in _GROUPS.items()
}
"""Group of the observation -> its slots. Slots that nothing fills are in none."""


def grouping(device: str | torch.device, dtype: torch.dtype) -> torch.Tensor:
    """[groups, 128]: 1 where the slot belongs to the group."""
    return torch.tensor([[float(slot in slots) for slot in range(STATE_DIM)] for slots in GROUPS.values()], dtype=dtype, device=device)


def selection_layout(a: Architecture) -> Layout:
    """The gates of the variable selection. The second layer starts at zero: every group counts alike until something is learned."""
    if not a.selection:
        return ()
    out = (TensorSpec("selection.1.weight", (len(GROUPS), a.selection)), TensorSpec("selection.1.bias", (len(GROUPS),)))
    return (*linear("selection.0", STATE_DIM, a.selection), *out)


def selected(w: Weights, x: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """[batch, 128] -> [batch, 128]: every group's slots times the number of groups times its share, a softmax of all slots (seed G14)."""
    hidden = F.elu(F.linear(x, w["selection.0.weight"], w["selection.0.bias"]))
    share = torch.softmax(F.linear(hidden, w["selection.1.weight"], w["selection.1.bias"]), dim=1)
    return x * (len(groups) * share.to(x.dtype) @ groups)


def trunk_layout(inputs: int, context: int, a: Architecture) -> Layout:
    """A trunk of the widths `hidden`; the context enters the first layer's sum through a matrix of its own."""
    widths = (inputs, *a.hidden)
    layer = _gated_layout if a.gated else linear
    first, *rest = (layer(f"trunk.{i}", widths[i], widths[i + 1]) for i in range(len(a.hidden)))
    return (*first, *linear("bus", context, a.hidden[0], bias=False), *(spec for each in rest for spec in each))


def trunk(w: Weights, x: torch.Tensor, context: torch.Tensor, a: Architecture) -> torch.Tensor:
    """[batch, inputs] and [context] -> [batch, hidden[-1]]: gated residual or rectified linear layers."""
    # One context for the whole batch is a constant of the first layer: it costs nothing per row.
    told = F.linear(context, w["bus.weight"])
    for i in range(len(a.hidden)):
        x = _gated(w, f"trunk.{i}", x, told) if a.gated else F.relu(_told(w, f"trunk.{i}", x, told))
        told = None
    return x


def _told(w: Weights, name: str, x: torch.Tensor, told: torch.Tensor | None) -> torch.Tensor:
    bias = w[f"{name}.bias"]
    return F.linear(x, w[f"{name}.weight"], bias if told is None else bias + told)


def _gated_layout(name: str, inputs: int, outputs: int) -> Layout:
    """A gated residual network; a linear skip only where its widths differ."""
    return (
        *linear(name, inputs, outputs),
        *linear(f"{name}.second", outputs, outputs),
        *linear(f"{name}.glu", outputs, 2 * outputs),
        *(linear(f"{name}.skip", inputs, outputs) if inputs != outputs else ()),
        TensorSpec(f"{name}.norm.weight", (outputs,), centre=1.0),
        TensorSpec(f"{name}.norm.bias", (outputs,)),
    )


def _gated(w: Weights, name: str, x: torch.Tensor, told: torch.Tensor | None) -> torch.Tensor:
    """LayerNorm(skip(x) + GLU(W1 ELU(W2 x + W3 context))) (Lim et al. 2021, equations 2 to 5)."""
    inner = F.linear(F.elu(_told(w, name, x, told)), w[f"{name}.second.weight"], w[f"{name}.second.bias"])
    gated = F.glu(F.linear(inner, w[f"{name}.glu.weight"], w[f"{name}.glu.bias"]), dim=1)
    skip = F.linear(x, w[f"{name}.skip.weight"], w[f"{name}.skip.bias"]) if f"{name}.skip.weight" in w else x
    return F.layer_norm(skip + gated, gated.shape[1:], w[f"{name}.norm.weight"], w[f"{name}.norm.bias"])


def experts_layout(a: Architecture) -> Layout:
    """Gate and experts (seeds G2 to G5). The gate's second layer starts at zero, so that the experts are mixed evenly. Its first one does
    not: a gate that is zero throughout could never come to depend on what it sees (lesson 40)."""
    if not a.experts:
        return ()
    width, bound = a.hidden[-1], xavier(a.hidden[-1], a.bottleneck)
    return (
        TensorSpec("gate.w1", (STATE_DIM, a.gate), spread=xavier(STATE_DIM, a.gate)),
        TensorSpec("gate.b1", (a.gate,)),
        TensorSpec("gate.w2", (a.gate, a.experts)),
        TensorSpec("gate.b2", (a.experts,)),
        TensorSpec("experts.w1", (a.experts, a.bottleneck, width), spread=bound),
        TensorSpec("experts.b1", (a.experts, a.bottleneck)),
        TensorSpec("experts.w2", (a.experts, a.bottleneck, width), spread=bound),
        TensorSpec("experts.b2", (a.experts, width)),
    )


def gate(w: Weights, observation: torch.Tensor) -> torch.Tensor:
    """[batch, 128] -> [batch, experts]: shares of the mixture, which sum to 1. It sees the whole observation (seed B9)."""
    hidden = F.relu(observation @ w["gate.w1"] + w["gate.b1"])
    return torch.softmax((hidden @ w["gate.w2"] + w["gate.b2"]), dim=1)


def mixture(w: Weights, x: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """[batch, width] and [batch, experts] -> [batch, width]: sum of share * (relu(x w1 + b1) w2 + b2) over the experts (seed G7: no top-k).

    The sum over experts is one product over all their hidden units, each scaled by its expert's share.
    """
    shares = shares.to(x.dtype)
    hidden = F.relu(F.linear(x, w["experts.w1"].flatten(0, 1), w["experts.b1"].flatten()))
    scaled = (hidden.unflatten(1, (shares.shape[1], -1)) * shares.unsqueeze(2)).flatten(1)
    return scaled @ w["experts.w2"].flatten(0, 1) + shares @ w["experts.b2"]


def head_layout(inputs: int, atoms: int, quantiles: int) -> Layout:
    """One matrix for all that is said of the choices: a row of `atoms` logits and `quantiles` values for each of the 17 streams."""
    spread = linear("heads", inputs, 1)[0].spread
    shape = (STREAMS, atoms + quantiles)
    return TensorSpec("heads.weight", (*shape, inputs), spread=spread), TensorSpec("heads.bias", shape, spread=spread)


@lru_cache
def _duel() -> tuple[tuple[float, ...], ...]:
    """[CHOICES][STREAMS]: 1 at the branch's value, 1 at the choice's advantage, less the mean of its branch's advantages."""
    rows = []
    for branch, (first, size) in enumerate(zip(BRANCH_FIRST, BRANCH_SIZES, strict=True)):
        value = first + branch
        for choice in range(size):
            row = [0.0] * STREAMS
            row[value] = 1.0
            for other in range(size):
                row[value + 1 + other] = float(other == choice) - 1 / size
            rows.append(tuple(row))
    return tuple(rows)


def duel(device: torch.device | str) -> torch.Tensor:
    """float32[CHOICES, STREAMS]: the matrix that combines streams into choices, value + advantage - mean advantage of the branch."""
    return torch.tensor(_duel(), dtype=torch.float32, device=device)


def fold_heads(w: Weights, combine: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(weight [rows, inputs], bias [rows]) of the head with dueling done in the weights, rows = 13 * (atoms + quantiles) rounded up to a
    multiple of 8. Dueling is linear, so combining the weights once equals combining what they say of every row of a batch."""
    weight, bias = w["heads.weight"], w["heads.bias"]
    rows = CHOICES * weight.shape[1]
    padding = -rows % 8  # a matrix product whose width is no multiple of 8 leaves the GPU's fast path
    folded = torch.mm(combine, weight.flatten(1)).view(rows, -1)
    return F.pad(folded, (0, 0, 0, padding)), F.pad(torch.mm(combine, bias).view(-1), (0, padding))
