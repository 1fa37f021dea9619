"""Replay beside the real environment: states reassembled from rows are those that the lanes were shown, bit for bit, over every end."""

import numpy as np
import pytest
import torch

from cuda_env import state as s
from lob.layout import LANE, LANE_SLOTS
from policy.memory import Memory
from tests.test_env_windows import make, random_picks

WINDOW = 5
LANE_BLOCK = slice(LANE, LANE + len(LANE_SLOTS))


@pytest.mark.parametrize("n_step", [1, 3])
def test_reassembled_states_are_those_that_the_lanes_were_shown(n_step):
    rng, lanes, steps = np.random.default_rng(3), 16, 60
    env = make(lanes=lanes, emit=())
    memory = Memory(lanes, steps, 256, n_step, 0.6, 11)
    shown, past, rewards, ended, decided, episodes = [], [], [], [], [], []
    for _ in range(300):
        row, observation = env.row.clone(), env.observe().clone()
        history = env.history(WINDOW).clone()
        episode, clock = (env.state[field, :lanes].clone() for field in (s.EPISODE, s.CLOCK))
        picks = random_picks(rng, lanes)
        env.step(picks)
        ends = env.terminated | env.truncated
        after = env.observe()
        next_row = torch.where(ends, env.last_row, env.row)
        next_observation = torch.where(ends[:, None], env.last_observation, after)
        memory.add(
            row, observation[:, LANE_BLOCK], picks.action, env.reward_raw / 1e9, next_row, next_observation[:, LANE_BLOCK],
            env.terminated, ends, env.decided, episode, clock,
        )  # fmt: skip
        shown.append((observation, next_observation.clone()))
        past.append((history, env.history(WINDOW, next_row)))
        for values, now in ((rewards, env.reward_raw), (ended, ends), (decided, env.decided), (episodes, episode)):
            values.append(now.clone())
    seen = 0
    for _ in range(6):
        sample = memory.sample(torch.tensor(1.0), torch.tensor(0.4))
        batch = memory.observations(sample, env.assemble, env.history, WINDOW)
        for i in range(256):
            time, lane, taken = int(sample.generation[i]), int(sample.slots[i]) % lanes, int(sample.taken[i])
            last = time + taken - 1
            assert decided[time][lane]
            assert torch.equal(batch.observation[i], shown[time][0][lane])
            assert torch.equal(batch.next_observation[i], shown[last][1][lane])
            assert torch.equal(batch.history[i], past[time][0][lane]) and torch.equal(batch.next_history[i], past[last][1][lane])
            assert batch.label[i] == shown[time][1][lane, 0]
            wanted = sum(int(rewards[t][lane]) for t in range(time, last + 1)) / 1e9
            assert float(sample.returns[i]) == pytest.approx(wanted, abs=1e-6)
            inside = range(time, last)
            assert not any(bool(ended[t][lane]) for t in inside) and all(bool(decided[t + 1][lane]) for t in inside)
            assert len({int(episodes[t][lane]) for t in range(time, last + 1)}) == 1
            if taken < n_step:
                stopped = ended[last][lane] or last + 1 == 300 or not decided[last + 1][lane]
                assert stopped
            seen += bool(ended[last][lane])
    assert seen > 0
    assert not all(bool(d.all()) for d in decided), "no lane was ever drained: the case is too easy"
