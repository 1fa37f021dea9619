"""The CPU side of a block of the log: copies into numpy views of its buffers, which grow with the rows that come."""

from __future__ import annotations

from typing import Any

import numpy as np

from cuda_env.arrays import World
from cuda_env.blocks import CUMULATED, MOVED, NULL, PLACE, Block, Captured
from cuda_env.rows import PACKED
from cuda_env.run_cpu import as_numpy
from cuda_env.state import CLOCK
from lob.jit import kernel_cpu

START_ROWS = 64
"""Rows that a table's buffer has room for at first."""


@kernel_cpu
def pack_rows(stored, written, rows, used):
    """Append what each lane wrote in this step to `rows`, behind the `used` ones, lane by lane; returns how many rows there are then.

    Where they have no room, nothing is written.
    """
    more = 0
    for lane in range(stored.shape[0]):
        more += written[lane]
    if used + more > rows.shape[0]:
        return used + more
    columns = stored.shape[2]
    for lane in range(stored.shape[0]):
        for slot in range(written[lane]):
            for column in range(columns):
                rows[used, column] = stored[lane, slot, column]
            rows[used, columns] = lane
            used += 1
    return used


class CpuCapture:
    """Counts on the host: on the CPU nothing is gained by counters among the tensors. A capture that an interrupt breaks off has captured
    nothing.
    """

    def __init__(self, world: World, block: Block) -> None:
        self.world, self.block = as_numpy(world), as_numpy(block)
        out = self.world.out
        self._packed = {
            name: (getattr(out, name), out.counts[written]) for name, (_, _, written) in PACKED.items() if len(getattr(out, name))
        }
        self._rows = {name: np.empty((START_ROWS, stored.shape[2] + 1), np.int64) for name, (stored, _) in self._packed.items()}
        # Steps captured, and rows of each table that are theirs: one attribute, so that an interrupt finds both as they were or neither.
        self._held: tuple[int, dict[str, int]] = (0, dict.fromkeys(self._packed, 0))
        self._none = {name: np.empty((0, getattr(out, name).shape[2] + 1), np.int64) for name in PACKED}
        # Few lanes make a step of microseconds, so what a capture touches is looked up here, once.
        self._head = self.block.head if self.block.head.shape[1] else None
        self._steps = self.block.steps if self.block.steps.shape[2] else None
        self._sums = (self.world.sums.merged, self.world.sums.moved, self.world.sums.cumulated)
        self._place = (self.world.out.row, self.world.out.closed, self.world.state[CLOCK])

    def put(self, values: Any) -> None:
        values = np.asarray(values)
        held = self.block.ints if values.dtype == np.int64 else self.block.floats
        held[self._held[0]] = values

    def capture(self) -> None:
        at, rows_before = self._held
        rows_after = {}
        if at == len(self.block.head):
            raise ValueError(f"a block of {at} steps is full: drain it first")
        if self._head is not None:
            row = self._head[at]
            row[:MOVED], row[MOVED:CUMULATED], row[CUMULATED:PLACE] = self._sums
            row[PLACE:] = [lane[0] for lane in self._place]
        if self._steps is not None:
            self._steps[at] = self.world.out.steps
        for name, (stored, written) in self._packed.items():
            used = rows_before[name]
            now = pack_rows(stored, written, self._rows[name], used)
            if now > len(self._rows[name]):
                grown = np.empty((2 * now, stored.shape[2] + 1), np.int64)
                grown[:used] = self._rows[name][:used]
                self._rows[name] = grown
                pack_rows(stored, written, grown, used)
            rows_after[name] = now
        self._held = (at + 1, rows_after)

    def fetch(self) -> Captured:
        (count, used), block = self._held, self.block
        rows = self._none | {name: self._rows[name][:rows] for name, rows in used.items()}
        found = Captured(block.head[:count], block.ints[:count].copy(), block.floats[:count].copy(), block.steps[:count], **rows)
        block.ints[: count + 1], block.floats[: count + 1] = NULL, np.nan
        self._held = (0, dict.fromkeys(self._packed, 0))
        return found
