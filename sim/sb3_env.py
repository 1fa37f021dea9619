"""The vectorised environment as Stable-Baselines3 knows it: its `VecEnv` protocol around `sim.gymnasium_env.MarketVectorEnv`.

    from stable_baselines3 import PPO
    PPO("MlpPolicy", Sb3Env(MarketVectorEnv(64, "S", "ESH4", …))).learn(100_000)

Needs the extra `gym`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from stable_baselines3.common.vec_env import VecEnv

from lob.errors import BadInput
from sim.gymnasium_env import MarketVectorEnv


class Sb3Env(VecEnv):
    """The accounts of `envs`, whose autoreset mode has to be SAME_STEP: a VecEnv begins the next episode in the step that ends one.

    Each info holds `reward_usd_micros`; that of an ending lane also `terminal_observation`, `TimeLimit.truncated` and what its final info
    holds. `seed(n)` holds for the next `reset`, for all lanes together. Raises BadInput.
    """

    def __init__(self, envs: MarketVectorEnv) -> None:
        if envs.autoreset_mode is not AutoresetMode.SAME_STEP:
            raise BadInput(
                f"a VecEnv resets in the step that ends an episode: make the environment with SameStep, not {envs.autoreset_mode.value}"
            )
        self.envs = envs
        self._actions = np.empty(0, np.int64)
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def reset(self) -> np.ndarray:
        observations, infos = self.envs.reset(seed=self._seeds[0])
        self._reset_seeds()
        self.reset_infos = [{"equity_usd_micros": int(equity)} for equity in infos["equity_usd_micros"]]
        return observations

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        observations, rewards, terminated, truncated, infos = self.envs.step(self._actions)
        of_lanes: list[dict[str, Any]] = [{"reward_usd_micros": int(reward)} for reward in infos["reward_usd_micros"]]
        for lane in np.flatnonzero(terminated | truncated):
            final = infos["final_info"]
            of_lanes[lane] |= {name: values[lane].item() for name, values in final.items() if not name.startswith("_")}
            of_lanes[lane]["terminal_observation"] = infos["final_obs"][lane]
            of_lanes[lane]["TimeLimit.truncated"] = bool(truncated[lane])
        return observations, rewards.astype(np.float32), terminated | truncated, of_lanes

    def close(self) -> None:
        self.envs.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self.envs, attr_name)] * len(self._chosen(indices))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise BadInput(f"{attr_name}: the lanes are one environment, which is made with its settings and keeps them")

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        raise BadInput(f"{method_name}: the lanes are one environment, of which none can be called by itself")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * len(self._chosen(indices))

    def _chosen(self, indices: Any) -> Sequence[int]:
        return list(self._get_indices(indices))
