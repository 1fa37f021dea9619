"""Tensors on disk: one `torch.save` of a flat dictionary, and JSON beside it with the shape, dtype and SHA-256 of each.

Nothing in such a pair can run code: the tensors are read with `weights_only`. Every size is checked before a tensor is allocated, and every
tensor's bytes against its SHA-256. A folder of such files appears whole or not at all. `refuse` makes the error of a reader: it takes what
was found, in words, and names the folder and the remedy.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from lob.errors import BadInput, ForeignCheckpoint

Refuse = Callable[[str], ForeignCheckpoint]
Form = tuple[tuple[int, ...], torch.dtype]
"""Shape and dtype of a tensor that is to be read."""

OVERHEAD_BYTES = 1 << 20
"""Room for the names and padding of a tensor file beside the tensors' own bytes, and the most that its JSON may measure."""

T = TypeVar("T")


def form_of(tensor: torch.Tensor) -> Form:
    return tuple(tensor.shape), tensor.dtype


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


def describe(tensor: torch.Tensor) -> dict[str, Any]:
    """{shape, dtype, sha256 over its bytes} of a contiguous tensor on the CPU, of any dtype."""
    content = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return {"shape": list(tensor.shape), "dtype": dtype_name(tensor.dtype), "sha256": hashlib.sha256(content.data).hexdigest()}


def content_hash(document: Mapping[str, Any]) -> str:
    """SHA-256 over a JSON object's canonical text without its key `content_hash`; it holds the hash of every tensor that it describes."""
    stated = {key: value for key, value in document.items() if key != "content_hash"}
    return hashlib.sha256(json.dumps(stated, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def on_cpu(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies on the CPU that share nothing with the originals or with one another: what is written does not change meanwhile."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def write_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write a flat dictionary of CPU tensors. Equal tensors in equal order give equal bytes. Raises OSError."""
    with open(path, "wb", buffering=0) as file:
        fault: list[OSError] = []

        class Whole:
            """The file as torch wants one: it has words of its own for a disk that refused, so ours are kept."""

            def write(self, data: Any) -> int:
                rest = memoryview(data).cast("B")
                while len(rest):
                    try:
                        rest = rest[file.write(rest) or 0 :]
                    except OSError as error:
                        fault.append(error)
                        raise
                return len(data)

            def flush(self) -> None:
                pass

        try:
            torch.save(tensors, Whole())
        except Exception:
            if fault:
                raise fault[0] from None
            raise


def write_folder(directory: Path, write: Callable[[Path], T], remedy: str) -> T:
    """Fill the new folder `directory` by `write(folder)` and return what that returns. The folder appears whole and durable, or not at all.

    `remedy`: what to do about a place that cannot be used (`choose another --out`). Raises BadInput: the path exists, the disk is full.
    """
    if directory.exists() or directory.is_symlink():
        raise BadInput(f"{directory}: exists already and a checkpoint is never overwritten; {remedy} or remove it")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    except OSError as error:
        raise BadInput(f"{directory.parent}: cannot be written ({error.strerror}); {remedy}") from None
    try:
        written = write(aside)
        for path in (*sorted(aside.iterdir()), aside):
            fsync(path)
        aside.chmod(0o755)
        os.rename(aside, directory)
        fsync(directory.parent)
    except OSError as error:
        raise BadInput(f"{directory}: cannot be written ({error.strerror}); free space or {remedy}") from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return written


def fsync(path: Path) -> None:
    """Make a file's bytes, or a folder's names, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path, refuse: Refuse) -> dict[str, Any]:
    """A JSON object of bounded size, without NaN or Infinity."""

    def constant(name: str) -> float:
        raise ValueError(name)

    try:
        if path.stat().st_size > OVERHEAD_BYTES:
            raise refuse(f"{path.name} measures {path.stat().st_size} bytes, more than any manifest")
        document = json.loads(path.read_bytes(), parse_constant=constant)
    except OSError as error:
        raise refuse(f"{path.name} cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        raise refuse(f"{path.name} is not JSON") from None
    if not isinstance(document, dict):
        raise refuse(f"{path.name} is no JSON object")
    return document


def check_names(where: str, found: set[str], expected: set[str], refuse: Refuse) -> None:
    unknown, missing = sorted(found - expected), sorted(expected - found)
    if unknown:
        raise refuse(f"{where} has the unknown key {unknown[0]!r}")
    if missing:
        raise refuse(f"{where} lacks the key {missing[0]!r}")


def read_tensors(path: Path, expected: Mapping[str, Form], described: Mapping[str, Any], refuse: Refuse) -> dict[str, torch.Tensor]:
    """The tensors of a file, on the CPU: exactly those expected, in the expected order, each as `described` (of `describe`) says.

    The file's size and the size of every entry in it are checked before anything is read.
    """
    tensor_bytes = sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in expected.values())
    tensors = read_dictionary(path, tensor_bytes, refuse)
    check_names(path.name, set(tensors), set(expected), refuse)
    for name, form in expected.items():
        _check_tensor(name, tensors[name], form, described[name], refuse)
    return {name: tensors[name] for name in expected}


def read_dictionary(path: Path, tensor_bytes: int, refuse: Refuse) -> dict[str, torch.Tensor]:
    """Whatever tensors a file holds, on the CPU. Before it is read its size is held against `tensor_bytes` and OVERHEAD_BYTES, and what it
    unpacks to against its size."""
    try:
        size = path.stat().st_size
        if size > tensor_bytes + OVERHEAD_BYTES:
            raise refuse(f"{path.name} measures {size} bytes where its architecture needs {tensor_bytes}")
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
        packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
        if packed or sum(entry.file_size for entry in entries) > size:
            raise refuse(f"{path.name} unpacks to more than it measures")
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except ForeignCheckpoint:
        raise
    except OSError as error:
        raise refuse(f"{path.name} cannot be read ({error.strerror})") from None
    except Exception as error:  # whatever torch, pickle or zip say of damaged bytes; the class names the kind
        raise refuse(f"{path.name} is damaged or holds more than tensors ({type(error).__name__})") from None
    if type(tensors) is not dict or not all(isinstance(name, str) and type(value) is torch.Tensor for name, value in tensors.items()):
        raise refuse(f"{path.name} is no dictionary of tensors")
    return tensors


def _check_tensor(name: str, tensor: torch.Tensor, form: Form, described: Any, refuse: Refuse) -> None:
    shape, dtype = form
    found = (tuple(tensor.shape), tensor.dtype, tensor.layout, tensor.device.type, tensor.is_contiguous())
    if found != (shape, dtype, torch.strided, "cpu", True):
        words = f"{tensor.dtype} {list(tensor.shape)} where the architecture has {dtype_name(dtype)} {list(shape)}"
        raise refuse(f"tensor {name} is {words}")
    if describe(tensor) != described:
        raise refuse(f"tensor {name} is not the one that the manifest describes (damaged)")
