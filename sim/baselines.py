"""What the trivial rules earn where a policy is evaluated: through the same environment, exact to the micro-dollar, without a log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from policy.protocol import Policy
    from sim.config import RunConfig
    from sim.tape import Loaded


@dataclass(frozen=True)
class Earned:
    """Of one account on each window, int64[windows]: net of fees, fees paid, trade rows closed."""

    pnl_usd_micros: np.ndarray
    fees_usd_micros: np.ndarray
    trades: np.ndarray

    def document(self) -> dict[str, Any]:
        """As an evaluation states it (`sim.evaluation.Evidence`)."""
        days = self.pnl_usd_micros.tolist()
        return {"days_usd_micros": days, "fees_usd_micros": int(self.fees_usd_micros.sum()), "trades": int(self.trades.sum())}


def play_side_by_side(loaded: Loaded, config: RunConfig, policies: Mapping[str, Policy], device: str = "cpu") -> dict[str, Earned]:
    """Every window of `loaded` by every policy, each made for one lane a window; all of them in one environment.

    Lane p * windows + w plays window w for policy p. A policy sees its own lanes alone, numbered from 0, as if it played alone.
    """
    import torch

    from cuda_env import state as s
    from cuda_env.env import Env
    from lob.actions import Phase
    from policy.protocol import constant_picks

    each = len(loaded.schedule.windows)
    lanes = each * len(policies)
    env = Env(
        loaded.tape, loaded.schedule, loaded.features, config.env, lanes, Phase.EVAL, device,
        emit=(), threads=config.execution.threads, diag=False,
    )  # fmt: skip
    picks = constant_picks(lanes, device)
    parts = {name: slice(p * each, (p + 1) * each) for p, name in enumerate(policies)}
    with torch.no_grad():
        for step in range(loaded.schedule.longest):
            observation = env.observe()
            for name, policy in policies.items():
                part = parts[name]
                history = env.history(policy.window, env.row[part]) if policy.window else None
                for into, value in zip(picks, policy.act(observation[part], history, step), strict=True):
                    into[part] = value
            env.step(picks)
    env.close_all()  # the longest; the others were drained on the way
    env.check()
    state = env.state[:, :lanes].cpu().numpy()
    columns = (state[s.CASH] - env.config.capital_usd_micros, state[s.FEES], state[s.TRADE_COUNT])
    return {name: Earned(*(column[part].copy() for column in columns)) for name, part in parts.items()}


def baselines(loaded: Loaded, config: RunConfig, names: tuple[str, ...]) -> dict[str, Earned]:
    """What each built-in policy earns on the windows of `loaded`, under the account of `config`."""
    from sim.policy import make_policy

    each, normaliser = len(loaded.schedule.windows), loaded.normaliser
    rules = {name: make_policy(name, config.seed, each, mean=normaliser.mean, std=normaliser.std) for name in names}
    return play_side_by_side(loaded, config, rules)
