"""What an ingest says that it did, and what of the data a person should look at."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lob.errors import NotFound
from lob.instruments import REGISTRY, Instrument, resolve
from lob.records import BAR_NS
from lob.units import PRICE_SCALE
from store.catalog import SourceRecord
from store.quality import COUNTERS
from store.quality_limits import DEFAULT, Limits

SCALE = 20
"""Traded prices of one root that are this many times those of another file, or of the file's own lowest trade, are of another scale.

The known faults are a hundredfold (cents taken for dollars); an index that grows tenfold over a store's years is none. It only warns.
"""


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


def report_of(
    record: SourceRecord,
    path: str,
    already: bool,
    others: Sequence[SourceRecord] = (),
    registry: Mapping[str, Instrument] = REGISTRY,
    limits: Limits = DEFAULT,
) -> IngestReport:
    """`others`: what else the store holds, against which the scale of the prices is held, by the roots of `registry`."""
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
        warnings=(*_warnings(record, path, limits), *_of_another_scale(record, path, others, registry)),
    )


_SAID = {
    "inconsistent_bars": "bars have an open or a close outside low to high",
    "off_tick_rows": "rows hold a price that is no whole number of ticks: they stay out of the tape",
    "unknown_orders": "messages speak of an order that is not in the book: cancels of one are refused",
    "duplicate_orders": "messages add an order that is there already: they are refused",
    "oversized_cancels": "messages take out more lots than are left: they are cut",
    "bad_messages": "messages have no price or no side: they are refused",
    "book_mismatches": "rows of the book file are not what the messages make: they are never traded on",
    "unfounded_books": "rows show a book whose beginning is not in the file (no snapshot, no clear): never traded on",
    "crossed_fault": "rows show a crossed book{where}: they are never traded on",
    "out_of_order_recv": "rows are older than a row before them: they keep their place",
    "out_of_order_event": "rows are older than a row before them: they keep their place",
    "outside_session": "{rows} lie outside the trading session (first on {first}): {ask}",
}
"""What a warning says of a count; of any other that limits name, the count's name."""


def _warnings(record: SourceRecord, path: str, limits: Limits) -> list[str]:
    """One line per fault of the data that a person should look at before using it: what is above its limit."""
    lines, bars = [], record.schema in BAR_NS
    for symbol, _, _ in record.spans:
        days = [row for row in record.quality if row["instrument"] == symbol]
        total = {name: sum(row.get(name) or 0 for row in days) for name in COUNTERS}  # a record may be older than a count
        for name, share in limits.warn_of(bars).items():
            if total[name] > share * total["rows"]:
                first = next(row["date"] for row in days if row.get(name))
                text = _SAID.get(name, f"are counted as {name} (docs/store.md)").format(
                    where="" if days[0]["session_reason"] else " inside the session",
                    rows="bars" if bars else "rows",
                    first=first,
                    ask="are the time zone and the stamp (start or end of a bar) right?" if bars else "is the calendar the instrument's?",
                )
                lines.append(f"{path}: {symbol}: {total[name]:,} of {total['rows']:,} {text}")
        if days[0]["off_tick_reason"]:
            lines.append(f"{path}: {days[0]['off_tick_reason']}: ticks and sessions were not checked; name it in an instruments file")
    return lines


def _of_another_scale(record: SourceRecord, path: str, others: Sequence[SourceRecord], registry: Mapping[str, Instrument]) -> Iterable[str]:
    """One line per instrument whose prices are SCALE times (or a SCALE-th of) those beside them: in the file, else in the store."""
    names = {name for each in (record, *others) for name, _, _ in each.spans}
    roots = {name: _root(name, registry) for name in names}
    for symbol, _, _ in record.spans:
        if roots[symbol] is None or (mine := _traded(record, {symbol})) is None:
            continue  # a spread or an option may well trade at a twentieth of what it did
        if mine[1] > SCALE * mine[0]:
            yield f"{path}: {symbol}: traded from {_price(mine[0])} to {_price(mine[1])} within the file: are its prices of one scale?"
            continue
        for other in others:
            kin = {name for name, _, _ in other.spans if roots[name] == roots[symbol]}
            theirs = _traded(other, kin) if other.sha256 != record.sha256 else None
            if theirs is not None and (mine[0] > SCALE * theirs[1] or SCALE * mine[1] < theirs[0]):
                yield (
                    f"{path}: {symbol}: traded at {_price(mine[0])} to {_price(mine[1])}, in {other.name} {' '.join(sorted(kin))} at "
                    f"{_price(theirs[0])} to {_price(theirs[1])}: one of the two has a wrong price scale; take it out with `sim store rm`"
                )
                break


def _root(symbol: str, registry: Mapping[str, Instrument]) -> str | None:
    try:
        return resolve(symbol, registry).root
    except NotFound:
        return None


def _traded(record: SourceRecord, symbols: set[str]) -> tuple[int, int] | None:
    """(least, greatest) price traded, 1e-9; None where none is known, or where one is not positive and ratios say nothing."""
    days = [day for day in record.quality if day["instrument"] in symbols]  # a record may be older than these prices
    lows = [day["traded_low_e9"] for day in days if day.get("traded_low_e9") is not None]
    highs = [day["traded_high_e9"] for day in days if day.get("traded_high_e9") is not None]
    return (min(lows), max(highs)) if lows and highs and min(lows) > 0 else None


def _price(price_e9: int) -> str:
    whole, part = divmod(price_e9, PRICE_SCALE)
    return f"{whole:,}.{part:09d}".rstrip("0").rstrip(".")
