"""A checkpoint is a directory: `manifest.json` says everything about it, `tensors.pt` holds the tensors.

Nothing in it can run code, every size is checked against the architecture before a tensor is allocated, and every tensor's bytes against
its SHA-256 (`policy.tensor_file`). What does not fit exactly is refused.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from lob.errors import ForeignCheckpoint, NotFound
from lob.layout import layout_fingerprint
from lob.units import PPM
from policy.network import Architecture, Network, NetworkPolicy
from policy.tensor_file import check_names, describe, on_cpu, read_json, read_tensors, write_folder, write_tensors

FORMAT = 1
MANIFEST, TENSORS = "manifest.json", "tensors.pt"
_KEYS = {"format", "kind", "layout", "architecture", "health_ppm", "tensors", "content_hash"}


def content_hash(manifest: dict[str, Any]) -> str:
    """A checkpoint's identity: SHA-256 over its canonical manifest without this hash; the hash of every tensor stands in it."""
    stated = {key: value for key, value in manifest.items() if key != "content_hash"}
    return hashlib.sha256(json.dumps(stated, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def save(policy: NetworkPolicy, directory: Path) -> str:
    """Write the checkpoint and return its content hash. It appears whole or not at all; an existing path is refused (BadInput)."""
    return write_folder(directory, lambda folder: write(policy, folder), "choose another --out")


def write(policy: NetworkPolicy, folder: Path) -> str:
    """Write a checkpoint's files into a folder that `write_folder` makes whole and durable. Returns the content hash."""
    tensors = on_cpu(policy.network.state_dict())
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "kind": "branching_c51",
        "layout": layout_fingerprint(),
        "architecture": policy.network.architecture.document(),
        "health_ppm": policy.health_ppm,
        "tensors": {name: describe(tensor) for name, tensor in tensors.items()},
    }
    manifest["content_hash"] = content_hash(manifest)
    write_tensors(folder / TENSORS, tensors)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    return manifest["content_hash"]


def load(directory: Path, lanes: int = 1, device: str = "cpu") -> NetworkPolicy:
    """The policy of a checkpoint, for `lanes` lanes. Raises NotFound, or ForeignCheckpoint with the one thing that does not fit."""

    def refuse(found: str) -> ForeignCheckpoint:
        return _foreign(directory, found)

    manifest = _read_manifest(directory)
    architecture = _architecture(directory, manifest["architecture"])
    expected = {name: (shape, torch.float32) for name, shape in architecture.shapes().items()}
    check_names("manifest", set(manifest["tensors"]), set(expected), refuse)
    tensors = read_tensors(directory / TENSORS, expected, manifest["tensors"], refuse)
    for name, tensor in tensors.items():
        if not bool(torch.isfinite(tensor).all()):
            raise refuse(f"tensor {name} holds a value that is not finite")
    network = Network(architecture)
    network.load_state_dict(tensors, strict=True)
    return NetworkPolicy(network, manifest["health_ppm"], manifest["content_hash"], lanes, device)


def _foreign(directory: Path, found: str) -> ForeignCheckpoint:
    return ForeignCheckpoint(f"{directory}: {found}; use a checkpoint that this version wrote (`sim policy init` makes one)")


def _read_manifest(directory: Path) -> dict[str, Any]:
    def refuse(found: str) -> ForeignCheckpoint:
        return _foreign(directory, found)

    if not directory.is_dir():
        raise NotFound(f"{directory}: is no checkpoint directory; `sim policy init --out DIR` makes one")
    manifest = read_json(directory / MANIFEST, refuse)
    if manifest.get("format") != FORMAT:
        raise refuse(f"format {manifest.get('format')!r} where this version reads {FORMAT}")
    check_names(MANIFEST, set(manifest), _KEYS, refuse)
    if manifest["content_hash"] != content_hash(manifest):
        raise refuse(f"{MANIFEST} is not the one that its content_hash describes (damaged)")
    if manifest["layout"] != layout_fingerprint():
        found = str(manifest["layout"])[:12]
        raise refuse(f"made for the observation layout {found}…, this build's is {layout_fingerprint()[:12]}…")
    if manifest["kind"] != "branching_c51":
        raise refuse(f"kind {manifest['kind']!r} where this version reads 'branching_c51'")
    if type(manifest["health_ppm"]) is not int or not 0 <= manifest["health_ppm"] <= PPM:
        raise refuse(f"health_ppm is {manifest['health_ppm']!r}, not a whole number of 0 to {PPM}")
    if not isinstance(manifest["tensors"], dict):
        raise refuse("the manifest's tensors are no JSON object")
    return manifest


def _architecture(directory: Path, document: Any) -> Architecture:
    if not isinstance(document, dict) or not isinstance(document.get("hidden"), list):
        raise _foreign(directory, "the architecture is no JSON object with a list of hidden widths")
    check_names("architecture", set(document), set(Architecture().document()), lambda found: _foreign(directory, found))
    try:
        return Architecture(**(document | {"hidden": tuple(document["hidden"])}))
    except ForeignCheckpoint as error:
        raise ForeignCheckpoint(f"{directory}: {error}") from None
