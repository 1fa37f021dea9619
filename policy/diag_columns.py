"""The policy's columns of `diag`, declared (`policy.diag_values` makes their values).

What is summed over lanes is an integer, so that no order of lanes or processes can change it. A float is one number of one step: a signal
of the bus, or a figure of the learner's last update; one that is not finite is null. Runs that do not train declare none but the first
five, so that a replay's rows stay narrow; in SQL over several runs the rest is null there.
"""

from __future__ import annotations

from lob.tables import Column
from policy.signals import IN_USE, SLOTS

REWARD_TERMS = {
    "micro": "J1, what the position made of the interval's own move, over the average range, less the half spread paid",
    "flow": "J2, standing with an order flow that the price confirms",
    "inaction": "J3, the edge predicted by the policy itself, negative, while flat",
    "churn": "J5, the cost of a reversal, the higher the sooner it comes",
    "hold": "J6, at a close the share kept of the best open profit",
    "sharpe": "J7, the differential Sharpe ratio",
    "potential": "J8, gamma * Phi(s') - Phi(s)",
}
"""Reward term -> what it is (`policy.rewards`), in the order in which they are summed."""

LEARN_FIGURES = {
    "td_abs": "absolute TD error of expected values, mean over batch and branches",
    "q_dir_abs": "absolute expected value of a direction, mean over batch and directions",
    "loss": "total loss",
    "loss_c51": "loss of C51, before its share",
    "loss_iqn": "loss of IQN, before its share",
    "loss_cql": "loss of CQL, before its share",
    "loss_aux": "loss of the auxiliary head, before its share",
    "loss_balance": "the experts' load-balance loss, before its weight",
    "grad_norm": "norm of the whole gradient before clipping",
    "grad_c51": "norm of C51's gradient, before its share",
    "grad_iqn": "norm of IQN's gradient, before its share",
    "grad_cql": "norm of CQL's gradient, before its share",
    "grad_aux": "norm of the auxiliary head's gradient, before its share",
}
"""Figures of an update that have a column of their own, by their names in `policy.health.LearnStats`."""

GATE_INPUTS = (
    Column("policy.conviction_ppm_sum", "int64", "ppm", "conviction, summed over the lanes that played"),
    Column("policy.health_ppm_sum", "int64", "ppm", "learning health, summed over the lanes that played"),
    Column("policy.variance_scale_ppm_sum", "int64", "ppm", "variance scale, summed over the lanes that played"),
)
VALUES = (
    Column("policy.q_range_ppm_sum", "int64", "ppm", "best less worst expected value of a direction, over all lanes", nullable=True),
    Column("policy.q_sigma_ppm_sum", "int64", "ppm", "sd of the picked direction's value, over all lanes", nullable=True),
)


def _sum(name: str, doc: str) -> Column:
    return Column(f"{name}_ppm_sum", "int64", "ppm", f"{doc}; summed over the lanes that played", nullable=True)


def _count(name: str, doc: str) -> Column:
    return Column(name, "int64", "1", doc, nullable=True)


SELECTION = (
    _count("select.explored", "lanes that played and drew a branch uniformly"),
    _sum("select.p_best", "probability that the selector picks the best direction"),
    _sum("select.tau_over_range", "the direction's temperature over its range of values, where there is a range, at most 1000"),
    _count("select.ranged", "lanes that played and had a range of values"),
    _count(
        "select.kelly_above_floor", "lanes that played and whose Kelly fraction stood above its floor, max(conviction, 0.5 + 0.5 health)"
    ),
)
REWARDS = (
    *(_sum(f"reward.{name}", doc) for name, doc in REWARD_TERMS.items()),
    _sum("reward.scaled", "shaped reward over the reward scale"),
)
UNIT = (Column("reward.unit", "float64", "1", "what scaled rewards were divided by to be whitened", nullable=True),)
UPDATES = (_count("learn.updates", "updates of the learner so far"),)
LEARN = tuple(Column(f"learn.{name}", "float64", "1", f"last update: {doc}", nullable=True) for name, doc in LEARN_FIGURES.items())
SIGNALS = tuple(Column(f"signal.{SLOTS[i].name}", "float64", "1", f"bus slot {i}: {SLOTS[i].holds}", nullable=True) for i in IN_USE)

INTEGERS = GATE_INPUTS + VALUES + SELECTION + REWARDS + UPDATES
"""Those of `policy.diag_values.pack_integers`, in its order."""
FLOATS = UNIT + LEARN + SIGNALS
"""Those of `policy.diag_values.pack_floats`, in its order."""
COLUMNS = INTEGERS + FLOATS
"""The policy's whole part of a training run's `diag`."""
TRAINING = COLUMNS[len(GATE_INPUTS + VALUES) :]
"""Of it, what runs that do not train leave out."""

NO_VALUES: dict[str, int | None] = {column.name: None for column in VALUES}
"""What a policy without a value distribution says of itself."""
