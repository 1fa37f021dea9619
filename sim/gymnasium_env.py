"""The environment as Gymnasium knows it: `MarketVectorEnv`, many accounts side by side, and `MarketEnv`, one. docs/environments.md

    import gymnasium
    envs = gymnasium.make_vec("sim.gymnasium_env:tapeproof/Market-v0", num_envs=64, store="S", instrument="ESH4", start=…, end=…)

Importing this module registers the id, which is Gymnasium's convention. Needs the extra `gym`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from lob.actions import ACTIONS
from lob.errors import BadInput
from lob.layout import STATE_DIM
from sim.episode_options import MarketOptions
from sim.episodes import BRANCHES, Episodes, check_form, code_of, make_episodes

ID = "tapeproof/Market-v0"


def observation_space() -> spaces.Box:
    """128 float32 slots (docs/observation.md). Market slots lie within 10; an account's returns have no bound."""
    return spaces.Box(-np.inf, np.inf, (STATE_DIM,), np.float32)


def action_space(actions: str) -> spaces.Space[Any]:
    """`branches`: MultiDiscrete([4, 3, 3, 3]), direction, magnitude, order, urgency. `codes`: Discrete(108). Raises BadInput."""
    check_form(actions)
    return spaces.MultiDiscrete(BRANCHES) if actions == "branches" else spaces.Discrete(ACTIONS)


class MarketVectorEnv(VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """`num_envs` accounts in one environment on the CPU, stepped together. Arrays that are returned are the caller's own.

    `rewards` are float64: an account's change of equity over `reward_scale`. `infos["reward_usd_micros"]` has it exactly, int64, and beside
    it `decided` (the action was read: not so in a drain) and `end_reason` (`lob.actions.EndReason`), all three of the step, like the
    rewards; `equity_usd_micros` is the standing account's, like the observations. With `AutoresetMode.SAME_STEP`, the default, an episode's
    last observation is in `infos["final_obs"]` and its infos in `infos["final_info"]`. `NEXT_STEP`: the step after an end resets, reads no
    action and earns 0. `DISABLED`: `reset(options={"reset_mask": mask})` begins the next episode of the lanes of a bool[num_envs] mask.

    `reset(seed=…)` begins every lane's first episode under that seed, `reset()` its next. `notes` are what a reader should know of the
    market data. Raises BadInput and NotFound, StaleCache.
    """

    def __init__(
        self,
        num_envs: int,
        store: str | Path,
        instrument: str,
        start: str,
        end: str,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        actions: str = "branches",
        **options: Unpack[MarketOptions],
    ) -> None:
        self.num_envs = num_envs
        try:
            self.autoreset_mode = AutoresetMode(autoreset_mode)
        except ValueError:
            known = ", ".join(mode.value for mode in AutoresetMode)
            raise BadInput(f"autoreset_mode {autoreset_mode!r}: choose from {known}") from None
        self.metadata = {"render_modes": [], "autoreset_mode": self.autoreset_mode}
        self.single_observation_space, self.single_action_space = observation_space(), action_space(actions)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._episodes = make_episodes(store, instrument, start, end, num_envs, **options)
        self._begun = False

    @property
    def notes(self) -> tuple[str, ...]:
        return self._episodes.notes

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        episodes, mask = self._episodes, (options or {}).get("reset_mask")
        if mask is None:
            super().reset(seed=seed)
            episodes.begin_all(seed)
            self._begun, mask = True, np.ones(self.num_envs, bool)
        else:
            _check_mask(mask, self.num_envs, seed, self._begun)
            episodes.begin(torch.as_tensor(mask))
        return episodes.observe().numpy(), _masked({"equity_usd_micros": episodes.equity_usd_micros.numpy().copy()}, mask)

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        episodes = self._episodes
        if not self._begun:
            raise BadInput("no episode has begun: call reset() before step()")
        if self.autoreset_mode is AutoresetMode.DISABLED and episodes.over.any():
            raise BadInput(
                f"lane {int(episodes.over.nonzero()[0])}'s episode has ended: begin its next with options={{'reset_mask': mask}}"
            )
        actions = np.asarray(actions)
        if not self.action_space.contains(actions):
            raise BadInput(_what_is_wrong(actions, self.single_action_space, self.num_envs))
        ended_before = episodes.over.clone()
        episodes.step(torch.as_tensor(actions if actions.ndim == 1 else code_of(actions)))
        if self.autoreset_mode is AutoresetMode.NEXT_STEP and ended_before.any():
            episodes.begin(ended_before)
        info, everyone = _step_info(episodes), np.ones(self.num_envs, bool)
        rewards = info["reward_usd_micros"] / episodes.env.config.reward_scale_usd_micros
        terminations, truncations = (flag.numpy().copy() for flag in (episodes.terminated, episodes.truncated))
        observations, infos, ended = episodes.observe().numpy(), _masked(info, everyone), terminations | truncations
        if self.autoreset_mode is AutoresetMode.SAME_STEP and ended.any():
            infos |= _final(observations, info, ended)
            episodes.begin(torch.as_tensor(ended))
            observations = episodes.observe().numpy()
            infos["equity_usd_micros"] = episodes.equity_usd_micros.numpy().copy()
        return observations, rewards, terminations, truncations, infos


class MarketEnv(gymnasium.Env[np.ndarray, Any]):
    """One account; everything else as in `MarketVectorEnv`, without autoreset. Infos hold plain numbers."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (as Gymnasium declares it)

    def __init__(
        self, store: str | Path, instrument: str, start: str, end: str, *, actions: str = "branches", **options: Unpack[MarketOptions]
    ) -> None:
        self.observation_space, self.action_space = observation_space(), action_space(actions)
        self._episodes = make_episodes(store, instrument, start, end, 1, **options)

    @property
    def notes(self) -> tuple[str, ...]:
        return self._episodes.notes

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._episodes.begin_all(seed)
        return self._episodes.observe().numpy()[0], {"equity_usd_micros": int(self._episodes.equity_usd_micros)}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        episodes = self._episodes
        if episodes.over:
            raise BadInput("no episode has begun, or it has ended: call reset() before step()")
        if not self.action_space.contains(action):
            raise BadInput(f"action {action!r} is not in {self.action_space}")
        given = np.asarray(action)
        episodes.step(torch.as_tensor(given if given.ndim == 0 else code_of(given)).reshape(1))
        info = {name: values.item() for name, values in _step_info(episodes).items()}
        reward = info["reward_usd_micros"] / episodes.env.config.reward_scale_usd_micros
        return episodes.observe().numpy()[0], reward, bool(episodes.terminated), bool(episodes.truncated), info


def _step_info(episodes: Episodes) -> dict[str, np.ndarray]:
    """What a step's infos hold, of every lane."""
    columns = {
        "reward_usd_micros": episodes.earned_usd_micros,
        "equity_usd_micros": episodes.equity_usd_micros,
        "decided": episodes.decided,
        "end_reason": episodes.end_reason,
    }
    return {name: tensor.numpy().copy() for name, tensor in columns.items()}


def _masked(infos: dict[str, Any], mask: np.ndarray) -> dict[str, Any]:
    """Infos as Gymnasium writes them: beside each entry `_entry`, which lanes it is of."""
    return infos | {f"_{name}": mask.copy() for name in infos}


def _final(observations: np.ndarray, info: dict[str, np.ndarray], ended: np.ndarray) -> dict[str, Any]:
    """What an episode leaves behind that ended in a step which begins the next one: `final_obs` and `final_info`, of the lanes `ended`."""
    last = np.full(len(ended), None, object)
    for lane in np.flatnonzero(ended):
        last[lane] = observations[lane]
    of_ended = {name: np.where(ended, values, np.zeros_like(values)) for name, values in info.items()}
    return _masked({"final_obs": last, "final_info": _masked(of_ended, ended)}, ended)


def _what_is_wrong(actions: np.ndarray, single: spaces.Space[Any], lanes: int) -> str:
    """Why `actions` are no actions of `lanes` lanes."""
    if actions.dtype.kind in "iu" and actions.shape == (lanes, *single.shape):
        for lane, action in enumerate(actions):
            if not single.contains(action):
                return f"lane {lane}: action {action} is not in {single}"
    return f"actions have to be an array of whole numbers of shape {(lanes, *single.shape)}, one of {single} for each lane"


def _check_mask(mask: Any, lanes: int, seed: int | None, begun: bool) -> None:
    if not (isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (lanes,) and mask.any()):
        raise BadInput(f"reset_mask has to be a bool array of {lanes} lanes with one of them at least")
    if seed is not None:
        raise BadInput("a seed is every lane's: leave it out where a reset_mask begins some of them anew")
    if not begun:
        raise BadInput("no episode has begun: the first reset is every lane's")


if ID not in gymnasium.registry:
    gymnasium.register(ID, entry_point=f"{__name__}:MarketEnv", vector_entry_point=f"{__name__}:MarketVectorEnv")
