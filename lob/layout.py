"""The observation layout: 128 named float32 slots, and the lane-state block. One assembler fills them for train, eval and replay.

Offsets 0-3 (returns), 40 (ADX), 41 (CUSUM), 66-73 (order-flow imbalance) and 74-81 (its deltas) are fixed by contract. Slots that
nothing fills yet are zero and named `unused_NNN`.
"""

import hashlib

STATE_DIM = 128

RETURNS = 0
ADX = 40
CUSUM = 41
OFI = 66
OFI_DELTA = 74
OFI_SLOTS = 8
LANE = 96
"""First slot of the lane's own state; everything below it comes from the market alone."""

_MARKET: dict[int, str] = {
    0: "log_return_1", 1: "log_return_5", 2: "log_return_15", 3: "log_return_60",
    4: "volatility_5", 5: "volatility_15", 6: "volatility_60", 7: "volatility_240",
    8: "spread_ticks", 9: "microprice_offset_ticks",
    **{10 + i: f"queue_imbalance_{i}" for i in range(10)},
    20: "imbalance_10", 21: "centre_of_mass_bid_ticks", 22: "centre_of_mass_ask_ticks", 23: "centre_of_mass_skew_ticks",
    24: "depth_slope_bid", 25: "depth_slope_ask", 26: "log_depth_bid", 27: "log_depth_ask",
    28: "trade_imbalance", 29: "signed_volume", 30: "log_volume", 31: "log_events",
    32: "session_sin", 33: "session_cos", 34: "session_elapsed", 35: "log_bar_duration_s", 36: "log_staleness_s",
    37: "atr_ticks", 38: "move_over_atr", 39: "range_over_atr",
    40: "adx", 41: "cusum", 42: "momentum_60",
    43: "imbalance_weighted", 44: "kyle_lambda_60", 45: "toxicity_60",
    **{OFI + i: f"ofi_{i}" for i in range(OFI_SLOTS)},
    **{OFI_DELTA + i: f"ofi_delta_{i}" for i in range(OFI_SLOTS)},
}  # fmt: skip

LANE_SLOTS = (
    "position_fraction", "position_sign", "unrealized_ticks_per_lot", "equity_return", "drawdown", "floor_distance",
    "trail_distance_ticks", "held", "realized_return", "margin_cap_fraction", "kelly_fraction", "win_rate", "trades_closed",
    "plan_lock_left", "last_direction", "fees_paid",
)  # fmt: skip

SLOTS: tuple[str, ...] = tuple(
    LANE_SLOTS[i - LANE] if LANE <= i < LANE + len(LANE_SLOTS) else _MARKET.get(i, f"unused_{i:03d}") for i in range(STATE_DIM)
)
"""Name of each of the 128 slots."""

OFFSET: dict[str, int] = {name: i for i, name in enumerate(SLOTS)}

BUS_SLOTS = 127
"""Width of the signal bus, the policy's second input; its slots are named by the controllers that write them."""


def layout_fingerprint() -> str:
    """64 hex digits over the slots' names and offsets; a checkpoint of another layout is refused by it."""
    return hashlib.sha256("\n".join(f"{i} {name}" for i, name in enumerate(SLOTS)).encode()).hexdigest()
