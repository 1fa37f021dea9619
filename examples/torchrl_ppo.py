"""TorchRL's collector, GAE and clipped PPO loss find the planted edge of a synthetic market, through the TorchRL form of the environment.

    make setup && .venv/bin/python -m examples.torchrl_ppo [cuda]

It learns on four sessions from random starts, and then plays six that it has not seen, greedily, one account each.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import ExplorationType, set_exploration_type
from torchrl.modules import MLP, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from examples.planted_market import MARKET, TRAIN, UNSEEN, UNSEEN_DAYS, planted_market
from lob.actions import ACTIONS
from lob.layout import STATE_DIM
from lob.units import USD_MICROS
from sim.torchrl_env import MarketTorchEnv

LANES, STEPS = 64, 32
"""Accounts side by side, and steps of each between two rounds of learning."""
ROUNDS = 10
EPOCHS, BATCH = 4, 256


def make_env(store: Path, device: str = "cpu") -> MarketTorchEnv:
    """The training sessions, with the action as one code: a categorical distribution over 108."""
    return MarketTorchEnv(LANES, store, actions="codes", device=device, **MARKET | TRAIN)


def make_agent(device: str = "cpu") -> tuple[ProbabilisticActor, ValueOperator]:
    """Actor and critic, small networks of their own."""
    widths = {"num_cells": [64], "activation_class": nn.Tanh, "device": device}
    logits = TensorDictModule(MLP(STATE_DIM, ACTIONS, **widths), ["observation"], ["logits"])
    actor = ProbabilisticActor(logits, in_keys=["logits"], distribution_class=torch.distributions.Categorical, return_log_prob=True)
    return actor, ValueOperator(MLP(STATE_DIM, 1, **widths), ["observation"])


def train(actor: ProbabilisticActor, critic: ValueOperator, env: MarketTorchEnv, rounds: int = ROUNDS) -> None:
    """Proximal policy optimisation as its paper has it (Schulman et al., 2017); a discount of 0.9 looks some ten decisions ahead."""
    loss, advantage = ClipPPOLoss(actor, critic, entropy_coeff=0.0), GAE(gamma=0.9, lmbda=0.95, value_network=critic)
    optimiser = torch.optim.Adam(loss.parameters(), lr=1e-3)
    per_round = LANES * STEPS
    for data in Collector(env, actor, frames_per_batch=per_round, total_frames=rounds * per_round, auto_register_policy_transforms=False):
        with torch.no_grad():
            advantage(data)
        flat = data.reshape(-1)
        for _ in range(EPOCHS):
            for rows in torch.randperm(per_round, device=flat.device).split(BATCH):
                terms = loss(flat[rows])
                optimiser.zero_grad()
                (terms["loss_objective"] + terms["loss_critic"]).backward()
                nn.utils.clip_grad_norm_(loss.parameters(), 0.5)
                optimiser.step()


def days_of(actor: ProbabilisticActor, store: Path, device: str = "cpu") -> np.ndarray:
    """float64[6]: dollars of each unseen session, net of fees, exact to the micro-dollar until this last division."""
    env = MarketTorchEnv(UNSEEN_DAYS, store, actions="codes", device=device, **MARKET | UNSEEN)
    with torch.no_grad(), set_exploration_type(ExplorationType.DETERMINISTIC):
        played = env.rollout(UNSEEN["step_limit"] + 1, actor, break_when_any_done=False, break_when_all_done=True)
    # Not the sum of rewards: of an account that is done early, a rollout repeats the last step until all are.
    gains = played["next", "equity_usd_micros"][:, -1, 0] - played["equity_usd_micros"][:, 0, 0]
    return gains.cpu().numpy() / USD_MICROS


def main(device: str = "cpu") -> None:
    torch.set_num_threads(1)  # the networks are small: threads would wait for one another
    store = planted_market(Path("demo/planted"))
    torch.manual_seed(1)
    actor, critic = make_agent(device)
    print(f"untrained: ${days_of(actor, store, device).mean():,.2f} a session of {UNSEEN_DAYS}")
    train(actor, critic, make_env(store, device))
    print(f"trained on {ROUNDS * LANES * STEPS:,} decisions: ${days_of(actor, store, device).mean():,.2f} a session that it has not seen")


if __name__ == "__main__":
    main(*sys.argv[1:])
