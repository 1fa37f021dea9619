"""The checkpoint that a training chose: the weights that lie there are those whose hash its summary, and with it its head, holds."""

import hashlib
import json
from pathlib import Path

from lob.errors import first_line
from sim.checkpoints import BEST, CHECKPOINTS
from sim.run_data import RunData
from sim.verify_types import OK, Check, failed, skipped

NAME = "checkpoint"


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


def _fault(folder: Path, said: str) -> str | None:
    """What of a checkpoint's folder is not what the content hash `said` covers: manifest, then tensor by tensor."""
    import torch

    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
        stated = json.dumps(
            {name: value for name, value in manifest.items() if name != "content_hash"}, sort_keys=True, separators=(",", ":")
        )
        content, described = hashlib.sha256(stated.encode()).hexdigest(), manifest["tensors"]
        if content != said:
            return f"its manifest has the content {content}, the run's summary names {said}"
        tensors = torch.load(folder / "tensors.pt", map_location="cpu", weights_only=True)
        if set(tensors) != set(described):
            return f"tensors.pt lacks or adds the tensor {min(set(tensors) ^ set(described))}"
        for name, tensor in tensors.items():
            found = hashlib.sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data).hexdigest()
            if found != described[name]["sha256"]:
                return f"tensor {name} has the SHA-256 {found}, its manifest says {described[name]['sha256']}"
    except Exception as error:  # torch has no one error for a broken file
        return f"cannot be read ({first_line(error)})"
    return None
