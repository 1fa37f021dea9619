"""Runs the scalar functions of the fused selection lane by lane: compiled here, as plain Python and in the CUDA simulator in a process of
their own (`python -m tests.select_builds plain|cudasim FILE`), since their switches must be set before numba loads.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from lob.actions import encode_action
from lob.jit import kernel_cpu
from lob.philox import draw
from lob.picks import Picks
from policy.controls import SelectControls
from policy.draws import SAMPLE_PURPOSE
from policy.heads import BRANCH_FIRST, BRANCH_SIZES, CHOICES, HeadOutput
from policy.select_scalar import (
    DIRECTIONS,
    SELECTORS,
    THOMPSON,
    bfloat16_value,
    conviction,
    extent,
    judge,
    pick,
    sample,
    spread,
    to_ppm,
    uniform,
    variance_scale,
)
from tests.select_cases import random_controls, random_heads

NAMES = ("action", "conviction_ppm", "variance_scale_ppm", "q_range", "q_sigma", "p_best", "tau", "explored")


class Case(NamedTuple):
    """One selection of every kind of draw."""

    selector: str
    explore: bool
    half: bool
    contrarian: float = 1.0
    lanes: int = 300
    atoms: int = 51
    quantiles: int = 5
    padding: int = 8
    seed: int = 2**63 + 99
    step: int = 2**31 + 7
    even: bool = False  # every choice is worth the same


CASES = (
    Case("greedy", False, False),
    Case("boltzmann", True, False),
    Case("thompson", True, False, contrarian=-1.0),
    Case("thompson", False, True),
    Case("boltzmann", False, True, contrarian=-1.0, atoms=21, quantiles=8, padding=3),
    Case("greedy", True, True),
    Case("greedy", False, False, even=True),
)


def lanes_of(case: Case) -> torch.Tensor:
    return torch.arange(case.lanes) * 104729 % 2**32


def controls_of(case: Case) -> SelectControls:
    return random_controls(case.lanes, case.contrarian)


def support_of(case: Case) -> torch.Tensor:
    return torch.linspace(-5, 5, case.atoms)


def heads_of(case: Case) -> HeadOutput:
    """Views of one padded matrix, each choice's logits then its quantiles; bfloat16 if half. What pads is not to be read: NaN."""
    each = case.atoms + case.quantiles
    matrix = torch.full((case.lanes, CHOICES * each + case.padding), torch.nan)
    cells = matrix[:, : CHOICES * each].unflatten(1, (CHOICES, each))
    cells.copy_(torch.cat(random_heads(case.lanes, case.lanes, case.atoms, case.quantiles), dim=2))
    if case.even:
        cells[:, 1:] = cells[:, :1]
    cells = (matrix.bfloat16() if case.half else matrix)[:, : CHOICES * each].unflatten(1, (CHOICES, each))
    return HeadOutput(cells[..., : case.atoms], cells[..., case.atoms :])


def floats_of(heads: HeadOutput) -> HeadOutput:
    return HeadOutput(*(part.float() for part in heads))


def select_lane(lane, cells, atoms, quantiles, support, controls, lane_id, step, seed, selector, explore, picks, found):
    """What a block of the kernel does for one of its lanes, in the kernel's order. `cells` float32[13 (A + T)] is consumed."""
    epsilon, tau_floor, bonus, contrarian, scale = controls
    scores, signed = np.zeros(CHOICES, np.float32), np.zeros(DIRECTIONS, np.float32)
    samples, sigmas = np.zeros(DIRECTIONS, np.float32), np.zeros(DIRECTIONS, np.float32)
    codes, explored = np.zeros(len(BRANCH_SIZES), np.int32), False
    for choice in range(CHOICES):
        first = choice * (atoms + quantiles)
        value, mean, total = judge(cells, first, atoms, quantiles, support)
        if choice < DIRECTIONS:
            value *= contrarian[0]
            signed[choice] = value
            sigmas[choice] = spread(cells, first, atoms, quantiles, support, mean, total)
            if selector == THOMPSON:
                of_atoms = uniform(draw(seed, lane_id, step, SAMPLE_PURPOSE)[choice])
                of_quantiles = uniform(draw(seed, lane_id, step, SAMPLE_PURPOSE + 1)[choice])
                drawn = sample(cells, first, atoms, quantiles, support, total, of_atoms, of_quantiles) * contrarian[0]
                samples[choice] = drawn + bonus[choice] if explore else drawn
        scores[choice] = value + bonus[choice] if explore else value
    for branch in range(len(BRANCH_SIZES)):
        code, anywhere, p_best, tau = pick(
            scores, BRANCH_FIRST[branch], branch, BRANCH_SIZES[branch], samples, 0, selector, explore, epsilon[branch], tau_floor[branch],
            seed, lane_id, step,
        )  # fmt: skip
        codes[branch] = code
        explored = explored or anywhere
        if branch == 0:
            found.p_best[lane], found.tau[lane] = p_best, tau
    best, worst, middle = extent(signed, 0)
    picks.action[lane] = encode_action(codes[0], codes[1], codes[2], codes[3])
    picks.conviction_ppm[lane] = to_ppm(conviction(best, middle, scale[0]))
    picks.variance_scale_ppm[lane] = to_ppm(variance_scale(sigmas[codes[0]]))
    found.q_range[lane], found.q_sigma[lane], found.explored[lane] = best - worst, sigmas[codes[0]], explored


_select_lane = kernel_cpu(select_lane)


@kernel_cpu
def select_lanes(cells, atoms, quantiles, support, controls, lanes, step, seed, selector, explore, picks, found):
    for lane in range(lanes.size):
        _select_lane(lane, cells[lane], atoms, quantiles, support, controls, lanes[lane], step[0], seed, selector, explore, picks, found)


@kernel_cpu
def widen(bits, out):
    for i in range(bits.size):
        out[i] = bfloat16_value(bits[i])


class Found(NamedTuple):
    """`select_kernel.Facts` as arrays."""

    q_range: np.ndarray
    q_sigma: np.ndarray
    p_best: np.ndarray
    tau: np.ndarray
    explored: np.ndarray


def outputs(lanes: int) -> tuple[Picks, Found]:
    """Arrays that hold what no pick could be."""
    floats = (np.full(lanes, np.nan, np.float32) for _ in range(4))
    return Picks(*(np.full(lanes, -7, np.int32) for _ in range(4))), Found(*floats, np.zeros(lanes, np.bool_))  # type: ignore[arg-type]


def inputs(case: Case) -> tuple:
    """(matrix as the kernel reads it, support, five controls, lanes, step, seed) as numpy values."""
    logits = heads_of(case).logits
    matrix = logits.as_strided((case.lanes, logits.stride(0)), (logits.stride(0), 1))
    matrix = (matrix.view(torch.int16) if case.half else matrix).numpy()
    controls = tuple(torch.as_tensor(value).reshape(-1).numpy() for value in controls_of(case))
    return matrix, support_of(case).numpy(), controls, lanes_of(case).numpy(), np.array([case.step]), case.seed - 2**64


def named(picks: Picks, found: Found) -> dict[str, np.ndarray]:
    return {name: np.asarray(getattr(picks if hasattr(picks, name) else found, name)) for name in NAMES}


def by_lane(case: Case) -> dict[str, np.ndarray]:
    """Every lane through `select_lanes`: njit, or plain Python where numba does not compile."""
    matrix, support, controls, lanes, step, seed = inputs(case)
    if case.half:
        wide = np.empty(matrix.shape, np.float32)
        widen(matrix.reshape(-1), wide.reshape(-1))
        matrix = wide
    cells = matrix[:, : CHOICES * (case.atoms + case.quantiles)].copy()
    picks, found = outputs(case.lanes)
    number = SELECTORS.index(case.selector)
    select_lanes(cells, case.atoms, case.quantiles, support, controls, lanes, step, seed, number, case.explore, picks, found)
    return named(picks, found)


def simulated(case: Case) -> dict[str, np.ndarray]:
    """The kernel in numba's CUDA simulator, a Python thread for each CUDA thread."""
    from policy.select_kernel import ROWS, THREADS, kernel

    assert os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
    matrix, support, controls, lanes, step, seed = inputs(case)
    picks, found = outputs(case.lanes)
    built = kernel(case.atoms, case.quantiles, SELECTORS.index(case.selector), case.explore, case.half)
    built[-(-case.lanes // ROWS), THREADS](matrix, support, *controls, lanes, step, seed, picks, found)
    return named(picks, found)


def elsewhere(build: str, cases: tuple[Case, ...], folder: Path) -> list[dict[str, np.ndarray]]:
    """The cases' results in a process with the switches that the build needs."""
    switches = {"NUMBA_DISABLE_JIT": "1"} | ({"NUMBA_ENABLE_CUDASIM": "1"} if build == "cudasim" else {})
    house = Path(__file__).resolve().parent.parent
    numbers = ",".join(str(CASES.index(case)) for case in cases)
    command = [sys.executable, "-m", "tests.select_builds", build, numbers, str(folder)]
    done = subprocess.run(command, cwd=house, env=os.environ | switches, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [dict(np.load(folder / f"{build}{CASES.index(case)}.npz")) for case in cases]


def short(case: Case) -> Case:
    """The case with few lanes, the last block partly filled: a simulated block takes a second."""
    return case._replace(lanes=19)


if __name__ == "__main__":
    which, chosen, target = sys.argv[1:]
    for at in map(int, chosen.split(",")):
        np.savez(Path(target) / f"{which}{at}.npz", **{"plain": by_lane, "cudasim": simulated}[which](short(CASES[at])))
