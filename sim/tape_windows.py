"""The use case "from the store to what a run of several windows is played on": each read of the store with its windows, then all joined."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lob.actions import EndReason
from lob.errors import BadInput
from sim.config import RunConfig
from sim.run_data import joint_hash
from sim.tape import REBUILD, Loaded, feature_parameters, goes_on, provenance_of, read, refuse_fit_of, sessions_of

if TYPE_CHECKING:
    import numpy as np

    from lob.normalise import Normaliser
    from lob.tape import Schedule, Tape

Window = tuple[int, int]
"""[start_ns, end_ns) of decisions."""


@dataclass(frozen=True)
class Read:
    """One read of the store and the windows on it: those of one session, as a rule. `raw` are their features before normalisation."""

    span: Window
    windows: list[Window]
    data_hash: str
    tape: Tape
    plans: list[Schedule]
    raw: list[np.ndarray]  # float32[D+1, 128] each
    notes: list[str]


def reads_of(config: RunConfig, windows: Sequence[Window]) -> list[tuple[Window, list[Window]]]:
    """[(start, end) to read, the windows that it serves]: from the open of the session that holds a window's start to its end, windows of
    one session together. What lies between them is not read."""
    from lob.prepare import read_range

    instrument = config.instrument.instrument()
    reads: list[tuple[Window, list[Window]]] = []
    for window in windows:
        first, last = read_range(instrument, *window)
        if reads and first < reads[-1][0][1]:
            (begin, _), served = reads.pop()
            reads.append(((begin, last), [*served, window]))
        else:
            reads.append(((first, last), [window]))
    return reads


def load_windows(store: Path, config: RunConfig, rebuild: bool, brought: Normaliser | None) -> Loaded:
    """`sim.tape.load` of a config with windows: the tapes of all reads one after another, the plans joined, their features normalised.

    A window's features are kept raw in the cache, so that training and evaluation share them. A fit range is cut into the sessions that
    hold data (`sim.tape.sessions_of`), a window each: it gives the same statistics whatever windows the run plays. Raises as `load` does.
    """
    import numpy as np

    from lob.layout import STATE_DIM
    from lob.normalise import apply
    from lob.windows import join, join_tapes

    settings = config.tape
    assert settings.windows is not None
    reads = list(_read_all(store, config, settings.windows, settings.step_limit, rebuild))
    normaliser = _normaliser(store, config, reads, rebuild, brought)
    tape, firsts = join_tapes([one.tape for one in reads])
    plan = join([p for one in reads for p in one.plans], [first for one, first in zip(reads, firsts, strict=True) for _ in one.plans])
    features = np.empty((plan.rows, STATE_DIM), np.float32)
    at = 0
    for one in reads:
        for raw in one.raw:
            features[at : at + len(raw)] = apply(raw, normaliser)
            at += len(raw)
    notes = list(dict.fromkeys(note for one in reads for note in one.notes))
    if normaliser.fell_back:
        notes.append(f"the normaliser's fitted scale of {', '.join(normaliser.fell_back)} is out of bounds: the declared one is used")
    said = [[*one.span, one.data_hash] for one in reads]
    origin = {"data_hash": joint_hash(said), "read_start_ns": reads[0].span[0], "read_end_ns": reads[-1].span[1], "reads": said}
    return Loaded(tape, plan, features, normaliser, provenance_of(tape, normaliser, features, config, origin), tuple(notes))


def _read_all(store: Path, config: RunConfig, windows: Sequence[Window], step_limit: int | None, rebuild: bool) -> Iterator[Read]:
    """Each read with its windows, one after another, so that not all columns lie in memory."""
    from lob.coverage import window_notes
    from lob.prepare import Window as Lain
    from lob.prepare import plan_of, tape_of
    from store.market_read import list_parts

    settings, instrument = config.tape, config.instrument.instrument()
    parts = list_parts(store)
    for span, served in reads_of(config, windows):
        columns = read(store, config, span)
        tape = tape_of(
            columns.arrays, columns.undefined, columns.source, columns.row, columns.sources, instrument, settings.market_schema, span,
            settings.slippage_ticks,
        )  # fmt: skip
        plans, raw = [], []
        notes: list[str] = []
        for start, end in served:
            lain = Lain(settings.clock, start, end, settings.latency_ns, config.env.max_lots, step_limit, settings.slippage_ticks)
            plan = plan_of(tape, lain)
            if plan.final_reason == EndReason.TAPE_END and goes_on(parts, config, end):
                plan = dataclasses.replace(plan, final_reason=int(EndReason.WINDOW_END))
            parameters = feature_parameters(config, columns.data_hash, "raw") | {"start_ns": start, "end_ns": end, "step_limit": step_limit}
            plans.append(plan)
            raw.append(_raw_features(store, tape, plan, parameters, rebuild, notes))
            notes += window_notes(tape, plan, start, end)
        yield Read(span, served, columns.data_hash, tape, plans, raw, notes)


def _raw_features(store: Path, tape: Tape, plan: Schedule, parameters: dict[str, Any], rebuild: bool, notes: list[str]) -> np.ndarray:
    """From the cache, or computed and put there."""
    import numpy as np

    from lob.layout import STATE_DIM
    from lob.prepare import raw_features
    from store.feature_cache import read_features, write_features

    features = None if rebuild else read_features(store, parameters, REBUILD)
    if features is None:
        features = raw_features(tape, plan)
        try:
            write_features(store, parameters, features, np.zeros(STATE_DIM), np.ones(STATE_DIM), "raw")
        except BadInput as error:
            notes.append(f"{error}; the features were computed and not kept")
    if len(features) != plan.rows:
        raise AssertionError(f"the cache gave {len(features)} rows for {plan.rows} steps under one key")
    return features


def _normaliser(store: Path, config: RunConfig, reads: list[Read], rebuild: bool, brought: Normaliser | None) -> Normaliser:
    """The one that the policy brings, else the declared one, or one fitted on every session of the fit range."""
    from lob.features import period_s
    from lob.normalise import fit, fixed
    from lob.units import format_time_ns

    settings = config.tape
    if brought is not None:
        refuse_fit_of(config, brought)
        return brought
    declared = fixed(period_s(settings.clock, settings.market_schema))
    first, last = settings.fit_start_ns, settings.fit_end_ns
    if first is None or last is None:
        return declared
    symbol, schema = config.instrument.symbol, settings.market_schema
    wanted = [(start, end) for _, start, end in sessions_of(store, symbol, schema, config.instrument.instrument(), first, last)]
    if not wanted:
        raise BadInput(f"{symbol} has no {schema} from {format_time_ns(first)} to {format_time_ns(last)}: choose another fit range")
    held = {} if settings.step_limit else {window: raw for one in reads for window, raw in zip(one.windows, one.raw, strict=True)}
    missing = [window for window in wanted if window not in held]
    for one in _read_all(store, config, missing, None, rebuild):
        held |= dict(zip(one.windows, one.raw, strict=True))
    # The data is named by the features that were fitted on: they follow from it, and are at hand.
    digest = hashlib.sha256()
    for window in wanted:
        digest.update(held[window].tobytes())
    label = f"fitted on {len(wanted)} sessions of {format_time_ns(first)} to {format_time_ns(last)}, features {digest.hexdigest()[:16]}"
    return fit([held[window][:-1] for window in wanted], label, declared)
