"""The evaluations that lie beside a training run: which of them are whole, and what a kill has left of the others."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.config import RunConfig


def settle_evaluations(plan: RunConfig, checkpoint: Path, runs: Path, aside: Path, device: str = "cpu") -> dict[str, Path]:
    """{selector: run} of the finished evaluations of `checkpoint` as `plan` would play it on `device`, made by its own training run.

    Another account, window, checkpoint or parent makes another evaluation. One that a kill has left unfinished counts for nothing: it moves
    to `aside`, so that its name is free for the one that is played in its place. Raises BadInput when a process is still writing one.
    """
    from policy.checkpoint import load
    from policy.network import where
    from sim.config import hashed_document
    from sim.evaluate import parent_of
    from sim.run_data import FINISHED
    from sim.trials import run_manifests
    from store.run_read import UNFINISHED, seal

    parent, content = parent_of(checkpoint), load(checkpoint)[1]
    wanted = json.loads(json.dumps(hashed_document(plan, {})))
    player = {"checkpoint": content, "device": where(device).get("device")}
    found: dict[str, Path] = {}
    for run, manifest in run_manifests(runs):
        stated = manifest["identity"].get("config", {})
        policy = stated.get("policy") or {}
        played = {name: policy.get(name) for name in player}
        made_by = (manifest["attributes"].get("parent"), (manifest["identity"].get("parent") or {}).get("head"))
        if parent is None or made_by != (parent.run, parent.head) or {**stated, "policy": {}} != wanted or played != player:
            continue
        state = _state(run)
        if state == FINISHED:
            seal(run)  # completes the end of one that was killed between its chain's last line and its manifest
            found.setdefault(policy["selector"], run)
        elif state == UNFINISHED:
            _set_aside(run, aside / run.name)
    return found


def _state(run: Path) -> str:
    from store.chain import CHAIN
    from store.run_read import UNFINISHED, read_run

    chain = run / CHAIN
    if not chain.exists() or b"\n" not in chain.read_bytes():
        return UNFINISHED  # killed while it was made
    return read_run(run).state


def _set_aside(run: Path, place: Path) -> None:
    from store.runlog import lock_run

    lock = lock_run(run)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(place, ignore_errors=True)
        os.rename(run, place)
    finally:
        os.close(lock)
