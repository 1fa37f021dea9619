"""The learner: one update of the network from a batch of replay, all on the device and without a look at the host.

Double Q (van Hasselt, Guez, Silver 2016) with both value distributions: the online network picks each branch's best next choice by its
blended value, the target network says how that choice is distributed. C51 projects that, IQN regresses on it. Every branch learns from
its own choice's target, and the loss is the mean over branches (Tavakoli et al. 2018).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field

from lob.errors import CheckFailed, ForeignCheckpoint
from policy import losses, optimiser
from policy.bus import label_scale, observe_labels
from policy.controls import LearnControls
from policy.distributions import BLEND, Atoms, Quantiles, blend, distributions
from policy.heads import BRANCH_SIZES, HeadOutput
from policy.health import LearnStats
from policy.memory import Assemble, Batch, History, Memory
from policy.model import Model, ModelOutput, layout, support
from policy.replay_kernels import CAPACITY_LIMIT
from policy.weights import views

SAID_FIRST = ("observation", "next observation", "return", "label", "target", "value", "auxiliary value", "loss")
"""What is looked at for every row, in the order of its making; then the gradient of every weight."""

_HEAD_NAMES = ("heads.", "aux.")
"""Beginnings of the names of weights that belong to no trunk."""


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


class Targets(NamedTuple):
    """What a batch's chosen choices are to be, without gradient."""

    atoms: torch.Tensor  # float32[B, 4, A]: probabilities
    quantiles: torch.Tensor  # float32[B, 4, S]
    shares: torch.Tensor | None  # float32[B, 4, S]: weights of the quantiles; None: equal
    value: torch.Tensor  # float32[B, 4]: blended mean
    next_values: torch.Tensor  # float32[B, 13]: what the online network says of the next observation's choices


class Component(NamedTuple):
    """One loss, and its gradient at the network's outputs before its share of the budget. None where it has none."""

    loss: torch.Tensor  # float32[]
    logits: torch.Tensor | None = None  # float32[B, 13, A]
    quantiles: torch.Tensor | None = None  # float32[B, 13, T]
    aux: torch.Tensor | None = None  # float32[B]


class Measured(NamedTuple):
    """A forward pass with everything that the losses say of it."""

    output: ModelOutput
    components: dict[str, Component]  # c51, iqn, aux and, unless its weight is 0, cql
    targets: Targets
    errors: torch.Tensor  # float32[B]: mean over branches of |target - value|, in units of value: replay's priorities
    sigma: torch.Tensor  # float32[4]: sd of the chosen choices' values
    rows: torch.Tensor  # float32[8, B]: sums that are finite where everything named in SAID_FIRST is


class Update(NamedTuple):
    """What one update says."""

    stats: LearnStats
    errors: torch.Tensor  # float32[B]: new priorities' errors, in the order of the sample


class Fault(NamedTuple):
    """The first update that met something not finite, kept on the device until `check` looks."""

    place: torch.Tensor  # int64[6]: update (-1: none), index of what, row, slot, episode, step
    observation: torch.Tensor  # float32[128]: of the row
    next_observation: torch.Tensor  # float32[128]
    norms: torch.Tensor  # float32[P]: norm of each weight's gradient


class Learner:
    """Owns the target network, the optimiser's moments and the scale of returns; changes `model` in place.

    `lanes` is the number of the environment's lanes. `dtype` bfloat16 computes the networks' products in it. Buffers keep their
    addresses, so `update` can be captured in a CUDA graph. Raises BadInput on a support of no width.
    """

    def __init__(self, model: Model, config: LearnConfig, lanes: int, dtype: torch.dtype = torch.float32) -> None:
        device = model.flat.device
        architecture = model.architecture
        self.model, self.config, self.lanes, self.dtype, self.device = model, config, lanes, dtype, device
        self.target = copy.deepcopy(model).requires_grad_(False)
        self.support = support(architecture, device)
        self.moments = optimiser.moments(model.flat)
        self.scale = losses.return_scale(lanes, device)
        self.updates = torch.zeros((), dtype=torch.int64, device=device)
        self._projection = losses.Projection(config.batch, architecture.atoms, architecture.value_min, architecture.value_max, device)
        self._gradient = torch.zeros_like(model.flat)
        self._gradients = list(views(self._gradient, layout(architecture)).values())
        self.parameters = list(model.weights.values())
        self._fault = _no_fault(len(self.parameters), device)

    def observe_rewards(self, reward: torch.Tensor, valid: torch.Tensor, ends: torch.Tensor, gamma: torch.Tensor) -> None:
        """One step's rewards [lanes] as they are stored, for the scale of returns; once a step, where `popart` is above 0."""
        losses.observe_rewards(self.scale, reward, valid, ends, gamma)

    def update(self, batch: Batch, bus: torch.Tensor, controls: LearnControls) -> Update:
        """One update from a batch. `bus` float32[127] is the networks' second input; its label scale moves first.

        An update that meets anything not finite changes neither weights nor moments nor target, and is remembered for `check`.
        """
        with torch.no_grad():
            observe_labels(bus, batch.label, batch.sample.weights > 0)
        measured = self.measure(batch, bus, controls)
        shares = {name: getattr(controls, f"share_{name}") for name in measured.components}
        gradients = self._pull(measured.output, [(shares[name], part) for name, part in measured.components.items()], controls.balance)
        with torch.no_grad():
            torch._foreach_copy_(self._gradients, gradients)
            norms = torch.stack(torch._foreach_norm(self._gradients))
            norm = torch.linalg.vector_norm(norms)
            going = self._look(batch, measured.rows, norms)
            optimiser.apply(
                self.model.flat,
                optimiser.clipped(self._gradient, norm, self.config.clip_norm),
                self.moments,
                controls.lr,
                self.config.weight_decay,
                going,
            )
            optimiser.follow(self.target.flat, self.model.flat, controls.polyak * going)
            self.updates += 1
            return Update(self._stats(measured, shares, controls, norm), measured.errors)

    def trunk_norms(self, batch: Batch, bus: torch.Tensor, controls: LearnControls) -> dict[str, torch.Tensor]:
        """float32[] for each component: norm of its whole gradient, before its share, over all weights below the heads. Costs a backward
        pass for each: once a block of steps, not in every update. Lesson 13: IQN's must never be zero."""
        measured = self.measure(batch, bus, controls)
        below = [not name.startswith(_HEAD_NAMES) for name in self.model.weights]
        one = torch.ones((), device=self.device)
        norms = {}
        for name, part in measured.components.items():
            gradients = self._pull(measured.output, [(one, part)], torch.zeros_like(one), retain=True)
            kept = [gradient for gradient, is_below in zip(gradients, below, strict=True) if is_below]
            norms[name] = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(kept)))
        return norms

    def measure(self, batch: Batch, bus: torch.Tensor, controls: LearnControls) -> Measured:
        """The forward passes and the losses. Changes nothing but buffers."""
        sample = batch.sample
        with torch.no_grad():
            returns = self._returns(sample.returns)
            targets = self.targets(batch, returns, bus, controls)
        output = self.model(batch.observation, batch.history, bus, self.dtype)
        with torch.no_grad():
            columns = losses.chosen_columns(sample.action)
            heads = HeadOutput(*(part.detach().float() for part in output.heads))
            each = sample.weights / len(sample.weights)
            atoms = Atoms(torch.softmax(losses.of_branches(heads.logits, columns), dim=2), self.support)
            quantiles = losses.of_branches(heads.quantiles, columns)
            value = blend(atoms.mean(), Quantiles(quantiles).mean())
            label = losses.auxiliary(output.aux.detach().float(), batch.label, label_scale(bus))
            components = {
                "c51": _bellman("logits", *losses.cross_entropy(losses.of_branches(heads.logits, columns), targets.atoms), columns, each),
                "iqn": _bellman("quantiles", *losses.quantile_huber(quantiles, targets.quantiles, targets.shares), columns, each),
                "aux": Component((label[0] * each).sum(), aux=label[1] * each),
            }
            if self.config.cql:
                components["cql"] = self._conservative(heads, columns, each * self.config.cql)
            errors = (targets.value - value).abs().mean(dim=1)
            observed = (batch.observation.sum(dim=1), batch.next_observation.sum(dim=1), sample.returns, batch.label)
            losing = errors + sum(part.loss for part in components.values())
            rows = torch.stack((*observed, targets.value.sum(dim=1), value.sum(dim=1), output.aux.detach().float(), losing))
        return Measured(output, components, targets, errors, atoms.sigma().mean(dim=0), rows)

    def targets(self, batch: Batch, returns: torch.Tensor, bus: torch.Tensor, controls: LearnControls) -> Targets:
        """What the chosen choices are to be: returns[B] + discount * the next observation's value, distribution by distribution."""
        discount = batch.sample.discount
        online = self.model(batch.next_observation, batch.next_history, bus, self.dtype).heads
        lagged = self.target(batch.next_observation, batch.next_history, bus, self.dtype).heads
        of_atoms, of_quantiles = distributions(online, self.support)
        values = blend(of_atoms.mean(), of_quantiles.mean())
        shares = None
        if self.config.target == "max":
            best = losses.best_columns(values)
            atoms = torch.softmax(losses.of_branches(lagged.logits, best).float(), dim=2)
            quantiles = losses.of_branches(lagged.quantiles, best).float()
        else:
            policy = losses.sarsa_policy(values, controls.sarsa_ratio)
            atoms = losses.branch_mixture(torch.softmax(lagged.logits.float(), dim=2), policy)
            quantiles, shares = losses.quantile_mixture(lagged.quantiles.float(), policy)
        projected = self._projection(atoms, returns, discount)
        moved = returns[:, None, None] + discount[:, None, None] * quantiles
        mean = moved.mean(dim=2) if shares is None else (moved * shares).sum(dim=2)
        value = blend((projected * self.support).sum(dim=2), mean)
        return Targets(projected, moved, shares, value, values)

    def check(self, folder: Path) -> None:
        """Raise CheckFailed, naming update, tensor, lane and decision, if an update met something not finite; waits for the device.

        Writes `fault.pt` (tensors alone) into `folder`: the row's observations, every weight's gradient norm, weights and moments.
        """
        place = self._fault.place.tolist()
        if place[0] < 0:
            return
        update, what, _, slot, episode, step = place
        names = (*SAID_FIRST, *(f"gradient of {name}" for name in self.model.weights))
        path = folder / "fault.pt"
        kept = {f"fault.{name}": tensor for name, tensor in self._fault._asdict().items()} | self._kept()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            torch.save({name: tensor.cpu() for name, tensor in kept.items()}, path)
            written = f"its state is in {path}"
        except OSError as error:
            written = f"its state could not be written ({error.strerror})"
        where = f" (lane {slot % self.lanes}, episode {episode}, step {step})" if what < len(SAID_FIRST) else ""
        raise CheckFailed(
            f"update {update}: {names[what]}{where} is not finite; {written}; resume from the last checkpoint with a lower lr"
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

    def _conservative(self, heads: HeadOutput, columns: torch.Tensor, each: torch.Tensor) -> Component:
        """CQL on the blended values of all choices, its gradient sent on to both heads."""
        of_atoms, of_quantiles = distributions(heads, self.support)
        mean = of_atoms.mean()
        loss, gradient = losses.conservative(blend(mean, of_quantiles.mean()), columns)
        gradient = gradient * each.unsqueeze(1)
        count = heads.quantiles.shape[2]
        return Component(
            (loss * each).sum(),
            logits=losses.through_mean(of_atoms.probabilities, self.support, mean, BLEND * gradient),
            quantiles=((1 - BLEND) / count * gradient).unsqueeze(2).expand(-1, -1, count),
        )

    def _pull(
        self, output: ModelOutput, parts: list[tuple[torch.Tensor, Component]], balance: torch.Tensor, retain: bool = False
    ) -> tuple[torch.Tensor, ...]:
        """The weights' gradients of the sum of share * component, and of the experts' balance where there are any."""
        outputs: list[torch.Tensor] = [*output.heads, output.aux]
        pulls: list[torch.Tensor | None] = [None, None, None]
        for share, part in parts:
            for i, pull in enumerate(part[1:]):
                if pull is not None:
                    before = pulls[i]
                    pulls[i] = share * pull if before is None else torch.addcmul(before, share, pull)
        given = [torch.zeros_like(out) if pull is None else pull.to(out.dtype) for out, pull in zip(outputs, pulls, strict=True)]
        if output.gate is not None:
            outputs.append(losses.balance(output.gate))
            given.append(balance)
        return torch.autograd.grad(outputs, self.parameters, given, retain_graph=retain)

    def _look(self, batch: Batch, rows: torch.Tensor, norms: torch.Tensor) -> torch.Tensor:
        """float32[]: 1 if everything is finite, else 0; the first time that it is not is remembered."""
        bad = ~torch.isfinite(rows)
        bad_names = torch.cat((bad.any(dim=1), ~torch.isfinite(norms)))
        what = bad_names.int().argmax()  # the first of them
        row = bad.index_select(0, what.clamp(max=len(bad) - 1).reshape(1))[0].int().argmax().reshape(1)
        any_bad = bad_names.any()
        first = any_bad & (self._fault.place[0] < 0)
        sample = batch.sample
        named = [part.index_select(0, row)[0].long() for part in (sample.slots, sample.episode, sample.step)]
        found = Fault(
            torch.stack([self.updates, what, row[0], *named]),
            batch.observation.index_select(0, row)[0],
            batch.next_observation.index_select(0, row)[0],
            norms,
        )
        for kept, seen in zip(self._fault, found, strict=True):
            kept.copy_(torch.where(first, seen, kept))
        return (~any_bad).float()

    def _stats(self, measured: Measured, shares: dict[str, torch.Tensor], controls: LearnControls, norm: torch.Tensor) -> LearnStats:
        parts, gate = measured.components, measured.output.gate
        none = torch.zeros((), device=self.device)
        loss = {name: parts[name].loss if name in parts else none for name in ("c51", "iqn", "cql", "aux")}
        norms = {name: _norm(parts[name]) if name in parts else none for name in loss}
        total = sum((shares[name] * part.loss for name, part in parts.items()), none)
        of_experts: dict[str, Any] = {}
        uneven = none
        if gate is not None:
            gate = gate.detach().float()
            uneven = losses.balance(gate)
            entropy = -(gate * gate.clamp(min=torch.finfo(gate.dtype).tiny).log()).sum(dim=1)
            of_experts = {"gate_mean": gate.mean(dim=0), "gate_entropy": entropy.mean()}
        values = measured.targets.next_values
        half = (self.support[-1] - self.support[0]) / 2
        if self.config.popart:
            half = half * losses.deviation(self.scale).pow(self.config.popart)
        return LearnStats(
            v_half=half.expand(len(BRANCH_SIZES)),
            q_range=losses.value_range(values).mean(dim=0),
            q_sigma=measured.sigma,
            td_abs=measured.errors.mean(),
            q_dir_abs=values[:, : BRANCH_SIZES[0]].abs().mean(),
            loss=total + controls.balance * uneven,
            loss_c51=loss["c51"],
            loss_iqn=loss["iqn"],
            loss_cql=loss["cql"],
            loss_aux=loss["aux"],
            loss_balance=uneven,
            grad_norm=norm,
            grad_c51=norms["c51"],
            grad_iqn=norms["iqn"],
            grad_cql=norms["cql"],
            grad_aux=norms["aux"],
            **of_experts,
        )


def learn(learner: Learner, memory: Memory, assemble: Assemble, history: History, bus: torch.Tensor, controls: LearnControls) -> LearnStats:
    """Draw a batch, update the network from it, and give its decisions their new priorities."""
    sample = memory.sample(controls.gamma, controls.beta)
    batch = memory.observations(sample, assemble, history, learner.model.window)
    done = learner.update(batch, bus, controls)
    memory.update(sample, done.errors)
    return done.stats


def _bellman(head: str, loss: torch.Tensor, gradient: torch.Tensor, columns: torch.Tensor, each: torch.Tensor) -> Component:
    """A component of one head from its loss [B, 4] and gradient [B, 4, K]: mean over branches, rows weighted by each[B]."""
    weight = each / loss.shape[1]
    placed = losses.at_choices(gradient * weight[:, None, None], columns)
    return Component((loss * weight.unsqueeze(1)).sum(), **{head: placed})


def _norm(part: Component) -> torch.Tensor:
    """float32[]: norm of a component's gradient at the network's outputs."""
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(pull) for pull in part[1:] if pull is not None]))


def _no_fault(weights: int, device: torch.device) -> Fault:
    zeros: Callable[[int], torch.Tensor] = lambda n: torch.zeros(n, device=device)  # noqa: E731
    return Fault(torch.full((6,), -1, dtype=torch.int64, device=device), zeros(128), zeros(128), zeros(weights))
