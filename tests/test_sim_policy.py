"""Laws of playing a checkpoint: what it observes is normalised as it was when it learned, or nothing is played."""

import datetime as dt
from dataclasses import replace

import numpy as np
import pytest
import torch

from lob.calendar import session_bounds
from lob.errors import BadInput
from lob.normalise import Normaliser, fixed
from policy.architecture import PROFILES, profile
from policy.checkpoint import Checkpoint, save
from policy.model import initialise
from sim.policy import init_checkpoint, make_policy, normaliser_of
from sim.run_data import load
from tests.replays import DATE, MINUTE, replayed, synthetic_store

START_NS, _ = session_bounds("cme_globex", dt.date.fromisoformat(DATE))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return synthetic_store(tmp_path_factory.mktemp("market"), events=10_000)


def checkpoint(folder, name: str, normaliser: Normaliser | None) -> str:
    save(Checkpoint(initialise(profile("small"), 3), torch.zeros(127), 500_000, normaliser), folder / name)
    return f"checkpoint:{folder / name}"


def picked(result) -> list[int]:
    return load(result.run_dir).tables["steps"].column("picked_action").to_pylist()


def test_a_checkpoint_plays_on_the_normalisation_that_it_learned_from(store, tmp_path):
    declared = fixed(1.0)
    doubled = replace(declared, mean=declared.mean + 1, std=declared.std * 2, label="fitted on other days")
    plain = replayed(store, tmp_path, policy=checkpoint(tmp_path, "plain", None), minutes=2)
    same = replayed(store, tmp_path, policy=checkpoint(tmp_path, "same", declared), minutes=2)
    other = replayed(store, tmp_path, policy=checkpoint(tmp_path, "other", doubled), minutes=2)
    assert picked(plain) == picked(same) != picked(other)
    stated = load(other.run_dir).manifest["identity"]["data"]["normaliser"]
    assert stated["label"] == "fitted on other days" and stated["fingerprint"] == doubled.fingerprint


def test_a_checkpoint_with_a_normalisation_of_its_own_is_not_fitted_anew(store, tmp_path):
    fitted = {"fit_start_ns": START_NS, "fit_end_ns": START_NS + 5 * MINUTE, "start_ns": START_NS + 5 * MINUTE}
    spec = checkpoint(tmp_path, "own", fixed(1.0))
    with pytest.raises(BadInput, match=r"brings its own normalisation .*--fit-start"):
        replayed(store, tmp_path, policy=spec, **fitted)


def test_a_checkpoint_refuses_observations_of_another_normalisation(tmp_path):
    spec, declared = checkpoint(tmp_path, "own", fixed(1.0)), fixed(1.0)
    assert normaliser_of(spec).fingerprint == declared.fingerprint and normaliser_of("flat") is None
    make_policy(spec, 0, 2, mean=declared.mean, std=declared.std)
    for mean, std in ((None, None), (declared.mean, np.ones(128)), (declared.mean + 1, declared.std)):
        with pytest.raises(BadInput, match="learned from observations that were fixed"):
            make_policy(spec, 0, 2, mean=mean, std=std)


@pytest.mark.parametrize("name", list(PROFILES))
def test_a_checkpoint_of_every_profile_is_made_and_replayed(store, tmp_path, name):
    said = init_checkpoint(5, tmp_path / "net", profile_name=name)
    assert said["parameters"] == sum(p.numel() for p in initialise(profile(name), 5).parameters())
    result = replayed(store, tmp_path / "runs", policy=f"checkpoint:{tmp_path / 'net'}", minutes=1, lanes=2)
    assert len(picked(result)) == 2 * (result.steps + 1)


@pytest.mark.parametrize("name", list(PROFILES))
def test_what_a_network_picks_does_not_depend_on_what_comes_later(store, tmp_path, name):
    init_checkpoint(5, tmp_path / "net", profile_name=name)
    short, long = (replayed(store, tmp_path, policy=f"checkpoint:{tmp_path / 'net'}", minutes=minutes, lanes=2) for minutes in (1, 2))
    decided = 2 * short.steps
    assert len(set(picked(long))) > 1 and picked(short)[:decided] == picked(long)[:decided]
