"""`sim ingest`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.options import InstrumentsFile, Store
from cli.output import Json, emit, progress, say


def register(app: typer.Typer) -> None:
    app.command("ingest")(ingest)


def _option(text: str) -> Any:
    return typer.Option(help=text, show_default=False)


def ingest(
    file: Annotated[
        Path, typer.Argument(help="DBN (1 to 3, raw or zstd), a CSV of bars, Databento's MBP-10 CSV, a LOBSTER file.", show_default=False)
    ],
    store: Store,
    also: Annotated[Path | None, typer.Argument(help="Of a LOBSTER pair the other file.", show_default=False)] = None,
    instrument: Annotated[str | None, _option("What the file's instrument is called, where the file does not say (a CSV of bars).")] = None,
    schema: Annotated[str | None, _option("Schema of a CSV of bars, like ohlcv-1m; for other files it is only checked.")] = None,
    timezone: Annotated[str | None, _option("IANA zone of a CSV's times that carry none, like America/New_York.")] = None,
    stamp: Annotated[str, typer.Option(help="Whether a CSV's bars are stamped at their start or end.")] = "start",
    delimiter: Annotated[str | None, _option("Cell delimiter of a CSV; told from the file where not given.")] = None,
    date_order: Annotated[str | None, _option("mdy or dmy, where a CSV's dates have the year last.")] = None,
    date: Annotated[str | None, _option("Day of a LOBSTER pair whose name does not say it, like 2012-06-21.")] = None,
    columns: Annotated[str | None, _option("Columns of a CSV of bars, like time=When,open=O; numbers where it has no header.")] = None,
    instruments: InstrumentsFile = None,
    as_json: Json = False,
) -> None:
    """Put a market file into a store.

    The file is kept whole and lossless, or not at all. Its SHA-256 is its identity: putting it in again does nothing; another
    file over the same instrument, schema and span is refused. Of a DBN file of single orders (mbo) the books are built too, so
    that it can be replayed; --schema mbo or mbp-10 takes one of the two. What is odd in the data is counted and kept as a quality report.

    \b
    Examples:
      sim ingest esh4_20231225.mbp-10.dbn.zst --store S
      sim ingest ES_1min.csv --store S --instrument ES --schema ohlcv-1m --timezone America/New_York
      sim ingest esh4_20231225.mbo.dbn.zst --store S
      sim ingest AAPL_2012-06-21_34200000_57600000_message_10.csv AAPL_2012-06-21_34200000_57600000_orderbook_10.csv --store S
    """
    from sim.ingest import ingest as put_in
    from sim.registry import registry_of

    with progress("records") as update:
        report = put_in(
            file,
            store,
            instrument=instrument,
            schema=schema,
            timezone=timezone,
            stamp=stamp,
            delimiter=delimiter,
            date_order=date_order,
            columns=columns,
            also=also,
            date=date,
            registry=registry_of(instruments),
            progress=update,
        )
    for warning in report["warnings"]:
        say(f"warning: {warning}")
    texts = [_text(file, one) for one in report.get("live", [report, report.get("books")]) if one is not None]
    if report.get("others"):
        texts.append(f"{file}: not held: {', '.join(f'{name} {count:,}' for name, count in report['others'].items())}")
    emit(report, "\n".join(texts), as_json)


def _text(file: Path, report: dict[str, Any]) -> str:
    from lob.units import counted, format_time_ns

    done = (
        "already in the store; nothing was done"
        if report["already"]
        else f"{counted(report['rows'], 'row')} in {counted(report['parts'], 'part')}"
    )
    span = f"{format_time_ns(report['start_ns'])} to {format_time_ns(report['end_ns'])}"
    return f"{file}: {done}\n{report['schema']} of {', '.join(report['instruments'])}, {span}\nsha256 {report['sha256']}"
