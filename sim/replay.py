"""The main job: one market range, one policy, many lanes, every step logged. The only loop in which the rooms meet."""

from __future__ import annotations

import os
import platform
import shlex
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lob.errors import BadInput, TapeproofError
from lob.units import counted, format_usd
from sim.config import RunConfig, config_hash, hashed_document

if TYPE_CHECKING:
    from cuda_env.env import Env
    from lob.tape import Schedule, Tape
    from policy.protocol import Policy
    from sim.run_data import RunData
    from sim.tape import Loaded
    from store.runlog import RunLog

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""

Conclude = Callable[["RunData", Mapping[str, Any]], Mapping[str, Any]]
"""Called with the finished run and its summary; gives what the summary is to hold beside."""

FINISHED = "finished"


@dataclass(frozen=True)
class Parent:
    """The training run that a run was led to by: the name of its folder, and its head."""

    run: str
    head: str


@dataclass(frozen=True)
class ReplayResult:
    """A finished run. `elapsed_s` is wall-clock of loop, log and summary, without set-up and compilation; `waited_s` of it, waiting for
    the disk. `played` counts the decisions of living lanes (at most `steps * lanes`), `closed` the lanes that the capital floor ended.
    """

    run_dir: Path
    head: str
    steps: int
    lanes: int
    played: int
    closed: int
    elapsed_s: float
    waited_s: float
    notes: tuple[str, ...]
    summary: dict[str, Any]


def replay(
    config: RunConfig,
    store: Path,
    runs: Path,
    progress: Progress | None = None,
    rebuild_features: bool = False,
    loaded: Loaded | None = None,
    parent: Parent | None = None,
    conclude: Conclude | None = None,
    device: str = "cpu",
) -> ReplayResult:
    """Run `config` against a market store and log it into a new folder under `runs`.

    `loaded` is what `sim.tape.load` gives for it, if that is at hand. The head of `parent` enters the identity of a run that a training run
    led to, its name does not: runs of equal heads are the same. `conclude` adds to the summary, of which the chain holds the hash. `device`
    is what a network computes on; its kind is part of the policy's identity, and the environment steps on the CPU.

    Raises BadInput, NotFound, StaleCache, ForeignCheckpoint. An interrupt commits what has been played, leaves a run that `sim seal`
    closes, and goes on as a KeyboardInterrupt that says so.
    """
    from cuda_env.env import Env
    from lob.actions import Phase
    from sim.policy import make_policy, normaliser_of
    from sim.run_data import SUMMARY_FILES
    from sim.run_data import load as load_log
    from sim.summary import summarize
    from sim.tables import emitted, run_tables
    from sim.tape import load
    from store.run_read import read_run
    from store.runlog import RunLog

    loaded = loaded or load(store, config, rebuild=rebuild_features, normaliser=normaliser_of(config.policy))
    policy = make_policy(
        config.policy, config.seed, config.lanes, device, mean=loaded.normaliser.mean, std=loaded.normaliser.std, selector=config.selector
    )  # fmt: skip
    emit = emitted(config.log.level)

    def make_env(lanes: int) -> Env:
        phase, threads = Phase[config.phase.upper()], config.execution.threads
        return Env(loaded.tape, loaded.schedule, loaded.features, config.env, lanes, phase, emit=emit, threads=threads)

    warm_up(make_env, policy, config.lanes)
    env = make_env(config.lanes)
    identity = run_identity(config, policy.identity(), loaded.provenance) | ({"parent": {"head": parent.head}} if parent else {})
    run_dir, sooner = new_run_dir(runs, identity)
    log = RunLog.create(
        run_dir,
        identity=identity,
        attributes={"store": str(store), "policy": config.policy} | ({"parent": parent.run} if parent else {}),
        tables=run_tables(config.env.queue_model),
        level=config.log.level,
        segment_steps=config.log.segment_steps,
        flush_rows=config.execution.flush_rows,
        flush_seconds=config.execution.flush_ms / 1000,
    )
    noted = [("market.note", note) for note in (*market_notes(loaded.tape, loaded.schedule), *loaded.notes)]
    noted += [("account.note", note) for note in account_notes(config)]
    notes = tuple(note for _, note in noted)
    started = time.perf_counter()
    try:
        with log:
            log.append_row("attempts", attempt_row(config))
            for row in _events(env.phase, noted):
                log.append_row("events", row)
            played, closed = _play(env, policy, log, loaded.schedule, config.execution.flush_ms / 1000, progress)
            log.commit()
            run = replace(load_log(run_dir), finished=True)
            summary = summarize(run)
            summary |= conclude(run, summary) if conclude else {}
            head = log.finish(FINISHED, summary, SUMMARY_FILES[config.phase])
    except KeyboardInterrupt:
        raise KeyboardInterrupt(what_is_kept(run_dir)) from None
    elapsed = time.perf_counter() - started
    for folder in sooner:
        with suppress(TapeproofError):
            if read_run(folder).head == head:
                notes += (f"an equal run is there already: {folder} (same head); SQL over {runs} counts both: choose one by run_id",)
                break
    return ReplayResult(
        run_dir, head, loaded.schedule.longest, config.lanes, played, closed, elapsed, log.waited_s, notes, summary
    )  # fmt: skip


def kernels_are_compiled(queue_model: str = "none", training: bool = False) -> bool:
    """Whether the compile cache holds this build's physics, those of the book's queues where they are asked for, and the learner's kernels
    where one learns; if not, the first run compiles them, which takes a minute."""
    from lob.jit import is_compiled

    needed = ["cuda_env/kernels_cpu.step_*"]
    needed += ["cuda_env/step_live.live_step_lane-*"] if queue_model != "none" else []
    needed += ["policy/loss_kernels.*"] if training else []
    return all(map(is_compiled, needed))


def warm_up(make_env: Callable[[int], Env], policy: Policy, lanes: int) -> None:
    """Compile, or load from the compile cache, everything that the loop will call: one step of an environment that is thrown away.

    Its lanes are as few as call the same kernels. A policy keeps no state, so asking it once more changes nothing.
    """
    import torch

    from cuda_env.blocks import BlockLog
    from cuda_env.kernels_cpu import PARALLEL_FROM
    from lob.layout import LANE, STATE_DIM
    from policy.protocol import constant_picks
    from policy.tables import DIAG, diag_row

    past = torch.zeros(lanes, policy.window, LANE) if policy.window else None
    picks = policy.act(torch.zeros(lanes, STATE_DIM), past, 0)
    diag_row(picks, policy.diagnostics(), torch.ones(lanes, dtype=torch.bool))
    few = min(lanes, PARALLEL_FROM)
    env = make_env(few)
    block = BlockLog(env, 2, DIAG)  # of two steps: rows of one alone lie otherwise in memory, which is another kernel
    env.observe()
    env.step(constant_picks(few, "cpu"))
    block.capture()
    env.close_all()
    block.capture()
    block.drain()


def what_is_kept(run_dir: Path) -> str:
    """What an interrupted run leaves, and how to close it."""
    from store.run_read import read_run

    steps = counted(read_run(run_dir).steps, "step")
    return f"{run_dir} keeps its first {steps}; close it with `{shlex.join(['sim', 'seal', str(run_dir)])}`"


def run_identity(config: RunConfig, policy: dict[str, Any], data: dict[str, Any], device: str = "cpu") -> dict[str, Any]:
    """What the chain starts from: everything that decides the log's bytes, and no path and no clock.

    The device class names the instruction set too: float features may differ between instruction sets, integers never do.
    """
    from lob.layout import layout_fingerprint
    from sim.house import code_hash, version

    return {
        "config": hashed_document(config, policy),
        "data": data,
        "layout_fingerprint": layout_fingerprint(),
        "code": {"version": version(), "sha256": code_hash()},
        "device": device_class(device),
    }


def device_class(device: str) -> str:
    """The kind of machine that decides the last bits of floats."""
    if device == "cpu":
        return f"cpu-{platform.machine()}"
    import torch

    return f"cuda-{torch.cuda.get_device_name()}"


def run_name(identity: Mapping[str, Any]) -> str:
    """`<phase>-<instrument>-<first digits of the identity's hash>`: the same for equal runs."""
    from urllib.parse import quote

    config = identity["config"]
    return f"{config['phase']}-{quote(config['instrument']['symbol'], safe='')}-{config_hash(dict(identity))[:10]}"


def new_run_dir(runs: Path, identity: Mapping[str, Any]) -> tuple[Path, list[Path]]:
    """A new empty folder of the run's name; a second equal run gets `-2`, and so on. With it, those that were there.

    Raises BadInput when it cannot be made.
    """
    name = run_name(identity)
    sooner: list[Path] = []
    while True:
        folder = runs / (f"{name}-{len(sooner) + 1}" if sooner else name)
        try:
            folder.mkdir(parents=True)  # two that begin at once must not take the same
            return folder, sooner
        except FileExistsError:
            if not folder.is_dir():
                raise BadInput(f"{folder}: is no folder: choose another folder of runs") from None
            sooner.append(folder)
        except OSError as error:
            raise BadInput(f"{folder}: the run cannot be written there ({error.strerror}); choose another folder or free space") from None


def market_notes(tape: Tape, schedule: Schedule) -> tuple[str, ...]:
    """What a reader should know of the market data before believing a result: one sentence each."""
    notes = list(tape.notes)
    if tape.barred:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in tape.barred.items() if count)
        what = "bars" if tape.schema.startswith("ohlcv") else "rows"
        notes.append(f"{sum(tape.barred.values()):,} of {tape.records:,} {what} cannot be traded on ({reasons})")
    if schedule.ticks_skipped:
        notes.append(
            f"{schedule.ticks_skipped:,} ticks of the clock {schedule.clock} were skipped: a decision waits until its predecessor's order "
            "has met a tradable book"
        )
    return tuple(notes)


def account_notes(config: RunConfig) -> tuple[str, ...]:
    """What a reader should know of the account's terms before believing a result."""
    capital, margin = config.env.capital_usd_micros, config.env.margin_usd_micros
    if margin is None or capital >= margin:
        return ()
    return (
        f"the capital of {format_usd(capital)} is below the margin of one lot ({format_usd(margin)}): nothing can be opened; "
        "raise --capital or state the --margin that you are asked for",
    )


BLOCK_LANE_STEPS = 2**15
"""Lane-steps that are gathered before they become rows: few lanes pay Python's price for a row once in many steps."""
MOST_BLOCK_STEPS = 256


def _play(env: Env, policy: Policy, log: RunLog, schedule: Schedule, flush_s: float, progress: Progress | None) -> tuple[int, int]:
    """Every decision, then the drain, which in a joined plan comes to each lane at the end of its own window; (decisions of living lanes,
    lanes that the floor ended).

    Steps are gathered in blocks and go to the log together; how many they are changes no hashed byte. After `flush_s` what was played is
    committed, and when a step is interrupted or refused, the steps before it are in the log.
    """
    import numpy as np

    from cuda_env.blocks import NULL, BlockLog
    from policy.tables import DIAG, diag_row, no_picks_row

    block = BlockLog(env, max(1, min(MOST_BLOCK_STEPS, BLOCK_LANE_STEPS // env.lanes)), DIAG)
    played = closed = committed_ns = 0
    now = time.perf_counter_ns
    steps = schedule.longest + 1
    times: list[tuple[int, ...]] = []  # of the block's steps: wall-clock, and when each of its parts ended

    def hand_over() -> None:
        nonlocal played, closed, committed_ns
        tables = block.drain()
        number = tables["diag"]["step"]
        if not len(number):
            return
        for table, columns in tables.items():
            log.append(table, columns)
        log.append("timing", _timing(env.phase, int(number[0]), log.waited_s, times[: len(number)], now() + committed_ns))
        logged = now()
        log.end_step(int(number[-1]), len(number))
        committed_ns = now() - logged
        times.clear()
        played += int(tables["diag"]["lanes.played"].sum())
        closed += int(tables["diag"]["end.capital_floor"].sum())

    committed = time.monotonic()
    try:
        for step in range(steps):
            begun = now()
            if step < schedule.longest:
                observation = env.observe()
                observed = now()
                picks = policy.act(observation, env.history(policy.window) if policy.window else None, step)
                picked = now()
                env.step(picks)
                of_policy = diag_row(picks, policy.diagnostics(), env.decided)
            else:  # every lane that has not been drained yet
                observed = picked = begun
                env.close_all()
                of_policy = no_picks_row()
            moved = now()
            block.put(np.array([NULL if value is None else value for value in of_policy.values()], np.int64))
            times.append((time.time_ns(), begun, observed, picked, moved))
            block.capture()
            is_due = time.monotonic() - committed >= flush_s
            if len(times) < block.steps and step + 1 < steps and not is_due:
                continue
            hand_over()
            if is_due:
                log.commit()
                committed = time.monotonic()
            if progress is not None:
                progress(step + 1, steps)
    except BaseException:
        with suppress(TapeproofError):  # the log's own fault would be raised here again
            hand_over()
        raise
    return played, closed


def attempt_row(config: RunConfig, attempt: int = 0) -> dict[str, Any]:
    """The `attempts` row of this start."""
    return {
        "attempt": attempt,
        "started_ns": time.time_ns(),
        "host": socket.gethostname(),
        "process": os.getpid(),
        "threads": config.execution.threads,
        "python": platform.python_version(),
        "command": shlex.join(sys.argv),
        "folder": os.getcwd(),
    }


def _events(phase: int, notes: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """What was known of market and account before the first step, (kind, sentence) each, as `events` rows."""
    from sim.tables import WARNING, event_row

    return [event_row(phase, 0, i, WARNING, kind, note) for i, (kind, note) in enumerate(notes)]


def _timing(phase: int, first: int, waited_s: float, times: Sequence[tuple[int, ...]], logged: int) -> dict[str, Any]:
    """The `timing` rows of a block that begins with step `first`; what the log took of it stands at its last step, where it was due."""
    import numpy as np

    wall, begun, observed, picked, moved = np.array(times, np.int64).T
    log_ns = np.zeros(len(wall), np.int64)
    log_ns[-1] = logged - moved[-1]
    return {
        "phase": np.full(len(wall), phase, np.int8),
        "step": np.arange(first, first + len(wall), dtype=np.int32),
        "wall_ns": wall,
        "elapsed_ns": moved - begun + log_ns,
        "observe_ns": np.ma.masked_array(observed - begun),
        "policy_ns": np.ma.masked_array(picked - observed),
        "physics_ns": np.ma.masked_array(moved - picked),
        "learn_ns": np.ma.masked_all(len(wall), np.int64),
        "log_ns": log_ns,
        "waited_ns": np.full(len(wall), int(waited_s * 1e9), np.int64),
    }
