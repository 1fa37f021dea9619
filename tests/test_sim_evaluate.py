"""Laws of evaluation: proved dollars, honest company, isolation from training, and a leak that is found."""

import datetime as dt
import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from lob.calendar import session_bounds
from lob.errors import BadInput
from lob.instruments import REGISTRY, resolve
from lob.normalise import fixed
from policy.checkpoint import load as load_checkpoint
from policy.checkpoint import save
from sim.about import about
from sim.baselines import play_side_by_side
from sim.config import RunConfig, run_config
from sim.evaluate import evaluate, parent_of, plan_evaluation
from sim.evaluation import BASELINES, EVALUATION
from sim.leak import mislead, one_row_ahead
from sim.policy import init_checkpoint, make_policy
from sim.replay import Parent, replay
from sim.signals import KILL, PASS
from sim.split import Split
from sim.tape import load
from sim.verdict import evaluations_of, judge
from sim.verify import verify
from sim.verify_types import render
from store.chain import CHAIN, append_link, read_chain
from store.manifest import pretty_json
from tests.replays import DATE, MINUTE, synthetic_store
from tests.test_cli import document, here, reason
from tests.window_days import DATES, day_bounds, store_of_days

START, _ = session_bounds("cme_globex", dt.date.fromisoformat(DATE))


@pytest.fixture(scope="module")
def market(tmp_path_factory) -> Path:
    return synthetic_store(tmp_path_factory.mktemp("evaluate"))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """A network that no training made, with opinions: noise on every weight, so that it trades whatever a fresh network starts from."""
    import torch

    folder = tmp_path_factory.mktemp("net")
    init_checkpoint(3, folder / "fresh")
    held, _ = load_checkpoint(folder / "fresh")
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weights in held.model.weights.values():
            weights.add_(torch.randn(weights.shape, generator=generator) * 0.3)
    save(held, folder / "lively")
    return folder / "lively"


def config(checkpoint: Path, minutes: int = 10, lanes: int = 1, level: str = "full", **changes) -> RunConfig:
    tape = {"market_schema": "mbp-10", "clock": "5s", "start_ns": START, "end_ns": START + minutes * MINUTE}
    rest = {"phase": "eval", "policy": f"checkpoint:{checkpoint}", "seed": 1, "lanes": lanes} | changes
    return run_config("ESH4", resolve("ESH4"), tape, {}, {"level": level, "segment_steps": 64}, **rest)


@pytest.fixture(scope="module")
def evaluated(market, checkpoint, tmp_path_factory):
    """A greedy and a Boltzmann run of ten minutes."""
    return evaluate(config(checkpoint), market, tmp_path_factory.mktemp("runs"))


def files(folder: Path) -> dict[str, str]:
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_greedy_is_the_headline_and_boltzmann_a_run_of_its_own_and_both_are_proved(evaluated, market):
    assert [one.selector for one in evaluated] == ["greedy", "boltzmann"]
    assert len({one.result.run_dir for one in evaluated}) == 2
    for one in evaluated:
        assert one.result.run_dir.name.startswith("eval-ESH4-")
        verdict = verify(one.result.run_dir, market, head=one.result.head)
        assert verdict.ok and verdict.largest_difference_usd_micros == 0, render(verdict)
        assert one.document["statistics"]["mean_day_usd_micros"] == one.result.summary["total_pnl_usd_micros"]
    greedy, boltzmann = (one.result.summary["phases"][0] for one in evaluated)
    assert boltzmann["trades"] > greedy["trades"], "Boltzmann never commits: its churn is to be seen (lesson 53)"


def test_the_same_evaluation_twice_is_the_same_bytes(evaluated, market, checkpoint):
    runs = evaluated[0].result.run_dir.parent
    again = evaluate(config(checkpoint), market, runs)
    assert [one.result.head for one in again] == [one.result.head for one in evaluated]
    for one, other in zip(again, evaluated, strict=True):
        names = ("eval_summary.json", "chain.jsonl")
        assert [(one.result.run_dir / name).read_bytes() for name in names] == [
            (other.result.run_dir / name).read_bytes() for name in names
        ]


def test_every_trivial_rule_earns_what_a_replay_of_it_logs(evaluated, market, checkpoint, tmp_path):
    found = evaluated[0].document["baselines"]
    assert tuple(found) == BASELINES
    for name, row in found.items():
        logged = replay(config(checkpoint, phase="replay", policy=name), market, tmp_path).summary
        phase = logged["phases"][0]
        assert row["days_usd_micros"] == [logged["total_pnl_usd_micros"]], name
        assert (row["fees_usd_micros"], row["trades"]) == (phase["fees_usd_micros"], phase["trades"]), name
        mean = evaluated[0].document["statistics"]["mean_day_usd_micros"]
        assert row["ahead_of_it_usd_micros"] == mean - logged["total_pnl_usd_micros"]
    assert found["flat"]["days_usd_micros"] == [0] and found["random"]["trades"] > 0


def test_copies_of_an_account_are_counted_as_what_they_are(market, checkpoint, tmp_path, evaluated):
    greedy, boltzmann = evaluate(config(checkpoint, lanes=3), market, tmp_path)
    assert greedy.document["sessions"] == {"windows": 1, "distinct": 1, "accounts": 3, "distinct_paths": 1}
    assert boltzmann.document["sessions"]["distinct_paths"] == 3
    for name in ("mean_day_usd_micros", "days", "p_reason", "sharpe_per_day_reason"):
        assert greedy.document["statistics"][name] == evaluated[0].document["statistics"][name]
    assert greedy.document["days"][0]["pnl_usd_micros"] == 3 * evaluated[0].document["days"][0]["pnl_usd_micros"]


def test_evaluation_leaves_checkpoint_and_parent_as_they_were_and_names_them(market, checkpoint, tmp_path):
    parent = replay(config(checkpoint, level="trades", phase="train", policy="random", minutes=5), market, tmp_path)
    best = parent.run_dir / "checkpoints" / "step-00000005"
    shutil.copytree(checkpoint, best)
    (best.parent / "best").symlink_to(best.name)
    before = files(parent.run_dir)
    [greedy] = evaluate(config(best.parent / "best"), market, tmp_path, ["greedy"])
    assert files(parent.run_dir) == before
    manifest = json.loads((greedy.result.run_dir / "manifest.json").read_text())
    assert parent_of(best.parent / "best") == Parent(parent.run_dir.name, parent.head)
    assert greedy.document["parent"] == manifest["identity"]["parent"] == {"head": parent.head}
    assert manifest["attributes"]["parent"] == parent.run_dir.name
    assert greedy.document["trials"]["count"] == 2, "the training met five of the same minutes"
    assert evaluations_of(parent.run_dir) == [greedy.result.run_dir] and parent_of(checkpoint) is None


def test_exploration_in_the_checkpoint_changes_no_pick(market, checkpoint, tmp_path, evaluated, monkeypatch):
    """An epsilon of a half and a count bonus among the controls: evaluation does not read them (lesson 20)."""
    from policy import network

    honest, asked = network.controls_of, []

    def exploring(bus):
        select, learn = honest(bus.clone())
        select.epsilon.fill_(0.5)
        select.bonus[0] = 9.0
        asked.append(select)
        return select, learn

    monkeypatch.setattr(network, "controls_of", exploring)
    for one, other in zip(evaluate(config(checkpoint), market, tmp_path), evaluated, strict=True):
        assert one.result.head == other.result.head, one.selector
    assert asked


# --- what is sealed ---


def rewritten(run: Path, target: Path, change) -> str:
    """A copy of a run whose summary was changed, and whose chain was mended so that it holds again. Returns its head."""
    shutil.copytree(run, target)
    summary = json.loads((target / "eval_summary.json").read_bytes())
    change(summary)
    content = pretty_json(summary)
    (target / "eval_summary.json").write_bytes(content)
    chain = read_chain(target)
    lines = (target / CHAIN).read_bytes().splitlines(keepends=True)
    (target / CHAIN).write_bytes(b"".join(lines[:-1]))
    end = dict(chain.lines[-1]["end"])
    end["summary"] = {"file": "eval_summary.json", "sha256": hashlib.sha256(content).hexdigest()}
    head = append_link(target, chain.lines[-2]["hash"], {"k": chain.lines[-1]["k"], "end": end})
    manifest = json.loads((target / "manifest.json").read_bytes())
    (target / "manifest.json").write_bytes(pretty_json(manifest | {"head": head}))
    return head


def cheaper_baseline(summary):
    summary[EVALUATION]["baselines"]["imbalance"]["days_usd_micros"] = [-1]


def fewer_trials(summary):
    summary[EVALUATION]["trials"]["configs"].pop()


def better_day(summary):
    summary[EVALUATION]["days"][0]["pnl_usd_micros"] += 1


def other_parent(summary):
    summary[EVALUATION]["parent"] = {"head": "0" * 64}


def no_leak(summary):
    del summary[EVALUATION]["leak"]


@pytest.mark.parametrize("change", [cheaper_baseline, fewer_trials, better_day, other_parent, no_leak])
def test_a_changed_evaluation_is_found(evaluated, market, tmp_path, change):
    """Changed in place the chain finds it; with the chain mended too, the log contradicts it, and so does the head that was kept."""
    run, head = evaluated[0].result.run_dir, evaluated[0].result.head
    plain = tmp_path / "plain"
    shutil.copytree(run, plain)
    summary = json.loads((plain / "eval_summary.json").read_bytes())
    change(summary)
    (plain / "eval_summary.json").write_bytes(pretty_json(summary))
    assert verify(plain, None).failed[0].name == "chain"
    mended = tmp_path / "mended"
    assert rewritten(run, mended, change) != head
    assert not verify(mended, None, head=head).ok
    assert [check.name for check in verify(mended, None).failed] == ["summary"], (
        "figures derived from the evidence no longer follow from it"
    )


def test_a_summary_without_its_evaluation_is_still_proved_and_is_no_longer_the_same_run(evaluated, tmp_path):
    run = evaluated[0].result.run_dir
    head = rewritten(run, tmp_path / "bare", lambda summary: summary.pop(EVALUATION))
    assert verify(tmp_path / "bare", None).ok and not verify(tmp_path / "bare", None, head=evaluated[0].result.head).ok
    assert head != evaluated[0].result.head


# --- the leak ---


def rule(name: str, loaded):
    return lambda lanes: make_policy(name, 0, lanes, mean=loaded.normaliser.mean, std=loaded.normaliser.std)


@pytest.fixture(scope="module")
def momentum(market, checkpoint):
    one = config(checkpoint, minutes=40, policy="momentum")
    return one, load(market, one)


def test_features_one_row_ahead_are_found_and_aligned_ones_are_not(market, momentum):
    one, loaded = momentum
    found = mislead(market, one, loaded, rule("momentum", loaded))
    compared = found["decisions_compared"]
    assert found == {"decisions_compared": compared, "observations_differing": 0, "picks_differing": 0, "first": None} and compared > 100
    found = mislead(market, one, one_row_ahead(loaded), rule("momentum", loaded))
    assert found["observations_differing"] == found["decisions_compared"] == compared and found["picks_differing"] > 0
    assert found["first"] == 0


def test_a_leak_in_the_features_themselves_is_found_where_the_future_begins(market, momentum, monkeypatch):
    """The shift sits in the feature code, so that cache, run and test all compute it: only the changed future gives it away."""
    from lob import prepare
    from sim.tape import Loaded

    one, loaded = momentum
    honest = prepare.raw_features

    def leaking(tape, plan):
        rows = honest(tape, plan).copy()
        rows[:-1] = rows[1:]
        return rows

    monkeypatch.setattr(prepare, "raw_features", leaking)
    leaked = load(market, one, rebuild=True)
    monkeypatch.setattr(prepare, "raw_features", honest)
    load(market, one, rebuild=True)
    assert isinstance(leaked, Loaded) and leaked.features.tobytes() != loaded.features.tobytes()
    monkeypatch.setattr(prepare, "raw_features", leaking)
    found = mislead(market, one, leaked, rule("momentum", loaded))
    assert found["observations_differing"] == 1, "the row before the future is the one that shows it"
    assert found["first"] == found["decisions_compared"] - 1


def test_a_policy_that_can_use_it_earns_clearly_more_one_row_ahead(momentum):
    one, loaded = momentum
    aligned, ahead = (
        play_side_by_side(market, one, {"momentum": rule("momentum", loaded)(1)})["momentum"].pnl_usd_micros.sum()
        for market in (loaded, one_row_ahead(loaded))
    )
    assert ahead > aligned + 5_000_000_000


def test_the_verdict_kills_a_run_on_leaked_features_and_not_an_honest_one(market, checkpoint, tmp_path, evaluated, monkeypatch):
    def leak(folder: Path) -> str:
        return next(signal.status for signal in judge(folder).signals if signal.name == "leak")

    assert leak(evaluated[0].result.run_dir) == PASS
    from sim import tape

    honest = tape.load
    monkeypatch.setattr(tape, "load", lambda *given, **named: one_row_ahead(honest(*given, **named)))
    [greedy] = evaluate(config(checkpoint), market, tmp_path, ["greedy"])
    assert leak(greedy.result.run_dir) == KILL


def test_rules_played_side_by_side_do_not_see_one_another(momentum):
    one, loaded = momentum
    together = play_side_by_side(loaded, one, {name: rule(name, loaded)(1) for name in BASELINES})
    for name in BASELINES:
        alone = play_side_by_side(loaded, one, {name: rule(name, loaded)(1)})[name]
        assert together[name].document() == alone.document(), name


# --- several days ---


@pytest.fixture(scope="module")
def days(tmp_path_factory) -> Path:
    return store_of_days(tmp_path_factory.mktemp("days"))


MONDAY, TUESDAY, WEDNESDAY, THURSDAY = (day_bounds(date) for date in DATES)
SPLIT = Split("days", (MONDAY, TUESDAY), (WEDNESDAY,), (THURSDAY,))


@pytest.fixture(scope="module")
def trained(days, checkpoint, tmp_path_factory) -> Path:
    """The same network, saying that it was trained on Monday and Tuesday, chosen on Wednesday and is to be tested on Thursday."""
    held, _ = load_checkpoint(checkpoint)
    tape = {"market_schema": "mbp-10", "clock": "5m", "start_ns": MONDAY[0], "end_ns": THURSDAY[1], "latency_ns": 1_000_000}
    said = run_config("ESH4", resolve("ESH4"), tape, {"max_lots": 2}, policy="flat", seed=11)
    folder = tmp_path_factory.mktemp("trained") / "net"
    save(replace(held, normaliser=fixed(60.0), about=about(said, SPLIT, "train-ESH4-abc", 500)), folder)
    return folder


def test_one_account_plays_each_day_and_each_day_is_what_it_is_alone(days, checkpoint, tmp_path):
    planned = plan_evaluation(checkpoint, days, REGISTRY, "ESH4", {"start_ns": MONDAY[0], "end_ns": WEDNESDAY[1], "clock": "5m"}, {})
    assert planned.tape.windows == (MONDAY, TUESDAY, WEDNESDAY) and planned.lanes == 3
    greedy, boltzmann = evaluate(planned, days, tmp_path)
    for one in (greedy, boltzmann):
        assert verify(one.result.run_dir, days, head=one.result.head).ok
    found = greedy.document
    assert found["sessions"] == {"windows": 3, "distinct": 3, "accounts": 3, "distinct_paths": 3}
    assert [day["session"] for day in found["days"]] == list(DATES[:3])
    results = [day["pnl_usd_micros"] for day in found["days"]]
    assert sum(results) == greedy.result.summary["total_pnl_usd_micros"] and len(set(results)) == 3
    statistics = found["statistics"]
    assert statistics["days"] == 3 and statistics["mean_day_usd_micros"] == sum(results) // 3
    assert statistics["interval_low_usd_micros"] <= statistics["mean_day_usd_micros"] <= statistics["interval_high_usd_micros"]
    assert statistics["p"] <= statistics["p_best_of_trials"] and statistics["deflated_sharpe"] <= statistics["probabilistic_sharpe"]
    for i, (start, end) in ((0, MONDAY), (2, WEDNESDAY)):
        one_day = plan_evaluation(checkpoint, days, REGISTRY, "ESH4", {"start_ns": start, "end_ns": end, "clock": "5m"}, {})
        [alone] = evaluate(one_day, days, tmp_path / "alone", ["greedy"])
        [day] = alone.document["days"]
        assert day | {"sharpe": 0} == found["days"][i] | {"sharpe": 0}  # its annualisation factor is the run's
        for name, row in alone.document["baselines"].items():
            if name != "random":  # a lane's number seeds its draws
                assert row["days_usd_micros"] == [found["baselines"][name]["days_usd_micros"][i]], name


def test_a_trained_checkpoint_knows_its_market_and_its_test_days(days, trained, tmp_path):
    planned = plan_evaluation(trained, days, REGISTRY, None, {}, {})
    assert (planned.tape.start_ns, planned.tape.end_ns) == THURSDAY and planned.tape.windows is None
    assert (planned.tape.clock, planned.tape.latency_ns, planned.env.max_lots, planned.seed) == ("5m", 1_000_000, 2, 11)
    stressed = plan_evaluation(trained, days, REGISTRY, None, {"latency_ns": 5, "step_limit": 7}, {"fee_usd_micros": 9}, 4, seed=3)
    assert (stressed.tape.latency_ns, stressed.tape.step_limit, stressed.env.fee_usd_micros) == (5, 7, 9)
    assert (stressed.lanes, stressed.seed, stressed.env.max_lots) == (4, 3, 2)
    [greedy] = evaluate(planned, days, tmp_path, ["greedy"])
    assert greedy.document["leak"]["days_trained_on"] == greedy.document["leak"]["days_validated_on"] == 0
    label = json.loads((greedy.result.run_dir / "manifest.json").read_text())["identity"]["data"]["normaliser"]["label"]
    assert label == fixed(60.0).label, "the statistics are the checkpoint's"


def test_days_that_were_trained_on_are_no_evaluation(days, trained, tmp_path):
    planned = plan_evaluation(trained, days, REGISTRY, None, {"start_ns": TUESDAY[0], "end_ns": THURSDAY[1]}, {})
    [greedy] = evaluate(planned, days, tmp_path, ["greedy"])
    assert (greedy.document["leak"]["days_trained_on"], greedy.document["leak"]["days_validated_on"]) == (1, 1)
    found = next(signal for signal in judge(greedy.result.run_dir).signals if signal.name == "leak")
    assert found.status == KILL and "1 day of the evaluation had been trained on" in found.sentence


# --- what is refused ---


@pytest.mark.parametrize(("changes", "says"), [({"level": "trades"}, "log level trades"), ({"selectors": ["best"]}, "best")])
def test_an_evaluation_that_proves_nothing_is_refused(market, checkpoint, tmp_path, changes, says):
    selectors = changes.pop("selectors", ["greedy"])
    with pytest.raises(BadInput, match=says):
        evaluate(config(checkpoint, **changes), market, tmp_path, selectors)
    assert not list(tmp_path.iterdir())


def test_an_untrained_checkpoint_has_no_days_of_its_own(market, checkpoint):
    with pytest.raises(BadInput, match="--instrument, --start and --end"):
        plan_evaluation(checkpoint, market, REGISTRY, None, {}, {})
    with pytest.raises(BadInput, match="both --start and --end"):
        plan_evaluation(checkpoint, market, REGISTRY, "ESH4", {"start_ns": START}, {})
    stated = {"start_ns": START - 3 * 86_400 * 10**9, "end_ns": START - 86_400 * 10**9}
    with pytest.raises(BadInput, match="no session of ESH4 with data"):
        plan_evaluation(checkpoint, market, REGISTRY, "ESH4", stated, {})
    planned = plan_evaluation(checkpoint, market, REGISTRY, "ESH4", {"start_ns": START, "end_ns": START + MINUTE, "clock": "2s"}, {}, 2)
    assert (planned.phase, planned.lanes, planned.tape.clock, planned.tape.end_ns) == ("eval", 2, "2s", START + MINUTE)


# --- the command ---


def test_the_command_prints_both_selectors_side_by_side_and_how_to_prove_them(market, checkpoint, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    window = ("--instrument", "ESH4", "--start", "2024-03-04T23:00Z", "--end", "2024-03-04T23:10Z", "--clock", "5s")
    asked = ("eval", "--checkpoint", str(checkpoint), "--store", str(market), *window, "--runs", "R")
    text = here(capfd, *asked)
    assert text.returncode == 0, text.stderr
    lines = text.stdout.splitlines()
    assert lines[0] == "1 account on 1 distinct session (1 distinct path), 2 trials on this market so far"
    assert lines[1].split() == ["greedy", "boltzmann"] and lines[2].startswith("total after fees")
    assert [line.split()[0] for line in lines if line.startswith("  ") and line.split()[0] in BASELINES] == list(BASELINES)
    assert "with another future the past kept every byte" in text.stdout and lines[-1] == "limit: the tape does not react to us"
    found = document(here(capfd, *asked, "--json"))
    assert list(found) == ["greedy", "boltzmann"]
    for selector, one in found.items():
        assert one["summary"][EVALUATION]["selector"]["name"] == selector
        command = f"sim verify {one['run'].removesuffix('-2')} --store {market} --head {one['head']}"
        assert command in text.stdout
        assert here(capfd, *command.split()[1:]).returncode == 0


def test_the_command_says_what_is_missing_and_names_options_as_they_are_typed(market, checkpoint, tmp_path, capfd):
    asked = ("eval", "--checkpoint", str(checkpoint), "--store", str(market))
    window = ("--instrument", "ESH4", "--start", "2024-03-04T23:00Z", "--end", "2024-03-05")
    for extra, says in (
        ((), "--instrument, --start and --end"),
        (window, "say with --runs where"),
        (("--runs", str(tmp_path), *window, "--max-lots", "0"), "--max-lots"),
        (("--runs", str(tmp_path), "--checkpoint", str(tmp_path)), "manifest.json"),
        (("--checkpoint", str(tmp_path / "none")), "is no checkpoint directory"),
    ):
        done = here(capfd, *asked, *extra, "--json")
        assert done.returncode == 2 and says in reason(done), extra
    assert not list(tmp_path.iterdir())
