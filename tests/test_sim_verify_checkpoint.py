"""The weights that a training chose are held against its summary: a swapped, rewritten or broken checkpoint falsifies the run."""

import json
import os
import shutil

import pytest
import torch

from lob.errors import ForeignCheckpoint
from policy import checkpoint
from sim.checkpoints import content_of
from sim.train import first_update, prepare, resume, train
from sim.verify import verify
from sim.verify_types import FAILED, OK, SKIPPED, render
from tests.train_days import make_store, small


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    torch.set_num_threads(1)
    store = make_store(tmp_path_factory.mktemp("market"))
    stated = {"loop": {"steps": 20, "warmup_steps": 8, "checkpoint_every": 10, "validate_every": 20, "eval_steps": 5}}
    return store, train(small(store, **stated), store, tmp_path_factory.mktemp("runs"))


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained[1].run_dir, tmp_path / trained[1].run_dir.name, symlinks=True)


def said(run, store):
    """(is the verdict good, what it says of the checkpoint)"""
    verdict = verify(run, store)
    (check,) = [one for one in verdict.checks if one.name == "checkpoint"]
    return verdict.ok, check.status, check.detail


def test_the_summary_names_the_content_of_the_best_checkpoint_and_verify_finds_it_there(trained, run):
    store, result = trained
    assert result.summary["training"]["best_content_hash"] == content_of(result.best) == checkpoint.load(result.best)[1]
    assert said(run, store) == (True, OK, "")


def repoint(run):
    (run / "checkpoints" / "best").unlink()
    os.symlink(os.readlink(run / "checkpoints" / "last"), run / "checkpoints" / "best")


def rewrite(run):
    """Other weights with a manifest that fits them: only the run's own word of the content can tell."""
    found, _ = checkpoint.load(run / "checkpoints" / "best")
    with torch.no_grad():
        next(iter(found.model.weights.values())).add_(0.5)
    folder = (run / "checkpoints" / "best").resolve()
    for name in ("manifest.json", "tensors.pt"):
        (folder / name).unlink()
    checkpoint.write(found, folder)


def flip(run):
    """One weight, in a file that is whole."""
    path = run / "checkpoints" / "best" / "tensors.pt"
    tensors = torch.load(path, weights_only=True)
    tensors["heads.weight"].view(-1)[7] += 1
    torch.save(tensors, path)


def cut(run):
    path = run / "checkpoints" / "best" / "tensors.pt"
    os.truncate(path, path.stat().st_size // 2)


def story(run):
    path = run / "checkpoints" / "best" / "manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest["about"]["days"]["train"] = []
    path.write_text(json.dumps(manifest))


CHANGES = {repoint: "its manifest has the content", rewrite: "its manifest has the content", story: "its manifest has the content",
           flip: "tensor heads.weight has the SHA-256", cut: "cannot be read"}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_best_checkpoint_that_is_not_the_one_that_was_chosen_falsifies_the_run(trained, run, change):
    change(run)
    ok, status, detail = said(run, trained[0])
    assert (ok, status) == (False, FAILED) and CHANGES[change] in detail


def test_checkpoints_that_were_taken_away_are_said_to_be_unproved_and_falsify_nothing(trained, run):
    shutil.rmtree(run / "checkpoints")
    ok, status, detail = said(run, trained[0])
    assert (ok, status) == (True, SKIPPED) and "is not there" in detail


@pytest.mark.parametrize("place", ["best", "last"])
def test_a_changed_counter_of_a_checkpoint_is_found_by_verify_and_refused_by_resume_in_one_line(trained, run, place):
    (run / "manifest.json").write_text(
        json.dumps(json.loads((run / "manifest.json").read_text()) | {"head": None, "end_state": None, "steps": None})
    )
    (run / "train_summary.json").unlink()
    chain = (run / "chain.jsonl").read_text().splitlines(keepends=True)
    (run / "chain.jsonl").write_text("".join(chain[:-1]))  # as a kill before its last line would have left it
    honest = verify(run, trained[0])
    assert honest.ok and any(check.name == "training_state" and check.status == OK for check in honest.checks), render(honest)
    path = run / "checkpoints" / place / "state.json"
    text = path.read_text()
    assert '"played": ' in text
    path.write_text(text.replace('"played": ', '"played": 1', 1))
    verdict = verify(run, trained[0])
    (found,) = verdict.failed
    assert (found.name, found.table) == ("training_state", f"checkpoints/{path.resolve().parent.name}")
    with pytest.raises(ForeignCheckpoint) as refused:
        resume(run, trained[0])
    assert str(path.resolve().parent) in str(refused.value) and "damaged" in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(("warmup", "every", "first"), [(20, 1, 21), (20, 4, 24), (19, 4, 20), (1, 1, 2), (3, 5, 5)])
def test_the_first_update_is_the_first_multiple_beyond_the_warm_up(trained, warmup, every, first):
    loop = {"warmup_steps": warmup, "env_steps_per_update": every, "checkpoint_every": 20 * every, "validate_every": 20 * every}
    config = small(trained[0], loop=loop).loop
    assert first_update(config) == first == min(step for step in range(1, 100) if step > warmup and step % every == 0)


@pytest.mark.parametrize(("steps", "warns"), [(8, True), (9, False)])
def test_a_training_that_ends_within_its_warm_up_says_that_nothing_is_learnt(trained, steps, warns):
    notes = prepare(small(trained[0], loop={"steps": steps, "warmup_steps": 8}), trained[0]).notes
    assert any("nothing is learnt" in note for note in notes) == warns
