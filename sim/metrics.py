"""Performance figures as total functions: whatever goes in, a finite number or an `Undefined` with a reason code comes out.

Money in and out is integer micro-dollars; ratios are float64. No NaN or Infinity leaves this module.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RETURN_FLOOR = 1e-10
"""Least `1 + r` of one step in the compounded return (seed D11): a bankrupt step counts as -100 %, not as a logarithm of nothing."""


@dataclass(frozen=True)
class Undefined:
    """Why a figure has no value. `code` is stable; it stands beside the null in every output."""

    code: str


Figure = float | int | Undefined

NO_STEPS = Undefined("no_steps")
NO_TRADES = Undefined("no_trades")
LEVEL_HAS_NO_STEPS = Undefined("level_has_no_steps")
LEVEL_HAS_NO_TRADES = Undefined("level_has_no_trades")
ZERO_VARIANCE = Undefined("zero_variance")
TOO_FEW_RETURNS = Undefined("fewer_than_two_returns")
EQUITY_NOT_POSITIVE = Undefined("equity_not_positive")
NO_LOSS = Undefined("no_losing_trade")
NO_TIME = Undefined("no_session_time")


def ratio(numerator: int | float, denominator: int | float, otherwise: Undefined) -> Figure:
    return numerator / denominator if denominator else otherwise


def step_returns(equity_usd_micros: np.ndarray) -> np.ndarray | Undefined:
    """float64[n-1] simple returns of an equity series int64[n] whose first value is the initial equity.

    Undefined once equity is not positive before a step: a return on nothing, or on debt, has no meaning.
    """
    if len(equity_usd_micros) < 2:
        return NO_STEPS
    before = equity_usd_micros[:-1]
    if (before <= 0).any():
        return EQUITY_NOT_POSITIVE
    return np.diff(equity_usd_micros) / before


def compounded_return(returns: np.ndarray | Undefined) -> Figure:
    """`expm1(sum(log(max(1 + r, 1e-10))))`: the product of 1 + r, minus one, bounded below by -100 % (seed D11)."""
    if isinstance(returns, Undefined):
        return returns
    return math.expm1(float(np.log(np.maximum(1.0 + returns, RETURN_FLOOR)).sum()))


def annualisation_factor(steps: int, session_ns: int, session_ns_per_year: int) -> Figure:
    """sqrt(steps per year): the one factor between a per-step and a yearly Sharpe ratio.

    Steps per year come from actual session time: `steps` decisions took `session_ns` of open market, and a year has
    `session_ns_per_year` of it. Nights, weekends and holidays count on neither side.
    """
    if steps < 1:
        return NO_STEPS
    if session_ns <= 0 or session_ns_per_year <= 0:
        return NO_TIME
    return math.sqrt(steps * session_ns_per_year / session_ns)


def sharpe(returns: np.ndarray | Undefined, factor: Figure) -> Figure:
    """Mean over sample deviation (n - 1) of the per-step returns, flat steps included, times `factor`. No risk-free rate."""
    if isinstance(returns, Undefined):
        return returns
    if len(returns) < 2:
        return TOO_FEW_RETURNS
    mean = float(returns.sum()) / len(returns)
    variance = float(((returns - mean) ** 2).sum()) / (len(returns) - 1)
    if variance == 0.0 or np.ptp(returns) == 0.0:
        return ZERO_VARIANCE
    return annualised(mean / math.sqrt(variance), factor)


def annualised(per_step: Figure, factor: Figure) -> Figure:
    """A per-step ratio times the annualisation factor."""
    if isinstance(per_step, Undefined):
        return per_step
    return factor if isinstance(factor, Undefined) else per_step * factor


def max_drawdown_usd_micros(equity_usd_micros: np.ndarray) -> int:
    """Greatest fall from a running peak; the series begins with the initial equity, so that a loss from the start counts."""
    if not len(equity_usd_micros):
        return 0
    return int((np.maximum.accumulate(equity_usd_micros) - equity_usd_micros).max())


def max_drawdown_fraction(equity_usd_micros: np.ndarray) -> Figure:
    """Greatest fall over its own peak; may exceed 1 when equity goes below zero."""
    if not len(equity_usd_micros):
        return NO_STEPS
    peak = np.maximum.accumulate(equity_usd_micros)
    if peak[0] <= 0:
        return EQUITY_NOT_POSITIVE
    return float(((peak - equity_usd_micros) / peak).max())


def entropy(counts: Sequence[int], otherwise: Undefined = NO_STEPS) -> Figure:
    """Shannon entropy of the counts' shares, in nats: ln n when n outcomes are equally frequent, 0 when there is only one."""
    total = sum(counts)
    if total == 0:
        return otherwise
    return abs(math.fsum(-count / total * math.log(count / total) for count in counts if count))
