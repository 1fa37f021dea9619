"""The slots of the signal bus, declared: what each of the 127 numbers holds, who reads it, and why its constants are what they are.

Seed rows I8-I13. Four slots and a block of nine have the places that the seeds give them: 21, 71, 72, 117 and 118-126. No torch here: the
log's columns derive from these declarations, and who reads a log needs none.
"""

from __future__ import annotations

import hashlib
import math
from typing import NamedTuple

from lob.actions import Direction, Magnitude, OrderKind, Urgency
from lob.layout import BUS_SLOTS

MEMBERS = {"direction": Direction, "magnitude": Magnitude, "order": OrderKind, "urgency": Urgency}
"""branch -> its choices."""

EXPERTS = 8
"""Experts of the mixture (G2): each has a utilisation slot."""

FAST = 0.01
"""Weight of the newest value in an EMA of the learner or of picks: a memory of a hundred updates, long against one batch's noise and short
against a run of thousands. Until a hundred have been seen it is their plain mean, so no invented start can bias it."""

SLOW = 0.001
"""The same for the reference that a fast EMA is held against: ten times longer, so that the two can differ at all."""

LABEL_SCALE_WEIGHT = 0.05
"""Weight of the newest batch in the label scale (F11): twenty batches, for a label of a wrong scale must not be met for hundreds."""

COMPONENTS = ("q_gap", "grad_stability", "loss_trend", "td_calibration", "entropy", "expert_use", "spectral_gap_norm")
"""The seven parts of learning health, in the order of their slots."""

BRANCH_CHOICES: tuple[str, ...] = tuple(f"{branch}.{member.name.lower()}" for branch, members in MEMBERS.items() for member in members)
"""The thirteen choices as `direction.short` ... `urgency.aggressive`."""


class Slot(NamedTuple):
    """One number of the bus. `weight`: that of the newest value in its EMA; 0: it is no EMA, and is written whole."""

    name: str
    reset: float
    holds: str
    read_by: str
    reason: str
    weight: float = 0.0


def _declare() -> dict[int, Slot]:
    slots: dict[int, Slot] = {}

    def put(first: int, *rows: Slot) -> None:
        for at, row in enumerate(rows, first):
            if at in slots:
                raise ValueError(f"bus slot {at} is declared twice")
            slots[at] = row

    health = "mean of its seven components, each weighted (policy.health)"
    put(0, Slot("learning_health", 0.0, health, "most controllers; health_ppm of every pick", "unproven learning is sized as unhealthy"))
    put(
        1, *(Slot(f"health.{name}", 0.0, f"health component {name}", "learning_health", "nothing has been measured") for name in COMPONENTS)
    )

    def ema(name: str, holds: str, read_by: str, reset: float = 0.0, weight: float = FAST) -> Slot:
        return Slot(name, reset, holds, read_by, "replaced whole by the first value seen", weight)

    for first, name, holds, read_by in (
        (8, "v_half", "half the width of the value support, in units of the reward that is stored", "the log"),
        (12, "q_range", "best less worst expected value of a state's choices, mean over the batch", "health.q_gap"),
        (16, "q_sigma", "standard deviation of the picked choice's value, mean over the batch", "health.td_calibration"),
    ):
        weight = 1.0 if name == "v_half" else FAST
        put(first, *(ema(f"{name}.{branch}", f"{branch}: {holds}", read_by, weight=weight) for branch in MEMBERS))
    put(
        20,
        ema("td_abs", "absolute TD error of expected values, mean over batch and branches", "health.td_calibration"),
        ema(
            "q_dir_abs_ref",
            "absolute expected value of a direction, mean over batch and directions (I9)",
            "health.q_gap, tau_floor, conviction_scale",
        ),
        Slot(
            "spectral_gap",
            0.0,
            "1 - second over first eigenvalue of the features' covariance, when last looked at",
            "health.spectral_gap_norm",
            "0 until features are looked at: a line is what is suspected, not presumed",
        ),
        ema("loss", "total loss", "health.loss_trend"),
        *(ema(f"loss.{name}", f"loss of {name}, before its share", "the log") for name in ("c51", "iqn", "cql", "aux", "balance")),
        ema("grad_norm", "norm of the whole gradient before clipping", "health.grad_stability"),
        ema("grad_log", "logarithm of that norm", "health.grad_stability"),
        ema("grad_log_square", "square of that logarithm", "health.grad_stability"),
        *(ema(f"grad.{name}", f"norm of the gradient of {name}, before its share", "the log") for name in ("c51", "iqn", "cql", "aux")),
        ema("loss_slow", "total loss, remembered ten times longer", "health.loss_trend", weight=SLOW),
    )

    def control(name: str, reset: float, holds: str, read_by: str = "learner") -> Slot:
        return Slot(name, reset, holds, read_by, "its base value is written by the first update of the controllers")

    put(
        40,
        control("lr", 0.0, "learning rate"),
        control("gamma", 0.0, "discount of one decision", "learner, reward potential"),
        control("polyak", 0.0, "share of the online weights that the target takes over in one update"),
        control("sarsa_ratio", 0.0, "expected SARSA: temperature over the state's value range"),
        control("balance", 0.0, "weight of the experts' load-balance loss"),
        control("beta", 0.0, "exponent of the importance weights", "learner, replay"),
        control("share_cql", 0.0, "CQL's share of the gradient budget"),
        control("share_aux", 0.0, "the auxiliary head's share of the gradient budget"),
        control("iqn_ratio", 0.0, "IQN's part of what C51 and IQN share", "share_c51, share_iqn"),
        control("share_c51", 0.0, "C51's share of the gradient budget"),
        control("share_iqn", 0.0, "IQN's share of the gradient budget"),
    )
    put(
        52,
        *(
            control(f"epsilon.{branch}", 1.0, f"{branch}: probability of a uniform choice", "selection, training only")
            for branch in MEMBERS
        ),
    )
    put(56, *(control(f"tau_floor.{branch}", 0.01, f"{branch}: least Boltzmann temperature", "selection") for branch in MEMBERS))
    put(
        60,
        Slot("contrarian", 1.0, "-1 turns the sign of every direction's value (E21)", "selection", "nothing is turned unless asked for"),
        Slot(
            "passive_pressure",
            0.0,
            "clip(1 - trade_attempt_rate_ema / max(trade_target_rate, 0.0001), 0, 1) (E9)",
            "epsilon.direction",
            "none is measured",
        ),
        ema("explored_rate", "share of decisions where some branch was drawn uniformly", "the log"),
        Slot(
            "conviction_scale",
            1.0,
            "max(q_dir_abs_ref, 0.01): advantage over the mean direction that is full conviction (C11)",
            "selection",
            "1 until values have a size",
        ),
    )
    put(
        71,
        ema("trade_attempt_rate_ema", "of the lanes that were flat, the share that picked long or short (I10)", "passive_pressure"),
        Slot(
            "trade_target_rate",
            0.0,
            "trade_attempt_rate_ema as it stood at the stated step (I10)",
            "passive_pressure",
            "0 until it is frozen",
        ),
    )
    uniform = [1 / len(members) for members in MEMBERS.values() for _ in members]
    reader = lambda name: "health.entropy" if name.startswith("direction.") else "the log"  # noqa: E731
    even = "replaced whole by the first value seen; uniform until then"
    put(
        73,
        *(
            Slot(f"pick_share.{name}", share, f"share of decisions that picked {name}", reader(name), even, FAST)
            for name, share in zip(BRANCH_CHOICES, uniform, strict=True)
        ),
    )
    put(
        86,
        *(
            Slot(f"bonus.{name}", 0.0, f"count bonus of {name} (E25)", "selection, training only", "0 adds nothing")
            for name in BRANCH_CHOICES
        ),
    )
    gate = "the gate starts uniform"
    use = "gate probability of expert {}, mean over the batch (I12)"
    nothing = "1 divides by nothing; an EMA that starts at 0 divides by it (lesson 29)"
    label = "absolute label of the auxiliary head, mean over the batch (F11)"
    entropy = "entropy of the gate in nats, mean over the batch (I12)"
    put(
        117,
        Slot("aux_label_scale", 1.0, label, "auxiliary loss, as a divisor", nothing, LABEL_SCALE_WEIGHT),
        *(Slot(f"expert_use.{i}", 1 / EXPERTS, use.format(i), "health.expert_use", gate, FAST) for i in range(EXPERTS)),
        Slot("gate_entropy", math.log(EXPERTS), entropy, "the log", f"{gate}: ln 8", FAST),
    )
    return slots


_DECLARED = _declare()
SLOTS: tuple[Slot, ...] = tuple(
    _DECLARED.get(i, Slot(f"unused_{i:03d}", 0.0, "nothing yet", "nobody", "0 says nothing to the network")) for i in range(BUS_SLOTS)
)
"""All 127, in order."""

NAMES: tuple[str, ...] = tuple(slot.name for slot in SLOTS)
INDEX: dict[str, int] = {name: i for i, name in enumerate(NAMES)}
"""name -> place on the bus."""

IN_USE: tuple[int, ...] = tuple(sorted(_DECLARED))
"""Places that something is written to; `diag` has a column `signal.<name>` for each."""


def bus_fingerprint() -> str:
    """64 hex digits over the slots' places, names and reset values; a checkpoint of another bus is refused by it."""
    lines = (f"{i} {slot.name} {slot.reset.hex()}" for i, slot in enumerate(SLOTS))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
