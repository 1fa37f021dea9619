"""Laws of `sim verdict` on real run folders: what passes, what a changed byte does, twins, and the command's exit codes."""

import json
import shutil
from dataclasses import replace

import pytest

from lob.errors import BadInput, NotFound
from sim.signals import KILL, PASS, UNKNOWN, WARN, Signal
from sim.verdict import Judgement, evaluations_of, judge, regression_of, render, twins_of
from store.manifest import read_manifest
from tests.replays import replayed, synthetic_store
from tests.runlog_runs import write_run
from tests.test_cli import document, here, reason

NAMES = ["reward_alignment", "eval_pnl", "consistency", "leak", "collapse", "non_finite", "determinism", "completion"]


@pytest.fixture(scope="module")
def market(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verdict")
    return synthetic_store(folder)


@pytest.fixture
def run(market, tmp_path):
    return replayed(market, tmp_path / "runs", minutes=20, clock="5s", lanes=2).run_dir


def status(found: Judgement) -> dict[str, str]:
    return {signal.name: signal.status for signal in found.signals}


def test_a_replay_is_consistent_and_what_it_cannot_tell_is_unknown(run, market):
    found = judge(run, market)
    assert list(status(found)) == NAMES
    assert status(found) | {"collapse": PASS} == {
        "reward_alignment": UNKNOWN,
        "eval_pnl": UNKNOWN,
        "consistency": PASS,
        "leak": UNKNOWN,
        "collapse": PASS,
        "non_finite": PASS,
        "determinism": UNKNOWN,
        "completion": PASS,
    }
    assert "all five computations" in next(signal.sentence for signal in found.signals if signal.name == "consistency")
    assert found.exit_code() == found.exit_code(strict=True) == 0 and found.status == PASS
    unknown = [name for name, one in status(found).items() if one == UNKNOWN]
    assert render(found).splitlines()[-1] == f"PASS, with {', '.join(unknown)} not judged" and len(render(found).splitlines()) == 10


def test_an_equal_run_beside_it_proves_determinism_and_another_one_does_not_matter(run, market, tmp_path):
    assert status(judge(run))["determinism"] == UNKNOWN
    replayed(market, tmp_path / "runs", minutes=20, clock="5s", lanes=2, seed=8)
    assert status(judge(run))["determinism"] == UNKNOWN
    again = replayed(market, tmp_path / "runs", minutes=20, clock="5s", lanes=2).run_dir
    assert twins_of(run) == {again.name: None} and twins_of(again) == {run.name: None}
    assert status(judge(run))["determinism"] == PASS


def test_a_twin_with_another_log_is_named_with_the_first_table_that_differs(tmp_path):
    write_run(tmp_path / "a", 40, seed=7)
    write_run(tmp_path / "b", 40, seed=8)
    write_run(tmp_path / "c", 33, seed=7)
    assert twins_of(tmp_path / "a") == {
        "b": "table deals of segment 1, steps 0 to 15",
        "c": "table deals of segment 3, steps 32 to 39",
    }
    write_run(tmp_path / "d", 16, seed=7)
    assert twins_of(tmp_path / "a")["d"] == "it has 16 steps, this one 40"


def test_a_changed_byte_kills_and_the_verdict_names_where(run):
    part = next((run / "segments").rglob("fills.parquet"))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    found = judge(run)
    assert status(found)["consistency"] == KILL and found.exit_code() == 1
    assert "fills.parquet" in render(found)


def test_a_run_that_cannot_be_read_at_all_is_killed_and_no_crash(run):
    (run / "chain.jsonl").write_text("nonsense\n")
    found = judge(run)
    assert found.status == KILL and found.exit_code() == 1


def test_a_folder_that_is_no_run_is_a_usage_fault(tmp_path):
    with pytest.raises(NotFound):
        judge(tmp_path)


def test_an_event_of_a_value_that_was_none_kills(market, tmp_path, monkeypatch):
    from sim import replay as module

    said = {
        "phase": 2,
        "step": 0,
        "seq": 9,
        "lane": 1,
        "severity": 2,
        "kind": "non_finite.loss",
        "message": "the loss is none",
        "value": None,
    }
    made = module._events
    monkeypatch.setattr(module, "_events", lambda phase, notes: [*made(phase, notes), said])
    run = replayed(market, tmp_path / "runs", minutes=60, clock="60s", lanes=2).run_dir
    found = judge(run)
    assert status(found)["non_finite"] == KILL and "the loss is none" in render(found)


def test_evaluations_are_found_by_their_parents_head_and_by_nothing_else(run):
    head = json.loads((run / "manifest.json").read_text())["head"]
    for name, parent in (("child", {"head": head}), ("other", {"head": "0" * 64}), ("none", None)):
        shutil.copytree(run, run.parent / name)
        path = run.parent / name / "manifest.json"
        manifest = json.loads(path.read_text())
        manifest["identity"] |= {"parent": parent} if parent else {}
        path.write_text(json.dumps(manifest))
    assert [path.name for path in evaluations_of(run)] == ["child"]


def test_strict_turns_a_warning_into_a_failure_and_leaves_the_unknown_alone():
    def judged(*statuses):
        return Judgement("run", "", "eval", (), tuple(Signal(str(i), status, "") for i, status in enumerate(statuses)))

    for statuses, plain, strict in (((PASS, UNKNOWN), 0, 0), ((PASS, WARN), 0, 1), ((WARN, KILL), 1, 1)):
        assert (judged(*statuses).exit_code(), judged(*statuses).exit_code(strict=True)) == (plain, strict)


def test_the_command_prints_a_line_a_signal_and_exits_by_the_verdict(run, market, capfd):
    text = here(capfd, "verdict", str(run), "--store", str(market))
    assert (text.returncode, text.stderr) == (0, "")
    assert [line.split()[1].rstrip(":") for line in text.stdout.splitlines()[1:-1]] == NAMES
    found = document(here(capfd, "verdict", str(run), "--json"))
    assert [signal["name"] for signal in found["signals"]] == NAMES and found["status"] == PASS
    (run / "segments" / "stranger").write_text("x")
    assert here(capfd, "verdict", str(run)).returncode == 1
    none = here(capfd, "verdict", str(run.parent / "none"), "--json")
    assert none.returncode == 2 and "manifest.json" in reason(none)


def evaluation_run(folder, sharpe, code="a" * 64, selector="greedy", days=((0, 1), (1, 2))):
    """A folder that looks like an evaluation's, as far as a comparison of two looks."""
    from tests.runlog_runs import TABLES

    statistics = {"sharpe_per_day": sharpe}
    document = {"selector": {"name": selector}, "days": [{"start_ns": a, "end_ns": b} for a, b in days], "statistics": statistics}
    from store.runlog import RunLog

    with RunLog.create(folder, identity={"code": {"sha256": code}}, tables=TABLES) as log:
        log.finish("finished", {"evaluation": document})
    return folder


@pytest.mark.parametrize(("now", "status"), [(0.5, PASS), (0.8, PASS), (0.3999, KILL), (-1.0, KILL), (0.4, PASS), (None, UNKNOWN)])
def test_a_fall_by_more_than_half_kills_and_exactly_a_half_does_not(tmp_path, now, status):
    """P3: -50.6 % was once passed as "the edge of" a limit of 50 %."""
    before = evaluation_run(tmp_path / "before", 0.8)
    assert regression_of(evaluation_run(tmp_path / "now", now), before).status == status


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"code": "b" * 64}, "baseline's code"), ({"selector": "boltzmann"}, "no greedy evaluation"), ({"days": ((0, 1),)}, "other days")],
)
def test_a_baseline_of_another_build_selector_or_days_is_refused(tmp_path, changes, says):
    """Lesson 45: a baseline from another commit excused a fall."""
    with pytest.raises(BadInput, match=says):
        regression_of(evaluation_run(tmp_path / "now", 0.1), evaluation_run(tmp_path / "before", 0.8, **changes))


def test_a_silent_end_of_a_window_is_no_end_of_the_tape_when_the_store_goes_on(tmp_path):
    """The last minute of the window has no row; the store has later ones, which the run says and the verdict may look up."""
    from sim.run_data import load
    from sim.verify import verify_tables
    from sim.verify_data import read_market

    store = synthetic_store(tmp_path, events=6_000)
    run = load(replayed(store, tmp_path / "runs", minutes=60, clock="10s", lanes=2).run_dir)
    market, _ = read_market(run.terms, store)
    assert run.terms.end_ns - int(market.ts_recv[-1]) > 60 * 10**9
    assert verify_tables(run, market).ok
    ended = verify_tables(run, replace(market, goes_on_until_ns=int(market.ts_recv[-1])))
    assert [check.name for check in ended.failed] == ["schedule_end_reason"]


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """(store, run) of a short one, with a shaped reward and its two evaluations beside it."""
    from lob.instruments import REGISTRY
    from sim.train import train
    from sim.train_config import plan_train
    from tests.window_days import DATES, day_bounds, store_of_days

    folder = tmp_path_factory.mktemp("training")
    store = store_of_days(folder, events=3_000, dates=DATES[:2])
    window = {"clock": "5m", "start_ns": day_bounds(DATES[0])[0], "end_ns": day_bounds(DATES[1])[1]}
    every = {"steps": 40, "warmup_steps": 5, "checkpoint_every": 40, "validate_every": 40}
    stated = {"loop": every, "reward": {"micro": 0.3}}
    return store, train(plan_train(store, "ESH4", REGISTRY, window, stated, lanes=4, seed=1), store, folder / "runs").run_dir


@pytest.fixture
def trained(training, tmp_path):
    """(store, run) of a copy of it and of its evaluations."""
    store, run = training
    return store, shutil.copytree(run.parent, tmp_path / "runs", symlinks=True) / run.name


def test_a_training_is_judged_with_its_evaluations(trained):
    """The correlation is taken, the evaluations are found, and a loss that is no number kills."""
    import pyarrow as pa

    from sim.run_data import load
    from sim.verdict import missing_figures

    store, run_dir = trained
    found = judge(run_dir, store)
    assert len(found.evaluations) == 2 and status(found)["consistency"] == PASS, render(found)
    assert found.left_out == () and status(found)["completion"] == PASS
    alignment = found.signals[0]
    assert alignment.status == PASS and alignment.unit == "correlation" and 0.5 < alignment.value < 1
    assert status(found)["non_finite"] == PASS and status(found)["convergence"] == UNKNOWN
    assert "annualised Sharpe ratio not computed: 1 day" in sentence(found, "leak")
    run = load(run_dir)
    diag = run.tables["diag"].to_pylist()
    at = next(i for i, row in enumerate(diag) if row["learn.updates"])
    assert missing_figures(run) == []
    diag[at + 2]["learn.loss"] = diag[at + 3]["learn.loss"] = None
    damaged = replace(run, tables={**run.tables, "diag": pa.Table.from_pylist(diag, run.tables["diag"].schema)})
    assert missing_figures(damaged) == [(diag[at + 2]["step"], "learn.loss")]


def sentence(found: Judgement, name: str) -> str:
    return next(signal.sentence for signal in found.signals if signal.name == name)


def test_an_evaluation_of_another_checkpoint_is_not_judged_as_the_bests_and_is_named(trained):
    from sim.checkpoints import content_of
    from sim.evaluate import evaluate, plan_evaluation

    store, run = trained
    before = judge(run)
    last = run / "checkpoints" / "last"
    assert content_of(last) != content_of(run / "checkpoints" / "best")
    (other,) = evaluate(plan_evaluation(last, store, {}, None, {}, {}), store, run.parent, ("greedy",))
    name = other.result.run_dir.name
    found = judge(run)
    assert other.result.run_dir in evaluations_of(run) and name not in found.evaluations == before.evaluations
    (line,) = found.left_out
    assert name in line and content_of(last)[:10] in line and line in render(found).splitlines()
    assert sentence(found, "eval_pnl") == sentence(before, "eval_pnl")
    assert found.to_json()["left_out"] == found.left_out


@pytest.mark.parametrize("gone", ["segments", "chain.jsonl", "eval_summary.json"])
def test_an_evaluation_whose_files_are_gone_kills_by_consistency_and_the_other_signals_are_still_told(trained, gone, capfd):
    _, run = trained
    names = [signal.name for signal in judge(run).signals]
    (greedy,) = (folder for folder in evaluations_of(run) if read_manifest(folder)["identity"]["config"]["policy"]["selector"] == "greedy")
    place = greedy / gone
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    found = judge(run)
    assert [signal.name for signal in found.signals] == names and status(found)["consistency"] == KILL
    assert sentence(found, "consistency").startswith(f"{greedy.name}: the log does not hold: ")
    assert (status(found)["eval_pnl"], status(found)["non_finite"]) == (UNKNOWN, PASS)
    done = here(capfd, "verdict", str(run))
    assert done.returncode == 1 and done.stderr == "" and done.stdout.splitlines()[-1] == KILL


def test_a_training_that_did_not_finish_or_made_no_update_does_not_pass(trained):
    from sim.evaluate import evaluate, plan_evaluation
    from sim.train import train
    from sim.train_config import from_document

    store, run = trained
    identity = read_manifest(run)["identity"]
    unlearnt = json.loads(json.dumps(identity["config"]))
    unlearnt["loop"] |= {"steps": 4, "warmup_steps": 5, "checkpoint_every": 4, "validate_every": 4}
    done = train(from_document(unlearnt, identity["asked"]), store, run.parent / "unlearnt")
    found = judge(done.run_dir)
    assert (status(found)["completion"], found.status) == (WARN, WARN) and "no update" in sentence(found, "completion")
    chain = (run / "chain.jsonl").read_text().splitlines(keepends=True)
    (run / "chain.jsonl").write_text("".join(chain[:-1]))
    (run / "train_summary.json").unlink()
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"head": None, "end_state": None, "steps": None}))
    evaluate(plan_evaluation(run / "checkpoints" / "best", store, {}, None, {}, {}), store, run.parent, ("greedy",))
    found = judge(run)
    assert (status(found)["completion"], found.status) == (WARN, WARN), render(found)
    assert len(found.left_out) == 1 and "names no best one" in found.left_out[0] and found.evaluations == ()
