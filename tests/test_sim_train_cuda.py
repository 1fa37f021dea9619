"""`sim train` on a real CUDA device: captured, resumed and repeated, it is the same run. Skipped where there is no device."""

from pathlib import Path

import pytest
import torch

import sim.capture
from sim.determinism import train_twice
from sim.train import make_trainer, prepare, resume, train
from sim.verify import verify
from sim.verify_types import render
from tests.test_sim_train import assert_whole, interrupt
from tests.train_days import everything, make_store, run_of, small

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

CUDA = {"device": "cuda"}


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    return make_store(tmp_path_factory.mktemp("market"))


def eager(trainer):
    """In place of `sim.capture.capture`: the same steps, each launched kernel by kernel."""

    def launch(learns):
        trainer.env.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(trainer.env.stream):
            trainer.step(learns)

    return {learns: (lambda learns=learns: launch(learns)) for learns in (False, True)}


@pytest.mark.parametrize("profile", ["small", "default"])
def test_captured_training_is_eager_training_bit_for_bit_while_picks_rates_and_cursors_move(store, monkeypatch, profile):
    config = small(store, loop=CUDA, model={"profile": profile})
    parts = prepare(config, store)
    told = []
    for way in (None, eager):
        trainer = make_trainer(config, parts.train)
        with monkeypatch.context() as patch:
            if way is not None:
                patch.setattr(sim.capture, "capture", way)
            blocks = []
            for _ in range(6):
                trainer.run(10)
                blocks.append(trainer.log.drain())
        torch.cuda.synchronize()
        told.append(({name: tensor.clone() for name, tensor in trainer.tensors().items()}, blocks))
    (captured, captured_rows), (one_by_one, rows) = told
    assert captured.keys() == one_by_one.keys()
    for name, tensor in captured.items():
        assert torch.equal(tensor, one_by_one[name]), name
    assert int(captured["learner.updates"]) == 60 - 8
    for ours, theirs in zip(captured_rows, rows, strict=True):
        for table, columns in ours.items():
            for name, column in columns.items():
                assert column.tobytes() == theirs[table][name].tobytes(), f"{table}.{name}"


def test_a_training_run_on_a_gpu_that_is_broken_off_and_resumed_is_the_run_that_never_stopped(store, tmp_path):
    """By interrupt: a process that holds a GPU cannot fork."""
    config = small(store, loop=CUDA)
    train(config, store, tmp_path / "whole")
    for stop in (15, 35, 75, 110):
        interrupt(store, tmp_path / "stopped", stop, config)
    resume(run_of(tmp_path / "stopped"))
    assert_whole(tmp_path / "stopped", (None, everything(tmp_path / "whole")))


def test_two_trainings_on_a_gpu_are_equal_to_the_last_byte_and_their_evaluations_are_proved(store, tmp_path):
    outcome = train_twice(small(store, loop=CUDA), store, tmp_path)
    assert outcome.difference is None, outcome.text()
    for (run, _), head in zip(outcome.runs, outcome.heads, strict=True):
        verdict = verify(run, store, head=head)
        assert verdict.ok, render(verdict)
