"""The claim "same seed, same bytes" put to the test by training twice, and a training that breaks it is caught where it does."""

import os
from pathlib import Path

import pytest
import torch

from sim import determinism
from sim.compare import first_difference
from sim.determinism import train_twice
from sim.train import train
from tests.test_cli import document, here
from tests.test_cli_train import FILE, SMALL, WINDOW
from tests.train_days import make_store, small

SHORT = {"steps": 30, "checkpoint_every": 15, "validate_every": 15, "eval_steps": 5}
POISON = "TAPEPROOF_TEST_POISON"
"""What the second of two trainings is to do otherwise; only the wrapper of this file reads it."""


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    torch.set_num_threads(1)
    return make_store(tmp_path_factory.mktemp("market"))


def differently(config: str, store: str, runs: str) -> list[Path]:
    """`sim.determinism._train` in a process whose hash seed decides something: in the second training only."""
    from sim.loop import Loop
    from sim.trainer import Trainer

    if os.environ["PYTHONHASHSEED"] == "2":
        kind = os.environ[POISON]
        real_step, real_append = Trainer.step, Loop._append

        def step(self, learns):
            real_step(self, learns)
            if kind == "weights" and self.steps == 21:
                with torch.no_grad():
                    self.model.flat[5] += 1e-3

        def append(self, rows):
            if kind == "diag" and rows["diag"]["step"][0] == 20:
                rows["diag"]["lanes.played"] = rows["diag"]["lanes.played"] + 1
            real_append(self, rows)

        Trainer.step, Loop._append = step, append  # type: ignore[method-assign]
    return determinism._train(config, store, runs)


def test_two_trainings_are_equal_and_a_second_comparison_in_the_same_place_is_refused(store, tmp_path, capfd, monkeypatch):
    (tmp_path / "S").symlink_to(store)
    (tmp_path / "train.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    command = ("determinism", *WINDOW, *SMALL, "--steps", "30", "--runs", "R")
    done = here(capfd, *command, "--json")
    said = document(done)
    assert (done.returncode, said["equal"], said["difference"]) == (0, True, None)
    assert len(said["runs"]) == 3 and len(set(said["heads"])) == 3, "the training and both evaluations"
    assert not Path("R/determinism/second").exists() and Path(said["runs"][0][0]).is_dir()
    again = here(capfd, *command)
    assert again.returncode == 2 and "an earlier comparison lies there; remove R/determinism first" in again.stderr


@pytest.mark.deep
@pytest.mark.parametrize(
    ("kind", "where"),
    [("diag", "diag, phase 0, step 20, lanes.played"), ("weights", "diag, phase 0, step 2")],
)
def test_a_training_that_depends_on_its_process_is_caught_where_it_first_differs(store, tmp_path, monkeypatch, capfd, kind, where):
    monkeypatch.setenv(POISON, kind)
    monkeypatch.setattr(determinism, "_train", differently)
    outcome = train_twice(small(store, loop=SHORT), store, tmp_path)
    assert outcome.difference is not None and outcome.difference.where.startswith(where), outcome.difference
    assert outcome.text().endswith("NOT DETERMINISTIC") and str(outcome.difference) in outcome.text()
    assert outcome.document()["equal"] is False
    assert all(path.exists() for pair in outcome.runs for path in pair), "both are kept to look at"


@pytest.fixture(scope="module")
def pair(store, tmp_path_factory):
    """Two trainings whose networks part in one weight at step 21, in this process."""
    from sim.trainer import Trainer

    real = Trainer.step
    runs = []
    for name, added in (("one", 0.0), ("other", 1e-3)):

        def step(self, learns, added=added):
            real(self, learns)
            if self.steps == 21:
                with torch.no_grad():
                    self.model.flat[5] += added

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Trainer, "step", step)
            runs.append(train(small(store, loop=SHORT), store, tmp_path_factory.mktemp(name)).run_dir)
    return runs


def test_a_weight_that_differs_is_seen_in_the_log_at_the_next_step_or_its_checkpoint(pair):
    found = first_difference(*pair)
    assert found is not None and found.where.startswith("diag, phase 0, step 2")
    step = int(found.where.split("step ")[1].split(",")[0])
    assert 21 <= step < 30, "not before it was changed"


def test_of_two_checkpoints_the_tensor_that_differs_is_named(pair):
    from sim.compare import _of_checkpoints

    where = [difference.where for difference in _of_checkpoints(*pair)]
    assert any(name.endswith("state.json.tensors.learner.weights.sha256") for name in where)
    assert not any("step-00000015/" in name for name in where), "they were equal until then"


def test_two_seeds_differ_in_their_configs_first(store, tmp_path):
    runs = [train(small(store, seed=seed, loop=SHORT), store, tmp_path / str(seed)).run_dir for seed in (1, 2)]
    found = first_difference(*runs)
    assert found is not None and (found.where, found.first, found.second) == ("manifest.json identity.config.seed", "1", "2")


def test_a_difference_makes_the_command_fail_and_names_it(store, tmp_path, capfd, monkeypatch, pair):
    """The command itself, over the two trainings of `pair` in the place of two processes."""
    (tmp_path / "S").symlink_to(store)
    (tmp_path / "train.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    made = iter([[pair[0]], [pair[1]]])
    monkeypatch.setattr(determinism, "_in_a_process", lambda *_: next(made))
    done = here(capfd, "determinism", *WINDOW, *SMALL, "--runs", "R")
    assert done.returncode == 1
    assert done.stdout.startswith("first difference: diag, phase 0, step 2") and done.stdout.endswith("NOT DETERMINISTIC\n")
