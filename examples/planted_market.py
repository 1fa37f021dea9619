"""Synthetic sessions whose displayed imbalance leads the price: that is what the agents of the examples have to find, and all there is."""

import datetime as dt
from pathlib import Path

from sim.ingest import ingest
from sim.synth import synth

FIRST = dt.date(2024, 1, 2)
TRAIN = {"start": "2024-01-01T23:00Z", "end": "2024-01-05T23:00Z"}  # four sessions
UNSEEN = {"start": "2024-01-07T23:00Z", "end": "2024-01-15T23:00Z", "random_starts": False, "step_limit": 2_000}
"""The six sessions after them, each from its open for 2,000 decisions: five and a half hours of ten seconds."""
TRAIN_DAYS, UNSEEN_DAYS = 4, 6
MARKET = {"instrument": "ESH4", "clock": "10s", "max_lots": 1, "trail_ticks": 0, "reward_scale": 100}
"""One lot, no stop, and rewards of the order of 1: a tick is $12.50."""


def planted_market(folder: Path, edge: float = 1.0) -> Path:
    """The store under `folder`, made if it is not there: ten sessions of 10,000 rows."""
    store = folder / "store"
    if store.exists():
        return store
    folder.mkdir(parents=True, exist_ok=True)
    date, made = FIRST, 0
    while made < TRAIN_DAYS + UNSEEN_DAYS:
        if date.weekday() < 5:
            path = folder / f"{date}.dbn"
            synth("ESH4", date.isoformat(), 10_000, 7, edge, path)
            ingest(path, store)
            path.unlink()
            made += 1
        date += dt.timedelta(days=1)
    return store
