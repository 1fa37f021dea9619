"""Laws of verify: it agrees with an oracle that shares no code with the house, says what each level allows, and imports no physics."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow.compute as pc
import pytest

from lob.errors import TapeproofError
from lob.instruments import REGISTRY
from sim.run_data import RunData
from sim.verify import verify, verify_tables
from sim.verify_accounting import walk
from sim.verify_market import Market
from sim.verify_terms import CALENDAR, TERMS, root_of, terms_for
from sim.verify_types import failed, render
from tests.oracle.as_run import market, run_data, with_summary
from tests.oracle.lane import micros
from tests.oracle.simulate import DAY, random_bar_run, random_run, short_sessions


@pytest.mark.parametrize("seed", range(24))
def test_the_five_computations_agree_on_random_runs_to_the_micro_dollar(seed):
    oracle = random_run(seed, thin=seed % 2 == 1, sessions=short_sessions(DAY, 4, 14, 3) if seed % 3 == 0 else None)
    verdict = verify_tables(run_data(oracle), market(oracle))
    assert verdict.ok, render(verdict)
    expected = sum(micros(account.cash - oracle.terms.capital) for account in oracle.accounts)
    assert verdict.totals == dict.fromkeys("abcde", expected)


@pytest.mark.parametrize("seed", range(10))
def test_the_five_computations_agree_on_random_runs_over_bars(seed):
    oracle = random_bar_run(seed, sessions=short_sessions(DAY, 5, 1200, 300) if seed % 2 else None)
    verdict = verify_tables(run_data(oracle), market(oracle))
    assert verdict.ok, render(verdict)
    assert verdict.totals == dict.fromkeys("abcde", sum(micros(account.cash - oracle.terms.capital) for account in oracle.accounts))


def test_verify_and_the_oracle_import_nothing_of_the_environment():
    code = (
        "import sys; import sim.verify, sim.summary, sim.run_data, tests.oracle.lane, tests.oracle.events, tests.oracle.regenerate;"
        "print([name for name in sys.modules if name.split('.')[0] in ('cuda_env', 'policy')], "
        "[name for name in sys.modules if name in ('lob.instruments', 'lob.tape_build', 'lob.schedule')])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["[]", "[]"]


def test_the_hand_typed_table_agrees_with_itself_and_with_the_registry():
    for root, terms in TERMS.items():
        assert terms.point_value_usd_micros * terms.tick_price_e9 == terms.tick_value_usd_micros * 10**9, root
        assert (terms.tick_price_e9, terms.tick_value_usd_micros) == (REGISTRY[root].tick_price_e9, REGISTRY[root].tick_value_usd_micros)
    futures = {name: REGISTRY[name].calendar for name in REGISTRY if REGISTRY[name].calendar.startswith("cme_globex")}
    assert futures == CALENDAR and set(TERMS) == set(CALENDAR)


SYMBOLS = {"ESH4": "ES", "MESM24": "MES", "ES.FUT": "ES", "ES.c.0": "ES", "6EH4": "6E", "M6EZ5": "M6E", "ES": "ES"}


@pytest.mark.parametrize(("symbol", "root"), [*SYMBOLS.items(), ("ESTC", None), ("AAPL", None), ("ESA4", None)])
def test_symbols_find_their_hand_typed_root(symbol, root):
    assert root_of(symbol) == root
    assert terms_for(symbol) == (TERMS[root] if root else None)


def levels(oracle, level: str, kept: tuple[str, ...]) -> RunData:
    data = run_data(oracle)
    manifest = dict(data.manifest) | {"log": {"level": level}}
    tables = {name: rows for name, rows in data.tables.items() if name in kept}
    return with_summary(RunData(**{**data.__dict__, "manifest": manifest, "tables": tables}))


def test_each_level_states_which_computations_it_allows_and_why_not():
    oracle = random_run(5)
    place = market(oracle)
    verdict = verify_tables(levels(oracle, "fills", ("fills", "trades")), place)
    assert verdict.ok and {k for k, v in verdict.totals.items() if v is not None} == {"b", "c", "e"}
    assert "level fills keeps no steps" in verdict.reasons["d"] and "(a) per phase only" in verdict.proof
    verdict = verify_tables(levels(oracle, "trades", ("trades",)), None)
    assert verdict.ok and {k for k, v in verdict.totals.items() if v is not None} == {"b"}
    assert "does not prove" in verdict.proof and "all five" not in render(verdict)
    verdict = verify_tables(levels(oracle, "diag", ()), None)
    assert all(value is None for value in verdict.totals.values()) and "nothing is proved" in verdict.proof


def test_sampled_lanes_prove_the_steps_that_they_have():
    oracle = random_run(5)
    data = run_data(oracle)
    keep = lambda rows: rows.filter(pc.less(rows.column("lane"), 2))  # noqa: E731
    tables = dict(data.tables) | {"steps": keep(data.tables["steps"]), "orders": keep(data.tables["orders"])}
    manifest = dict(data.manifest) | {"log": {"level": "sampled:2"}}
    verdict = verify_tables(
        RunData(**{**data.__dict__, "manifest": manifest, "tables": tables, "summary": None, "finished": False}), market(oracle)
    )
    assert verdict.ok, render(verdict)
    assert "sampled lanes only" in verdict.proof


def test_without_a_market_the_proof_says_that_no_fill_was_seen():
    verdict = verify_tables(run_data(random_run(5)), None)
    assert verdict.ok and verdict.totals["e"] is None and "no fill was seen" in verdict.proof


def test_an_instrument_outside_the_hand_typed_table_is_said_to_be_unproved():
    oracle = random_run(5)
    data = run_data(oracle)
    manifest = json.loads(json.dumps(data.manifest))
    manifest["identity"]["config"]["instrument"]["symbol"] = "XYZ"
    data = RunData(**{**data.__dict__, "manifest": manifest, "summary": None, "finished": False})
    verdict = verify_tables(data, market(oracle))
    assert verdict.ok and "run's own word" in verdict.proof and "sim/verify_terms.py" in render(verdict)


def test_a_run_that_broke_off_is_judged_for_what_it_holds():
    for seed in range(6):
        oracle = random_run(seed)
        data = run_data(oracle)
        cut = len(oracle.decisions) * (seed + 1) // 8 + 1
        tables = {name: rows.filter(pc.less(rows.column("step"), cut)) for name, rows in data.tables.items()}
        verdict = verify_tables(RunData(**{**data.__dict__, "tables": tables, "summary": None, "finished": False}), market(oracle))
        assert verdict.ok, render(verdict)
        assert "of the part of the run that the log holds" in verdict.proof
        assert verdict.totals["a"] == sum(row["realized_usd_micros"] for row in oracle.table("steps") if row["step"] < cut)


def test_the_walk_conserves_every_remainder():
    """Three lots bought at uneven prices with an odd fee, closed one by one: what leaves is what came in."""
    side, lots = np.array([1, 1, -1, -1, -1]), np.array([1, 2, 1, 1, 1])
    price, fee = np.array([10, 11, 12, 12, 12]), np.array([1, 0, 0, 0, 0])
    out = walk(np.zeros(5, np.int64), side, lots, price, fee, np.arange(5), np.arange(5))
    assert out.cost_out.tolist() == [0, 0, 10, 11, 11] and out.entry_fee.tolist() == [0, 0, 0, 0, 1]
    assert (out.after[-1], out.cost[-1], out.open_fee[-1]) == (0, 0, 0)
    assert out.gross_ticks.sum() == -(side * lots * price).sum()


def test_the_walk_floors_a_short_position_downwards_and_crosses_zero_in_one_fill():
    side, lots, price = np.array([-1, -1, 1, 1]), np.array([1, 2, 1, 5]), np.array([10, 11, 9, 9])
    out = walk(np.zeros(4, np.int64), side, lots, price, np.array([2, 4, 2, 10]), np.arange(4), np.arange(4))
    assert out.cost_out.tolist() == [0, 0, -11, -21]  # floor(-32/3), then the rest
    assert out.closed.tolist() == [0, 0, 1, 2] and out.after.tolist() == [-1, -3, -2, 3]
    assert out.exit_fee.tolist() == [0, 0, 2, 4] and out.open_fee[-1] == 6 and out.cost[-1] == 27


def test_a_verdict_is_json_and_names_the_five_computations():
    oracle = random_run(5)
    verdict = verify_tables(run_data(oracle), market(oracle))
    document = json.loads(json.dumps(verdict.to_json(), allow_nan=False))
    assert document["ok"] and [row["name"] for row in document["computations"]] == list("abcde")
    assert "largest difference over" in render(verdict) and "$0.00" in render(verdict) and render(verdict).endswith("VERIFIED")


def test_only_fills_that_were_seen_in_the_market_are_verified():
    oracle = random_run(5)
    proved = verify_tables(run_data(oracle), market(oracle))
    assert render(proved).splitlines()[-1] == proved.word == "VERIFIED"
    assert render(replace(proved, finished=False)).splitlines()[-1] == "VERIFIED: the run is unfinished"
    blind = verify_tables(run_data(oracle), None)
    assert blind.ok and blind.word == "CHECKED" and render(blind).splitlines()[-1].endswith("nothing proves it (no market data to look at)")
    lying = verify_tables(run_data(oracle), market(oracle), checks=[failed("chain", "cut", "segments")])
    assert (lying.word, render(lying).splitlines()[-1]) == ("FALSIFIED", "FALSIFIED")


def test_a_store_that_is_not_there_is_a_usage_fault_and_no_verdict(tmp_path):
    with pytest.raises(TapeproofError) as error:
        verify(tmp_path, tmp_path / "no-such-store")
    assert error.value.exit_code == 2 and "no-such-store" in str(error.value)


def test_an_empty_market_is_a_finding_and_no_crash():
    oracle = random_run(5)
    whole = market(oracle)
    rows = {name: value[:0] for name, value in whole.__dict__.items() if isinstance(value, np.ndarray) and len(value) == len(whole.key)}
    none = Market(**{**whole.__dict__, **rows})
    verdict = verify_tables(run_data(oracle), none)
    assert not verdict.ok and {"fills_market_row", "steps_mark_row"} <= {check.name for check in verdict.failed}
