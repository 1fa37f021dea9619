"""One pass over the lanes after a step: what each earned, and what the log and the controllers count of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from lob.layout import OFFSET, STATE_DIM
from lob.picks import Picks
from policy import lane_kernels as k
from policy.diag_columns import REWARD_TERMS
from policy.health_kernels import COUNTS
from policy.launch import Launcher
from policy.rewards import RewardConfig, RewardState, reward_state
from policy.select import Chosen
from policy.signals import INDEX

if TYPE_CHECKING:
    from policy.select_kernel import Facts


class Step(NamedTuple):
    """What the environment made of the picks, one row a lane."""

    raw: torch.Tensor  # int64[lanes]: change of equity, micro-dollars
    observation: torch.Tensor  # float32[lanes, 128]: what was decided on
    next_observation: torch.Tensor  # float32[lanes, 128]: what it led to; the last one of the old episode where one ended
    decided: torch.Tensor  # bool[lanes]: the pick was used
    terminated: torch.Tensor  # bool[lanes]: nothing follows, so the potential ends at 0
    ends: torch.Tensor  # bool[lanes]: the episode ended, in either way


class Rewards(NamedTuple):
    """One step's rewards, in buffers that the next step overwrites. Lanes that did not decide hold 0."""

    raw: torch.Tensor  # int64[lanes], micro-dollars
    shaped: torch.Tensor  # float32[lanes], dollars
    scaled: torch.Tensor  # float32[lanes]
    whitened: torch.Tensor  # float32[lanes]: what replay stores
    terms: torch.Tensor  # float32[7, lanes], unweighted


class _Given(NamedTuple):
    """The pass's own copies of its inputs, which keep their addresses."""

    before: torch.Tensor  # float32[lanes, 7]
    after: torch.Tensor  # float32[lanes, 6]
    raw: torch.Tensor
    decided: torch.Tensor
    terminated: torch.Tensor
    ends: torch.Tensor
    action: torch.Tensor
    conviction_ppm: torch.Tensor
    health_ppm: torch.Tensor
    variance_scale_ppm: torch.Tensor
    q_range: torch.Tensor
    q_sigma: torch.Tensor
    explored: torch.Tensor
    p_best: torch.Tensor
    tau: torch.Tensor


class _Out(NamedTuple):
    raw: torch.Tensor
    shaped: torch.Tensor
    scaled: torch.Tensor
    terms: torch.Tensor
    counted: torch.Tensor  # int64[TOTALS, lanes]


class LanePass:
    """Made once for `lanes` lanes; a call is a dozen launches and waits for nothing.

    `state` is what the reward terms remember, `rewards` the last step's, `totals` int64[TOTALS] what was counted of it. `scale_usd_micros`
    is the account's reward scale. `mean` and `std` are the normaliser's, float64[128] (none: observations are not normalised). `bus` holds
    the learner's discount. Where lanes are shared among several passes, `totals` are added over them between `count` and `whiten`: they
    are whole numbers, so that neither the order nor the split of lanes changes them.
    """

    def __init__(
        self,
        lanes: int,
        config: RewardConfig,
        scale_usd_micros: int,
        bus: torch.Tensor,
        mean: torch.Tensor | None = None,
        std: torch.Tensor | None = None,
    ) -> None:
        device = bus.device
        self.state: RewardState = reward_state(lanes, device)
        self.totals = torch.zeros(k.TOTALS, dtype=torch.int64, device=device)
        floats = lambda *shape: torch.zeros(*shape, dtype=torch.float32, device=device)  # noqa: E731
        whole = lambda dtype: torch.zeros(lanes, dtype=dtype, device=device)  # noqa: E731
        flags, picks, values = ([whole(dtype) for _ in range(4)] for dtype in (torch.bool, torch.int32, torch.float32))
        self._given = _Given(
            before=floats(lanes, len(k.BEFORE)),
            after=floats(lanes, len(k.AFTER)),
            raw=whole(torch.int64),
            **dict(zip(("decided", "terminated", "ends", "explored"), flags, strict=True)),
            **dict(zip(("action", "conviction_ppm", "health_ppm", "variance_scale_ppm"), picks, strict=True)),
            **dict(zip(("q_range", "q_sigma", "p_best", "tau"), values, strict=True)),
        )
        self._out = _Out(
            whole(torch.int64), floats(lanes), floats(lanes), floats(k.TERMS, lanes),
            torch.zeros(k.TOTALS, lanes, dtype=torch.int64, device=device),
        )  # fmt: skip
        self.rewards = Rewards(self._out.raw, self._out.shaped, self._out.scaled, floats(lanes), self._out.terms)
        self._before, self._after = (torch.tensor([OFFSET[name] for name in names], device=device) for names in (k.BEFORE, k.AFTER))
        self._params = _parameters(config, scale_usd_micros, mean, std).to(device)
        gamma = torch.tensor([INDEX["gamma"]], device=device)
        lane_inputs = (self._given, self.state, self._params, bus, gamma, self._out)
        if device.type == "cpu":
            arrays = [_as_numpy(part) for part in lane_inputs]
            totals, params, state = self.totals.numpy(), arrays[2], arrays[1]
            self._lanes = lambda: k.of_lanes_cpu(*arrays)
            self._whiten = lambda: k.whiten_cpu(totals, params, state)
        else:
            from policy import lane_cuda

            launcher = Launcher(device)
            self._lanes = launcher.bind(lane_cuda.of_lanes, lanes, lane_cuda.THREADS, *lane_inputs)
            self._whiten = launcher.bind(lane_cuda.whitener, 1, 1, self.totals, self._params, self.state)

    def __call__(self, step: Step, picks: Picks, chosen: Chosen | Facts) -> Rewards:
        """The rewards of one step of all lanes; `totals` and `state` move with it. The inputs are left alone."""
        self.count(step, picks, chosen)
        return self.whiten()

    def count(self, step: Step, picks: Picks, chosen: Chosen | Facts) -> None:
        """Everything of a step but the whitening; what it counts is in `totals`. `chosen` is also what the fused selection says."""
        given = self._given
        torch.index_select(step.observation, 1, self._before, out=given.before)
        torch.index_select(step.next_observation, 1, self._after, out=given.after)
        given.raw.copy_(step.raw)
        # One launch for each type.
        torch._foreach_copy_(
            [given.decided, given.terminated, given.ends, given.explored], [step.decided, step.terminated, step.ends, chosen.explored]
        )
        torch._foreach_copy_([given.action, given.conviction_ppm, given.health_ppm, given.variance_scale_ppm], list(picks))
        torch._foreach_copy_(
            [given.q_range, given.q_sigma, given.p_best, given.tau], [chosen.q_range, chosen.q_sigma, chosen.p_best, chosen.tau]
        )
        self._lanes()
        torch.sum(self._out.counted, dim=1, out=self.totals)

    def whiten(self) -> Rewards:
        """The rewards of the step that was counted, whitened by what `totals` say."""
        self._whiten()
        torch.div(self._out.scaled, self.state.unit, out=self.rewards.whitened)
        return self.rewards

    @property
    def counts(self) -> torch.Tensor:
        """int64[17]: what `Controllers.observe_step` takes in of the last step."""
        return self.totals[k.LOGGED : k.LOGGED + COUNTS]


def _parameters(config: RewardConfig, scale_usd_micros: int, mean: torch.Tensor | None, std: torch.Tensor | None) -> torch.Tensor:
    """float64[PARAMS]."""
    slots = [OFFSET[name] for name in (*k.BEFORE[k.SPREAD :], *k.AFTER[k.MOVE :])]
    centers = torch.zeros(STATE_DIM) if mean is None else torch.as_tensor(mean)
    scales = torch.ones(STATE_DIM) if std is None else torch.as_tensor(std)
    undo = [float(values[slot]) for values in (centers, scales) for slot in slots]
    weights = [getattr(config, name) for name in REWARD_TERMS]
    return torch.tensor([scale_usd_micros, config.whitening, config.horizon**0.5, *undo, *weights], dtype=torch.float64)


def _as_numpy(part):
    return part.numpy() if torch.is_tensor(part) else type(part)(*(_as_numpy(inner) for inner in part))
