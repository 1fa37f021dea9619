"""The house's tape, schedule and environment against the oracle: every column of every row, over random markets, terms and picks."""

import numpy as np
import pytest

from tests.oracle.house_run import TABLES, house_rows, house_schedule
from tests.oracle.simulate import DAY, OracleRun, random_bar_run, random_run, short_sessions

ROUNDED = ("reward_shaped", "reward_scaled", "reward_whitened")


def run_of(seed: int) -> OracleRun:
    """By turns: thin books, halts between sessions, a clock so fast that orders meet one row again and again."""
    halts = short_sessions(DAY, 4, 14, 3) if seed % 3 == 0 else None
    return random_run(seed, rows=120, thin=seed % 2 == 1, sessions=halts, clock_ms=50 if seed % 5 == 0 else 1_000)


def bar_run_of(seed: int) -> OracleRun:
    return random_bar_run(seed, sessions=short_sessions(DAY, 5, 1200, 300) if seed % 2 else None)


def plain(values: np.ndarray) -> list:
    return [
        None if masked else value for value, masked in zip(np.ma.getdata(values).tolist(), np.ma.getmaskarray(values).tolist(), strict=True)
    ]


def assert_equal(run: OracleRun) -> None:
    plan = house_schedule(run)
    laid = plan[1]
    columns = (laid.ts_decided_ns, laid.observed_event, laid.mark_event, laid.fill_event, laid.ts_filled_ns)
    assert [(d.ts, d.observed, d.mark, d.fill, d.ts_filled) for d in run.decisions] == list(
        zip(*(c.tolist() for c in columns), strict=True)
    )
    house = house_rows(run, run.picks, plan)
    for name in TABLES:
        expected = run.table(name)
        for column, values in house[name].items():
            wanted = [row[column] for row in expected]
            if column in ROUNDED:
                np.testing.assert_allclose(values, wanted, rtol=1e-6, err_msg=f"{name}.{column}")
            else:
                assert plain(values) == wanted, f"{name}.{column}"


@pytest.mark.parametrize("seed", range(20))
def test_every_logged_column_equals_the_oracles(seed):
    assert_equal(run_of(seed))


@pytest.mark.parametrize("seed", range(16))
def test_every_logged_column_of_a_run_over_bars_equals_the_oracles(seed):
    assert_equal(bar_run_of(seed))


def test_bars_fill_at_opens_stop_at_extremes_and_drain_at_a_close():
    fills = [row for seed in range(16) for row in bar_run_of(seed).table("fills")]
    assert {row["book_level"] for row in fills if row["reason"] in (0, 3)} == {0}
    assert {row["book_level"] for row in fills if row["reason"] == 5} == {3}
    assert {1, 2} <= {row["book_level"] for row in fills if row["reason"] == 4}


def test_the_random_runs_reach_every_way_to_fill_and_to_end():
    runs = [run_of(seed) for seed in range(40)]
    assert {row["end_reason"] for run in runs for row in run.table("steps")} >= {-1, 0, 1, 2, 5}
    assert {row["reason"] for run in runs for row in run.table("fills")} == {0, 3, 4, 5}
    assert {row["state"] for run in runs for row in run.table("orders")} == {0, 1, 2}
    assert {row["book_level"] for run in runs for row in run.table("fills")} >= {0, 1, 2, 3}
    crossings = [row for run in runs for row in run.table("steps") if row["trail_triggered"] == 1]
    locked = [row for run in runs for row in run.table("steps") if row["locked_direction"] != row["picked_direction"]]
    assert crossings and locked


@pytest.mark.deep
def test_two_thousand_random_runs_equal_the_oracles_column_by_column():
    for seed in range(100, 2_100):
        assert_equal(run_of(seed) if seed % 4 else bar_run_of(seed))
