"""Close a run that was interrupted, where it stands."""

from pathlib import Path
from typing import Any

from lob.errors import BadInput
from store.run_read import read_run
from store.run_read import seal as seal_log


def seal_run(run_dir: Path) -> dict[str, Any]:
    """Seal every committed step of a run and end its chain; the facts as JSON values. A run that is sealed already stays as it is.

    Raises NotFound, BadInput (a writer is alive) and DamagedLog (`store.run_read.seal`).
    """
    before = read_run(run_dir).sealed_steps
    try:
        head = seal_log(run_dir)
    except OSError as error:
        raise BadInput(
            f"{run_dir}: cannot be sealed ({error.strerror}): free space or make it writable, then seal again; nothing is lost"
        ) from None
    run = read_run(run_dir)
    return {
        "run": str(run_dir),
        "head": head,
        "steps": run.steps,
        "steps_sealed_now": run.steps - before,
        "end_state": run.state,
        "ends": run.ends,
    }
