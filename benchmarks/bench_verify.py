"""How long `verify` takes against the run that it verifies: reading the log, the chain's hashes, the market, all checks, five computations.

    python -m benchmarks.bench_verify [--events 200000] [--minutes 60]

Random picks (most steps trade: the most rows there can be) over a synthetic ES day, three shapes of run. Each verdict must be `VERIFIED`
with all five computations equal before a time is printed. The run's time is its loop, log and summary (`ReplayResult.elapsed_s`): market
loading and compilation, which verify has its own share of, are left out of the run's side and not of verify's.
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

SHAPES = ((1, 1.0), (64, 1.0), (1024, 0.1))
"""(lanes, share of the minutes)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--minutes", type=int, default=60)
    options = parser.parse_args()
    from sim.verify import verify
    from sim.verify_types import render
    from tests.replays import replayed, synthetic_store

    with tempfile.TemporaryDirectory() as folder:
        store = synthetic_store(Path(folder), events=options.events)
        env = {"capital_usd_micros": 10**14}  # nobody dies: every lane plays to the end
        replayed(store, Path(folder) / "warm", minutes=1)  # compiles
        for lanes, share in SHAPES:
            minutes = max(1, int(options.minutes * share))
            cpu = time.process_time()
            result = replayed(store, Path(folder) / f"runs-{lanes}", lanes=lanes, minutes=minutes, env=env, segment_steps=1024)
            run_cpu = time.process_time() - cpu
            started, cpu = time.perf_counter(), time.process_time()
            verdict = verify(result.run_dir, store, result.head)
            elapsed, cpu = time.perf_counter() - started, time.process_time() - cpu
            assert verdict.ok and len(set(verdict.totals.values())) == 1, render(verdict)
            assert None not in verdict.totals.values() and verdict.groups == lanes
            print(
                f"{lanes:5} lanes x {result.steps} steps: run {result.elapsed_s:.2f} s, verify {elapsed:.2f} s, "
                f"verify / run = {elapsed / result.elapsed_s:.2f} (must be below 1); CPU {run_cpu:.2f} s (loading included) and {cpu:.2f} s"
            )
    load = os.getloadavg()[0]
    print(f"limit: numpy passes over the steps and the walk over the fills, one core; load average {load:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
