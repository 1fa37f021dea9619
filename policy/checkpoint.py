"""A checkpoint is a directory: `manifest.json` says everything about it, `tensors.pt` holds the tensors.

Nothing in it can run code: the manifest is JSON, the tensors are read with `weights_only`. Every size is checked against the architecture
before a tensor is allocated, and every tensor's bytes against its SHA-256. What does not fit exactly is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import torch

from lob.errors import BadInput, ForeignCheckpoint, NotFound
from lob.layout import layout_fingerprint
from lob.units import PPM
from policy.network import Architecture, Network, NetworkPolicy

FORMAT = 1
MANIFEST, TENSORS = "manifest.json", "tensors.pt"
_KEYS = {"format", "kind", "layout", "architecture", "health_ppm", "tensors", "content_hash"}
_OVERHEAD_BYTES = 1 << 20
"""Room for the names and padding of a tensor file beside the tensors' own bytes, and the most that a manifest may measure."""


def content_hash(manifest: dict[str, Any]) -> str:
    """A checkpoint's identity: SHA-256 over its canonical manifest without this hash; the hash of every tensor stands in it."""
    stated = {key: value for key, value in manifest.items() if key != "content_hash"}
    return hashlib.sha256(json.dumps(stated, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def save(policy: NetworkPolicy, directory: Path) -> str:
    """Write the checkpoint and return its content hash. It appears whole or not at all; an existing path is refused (BadInput)."""
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in policy.network.state_dict().items()}
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "kind": "branching_c51",
        "layout": layout_fingerprint(),
        "architecture": policy.network.architecture.document(),
        "health_ppm": policy.health_ppm,
        "tensors": {name: _describe(tensor) for name, tensor in tensors.items()},
    }
    manifest["content_hash"] = content_hash(manifest)
    if directory.exists() or directory.is_symlink():
        raise BadInput(f"{directory}: exists already and a checkpoint is never overwritten; choose another --out or remove it")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    except OSError as error:
        raise BadInput(f"{directory.parent}: cannot be written ({error.strerror}); choose another --out") from None
    try:
        torch.save(tensors, aside / TENSORS)
        (aside / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
        for path in (aside / TENSORS, aside / MANIFEST, aside):
            _fsync(path)
        aside.chmod(0o755)
        os.rename(aside, directory)
        _fsync(directory.parent)
    except OSError as error:
        raise BadInput(f"{directory}: cannot be written ({error.strerror}); free space or choose another --out") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return manifest["content_hash"]


def load(directory: Path, lanes: int = 1, device: str = "cpu") -> NetworkPolicy:
    """The policy of a checkpoint, for `lanes` lanes. Raises NotFound, or ForeignCheckpoint with the one thing that does not fit."""
    manifest = _read_manifest(directory)
    architecture = _architecture(directory, manifest["architecture"])
    expected = architecture.shapes()
    _check_names(directory, "manifest", set(manifest["tensors"]), set(expected))
    tensors = _read_tensors(directory, sum(4 * torch.Size(shape).numel() for shape in expected.values()))
    _check_names(directory, TENSORS, set(tensors), set(expected))
    for name, shape in expected.items():
        _check_tensor(directory, name, tensors[name], shape, manifest["tensors"][name])
    network = Network(architecture)
    network.load_state_dict(tensors, strict=True)
    return NetworkPolicy(network, manifest["health_ppm"], manifest["content_hash"], lanes, device)


def _foreign(directory: Path, found: str) -> ForeignCheckpoint:
    return ForeignCheckpoint(f"{directory}: {found}; use a checkpoint that this version wrote (`sim policy init` makes one)")


def _describe(tensor: torch.Tensor) -> dict[str, Any]:
    content = tensor.numpy().tobytes()
    return {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch."), "sha256": hashlib.sha256(content).hexdigest()}


def _read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / MANIFEST
    if not directory.is_dir():
        raise NotFound(f"{directory}: is no checkpoint directory; `sim policy init --out DIR` makes one")
    try:
        if path.stat().st_size > _OVERHEAD_BYTES:
            raise _foreign(directory, f"{MANIFEST} measures {path.stat().st_size} bytes, more than any manifest")
        manifest = json.loads(path.read_bytes())
    except OSError as error:
        raise _foreign(directory, f"{MANIFEST} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise _foreign(directory, f"{MANIFEST} is not JSON") from None
    if not isinstance(manifest, dict):
        raise _foreign(directory, f"{MANIFEST} is no JSON object")
    if manifest.get("format") != FORMAT:
        raise _foreign(directory, f"format {manifest.get('format')!r} where this version reads {FORMAT}")
    _check_names(directory, MANIFEST, set(manifest), _KEYS)
    if manifest["content_hash"] != content_hash(manifest):
        raise _foreign(directory, f"{MANIFEST} is not the one that its content_hash describes (damaged)")
    if manifest["layout"] != layout_fingerprint():
        found = str(manifest["layout"])[:12]
        raise _foreign(directory, f"made for the observation layout {found}…, this build's is {layout_fingerprint()[:12]}…")
    if manifest["kind"] != "branching_c51":
        raise _foreign(directory, f"kind {manifest['kind']!r} where this version reads 'branching_c51'")
    if type(manifest["health_ppm"]) is not int or not 0 <= manifest["health_ppm"] <= PPM:
        raise _foreign(directory, f"health_ppm is {manifest['health_ppm']!r}, not a whole number of 0 to {PPM}")
    if not isinstance(manifest["tensors"], dict):
        raise _foreign(directory, "the manifest's tensors are no JSON object")
    return manifest


def _architecture(directory: Path, document: Any) -> Architecture:
    if not isinstance(document, dict) or not isinstance(document.get("hidden"), list):
        raise _foreign(directory, "the architecture is no JSON object with a list of hidden widths")
    _check_names(directory, "architecture", set(document), set(Architecture().document()))
    try:
        return Architecture(**(document | {"hidden": tuple(document["hidden"])}))
    except ForeignCheckpoint as error:
        raise ForeignCheckpoint(f"{directory}: {error}") from None


def _check_names(directory: Path, where: str, found: set[str], expected: set[str]) -> None:
    unknown, missing = sorted(found - expected), sorted(expected - found)
    if unknown:
        raise _foreign(directory, f"{where} has the unknown key {unknown[0]!r}")
    if missing:
        raise _foreign(directory, f"{where} lacks the key {missing[0]!r}")


def _read_tensors(directory: Path, tensor_bytes: int) -> dict[str, torch.Tensor]:
    """The tensor file's dictionary. Its size and the size of every entry are checked before anything is read."""
    path = directory / TENSORS
    limit = tensor_bytes + _OVERHEAD_BYTES
    try:
        size = path.stat().st_size
        if size > limit:
            raise _foreign(directory, f"{TENSORS} measures {size} bytes where its architecture needs {tensor_bytes}")
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
        packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
        if packed or sum(entry.file_size for entry in entries) > size:
            raise _foreign(directory, f"{TENSORS} unpacks to more than it measures")
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except ForeignCheckpoint:
        raise
    except OSError as error:
        raise _foreign(directory, f"{TENSORS} cannot be read ({error.strerror})") from None
    except Exception as error:  # whatever torch, pickle or zip say of damaged bytes; the class names the kind
        raise _foreign(directory, f"{TENSORS} is damaged or holds more than tensors ({type(error).__name__})") from None
    if type(tensors) is not dict or not all(isinstance(name, str) and type(value) is torch.Tensor for name, value in tensors.items()):
        raise _foreign(directory, f"{TENSORS} is no dictionary of tensors")
    return tensors


def _check_tensor(directory: Path, name: str, tensor: torch.Tensor, shape: tuple[int, ...], described: Any) -> None:
    found = (tuple(tensor.shape), tensor.dtype, tensor.layout, tensor.device.type, tensor.is_contiguous())
    if found != (shape, torch.float32, torch.strided, "cpu", True):
        raise _foreign(directory, f"tensor {name} is {tensor.dtype} {list(tensor.shape)} where the architecture has float32 {list(shape)}")
    if _describe(tensor) != described:
        raise _foreign(directory, f"tensor {name} is not the one that the manifest describes (damaged)")
    if not bool(torch.isfinite(tensor).all()):
        raise _foreign(directory, f"tensor {name} holds a value that is not finite")


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
