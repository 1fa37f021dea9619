"""`sim bench`."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated, Any

import typer

from cli.output import COMPILING, Json, columns, emit, progress, say

BUSY = 0.5
"""Load average from which other work shows in the times."""


def register(app: typer.Typer) -> None:
    app.command("bench")(bench)


def bench(
    names: Annotated[list[str] | None, typer.Argument(help="Benchmarks to run; default: all of them.", show_default=False)] = None,
    rounds: Annotated[int, typer.Option(help="Timed rounds of each, after one that warms up.", min=1)] = 5,
    threads: Annotated[int, typer.Option(help="Threads of environment and learner.", min=1)] = 1,
    as_json: Json = False,
) -> None:
    """Measure this machine on a synthetic market.

    Building a tape, stepping the environment, replaying with a log, verifying, updating the learner; on a GPU the
    environment's captured step too. Prints machine, versions, command, the median and the range of the rounds, and what
    limits each figure. Every round's output is checked: where a check fails there is no time, and the command exits 1.
    Wants an idle machine, and half a minute.

    \b
    Examples:
      sim bench
      sim bench env learner --threads 2 --rounds 9
      sim bench --json | jq '.results[] | {name, median, unit}'
    """
    from lob.jit import is_compiled
    from sim.bench import bench as run

    if not is_compiled("cuda_env/kernels_cpu.*"):
        say(COMPILING)
    with progress("bench") as update:
        found = run(names or [], rounds, threads, update)
    found = {"command": shlex.join(["sim", *sys.argv[1:]]), **found}
    if (load := found["machine"]["load"]) > BUSY:
        say(f"note: the load average was {load:.1f} before the first round: other work lengthens these times")
    emit(found, _text(found), as_json)
    raise typer.Exit(0 if found["ok"] else 1)


def _text(found: dict[str, Any]) -> str:
    processors, versions = found["machine"]["processors"], found["versions"]
    gpus = "; ".join(gpu["name"] for gpu in found["machine"]["gpu"]["devices"]) or "none"
    facts = [
        ("machine", f"{processors['model']}, {processors['usable']} usable processors of {processors['machine']}; GPU {gpus}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items() if version)),
        ("command", found["command"]),
    ]
    head = ("benchmark", "median", "least", "greatest", "unit", "a round")
    return "\n\n".join([columns(facts), columns([head, *map(_row, found["results"])]), "\n".join(map(_notes, found["results"]))])


def _row(result: dict[str, Any]) -> tuple[str, ...]:
    figures = tuple("-" if result[name] is None else _short(result[name]) for name in ("median", "least", "greatest"))
    return (result["name"], *figures, result["unit"], result["size"])


def _notes(result: dict[str, Any]) -> str:
    """What was measured and checked, and what limits it; or why there is no time."""
    if result["refused"] is not None:
        return f"{result['name']}: NO TIME, its output is wrong: {result['refused']}"
    return f"{result['name']}: {result['what']}\n  checked: {result['checked']}\n  limit: {result['limit']}"


def _short(rate: float) -> str:
    """Three digits and a unit of thousands: 1.23 M."""
    for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if rate >= size:
            return f"{rate / size:.3g}{letter}"
    return f"{rate:.3g}"
