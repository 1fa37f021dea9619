"""What `sim bench` measures. Each function makes a benchmark of a stated size; `cases` has the sizes that it runs at."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cuda_env import state as s
from cuda_env.config import EnvConfig
from cuda_env.env import Env
from lob.actions import ACTIONS, Phase
from lob.calendar import session_bounds, sessions
from lob.instruments import REGISTRY, resolve
from lob.layout import BUS_SLOTS, LANE, LANE_SLOTS, STATE_DIM
from lob.picks import Picks
from lob.records import LEVELS
from lob.schedule import schedule
from lob.synth import synthesize_day
from lob.tape_build import book_tape
from lob.units import PPM, counted
from policy.architecture import profile
from policy.controls import learn_controls
from policy.learner import LearnConfig, Learner, learn
from policy.memory import Memory
from policy.model import initialise
from sim.bench import Case, Trial, require
from sim.ingest import ingest
from sim.plan import plan_replay
from sim.replay import replay
from sim.run_data import load as load_log
from sim.synth import synth
from sim.tape import load
from sim.verify import verify

if TYPE_CHECKING:
    from lob.tape import Schedule, Tape

SYMBOL, DATE = "ESH4", "2024-01-03"
MINUTE_NS = 60 * 10**9
SCRIPTS = 16
"""Different random picks, used in turn."""

PLENTY_USD_MICROS = 10**14
"""Capital with which nobody dies, so that every lane plays to the end."""

ACCOUNT: dict[str, Any] = {"max_lots": 8, "trail_ticks": 40, "plan_lock_steps": 2, "capital_usd_micros": PLENTY_USD_MICROS}
"""Every gate on, and sizes that walk the book."""

FILLED_STEPS, HELD_STEPS = 64, 512
"""Steps that replay memory holds before the first update, and has room for."""

UPDATES = 20
"""Updates of a round: enough that a call's overhead is none of the figure."""

ROWS = 4096
"""Market rows that the learner's observations are drawn from."""


def cases() -> list[Case]:
    """Every benchmark at the size that `sim bench` runs it at; those on CUDA where there is a GPU."""
    found = [tape_case(), env_case(), replay_case(), verify_case(), learner_case()]
    return [*found, env_cuda_case()] if torch.cuda.is_available() else found


def tape_case(rows: int = 200_000) -> Case:
    """Store columns to tape."""

    def prepare(folder: Path, threads: int) -> Trial:
        records, columns = _day(rows)

        def check(given: None, tape: Tape) -> None:
            tick = tape.instrument.tick_price_e9
            for level, (side, ticks) in itertools.product(range(LEVELS), (("bid", tape.bid_ticks), ("ask", tape.ask_ticks))):
                prices = records[f"{side}_px_{level:02d}"]
                require(np.array_equal(ticks[:, level] * np.int64(tick), prices), f"level {level} of the {side} is not what was recorded")
            require(np.array_equal(tape.ts_recv_ns, np.maximum.accumulate(records["ts_recv"].astype(np.int64))), "receive times differ")

        return Trial(f"{rows:,} rows of ten levels", rows, lambda: None, lambda _: _tape(records, columns), check)

    return Case(
        "tape", "columns of the store to the tape", "rows/s", "every price and receive time against the records that they came from",
        "memory: some 600 bytes read and written a row, on one core", prepare,
    )  # fmt: skip


def env_case(lanes: int = 1024, decisions: int = 500) -> Case:
    """Environment with observation, one call a step."""

    def prepare(folder: Path, threads: int) -> Trial:
        market, picks = _market(decisions), _picks(lanes, "cpu")

        def work(env: Env) -> None:
            for step in range(env.schedule.decisions):
                env.observe()
                env.step(picks[step % SCRIPTS])

        def set_up() -> Env:
            return Env(*market, _account(), lanes, Phase.TRAIN, emit=(), threads=threads, diag=False)

        return Trial(
            f"{lanes:,} lanes x {decisions:,} decisions, {counted(threads, 'thread')}", lanes * decisions, set_up, work, _check_accounts
        )

    return Case(
        "env", "environment: observation of 128 floats, random picks, every gate", "steps/s",
        "each account drained: its closed trades sum to the change of its cash, and nothing is open",
        "integer divisions and branches of random picks; 512 bytes written a lane and step; some 10 us a call", prepare,
    )  # fmt: skip


def env_cuda_case(lanes: int = 65_536, decisions: int = 500) -> Case:
    """The same step on a GPU, captured in a graph."""

    def prepare(folder: Path, threads: int) -> Trial:
        market, picks = _market(decisions), _picks(lanes, "cuda")[0]

        def set_up() -> tuple[Env, torch.cuda.CUDAGraph]:
            env = Env(*market, _account(), lanes, Phase.TRAIN, device="cuda", emit=(), diag=False)
            begun, graph = env.state.clone(), torch.cuda.CUDAGraph()
            with torch.cuda.stream(env.stream):
                env.observe()
                env.step(picks)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, stream=env.stream):
                env.observe()
                env.step(picks)
            env.state.copy_(begun)
            torch.cuda.synchronize()
            return env, graph

        def work(given: tuple[Env, torch.cuda.CUDAGraph]) -> None:
            env, graph = given
            with torch.cuda.stream(env.stream):
                for _ in range(decisions):
                    graph.replay()
            torch.cuda.synchronize()

        def check(given: tuple[Env, torch.cuda.CUDAGraph], output: None) -> None:
            given[0].check()
            _check_accounts(given[0], output)

        return Trial(f"{lanes:,} lanes x {decisions:,} decisions, one launch a step", lanes * decisions, set_up, work, check)

    return Case(
        "env-cuda", "the same on the GPU, captured in a CUDA graph", "steps/s",
        "each account drained: its closed trades sum to the change of its cash, and nothing is open",
        "memory of the card: an observation of 512 bytes written and its template row read, a lane and step", prepare,
    )  # fmt: skip


def replay_case(lanes: int = 64, minutes: int = 20, events: int = 60_000) -> Case:
    """A replay as `sim replay` makes it, from a loaded tape to a finished run."""

    def prepare(folder: Path, threads: int) -> Trial:
        store, config = _stored(folder, lanes, minutes, events, threads)
        loaded = load(store, config)

        def check(given: None, result: Any) -> None:
            tables = load_log(result.run_dir).tables
            _check_dollars(tables["steps"].to_pydict(), tables["trades"].to_pydict(), lanes)

        size = f"{lanes:,} lanes x {loaded.schedule.decisions:,} decisions, {counted(threads, 'thread')}, level full"
        steps = lanes * (loaded.schedule.decisions + 1)
        return Trial(size, steps, lambda: None, lambda _: replay(config, store, folder / "runs", loaded=loaded), check)

    return Case(
        "replay", "replay with its whole log: play, journal, seal, summary", "steps/s",
        "in the log of every lane: its trades sum to the change of its equity, and it ends flat",
        "turning arrays into rows, zstd and SHA-256 of them; fsync of each segment", prepare,
    )  # fmt: skip


def verify_case(lanes: int = 64, minutes: int = 20, events: int = 60_000) -> Case:
    """`sim verify` of such a run."""

    def prepare(folder: Path, threads: int) -> Trial:
        store, config = _stored(folder, lanes, minutes, events, threads)
        result = replay(config, store, folder / "runs")

        def check(given: None, verdict: Any) -> None:
            require(verdict.ok, "the run is not verified: " + "; ".join(check.line() for check in verdict.failed))
            totals = set(verdict.totals.values())
            require(len(totals) == 1 and None not in totals, f"the five computations differ: {verdict.totals}")

        steps = lanes * result.steps
        return Trial(f"{lanes:,} lanes x {result.steps:,} rows", steps, lambda: None, lambda _: verify(result.run_dir, store), check)

    return Case(
        "verify", "the proof of such a run against log and market", "steps/s", "verified, all five computations of its dollars equal",
        "numpy passes over the steps' columns, on one core", prepare,
    )  # fmt: skip


def learner_case(batch: int = 256, lanes: int = 128, updates: int = UPDATES, name: str = "small") -> Case:
    """A whole update: draw, assemble, two networks, losses, AdamW, priorities."""

    def prepare(folder: Path, threads: int) -> Trial:
        generator = torch.Generator().manual_seed(1)
        features, bus = torch.randn(ROWS, STATE_DIM, generator=generator), torch.zeros(BUS_SLOTS)
        model = initialise(profile(name), 1)
        sizes: dict[str, Any] = {"batch": batch, "capacity": lanes * HELD_STEPS}
        config = LearnConfig(**sizes)
        learner = Learner(model, config, lanes)
        memory = Memory(lanes, HELD_STEPS, config.batch, config.n_step, config.alpha, 3)
        _fill(memory, generator)
        controls = learn_controls(share_c51=0.36, share_iqn=0.54, share_cql=0.05, share_aux=0.05)

        def assemble(rows: torch.Tensor, lane_rows: torch.Tensor) -> torch.Tensor:
            observation = features[rows]
            observation[:, LANE : LANE + len(LANE_SLOTS)] = lane_rows
            return observation

        def history(width: int, rows: torch.Tensor) -> torch.Tensor:
            back = torch.arange(1 - width, 1)
            return features[:, :LANE][(rows[:, None] + back).clamp(min=0)]

        def work(given: None) -> Any:
            torch.set_num_threads(threads)
            for _ in range(updates):
                stats = learn(learner, memory, assemble, history, bus, controls)
            return stats

        def check(given: None, stats: Any) -> None:
            require(bool(torch.isfinite(stats.loss + stats.grad_norm)), "loss or gradient is not finite")
            require(int(memory.total) == int(memory.leaves.sum()), "replay's root is not the sum of its leaves")

        return Trial(f"{updates} updates, batch {batch}, profile {name}, {counted(threads, 'thread')}", updates, lambda: None, work, check)

    return Case(
        "learner", "updates of the learner", "updates/s", "loss and gradient finite, replay's root the sum of its leaves",
        "products of matrices: two networks forward, one of them backward", prepare,
    )  # fmt: skip


# --- markets, accounts, picks ---


def _day(rows: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """(records, their columns) of a synthetic day."""
    records = synthesize_day(resolve(SYMBOL), dt.date.fromisoformat(DATE), rows, seed=3)
    return records, {name: np.ascontiguousarray(records[name]) for name in records.dtype.names or ()}


def _tape(records: np.ndarray, columns: dict[str, np.ndarray]) -> Tape:
    instrument, rows = resolve(SYMBOL), len(records)
    held = sessions(instrument.calendar, int(records["ts_event"][0]), int(records["ts_recv"][-1]))
    return book_tape(columns, {}, np.zeros(rows, np.int32), np.arange(rows, dtype=np.int64), ("0" * 64,), instrument, held)


def _market(decisions: int) -> tuple[Tape, Schedule, np.ndarray]:
    """(tape, schedule, features) of so many decisions, a tenth of a second apart, from the middle of a day; features are random."""
    tape = _tape(*_day(400 * decisions if decisions < 500 else 200_000))
    middle = int(tape.ts_recv_ns[tape.events // 2])
    plan = schedule(tape, "100ms", middle, int(tape.ts_recv_ns[-1]), 10**6, _account().max_lots, step_limit=decisions)
    features = np.random.default_rng(0).normal(size=(plan.rows, STATE_DIM)).astype(np.float32)
    features[:, LANE : LANE + len(LANE_SLOTS)] = 0
    return tape, plan, features


def _account() -> EnvConfig:
    return EnvConfig(**ACCOUNT)


def _picks(lanes: int, device: str) -> list[Picks]:
    rng = np.random.default_rng(1)

    def tensor(low: int, high: int) -> torch.Tensor:
        return torch.from_numpy(rng.integers(low, high, lanes).astype(np.int32)).to(device)

    return [Picks(tensor(0, ACTIONS), tensor(0, PPM), tensor(0, PPM), tensor(PPM // 4, PPM)) for _ in range(SCRIPTS)]


def _check_accounts(env: Env, output: None) -> None:
    env.drain()
    state = env.state[:, : env.lanes]
    gained = state[s.CASH] - env.config.capital_usd_micros
    require(torch.equal(state[s.SUM_WIN] - state[s.SUM_LOSS], gained), "closed trades do not sum to the change of cash")
    require(not bool(state[s.POSITION].any()), "a position is left open")
    require(bool(gained.any()), "nothing was traded")


def _stored(folder: Path, lanes: int, minutes: int, events: int, threads: int) -> tuple[Path, Any]:
    """(store, config) of a replay of random picks over the first minutes of a synthetic day."""
    path, store = folder / "day.dbn", folder / "store"
    synth(SYMBOL, DATE, events, 1, 1.0, path)
    ingest(path, store)
    start, _ = session_bounds(resolve(SYMBOL).calendar, dt.date.fromisoformat(DATE))
    tape = {"clock": "1s", "start_ns": start, "end_ns": start + minutes * MINUTE_NS}
    rest = {"policy": "random", "seed": 7, "lanes": lanes, "execution": {"threads": threads}}
    return store, plan_replay(store, SYMBOL, REGISTRY, tape, {"capital_usd_micros": PLENTY_USD_MICROS}, {"level": "full"}, **rest)


def _check_dollars(steps: Mapping[str, list], trades: Mapping[str, list], lanes: int) -> None:
    """Per lane, in plain Python: the trades' dollars are the change of equity, and the last row is flat."""
    gained, flat = [-PLENTY_USD_MICROS] * lanes, [0] * lanes
    for lane, equity, position in zip(steps["lane"], steps["equity_usd_micros"], steps["position_lots"], strict=True):
        gained[lane], flat[lane] = equity - PLENTY_USD_MICROS, position
    for lane, realized in zip(trades["lane"], trades["realized_usd_micros"], strict=True):
        gained[lane] -= realized
    require(not any(gained), "trades do not sum to the change of equity")
    require(not any(flat), "a position is left open")
    require(len(trades["lane"]) > 0, "nothing was traded")


def _fill(memory: Memory, generator: torch.Generator) -> None:
    """Decisions with random rows, rewards and actions; a hundredth of them end an episode."""
    lanes = memory.lanes
    zeros = torch.zeros(lanes, dtype=torch.int32)
    for step in range(FILLED_STEPS):
        row = torch.randint(0, ROWS - 1, (lanes,), generator=generator)
        ends = torch.rand(lanes, generator=generator) < 0.01
        reward, slots = torch.randn(lanes, generator=generator), torch.randn(lanes, len(LANE_SLOTS), generator=generator)
        action = torch.randint(0, ACTIONS, (lanes,), generator=generator)
        memory.add(row, slots, action, reward, row + 1, slots, ends, ends, zeros + 1, zeros, zeros + step)
