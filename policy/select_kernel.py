"""Selection on the GPU in one kernel, from the heads' matrix product to integer picks: what `policy.select` does in some hundred launches.

Import this module only where CUDA is wanted: numba's CUDA side is slow to import. A block holds the heads of `ROWS` lanes in shared memory.
One thread judges one choice of one lane, then one thread picks in one branch of one lane, then one thread writes a lane's results: sums
run in a fixed order within one thread, so a lane's picks depend neither on the batch nor on the size of the grid.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch

import lob.jit
from lob.actions import encode_action
from lob.errors import BadInput
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

cuda = lob.jit.cuda()
float32, int32, boolean = lob.jit.float32, lob.jit.int32, lob.jit.boolean

ROWS = 8
"""Lanes of a block. Eight of four choices fill a warp, so that the directions, on which there is more to do, have one to themselves."""

THREADS = 128
"""Threads of a block: 104 for the choices of eight lanes, in whole warps."""

WARP = 32
BANKS = 32

IN_FLIGHT = 8
"""Loads that a thread has under way at once: with one at a time the kernel would wait for memory, not work."""

MAX_CELLS = 112
"""Atoms and quantiles of a choice at most: 8 lanes of 13 choices then fit into the 48 KiB that every device shares in a block."""

MAX_BLOCK = 2**31 - 1
"""Number of the last block that a grid can have."""

BRANCHES = len(BRANCH_SIZES)
_BRANCH_FIRST, _BRANCH_SIZES = tuple(map(int, BRANCH_FIRST)), tuple(map(int, BRANCH_SIZES))


class Facts(NamedTuple):
    """What is to be known of the picks of `lanes` lanes beside them, as in `select.Chosen`."""

    q_range: torch.Tensor  # float32[lanes]
    q_sigma: torch.Tensor  # float32[lanes]
    p_best: torch.Tensor  # float32[lanes]
    tau: torch.Tensor  # float32[lanes]
    explored: torch.Tensor  # bool[lanes]


def facts(lanes: int, device: str | torch.device) -> Facts:
    """Buffers of zeros."""
    q_range, q_sigma, p_best, tau = torch.zeros(4, lanes, device=device)
    return Facts(q_range, q_sigma, p_best, tau, torch.zeros(lanes, dtype=torch.bool, device=device))


def row_pitch(each: int) -> int:
    """Cells from one lane to the next in shared memory, the fewest at which the 32 threads of a warp (eight lanes of four choices) meet the
    fewest of each other in one bank."""

    def crowd(pitch: int) -> int:
        banks = [(row * pitch + choice * each) % BANKS for row in range(ROWS) for choice in range(WARP // ROWS)]
        return max(banks.count(bank) for bank in banks)

    return min(range(CHOICES * each, CHOICES * each + BANKS), key=lambda pitch: (crowd(pitch), pitch))


@cuda.jit(device=True)
def _load(matrix, lane, column):
    return matrix[lane, column]


@cuda.jit(device=True)
def _load_half(matrix, lane, column):
    return bfloat16_value(matrix[lane, column])


@cache
def kernel(atoms: int, quantiles: int, selector: int, explore: bool, half: bool) -> Any:
    """The kernel for heads of this shape, in bfloat16 if `half`, else float32. What is constant here costs nothing there."""
    each = atoms + quantiles
    span, pitch = CHOICES * each, row_pitch(each)
    last = span - 1
    stride = IN_FLIGHT * WARP
    of_cells, of_choices, of_directions, of_branches = ROWS * pitch, ROWS * CHOICES, ROWS * DIRECTIONS, ROWS * BRANCHES

    load = _load_half if half else _load

    @cuda.jit
    def fused(matrix, support, epsilon, tau_floor, bonus, contrarian, conviction_scale, lanes, step, seed, picks, found):
        cells = cuda.shared.array(of_cells, float32)
        values_of = cuda.shared.array(atoms, float32)
        scores = cuda.shared.array(of_choices, float32)
        samples = cuda.shared.array(of_directions, float32)
        signed = cuda.shared.array(of_directions, float32)
        sigmas = cuda.shared.array(of_directions, float32)
        codes = cuda.shared.array(of_branches, int32)
        uniformly = cuda.shared.array(of_branches, boolean)
        # The masks change nothing but what the compiler knows: that no index made of these is negative.
        thread = cuda.threadIdx.x & (THREADS - 1)
        begin, count = (cuda.blockIdx.x & MAX_BLOCK) * ROWS, lanes.size

        for place in range(thread, atoms, THREADS):
            values_of[place] = support[place]
        row = thread // WARP
        while row < ROWS:
            if begin + row < count:
                lane, target, column = begin + row, row * pitch, thread % WARP
                while column < span:
                    # Eight loads, then eight stores. Beyond the row's end, its last cell again: the same value from several threads.
                    c0, c1, c2, c3 = column, min(column + 32, last), min(column + 64, last), min(column + 96, last)
                    c4, c5, c6, c7 = min(column + 128, last), min(column + 160, last), min(column + 192, last), min(column + 224, last)
                    v0, v1, v2, v3 = load(matrix, lane, c0), load(matrix, lane, c1), load(matrix, lane, c2), load(matrix, lane, c3)
                    v4, v5, v6, v7 = load(matrix, lane, c4), load(matrix, lane, c5), load(matrix, lane, c6), load(matrix, lane, c7)
                    cells[target + c0], cells[target + c1], cells[target + c2], cells[target + c3] = v0, v1, v2, v3
                    cells[target + c4], cells[target + c5], cells[target + c6], cells[target + c7] = v4, v5, v6, v7
                    column += stride
            row += THREADS // WARP
        cuda.syncthreads()

        row, choice = thread % ROWS, thread // ROWS
        lane = begin + row
        if lane < count and choice < CHOICES:
            first = row * pitch + choice * each
            value, mean, total = judge(cells, first, atoms, quantiles, values_of)
            if choice < DIRECTIONS:
                at = row * DIRECTIONS + choice
                value *= contrarian[0]
                signed[at] = value
                sigmas[at] = spread(cells, first, atoms, quantiles, values_of, mean, total)
                if selector == THOMPSON:
                    of_atoms = uniform(draw(seed, lanes[lane], step[0], SAMPLE_PURPOSE)[choice])
                    of_quantiles = uniform(draw(seed, lanes[lane], step[0], SAMPLE_PURPOSE + 1)[choice])
                    drawn = sample(cells, first, atoms, quantiles, values_of, total, of_atoms, of_quantiles) * contrarian[0]
                    samples[at] = drawn + bonus[choice] if explore else drawn
            scores[row * CHOICES + choice] = value + bonus[choice] if explore else value
        cuda.syncthreads()

        branch = choice
        if lane < count and branch < BRANCHES:
            first, at = row * CHOICES + _BRANCH_FIRST[branch], row * BRANCHES + branch
            code, anywhere, p_best, tau = pick(
                scores, first, branch, _BRANCH_SIZES[branch], samples, row * DIRECTIONS, selector, explore, epsilon[branch],
                tau_floor[branch], seed, lanes[lane], step[0],
            )  # fmt: skip
            codes[at] = code
            uniformly[at] = anywhere
            if branch == 0:
                found.p_best[lane] = p_best
                found.tau[lane] = tau
        cuda.syncthreads()

        if lane < count and thread < ROWS:
            at = row * BRANCHES
            best, worst, middle = extent(signed, row * DIRECTIONS)
            sigma = sigmas[row * DIRECTIONS + codes[at]]
            picks.action[lane] = encode_action(codes[at], codes[at + 1], codes[at + 2], codes[at + 3])
            picks.conviction_ppm[lane] = to_ppm(conviction(best, middle, conviction_scale[0]))
            picks.variance_scale_ppm[lane] = to_ppm(variance_scale(sigma))
            found.q_range[lane] = best - worst
            found.q_sigma[lane] = sigma
            found.explored[lane] = uniformly[at] or uniformly[at + 1] or uniformly[at + 2] or uniformly[at + 3]

    return fused


def matrix_of(heads: HeadOutput) -> torch.Tensor:
    """The matrix [lanes, 13 (A + T) or more] that both heads are views of, each choice's logits followed by its quantiles from the first
    column on, as `policy.model` makes it; bfloat16 is given as int16. Raises BadInput."""
    logits, quantiles = heads
    atoms, each = logits.shape[2], logits.shape[2] + quantiles.shape[2]
    beside = quantiles.data_ptr() - logits.data_ptr() == atoms * logits.element_size()
    strides = (logits.stride(0), each, 1)
    whole = logits.storage_offset() + len(logits) * logits.stride(0) <= logits.untyped_storage().nbytes() // logits.element_size()
    if not (beside and whole and logits.stride() == quantiles.stride() == strides and logits.dtype == quantiles.dtype):
        raise BadInput(
            "the fused selection reads heads that are views of one matrix, logits then quantiles of each choice; use policy.select"
        )
    matrix = logits.detach().as_strided((len(logits), logits.stride(0)), (logits.stride(0), 1))
    return matrix.view(torch.int16) if matrix.dtype == torch.bfloat16 else matrix


def fused_select(
    atoms: int,
    quantiles: int,
    dtype: torch.dtype,
    support: torch.Tensor,
    controls: SelectControls,
    selector: str,
    explore: bool,
    seed: int,
    lanes: torch.Tensor,
    step: torch.Tensor,
    picks: Picks,
    found: Facts,
    stream: torch.cuda.Stream,
) -> Callable[[HeadOutput], None]:
    """A function that picks for the heads it is given, as `select` and `to_picks` would: one launch on `stream`, to be the current one.

    Everything but the heads is wrapped here once: controls, `step` and the rest keep their addresses and change in place;
    `picks.health_ppm` is not written. Compiled here, so that the function can be captured in a graph at once. `dtype`: float32 or bfloat16.
    Raises BadInput for heads of another type or layout and for more than `MAX_CELLS` atoms and quantiles.
    """
    if selector not in SELECTORS:
        raise BadInput(f"there is no selector {selector!r}: choose one of {', '.join(SELECTORS)}")
    if atoms + quantiles > MAX_CELLS:
        raise BadInput(
            f"{atoms} atoms and {quantiles} quantiles: the fused selection holds {MAX_CELLS} together; use fewer, or policy.select"
        )
    if dtype not in (torch.float32, torch.bfloat16):
        raise BadInput(f"heads of {dtype}: the fused selection reads torch.float32 and torch.bfloat16")
    half = dtype == torch.bfloat16
    ones = (controls.contrarian.view(1), controls.conviction_scale.view(1))
    kept = [support, controls.epsilon, controls.tau_floor, controls.bonus, *ones, lanes, step]
    any_heads = torch.zeros(1, 1, dtype=torch.int16 if half else torch.float32, device=support.device)
    signed_seed = seed - 2**64 if seed >= 2**63 else seed  # as int64's two's complement

    def wrap(tensor: torch.Tensor) -> Any:
        return cuda.as_cuda_array(tensor.detach(), sync=False)

    constants = [wrap(tensor) for tensor in kept]
    outputs = Picks(*map(wrap, picks)), Facts(*map(wrap, found))
    numba_stream = cuda.external_stream(stream.cuda_stream)
    built = kernel(atoms, quantiles, SELECTORS.index(selector), explore, half)
    blocks = -(-len(lanes) // ROWS)
    configured = built.specialize(wrap(any_heads), *constants, signed_seed, *outputs)[blocks, THREADS, numba_stream]

    def launch(heads: HeadOutput) -> None:
        """`heads` must outlive the launch, and every replay of a graph that it is captured in."""
        if heads.logits.dtype != dtype or heads.logits.shape != (len(lanes), CHOICES, atoms) or heads.quantiles.shape[2] != quantiles:
            found_shape = f"{tuple(heads.logits.shape)} of {heads.logits.dtype}"
            raise BadInput(f"heads {found_shape}: this selection was made for {len(lanes)} lanes of {atoms} atoms, {dtype}; make another")
        configured(wrap(matrix_of(heads)), *constants, signed_seed, *outputs)

    return launch
