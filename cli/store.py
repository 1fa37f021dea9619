"""`sim store`: what a market store holds, and the way out of it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli.options import Store
from cli.output import Json, columns, emit, progress

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

SHOWN = (
    "gaps", "crossed", "locked", "out_of_order_recv", "out_of_order_event", "undefined_prices", "off_tick_prices", "bad_ts_recv",
    "outside_session", "inconsistent_bars",
)  # fmt: skip
"""The quality counts that the listing names when they are not 0; `sim store quality` has all of them."""

TITLE = ("instrument", "schema", "date", "session_id", "source", "source_sha256", "start_ns", "end_ns")
LS_HEAD = ("instrument", "schema", "first", "last", "rows", "dates", "MB", "holes", "quality")


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="store")


@group.callback()
def store_group() -> None:
    """See what a market store holds, compact it, or take a file out of it."""


@group.command("ls")
def ls(store: Store, as_json: Json = False) -> None:
    """List instruments, schemas, spans, rows.

    One line for each instrument and schema. Holes are more than 7 days without a row (a replay refuses to run over one) and sessions of
    the calendar without any; the last column names what is odd in the data, counted at ingest.

    \b
    Examples:
      sim store ls --store S
      sim store ls --store S --json | jq '.[].instrument'
    """
    from sim.market import list_store

    rows = list_store(store)
    lines = [LS_HEAD, *map(_line, rows)]
    emit(rows, columns(lines) if len(lines) > 1 else f"{store}: nothing yet; `sim ingest FILE --store {store}` puts data in", as_json)


@group.command("quality")
def quality(
    store: Store,
    instrument: Annotated[str | None, typer.Option(help="Only this instrument.", show_default=False)] = None,
    schema: Annotated[str | None, typer.Option(help="Only this schema.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Show the quality report of each ingest.

    Counts for each source file, instrument, UTC date and session: gaps, crossed and locked books by class, rows out of order,
    undefined and off-tick prices, rows outside the session. A count that cannot be made is null, with its reason.

    \b
    Examples:
      sim store quality --store S --instrument ESH4
      sim store quality --store S --json
    """
    from sim.market import quality as report

    rows = report(store, instrument, schema)
    emit(rows, "\n\n".join(block(row) for row in rows) or f"{store}: nothing yet", as_json)


@group.command("rm")
def rm(
    store: Store,
    source: Annotated[str | None, typer.Option(help="The first digits of the file's SHA-256.", show_default=False)] = None,
    file: Annotated[str | None, typer.Option(help="The file's name, as it was ingested.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Take a source file out of a store.

    All of its rows go, or none do. The file itself is not touched: it can be put in again, with other options. Runs that were
    played on it can then no longer be verified from this store.

    \b
    Examples:
      sim store rm --store S --source 3f9a1c
      sim store rm --store S --file ES_1min.csv
    """
    from lob.units import counted
    from sim.market import remove_source

    gone = remove_source(store, source, file)
    what = f"{counted(gone['rows'], 'row')} of {gone['schema']} of {', '.join(gone['instruments'])}"
    emit(gone, f"{gone['source']} (sha256 {gone['sha256']}) is out of {store}: {what}", as_json)


@group.command("compact")
def compact(
    store: Store,
    instrument: Annotated[str | None, typer.Option(help="Only this instrument.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Merge each day's parts into one file.

    For a store of many small files: a query then opens a file a day. No value, no hash and no source changes: runs still verify, and a
    source file can still be taken out. It may be stopped at any moment and run again; others may read and ingest meanwhile.

    \b
    Examples:
      sim store compact --store S
      sim store compact --store S --instrument ESH4
    """
    from lob.units import counted
    from sim.market import compact as merge

    with progress("compact"):
        done = merge(store, instrument)
    days = done["days"]
    files, before, after = (sum(day[name] for day in days) for name in ("files_before", "bytes_before", "bytes"))
    said = f"{counted(files, 'file')} became {len(days):,}, one a day ({before / 1e6:.1f} MB, now {after / 1e6:.1f})"
    emit(done, f"{store}: {said if days else 'every day lies in one file already'}", as_json)


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    size, rows = f"{row['bytes'] / 1e6:.1f}", f"{row['rows']:,}"
    return row["instrument"], row["schema"], row["start"], row["end"], rows, str(row["dates"]), size, holes(row), odd(row["quality"])


def holes(row: dict[str, Any]) -> str:
    """`2 holes, longest 546 days between … and …; 380 sessions without rows`: what the span of an instrument does not hold."""
    from lob.units import counted, format_length_ns

    said = []
    if row["holes"]:
        longest = max(row["holes"], key=lambda hole: hole["ns"])
        between = f"{format_length_ns(longest['ns'])} between {longest['start']} and {longest['end']}"
        said.append(f"1 hole, {between}" if len(row["holes"]) == 1 else f"{len(row['holes'])} holes, longest {between}")
    if row["missing_sessions"]:
        said.append(f"{counted(row['missing_sessions'], 'session')} without rows")
    return "; ".join(said) or "-"


def odd(counts: dict[str, Any]) -> str:
    """`gaps 2, crossed 1`: the shown counts that are not 0."""
    return ", ".join(f"{name} {counts[name]:,}" for name in SHOWN if counts.get(name)) or "-"


def block(row: dict[str, Any]) -> str:
    """One report as text, its zeros left out."""
    counts = [(name, f"{value:,}" if isinstance(value, int) else str(value)) for name, value in row.items() if value and name not in TITLE]
    session = f" session {row['session_id']}" if row.get("session_id") else ""
    return f"{row['instrument']} {row['schema']} {row['date']}{session}  ({row['source']})\n{columns(counts, indent='  ')}"
