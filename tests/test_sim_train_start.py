"""Laws of how a training begins and is gone on with: what never played a step leaves nothing, and another store is refused."""

import shutil
from dataclasses import replace

import pytest
import torch

from cli.train import text
from lob.errors import BadInput, NotFound
from sim.train import resume, train
from sim.trainer import Trainer
from store.run_read import read_run
from tests.train_days import DATES, make_store, run_of, small
from tests.window_days import store_of_days

SHORT = {"loop": {"steps": 20, "checkpoint_every": 20, "validate_every": 20, "block_steps": 10, "warmup_steps": 8, "eval_steps": 5}}
TORCH_SAYS = "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    torch.set_num_threads(1)
    return make_store(tmp_path_factory.mktemp("market"))


@pytest.fixture(scope="module")
def finished(store, tmp_path_factory):
    return train(small(store, **SHORT), store, tmp_path_factory.mktemp("runs")).run_dir


@pytest.fixture
def memory_ends(monkeypatch):
    """Memory that ends in the step of that number."""

    def at(step):
        real = Trainer.step

        def limited(self, learns):
            if self.steps == step:
                raise RuntimeError(TORCH_SAYS)
            real(self, learns)

        monkeypatch.setattr(Trainer, "step", limited)

    return at


def test_a_training_that_fails_before_its_first_step_leaves_no_run(store, tmp_path, memory_ends):
    memory_ends(3)  # within the first block: no step has ended
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator") as told:
        train(small(store, **SHORT), store, tmp_path)
    assert list(tmp_path.iterdir()) == [] and not getattr(told.value, "__notes__", [])


def test_memory_that_ends_later_keeps_the_run_and_says_how_to_go_on(store, tmp_path, memory_ends, finished, monkeypatch):
    memory_ends(13)
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator") as told:
        train(small(store, **SHORT), store, tmp_path)
    run = run_of(tmp_path)
    assert told.value.__notes__ == [f"{run} keeps its first 10 steps; go on with `sim train --resume {run}`"]
    monkeypatch.undo()
    assert resume(run).head == read_run(finished).head


def test_one_of_a_thing_is_said_in_the_singular(finished):
    said = text(replace(resume(finished), steps=1, lanes=1))
    assert said.splitlines()[0] == f"{finished}: 1 step x 1 lane"
    assert text(resume(finished)).splitlines()[0] == f"{finished}: 20 steps x 8 lanes"


def test_a_finished_run_takes_no_other_store(store, finished, tmp_path):
    run = shutil.copytree(finished.parent, tmp_path / "runs", symlinks=True) / finished.name
    head = read_run(run).head
    other = store_of_days(tmp_path, 900, DATES)
    for wrong, error, says in (
        (tmp_path / "none", NotFound, "none"),
        (other, BadInput, "resume it as it was started, or start a new run"),
    ):
        with pytest.raises(error, match=says) as told:
            resume(run, wrong)
        assert "\n" not in str(told.value)
    copy = shutil.copytree(store, tmp_path / "moved")
    for right in (None, store, copy):
        assert resume(run, right).head == head
