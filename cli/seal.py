"""`sim seal`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.output import Json, emit, progress


def register(app: typer.Typer) -> None:
    app.command("seal")(seal)


def seal(run: Annotated[Path, typer.Argument(help="The run's folder.", show_default=False)], as_json: Json = False) -> None:
    """Close an interrupted run where it stands.

    Every committed step is sealed and the chain ends. Sealing twice changes nothing.

    \b
    A run that was killed or stopped with Ctrl-C keeps its committed steps in a journal;
    it can be read and verified as it is, and sealed so that no byte can change unnoticed.
    \b
    Examples:
      sim seal R/7f3a12
      sim verify R/7f3a12 --store S
    """
    from lob.units import counted
    from sim.seal import seal_run

    with progress("seal"):
        sealed = seal_run(run)
    steps = f"{counted(sealed['steps'], 'step')}, {sealed['steps_sealed_now']:,} of them sealed now"
    text = f"{run}: {steps}, {sealed['end_state']}\nhead {sealed['head']}"
    emit(sealed, text, as_json)
