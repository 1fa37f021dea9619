"""One-minute bars of 5 M MBP-10 rows in SQL, and whole columns out of the store, before and after a compaction.

    python -m benchmarks.bench_sql [--rows 5000000] [--rounds 5]

Before a time is printed the bars are compared with those that numpy makes of the file's own records, and every column with the records.
Wall time is of all threads, and means something on an idle machine alone; the CPU time beside it is what the work takes. What limits it:
SQL decodes five columns of every row (times, prices, letters) to find the trades; whole columns, Parquet's decoding and SHA-256 of all.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bench_ingest import make_file

MINUTE_NS = 60 * 10**9
BARS = (
    "select ts_recv // 60000000000 as minute, arg_min(price, row), max(price), min(price), arg_max(price, row), sum(size) "
    "from market.mbp_10 where action = 'T' group by minute order by minute"
)


def bars_of(records: np.ndarray) -> list[tuple[int, ...]]:
    """(minute, open, high, low, close, lots) of the trades."""
    trades = records[records["action"] == b"T"]
    minutes, first = np.unique(trades["ts_recv"] // MINUTE_NS, return_index=True)
    order = np.argsort(trades["ts_recv"] // MINUTE_NS, kind="stable")
    assert (order == np.arange(len(trades))).all(), "the market goes on in time"
    last = np.append(first[1:], len(trades)) - 1
    price, size = trades["price"], trades["size"].astype(np.int64)
    high, low, lots = np.maximum.reduceat(price, first), np.minimum.reduceat(price, first), np.add.reduceat(size, first)
    return list(zip(*(values.tolist() for values in (minutes, price[first], high, low, price[last], lots)), strict=True))


def best(rounds: int, work: Callable[[], Any]) -> tuple[float, float]:
    """Least (wall, CPU) seconds of `rounds` calls."""
    walls, cpus = [], []
    for _ in range(rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return min(walls), min(cpus)


def measure(store: Path, records: np.ndarray, rounds: int, note: str) -> None:
    from store.market import read_columns
    from store.views import connect

    with connect(store) as connection:
        assert connection.execute(BARS).fetchall() == bars_of(records), "SQL made other bars"
        wall, cpu = best(rounds, lambda: connection.execute(BARS).fetchall())
    print(f"{note}one-minute bars of {len(records) / 1e6:.1f} M rows: {wall * 1e3:.0f} ms, {cpu * 1e3:.0f} ms of CPU")
    for what, names in (("bid_px_00", ("bid_px_00",)), ("all columns", None)):
        held = read_columns(store, "ESH4", "mbp-10", 0, 2**62, names)
        for name, values in held.arrays.items():
            if name != "row":
                assert (np.where(held.undefined.get(name, False), records[name], values) == records[name]).all(), name
        del held
        wall, cpu = best(2, lambda names=names: read_columns(store, "ESH4", "mbp-10", 0, 2**62, names))
        rate, per_cpu = len(records) / wall / 1e6, len(records) / cpu / 1e6
        print(f"{note}{what}: {rate:.2f} M rows/s, {per_cpu:.2f} M per CPU-second, hashed", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    from sim.ingest import ingest
    from store.dbn import read_batches
    from store.market import compact

    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as name:
        path, store = make_file(Path(name), options.rows, "dbn"), Path(name) / "store"
        ingest(path, store)
        records = np.concatenate([batch.copy() for batch in read_batches(path)])
        measure(store, records, options.rounds, "")
        compact(store)
        measure(store, records, options.rounds, "compacted, ")


if __name__ == "__main__":
    main()
