"""What a market store holds, and its quality, as the commands show it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lob.errors import BadInput, NotFound


def list_store(store: Path) -> list[dict[str, Any]]:
    """One row per instrument and schema: span, rows, dates, sources, bytes and quality counts (`store.market.summarize_store`)."""
    from store.market import summarize_store

    return summarize_store(store)


def remove_source(store: Path, sha256: str | None = None, file: str | None = None) -> dict[str, Any]:
    """Takes one source file out of the store, named by the first digits of its SHA-256 or by its file name: wholly, or not at all.

    Returns what was taken out. Raises BadInput, NotFound. Cached features of it stay: they are kept under the data's own hash.
    """
    from store.market import remove_source as take_out

    if (sha256 is None) == (file is None):
        raise BadInput("name one source file: either --source with the first digits of its SHA-256, or --file with its name")
    record = take_out(store, sha256, file)
    return {
        "store": str(store),
        "source": record.name,
        "sha256": record.sha256,
        "schema": record.schema,
        "instruments": [symbol for symbol, _, _ in record.spans],
        "rows": record.rows,
        "bytes": sum(part.bytes for part in record.parts),
    }


def compact(store: Path, instrument: str | None = None) -> dict[str, Any]:
    """Merges the parts of each day into one file (`store.compact.compact`), and says which days. Raises BadInput, NotFound."""
    from dataclasses import asdict

    from store.market import compact as merge

    return {"store": str(store), "days": [asdict(day) for day in merge(store, instrument)]}


def quality(store: Path, instrument: str | None = None, schema: str | None = None) -> list[dict[str, Any]]:
    """The quality report: one row per source file, instrument, schema, UTC date and session. Raises NotFound when nothing matches."""
    from store.market import quality_rows

    rows = quality_rows(store)
    chosen = [row for row in rows if instrument in (None, row["instrument"]) and schema in (None, row["schema"])]
    if (instrument or schema) and not chosen:
        held = sorted({f"{row['instrument']} {row['schema']}" for row in rows})
        raise NotFound(f"{store}: no {' '.join(filter(None, (instrument, schema)))}; the store holds {', '.join(held) or 'nothing yet'}")
    return chosen
