"""What a sceptic asks of a mean: an interval, a test, and a Sharpe ratio that knows how many others were tried.

Values are one whole number per independent unit: the result of a day in micro-dollars. Every function is total: a finite figure or an
`Undefined` with its reason. Sums of money are exact, sums of floats are `math.fsum`'s, so that no order of addition shows.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from sim.metrics import ZERO_VARIANCE, Figure, Undefined

TOO_FEW_DAYS = Undefined("fewer_than_two_days")
OTHER_DAYS = Undefined("not_the_same_days")
NO_TRIALS = Undefined("no_trials")
NO_SPREAD = Undefined("variance_of_the_sharpe_ratio_is_zero")

LEVEL = 0.95
DRAWS = 4_000
"""Resamples of a bootstrap: the ends of a 95 % interval then rest on a hundred resamples each side."""
SEED = 1
"""Of the bootstrap's draws: an interval is a function of the values alone."""
EULER = 0.57721566490153286061
"""The Euler-Mascheroni constant."""

_NORMAL = NormalDist()
_TINY = 1e-300
"""Stands for zero in a denominator of the continued fraction."""
_CLOSE = 1e-15
"""A factor that differs from one by less changes no bit that is looked at."""
_MOST_TERMS = 20_000
"""The continued fraction needs some sqrt(max(a, b)) terms: this is enough for a hundred million days."""


class Interval(NamedTuple):
    """Where the mean lies at `level`: whole micro-dollars, rounded outwards. `block` is the mean length of a resampled block, in days."""

    low: int
    high: int
    level: float
    draws: int
    block: int


class MeanTest(NamedTuple):
    """One-sided: `p` is the chance of a `t` this great when the true mean is zero."""

    mean: float
    t: float
    degrees: int
    p: float


class Moments(NamedTuple):
    """`sd` is the sample's (n - 1); skewness and kurtosis (3 for a normal) are the population's, as Bailey and Lopez de Prado take them."""

    mean: float
    sd: float
    skewness: float
    kurtosis: float


# --- distributions ---


def incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised I_x(a, b), a, b > 0, 0 <= x <= 1: the continued fraction of DLMF 8.17.22 by Lentz's method, as in Press et al., Numerical
    Recipes, 6.4."""
    if x <= 0.0:
        return 0.0
    if x >= 1.0:
        return 1.0
    if x > (a + 1) / (a + b + 2):
        return 1.0 - incomplete_beta(b, a, 1.0 - x)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)) / a
    fraction, c, d = 1.0, 1.0, 0.0
    for term in range(_MOST_TERMS):
        m = term // 2
        if term == 0:
            step = 1.0
        elif term % 2:
            step = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            step = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1.0 + step * d
        d = 1.0 / (d if abs(d) > _TINY else _TINY)
        c = 1.0 + step / c
        c = c if abs(c) > _TINY else _TINY
        fraction *= c * d
        if abs(c * d - 1.0) < _CLOSE:
            break
    return front * (fraction - 1.0)


def student_t_above(t: float, degrees: int) -> float:
    """P(T >= t) of Student's t with `degrees` >= 1 degrees of freedom (DLMF 8.17 with x = degrees / (degrees + t^2))."""
    half = incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t)) / 2
    return half if t > 0 else 1.0 - half


def student_t_quantile(above: float, degrees: int) -> float:
    """The t that is exceeded with probability `above`, 0 < above < 1, by bisection to the last bit but a few."""
    low, high = -1.0, 1.0
    while student_t_above(low, degrees) < above:
        low *= 2
    while student_t_above(high, degrees) > above:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if student_t_above(middle, degrees) > above else (low, middle)
    return (low + high) / 2


# --- of a mean ---


def moments(values: Sequence[int]) -> Moments | Undefined:
    """Of at least two values that are not all equal."""
    n = len(values)
    if n < 2:
        return TOO_FEW_DAYS
    if min(values) == max(values):
        return ZERO_VARIANCE
    mean = sum(values) / n
    off = [value - mean for value in values]
    second, third, fourth = (math.fsum(x**power for x in off) / n for power in (2, 3, 4))
    return Moments(mean, math.sqrt(second * n / (n - 1)), third / second**1.5, fourth / second**2)


def mean_test(values: Sequence[int]) -> MeanTest | Undefined:
    """Student's one-sided t-test of a mean above zero."""
    found = moments(values)
    if isinstance(found, Undefined):
        return found
    degrees = len(values) - 1
    t = found.mean / found.sd * math.sqrt(len(values))
    return MeanTest(found.mean, t, degrees, student_t_above(t, degrees))


def paired_test(values: Sequence[int], others: Sequence[int]) -> MeanTest | Undefined:
    """The same of the differences day by day: whether `values` are above `others`."""
    if len(values) != len(others):
        return OTHER_DAYS
    return mean_test([int(a) - int(b) for a, b in zip(values, others, strict=True)])


def block_length(n: int) -> int:
    """Mean block of a bootstrap over n days: n^(1/3), the order that Hall, Horowitz and Jing (1995) find best for a variance."""
    return max(1, math.ceil(round(n ** (1 / 3), 9)))


def mean_interval(values: Sequence[int], level: float = LEVEL, draws: int = DRAWS, seed: int = SEED) -> Interval | Undefined:
    """Interval of the mean by the stationary bootstrap of Politis and Romano (1994): blocks of geometric length, wrapped around the end.

    Its ends are percentiles of the resampled means, moved outwards for few days as Hesterberg's expanded percentile interval
    ("What Teachers Should Know About the Bootstrap", 2015) has them, since a plain one covers too little. Sums are whole numbers, so the
    ends are exact functions of the draws.
    """
    n = len(values)
    if n < 2:
        return TOO_FEW_DAYS
    most = max(abs(int(value)) for value in values)
    exact = np.array([int(value) for value in values], np.int64 if most * n < 2**62 else object)
    block = block_length(n)
    rng = np.random.Generator(np.random.PCG64(seed))
    first = rng.integers(0, n, (draws, n))
    begins = rng.random((draws, n)) * block < 1.0
    begins[:, 0] = True
    place = np.arange(n)
    begun = np.maximum.accumulate(np.where(begins, place, 0), axis=1)
    sums = np.sort(exact[(np.take_along_axis(first, begun, axis=1) + place - begun) % n].sum(axis=1))
    tail = _NORMAL.cdf(-math.sqrt(n / (n - 1)) * student_t_quantile((1 - level) / 2, n - 1))
    beyond = min(int(tail * draws), draws // 2)
    return Interval(int(sums[beyond]) // n, -(-int(sums[draws - 1 - beyond]) // n), level, draws, block)


# --- of a Sharpe ratio ---


def sharpe_per_day(values: Sequence[int]) -> Figure:
    """Mean over sample deviation of the days. Capital cancels, so it is that of the returns on it."""
    found = moments(values)
    return found if isinstance(found, Undefined) else found.mean / found.sd


def probabilistic_sharpe(values: Sequence[int], benchmark: float = 0.0) -> Figure:
    """Probability that the true Sharpe ratio per day exceeds `benchmark`, skewness and kurtosis allowed for: Bailey and Lopez de Prado,
    "The Sharpe Ratio Efficient Frontier" (2012), equation 11."""
    found = moments(values)
    if isinstance(found, Undefined):
        return found
    return sharpe_probability(found.mean / found.sd, benchmark, len(values), found.skewness, found.kurtosis)


def sharpe_probability(sharpe: float, benchmark: float, n: int, skewness: float, kurtosis: float) -> Figure:
    """The same from the moments of n returns; `kurtosis` is 3 for a normal."""
    variance = 1 - skewness * sharpe + (kurtosis - 1) / 4 * sharpe**2
    if n < 2:
        return TOO_FEW_DAYS
    if variance <= 0:
        return NO_SPREAD
    return _NORMAL.cdf((sharpe - benchmark) * math.sqrt(n - 1) / math.sqrt(variance))


def expected_maximum(trials: int) -> float:
    """Expected greatest of `trials` independent standard normals, nearly: Bailey and Lopez de Prado (2014), equation 1; 0 for one."""
    if trials < 2:
        return 0.0
    return (1 - EULER) * _NORMAL.inv_cdf(1 - 1 / trials) + EULER * _NORMAL.inv_cdf(1 - 1 / (trials * math.e))


def deflated_sharpe(values: Sequence[int], trials: int, variance: float | None = None) -> Figure:
    """Probability that the true Sharpe ratio per day exceeds what the best of `trials` strategies without skill would show: Bailey and
    Lopez de Prado, "The Deflated Sharpe Ratio" (2014), equation 2.

    `variance` is that of the trials' Sharpe ratios per day; None takes 1 / (n - 1), which is what luck alone gives them.
    """
    if trials < 1:
        return NO_TRIALS
    if len(values) < 2:
        return TOO_FEW_DAYS
    spread = 1 / (len(values) - 1) if variance is None else variance
    return probabilistic_sharpe(values, math.sqrt(spread) * expected_maximum(trials))


def best_of_trials(p: Figure, trials: int) -> Figure:
    """Chance that the best of `trials` independent tests is as small as `p` by luck: 1 - (1 - p)^trials (Sidak, 1967)."""
    if isinstance(p, Undefined):
        return p
    if trials < 1:
        return NO_TRIALS
    return 1.0 if p >= 1 else -math.expm1(trials * math.log1p(-p))
