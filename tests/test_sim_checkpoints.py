"""A training run that is killed at any moment and resumed gives the bytes of the run that was never stopped: log, checkpoints, summary."""

import os
import random
import shutil
import sys
from pathlib import Path

import pytest
import torch

from lob.errors import BadInput, DamagedLog, ForeignCheckpoint
from policy.tensor_file import form_of
from policy.training_state import load_state, made_by, read_standing
from sim.checkpoints import latest, list_checkpoints, resume_log, save, settle, starts
from store.reopen import read_abandoned
from store.run_check import verify_chain
from store.run_read import read_run, seal
from store.runlog import RunLog
from tests.kills import KILLED, die_at_event, in_child, kill_after, kill_command_after, proved_files, until_done
from tests.runlog_runs import TABLES, write_steps
from tests.toy_training import EVERY, FLUSH, IDENTITY, KEEP, fresh, train

REPO = Path(__file__).resolve().parent.parent
STEPS = 60
HEAD = "0" * 64


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The files of the run that was never stopped."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    train(run_dir, STEPS)
    assert verify_chain(run_dir) == [] and read_abandoned(run_dir) == ()
    return proved_files(run_dir)


def assert_whole(run_dir, whole):
    found = proved_files(run_dir)
    assert [name for name in sorted({*found, *whole}) if found.get(name) != whole.get(name)] == []
    assert verify_chain(run_dir) == []


def assert_usable(run_dir):
    """What holds at any moment: `last` leads to a whole checkpoint, and the log holds its steps and has sealed none after it."""
    last = run_dir / "checkpoints" / "last"
    if not last.is_symlink():
        assert not (run_dir / "checkpoints").exists() or not (run_dir / "segments").exists()
        return
    forms = {name: form_of(tensor) for name, tensor in fresh().items()}
    standing, _ = load_state(last, forms, made_by())
    newest, _ = load_state(latest(run_dir), forms, made_by())
    assert standing.step <= newest.step <= standing.step + EVERY
    run = read_run(run_dir)
    assert run.sealed_steps <= newest.log_steps <= run.steps or run.state == "finished"
    best = run_dir / "checkpoints" / "best"
    assert not best.is_symlink() or load_state(best, forms, made_by())[0].score is not None


@pytest.mark.parametrize("stride", [41, pytest.param(1, marks=pytest.mark.deep)])
def test_a_training_run_killed_at_any_file_operation_and_resumed_is_the_run_that_never_stopped(tmp_path, whole, stride):
    run_dir, moment = tmp_path / "run", 0
    while in_child(lambda at=moment: die_at_event(at, lambda: train(run_dir, STEPS), tmp_path)) == KILLED:
        if (run_dir / "chain.jsonl").exists():
            assert_usable(run_dir)
        train(run_dir, STEPS)
        assert_whole(run_dir, whole)
        shutil.rmtree(run_dir)
        moment += stride
    assert moment > 350


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.deep] if seed >= 3 else []) for seed in range(50)])
def test_a_training_run_killed_with_kill_9_again_and_again_is_the_run_that_never_stopped(tmp_path, whole, seed):
    draw, run_dir = random.Random(seed), tmp_path / "run"
    killed = until_done(lambda: kill_after(draw.uniform(0.05, 1), lambda: train(run_dir, STEPS, pause_s=0.02)) for _ in range(100))
    assert killed > 0
    assert_whole(run_dir, whole)


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.deep] if seed >= 1 else []) for seed in range(5)])
def test_a_training_run_killed_at_random_file_operations_again_and_again_is_the_run_that_never_stopped(tmp_path, whole, seed):
    draw, run_dir = random.Random(seed), tmp_path / "run"
    moments = [draw.randrange(20, 200) for _ in range(100)]
    until_done(lambda at=at: in_child(lambda: die_at_event(at, lambda: train(run_dir, STEPS), tmp_path)) for at in moments)
    assert_whole(run_dir, whole)


@pytest.mark.deep
def test_a_process_of_its_own_killed_with_kill_9_is_the_run_that_never_stopped(tmp_path, whole):
    draw, run_dir = random.Random(1), tmp_path / "run"
    command = [sys.executable, "-m", "tests.toy_training", str(run_dir), str(STEPS), "0.02"]
    dying = [sys.executable, "-m", "tests.kills", "150", str(tmp_path), *command[2:]]
    assert kill_command_after(600, dying, cwd=REPO) == KILLED
    assert_usable(run_dir)
    until_done(lambda: kill_command_after(draw.uniform(2, 8), command, cwd=REPO) for _ in range(100))
    assert_whole(run_dir, whole)


@pytest.mark.parametrize("stop", [0, 1, 6, 7, 8, 33, 49, 56, 59, 60])
def test_a_training_run_interrupted_at_a_step_and_resumed_is_the_run_that_never_stopped(tmp_path, whole, stop):
    train(tmp_path / "run", STEPS, stop)
    train(tmp_path / "run", STEPS)
    assert_whole(tmp_path / "run", whole)


def test_an_interrupted_training_run_is_sealed_where_it_stands_with_its_checkpoints(tmp_path):
    train(tmp_path / "run", STEPS, 38)
    assert read_run(tmp_path / "run").sealed_steps == 32
    head = seal(tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert (run.state, run.steps, run.sealed_steps) == ("sealed_where_it_stood", 38, 38)
    assert verify_chain(tmp_path / "run", head) == [] and latest(tmp_path / "run").name == "step-00000035"
    with pytest.raises(BadInput, match=r"the run has ended \(sealed_where_it_stood, 38 steps\)"):
        train(tmp_path / "run", STEPS)


def take(log, step, score, keep=2):
    """One step of a log and its checkpoint."""
    write_steps(log, 7, step - 1, step)
    return save(log, step, lambda folder: (folder / "network").write_text(str(step)), {}, made_by(), {}, score, keep)


def new_log(run_dir):
    return RunLog.create(run_dir, identity=IDENTITY, tables=TABLES, segment_steps=4, seal_behind_checkpoints=True)


@pytest.mark.parametrize("seed", range(4))
def test_best_is_the_highest_score_and_of_equal_ones_the_earliest_and_rotation_keeps_both_links_and_the_newest(tmp_path, seed):
    draw = random.Random(seed)
    keep = draw.choice([1, 2, 3])
    scores = [draw.choice([None, None, -5, 0, 0.5, 3, 3]) for _ in range(14)]
    root = tmp_path / "run" / "checkpoints"
    with new_log(tmp_path / "run") as log:
        for step in range(1, 15):
            take(log, step, scores[step - 1], keep)
            asked = [(score, -at) for at, score in enumerate(scores[:step], 1) if score is not None]
            best = -max(asked)[1] if asked else None
            names = {f"step-{at:08d}" for at in {best, *range(max(1, step - keep + 1), step + 1)} - {None}}
            assert {path.name for path in root.iterdir()} == names | {"last"} | ({"best"} if best else set())
            assert os.readlink(root / "last") == f"step-{step:08d}"
            assert best is None or os.readlink(root / "best") == f"step-{best:08d}"
            assert (root / "last" / "network").read_text() == str(step)


def test_the_log_is_durable_before_a_checkpoint_appears_and_last_moves_before_the_log_may_seal(tmp_path, monkeypatch):
    order = []
    log = new_log(tmp_path / "run")
    real = {name: getattr(os, name) for name in ("rename", "replace", "fsync")}

    def note(call, value, *arguments):
        order.append(value(*arguments))
        return call(*arguments)

    def synced(handle):
        place = Path(os.readlink(f"/proc/self/fd/{handle}"))
        return f"fsync {place.parent.name if place.name == 'commits' else place.name}/{'commits' if place.name == 'commits' else ''}"

    monkeypatch.setattr(os, "rename", lambda a, b: note(real["rename"], lambda a, b: f"rename {Path(b).name}", a, b))
    monkeypatch.setattr(os, "replace", lambda a, b: note(real["replace"], lambda a, b: f"replace {Path(b).name}", a, b))
    monkeypatch.setattr(os, "fsync", lambda handle: note(real["fsync"], synced, handle))
    sealing = log.checkpointed
    monkeypatch.setattr(log, "checkpointed", lambda steps: note(sealing, lambda steps: f"seal {steps}", steps))
    take(log, 1, 1)
    at = [order.index(what) for what in ("fsync 00000001/commits", "rename step-00000001", "replace last", "seal 1")]
    assert at == sorted(at), order
    assert "fsync checkpoints/" in order[at[1] : at[2]], "the checkpoint's name is durable before `last` leads to it"
    log.close()


@pytest.mark.parametrize(
    ("call", "where"),
    [
        ("os.rename", "checkpoints/step-00000035"),
        ("policy.training_state.write_tensors", "/state.pt"),
        ("os.replace", "checkpoints/last"),
        ("os.rename", ".step-00000028.old"),
    ],
)
def test_a_disk_that_refuses_a_checkpoint_is_one_clear_line_and_the_run_goes_on_from_the_one_before(
    tmp_path, whole, monkeypatch, call, where
):
    """The call at fault is the one that has to do with this path."""
    import importlib

    train(tmp_path / "run", STEPS, 34)
    module, _, name = call.rpartition(".")
    owner = os if module == "os" else importlib.import_module(module)
    real = getattr(owner, name)

    def full(*arguments):
        if any(str(argument).endswith(where) for argument in arguments):
            raise OSError(28, "No space left on device", "somewhere")
        return real(*arguments)

    monkeypatch.setattr(owner, name, full)
    with pytest.raises(BadInput, match=r"No space left on device.*sim train --resume") as refusal:
        train(tmp_path / "run", STEPS)
    assert "\n" not in str(refusal.value)
    monkeypatch.undo()
    assert_usable(tmp_path / "run")
    train(tmp_path / "run", STEPS)
    assert_whole(tmp_path / "run", whole)


def test_a_damaged_newest_checkpoint_is_refused_never_passed_over(tmp_path):
    train(tmp_path / "run", STEPS, 30)
    path = latest(tmp_path / "run") / "state.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ForeignCheckpoint, match=r"step-00000028: .*damaged"):
        train(tmp_path / "run", STEPS)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    train(tmp_path / "run", STEPS, 38)
    train(tmp_path / "other", STEPS, 20)
    shutil.copytree(latest(tmp_path / "run"), tmp_path / "other" / "checkpoints" / latest(tmp_path / "run").name)
    with pytest.raises(DamagedLog, match="this is not that log"):
        train(tmp_path / "other", STEPS)


def test_checkpoints_after_the_one_that_a_run_goes_on_from_are_set_aside_with_their_rows(tmp_path):
    with new_log(tmp_path / "run") as log:
        for step in (1, 2, 3):
            take(log, step, step)
    standing = read_standing(tmp_path / "run" / "checkpoints" / "step-00000002")
    with resume_log(tmp_path / "run", standing, IDENTITY, TABLES, KEEP, **FLUSH) as log:
        assert log.steps == 2 and list(list_checkpoints(tmp_path / "run")) == [2]
        assert (tmp_path / "run" / "abandoned" / "checkpoints" / "step-00000003" / "network").read_text() == "3"
        assert os.readlink(tmp_path / "run" / "checkpoints" / "last") == "step-00000002"
        take(log, 3, 3)
    (found,) = read_abandoned(tmp_path / "run")
    assert (found.kept_steps, found.steps) == (2, 3)


def test_a_run_killed_before_its_first_checkpoint_begins_anew_in_its_folder(tmp_path, whole):
    train(tmp_path / "run", STEPS, 5)
    assert latest(tmp_path / "run") is None
    train(tmp_path / "run", STEPS)
    assert_whole(tmp_path / "run", whole)
    assert [(found.kept_steps, found.steps) for found in read_abandoned(tmp_path / "run")] == [(0, 5)]


def test_best_is_a_checkpoint_of_the_network_that_plays(tmp_path):
    from policy import checkpoint
    from policy.architecture import profile
    from policy.model import initialise

    model = initialise(profile("small"), 7)
    known = checkpoint.Checkpoint(model, torch.zeros(127), 250_000)
    with new_log(tmp_path / "run") as log:
        write_steps(log, 7, 0, 1)
        save(log, 1, lambda folder: checkpoint.write(known, folder), {"a": torch.ones(2)}, made_by(), {}, 3, 1)
    loaded, _ = checkpoint.load(tmp_path / "run" / "checkpoints" / "best")
    assert loaded.health_ppm == 250_000
    assert all(torch.equal(weight, model.weights[name]) for name, weight in loaded.model.weights.items())
    assert read_standing(tmp_path / "run" / "checkpoints" / "best").score == 3


def test_every_start_that_was_logged_counts_once(tmp_path):
    from sim.tables import RUN_TABLES

    row = {"started_ns": 1, "host": "h", "process": 1, "threads": 1, "python": "3", "command": "c", "folder": "f"}
    log = RunLog.create(tmp_path / "run", identity={}, tables=RUN_TABLES, level="diag", seal_behind_checkpoints=True)
    log.append_row("attempts", {"attempt": 0, **row})
    assert starts(tmp_path / "run") == 0
    for steps in (3, 5):
        for step in range(log.steps, steps):
            log.end_step(step)
        log.close()
        log = resume_log(tmp_path / "run", None, {}, RUN_TABLES, 1)
        assert starts(tmp_path / "run") == {3: 1, 5: 2}[steps]
        log.append_row("attempts", {"attempt": 1, **row})
    log.close()


def test_settling_clears_what_a_process_that_died_left_half_done(tmp_path):
    with new_log(tmp_path / "run") as log:
        take(log, 1, None)
    root = tmp_path / "run" / "checkpoints"
    before = proved_files(root)
    (root / ".step-00000002.x7").mkdir()
    (root / ".step-00000002.x7" / "state.pt").write_bytes(b"half")
    os.symlink("step-00000002", root / ".last")
    settle(tmp_path / "run", 2)
    assert proved_files(root) == before
