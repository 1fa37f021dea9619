"""The environment as Stable-Baselines3 knows it: its own vectoriser over lanes that are made anew for each episode says what is right."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from stable_baselines3.common.env_checker import check_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

from lob.errors import BadInput
from sim.episode_options import plan_episodes
from sim.gymnasium_env import MarketEnv
from sim.sb3_env import Sb3Env
from sim.tape import load
from tests.one_lane import OneLane, script
from tests.test_sim_gymnasium import LANES, MARKET, STEPS, TERMS, make
from tests.window_days import store_of_days


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    return store_of_days(tmp_path_factory.mktemp("market"), 3_000)


def test_it_plays_what_the_vectoriser_of_stable_baselines_plays(store):
    config = plan_episodes(store, lanes=LANES, **MARKET | TERMS)
    loaded = load(store, config)
    ours, theirs = Sb3Env(make(store)), DummyVecEnv([lambda lane=lane: OneLane(loaded, config.env, lane) for lane in range(LANES)])
    ours.seed(5)
    theirs._seeds = [5] * LANES  # it would give each lane another seed; here lanes differ by their number
    assert np.array_equal(ours.reset(), theirs.reset())
    assert ours.reset_infos == theirs.reset_infos
    ends = 0
    for row in script(LANES, STEPS, 1):
        (seen, rewards, dones, infos), expected = ours.step(row), theirs.step(row)
        for mine, their in zip((seen, rewards, dones), expected, strict=False):
            assert mine.dtype == their.dtype
            assert np.array_equal(mine, their)
        for lane, (mine, their) in enumerate(zip(infos, expected[3], strict=True)):
            if dones[lane]:
                assert np.array_equal(mine.pop("terminal_observation"), their.pop("terminal_observation"))
                assert mine == their
                ends += 1
            else:
                assert mine["reward_usd_micros"] == their["reward_usd_micros"]
    assert ends > 5
    assert not np.array_equal(ours.reset(), seen)  # the seed held for one reset; without one the next episodes begin


def test_its_monitor_finds_each_episodes_return(store):
    envs = VecMonitor(Sb3Env(make(store, reward_scale=1)))
    envs.seed(5)
    envs.reset()
    found = 0
    for row in script(LANES, STEPS, 2):
        for info in envs.step(row)[3]:
            if "episode" in info:
                assert info["episode"]["r"] == pytest.approx(info["equity_usd_micros"] / 1e6 - 100_000, abs=0.05)
                found += 1
    assert found > 5


def test_its_checker_passes_on_the_single_form(store):
    check_env(MarketEnv(store, **MARKET))
    check_env(MarketEnv(store, actions="codes", **MARKET))


def test_what_a_vecenv_cannot_be_is_refused(store):
    for mode in ("NextStep", "Disabled"):
        with pytest.raises(BadInput, match=f"make the environment with SameStep, not {mode}"):
            Sb3Env(make(store, autoreset_mode=mode))
    envs = Sb3Env(make(store))
    assert envs.get_attr("num_envs", [0, 2]) == [LANES] * 2
    assert envs.env_is_wrapped(OneLane) == [False] * LANES
    with pytest.raises(BadInput, match="the lanes are one environment"):
        envs.env_method("reset")
    with pytest.raises(BadInput, match="the lanes are one environment"):
        envs.set_attr("clock", "1s")
