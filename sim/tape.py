"""The use case "from the store to what a run is played on": columns, tape, schedule and, through the cache, features."""

from __future__ import annotations

import dataclasses
import datetime
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lob.actions import EndReason
from lob.errors import BadInput
from lob.units import NS_PER_SECOND
from sim.config import RunConfig

if TYPE_CHECKING:
    import numpy as np

    from lob.instruments import Instrument
    from lob.normalise import Normaliser
    from lob.tape import Schedule, Tape
    from store.catalog import Part
    from store.market_read import MarketColumns

REBUILD = "run the same command with --rebuild-features"


@dataclass(frozen=True)
class Loaded:
    """`provenance` goes into the manifest's `data`: JSON values that depend on content alone. `notes`, beside the tape's, are for the
    reader of the run.
    """

    tape: Tape
    schedule: Schedule
    features: np.ndarray  # float32[R, 128], normalised
    normaliser: Normaliser
    provenance: dict[str, Any]
    notes: tuple[str, ...]


def load(store: Path, config: RunConfig, rebuild: bool = False, normaliser: Normaliser | None = None) -> Loaded:
    """Tape, schedule and normalised features of a run; with `config.tape.windows`, joined (`sim.tape_windows`).

    The store is read from the open of the session that holds the start. Features come from the cache; where they are not in it yet, or
    with `rebuild`, they are computed and put there (a store that cannot be written gives a note, not a failure). `normaliser` is what a
    trained policy brings along; without one it is the config's. Raises BadInput, NotFound, and StaleCache for an entry of other sources or
    another version.
    """
    from lob.coverage import window_notes
    from lob.normalise import apply
    from lob.prepare import Window, prepare, raw_features, read_range
    from store.feature_cache import read_features, write_features
    from store.market_read import list_parts

    settings = config.tape
    if settings.windows is not None:
        from sim.tape_windows import load_windows

        return load_windows(store, config, rebuild, normaliser)
    instrument, schema = config.instrument.instrument(), settings.market_schema
    window = Window(
        settings.clock,
        settings.start_ns,
        settings.end_ns,
        settings.latency_ns,
        config.env.max_lots,
        settings.step_limit,
        settings.slippage_ticks,
    )
    span = read_range(instrument, settings.start_ns, settings.end_ns)
    columns = read(store, config, span)
    tape, plan = prepare(
        columns.arrays, columns.undefined, columns.source, columns.row, columns.sources, instrument, schema, window
    )  # fmt: skip
    if plan.final_reason == EndReason.TAPE_END and goes_on(list_parts(store), config, settings.end_ns):
        plan = dataclasses.replace(plan, final_reason=int(EndReason.WINDOW_END))
    normaliser = _normaliser(store, config, instrument, window, normaliser)
    parameters = feature_parameters(config, columns.data_hash, normaliser.fingerprint)
    notes = list(window_notes(tape, plan, settings.start_ns, settings.end_ns))
    features = None if rebuild else read_features(store, parameters, REBUILD)
    if features is None:
        features = apply(raw_features(tape, plan), normaliser)
        try:
            write_features(store, parameters, features, normaliser.mean, normaliser.std, normaliser.label)
        except BadInput as error:
            notes.append(f"{error}; the features were computed and not kept")
    if len(features) != plan.rows:
        raise AssertionError(f"the cache gave {len(features)} rows for {plan.rows} steps under one key")
    if normaliser.fell_back:
        notes.append(f"the normaliser's fitted scale of {', '.join(normaliser.fell_back)} is out of bounds: the declared one is used")
    origin = {"data_hash": columns.data_hash, "read_start_ns": span[0], "read_end_ns": span[1]}
    return Loaded(tape, plan, features, normaliser, provenance_of(tape, normaliser, features, config, origin), tuple(notes))


def read(store: Path, config: RunConfig, span: tuple[int, int]) -> MarketColumns:
    """The columns that a tape of the config's market is made of, in [start_ns, end_ns). Raises NotFound, BadInput."""
    from lob.prepare import columns_of
    from store.market_read import read_columns

    schema = config.tape.market_schema
    return read_columns(store, config.instrument.symbol, schema, *span, columns_of(schema, config.env.queue_model != "none"))


def goes_on(parts: list[Part], config: RunConfig, end_ns: int) -> bool:
    """Whether the store, of which these are the parts, holds a row of the run's market at or after `end_ns`."""
    market = (config.instrument.symbol, config.tape.market_schema)
    return any(part.end_ns >= end_ns for part in parts if (part.instrument, part.schema) == market)


def sessions_of(
    store: Path, symbol: str, schema: str, instrument: Instrument, start_ns: int, end_ns: int
) -> list[tuple[datetime.date, int, int]]:
    """(trade date, start_ns, end_ns) of every session in [start_ns, end_ns) of which the store holds a row, cut to that range, ascending.

    A file that spans a session without a row in it counts as holding it: such a window is refused when it is loaded.
    """
    from lob.calendar import sessions
    from store.market_read import list_parts

    spans = [(part.start_ns, part.end_ns) for part in list_parts(store) if part.instrument == symbol and part.schema == schema]
    held = sessions(instrument.calendar, start_ns, end_ns)
    days = []
    for date, opens, closes in zip(held.trade_date.tolist(), held.open_ns.tolist(), held.close_ns.tolist(), strict=True):
        first, last = max(opens, start_ns), min(closes, end_ns)
        if any(begin < last and end >= first for begin, end in spans):
            days.append((datetime.date(date // 10_000, date // 100 % 100, date % 100), first, last))
    return days


def cut_to_data(
    store: Path, symbol: str, schema: str, days: Sequence[tuple[datetime.date, int, int]]
) -> list[tuple[datetime.date, int, int]]:
    """Days of `sessions_of`, each cut at whole minutes to the stretch from its first file's first row to its last file's last."""
    from lob.records import BAR_NS
    from store.market_read import list_parts

    minute = 60 * NS_PER_SECOND
    spans = [
        (part.start_ns // minute * minute, -(-(part.end_ns + BAR_NS.get(schema, 1)) // minute) * minute)
        for part in list_parts(store)
        if part.instrument == symbol and part.schema == schema
    ]
    cut = []
    for date, first, last in days:
        held = [(begin, end) for begin, end in spans if begin < last and end > first]
        cut.append((date, max(first, min(begin for begin, _ in held)), min(last, max(end for _, end in held))))
    return cut


def _normaliser(store: Path, config: RunConfig, instrument: Instrument, window: Any, brought: Normaliser | None) -> Normaliser:
    """The one that the policy brings, else the declared one, or one fitted on the raw features of the decisions that the same clock makes
    in the fit range."""
    from lob.features import period_s
    from lob.normalise import fit, fixed
    from lob.prepare import prepare, raw_features, read_range
    from lob.units import format_time_ns

    first, last = config.tape.fit_start_ns, config.tape.fit_end_ns
    schema = config.tape.market_schema
    declared = fixed(period_s(window.clock, schema))
    if brought is not None:
        refuse_fit_of(config, brought)
        return brought
    if first is None or last is None:
        return declared
    columns = read(store, config, read_range(instrument, first, last))
    fitted_on = dataclasses.replace(window, start_ns=first, end_ns=last, step_limit=None)
    tape, plan = prepare(
        columns.arrays, columns.undefined, columns.source, columns.row, columns.sources, instrument, schema, fitted_on
    )  # fmt: skip
    label = f"fitted on {format_time_ns(first)} to {format_time_ns(last)}, data {columns.data_hash[:16]}"
    return fit(raw_features(tape, plan)[: plan.decisions], label, declared)


def refuse_fit_of(config: RunConfig, brought: Normaliser) -> None:
    """Raises BadInput when the config states a fit range beside the normalisation that the policy brings along."""
    if config.tape.fit_start_ns is not None:
        raise BadInput(f"the checkpoint brings its own normalisation ({brought.label}): leave --fit-start and --fit-end out")


def feature_parameters(config: RunConfig, data_hash: str, normaliser: str) -> dict[str, Any]:
    """What the features of a run depend on, sources aside: the cache's key. `normaliser` is a fingerprint, or says that there is none.
    Floats may differ between instruction sets and builds."""
    from importlib.metadata import version

    import numpy as np

    tape = config.tape
    return {
        "data_hash": data_hash,
        "market_schema": tape.market_schema,
        "tick": config.instrument.tick,
        "calendar": config.instrument.calendar,
        "clock": tape.clock,
        "start_ns": tape.start_ns,
        "end_ns": tape.end_ns,
        "latency_ns": tape.latency_ns,
        "max_lots": config.env.max_lots,
        "step_limit": tape.step_limit,
        "slippage_ticks": tape.slippage_ticks if tape.market_schema.startswith("ohlcv") else None,
        "normaliser": normaliser,
        "build": f"{platform.machine()} numpy {np.__version__} numba {version('numba')}",
    }


def provenance_of(tape: Tape, normaliser: Normaliser, features: np.ndarray, config: RunConfig, origin: dict[str, Any]) -> dict[str, Any]:
    """The manifest's `data`: JSON values that depend on content alone. `origin` says what was read."""
    from lob.features import absent_slots
    from lob.prepare import columns_of
    from store.feature_cache import features_hash, schema_hash

    schema = config.tape.market_schema
    return origin | {
        "sources": list(tape.sources),
        "columns": list(columns_of(schema, config.env.queue_model != "none")),
        "events": tape.events,
        "barred": dict(sorted(tape.barred.items())),
        "noted": dict(sorted(tape.noted.items())),
        "schema_hash": schema_hash(),
        "features_hash": features_hash(features),
        "normaliser": {"label": normaliser.label, "fingerprint": normaliser.fingerprint, "fell_back": list(normaliser.fell_back)},
        "absent_slots": list(absent_slots(schema)),
    }
