"""The main job: one market range, one policy, many lanes, every step logged. The only loop in which the rooms meet."""

from __future__ import annotations

import os
import platform
import shlex
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.config import RunConfig, config_hash, hashed_document

if TYPE_CHECKING:
    from cuda_env.env import Env
    from lob.tape import Schedule, Tape
    from policy.protocol import Policy
    from store.runlog import RunLog

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""

FINISHED = "finished"
INFO, WARNING = 0, 1


@dataclass(frozen=True)
class ReplayResult:
    """A finished run. `elapsed_s` is wall-clock of loop, log and summary, without set-up; `waited_s` of it, waiting for the disk."""

    run_dir: Path
    head: str
    steps: int
    lanes: int
    elapsed_s: float
    waited_s: float
    notes: tuple[str, ...]
    summary: dict[str, Any]


def replay(config: RunConfig, store: Path, runs: Path, progress: Progress | None = None, rebuild_features: bool = False) -> ReplayResult:
    """Run `config` against a market store and log it into a new folder under `runs`.

    Raises BadInput, NotFound, StaleCache, ForeignCheckpoint. An interrupt commits what has been played and leaves a run that
    `sim seal` closes.
    """
    from cuda_env.env import EMIT, Env
    from lob.actions import Phase
    from sim.policy import make_policy
    from sim.run_data import load as load_log
    from sim.summary import summarize
    from sim.tables import RUN_TABLES
    from sim.tape import load
    from store.runlog import RunLog

    loaded = load(store, config, rebuild=rebuild_features)
    policy = make_policy(config.policy, config.seed, config.lanes, mean=loaded.normaliser.mean, std=loaded.normaliser.std)
    kept = {table.name for table in RUN_TABLES if config.log.level.partition(":")[0] in table.levels}
    env = Env(
        loaded.tape,
        loaded.schedule,
        loaded.features,
        config.env,
        config.lanes,
        Phase[config.phase.upper()],
        emit=tuple(table for table in EMIT if table in kept),
        seed=config.seed,
        threads=config.execution.threads,
    )
    identity = run_identity(config, policy.identity(), loaded.provenance)
    log = RunLog.create(
        new_run_dir(runs, config, identity),
        identity=identity,
        attributes={"store": str(store), "policy": config.policy},
        tables=RUN_TABLES,
        level=config.log.level,
        segment_steps=config.log.segment_steps,
        flush_rows=config.execution.flush_rows,
        flush_seconds=config.execution.flush_ms / 1000,
    )
    notes = market_notes(loaded.tape, loaded.schedule) + loaded.notes
    started = time.perf_counter()
    with log:
        log.append_row("attempts", _attempt(config))
        for row in _events(env.phase, notes):
            log.append_row("events", row)
        _play(env, policy, log, loaded.schedule, progress)
        log.commit()
        summary = summarize(replace(load_log(log.run_dir), finished=True))
        head = log.finish(FINISHED, summary)
    elapsed = time.perf_counter() - started
    return ReplayResult(log.run_dir, head, loaded.schedule.decisions, config.lanes, elapsed, log.waited_s, notes, summary)


def run_identity(config: RunConfig, policy: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
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
        "device": f"cpu-{platform.machine()}",
    }


def new_run_dir(runs: Path, config: RunConfig, identity: dict[str, Any]) -> Path:
    """`<phase>-<instrument>-<first digits of the identity's hash>`; a second equal run gets `-2`, and so on."""
    from urllib.parse import quote

    name = f"{config.phase}-{quote(config.instrument.symbol, safe='')}-{config_hash(identity)[:10]}"
    attempt = 1
    while (folder := runs / (name if attempt == 1 else f"{name}-{attempt}")).exists():
        attempt += 1
    return folder


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


def _play(env: Env, policy: Policy, log: RunLog, schedule: Schedule, progress: Progress | None) -> None:
    """Every decision, then the drain. A step's rows are in the log before the next decision is made."""
    from policy.tables import diag_row, no_picks_row

    now = time.perf_counter_ns
    steps = schedule.decisions + 1
    for step in range(steps):
        begun = now()
        if step < schedule.decisions:
            observation = env.observe()
            observed = now()
            picks = policy.act(observation, None, step)
            picked = now()
            env.step(picks)
            of_policy = diag_row(picks, policy.diagnostics(), env.played)
        else:
            observed = picked = begun
            env.drain()
            of_policy = no_picks_row()
        moved = now()
        for table in env.emit:
            log.append(table, env.rows(table))
        log.append_row("diag", env.diag() | of_policy)
        log.append_row("timing", _timing(env.phase, step, log.waited_s, begun, observed, picked, moved, now()))
        log.end_step(step)
        if progress is not None:
            progress(step + 1, steps)


def _attempt(config: RunConfig) -> dict[str, Any]:
    """The `attempts` row of this start."""
    return {
        "attempt": 0,
        "started_ns": time.time_ns(),
        "host": socket.gethostname(),
        "process": os.getpid(),
        "threads": config.execution.threads,
        "python": platform.python_version(),
        "command": shlex.join(sys.argv),
        "folder": os.getcwd(),
    }


def _events(phase: int, notes: Sequence[str]) -> list[dict[str, Any]]:
    """What was known of the market before the first step, as `events` rows."""
    return [
        {"phase": phase, "step": 0, "seq": i, "lane": None, "severity": WARNING, "kind": "market.note", "message": note, "value": None}
        for i, note in enumerate(notes)
    ]


def _timing(phase: int, step: int, waited_s: float, begun: int, observed: int, picked: int, moved: int, logged: int) -> dict[str, int]:
    return {
        "phase": phase,
        "step": step,
        "wall_ns": time.time_ns(),
        "elapsed_ns": logged - begun,
        "observe_ns": observed - begun,
        "policy_ns": picked - observed,
        "physics_ns": moved - picked,
        "log_ns": logged - moved,
        "waited_ns": int(waited_s * 1e9),
    }
