"""What a market store holds, and its quality, as the commands show it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lob.errors import NotFound


def list_store(store: Path) -> list[dict[str, Any]]:
    """One row per instrument and schema: span, rows, dates, sources, bytes and quality counts (`store.market.summarize_store`)."""
    from store.market import summarize_store

    return summarize_store(store)


def quality(store: Path, instrument: str | None = None, schema: str | None = None) -> list[dict[str, Any]]:
    """The quality report: one row per source file, instrument, schema and UTC date. Raises NotFound when nothing matches."""
    from store.market import quality_rows

    rows = quality_rows(store)
    chosen = [row for row in rows if instrument in (None, row["instrument"]) and schema in (None, row["schema"])]
    if (instrument or schema) and not chosen:
        held = sorted({f"{row['instrument']} {row['schema']}" for row in rows})
        raise NotFound(f"{store}: no {' '.join(filter(None, (instrument, schema)))}; the store holds {', '.join(held) or 'nothing yet'}")
    return chosen
