"""`sim train`: days in, a policy out, every training trade logged, and an evaluation on days that the policy has not seen.

The loop is here; what one step does is `sim.trainer`. Blocks of steps end where something is due, so their length changes no byte.
"""

from __future__ import annotations

import json
import shlex
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lob.errors import BadInput
from lob.units import counted, format_usd
from sim.config import TapeConfig
from sim.evaluations import settle_evaluations
from sim.loop import Loop, Parts, Progress
from sim.loop_config import LoopConfig
from sim.peers import PeerLost, Peers
from sim.run_data import FINISHED, SUMMARY_FILES
from sim.split import FEWEST_DAYS, Window, split
from sim.train_config import ASKED, POLICY, TrainConfig, from_document

if TYPE_CHECKING:
    from sim.shards import Sharded
    from sim.tape import Loaded
    from sim.trainer import Trainer


@dataclass(frozen=True)
class TrainResult:
    """A finished training run and its evaluations. `played` are the decisions of living lanes that this process played, `elapsed_s` its
    wall-clock for them, log, validation and checkpoints included: a resumed run's are those since then.
    """

    run_dir: Path
    head: str
    steps: int
    lanes: int
    played: int
    elapsed_s: float
    best: Path
    notes: tuple[str, ...]
    summary: dict[str, Any]
    evaluations: list[dict[str, Any]]
    evaluation_lines: list[str]


def train(
    config: TrainConfig, store: Path, runs: Path, progress: Progress | None = None, rebuild_features: bool = False
) -> TrainResult | None:
    """Begin a training run in a new folder under `runs`, train it to its end and evaluate it. With `rebuild_features` nothing is taken from
    the feature cache.

    Raises BadInput, NotFound, StaleCache; CheckFailed when a value that is not finite stopped it; PeerLost. An interrupt leaves a run that
    `sim train --resume` goes on with. Of several processes (`torchrun`) the first returns the result, the others None.
    """
    from sim.shards import processes_of

    with processes_of(config) as peers:
        return _train(config, store, runs, progress, peers, rebuild_features)


def _train(config: TrainConfig, store: Path, runs: Path, progress: Progress | None, peers: Peers, rebuild: bool) -> TrainResult | None:
    from sim.replay import new_run_dir
    from sim.tables import run_tables
    from sim.verdict import FAULTS
    from store.runlog import RunLog

    parts = peers.in_turn(lambda: prepare(config, store, rebuild))
    if peers.rank:
        _follow(config, parts.train, peers)
        return None
    trainer = make_trainer(config, parts.train, peers)
    identity = train_identity(config, parts)
    run_dir, _ = new_run_dir(runs, identity)
    log = RunLog.create(
        run_dir,
        identity=identity,
        attributes={"store": str(store.resolve()), "policy": config.policy},
        tables=run_tables(config.env.queue_model, is_training=True),
        level=config.log.level,
        segment_steps=config.log.segment_steps,
        flush_rows=config.execution.flush_rows,
        flush_seconds=config.execution.flush_ms / 1000,
        seal_behind_checkpoints=True,
    )
    try:
        result = _finish(Loop(config, parts, trainer, log), store, progress, rebuild)
    except Exception:
        if log.steps == 0 and not (run_dir / FAULTS).exists():
            shutil.rmtree(run_dir)  # the same command begins it anew; a run without a step would count as a trial
        raise
    peers.tell()  # the run has ended: the others may go
    return result


def _follow(config: TrainConfig, loaded: Loaded, peers: Peers) -> None:
    from sim.exactness import exact
    from sim.shards import Hosted

    exact(config.loop)
    Hosted(config, loaded, peers).follow()


def resume(
    run_dir: Path, store: Path | None = None, threads: int = 1, progress: Progress | None = None, rebuild_features: bool = False
) -> TrainResult | None:
    """Go on with a training run from its last checkpoint: the bytes of log, weights and summaries are those of a run that never stopped.

    A run that has trained to its end is evaluated. `store` overrules where the run's market lay. Raises NotFound, BadInput (another build,
    other data), ForeignCheckpoint, PeerLost. As many processes as divide its shards may go on with a run, whoever began it.
    """
    from sim.shards import processes_of
    from store.manifest import read_manifest

    manifest = read_manifest(run_dir)
    identity = manifest["identity"]
    stated = identity.get("config", {})
    if stated.get("phase") != "train" or "asked" not in identity:
        raise BadInput(f"{run_dir}: is no run of `sim train` (phase {stated.get('phase')!r}): only those can be resumed")
    config = from_document(stated, identity["asked"], {"threads": threads})
    with processes_of(config) as peers:
        return _resume(config, run_dir, store, manifest, progress, peers, rebuild_features)


def _resume(
    config: TrainConfig,
    run_dir: Path,
    named: Path | None,
    manifest: Mapping[str, Any],
    progress: Progress | None,
    peers: Peers,
    rebuild: bool,
) -> TrainResult | None:
    from policy.training_state import load_state, read_standing
    from sim.checkpoints import latest, resume_log
    from sim.tables import run_tables
    from store.run_read import UNFINISHED, read_run

    store = named or Path(manifest["attributes"]["store"])
    state = peers.tell(None if peers.rank else read_run(run_dir).state)
    if state == FINISHED:
        if peers.rank:
            return None
        if named is not None:
            _check_data(run_dir, manifest, prepare(config, named, rebuild))
        return _conclude(config, store, run_dir, rebuild)
    if state != UNFINISHED:
        raise BadInput(f"{run_dir}: the run was closed before its end ({state}): nothing can be added to it; start a new one")
    parts = peers.in_turn(lambda: prepare(config, store, rebuild))
    if peers.rank:
        _follow(config, parts.train, peers)
        return None
    trainer = make_trainer(config, parts.train, peers)
    folder = latest(run_dir)
    standing = None if folder is None else read_standing(folder)
    log = resume_log(
        run_dir,
        standing,
        train_identity(config, parts),
        run_tables(config.env.queue_model, is_training=True),
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
    result = _finish(loop, store, progress, rebuild)
    peers.tell()
    return result


def _check_data(run_dir: Path, manifest: Mapping[str, Any], parts: Parts) -> None:
    """Raise BadInput unless the parts are the data that a run was trained and validated on. Builds are not compared: nothing is trained."""
    from store.manifest import declared_tables
    from store.reopen import check_same

    now = {**manifest["identity"], "data": parts.train.provenance, "validation_data": parts.validation.provenance}
    check_same(run_dir, manifest, now, list(declared_tables(manifest).values()))


def prepare(config: TrainConfig, store: Path, rebuild: bool = False) -> Parts:
    """Split the days and load the training and the validation part; the normaliser is fitted on the training days alone."""
    from sim.tape import load

    parts = split(days_of(config, store), config.split)
    train_loaded = load(store, part_config(config, parts.train, parts.train_range), rebuild)
    validation = load(store, part_config(config, parts.validation, None), rebuild, normaliser=train_loaded.normaliser)
    train, others = counted(len(parts.train), "window"), f"{len(parts.validation)} validate, {len(parts.test)} test"
    notes: tuple[str, ...] = (f"{train} to train on, {others} (split by {parts.by})",)
    if config.loop.steps < first_update(config.loop):
        notes += (f"nothing is learnt: the first update would come at step {first_update(config.loop)}, and there are {config.loop.steps}",)
    return Parts(parts, train_loaded, validation, notes + tuple(train_loaded.notes))


def first_update(loop: LoopConfig) -> int:
    """The training step, from 1, at which the learner updates first: beyond the warm-up, a multiple of `env_steps_per_update`."""
    return (loop.warmup_steps // loop.env_steps_per_update + 1) * loop.env_steps_per_update


def days_of(config: TrainConfig, store: Path) -> list[tuple[Any, int, int]]:
    """The sessions with data inside the config's window. So few that they are split by time are cut to where the data is: no part of the
    split may lie where there is none."""
    from sim.tape import cut_to_data, sessions_of

    tape, symbol = config.tape, config.instrument.symbol
    days = sessions_of(store, symbol, tape.market_schema, config.instrument.instrument(), tape.start_ns, tape.end_ns)
    return days if len(days) >= FEWEST_DAYS else cut_to_data(store, symbol, tape.market_schema, days)


def part_config(config: TrainConfig, windows: tuple[Window, ...], fit: Window | None) -> TrainConfig:
    """The config of one part: its windows, features normalised by what is fitted on `fit`; None: by what is brought along."""
    tape = config.tape.model_dump() | {"windows": windows, "start_ns": windows[0][0], "end_ns": windows[-1][1]}
    tape |= dict(zip(("fit_start_ns", "fit_end_ns"), fit or (None, None), strict=True))
    return config.model_copy(update={"tape": TapeConfig(**tape)})


def make_trainer(config: TrainConfig, loaded: Loaded, peers: Peers | None = None) -> Trainer | Sharded:
    """What the loop trains with: this process alone (None), or leading others."""
    from sim.exactness import exact
    from sim.shards import Hosted, Sharded
    from sim.trainer import Trainer

    exact(config.loop)
    if config.loop.shards == 1:
        return Trainer(config, loaded)
    return Sharded(Hosted(config, loaded, peers or Peers()))


def train_identity(config: TrainConfig, parts: Parts) -> dict[str, Any]:
    """What the chain of a training run starts from."""
    from sim.replay import run_identity

    architecture = config.model.architecture().document()
    played = part_config(config, parts.split.train, parts.split.train_range)
    policy = {"name": POLICY, "architecture": architecture}
    identity = run_identity(played, policy, parts.train.provenance, config.loop.device)
    identity["asked"] = {name: getattr(config.tape, name) for name in ASKED}
    identity["validation_data"] = parts.validation.provenance
    return identity


def _finish(loop: Loop, store: Path, progress: Progress | None, rebuild: bool) -> TrainResult:
    """Train to the end, close the log, evaluate."""
    run_dir = loop.log.run_dir
    started, before = time.perf_counter(), loop.played
    try:
        with loop.log:
            loop.run(progress)
            loop.end()
    except KeyboardInterrupt:
        kept = counted(loop.log.steps, "step")
        raise KeyboardInterrupt(f"{run_dir} keeps its first {kept}; go on with `{_resume_line(run_dir)}`") from None
    except (MemoryError, RuntimeError, PeerLost) as error:
        if loop.log.steps:
            error.add_note(f"{run_dir} keeps its first {counted(loop.log.steps, 'step')}; go on with `{_resume_line(run_dir)}`")
        raise
    elapsed_s = time.perf_counter() - started
    return _conclude(loop.config, store, run_dir, rebuild, loop.played - before, elapsed_s, loop.parts.notes)


def _conclude(
    config: TrainConfig, store: Path, run_dir: Path, rebuild: bool, played: int = 0, elapsed_s: float = 0.0, notes: tuple[str, ...] = ()
) -> TrainResult:
    """The evaluations of a run that has trained to its end: greedy, the headline, and Boltzmann beside it.

    Those that are there already are not played again; what a kill left of one moves to the run's `abandoned/evaluations`.
    """
    from sim.checkpoints import BEST, CHECKPOINTS
    from sim.evaluate import SELECTORS, evaluate, plan_evaluation
    from sim.registry import registry_of
    from store.reopen import ABANDONED
    from store.run_read import read_run, seal

    seal(run_dir)  # completes the end of a run that was killed between its chain's last line and its manifest
    summary = json.loads((run_dir / SUMMARY_FILES["train"]).read_bytes())
    best = run_dir / CHECKPOINTS / BEST
    plan = plan_evaluation(
        best, store, registry_of(None), None, {"step_limit": config.loop.eval_steps}, {}, execution=config.execution.model_dump()
    )
    found = settle_evaluations(plan, best, run_dir.parent, run_dir / ABANDONED / "evaluations", config.loop.device)
    try:
        if set(SELECTORS) - set(found):
            made = evaluate(plan, store, run_dir.parent, rebuild_features=rebuild, done=tuple(found), device=config.loop.device)
            found |= {one.selector: one.result.run_dir for one in made}
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{run_dir} has trained to its end; evaluate it with `{_resume_line(run_dir)}`") from None
    evaluations = [_evaluated(selector, found[selector]) for selector in SELECTORS]
    lines = [f"{one['selector']}: {format_usd(one['total_pnl_usd_micros'])} on the test days; {one['run']}" for one in evaluations]
    head, steps = read_run(run_dir).head, summary["training"]["steps"]
    return TrainResult(run_dir, head, steps, config.lanes, played, elapsed_s, best, notes, summary, evaluations, lines)


def _evaluated(selector: str, run: Path) -> dict[str, Any]:
    from store.run_read import read_run

    total = json.loads((run / SUMMARY_FILES["eval"]).read_bytes())["total_pnl_usd_micros"]
    return {"selector": selector, "run": str(run), "head": read_run(run).head, "total_pnl_usd_micros": total}


def _resume_line(run_dir: Path) -> str:
    return shlex.join(["sim", "train", "--resume", str(run_dir)])
