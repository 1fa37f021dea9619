"""The start of a fold: what learning remembers of the one before it is put back (seed rows I14, P4).

Whatever in this package keeps something from one step to the next is either reset here or made anew with the fold's network; a test finds
the classes and holds them to this list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from policy.bands import MetricBandsRegistry
from policy.bus import ControlState, reset_controls
from policy.rewards import RewardState, reset_rewards

RESETS: dict[type, Callable[[Any], None]] = {
    ControlState: reset_controls,
    RewardState: reset_rewards,
    MetricBandsRegistry: MetricBandsRegistry.reset_streaks,
}
"""Stateful class -> what puts an instance back, in place, to what a new one holds."""

MADE_ANEW = {
    "Model": "a fold trains a network of its own",
    "Learner": "its optimiser's moments and targets belong to the network",
    "Memory": "its records were earned by another network on other days",
}
"""Stateful class -> why a fold makes a new one instead."""


def reset_for_fold(*states: Any) -> None:
    """Put each back in place. Raises TypeError for one that no reset is declared for. `Controllers.update` has to follow: the
    controls of a bus that was put back are not yet those of its config."""
    for state in states:
        if type(state) not in RESETS:
            raise TypeError(f"no reset is declared for {type(state).__name__}: declare one in policy/fold.py")
        RESETS[type(state)](state)
