"""Laws of the summary and its metrics: exact money, total functions, one annualisation factor."""

import json
import math
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim import metrics
from sim.metrics import Undefined
from sim.run_data import RunData
from sim.summary import session_ns_per_year, summarize, to_json
from tests.oracle.as_run import arrow_tables, run_data
from tests.oracle.simulate import DAY, manifest_of, random_run, short_sessions

SECOND = 10**9


@pytest.fixture(scope="module")
def oracle():
    return random_run(4, rows=400, lanes=4)


def phase(data: RunData) -> dict:
    return summarize(data)["phases"][0]


def test_total_is_final_minus_initial_equity_and_the_sum_of_lanes_and_of_episodes(oracle):
    out = phase(run_data(oracle))
    last = {row["lane"]: row["equity_usd_micros"] for row in oracle.table("steps")}
    capital = int(oracle.terms.capital * 10**6)
    assert out["total_pnl_usd_micros"] == sum(last.values()) - 4 * capital != 0
    assert out["total_pnl_usd_micros"] == sum(row["pnl_usd_micros"] for row in out["lane_rows"])
    assert out["total_pnl_usd_micros"] == sum(row["pnl_usd_micros"] for row in out["episodes"])
    assert out["final_equity_usd_micros"] == sum(last.values())


def test_magnitudes_and_directions_split_the_same_trades(oracle):
    out = phase(run_data(oracle))
    trades = oracle.table("trades")
    for name, code in (("quarter", 0), ("half", 1), ("full", 2)):
        chosen = [row["realized_usd_micros"] for row in trades if row["magnitude_bin"] == code]
        assert out["per_magnitude"][name]["pnl_usd_micros"] == sum(chosen)
        assert out["per_magnitude"][name]["trades"] == len(chosen)
        assert out["per_magnitude"][name]["win_rate"] == (sum(pnl > 0 for pnl in chosen) / len(chosen) if chosen else None)
    assert sum(side["pnl_usd_micros"] for side in out["per_direction"].values()) == sum(row["realized_usd_micros"] for row in trades)
    assert out["fees_usd_micros"] == sum(row["fee_usd_micros"] for row in oracle.table("fills"))


def test_picked_and_actual_distributions_count_played_slots_only(oracle):
    out = phase(run_data(oracle))
    played = [row for row in oracle.table("steps") if row["picked_action"] >= 0]
    for kind in ("picked", "actual"):
        counts = [sum(row[f"{kind}_direction"] == code for row in played) for code in range(4)]
        assert list(out[f"{kind}_direction"].values()) == counts
        short, hold, long, flat = counts
        shares = [Fraction(n, len(played)) for n in counts]
        assert out[f"{kind}_entropy_4way"] == pytest.approx(-sum(float(p) * math.log(p) for p in shares if p))
        merged = [Fraction(n, len(played)) for n in (short, hold + flat, long)]
        assert out[f"{kind}_entropy_3way"] == pytest.approx(-sum(float(p) * math.log(p) for p in merged if p))
    assert out["played_decisions"] == len(played)


def test_hold_and_flat_merge_in_three_ways_and_differ_in_four():
    assert metrics.entropy((0, 5, 0, 5)) == pytest.approx(math.log(2))
    assert metrics.entropy((0, 10, 0)) == 0.0
    assert metrics.entropy((1, 1, 1, 1)) == pytest.approx(math.log(4))


def test_sharpe_over_its_per_step_value_is_the_annualisation_factor_written_beside_it(oracle):
    out = phase(run_data(oracle))
    assert out["sharpe"] / out["sharpe_per_step"] == pytest.approx(out["annualisation_factor"], rel=1e-12)
    decided = [row["ts_decided_ns"] for row in oracle.table("steps") if row["lane"] == 0]
    year = 366 * 86_400 * SECOND if oracle.start > 1_704_067_200 * SECOND else 365 * 86_400 * SECOND
    steps_per_year = (len(decided) - 1) * year / (decided[-1] - decided[0])
    assert out["annualisation_factor"] == pytest.approx(math.sqrt(steps_per_year), rel=1e-12)


@pytest.mark.parametrize(("minutes", "factor"), [(1, 313.4964), (5, 140.2), (15, 80.944)])
def test_annualisation_scales_with_the_step_not_with_a_24_hour_day(minutes, factor):
    """390-minute days, 252 of them, one-minute steps: sqrt(98,280) = 313.5 (seed D12, T19), and never the 1,704 of a second formula."""
    day = 390 * 60 * SECOND
    got = metrics.annualisation_factor(390 // minutes, day, 252 * day)
    assert got == pytest.approx(factor, rel=1e-4)


def test_a_globex_year_has_the_hours_that_its_sessions_have():
    hours = session_ns_per_year("cme_globex", DAY) / (3600 * SECOND)
    assert 5_700 < hours < 6_100  # 23 hours on some 258 days, less the holidays


def test_compounded_return_is_the_product_and_bankruptcy_is_bounded():
    rng = np.random.default_rng(1)
    returns = rng.normal(0, 0.01, 500)
    assert metrics.compounded_return(returns) == pytest.approx(float(np.prod(1 + returns) - 1), abs=1e-12)
    assert metrics.compounded_return(np.array([-1.0])) == pytest.approx(1e-10 - 1)  # seed T20
    assert metrics.compounded_return(np.array([-3.0, 0.5])) >= -1.0
    assert metrics.compounded_return(np.full(98_280, -52e-4)) >= -1.0  # seed T21


def test_drawdown_starts_at_the_initial_equity_and_sees_marks_inside_the_day():
    falling = np.array([100, 90, 95, 120, 60, 130])
    assert metrics.max_drawdown_usd_micros(falling) == 60
    assert metrics.max_drawdown_usd_micros(np.array([100, 90, 95])) == 10
    assert metrics.max_drawdown_fraction(np.array([100, 150, -50])) == pytest.approx(200 / 150)


def test_flat_steps_are_periods_too():
    moving = metrics.step_returns(np.array([100, 101, 100, 103]))
    with_flat = metrics.step_returns(np.array([100, 101, 101, 101, 100, 100, 103]))
    assert not isinstance(moving, Undefined) and not isinstance(with_flat, Undefined)
    assert len(with_flat) == 6
    assert metrics.sharpe(with_flat, 1.0) < metrics.sharpe(moving, 1.0)


@given(st.lists(st.integers(-(2**60), 2**60), max_size=8))
@settings(max_examples=200, deadline=None)
def test_metrics_are_total(values):
    equity = np.array(values, np.int64)
    returns = metrics.step_returns(equity)
    figures = [
        metrics.compounded_return(returns),
        metrics.sharpe(returns, metrics.annualisation_factor(len(values), len(values) * SECOND, 10**16)),
        metrics.max_drawdown_fraction(equity),
        metrics.annualisation_factor(0, 0, 0),
        metrics.entropy([abs(v) for v in values]),
    ]
    for figure in figures:
        assert isinstance(figure, Undefined) or math.isfinite(figure)


def empty(data: RunData, *names: str) -> RunData:
    tables = {name: rows.slice(0, 0) if name in names else rows for name, rows in data.tables.items()}
    return RunData(**{**data.__dict__, "tables": tables, "summary": None})


def test_summary_is_total_on_empty_runs_and_says_why_a_figure_is_missing(oracle):
    out = phase(empty(run_data(oracle), "steps", "orders", "fills", "trades"))
    assert out["total_pnl_usd_micros"] == 0 and out["trades"] == 0
    assert out["win_rate"] is None and out["win_rate_reason"] == "no_trades"
    assert out["sharpe"] is None and out["sharpe_reason"] == "no_steps"
    assert out["picked_entropy_4way"] is None


def test_one_trade_and_only_losses_have_defined_figures(oracle):
    data = run_data(oracle)
    trades = data.tables["trades"]
    one = trades.filter(pc.less(trades.column("realized_usd_micros"), 0)).slice(0, 1)
    out = phase(RunData(**{**data.__dict__, "tables": dict(data.tables) | {"trades": one}}))
    assert out["win_rate"] == 0.0 and out["profit_factor"] == 0.0
    wins = trades.filter(pc.greater(trades.column("realized_usd_micros"), 0)).slice(0, 1)
    out = phase(RunData(**{**data.__dict__, "tables": dict(data.tables) | {"trades": wins}}))
    assert out["profit_factor"] is None and out["profit_factor_reason"] == "no_losing_trade"


def test_a_bankrupt_account_has_reasons_instead_of_nonsense(oracle):
    data = run_data(oracle)
    steps = data.tables["steps"]
    index = steps.column_names.index("equity_usd_micros")
    broke = steps.set_column(index, "equity_usd_micros", pa.array(np.full(steps.num_rows, -5, np.int64)))
    out = phase(RunData(**{**data.__dict__, "tables": dict(data.tables) | {"steps": broke}}))
    assert out["sharpe"] is None and out["sharpe_reason"] == "equity_not_positive"
    assert out["max_drawdown_fraction"] > 1


@pytest.mark.parametrize(
    ("level", "kept", "missing"),
    [
        ("fills", ("fills", "trades"), {"sharpe": "level_has_no_steps", "final_equity_usd_micros": "level_has_no_steps"}),
        ("trades", ("trades",), {"sharpe": "level_has_no_steps"}),
        ("diag", (), {"total_pnl_usd_micros": "level_has_no_trades", "trades": "level_has_no_trades"}),
    ],
)
def test_every_level_says_what_it_cannot_give(oracle, level, kept, missing):
    full = phase(run_data(oracle))
    manifest = manifest_of(oracle) | {"log": {"level": level}}
    out = phase(RunData(manifest, {name: rows for name, rows in arrow_tables(oracle).items() if name in kept}))
    for name, reason in missing.items():
        assert out[name] is None and out[f"{name}_reason"] == reason
    if "trades" in kept:
        assert out["total_pnl_usd_micros"] == full["total_pnl_usd_micros"]
        assert out["per_magnitude"] == full["per_magnitude"]


def test_episodes_carry_open_lots_over_the_session_and_still_sum_to_the_total():
    oracle = random_run(6, sessions=short_sessions(DAY, 4, 14, 3))
    out = phase(run_data(oracle))
    realized: dict[tuple[int, int], int] = {}
    for row in oracle.table("steps"):
        key = (row["lane"], row["episode"])
        realized[key] = realized.get(key, 0) + row["realized_usd_micros"]
    assert {(row["lane"], row["episode"]): row["pnl_usd_micros"] for row in out["episodes"]} == realized
    assert any(row["bridge_of_open_lots_usd_micros"] for row in out["episodes"]), "no lot crossed a session: pick another seed"
    assert out["bridge_of_open_lots_usd_micros"] == 0
    only_trades = {name: rows for name, rows in arrow_tables(oracle).items() if name == "trades"}
    rows = phase(RunData(manifest_of(oracle), only_trades))["episodes"]
    assert {row["pnl_usd_micros_reason"] for row in rows if row["pnl_usd_micros"] is None} == {"open_lots_need_fills"}


def test_a_broken_off_run_books_the_entry_fees_of_what_is_open(oracle):
    data = run_data(oracle)
    cut = max(row["step"] for row in oracle.table("steps") if row["position_lots"]) - 1
    tables = {name: rows.filter(pc.less(rows.column("step"), cut)) for name, rows in data.tables.items()}
    out = phase(RunData(**{**data.__dict__, "tables": tables, "finished": False, "summary": None}))
    steps = [row for row in oracle.table("steps") if row["step"] < cut]
    assert out["total_pnl_usd_micros"] == sum(row["realized_usd_micros"] for row in steps)
    last = [row for row in steps if row["step"] == cut - 1]
    assert out["unrealized_usd_micros"] == sum(row["unrealized_usd_micros"] for row in last)


def test_usd_prints_as_the_exact_decimal():
    data = run_data(random_run(9))
    out = phase(data)
    for name in ("total_pnl", "fees"):
        assert Fraction(repr(out[f"{name}_usd"])) * 10**6 == out[f"{name}_usd_micros"]


def test_summary_is_strict_json_and_byte_equal_across_processes_with_other_hash_seeds(oracle):
    text = to_json(summarize(run_data(oracle)))
    assert json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON")) == summarize(run_data(oracle))
    code = (
        "from tests.oracle.as_run import run_data; from tests.oracle.simulate import random_run; from sim.summary import *;"
        "print(to_json(summarize(run_data(random_run(4, rows=400, lanes=4)))), end='')"
    )
    import os

    other = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout == text


def test_levels_without_the_steps_of_every_lane_say_the_same_of_what_was_picked_and_done(tmp_path):
    """From the counts in `diag`, so that training, which keeps no steps, tells its active fraction too."""
    from tests.replays import replayed, synthetic_store

    store = synthetic_store(tmp_path, events=4_000)
    full, sampled, fills = (
        phase_of(replayed(store, tmp_path / "runs", minutes=60, clock="30s", lanes=3, level=level, env={"plan_lock_steps": 2}))
        for level in ("full", "sampled:1", "fills")
    )
    names = [name for name in full if name.startswith(("picked_", "actual_")) or name in ("played_decisions", "active_fraction")]
    assert len(names) == 14 and full["picked_direction"] != full["actual_direction"]
    assert sum(full["picked_order"].values()) == sum(full["picked_urgency"].values()) == full["played_decisions"] > 300
    for other in (sampled, fills):
        assert {name: other[name] for name in names} == {name: full[name] for name in names}


def phase_of(result) -> dict:
    return result.summary["phases"][0]


def test_a_policy_that_switches_is_told_over_the_whole_window_and_not_by_its_last_chunk(tmp_path):
    """Seed K1, T54: a reader of the last 64 decisions saw 64 of 214,654. Short for a hundred decisions, then long."""
    from sim.run_data import load
    from sim.sql import ask
    from tests.replays import replayed, synthetic_store

    store = synthetic_store(tmp_path, events=4_000)
    script = tmp_path / "switch.csv"
    script.write_text("step,action\n" + "".join(f"{step},{18 if step < 100 else 72}\n" for step in range(120)))
    result = replayed(store, tmp_path / "runs", policy=f"script:{script}", minutes=60, clock="30s", lanes=1)
    found = phase_of(result)["picked_direction"]
    played = [
        row for row in load(result.run_dir).tables["steps"].select(["picked_direction", "is_drain"]).to_pylist() if not row["is_drain"]
    ]
    tail = [row["picked_direction"] for row in played][-64:]
    assert found["short"] == 100 and tail.count(0) < 64 * 100 // len(played)
    rows = ask("select picked_direction, count(*) from steps where is_drain = 0 group by all", runs=result.run_dir)["rows"]
    assert dict(rows) == {name: count for name, count in found.items() if count}


def test_a_forced_zero_cap_changes_what_is_done_and_not_what_is_picked(tmp_path):
    """Lesson 8: without the picks beside it, physics looks like a policy that went flat."""
    from sim.signals import picked_against_actual
    from tests.replays import replayed, synthetic_store

    store = synthetic_store(tmp_path, events=4_000)
    free, capped = (
        phase_of(replayed(store, tmp_path / "runs", minutes=60, clock="30s", lanes=2, env=env))
        for env in ({}, {"margin_usd_micros": 10**13})
    )
    assert capped["picked_direction"] == free["picked_direction"] and capped["trades"] == 0
    assert capped["actual_direction"]["long"] == capped["actual_direction"]["short"] == 0 < free["actual_direction"]["long"]
    assert picked_against_actual(free["picked_direction"], free["actual_direction"], {})[0] is None
    side, told = picked_against_actual(capped["picked_direction"], capped["actual_direction"], {"margin_cap": 120})
    assert side == "physics" and "margin_cap 120" in told
