"""The use case behind `sim ingest`: one source file into the market store."""

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from lob.errors import BadInput
from lob.instruments import REGISTRY, Instrument
from sim.registry import contradictions


def ingest(
    path: str | os.PathLike,
    store: str | os.PathLike,
    *,
    instrument: str | None = None,
    schema: str | None = None,
    timezone: str | None = None,
    stamp: str = "start",
    delimiter: str | None = None,
    date_order: str | None = None,
    columns: str | None = None,
    also: str | os.PathLike | None = None,
    date: str | None = None,
    registry: Mapping[str, Instrument] = REGISTRY,
    limits: str | os.PathLike | None = None,
    progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Puts one file into the store and says what was put in (the fields of `store.market.IngestReport`, plus `store`).

    `instrument`, `schema`, `timezone`, `stamp`, `delimiter`, `date_order`, `columns` say what a CSV of bars does not say itself; a file
    that is in the store already with others of them is refused. A DBN file of messages (`mbo`) goes in twice, as its messages and as the
    books built of them (`mbp-10`, told under `books`); `schema` takes one of them alone. Of a live recording each schema goes in, or all
    of them stay out: see `_live`.
    `also`: the other file of a LOBSTER pair (message and order book file, in any order), whose name or `date` says the day.
    `registry` gives tick and calendar for the quality report, `limits` is a TOML file of what of it is warned of and what is refused
    (`store.quality_limits`); `progress` is called with the records read so far. Raises BadInput, NotFound, StaleCache; the store is then as
    it was before.
    """
    from store.books import BOOKS
    from store.csv_ohlcv import parse_columns
    from store.lobster import order_pair, told_by_name
    from store.market import ingest_file
    from store.quality_limits import read_limits
    from store.readers import holds_messages, open_books, open_pair, open_source, recording_of

    stated = parse_columns(columns)

    def opened(file: Path):
        return open_source(file, schema=schema, timezone=timezone, stamp=stamp, delimiter=delimiter, columns=stated, date_order=date_order)

    named = ",".join(f"{part}={column}" for part, column in sorted(stated.items())) or None
    options = {"schema": schema, "timezone": timezone, "stamp": stamp, "delimiter": delimiter, "columns": named, "date_order": date_order}
    options["date"] = date
    shared: dict[str, Any] = {"instrument": instrument, "registry": registry, "progress": progress}
    if limits is not None:
        shared["limits"] = read_limits(Path(limits))

    def books() -> dict[str, Any]:
        return _told(ingest_file(path, store, open_source=open_books, derived=BOOKS, options={"schema": schema}, **shared), store, registry)

    if also is not None:
        message, book = order_pair(Path(path), Path(also))
        symbol = instrument or told_by_name(message)[0]

        def pair(file: Path):
            return replace(open_pair(file, book, schema, date, timezone), symbol_of=lambda ident, day: symbol)

        return _told(ingest_file(message, store, open_source=pair, also=book, options=options, **shared), store, registry)
    recording = recording_of(Path(path))
    if recording is not None:
        return _live(path, store, recording, schema, shared)

    def whole() -> dict[str, Any]:
        return _told(ingest_file(path, store, open_source=opened, options=options, **shared), store, registry)

    if not holds_messages(Path(path)):
        return whole()
    if schema is not None:
        return books() if schema == "mbp-10" else whole()

    def books_too() -> dict[str, Any]:
        try:
            return books()
        except BadInput as error:
            raise BadInput(f"{error} (--schema mbo puts the messages in alone)") from None

    report, made = _all_or_none(store, [whole, books_too])
    return report | {"books": made, "warnings": report["warnings"] + made["warnings"]}


def _live(path: str | os.PathLike, store: str | os.PathLike, recording: Any, schema: str | None, shared: dict[str, Any]) -> dict[str, Any]:
    """A live recording: each schema that it holds (or the one that is asked for), told under `live`; what is not held, by type, under
    `others`."""
    from store.market import ingest_file
    from store.readers import open_live

    schemas = recording.schemas if schema is None else (schema,)
    others = recording.others
    if not schemas:
        raise BadInput(f"{path}: a live recording that holds nothing that can be used: {_counted(others) or 'no record at all'}")

    def one(name: str) -> Callable[[], dict[str, Any]]:
        def run() -> dict[str, Any]:
            def opened(file: Path):
                return open_live(file, name, recording)

            kind = f"{name} of a live recording"
            return _told(
                ingest_file(path, store, open_source=opened, derived=kind, options={"schema": name}, **shared), store, shared["registry"]
            )

        return run

    reports = _all_or_none(store, [one(name) for name in schemas])
    return {
        "store": str(store),
        "source": str(path),
        "already": all(report["already"] for report in reports),
        "rows": sum(report["rows"] for report in reports),
        "live": reports,
        "others": others,
        "warnings": [warning for report in reports for warning in report["warnings"]],
    }


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _all_or_none(store: str | os.PathLike, steps: list[Callable[[], dict[str, Any]]]) -> list[dict[str, Any]]:
    """The reports of several ingests; when one of them fails, those before it are taken out again."""
    from store.catalog import remove_empty_store
    from store.removal import remove_source

    is_new = not Path(store).exists()
    reports: list[dict[str, Any]] = []
    try:
        for step in steps:
            reports.append(step())
    except BaseException:
        for report in reports:
            if not report["already"]:
                remove_source(store, report["sha256"])
        if is_new and reports:
            remove_empty_store(Path(store))
        raise
    return reports


def _told(report: Any, store: str | os.PathLike, registry: Mapping[str, Instrument]) -> dict[str, Any]:
    """The report as plain values; of definitions, the warnings say where they differ from the registry."""
    told: dict[str, Any] = {"store": str(store)}
    told |= {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(report).items()}
    if report.schema == "definition":
        lines = contradictions(store, report.instruments, registry, (report.start_ns, report.end_ns + 1))
        told["warnings"] += [f"{report.source}: {line}" for line in lines]
    return told
