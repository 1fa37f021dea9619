"""From what a user asks to a whole `RunConfig`: the instrument's terms and the market schema filled in from registry and store."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lob.errors import BadInput, NotFound
from lob.instruments import Instrument, resolve
from lob.records import BAR_NS, RECORDS
from sim.config import BadField, RunConfig, run_config

REPLAY_LEVEL = re.compile(r"full|fills|sampled:[1-9][0-9]{0,8}")


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

    A `slippage_ticks` of None is the default. Raises BadInput or NotFound: an unknown instrument, a schema that the store does not have, a
    level that proves too little, a slippage for books, a bad value.
    """
    level = log.get("level", "full")
    if not REPLAY_LEVEL.fullmatch(level):
        rule = "a replay is there to be proved: it logs full, sampled:n (steps and orders of n lanes) or fills"
        raise BadField("log.level", rule, level, is_told=False)
    stated = {name: value for name, value in tape.items() if name != "slippage_ticks" or value is not None}
    stated["market_schema"] = tape.get("market_schema") or choose_schema(store, symbol, tape["clock"])
    if "slippage_ticks" in stated:
        refuse_slippage_for_books(stated["market_schema"], stated["slippage_ticks"])
    account = {name: value for name, value in env.items() if value is not None}
    return run_config(symbol, resolve(symbol, registry), stated, account, log, **rest)


def account_settings(settings: Sequence[str]) -> dict[str, Any]:
    """What `env.name=value` settings say of an account. Raises BadInput for another section."""
    if not settings:
        return {}
    from sim.train_config import read_settings

    stated = read_settings(None, settings)
    if odd := sorted(set(stated) - {"env"}):
        raise BadInput(f"--set {odd[0]}: a replay's account alone is set this way, as env.name=value; the rest has options")
    return stated.get("env", {})


def refuse_slippage_for_books(schema: str, slippage_ticks: int) -> None:
    """Raises BadField where a slippage is stated for a market that shows its spread."""
    if schema in RECORDS and schema not in BAR_NS:
        rule = f"is for bars alone: an order meets the spread that {schema} shows; leave it out"
        raise BadField("tape.slippage_ticks", rule, slippage_ticks, is_told=False)


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
