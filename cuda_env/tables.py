"""The log tables that the environment writes: `steps`, `orders`, `fills`, `trades`. This file declares them; everything else derives.

Money is int64 micro-dollars, prices are integer ticks, `mid2` is bid+ask in ticks (twice the mid, so that it stays whole).
Realised is net: closed price difference minus every fee, each booked when it happens.
"""

from dataclasses import replace

from lob.actions import Direction, EndReason, FillReason, Magnitude, OrderKind, OrderState, Phase, Side, Urgency, names
from lob.tables import Column, Table

_FULL = ("full", "sampled")
_FILLS = ("full", "sampled", "fills")
_TRADES = ("full", "sampled", "fills", "trades")

_KEY = (
    Column("phase", "int8", "code", "train, eval or replay", names(Phase)),
    Column("lane", "int32", "1", "simulated account, counted from 0"),
    Column("episode", "int32", "1", "session of the lane, counted from 0"),
    Column("step", "int32", "1", "decision of the phase, counted from 0; the drain is the last"),
)
_UNPLAYED = {-1: "not_played"}
_direction = _UNPLAYED | names(Direction)
_magnitude = _UNPLAYED | names(Magnitude)
_kind = _UNPLAYED | names(OrderKind)
_urgency = _UNPLAYED | names(Urgency)
_state = names(OrderState)
_market_state = {int(code): _state[int(code)] for code in (OrderState.FILLED, OrderState.PARTLY_FILLED, OrderState.UNFILLED)}

STEPS = Table(
    "steps",
    _KEY
    + (
        Column("ts_observed_ns", "int64", "ns", "receive time of the last row that the observation rests on"),
        Column("ts_decided_ns", "int64", "ns", "when the lane decided"),
        Column("picked_action", "int16", "1", "what the policy picked, 0..107; -1: not played"),
        Column("picked_direction", "int8", "code", "branch of the pick", _direction),
        Column("picked_magnitude", "int8", "code", "branch of the pick", _magnitude),
        Column("picked_order", "int8", "code", "branch of the pick", _kind),
        Column("picked_urgency", "int8", "code", "branch of the pick", _urgency),
        Column("conviction_ppm", "int32", "ppm", "gate input, quantised once from the policy; -1: not played"),
        Column("health_ppm", "int32", "ppm", "gate input: learning health; -1: not played"),
        Column("variance_scale_ppm", "int32", "ppm", "gate input: 1/(1+sqrt(var q)); -1: not played"),
        Column("locked_direction", "int8", "code", "gate 1, plan lock: the direction that goes on", _direction),
        Column("scaled_lots", "int32", "lots", "gate 2: lots after magnitude and variance scale (unsigned); -1: hold or not played"),
        Column("margin_cap_lots", "int32", "lots", "gate 3: floor(equity / margin per lot); -1: not played"),
        Column("kelly_ppm", "int32", "ppm", "gate 4: the Kelly fraction of the lane's closed trades; -1: not played"),
        Column("kelly_cap_lots", "int32", "lots", "gate 4: the cap that it gives; -1: not played"),
        Column("trail_triggered", "int8", "1", "gate 5: 1 if the trail stop forced the target to 0; -1: not played"),
        Column("floor_triggered", "int8", "1", "gate 6: 1 if the capital floor was breached in this step; -1: not played"),
        Column("target_lots", "int32", "lots", "signed position that the gates let through"),
        Column("actual_action", "int16", "1", "what physics made of the pick, 0..107; -1: not played"),
        Column("actual_direction", "int8", "code", "sign of the position after the step; hold: kept untouched", _direction),
        Column("actual_magnitude", "int8", "code", "bin of |position|/max_lots; quarter at hold and flat", _magnitude),
        Column("actual_order", "int8", "code", "order kind as executed", _kind),
        Column("actual_urgency", "int8", "code", "urgency as executed", _urgency),
        Column("position_lots", "int32", "lots", "signed position after the step"),
        Column("cost_ticks", "int64", "ticks", "signed cost of the open position, lots x ticks"),
        Column("mark_mid2_ticks", "int64", "ticks", "bid+ask of the row that the step is marked at"),
        Column("mark_source", "int32", "1", "source file of that row, index in the manifest's `data.sources`"),
        Column("mark_row", "int64", "1", "`row` of that row in the market store"),
        Column("trail_mid2_ticks", "int64", "ticks", "trail stop's trigger as bid+ask; null: no stop armed", nullable=True),
        Column("cash_usd_micros", "int64", "usd_micros", "initial capital + realised so far"),
        Column("equity_usd_micros", "int64", "usd_micros", "cash + unrealised"),
        Column("realized_usd_micros", "int64", "usd_micros", "realised in this step, net of its fees"),
        Column("unrealized_usd_micros", "int64", "usd_micros", "open position at mid against its cost"),
        Column("fee_usd_micros", "int64", "usd_micros", "fees of this step"),
        Column("reward_raw", "int64", "usd_micros", "change of equity in this step, exact"),
        Column("reward_shaped", "float32", "usd", "raw in dollars plus shaping terms"),
        Column("reward_scaled", "float32", "1", "shaped over the reward scale"),
        Column("reward_whitened", "float32", "1", "scaled, whitened; equal to scaled while whitening is off"),
        Column("end_reason", "int8", "code", "why the episode ended on this step", names(EndReason)),
        Column("is_drain", "int8", "1", "1 on the row that closes the window, which is never decided on"),
    ),
    key=("phase", "step", "lane"),
    levels=_FULL,
    doc="one row per decision and lane, dead lanes included (their slots hold -1)",
)

ORDERS = Table(
    "orders",
    _KEY
    + (
        Column("order_id", "int64", "1", "lane * 2^32 + count of the lane's orders"),
        Column("ts_submitted_ns", "int64", "ns", "when the lane sent it"),
        Column("ts_event_ns", "int64", "ns", "when it met the book"),
        Column("side", "int8", "code", "+1 buy, -1 sell", names(Side)),
        Column("kind", "int8", "code", "as executed", names(OrderKind)),
        Column("picked_kind", "int8", "code", "as picked; -1: not from a pick", _kind),
        Column("urgency", "int8", "code", "as picked; -1: not from a pick", _urgency),
        Column("lots", "int32", "lots", "size sent"),
        Column("filled_lots", "int32", "lots", "size filled"),
        Column("limit_ticks", "int64", "ticks", "limit price; null for a market order", nullable=True),
        Column("reason", "int8", "code", "what sent it", names(FillReason)),
        Column("state", "int8", "code", "how it ended", _market_state),
    ),
    key=("phase", "step", "lane", "order_id"),
    levels=_FULL,
    doc="one row per order",
)

FILLS = Table(
    "fills",
    _KEY
    + (
        Column("fill_id", "int64", "1", "lane * 2^32 + count of the lane's fills"),
        Column("order_id", "int64", "1", "its order"),
        Column("ts_submitted_ns", "int64", "ns", "of its order"),
        Column("ts_filled_ns", "int64", "ns", "when it filled"),
        Column("side", "int8", "code", "+1 buy, -1 sell", names(Side)),
        Column("lots", "int32", "lots", "size"),
        Column("price_ticks", "int64", "ticks", "price"),
        Column("fee_usd_micros", "int64", "usd_micros", "fee"),
        Column("reason", "int8", "code", "why it filled", names(FillReason)),
        Column("market_source", "int32", "1", "source file of the row that it met, index in the manifest's `data.sources`"),
        Column("market_row", "int64", "1", "`row` of the market row that it met"),
        Column("book_level", "int8", "1", "level of that row that it took, 0 the best; bars: 0 open, 1 low, 2 high, 3 close"),
    ),
    key=("phase", "step", "lane", "fill_id"),
    levels=_FILLS,
    doc="one row per fill at one price level",
)

TRADES = Table(
    "trades",
    _KEY
    + (
        Column("trade_id", "int64", "1", "lane * 2^32 + count of the lane's trades"),
        Column("fill_id", "int64", "1", "the fill that reduced the position"),
        Column("ts_entry_ns", "int64", "ns", "when the position was opened"),
        Column("ts_exit_ns", "int64", "ns", "when this part closed"),
        Column("side", "int8", "code", "of the position closed: +1 long, -1 short", names(Side)),
        Column("lots", "int32", "lots", "size closed"),
        Column("cost_ticks", "int64", "ticks", "its share of the position's signed cost, lots x ticks"),
        Column("exit_ticks", "int64", "ticks", "exit price"),
        Column("bars_held", "int32", "1", "decisions since the position was opened"),
        Column("mfe_usd_micros", "int64", "usd_micros", "most favourable result of these lots at a mark or at the exit, before fees, >= 0"),
        Column("mae_usd_micros", "int64", "usd_micros", "most adverse result of these lots at a mark or at the exit, before fees, <= 0"),
        Column("magnitude_bin", "int8", "code", "bin of the position that was closed", names(Magnitude)),
        Column("realized_usd_micros", "int64", "usd_micros", "net of the exit fee and of its share of the entry fees"),
        Column("fee_usd_micros", "int64", "usd_micros", "exit fee + share of the entry fees"),
        Column("exit_reason", "int8", "code", "reason of the closing fill", names(FillReason)),
    ),
    key=("phase", "step", "lane", "trade_id"),
    levels=_TRADES,
    doc="one row per reducing fill",
)

TABLES = (STEPS, ORDERS, FILLS, TRADES)

_QUEUE_AHEAD = Column("queue_ahead_lots", "int32", "lots", "lots before its order when the book accepted it; -1: it never joined a queue")

WORKING_ORDERS = replace(
    ORDERS,
    columns=(
        *(replace(c, codes=_state) if c.name == "state" else c for c in ORDERS.columns),
        Column("asked_ticks", "int64", "ticks", "limit asked for; limit_ticks differs where it was re-priced", nullable=True),
        Column("ts_ended_ns", "int64", "ns", "when it was filled, cancelled or expired"),
        _QUEUE_AHEAD,
    ),
    doc="one row per order, in the step in which it ended",
)

WORKING_FILLS = replace(FILLS, columns=(*FILLS.columns, _QUEUE_AHEAD), doc="one row per fill at one price level; book_level -1: by a print")

WORKING_TABLES = (STEPS, WORKING_ORDERS, WORKING_FILLS, TRADES)
"""The same tables of a run whose orders work in the book (docs/exchange.md)."""


def tables_of(queue_model: str) -> tuple[Table, ...]:
    """The environment's tables under a queue model."""
    return TABLES if queue_model == "none" else WORKING_TABLES
