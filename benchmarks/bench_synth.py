"""The synthetic market: rows a second, and the ratio to copying the same bytes.

    python -m benchmarks.bench_synth [--rows 1000000] [--rounds 3]

Before a time is printed the day is checked: after every event the book is one tick wide around V, and the same seed gives the same
bytes. What limits the number: one thread of integer and float arithmetic (two or three Philox blocks an event) and touching 368 bytes of
fresh memory a row; a load on the machine slows both, so read the ratio.
"""

import argparse
import datetime as dt
import time

import numpy as np

from lob.instruments import REGISTRY
from lob.synth import synthesize


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    instrument, date = REGISTRY["ES"], dt.date(2024, 3, 5)

    day = synthesize(instrument, date, options.rows, 7, 1.0)
    last = (day.records["flags"] & 0x80) != 0
    bid, ask = (day.records[last][name] // instrument.tick_price_e9 for name in ("bid_px_00", "ask_px_00"))
    assert (bid <= day.fair_ticks[last]).all() and (day.fair_ticks[last] <= ask).all() and (ask - bid == 1).all()
    assert synthesize(instrument, date, options.rows, 7, 1.0).records.tobytes() == day.records.tobytes()

    made, copied = [], []
    for _ in range(options.rounds):
        begun = time.perf_counter()
        synthesize(instrument, date, options.rows, 7, 1.0)
        made.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        np.copyto(np.empty_like(day.records), day.records)
        copied.append(time.perf_counter() - begun)
    rate = options.rows / min(made) / 1e6
    print(f"synthetic market: {rate:.2f} M rows/s ({int(last.sum()):,} events), {min(made) / min(copied):.1f} times a copy of the bytes")


if __name__ == "__main__":
    main()
