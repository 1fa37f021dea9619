"""Real runs for tests: a synthetic day in a store, replayed by the product itself.

`python -m tests.replays STORE RUNS SYMBOL SEED LANES SEGMENT_STEPS FLUSH_MS` replays one: the subprocess that tests kill.
"""

import datetime as dt
import sys
from pathlib import Path
from typing import Any

from lob.calendar import session_bounds
from lob.instruments import REGISTRY
from sim.ingest import ingest
from sim.plan import plan_replay
from sim.replay import ReplayResult, replay
from sim.synth import synth

DATE = "2024-03-05"
MINUTE = 60 * 10**9


def synthetic_store(folder: Path, symbol: str = "ESH4", events: int = 30_000, seed: int = 1) -> Path:
    """A store that holds one synthetic day of a contract; the DBN file lies beside it as `<symbol>.dbn`."""
    path = folder / f"{symbol}.dbn"
    synth(symbol, DATE, events, seed, 1.0, path)
    ingest(path, folder / "store")
    return folder / "store"


def replayed(
    store: Path,
    runs: Path,
    symbol: str = "ESH4",
    policy: str = "random",
    seed: int = 7,
    lanes: int = 4,
    minutes: int = 10,
    level: str = "full",
    segment_steps: int = 128,
    env: dict[str, Any] | None = None,
    execution: dict[str, Any] | None = None,
    registry=REGISTRY,
    **tape: Any,
) -> ReplayResult:
    """A replay of the day's first minutes, clock 1s unless stated."""
    start, _ = session_bounds("cme_globex", dt.date.fromisoformat(DATE))
    window = {"clock": "1s", "start_ns": start, "end_ns": start + minutes * MINUTE} | tape
    log = {"level": level, "segment_steps": segment_steps}
    rest = {"execution": execution} if execution else {}
    config = plan_replay(store, symbol, registry, window, env or {}, log, policy=policy, seed=seed, lanes=lanes, **rest)
    return replay(config, store, runs)


if __name__ == "__main__":
    store, runs, symbol, seed, lanes, segment_steps, flush_ms = sys.argv[1:]
    result = replayed(
        Path(store),
        Path(runs),
        symbol,
        seed=int(seed),
        lanes=int(lanes),
        segment_steps=int(segment_steps),
        execution={"flush_ms": int(flush_ms)},
        minutes=30,
    )
    print(result.head)
