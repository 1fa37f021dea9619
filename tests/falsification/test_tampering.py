"""Faults that no forger with our code made: bytes, parts and chains changed after sealing; and runs whose physics, market or terms lied."""

import json
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from sim.run_data import RunData
from sim.verify import verify
from sim.verify_types import render
from tests.falsification.recorder import data_of, make_store, record
from tests.oracle import events as oracle_events
from tests.oracle.events import Event
from tests.oracle.lane import play
from tests.oracle.simulate import DAY, ROOTS, OracleRun, random_picks, random_rows, random_run


@pytest.fixture(scope="module")
def oracle() -> OracleRun:
    return random_run(4, rows=300, lanes=4)


@pytest.fixture(scope="module")
def sealed(oracle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tampering")
    store = make_store(oracle, folder)
    head = record(data_of(oracle, store), folder / "run")
    return folder / "run", store, head


def copy(sealed, tmp_path: Path) -> Path:
    shutil.copytree(sealed[0], tmp_path / "run")
    return tmp_path / "run"


def judged(run_dir: Path, store: Path, head: str | None = None) -> dict[str, list[str]]:
    """Failed checks: name -> lines. The verdict must be a falsification."""
    verdict = verify(run_dir, store, head)
    assert verdict.exit_code == 1 and render(verdict).endswith("FALSIFIED")
    found: dict[str, list[str]] = {}
    for check in verdict.failed:
        found.setdefault(check.name, []).append(check.line())
    return found


@pytest.mark.parametrize("table", ["steps", "orders", "fills", "trades", "diag"])
def test_a_changed_byte_in_a_sealed_part_is_found_and_its_part_named(sealed, tmp_path, table):
    run_dir = copy(sealed, tmp_path)
    part = run_dir / "segments" / "00000002" / f"{table}.parquet"
    content = bytearray(part.read_bytes())
    content[len(content) // 3] ^= 1
    part.write_bytes(content)
    lines = judged(run_dir, sealed[1])["chain"]
    assert any(f"segments/00000002/{table}.parquet" in line for line in lines)


def test_a_removed_part_is_found_and_named(sealed, tmp_path):
    run_dir = copy(sealed, tmp_path)
    (run_dir / "segments" / "00000002" / "fills.parquet").unlink()
    assert any("segments/00000002/fills.parquet" in line and "missing" in line for line in judged(run_dir, sealed[1])["chain"])


def test_a_part_swapped_with_another_runs_is_found_and_named(sealed, tmp_path):
    run_dir = copy(sealed, tmp_path)
    other = random_run(5, rows=300, lanes=4)
    record(data_of(other, make_store(other, tmp_path)), tmp_path / "other")
    shutil.copy(tmp_path / "other" / "segments" / "00000001" / "fills.parquet", run_dir / "segments" / "00000001" / "fills.parquet")
    assert any("segments/00000001/fills.parquet" in line for line in judged(run_dir, sealed[1])["chain"])


def test_a_chain_rewritten_whole_is_told_from_the_original_by_its_head(sealed, oracle, tmp_path):
    """Another seed's picks over the same market, sealed flawlessly: only the head that the run printed can tell."""
    import random

    picks = [random_picks(len(oracle.decisions), random.Random(lane)) for lane in range(4)]
    accounts = [play(lane, oracle.tape, oracle.decisions, oracle.terms, picks[lane]) for lane in range(4)]
    record(data_of(replace(oracle, accounts=accounts), sealed[1]), tmp_path / "rewritten")
    assert verify(tmp_path / "rewritten", sealed[1]).exit_code == 0
    lines = judged(tmp_path / "rewritten", sealed[1], sealed[2])["chain"]
    assert any("chain.jsonl" in line and sealed[2] in line for line in lines)


def test_a_summary_edited_after_the_run_is_found(sealed, tmp_path):
    run_dir = copy(sealed, tmp_path)
    summary = json.loads((run_dir / "eval_summary.json").read_text())
    summary["total_pnl_usd_micros"] += 1
    (run_dir / "eval_summary.json").write_text(json.dumps(summary))
    found = judged(run_dir, sealed[1])
    assert any("eval_summary.json" in line for line in found["chain"])
    assert any("total_pnl_usd_micros" in line for line in found["summary"])


def test_entry_fees_dropped_from_the_summary_are_found_though_the_chain_holds(sealed, oracle, tmp_path):
    data = data_of(oracle, sealed[1])
    from sim.summary import summarize

    summary = summarize(data)
    entry = sum(row["fee_usd_micros"] for row in oracle.table("fills")) // 2
    for figure in (summary, summary["phases"][0]):
        figure["total_pnl_usd_micros"] += entry
        figure["total_pnl_usd"] = figure["total_pnl_usd_micros"] / 1e6
    summary["phases"][0]["episodes"][0]["pnl_usd_micros"] += entry
    record(data, tmp_path / "forged", summary)
    verdict = verify(tmp_path / "forged", sealed[1])
    assert verdict.exit_code == 1 and verdict.largest_difference_usd_micros == entry
    assert any(check.table == "eval_summary.json" and "total_pnl_usd_micros" in check.column for check in verdict.failed)


def test_a_manifest_that_claims_other_terms_is_found(sealed, tmp_path):
    run_dir = copy(sealed, tmp_path)
    manifest = json.loads((run_dir / "manifest.json").read_text())
    manifest["identity"]["config"]["env"]["fee_usd_micros"] -= 1
    (run_dir / "manifest.json").write_text(json.dumps(manifest))
    found = judged(run_dir, sealed[1])
    assert any("manifest.json" in line for line in found["chain"]) and "fills_fee" in found


def test_a_store_whose_data_changed_is_found(sealed, oracle, tmp_path):
    rows = list(oracle.rows)
    rows[7] = replace(rows[7], bids=((rows[7].bids[0][0], rows[7].bids[0][1] + 1), *rows[7].bids[1:]))
    store = make_store(replace(oracle, rows=rows), tmp_path)
    assert "data_hash" in judged(sealed[0], store)


# --- runs that were wrong when they were made ---


def simulated(run: OracleRun, tmp_path: Path, tape: list[Event] | None = None, **terms) -> tuple[RunData, Path]:
    """The oracle's own accounts over a lying tape or with lying terms, beside the store of the true market."""
    lying = replace(run.terms, **terms)
    accounts = [play(lane, tape or run.tape, run.decisions, lying, run.picks[lane]) for lane in range(len(run.accounts))]
    return data_of(replace(run, accounts=accounts, terms=lying), make_store(run, tmp_path)), tmp_path / "store"


def test_a_multiplier_of_1_in_the_registry_itself_is_found(tmp_path):
    """Every account of the run agrees with every other: only the hand-typed table knows that a point of ES is $50."""
    import random

    es = replace(ROOTS[0], multiplier=Fraction(1))
    run = random_run(4, rows=300, lanes=4)
    rows = random_rows(ROOTS[0], 300, random.Random(1))
    base = replace(run, root=es, rows=rows, terms=replace(run.terms, tick_value=Fraction(1, 4), fee=Fraction(9, 4), margin=Fraction(100)))
    tape = oracle_events.events(rows, es.tick, base.sessions)
    ticks = range(DAY, rows[-1].ts_recv, 10**9)
    end = rows[-1].ts_recv + 1
    base = replace(
        base, tape=tape, end=end, decisions=oracle_events.schedule(tape, base.sessions, ticks, end, base.latency, base.terms.max_lots)
    )
    picks = [random_picks(len(base.decisions), random.Random(lane)) for lane in range(4)]
    base = replace(base, picks=picks)
    data, store = simulated(base, tmp_path)
    record(data, tmp_path / "run")
    verdict = verify(tmp_path / "run", store)
    assert verdict.exit_code == 1 and {check.name for check in verdict.failed} == {"multiplier"}
    assert "12500000" in verdict.failed[0].detail and "instrument.multiplier" in verdict.failed[0].line()
    assert verdict.totals["a"] == verdict.totals["b"] == verdict.totals["c"] == verdict.totals["d"] != verdict.totals["e"]
    assert verdict.largest_difference_usd_micros > 0


def test_a_tape_shifted_by_one_row_is_found(oracle, tmp_path):
    tape = [
        replace(event, bids=after.bids, asks=after.asks, tradable=after.tradable)
        for event, after in zip(oracle.tape, oracle.tape[1:], strict=False)
    ]
    data, store = simulated(oracle, tmp_path, [*tape, oracle.tape[-1]])
    record(data, tmp_path / "run")
    found = judged(tmp_path / "run", store)
    assert "price_ticks" in found["fills_price"][0] and "steps_mark_mid2_ticks" in found


def test_fills_off_a_stale_book_are_found(oracle, tmp_path):
    """Each order meets the tradable row before the one that stood at its arrival."""
    decisions = [replace(d, fill=max(oracle_events.last_tradable(oracle.tape, d.fill - 1), d.mark - 3, 0)) for d in oracle.decisions[:-1]]
    decisions = [
        d if oracle.tape[d.fill].tradable else replace(d, fill=oracle_events.last_tradable(oracle.tape, d.mark)) for d in decisions
    ]
    run = replace(oracle, decisions=[*decisions, oracle.decisions[-1]])
    data, store = simulated(run, tmp_path)
    record(data, tmp_path / "run")
    found = judged(tmp_path / "run", store)
    assert "market_row" in found["fills_standing_row"][0] and "fills_price" not in found


def test_fills_on_a_level_that_did_not_show_the_lots_are_found(oracle, tmp_path):
    deep = [replace(event, bids=tuple((p, 99) for p, _ in event.bids), asks=tuple((p, 99) for p, _ in event.asks)) for event in oracle.tape]
    data, store = simulated(oracle, tmp_path, deep)
    record(data, tmp_path / "run")
    found = judged(tmp_path / "run", store)
    assert "lots" in found["fills_lots_shown"][0] and "fills_price" not in found


def test_a_fee_other_than_the_scheduled_one_is_found(oracle, tmp_path):
    data, store = simulated(oracle, tmp_path, fee=oracle.terms.fee * 2)
    scheduled = int(oracle.terms.fee * 10**6)
    data.manifest["identity"]["config"]["env"]["fee_usd_micros"] = scheduled
    record(data, tmp_path / "run")
    found = judged(tmp_path / "run", store)
    assert f"recomputed {scheduled}" in found["fills_fee"][0] or "fee_usd_micros" in found["fills_fee"][0]


def test_a_floor_that_was_not_kept_is_found(tmp_path):
    run = next(
        r for r in (random_run(seed, rows=300, lanes=4) for seed in range(50)) if any(row["end_reason"] == 5 for row in r.table("steps"))
    )
    data, store = simulated(run, tmp_path, floor=run.terms.floor - 10**6)
    data.manifest["identity"]["config"]["env"]["floor_usd_micros"] = int(run.terms.floor * 10**6)
    record(data, tmp_path / "run")
    assert "floor_triggered" in judged(tmp_path / "run", store)["gate_floor_triggered"][0]


def test_a_stop_that_fills_later_than_the_first_row_at_the_floor_is_found(tmp_path, monkeypatch):
    from tests.oracle import lane

    runs = (random_run(seed, rows=300, lanes=4) for seed in range(50))
    run = next(run for run in runs if any(row["reason"] == 4 for row in run.table("fills")))
    honest = lane._floor_scan

    def late(account, tape, terms, key, start, stop):
        honest(account, tape, replace(terms, floor=terms.floor - 4 * terms.tick_value), key, start, stop)

    monkeypatch.setattr(lane, "_floor_scan", late)
    data, store = simulated(run, tmp_path)
    record(data, tmp_path / "run")
    assert {"floor_stop", "floor_first_row"} & set(judged(tmp_path / "run", store))


@pytest.mark.parametrize(("key", "lie"), [("root", "NQ"), ("currency", "JPY")])
def test_terms_relabelled_in_the_manifest_are_found(oracle, tmp_path, key, lie):
    data = data_of(oracle, make_store(oracle, tmp_path))
    data.manifest["identity"]["config"]["instrument"][key] = lie
    record(data, tmp_path / "run")
    verdict = verify(tmp_path / "run", tmp_path / "store")
    assert verdict.exit_code == 1 and f"identity.config.instrument.{key}" in [check.column for check in verdict.failed]


def test_hours_that_are_not_the_contracts_are_said_to_be_the_runs_own_word(oracle, tmp_path):
    data = data_of(oracle, make_store(oracle, tmp_path))
    assert data.terms.calendar == "always"
    record(data, tmp_path / "run")
    notes = [check.detail for check in verify(tmp_path / "run", tmp_path / "store").checks if check.name == "calendar"]
    assert len(notes) == 1 and "its own word" in notes[0]
