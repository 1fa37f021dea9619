"""The summary of a training run (`train_summary.json`): what its log says, and what the loop decided."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.train_config import TrainConfig


def summarize_training(
    run_dir: Path, config: TrainConfig, steps: int, played: int, best: tuple[int, int] | None, stop: str | None
) -> dict[str, Any]:
    """The summary of the log as it is committed, with `training`: steps, decisions of living lanes, the checkpoint that validation chose
    (null before the first) with its content hash, and why the run stopped early (null when it did not). Raises BadInput when that
    checkpoint cannot be read."""
    from sim.checkpoints import content_of, folder_of
    from sim.summary import summarize

    training = {
        "steps": steps,
        "played_decisions": played,
        "best_step": None if best is None else best[0],
        "best_score_usd_micros": None if best is None else best[1],
        "best_content_hash": None if best is None else content_of(folder_of(run_dir, best[0])),
        "stopped": stop,
        "profile": config.model.profile,
        "seed": config.seed,
    }
    return summarize(run_dir, finished=True) | {"training": training}
