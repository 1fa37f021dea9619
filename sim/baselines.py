"""What the trivial rules earn where a policy is evaluated: through the same environment, exact to the micro-dollar, without a log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from cuda_env.env import Env
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

    from policy.protocol import constant_picks

    each = len(loaded.schedule.windows)
    env = _quiet(loaded, config, each * len(policies), device)
    picks = constant_picks(env.lanes, device)
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
    return _earned(env, parts)


def _quiet(loaded: Loaded, config: RunConfig, lanes: int, device: str = "cpu") -> Env:
    """An environment of evaluation that logs nothing."""
    from cuda_env.env import Env
    from lob.actions import Phase

    threads = config.execution.threads
    return Env(
        loaded.tape, loaded.schedule, loaded.features, config.env, lanes, Phase.EVAL, device, emit=(), threads=threads, diag=False
    )  # fmt: skip


def _earned(env: Env, parts: Mapping[str, slice]) -> dict[str, Earned]:
    """What each part of the lanes has earned, once all of them are drained."""
    from cuda_env import state as s

    env.close_all()  # the longest; the others were drained on the way
    env.check()
    state = env.state[:, : env.lanes].cpu().numpy()
    columns = (state[s.CASH] - env.config.capital_usd_micros, state[s.FEES], state[s.TRADE_COUNT])
    return {name: Earned(*(column[part].copy() for column in columns)) for name, part in parts.items()}


def baselines(loaded: Loaded, config: RunConfig, names: tuple[str, ...]) -> dict[str, Earned]:
    """What each built-in policy earns on the windows of `loaded`, under the account of `config`; rules that have a table play all their
    decisions in one call."""
    import torch

    from policy.builtin import TABULATED, tabulate
    from policy.protocol import constant_picks
    from sim.policy import make_policy

    each, normaliser = len(loaded.schedule.windows), loaded.normaliser
    tabled = [name for name in names if name in TABULATED]
    asked = {
        name: make_policy(name, config.seed, each, mean=normaliser.mean, std=normaliser.std) for name in names if name not in TABULATED
    }
    found = play_side_by_side(loaded, config, asked) if asked else {}
    if tabled:
        env = _quiet(loaded, config, each * len(tabled))
        rows = torch.from_numpy(loaded.features)
        tables = torch.stack([tabulate(name, rows, normaliser.mean, normaliser.std) for name in tabled])
        env.follow(tables, torch.arange(env.lanes) // each, loaded.schedule.longest, constant_picks(env.lanes, "cpu"))
        found |= _earned(env, {name: slice(p * each, (p + 1) * each) for p, name in enumerate(tabled)})
    return {name: found[name] for name in names}
