"""`sim train` killed, interrupted, stopped or broken at any moment, and resumed: the bytes of the run that never stopped."""

import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from lob.errors import BadInput, CheckFailed, NotFound, StaleCache
from policy.bands import BANDS, TERMINAL, Band
from sim.checkpoints import latest
from sim.loop import Loop
from sim.seal import seal_run
from sim.signals import PASS
from sim.train import make_trainer, prepare, resume, train, train_identity
from sim.trainer import Trainer
from sim.verdict import evaluations_of, judge
from sim.verify import verify
from sim.verify_types import FAILED, render
from store.manifest import MANIFEST
from store.run_check import verify_chain
from store.run_read import read_run, read_table
from tests.kills import KILLED, die_at_event, fork, in_child, kill_after, proved_files, until_done
from tests.train_days import DATES, everything, go_on, make_store, run_of, small
from tests.window_days import store_of_days


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    torch.set_num_threads(1)
    return make_store(tmp_path_factory.mktemp("market"))


@pytest.fixture(scope="module")
def whole(store, tmp_path_factory):
    """The run that was never stopped, and its files."""
    runs = tmp_path_factory.mktemp("whole")
    result = train(small(store), store, runs)
    return result, everything(runs)


def assert_whole(runs, whole):
    found, asked = everything(runs), whole[1]
    assert set(found) == set(asked)
    for run in asked:
        assert set(found[run]) == set(asked[run]), run
        for name in asked[run]:
            assert found[run][name] == asked[run][name], f"{run}/{name}"


def test_the_run_that_is_compared_with_trades_learns_is_sealed_behind_checkpoints_and_is_proved(whole, store):
    result, files = whole
    assert result.summary["phases"][0]["trades"] > 50 and result.steps == 120
    learnt = read_table(read_run(result.run_dir), "diag", ["learn.grad_norm"])["learn.grad_norm"]
    assert len(learnt) == 121 and learnt.null_count == 9, "all but the eight steps of the warm-up and the closing row"
    assert len(files[result.run_dir.name]) > 15 and len(files) == 3
    verdict = verify(result.run_dir, store, head=result.head)
    assert verdict.ok, render(verdict)
    for one in result.evaluations:
        verdict = verify(Path(one["run"]), store, head=one["head"])
        assert verdict.ok and verdict.largest_difference_usd_micros == 0, render(verdict)


def test_every_steps_time_is_told_in_parts_and_shown_to_who_looks_on(whole):
    from sim.step_times import PARTS
    from sim.watch import standing

    rows = read_table(read_run(whole[0].run_dir), "timing").to_pylist()
    assert [row["step"] for row in rows] == list(range(121))
    for row in rows[:-1]:
        parts = [row[f"{part}_ns"] for part in PARTS]
        assert all(part > 0 for part in parts) and sum(parts) == row["elapsed_ns"]
    assert rows[-1]["learn_ns"] is None, "the closing row is no step"
    warm_up, learning = ([row["learn_ns"] for row in some] for some in (rows[:8], rows[20:40]))
    assert sorted(learning)[10] > sorted(warm_up)[4]
    seen = standing(whole[0].run_dir)
    assert seen.is_over and seen.planned == 120 and seen.steps == 121
    assert set(seen.shares) == {"env", "inference", "learn", "log"}
    assert sum(seen.shares.values()) == pytest.approx(1)
    assert 0 < seen.figure("signal.learning_health").last < 1
    assert seen.figure("learn.loss").last is not None


def test_two_equal_trainings_at_once_in_one_folder_leave_equal_bytes_and_each_knows_its_own_evaluations(store, tmp_path, whole):
    children = [fork(lambda: train(small(store), store, tmp_path)) for _ in range(2)]
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    name = whole[0].run_dir.name
    found, asked = everything(tmp_path), whole[1]
    assert set(found) == {f"{run}{suffix}" for run in asked for suffix in ("", "-2")}
    for run in asked:
        twins = [{name: data for name, data in files.items() if name != MANIFEST} for files in (asked[run], found[run], found[f"{run}-2"])]
        assert twins[0] == twins[1] == twins[2], "the chain among them; a manifest holds paths and names that no hash covers"
    own = {suffix: evaluations_of(tmp_path / f"{name}{suffix}") for suffix in ("", "-2")}
    assert len(own[""]) == len(own["-2"]) == 2 and not set(own[""]) & set(own["-2"])
    (twin,) = (signal for signal in judge(tmp_path / name).signals if signal.name == "determinism")
    assert twin.status == PASS and f"{name}-2" in twin.sentence


def test_a_training_is_not_proved_by_a_store_of_other_rows(tmp_path, whole):
    other = store_of_days(tmp_path, 1_001, DATES)
    verdict = verify(whole[0].run_dir, other)
    assert not verdict.ok and {check.name for check in verdict.checks if check.status == FAILED} == {"data_hash"}


PLACES = {
    "before the first checkpoint": ("{train}/journal", 20),
    "while a checkpoint is written": ("{train}/checkpoints/.step-00000040", 2),
    "while a link is replaced": ("{train}/checkpoints/.last", 1),
    "while a segment is sealed": ("{train}/segments", 3),
    "while the summary is written": ("{train}/train_summary", 0),
    "at the end of the chain": ("{train}/manifest.json.tmp", 0),
    "in the final evaluation": ("{runs}/eval-ESH4", 25),
    "in the second evaluation": ("{boltzmann}", 25),
}
"""Where the process dies: at its n-th call that touches a path which begins so."""


def test_a_training_run_killed_everywhere_on_its_way_and_resumed_is_the_run_that_never_stopped(store, tmp_path, whole):
    """One run, killed at each of these places in turn and resumed after each."""
    config, names = small(store), {one["selector"]: Path(one["run"]).name for one in whole[0].evaluations}
    parts = {"train": tmp_path / whole[0].run_dir.name, "runs": tmp_path, "boltzmann": tmp_path / names["boltzmann"]}
    for place, (start, number) in PLACES.items():
        below = Path(start.format(**parts))
        code = in_child(lambda below=below, number=number: die_at_event(number, lambda: go_on(config, store, tmp_path), below))
        assert code == KILLED, f"the run came to its end without dying {place}"
        assert verify_chain(run_of(tmp_path)) == [], place
    assert in_child(lambda: go_on(config, store, tmp_path)) == 0
    assert_whole(tmp_path, whole)
    assert (parts["train"] / "abandoned").is_dir(), "the kills cost rows, which are kept aside"


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(6))
def test_a_training_run_killed_at_random_moments_and_resumed_is_the_run_that_never_stopped(store, tmp_path, whole, seed):
    draw, config = random.Random(seed), small(store)
    attempts = (lambda: kill_after(draw.uniform(0.2, 2.5), lambda: go_on(config, store, tmp_path)) for _ in range(200))
    until_done(attempts)
    assert_whole(tmp_path, whole)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(4))
def test_a_training_run_killed_at_random_calls_to_the_file_system_is_the_run_that_never_stopped(store, tmp_path, whole, seed):
    draw, config = random.Random(seed), small(store)

    def attempt() -> int:
        number = draw.randrange(10, 1500)
        return in_child(lambda: die_at_event(number, lambda: go_on(config, store, tmp_path), tmp_path))

    until_done(attempt for _ in range(200))
    assert_whole(tmp_path, whole)


@pytest.mark.deep
@pytest.mark.parametrize("stop", [1, 9, 20, 49, 50, 51, 70, 99, 100, 119])
def test_a_training_run_interrupted_around_a_checkpoint_is_the_run_that_never_stopped(store, tmp_path, whole, stop):
    """Fifty steps either side of the fiftieth: Ctrl-C in whatever step."""
    interrupt(store, tmp_path, stop)
    resume(run_of(tmp_path))
    assert_whole(tmp_path, whole)


def interrupt(store, runs, stop, config=None) -> str:
    """Begin or go on, to a Ctrl-C in the block that plays step `stop`; what is said then."""
    real = Trainer.run

    def run(self, steps):
        real(self, steps)
        if self.steps > stop:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt) as said:
        patch.setattr(Trainer, "run", run)
        go_on(config or small(store), store, runs)
    return str(said.value)


def test_an_interrupt_says_what_is_kept_and_how_to_go_on_in_training_and_in_evaluation(store, tmp_path, whole, monkeypatch):
    said = interrupt(store, tmp_path, 55)
    run = run_of(tmp_path)
    assert said == f"{run} keeps its first 50 steps; go on with `sim train --resume {run}`"
    with monkeypatch.context() as patch:
        patch.setattr("sim.replay._play", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt) as said:
            resume(run)
    assert str(said.value) == f"{run} has trained to its end; evaluate it with `sim train --resume {run}`"
    resume(run)
    assert_whole(tmp_path, whole)


# --- the evaluations of a run that has trained to its end ---


def copy_of(whole, tmp_path) -> tuple[Path, dict[str, Path]]:
    """A copy of the whole run and its evaluations: its folder, and {selector: folder}."""
    source = whole[0].run_dir.parent
    shutil.copytree(source, tmp_path / "runs", symlinks=True)
    return tmp_path / "runs" / whole[0].run_dir.name, {
        one["selector"]: tmp_path / "runs" / Path(one["run"]).name for one in whole[0].evaluations
    }


def stamps(runs: Path) -> dict[str, int]:
    return {str(path.relative_to(runs)): os.lstat(path).st_mtime_ns for path in sorted(runs.rglob("*"))}


def test_a_finished_run_resumed_is_reported_and_nothing_is_written(store, tmp_path, whole):
    run, evaluations = copy_of(whole, tmp_path)
    before = stamps(run.parent)
    result = resume(run)
    assert stamps(run.parent) == before
    assert {one["selector"]: one["run"] for one in result.evaluations} == {name: str(path) for name, path in evaluations.items()}
    keep = ("selector", "head", "total_pnl_usd_micros")
    assert [[one[name] for name in keep] for one in result.evaluations] == [[one[name] for name in keep] for one in whole[0].evaluations]
    assert (result.head, result.summary, result.steps) == (whole[0].head, whole[0].summary, whole[0].steps)


@pytest.mark.parametrize("missing", [("greedy",), ("boltzmann",), ("greedy", "boltzmann")])
def test_only_the_evaluations_that_are_missing_are_played_with_the_same_bytes(store, tmp_path, whole, missing):
    run, evaluations = copy_of(whole, tmp_path)
    kept = {name: stamps(path) for name, path in evaluations.items() if name not in missing}
    for name in missing:
        shutil.rmtree(evaluations[name])
    resume(run)
    assert {name: stamps(evaluations[name]) for name in kept} == kept
    found = everything(run.parent)
    for name, files in whole[1].items():
        assert {k: v for k, v in found[name].items() if k != "manifest.json"} == {k: v for k, v in files.items() if k != "manifest.json"}


def test_an_evaluation_of_another_account_or_length_does_not_count_and_stays(store, tmp_path, whole):
    from lob.instruments import REGISTRY
    from sim.evaluate import evaluate, plan_evaluation

    run, evaluations = copy_of(whole, tmp_path)
    shutil.rmtree(evaluations["boltzmann"])
    plan = plan_evaluation(run / "checkpoints" / "best", store, REGISTRY, None, {"step_limit": 5}, {})
    [other] = evaluate(plan, store, run.parent, ["boltzmann"])
    before = stamps(other.result.run_dir)
    result = resume(run)
    assert result.evaluations[1]["run"] != str(other.result.run_dir) and stamps(other.result.run_dir) == before
    assert len(list(run.parent.iterdir())) == 4


def test_an_evaluation_that_a_kill_left_is_set_aside_and_one_that_is_being_written_is_refused(store, tmp_path, whole):
    from store.runlog import lock_run

    run, evaluations = copy_of(whole, tmp_path)
    greedy = evaluations["greedy"]
    lines = (greedy / "chain.jsonl").read_text().splitlines(keepends=True)
    (greedy / "chain.jsonl").write_text("".join(lines[:-1]))
    handle = lock_run(greedy)
    with pytest.raises(BadInput, match="another process is writing this run"):
        resume(run)
    os.close(handle)
    assert [one["run"] for one in resume(run).evaluations] == [str(path) for path in evaluations.values()]
    assert (run / "abandoned" / "evaluations" / greedy.name / "manifest.json").exists()
    assert read_run(greedy).state == "finished" and verify_chain(greedy) == []
    assert verify_chain(run, whole[0].head) == []


# --- what cannot be resumed ---


def test_what_is_no_run_of_sim_train_cannot_be_resumed(store, tmp_path, whole):
    with pytest.raises(NotFound):
        resume(tmp_path / "nowhere")
    with pytest.raises(BadInput, match=r"is no run of `sim train` \(phase 'eval'\)"):
        resume(Path(whole[0].evaluations[0]["run"]))


def test_a_run_that_was_sealed_before_its_end_cannot_be_resumed(store, tmp_path):
    interrupt(store, tmp_path, 30)
    seal_run(run_of(tmp_path))
    with pytest.raises(BadInput, match=r"closed before its end \(sealed_where_it_stood\).*start a new one") as refusal:
        resume(run_of(tmp_path))
    assert "\n" not in str(refusal.value)


def test_another_build_other_data_and_a_damaged_checkpoint_are_refused_naming_what_differs(store, tmp_path, monkeypatch):
    interrupt(store, tmp_path, 30)
    run = run_of(tmp_path)
    before = proved_files(run)
    with monkeypatch.context() as patch:
        patch.setattr("sim.house.code_hash", lambda: "f" * 64)
        with pytest.raises(BadInput, match=r"code\.sha256 is .* in the run and \"f+"):
            resume(run)
    (tmp_path / "market").mkdir()
    other = store_of_days(tmp_path / "market", 1_100, DATES)
    with pytest.raises(BadInput, match=r"data\S* is .* in the run and .* now; resume it as it was started"):
        resume(run, other)
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["identity"]["config"]["loop"]["steps_per_moon"] = 3
    (run / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BadInput, match=r"loop\.steps_per_moon: .*resume it with the build that began it"):
        resume(run)
    (run / "manifest.json").write_bytes(before["manifest.json"])
    assert proved_files(run) == before, "a refusal changes nothing"
    assert latest(run).name == "step-00000020"


# --- how a run ends ---


def test_a_band_that_calls_for_a_stop_saves_first_then_stops_and_says_so_everywhere(store, tmp_path, monkeypatch):
    from cli.train import text

    monkeypatch.setitem(BANDS, "learn.grad_norm", Band("a test's reason", error_above=0.0))
    result = train(small(store), store, tmp_path)
    last_step = 10 * TERMINAL  # updates begin in the first block of ten
    run = read_run(result.run_dir)
    assert run.state == "finished" and result.steps == last_step < 120
    assert "learn.grad_norm was in error in 6 blocks in a row" in result.summary["training"]["stopped"]
    assert f"stopped early: {result.summary['training']['stopped']}" in text(result)
    events = read_table(run, "events").to_pylist()
    said = [row["kind"] for row in events if row["step"] == last_step - 1]
    assert said[-3:] == ["watch.error", "validation", "checkpoint"], "why, how it stands, and that it is saved"
    names = {path.name for path in (result.run_dir / "checkpoints").iterdir()}
    assert f"step-{last_step:08d}" in names and (result.run_dir / "checkpoints" / "best").exists()
    assert [one["selector"] for one in result.evaluations] == ["greedy", "boltzmann"]
    assert verify(result.run_dir, store, head=result.head).ok
    assert resume(result.run_dir).summary == result.summary, "it stays stopped"


def test_a_stopped_run_killed_before_its_end_stops_at_the_same_step(store, tmp_path, monkeypatch):
    monkeypatch.setitem(BANDS, "learn.grad_norm", Band("a test's reason", error_above=0.0))
    config = small(store)
    assert in_child(lambda: train(config, store, tmp_path / "whole")) == 0
    name = run_of(tmp_path / "whole").name
    for below in (tmp_path / "killed" / name / "train_summary", tmp_path / "killed" / name / "checkpoints" / ".step-00000060"):
        in_child(lambda below=below: die_at_event(0, lambda: go_on(config, store, tmp_path / "killed"), below))
    in_child(lambda: go_on(config, store, tmp_path / "killed"))
    assert_whole(tmp_path / "killed", (None, everything(tmp_path / "whole")))


def test_a_value_that_is_not_finite_stops_the_run_with_step_lane_tensor_and_dump_and_it_goes_on_from_its_last_checkpoint(
    store, tmp_path, whole
):
    real = Trainer.step

    def step(self, learns):
        if self.steps == 52:
            with torch.no_grad():
                self.model.flat[7] = float("nan")
        real(self, learns)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(CheckFailed) as said:
        patch.setattr(Trainer, "step", step)
        train(small(store), store, tmp_path)
    run = run_of(tmp_path)
    assert "is not finite" in str(said.value) and "update 4" in str(said.value) and "\n" not in str(said.value)
    assert said.value.exit_code == 1 and str(run / "faults" / "fault.pt") in str(said.value)
    dump = torch.load(run / "faults" / "fault.pt", weights_only=True)
    assert torch.isnan(dump["weights"]).any() and dump["gradient"].shape == dump["weights"].shape
    stood = read_run(run)
    assert stood.state == "unfinished" and stood.steps == 50, "no row of the broken block is in the log"
    assert latest(run).name == "step-00000040"
    resume(run)
    assert_whole(tmp_path, whole)


# --- evaluation leaves training alone ---


@pytest.fixture(scope="module")
def under_way(store, tmp_path_factory):
    """A loop that stands in the middle of its run, with all that it has in memory."""
    from sim.tables import TRAIN_TABLES
    from store.runlog import RunLog

    config = small(store)
    parts = prepare(config, store)
    trainer = make_trainer(config, parts.train)
    identity = train_identity(config, parts)
    log = RunLog.create(tmp_path_factory.mktemp("loop") / "run", identity=identity, tables=TRAIN_TABLES, level="trades")
    loop = Loop(config, parts, trainer, log)
    trainer.run(10)
    trainer.log.fetch()
    trainer.run(10)
    trainer.log.fetch()
    yield loop
    log.close()


def kept(trainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.tensors().items()}


def test_validation_leaves_every_tensor_of_the_training_as_it_was_and_gives_the_same_score_twice(under_way):
    before = kept(under_way.trainer)
    score = under_way._validate(20)
    after = kept(under_way.trainer)
    assert set(after) == set(before) and all(torch.equal(after[name], before[name]) for name in before)
    assert under_way._validate(20) == score


def test_whether_a_validation_is_played_between_two_steps_changes_no_tensor_after_them(under_way):
    stood = kept(under_way.trainer)
    under_way.trainer.run(10)
    under_way.trainer.log.fetch()
    plain = kept(under_way.trainer)
    under_way.trainer.load_tensors(stood, 20)
    under_way.trainer.run(5)
    under_way._validate(25)
    under_way.trainer.run(5)
    under_way.trainer.log.fetch()
    validated = kept(under_way.trainer)
    assert all(torch.equal(validated[name], plain[name]) for name in plain)
    assert any(not torch.equal(stood[name], plain[name]) for name in plain)
    under_way.trainer.load_tensors(stood, 20)


def test_what_is_validated_is_the_network_that_is_saved(store, whole):
    """The score that chose `best`, from the checkpoint on disk."""
    from policy.checkpoint import load, policy_of
    from sim.baselines import play_side_by_side

    config = small(store)
    validation = prepare(config, store).validation
    checkpoint, content = load(whole[0].best)
    lanes = len(validation.schedule.windows)
    earned = play_side_by_side(validation, config, {"greedy": policy_of(checkpoint, content, lanes)})["greedy"]
    assert int(earned.pnl_usd_micros.sum()) // lanes == whole[0].summary["training"]["best_score_usd_micros"]


def test_a_stale_feature_cache_is_refused_and_the_remedy_it_names_is_one_that_training_has(tmp_path, monkeypatch):
    store = make_store(tmp_path)
    config = small(store)
    with monkeypatch.context() as other_build:
        other_build.setattr("store.feature_cache.schema_hash", lambda: "0" * 64)
        prepare(config, store)
    with pytest.raises(StaleCache, match="--rebuild-features"):
        prepare(config, store)
    rebuilt = prepare(config, store, rebuild=True)
    assert np.array_equal(prepare(config, store).train.features, rebuilt.train.features)
