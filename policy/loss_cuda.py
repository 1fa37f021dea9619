"""The three passes of `policy.loss_kernels` in one CUDA kernel. Import only where CUDA is wanted; it compiles when specialised.

A block holds a few rows in shared memory: read from the device's memory side by side, worked on by one thread a choice, then one a branch,
then one a choice again, and written back side by side. Read by those threads directly, every load would touch as many lines as threads.
"""

from functools import cache
from typing import Any

import lob.jit
from lob.errors import BadInput
from policy.heads import CHOICES
from policy.loss_kernels import BRANCHES, aim, branch_of, settle, think, turn

cuda = lob.jit.cuda()
float32 = lob.jit.float32

THREADS = 64
"""Threads in a block: fourteen for each of four rows, one a choice and one for the row, in whole warps."""

MOST_ROWS = THREADS // (CHOICES + 1)

SHARED_CELLS = 12_288
"""float32 cells that every device shares in a block: 48 KiB."""


def rows_of(atoms: int, quantiles: int) -> int:
    """Rows that a block holds. Raises BadInput when not even one fits."""
    cells = 2 * _pitch(atoms, quantiles) + (CHOICES + 2 * BRANCHES) * atoms
    if cells > SHARED_CELLS:
        raise BadInput(f"{atoms} atoms and {quantiles} quantiles do not fit the GPU's learner; use fewer, or learn on the CPU")
    return min(MOST_ROWS, SHARED_CELLS // cells)


def _pitch(atoms: int, quantiles: int) -> int:
    """Cells from one row to the next: odd, so that the rows of a choice lie in different banks."""
    return CHOICES * (atoms + quantiles) | 1


@cache
def kernel(atoms: int, quantiles: int) -> Any:
    """The kernel for heads of this shape: `rows_of` rows a block of THREADS threads."""
    rows, span, pitch = rows_of(atoms, quantiles), CHOICES * (atoms + quantiles), _pitch(atoms, quantiles)
    of_soft, of_targets = CHOICES * atoms, rows * BRANCHES

    @cuda.jit
    def measure(online, lagged, now, b):
        said = cuda.shared.array((rows, pitch), float32)
        here = cuda.shared.array((rows, pitch), float32)
        soft = cuda.shared.array((rows, of_soft), float32)
        targets = cuda.shared.array((of_targets, atoms), float32)
        spare = cuda.shared.array((of_targets, atoms), float32)
        thread, begin = cuda.threadIdx.x, cuda.blockIdx.x * rows
        count = min(rows, b.weights.size - begin)
        for row in range(count):
            for column in range(thread, span, THREADS):
                said[row, column] = online[begin + row, column]
                here[row, column] = now[begin + row, column]
        cuda.syncthreads()
        # Rows before choices: neighbouring threads then meet in as few banks as can be.
        row, part = thread % rows, thread // rows
        if row < count and part < CHOICES:
            think(said[row], here[row], soft[row], begin + row, part, b)
        cuda.syncthreads()
        for other in range(count):
            for column in range(thread, span, THREADS):
                said[other, column] = lagged[begin + other, column]
        cuda.syncthreads()
        if row < count and part < BRANCHES:
            at = row * BRANCHES + part
            aim(said[row], here[row], soft[row], targets[at], spare[at], begin + row, part, b)
        cuda.syncthreads()
        if row < count and part < CHOICES:
            turn(said[row], soft[row], targets[row * BRANCHES + branch_of(part)], begin + row, part, b)
        if row < count and part == CHOICES:
            settle(begin + row, b)
        cuda.syncthreads()
        for other in range(count):
            for column in range(thread, span, THREADS):
                b.pull[begin + other, column] = said[other, column]
            for cell in range(thread, BRANCHES * atoms, THREADS):
                b.target[begin + other, cell // atoms, cell % atoms] = targets[other * BRANCHES + cell // atoms, cell % atoms]

    return measure
