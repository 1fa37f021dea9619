"""Sizing gates and average-cost accounting, in integers. Plain Python, njit and CUDA from this one text.

Products stay below 2^63 by the limits of `cuda_env.config`; where a share of a cost is taken, the quotient is split first.
"""

from lob.actions import MAGNITUDE_PPM
from lob.jit import scalar

PPM = 1_000_000
PPM_SQUARED = PPM * PPM
QUARTER_PPM, HALF_PPM, FULL_PPM = MAGNITUDE_PPM
LOTS_LIMIT = 2**31 - 1
"""What the int32 column of a lot count holds; a margin cap above it is logged as this."""
KELLY_SUM_LIMIT = 2**43
"""Above this a sum times 10^6 would leave int64."""


@scalar
def share(amount, part, whole):
    """floor(amount * part / whole) for 0 <= part <= whole <= 10^6, without the product: the whole quotient first, then the rest."""
    quotient = amount // whole
    return quotient * part + (amount - quotient * whole) * part // whole


@scalar
def scaled_lots(magnitude, variance_scale_ppm, max_lots):
    """Gate 2: lots that a magnitude asks for, shrunk by the variance scale; at least 1 (C16)."""
    magnitude_ppm = QUARTER_PPM
    if magnitude == 1:
        magnitude_ppm = HALF_PPM
    elif magnitude == 2:
        magnitude_ppm = FULL_PPM
    return max(1, magnitude_ppm * variance_scale_ppm * max_lots // PPM_SQUARED)


@scalar
def margin_cap_lots(equity, margin):
    """Gate 3: lots that the equity carries, 0 when it is negative (C12)."""
    if equity <= 0:
        return 0
    return min(equity // margin, LOTS_LIMIT)


@scalar
def kelly_ppm(wins, losses, sum_win, sum_loss):
    """Kelly fraction (b*p - q)/b of closed trades in ppm, floored, never negative; b = average win / average loss (C4).

    Equal to p * (sum_win - sum_loss) / sum_win; no trade, or none that gained, gives 0.
    """
    if sum_loss >= sum_win:
        return 0
    while sum_win >= KELLY_SUM_LIMIT:
        sum_win >>= 1
        sum_loss >>= 1
    return wins * ((sum_win - sum_loss) * PPM // sum_win) // (wins + losses)


@scalar
def safety_ppm(health_ppm):
    """0.5 + 0.5 * health (C7)."""
    return PPM // 2 + health_ppm // 2


@scalar
def kelly_cap_lots(kelly, conviction_ppm, health_ppm, max_lots):
    """Gate 4: max(kelly, conviction, safety) * safety * max_lots, at least 1 (C8, C9)."""
    safety = safety_ppm(health_ppm)
    return max(1, max(kelly, conviction_ppm, safety) * safety * max_lots // PPM_SQUARED)


@scalar
def magnitude_bin(position, max_lots):
    """|position| / max_lots: below 0.375 quarter (0), below 0.75 half (1), else full (2) (C17)."""
    size = abs(position)
    if 8 * size < 3 * max_lots:
        return 0
    if 4 * size < 3 * max_lots:
        return 1
    return 2


@scalar
def unrealized(position, cost_ticks, mid2, tick_value):
    """Open position at mid against its cost, micro-dollars. The tick value is even, so its half is whole."""
    return (position * mid2 - 2 * cost_ticks) * (tick_value // 2)


@scalar
def trail_met(position, mid2, trail_mid2):
    """Whether a mark is at or beyond the stop of an open position."""
    if position > 0:
        return mid2 <= trail_mid2
    return position < 0 and mid2 >= trail_mid2
