"""The environment as TorchRL knows it: `MarketTorchEnv`, an `EnvBase` of many accounts on the CPU or a GPU. docs/environments.md

    from torchrl.envs import check_env_specs
    env = MarketTorchEnv(4096, "S", "ESH4", "2024-01-02", "2024-03-01", device="cuda")

Neither `step` nor `maybe_reset` waits for the device or copies to the host. Needs the extra `torchrl`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Bounded, Categorical, Composite, MultiCategorical, Unbounded
from torchrl.envs import EnvBase

from lob.actions import ACTIONS
from lob.layout import STATE_DIM
from sim.episode_options import MarketOptions
from sim.episodes import BRANCHES, check_form, code_of, make_episodes

LEFT_OUT = -1
"""Code of a lane that TorchRL's `_step` leaves out of a step. A living one cannot be: it is refused as an action out of range is."""


class MarketTorchEnv(EnvBase):
    """`lanes` accounts in one environment; batch size [lanes]. Tensors that are returned are the caller's own.

    `observation` float32[lanes, 128]; `reward` float32[lanes, 1], an account's change of equity over `reward_scale`, and, exactly, int64
    `reward_usd_micros`[lanes, 1]; `equity_usd_micros`[lanes, 1]; `decided` bool[lanes, 1], false where the action was not read (a drain);
    `done`, `terminated`, `truncated`. The action is int64[lanes, 4], `branches`, or int64[lanes], `codes` 0..107.

    A lane whose episode has ended stays done, with what it saw last, and earns 0, until a reset whose `_reset` names it begins its next
    one; `set_seed` makes the next whole reset begin every lane's first. Living lanes step together. Raises BadInput, NotFound, StaleCache;
    of an action out of range on the CPU at once, on a GPU from `check`.
    """

    def __init__(
        self,
        lanes: int,
        store: str | Path,
        instrument: str,
        start: str,
        end: str,
        *,
        device: str = "cpu",
        actions: str = "branches",
        **options: Unpack[MarketOptions],
    ) -> None:
        check_form(actions)
        super().__init__(device=device, batch_size=[lanes])
        on = self.device  # with its number, as TorchRL compares devices
        self._episodes = make_episodes(store, instrument, start, end, lanes, str(on), **options)
        self._next_seed: int | None = None
        self.notes = self._episodes.notes

        def column(dtype: torch.dtype) -> Unbounded:
            return Unbounded((lanes, 1), dtype=dtype, device=on)

        self.observation_spec = Composite(
            observation=Unbounded((lanes, STATE_DIM), dtype=torch.float32, device=on),
            reward_usd_micros=column(torch.int64),
            equity_usd_micros=column(torch.int64),
            decided=Bounded(False, True, (lanes, 1), dtype=torch.bool, device=on),
            shape=(lanes,),
        )
        if actions == "branches":
            sizes = torch.tensor(BRANCHES, device=on)
            self.action_spec = MultiCategorical(sizes, shape=(lanes, len(BRANCHES)), dtype=torch.int64, device=on)
        else:
            self.action_spec = Categorical(ACTIONS, shape=(lanes,), dtype=torch.int64, device=on)
        self.reward_spec = column(torch.float32)
        self.done_spec = Composite(
            {name: Categorical(2, (lanes, 1), dtype=torch.bool, device=on) for name in ("done", "terminated", "truncated")},
            shape=(lanes,),
        )
        self._coded = actions == "codes"

    def check(self) -> None:
        """Raise BadInput for a fault that a lane has met, such as an action out of range; waits for the device."""
        self._episodes.check()

    def maybe_reset(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Begin the next episode of every lane that is done, and show it. `EnvBase` would ask the host whether there is one."""
        done = tensordict.get("done")
        if self.device.type == "cpu" and not done.any():
            return tensordict
        self._episodes.begin(done[:, 0])
        kept = {name: tensordict.get(name) for name in ("reward_usd_micros", "decided")}
        shown = self._shown()
        return tensordict.update(shown).update({name: torch.where(done, shown.get(name), was) for name, was in kept.items()})

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        episodes, action, steps = self._episodes, tensordict.get("action"), tensordict.get("_step", None)
        codes = action if self._coded else code_of(action)
        if steps is not None:  # a rollout until all are done leaves out those that are: they are over, and nothing is read of them
            codes = torch.where(steps.reshape(codes.shape), codes, LEFT_OUT)
        episodes.step(codes)
        earned = episodes.earned_usd_micros[:, None].clone()
        shown = self._shown().update({"reward_usd_micros": earned, "decided": episodes.decided[:, None].clone()})
        # In float64 first: the whole number is exact there, so that the float32 is the nearest one, on every device.
        return shown.set("reward", (earned.double() / episodes.env.config.reward_scale_usd_micros).float())

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        if mask is None:
            self._episodes.begin_all(self._next_seed)
            self._next_seed = None
        else:
            self._episodes.begin(mask.reshape(self._episodes.lanes))
        return self._shown()

    def _set_seed(self, seed: int | None) -> None:
        self._next_seed = seed

    def _shown(self) -> TensorDict:
        """What the lanes see, as a reset shows it: nothing earned, nothing decided."""
        episodes = self._episodes
        terminated, truncated = (flag[:, None].clone() for flag in (episodes.terminated, episodes.truncated))
        shown = {
            "observation": episodes.observe(),
            "equity_usd_micros": episodes.equity_usd_micros[:, None].clone(),
            "reward_usd_micros": torch.zeros_like(terminated, dtype=torch.int64),
            "decided": torch.zeros_like(terminated),
            "terminated": terminated,
            "truncated": truncated,
            "done": terminated | truncated,
        }
        return TensorDict(shown, batch_size=self.batch_size, device=self.device)
