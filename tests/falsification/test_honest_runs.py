"""An honest run is verified, and a tolerance hides nothing."""

import json

import pytest

from sim.run_data import load
from sim.verify import verify
from sim.verify_types import render
from tests.falsification.recorder import data_of, make_store, record
from tests.oracle.simulate import random_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("customer")
    oracle = random_run(4, rows=400, lanes=8)
    store = make_store(oracle, folder)
    head = record(data_of(oracle, store), folder / "run")
    return folder / "run", store, head


def test_an_honest_run_is_verified_with_its_head_and_prints_a_difference_of_nothing(run):
    run_dir, store, head = run
    verdict = verify(run_dir, store, head)
    assert verdict.exit_code == 0, render(verdict)
    assert verdict.head == head
    assert len(set(verdict.totals.values())) == 1 and None not in verdict.totals.values()
    assert "$0.00" in render(verdict)
    assert {check.name for check in verdict.checks if check.status != "ok"} == {
        "schema_hash",
        "layout_fingerprint",
        "calendar",
    }  # not the oracle's


def test_tolerance_never_hides_the_exact_difference(run, tmp_path):
    run_dir, store, _ = run
    data = load(run_dir)
    summary = json.loads(json.dumps(data.summary))
    summary["phases"][0]["episodes"][0]["pnl_usd_micros"] += 1
    record(data, tmp_path / "forged", summary)
    for tolerance in (0, 50 * 10**6):
        verdict = verify(tmp_path / "forged", store, tolerance_usd_micros=tolerance)
        assert verdict.largest_difference_usd_micros == 1 and "$0.000001" in render(verdict)
        assert verdict.exit_code == 1
