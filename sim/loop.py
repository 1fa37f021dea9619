"""The training loop on the host: blocks of steps, and what is due between two of them — log rows, bands, validation, checkpoints.

A block ends where something is due, so its length changes no byte of the log. Every hashed row of a step is in the log before the step ends
there, and a checkpoint is taken only when the log holds exactly the steps behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lob.actions import Phase
from lob.units import USD_MICROS, counted, format_usd
from sim.split import Split
from sim.tables import INFO, event_row

if TYPE_CHECKING:
    import torch

    from policy.training_state import Standing
    from sim.shards import Sharded
    from sim.tape import Loaded
    from sim.train_config import TrainConfig
    from sim.trainer import Trainer
    from store.runlog import RunLog

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all)."""


@dataclass(frozen=True)
class Parts:
    """What a training run plays on: the split, and the loaded training and validation windows under one normaliser."""

    split: Split
    train: Loaded
    validation: Loaded
    notes: tuple[str, ...]


class Loop:
    """One training run under way. `best` is (step, score) of the best validation so far, None before the first."""

    def __init__(self, config: TrainConfig, parts: Parts, trainer: Trainer | Sharded, log: RunLog) -> None:
        from policy.bands import MetricBandsRegistry

        self.config, self.parts, self.trainer, self.log = config, parts, trainer, log
        self.bands = MetricBandsRegistry()
        self.best: tuple[int, int] | None = None
        self.stop: str | None = None
        self.played = 0
        self.closed = False
        self._seq = 0
        self._committed_ns = 0  # by the block before, whose `timing` was written by then

    def restore(self, standing: Standing, tensors: Mapping[str, torch.Tensor]) -> None:
        """Stand where a checkpoint was taken."""
        counters = standing.counters
        self.trainer.load_tensors(tensors, standing.step)
        self.bands.restore(counters["bands"])
        self.best = None if counters["best"] is None else (counters["best"][0], counters["best"][1])
        self.played, self.stop, self.closed, self._seq = (counters[name] for name in ("played", "stop", "closed", "seq"))

    # --- to the end ---

    def run(self, progress: Progress | None) -> None:
        """Train until the last step, or until a band or a regression says stop. Raises CheckFailed on a value that is not finite."""
        from sim.checkpoints import starts
        from sim.replay import attempt_row

        loop = self.config.loop
        self.log.append_row("attempts", attempt_row(self.config, starts(self.log.run_dir)))
        if self.trainer.steps == 0:
            for note in self.parts.notes:
                self._event(0, INFO, "market.note", note)
        while not self.closed and self.trainer.steps < loop.steps and self.stop is None:
            self._block(_until_due(self.trainer.steps, self.config))
            if progress is not None:
                progress(self.trainer.steps, loop.steps)

    def end(self) -> str:
        """Close what is open, take the last checkpoint, seal, write the summary. Returns the head.

        A run that was stopped has finished too: every lane is closed, every dollar counted; its summary says why it stopped.
        """
        from sim.run_data import FINISHED, SUMMARY_FILES
        from sim.train_summary import summarize_training

        ended = self.trainer.steps
        if not self.closed:
            self.closed = True
            self.trainer.close()
            self._append(self.trainer.log.drain())
            self._timing(ended, 1, 0, 0)
            self.log.end_step(ended)
            self._checkpoint(ended + 1, None)
        self.log.commit()
        steps = self.trainer.steps - 1  # the closing row is no training step
        summary = summarize_training(self.log.run_dir, self.config, steps, self.played, self.best, self.stop)
        return self.log.finish(FINISHED, summary, SUMMARY_FILES["train"])

    # --- one block ---

    def _block(self, steps: int) -> None:
        trainer, started = self.trainer, time.perf_counter_ns()
        first = trainer.steps
        trainer.run(steps)
        captured = trainer.log.fetch()
        stepped = time.perf_counter_ns()
        trainer.check(self.log.run_dir / "faults")
        rows = trainer.log.columns(captured)
        diag = rows["diag"]
        self.played += int(diag["lanes.played"].sum())
        self._watch(first + steps - 1, diag)
        self._append(rows)
        logged = time.perf_counter_ns()
        done = trainer.steps
        score = self._validate(done) if self._is_due(done, self.config.loop.validate_every) else None
        due = self._is_due(done, self.config.loop.checkpoint_every) or score is not None
        if due:
            self._event(done - 1, INFO, "checkpoint", f"checkpoint after step {done}")
        self._timing(first, steps, stepped - started, logged - stepped + self._committed_ns)
        committing = time.perf_counter_ns()
        self.log.end_step(done - 1, steps)
        self._committed_ns = time.perf_counter_ns() - committing
        if due:
            self._checkpoint(done, score)

    def _is_due(self, done: int, every: int) -> bool:
        return done % every == 0 or done == self.config.loop.steps or self.stop is not None

    def _append(self, rows: Mapping[str, Mapping[str, Any]]) -> None:
        for table, columns in rows.items():
            self.log.append(table, columns)

    def _watch(self, step: int, diag: Mapping[str, np.ndarray]) -> None:
        """Hold the block's means against their bands."""
        names = [name for name in diag if name.startswith(("learn.", "signal."))]
        watched = self.bands.observe({name: _mean(diag[name]) for name in names})
        for event in watched.events:
            self._event(step, event.severity, event.kind, event.message, event.value)
        self.stop = watched.stop

    def _validate(self, done: int) -> int:
        """Mean USD of a validation window, micro-dollars: the present network, greedy."""
        from policy.checkpoint import policy_of
        from sim.baselines import play_side_by_side

        lanes = len(self.parts.validation.schedule.windows)
        policy = policy_of(self.checkpoint(done), "validation", lanes)
        earned = play_side_by_side(self.parts.validation, self.config, {"greedy": policy}, self.config.loop.device)["greedy"]
        score = int(earned.pnl_usd_micros.sum()) // lanes
        if self.best is None or score > self.best[1]:
            self.best = (done, score)
        days = "validation window" if lanes == 1 else "mean of the validation windows"
        said = f"greedy earns {format_usd(score)} a window ({days}, {counted(int(earned.trades.sum()), 'trade')})"
        self._event(done - 1, INFO, "validation", said, score / USD_MICROS)
        return score

    def checkpoint(self, done: int) -> Any:
        """The network as it is, as what replay and evaluation load."""
        from policy.checkpoint import Checkpoint
        from sim.about import about
        from sim.replay import run_name

        trainer = self.trainer
        story = about(self.config, self.parts.split, run_name(self.log.identity), done)
        health = int(trainer.controllers.health_ppm)
        return Checkpoint(trainer.model, trainer.bus.clone(), health, trainer.normaliser, story)

    def _checkpoint(self, done: int, score: int | None) -> Path:
        from policy.checkpoint import write
        from sim.checkpoints import save

        trainer = self.trainer
        counters = {"bands": self.bands.state(), "best": self.best, "played": self.played, "stop": self.stop}
        counters |= {"closed": self.closed, "seq": self._seq}
        network = self.checkpoint(done)
        return save(
            self.log, done, lambda folder: write(network, folder), trainer.tensors(), trainer.made_by(), counters, score,
            self.config.loop.keep_checkpoints,
        )  # fmt: skip

    def _event(self, step: int, severity: int, kind: str, message: str, value: float | None = None) -> None:
        self.log.append_row("events", event_row(Phase.TRAIN, step, self._seq, severity, kind, message, value))
        self._seq += 1

    def _timing(self, first: int, steps: int, stepped_ns: int, logged_ns: int) -> None:
        """Wall-clock of a block. What no step has of its own is shared evenly among them: on a GPU all of it, for they are one queue.

        Validation and checkpoints lie between two blocks and are no step's.
        """
        from sim.step_times import PARTS

        parts = self.trainer.times.parts() if stepped_ns else None  # the closing row is no step of the trainer's
        own = {part: np.ma.masked_all(steps, np.int64) for part in PARTS}
        if parts is not None:
            own = {part: np.ma.masked_array(parts[:, at]) for at, part in enumerate(PARTS)}
            logged_ns += max(0, stepped_ns - int(parts.sum()))
        elapsed = (stepped_ns // steps if parts is None else parts.sum(axis=1)) + logged_ns // steps
        columns = {f"{part}_ns": values for part, values in own.items()}
        columns["log_ns"] = np.ma.filled(own["log"], 0) + logged_ns // steps
        columns["phase"] = np.full(steps, Phase.TRAIN, np.int8)
        columns["step"] = np.arange(first, first + steps, dtype=np.int32)
        columns["wall_ns"] = np.full(steps, time.time_ns())
        columns["elapsed_ns"] = np.broadcast_to(elapsed, steps).astype(np.int64)
        columns["waited_ns"] = np.full(steps, int(self.log.waited_s * 1e9))
        self.log.append("timing", columns)


def _until_due(done: int, config: TrainConfig) -> int:
    """Steps until the next moment at which something is due."""
    loop = config.loop
    ends = [loop.steps, *((done // every + 1) * every for every in (loop.block_steps, loop.checkpoint_every, loop.validate_every))]
    return min(ends) - done


def _mean(column: np.ndarray) -> float | None:
    """Mean of a block's values, None where it has none."""
    values = np.ma.compressed(column) if np.ma.isMaskedArray(column) else column
    return float(values.mean()) if len(values) else None
