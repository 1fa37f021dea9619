"""Where a training step's time goes, part by part, on the CPU. A GPU plays steps as one queue that nobody waits for: none is noted."""

from __future__ import annotations

import time

import numpy as np

PARTS = ("policy", "physics", "observe", "learn", "log")
"""Parts of a step, each `<part>_ns` of the table `timing`."""


class StepTimes:
    """Wall-clock of the steps since `clear`. Outside every hash, like the table that it goes to."""

    def __init__(self, is_noted: bool) -> None:
        self.is_noted = is_noted
        self._steps: list[list[int]] = []
        self._since = 0

    def clear(self) -> None:
        self._steps.clear()

    def begin(self) -> None:
        """A step begins."""
        if self.is_noted:
            self._steps.append([0] * len(PARTS))
            self._since = time.perf_counter_ns()

    def ended(self, part: str) -> None:
        """What passed since the last mark was this part of the present step."""
        if self.is_noted and self._steps:
            now = time.perf_counter_ns()
            self._steps[-1][PARTS.index(part)] += now - self._since
            self._since = now

    def parts(self) -> np.ndarray | None:
        """int64[steps, len(PARTS)], nanoseconds; None where nothing is noted."""
        return np.array(self._steps, np.int64).reshape(-1, len(PARTS)) if self.is_noted else None
