"""`sim synth`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.options import InstrumentsFile
from cli.output import COMPILING, Json, emit, progress, say


def register(app: typer.Typer) -> None:
    app.command("synth")(synth)


def synth(
    out: Annotated[Path, typer.Option(help="File to write, *.dbn or *.dbn.zst.", show_default=False)],
    date: Annotated[str, typer.Option(help="Trade date, like 2024-03-05.", show_default=False)],
    instrument: Annotated[str, typer.Option(help="A root (its front contract of that date is made) or a contract, like ESH4.")] = "ES",
    events: Annotated[int, typer.Option(help="MBP-10 records to write.")] = 200_000,
    seed: Annotated[int, typer.Option(help="Equal seeds give equal bytes.")] = 0,
    edge: Annotated[float, typer.Option(help="K: 0, nothing visible predicts the price; 1, the displayed imbalance does.")] = 0.0,
    instruments: InstrumentsFile = None,
    as_json: Json = False,
) -> None:
    """Make a synthetic market day as a DBN file.

    Ten levels, prints and one session, over a hidden fair value: a market whose right answer is known.
    At --edge 0 no rule can earn; at --edge 1 the policy `imbalance` does.

    \b
    Examples:
      sim synth --instrument ES --date 2024-03-05 --events 200000 --seed 7 --out es.dbn.zst
      sim synth --instrument ES --date 2024-03-05 --events 200000 --seed 7 --edge 1 --out es-edge.dbn.zst
    """
    from lob.jit import is_compiled
    from lob.units import counted, format_time_ns
    from sim.registry import registry_of
    from sim.synth import synth as make

    if not is_compiled("lob/synth_kernel.*"):
        say(COMPILING)
    with progress("synth"):
        made = make(instrument, date, events, seed, edge, out, registry_of(instruments))
    session = f"session {format_time_ns(made['start_ns'])} to {format_time_ns(made['end_ns'])}"
    counts = f"{counted(made['prints'], 'print')}, {counted(made['bytes'], 'byte')}"
    content = f"{counted(made['records'], made['schema'] + ' record')} of {made['symbol']}, {counts}"
    emit(made, f"{out}: {content}\n{session}\nsha256 {made['sha256']}", as_json)
