"""The fuzzer of what reads a run's folder: `sim verify`, `sql`, `watch`, `verdict`, `seal` and `export` of damaged and forged ones.

Each ends with 0, 1 or 2 and one line, never a traceback; what only reads changes nothing; and a run of which a hashed byte differs is never
verified by its head.
"""

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.fuzz.command import names_of, sim, spoken
from tests.fuzz.documents import bytes_damaged, chain_of, changed, json_bytes, other_rows, rehash
from tests.fuzz.mutate import pick
from tests.replays import replayed, synthetic_store
from tests.training_logs import write_training

DAMAGED_BEFORE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)
"""What a mutation meets in a file that an earlier one has damaged: it then does nothing."""


@functools.cache
def market(folder: Path) -> tuple[Path, Path]:
    """A store of a synthetic day and a replay of it, made once a process: cases damage copies."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    store = synthetic_store(folder, events=3000)
    return store, replayed(store, folder / "runs", minutes=3, lanes=2, segment_steps=16).run_dir


def prepare(folder: Path) -> Callable[[np.random.Generator], str]:
    """A replay, one that was broken off with its steps in the journal, and a training's log; and what plays a case on one of them."""
    store, replay = market(folder.parent / "market")
    shutil.rmtree(folder, ignore_errors=True)
    whole = folder / "made/runs/training"
    write_training(whole, 40)
    cut = folder / "made/runs/cut"
    write_training(cut, 40, finish=False)
    runs = (replay, replay, whole, cut)
    heads = {run: chain_of(run)[-1]["hash"] for run in runs}

    def play(rng: np.random.Generator) -> str:
        made = pick(rng, runs)
        run = folder / "case" / made.name
        shutil.rmtree(folder / "case", ignore_errors=True)
        shutil.copytree(made, run)
        damage(run, rng)
        return _case(folder, run, made, heads[made], store, rng)

    return play


def damage(run: Path, rng: np.random.Generator) -> None:
    """Bytes of some files; or values of its documents, or rows of its parts, half of the time with the chain made to fit again."""
    for _ in range(int(pick(rng, (1, 1, 1, 2, 3)))):
        match rng.integers(0, 4):
            case 0:
                bytes_damaged(pick(rng, names_of(run)), rng)
            case 1:
                _other_document(run, rng)
            case 2:
                _other_chain(run, rng)
            case _:
                _other_part(run, rng)


def _other_document(run: Path, rng: np.random.Generator) -> None:
    path = pick(rng, [run / "manifest.json", run / "manifest.json", *run.glob("*_summary.json")])
    try:
        document = json.loads(path.read_bytes())
        lines = chain_of(run)
        under = pick(rng, ((), ("identity",), ("identity", "config"), ("log",))) if path.name == "manifest.json" else ()
        path.write_bytes(json_bytes(changed(document, rng, under)))
        if rng.random() < 0.7:
            rehash(run, lines)
    except DAMAGED_BEFORE:
        return


def _other_chain(run: Path, rng: np.random.Generator) -> None:
    try:
        lines = changed(chain_of(run), rng)
        if isinstance(lines, list) and all(isinstance(line, dict) for line in lines) and rng.random() < 0.8:
            rehash(run, lines)
        else:
            (run / "chain.jsonl").write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    except DAMAGED_BEFORE:
        return


def _other_part(run: Path, rng: np.random.Generator) -> None:
    import hashlib

    parts = sorted(run.glob("*/*/*.parquet"))
    if not parts:
        return
    path = pick(rng, parts)
    try:
        other_rows(path, rng)
        if rng.random() < 0.6 and path.parts[-3] == "segments":
            lines = chain_of(run)
            entry = lines[int(path.parent.name)]["tables"][path.stem]
            entry |= {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            rehash(run, lines)
    except DAMAGED_BEFORE:
        return


def snapshot(run: Path) -> dict[str, bytes | str]:
    """What lies in a folder: files' bytes, and what else there is by kind."""
    return {str(path.relative_to(run)): path.read_bytes() if path.is_file() else "other" for path in sorted(run.rglob("*"))}


def _case(folder: Path, run: Path, made: Path, head: str, store: Path, rng: np.random.Generator) -> str:
    before = snapshot(run)
    question = pick(
        rng, ("from runs", "select * from steps", "from diag", "from fills", "describe", "from events", "from timing", "show tables")
    )
    commands: list[list[object]] = [
        ["verify", run, "--store", store, "--head", head],
        ["verify", run],
        ["sql", question, "--runs", run],
        ["watch", run, "--once"],
        ["verdict", run],
        ["export", "tensorboard", run, "--out", folder / "case/boards"],
    ]
    command = pick(rng, commands)
    shown = [*command, "--json"] if rng.random() < 0.5 else command
    code = spoken(shown)
    assert snapshot(run) == before, f"{command[0]} changed the run"
    if command[0] == "verify" and "--head" in command and code == 0:
        assert _proved(run) == _proved(made), "verified by its head, and not the run that had it"
    if rng.random() < 0.25:
        sealed = spoken(["seal", run, "--json"])
        if sealed == 0:
            first = sim("seal", run, "--json")[1]
            assert json.loads(first)["steps_sealed_now"] == 0, "sealed twice"
        return f"{command[0]} {code}, seal {sealed}"
    return f"{command[0]} {code}"


def _proved(run: Path) -> dict[str, bytes]:
    """What the head covers: the segments, the chain and the summary; of the manifest what the chain starts from."""
    files = [run / "chain.jsonl", *run.glob("*_summary.json"), *(path for path in (run / "segments").rglob("*") if path.is_file())]
    manifest = json.loads((run / "manifest.json").read_bytes())
    covered = {"manifest": json_bytes({key: manifest[key] for key in ("format", "identity", "log")})}
    return covered | {str(path.relative_to(run)): path.read_bytes() for path in files}
