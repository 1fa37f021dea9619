"""What a training step leaves in its log: every signal, figure and reward, step by step, as the controllers hold them."""

import datetime as dt

import numpy as np
import pytest
import torch

from lob.instruments import REGISTRY
from policy.diag_columns import FLOATS, INTEGERS
from policy.signals import IN_USE, INDEX, SLOTS
from sim.ingest import ingest
from sim.synth import synth
from sim.train import make_trainer, prepare
from sim.train_config import plan_train
from sim.trainer import FEATURES_EVERY, Trainer

LANES = 32


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    """(config, parts) of a small training over three synthetic days."""
    folder = tmp_path_factory.mktemp("trainer")
    for day in (2, 3, 4):
        path = folder / f"{day}.dbn"
        synth("ESH4", f"2024-01-0{day}", 3_000, 7, 1.0, path)
        ingest(path, folder / "store")
    at = lambda day: int(dt.datetime(2024, 1, day, tzinfo=dt.UTC).timestamp()) * 10**9  # noqa: E731
    stated = {"split": {"test_days": 1, "validation_days": 1}, "loop": {"warmup_steps": 5}, "learner": {"batch": 32}}
    tape = {"clock": "1m", "start_ns": at(1), "end_ns": at(5)}
    config = plan_train(folder / "store", "ESH4", REGISTRY, tape, stated, seed=3, lanes=LANES)
    return config, prepare(config, folder / "store")


def played(trainer: Trainer, steps: int) -> dict[str, np.ma.MaskedArray]:
    """`diag` of the next steps."""
    blocks = []
    while steps:
        size = min(steps, 50)
        trainer.run(size)
        blocks.append(trainer.log.columns(trainer.log.fetch())["diag"])
        steps -= size
    return {name: np.ma.concatenate([block[name] for block in blocks]) for name in blocks[0]}


def test_every_column_of_training_is_a_number_once_the_learner_has_begun(plan):
    config, parts = plan
    diag = played(make_trainer(config, parts.train), 12)
    for column in (*INTEGERS, *FLOATS):
        missing = np.ma.getmaskarray(diag[column.name])
        waits = column.name.startswith("learn.") and column.name != "learn.updates"
        assert missing.tolist() == [waits] * 5 + [False] * 7, column.name


def test_logged_signals_are_the_bus_after_the_step_and_sums_fit_the_environments_own(plan):
    config, parts = plan
    trainer = make_trainer(config, parts.train)
    for _ in range(8):
        diag = played(trainer, 1)
        for place in IN_USE:
            assert diag[f"signal.{SLOTS[place].name}"][0] == trainer.bus[place].item()
        scaled = diag["trading.reward_raw_usd_micros"][0] / config.env.reward_scale_usd_micros
        drained = LANES - diag["lanes.played"][0]
        assert drained or diag["reward.scaled_ppm_sum"][0] / 1e6 == pytest.approx(scaled, abs=1e-6 * LANES)
        assert diag["learn.updates"][0] == trainer.learner.updates.item()


def test_features_are_looked_at_by_the_steps_number_whatever_the_blocks(plan):
    config, parts = plan
    one, other = (make_trainer(config, parts.train) for _ in range(2))
    gaps = played(one, FEATURES_EVERY + 1)["signal.spectral_gap"]
    assert not gaps[:FEATURES_EVERY].any() and 0 < gaps[FEATURES_EVERY] < 1
    for size in (30, 49, FEATURES_EVERY - 79, 1):
        other.run(size)
        other.log.fetch()
    assert torch.equal(one.bus, other.bus) and one.bus[INDEX["spectral_gap"]] == gaps[FEATURES_EVERY]


def test_the_gap_is_that_of_the_features_of_the_present_observations(plan):
    config, parts = plan
    trainer = make_trainer(config, parts.train)
    played(trainer, FEATURES_EVERY)
    bus = trainer.bus.clone()
    bus[INDEX["spectral_gap"]] = 0.0  # as it stood when they were looked at
    with torch.no_grad():
        features, _ = trainer.model.body(trainer.env.observation, None, bus)
    eigenvalues = np.sort(np.linalg.eigvalsh(np.cov(features.double().numpy(), rowvar=False)))
    assert trainer.bus[INDEX["spectral_gap"]].item() == pytest.approx(1 - eigenvalues[-2] / eigenvalues[-1], abs=0.1)
