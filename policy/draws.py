"""Philox4x32-10 as tensor arithmetic: the words of `lob.philox.draw` for many lanes and purposes at once, on the CPU or captured on a GPU.

No torch generator: a draw is a function of (seed, lane, step, purpose), so the order and the grouping of lanes cannot change it.
"""

from __future__ import annotations

import torch

from policy.heads import BRANCH_SIZES

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF

UNIFORM_BITS = 24
"""Bits of a uniform draw: as many as a float32 holds, so that k / 2^24 is exact and never rounds up to 1 (numba issue 10810)."""

BRANCH_PURPOSE = 0x73656C30
"""Philox purpose of the direction branch's draws ("sel0"); the next three are the other branches'. Words: coin, uniform choice, level."""

SAMPLE_PURPOSE = BRANCH_PURPOSE + len(BRANCH_SIZES)
"""Philox purpose of Thompson's draws from C51, one word a direction; the next one is IQN's."""

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def philox4x32(c0: torch.Tensor, c1: torch.Tensor, c2: torch.Tensor, c3: torch.Tensor, k0: int, k1: int) -> Words:
    """Ten rounds over int64 counters (each below 2^32, broadcast together) and a key; four words below 2^32 of the broadcast shape.

    The rounds of Salmon et al. (SC11), as in `lob.philox`. A 32x32-bit product fills 64 bits: int64 keeps its bits, and the mask after the
    shift takes off the sign that the shift drags in.
    """
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = ((p1 >> 32) & _MASK) ^ c1 ^ k0, p1 & _MASK, ((p0 >> 32) & _MASK) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1, c2, c3


def draw(seed: int, lanes: torch.Tensor, step: torch.Tensor, purpose: int, purposes: int) -> Words:
    """Words int64[purposes, lanes] of the streams `purpose`, `purpose` + 1, …: those of `lob.philox.draw(seed, lane, step, purpose)`.

    `lanes` int64[lanes] are ids, `step` is int64[1] on their device, `seed` any 64-bit number.
    """
    kinds = (torch.arange(purposes, dtype=torch.int64, device=lanes.device) + purpose).unsqueeze(1)
    none = torch.zeros_like(kinds)
    return philox4x32(lanes & _MASK, step & _MASK, kinds & _MASK, none, seed & _MASK, (seed >> 32) & _MASK)


def uniform(words: torch.Tensor) -> torch.Tensor:
    """float32 in [0, 1): the upper 24 bits of each word over 2^24."""
    return (words >> (32 - UNIFORM_BITS)).float() * 2.0**-UNIFORM_BITS


def below(words: torch.Tensor, n: int) -> torch.Tensor:
    """Words mapped onto 0..n-1 by multiplication, as `lob.philox.below` does."""
    return (words * n) >> 32
