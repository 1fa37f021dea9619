"""Runs whose orders work in the book: verify proves every dollar, a forged fill is named, training and resuming work as ever."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from lob.calendar import session_bounds
from sim.run_data import RunData, load
from sim.train import train
from sim.verify import verify, verify_tables
from sim.verify_data import read_market
from sim.verify_types import render
from tests.kills import KILLED, die_at_event, in_child
from tests.replays import DATE, replayed, synthetic_store
from tests.train_days import everything, go_on, make_store, run_of, small

MILLISECOND = 10**6
TIGHT = {
    "capital_usd_micros": 30_000 * 10**6, "floor_usd_micros": 22_000 * 10**6, "margin_usd_micros": 10**9, "max_lots": 6, "trail_ticks": 3,
}  # fmt: skip
WORKING = {"queue_model": "risk_averse"}
DRAWN = {
    "queue_model": "power", "maker_fee_usd_micros": -700_000, "entry_latency_ns": (0, MILLISECOND, 400 * MILLISECOND),
    "cancel_latency_ns": (MILLISECOND, 900 * MILLISECOND), "ack_latency_ns": (0, 50 * MILLISECOND), "latency_seed": 5,
}  # fmt: skip
RUNS = {
    "cautious": {"env": WORKING},
    "drawn latencies, rebates, stops": {"env": DRAWN | TIGHT, "clock": "5s"},
    "shares of a decrease": {"env": {"queue_model": "proportional", "cross_after_ppm": 100_000, "max_lots": 3}, "clock": "20e"},
    "a step limit": {"env": WORKING | TIGHT, "step_limit": 40},
    "sampled": {"env": WORKING, "level": "sampled:2"},
    "fills": {"env": DRAWN, "level": "fills"},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    torch.set_num_threads(1)
    return synthetic_store(tmp_path_factory.mktemp("market"), events=200_000)


def played(store: Path, folder: Path, name: str):
    """The run over twenty minutes of the day's busiest hour."""
    start = session_bounds("cme_globex", dt.date.fromisoformat(DATE))[0] + 15 * 3600 * 10**9
    window = {"start_ns": start, "end_ns": start + 1200 * 10**9, "latency_ns": 2 * MILLISECOND}
    return replayed(store, folder, lanes=6, **window | RUNS[name])


@pytest.fixture(scope="module")
def runs(store, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    return {name: played(store, folder, name) for name in RUNS}


def column(run: RunData, table: str, name: str) -> np.ndarray:
    return run.tables[table].column(name).to_numpy()


def test_every_run_is_proved_to_the_micro_dollar_and_replays_to_the_same_bytes(store, runs, tmp_path):
    for name, result in runs.items():
        verdict = verify(result.run_dir, store, head=result.head)
        assert verdict.ok, f"{name}: {render(verdict)}"
        assert verdict.largest_difference_usd_micros == 0, name
    for name in ("drawn latencies, rebates, stops", "fills"):
        again = played(store, tmp_path, name)
        assert again.head == runs[name].head, name


def test_the_runs_hold_what_they_are_meant_to_prove(runs):
    drawn = load(runs["drawn latencies, rebates, stops"].run_dir)
    assert {1, 2} <= set(column(drawn, "fills", "reason")), "fills by the queue and by prints through the limit"
    assert {0, 3} <= set(column(drawn, "orders", "state"))
    assert {0, 1} <= set(column(drawn, "orders", "kind"))  # the synthetic spread is one tick: nothing to improve
    assert (column(drawn, "fills", "fee_usd_micros") < 0).any(), "rebates"
    lived = column(drawn, "orders", "ts_ended_ns") - column(drawn, "orders", "ts_submitted_ns")
    assert lived.max() > 10**9, "orders that outlive their step"


def test_a_log_that_was_broken_off_is_proved_as_far_as_it_goes(store, runs):
    whole = load(runs["cautious"].run_dir)
    market, _ = read_market(whole.terms, store)
    for steps in (5, 300, 301):
        cut = {
            name: rows.filter(rows.column("step").to_numpy() < steps) for name, rows in whole.tables.items() if "step" in rows.column_names
        }
        verdict = verify_tables(RunData(whole.manifest, cut, finished=False, summary=None, steps=steps), market)
        assert not [c.line() for c in verdict.failed if "working" in c.name or c.table in ("fills", "orders")], steps
        assert verdict.largest_difference_usd_micros == 0


def changed(run: RunData, table: str, row: int, **values: int) -> RunData:
    """The run with other values in one row of a table."""
    rows = run.tables[table]
    for name, value in values.items():
        place = rows.column_names.index(name)
        array = rows.column(name).to_numpy().copy()
        array[row] = value
        rows = rows.set_column(place, rows.field(name), pa.chunked_array([pa.array(array, rows.field(name).type)]))
    return replace(run, tables={**run.tables, table: rows})


FORGERIES = {
    "a better price": lambda f, i: {"price_ticks": f["price_ticks"][i] - f["side"][i]},
    "a lot more": lambda f, i: {"lots": f["lots"][i] + 1},
    "an earlier row": lambda f, i: {"market_row": f["market_row"][i] - 1},
    "a later row": lambda f, i: {"market_row": f["market_row"][i] + 1},
    "the queue's reason": lambda f, i: {"reason": 3 - f["reason"][i]},
    "the other side": lambda f, i: {"side": -f["side"][i]},
    "an earlier time": lambda f, i: {"ts_filled_ns": f["ts_filled_ns"][i] - 1},
    "no fee": lambda f, i: {"fee_usd_micros": 0},
    "another order": lambda f, i: {"order_id": f["order_id"][i] + 1},
    "a shorter queue": lambda f, i: {"queue_ahead_lots": f["queue_ahead_lots"][i] + 1},
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_passive_fill_is_named(store, runs, forgery):
    run = load(runs["drawn latencies, rebates, stops"].run_dir)
    market, _ = read_market(run.terms, store)
    fills = {name: column(run, "fills", name).astype(np.int64) for name in run.tables["fills"].column_names}
    passive = np.flatnonzero(np.isin(fills["reason"], (1, 2)))
    for i in passive[:: max(1, len(passive) // 3)][:3].tolist():
        verdict = verify_tables(changed(run, "fills", i, **FORGERIES[forgery](fills, i)), market)
        assert not verdict.ok, forgery
        assert "fills" in {check.table for check in verdict.failed}, render(verdict)


def test_at_level_fills_a_print_gives_no_more_than_it_printed_and_only_to_whom_it_met(store, runs):
    run = load(runs["fills"].run_dir)
    market, _ = read_market(run.terms, store)
    fills = {name: column(run, "fills", name).astype(np.int64) for name in run.tables["fills"].column_names}
    i = int(np.flatnonzero(np.isin(fills["reason"], (1, 2)) & (fills["book_level"] < 0))[0])
    for values, check in (
        ({"lots": 10**6}, "fills_printed"),
        ({"price_ticks": fills["price_ticks"][i] + 50 * fills["side"][i] * -1}, "fills_price"),
    ):
        verdict = verify_tables(changed(run, "fills", i, **values), market)
        assert check in {one.name for one in verdict.failed}, render(verdict)


@pytest.mark.parametrize("lie", [{"latency_seed": 6}, {"cancel_latency_ns": [1]}, {"entry_latency_ns": [5]}])
def test_a_run_that_was_played_by_another_exchange_than_it_says_is_falsified(store, runs, lie):
    run = load(runs["drawn latencies, rebates, stops"].run_dir)
    market, _ = read_market(run.terms, store)
    manifest = json.loads(json.dumps(dict(run.manifest)))
    manifest["identity"]["config"]["env"] |= lie
    verdict = verify_tables(replace(run, manifest=manifest), market)
    assert {"working_fills", "working_orders"} & {check.name for check in verdict.failed}, render(verdict)


def test_a_missing_and_an_invented_order_are_named(store, runs):
    run = load(runs["cautious"].run_dir)
    market, _ = read_market(run.terms, store)
    state = column(run, "orders", "state")
    never = int(np.flatnonzero((state == 3) & (column(run, "orders", "filled_lots") == 0))[0])
    keep = np.arange(len(state)) != never
    for tables in ({"orders": run.tables["orders"].filter(keep)}, {"orders": changed(run, "orders", never, state=4).tables["orders"]}):
        verdict = verify_tables(replace(run, tables={**run.tables, **tables}), market)
        assert "working_orders" in {check.name for check in verdict.failed}, render(verdict)


def test_training_on_a_market_with_queues_is_proved_with_its_evaluations(tmp_path):
    store = make_store(tmp_path)
    config = small(store, env={"queue_model": "power", "ack_latency_ns": MILLISECOND}, loop={"steps": 40})
    result = train(config, store, tmp_path / "runs")
    for run, head in [(result.run_dir, result.head), *((Path(one["run"]), one["head"]) for one in result.evaluations)]:
        verdict = verify(run, store, head=head)
        assert verdict.ok, render(verdict)
        assert verdict.largest_difference_usd_micros == 0
    assert {column(load(Path(one["run"])), "orders", "kind").max() for one in result.evaluations} != {0}, "some order worked in the book"


@pytest.mark.deep
def test_such_a_training_killed_and_resumed_is_the_run_that_never_stopped(tmp_path):
    store = make_store(tmp_path)
    config = small(store, env=DRAWN)
    whole, runs = tmp_path / "whole", tmp_path / "runs"
    assert in_child(lambda: train(config, store, whole)) == 0  # in a child too: one that has played in parallel cannot be forked
    below = str(runs / run_of(whole).name / "checkpoints")
    assert in_child(lambda: die_at_event(60, lambda: go_on(config, store, runs), below)) == KILLED
    assert in_child(lambda: go_on(config, store, runs)) == 0
    found, asked = everything(runs), everything(whole)
    assert {run: files.keys() for run, files in found.items()} == {run: files.keys() for run, files in asked.items()}
    for run, files in asked.items():
        assert all(found[run][name] == content for name, content in files.items()), run
