"""The slow twin of an account among many: an environment of its own for each lane and each episode, made new, played by Gymnasium's rules.

No restart, no reset, no mask: an episode is a new `Env` of one lane, put on a row that plain Python draws.
"""

from typing import Any

import gymnasium
import numpy as np
import torch

from cuda_env import state as s
from cuda_env.env import Env
from lob.actions import Phase
from lob.philox import draw
from lob.picks import Picks
from sim.gymnasium_env import action_space, observation_space
from sim.tape import Loaded

START_PURPOSE = 0x73747274
FULL = 1_000_000


def start_of(loaded: Loaded, seed: int, lane: int, episode: int) -> int:
    """docs/step.md, "Windows": entry floor(w n / 2^32) of the rows that are decided on, w the first word of (lane, episode, purpose)."""
    rows = [row for first, drain, _ in loaded.schedule.windows for row in range(first, drain)]
    word = draw.py_func(seed, lane, episode, START_PURPOSE)[0]
    return rows[word * len(rows) // 2**32]


class OneLane(gymnasium.Env):
    """Account `lane`; its episodes count from the last seed."""

    def __init__(self, loaded: Loaded, env_config: Any, lane: int) -> None:
        self.observation_space, self.action_space = observation_space(), action_space("branches")
        self.loaded, self.env_config, self.lane = loaded, env_config, lane

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.begun_with, self.episode = (self.begun_with, self.episode + 1) if seed is None else (seed, 0)
        tape, schedule, features = self.loaded.tape, self.loaded.schedule, self.loaded.features
        self.env = Env(tape, schedule, features, self.env_config, 1, Phase.TRAIN, emit=(), diag=False)
        self.env.state[s.CURSOR, 0] = start_of(self.loaded, self.begun_with, self.lane, self.episode)
        return self.env.observe().numpy()[0].copy(), {"equity_usd_micros": int(self.env.state[s.EQUITY, 0])}

    def step(self, action):
        direction, magnitude, order, urgency = (int(part) for part in action)
        before = int(self.env.state[s.EQUITY, 0])
        code = direction * 27 + magnitude * 9 + order * 3 + urgency
        self.env.step(Picks(*(torch.tensor([value], dtype=torch.int32) for value in (code, FULL, FULL, FULL))))
        earned = int(self.env.state[s.EQUITY, 0]) - before
        info = {
            "reward_usd_micros": earned,
            "equity_usd_micros": before + earned,
            "decided": bool(self.env.decided[0]),
            "end_reason": int(self.env.end_reason[0]),
        }
        seen = self.env.observe().numpy()[0].copy()
        return seen, earned / self.env_config.reward_scale_usd_micros, bool(self.env.terminated[0]), bool(self.env.truncated[0]), info


def script(lanes: int, steps: int, seed: int) -> np.ndarray:
    """int64[steps, lanes, 4]: drawn actions."""
    return np.random.default_rng(seed).integers(0, [4, 3, 3, 3], (steps, lanes, 4))
