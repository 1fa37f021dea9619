"""The fuzzer of what loads a checkpoint: documents and tensors damaged or forged, with every hash made to fit half of the time.

It loads as itself, or one line says why not; no code in it runs, and no size in it is believed before it is held against the file.
"""

import hashlib
import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lob.errors import TapeproofError
from policy.architecture import Architecture
from policy.bus import control_state
from policy.checkpoint import Checkpoint, load, save
from policy.model import initialise
from policy.training_state import Standing, load_state, made_by, write_state
from tests.fuzz.command import names_of, spoken
from tests.fuzz.documents import bytes_damaged, changed, json_bytes
from tests.fuzz.mutate import bytes_changed, pick
from tests.fuzz.runs import DAMAGED_BEFORE, snapshot

CODE = (
    b"cos\nsystem\n(S'touch %s'\ntR.",
    b'c__builtin__\neval\n(S\'open("%s", "w")\'\ntR.',
    b"\x80\x02cposix\nsystem\n(S'touch %s'\ntR.",
)
"""Pickles that make a file where code runs."""


def prepare(folder: Path) -> Callable[[np.random.Generator], str]:
    """A checkpoint with a training state beside it, and what plays a case on a copy."""
    import torch

    made = folder / "made"
    shutil.rmtree(folder, ignore_errors=True)
    sizes = Architecture(hidden=(8, 8), atoms=5, quantiles=2)
    save(Checkpoint(initialise(sizes, 7), control_state().bus, 0, about={"instrument": "ESH4"}), made)
    tensors = {"a": torch.arange(6).reshape(2, 3), "b": torch.ones(4)}
    write_state(made, Standing(5, 5, "0" * 64, 1.5, {"n": 3}), tensors, made_by())
    forms = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
    content = load(made)[1]

    def play(rng: np.random.Generator) -> str:
        case, trap = folder / "case", folder / "trap"
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(made, case)
        for _ in range(int(pick(rng, (1, 1, 2)))):
            damage(case, rng, trap)
        before = snapshot(case)
        ended = _case(case, folder, forms, content, rng)
        assert not trap.exists(), "code of the checkpoint ran"
        assert snapshot(case) == before
        return ended

    return play


def damage(case: Path, rng: np.random.Generator, trap: Path) -> None:
    try:
        match rng.integers(0, 4):
            case 0:
                bytes_damaged(pick(rng, names_of(case)), rng)
            case 1 | 2:
                path = case / pick(rng, ("manifest.json", "manifest.json", "state.json"))
                document = changed(json.loads(path.read_bytes()), rng, pick(rng, ((), ("architecture",), ("tensors",))))
                if rng.random() < 0.8:
                    rest = {key: value for key, value in document.items() if key != "content_hash"}
                    document["content_hash"] = hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
                path.write_bytes(json_bytes(document))
            case _:
                repack(case / pick(rng, ("tensors.pt", "state.pt")), rng, trap)
    except (*DAMAGED_BEFORE, zipfile.BadZipFile):
        return


def repack(path: Path, rng: np.random.Generator, trap: Path) -> None:
    """The archive anew: its pickle changed or another that runs code, entries gone, doubled, packed, far larger, or of other names."""
    with zipfile.ZipFile(path) as archive:
        entries = [(name, archive.read(name)) for name in archive.namelist()]
    way = zipfile.ZIP_DEFLATED if rng.random() < 0.3 else zipfile.ZIP_STORED
    at = int(rng.integers(0, len(entries)))
    pickle = next(i for i, (name, _) in enumerate(entries) if name.endswith("data.pkl"))
    match rng.integers(0, 7):
        case 0 | 1:
            entries[pickle] = (entries[pickle][0], bytes_changed(entries[pickle][1], rng))
        case 2:
            entries[pickle] = (entries[pickle][0], pick(rng, CODE).replace(b"%s", str(trap).encode()))
        case 3:
            del entries[at]
        case 4:
            entries[at] = (pick(rng, ("../../x", "archive/data/0", "x", "archive/data.pkl")), entries[at][1])
        case 5:
            way = zipfile.ZIP_DEFLATED
            entries[at] = (entries[at][0], bytes(64 << 20))
        case _:
            entries[at] = (entries[at][0], bytes_changed(entries[at][1], rng))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", way) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    path.write_bytes(out.getvalue())


def _case(case: Path, folder: Path, forms: dict, content: str, rng: np.random.Generator) -> str:
    what = pick(rng, ("load",) * 6 + ("state",) * 3 + ("replay", "eval"))
    if what in ("replay", "eval"):
        window = ["--instrument", "ESH4", "--start", "2024-03-05", "--end", "2024-03-06", "--store", folder / "nothing"]
        return f"{what} {spoken([what, '--checkpoint', case, *window, '--runs', folder / 'runs'])}"
    try:
        if what == "state":
            load_state(case, forms, made_by())
        else:
            found = load(case)[1]
            assert found == content or not _as_made(case, folder / "made"), "the same files, another content"
    except TapeproofError as error:
        assert str(error).isprintable() and str(case) in str(error), str(error)
        return f"{what} refused"
    return f"{what} loaded"


def _as_made(case: Path, made: Path) -> bool:
    """Whether manifest and tensors are those that were written."""
    return all((case / name).read_bytes() == (made / name).read_bytes() for name in ("manifest.json", "tensors.pt"))
