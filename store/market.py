"""The market store, as others call it: put files in, list what there is, read columns. Its parts: `store.ingest`, `store.market_read`,
`store.catalog` (what exists, and how it comes to exist), `store.market_schema` (what a part holds), `store.quality`."""

from store.catalog import Part, SourceRecord, check_store
from store.compact import CompactedDay, compact
from store.ingest import ingest_file
from store.ingest_report import IngestReport
from store.market_read import MarketColumns, list_parts, quality_rows, read_columns, summarize_store
from store.removal import remove_source

__all__ = [
    "CompactedDay", "IngestReport", "MarketColumns", "Part", "SourceRecord", "check_store", "compact", "ingest_file", "list_parts",
    "quality_rows", "read_columns", "remove_source", "summarize_store",
]  # fmt: skip
