"""`sim sql`."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.output import Json, emit, progress


def register(app: typer.Typer) -> None:
    app.command("sql")(sql)


NUMBERS = ("int", "uint", "float", "double", "decimal", "halffloat")
MOST_WIDTH = 64
"""A table cuts longer cells. No hash is cut: a SHA-256 has 64 digits."""


def sql(
    question: Annotated[str, typer.Argument(help="One SELECT or EXPLAIN.", show_default=False)],
    runs: Annotated[list[Path] | None, typer.Option(help="A run, or a folder of runs; may be given again.", show_default=False)] = None,
    store: Annotated[Path | None, typer.Option(help="Market store.", show_default=False)] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, with a header, instead of a table.")] = False,
    as_json: Json = False,
) -> None:
    """Ask the log and the market in SQL.

    Over --runs: runs (head, state, level, ...), steps, orders, fills, trades, diag, events, timing, attempts, each with run_id. A
    folder of runs is asked as one, equal runs included: choose with `where run_id = ...`. Names stand for codes, and each amount
    in whole micro-dollars has its *_usd in DECIMAL(18,6). Over --store: market.mbp_10, market.ohlcv_1m, ... (each also as
    market.mbp_10_sessions, with session_id and state), market.sessions and market.quality.
    Reads only; any number may ask while a run is written. A name that is wrong is answered with those that exist.

    \b
    Examples:
      sim sql --runs R "select picked_direction, actual_direction, count(*) from steps group by all"
      sim sql --runs R "select run_id, sum(realized_usd) from trades group by all"
      sim sql --runs R "select run_id, head, state from runs"
      sim sql --runs R "select * from trades where run_id = 'replay-ESH4-0a1b2c3d4e' limit 5"
      sim sql --store S "select * from market.quality" --csv > quality.csv
    """
    from lob.errors import BadInput
    from sim.sql import ask

    if as_csv and as_json:
        raise BadInput("--csv and --json cannot both be printed; choose one")
    with progress("sql"):
        answer = ask(question, store, runs or None)
    emit(answer, csv_text(answer) if as_csv else table(answer), as_json)


def cells_of(answer: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Column names, and every value as text; a null is empty."""
    rows = [["" if value is None else str(value) for value in row] for row in answer["rows"]]
    return [column["name"] for column in answer["columns"]], rows


def csv_text(answer: dict[str, Any]) -> str:
    names, rows = cells_of(answer)
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([names, *rows])
    return out.getvalue().removesuffix("\n")


def table(answer: dict[str, Any]) -> str:
    """A table for reading: numbers to the right, long text cut (--json and --csv cut nothing), the number of rows below."""
    from lob.units import counted

    names, rows = cells_of(answer)
    if names and names[0].startswith("explain"):
        return "\n".join(row[-1] for row in rows)
    right = [column["type"].startswith(NUMBERS) for column in answer["columns"]]
    shown = [[cell if len(cell) <= MOST_WIDTH else cell[: MOST_WIDTH - 1] + "…" for cell in one_line(row)] for row in [names, *rows]]
    widths = [max(len(row[i]) for row in shown) for i in range(len(names))]

    def line(row: list[str]) -> str:
        return "  ".join(cell.rjust(width) if r else cell.ljust(width) for cell, width, r in zip(row, widths, right, strict=True)).rstrip()

    rule = "  ".join("-" * width for width in widths)
    count = f"({counted(len(rows), 'row')})"
    return "\n".join([line(shown[0]), rule, *map(line, shown[1:]), count])


def one_line(row: list[str]) -> list[str]:
    return [cell.replace("\n", "\\n") for cell in row]
