"""A small network, a table of observations, and a memory of decisions over them, for tests of the learner."""

from __future__ import annotations

import torch

from lob.layout import BUS_SLOTS, LANE, LANE_SLOTS, STATE_DIM
from policy.architecture import Architecture
from policy.learner import LearnConfig, Learner
from policy.memory import Memory
from policy.model import initialise

SMALL = Architecture(hidden=(24, 16), atoms=11, quantiles=5, value_min=-3.0, value_max=3.0)
ROWS = 64
LANE_BLOCK = slice(LANE, LANE + len(LANE_SLOTS))


class World:
    """`ROWS` market rows of random features, and the assembler over them."""

    def __init__(self, seed: int = 0, device: str = "cpu") -> None:
        generator = torch.Generator().manual_seed(seed)
        self.features = torch.randn(ROWS, STATE_DIM, generator=generator).to(device)
        self.bus = torch.zeros(BUS_SLOTS, device=device)
        self.bus[117] = 1.0

    def assemble(self, rows: torch.Tensor, lane_rows: torch.Tensor) -> torch.Tensor:
        observation = self.features.index_select(0, rows).clone()
        observation[:, LANE_BLOCK] = lane_rows
        return observation

    def history(self, width: int, rows: torch.Tensor) -> torch.Tensor:
        back = torch.arange(width - 1, -1, -1, device=rows.device)
        return self.features[:, :LANE][(rows[:, None] - back).clamp(min=0)]


def make_learner(architecture: Architecture = SMALL, seed: int = 1, lanes: int = 4, dtype=torch.float32, device="cpu", **config) -> Learner:
    model = initialise(architecture, seed, device)
    learner = Learner(model, LearnConfig(**{"batch": 32, "capacity": 512} | config), lanes, dtype)
    if architecture.hidden == SMALL.hidden:
        # A target that differs from the network shows which of the two a formula reads.
        learner.target.flat.copy_(initialise(architecture, seed + 100, device).flat)
    return learner


def make_memory(learner: Learner, lanes: int = 4, steps: int = 24, seed: int = 3) -> Memory:
    config = learner.config
    return Memory(lanes, steps, config.batch, config.n_step, config.alpha, seed, str(learner.device))


def fill(memory: Memory, decisions: int = 24, seed: int = 5, scale: float = 1.0, first: int = 0) -> list[dict[str, torch.Tensor]]:
    """Random decisions of every lane, with every kind of ending; returns what was added, a dictionary of [lanes] for each step."""
    generator = torch.Generator().manual_seed(seed)
    lanes, added = memory.lanes, []
    lane_row = torch.randn(lanes, 16, generator=generator)
    episode = torch.zeros(lanes, dtype=torch.int32)
    for time in range(first, first + decisions):
        kind = torch.randint(0, 8, (lanes,), generator=generator)  # 0 terminated, 1 truncated, 2 both, else neither
        after = torch.randn(lanes, 16, generator=generator)
        row = torch.randint(0, ROWS - 1, (lanes,), generator=generator)
        step = {
            "row": row,
            "lane_row": lane_row,
            "action": torch.randint(0, 108, (lanes,), generator=generator),
            "reward": scale * torch.randn(lanes, generator=generator),
            "next_row": row + 1,
            "next_lane_row": after,
            "terminated": (kind == 0) | (kind == 2),
            "ends": kind <= 2,
            "valid": torch.ones(lanes, dtype=torch.bool),
            "episode": episode.clone(),
            "step": torch.full((lanes,), time),
        }
        memory.add(**{name: values.to(memory.device) for name, values in step.items()})
        added.append(step)
        episode += kind <= 2
        lane_row = after
    return added
