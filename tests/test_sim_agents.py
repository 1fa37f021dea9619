"""Agents of other houses learn the planted edge: Stable-Baselines3's PPO and DQN on the Gymnasium form, TorchRL's PPO on the TorchRL form.

They are those of `examples/`. The unit is the day: each unseen session is played once, greedily, with the capital. The trained agent has to
earn on them with one-sided p < 0.001 by Student's t, and, day by day, more than its own untrained network with the same p.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from examples.planted_market import MARKET, TRAIN, planted_market
from tests.test_learning import one_sided_p

REPO = Path(__file__).resolve().parent.parent
P = 0.001


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    return planted_market(tmp_path_factory.mktemp("market"))


@pytest.fixture(autouse=True)
def one_thread():
    """Small networks; and the same bits whatever the machine's cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def assert_learnt(trained: np.ndarray, untrained: np.ndarray) -> None:
    """Both USD of each unseen day."""
    assert one_sided_p(trained) < P, trained
    assert one_sided_p(trained - untrained) < P, (trained, untrained)


def test_ppo_of_stable_baselines_learns_the_planted_edge(store):
    pytest.importorskip("stable_baselines3")
    from examples.gymnasium_ppo import LANES, ROUNDS, STEPS, days_of, make_agent

    agent = make_agent(store)
    untrained = days_of(agent, store)
    agent.learn(ROUNDS * LANES * STEPS)
    assert_learnt(days_of(agent, store), untrained)


def test_ppo_of_torchrl_learns_the_planted_edge(store):
    pytest.importorskip("torchrl")
    from examples.torchrl_ppo import days_of, make_agent, make_env, train

    torch.manual_seed(1)
    actor, critic = make_agent()
    untrained = days_of(actor, store)
    train(actor, critic, make_env(store))
    assert_learnt(days_of(actor, store), untrained)


@pytest.mark.deep
def test_dqn_of_stable_baselines_learns_the_planted_edge_from_codes(store):
    stable_baselines3 = pytest.importorskip("stable_baselines3")
    from examples.gymnasium_ppo import days_of
    from sim.gymnasium_env import MarketVectorEnv
    from sim.sb3_env import Sb3Env

    agent = stable_baselines3.DQN(
        "MlpPolicy", Sb3Env(MarketVectorEnv(64, store, actions="codes", **MARKET | TRAIN)), seed=1, learning_rate=1e-3,
        buffer_size=100_000, learning_starts=5_000, batch_size=256, gamma=0.9, train_freq=1, gradient_steps=4,
        target_update_interval=500, exploration_fraction=0.3, device="cpu", policy_kwargs={"net_arch": [64]},
    )  # fmt: skip
    untrained = days_of(agent, store, actions="codes")
    agent.learn(100_000)
    assert_learnt(days_of(agent, store, actions="codes"), untrained)


@pytest.mark.deep
@pytest.mark.parametrize(("example", "needs"), [("gymnasium_ppo", "stable_baselines3"), ("torchrl_ppo", "torchrl")])
def test_an_example_runs_as_its_first_lines_say(tmp_path, example, needs):
    pytest.importorskip(needs)
    lines = (REPO / "examples" / f"{example}.py").read_text().splitlines()
    assert any(f".venv/bin/python -m examples.{example}" in line for line in lines[:5])
    done = subprocess.run(
        [sys.executable, "-m", f"examples.{example}"], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(REPO)}, capture_output=True,
        text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    untrained, trained = done.stdout.splitlines()
    assert untrained.startswith("untrained: $")
    assert float(trained.partition("$")[2].split()[0].replace(",", "")) > 0
