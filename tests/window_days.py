"""A store of a few short synthetic days, and configs that play them as windows."""

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np

from lob.calendar import session_bounds
from lob.instruments import resolve
from sim.config import RunConfig, run_config
from sim.ingest import ingest
from sim.synth import synth

DATES = ("2024-03-04", "2024-03-05", "2024-03-06", "2024-03-07")
HOUR = 3600 * 10**9


def day_bounds(date: str) -> tuple[int, int]:
    return session_bounds("cme_globex", dt.date.fromisoformat(date))


def store_of_days(folder: Path, events: int = 4_000, dates: tuple[str, ...] = DATES) -> Path:
    for i, date in enumerate(dates):
        path = folder / f"{date}.dbn"
        synth("ESH4", date, events, i + 1, 1.0, path)
        ingest(path, folder / "store")
    return folder / "store"


def store_of_bars(folder: Path, days: int = 3) -> Path:
    """One-minute bars of a random walk, every day from Monday 2024-03-04, 09:00 to 21:00 UTC."""
    rng = np.random.default_rng(4)
    lines, price = ["timestamp,open,high,low,close,volume"], 20_000
    for day in range(days):
        for minute in range(12 * 60):
            walk = price + np.cumsum(rng.integers(-3, 4, 4))
            price = int(walk[-1])
            prices = [f"{p / 4:.2f}" for p in (walk[0], walk.max(), walk.min(), walk[-1])]
            lines.append(f"2024-03-{4 + day:02d} {9 + minute // 60:02d}:{minute % 60:02d}:00,{','.join(prices)},{rng.integers(1, 99)}")
    (folder / "bars.csv").write_text("\n".join(lines) + "\n")
    ingest(folder / "bars.csv", folder / "bars", instrument="ESH4", schema="ohlcv-1m", timezone="UTC")
    return folder / "bars"


def config_of(windows: Any, phase: str = "eval", policy: str = "random", **rest: Any) -> RunConfig:
    """A config over windows [(start, end), …]; `tape`, `env` and `log` of `rest` overrule what stands here."""
    windows = tuple(windows)
    tape = {"market_schema": "mbp-10", "clock": "1m", "start_ns": windows[0][0], "end_ns": windows[-1][1], "latency_ns": 1_000_000}
    tape |= {"windows": windows} | rest.pop("tape", {})
    log = {"level": "trades" if phase == "train" else "full"} | rest.pop("log", {})
    return run_config("ESH4", resolve("ESH4"), tape, rest.pop("env", {}), log, phase=phase, policy=policy, **{"lanes": len(windows)} | rest)
