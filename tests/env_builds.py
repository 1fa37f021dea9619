"""Plays random episodes in one build of the environment and returns everything that it wrote: njit here, plain Python and the CUDA
simulator in a process of their own (`python -m tests.env_builds plain|cudasim FILE`), since their switches must be set before numba loads.

In the plain and simulated builds every array is a list of Python ints, so that nothing can wrap: converting to int64 at the end raises on
a value that would have.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cuda_env.config import EnvConfig
from lob.actions import EndReason, Phase
from lob.instruments import Instrument
from tests.market_maker import ES, features, random_tape, second_ticks, session_windows, slow_schedule, with_prints

CRUDE = Instrument("CL", Fraction(1, 100), Fraction(1000), 2_370_000, 6_000_000_000, "cme_globex")
MICRO = Instrument("MES", Fraction(1, 4), Fraction(5), 620_001, 1_790_000_001, "cme_globex")


class Case(NamedTuple):
    """One market, one configuration, a few lanes of random picks."""

    seed: int
    config: dict[str, Any]
    instrument: Instrument = ES
    volatility: float = 2.0
    depth: int = 6
    final: int = EndReason.WINDOW_END
    sessions: int = 2
    period_s: float = 1.0
    latency_ns: int = 2 * 10**6
    events: int = 160
    lanes: int = 6
    steps: int = 0
    """Of a case whose sessions are windows of their own; 0: one window over all of them, played once to its end."""
    restarts: int | None = None
    first_lane: int = 0
    walking: bool = False
    """A market that walks tick by tick, where an order can stand in a queue for long (`tests.exchange_markets`)."""


TIGHT = {"capital_usd_micros": 40_000_000_000, "floor_usd_micros": 37_000_000_000, "margin_usd_micros": 1_000_000_000}
CASES = (
    Case(1, {"max_lots": 4, "trail_ticks": 10, "plan_lock_steps": 3}),
    Case(2, {"max_lots": 4, "trail_ticks": 40} | TIGHT, volatility=3.0),
    Case(3, {"max_lots": 50, "trail_ticks": 25} | TIGHT, volatility=1.0, depth=3, final=EndReason.TAPE_END),
    Case(4, {"max_lots": 200, "trail_ticks": 0, "capital_usd_micros": 10**13}, depth=9, final=EndReason.STEP_LIMIT, sessions=1),
    Case(5, {"max_lots": 3, "trail_ticks": 5, "margin_usd_micros": 39_000_000_000, "fee_usd_micros": 1}, instrument=CRUDE),
    Case(6, {"max_lots": 7, "plan_lock_steps": 1, "capital_usd_micros": 10**10, "floor_usd_micros": 0}, instrument=MICRO, latency_ns=10**9),
    Case(7, {"max_lots": 100, "floor_usd_micros": 90_000_000_000, "margin_usd_micros": 10**8}, depth=2, sessions=1, period_s=3.0),
    Case(8, {"max_lots": 1_000_000, "capital_usd_micros": 10**15, "floor_usd_micros": -(10**15)}, depth=100_000),
)

WINDOWED = (
    Case(9, {"max_lots": 4, "trail_ticks": 12} | TIGHT, volatility=3.0, sessions=4, steps=150, restarts=2**64 - 5, first_lane=3),
    Case(10, {"max_lots": 6, "floor_usd_micros": 90_000_000_000, "margin_usd_micros": 10**8}, depth=9, sessions=3, steps=70),
)
"""Sessions that are windows: with restarts, and as an evaluation plays them."""
EVERY = CASES + WINDOWED
LIVE = (
    Case(11, {"queue_model": "risk_averse", "max_lots": 4, "trail_ticks": 6, "maker_fee_usd_micros": -300_000}, volatility=0.6, events=240),
    Case(
        12,
        {"queue_model": "power", "max_lots": 6, "trail_ticks": 12, "entry_latency_ns": (0, 10**6, 10**9), "ack_latency_ns": (0, 10**8),
         **TIGHT},
        volatility=1.0,
        depth=4,
    ),
    Case(13, {"queue_model": "proportional", "max_lots": 3, "cancel_latency_ns": 2 * 10**9, "plan_lock_steps": 2} | TIGHT, volatility=1.5,
         sessions=3, steps=90, restarts=77, first_lane=2),
    Case(14, {"queue_model": "power", "queue_power": 2, "max_lots": 40, "floor_usd_micros": 90_000_000_000, "margin_usd_micros": 10**8,
              "cross_after_ppm": 200_000}, depth=3, sessions=1, volatility=0.4),
    Case(16, {"queue_model": "risk_averse", "max_lots": 3}, events=600, period_s=0.5, lanes=12, walking=True),
    Case(29, {"queue_model": "power", "max_lots": 3}, events=600, period_s=0.5, lanes=12, walking=True),
)  # fmt: skip
"""Cases whose orders work in the book."""
NUMBERED = EVERY + LIVE


def make_env(case: Case, device: str = "cpu", **options: Any):
    """The case's environment, all tables emitted unless told otherwise."""
    from cuda_env.env import Env

    if case.walking:
        from tests.exchange_markets import random_market

        tape = random_market(case.seed, case.events, 5, case.sessions).tape()
    else:
        tape = random_tape(case.seed, case.events, case.sessions, case.volatility, case.depth, instrument=case.instrument)
    if "queue_model" in case.config and not case.walking:
        tape = with_prints(tape, case.seed)
    config = EnvConfig(**case.config)
    if case.steps:
        reasons = (EndReason.WINDOW_END, EndReason.TAPE_END, EndReason.STEP_LIMIT)
        schedule = session_windows(tape, case.sessions, case.latency_ns, config.max_lots, case.period_s, reasons)
    else:
        schedule = slow_schedule(tape, second_ticks(tape, case.period_s), case.latency_ns, config.max_lots, case.final)
    options = {"restarts": case.restarts, "first_lane": case.first_lane} | options
    return Env(tape, schedule, features(schedule, case.seed), config, case.lanes, Phase.TRAIN, device=device, **options)


def random_inputs(case: Case, decisions: int) -> np.ndarray:
    """int32[D, 4, lanes]: action, conviction, health and variance scale; a lane in two holds long enough to meet the trail."""
    rng = np.random.default_rng(case.seed + 1000)
    inputs = rng.integers(0, 10**6 + 1, (decisions, 4, case.lanes))
    inputs[:, 1:][rng.random((decisions, 3, case.lanes)) < 0.3] = 0
    inputs[:, 1:][rng.random((decisions, 3, case.lanes)) < 0.3] = 10**6
    actions = rng.integers(0, 108, (decisions, case.lanes))
    patient = rng.random((decisions, case.lanes)) < 0.6
    patient[:, ::2] = False
    actions[patient] = 27 + rng.integers(0, 27, int(patient.sum()))
    if case.walking:  # eight decisions of one mind: long or short, joining and patient
        minds = rng.integers(0, 2, (-(-decisions // 8), case.lanes)) * 2 * 27 + rng.integers(0, 3, case.lanes) * 9 + 3 + 1
        actions = np.repeat(minds, 8, axis=0)[:decisions]
    inputs[:, 0] = actions
    return inputs.astype(np.int32)


class Grid:
    """An array of Python numbers: nested lists, indexed like numpy by integers and tuples."""

    def __init__(self, array: np.ndarray) -> None:
        self.shape, self.size, self.dtype = array.shape, array.size, array.dtype
        self.data = array.tolist()

    def __getitem__(self, key):
        cell = self.data
        for index in key if isinstance(key, tuple) else (key,):
            cell = cell[index]
        return cell

    def __setitem__(self, key, value) -> None:
        *path, last = key if isinstance(key, tuple) else (key,)
        cell = self.data
        for index in path:
            cell = cell[index]
        cell[last] = value

    def numpy(self) -> np.ndarray:
        """Raises OverflowError on a value that the real array could not hold."""
        return np.array(self.data, self.dtype).reshape(self.shape)


def each(structure: Any, convert) -> Any:
    """The nested named tuple with every array converted."""
    if isinstance(structure, tuple):
        return type(structure)(*(each(part, convert) for part in structure))
    return convert(structure)


@dataclass
class Njit:
    """The build that everybody uses, through `Env`."""

    env: Any

    def step(self, inputs: np.ndarray) -> None:
        import torch

        from lob.picks import Picks

        self.env.step(Picks(*(torch.from_numpy(np.ascontiguousarray(row)) for row in inputs)))

    def observe(self) -> None:
        self.env.observe()

    def drain(self) -> None:
        self.env.drain()

    def close_all(self) -> None:
        self.env.close_all()

    def run(self, actions: np.ndarray, inputs: np.ndarray) -> None:
        self.env.run_steps(self._given(actions), self._picks(inputs))

    def follow(self, actions: np.ndarray, part: np.ndarray, steps: int, inputs: np.ndarray) -> None:
        self.env.follow(self._given(actions), self._given(part), steps, self._picks(inputs))

    def _given(self, array: np.ndarray) -> Any:
        import torch

        return torch.from_numpy(array).to(self.env.device)

    def _picks(self, inputs: np.ndarray) -> Any:
        from lob.picks import Picks

        return Picks(*(self._given(row.copy()) for row in inputs))

    def world(self) -> Any:
        return each(self.env.world, lambda tensor: tensor.cpu().numpy())


class Plain:
    """`cuda_env.kernels_cpu` as plain Python."""

    def __init__(self, env: Any) -> None:
        from cuda_env import kernels_cpu

        assert not hasattr(kernels_cpu.step_one, "py_func"), "numba compiles: NUMBA_DISABLE_JIT=1 must be set"
        self.kernels, self.grids = kernels_cpu, each(env.world, lambda tensor: Grid(tensor.numpy()))
        self.live = 1 if env.working else None

    def step(self, inputs: np.ndarray) -> None:
        from lob.picks import Picks

        assert not self.kernels.step_one(Picks(*(Grid(row) for row in inputs)), self.grids, self.live)

    def observe(self) -> None:
        self.kernels.observe_one(self.grids)

    def drain(self) -> None:
        assert not self.kernels.drain(self.grids, self.live)

    def close_all(self) -> None:
        assert not self.kernels.close_all(self.grids, self.live)

    def world(self) -> Any:
        return each(self.grids, lambda grid: grid.numpy())


class Simulated:
    """`cuda_env.kernels_cuda` in numba's CUDA simulator, a Python thread for each CUDA thread."""

    def __init__(self, env: Any) -> None:
        from cuda_env import kernels_cuda

        assert os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
        self.k, self.lanes = kernels_cuda, env.lanes
        self.steps = kernels_cuda
        if env.working:
            from cuda_env import kernels_live_cuda

            self.steps = kernels_live_cuda
        self.grids = each(env.world, lambda tensor: Grid(tensor.numpy()))

    def _launch(self, kernel, threads: int, *arguments: Any, block: int | None = None) -> None:
        block = block or self.k.THREADS
        kernel[-(-threads // block), block](*arguments, self.grids)

    def _after(self) -> None:
        from cuda_env.diag import CHUNK, merge

        self._launch(self.k.keep_last, self.lanes * self.k.WARP)
        self._launch(self.k.count, self.lanes, block=CHUNK)
        merge(self.grids.sums.partials.shape[0], self.grids.sums)
        self._launch(self.k.carry_on, 1, block=1)

    def step(self, inputs: np.ndarray) -> None:
        from lob.picks import Picks

        self._launch(self.steps.step, self.lanes, Picks(*(Grid(row) for row in inputs)))
        self._after()
        if self.grids.starts.rows.size:
            self._launch(self.k.restart, self.lanes)

    def observe(self) -> None:
        self._launch(self.k.observe, -(-self.lanes // self.k.OBSERVED) * self.k.OBSERVERS, block=self.k.OBSERVERS)

    def drain(self) -> None:
        self._launch(self.steps.drain, self.lanes)
        self._after()

    def close_all(self) -> None:
        self._launch(self.steps.close_all, self.lanes)
        self._after()

    def run(self, actions: np.ndarray, inputs: np.ndarray) -> None:
        self._launch(self.steps.run, self.lanes, Grid(actions), self._picks(inputs))

    def follow(self, actions: np.ndarray, part: np.ndarray, steps: int, inputs: np.ndarray) -> None:
        self._launch(self.steps.follow, self.lanes, Grid(actions), Grid(part), steps, self._picks(inputs))

    def _picks(self, inputs: np.ndarray) -> Any:
        from lob.picks import Picks

        return Picks(*(Grid(row) for row in inputs))

    def world(self) -> Any:
        return each(self.grids, lambda grid: grid.numpy())


def trace(case: Case, build: type, device: str = "cpu") -> dict[str, np.ndarray]:
    """Everything that the case wrote in a build: every step's state, outputs, stored rows, sums and observations."""
    env = make_env(case, device)
    player = build(env)
    count = case.steps or env.schedule.decisions
    inputs = random_inputs(case, count)
    steps: dict[str, list[np.ndarray]] = {}
    for step in range(count + 1):
        player.observe()
        if step < count:
            player.step(inputs[step])
        elif case.steps:
            player.close_all()
        else:
            player.drain()
        for name, array in written(player.world(), case.lanes).items():
            steps.setdefault(name, []).append(array)
    return {name: np.concatenate(arrays) for name, arrays in steps.items()}


def trace_fused(case: Case, build: type, device: str = "cpu") -> dict[str, np.ndarray]:
    """State and outputs after many steps at once: half of the window by known picks, two more by random rules."""
    env = make_env(case, device, emit=(), diag=False)
    player = build(env)
    inputs = random_inputs(case, case.steps or env.schedule.decisions)
    inputs = inputs[: len(inputs) // 2]
    player.run(inputs[:, 0].copy(), inputs[0])
    rng = np.random.default_rng(case.seed)
    rules = rng.integers(0, 108, (2, env.schedule.rows, 3), np.int32)
    player.follow(rules, rng.integers(0, 2, case.lanes), 2, inputs[1])
    played = written(player.world(), case.lanes)
    return {name: played[name] for name in ("state", "reward", "end_reason", "fault", "row", "terminated", "truncated")}


def written(world: Any, lanes: int) -> dict[str, np.ndarray]:
    """What a step left, one leading axis; stored rows without the slots that were not used."""
    out = world.out
    arrays = {"state": world.state[:, :lanes], "observation": world.observation, "last_observation": world.last_observation}
    names = ("reward", "end_reason", "terminated", "truncated", "fault", "row", "last_row", "decided", "closed")
    arrays |= {name: getattr(out, name) for name in names}
    arrays |= {"steps": out.steps[:, :lanes], "counts": out.counts[:, :lanes]}
    arrays |= {name: getattr(world.sums, name) for name in ("merged", "previous", "moved", "cumulated")}
    result = {name: array[None].copy() for name, array in arrays.items()}
    for i, name in enumerate(("orders", "fills", "trades")):
        stored = getattr(out, name)
        used = np.arange(stored.shape[1]) < out.counts[i, :lanes, None]
        result[name] = stored[used].copy()
    return result


def trace_elsewhere(build: str, cases: tuple[Case, ...], folder: Path) -> list[dict[str, np.ndarray]]:
    """`trace` of each case in a process of its own, with the switches that the build needs."""
    switches = {"NUMBA_DISABLE_JIT": "1"} | ({"NUMBA_ENABLE_CUDASIM": "1"} if build == "cudasim" else {})
    numbers = ",".join(str(NUMBERED.index(case)) for case in cases)
    house = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-m", "tests.env_builds", build, numbers, str(folder)]
    done = subprocess.run(command, cwd=house, env=os.environ | switches, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [dict(np.load(folder / f"{build}{NUMBERED.index(case)}.npz")) for case in cases]


def short(case: Case) -> Case:
    """The case with few events and lanes: the simulator is slow."""
    return case._replace(events=40, lanes=3, sessions=2 if case.steps else 1, steps=min(case.steps, 25))


BUILDS = {"plain": Plain, "cudasim": Simulated}

if __name__ == "__main__":
    which, chosen, target = sys.argv[1:]
    for number in map(int, chosen.split(",")):
        played = short(NUMBERED[number]) if which == "cudasim" else NUMBERED[number]
        np.savez(Path(target) / f"{which}{number}.npz", **trace(played, BUILDS[which]))
        if which == "cudasim":
            np.savez(Path(target) / f"fused{number}.npz", **trace_fused(played, BUILDS[which]))
