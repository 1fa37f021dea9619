"""How long `sim verify` takes against the `sim replay` that it verifies: reading log and market, every hash, all checks, five computations.

    python -m benchmarks.bench_verify [--events 200000] [--minutes 60]

Random picks (most steps trade: the most rows there can be) over a synthetic ES day, three shapes of run. Two numbers each: the two commands
as a user runs them, in processes of their own with warm compile and feature caches; and, stricter, verify inside this process against the
replay's loop, log and summary alone, without its start-up, loading and features. Each verdict must be VERIFIED, with all five equal, before
a time is printed.
"""

import argparse
import datetime as dt
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHAPES = ((1, 1.0), (64, 1.0), (1024, 0.1))
"""(lanes, share of the minutes)."""


def command(*arguments: object) -> tuple[dict, float]:
    """(the JSON document of a `sim` command, its wall seconds)."""
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "cli.main", *map(str, arguments), "--json"], capture_output=True, check=True)
    return json.loads(done.stdout), time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--minutes", type=int, default=60)
    options = parser.parse_args()
    from lob.calendar import session_bounds
    from lob.units import format_time_ns
    from sim.verify import verify
    from sim.verify_types import render
    from tests.replays import DATE, MINUTE, replayed, synthetic_store

    start, _ = session_bounds("cme_globex", dt.date.fromisoformat(DATE))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        store = synthetic_store(folder, events=options.events)
        for lanes, share in SHAPES:
            minutes = max(1, int(options.minutes * share))
            env = {"capital_usd_micros": 10**14}  # nobody dies: every lane plays to the end
            result = replayed(store, folder / "runs", lanes=lanes, minutes=minutes, env=env, segment_steps=1024)
            started = time.perf_counter()
            verdict = verify(result.run_dir, store, result.head)
            inside = time.perf_counter() - started
            assert verdict.ok and len(set(verdict.totals.values())) == 1, render(verdict)
            assert None not in verdict.totals.values() and verdict.groups == lanes
            window = ("--start", format_time_ns(start), "--end", format_time_ns(start + minutes * MINUTE), "--clock", "1s")
            account = ("--policy", "random", "--seed", 7, "--lanes", lanes, "--capital", 10**8)
            replay = ("replay", "--store", store, "--instrument", "ESH4", *window, *account)
            _, played = command(*replay, "--runs", folder / "commands")
            run_dir = max((folder / "commands").iterdir(), key=lambda path: path.stat().st_mtime)
            document, proved = command("verify", run_dir, "--store", store)
            assert document["ok"] and document["computations"][0]["usd_micros"] == verdict.totals["a"]
            print(
                f"{lanes:5} lanes x {result.steps} steps: sim replay {played:.2f} s, sim verify {proved:.2f} s, ratio {proved / played:.2f}"
            )
            print(f"      inside one process, loop and log {result.elapsed_s:.2f} s, verify {inside:.2f} s")
    print(f"limit: numpy passes over the steps' columns, on one core; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
