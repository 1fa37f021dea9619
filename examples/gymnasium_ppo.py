"""Stable-Baselines3's PPO finds the planted edge of a synthetic market, through the Gymnasium form of the environment.

    make setup && .venv/bin/python -m examples.gymnasium_ppo

It learns on four sessions from random starts, and then plays six that it has not seen, greedily, one account each.
"""

from pathlib import Path

import numpy as np
import torch
from stable_baselines3 import PPO

from examples.planted_market import MARKET, TRAIN, UNSEEN, UNSEEN_DAYS, planted_market
from lob.units import USD_MICROS
from sim.gymnasium_env import MarketVectorEnv
from sim.sb3_env import Sb3Env

LANES, STEPS = 64, 32
"""Accounts side by side, and steps of each between two rounds of learning."""
ROUNDS = 10


def make_agent(store: Path, seed: int = 1) -> PPO:
    """PPO with a small network; its discount of 0.9 looks some ten decisions ahead, which is as far as the imbalance leads."""
    envs = Sb3Env(MarketVectorEnv(LANES, store, **MARKET | TRAIN))
    return PPO(
        "MlpPolicy", envs, seed=seed, n_steps=STEPS, batch_size=256, n_epochs=4, learning_rate=1e-3, gamma=0.9, device="cpu",
        policy_kwargs={"net_arch": [64]},
    )  # fmt: skip


def days_of(agent, store: Path, **options) -> np.ndarray:
    """float64[6]: dollars of each unseen session, net of fees, exact to the micro-dollar until this last division."""
    envs = MarketVectorEnv(UNSEEN_DAYS, store, **MARKET | UNSEEN | options)
    seen, _ = envs.reset()
    earned, over = np.zeros(UNSEEN_DAYS, np.int64), np.zeros(UNSEEN_DAYS, bool)
    while not over.all():
        picks, _ = agent.predict(seen, deterministic=True)
        seen, _, terminated, truncated, infos = envs.step(picks)
        earned += np.where(over, 0, infos["reward_usd_micros"])
        over |= terminated | truncated
    return earned / USD_MICROS


def main() -> None:
    torch.set_num_threads(1)  # the networks are small: threads would wait for one another
    store = planted_market(Path("demo/planted"))
    agent = make_agent(store)
    print(f"untrained: ${days_of(agent, store).mean():,.2f} a session of {UNSEEN_DAYS}")
    agent.learn(ROUNDS * LANES * STEPS)
    print(f"trained on {ROUNDS * LANES * STEPS:,} decisions: ${days_of(agent, store).mean():,.2f} a session that it has not seen")


if __name__ == "__main__":
    main()
