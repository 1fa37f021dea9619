"""The checkpoints of a training run: `<run>/checkpoints/step-00001000/` holds the network's checkpoint and the training state beside it.

`last` and `best` are relative links. At any moment, also after `kill -9` or power loss, `last` leads to a whole checkpoint whose steps the
log holds: the log is committed and made durable, then the checkpoint is written aside, made durable and renamed, then the links are
replaced, then what lies behind is sealed. Rotation keeps both and the newest few.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lob.errors import BadInput

if TYPE_CHECKING:
    import torch

    from lob.tables import Table
    from policy.training_state import Standing
    from store.runlog import RunLog

CHECKPOINTS = "checkpoints"
LAST, BEST = "last", "best"
_STEP = re.compile(r"step-(\d{8,})")


def folder_of(run_dir: Path, step: int) -> Path:
    """Where the checkpoint after so many training steps lies."""
    return run_dir / CHECKPOINTS / f"step-{step:08d}"


def list_checkpoints(run_dir: Path) -> dict[int, Path]:
    """{step: folder} of the checkpoints that are whole, the oldest first."""
    root = run_dir / CHECKPOINTS
    names = [(match, entry) for entry in root.iterdir() if (match := _STEP.fullmatch(entry.name))] if root.is_dir() else []
    return {int(match[1]): entry for match, entry in sorted(names, key=lambda pair: int(pair[0][1]))}


def content_of(folder: Path) -> str:
    """The content hash that a checkpoint's manifest states: it covers every weight. Raises BadInput when it cannot be read."""
    try:
        return json.loads((folder / "manifest.json").read_bytes())["content_hash"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{folder}: its manifest.json cannot be read ({error}); start a new run") from None


def latest(run_dir: Path) -> Path | None:
    """The newest whole checkpoint, from which the run goes on; None when it has none yet."""
    found = list_checkpoints(run_dir)
    return found[max(found)] if found else None


def save(
    log: RunLog,
    step: int,
    write_network: Callable[[Path], object],
    tensors: Mapping[str, torch.Tensor],
    made: Mapping[str, str],
    counters: Mapping[str, Any],
    score: int | float | None,
    keep: int,
) -> Path:
    """Take the checkpoint after `step` training steps, when the log's ended steps are those behind it, and let the log seal up to there.

    `write_network(folder)` writes the network's own checkpoint (`policy.checkpoint.write`); `tensors`, `made` and `counters` are the
    training state (`policy.training_state`); `keep` counts the newest checkpoints that stay beside `best` and `last`. Returns the folder.
    Raises BadInput when the disk refuses: the run can be resumed from the checkpoint before.
    """
    from policy.tensor_file import write_folder
    from policy.training_state import Standing, write_state

    log.sync()
    standing = Standing(step, log.steps, log.head, score, counters)

    def write(folder: Path) -> None:
        write_network(folder)
        write_state(folder, standing, tensors, made)

    folder = folder_of(log.run_dir, step)
    write_folder(folder, write, f"go on with `sim train --resume {log.run_dir}`")
    settle(log.run_dir, keep)
    log.checkpointed(log.steps)
    return folder


def resume_log(
    run_dir: Path, standing: Standing | None, identity: Mapping[str, Any], tables: Sequence[Table], keep: int, **flush: Any
) -> RunLog:
    """The log of a run that goes on from a checkpoint (None: from its start), rewound to there, and its checkpoints set in order.

    `flush`: `flush_rows` and `flush_seconds` of `RunLog.resume`. Checkpoints after that one move to `abandoned/` as the log's rows do:
    the run takes them again. Raises as `RunLog.resume` does.
    """
    from store.runlog import RunLog

    steps, head, step = (standing.log_steps, standing.log_head, standing.step) if standing else (0, None, -1)
    log = RunLog.resume(run_dir, steps, head=head, identity=identity, tables=tables, **flush)
    try:
        _set_later_aside(run_dir, step)
        settle(run_dir, keep)
    except BaseException:
        log.close()
        raise
    return log


def starts(run_dir: Path) -> int:
    """How often the run has been started, as far as its log and what resumes have set aside tell: the number of its next attempt."""
    from store.run_read import read_run, read_table

    run = read_run(run_dir)
    return read_table(run, "attempts", ["attempt"]).num_rows + sum(found.rows.get("attempts", 0) for found in run.abandoned)


def settle(run_dir: Path, keep: int) -> None:
    """Point `last` at the newest checkpoint and `best` at that of the highest score (of equal ones the earlier), then drop the others but
    the newest `keep`, and what a process that died left half done. Repeated, it changes nothing. Raises BadInput when the disk refuses.
    """
    from policy.training_state import read_standing

    root = run_dir / CHECKPOINTS
    found = list_checkpoints(run_dir)
    scores = {step: score for step, folder in found.items() if (score := read_standing(folder).score) is not None}
    # `best` is never dropped, so the best of those that are there is the best of all that were.
    best = max(scores, key=lambda step: (scores[step], -step)) if scores else None
    try:
        if best is not None:
            _point(root / BEST, found[best].name)
        if found:
            _point(root / LAST, found[max(found)].name)
        kept = {best, *sorted(found)[-max(keep, 1) :]}
        for step, folder in found.items():
            if step not in kept:
                os.rename(folder, folder.with_name(f".{folder.name}.old"))  # it goes at once: half a checkpoint would look like a whole one
        for entry in list(root.iterdir()) if root.is_dir() else []:
            if entry.name.startswith("."):
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    except OSError as error:
        raise BadInput(
            f"{error.filename or root}: {error.strerror}; free space or make it writable, then go on with `sim train --resume {run_dir}`"
        ) from None


def _point(link: Path, name: str) -> None:
    """Make a relative link lead to `name`, in one replacement."""
    from policy.tensor_file import fsync

    if link.is_symlink() and os.readlink(link) == name:
        return
    aside = link.with_name(f".{link.name}")
    aside.unlink(missing_ok=True)
    os.symlink(name, aside)
    os.replace(aside, link)
    fsync(link.parent)


def _set_later_aside(run_dir: Path, step: int) -> None:
    from store.reopen import ABANDONED

    later = [folder for at, folder in list_checkpoints(run_dir).items() if at > step]
    for folder in later:
        place = run_dir / ABANDONED / CHECKPOINTS
        place.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(place / folder.name, ignore_errors=True)
        os.rename(folder, place / folder.name)
