"""The learner: one update of the network from a batch of replay, all on the device and without a look at the host.

Double Q (van Hasselt, Guez, Silver 2016) with both value distributions: the online network picks each branch's best next choice by its
blended value, the target network says how that choice is distributed. C51 projects that, IQN regresses on it. Every branch learns from
its own choice's target, and the loss is the mean over branches (Tavakoli et al. 2018).
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field

from lob.errors import CheckFailed, ForeignCheckpoint
from policy import loss_kernels as k
from policy import losses, optimiser
from policy.bus import label_scale, move_label_scale, sum_labels
from policy.controls import LearnControls
from policy.heads import BRANCH_SIZES, CHOICES
from policy.health import LearnStats
from policy.losses import Board, HeadLosses, said_matrix
from policy.memory import Assemble, Batch, History, Memory, Sample
from policy.model import Model, ModelOutput, fold, layout, support
from policy.replay_kernels import CAPACITY_LIMIT
from policy.shared import Shared, alone
from policy.weights import views

# Places of what is said of a batch, or of a shard's part of it, behind the gradient: sums of `loss_kernels`'s facts, whether anything was
# not finite, the experts' unevenness, their gate's entropy and shares.
_BAD, _UNEVEN, _ENTROPY, _GATE = range(k.FACTS, k.FACTS + 4)


class LearnConfig(BaseModel):
    """How values are learned. What moves while a run goes on (rate, discount, shares of the budget, ...) is `ControlConfig`'s."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    capacity: int = Field(262_144, ge=1, le=CAPACITY_LIMIT)
    """Decisions that replay holds over all lanes: two thousand steps of 128 lanes, 42 MB."""

    batch: int = Field(256, ge=1, le=65_536)
    """Decisions of one update: two of each of 128 lanes."""

    n_step: int = Field(1, ge=1, le=64)
    """Decisions whose rewards are summed before the bootstrap (F6): micro-rewards of alternating sign cancel over more."""

    alpha: float = Field(0.6, ge=0, le=1)
    """Exponent of the priorities (Schaul et al. 2016, proportional variant); 0: uniform. Fixed for a run."""

    target: Literal["max", "sarsa"] = "max"
    """Of the bootstrap: the best next choice, or expected SARSA over a Boltzmann policy no warmer than a tenth of the value range."""

    clip_norm: float = Field(10.0, gt=0)
    """Greatest norm of the whole gradient (Wang et al. 2016): above what a healthy run shows, below what one broken batch can do."""

    weight_decay: float = Field(1e-4, ge=0, lt=1)
    """AdamW's, per step over the rate: weights that nothing renews halve in some 23 million steps at a rate of 3e-4."""

    cql: float = Field(1.0, ge=0)
    """Weight of CQL's loss before its share of the budget; 0: not computed."""

    popart: float = Field(0.0, ge=0, le=1)
    """Power of the running deviation of returns that rewards are divided by; 0: none, for stored rewards are whitened already."""

    rank: float = Field(0.0, ge=0, le=1)
    """Share of its rank in the batch in each return; 0: none, since a rank forgets what a dollar is."""


class Update(NamedTuple):
    """What one update says."""

    stats: LearnStats
    errors: torch.Tensor  # float32[B]: new priorities' errors, in the order of the sample


class Learner:
    """Owns the target network, the optimiser's moments and the scale of returns; changes `model` in place.

    `lanes` is the number of the environment's lanes. `dtype` bfloat16 computes the networks' products in it. Buffers keep their
    addresses, so `update` can be captured in a CUDA graph.

    Of a run in `shards`, each has a learner with equal weights, its own lanes from `first_lane` on and its own part of the batch
    (`config.batch` decisions); all of them take the same step, along the mean of their gradients.
    """

    def __init__(
        self, model: Model, config: LearnConfig, lanes: int, dtype: torch.dtype = torch.float32, shards: int = 1, first_lane: int = 0
    ) -> None:
        device = model.flat.device
        architecture = model.architecture
        self.model, self.config, self.lanes, self.dtype, self.device = model, config, lanes, dtype, device
        self.shards, self.first_lane = shards, first_lane
        self.target = copy.deepcopy(model).requires_grad_(False)
        self.support = support(architecture, device)
        self.moments = optimiser.moments(model.flat)
        self.scale = losses.return_scale(lanes, device)
        self.updates = torch.zeros((), dtype=torch.int64, device=device)
        self.parameters = list(model.weights.values())
        weights = model.flat.numel()
        self._joint = torch.zeros(weights + _GATE + architecture.experts, device=device)
        self._gradient, self._figures = self._joint[:weights], self._joint[weights:]
        self._gradients = list(views(self._gradient, layout(architecture)).values())
        self._optimiser = optimiser.Optimiser(
            model.flat, self.target.flat, self.moments, self._gradient, config.weight_decay, config.clip_norm
        )
        columns = fold(model)[0].shape[0]
        self._losses = HeadLosses(config.batch, columns, self.support, architecture.quantiles, config.cql, config.target == "sarsa")
        # The first update that met something not finite, until `check` looks: update (-1: none), what, replay slot, its generation.
        self._fault = torch.full((4,), -1, dtype=torch.int64, device=device)

    def observe_rewards(self, reward: torch.Tensor, valid: torch.Tensor, ends: torch.Tensor, gamma: torch.Tensor) -> None:
        """One step's rewards [lanes] as they are stored, for the scale of returns; once a step, where `popart` is above 0."""
        alone(self.observe_rewards_together(reward, valid, ends, gamma))

    def observe_rewards_together(self, reward: torch.Tensor, valid: torch.Tensor, ends: torch.Tensor, gamma: torch.Tensor) -> Shared[None]:
        """`observe_rewards` of one shard's lanes."""
        sums = losses.grow_returns(self.scale, reward, valid, ends, gamma)
        yield sums
        losses.add_returns(self.scale, sums)

    def update(self, batch: Batch, bus: torch.Tensor, controls: LearnControls) -> Update:
        """One update from a batch. `bus` float32[127] is the networks' second input; its label scale moves first.

        An update that meets anything not finite changes neither weights nor moments nor target, nor does any after it, until `check`.
        """
        return alone(self.update_together(batch, bus, controls))

    def update_together(self, batch: Batch, bus: torch.Tensor, controls: LearnControls) -> Shared[Update]:
        """`update` of one shard, from its part of the batch."""
        shares = (controls.share_c51, controls.share_iqn, controls.share_cql, controls.share_aux)
        labels = sum_labels(batch.label, batch.sample.weights > 0)
        yield labels
        with torch.no_grad():
            move_label_scale(bus, labels)
        output, board = self.measure(batch, bus, controls, shares)
        gradients = self._pull(output, board, controls.balance)
        with torch.no_grad():
            torch._foreach_copy_(self._gradients, gradients)
            self._figure(output, board)
        yield self._joint
        with torch.no_grad():
            if self.shards > 1:
                self._joint.div_(self.shards)
            norms = torch.stack(torch._foreach_norm(self._gradients))
            norm = torch.linalg.vector_norm(norms)
            going = self._look(batch.sample, board.bad, norms)
            self._optimiser.step(norm, controls.lr, controls.polyak, going)
            self.updates += 1
            return Update(self._stats(torch.stack(shares), controls.balance, norm), board.errors)

    def measure(
        self, batch: Batch, bus: torch.Tensor, controls: LearnControls, shares: tuple[torch.Tensor, ...]
    ) -> tuple[ModelOutput, Board]:
        """The forward passes and the losses, with `shares` of the gradient budget. Changes nothing but buffers."""
        sample = batch.sample
        with torch.no_grad():
            online = self.model(batch.next_observation, batch.next_history, bus, self.dtype)
            lagged = self.target(batch.next_observation, batch.next_history, bus, self.dtype)
        output = self.model(batch.observation, batch.history, bus, self.dtype)
        with torch.no_grad():
            self._losses.set_dials(shares, label_scale(bus), controls.sarsa_ratio)
            next_said, next_lagged, said = (said_matrix(of.heads) for of in (online, lagged, output))
            returns = self._returns(sample.returns)
            board = self._losses(
                next_said, next_lagged, said, output.aux, sample.action, returns, sample.discount, sample.weights, batch.label,
                batch.observation, batch.next_observation,
            )  # fmt: skip
        return output, board

    def check(self, folder: Path, memory: Memory) -> None:
        """Raise CheckFailed, naming update, tensor, lane and step, if an update met something not finite; waits for the device.

        Writes `fault.pt` (tensors alone) into `folder`: the learner's state, the gradient, and the decision as replay holds it.
        """
        update, what, slot, generation = self._fault.tolist()
        if update < 0:
            return
        names = (*k.LOOKED_AT, *(f"gradient of {name}" for name in self.model.weights))
        lane = self.first_lane + slot % self.lanes
        where = f" (lane {lane}, decided at step {generation})" if what < k.NONE_BAD else ""
        path = folder / "fault.pt"
        kept = self._kept() | {"fault": self._fault, "gradient": self._gradient, "record": memory.words[slot]}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            torch.save({name: tensor.cpu() for name, tensor in kept.items()}, path)
            written = f"its state is in {path}"
        except OSError as error:
            written = f"its state could not be written ({error.strerror})"
        raise CheckFailed(
            f"update {update}: {names[what]}{where} is not finite; {written}; resume from the last checkpoint, with a lower lr"
        )

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Everything that goes on, copied to the CPU: weights, target, moments, counts, the scale of returns."""
        return {name: tensor.to("cpu", copy=True) for name, tensor in self._kept().items()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Take over a state, copying. Raises ForeignCheckpoint where names, shapes or types are not this learner's."""
        kept = self._kept()
        if set(state) != set(kept):
            odd = ", ".join(sorted(set(state) ^ set(kept)))
            raise ForeignCheckpoint(f"the learner's state and this learner differ in {odd}; resume with the build that wrote it")
        for name, tensor in kept.items():
            if state[name].shape != tensor.shape or state[name].dtype != tensor.dtype:
                raise ForeignCheckpoint(f"the learner's {name} does not fit this network; resume with the run's own configuration")
        for name, tensor in kept.items():
            tensor.copy_(state[name])
        self._fault.fill_(-1)

    def _kept(self) -> dict[str, torch.Tensor]:
        tensors = {"weights": self.model.flat, "target": self.target.flat, "updates": self.updates}
        tensors |= {f"moments.{name}": tensor for name, tensor in self.moments._asdict().items()}
        return tensors | {f"scale.{name}": tensor for name, tensor in self.scale._asdict().items()}

    def _returns(self, returns: torch.Tensor) -> torch.Tensor:
        """The returns as they are learned: divided by their scale, mixed with their ranks, each where its weight is above 0."""
        if self.config.popart:
            returns = returns / losses.deviation(self.scale).pow(self.config.popart)
        if self.config.rank:
            returns = torch.lerp(returns, losses.ranked(returns), self.config.rank)
        return returns

    def _pull(self, output: ModelOutput, board: Board, balance: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The weights' gradients: of the losses, whose gradient at the outputs the board holds, and of the experts' balance, if any."""
        outputs = [said_matrix(output.heads), output.aux]
        given = [board.pull, board.pull_aux]
        if output.gate is not None:
            outputs.append(losses.balance(output.gate))
            given.append(balance)
        return torch.autograd.grad(outputs, self.parameters, [pull.to(out.dtype) for out, pull in zip(outputs, given, strict=True)])

    def _figure(self, output: ModelOutput, board: Board) -> None:
        """Write what is said of the batch behind the gradient."""
        figures, gate = self._figures, output.gate
        torch.sum(board.facts, dim=0, out=figures[: k.FACTS])
        figures[_BAD] = ((board.bad < k.NONE_BAD).any() | (self._fault[0] >= 0)).float()
        if gate is not None:
            gate = gate.detach().float()
            figures[_UNEVEN] = losses.balance(gate)
            figures[_ENTROPY] = -(gate * gate.clamp(min=torch.finfo(gate.dtype).tiny).log()).sum(dim=1).mean()
            torch.mean(gate, dim=0, out=figures[_GATE:])

    def _look(self, sample: Sample, bad: torch.Tensor, norms: torch.Tensor) -> torch.Tensor:
        """float32[]: 1 if everything is finite, in every shard, and always was, else 0; the first time that it is not is remembered, where
        a row is at fault in its own shard."""
        of_rows, row = bad.min(dim=0)
        of_weights, weight = torch.isfinite(norms).int().min(dim=0)
        rows_well, all_rows_well = of_rows == k.NONE_BAD, self._figures[_BAD] == 0
        well = all_rows_well & (of_weights > 0)
        ours = ~rows_well | (all_rows_well & ~well)
        what = torch.where(rows_well, k.NONE_BAD + weight, of_rows)
        at = row.reshape(1)
        slot, generation = (part.index_select(0, at)[0].long() for part in (sample.slots, sample.generation))
        unseen = self._fault[0] < 0
        found = torch.stack((self.updates, what, slot, generation))
        self._fault.copy_(torch.where(unseen & ours, found, self._fault))
        return (unseen & well).float()

    def _stats(self, shares: torch.Tensor, balance: torch.Tensor, norm: torch.Tensor) -> LearnStats:
        """Of the whole batch, from the means over its shards' parts."""
        rows, sums = self.config.batch, self._figures[: k.FACTS]
        by_branch = sums[: k.SQUARE_CQL].view(k.BRANCHES, k.PER_BRANCH)
        total = by_branch.sum(dim=0)
        lost = torch.stack((total[k.LOSS_C51], total[k.LOSS_IQN], total[k.LOSS_CQL], sums[k.LOSS_AUX]))
        squares = (total[k.SQUARE_C51], total[k.SQUARE_IQN], sums[k.SQUARE_CQL : k.SQUARE_CQL + CHOICES].sum(), sums[k.SQUARE_AUX])
        # A decision weighs 1 / shards of what it does in its part, so its square 1 / shards^2: one such factor is in the mean.
        pulls = (torch.stack(squares) / self.shards).sqrt()
        loss, uneven = (shares * lost).sum(), self._figures[_UNEVEN].clone()
        of_experts: dict[str, Any] = {}
        if self.model.architecture.experts:
            of_experts = {"gate_mean": self._figures[_GATE:].clone(), "gate_entropy": self._figures[_ENTROPY].clone()}
            loss = loss + balance * uneven
        half = (self.support[-1] - self.support[0]) / 2
        if self.config.popart:
            half = half * losses.deviation(self.scale).pow(self.config.popart)
        means = by_branch / rows
        return LearnStats(
            v_half=half.expand(len(BRANCH_SIZES)),
            q_range=means[:, k.RANGE],
            q_sigma=means[:, k.SIGMA],
            td_abs=means[:, k.ERROR].mean(),
            q_dir_abs=sums[k.DIRECTION_SIZE] / rows,
            loss=loss,
            loss_c51=lost[0],
            loss_iqn=lost[1],
            loss_cql=lost[2],
            loss_aux=lost[3],
            loss_balance=uneven,
            grad_norm=norm,
            grad_c51=pulls[0],
            grad_iqn=pulls[1],
            grad_cql=pulls[2],
            grad_aux=pulls[3],
            **of_experts,
        )


def learn(learner: Learner, memory: Memory, assemble: Assemble, history: History, bus: torch.Tensor, controls: LearnControls) -> LearnStats:
    """Draw a batch, update the network from it, and give its decisions their new priorities."""
    return alone(learn_together(learner, memory, assemble, history, bus, controls))


def learn_together(
    learner: Learner, memory: Memory, assemble: Assemble, history: History, bus: torch.Tensor, controls: LearnControls
) -> Shared[LearnStats]:
    """`learn` of one shard, from its own memory."""
    sample = memory.sample(controls.gamma, controls.beta)
    batch = memory.observations(sample, assemble, history, learner.model.window)
    done = yield from learner.update_together(batch, bus, controls)
    memory.update(sample, done.errors)
    return done.stats
