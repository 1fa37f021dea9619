"""The log's tables as declared: the diag leaves are frozen, the two retired names stay gone, no hash covers a wall-clock."""

import pytest

from lob.tables import LEVELS
from sim.tables import DIAG, RUN_TABLES, TRAIN_DIAG, TRAIN_TABLES
from store.runlog import lanes_kept

DIAG_LEAVES = [
    "phase",
    "step",
    "ts_observed_ns",
    "ts_decided_ns",
    "picked.direction_short",
    "picked.direction_hold",
    "picked.direction_long",
    "picked.direction_flat",
    "picked.magnitude_quarter",
    "picked.magnitude_half",
    "picked.magnitude_full",
    "picked.order_market",
    "picked.order_join",
    "picked.order_improve",
    "picked.urgency_normal",
    "picked.urgency_patient",
    "picked.urgency_aggressive",
    "actual.direction_short",
    "actual.direction_hold",
    "actual.direction_long",
    "actual.direction_flat",
    "actual.magnitude_quarter",
    "actual.magnitude_half",
    "actual.magnitude_full",
    "gate.plan_lock",
    "gate.variance_scale",
    "gate.margin_cap",
    "gate.kelly_cap",
    "gate.trail_stop",
    "gate.capital_floor",
    "lanes.played",
    "end.session_close",
    "end.capital_floor",
    "end.final",
    "lanes.not_played",
    "trading.orders",
    "trading.fills",
    "trading.trades",
    "trading.realized_pnl_usd_micros_delta",
    "trading.fee_usd_micros_delta",
    "trading.equity_usd_micros",
    "trading.unrealized_usd_micros",
    "trading.reward_raw_usd_micros",
    "trading.long_lots",
    "trading.short_lots",
    "checksum.accounts",
    "trading.realized_pnl_usd_micros_cum",
    "trading.fee_usd_micros_cum",
    "trading.trades_cum",
    "policy.conviction_ppm_sum",
    "policy.health_ppm_sum",
    "policy.variance_scale_ppm_sum",
    "policy.q_range_ppm_sum",
    "policy.q_sigma_ppm_sum",
]

TRAIN_LEAVES = [
    "select.explored",
    "select.p_best_ppm_sum",
    "select.tau_over_range_ppm_sum",
    "select.ranged",
    "select.kelly_above_floor",
    "reward.micro_ppm_sum",
    "reward.flow_ppm_sum",
    "reward.inaction_ppm_sum",
    "reward.churn_ppm_sum",
    "reward.hold_ppm_sum",
    "reward.sharpe_ppm_sum",
    "reward.potential_ppm_sum",
    "reward.scaled_ppm_sum",
    "learn.updates",
    "reward.unit",
    "learn.td_abs",
    "learn.q_dir_abs",
    "learn.loss",
    "learn.loss_c51",
    "learn.loss_iqn",
    "learn.loss_cql",
    "learn.loss_aux",
    "learn.loss_balance",
    "learn.grad_norm",
    "learn.grad_c51",
    "learn.grad_iqn",
    "learn.grad_cql",
    "learn.grad_aux",
    "signal.learning_health",
    "signal.health.q_gap",
    "signal.health.grad_stability",
    "signal.health.loss_trend",
    "signal.health.td_calibration",
    "signal.health.entropy",
    "signal.health.expert_use",
    "signal.health.spectral_gap_norm",
    "signal.v_half.direction",
    "signal.v_half.magnitude",
    "signal.v_half.order",
    "signal.v_half.urgency",
    "signal.q_range.direction",
    "signal.q_range.magnitude",
    "signal.q_range.order",
    "signal.q_range.urgency",
    "signal.q_sigma.direction",
    "signal.q_sigma.magnitude",
    "signal.q_sigma.order",
    "signal.q_sigma.urgency",
    "signal.td_abs",
    "signal.q_dir_abs_ref",
    "signal.spectral_gap",
    "signal.loss",
    "signal.loss.c51",
    "signal.loss.iqn",
    "signal.loss.cql",
    "signal.loss.aux",
    "signal.loss.balance",
    "signal.grad_norm",
    "signal.grad_log",
    "signal.grad_log_square",
    "signal.grad.c51",
    "signal.grad.iqn",
    "signal.grad.cql",
    "signal.grad.aux",
    "signal.loss_slow",
    "signal.lr",
    "signal.gamma",
    "signal.polyak",
    "signal.sarsa_ratio",
    "signal.balance",
    "signal.beta",
    "signal.share_cql",
    "signal.share_aux",
    "signal.iqn_ratio",
    "signal.share_c51",
    "signal.share_iqn",
    "signal.epsilon.direction",
    "signal.epsilon.magnitude",
    "signal.epsilon.order",
    "signal.epsilon.urgency",
    "signal.tau_floor.direction",
    "signal.tau_floor.magnitude",
    "signal.tau_floor.order",
    "signal.tau_floor.urgency",
    "signal.contrarian",
    "signal.passive_pressure",
    "signal.explored_rate",
    "signal.conviction_scale",
    "signal.trade_attempt_rate_ema",
    "signal.trade_target_rate",
    "signal.pick_share.direction.short",
    "signal.pick_share.direction.hold",
    "signal.pick_share.direction.long",
    "signal.pick_share.direction.flat",
    "signal.pick_share.magnitude.quarter",
    "signal.pick_share.magnitude.half",
    "signal.pick_share.magnitude.full",
    "signal.pick_share.order.market",
    "signal.pick_share.order.join",
    "signal.pick_share.order.improve",
    "signal.pick_share.urgency.normal",
    "signal.pick_share.urgency.patient",
    "signal.pick_share.urgency.aggressive",
    "signal.bonus.direction.short",
    "signal.bonus.direction.hold",
    "signal.bonus.direction.long",
    "signal.bonus.direction.flat",
    "signal.bonus.magnitude.quarter",
    "signal.bonus.magnitude.half",
    "signal.bonus.magnitude.full",
    "signal.bonus.order.market",
    "signal.bonus.order.join",
    "signal.bonus.order.improve",
    "signal.bonus.urgency.normal",
    "signal.bonus.urgency.patient",
    "signal.bonus.urgency.aggressive",
    "signal.aux_label_scale",
    "signal.expert_use.0",
    "signal.expert_use.1",
    "signal.expert_use.2",
    "signal.expert_use.3",
    "signal.expert_use.4",
    "signal.expert_use.5",
    "signal.expert_use.6",
    "signal.expert_use.7",
    "signal.gate_entropy",
]
"""What a training run's `diag` has beside those."""

RETIRED = ("trading.pnl_cum_usd", "trading.realized_pnl_cum_usd")
"""They held shaped reward and whitened reward under names that ended in `_usd`."""


def test_the_diag_leaves_are_frozen():
    """Adding, dropping or renaming one is a change of the log's schema: it is made here too, on purpose."""
    assert list(DIAG.names) == DIAG_LEAVES
    assert len(DIAG_LEAVES) == 54
    assert list(TRAIN_DIAG.names) == DIAG_LEAVES + TRAIN_LEAVES
    assert len(TRAIN_DIAG.names) == 180


def test_what_only_training_has_may_be_null_and_holds_no_dollar():
    for name in TRAIN_LEAVES:
        column = TRAIN_DIAG.column(name)
        assert column.nullable and column.unit != "usd_micros" and "usd" not in name, name


def test_training_and_other_runs_differ_in_diag_alone():
    assert [table.name for table in TRAIN_TABLES] == [table.name for table in RUN_TABLES]
    assert TRAIN_TABLES[1:] == RUN_TABLES[1:] and TRAIN_TABLES[0] == TRAIN_DIAG


def sql_names(table):
    """Every name that a query may use for a column: the stored one, and the dollar column that views add."""
    return {name for column in table.names for name in (column, column.replace("_usd_micros", "_usd"))}


@pytest.mark.parametrize("retired", RETIRED)
def test_the_two_retired_names_are_absent(retired):
    for table in RUN_TABLES:
        assert retired not in sql_names(table)
        assert retired.removeprefix("trading.") not in sql_names(table)


def test_the_two_names_that_replaced_them_are_there():
    assert {"trading.realized_pnl_usd_delta", "trading.realized_pnl_usd_cum"} <= sql_names(DIAG)


def test_dollars_are_integers_everywhere():
    for table in RUN_TABLES:
        for column in table.columns:
            assert column.unit != "usd_micros" or column.dtype == "int64", (table.name, column.name)


def test_only_timing_and_attempts_are_outside_the_hashes_and_only_they_hold_wall_clock():
    assert [table.name for table in RUN_TABLES if not table.hashed] == ["timing", "attempts"]
    for table in RUN_TABLES:
        held = {name for name in table.names if name.startswith(("wall_", "elapsed_", "started_", "host"))}
        assert not (held and table.hashed), (table.name, held)


def test_a_row_per_step_is_kept_at_every_level():
    kept = {level: [t.name for t in RUN_TABLES if lanes_kept(t, "sampled:1" if level == "sampled" else level) != 0] for level in LEVELS}
    assert kept["diag"] == ["diag", "events", "timing", "attempts"]
    assert kept["full"] == [table.name for table in RUN_TABLES]


def test_tables_start_with_phase_lane_episode_step_where_they_apply():
    for table in RUN_TABLES:
        wanted = [name for name in ("phase", "lane", "episode", "step") if name in table.names]
        assert list(table.names[: len(wanted)]) == wanted or table.name == "events", table.name
        assert "run_id" not in table.names
