"""Injected faults: each takes a run's loaded tables and gives them back with one lie in them.

Where a lie would be caught by a count or an id alone, the forger also mends those, so that the accounting is what catches it.
"""

from dataclasses import replace

import numpy as np
import pyarrow as pa

from sim.run_data import RunData
from tests.falsification.recorder import CUM, DELTA, diag_of


def put(data: RunData, table: str, **columns: np.ndarray) -> RunData:
    """Replace whole columns of a table, dtypes kept."""
    rows = data.tables[table]
    for name, values in columns.items():
        index = rows.column_names.index(name)
        rows = rows.set_column(index, rows.schema.field(index), pa.array(values, rows.schema.field(index).type))
    return replace(data, tables=dict(data.tables) | {table: rows})


def get(data: RunData, table: str, name: str) -> np.ndarray:
    return data.tables[table].column(name).combine_chunks().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)


def change(data: RunData, table: str, name: str, row: int, by: int) -> RunData:
    values = get(data, table, name).copy()
    values[row] += by
    return put(data, table, **{name: values})


def keep(data: RunData, table: str, mask: np.ndarray) -> RunData:
    return replace(data, tables=dict(data.tables) | {table: data.tables[table].filter(pa.array(mask))})


def middle(data: RunData, table: str, mask: np.ndarray | None = None) -> int:
    """A row from the middle of those that the mask marks."""
    rows = np.flatnonzero(mask) if mask is not None else np.arange(data.tables[table].num_rows)
    return int(rows[len(rows) // 2])


def renumbered(data: RunData, table: str, column: str) -> RunData:
    """Ids counted anew, lane by lane, as if nothing had been taken out."""
    lane = get(data, table, "lane")
    ids = np.empty(len(lane), np.int64)
    for one in np.unique(lane):
        ids[lane == one] = (int(one) << 32) + np.arange(int((lane == one).sum()))
    return put(data, table, **{column: ids})


def dropped_fill(data: RunData) -> RunData:
    mask = np.ones(data.tables["fills"].num_rows, bool)
    mask[middle(data, "fills")] = False
    return keep(data, "fills", mask)


def dropped_fill_and_ids_renumbered(data: RunData) -> RunData:
    """An opening fill, so that no trade misses it; its order then says it filled less."""
    gone = int(np.flatnonzero(~np.isin(get(data, "fills", "fill_id"), get(data, "trades", "fill_id")))[3])
    order, lots = get(data, "fills", "order_id")[gone], get(data, "fills", "lots")[gone]
    lied = change(data, "orders", "filled_lots", int(np.flatnonzero(get(data, "orders", "order_id") == order)[0]), -int(lots))
    mask = np.ones(data.tables["fills"].num_rows, bool)
    mask[gone] = False
    return keep(lied, "fills", mask)


def doubled_fee(data: RunData) -> RunData:
    row = middle(data, "fills")
    return change(data, "fills", "fee_usd_micros", row, int(get(data, "fills", "fee_usd_micros")[row]))


def every_fee_doubled_everywhere(data: RunData) -> RunData:
    return put(data, "fills", fee_usd_micros=2 * get(data, "fills", "fee_usd_micros"))


def flipped_side(data: RunData) -> RunData:
    row = middle(data, "fills")
    return change(data, "fills", "side", row, -2 * int(get(data, "fills", "side")[row]))


def flipped_trade(data: RunData) -> RunData:
    row = middle(data, "trades")
    return change(data, "trades", "realized_usd_micros", row, -2 * int(get(data, "trades", "realized_usd_micros")[row]))


def flipped_direction(data: RunData) -> RunData:
    """Every trade with its sign turned: a loss of -$4.46M told as a gain."""
    return put(data, "trades", realized_usd_micros=-get(data, "trades", "realized_usd_micros"))


def float32_cumulative(data: RunData) -> RunData:
    return put(data, "diag", **{CUM: np.cumsum(get(data, "diag", DELTA).astype(np.float32), dtype=np.float32).astype(np.int64)})


def shaped_reward_in_a_usd_column(data: RunData) -> RunData:
    shaped = data.tables["steps"].column("reward_shaped").to_numpy().astype(np.float64)
    lied = put(data, "steps", realized_usd_micros=np.rint(shaped * 1e6 * 0.9).astype(np.int64))
    return replace(lied, tables=dict(lied.tables) | {"diag": diag_of(lied.tables["steps"])})


def shaped_reward_in_diag(data: RunData) -> RunData:
    raw = get(data, "steps", "reward_raw")
    step = get(data, "steps", "step")
    delta = np.zeros(data.tables["diag"].num_rows, np.int64)
    np.add.at(delta, step, raw)
    return put(data, "diag", **{DELTA: delta, CUM: delta.cumsum()})


def fill_before_its_decision(data: RunData) -> RunData:
    row = middle(data, "fills", get(data, "fills", "reason") == 0)
    earlier = 10**10
    return change(change(data, "fills", "ts_submitted_ns", row, -earlier), "fills", "ts_filled_ns", row, -earlier)


def fill_before_its_submission(data: RunData) -> RunData:
    row = middle(data, "fills", get(data, "fills", "reason") == 0)
    late = int(get(data, "fills", "ts_filled_ns")[row] - get(data, "fills", "ts_submitted_ns")[row])
    return change(data, "fills", "ts_filled_ns", row, -late - 1)


def market_rows_shifted_by_one(data: RunData) -> RunData:
    return put(data, "fills", market_row=get(data, "fills", "market_row") + 1)


def two_lanes_swapped(data: RunData) -> RunData:
    """Lanes 0 and 1 exchange their fills, with ids that fit."""
    lane = get(data, "fills", "lane")
    swapped = np.where(lane == 0, 1, np.where(lane == 1, 0, lane))
    ids = (swapped << 32) + (get(data, "fills", "fill_id") & 0xFFFFFFFF)
    orders = (swapped << 32) + (get(data, "fills", "order_id") & 0xFFFFFFFF)
    return _sorted(put(data, "fills", lane=swapped, fill_id=ids, order_id=orders), "fills", "fill_id")


def two_lanes_swapped_in_trades(data: RunData) -> RunData:
    lane = get(data, "trades", "lane")
    swapped = np.where(lane == 0, 1, np.where(lane == 1, 0, lane))
    ids = (swapped << 32) + (get(data, "trades", "trade_id") & 0xFFFFFFFF)
    return _sorted(put(data, "trades", lane=swapped, trade_id=ids), "trades", "trade_id")


def _sorted(data: RunData, table: str, column: str) -> RunData:
    order = np.lexsort((get(data, table, column), get(data, table, "lane"), get(data, table, "step")))
    return replace(data, tables=dict(data.tables) | {table: data.tables[table].take(pa.array(order))})


def entry_fees_dropped_from_trades(data: RunData) -> RunData:
    """Each trade carries its exit fee only: realised looks better by every entry fee, and the summary with it."""
    fee = dict(
        zip(
            get(data, "fills", "fill_id").tolist(),
            (get(data, "fills", "fee_usd_micros") // get(data, "fills", "lots")).tolist(),
            strict=True,
        )
    )
    exit_fee = np.array([fee[i] for i in get(data, "trades", "fill_id").tolist()]) * get(data, "trades", "lots")
    entry = get(data, "trades", "fee_usd_micros") - exit_fee
    return put(data, "trades", realized_usd_micros=get(data, "trades", "realized_usd_micros") + entry, fee_usd_micros=exit_fee)


def window_end_counted_twice(data: RunData) -> RunData:
    trades = data.tables["trades"]
    last = trades.filter(pa.array(get(data, "trades", "exit_reason") == 5))
    assert last.num_rows, "nothing was open at the drain: choose another run"
    doubled = replace(data, tables=dict(data.tables) | {"trades": pa.concat_tables([trades, last])})
    return renumbered(_sorted(doubled, "trades", "trade_id"), "trades", "trade_id")


def zero_for_a_minus_one(data: RunData) -> RunData:
    row = int(np.flatnonzero(get(data, "steps", "end_reason") == -1)[-1])
    return change(data, "steps", "picked_action", row, 1)


def zero_branches_for_minus_ones(data: RunData) -> RunData:
    """The old reader's zeros: every slot of a dead lane reads short, quarter."""
    dead = get(data, "steps", "end_reason") == -1
    names = [name for name in data.tables["steps"].column_names if name.startswith(("picked_", "actual_"))]
    return put(data, "steps", **{name: np.where(dead, 0, get(data, "steps", name)) for name in names})


def action_out_of_range(data: RunData) -> RunData:
    row = middle(data, "steps", get(data, "steps", "picked_action") >= 0)
    return change(data, "steps", "picked_action", row, 108 - int(get(data, "steps", "picked_action")[row]))


def level_deeper_than_taken(data: RunData) -> RunData:
    row = middle(data, "fills", get(data, "fills", "book_level") == 0)
    return change(data, "fills", "book_level", row, 1)


def more_lots_than_shown(data: RunData) -> RunData:
    return change(data, "fills", "lots", middle(data, "fills"), 1_000)


def cash_off_by_a_micro_dollar(data: RunData) -> RunData:
    return change(data, "steps", "cash_usd_micros", middle(data, "steps"), 1)


def equity_off_from_some_step_on(data: RunData) -> RunData:
    later = get(data, "steps", "step") >= 5
    return put(
        data,
        "steps",
        cash_usd_micros=get(data, "steps", "cash_usd_micros") + later,
        equity_usd_micros=get(data, "steps", "equity_usd_micros") + later,
    )


def mark_off_by_a_tick(data: RunData) -> RunData:
    return change(data, "steps", "mark_mid2_ticks", middle(data, "steps"), 1)


def mark_of_another_row(data: RunData) -> RunData:
    return put(data, "steps", mark_row=get(data, "steps", "mark_row") + 1)


def observed_after_the_decision(data: RunData) -> RunData:
    row = middle(data, "steps")
    return change(
        data, "steps", "ts_observed_ns", row, int(get(data, "steps", "ts_decided_ns")[row] - get(data, "steps", "ts_observed_ns")[row]) + 1
    )


def reward_that_is_not_the_change_of_equity(data: RunData) -> RunData:
    return change(data, "steps", "reward_raw", middle(data, "steps"), -1)


def _moved_reward(data: RunData, name: str) -> RunData:
    values = data.tables["steps"].column(name).to_numpy().copy()
    values[middle(data, "steps")] += np.float32(1.0)
    return put(data, "steps", **{name: values})


def shaped_reward_that_shapes(data: RunData) -> RunData:
    return _moved_reward(data, "reward_shaped")


def whitened_reward_that_whitens(data: RunData) -> RunData:
    return _moved_reward(data, "reward_whitened")


def target_above_its_caps(data: RunData) -> RunData:
    longs = (get(data, "steps", "target_lots") > 0) & (get(data, "steps", "locked_direction") == 2)
    return change(data, "steps", "target_lots", middle(data, "steps", longs), 1)


def kelly_of_other_trades(data: RunData) -> RunData:
    return change(data, "steps", "kelly_ppm", middle(data, "steps", get(data, "steps", "kelly_ppm") > 0), -1)


def margin_cap_off(data: RunData) -> RunData:
    return change(data, "steps", "margin_cap_lots", middle(data, "steps", get(data, "steps", "margin_cap_lots") > 0), 1)


def order_that_filled_more_than_its_fills(data: RunData) -> RunData:
    return change(data, "orders", "filled_lots", middle(data, "orders"), -1)


def trade_in_another_bin(data: RunData) -> RunData:
    row = middle(data, "trades")
    return change(data, "trades", "magnitude_bin", row, 1 if get(data, "trades", "magnitude_bin")[row] == 0 else -1)


def excursion_that_no_mark_showed(data: RunData) -> RunData:
    return change(data, "trades", "mfe_usd_micros", middle(data, "trades"), 1)


def trail_loosened(data: RunData) -> RunData:
    steps = data.tables["steps"]
    armed = steps.column("trail_mid2_ticks").is_valid().to_numpy()
    values = [None if not on else value for on, value in zip(armed, get(data, "steps", "trail_mid2_ticks").tolist(), strict=True)]
    row = int(np.flatnonzero(armed)[len(np.flatnonzero(armed)) // 2])
    values[row] += 2
    index = steps.column_names.index("trail_mid2_ticks")
    return replace(
        data, tables=dict(data.tables) | {"steps": steps.set_column(index, steps.schema.field(index), pa.array(values, pa.int64()))}
    )


def dead_lane_that_goes_on(data: RunData) -> RunData:
    row = int(np.flatnonzero(get(data, "steps", "end_reason") == -1)[0])
    return change(data, "steps", "end_reason", row, 1)


def a_step_missing(data: RunData) -> RunData:
    mask = np.ones(data.tables["steps"].num_rows, bool)
    mask[middle(data, "steps")] = False
    return keep(data, "steps", mask)


def drain_row_missing(data: RunData) -> RunData:
    return put(data, "steps", is_drain=0 * get(data, "steps", "is_drain"))


def id_used_twice(data: RunData) -> RunData:
    row = int(np.flatnonzero(get(data, "fills", "lane") == 0)[1])
    return change(data, "fills", "fill_id", row, -1)


def stop_called_a_cross(data: RunData) -> RunData:
    return change(data, "fills", "reason", middle(data, "fills", get(data, "fills", "reason") == 0), 3)


def reward_of_another_scale(data: RunData) -> RunData:
    return put(data, "steps", reward_scaled=data.tables["steps"].column("reward_scaled").to_numpy() * 2 + 1)


def stop_called_a_cross_everywhere(data: RunData) -> RunData:
    for table, column in (("fills", "reason"), ("orders", "reason"), ("trades", "exit_reason")):
        values = get(data, table, column)
        data = put(data, table, **{column: np.where(values == 3, 0, values)})
    return data


def order_of_another_kind_than_picked(data: RunData) -> RunData:
    row = middle(data, "orders", get(data, "orders", "reason") == 0)
    return change(data, "orders", "picked_kind", row, 1 if get(data, "orders", "picked_kind")[row] == 0 else -1)


def order_that_asked_for_more(data: RunData) -> RunData:
    """Its state says so too: all that is wrong is that no target asked for it, and that the book would have filled it."""
    row = middle(data, "orders", get(data, "orders", "state") == 0)
    return change(change(data, "orders", "lots", row, 1), "orders", "state", row, 1)


def order_that_met_the_book_later(data: RunData) -> RunData:
    return change(data, "orders", "ts_event_ns", middle(data, "orders", get(data, "orders", "reason") == 0), 1)


def floor_that_nothing_met(data: RunData) -> RunData:
    row = middle(data, "steps", get(data, "steps", "floor_triggered") == 0)
    return change(data, "steps", "floor_triggered", row, 1)


def drain_that_says_the_tape_ended(data: RunData) -> RunData:
    reason = get(data, "steps", "end_reason")
    return put(data, "steps", end_reason=np.where(reason == 2, 4, reason))


def every_decision_a_little_later(data: RunData) -> RunData:
    """A clock of the forger's own: decisions, submissions and arrivals move together, to no other row."""
    for table, column in (("steps", "ts_decided_ns"), ("orders", "ts_submitted_ns"), ("fills", "ts_submitted_ns")):
        data = put(data, table, **{column: get(data, table, column) + 1})
    return data
