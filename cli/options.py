"""Options that several commands share, and how their texts become integers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from cli.output import say

InstrumentsFile = Annotated[
    Path | None, typer.Option("--instruments", help="TOML file that adds instruments or changes their terms.", show_default=False)
]
Store = Annotated[Path, typer.Option("--store", help="Folder of the market store.", show_default=False)]
Runs = Annotated[Path, typer.Option("--runs", help="Folder that holds the runs.", show_default=False)]


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


def _named(option: str, convert: Callable[[str], int], text: str) -> int:
    from lob.errors import BadInput

    try:
        return convert(text)
    except BadInput as error:
        raise BadInput(f"{option}: {error}") from None
