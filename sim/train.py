"""`sim train`: days in, a policy out, every training trade logged, and an evaluation on days that the policy has not seen.

The loop is here; what one step does is `sim.trainer`. Blocks of steps end where something is due, so their length changes no byte.
"""

from __future__ import annotations

import json
import shlex
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lob.errors import BadInput
from lob.units import counted, format_usd
from sim.config import TapeConfig
from sim.loop import Loop, Parts, Progress
from sim.split import Window, split
from sim.train_config import ASKED, POLICY, TrainConfig, from_document
from sim.train_summary import FILE

if TYPE_CHECKING:
    from sim.tape import Loaded
    from sim.trainer import Trainer

UNFINISHED = "unfinished"


@dataclass(frozen=True)
class TrainResult:
    """A finished training run and its evaluations. `elapsed_s` is wall-clock of this process's steps, log and checkpoints included."""

    run_dir: Path
    head: str
    steps: int
    lanes: int
    elapsed_s: float
    best: Path
    notes: tuple[str, ...]
    summary: dict[str, Any]
    evaluations: list[dict[str, Any]]
    evaluation_lines: list[str]


def train(config: TrainConfig, store: Path, runs: Path, progress: Progress | None = None) -> TrainResult:
    """Begin a training run in a new folder under `runs`, train it to its end and evaluate it.

    Raises BadInput, NotFound, StaleCache; CheckFailed when a value that is not finite stopped it. An interrupt leaves a run that
    `sim train --resume` goes on with.
    """
    from sim.replay import new_run_dir
    from store.runlog import RunLog

    parts = prepare(config, store)
    trainer = make_trainer(config, parts.train)
    identity = train_identity(config, parts)
    run_dir, _ = new_run_dir(runs, config, identity)
    log = RunLog.create(
        run_dir,
        identity=identity,
        attributes={"store": str(store.resolve()), "policy": config.policy},
        tables=_tables(),
        level=config.log.level,
        segment_steps=config.log.segment_steps,
        flush_rows=config.execution.flush_rows,
        flush_seconds=config.execution.flush_ms / 1000,
        seal_behind_checkpoints=True,
    )
    return _finish(Loop(config, parts, trainer, log), store, progress)


def resume(run_dir: Path, store: Path | None = None, threads: int = 1, progress: Progress | None = None) -> TrainResult:
    """Go on with a training run from its last checkpoint: the bytes of log, weights and summaries are those of a run that never stopped.

    A run that has trained to its end is evaluated. `store` overrules where the run's market lay. Raises NotFound, BadInput (another build,
    other data), ForeignCheckpoint.
    """
    from policy.training_state import load_state, read_standing
    from sim.checkpoints import latest, resume_log
    from store.manifest import read_manifest
    from store.run_read import read_run

    manifest = read_manifest(run_dir)
    stated = manifest["identity"].get("config", {})
    if stated.get("phase") != "train":
        raise BadInput(f"{run_dir}: is no training run (phase {stated.get('phase')!r}): only those can be resumed")
    config = from_document(stated, manifest["identity"]["asked"], {"threads": threads})
    store = store or Path(manifest["attributes"]["store"])
    if read_run(run_dir).state != UNFINISHED:
        return _conclude(config, store, run_dir, 0.0, ())
    parts = prepare(config, store)
    trainer = make_trainer(config, parts.train)
    folder = latest(run_dir)
    standing = None if folder is None else read_standing(folder)
    log = resume_log(
        run_dir,
        standing,
        train_identity(config, parts),
        _tables(),
        config.loop.keep_checkpoints,
        flush_rows=config.execution.flush_rows,
        flush_seconds=config.execution.flush_ms / 1000,
    )
    loop = Loop(config, parts, trainer, log)
    try:
        if folder is not None:
            standing, tensors = load_state(folder, trainer.forms(), trainer.made_by())
            loop.restore(standing, tensors)
    except BaseException:
        log.close()
        raise
    return _finish(loop, store, progress)


def prepare(config: TrainConfig, store: Path) -> Parts:
    """Split the days and load the training and the validation part; the normaliser is fitted on the training days alone."""
    from sim.tape import load

    parts = split(days_of(config, store), config.split)
    train_loaded = load(store, part_config(config, parts.train, parts.train_range))
    validation = load(store, part_config(config, parts.validation, parts.train_range))
    notes = (f"{len(parts.train)} windows train, {len(parts.validation)} validate, {len(parts.test)} test (split by {parts.by})",)
    return Parts(parts, train_loaded, validation, notes + tuple(train_loaded.notes))


def days_of(config: TrainConfig, store: Path) -> list[tuple[Any, int, int]]:
    """The sessions with data inside the config's window."""
    from sim.tape import sessions_of

    tape = config.tape
    return sessions_of(store, config.instrument.symbol, tape.market_schema, config.instrument.instrument(), tape.start_ns, tape.end_ns)


def part_config(config: TrainConfig, windows: tuple[Window, ...], fit: Window, **changes: Any) -> TrainConfig:
    """The config of one part: its windows, features normalised by what was fitted on `fit`."""
    tape = config.tape.model_dump() | {"windows": windows, "start_ns": windows[0][0], "end_ns": windows[-1][1]}
    tape |= {"fit_start_ns": fit[0], "fit_end_ns": fit[1]}
    return config.model_copy(update={"tape": TapeConfig(**tape), **changes})


def make_trainer(config: TrainConfig, loaded: Loaded) -> Trainer:
    from sim.exactness import exact
    from sim.trainer import Trainer

    exact(config.loop)
    return Trainer(config, loaded)


def train_identity(config: TrainConfig, parts: Parts) -> dict[str, Any]:
    """What the chain of a training run starts from."""
    from sim.replay import run_identity

    architecture = config.model.architecture().document()
    played = part_config(config, parts.split.train, parts.split.train_range)
    identity = run_identity(played, {"name": POLICY, "architecture": architecture}, parts.train.provenance)
    identity["asked"] = {name: getattr(config.tape, name) for name in ASKED}
    identity["validation_data"] = parts.validation.provenance
    identity["device"] = device_class(config.loop.device)
    return identity


def device_class(device: str) -> str:
    """The kind of machine that decides the last bits of floats."""
    import platform

    import torch

    if device == "cuda":
        return f"cuda-{torch.cuda.get_device_name()}"
    return f"cpu-{platform.machine()}"


def _tables() -> Any:
    from sim.tables import TRAIN_TABLES

    return TRAIN_TABLES


def _finish(loop: Loop, store: Path, progress: Progress | None) -> TrainResult:
    """Train to the end, close the log, evaluate."""
    run_dir = loop.log.run_dir
    started = time.perf_counter()
    try:
        with loop.log:
            loop.run(progress)
            loop.end()
    except KeyboardInterrupt:
        line = f"{run_dir} keeps its first {counted(loop.log.steps, 'step')}; go on with `sim train --resume {shlex.quote(str(run_dir))}`"
        raise KeyboardInterrupt(line) from None
    return _conclude(loop.config, store, run_dir, time.perf_counter() - started, loop.parts.notes)


def _conclude(config: TrainConfig, store: Path, run_dir: Path, elapsed_s: float, notes: tuple[str, ...]) -> TrainResult:
    """The evaluations of a run that has trained to its end: greedy, the headline, and Boltzmann beside it."""
    from sim.checkpoints import BEST, CHECKPOINTS
    from sim.evaluate import evaluate, plan_evaluation
    from sim.registry import registry_of
    from store.run_read import read_run, seal

    seal(run_dir)  # completes the end of a run that was killed between its chain's last line and its manifest
    summary = json.loads((run_dir / FILE).read_bytes())
    best = run_dir / CHECKPOINTS / BEST
    plan = plan_evaluation(
        best, store, registry_of(None), None, {"step_limit": config.loop.eval_steps}, {}, execution=config.execution.model_dump()
    )
    evaluations, lines = [], []
    for one in evaluate(plan, store, run_dir.parent):
        result = one.result
        total = result.summary["total_pnl_usd_micros"]
        evaluations.append({"selector": one.selector, "run": str(result.run_dir), "head": result.head, "total_pnl_usd_micros": total})
        lines.append(f"{one.selector}: {format_usd(total)} on the test days; {result.run_dir}")
    return TrainResult(
        run_dir, read_run(run_dir).head, summary["training"]["steps"], config.lanes, elapsed_s, best, notes, summary, evaluations, lines
    )  # fmt: skip
