"""Every threshold of `sim verdict`, in one place, each with its reason."""

from dataclasses import dataclass

from lob.units import USD_MICROS


@dataclass(frozen=True)
class Thresholds:
    """What a signal's number is held against."""

    consistency_kill_usd_micros: int = 50 * USD_MICROS
    """Beyond this, two accounts of the same dollars contradict each other whatever the cause (seed L4)."""

    consistency_warn_usd_micros: int = 0
    """Money is whole micro-dollars here, so any difference at all is a fault."""

    alignment_kill: float = 0.0
    """A reward that falls when the dollars of the same step rise teaches to lose them."""

    alignment_warn: float = 0.5
    """Below it shaping explains more of the reward's moves than dollars do (its square is a quarter)."""

    identity_ppm_per_lane: int = 10
    """A reward that nothing shapes is the step's dollars over the reward scale: float32 and rounding to millionths leave less than this."""

    pnl_pass_p: float = 0.05
    """Chance that luck alone earns as much, the number of trials allowed for, below which an evaluation's dollars count as earned."""

    pnl_kill_p: float = 0.95
    """Above it the policy loses money on days that it has not seen, at one-sided five percent."""

    leak_warn_sharpe: float = 20.0
    """Annualised; no book strategy has it after fees on a whole window. Too good to be true is no proof, so it only warns (seed K9)."""

    leak_fewest_days: int = 10
    """Days below which no annualised ratio is taken: a deviation of n values errs by 1 / sqrt(2 (n - 1)) of itself, at ten a quarter."""

    collapse_warn_decisions_per_trade: int = 10_000
    """A collapsed policy traded once in some 25,000 decisions, a healthy one once in 700 (seed K10, T42)."""

    drained_warn_share: float = 0.05
    """Share of decisions by which physics may move a direction before the verdict says that it, and not the policy, decides (seed T15)."""

    concentrated_share: float = 0.8
    """Share of one direction from which picks count as collapsed to it: the seeds' collapsed windows showed four fifths flat (K16)."""

    converged_fewest: int = 60
    """Validations before a training can count as settled: the seeds' 30 were withdrawn for 60 (K11)."""

    converged_window: int = 10
    """Last validations that are looked at (K11)."""

    converged_share: float = 0.1
    """They may differ by less than this share of their mean size (K11)."""


THRESHOLDS = Thresholds()
