"""A training run's lanes in shards, and the shards in processes.

The shard is a unit of the configuration (`loop.shards`), not of the machine: shard s of S plays lanes [sL/S, (s+1)L/S) with a memory of its
own and learns from its own part of the batch, batch/S decisions; all of them take one step along the mean of their gradients, summed in the
order of shards. P processes host S/P of them each. So every product of matrices has the same shapes and every sum the same order however
the shards are spread, and a run's bytes do not depend on P.

Every shard holds the whole network and its own copy of all that is decided for all of them; equal inputs keep the copies equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cuda_env.diag import DIAG, MASK63
from lob.errors import BadInput, CheckFailed
from lob.units import counted
from policy.shared import Shared
from sim.peers import Peers, joined, processes
from sim.trainer import Player, Trainer

if TYPE_CHECKING:
    from cuda_env.blocks import Captured
    from policy.tensor_file import Form
    from sim.tape import Loaded
    from sim.train_config import TrainConfig

Columns = dict[str, dict[str, np.ndarray]]
"""{table: columns}."""

ADDED = tuple(column.name for column in DIAG if column.dtype == "int64" and column.unit != "ns")
"""Columns of `diag` that the environment sums over its lanes. The policy's are of all lanes in every shard, times those of lane 0."""

CHECKSUM = "checksum.accounts"


def check_shards(shards: int, processes: int) -> None:
    """Raise BadInput where so many processes cannot share so many shards evenly."""
    if shards % processes:
        raise BadInput(
            f"{processes} processes cannot host {counted(shards, 'shard')} evenly: start as many as divide loop.shards,"
            f" or begin a run with loop.shards={processes}"
        )


@contextmanager
def processes_of(config: TrainConfig) -> Iterator[Peers]:
    """The processes that share a run's shards, joined for the block. Raises BadInput, PeerLost."""
    check_shards(config.loop.shards, processes())
    with joined(config.loop.device) as peers:
        yield peers


def part_of(config: TrainConfig, shards: int) -> TrainConfig:
    """The config of one shard: its share of lanes, batch and replay."""
    learner = config.learner
    each = config.lanes // shards
    own = {"batch": learner.batch // shards, "capacity": max(1, learner.capacity // config.lanes * each)}
    return config.model_copy(update={"lanes": each, "learner": learner.model_copy(update=own)})


def merge(parts: Sequence[Columns]) -> Columns:
    """Log rows of one block from its shards', in the order of shards."""
    if len(parts) == 1:
        return parts[0]
    merged: dict[str, Any] = {}
    for table, first in parts[0].items():
        columns = {name: [part[table][name] for part in parts] for name in first}
        if table == "diag":
            merged[table] = first | {name: np.add.reduce(columns[name]) for name in ADDED}
            merged[table][CHECKSUM] &= MASK63
            continue
        rows = {name: np.ma.concatenate(of) if np.ma.isMaskedArray(of[0]) else np.concatenate(of) for name, of in columns.items()}
        order = np.argsort(rows["step"], kind="stable")  # lanes ascend from shard to shard, so within a step the key's order stands
        merged[table] = {name: of[order] for name, of in rows.items()}
    return merged


class _Logs:
    """The logs of the shards that a process hosts."""

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self._trainers = trainers

    def fetch(self) -> list[Captured]:
        return [trainer.log.fetch() for trainer in self._trainers]

    def columns(self, captured: Sequence[Captured]) -> Columns:
        return merge([trainer.log.columns(of) for trainer, of in zip(self._trainers, captured, strict=True)])


class Hosted(Player):
    """The shards of this process, playing in step with each other and with those of the others."""

    def __init__(self, config: TrainConfig, loaded: Loaded, peers: Peers) -> None:
        shards = config.loop.shards
        each = shards // peers.size
        own, self.first = part_of(config, shards), peers.rank * each
        super().__init__(config)
        self.peers = peers
        self.trainers = [Trainer(own, loaded, shards, self.first + i) for i in range(each)]
        for trainer in self.trainers:
            trainer.times = self.times  # they play by turns: what one waits for another is doing
        self.env, self.log = self.trainers[0].env, _Logs(self.trainers)

    def step(self, learns: bool) -> None:
        self._together([trainer.step_together(learns) for trainer in self.trainers])

    def look_at_features(self) -> None:
        self._together([trainer.look_together() for trainer in self.trainers])

    def _together(self, works: Sequence[Shared[None]]) -> None:
        """Do the work of all shards: wherever one stops for a sum over all of them, all do."""
        for parts in zip(*works, strict=True):
            with torch.no_grad():
                self.peers.add(parts)

    def close(self, _: Any = None) -> None:
        for trainer in self.trainers:
            trainer.close()
        self.steps += 1

    def fetch(self, _: Any = None) -> Columns:
        """Rows of the block."""
        return self.log.columns(self.log.fetch())

    def check(self, folder: Path) -> str | None:
        """What the first shard that met something not finite says of it."""
        for trainer in self.trainers:
            try:
                trainer.check(folder)
            except CheckFailed as fault:
                return str(fault)
        return None

    def tensors(self, _: Any = None) -> dict[str, torch.Tensor]:
        """Everything that goes on, by shard."""
        return {
            f"shard{self.first + i}.{name}": tensor for i, trainer in enumerate(self.trainers) for name, tensor in trainer.tensors().items()
        }

    def on_cpu(self, _: Any = None) -> dict[str, torch.Tensor]:
        """`tensors`, ready to be sent."""
        return {name: tensor.cpu() for name, tensor in self.tensors().items()}

    def load_tensors(self, tensors: Mapping[str, torch.Tensor], steps: int) -> None:
        """Take over the state of this process's shards among `tensors`."""
        for i, trainer in enumerate(self.trainers):
            beginning = f"shard{self.first + i}."
            own = {name.removeprefix(beginning): tensor for name, tensor in tensors.items() if name.startswith(beginning)}
            trainer.load_tensors(own, steps)
        self.steps = steps

    def follow(self) -> None:
        """Do what the leader asks until it says that the run has ended."""
        while (asked := self.peers.tell()) is not None:
            work, argument = asked
            if work == "run":
                self.run(argument)
            elif work == "close":
                self.close()
            elif work == "load_tensors":
                self.load_tensors(self.peers.receive(0), argument)
            else:
                self.peers.send(0, getattr(self, work)(argument))


class _Merged:
    """What the training loop knows as a trainer's log: that of all shards."""

    def __init__(self, sharded: Sharded) -> None:
        self._sharded = sharded

    def fetch(self) -> list[Columns]:
        return self._sharded.ask("fetch")

    def columns(self, captured: list[Columns]) -> Columns:
        return merge(captured)

    def drain(self) -> Columns:
        return self.columns(self.fetch())


class Sharded:
    """What the training loop knows as its trainer: all shards of a run, wherever they are. For the leader."""

    def __init__(self, hosted: Hosted) -> None:
        self.hosted, self.peers = hosted, hosted.peers
        first = hosted.trainers[0]
        self.model, self.bus, self.controllers, self.normaliser = first.model, first.bus, first.controllers, first.normaliser
        self.log: Any = _Merged(self)
        self.times = hosted.times

    @property
    def steps(self) -> int:
        return self.hosted.steps

    def run(self, steps: int) -> None:
        self.peers.tell(("run", steps))
        self.hosted.run(steps)

    def close(self) -> None:
        self.peers.tell(("close", None))
        self.hosted.close()

    def check(self, folder: Path) -> None:
        if faults := [fault for fault in self.ask("check", folder) if fault is not None]:
            raise CheckFailed(faults[0])

    def tensors(self) -> dict[str, torch.Tensor]:
        return {name: tensor for part in self.ask("on_cpu") for name, tensor in part.items()}

    def forms(self) -> dict[str, Form]:
        """Of all shards; they are alike."""
        forms = self.hosted.trainers[0].forms()
        return {f"shard{shard}.{name}": form for shard in range(self.hosted.config.loop.shards) for name, form in forms.items()}

    def made_by(self) -> dict[str, str]:
        return self.hosted.trainers[0].made_by()

    def load_tensors(self, tensors: Mapping[str, torch.Tensor], steps: int) -> None:
        self.peers.tell(("load_tensors", steps))
        each = len(self.hosted.trainers)
        for other in range(1, self.peers.size):
            beginnings = tuple(f"shard{other * each + i}." for i in range(each))
            self.peers.send(other, {name: tensor for name, tensor in tensors.items() if name.startswith(beginnings)})
        self.hosted.load_tensors(tensors, steps)

    def ask(self, work: str, argument: Any = None) -> list[Any]:
        """What each process answers, in the order of shards. The others' answers come first: a process that fails is heard of before this
        one waits for a device that waits for it."""
        self.peers.tell((work, argument))
        others = [self.peers.receive(other) for other in range(1, self.peers.size)]
        return [getattr(self.hosted, work)(argument), *others]
