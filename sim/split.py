"""Which days train, which choose the checkpoint, which judge it: in time order, never shuffled, so that nothing is learnt from later days.

By default the last 20 % of the days test and the 10 % before them validate; the rest train. With fewer than five days a day cannot be
spared, and the open time of the window is cut by the same shares instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from pydantic import BaseModel, ConfigDict, Field, model_validator

from lob.errors import BadInput
from lob.units import counted, format_time_ns

FEWEST_DAYS = 5
"""From five days on each part gets whole days: one tests, one validates, three train."""

LEAST_NS = 60 * 10**9
"""A part shorter than a minute judges nothing."""

Window = tuple[int, int]
"""[start_ns, end_ns) of decisions."""


class SplitConfig(BaseModel):
    """How many of the days each part gets; a number of days overrules the share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    test_share: float = Field(0.2, gt=0, lt=1)
    validation_share: float = Field(0.1, gt=0, lt=1)
    test_days: int | None = Field(None, ge=1)
    validation_days: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _leaves_training(self) -> SplitConfig:
        if self.test_share + self.validation_share >= 1:
            raise ValueError("test_share and validation_share leave nothing to train on")
        return self


@dataclass(frozen=True)
class Split:
    """The windows of each part, ascending; no part reaches into another. `by` is "days" or "time"."""

    by: str
    train: tuple[Window, ...]
    validation: tuple[Window, ...]
    test: tuple[Window, ...]

    @property
    def train_range(self) -> Window:
        """From the first training decision to the end of the last training window: what the normaliser is fitted on."""
        return self.train[0][0], self.train[-1][1]


def split(days: Sequence[tuple[date, int, int]], config: SplitConfig) -> Split:
    """Split (trade date, start_ns, end_ns) of each day that has data. Raises BadInput when a part would be empty."""
    if not days:
        raise BadInput("the window holds no session with data: there is nothing to train on; `sim store ls` shows what is there")
    windows = [(start, end) for _, start, end in days]
    stated = config.test_days is not None or config.validation_days is not None
    if len(windows) < FEWEST_DAYS and not stated:
        return _by_time(windows, config)
    test = config.test_days or max(1, round(len(windows) * config.test_share))
    validation = config.validation_days or max(1, round(len(windows) * config.validation_share))
    train = len(windows) - validation - test
    if train < 1:
        raise BadInput(
            f"{counted(len(windows), 'day')} with data less {validation} to validate and {test} to test leave none to train on: "
            "ask for a longer window, or fewer split.validation_days and split.test_days"
        )
    return Split("days", tuple(windows[:train]), tuple(windows[train : train + validation]), tuple(windows[train + validation :]))


def _by_time(windows: Sequence[Window], config: SplitConfig) -> Split:
    """Cut the windows' open time at the shares."""
    open_ns = sum(end - start for start, end in windows)
    first = open_ns - int(open_ns * (config.test_share + config.validation_share))
    second = open_ns - int(open_ns * config.test_share)
    parts = (_between(windows, 0, first), _between(windows, first, second), _between(windows, second, open_ns))
    for name, part in zip(("training", "validation", "test"), parts, strict=True):
        if sum(end - start for start, end in part) < LEAST_NS:
            start, end = format_time_ns(windows[0][0]), format_time_ns(windows[-1][1])
            raise BadInput(f"the {name} part of {start} to {end} is shorter than a minute: ask for a longer window")
    return Split("time", *parts)


def _between(windows: Sequence[Window], low: int, high: int) -> tuple[Window, ...]:
    """The parts of the windows whose open time, counted from the first window's start, lies in [low, high)."""
    parts, before = [], 0
    for start, end in windows:
        first, last = max(low - before, 0), min(high - before, end - start)
        if first < last:
            parts.append((start + first, start + last))
        before += end - start
    return tuple(parts)
