"""The product's own runs: the five computations agree on every random episode, a killed run says the truth, a lying registry is found."""

import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

from lob.instruments import REGISTRY
from lob.records import RECORDS
from sim.ingest import ingest
from sim.run_data import load
from sim.verify import verify, verify_tables
from sim.verify_data import read_market
from sim.verify_types import render
from store.run_read import seal
from tests.falsification.recorder import CUM
from tests.replays import replayed, synthetic_store

TABLES = ("diag", "steps", "orders", "fills", "trades")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return synthetic_store(tmp_path_factory.mktemp("real"))


def test_last_evaluation_row_cumulative_usd_within_50_usd_of_the_evaluation_summary_and_in_fact_equal(store, tmp_path):
    """The customer's test: the log said +$469k, the summary -$4.46M, and both were called USD."""
    result = replayed(store, tmp_path, lanes=8)
    diag = load(result.run_dir).tables["diag"]
    last = diag.filter(pc.equal(diag.column("step"), pc.max(diag.column("step")))).to_pylist()[0]
    summary = json.loads((result.run_dir / "eval_summary.json").read_text())
    assert abs(last[CUM] - summary["total_pnl_usd_micros"]) <= 50 * 10**6
    assert last[CUM] == summary["total_pnl_usd_micros"] != 0


def random_case(seed: int) -> dict:
    """Instrument, fees, clock, latency, account and policy drawn from a seed."""
    rng = random.Random(seed)
    terms = rng.choice([terms for terms in REGISTRY.values() if terms.calendar == "cme_globex"])
    capital = terms.margin_usd_micros * rng.choice((2, 6, 20))
    return {
        "symbol": terms.root + "H4",
        "policy": rng.choice(("random", "random", "random", "momentum", "imbalance", "long", "short", "flat")),
        "clock": rng.choice(("1s", "2s", "10s", "30e", "200v")),
        "latency_ns": rng.choice((0, 1_000_000, 300_000_000, 3 * 10**9)),
        "env": {
            "capital_usd_micros": capital,
            "max_lots": rng.choice((1, 2, 4, 7, 16)),
            "fee_usd_micros": rng.randrange(0, 5_000_000),
            "floor_usd_micros": capital - terms.tick_value_usd_micros * rng.choice((40, 150, 10**5)),
            "trail_ticks": rng.choice((0, 4, 12)),
            "plan_lock_steps": rng.choice((0, 3)),
        },
        "seed": seed,
    }


def assert_five_agree(case: dict, folder: Path, lanes: int, events: int, minutes: int) -> int:
    """Replays one case and verifies it; returns the number of lane episodes."""
    place = synthetic_store(folder, case["symbol"], events, case["seed"])
    result = replayed(place, folder / "runs", lanes=lanes, minutes=minutes, **case)
    verdict = verify(result.run_dir, place, result.head)
    assert verdict.ok and verdict.largest_difference_usd_micros == 0, f"{case}\n{render(verdict)}"
    assert len(set(verdict.totals.values())) == 1 and None not in verdict.totals.values()
    return verdict.groups


def test_the_five_agree_to_the_micro_dollar_on_two_hundred_random_episodes(tmp_path):
    episodes = 0
    for seed in range(4):
        (tmp_path / str(seed)).mkdir()
        episodes += assert_five_agree(random_case(seed), tmp_path / str(seed), lanes=64, events=20_000, minutes=4)
    assert episodes >= 150  # `flat` lanes have no fills, but an episode each


@pytest.mark.deep
def test_the_five_agree_to_the_micro_dollar_on_ten_thousand_random_episodes(tmp_path):
    episodes = 0
    for seed in range(100, 140):
        (tmp_path / str(seed)).mkdir()
        episodes += assert_five_agree(random_case(seed), tmp_path / str(seed), lanes=256, events=60_000, minutes=10)
    assert episodes >= 10_000


def test_a_multiplier_of_1_in_the_registry_itself_is_found(store, tmp_path):
    """Ingest, replay, summary and report all believe the registry; only the hand-typed table knows that a point of ES is $50."""
    lying = dict(REGISTRY) | {"ES": replace(REGISTRY["ES"], multiplier=Fraction(1))}
    result = replayed(store, tmp_path, registry=lying)
    verdict = verify(result.run_dir, store, result.head)
    assert verdict.exit_code == 1
    assert {check.name for check in verdict.failed} == {"multiplier"} and "identity.config.instrument.multiplier" in render(verdict)
    assert verdict.totals["a"] == verdict.totals["d"] != verdict.totals["e"]


@pytest.mark.parametrize(("path", "check"), [(("data", "schema_hash"), "schema_hash"), (("layout_fingerprint",), "layout_fingerprint")])
def test_a_manifest_that_claims_another_schema_than_its_build_has_is_found(store, tmp_path, path, check):
    result = replayed(store, tmp_path, lanes=1, minutes=1)
    assert {c.name for c in verify(result.run_dir, store, result.head).checks if c.status != "ok"} == set()
    manifest = json.loads((result.run_dir / "manifest.json").read_text())
    place = manifest["identity"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = "0" * 64
    (result.run_dir / "manifest.json").write_text(json.dumps(manifest))
    assert {"chain", check} <= {c.name for c in verify(result.run_dir, store, result.head).failed}


@pytest.mark.parametrize("level", ["full", "sampled:2", "fills"])
def test_a_run_that_its_step_limit_ended_is_verified_at_every_level(store, tmp_path, level):
    result = replayed(store, tmp_path, level=level, step_limit=20)
    verdict = verify(result.run_dir, store, result.head)
    assert verdict.ok, render(verdict)


def test_top_of_book_runs_are_verified_and_the_clock_of_the_manifest_is_held_to(store, tmp_path):
    records = np.frombuffer(write_top(store.parent / "ESH4.dbn", tmp_path / "top.dbn"), RECORDS["mbp-1"])
    assert len(records)
    ingest(tmp_path / "top.dbn", tmp_path / "store", instrument="ESH4")
    result = replayed(tmp_path / "store", tmp_path / "runs", env={"max_lots": 1})
    verdict = verify(result.run_dir, tmp_path / "store", result.head)
    assert verdict.ok and verdict.totals["e"] == verdict.totals["a"], render(verdict)
    data = load(result.run_dir)
    market, _ = read_market(data.terms, tmp_path / "store")
    manifest = json.loads(json.dumps(data.manifest))
    manifest["identity"]["config"]["tape"]["clock"] = "2s"
    assert "schedule_steps" in {check.name for check in verify_tables(replace(data, manifest=manifest), market).failed}


def write_top(source: Path, path: Path) -> bytes:
    """The best levels of an MBP-10 file as an MBP-1 file; returns its records."""
    import databento_dbn as dbn

    decoder = dbn.DBNDecoder()
    decoder.write(source.read_bytes())
    books = b"".join(bytes(record) for record in decoder.decode() if isinstance(record, dbn.MBP10Msg))
    deep = np.frombuffer(books, RECORDS["mbp-10"])
    top = np.zeros(len(deep), RECORDS["mbp-1"])
    for name in top.dtype.names or ():
        top[name] = deep[name]
    top["length"], top["rtype"] = top.dtype.itemsize // 4, 0x01
    metadata = dbn.Metadata(
        dataset="GLBX.MDP3", start=0, stype_out=dbn.SType.INSTRUMENT_ID, schema=dbn.Schema.MBP_1, stype_in=dbn.SType.RAW_SYMBOL,
        symbols=["ESH4"], partial=[], not_found=[], mappings=[], ts_out=False,
    )  # fmt: skip
    path.write_bytes(metadata.encode() + top.tobytes())
    return top.tobytes()


# --- kill -9 ---


@pytest.fixture(scope="module")
def whole(store, tmp_path_factory):
    """The run that nobody kills."""
    runs = tmp_path_factory.mktemp("whole")
    result = replayed(store, runs, lanes=16, segment_steps=100, minutes=30)
    return load(result.run_dir), result.head


def killed(store: Path, runs: Path, rng: random.Random) -> Path:
    """A replay in a process of its own, killed at a random moment after its folder has come to be."""
    command = [sys.executable, "-m", "tests.replays", str(store), str(runs), "ESH4", "7", "16", "100", "20"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while not list(runs.glob("*/chain.jsonl")):
            assert process.poll() is None, process.stderr.read().decode() if process.stderr else ""
            time.sleep(0.005)
        time.sleep(rng.random() ** 2 * 2.5)
        process.send_signal(signal.SIGKILL)
        process.wait()
    return next(runs.glob("*/chain.jsonl")).parent


def assert_killed_run_tells_the_truth(store: Path, runs: Path, whole, rng: random.Random) -> bool:
    """What verify says of the killed run is what its surviving steps hold; sealing makes it whole. Returns whether it was cut."""
    uninterrupted, head = whole
    run_dir = killed(store, runs, rng)
    data = load(run_dir)
    if data.finished:
        assert verify(run_dir, store, head).ok
        return False
    steps = data.tables["diag"].num_rows
    for name in TABLES:
        rows = uninterrupted.tables[name]
        assert data.tables[name].equals(rows.filter(pc.less(rows.column("step"), steps))), name
    verdict = verify(run_dir, store)
    assert verdict.ok and not verdict.finished, render(verdict)
    assert render(verdict).splitlines()[-1] == "VERIFIED: the run is unfinished"
    assert f"step {steps} of the run" in verdict.ends
    realized = data.tables["diag"].column("trading.realized_pnl_usd_micros_delta").to_pylist()
    assert verdict.totals == dict.fromkeys("abcde", sum(realized))
    sealed = seal(run_dir)
    again = verify(run_dir, store, sealed)
    assert again.ok and again.totals == verdict.totals and again.head == sealed, render(again)
    assert all(load(run_dir).tables[name].equals(data.tables[name]) for name in TABLES)
    return True


def test_a_run_killed_at_a_random_moment_says_the_truth_and_can_be_sealed(store, whole, tmp_path):
    rng = random.Random(1)
    in_time = [assert_killed_run_tells_the_truth(store, tmp_path / str(i), whole, rng) for i in range(3)]
    assert any(in_time)


@pytest.mark.deep
def test_twenty_runs_killed_at_random_moments_say_the_truth_and_can_be_sealed(store, whole, tmp_path):
    rng = random.Random(2)
    in_time = [assert_killed_run_tells_the_truth(store, tmp_path / str(i), whole, rng) for i in range(20)]
    assert sum(in_time) >= 10
