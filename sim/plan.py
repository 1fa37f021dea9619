"""From what a user asks to a whole `RunConfig`: the instrument's terms and the market schema filled in from registry and store."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lob.errors import BadInput, NotFound
from lob.instruments import Instrument, resolve
from lob.records import BAR_NS, RECORDS
from sim.config import RunConfig, run_config

REPLAY_LEVELS = ("full", "sampled:n", "fills")


def plan_replay(
    store: Path,
    symbol: str,
    registry: Mapping[str, Instrument],
    tape: dict[str, Any],
    env: dict[str, Any],
    log: dict[str, Any],
    **rest: Any,
) -> RunConfig:
    """The config of a replay. `tape`, `env`, `log` and `rest` hold what the user stated; `tape` without `market_schema` takes the store's.

    Raises BadInput or NotFound: an unknown instrument, a schema that the store does not have, a level that proves too little, a bad value.
    """
    if log.get("level", "full").partition(":")[0] in ("trades", "diag"):
        raise BadInput(f"a replay is there to be proved and never logs less than its fills; use --level {', '.join(REPLAY_LEVELS)}")
    schema = tape.get("market_schema") or choose_schema(store, symbol, tape["clock"])
    stated = {name: value for name, value in env.items() if value is not None}
    return run_config(symbol, resolve(symbol, registry), tape | {"market_schema": schema}, stated, log, **rest)


def choose_schema(store: Path, symbol: str, clock: str) -> str:
    """The schema that the store holds for the instrument: its bars for the clock `bar`, else its deepest book, else its bars.

    Raises NotFound when the instrument is not there, BadInput when several would do.
    """
    from store.market import list_parts

    held: dict[str, set[str]] = {}
    for part in list_parts(store):
        held.setdefault(part.instrument, set()).add(part.schema)
    if symbol not in held:
        known = ", ".join(sorted(held)) or "nothing yet: `sim ingest` puts data in"
        raise NotFound(f"{store}: no instrument {symbol}; the store holds {known}")
    books = [schema for schema in ("mbp-10", "mbp-1") if schema in held[symbol]]
    bars = [schema for schema in RECORDS if schema in BAR_NS and schema in held[symbol]]
    if books and clock != "bar":
        return books[0]
    if len(bars) == 1:
        return bars[0]
    if bars:
        raise BadInput(f"{store}: {symbol} has bars of {', '.join(bars)}; say which with --schema")
    wanted = "bars, and the clock `bar` needs them" if clock == "bar" else "schema that can be replayed"
    raise BadInput(f"{store}: {symbol} has no {wanted}; it has {', '.join(sorted(held[symbol]))}")
