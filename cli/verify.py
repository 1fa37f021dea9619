"""`sim verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.output import Json, emit, progress


def register(app: typer.Typer) -> None:
    app.command("verify")(verify)


def _option(text: str) -> Any:
    return typer.Option(help=text, show_default=False)


def verify(
    run: Annotated[Path, typer.Argument(help="The run's folder.", show_default=False)],
    store: Annotated[Path | None, _option("Market store that the run read; without it no fill is held against its raw row.")] = None,
    head: Annotated[str | None, _option("Chain head that the run printed when it ended: tells a log rewritten whole.")] = None,
    tolerance_usd: Annotated[str, typer.Option(help="Difference that is let pass; the exact one is always shown.")] = "0",
    as_json: Json = False,
) -> None:
    """Try to falsify a run's result.

    Five computations of every dollar, per phase, lane and episode: the per-step deltas; the summary from the trades;
    SQL over the fills alone; logged cash; every fill against the raw market row that it claims. Then the chain, the
    hashes, the order of times. Names the first offending table, part, row and column.
    The last word is VERIFIED, CHECKED (nothing contradicts the result, but fills or market are missing that would prove it)
    or FALSIFIED. Exit 0: not falsified. Exit 1: falsified, by one micro-dollar or one byte.

    \b
    Examples:
      sim verify R/7f3a12 --store S
      sim verify R/7f3a12 --store S --head 5d41402abc4b2a76...
      sim verify R/7f3a12 --store S --json | jq .largest_difference_usd_micros
    """
    from lob.units import usd_to_micros
    from sim.verify import verify as prove
    from sim.verify_types import render

    with progress("verify"):
        verdict = prove(run, store, head, usd_to_micros(tolerance_usd))
    emit(verdict.to_json(), render(verdict), as_json)
    raise typer.Exit(verdict.exit_code)
