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
    files: Annotated[
        list[str],
        typer.Argument(
            help="Files, folders and globs: DBN (1 to 3, raw or zstd; live recordings too), Databento's CSV, CSVs of bars, LOBSTER pairs.",
            show_default=False,
        ),
    ],
    store: Store,
    instrument: Annotated[str | None, _option("What the file's instrument is called, where the file does not say (a CSV of bars).")] = None,
    schema: Annotated[str | None, _option("Schema of a CSV of bars, like ohlcv-1m; for other files it is only checked.")] = None,
    timezone: Annotated[str | None, _option("IANA zone of a CSV's times that carry none, like America/New_York.")] = None,
    stamp: Annotated[str, typer.Option(help="Whether a CSV's bars are stamped at their start or end.")] = "start",
    delimiter: Annotated[str | None, _option("Cell delimiter of a CSV; told from the file where not given.")] = None,
    date_order: Annotated[str | None, _option("mdy or dmy, where a CSV's dates have the year last.")] = None,
    date: Annotated[str | None, _option("Day of a LOBSTER pair whose name does not say it, like 2012-06-21.")] = None,
    columns: Annotated[str | None, _option("Columns of a CSV of bars, like time=When,open=O; numbers where it has no header.")] = None,
    instruments: InstrumentsFile = None,
    limits: Annotated[Path | None, _option("TOML file: what share of odd rows is warned of or refused (docs/store.md).")] = None,
    as_json: Json = False,
) -> None:
    """Put market files into a store.

    Each file is kept whole and lossless, or not at all. Its SHA-256 is its identity: putting it in again does nothing; another
    file over the same instrument, schema and span is refused. Of several, one that cannot go in does not stop the others: each
    has its line, and the exit code is 2. Of a DBN file of single orders (mbo) the books are built too, so that it can be replayed;
    --schema mbo or mbp-10 takes one of the two. What is odd in the data is counted and kept as a quality report.

    \b
    Examples:
      sim ingest esh4_20231225.mbp-10.dbn.zst --store S
      sim ingest ES_1min.csv --store S --instrument ES --schema ohlcv-1m --timezone America/New_York
      sim ingest esh4_20231225.mbo.dbn.zst --store S
      sim ingest GLBX-20240305-ABC/ 'more/*.dbn.zst' --store S
      sim ingest AAPL_2012-06-21_34200000_57600000_message_10.csv AAPL_2012-06-21_34200000_57600000_orderbook_10.csv --store S
    """
    from sim.ingest_many import find_sources, ingest_many
    from sim.registry import registry_of

    sources, passed = find_sources(files, store)
    options: dict[str, Any] = {
        "instrument": instrument,
        "schema": schema,
        "timezone": timezone,
        "stamp": stamp,
        "delimiter": delimiter,
        "date_order": date_order,
        "columns": columns,
        "date": date,
        "registry": registry_of(instruments),
        "limits": limits,
    }
    if len(sources) == 1 and not passed:
        _one(sources[0], store, options, as_json)
        return
    if passed:
        more = f" and {len(passed) - 5} more" if len(passed) > 5 else ""
        say(f"note: passed by, for their names are not those of market data: {', '.join(map(str, passed[:5]))}{more}")

    def tell(report: dict[str, Any]) -> None:
        for warning in report.get("warnings", ()):
            say(f"warning: {warning}")
        if "error" in report:
            say(f"error: {report['error']}")
        elif not as_json:
            emit(report, _line(report), False)

    with progress("records") as update:
        reports = ingest_many(sources, store, tell, progress=update, **options)
    failed = sum("error" in report for report in reports)
    already = sum("error" not in report and _is_held(report) for report in reports)
    text = f"{len(reports) - failed - already} put in, {already} held already, {failed} refused"
    emit({"store": str(store), "sources": reports, "passed": [str(path) for path in passed], "refused": failed}, text, as_json)
    if failed:
        raise typer.Exit(2)


def _one(source: Any, store: Path, options: dict[str, Any], as_json: bool) -> None:
    from sim.ingest_many import ingest_one

    with progress("records") as update:
        report = ingest_one(source, store, progress=update, **options)
    for warning in report["warnings"]:
        say(f"warning: {warning}")
    texts = [_text(source.path, one) for one in _parts(report)]
    if report.get("others"):
        texts.append(f"{source.path}: not held: {_others(report)}")
    emit(report, "\n".join(texts), as_json)


def _parts(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The reports of what one source became: itself, the books of its messages, the schemas of a live recording."""
    return [one for one in report.get("live", [report, report.get("books")]) if one is not None]


def _is_held(report: dict[str, Any]) -> bool:
    """Whether all that the source became was in the store before."""
    return all(one["already"] for one in _parts(report))


def _others(report: dict[str, Any]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in report["others"].items())


def _line(report: dict[str, Any]) -> str:
    """One source in one line."""
    from lob.units import counted

    if _is_held(report):
        return f"{report['source']}: already in the store"
    new = [one for one in _parts(report) if not one["already"]]
    said = [f"{counted(one['rows'], 'row')} of {one['schema']} of {_some(one['instruments'])}" for one in new]
    left = f"; not held: {_others(report)}" if report.get("others") else ""
    return f"{report['source']}: {', '.join(said)}{left}"


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _text(file: Path, report: dict[str, Any]) -> str:
    from lob.units import counted, format_time_ns

    done = (
        "already in the store; nothing was done"
        if report["already"]
        else f"{counted(report['rows'], 'row')} in {counted(report['parts'], 'part')}"
    )
    span = f"{format_time_ns(report['start_ns'])} to {format_time_ns(report['end_ns'])}"
    return f"{file}: {done}\n{report['schema']} of {', '.join(report['instruments'])}, {span}\nsha256 {report['sha256']}"
