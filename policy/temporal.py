"""The temporal encoder: what the market's last rows say about the present one.

Each row is embedded, its order flow apart (a linear layer 18 -> 10, seed G11). A selective state-space block and an attention block read
the embedded rows side by side, each from the present row's point of view. State space: Gu and Dao, "Mamba" (2023), in the form of Dao and
Gu, "Transformers are SSMs" (2024): one rate a head, and the recurrence written out as a weighted sum over the window. Attention: Vaswani
et al. (2017).

Both blocks read linear maps of a row (inputs, keys, values) through sums over rows, and only the present row asks. So the sums are taken
over the rows themselves and mapped afterwards: one map for each row of the batch, not one for each row of its window.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch.nn import functional as F

from lob.layout import LANE, OFFSET, OFI, OFI_DELTA, OFI_SLOTS
from policy.architecture import Architecture
from policy.weights import Layout, TensorSpec, Weights, linear

FLOW_SLOTS: tuple[int, ...] = (
    *range(OFI, OFI + OFI_SLOTS),
    *range(OFI_DELTA, OFI_DELTA + OFI_SLOTS),
    OFFSET["log_bar_duration_s"],  # A19: a flow over a longer bar says less of each second
    OFFSET["centre_of_mass_skew_ticks"],  # A20: where in the book the aggression lies
)
"""The 18 inputs of the order-flow embedding: imbalance and its changes, how long it took, and how the book leans."""

CLOCK = slice(OFFSET["session_sin"], OFFSET["session_cos"] + 1)

_RATES = (1.0, 16.0)
"""First rates of forgetting, log-uniform between these (Mamba's own)."""

_STEPS = (0.01, 0.3)
"""First step sizes, log-uniform between these: with the rates, memories from less than a row to the whole of a window of sixteen."""


class Constants(NamedTuple):
    """Matrices that are no weights, on the model's device."""

    flow: torch.Tensor  # [18, 96]: which slots are order flow
    later: torch.Tensor  # [window, window]: 1 where the first row comes after the second
    age: torch.Tensor  # float[window]: how many rows ago, the present one being 1 ago


def constants(a: Architecture, device: str | torch.device, dtype: torch.dtype) -> Constants:
    """The constants of an encoder."""
    flow = torch.zeros(len(FLOW_SLOTS), LANE, dtype=dtype, device=device)
    for i, slot in enumerate(FLOW_SLOTS):
        flow[i, slot] = 1
    places = torch.arange(a.window, device=device)
    return Constants(flow, (places[:, None] > places).to(dtype), (a.window - places).float())


def temporal_layout(a: Architecture) -> Layout:
    """The tensors of an encoder; none without a window."""
    if not a.window:
        return ()
    width = a.width
    log_rates, log_steps = ([math.log(end) for end in ends] for ends in (_RATES, _STEPS))
    return (
        *linear("row", LANE, a.row),
        *linear("flow", len(FLOW_SLOTS), a.flow),
        *linear("scan.step", width, a.scan_heads, bias=False),
        TensorSpec("scan.step.bias", (a.scan_heads,), *_between(*log_steps)),  # softplus(x) is nearly exp(x) at these sizes
        TensorSpec("scan.rate", (a.scan_heads,), *_between(*log_rates)),
        *linear("scan.write", width, a.states, bias=False),
        *linear("scan.read", width, a.states, bias=False),
        *linear("scan.take", width, width, bias=False),
        TensorSpec("scan.skip", (width,), centre=1.0),
        *linear("scan.gate", width, width, bias=False),
        *linear("scan.out", width, width),
        *linear("attention.query", width, width),
        *linear("attention.key", width, width, bias=False),  # a bias of keys adds the same to every score
        *linear("attention.value", width, width),
        *linear("attention.out", width, width),
    )


def present_rows(history: torch.Tensor, c: Constants) -> torch.Tensor:
    """bool[batch, window]: which rows of float32[batch, window, 96] are real. Before the start of a window of the tape stand zeros, and a
    real row shows sine and cosine of its session's clock, never both zero; what follows a real row is real, and so is the present one."""
    oldest = ((history[:, :, CLOCK] != 0).any(2) * c.age).amax(1, keepdim=True)
    return c.age <= oldest.clamp(min=1)


def embed(w: Weights, history: torch.Tensor, c: Constants) -> torch.Tensor:
    """[batch, window, 96] -> [batch, window, row + flow]: SiLU of both embeddings, in one product."""
    weight = torch.cat([w["row.weight"], w["flow.weight"] @ c.flow])
    return F.silu(F.linear(history, weight, torch.cat([w["row.bias"], w["flow.bias"]])))


def encode(w: Weights, history: torch.Tensor, c: Constants, heads: int) -> torch.Tensor:
    """What the encoder says of the last row of each history: float32[batch, window, 96] -> [batch, 2 * (row + flow)], in the type of the
    weights. It depends on the market alone, so that lanes at one row of the tape are told the same."""
    mask = present_rows(history, c)
    rows = embed(w, history.to(w["row.weight"].dtype), c)
    return torch.cat([scan(w, rows, mask, c), attend(w, rows, mask, heads)], dim=1)


def scan(w: Weights, rows: torch.Tensor, mask: torch.Tensor, c: Constants) -> torch.Tensor:
    """The state-space block: rows [batch, window, width] and bool[batch, window] -> [batch, width], what the present row reads.

    Head h with its share x of `take` r_t, step d_t = softplus(step r_t), rate a: state_t = exp(-d_t a) state_{t-1} + d_t x_t (write r_t)^T,
    and y = state_now (read r_now) + skip x_now, gated by silu(gate r_now). A masked row has step 0: it neither writes nor forgets.
    """
    now, heads = rows[:, -1], len(w["scan.rate"])
    step = F.softplus(F.linear(rows, w["scan.step.weight"], w["scan.step.bias"]).float()) * mask.unsqueeze(2)
    step = step.transpose(1, 2)  # [batch, heads, window]
    forgotten = (step * w["scan.rate"].float().exp().unsqueeze(1)) @ c.later.float()
    key = F.linear(now, w["scan.read.weight"]) @ w["scan.write.weight"]
    score = (rows @ key.unsqueeze(2)).transpose(1, 2)
    state = (score * (step * torch.exp(-forgotten)).to(rows.dtype)) @ rows  # [batch, heads, width]
    taken = _by_head(state, w["scan.take.weight"], heads) + w["scan.skip"] * F.linear(now, w["scan.take.weight"])
    return F.linear(taken * F.silu(F.linear(now, w["scan.gate.weight"])), w["scan.out.weight"], w["scan.out.bias"])


def attend(w: Weights, rows: torch.Tensor, mask: torch.Tensor, heads: int) -> torch.Tensor:
    """The attention block: rows [batch, window, width] and bool[batch, window] -> [batch, width], what the present row finds."""
    width = rows.shape[2]
    query = F.linear(rows[:, -1], w["attention.query.weight"], w["attention.query.bias"]).unflatten(1, (heads, -1))
    keys = torch.einsum("bhe,hed->bhd", query, w["attention.key.weight"].view(heads, -1, width))
    scores = (keys @ rows.transpose(1, 2)).float() / math.sqrt(width // heads)
    shares = torch.softmax(scores.masked_fill(~mask.unsqueeze(1), -math.inf), dim=2)
    found = _by_head(shares.to(rows.dtype) @ rows, w["attention.value.weight"], heads) + w["attention.value.bias"]
    return F.linear(found, w["attention.out.weight"], w["attention.out.bias"])


def _by_head(pooled: torch.Tensor, weight: torch.Tensor, heads: int) -> torch.Tensor:
    """[batch, heads, width] -> [batch, width]: each head's share of the outputs of `weight`, from that head's sum."""
    return torch.einsum("bhd,hed->bhe", pooled, weight.view(heads, -1, pooled.shape[2])).flatten(1)


def _between(least: float, most: float) -> tuple[float, float]:
    """(centre, spread) of a uniform."""
    return (least + most) / 2, (most - least) / 2
