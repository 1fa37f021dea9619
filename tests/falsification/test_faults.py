"""Every injected fault is found, and named by table and column: sealed again with a consistent chain, so that no hash gives it away."""

import pytest

from sim.verify import verify
from sim.verify_types import render
from tests.falsification import faults
from tests.falsification.recorder import CUM, DELTA, data_of, make_store, record
from tests.oracle.simulate import OracleRun, random_run

CONTENT = {
    faults.dropped_fill: ("orders", "filled_lots"),
    faults.dropped_fill_and_ids_renumbered: ("steps", "position_lots"),
    faults.doubled_fee: ("fills", "fee_usd_micros"),
    faults.every_fee_doubled_everywhere: ("fills", "fee_usd_micros"),
    faults.flipped_side: ("fills", "side"),
    faults.flipped_trade: ("trades", "realized_usd_micros"),
    faults.flipped_direction: ("trades", "realized_usd_micros"),
    faults.float32_cumulative: ("diag", CUM),
    faults.shaped_reward_in_a_usd_column: ("steps", "realized_usd_micros"),
    faults.shaped_reward_in_diag: ("diag", DELTA),
    faults.fill_before_its_decision: ("fills", "ts_submitted_ns"),
    faults.fill_before_its_submission: ("fills", "ts_filled_ns"),
    faults.market_rows_shifted_by_one: ("fills", "market_row"),
    faults.two_lanes_swapped: ("steps", "position_lots"),
    faults.two_lanes_swapped_in_trades: ("trades", "lane"),
    faults.entry_fees_dropped_from_trades: ("trades", "realized_usd_micros"),
    faults.window_end_counted_twice: ("trades", "fill_id"),
    faults.zero_for_a_minus_one: ("steps", "picked_action"),
    faults.zero_branches_for_minus_ones: ("steps", "picked_direction"),
    faults.action_out_of_range: ("steps", "picked_action"),
    faults.level_deeper_than_taken: ("fills", "book_level"),
    faults.more_lots_than_shown: ("fills", "lots"),
    faults.cash_off_by_a_micro_dollar: ("steps", "cash_usd_micros"),
    faults.equity_off_from_some_step_on: ("steps", "equity_usd_micros"),
    faults.mark_off_by_a_tick: ("steps", "mark_mid2_ticks"),
    faults.mark_of_another_row: ("steps", "mark_row"),
    faults.observed_after_the_decision: ("steps", "ts_observed_ns"),
    faults.reward_that_is_not_the_change_of_equity: ("steps", "reward_raw"),
    faults.shaped_reward_that_shapes: ("steps", "reward_shaped"),
    faults.whitened_reward_that_whitens: ("steps", "reward_whitened"),
    faults.target_above_its_caps: ("steps", "target_lots"),
    faults.kelly_of_other_trades: ("steps", "kelly_ppm"),
    faults.margin_cap_off: ("steps", "margin_cap_lots"),
    faults.order_that_filled_more_than_its_fills: ("orders", "filled_lots"),
    faults.trade_in_another_bin: ("trades", "magnitude_bin"),
    faults.excursion_that_no_mark_showed: ("trades", "mfe_usd_micros"),
    faults.trail_loosened: ("steps", "trail_mid2_ticks"),
    faults.dead_lane_that_goes_on: ("steps", "end_reason"),
    faults.a_step_missing: ("steps", "step"),
    faults.drain_row_missing: ("steps", "is_drain"),
    faults.id_used_twice: ("fills", "fill_id"),
    faults.stop_called_a_cross: ("fills", "reason"),
    faults.stop_called_a_cross_everywhere: ("orders", "reason"),
    faults.reward_of_another_scale: ("steps", "reward_scaled"),
    faults.order_of_another_kind_than_picked: ("orders", "picked_kind"),
    faults.order_that_asked_for_more: ("orders", "lots"),
    faults.order_that_met_the_book_later: ("orders", "ts_event_ns"),
    faults.floor_that_nothing_met: ("steps", "floor_triggered"),
    faults.drain_that_says_the_tape_ended: ("steps", "end_reason"),
    faults.every_decision_a_little_later: ("steps", "ts_decided_ns"),
}


def suitable(run: OracleRun) -> bool:
    """A run in which every fault has something to lie about."""
    steps, fills = run.table("steps"), run.table("fills")
    return (
        any(row["end_reason"] == -1 for row in steps)
        and any(row["trail_mid2_ticks"] is not None for row in steps)
        and any(row["kelly_ppm"] > 0 for row in steps)
        and {row["reason"] for row in fills} >= {0, 3, 4, 5}
        and {row["lane"] for row in fills} >= {0, 1}
        and len(run.table("trades")) > 30
        and any(row["trail_triggered"] == 0 and row["target_lots"] > 0 for row in steps)
    )


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    oracle = next(run for run in (random_run(seed, rows=300, lanes=6) for seed in range(200)) if suitable(run))
    store = make_store(oracle, folder)
    data = data_of(oracle, store)
    head = record(data, folder / "run")
    return data, store, folder / "run", head


def test_the_run_before_any_fault_is_verified(honest):
    _, store, run_dir, head = honest
    verdict = verify(run_dir, store, head)
    assert verdict.ok, render(verdict)


@pytest.mark.parametrize(("fault", "named"), CONTENT.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_fault_sealed_with_a_consistent_chain_is_found_and_named(honest, tmp_path, fault, named):
    data, store, _, _ = honest
    record(fault(data), tmp_path / "forged")
    verdict = verify(tmp_path / "forged", store)
    assert verdict.exit_code == 1
    assert named in {(check.table, check.column) for check in verdict.failed}, render(verdict)
    assert "chain" not in {check.name for check in verdict.failed}
    first = next(check for check in verdict.failed if (check.table, check.column) == named)
    assert first.line() in render(verdict) and (first.row >= 0 and first.part), first
