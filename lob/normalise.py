"""Normalisation of the market slots: (x - mean) / std per column, statistics either declared or fitted on a stated range.

Slots whose stage is bounded, lane or unused pass unchanged (mean 0, std 1). Arithmetic is float64; the result is float32, finite, and
within `CLIP` where it was normalised.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lob.errors import BadInput
from lob.features import AS_IT_IS, FEATURES, STAGE
from lob.layout import SLOTS, STATE_DIM

CLIP = 10.0
"""Standard deviations beyond which a normalised value says no more: one broken row cannot drown a batch."""

RETURN_STD_BOUNDS = (1e-7, 1e-1)
"""A fitted standard deviation of returns outside these is no market's (a tick is some 5e-5 of a price): the declared one is used."""


@dataclass(frozen=True)
class Normaliser:
    """`label` says where the statistics come from; `fell_back` names the columns whose fitted std was out of bounds."""

    mean: np.ndarray  # float64[128]
    std: np.ndarray  # float64[128], > 0
    label: str
    fell_back: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """64 hex digits over stages and statistics, bit for bit."""
        digest = hashlib.sha256("\n".join(f"{name} {stage}" for name, stage in zip(SLOTS, STAGE, strict=True)).encode())
        digest.update(self.mean.astype("<f8").tobytes() + self.std.astype("<f8").tobytes())
        return digest.hexdigest()


def fixed(period_s: float = 1.0) -> Normaliser:
    """The declared center and scale of every feature for a clock of this period: constants, so no data can look ahead through them."""
    mean, std = np.zeros(STATE_DIM), np.ones(STATE_DIM)
    for feature in FEATURES:
        if feature.stage not in AS_IT_IS:
            mean[feature.slot] = feature.center
            std[feature.slot] = feature.scale * (max(period_s, 1.0) ** 0.5 if feature.diffuses else 1.0)
    return Normaliser(mean, std, f"fixed, for ticks of {period_s:g} s")


def fit(features: np.ndarray | Sequence[np.ndarray], label: str, declared: Normaliser) -> Normaliser:
    """Mean and population std of each column of raw features float32[n, 128], or of the parts of such, in two passes over float64.

    A constant column gets std 1. A return column whose std leaves RETURN_STD_BOUNDS falls back to that of `declared`, and is named. Raises
    BadInput: fewer than two rows, a value that is not finite.
    """
    parts = [features] if isinstance(features, np.ndarray) else features
    count = sum(map(len, parts))
    if count < 2:
        raise BadInput(f"normalisation cannot be fitted on {count} decisions ({label}): state a longer range")
    mean, std, fell_back = np.zeros(STATE_DIM), np.ones(STATE_DIM), []
    for slot in range(STATE_DIM):
        column = np.concatenate([part[:, slot] for part in parts]).astype(np.float64)
        if not np.isfinite(column).all():
            row = int(np.flatnonzero(~np.isfinite(column))[0])
            raise BadInput(f"feature {SLOTS[slot]} of decision {row} is not finite ({label}): normalisation cannot be fitted on it")
        if STAGE[slot] in AS_IT_IS:
            continue
        mean[slot] = column.mean()
        if column.min() == column.max():
            mean[slot] = column[0]
            continue
        std[slot] = np.sqrt(np.square(column - mean[slot]).mean())
        if STAGE[slot] == "log_return" and not RETURN_STD_BOUNDS[0] <= std[slot] <= RETURN_STD_BOUNDS[1]:
            std[slot] = declared.std[slot]
            fell_back.append(SLOTS[slot])
    return Normaliser(mean, std, label, tuple(fell_back))


def apply(features: np.ndarray, normaliser: Normaliser) -> np.ndarray:
    """float32[n, 128] of raw features float32[n, 128]. Raises BadInput for a value that is not finite."""
    x = (features.astype(np.float64) - normaliser.mean) / normaliser.std
    if not np.isfinite(x).all():
        row, slot = np.argwhere(~np.isfinite(x))[0]
        raise BadInput(f"feature {SLOTS[slot]} of decision {row} is not finite: it cannot be observed")
    scaled = np.array([stage not in AS_IT_IS for stage in STAGE])
    x[:, scaled] = np.clip(x[:, scaled], -CLIP, CLIP)
    return x.astype(np.float32)
