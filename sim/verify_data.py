"""`sim verify` on the market data: whether the store holds what the run read, and the market that fills are held against."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sim.run_data import RunTerms, joint_hash
from sim.verify_market import BAR_COLUMNS, Market, book_columns, join_markets, market_of
from sim.verify_types import OK, Check, failed

if TYPE_CHECKING:
    from store.market_read import MarketColumns


def read_market(terms: RunTerms, store: str | Path) -> tuple[Market, list[Check]]:
    """The run's market from the store, and whether it is the data that the run saw (the data hash, computed anew).

    Raises NotFound or BadInput when the store has nothing of it or cannot be read.
    """
    from lob.calendar import sessions
    from store.market_read import list_parts, read_columns

    needed = BAR_COLUMNS if terms.is_bars else book_columns(terms.schema, terms.working is not None)
    faults: list[str | None] = []
    markets: list[Market] = []
    for (start, end, _), (columns, fault) in zip(_stated_reads(terms), _reads(terms, store), strict=True):
        faults.append(fault)
        if set(needed) - set(columns.arrays):
            columns = read_columns(store, terms.instrument, terms.schema, start, end, needed)
        held = sessions(terms.calendar, start, end)
        markets.append(market_of(columns, terms.schema, terms.tick_price_e9, terms.slippage_ticks, held, terms.sources))
    market = join_markets(markets, [max(read, 0) for read in _serving_reads(terms)]) if terms.is_joined else markets[0]
    held_until = [part.end_ns for part in list_parts(store) if (part.instrument, part.schema) == (terms.instrument, terms.schema)]
    return replace(market, goes_on_until_ns=max(held_until)), [_data_check(terms, faults)]


def check_data(terms: RunTerms, store: str | Path) -> Check:
    """`read_market`'s check alone, for a run of which nothing else is held against the market. Raises NotFound, BadInput."""
    return _data_check(terms, [fault for _, fault in _reads(terms, store)])


def _stated_reads(terms: RunTerms) -> Sequence[tuple[int, int, str | None]]:
    """(start, end, data hash) of each range that the run read."""
    return terms.reads or ((terms.read_start_ns, terms.read_end_ns, terms.data_hash),)


def _reads(terms: RunTerms, store: str | Path) -> Iterator[tuple["MarketColumns", str | None]]:
    """(columns that the run read, what is wrong with their data hash) of each of its ranges in turn. Raises NotFound, BadInput."""
    from store.market_read import read_columns

    for start, end, said in _stated_reads(terms):
        columns = read_columns(store, terms.instrument, terms.schema, start, end, terms.columns)
        fault = f"the store's data hash is {columns.data_hash}, the run's {said}" if columns.data_hash != said else None
        yield columns, fault


def _serving_reads(terms: RunTerms) -> list[int]:
    """Which read each window lies in; -1: in none."""
    reads = _stated_reads(terms)
    return [next((i for i, read in enumerate(reads) if read[0] <= start < end <= read[1]), -1) for start, end in terms.windows]


def _data_check(terms: RunTerms, faults: Sequence[str | None]) -> Check:
    """Whether the store's data is what the run saw; `faults` of each read."""
    wrong = [fault for fault in faults if fault is not None]
    if terms.is_joined:
        if joint_hash(terms.reads) != terms.data_hash:
            wrong.append(f"the reads' data hashes give {joint_hash(terms.reads)}, the run says {terms.data_hash}")
        if -1 in _serving_reads(terms):
            wrong.append("a window of the run lies in none of its reads")
    if terms.data_hash is None:
        wrong = ["the manifest holds none: nothing says which data the run saw"]
    return failed("data_hash", wrong[0], "manifest", "data_hash") if wrong else Check("data_hash", OK, "")
