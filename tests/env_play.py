"""Plays scripted picks through the environment and gathers the rows of every table."""

import numpy as np
import torch

from cuda_env.config import EnvConfig
from cuda_env.env import Env
from lob.actions import Direction, Magnitude, Phase, encode_action
from lob.picks import Picks
from lob.tape import Schedule, Tape
from tests.market_maker import SECOND, features, slow_schedule

FULL = 10**6
HOLD = encode_action.py_func(Direction.HOLD, 0, 0, 0)
FLAT = encode_action.py_func(Direction.FLAT, 0, 0, 0)
LONG = encode_action.py_func(Direction.LONG, Magnitude.FULL, 0, 0)
SHORT = encode_action.py_func(Direction.SHORT, Magnitude.FULL, 0, 0)
LONG_HALF = encode_action.py_func(Direction.LONG, Magnitude.HALF, 0, 0)
LONG_QUARTER = encode_action.py_func(Direction.LONG, Magnitude.QUARTER, 0, 0)


def gather(env: Env, inputs) -> dict[str, dict[str, np.ndarray]]:
    """Every table's rows over all decisions and the drain. `inputs` yields int32[4, lanes] per decision."""
    collected: dict[str, list[dict[str, np.ndarray]]] = {name: [] for name in env.emit}
    steps = iter(inputs)
    for step in range(env.schedule.decisions + 1):
        if step < env.schedule.decisions:
            rows = np.asarray(next(steps), np.int32)
            env.step(Picks(*(torch.from_numpy(np.ascontiguousarray(row)) for row in rows)))
        else:
            env.drain()
        for name, parts in collected.items():
            parts.append(env.rows(name))
    return {name: {column: np.ma.concatenate([p[column] for p in parts]) for column in parts[0]} for name, parts in collected.items()}


def scripted(
    tape: Tape,
    config: EnvConfig,
    actions: list[int],
    ticks_s: list[float] | None = None,
    latency_ns: int = 0,
    health: int = FULL,
    variance_scale: int = FULL,
    conviction: int = FULL,
    schedule: Schedule | None = None,
) -> dict[str, dict[str, np.ndarray]]:
    """One lane that picks `actions`, then holds, at clock ticks half a second after each second, or at the given ones."""
    if schedule is None:
        last = int(tape.ts_recv_ns[-1])
        ticks = range(SECOND + SECOND // 2, last, SECOND) if ticks_s is None else [round(t * SECOND) for t in ticks_s]
        schedule = slow_schedule(tape, list(ticks), latency_ns, config.max_lots)
    env = Env(tape, schedule, features(schedule), config, 1, Phase.EVAL)
    script = [*actions, *[HOLD] * (schedule.decisions - len(actions))][: schedule.decisions]
    return gather(env, [[[action], [conviction], [health], [variance_scale]] for action in script])
