"""Options that several commands share, and how their texts become integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from cli.output import say

if TYPE_CHECKING:
    from lob.errors import BadInput
    from sim.config import BadField

InstrumentsFile = Annotated[
    Path | None, typer.Option("--instruments", help="TOML file that adds instruments or changes their terms.", show_default=False)
]
Store = Annotated[Path, typer.Option("--store", help="Folder of the market store.", show_default=False)]
Runs = Annotated[Path, typer.Option("--runs", help="Folder that holds the runs.", show_default=False)]
Level = Annotated[str, typer.Option(help="What is logged: full, sampled:N (steps and orders of N lanes), fills.")]
NetworkDevice = Annotated[Literal["cpu", "cuda"], typer.Option("--device", help="What the checkpoint's network computes on.")]
Threads = Annotated[int, typer.Option(help="Threads that step the lanes; they change no byte of the log.")]
RebuildFeatures = Annotated[bool, typer.Option("--rebuild-features", help="Compute the features anew and replace them in the cache.")]


def option(text: str, *names: str) -> Any:
    """An option whose text says itself what happens without it."""
    return typer.Option(*names, help=text, show_default=False)


def time_ns(option: str, text: str) -> int:
    """UTC nanoseconds of a time on the command line; says so on stderr when it named no zone. Raises BadInput naming the option."""
    from lob.errors import BadInput
    from lob.units import format_time_ns, parse_time_ns

    try:
        ns, zoned = parse_time_ns(text)
    except BadInput as error:
        raise BadInput(f"{option}: {error}") from None
    if not zoned:
        say(f"note: {option} {text} names no zone and is read as UTC ({format_time_ns(ns)})")
    return ns


def duration_ns(option: str, text: str) -> int:
    """Nanoseconds of a duration on the command line. Raises BadInput naming the option."""
    from lob.units import parse_duration_ns

    return _named(option, parse_duration_ns, text)


def usd_micros(option: str, text: str | None) -> int | None:
    """Micro-dollars of an amount on the command line, None where it was not given. Raises BadInput naming the option."""
    from lob.units import usd_to_micros

    return None if text is None else _named(option, usd_to_micros, text)


CONFIG_OPTIONS = {
    "env.capital_usd_micros": "capital",
    "env.fee_usd_micros": "fees",
    "env.margin_usd_micros": "margin",
    "env.floor_usd_micros": "floor",
    "env.reward_scale_usd_micros": "reward_scale",
    "tape.market_schema": "schema",
    "tape.start_ns": "start",
    "tape.end_ns": "end",
    "tape.latency_ns": "latency",
    "tape.fit_start_ns": "fit_start",
    "tape.fit_end_ns": "fit_end",
}
"""Options whose name is not that of the configuration's field."""


def named_as_typed(error: BadField, typed: Mapping[str, Any]) -> BadInput:
    """The fault of a configuration in the words of the command line; `typed` holds what each option was given."""
    from lob.errors import BadInput

    name = CONFIG_OPTIONS.get(error.field, error.field.rpartition(".")[2])
    if name not in typed:
        return BadInput(error.rule)
    return BadInput(f"--{name.replace('_', '-')}{'' if error.is_told else f' {typed[name]}'}: {error.rule}")


def _named(option: str, convert: Callable[[str], int], text: str) -> int:
    from lob.errors import BadInput

    try:
        return convert(text)
    except BadInput as error:
        raise BadInput(f"{option}: {error}") from None
