"""Trainings on other than five whole days of books: on bars, on few days, on parts of days; and what their logs can be asked."""

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from lob.instruments import REGISTRY
from sim.sql import ask
from sim.train import days_of, prepare, train
from sim.train_config import plan_train
from sim.verify import verify
from store.run_check import verify_chain
from store.run_read import read_run, read_table
from tests.train_days import SMALL
from tests.window_days import DATES, HOUR, day_bounds, store_of_bars, store_of_days

MINUTE = 60 * 10**9
LOOP = {"steps": 20, "checkpoint_every": 10, "validate_every": 20, "block_steps": 10, "warmup_steps": 8, "eval_steps": 5}


def plan(store, first, last, clock="5m"):
    window = {"clock": clock, "start_ns": day_bounds(first)[0], "end_ns": day_bounds(last)[1]}
    return plan_train(store, "ESH4", REGISTRY, window, SMALL | {"loop": LOOP}, seed=3, lanes=8)


@pytest.fixture(scope="module")
def bars(tmp_path_factory):
    torch.set_num_threads(1)
    return store_of_bars(tmp_path_factory.mktemp("bars"), 5)


@pytest.fixture(scope="module")
def on_bars(bars, tmp_path_factory):
    return train(plan(bars, "2024-03-04", "2024-03-08", "bar"), bars, tmp_path_factory.mktemp("runs"))


def test_a_training_on_bars_learns_and_its_evaluations_are_proved(bars, on_bars):
    config = read_run(on_bars.run_dir).manifest["identity"]["config"]
    assert (config["tape"]["market_schema"], config["tape"]["clock"]) == ("ohlcv-1m", "bar")
    assert verify(on_bars.run_dir, bars, on_bars.head).word == "CHECKED"
    for one in on_bars.evaluations:
        verdict = verify(one["run"], bars, one["head"])
        assert verdict.word == "VERIFIED" and verdict.largest_difference_usd_micros == 0
    updates = read_table(read_run(on_bars.run_dir), "diag", ["learn.updates"]).column(0).to_pylist()
    assert max(count for count in updates if count is not None) == 12


def test_a_figure_changed_in_any_sealed_part_of_a_training_is_found_and_the_part_named(on_bars):
    run = on_bars.run_dir
    parts = sorted(path for path in (run / "segments").rglob("*.parquet"))
    assert {path.stem for path in parts} >= {"diag", "trades", "events"} and verify_chain(run) == []
    for part in parts:
        sealed, rows = part.read_bytes(), pq.read_table(part)
        if not rows.num_rows:
            continue
        swapped = rows.take(np.r_[1 : rows.num_rows, 0]) if rows.num_rows > 1 else rows.slice(0, 0)
        part.chmod(0o644)
        pq.write_table(swapped, part)
        found = verify_chain(run)
        assert found and found[0].table == part.stem and part.parent.name in (found[0].part or ""), part
        part.write_bytes(sealed)
    assert verify_chain(run) == []


def test_sql_over_losses_gives_the_logs_own_numbers(on_bars):
    columns = ("learn.loss", "learn.updates")
    answer = ask('select max("learn.updates"), avg("learn.loss"), count("learn.loss"), count(*) from diag', runs=on_bars.run_dir)
    losses, updates = (read_table(read_run(on_bars.run_dir), "diag", [name]).column(0).to_pylist() for name in columns)
    made = [loss for loss in losses if loss is not None]
    ((most, mean, count, rows),) = answer["rows"]
    assert (most, count, rows) == (max(count for count in updates if count is not None), len(made), len(losses)) and 0 < len(made) < len(
        losses
    )
    assert mean == pytest.approx(sum(made) / len(made), rel=1e-12)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_few_days_are_split_where_their_data_is_and_no_part_is_without(bars, count):
    """Bars of 09:00 to 21:00 in sessions of 23 hours: a cut by the sessions' hours would leave parts without a row."""
    config = plan(bars, "2024-03-04", f"2024-03-0{3 + count}", "bar")
    days = days_of(config, bars)
    assert [(last - first) // HOUR for _, first, last in days] == [12] * count
    assert all(first % (24 * HOUR) == 9 * HOUR for _, first, _ in days)
    parts = prepare(config, bars)
    assert parts.split.by == "time"
    open_ns = [sum(end - start for start, end in part) for part in (parts.split.train, parts.split.validation, parts.split.test)]
    assert sum(open_ns) == count * 12 * HOUR and abs(open_ns[2] - count * 12 * HOUR // 5) <= 1


def test_a_whole_session_of_books_is_cut_by_nothing_and_one_day_trains_to_its_proof(tmp_path):
    store = store_of_days(tmp_path, 1_000, DATES[:1])
    config = plan(store, DATES[0], DATES[0])
    ((_, first, last),) = days_of(config, store)
    opens, closes = day_bounds(DATES[0])
    assert opens <= first < opens + 5 * MINUTE and closes - 5 * MINUTE < last <= closes
    result = train(config, store, tmp_path / "runs")
    assert [verify(one["run"], store).word for one in result.evaluations] == ["VERIFIED"] * 2
