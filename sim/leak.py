"""Whether an evaluated policy saw what it could not know.

The proof is by contradiction: on the same market with another future, everything up to a decision must keep its bytes. A figure that is too
good only raises suspicion; what the policy earns with features one row ahead says how much a leak of one row would have been worth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lob.errors import BadInput
from sim.trials import windows_of

if TYPE_CHECKING:
    import numpy as np

    from lob.tape import Schedule, Tape
    from policy.protocol import Policy
    from sim.about import About
    from sim.config import RunConfig
    from sim.tape import Loaded
    from store.market_read import MarketColumns

COMPARED = 200
"""Decisions of a window that are compared; the future is replaced behind the last of them."""

MISLED_WINDOWS = 3
"""Windows that are tried: the first, the middle one and the last."""

SHIFT_TICKS = (40, 7)
"""The future's prices are moved by 40 ticks and up to 6 more, row by row, so that no return and no range there stays as it was."""

MORE_LOTS = 7
"""Added to every size of the future."""


def with_another_future(columns: MarketColumns, schema: str, tick_price_e9: int, after_ns: int) -> dict[str, np.ndarray]:
    """The columns' arrays with prices and sizes of every row changed that is not known at `after_ns`; times, flags and order stay, so that
    the clock ticks as before."""
    import numpy as np

    from lob.records import BAR_NS

    known_ns = columns.arrays["ts_event"] + BAR_NS[schema] if schema in BAR_NS else columns.arrays["ts_recv"]
    future = known_ns > after_ns
    shift = np.where(future, (SHIFT_TICKS[0] + np.arange(len(future)) % SHIFT_TICKS[1]) * tick_price_e9, 0)
    changed = dict(columns.arrays)
    for name, values in columns.arrays.items():
        if "_px_" in name or name in ("open", "high", "low", "close", "price"):
            changed[name] = values + shift.astype(values.dtype)
        elif "_sz_" in name or name in ("size", "volume"):
            changed[name] = values + (future * MORE_LOTS).astype(values.dtype)
    return changed


def mislead(store: Path, config: RunConfig, loaded: Loaded, policy_for: Callable[[int], Policy]) -> dict[str, int | None]:
    """How many observations and picks of the past another future changes: {decisions_compared, observations_differing, picks_differing,
    first}. `first` is the least decision of its window that differed, None without one.

    For some windows the market is read and prepared anew, with another future behind the COMPARED-th decision and nothing at all far
    behind it, and played by the policy beside the features and the tape that the run is played on. Raises as `sim.tape.load` does.
    """
    windows = windows_of(config.model_dump(mode="json"))
    compared, observed, picked, first = 0, 0, 0, None
    for w in sorted({0, len(windows) // 2, len(windows) - 1})[:MISLED_WINDOWS]:
        rows = loaded.schedule.windows[w]
        last = last_compared(loaded.schedule, rows.first, rows.drain)
        until = min(2 * last + 1, rows.drain - rows.first)
        times = loaded.schedule.ts_decided_ns[rows.first : rows.drain + 1]
        end_ns = windows[w][1] if until == rows.drain - rows.first else int(times[until])
        features = loaded.features[rows.first : rows.drain + 1]
        try:
            made = _both(store, config, loaded, windows[w][0], end_ns, int(times[last]))
        except BadInput:  # no book that deep so soon
            made = _both(store, config, loaded, *windows[w], int(times[last]))
        (tape, plan), (other_tape, other_plan), other_features = made
        count = min(last, plan.decisions - 1, other_plan.decisions - 1) + 1
        seen = _play(tape, plan, features[: plan.rows], config, policy_for(1), count)
        misled = _play(other_tape, other_plan, other_features, config, policy_for(1), count)
        for decision, (ours, theirs) in enumerate(zip(seen, misled, strict=True)):
            differs = [a != b for a, b in zip(ours, theirs, strict=True)]
            observed, picked = observed + differs[0], picked + differs[1]
            if any(differs):
                first = decision if first is None else min(first, decision)
        compared += count
    return {"decisions_compared": compared, "observations_differing": observed, "picks_differing": picked, "first": first}


def last_compared(plan: Schedule, first: int, drain: int) -> int:
    """Decision of the window [first, drain) behind which the future begins: the last of the first COMPARED behind which a row comes before
    the next decision, so that a look ahead of one row has something new to see."""
    import numpy as np

    until = min(COMPARED + 1, drain - first)
    news = plan.ts_observed_ns[first + 1 : first + until] > plan.ts_decided_ns[first : first + until - 1]
    return int(np.flatnonzero(news)[-1]) if news.any() else until - 1


def _both(
    store: Path, config: RunConfig, loaded: Loaded, start_ns: int, end_ns: int, known_ns: int
) -> tuple[tuple[Tape, Schedule], tuple[Tape, Schedule], np.ndarray]:
    """Tape and schedule of [start, end) as it is, then with another future behind `known_ns`, and the features of the latter."""
    from lob.normalise import apply
    from lob.prepare import Window, columns_of, prepare, raw_features, read_range
    from store.market_read import read_columns

    instrument, settings = config.instrument.instrument(), config.tape
    schema = settings.market_schema
    window = Window(
        settings.clock, start_ns, end_ns, settings.latency_ns, config.env.max_lots, settings.step_limit, settings.slippage_ticks
    )  # fmt: skip
    read = read_columns(
        store,
        config.instrument.symbol,
        schema,
        *read_range(instrument, start_ns, end_ns),
        columns_of(schema, config.env.queue_model != "none"),
    )
    made = [
        prepare(arrays, read.undefined, read.source, read.row, read.sources, instrument, schema, window)
        for arrays in (read.arrays, with_another_future(read, schema, instrument.tick_price_e9, known_ns))
    ]
    return made[0], made[1], apply(raw_features(*made[1]), loaded.normaliser)


def _play(tape: Tape, plan: Schedule, features: np.ndarray, config: RunConfig, policy: Policy, count: int) -> list[tuple[bytes, bytes]]:
    """Bytes of what one account observed and of what was picked for it, at its first `count` decisions."""
    import torch

    from cuda_env.env import Env
    from lob.actions import Phase

    env = Env(tape, plan, features, config.env, 1, Phase.EVAL, emit=(), diag=False)
    seen = []
    with torch.no_grad():
        for step in range(count):
            observation = env.observe()
            history = env.history(policy.window) if policy.window else None
            picks = policy.act(observation, history, step)
            past = b"" if history is None else history.numpy().tobytes()
            seen.append((observation.numpy().tobytes() + past, b"".join(part.numpy().tobytes() for part in picks)))
            if step + 1 < count:
                env.step(picks)
    return seen


def one_row_ahead(loaded: Loaded) -> Loaded:
    """The same market with every decision seeing the market features of the row after its own: the leak that everybody fears."""
    from lob.layout import LANE

    features = loaded.features.copy()
    for first, drain, _ in loaded.schedule.windows:
        features[first:drain, :LANE] = loaded.features[first + 1 : drain + 1, :LANE]
    return replace(loaded, features=features)


def shared_days(config: RunConfig, about: About | None) -> dict[str, int]:
    """How many windows of an evaluation the checkpoint was trained on, and how many chose it."""
    windows = windows_of(config.model_dump(mode="json"))

    def count(others: tuple[tuple[int, int], ...]) -> int:
        return sum(any(start < last and first < end for first, last in others) for start, end in windows)

    return {"days_trained_on": count(about.train) if about else 0, "days_validated_on": count(about.validation) if about else 0}
