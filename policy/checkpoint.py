"""A checkpoint is a directory: `manifest.json` says everything about it, `tensors.pt` holds the tensors.

Nothing in it can run code, every size is checked against the architecture before a tensor is allocated, and every tensor's bytes against
its SHA-256 (`policy.tensor_file`). What does not fit exactly is refused; there is no migration between formats.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lob.errors import BadInput, ForeignCheckpoint, NotFound
from lob.layout import BUS_SLOTS, STATE_DIM, layout_fingerprint
from lob.normalise import Normaliser
from lob.units import PPM
from policy.architecture import Architecture
from policy.model import Model, layout
from policy.network import NetworkPolicy
from policy.signals import bus_fingerprint
from policy.tensor_file import (
    Form,
    Refuse,
    check_names,
    content_hash,
    describe,
    on_cpu,
    read_json,
    read_tensors,
    write_folder,
    write_tensors,
)
from policy.weights import Layout, fingerprint

FORMAT = 2
KIND = "branching_c51_iqn"
MANIFEST, TENSORS = "manifest.json", "tensors.pt"
ABOUT_BYTES = 1 << 16
"""The most that `about` may measure as JSON: it tells how the network was trained, it is no place for data."""

_KEYS = {"format", "kind", "observation", "bus", "network", "architecture", "health_ppm", "normaliser", "about", "tensors", "content_hash"}
_BUS, _MEAN, _STD = "signal_bus", "normaliser.mean", "normaliser.std"


@dataclass(frozen=True)
class Checkpoint:
    """What picks as it did in training: the weights, the signal bus that they last saw, and the normalisation of what they observed."""

    model: Model
    bus: torch.Tensor  # float32[127]
    health_ppm: int
    """Learning health that the Kelly gate reads."""

    normaliser: Normaliser | None = None
    """None: it goes with whatever normalises the run that plays it, as an untrained network does."""

    about: Mapping[str, Any] = field(default_factory=dict)
    """How it came to be (instrument, clock, days, run, step): JSON values, free in form, no part of what it computes."""


def save(checkpoint: Checkpoint, directory: Path) -> str:
    """Write the checkpoint and return its content hash. It appears whole or not at all; an existing path is refused (BadInput)."""
    return write_folder(directory, lambda folder: write(checkpoint, folder), "choose another --out")


def write(checkpoint: Checkpoint, folder: Path) -> str:
    """Write a checkpoint's files into a folder that `write_folder` makes whole and durable. Returns the content hash."""
    architecture, normaliser = checkpoint.model.architecture, checkpoint.normaliser
    tensors = {name: tensor.float() for name, tensor in checkpoint.model.weights.items()} | {_BUS: checkpoint.bus}
    if normaliser is not None:
        tensors |= {_MEAN: torch.from_numpy(normaliser.mean), _STD: torch.from_numpy(normaliser.std)}
    stored = on_cpu(tensors)
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "kind": KIND,
        "observation": layout_fingerprint(),
        "bus": bus_fingerprint(),
        "network": fingerprint(layout(architecture)),
        "architecture": architecture.document(),
        "health_ppm": checkpoint.health_ppm,
        "normaliser": None if normaliser is None else normaliser.label,
        "about": json.loads(_strict(checkpoint.about)),
        "tensors": {name: describe(tensor) for name, tensor in stored.items()},
    }
    manifest["content_hash"] = content_hash(manifest)
    write_tensors(folder / TENSORS, stored)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    return manifest["content_hash"]


def load(directory: Path, device: str = "cpu") -> tuple[Checkpoint, str]:
    """A checkpoint with its model on `device`, and its content hash. Raises NotFound, or ForeignCheckpoint with the one thing that does
    not fit."""

    def refuse(found: str) -> ForeignCheckpoint:
        return ForeignCheckpoint(f"{directory}: {found}; use a checkpoint that this version wrote (`sim policy init` makes one)")

    manifest = _read_manifest(directory, refuse)
    architecture = _architecture(manifest["architecture"], refuse)
    specs = layout(architecture)
    if manifest["network"] != fingerprint(specs):
        found, ours = str(manifest["network"])[:12], fingerprint(specs)[:12]
        raise refuse(f"made for the network layout {found}…, this build's of that architecture is {ours}…")
    expected = _forms(specs, manifest["normaliser"] is not None)
    check_names("manifest", set(manifest["tensors"]), set(expected), refuse)
    tensors = read_tensors(directory / TENSORS, expected, manifest["tensors"], refuse)
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise refuse(f"tensor {name} holds a value that is not finite")
    model = Model(architecture, device)
    with torch.no_grad():
        for spec in specs:
            model.weights[spec.name].copy_(tensors[spec.name])
    normaliser = None
    if manifest["normaliser"] is not None:
        mean, std = (tensors[name].numpy() for name in (_MEAN, _STD))
        if not np.all(std > 0):
            raise refuse(f"tensor {_STD} holds a value that is not above zero")
        normaliser = Normaliser(mean, std, manifest["normaliser"])
    loaded = Checkpoint(model, tensors[_BUS].to(device), manifest["health_ppm"], normaliser, manifest["about"])
    return loaded, manifest["content_hash"]


def policy_of(checkpoint: Checkpoint, content: str, lanes: int, selector: str = "greedy", seed: int = 0) -> NetworkPolicy:
    """The policy that plays a checkpoint, known by its content hash, for `lanes` lanes on its model's device."""
    return NetworkPolicy(checkpoint.model, checkpoint.bus, checkpoint.health_ppm, content, lanes, selector, seed)


def _forms(specs: Layout, normalised: bool) -> dict[str, Form]:
    """Shape and type of every tensor of the file."""
    forms: dict[str, Form] = {spec.name: (spec.shape, torch.float32) for spec in specs}
    forms[_BUS] = (BUS_SLOTS,), torch.float32
    return forms | dict.fromkeys((_MEAN, _STD) if normalised else (), ((STATE_DIM,), torch.float64))


def _strict(about: Any) -> str:
    """`about` as JSON. Raises BadInput for anything that JSON does not have, and for more than ABOUT_BYTES of it."""
    try:
        text = json.dumps(about, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"about is no plain JSON ({error}); give strings, whole and finite numbers, lists and objects") from None
    if type(about) is not dict or json.loads(text) != about:
        raise BadInput("about does not come back from JSON as it went in; give a dict with strings as keys, and lists, not tuples")
    if len(text.encode()) > ABOUT_BYTES:
        raise BadInput(f"about measures {len(text.encode())} bytes as JSON; keep it below {ABOUT_BYTES}")
    return text


def _read_manifest(directory: Path, refuse: Refuse) -> dict[str, Any]:
    if not directory.is_dir():
        raise NotFound(f"{directory}: is no checkpoint directory; `sim policy init --out DIR` makes one")
    manifest = read_json(directory / MANIFEST, refuse)
    if (directory / "checkpoints").is_dir():
        raise NotFound(f"{directory}: is a run, not one of its checkpoints; name one, like {directory / 'checkpoints' / 'best'}")
    if manifest.get("format") != FORMAT:
        raise refuse(f"format {manifest.get('format')!r} where this version reads {FORMAT}")
    check_names(MANIFEST, set(manifest), _KEYS, refuse)
    if manifest["content_hash"] != content_hash(manifest):
        raise refuse(f"{MANIFEST} is not the one that its content_hash describes (damaged)")
    for what, ours in (("observation", layout_fingerprint()), ("bus", bus_fingerprint())):
        if manifest[what] != ours:
            raise refuse(f"made for the {what} layout {str(manifest[what])[:12]}…, this build's is {ours[:12]}…")
    if manifest["kind"] != KIND:
        raise refuse(f"kind {manifest['kind']!r} where this version reads {KIND!r}")
    if type(manifest["health_ppm"]) is not int or not 0 <= manifest["health_ppm"] <= PPM:
        raise refuse(f"health_ppm is {manifest['health_ppm']!r}, not a whole number of 0 to {PPM}")
    if not (manifest["normaliser"] is None or type(manifest["normaliser"]) is str):
        raise refuse(f"normaliser is {manifest['normaliser']!r}, neither null nor the name of one")
    if not isinstance(manifest["tensors"], dict):
        raise refuse("the manifest's tensors are no JSON object")
    try:
        _strict(manifest["about"])
    except BadInput as error:
        raise refuse(str(error).partition(";")[0]) from None
    return manifest


def _architecture(document: Any, refuse: Refuse) -> Architecture:
    if not isinstance(document, dict) or not isinstance(document.get("hidden"), list):
        raise refuse("the architecture is no JSON object with a list of hidden widths")
    check_names("architecture", set(document), set(Architecture().document()), refuse)
    try:
        return Architecture(**(document | {"hidden": tuple(document["hidden"])}))
    except BadInput as error:
        raise refuse(str(error)) from None
