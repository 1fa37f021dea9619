"""Learning health and what it drives: from the figures of a step and of an update to the controls of the next, all on the device.

Three functions, each in place on the bus and without a look at the host: `observe_step` takes in what an environment step's lanes picked,
`observe_update` what an update of the learner measured, `update_controls` computes health and every control from the bus alone. Nothing
is a schedule but exploration's cosine: controls are outputs of what was measured (I7).

No control can lock itself shut (lessons 11-13): each stays within a band of its base value whose lower end is above zero, whatever health
says, and no component of health is multiplied by a control. What a policy that stopped trading needs to try again grows the less it tries
(`policy.explore`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator

from lob.layout import OFFSET
from lob.units import PPM
from policy.bus import STEPS, UPDATES, ControlState, control_state
from policy.explore import SelectConfig, branch_epsilon, count_bonus, passive_pressure
from policy.heads import BRANCH_SIZES, CHOICES
from policy.signals import BRANCH_CHOICES, COMPONENTS, EXPERTS, FAST, INDEX, SLOTS

NORM_FLOOR = 1e-6
"""Least gradient norm whose logarithm is taken: below it there is no gradient, and how far below says nothing."""

CONVICTION_FLOOR = 0.01
"""Least scale of conviction (C11): before values have a size, an advantage of a hundredth of a whitened reward counts as full."""


class Part(NamedTuple):
    """One component of health: its weight in percent, its formula over bus slots, and why it weighs as much."""

    percent: int
    formula: str
    reason: str


PARTS = {
    "q_gap": Part(
        25,
        "q_range.direction / (q_range.direction + q_dir_abs_ref); 0 where both are 0",
        "values that no longer differ between choices are the collapse that this signal is there to sense",
    ),
    "grad_stability": Part(
        15,
        "1 / (1 + grad_log_square - grad_log^2), the variance of the norm's logarithm; 0 before there is a gradient",
        "an erratic gradient spoils every other figure, but clipping bounds the harm",
    ),
    "loss_trend": Part(
        15,
        "1 where loss <= loss_slow, else loss_slow / loss; 0 before there is a gradient",
        "a rising loss is the plainest sign of divergence, and the slowest",
    ),
    "td_calibration": Part(
        15,
        "mean of q_sigma / td_abs, at most 1, and 1 where td_abs is 0; 0 before there is a gradient",
        "errors beyond the stated spread mean that conviction and variance scale are not to be believed",
    ),
    "entropy": Part(10, "entropy of pick_share.direction / ln 4: hold and flat apart", "selection keeps it up by itself"),
    "expert_use": Part(10, "(exp(entropy of expert_use) - 1) / 7", "the load-balance loss keeps it up by itself"),
    "spectral_gap_norm": Part(10, "1 - spectral_gap", "features on one line foretell a collapse, but a small problem may need no more"),
}
"""Component -> weight, formula, reason. The percents sum to 100."""


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


class Controllers(NamedTuple):
    """The config as device tensors, made once: `update_controls` allocates nothing that depends on it."""

    config: ControlConfig
    select: SelectConfig
    drives: torch.Tensor  # int64[9]: slot that drives each response
    offsets: torch.Tensor  # float32[9]
    slopes: torch.Tensor  # float32[9]
    health_weights: torch.Tensor  # float32[7], summing to 1
    update_weights: torch.Tensor  # float32[29]: EMA weight of each slot that an update measures
    health_ppm: torch.Tensor  # int32[]: learning health as physics takes it


class LearnStats(NamedTuple):
    """What an update of the learner measured, float32 on the device; what is not finite leaves its slot as it was.

    `gate_mean` and `gate_entropy` are None for a network without experts, `spectral_gap` where features are not looked at: their slots
    then keep their reset values, which count as healthy.
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
    spectral_gap: torch.Tensor | None = None  # []: `spectral_gap` of the trunk's features
    gate_mean: torch.Tensor | None = None  # [8]: gate probabilities, mean over the batch
    gate_entropy: torch.Tensor | None = None  # []: entropy of the gate in nats, mean over the batch


_MEASURED = slice(INDEX["v_half.direction"], INDEX["loss_slow"] + 1)
_EXPERTS = slice(INDEX["expert_use.0"], INDEX["gate_entropy"] + 1)
_COMPONENTS = slice(INDEX[f"health.{COMPONENTS[0]}"], INDEX[f"health.{COMPONENTS[-1]}"] + 1)
_RESPONSES = slice(INDEX["lr"], INDEX["iqn_ratio"] + 1)
_EPSILON = slice(INDEX["epsilon.direction"], INDEX["epsilon.urgency"] + 1)
_TAU_FLOOR = slice(INDEX["tau_floor.direction"], INDEX["tau_floor.urgency"] + 1)
_SHARES = slice(INDEX[f"pick_share.{BRANCH_CHOICES[0]}"], INDEX[f"pick_share.{BRANCH_CHOICES[-1]}"] + 1)
_DIRECTIONS = slice(_SHARES.start, _SHARES.start + BRANCH_SIZES[0])
_BONUS = slice(INDEX[f"bonus.{BRANCH_CHOICES[0]}"], INDEX[f"bonus.{BRANCH_CHOICES[-1]}"] + 1)
_Q_SIGMA = slice(INDEX["q_sigma.direction"], INDEX["q_sigma.urgency"] + 1)


def controllers(config: ControlConfig, select: SelectConfig, device: str = "cpu") -> Controllers:
    """The controllers of a run: `select` says how exploration goes, `config` all else."""
    rows = responses(config)
    if [row.control for row in rows] != [slot.name for slot in SLOTS[_RESPONSES]]:
        raise ValueError("responses do not lie in the order of the bus")
    numbers = lambda values: torch.tensor(values, dtype=torch.float32, device=device)  # noqa: E731
    places = lambda names: torch.tensor([INDEX[name] for name in names], dtype=torch.int64, device=device)  # noqa: E731
    return Controllers(
        config,
        select,
        drives=places([row.drive for row in rows]),
        offsets=numbers([row.offset for row in rows]),
        slopes=numbers([row.slope for row in rows]),
        health_weights=numbers([PARTS[name].percent / 100 for name in COMPONENTS]),
        update_weights=numbers([slot.weight for slot in SLOTS[_MEASURED]]),
        health_ppm=torch.zeros((), dtype=torch.int32, device=device),
    )


def start(controls: Controllers, device: str = "cpu") -> ControlState:
    """A fresh state whose controls stand at what they are before anything was measured."""
    state = control_state(device)
    update_controls(state, controls)
    return state


COUNTS = 4 + CHOICES
DECIDED, FLAT_LANES, ATTEMPTS, EXPLORED = range(4)
"""Places of `step_counts`, before one for each choice."""


def step_counts(observation: torch.Tensor, action: torch.Tensor, decided: torch.Tensor, explored: torch.Tensor) -> torch.Tensor:
    """int64[17]: lanes that decided, of them flat ones, of those the ones that picked long or short, lanes that explored, lanes per choice.

    `observation` float32[lanes, 128] that was decided on, `action` int32[lanes], `decided` and `explored` bool[lanes]. Whole numbers, so
    that counts of several processes can be added in any order.
    """
    flat = decided & (observation[:, OFFSET["position_sign"]] == 0)
    codes = torch.stack((action // 27, action % 27 // 9, action % 9 // 3, action % 3))
    attempts = flat & ((codes[0] == 0) | (codes[0] == 2))
    rows = [decided, flat, attempts, explored & decided]
    rows += [decided & (codes[branch] == code) for branch, size in enumerate(BRANCH_SIZES) for code in range(size)]
    return torch.stack(rows).sum(dim=1)


def observe_step(state: ControlState, counts: torch.Tensor, controls: Controllers) -> None:
    """Take in one environment step's `step_counts`. A share whose denominator is 0 leaves its slot as it was."""
    bus, clock, picks = state
    weight = _weight(clock[STEPS], FAST)
    counted = counts.to(torch.float32)
    decided = counted[DECIDED]
    shares = torch.cat((counted[ATTEMPTS:EXPLORED] / counted[FLAT_LANES], counted[EXPLORED:] / decided))
    _move(bus[INDEX["trade_attempt_rate_ema"]], shares[0], weight)
    _move(bus[INDEX["explored_rate"]], shares[1], weight)
    _move(bus[_SHARES], shares[2:], weight)
    picks += counts[EXPLORED + 1 :]
    clock[STEPS] += 1
    target, rate = bus[INDEX["trade_target_rate"]], bus[INDEX["trade_attempt_rate_ema"]]
    target.copy_(torch.where(clock[STEPS] == controls.config.target_step, rate, target))


def observe_update(state: ControlState, stats: LearnStats, controls: Controllers) -> None:
    """Take in what one update of the learner measured."""
    bus, clock, _ = state
    absent = bus[INDEX["spectral_gap"]]
    log_norm = stats.grad_norm.clamp(min=NORM_FLOOR).log()
    single = (
        stats.td_abs, stats.q_dir_abs, absent if stats.spectral_gap is None else stats.spectral_gap,
        stats.loss, stats.loss_c51, stats.loss_iqn, stats.loss_cql, stats.loss_aux, stats.loss_balance,
        stats.grad_norm, log_norm, log_norm.square(), stats.grad_c51, stats.grad_iqn, stats.grad_cql, stats.grad_aux, stats.loss,
    )  # fmt: skip
    measured = torch.cat((stats.v_half, stats.q_range, stats.q_sigma, torch.stack(single)))
    first = _weight(clock[UPDATES], 0.0)
    _move(bus[_MEASURED], measured, torch.maximum(controls.update_weights, first))
    if stats.gate_mean is not None and stats.gate_entropy is not None:
        _move(bus[_EXPERTS], torch.cat((stats.gate_mean, stats.gate_entropy.reshape(1))), first.clamp(min=FAST))
    clock[UPDATES] += 1


def update_controls(state: ControlState, controls: Controllers) -> None:
    """Health from the slots, then every control, in place; `controls.health_ppm` with them. Reads nothing but the state."""
    bus, clock, picks = state
    config, select = controls.config, controls.select
    components = health_components(bus)
    bus[_COMPONENTS] = components
    health = (components * controls.health_weights).sum().clamp(0, 1)
    bus[INDEX["learning_health"]] = health
    controls.health_ppm.copy_((health.double() * PPM).round())
    bus[_RESPONSES] = controls.offsets + controls.slopes * bus[controls.drives]
    budget = 1 - bus[INDEX["share_cql"]] - bus[INDEX["share_aux"]]
    bus[INDEX["share_iqn"]] = bus[INDEX["iqn_ratio"]] * budget
    bus[INDEX["share_c51"]] = budget - bus[INDEX["share_iqn"]]
    rate, target = bus[INDEX["trade_attempt_rate_ema"]], bus[INDEX["trade_target_rate"]]
    bus[INDEX["passive_pressure"]] = passive_pressure(rate, target)
    bus[_EPSILON] = branch_epsilon(select, clock[STEPS : STEPS + 1], rate.reshape(1), target.reshape(1))
    size = bus[INDEX["q_dir_abs_ref"]]
    bus[_TAU_FLOOR] = select.tau_floor
    bus[INDEX["tau_floor.direction"]] = (config.tau_reference * size).clamp(min=select.tau_floor)
    bus[INDEX["conviction_scale"]] = size.clamp(min=CONVICTION_FLOOR)
    bus[_BONUS] = count_bonus(select.bonus, picks)


def health_components(bus: torch.Tensor) -> torch.Tensor:
    """float32[7], each in [0, 1], in the order of `PARTS`, by its formulas; total: any finite bus gives numbers.

    Where a denominator is 0, the part is 0 if values or a gradient are missing (not well), and 1 if an error is.
    """
    at = lambda name: bus[INDEX[name]]  # noqa: E731
    gap, scale = at("q_range.direction").clamp(min=0), at("q_dir_abs_ref").clamp(min=0)
    learned = (at("grad_norm") > 0).float()  # before the first gradient nothing is known to be well
    varies = (at("grad_log_square") - at("grad_log").square()).clamp(min=0)
    fast, slow = at("loss"), at("loss_slow")
    error, sigma = at("td_abs"), bus[_Q_SIGMA].mean()
    parts = (
        _ratio(gap, gap + scale),
        learned / (1 + varies),
        learned * torch.where(fast <= slow, 1.0, _ratio(slow, fast)),
        learned * torch.where(error > 0, _ratio(sigma, error), 1.0),
        _entropy(bus[_DIRECTIONS]) / math.log(BRANCH_SIZES[0]),
        (_entropy(bus[_EXPERTS.start : _EXPERTS.stop - 1]).exp() - 1) / (EXPERTS - 1),
        1 - at("spectral_gap"),
    )
    return torch.nan_to_num(torch.stack(parts), nan=0.0).clamp(0, 1)


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
    return (1 - _ratio(torch.minimum(first, second), torch.maximum(first, second))).clamp(0, 1)


def _unit(vector: torch.Tensor) -> torch.Tensor:
    length = vector.norm()
    return torch.where(length > 0, vector / length, 0.0)


def _ratio(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """part / whole, 0 where whole is not above 0."""
    return torch.where(whole > 0, part / torch.where(whole > 0, whole, 1.0), 0.0)


def _entropy(shares: torch.Tensor) -> torch.Tensor:
    """In nats, of shares that are normalised here; 0 for shares that sum to 0."""
    p = _ratio(shares.clamp(min=0), shares.clamp(min=0).sum())
    return -(p * p.clamp(min=1e-30).log()).sum()


def _weight(seen: torch.Tensor, least: float) -> torch.Tensor:
    """float32[]: 1 / (values seen + 1), never below `least`: a plain mean at first, an EMA from then on."""
    return (1 / (seen.to(torch.float32) + 1)).clamp(min=least)


def _move(slots: torch.Tensor, values: torch.Tensor, weight: torch.Tensor) -> None:
    """Move slots towards values in place; a value that is not finite moves nothing."""
    slots.lerp_(torch.where(torch.isfinite(values), values, slots), weight)


assert tuple(PARTS) == COMPONENTS and sum(part.percent for part in PARTS.values()) == 100
assert len(BRANCH_CHOICES) == CHOICES
