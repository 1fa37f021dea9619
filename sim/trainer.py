"""One training run's moving parts, and its step: the only place where environment, network, memory and learner meet.

`Trainer.step` is written to be captured in a CUDA graph: no look at the host, and whatever changes between two steps lies in a tensor that
keeps its address. On the CPU the same lines run as they stand.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from cuda_env import state as s
from cuda_env.blocks import NULL, BlockLog
from cuda_env.env import Env
from lob.actions import Phase
from lob.layout import LANE, LANE_SLOTS
from lob.philox import draw
from policy import diag_columns
from policy.bus import controls_of
from policy.diag_values import pack_floats, pack_integers
from policy.health import Controllers
from policy.lane_pass import LanePass, Step
from policy.learner import Learner, learn_together
from policy.memory import Memory
from policy.model import Actor, initialise, layout, support
from policy.protocol import constant_picks
from policy.select import Chosen, select, to_picks
from policy.shared import Shared, alone
from policy.training_state import made_by, restore
from policy.weights import fingerprint
from sim.step_times import StepTimes
from sim.tables import emitted

if TYPE_CHECKING:
    from policy.heads import HeadOutput
    from policy.select_kernel import Facts
    from policy.tensor_file import Form
    from sim.tape import Loaded
    from sim.train_config import TrainConfig

LANE_BLOCK = slice(LANE, LANE + len(LANE_SLOTS))
"""The lane's own slots of an observation: what replay keeps of it beside its row."""

SHARD_PURPOSE = 0x73686472
"""Philox purpose of the seeds of shards' replay ("shdr")."""

FEATURES_EVERY = 100
"""Steps between two looks at the network's features (learning health): they change as slowly as the EMAs beside them, and a look costs as
much as many steps. By the step's number, so that no block's length and no resume can move it."""


def replay_seed(seed: int, shard: int) -> int:
    """Seed of a shard's draws from its replay: the run's own in the first, in the others a word of Philox."""
    if shard == 0:
        return seed
    high, low, _, _ = draw(seed if seed < 2**63 else seed - 2**64, shard, 0, SHARD_PURPOSE)
    return int(high) << 32 | int(low)


class Played(NamedTuple):
    """What the memory is told of a step beside the environment's outputs."""

    row: torch.Tensor
    next_row: torch.Tensor
    next_observation: torch.Tensor
    ends: torch.Tensor
    episode: torch.Tensor
    step: torch.Tensor


class Player(ABC):
    """What plays a training's steps in blocks: a `Trainer`, or several of them in step (`sim.shards`)."""

    env: Env
    log: Any

    def __init__(self, config: TrainConfig) -> None:
        self.config, self.device, self.steps = config, torch.device(config.loop.device), 0
        self.times = StepTimes(is_noted=self.device.type == "cpu")
        self._launch: dict[bool, Callable[[], None]] = {}

    @abstractmethod
    def step(self, learns: bool) -> None:
        """Decide, play, remember, and with `learns` update once; then what the log is to hold of it."""

    @abstractmethod
    def look_at_features(self) -> None:
        """Measure how the features of the lanes' present observations spread."""

    @abstractmethod
    def tensors(self) -> dict[str, torch.Tensor]:
        """Everything that goes on, by name: environment, weights, target, moments, memory, controllers, reward moments."""

    @abstractmethod
    def load_tensors(self, tensors: Mapping[str, torch.Tensor], steps: int) -> None:
        """Take over the `tensors` of a player that had played `steps` steps. Raises BadInput, ForeignCheckpoint."""

    def run(self, steps: int) -> None:
        """Play `steps` steps. Waits for nothing on CUDA, where each step is one launch of a captured graph."""
        loop = self.config.loop
        if self.device.type == "cuda" and not self._launch:
            from sim.capture import capture

            self._launch = capture(self)
        self.times.clear()
        for _ in range(steps):
            self.times.begin()
            self.steps += 1
            learns = self.steps > loop.warmup_steps and self.steps % loop.env_steps_per_update == 0
            if self._launch:
                self._launch[learns]()
            else:
                self.step(learns)
            if self.steps % FEATURES_EVERY == 0:
                # Not captured: eager launches between two steps.
                with torch.cuda.stream(self.env.stream) if self.device.type == "cuda" else nullcontext(), torch.no_grad():
                    self.look_at_features()
                self.times.ended("learn")


class Trainer(Player):
    """Made once. `run(steps)` plays a block of steps; `log` holds their rows until they are fetched. All buffers keep their addresses.

    Training step t (from 0) decides once for every lane; after it, where `t + 1` is beyond the warm-up and a multiple of
    `env_steps_per_update`, the learner updates once.

    `shards` and `shard`: which part of a run's lanes this is (`sim.shards`); the config is then the part's own.
    """

    def __init__(self, config: TrainConfig, loaded: Loaded, shards: int = 1, shard: int = 0) -> None:
        loop, device, lanes = config.loop, config.loop.device, config.lanes
        super().__init__(config)
        self.normaliser = loaded.normaliser
        first_lane = shard * lanes
        self.env = Env(
            loaded.tape, loaded.schedule, loaded.features, config.env, lanes, Phase.TRAIN, device,
            emit=emitted(config.log.level), threads=config.execution.threads, restarts=config.seed, first_lane=first_lane,
        )  # fmt: skip
        self.model = initialise(config.model.architecture(), config.seed, device)
        self.actor = Actor(self.model, getattr(torch, loop.dtype))
        self.support = support(self.model.architecture, device)
        of_learner = config.learner
        self.learner = Learner(self.model, of_learner, lanes, getattr(torch, loop.dtype), shards, first_lane)
        steps = max(of_learner.n_step + 1, of_learner.capacity // lanes)
        seed = replay_seed(config.seed, shard)
        self.memory = Memory(lanes, steps, of_learner.batch, of_learner.n_step, of_learner.alpha, seed, device)
        self.controllers = Controllers(config.control, config.select, device)
        self.bus = self.controllers.state.bus
        self.select_controls, self.learn_controls = controls_of(self.bus)
        mean, std = (torch.from_numpy(values) for values in (loaded.normaliser.mean, loaded.normaliser.std))
        self.lane_pass = LanePass(lanes, config.reward, config.env.reward_scale_usd_micros, self.bus, mean, std)
        self.picks = constant_picks(lanes, device)
        self.lane_ids = torch.arange(first_lane, first_lane + lanes, device=device)
        self.clock = torch.zeros(1, dtype=torch.int64, device=device)
        self.observation = torch.zeros_like(self.env.observation)
        self.log = BlockLog(self.env, loop.block_steps, diag_columns.COLUMNS)
        self._fused: Callable[[HeadOutput], None] | None = None
        self.env.observe()

    # --- one step ---

    def step(self, learns: bool) -> None:
        alone(self.step_together(learns))

    def step_together(self, learns: bool) -> Shared[None]:
        """`step` of one shard."""
        with torch.no_grad():
            played = self._play()
        yield self.lane_pass.totals
        yield from self._remember(played)
        stats = None
        if learns:
            stats = yield from learn_together(self.learner, self.memory, self.env.assemble, self.env.history, self.bus, self.learn_controls)
        with torch.no_grad():
            if stats is not None:
                self.actor.refresh()
                self.controllers.observe_update(stats)
            self.controllers.update()
            self.times.ended("learn")
            self.log.put(pack_integers(self.lane_pass.totals, self.controllers.state.clock))
            self.log.put(pack_floats(self.lane_pass.state.unit, self.bus, stats))
            self.log.capture()
            self.clock += 1
            self.times.ended("log")

    def look_at_features(self) -> None:
        alone(self.look_together())

    def look_together(self) -> Shared[None]:
        """`look_at_features` of one shard."""
        env, window = self.env, self.model.window
        features, _ = self.model.body(env.observation, env.history(window) if window else None, self.bus)
        yield from self.controllers.observe_features_together(features, self.learner.shards)

    def _play(self) -> Played:
        """One decision of every lane, counted."""
        env = self.env
        self.observation.copy_(env.observation)
        row, episode, step = (env.state[field, : env.lanes].clone() for field in (s.CURSOR, s.EPISODE, s.CLOCK))
        window = self.model.window
        heads = self.actor(self.observation, env.history(window) if window else None, self.bus)
        chosen = self._pick(heads)
        self.times.ended("policy")
        env.step(self.picks)
        self.times.ended("physics")
        env.observe()
        self.times.ended("observe")
        ends = env.terminated | env.truncated
        next_observation = torch.where(ends[:, None], env.last_observation, env.observation)
        next_row = torch.where(ends, env.last_row, env.row)
        moved = Step(env.reward_raw, self.observation, next_observation, env.decided, env.terminated, ends)
        self.lane_pass.count(moved, self.picks, chosen)
        return Played(row, next_row, next_observation, ends, episode, step)

    def _remember(self, played: Played) -> Shared[None]:
        """Take in what was played, once it is counted over all lanes."""
        env, ends = self.env, played.ends
        with torch.no_grad():
            earned = self.lane_pass.whiten()
            self.memory.add(
                played.row, self.observation[:, LANE_BLOCK], self.picks.action, earned.whitened, played.next_row,
                played.next_observation[:, LANE_BLOCK], env.terminated, ends, env.decided, played.episode, played.step,
            )  # fmt: skip
        if self.config.learner.popart:
            yield from self.learner.observe_rewards_together(earned.whitened, env.decided, ends, self.learn_controls.gamma)
        with torch.no_grad():
            self.controllers.observe_step(self.lane_pass.counts)

    def _pick(self, heads: HeadOutput) -> Chosen | Facts:
        """The picks of what the heads say, in `picks`; on the CPU in torch, on the GPU in one kernel."""
        config = self.config
        self.picks.health_ppm.copy_(self.controllers.health_ppm.expand_as(self.picks.health_ppm))
        if self.device.type == "cuda":
            if self._fused is None:
                from policy.select_kernel import facts, fused_select

                self._facts = facts(config.lanes, config.loop.device)
                self._fused = fused_select(
                    heads.logits.shape[2], heads.quantiles.shape[2], heads.logits.dtype, self.support, self.select_controls,
                    config.select.selector, True, config.seed, self.lane_ids, self.clock, self.picks, self._facts, self.env.stream,
                )  # fmt: skip
            self._fused(heads)
            return self._facts
        chosen = select(
            heads, self.support, self.select_controls, config.select.selector, True, config.seed, self.lane_ids, self.clock
        )  # fmt: skip
        to_picks(chosen, self.controllers.health_ppm, self.picks)
        return chosen

    def close(self) -> None:
        """The end of training: every lane closes where it stands, on a row of its own that nothing is learnt from."""
        nothing = torch.full((len(diag_columns.INTEGERS),), NULL, dtype=torch.int64, device=self.device)
        nothing[: len(diag_columns.GATE_INPUTS)] = 0  # sums over lanes that decided: there are none
        self.log.put(nothing)
        self.env.close_all()
        self.log.capture()
        self.steps += 1

    def check(self, folder: Path) -> None:
        """Raise CheckFailed if an update met something not finite; what is known of it is written into `folder`."""
        self.learner.check(folder, self.memory)

    # --- what a resumed run needs ---

    def tensors(self) -> dict[str, torch.Tensor]:
        of_memory = {name: tensor for name, tensor in self.memory.state_dict().items() if name != "settings"}
        parts: dict[str, Mapping[str, torch.Tensor]] = {
            "env": self.env.state_dict(),
            "learner": self.learner.state_dict(),
            "memory": of_memory,
            "control": self.controllers.state._asdict(),
            "reward": self.lane_pass.state._asdict(),
            "trainer": {"clock": self.clock},
        }
        return {f"{part}.{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}

    def forms(self) -> dict[str, Form]:
        """Shape and type of each of `tensors`."""
        return {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in self.tensors().items()}

    def made_by(self) -> dict[str, str]:
        """What lays `tensors` out, beside what the run's identity names."""
        settings = json.dumps(self.memory.state_dict()["settings"], sort_keys=True)
        return made_by() | {"network": fingerprint(layout(self.model.architecture)), "memory": settings}

    def load_tensors(self, tensors: Mapping[str, torch.Tensor], steps: int) -> None:
        def of(part: str) -> dict[str, Any]:
            return {name.removeprefix(f"{part}."): tensor for name, tensor in tensors.items() if name.startswith(f"{part}.")}

        self.env.load_state_dict(of("env"))
        self.learner.load_state_dict(of("learner"))
        self.memory.load_state_dict(of("memory") | {"settings": self.memory.state_dict()["settings"]})
        restore(self.controllers.state._asdict(), of("control"))
        restore(self.lane_pass.state._asdict(), of("reward"))
        restore({"clock": self.clock}, of("trainer"))
        with torch.no_grad():
            self.actor.refresh()
            self.controllers.update()
        self.steps = steps
