"""A training's checkpoints: the weights of the best are those whose hash its summary, and with it its head, holds; and where each of them
says that the training stood, from which a resume goes on, is what was written."""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lob.errors import ForeignCheckpoint, first_line
from sim.checkpoints import BEST, CHECKPOINTS, list_checkpoints
from sim.run_data import RunData
from sim.verify_types import OK, Check, failed, skipped

NAME, STATE_NAME = "checkpoint", "training_state"
UNHASHED_FORMAT = 1
"""Training states of this format had no hash of their own."""


def check_best(run_dir: Path, run: RunData) -> list[Check]:
    """`checkpoints/best` against the summary of a training that has ended, every tensor hashed anew. No layout of this build is asked.

    Skipped where the summary names none, or where the folder was taken away: that says nothing against the dollars.
    """
    if "train" not in run.terms.phases or run.summary is None:
        return []
    training = run.summary.get("training")
    said = training.get("best_content_hash") if isinstance(training, dict) else None
    folder = run_dir / CHECKPOINTS / BEST
    if said is None:
        return [skipped(NAME, "the summary names no checkpoint's content")]
    if not folder.is_dir():
        return [skipped(NAME, f"{CHECKPOINTS}/{BEST} is not there: no weights can be held against the summary")]
    fault = _fault(folder, said)
    return [failed(NAME, fault, f"{CHECKPOINTS}/{BEST}", "content_hash") if fault else Check(NAME, OK, "")]


def check_states(run_dir: Path, run: RunData) -> list[Check]:
    """`state.json` of every checkpoint of a training against the hash in it. A checkpoint that its run drops meanwhile is none."""
    if "train" not in run.terms.phases:
        return []
    said = {folder: _fault_of_state(folder) for folder in list_checkpoints(run_dir).values()}
    wrong = [
        failed(STATE_NAME, fault, f"{CHECKPOINTS}/{folder.name}", "content_hash")
        for folder, fault in said.items()
        if fault and folder.is_dir()
    ]
    return wrong or ([Check(STATE_NAME, OK, "")] if said else [])


def _fault_of_state(folder: Path) -> str | None:
    try:
        document = json.loads((folder / "state.json").read_bytes())
        if document["format"] == UNHASHED_FORMAT and "content_hash" not in document:
            return None
        found = _hash_of(document)
        return None if found == document["content_hash"] else f"state.json has the content {found}, it says {document['content_hash']}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"state.json cannot be read ({first_line(error)})"


def _hash_of(document: Mapping[str, Any]) -> str:
    stated = {name: value for name, value in document.items() if name != "content_hash"}
    return hashlib.sha256(json.dumps(stated, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _fault(folder: Path, said: str) -> str | None:
    """What of a checkpoint's folder is not what the content hash `said` covers: manifest, then tensor by tensor."""
    import torch

    from policy.tensor_file import read_dictionary

    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
        content, described = _hash_of(manifest), manifest["tensors"]
        if content != said:
            return f"its manifest has the content {content}, the run's summary names {said}"
        tensor_bytes = sum(math.prod(form["shape"]) * getattr(torch, form["dtype"]).itemsize for form in described.values())
        tensors = read_dictionary(folder / "tensors.pt", tensor_bytes, ForeignCheckpoint)
        if set(tensors) != set(described):
            return f"tensors.pt lacks or adds the tensor {min(set(tensors) ^ set(described))}"
        for name, tensor in tensors.items():
            found = hashlib.sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data).hexdigest()
            if found != described[name]["sha256"]:
                return f"tensor {name} has the SHA-256 {found}, its manifest says {described[name]['sha256']}"
    except Exception as error:  # torch has no one error for a broken file
        return f"cannot be read ({first_line(error)})"
    return None
