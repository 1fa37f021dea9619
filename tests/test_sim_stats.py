"""Laws of the statistics: tabulated and published values, honest coverage, and what two hundred trials on noise may claim."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim import stats
from sim.metrics import ZERO_VARIANCE, Undefined
from sim.stats import (
    best_of_trials,
    block_length,
    deflated_sharpe,
    expected_maximum,
    incomplete_beta,
    mean_interval,
    mean_test,
    moments,
    paired_test,
    probabilistic_sharpe,
    sharpe_probability,
    student_t_above,
    student_t_quantile,
)

TICK_USD_MICROS = 12_500_000

# One-sided 5 %, 2.5 %, 0.5 % and 0.05 % points of Student's t (the table at the end of any book of statistics).
T_TABLE = {
    1: (6.314, 12.706, 63.657, 636.619),
    2: (2.920, 4.303, 9.925, 31.599),
    4: (2.132, 2.776, 4.604, 8.610),
    9: (1.833, 2.262, 3.250, 4.781),
    19: (1.729, 2.093, 2.861, 3.883),
    29: (1.699, 2.045, 2.756, 3.659),
    120: (1.658, 1.980, 2.617, 3.373),
}


@pytest.mark.parametrize("degrees", T_TABLE)
def test_student_t_has_the_points_of_the_printed_table(degrees):
    for above, point in zip((0.05, 0.025, 0.005, 0.0005), T_TABLE[degrees], strict=True):
        assert student_t_quantile(above, degrees) == pytest.approx(point, abs=6e-4)
        assert student_t_above(student_t_quantile(above, degrees), degrees) == pytest.approx(above, rel=1e-9)
        assert student_t_quantile(1 - above, degrees) == pytest.approx(-student_t_quantile(above, degrees), rel=1e-6)


@pytest.mark.parametrize("t", [-40.0, -3.0, -0.4, 0.0, 0.2, 1.0, 6.0, 200.0])
def test_student_t_of_one_and_two_degrees_is_its_closed_form(t):
    assert student_t_above(t, 1) == pytest.approx(0.5 - math.atan(t) / math.pi, rel=1e-11)
    assert student_t_above(t, 2) == pytest.approx((1 - t / math.sqrt(2 + t * t)) / 2, rel=1e-9)


@pytest.mark.parametrize(("a", "b"), [(1, 1), (3, 4), (7, 2), (12, 30)])
def test_incomplete_beta_of_whole_numbers_is_its_binomial_sum(a, b):
    """I_x(a, b) = P(a binomial of a + b - 1 trials of chance x reaches a), DLMF 8.17.5, in fractions."""
    for x in (Fraction(1, 100), Fraction(1, 3), Fraction(1, 2), Fraction(9, 10)):
        n = a + b - 1
        exact = sum(math.comb(n, j) * x**j * (1 - x) ** (n - j) for j in range(a, n + 1))
        assert incomplete_beta(a, b, float(x)) == pytest.approx(float(exact), rel=1e-12)
    assert (incomplete_beta(a, b, 0.0), incomplete_beta(a, b, 1.0)) == (0.0, 1.0)


def test_distributions_agree_with_scipy_where_it_is_installed():
    special, distributions = pytest.importorskip("scipy.special"), pytest.importorskip("scipy.stats")
    for a, b in ((0.5, 0.5), (2.5, 0.5), (100, 0.5), (1e4, 50)):
        for x in (1e-9, 0.01, 0.3, 0.5, 0.8, 0.999):
            assert incomplete_beta(a, b, x) == pytest.approx(special.betainc(a, b, x), rel=1e-9, abs=1e-290)
    for degrees in (1, 5, 19, 1000):
        for t in (-6.0, -1.0, 0.3, 2.0, 9.0):
            assert student_t_above(t, degrees) == pytest.approx(distributions.t.sf(t, degrees), rel=1e-9)


def test_a_t_test_by_hand():
    """1, 2, 3, 4: mean 2.5, sd sqrt(5/3), t = 2.5 / sqrt(5/12) = sqrt(15), and a t of three degrees has a closed form."""
    found = mean_test([1, 2, 3, 4])
    assert not isinstance(found, Undefined)
    assert (found.mean, found.degrees) == (2.5, 3) and found.t == pytest.approx(math.sqrt(15), rel=1e-14)
    angle = math.atan(math.sqrt(15) / math.sqrt(3))
    assert found.p == pytest.approx(0.5 - (angle + math.sin(angle) * math.cos(angle)) / math.pi, rel=1e-10)


def test_days_are_compared_in_pairs_and_never_with_other_days():
    same_market = [100, -400, 250, 90]
    ahead = [day + gain for day, gain in zip(same_market, (1, 2, 3, 4), strict=True)]
    assert paired_test(ahead, same_market) == mean_test([1, 2, 3, 4])
    assert paired_test(ahead, same_market[:3]) == stats.OTHER_DAYS
    assert paired_test(same_market, same_market) == ZERO_VARIANCE


def test_moments_are_those_of_a_worked_example():
    """0, 0, 3: mean 1, deviations -1, -1, 2; second 2, third 2, fourth 6."""
    found = moments([0, 0, 3])
    assert not isinstance(found, Undefined)
    assert found == pytest.approx((1, math.sqrt(3), 2 / 2**1.5, 1.5))


def test_the_deflated_sharpe_ratio_gives_the_figures_of_its_paper():
    """Bailey and Lopez de Prado (2014), "A numerical example": Sharpe 2.5 a year, 1,250 days, a hundred trials of variance 1/2 a year."""
    daily = 2.5 / math.sqrt(250)
    for trials, skewness, kurtosis, benchmark, expected in (
        (100, -3, 10, 0.1132, 0.9004),
        (46, -3, 10, None, 0.9505),
        (88, 0, 3, None, 0.9505),
    ):
        threshold = math.sqrt(0.5 / 250) * expected_maximum(trials)
        assert benchmark is None or threshold == pytest.approx(benchmark, abs=5e-5)
        assert sharpe_probability(daily, threshold, 1250, skewness, kurtosis) == pytest.approx(expected, abs=5e-5)


def test_the_expected_maximum_is_what_a_million_draws_find():
    rng = np.random.default_rng(3)
    assert expected_maximum(1) == 0.0
    for trials in (5, 20, 200):
        drawn = rng.standard_normal((20_000, trials)).max(axis=1).mean()
        assert expected_maximum(trials) == pytest.approx(drawn, abs=0.05)


def test_more_trials_deflate_more_and_one_trial_deflates_nothing():
    days = np.random.default_rng(1).normal(300, 1000, 60).astype(int).tolist()
    found = [deflated_sharpe(days, trials) for trials in (1, 2, 10, 1000)]
    assert found[0] == probabilistic_sharpe(days)
    assert found == sorted(found, reverse=True) and found[0] > 0.9 > 0.2 > found[-1]
    assert deflated_sharpe(days, 10, variance=0.0) == found[0]
    assert deflated_sharpe(days, 0) == stats.NO_TRIALS


def noise_trials(rng: np.random.Generator, days: int, trials: int) -> np.ndarray:
    """int64[trials, days] micro-dollars: positions drawn anew each minute on one market whose price moves by whole ticks without drift."""
    moves = rng.integers(-2, 3, (days, 60))
    positions = rng.integers(-1, 2, (trials, days, 60))
    return np.einsum("tdm,dm->td", positions, moves) * TICK_USD_MICROS


def best_by_sharpe(trials: np.ndarray) -> list[int]:
    return trials[np.argmax(trials.mean(axis=1) / trials.std(axis=1, ddof=1))].tolist()


def test_the_best_of_two_hundred_trials_on_noise_has_a_uniform_p_and_a_deflated_sharpe_that_claims_nothing():
    rng = np.random.default_rng(20)
    naive, honest, deflated = [], [], []
    for _ in range(250):
        best = best_by_sharpe(noise_trials(rng, 20, 200))
        test = mean_test(best)
        assert not isinstance(test, Undefined)
        naive.append(test.p)
        honest.append(best_of_trials(test.p, 200))
        deflated.append(deflated_sharpe(best, 200))
    n = len(honest)
    ordered = np.sort(honest)
    distance = max((np.arange(1, n + 1) / n - ordered).max(), (ordered - np.arange(n) / n).max())
    assert distance < 1.95 / math.sqrt(n), "Kolmogorov and Smirnov's distance from the uniform, at one in a thousand"
    assert np.mean(np.array(naive) < 0.05) > 0.99, "without the count of trials nearly every best one looks significant"
    assert np.mean(np.array(deflated) > 0.95) < 0.05 and 0.35 < np.mean(deflated) < 0.75


def test_one_trial_on_noise_has_a_uniform_p():
    rng = np.random.default_rng(21)
    ps = np.sort([found.p for found in map(mean_test, noise_trials(rng, 20, 400).tolist()) if not isinstance(found, Undefined)])
    n = len(ps)
    assert max((np.arange(1, n + 1) / n - ps).max(), (ps - np.arange(n) / n).max()) < 1.95 / math.sqrt(n)


def test_a_planted_edge_is_found_among_two_hundred_trials():
    rng = np.random.default_rng(22)
    for _ in range(10):
        trials = noise_trials(rng, 20, 200)
        trials[17] += 20 * TICK_USD_MICROS  # some two deviations a day
        best = best_by_sharpe(trials)
        test = mean_test(best)
        assert best == trials[17].tolist() and not isinstance(test, Undefined)
        assert deflated_sharpe(best, 200) > 0.95 and best_of_trials(test.p, 200) < 0.01


def test_an_interval_holds_the_true_mean_about_as_often_as_it_says():
    rng = np.random.default_rng(5)
    samples = rng.normal(0, 1e9, (300, 20)).astype(np.int64).tolist()
    held = [interval.low <= 0 <= interval.high for interval in (mean_interval(days, draws=800) for days in samples)]
    assert 0.85 < np.mean(held) < 0.99


def test_blocks_widen_the_interval_of_days_that_follow_one_another():
    """Days that come in runs of eight: eighty of them are worth ten, and resampling single days would not see it."""
    runs = np.repeat(np.random.default_rng(6).normal(0, 1e9, 10), 8).astype(np.int64).tolist()
    scattered = np.random.default_rng(7).permutation(runs).tolist()
    with_runs, without = mean_interval(runs), mean_interval(scattered)
    assert not isinstance(with_runs, Undefined) and not isinstance(without, Undefined)
    assert with_runs.high - with_runs.low > 1.5 * (without.high - without.low)


def test_resampled_blocks_are_those_that_the_draws_name():
    """Against the procedure step by step: begin anywhere with chance 1 / block, else go on to the next day, around the end."""
    days = [5, -3, 8, 1, -9, 4, 2]
    found = mean_interval(days, draws=50, seed=9)
    assert not isinstance(found, Undefined)
    rng = np.random.Generator(np.random.PCG64(9))
    first, chance = rng.integers(0, 7, (50, 7)), rng.random((50, 7))
    sums = []
    for draw in range(50):
        at, total = 0, 0
        for place in range(7):
            begins = place == 0 or chance[draw, place] * found.block < 1
            at = int(first[draw, place]) if begins else (at + 1) % 7
            total += days[at]
        sums.append(total)
    sums.sort()
    assert (found.low, found.high) in [(sums[i] // 7, -(-sums[49 - i] // 7)) for i in range(3)], "the ends cut off 2.5 % at most"


def test_an_interval_is_the_same_every_time_and_whole_micro_dollars():
    days = [10**15 + i * 777 for i in range(30)]
    assert mean_interval(days) == mean_interval(list(days))
    shifted = mean_interval([day + 10**6 for day in days])
    plain = mean_interval(days)
    assert not isinstance(plain, Undefined) and not isinstance(shifted, Undefined)
    assert (shifted.low - plain.low, shifted.high - plain.high) == (10**6, 10**6)
    huge = mean_interval([2**61, 2**61 - 1, 2**61 - 5])
    assert not isinstance(huge, Undefined) and 2**61 - 5 <= huge.low <= huge.high <= 2**61


@pytest.mark.parametrize(("days", "block"), [(2, 2), (8, 2), (20, 3), (27, 3), (64, 4), (1000, 10)])
def test_blocks_grow_with_the_cube_root_of_the_days(days, block):
    assert block_length(days) == block


def test_a_chance_by_luck_grows_with_the_trials_by_hand():
    assert best_of_trials(0.5, 2) == pytest.approx(0.75)
    assert best_of_trials(0.01, 100) == pytest.approx(1 - 0.99**100, rel=1e-12)
    assert best_of_trials(1e-18, 10) == pytest.approx(1e-17, rel=1e-9)
    assert best_of_trials(1.0, 3) == 1.0 and best_of_trials(0.0, 3) == 0.0
    assert best_of_trials(ZERO_VARIANCE, 3) == ZERO_VARIANCE and best_of_trials(0.5, 0) == stats.NO_TRIALS


@given(st.lists(st.integers(-(2**62), 2**62), max_size=6), st.integers(0, 3))
def test_every_statistic_is_total(days, trials):
    found = [
        moments(days),
        mean_test(days),
        paired_test(days, [0] * len(days)),
        mean_interval(days, draws=40),
        stats.sharpe_per_day(days),
        probabilistic_sharpe(days),
        deflated_sharpe(days, trials),
    ]
    for figure in found:
        values = [] if isinstance(figure, Undefined) else figure if isinstance(figure, tuple) else [figure]
        assert all(math.isfinite(value) for value in values)
