"""Heads, controls and comparisons that the tests of selection share."""

from __future__ import annotations

import numpy as np
import torch

from policy.controls import SelectControls, select_controls
from policy.heads import BRANCH_FIRST, BRANCH_SIZES, CHOICES, HeadOutput
from policy.select import Chosen, select
from tests.oracle_select import Pick, pick

ATOMS, QUANTILES = 51, 5
SUPPORT = torch.linspace(-10, 10, ATOMS)
NEAR_TIE = 1e-5
"""Relative: float32 sums of 51 terms are off by about 3e-6, so nothing nearer to a tie can be told."""

DIRECTION = slice(BRANCH_FIRST[0], BRANCH_SIZES[0])


def random_heads(seed: int, lanes: int, atoms: int = ATOMS, quantiles: int = QUANTILES) -> HeadOutput:
    """Heads of every sharpness: logits of a scale between 0.1 and 10, quantiles sorted and spread likewise."""
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.uniform(-1, 1, (lanes, CHOICES, 1))
    logits = rng.normal(size=(lanes, CHOICES, atoms)) * scale
    values = np.sort(rng.normal(size=(lanes, CHOICES, quantiles)) * scale, axis=2)
    return HeadOutput(torch.from_numpy(logits.astype(np.float32)), torch.from_numpy(values.astype(np.float32)))


def random_controls(seed: int, contrarian: float = 1.0) -> SelectControls:
    """Every control at work."""
    rng = np.random.default_rng(seed)

    def tensor(values) -> torch.Tensor:
        return torch.tensor(np.asarray(values, np.float32))

    return SelectControls(
        tensor(rng.uniform(0.1, 0.5, 4)), tensor(rng.uniform(0.01, 2, 4)), tensor(rng.uniform(0, 0.5, 13)), tensor(contrarian), tensor(1.5)
    )


def heads_of(values, support: torch.Tensor, quantiles: int = QUANTILES) -> HeadOutput:
    """Heads [lanes, 13] that are sure of a value on the support: all mass on the nearest atom, all quantiles equal to that atom."""
    values = torch.as_tensor(values, dtype=torch.float32)
    nearest = (values.unsqueeze(-1) - support).abs().argmin(dim=-1)
    logits = torch.full((*values.shape, len(support)), -torch.inf).scatter(-1, nearest.unsqueeze(-1), 0.0)
    return HeadOutput(logits, support[nearest].unsqueeze(-1).expand(*values.shape, quantiles).clone())


def heads_with_directions(directions, lanes: int, support: torch.Tensor, quantiles: int = QUANTILES) -> HeadOutput:
    """Sure heads of the four direction values in every lane, all else 0."""
    values = torch.zeros(lanes, CHOICES)
    values[:, DIRECTION] = torch.as_tensor(directions, dtype=torch.float32)
    return heads_of(values, support, quantiles)


def set_direction(heads: HeadOutput, direction: int, probabilities, quantiles) -> None:
    """Give a direction another distribution in every lane, in place."""
    heads.logits[:, direction] = torch.as_tensor(probabilities, dtype=torch.float32).log()
    heads.quantiles[:, direction] = torch.as_tensor(quantiles, dtype=torch.float32)


def picked(heads: HeadOutput, selector: str, support: torch.Tensor = SUPPORT, explore: bool = False, seed: int = 0, **options) -> Chosen:
    """`select` with lanes 0, 1, … at step 0, unless told otherwise."""
    count = len(heads.logits)
    lanes = options.pop("lanes", torch.arange(count))
    step = torch.tensor([options.pop("step", 0)])
    controls = options.pop("controls", select_controls())
    assert not options
    return select(heads, support, controls, selector, explore, seed, lanes, step)


def shares(chosen: Chosen, branch: int = 0) -> np.ndarray:
    """Share of each choice of a branch."""
    return np.bincount(chosen.codes[:, branch].numpy(), minlength=BRANCH_SIZES[branch]) / len(chosen.codes)


def oracle_picks(
    heads: HeadOutput, support: torch.Tensor, controls: SelectControls, selector: str, explore: bool, seed: int, lanes, step: int
) -> list[Pick]:
    """The plain-Python pick of each lane."""
    stated = {name: torch.as_tensor(value).tolist() for name, value in controls._asdict().items()}
    rows = zip(heads.logits.double().tolist(), heads.quantiles.double().tolist(), lanes.tolist(), strict=True)
    return [pick(logits, values, support.tolist(), stated, selector, explore, seed, lane, step) for logits, values, lane in rows]


def assert_follows(oracle: list[Pick], found: dict[str, np.ndarray], tolerance: float = 1e-4) -> None:
    """Every lane that is no near tie picks what the oracle does; what goes with the pick agrees to float32's means. Ties are rare."""
    clear = np.array([lane.margin > NEAR_TIE for lane in oracle])
    assert clear.mean() > 0.97, "too many near ties to say anything"
    for name, values in found.items():
        expected = np.array([getattr(lane, name) for lane in oracle])
        if np.asarray(values).dtype.kind in "iub":
            assert (np.asarray(values)[clear] == expected[clear]).all(), name
        else:
            assert np.abs(np.asarray(values, np.float64) - expected)[clear].max() < tolerance * max(1.0, np.abs(expected).max()), name
