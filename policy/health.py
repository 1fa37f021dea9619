"""Learning health and what it drives: from the figures of a step and of an update to the controls of the next, all on the device.

`Controllers` acts in place on the bus and without a look at the host: `observe_step` takes in what an environment step's lanes picked,
`observe_update` what an update of the learner measured, `update` computes health and every control from the bus alone. Nothing is a
schedule but exploration's cosine: controls are outputs of what was measured (I7). The arithmetic is in `policy.health_kernels`.

No control can lock itself shut (lessons 11-13): each stays within a band of its base value whose lower end is above zero, whatever health
says, and no component of health is multiplied by a control. What a policy that stopped trading needs to try again grows the less it tries
(`policy.explore`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator

from policy import health_kernels as k
from policy.bus import control_state
from policy.explore import SelectConfig
from policy.launch import Launcher
from policy.shared import Shared, alone
from policy.signals import INDEX

FEWEST_ROWS = 16
"""Rows from which a covariance is worth an eigenvalue: of one row there is none, of a few the first one is always nearly all."""


class ControlConfig(BaseModel):
    """Base value of every controlled quantity, and how far its controller moves it: an amplitude of 0 holds it at its base."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    lr: float = Field(3e-4, gt=0, le=1)
    """Adam's customary step for networks of this size."""
    lr_amplitude: float = Field(0.5, ge=0, lt=1)
    """base * (1 - a * (1 - grad_stability)): half the step while the gradient is erratic."""

    gamma: float = Field(0.99, gt=0, lt=1)
    """A horizon of a hundred decisions."""
    gamma_amplitude: float = Field(0.0, ge=0, le=0.009)
    """base + a * (2 * health - 1), a narrow band that stays below 1. 0: a discount that moves makes values of different times differ."""

    polyak: float = Field(0.01, gt=0, le=1)
    """F6: the target lags by a hundred updates."""
    polyak_amplitude: float = Field(0.5, ge=0, lt=1)
    """base * (1 - a * (1 - health)): the target holds still while the online network is unwell."""

    sarsa_ratio: float = Field(0.1, gt=0, le=0.1)
    """F14, at most 0.1: at a temperature of the whole range the greedy policy stays flat (measured)."""
    sarsa_amplitude: float = Field(0.5, ge=0, lt=1)
    """base * (1 - a * health): nearer the maximum the better the values are known."""

    beta: float = Field(0.4, ge=0, le=1)
    """Schaul et al. 2016: where the correction of prioritised sampling starts."""
    beta_amplitude: float = Field(1.0, ge=0, le=1)
    """base + a * (1 - base) * health: to the full correction, which matters most near convergence."""

    balance: float = Field(0.01, ge=0, le=1)
    """G6: weight of the experts' load-balance loss."""
    balance_amplitude: float = Field(1.0, ge=0, le=10)
    """base * (1 + a * (1 - expert_use)): twice the weight when one expert does everything."""

    share_cql: float = Field(0.02, ge=0, lt=1)
    """CQL's share of the gradient budget: little, for exploration shows the replay every choice; more where it does not."""
    cql_amplitude: float = Field(0.5, ge=0, lt=1)
    """base * (1 - a * (1 - health)): while unwell, the Bellman errors have the first call on the budget."""

    share_aux: float = Field(0.05, ge=0, lt=1)
    """The auxiliary head's share: it shapes features and must not steer them."""
    aux_amplitude: float = Field(0.5, ge=0, lt=1)
    """base * (1 - a * health): its help with features matters most while values say little."""

    iqn_ratio: float = Field(0.6, gt=0, lt=1)
    """F8: IQN's part of what is left for C51 and IQN."""
    iqn_amplitude: float = Field(0.25, ge=0, lt=1)
    """base * (1 - a * (1 - grad_stability)): C51's gradient is bounded: it leads while the gradient is erratic. IQN never closes (F7)."""

    target_step: int = Field(500, ge=1, lt=2**31)
    """Step at which the attempt rate becomes the target (I10): five memories of its EMA."""

    tau_reference: float = Field(1.0, ge=0, le=10)
    """E8: the direction's temperature floor over q_dir_abs_ref; 0: the floor of `select` alone."""

    @model_validator(mode="after")
    def _in_bounds(self) -> ControlConfig:
        if self.gamma + self.gamma_amplitude >= 1:
            raise ValueError(f"gamma {self.gamma} with an amplitude of {self.gamma_amplitude} reaches 1; lower one of them")
        if self.gamma - self.gamma_amplitude <= 0:
            raise ValueError(f"gamma {self.gamma} with an amplitude of {self.gamma_amplitude} reaches 0; lower the amplitude")
        if self.share_cql + self.share_aux >= 1:
            raise ValueError(f"share_cql {self.share_cql} and share_aux {self.share_aux} leave nothing for the Bellman losses; lower them")
        return self


class Response(NamedTuple):
    """A control as offset + slope * (the slot that drives it)."""

    control: str
    drive: str
    offset: float
    slope: float


def responses(config: ControlConfig) -> tuple[Response, ...]:
    """Every control that follows one slot, in the order of the bus from `lr` on."""

    def with_(control: str, drive: str, base: float, amplitude: float) -> Response:
        """base * (1 - amplitude * (1 - drive)): full when the drive is."""
        return Response(control, drive, base * (1 - amplitude), base * amplitude)

    def against(control: str, drive: str, base: float, amplitude: float) -> Response:
        """base * (1 - amplitude * drive): full when the drive is not."""
        return Response(control, drive, base, -base * amplitude)

    health = "learning_health"
    return (
        with_("lr", "health.grad_stability", config.lr, config.lr_amplitude),
        Response("gamma", health, config.gamma - config.gamma_amplitude, 2 * config.gamma_amplitude),
        with_("polyak", health, config.polyak, config.polyak_amplitude),
        against("sarsa_ratio", health, config.sarsa_ratio, config.sarsa_amplitude),
        Response(
            "balance", "health.expert_use", config.balance * (1 + config.balance_amplitude), -config.balance * config.balance_amplitude
        ),
        Response("beta", health, config.beta, config.beta_amplitude * (1 - config.beta)),
        with_("share_cql", health, config.share_cql, config.cql_amplitude),
        against("share_aux", health, config.share_aux, config.aux_amplitude),
        with_("iqn_ratio", "health.grad_stability", config.iqn_ratio, config.iqn_amplitude),
    )


class LearnStats(NamedTuple):
    """What an update of the learner measured, float32 on the device; what is not finite leaves its slot as it was.

    `gate_mean` and `gate_entropy` are None for a network without experts: their slots then keep their reset values, which count as healthy.
    """

    v_half: torch.Tensor  # [4]: half width of the support of each branch, in units of the stored reward
    q_range: torch.Tensor  # [4]: best less worst expected value of a state, mean over the batch
    q_sigma: torch.Tensor  # [4]: sd of the picked choice's value, mean over the batch
    td_abs: torch.Tensor  # []: absolute TD error of expected values, mean over batch and branches
    q_dir_abs: torch.Tensor  # []: absolute expected value of a direction, mean over batch and directions
    loss: torch.Tensor  # []
    loss_c51: torch.Tensor  # []: before its share, like the next four
    loss_iqn: torch.Tensor
    loss_cql: torch.Tensor
    loss_aux: torch.Tensor
    loss_balance: torch.Tensor
    grad_norm: torch.Tensor  # []: of the whole gradient, before clipping
    grad_c51: torch.Tensor  # []: norm of a component's gradient, before its share
    grad_iqn: torch.Tensor
    grad_cql: torch.Tensor
    grad_aux: torch.Tensor
    gate_mean: torch.Tensor | None = None  # [8]: gate probabilities, mean over the batch
    gate_entropy: torch.Tensor | None = None  # []: entropy of the gate in nats, mean over the batch


class Controllers:
    """The controllers of a run: `config` says how they respond, `select` how exploration goes. `state` is all that they remember,
    `health_ppm` int32[1] is learning health as physics takes it.

    The controls (`policy.bus.controls_of`) stand at what they are before anything was measured. Each call is one launch of one thread, or
    of a few, and waits for nothing. After a state was copied back or reset, `update` makes everything follow it.
    """

    def __init__(self, config: ControlConfig, select: SelectConfig, device: str | torch.device = "cpu") -> None:
        rows = responses(config)
        if [INDEX[row.control] for row in rows] != list(range(k.LR, k.LR + k.RESPONSES)):
            raise ValueError("responses do not lie in the order of the bus")
        device = torch.device(device)
        values = [row.offset for row in rows] + [row.slope for row in rows]
        values += [select.epsilon_start, select.epsilon_end, select.epsilon_steps, select.bonus, select.tau_floor]
        values += [config.tau_reference, config.target_step]
        self.state = control_state(device)
        self.health_ppm = torch.zeros(1, dtype=torch.int32, device=device)
        self._params = torch.tensor(values, dtype=torch.float64, device=device)
        self._drives = torch.tensor([INDEX[row.drive] for row in rows], device=device)
        self._counts = torch.zeros(k.COUNTS, dtype=torch.int64, device=device)
        self._measured = torch.zeros(k.MEASURED, device=device)
        self._has_gate = torch.zeros(1, dtype=torch.int64, device=device)
        bus, clock, picks = self.state
        self._step = _bound("observe_step", self._counts, bus, clock, picks, self._params)
        self._update = _bound("observe_update", self._measured, self._has_gate, bus, clock)
        self._settle = _bound("update_controls", bus, clock, picks, self._params, self._drives, self.health_ppm)
        self.update()

    def observe_step(self, counts: torch.Tensor) -> None:
        """Take in one environment step: int64[17], lanes that decided, of them flat ones, of those the ones that picked long or short,
        lanes that explored, lanes per choice (`policy.lane_pass`). A share of nothing leaves its slot as it was."""
        self._counts.copy_(counts)
        self._step()

    def observe_update(self, stats: LearnStats) -> None:
        """Take in what one update of the learner measured; what is not finite leaves its slot as it was."""
        size = (stats.td_abs, stats.q_dir_abs)
        losses = (stats.loss, stats.loss_c51, stats.loss_iqn, stats.loss_cql, stats.loss_aux, stats.loss_balance)
        norms = (stats.grad_norm, stats.grad_c51, stats.grad_iqn, stats.grad_cql, stats.grad_aux)
        parts = [stats.v_half, stats.q_range, stats.q_sigma, *(value.reshape(1) for value in (*size, *losses, *norms))]
        has_gate = stats.gate_mean is not None and stats.gate_entropy is not None
        if stats.gate_mean is not None and stats.gate_entropy is not None:
            parts += [stats.gate_mean, stats.gate_entropy.reshape(1)]
        torch.cat(parts, out=self._measured[: k.MEASURED if has_gate else k.GATE])
        self._has_gate.fill_(int(has_gate))
        self._update()

    def observe_features(self, features: torch.Tensor) -> None:
        """Write the spectral gap of features [batch, width]: now and then, since it costs more than the rest together. A batch of fewer
        than `FEWEST_ROWS` says nothing of how features spread, and changes nothing."""
        alone(self.observe_features_together(features, 1))

    def observe_features_together(self, features: torch.Tensor, shards: int) -> Shared[None]:
        """`observe_features` of one of so many shards: the mean of their gaps."""
        if len(features) >= FEWEST_ROWS:
            gap = spectral_gap(features).reshape(1)
            yield gap
            self.state.bus[INDEX["spectral_gap"]] = gap[0] / shards

    def update(self) -> None:
        """Health, then every control, then `health_ppm`, from the state alone."""
        self._settle()


def _bound(name: str, *tensors: torch.Tensor) -> Callable[[], None]:
    """A call of a kernel over these tensors, on their device."""
    if tensors[0].device.type == "cpu":
        kernel, arrays = getattr(k, name), [tensor.numpy() for tensor in tensors]
        return lambda: kernel(*arrays)
    from policy import health_cuda

    return Launcher(tensors[0].device).bind(getattr(health_cuda, name), 1, 1, *tensors)


def spectral_gap(features: torch.Tensor, rounds: int = 8) -> torch.Tensor:
    """float32[]: 1 - second over first eigenvalue of the covariance of features[batch, width], in [0, 1]; 1 where they do not vary.

    Subspace iteration of two vectors (Golub and Van Loan, section 8.2), from two fixed starts, `rounds` times: when the eigenvalues lie
    so close that eight rounds do not part them, the gap is near 0 either way. Equal inputs give equal results.
    """
    centred = (features - features.mean(dim=0)).float()
    width = centred.shape[1]
    place = torch.arange(width, dtype=torch.float32, device=centred.device)
    # Cosines of two frequencies: no eigenvector of a real network is orthogonal to both.
    one, two = torch.cos(place + 0.5), torch.cos(2.3 * place + 1.0)
    first = second = torch.zeros((), device=centred.device)
    for _ in range(rounds):
        one = _unit(one)
        for _ in range(2):  # once leaves what rounding put along the first, when there is no second
            two = _unit(two - (two @ one) * one)
        one, two = centred.T @ (centred @ one), centred.T @ (centred @ two)
        first, second = one.norm(), two.norm()
    large, small = torch.maximum(first, second), torch.minimum(first, second)
    return torch.where(large > 0, 1 - small / large, 1.0).clamp(0, 1)


def _unit(vector: torch.Tensor) -> torch.Tensor:
    length = vector.norm()
    return torch.where(length > 0, vector / length, 0.0)
