"""Training twice, and the first difference: the claim "same seed, same bytes" put to the test."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lob.errors import BadInput
from sim.compare import Difference, first_difference

if TYPE_CHECKING:
    from sim.train_config import TrainConfig

FOLDER = "determinism"
"""Where the two trainings lie, under the runs' folder; no run is looked for deeper than one level, so they count in no query."""


@dataclass(frozen=True)
class Outcome:
    """`runs` are pairs of equal runs (training, then its evaluations), `difference` the first one found among them."""

    runs: tuple[tuple[Path, Path], ...]
    heads: tuple[str, ...]
    difference: Difference | None

    def document(self) -> dict[str, Any]:
        return {
            "equal": self.difference is None,
            "runs": [[str(path) for path in pair] for pair in self.runs],
            "heads": list(self.heads),
            "difference": None if self.difference is None else str(self.difference),
        }

    def text(self) -> str:
        names = "\n".join(f"  {a.name}  head {head}" for (a, _), head in zip(self.runs, self.heads, strict=True))
        if self.difference is None:
            return f"trained twice, every hashed byte equal: log, checkpoints, summaries\n{names}\nDETERMINISTIC"
        return f"first difference: {self.difference}\n{names}\nNOT DETERMINISTIC"


def train_twice(config: TrainConfig, store: Path, runs: Path, rebuild_features: bool = False) -> Outcome:
    """Train and evaluate twice, each time in a process of its own with another hash seed; the first may compute the features anew.

    Raises BadInput when the folder is in use.
    """
    folders = [runs / FOLDER / name for name in ("first", "second")]
    for folder in folders:
        if folder.exists():
            raise BadInput(f"{folder}: an earlier comparison lies there; remove {runs / FOLDER} first")
    made = [_in_a_process(config, store, folder, str(seed), rebuild_features and seed == 1) for seed, folder in enumerate(folders, 1)]
    pairs = tuple(zip(*made, strict=True)) if len(made[0]) == len(made[1]) else ()
    heads, difference = [], None
    if not pairs:
        difference = Difference("number of runs", str(len(made[0])), str(len(made[1])))
    for one, other in pairs:
        heads.append(_head(one))
        difference = difference or first_difference(one, other)
    if difference is None:
        shutil.rmtree(folders[1])
    return Outcome(pairs, tuple(heads), difference)


def _head(run: Path) -> str:
    from store.run_read import read_run

    return read_run(run).head


def _in_a_process(config: TrainConfig, store: Path, runs: Path, hash_seed: str, rebuild: bool) -> list[Path]:
    before = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = hash_seed
    try:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            return pool.submit(_train, config.model_dump_json(), str(store), str(runs), rebuild).result()
    finally:
        if before is None:
            del os.environ["PYTHONHASHSEED"]
        else:
            os.environ["PYTHONHASHSEED"] = before


def _train(config: str, store: str, runs: str, rebuild: bool) -> list[Path]:
    from sim.train import train
    from sim.train_config import TrainConfig

    result = train(TrainConfig.model_validate_json(config), Path(store), Path(runs), None, rebuild)
    assert result is not None  # this process is alone
    return [result.run_dir, *(Path(evaluation["run"]) for evaluation in result.evaluations)]
