"""What watches a training run and may end it: bands for its metrics with streaks, and a stop when the gradient escalates.

All of it runs on the host, on the numbers of one block of the log. It decides and says why; the loop writes the events, saves a checkpoint
and only then stops (seed row I16).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from lob.errors import BadInput
from lob.units import counted

PERSISTENT = 3
"""N: observations in a row outside a band that are no accident."""

TERMINAL = 2 * PERSISTENT
"""2N consecutive errors end the run (I15)."""

ESCALATIONS = 3
"""Blocks in a row that each have to double the gradient's mean norm before the run stops: eightfold growth is no noise of a batch."""

GROWTH = 2.0
"""What counts as an escalation from one block to the next."""

BASELINE_BLOCKS = 4
"""Blocks before those that are needed to know what was ordinary; a run's first blocks may grow as they like."""

ABOVE_ORDINARY = 10.0
"""and the last block has to stand this far above the median of those: growth back from a calm spell is not an escalation."""

KEPT_BLOCKS = 64
"""Blocks that are remembered: what was ordinary an age ago is not any more."""

WARNING, ANOMALY = 1, 2
"""Severities of `events` rows."""


class Band(NamedTuple):
    """Where a metric belongs. None: no bound on that side. A warning is no error; leaving the error bounds is."""

    reason: str
    warn_above: float | None = None
    error_above: float | None = None
    warn_below: float | None = None
    error_below: float | None = None


BANDS: dict[str, Band] = {
    "learn.grad_norm": Band(
        "clipping holds a step at ordinary size, not its direction: a norm of hundreds is one sample's, of ten thousands a broken input's",
        warn_above=100.0,
        error_above=1e4,
    ),
    "learn.loss_aux": Band(
        "a label over its own scale gives a loss of the order of one: hundreds mean that the label changed its unit",
        warn_above=10.0,
        error_above=1e3,
    ),
    "signal.aux_label_scale": Band(
        "a normalised label has a mean size of about one: hundreds are a raw price", warn_above=20.0, error_above=200.0
    ),
    "support.filled": Band(
        "mean absolute value of a direction over half the support: at the edge, C51 cannot tell two good choices apart",
        warn_above=0.7,
        error_above=0.95,
    ),
    "signal.learning_health": Band("all seven parts near nothing", warn_below=0.15, error_below=0.05),
    "signal.health.entropy": Band(
        "training picks nearly one direction, though exploration alone draws each of four", warn_below=0.3, error_below=0.05
    ),
    "experts.least_used": Band("an expert that hardly any state uses learns nothing any more; the rest do its work", warn_below=0.02),
}
"""Metric -> its band: columns of `diag`, averaged over a block, and two that are made from them (`derived`)."""


class Event(NamedTuple):
    """A row of `events`, but for phase, step and count."""

    kind: str
    severity: int
    message: str
    value: float | None


class Watched(NamedTuple):
    """What an observation of a block found: events to log, and why the run has to stop, or None."""

    events: tuple[Event, ...]
    stop: str | None


def derived(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    """The metrics with `support.filled` and `experts.least_used` beside them; None where what they are made of is None or missing."""
    size, half = metrics.get("signal.q_dir_abs_ref"), metrics.get("signal.v_half.direction")
    used = [value for name, value in metrics.items() if name.startswith("signal.expert_use.")]
    filled = None if size is None or half is None or not half > 0 else size / half
    return {**metrics, "support.filled": filled, "experts.least_used": min((u for u in used if u is not None), default=None)}


class MetricBandsRegistry:
    """Streaks of each metric outside its band, and the gradient norms of the last blocks.

    `observe` once a block. A streak says so when it begins, when it persists (N) and, of errors, when it ends the run (2N). A metric that
    is not finite is an error; one that is None or not given leaves its streaks as they are.
    """

    def __init__(self, bands: Mapping[str, Band] = BANDS) -> None:
        self.bands = dict(bands)
        self.streaks: dict[str, tuple[int, int]] = {}
        self.norms: list[float] = []

    def observe(self, metrics: Mapping[str, float | None]) -> Watched:
        """Take in one block's means."""
        given = derived(metrics)
        events, stop = [], None
        for name, band in self.bands.items():
            value = given.get(name)
            if value is None:
                continue
            warns, errors = self.streaks.get(name, (0, 0))
            grave = _outside(value, band.error_below, band.error_above)
            errors = errors + 1 if grave else 0
            warns = warns + 1 if grave or _outside(value, band.warn_below, band.warn_above) else 0
            self.streaks[name] = warns, errors
            event = _event(name, band, value, warns, errors)
            if event is not None:
                events.append(event)
            if errors == TERMINAL and stop is None:
                stop = f"{name} was in error in {TERMINAL} blocks in a row, last {value:.6g}: {band.reason}"
        norm = given.get("learn.grad_norm")
        if norm is not None:
            self.norms = [*self.norms, norm if math.isfinite(norm) else math.inf][-KEPT_BLOCKS:]
            escalated = escalation(self.norms)
            if escalated is not None:
                events.append(Event("watch.escalation", ANOMALY, escalated, norm if math.isfinite(norm) else None))
                stop = stop or escalated
        return Watched(tuple(events), stop)

    def reset_streaks(self) -> None:
        """Forget every streak and norm: the start of a fold, whose first blocks answer for none before it."""
        self.streaks, self.norms = {}, []

    def state(self) -> dict[str, Any]:
        """As JSON values, for a checkpoint."""
        return {
            "streaks": {name: list(counts) for name, counts in self.streaks.items()},
            "norms": [norm if math.isfinite(norm) else None for norm in self.norms],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        self.streaks = {name: (int(warns), int(errors)) for name, (warns, errors) in state["streaks"].items()}
        self.norms = [math.inf if norm is None else float(norm) for norm in state["norms"]]


def escalation(norms: Sequence[float]) -> str | None:
    """Why the gradient's mean norms, one a block, oldest first, call for a stop; None while they do not.

    Each of the last three blocks has at least doubled the one before it, and the last stands ten times above the median of the earlier
    ones. A norm that is not finite counts as above any.
    """
    sizes = [norm if math.isfinite(norm) else math.inf for norm in norms]
    before, last = sizes[: -ESCALATIONS - 1], sizes[-ESCALATIONS - 1 :]
    if len(before) < BASELINE_BLOCKS - 1:
        return None
    grew = all(now >= GROWTH * then and now > then for then, now in itertools.pairwise(last))
    ordinary = sorted([*before, last[0]])[len(before) // 2]
    if not (grew and last[-1] > ABOVE_ORDINARY * ordinary):
        return None
    return (
        f"the gradient's mean norm at least doubled in each of {ESCALATIONS} blocks, to {last[-1]:.6g} from an ordinary {ordinary:.6g}: "
        "the run diverges; lower learner.lr or look at what changed in the data"
    )


class Measured(NamedTuple):
    """An evaluation's figure, and how it was come by."""

    value: float
    selector: str
    code: str  # the code hash of the run


def more_than_halved(baseline: Measured, now: Measured) -> bool:
    """Whether a figure fell by more than half of its baseline's size: strictly, so that a fall of exactly a half is none (seed row P3).

    Raises BadInput for a baseline of another selector or another build: a fall against it says nothing (lesson 45).
    """
    for what in ("selector", "code"):
        theirs, ours = getattr(baseline, what), getattr(now, what)
        if theirs != ours:
            raise BadInput(
                f"the baseline's {what} is {theirs[:16]}, this figure's {ours[:16]}: measure the baseline anew with the same {what}"
            )
    return now.value < baseline.value - abs(baseline.value) / 2


def _outside(value: float, below: float | None, above: float | None) -> bool:
    """Whether a value leaves a band that has a bound; one that is not finite leaves any."""
    if below is None and above is None:
        return False
    return not math.isfinite(value) or (below is not None and value < below) or (above is not None and value > above)


def _event(name: str, band: Band, value: float, warns: int, errors: int) -> Event | None:
    """What a streak has to say at this length; the graver of the two speaks."""
    logged = value if math.isfinite(value) else None
    if errors in (1, PERSISTENT, TERMINAL):
        said = f"{name} is {value:.6g}, an error for {counted(errors, 'block')}: {band.reason}"
        return Event("watch.error", ANOMALY, said, logged)
    if not errors and warns in (1, PERSISTENT):
        said = f"{name} is {value:.6g}, outside its band for {counted(warns, 'block')}: {band.reason}"
        return Event("watch.warning", WARNING, said, logged)
    return None
