"""`sim verdict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.output import Json, emit, progress


def register(app: typer.Typer) -> None:
    app.command("verdict")(verdict)


def _option(text: str) -> Any:
    return typer.Option(help=text, show_default=False)


def verdict(
    run: Annotated[Path, typer.Argument(help="The run's folder: a training, an evaluation or a replay.", show_default=False)],
    store: Annotated[Path | None, _option("Market store that the run read; with it each fill is held against its raw row.")] = None,
    head: Annotated[str | None, _option("Chain head that the run printed when it ended.")] = None,
    against: Annotated[Path | None, _option("Earlier run on the same days: falling by more than half of its Sharpe ratio kills.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 on a WARN too.")] = False,
    as_json: Json = False,
) -> None:
    """Pass, warn or kill a run by eight signals.

    Reward alignment (with true dollars of the same step), evaluated PnL, consistency of all accounts of the dollars (KILL
    beyond $50), leak, collapse, non-finite values, determinism (against an equal run beside it), completion. Each with its
    number, its threshold (sim/thresholds.py) and one sentence. A training is judged with the evaluations of its best
    checkpoint that lie beside it; those of another one are named and left out.
    Exit 0: no KILL. Exit 1: a KILL, or with --strict a WARN.

    \b
    Examples:
      sim verdict R/train-ESH4-5d41402abc
      sim verdict R/eval-ESH4-7f3a12 --store S --strict
      sim verdict R/train-ESH4-5d41402abc --against R/train-ESH4-0b2c9a1f44
      sim verdict R/eval-ESH4-7f3a12 --json | jq '.signals[] | select(.status != "PASS")'
    """
    from sim.verdict import judge, render

    with progress("verdict"):
        found = judge(run, store, head, against)
    emit(found.to_json(), render(found), as_json)
    raise typer.Exit(found.exit_code(strict))
