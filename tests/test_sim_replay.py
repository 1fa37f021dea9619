"""A run end to end: store in, log out, proved."""

import numpy as np
import pytest

from lob.instruments import REGISTRY
from lob.units import parse_time_ns
from sim.ingest import ingest
from sim.plan import plan_replay
from sim.replay import replay
from sim.run_data import load
from sim.verify import verify


@pytest.fixture(scope="module")
def real_store(shared_data, tmp_path_factory):
    store = tmp_path_factory.mktemp("store")
    ingest(shared_data / "mbp10" / "esh4_20231225_derived.mbp-10.dbn.zst", store)
    return store


def run(store, runs, policy="random", lanes=4, level="full", start="2023-12-25T23:00", end="2023-12-25T23:10", **env):
    tape = {"clock": "1s", "start_ns": parse_time_ns(start)[0], "end_ns": parse_time_ns(end)[0]}
    config = plan_replay(store, "ESH4", REGISTRY, tape, env, {"level": level, "segment_steps": 128}, policy=policy, seed=7, lanes=lanes)
    return replay(config, store, runs)


def test_a_real_hours_replay_is_proved_to_the_micro_dollar(real_store, tmp_path):
    result = run(real_store, tmp_path)
    verdict = verify(result.run_dir, real_store, head=result.head)
    assert verdict.ok and verdict.largest_difference_usd_micros == 0


def test_a_finished_run_is_flat_and_its_total_is_final_less_initial_equity(real_store, tmp_path):
    result = run(real_store, tmp_path)
    steps = load(result.run_dir).tables["steps"]
    last = steps.filter(np.array(steps.column("step")) == result.steps)
    assert set(last.column("position_lots").to_pylist()) == {0}
    initial = 4 * 100_000_000_000
    assert sum(last.column("equity_usd_micros").to_pylist()) - initial == result.summary["total_pnl_usd_micros"]


def test_an_equal_run_gets_a_folder_of_its_own_and_the_same_head(real_store, tmp_path):
    first, second = run(real_store, tmp_path), run(real_store, tmp_path)
    assert first.run_dir != second.run_dir and first.head == second.head


@pytest.mark.parametrize("level", ["sampled:2", "fills"])
def test_a_lower_level_keeps_the_same_dollars(real_store, tmp_path, level):
    full, less = run(real_store, tmp_path), run(real_store, tmp_path, level=level)
    assert less.summary["total_pnl_usd_micros"] == full.summary["total_pnl_usd_micros"]
    assert verify(less.run_dir, real_store).ok


@pytest.mark.deep
def test_a_window_as_long_as_the_seeds_validation_is_played_proved_and_told_whole(tmp_path):
    """214,654 decisions in one window over three sessions (seed K1, T43); every pick is in the distribution, not only the last ones."""
    from tests.window_days import DATES, config_of, day_bounds, store_of_days

    store = store_of_days(tmp_path, events=60_000, dates=DATES[:3])
    window = (day_bounds(DATES[0])[0], day_bounds(DATES[2])[1])
    config = config_of([window], phase="replay", policy="imbalance", tape={"windows": None, "clock": "1s"})
    result = replay(config, store, tmp_path / "runs")
    phase = result.summary["phases"][0]
    assert result.steps >= 214_654 and sum(phase["picked_direction"].values()) == phase["played_decisions"] == result.played
    verdict = verify(result.run_dir, store, head=result.head)
    assert verdict.ok and verdict.largest_difference_usd_micros == 0
