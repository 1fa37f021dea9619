"""The use case "from the store to what a run is played on": columns, tape, schedule and, through the cache, features."""

from __future__ import annotations

import dataclasses
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lob.actions import EndReason
from lob.errors import BadInput
from sim.config import RunConfig

if TYPE_CHECKING:
    import numpy as np

    from lob.instruments import Instrument
    from lob.normalise import Normaliser
    from lob.tape import Schedule, Tape
    from store.market_read import MarketColumns

REBUILD = "run the same command with --rebuild-features"


@dataclass(frozen=True)
class Loaded:
    """`provenance` goes into the manifest's `data`: JSON values that depend on content alone. `notes`, beside the tape's, are for the
    reader of the run.
    """

    tape: Tape
    schedule: Schedule
    features: np.ndarray  # float32[D+1, 128], normalised
    normaliser: Normaliser
    provenance: dict[str, Any]
    notes: tuple[str, ...]


def load(store: Path, config: RunConfig, rebuild: bool = False, normaliser: Normaliser | None = None) -> Loaded:
    """Tape, schedule and normalised features of a run.

    The store is read from the open of the session that holds the start. Features come from the cache; where they are not in it yet, or
    with `rebuild`, they are computed and put there (a store that cannot be written gives a note, not a failure). `normaliser` is what a
    trained policy brings along; without one it is the config's. Raises BadInput, NotFound, and StaleCache for an entry of other sources or
    another version.
    """
    from lob.coverage import window_notes
    from lob.normalise import apply
    from lob.prepare import Window, prepare, raw_features
    from store.feature_cache import features_hash, read_features, schema_hash, write_features

    settings = config.tape
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
    columns = _read(store, config.instrument.symbol, instrument, schema, settings.start_ns, settings.end_ns)
    tape, plan = prepare(
        columns.arrays, columns.undefined, columns.source, columns.row, columns.sources, instrument, schema, window
    )  # fmt: skip
    if plan.final_reason == EndReason.TAPE_END and _goes_on(store, config.instrument.symbol, schema, settings.end_ns):
        plan = dataclasses.replace(plan, final_reason=int(EndReason.WINDOW_END))
    normaliser = _normaliser(store, config, instrument, window, normaliser)
    parameters = _parameters(config, columns.data_hash, normaliser)
    notes = list(window_notes(tape, plan, settings.start_ns, settings.end_ns))
    features = None if rebuild else read_features(store, parameters, REBUILD)
    if features is None:
        features = apply(raw_features(tape, plan), normaliser)
        try:
            write_features(store, parameters, features, normaliser.mean, normaliser.std, normaliser.label)
        except BadInput as error:
            notes.append(f"{error}; the features were computed and not kept")
    if len(features) != plan.decisions + 1:
        raise AssertionError(f"the cache gave {len(features)} rows for {plan.decisions + 1} steps under one key")
    if normaliser.fell_back:
        notes.append(f"the normaliser's fitted scale of {', '.join(normaliser.fell_back)} is out of bounds: the declared one is used")
    return Loaded(
        tape,
        plan,
        features,
        normaliser,
        _provenance(tape, columns, normaliser, schema_hash(), features_hash(features), settings, instrument),
        tuple(notes),
    )


def _read(store: Path, symbol: str, instrument: Instrument, schema: str, start_ns: int, end_ns: int) -> MarketColumns:
    from lob.prepare import columns_of, read_range
    from store.market_read import read_columns

    return read_columns(store, symbol, schema, *read_range(instrument, start_ns, end_ns), columns_of(schema))


def _goes_on(store: Path, symbol: str, schema: str, end_ns: int) -> bool:
    """Whether the store holds a row of the instrument at or after the window's end."""
    from store.market_read import list_parts

    return any(part.end_ns >= end_ns for part in list_parts(store) if part.instrument == symbol and part.schema == schema)


def _normaliser(store: Path, config: RunConfig, instrument: Instrument, window: Any, brought: Normaliser | None) -> Normaliser:
    """The one that the policy brings, else the declared one, or one fitted on the raw features of the decisions that the same clock makes
    in the fit range."""
    from lob.features import period_s
    from lob.normalise import fit, fixed
    from lob.prepare import prepare, raw_features
    from lob.units import format_time_ns

    first, last = config.tape.fit_start_ns, config.tape.fit_end_ns
    schema = config.tape.market_schema
    declared = fixed(period_s(window.clock, schema))
    if brought is not None:
        if first is not None:
            raise BadInput(f"the checkpoint brings its own normalisation ({brought.label}): leave --fit-start and --fit-end out")
        return brought
    if first is None or last is None:
        return declared
    columns = _read(store, config.instrument.symbol, instrument, schema, first, last)
    fitted_on = dataclasses.replace(window, start_ns=first, end_ns=last, step_limit=None)
    tape, plan = prepare(
        columns.arrays, columns.undefined, columns.source, columns.row, columns.sources, instrument, schema, fitted_on
    )  # fmt: skip
    label = f"fitted on {format_time_ns(first)} to {format_time_ns(last)}, data {columns.data_hash[:16]}"
    return fit(raw_features(tape, plan)[: plan.decisions], label, declared)


def _parameters(config: RunConfig, data_hash: str, normaliser: Normaliser) -> dict[str, Any]:
    """What the features of a run depend on, sources aside: the cache's key. Floats may differ between instruction sets and builds."""
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
        "normaliser": normaliser.fingerprint,
        "build": f"{platform.machine()} numpy {np.__version__} numba {version('numba')}",
    }


def _provenance(tape, columns, normaliser, schema: str, features: str, settings, instrument) -> dict[str, Any]:
    from lob.features import absent_slots
    from lob.prepare import columns_of, read_range

    first, last = read_range(instrument, settings.start_ns, settings.end_ns)
    return {
        "data_hash": columns.data_hash,
        "sources": list(columns.sources),
        "columns": list(columns_of(settings.market_schema)),
        "read_start_ns": first,
        "read_end_ns": last,
        "events": tape.events,
        "barred": dict(sorted(tape.barred.items())),
        "noted": dict(sorted(tape.noted.items())),
        "schema_hash": schema,
        "features_hash": features,
        "normaliser": {"label": normaliser.label, "fingerprint": normaliser.fingerprint, "fell_back": list(normaliser.fell_back)},
        "absent_slots": list(absent_slots(settings.market_schema)),
    }
