"""The state of a training run on disk: everything beside the network's checkpoint that is needed to go on as if it had never stopped.

`state.json` says where the run stood (training step, steps of the log, head of its chain, counters, score), what made it (versions,
layout fingerprints), the shape, dtype and SHA-256 of every tensor, and a hash over all of this; `state.pt` holds the tensors. Random
generators have no state here: draws are counted by Philox. Nothing in the files can run code, and sizes are checked before a tensor is
allocated (`policy.tensor_file`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from lob.errors import ForeignCheckpoint, NotFound
from lob.layout import layout_fingerprint
from policy.tensor_file import Form, check_names, content_hash, describe, form_of, on_cpu, read_json, read_tensors, write_tensors

FORMAT = 2
STATE, TENSORS = "state.json", "state.pt"
_KEYS = {"format", "step", "log_steps", "log_head", "score", "counters", "made_by", "tensors", "content_hash"}
_HEAD = re.compile(r"[0-9a-f]{64}")
_MOST = 2**62
"""Counts above this are no counts."""


@dataclass(frozen=True)
class Standing:
    """Where a training run stands. What is not in the tensors and changes while it runs belongs into `counters`, as JSON values."""

    step: int
    """Training steps done."""
    log_steps: int
    """Steps of the run's log behind them (`RunLog.steps`)."""
    log_head: str
    """Head of the log's chain at that point."""
    score: int | float | None = None
    """How the network did on the validation days, more is better; None: it was not asked at this step."""
    counters: Mapping[str, Any] = field(default_factory=dict)


def made_by() -> dict[str, str]:
    """What has to be equal for a resumed run to equal the one that never stopped, beside the code that the run's identity names."""
    return {"observation_layout": layout_fingerprint(), "torch": str(torch.__version__)}


def write_state(folder: Path, standing: Standing, tensors: Mapping[str, torch.Tensor], made: Mapping[str, str]) -> None:
    """Write the state's files into a folder that `policy.tensor_file.write_folder` makes whole and durable.

    `tensors`: any dtype and device, any name; written in the order of their names. `made`: `made_by()` and the fingerprints of what else
    lays the tensors out. Raises ValueError when counters or score hold NaN or infinity, and OSError.
    """
    stored = on_cpu({name: tensors[name] for name in sorted(tensors)})
    described = {name: describe(tensor) for name, tensor in stored.items()}
    document = {"format": FORMAT, **asdict(standing), "made_by": dict(made), "tensors": described}
    document = json.loads(json.dumps(document, allow_nan=False))  # as it will be read: the hash is of that
    document["content_hash"] = content_hash(document)
    write_tensors(folder / TENSORS, stored)
    (folder / STATE).write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


def read_standing(folder: Path) -> Standing:
    """Where the run stood, without a look at the tensors. Raises NotFound and ForeignCheckpoint."""
    return _standing(_document(folder), _refuse(folder))


def load_state(folder: Path, expected: Mapping[str, Form], made: Mapping[str, str]) -> tuple[Standing, dict[str, torch.Tensor]]:
    """A state that fits: the tensors, on the CPU, are exactly those `expected` (name: (shape, dtype)), and `made` is what made them.

    Raises NotFound, or ForeignCheckpoint with the one thing that does not fit.
    """
    refuse = _refuse(folder)
    document = _document(folder)
    standing = _standing(document, refuse)
    for name in sorted({*document["made_by"], *made}):
        stated, now = document["made_by"].get(name, "nothing"), made.get(name, "nothing")
        if stated != now:
            raise refuse(f"{name} was {_short(stated)} when it was saved and is {_short(now)} now")
    described = document["tensors"]
    check_names(STATE, set(described), set(expected), refuse)
    return standing, read_tensors(folder / TENSORS, {name: expected[name] for name in sorted(expected)}, described, refuse)


def restore(targets: Mapping[str, torch.Tensor], tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy loaded tensors into those that a run holds, in place: addresses stay, nothing is shared. All of them, or none (ValueError)."""
    if targets.keys() != tensors.keys():
        raise ValueError(f"tensors {sorted(targets.keys() ^ tensors.keys())} are in one of the two sets alone")
    for name, target in targets.items():
        if form_of(target) != form_of(tensors[name]):
            raise ValueError(f"tensor {name}: {form_of(tensors[name])} is to be copied into {form_of(target)}")
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(tensors[name])


def _refuse(folder: Path) -> Callable[[str], ForeignCheckpoint]:
    return lambda found: ForeignCheckpoint(f"{folder}: {found}; resume with the build that saved it, or start a new run")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 20 else f"{text[:12]}…"


def _document(folder: Path) -> dict[str, Any]:
    refuse = _refuse(folder)
    if not folder.is_dir():
        raise NotFound(f"{folder}: is no checkpoint directory; a training run keeps its own under checkpoints/")
    document = read_json(folder / STATE, refuse)
    if document.get("format") != FORMAT:
        raise refuse(f"{STATE} has format {document.get('format')!r} where this version reads {FORMAT}")
    check_names(STATE, set(document), _KEYS, refuse)
    if document["content_hash"] != content_hash(document):
        raise refuse(f"{STATE} is not the one that its content_hash describes (damaged)")
    for name in ("counters", "made_by", "tensors"):
        if not isinstance(document[name], dict):
            raise refuse(f"{STATE}: {name} is no JSON object")
    return document


def _standing(document: Mapping[str, Any], refuse: Callable[[str], ForeignCheckpoint]) -> Standing:
    for name in ("step", "log_steps"):
        if type(document[name]) is not int or not 0 <= document[name] <= _MOST:
            raise refuse(f"{STATE}: {name} is {_short(document[name])}, no count of steps")
    if not isinstance(document["log_head"], str) or not _HEAD.fullmatch(document["log_head"]):
        raise refuse(f"{STATE}: log_head is {_short(document['log_head'])}, no head of a chain")
    if document["score"] is not None and type(document["score"]) not in (int, float):
        raise refuse(f"{STATE}: score is {_short(document['score'])}, no number")
    return Standing(**{name: document[name] for name in ("step", "log_steps", "log_head", "score", "counters")})
