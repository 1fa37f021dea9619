"""The few structures that a kernel takes: the market's arrays, the decision plan, the parameters, the picks and the outputs."""

from typing import Any, NamedTuple

import numpy as np

from cuda_env.config import EnvConfig
from lob.instruments import Instrument
from lob.tape import Schedule, Tape
from lob.windows import Closes, window_of


class Market(NamedTuple):
    """The tape as physics reads it. E events, L levels."""

    ts_event: Any  # int64[E]
    bid_ticks: Any  # int32[E, L]
    ask_ticks: Any  # int32[E, L]
    bid_lots: Any  # int32[E, L]
    ask_lots: Any  # int32[E, L]
    tradable: Any  # int8[E]
    point: Any  # int8[E]


def market_arrays(tape: Tape) -> Market:
    """The tape's arrays, without a copy where they are contiguous."""
    return Market(
        np.ascontiguousarray(tape.ts_event_ns),
        np.ascontiguousarray(tape.bid_ticks),
        np.ascontiguousarray(tape.ask_ticks),
        np.ascontiguousarray(tape.bid_lots),
        np.ascontiguousarray(tape.ask_lots),
        np.ascontiguousarray(tape.tradable).view(np.int8),
        np.ascontiguousarray(tape.point),
    )


PLAN = (
    "ts_decided", "observed_event", "mark_event", "mark_mid2", "fill_event", "ts_filled", "low_held", "high_held", "low_after",
    "high_after", "closes_session", "last_row", "final_reason", "close_event",
)  # fmt: skip
"""Columns of the plan, int64[R, columns]: one row of the schedule lies in two or three cache lines. `last_row` is the drain row of the
row's window; a lane that plays no further before the row closes at `close_event`."""

(
    TS_DECIDED, OBSERVED, MARK_EVENT, MARK_MID2, FILL_EVENT, TS_FILLED, LOW_HELD, HIGH_HELD, LOW_AFTER, HIGH_AFTER, CLOSES, LAST_ROW,
    FINAL_REASON, CLOSE_EVENT,
) = range(len(PLAN))  # fmt: skip


def plan_array(tape: Tape, schedule: Schedule, closes: Closes) -> np.ndarray:
    """int64[R, 14] of a schedule; the columns that a drain does not have are 0 in its row."""
    plan = np.zeros((schedule.rows, len(PLAN)), np.int64)
    mark, window = schedule.mark_event, window_of(schedule)
    plan[:, TS_DECIDED] = schedule.ts_decided_ns
    plan[:, OBSERVED] = schedule.observed_event
    plan[:, MARK_EVENT] = mark
    plan[:, MARK_MID2] = tape.bid_ticks[mark, 0].astype(np.int64) + tape.ask_ticks[mark, 0]
    plan[:, FILL_EVENT] = schedule.fill_event
    plan[:, TS_FILLED] = schedule.ts_filled_ns
    plan[:-1, LOW_HELD] = schedule.low_held_mid2
    plan[:-1, HIGH_HELD] = schedule.high_held_mid2
    plan[:-1, LOW_AFTER] = schedule.low_after_mid2
    plan[:-1, HIGH_AFTER] = schedule.high_after_mid2
    plan[:-1, CLOSES] = schedule.closes_session
    plan[:, LAST_ROW] = window.last_row
    plan[:, FINAL_REASON] = window.final_reason
    plan[:, CLOSE_EVENT] = closes.event
    return plan


PARAMS = (
    "lanes", "first_lane", "drains", "tick_value", "fee", "margin", "capital", "max_lots", "floor", "trail_ticks", "plan_lock", "chunk",
    "seed",
)  # fmt: skip
"""Entries of the parameter vector, int64. `drains`: 1 when the step after a lane's last decision drains it; 0 when `drain` does, for all
lanes together. `first_lane`: number of the first lane among those of all processes; `seed`: of the restarts, its 64 bits as they are."""

(
    LANES, FIRST_LANE, DRAINS, TICK_VALUE, FEE, MARGIN, INITIAL, MAX_LOTS, FLOOR, TRAIL_TICKS, PLAN_LOCK, CHUNK_LANES, SEED,
) = range(len(PARAMS))  # fmt: skip


def params_vector(
    config: EnvConfig, instrument: Instrument, lanes: int, first_lane: int, drains: bool, chunk: int, seed: int
) -> np.ndarray:
    """int64[13]: what a resolved configuration means to physics. `seed` < 2^64."""
    values = [
        lanes, first_lane, int(drains), instrument.tick_value_usd_micros, config.fee_usd_micros, config.margin_usd_micros,
        config.capital_usd_micros, config.max_lots, config.floor_usd_micros, config.trail_ticks, config.plan_lock_steps, chunk,
        seed - 2**64 if seed >= 2**63 else seed,
    ]  # fmt: skip
    return np.array(values, np.int64)


class Out(NamedTuple):
    """What a step writes. A table that is not emitted is an array of zero lanes, and nothing is written to it."""

    reward: Any  # int64[lanes]
    end_reason: Any  # int8[lanes]
    terminated: Any  # uint8[lanes]
    truncated: Any  # uint8[lanes]
    fault: Any  # int8[lanes], one of FAULTS; stays
    row: Any  # int64[lanes]: row of the plan that the step played
    last_row: Any  # int64[lanes]: row of `last_observation`
    decided: Any  # uint8[lanes]: 1: the pick was used
    closed: Any  # uint8[lanes]: 1: the lane was drained in the step, dead or living
    steps: Any  # int64[len(STEP_SLOTS), stride]
    counts: Any  # int64[3, stride]: orders, fills and trades written in this step
    orders: Any  # int64[lanes, slots, len(ORDER_SLOTS)]
    fills: Any  # int64[lanes, slots, len(FILL_SLOTS)]
    trades: Any  # int64[lanes, slots, len(TRADE_SLOTS)]
    codes: Any  # int16[diag.CODES, stride]: what `diag` counts


class Sums(NamedTuple):
    """What `diag` counts and sums into."""

    partials: Any  # int64[chunks, diag.MERGED]
    merged: Any  # int64[diag.MERGED]: bins, then amounts
    previous: Any  # int64[len(diag.SUMMED)]: of the step before, as restarts left it
    restarted: Any  # int64[chunks, len(diag.SUMMED)]: what restarts added to the sums, which is no movement
    moved: Any  # int64[len(diag.SUMMED)]: by the step
    cumulated: Any  # int64[len(diag.SUMMED)]


class Starts(NamedTuple):
    """Where and how a lane begins anew."""

    rows: Any  # int64[n]: rows of the plan that may be drawn; empty: no lane restarts
    fresh: Any  # int64[len(state.FIELDS)]: what a field then holds; state.KEPT: what it held


class World(NamedTuple):
    """Everything that a kernel reads and writes besides the picks."""

    market: Market
    plan: Any  # int64[R, len(PLAN)]
    params: Any  # int64[len(PARAMS)]
    starts: Starts
    features: Any  # float32[R, 128]: market slots, zeros in the lane's
    state: Any  # int64[len(state.FIELDS), stride]
    out: Out
    observation: Any  # float32[lanes, 128]
    last_observation: Any  # float32[lanes, 128]
    sums: Sums


FAULT_NONE, FAULT_ACTION, FAULT_INPUT, FAULT_PAST_END, FAULT_NOT_AT_END, FAULT_SLOTS, FAULT_MONEY, FAULT_DRAIN = range(8)

FAULTS = (
    "",
    "the action is outside 0..107",
    "conviction_ppm, health_ppm or variance_scale_ppm is outside 0..1000000",
    "a step was asked for after the last decision: call drain()",
    "the drain was asked for before the last decision",
    "one step made more orders, fills or trades than there are slots: raise `slots`",
    "the account outgrew 64-bit micro-dollars",
    "the drain row did not show enough lots to close the position",
)
"""What each fault code says to the user, after lane and step."""

STEP_SLOTS = (
    "step", "episode", "cursor", "picked_action", "conviction_ppm", "health_ppm", "variance_scale_ppm", "locked_direction", "scaled_lots",
    "margin_cap_lots", "kelly_ppm", "kelly_cap_lots", "trail_triggered", "floor_triggered", "target_lots", "actual_action",
    "position_lots", "cost_ticks", "trail_mid2_ticks", "cash_usd_micros", "equity_usd_micros", "realized_usd_micros",
    "unrealized_usd_micros", "fee_usd_micros", "reward_raw", "end_reason", "is_drain",
)  # fmt: skip
ORDER_SLOTS = (
    "step", "episode", "order_id", "ts_submitted_ns", "ts_event_ns", "side", "kind", "picked_kind", "urgency", "lots", "filled_lots",
    "reason", "state",
)  # fmt: skip
FILL_SLOTS = (
    "step", "episode", "fill_id", "order_id", "ts_submitted_ns", "ts_filled_ns", "side", "lots", "price_ticks", "fee_usd_micros", "reason",
    "market_event", "book_level",
)  # fmt: skip
TRADE_SLOTS = (
    "step", "episode", "trade_id", "fill_id", "ts_entry_ns", "ts_exit_ns", "side", "lots", "cost_ticks", "exit_ticks", "bars_held",
    "mfe_usd_micros", "mae_usd_micros", "magnitude_bin", "realized_usd_micros", "fee_usd_micros", "exit_reason",
)  # fmt: skip
"""What kernels store of each row; the rest of a table's columns follows from these and from the plan (`cuda_env.rows`)."""

ORDERS_WRITTEN, FILLS_WRITTEN, TRADES_WRITTEN = range(3)
