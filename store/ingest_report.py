"""What an ingest says that it did, and what of the data a person should look at."""

from dataclasses import dataclass
from typing import Any

from lob.records import BAR_NS
from store.catalog import SourceRecord
from store.quality import COUNTERS


@dataclass(frozen=True)
class IngestReport:
    """What an ingest did. `already`: the file was in the store before and nothing was done. `quality`: see `store.quality.report`."""

    source: str
    sha256: str
    schema: str
    already: bool
    rows: int
    instruments: tuple[str, ...]
    start_ns: int
    end_ns: int
    parts: int
    bytes: int
    quality: tuple[dict[str, Any], ...]
    warnings: tuple[str, ...]


def report_of(record: SourceRecord, path: str, already: bool) -> IngestReport:
    return IngestReport(
        source=path,
        sha256=record.sha256,
        schema=record.schema,
        already=already,
        rows=record.rows,
        instruments=tuple(symbol for symbol, _, _ in record.spans),
        start_ns=min(first for _, first, _ in record.spans),
        end_ns=max(last for _, _, last in record.spans),
        parts=len(record.parts),
        bytes=sum(part.bytes for part in record.parts),
        quality=record.quality,
        warnings=tuple(_warnings(record, path)),
    )


def _warnings(record: SourceRecord, path: str) -> list[str]:
    """One line per fault of the data that a person should look at before using it."""
    lines = []
    for symbol, _, _ in record.spans:
        days = [row for row in record.quality if row["instrument"] == symbol]
        total = {name: sum(row.get(name) or 0 for row in days) for name in COUNTERS}  # a record may be older than a count
        bars = record.schema in BAR_NS
        found = []
        if bars and total["outside_session"]:
            first = next(row["date"] for row in days if row["outside_session"])
            ask = "are the time zone and the stamp (start or end of a bar) right?"
            found.append((total["outside_session"], f"bars lie outside the trading session (first on {first}): {ask}"))
        if total["inconsistent_bars"]:
            found.append((total["inconsistent_bars"], "bars have an open or a close outside low to high"))
        if total["off_tick_rows"]:
            found.append((total["off_tick_rows"], "rows hold a price that is no whole number of ticks: they stay out of the tape"))
        if total["unknown_orders"]:
            found.append((total["unknown_orders"], "messages speak of an order that is not in the book: cancels of one are refused"))
        if total["duplicate_orders"] or total["bad_messages"] or total["oversized_cancels"]:
            bad = total["duplicate_orders"] + total["bad_messages"] + total["oversized_cancels"]
            found.append((bad, "messages are refused or cut: an order twice, more lots than are left, no price or side"))
        if total["book_mismatches"]:
            found.append((total["book_mismatches"], "rows of the book file are not what the messages make: they are never traded on"))
        if total["unfounded_books"]:
            found.append(
                (total["unfounded_books"], "rows show a book whose beginning is not in the file (no snapshot, no clear): never traded on")
            )
        if total["crossed_fault"]:
            where = "" if days[0]["session_reason"] else " inside the session"
            found.append((total["crossed_fault"], f"rows show a crossed book{where}: they are never traded on"))
        if late := total["out_of_order_event"] if bars else total["out_of_order_recv"]:
            found.append((late, "rows are older than a row before them: they keep their place"))
        lines += [f"{path}: {symbol}: {count:,} of {total['rows']:,} {what}" for count, what in found]
        if days[0]["off_tick_reason"]:
            lines.append(f"{path}: {days[0]['off_tick_reason']}: ticks and sessions were not checked; name it in an instruments file")
    return lines
