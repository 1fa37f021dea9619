"""The signals of `sim verdict`: pure functions from numbers that the log proves to PASS, WARN, KILL or UNKNOWN, and one sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lob.units import PPM, USD_MICROS, counted, format_usd
from sim.evaluation import TRIVIAL
from sim.thresholds import THRESHOLDS, Thresholds

PASS, UNKNOWN, WARN, KILL = "PASS", "UNKNOWN", "WARN", "KILL"
SEVERITY = {PASS: 0, UNKNOWN: 1, WARN: 2, KILL: 3}

DIRECTIONS = ("short", "hold", "long", "flat")


@dataclass(frozen=True)
class Signal:
    """`value` is the number that was judged, `threshold` what it was held against, both in `unit`; None where there is none."""

    name: str
    status: str
    sentence: str
    value: float | int | None = None
    threshold: float | int | None = None
    unit: str = ""

    def line(self) -> str:
        return f"{self.status:<7}  {self.name}: {self.sentence}"


def worst(signals: Sequence[Signal]) -> Signal:
    """The gravest of at least one; of equally grave ones the first."""
    return max(signals, key=lambda signal: SEVERITY[signal.status])


# --- what a column is made of ---


@dataclass(frozen=True)
class Provenance:
    """What a column of `diag` is computed from, and what was done to it. `is_usd`: it counts micro-dollars of the accounts."""

    inputs: frozenset[str]
    transforms: frozenset[str] = frozenset()
    is_usd: bool = False


def _made(inputs: str, transforms: str = "", is_usd: bool = False) -> Provenance:
    return Provenance(frozenset(inputs.split()), frozenset(transforms.split()), is_usd)


EQUITY_DELTA = "trading.reward_raw_usd_micros"
REALIZED_DELTA = "trading.realized_pnl_usd_micros_delta"
LANES_PLAYED = "lanes.played"
SCALED_REWARD = "reward.scaled_ppm_sum"
WHITENED_REWARD = "reward.whitened_ppm_sum"

PROVENANCE = {
    EQUITY_DELTA: _made("equity", is_usd=True),
    REALIZED_DELTA: _made("cash", is_usd=True),
    SCALED_REWARD: _made("equity terms", "shape scale"),
    WHITENED_REWARD: _made("equity terms", "shape scale whiten"),
}
"""Columns that a correlation may be asked of."""


def objection(reward: str, dollars: str, shaped: bool) -> str | None:
    """Why the correlation of two columns would say nothing; None when it says something.

    `shaped`: whether any shaping weight is above zero; without one the terms are no input of a reward. A reward correlated with a column of
    the same transforms, or with the one it was scaled from, is a tautology: that is how +0.93 was once measured (seed D13, lesson 3).
    """
    if unknown := [name for name in (reward, dollars) if name not in PROVENANCE]:
        return f"nothing is declared of where {unknown[0]} comes from"
    if reward == dollars:
        return f"{reward} would be correlated with itself"
    of_reward, of_dollars = PROVENANCE[reward], PROVENANCE[dollars]
    if not of_dollars.is_usd:
        return f"{dollars} does not count dollars"
    if shared := sorted(of_reward.transforms & of_dollars.transforms):
        return f"{reward} and {dollars} went through the same transform ({shared[0]})"
    inputs = of_reward.inputs if shaped else of_reward.inputs - {"terms"}
    if inputs <= of_dollars.inputs:
        return f"{reward} is nothing but {dollars} transformed"
    return None


def correlation(x: Sequence[int], y: Sequence[int]) -> float | None:
    """Pearson's, of two series of whole numbers; None where one of them does not vary. Sums are exact up to one rounding each."""
    n = len(x)
    if n < 2 or min(x) == max(x) or min(y) == max(y):
        return None
    mean_x, mean_y = sum(x) / n, sum(y) / n
    off_x, off_y = [value - mean_x for value in x], [value - mean_y for value in y]
    covariance = math.fsum(a * b for a, b in zip(off_x, off_y, strict=True))
    return covariance / math.sqrt(math.fsum(a * a for a in off_x) * math.fsum(b * b for b in off_y))


# --- the signals ---


def reward_alignment(
    columns: Mapping[str, Sequence[int]], shaped: bool, scale_usd_micros: int, lanes: int, limits: Thresholds = THRESHOLDS
) -> Signal:
    """Whether the reward of a step moves with the dollars of the same step (seeds J10, D13).

    `columns` are whole-number series of a training run's `diag`. Only steps in which every lane decided are looked at: a drain moves
    dollars that nobody is rewarded for. Where nothing shapes the reward a correlation would be of the dollars with themselves; then the
    reward has to *be* them, step by step.
    """
    name = "reward_alignment"
    if any(column not in columns for column in (SCALED_REWARD, EQUITY_DELTA, LANES_PLAYED)):
        return Signal(name, UNKNOWN, "the log has no learner's reward: it is judged in training, where it is made")
    whole = [step for step, played in enumerate(columns[LANES_PLAYED]) if played == lanes]
    reward, dollars = ([columns[column][step] for step in whole] for column in (SCALED_REWARD, EQUITY_DELTA))
    if not whole:
        return Signal(name, UNKNOWN, "there is no step in which every lane decided")
    against = objection(SCALED_REWARD, EQUITY_DELTA, shaped)
    in_dollars = [value * scale_usd_micros // PPM for value in reward]
    if against is not None:
        off = max(abs(a - b) for a, b in zip(in_dollars, dollars, strict=True))
        limit = limits.identity_ppm_per_lane * lanes * scale_usd_micros // PPM
        told = f"nothing shapes the reward, so no correlation is taken ({against}); it is the step's dollars to within {format_usd(off)}"
        return Signal(name, PASS if off <= limit else KILL, told, off, limit, "usd_micros")
    found = correlation(reward, dollars)
    if found is None:
        return Signal(name, UNKNOWN, "the reward or the dollars of a step never vary")
    total, earned = sum(in_dollars), sum(dollars)
    status = KILL if found < limits.alignment_kill else WARN if found < limits.alignment_warn else PASS
    told = f"reward and dollars of the same step correlate at {found:+.3f}"
    if total * earned < 0:
        status = status if status == KILL else WARN
        told += f"; summed up they disagree in sign: {format_usd(total)} of reward, {format_usd(earned)} earned"
    return Signal(name, status, told, found, limits.alignment_warn, "correlation")


def eval_pnl(evaluation: Mapping[str, Any] | None, trivial: Sequence[str] = TRIVIAL, limits: Thresholds = THRESHOLDS) -> Signal:
    """Whether the headline evaluation earned money on days that it had not seen: the t-test of its days, with the number of trials allowed
    for, and its mean against the `trivial` baselines."""
    name = "eval_pnl"
    if evaluation is None:
        return Signal(name, UNKNOWN, "there is no greedy evaluation here: `sim eval` makes one")
    found = evaluation["statistics"]
    mean, p, by_luck = found["mean_day_usd_micros"], found["p"], found["p_best_of_trials"]
    days = counted(found["days"], "day")
    if p is None:
        return Signal(name, UNKNOWN, f"{format_usd(mean)} a day over {days}: too few or too equal to test", mean, None, "usd_micros")
    trials = counted(evaluation["trials"]["count"], "trial")
    told = f"{format_usd(mean)} a day over {days}, p {p:.3g}, {by_luck:.3g} as the best of {trials}"
    if p > limits.pnl_kill_p:
        return Signal(name, KILL, f"it loses: {told}", p, limits.pnl_kill_p, "p")
    better = [base for base in trivial if evaluation["baselines"][base]["mean_day_usd_micros"] >= mean]
    if by_luck < limits.pnl_pass_p and not better:
        return Signal(name, PASS, told, by_luck, limits.pnl_pass_p, "p")
    why = f"no better than the baseline {better[0]}" if better else "luck alone would do it too often"
    return Signal(name, WARN, f"{told}; {why}", by_luck, limits.pnl_pass_p, "p")


def consistency(largest_usd_micros: int, at: str, failed: Sequence[str], proof: str, limits: Thresholds = THRESHOLDS) -> Signal:
    """The computations of `sim verify` side by side, and its checks."""
    name, limit = "consistency", limits.consistency_kill_usd_micros
    value = (largest_usd_micros, limit, "usd_micros")
    if largest_usd_micros > limit:
        return Signal(name, KILL, f"two accounts of the same dollars differ by {format_usd(largest_usd_micros)} at {at}", *value)
    if failed:
        return Signal(name, KILL, f"the log does not hold: {failed[0]}", *value)
    if largest_usd_micros > limits.consistency_warn_usd_micros:
        return Signal(name, WARN, f"two accounts of the same dollars differ by {format_usd(largest_usd_micros)} at {at}", *value)
    return Signal(name, PASS, f"no two accounts of the same dollars differ; proof: {proof}", *value)


def leak(evaluation: Mapping[str, Any] | None, phase: Mapping[str, Any], days: int, limits: Thresholds = THRESHOLDS) -> Signal:
    """Whether the policy saw what it could not know. A high annualised Sharpe ratio alone only warns (seed K9), and only when twice its
    standard error, factor / sqrt(n) without skill (Lo, "The Statistics of Sharpe Ratios", 2002), does not explain it: an hour has any.
    Over fewer `days` (trade dates) than give a deviation a meaning it is not looked at, and the sentence says so.
    """
    name = "leak"
    found = evaluation.get("leak") if evaluation else None
    if found and found["days_trained_on"]:
        told = f"{counted(found['days_trained_on'], 'day')} of the evaluation had been trained on: its result is no evaluation"
        return Signal(name, KILL, told, found["days_trained_on"], 0, "days")
    if found and found["observations_differing"] + found["picks_differing"]:
        number = found["observations_differing"] + found["picks_differing"]
        told = f"with the future replaced, {counted(number, 'value')} seen or picked before it changed, first at decision {found['first']}"
        return Signal(name, KILL, told, number, 0, "decisions")
    sharpe, rest = phase["sharpe"], ""
    if sharpe is not None and days < limits.leak_fewest_days:
        rest = f"; annualised Sharpe ratio not computed: {counted(days, 'day')}"
    elif sharpe is not None and sharpe - 2 * _standard_error(phase) > limits.leak_warn_sharpe:
        told = f"an annualised Sharpe ratio of {sharpe:.1f} is too good to be true: look for what the policy should not see"
        return Signal(name, WARN, told, sharpe, limits.leak_warn_sharpe, "sharpe")
    if not found:
        return Signal(name, UNKNOWN, f"nothing tried to mislead it: `sim eval` does{rest}")
    told = f"with the future replaced, {counted(found['decisions_compared'], 'decision')} of the past saw and picked the same{rest}"
    return Signal(name, PASS, told, 0, 0, "decisions")


def _standard_error(phase: Mapping[str, Any]) -> float:
    """Of an account's annualised Sharpe ratio."""
    return phase["annualisation_factor"] / math.sqrt(phase["decisions"] / phase["lanes_in_steps"])


def collapse(phase: Mapping[str, Any], gates: Mapping[str, int], limits: Thresholds = THRESHOLDS) -> Signal:
    """Whether the policy stopped acting, and who stopped it. `phase` is one of a summary, `gates` how often each acted."""
    name, limit = "collapse", limits.collapse_warn_decisions_per_trade
    decisions, trades = phase["played_decisions"], phase["trades"]
    if not decisions:
        return Signal(name, UNKNOWN, "no decision was played")
    if trades is None:
        return Signal(name, UNKNOWN, "the log level keeps no trades")
    side, told = picked_against_actual(phase["picked_direction"], phase["actual_direction"], gates, limits)
    per_trade = decisions / trades if trades else None
    rate = f"one trade in {per_trade:,.0f} decisions" if per_trade else f"no trade in {counted(decisions, 'decision')}"
    if (per_trade or decisions) > limit:
        return Signal(name, WARN, f"{rate}: collapsed; {told}", per_trade, limit, "decisions per trade")
    if side is not None:
        return Signal(name, WARN, f"{rate}; {told}", per_trade, limit, "decisions per trade")
    if not trades:
        return Signal(name, UNKNOWN, f"{rate}: too few to tell; {told}", None, limit, "decisions per trade")
    return Signal(name, PASS, f"{rate}; {told}", per_trade, limit, "decisions per trade")


def picked_against_actual(
    picked: Mapping[str, int], actual: Mapping[str, int], gates: Mapping[str, int], limits: Thresholds = THRESHOLDS
) -> tuple[str | None, str]:
    """(who is at fault: "policy", "physics" or None, one sentence) from the counts of picked and actual directions over the whole window.

    Picks that are diverse and actions that are not: physics took them away. Picks that are concentrated themselves: the policy prefers it
    (seeds K3, K16, T15).
    """
    total = sum(picked.values())
    if not total or not sum(actual.values()):
        return None, "no direction was picked"
    share, done = ({name: counts[name] / sum(counts.values()) for name in DIRECTIONS} for counts in (picked, actual))
    moved = max(DIRECTIONS, key=lambda name: abs(share[name] - done[name]))
    most = max(DIRECTIONS, key=lambda name: share[name])
    if abs(share[moved] - done[moved]) > limits.drained_warn_share:
        acted = ", ".join(f"{name} {count:,}" for name, count in gates.items() if count) or "no gate was counted"
        return "physics", f"physics makes {done[moved]:.0%} {moved} of the {share[moved]:.0%} that are picked ({acted})"
    if share[most] >= limits.concentrated_share:
        return "policy", f"the policy picks {most} in {share[most]:.0%} of its decisions, and physics leaves it so"
    told = ", ".join(f"{name} {share[name]:.0%}" for name in DIRECTIONS)
    return None, f"picked {told}, and physics moves none by more than {abs(share[moved] - done[moved]):.1%}"


def non_finite(events: Sequence[tuple[int, str]], nulls: Sequence[tuple[int, str]], dumped: bool, finished: bool) -> Signal:
    """Values that were none: (step, sentence) of each event that says so, (step, column) where a figure of the learner has no value
    although it had updated, and whether a learner left the state in which it met one.
    """
    told = [*events, *((step, f"{column} is no number") for step, column in nulls)]
    if dumped and not told:
        told = [(-1, "an update of the learner met one and left its state in `faults`")]
    if told:
        step, sentence = min(told, key=lambda one: one[0])
        where = f"step {step}: " if step >= 0 else ""
        return Signal("non_finite", KILL, f"{where}{sentence}", len(told), 0, "values")
    rest = "" if finished else " so far: the run is unfinished"
    return Signal("non_finite", PASS, f"every number that was looked at is finite{rest}", 0, 0, "values")


def determinism(twins: Mapping[str, str | None]) -> Signal:
    """`twins`: other runs of the same identity -> the first difference from this one (None: none)."""
    name = "determinism"
    if not twins:
        return Signal(name, UNKNOWN, "no run of the same identity lies beside it: run it again, or `sim determinism`")
    for twin, difference in twins.items():
        if difference is not None:
            return Signal(name, KILL, f"{twin} has the same identity and another log: {difference}", 1, 0, "differences")
    return Signal(name, PASS, f"byte-equal to {', '.join(twins)}", 0, 0, "differences")


def regression(now: float | None, before: float | None, fell: bool) -> Signal:
    """The headline's Sharpe ratio per day against that of an earlier run, by the same selector, build and days (seed P3, lesson 45)."""
    name = "regression"
    if now is None or before is None:
        return Signal(
            name, UNKNOWN, "a Sharpe ratio per day is undefined: no greedy evaluation that can be read, too few days, or all equal"
        )
    told = f"Sharpe ratio per day {now:.3f}, was {before:.3f}"
    return Signal(name, KILL if fell else PASS, told + ("; it fell by more than half" if fell else ""), now, before, "sharpe per day")


def completion(finished: bool, ends: str, updates: int | None) -> Signal:
    """Whether the run is all that it set out to be. `ends` says where its log ends, `updates` how often its learner updated (None: it has
    none). What is cut short, or has learnt nothing, was not falsified, and is no result either."""
    name = "completion"
    if not finished:
        return Signal(name, WARN, f"the run did not finish: its log ends {ends}", updates, None, "updates")
    if updates == 0:
        return Signal(name, WARN, "nothing was learnt: the learner made no update", 0, 1, "updates")
    learnt = "" if updates is None else f", after {counted(updates, 'update')} of the learner"
    return Signal(name, PASS, f"the run went to its end{learnt}", updates, None if updates is None else 1, "updates")


def convergence(scores: Sequence[float], limits: Thresholds = THRESHOLDS) -> Signal:
    """Whether the validation scores of a training have settled (seed K11, T47). Not to have settled is no fault: it is UNKNOWN."""
    name, fewest, window = "convergence", limits.converged_fewest, limits.converged_window
    if len(scores) < fewest:
        return Signal(
            name, UNKNOWN, f"{counted(len(scores), 'validation')} so far; it is judged from {fewest} on", len(scores), fewest, "count"
        )
    last = scores[-window:]
    size = abs(math.fsum(last)) / window
    moved = max(last) - min(last)
    if moved < limits.converged_share * size:
        return Signal(
            name, PASS, f"the last {window} validations move by {moved / size:.1%}", moved / size, limits.converged_share, "share"
        )
    told = (
        f"the last {window} validations still move by {format_usd(round(moved * USD_MICROS))} about {format_usd(round(size * USD_MICROS))}"
    )
    return Signal(name, UNKNOWN, told, moved, None, "usd")
