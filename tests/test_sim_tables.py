"""The log's tables as declared: the diag leaves are frozen, the two retired names stay gone, no hash covers a wall-clock."""

import pytest

from lob.tables import LEVELS
from sim.tables import DIAG, RUN_TABLES
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

RETIRED = ("trading.pnl_cum_usd", "trading.realized_pnl_cum_usd")
"""They held shaped reward and whitened reward under names that ended in `_usd`."""


def test_the_diag_leaves_are_frozen():
    """Adding, dropping or renaming one is a change of the log's schema: it is made here too, on purpose."""
    assert list(DIAG.names) == DIAG_LEAVES
    assert len(DIAG_LEAVES) == 54


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
