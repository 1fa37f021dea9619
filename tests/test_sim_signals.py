"""Laws of the verdict's signals: what the recorded disasters would have been told, and what no correlation may be taken of."""

import math
import random

import pytest

from sim import signals
from sim.signals import (
    EQUITY_DELTA,
    KILL,
    LANES_PLAYED,
    PASS,
    REALIZED_DELTA,
    SCALED_REWARD,
    UNKNOWN,
    WARN,
    WHITENED_REWARD,
    Signal,
    collapse,
    completion,
    consistency,
    convergence,
    correlation,
    determinism,
    eval_pnl,
    leak,
    non_finite,
    objection,
    picked_against_actual,
    reward_alignment,
    worst,
)

USD = 10**6
NAMES = ("short", "hold", "long", "flat")


def counts(*shares: float) -> dict[str, int]:
    return {name: round(share * 10_000) for name, share in zip(NAMES, shares, strict=True)}


# --- reward alignment ---


def steps(dollars, reward, lanes=1):
    """Columns of `diag`: micro-dollars of equity, reward in millionths of the scale."""
    return {EQUITY_DELTA: dollars, SCALED_REWARD: reward, LANES_PLAYED: [lanes] * len(dollars)}


def test_a_reward_that_falls_when_dollars_rise_kills_and_one_that_follows_them_passes():
    draw = random.Random(1)
    dollars = [draw.randint(-500, 500) * USD for _ in range(400)]
    for factor, status in ((1, PASS), (-1, KILL)):
        shaped = [factor * value // 1000 + draw.randint(-50_000, 50_000) for value in dollars]
        assert reward_alignment(steps(dollars, shaped), True, 1000 * USD, 1).status == status
    loose = [value // 1000 + draw.randint(-(10**6), 10**6) for value in dollars]
    found = reward_alignment(steps(dollars, loose), True, 1000 * USD, 1)
    assert found.status == WARN and 0 < found.value < 0.5 and f"{found.value:+.3f}" in found.sentence


def test_the_seeds_disaster_of_opposite_signs_warns():
    """-$4,457,625 earned while the shaped reward summed to +$469k (T50)."""
    draw = random.Random(2)
    dollars = [draw.randint(-90_000, 90_000) * USD for _ in range(499)]
    dollars.append(-4_457_625 * USD - sum(dollars))
    reward = [value // 1000 for value in dollars]
    reward[7] += 469_000_000 - sum(reward)
    found = reward_alignment(steps(dollars, reward), True, 1000 * USD, 1)
    assert found.status == WARN and "disagree in sign: $469,000.00 of reward, $-4,457,625.00 earned" in found.sentence


def test_a_reward_that_nothing_shapes_is_never_correlated_but_has_to_be_the_dollars():
    dollars = [(-1) ** i * i * 12_500_000 for i in range(50)]
    exact = [value // 1000 for value in dollars]
    found = reward_alignment(steps(dollars, exact), False, 1000 * USD, 1)
    assert found.status == PASS and found.unit == "usd_micros" and "no correlation is taken" in found.sentence
    late = [0, *exact[:-1]]
    assert reward_alignment(steps(dollars, late), False, 1000 * USD, 1).status == KILL, "a reward that lags by one bar"
    scaled_twice = [value // 2 for value in exact]
    assert reward_alignment(steps(dollars, scaled_twice), False, 1000 * USD, 1).status == KILL


def test_a_drain_moves_dollars_that_nobody_is_rewarded_for():
    columns = steps([USD, 5 * USD, -USD], [1000, 0, -1000])
    assert reward_alignment(columns, False, 1000 * USD, 1).status == KILL
    columns[LANES_PLAYED] = [1, 0, 1]
    assert reward_alignment(columns, False, 1000 * USD, 1).status == PASS
    columns[LANES_PLAYED] = [0, 0, 0]
    assert reward_alignment(columns, False, 1000 * USD, 1).status == UNKNOWN


def test_no_signal_correlates_a_column_with_a_transform_of_itself():
    assert objection(SCALED_REWARD, EQUITY_DELTA, shaped=True) is None
    assert objection(SCALED_REWARD, REALIZED_DELTA, shaped=False) is None, "cash is counted apart from equity"
    assert "itself" in objection(EQUITY_DELTA, EQUITY_DELTA, shaped=True)
    assert "nothing but" in objection(SCALED_REWARD, EQUITY_DELTA, shaped=False)
    assert "nothing but" in objection(WHITENED_REWARD, EQUITY_DELTA, shaped=False)
    assert "does not count dollars" in objection(SCALED_REWARD, WHITENED_REWARD, shaped=True), "shaped against shaped: the seeds' +0.93"
    assert "nothing is declared" in objection("trading.pnl_cum_usd", EQUITY_DELTA, shaped=True)
    signals.PROVENANCE["shaped_dollars"] = signals._made("equity terms", "shape", is_usd=True)
    try:
        assert "same transform (shape)" in objection(SCALED_REWARD, "shaped_dollars", shaped=True)
    finally:
        del signals.PROVENANCE["shaped_dollars"]


def test_the_correlation_is_pearsons():
    assert correlation([1, 2, 3], [2, 4, 6]) == pytest.approx(1)
    assert correlation([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)
    assert correlation([10**15, 10**15 + 1, 10**15 + 2], [3, 2, 1]) == pytest.approx(-1)
    assert correlation([1, 1, 1], [1, 2, 3]) is None and correlation([1], [1]) is None


# --- consistency ---


@pytest.mark.parametrize(
    ("difference", "status"),
    [(0, PASS), (1, WARN), (180_000, WARN), (50 * USD, WARN), (50 * USD + 1, KILL), (4_926_625 * USD, KILL)],
)
def test_accounts_warn_from_one_micro_dollar_and_kill_beyond_fifty_dollars(difference, status):
    """$0.18 was the seeds' residue, $4,926,625 their lie (T28, D2)."""
    assert consistency(difference, "lane 0", [], "all five").status == status


def test_a_log_that_was_changed_kills_whatever_its_dollars_say():
    found = consistency(0, "", ["chain: FAILED at segments/1/fills.parquet"], "all five")
    assert found.status == KILL and "fills.parquet" in found.sentence


# --- picked against actual, collapse ---


def test_the_recorded_distributions_tell_physics_from_policy():
    """Shares of short, hold, long, flat as the seeds recorded them (K16)."""
    gates = {"kelly_cap": 5900, "trail_stop": 0}
    side, told = picked_against_actual(counts(0.19, 0.20, 0.39, 0.21), counts(0.0001, 0.20, 0, 0.7999), gates)
    assert side == "physics" and "kelly_cap 5,900" in told and "trail_stop" not in told
    collapsed = counts(0, 0.1953, 0.0001, 0.8046)
    side, told = picked_against_actual(collapsed, collapsed, gates)
    assert side == "policy" and "flat in 80%" in told
    for healthy in (counts(0.23, 0.17, 0.42, 0.18), counts(0.14, 0.35, 0.14, 0.37), counts(0.135, 0.358, 0.143, 0.364)):
        assert picked_against_actual(healthy, healthy, gates)[0] is None, "a saturated selector is no collapse (lesson 56)"
    near = counts(0.16, 0.36, 0.13, 0.35)
    assert picked_against_actual(counts(0.14, 0.35, 0.15, 0.36), near, gates)[0] is None, "within five points (T15)"
    assert picked_against_actual(counts(0, 0, 0, 0), counts(0, 0, 0, 0), gates)[0] is None


def phase(decisions: int, trades: int | None, direction=None):
    picks = direction or counts(0.25, 0.25, 0.25, 0.25)
    return {"played_decisions": decisions, "trades": trades, "picked_direction": picks, "actual_direction": picks}


@pytest.mark.parametrize(
    ("decisions", "trades", "status"),
    [
        (858_000, 34, WARN),
        (858_000, 22, WARN),
        (214_000, 1, WARN),
        (214_000, 0, WARN),
        (858_000, 1257, PASS),
        (10_000, 1, PASS),
        (10_001, 1, WARN),
        (500, 0, UNKNOWN),
        (0, 0, UNKNOWN),
        (5_000, None, UNKNOWN),
    ],
)
def test_the_collapse_alarm_rings_above_ten_thousand_decisions_a_trade(decisions, trades, status):
    """22 to 34 trades in 858,000 bars were stuck, 1,257 were not (K10, T42)."""
    assert collapse(phase(decisions, trades), {}).status == status


# --- the others ---


def evaluation(mean=500, p=0.001, by_luck=0.01, baselines=(-100, 20), **leak_found):
    found = {"days_trained_on": 0, "observations_differing": 0, "picks_differing": 0, "decisions_compared": 900, "first": None}
    return {
        "statistics": {"days": 20, "mean_day_usd_micros": mean * USD, "p": p, "p_best_of_trials": by_luck},
        "trials": {"count": 7},
        "baselines": {f"rule{i}": {"mean_day_usd_micros": value * USD} for i, value in enumerate(baselines)},
        "leak": found | leak_found,
    }


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, PASS),
        ({"by_luck": 0.3}, WARN),
        ({"baselines": (-100, 501)}, WARN),
        ({"mean": -500, "p": 0.96, "by_luck": 1.0}, KILL),
        ({"mean": -50, "p": 0.7, "by_luck": 1.0}, WARN),
        ({"p": None, "by_luck": None}, UNKNOWN),
    ],
)
def test_dollars_count_as_earned_when_neither_luck_nor_a_trivial_rule_explains_them(changes, status):
    found = eval_pnl(evaluation(**changes), ("rule0", "rule1"))
    assert found.status == status, found
    assert eval_pnl(None).status == UNKNOWN


def ratio(sharpe, decisions=214_654):
    """One-minute bars, 98,280 a year."""
    return {"sharpe": sharpe, "annualisation_factor": math.sqrt(98_280), "decisions": 2 * decisions, "lanes_in_steps": 2}


def test_a_high_sharpe_alone_only_warns_and_a_changed_past_kills():
    """141.99 at a drawdown of 0.32 % was a leak, but the figure did not prove it (K9)."""
    assert leak(evaluation(), ratio(3.0), 20).status == PASS
    assert leak(evaluation(), ratio(141.99), 20).status == WARN
    assert leak(None, ratio(141.99), 20).status == WARN
    assert leak(None, ratio(3.0), 20).status == UNKNOWN and leak(None, {"sharpe": None}, 20).status == UNKNOWN
    assert leak(evaluation(), ratio(60.0, decisions=60), 20).status == PASS, "an hour's Sharpe ratio of 60 is chance: its error is 40"
    assert leak(evaluation(picks_differing=1, first=40), ratio(3.0), 20).status == KILL
    assert leak(evaluation(observations_differing=900, first=0), {"sharpe": None}, 20).status == KILL
    assert "trained on" in leak(evaluation(days_trained_on=2), ratio(3.0), 20).sentence


@pytest.mark.parametrize(("days", "says"), [(1, "1 day"), (9, "9 days")])
def test_an_annualised_sharpe_of_fewer_than_ten_days_is_not_computed_and_the_sentence_says_so(days, says):
    for told, status in ((evaluation(), PASS), (None, UNKNOWN)):
        found = leak(told, ratio(141.99), days)
        assert found.status == status and found.sentence.endswith(f"; annualised Sharpe ratio not computed: {says}")
    assert leak(evaluation(), ratio(141.99), 10).status == WARN
    assert leak(evaluation(picks_differing=1, first=0), ratio(141.99), days).status == KILL


def test_what_did_not_finish_or_learnt_nothing_warns():
    assert completion(True, "", None).status == completion(True, "", 1).status == PASS
    assert "after 1,200 updates" in completion(True, "", 1_200).sentence
    assert completion(True, "", 0).status == WARN and "no update" in completion(True, "", 0).sentence
    for updates in (None, 0, 7):
        found = completion(False, "after step 40 of the run", updates)
        assert found.status == WARN and found.sentence == "the run did not finish: its log ends after step 40 of the run"


def test_values_that_are_none_kill_at_the_first_step_that_had_one():
    found = non_finite([(120, "lane 3: the loss is not finite"), (121, "again")], [], False, finished=False)
    assert found.status == KILL and found.value == 2 and found.sentence.startswith("step 120: lane 3")
    found = non_finite([(120, "later")], [(70, "learn.grad_norm"), (71, "learn.loss")], True, finished=True)
    assert found.status == KILL and found.sentence == "step 70: learn.grad_norm is no number"
    assert non_finite([], [], True, finished=False).status == KILL
    assert non_finite([], [], False, True).status == PASS and "unfinished" in non_finite([], [], False, False).sentence


def test_a_twin_that_differs_kills_and_none_is_no_proof():
    assert determinism({}).status == UNKNOWN
    assert determinism({"run-2": None}).status == PASS
    found = determinism({"run-2": None, "run-3": "table fills of segment 1"})
    assert found.status == KILL and found.sentence.startswith("run-3")


def test_the_gravest_signal_wins():
    assert worst([Signal("a", status, "") for status in (PASS, KILL, WARN)]).status == KILL
    assert worst([Signal("a", UNKNOWN, ""), Signal("b", PASS, "")]).status == UNKNOWN
    assert all(math.isfinite(signals.SEVERITY[status]) for status in (PASS, WARN, KILL, UNKNOWN))


def test_a_training_has_settled_after_sixty_validations_of_which_the_last_ten_differ_by_less_than_a_tenth():
    """K11, T47."""
    rising = [float(i) for i in range(50)]
    settled = [100.0, 104.0, 101.0, 99.0, 100.0, 102.0, 98.0, 100.0, 101.0, 100.0]
    assert convergence(rising + settled).status == PASS
    assert convergence((rising + settled)[1:]).status == UNKNOWN, "fifty-nine"
    assert convergence([*rising, *settled[:-1], 90.0]).status == UNKNOWN
    assert convergence(rising + [-value for value in settled]).status == PASS, "a steady loss has settled too"
    assert convergence(rising + [1.0, -1.0] * 5).status == UNKNOWN and convergence([]).status == UNKNOWN
    assert convergence([0.0] * 60).status == UNKNOWN, "a policy that stays flat has settled on nothing"
