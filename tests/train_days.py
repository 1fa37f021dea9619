"""Training runs of seconds: a store of five short synthetic days, the config of a run on it, and what two such runs have to share."""

from pathlib import Path
from typing import Any

from lob.instruments import REGISTRY
from sim.train import TrainResult, resume, train
from sim.train_config import TrainConfig, plan_train
from store.manifest import MANIFEST
from tests.kills import proved_files
from tests.window_days import day_bounds, store_of_days

DATES = ("2024-03-04", "2024-03-05", "2024-03-06", "2024-03-07", "2024-03-08")
WINDOW = {"start_ns": day_bounds(DATES[0])[0], "end_ns": day_bounds(DATES[-1])[1]}
BUT = ("abandoned", "unhashed", "unhashed.jsonl", "faults")
"""What a run that was stopped may have more, or otherwise, than one that never was."""

SMALL: dict[str, dict[str, Any]] = {
    "learner": {"batch": 16, "capacity": 512},
    "loop": {
        "steps": 120, "checkpoint_every": 20, "validate_every": 40, "block_steps": 10, "warmup_steps": 8, "eval_steps": 20,
    },
    "log": {"segment_steps": 25},
}  # fmt: skip


def make_store(folder: Path) -> Path:
    return store_of_days(folder, 1_000, DATES)


def small(store: Path, seed: int = 3, lanes: int = 8, flush_ms: int = 1, **sections: dict[str, Any]) -> TrainConfig:
    """The config of a small run; `sections` overrule what `SMALL` says."""
    stated = {name: {**SMALL.get(name, {}), **sections.get(name, {})} for name in {*SMALL, *sections}}
    return plan_train(
        store, "ESH4", REGISTRY, {"clock": "5m", **WINDOW}, stated, seed=seed, lanes=lanes, execution={"flush_ms": flush_ms}
    )  # fmt: skip


def run_of(runs: Path) -> Path | None:
    """The training run under `runs`, if one has begun."""
    for run in sorted(runs.glob("train-*")):
        chain = run / "chain.jsonl"
        if chain.exists() and b"\n" in chain.read_bytes():
            return run
    return None


def go_on(config: TrainConfig, store: Path, runs: Path) -> TrainResult:
    """Begin the run, or go on with it, as a user would after a kill."""
    run = run_of(runs)
    return train(config, store, runs) if run is None else resume(run)


def everything(runs: Path) -> dict[str, dict[str, Any]]:
    """What a training run and its evaluations have to hold, by role. Manifests are held apart from where the runs lie."""
    found = {}
    for run in sorted(runs.iterdir()):
        files = proved_files(run, BUT)
        if not run.name.startswith("train-"):
            files[MANIFEST] = files[MANIFEST].replace(str(runs).encode(), b"RUNS")  # the path of the checkpoint, outside every hash
        found[run.name] = files
    return found
