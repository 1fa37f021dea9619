"""The few structures that a kernel takes: the market's arrays, the decision plan, the parameters, the picks and the outputs."""

from typing import Any, NamedTuple

import numpy as np

from cuda_env.changes import CHANGES, row_changes
from cuda_env.config import EnvConfig
from lob.errors import BadInput
from lob.instruments import Instrument
from lob.tape import NO_PRICE, Schedule, Tape
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
    # Of orders that work in the book; of length 0 where none does.
    marks: Any  # uint8[E]: TRADABLE, TRUSTED, NEW_SESSION, PRINT_BUY, PRINT_SELL
    trade_ticks: Any  # int32[E]: where a PRINT row printed
    trade_lots: Any  # int32[E]: and how many lots
    changes: Any  # int32[E, 8]: what a row changes (`cuda_env.changes`)
    open_ns: Any  # int64[S]: sessions, ascending
    close_ns: Any  # int64[S]


TRADABLE, TRUSTED, NEW_SESSION, PRINT_BUY, PRINT_SELL = 1, 2, 4, 8, 16
"""Bits of `Market.marks`. NEW_SESSION: the first row of a session after rows of another. PRINT_*: side of the aggressor of a print that
can fill an order: in a session, on the tick, and while a tradable book stands (docs/exchange.md)."""

LOTS_LIMIT = 2**31 - 1
"""What the int32 column of printed lots holds; more in one print is no less for any order."""


def row_marks(tape: Tape) -> np.ndarray:
    """uint8[E]: `Market.marks` of a tape whose prints have prices."""
    assert tape.trade_ticks is not None
    index = np.arange(tape.events)
    trusted, tradable, session = tape.trusted, tape.tradable, tape.session
    before = np.append(-1, np.maximum.accumulate(np.where(trusted, index, -1))[:-1])  # the book that stands when the row comes
    stands = (before >= 0) & tradable[np.maximum(before, 0)] & (session[np.maximum(before, 0)] == session) & (~trusted | tradable)
    prints = (tape.trade_side != 0) & (tape.trade_lots > 0) & (tape.trade_ticks != NO_PRICE) & (session >= 0) & stands
    inside = np.flatnonzero(session >= 0)
    fresh = np.zeros(tape.events, bool)
    fresh[inside[1:]] = session[inside[1:]] != session[inside[:-1]]
    bits = (tradable, TRADABLE), (trusted, TRUSTED), (fresh, NEW_SESSION), (prints & (tape.trade_side > 0), PRINT_BUY)
    return sum((on * np.uint8(bit) for on, bit in (*bits, (prints & (tape.trade_side < 0), PRINT_SELL))), np.zeros(tape.events, np.uint8))


def market_arrays(tape: Tape, working: bool = False) -> Market:
    """The tape's arrays, without a copy where they are contiguous; with `working`, what orders in the book need too.

    Raises BadInput where they need the prices of prints, and the tape has none.
    """
    marks, trade_ticks, trade_lots = np.zeros(0, np.uint8), np.zeros(0, np.int32), np.zeros(0, np.int32)
    open_ns = close_ns = np.zeros(0, np.int64)
    changes = np.zeros((0, len(CHANGES)), np.int32)
    if working:
        if tape.trade_ticks is None:
            raise BadInput(
                f"{tape.instrument.root} {tape.schema}: this tape's prints have no price, which orders in a queue wait for: "
                "make it of columns with `price`, from mbp-10 or mbp-1"
            )
        marks, trade_ticks = row_marks(tape), np.ascontiguousarray(tape.trade_ticks)
        trade_lots = np.minimum(tape.trade_lots, LOTS_LIMIT).astype(np.int32)
        prints = (marks & PRINT_BUY != 0).astype(np.int8) - (marks & PRINT_SELL != 0)
        books = tape.bid_ticks, tape.bid_lots, tape.ask_ticks, tape.ask_lots
        changes = row_changes(*books, tape.tradable, tape.trusted, prints, trade_ticks)
        open_ns, close_ns = np.ascontiguousarray(tape.session_open_ns), np.ascontiguousarray(tape.session_close_ns)
    return Market(
        np.ascontiguousarray(tape.ts_event_ns),
        np.ascontiguousarray(tape.bid_ticks),
        np.ascontiguousarray(tape.ask_ticks),
        np.ascontiguousarray(tape.bid_lots),
        np.ascontiguousarray(tape.ask_lots),
        np.ascontiguousarray(tape.tradable).view(np.int8),
        np.ascontiguousarray(tape.point),
        marks,
        trade_ticks,
        trade_lots,
        changes,
        open_ns,
        close_ns,
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
    "seed", "queue_model", "queue_power", "maker_fee", "cross_after", "latency_seed", "entry_at", "entry_count", "cancel_at",
    "cancel_count", "ack_at", "ack_count",
)  # fmt: skip
"""Entries of the parameter vector, int64; behind them the quantiles of latencies, `*_count` of them from `*_at` on. `drains`: 1 when the
step after a lane's last decision drains it; 0 when `drain` does, for all lanes together. `first_lane`: number of the first lane among
those of all processes; `seed`: of the restarts, its 64 bits as they are."""

(
    LANES, FIRST_LANE, DRAINS, TICK_VALUE, FEE, MARGIN, INITIAL, MAX_LOTS, FLOOR, TRAIL_TICKS, PLAN_LOCK, CHUNK_LANES, SEED,
    QUEUE_MODEL, QUEUE_POWER, MAKER_FEE, CROSS_AFTER, LATENCY_SEED, ENTRY_AT, ENTRY_COUNT, CANCEL_AT, CANCEL_COUNT, ACK_AT, ACK_COUNT,
) = range(len(PARAMS))  # fmt: skip


NO_QUEUE, RISK_AVERSE, PROBABLE = range(3)
"""Queue models as physics knows them: `proportional` is `power` with exponent 1."""


def params_vector(
    config: EnvConfig, instrument: Instrument, lanes: int, first_lane: int, drains: bool, chunk: int, seed: int, latency_ns: int = 0
) -> np.ndarray:
    """int64[24 + quantiles]: what a resolved configuration means to physics. `seed` < 2^64; `latency_ns` is the tape's."""
    model = {"none": NO_QUEUE, "risk_averse": RISK_AVERSE}.get(config.queue_model, PROBABLE)
    entry = config.entry_latency_ns or (latency_ns,)
    tables = (entry, config.cancel_latency_ns or entry, config.ack_latency_ns) if model != NO_QUEUE else ((), (), ())
    begins = len(PARAMS) + np.cumsum([0, *(len(table) for table in tables)])
    values = [
        lanes, first_lane, int(drains), instrument.tick_value_usd_micros, config.fee_usd_micros, config.margin_usd_micros,
        config.capital_usd_micros, config.max_lots, config.floor_usd_micros, config.trail_ticks, config.plan_lock_steps, chunk,
        seed - 2**64 if seed >= 2**63 else seed,
        model, config.queue_power if config.queue_model == "power" else 1, config.maker_fee_usd_micros or 0, config.cross_after_ppm,
        config.latency_seed,
    ]  # fmt: skip
    values += [int(value) for begin, table in zip(begins, tables, strict=False) for value in (begin, len(table))]
    return np.array(values + [value for table in tables for value in table], np.int64)


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


OUT_DTYPES = {
    "reward": np.int64, "end_reason": np.int8, "terminated": np.uint8, "truncated": np.uint8, "fault": np.int8, "row": np.int64,
    "last_row": np.int64, "decided": np.uint8, "closed": np.uint8,
}  # fmt: skip
"""Outputs that hold one value a lane."""


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
WORKING_ORDER_SLOTS = (*ORDER_SLOTS, "limit_ticks", "asked_ticks", "ts_ended_ns", "queue_ahead_lots")
WORKING_FILL_SLOTS = (*FILL_SLOTS, "queue_ahead_lots")
"""What kernels store of each row, the last two where orders work in the book; the rest of a table's columns follows from these and from
the plan (`cuda_env.rows`)."""

ORDERS_WRITTEN, FILLS_WRITTEN, TRADES_WRITTEN = range(3)
