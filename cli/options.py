"""Options that several commands share, and how their texts become integers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.output import say

InstrumentsFile = Annotated[
    Path | None, typer.Option("--instruments", help="TOML file that adds instruments or changes their terms.", show_default=False)
]


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
