"""`sim export`: a run's log in the formats of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.output import Json, emit, progress

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Give a run's log to other tools.")


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="export")


@group.callback()
def export() -> None:
    """Give a run's log to other tools. The log stays the record: nothing is read back."""


@group.command("tensorboard")
def tensorboard(
    run: Annotated[Path, typer.Argument(help="The run's folder.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="Folder for the event files, one folder a run in it.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Write a run's log as TensorBoard events.

    Every number of `diag` and `timing`: dollars, picks, gates, losses, signals, milliseconds; nulls are left out. Money is in
    dollars and every number is rounded to TensorBoard's float32: the log stays the record. Of a run in progress, what it has
    committed. Needs the extra `tensorboard`.

    \b
    Examples:
      sim export tensorboard R/train-ESH4-5d41402abc --out boards
      tensorboard --logdir boards
    """
    from lob.units import counted
    from sim.export_tensorboard import export_tensorboard

    with progress("export"):
        made = export_tensorboard(run, out)
    folders = [str(folder) for folder in made.folders]
    document = {"folders": folders, "steps": made.steps, "values": made.values, "tags": made.tags}
    where = "\n".join(folders)
    what = f"{counted(made.steps, 'step')}, {counted(made.values, 'value')} of {counted(made.tags, 'tag')}"
    emit(document, f"{where}\n{what}" if folders else "the run has no step yet: nothing was written", as_json)
