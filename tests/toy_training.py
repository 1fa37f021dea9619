"""A small training process with the real log and the real checkpoints. Its tensors and rows follow from the steps before them, so that
whatever a resume loses or doubles shows in every byte after it.

`python -m tests.toy_training RUN STEPS` begins a run, or goes on with one that was broken off.
"""

import shutil
import sys
import time
from pathlib import Path

import numpy as np
import torch

from lob.philox import draw
from policy.tensor_file import form_of, write_tensors
from policy.training_state import load_state, made_by, restore
from sim.checkpoints import latest, resume_log, save
from store.run_read import read_run, seal
from store.runlog import RunLog
from tests.runlog_runs import TABLES, as_arrays

LANES = 3
SLOTS = 32
IDENTITY = {"config": {"lr": 0.01, "lanes": LANES}, "seeds": {"run": 7}, "code": "abc", "device": "cpu"}
FLUSH = {"flush_rows": 29, "flush_seconds": 10**9}
EVERY = 7
SEGMENT_STEPS = 16
KEEP = 2


def fresh() -> dict[str, torch.Tensor]:
    """The state before the first step: every dtype that a training state holds."""
    return {
        "network.weight": torch.linspace(-1, 1, 24).reshape(4, 6).clone(),
        "moments.weight": torch.zeros(4, 6, dtype=torch.float64),
        "average.weight": torch.zeros(4, 6, dtype=torch.bfloat16),
        "memory.priority": torch.zeros(SLOTS, dtype=torch.int64),
        "memory.row": torch.full((SLOTS, 2), -1, dtype=torch.int32),
        "memory.action": torch.zeros(SLOTS, dtype=torch.uint8),
        "memory.valid": torch.zeros(SLOTS, dtype=torch.bool),
        "clock": torch.zeros((), dtype=torch.int64),
    }


def learn(state: dict[str, torch.Tensor], lane: int) -> None:
    """One lane's part of a step: write the ring, read it where a Philox draw says, move the weights by what was found."""
    step = int(state["clock"])
    words = draw.py_func(7, lane, step, 1)
    slot, read = (step * LANES + lane) % SLOTS, words[0] % SLOTS
    weight = state["network.weight"]
    state["memory.row"][slot] = torch.tensor([step, words[1] % 1000], dtype=torch.int32)
    state["memory.action"][slot] = words[2] % 108
    state["memory.valid"][slot] = True
    state["memory.priority"][slot] = int(weight.abs().sum() * 1000)
    gradient = torch.sin(weight + float(state["memory.priority"][read]) / 1000 + float(state["memory.row"][read, 1]))
    state["moments.weight"].mul_(0.9).add_(gradient.double())
    weight.sub_(0.01 * state["moments.weight"].float())
    state["average.weight"].lerp_(weight.bfloat16(), 0.1)


def rows_of(state: dict[str, torch.Tensor], cash: int) -> dict[str, list[dict]]:
    """The step's log rows, from the state after it."""
    step = int(state["clock"])
    wide = [
        {
            "phase": 0, "lane": lane, "step": step, "small": int(state["memory.action"][lane]), "cash_usd_micros": cash + lane,
            "stop_ticks": None if step % 3 else step, "score": float(state["network.weight"][lane, 0]),
            "precise": float(state["moments.weight"][lane, 1]),
        }
        for lane in range(LANES)
    ]  # fmt: skip
    deals = [{"phase": 0, "lane": 1, "step": step, "deal_id": step, "lots": 1 + step % 5}] if cash % 2 else []
    return {"wide": wide, "deals": deals, "notes": [], "clock": [{"step": step, "wall_ns": time.time_ns()}]}


def validated(state: dict[str, torch.Tensor], step: int) -> int | None:
    """The score of a checkpoint: asked every second time, coarse, so that scores are equal now and then."""
    return None if step // EVERY % 2 else int(state["network.weight"].sum() * 3)


def begin(run_dir: Path, state: dict[str, torch.Tensor]) -> tuple[RunLog, dict]:
    """The log of a run that begins, or of one that goes on, whose state is then loaded; with it the counters that are in no tensor."""
    chain = run_dir / "chain.jsonl"
    if not (chain.exists() and b"\n" in chain.read_bytes()):
        shutil.rmtree(run_dir, ignore_errors=True)  # killed while it was made: nothing of it has begun
        log = RunLog.create(
            run_dir, identity=IDENTITY, tables=TABLES, segment_steps=SEGMENT_STEPS, seal_behind_checkpoints=True, **FLUSH
        )  # fmt: skip
        return log, {"cash": 0}
    folder = latest(run_dir)
    standing = None
    if folder is not None:
        standing, tensors = load_state(folder, {name: form_of(tensor) for name, tensor in state.items()}, made_by())
        restore(state, tensors)
    return resume_log(run_dir, standing, IDENTITY, TABLES, KEEP, **FLUSH), dict(standing.counters) if standing else {"cash": 0}


def train(run_dir: Path, steps: int, stop: int | None = None, pause_s: float = 0.0) -> None:
    """Train to the end, or, as Ctrl-C would, to step `stop`."""
    torch.set_num_threads(1)
    if (run_dir / "chain.jsonl").exists() and read_state(run_dir) == "finished":
        seal(run_dir)  # killed between its end and the note of it
        return
    state = fresh()
    log, counters = begin(run_dir, state)
    with log:
        while (step := int(state["clock"])) < (steps if stop is None else stop):
            for lane in range(LANES):
                learn(state, lane)
            counters["cash"] += int(state["memory.priority"].sum())
            for name, rows in rows_of(state, counters["cash"]).items():
                if rows:
                    log.append(name, as_arrays(next(table for table in TABLES if table.name == name), rows))
            state["clock"] += 1
            step += 1
            if step % EVERY == 0 or step == steps:
                log.append_row("notes", {"step": step - 1, "seq": 0, "text": "checkpoint", "reason": None})
            log.end_step(step - 1)
            if step % EVERY == 0 or step == steps:
                weights = {"weight": state["network.weight"].clone()}
                save(
                    log, step, lambda folder, weights=weights: write_tensors(folder / "tensors.pt", weights), state, made_by(), counters,
                    validated(state, step), KEEP,
                )  # fmt: skip
            time.sleep(pause_s)
        if stop is None:
            log.append_row("notes", {"step": steps, "seq": 0, "text": "the end", "reason": None})
            log.finish("finished", {"cash_usd_micros": counters["cash"]}, "train_summary.json")


def read_state(run_dir: Path) -> str:
    from lob.errors import DamagedLog

    try:
        return read_run(run_dir).state
    except DamagedLog:  # killed while it was made
        return "unfinished"


def sums(state: dict[str, torch.Tensor]) -> np.ndarray:
    """One number a tensor, for a look at a state."""
    return np.array([float(tensor.double().sum()) for tensor in state.values()])


if __name__ == "__main__":
    train(Path(sys.argv[1]), int(sys.argv[2]), pause_s=float(sys.argv[3]) if len(sys.argv) > 3 else 0.0)
