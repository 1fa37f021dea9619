"""Store columns to tape, schedule and features, against one plain copy of the same columns in the same run.

    python -m benchmarks.bench_tape [--rows 2000000] [--rounds 3]

Before a time is printed the tape's ticks are compared with the integers that the columns were made from, the schedule with its laws, and
a second pass of features with the first. What limits the numbers: the tape reads and writes some 600 bytes a row, so memory; the
features, the arithmetic of ten levels of order flow per row.
"""

import argparse
import json
import time
from dataclasses import dataclass

import numpy as np

from lob.features import market_features
from lob.instruments import resolve
from lob.schedule import schedule
from lob.tape_build import book_tape

LEVELS, SECOND = 10, 10**9


@dataclass(frozen=True)
class _Day:
    trade_date: np.ndarray
    open_ns: np.ndarray
    close_ns: np.ndarray


def columns_of(rows: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """(MBP-10 columns of a walking book, best bid in ticks int64[rows]) over one 23-hour session from 0."""
    rng = np.random.default_rng(3)
    best = 20_000 + np.cumsum(rng.integers(-1, 2, rows) * (rng.random(rows) < 0.05))
    at = np.sort(rng.integers(0, 82_000 * SECOND, rows))
    columns = {
        "ts_event": at,
        "ts_recv": at + rng.integers(100_000, 300_000, rows),
        "action": rng.choice([b"A", b"C", b"M", b"T"], rows).astype("S1"),
        "side": rng.choice([b"A", b"B"], rows).astype("S1"),
        "size": rng.integers(1, 9, rows).astype(np.uint32),
        "flags": np.where(rng.random(rows) < 0.85, 0x80, 0).astype(np.uint8),
    }
    for level in range(LEVELS):
        for side, sign in (("bid", -1), ("ask", 1)):
            columns[f"{side}_px_{level:02d}"] = (best + sign * level + (sign > 0)) * 250_000_000
            columns[f"{side}_sz_{level:02d}"] = rng.integers(1, 90, rows).astype(np.uint32)
    return columns, best


def best_of(rounds: int, work) -> tuple[float, object]:
    """(least seconds, the last result) of `rounds` calls."""
    least, result = float("inf"), None
    for _ in range(rounds):
        started = time.perf_counter()
        result = work()
        least = min(least, time.perf_counter() - started)
    return least, result


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=2_000_000)
    options.add_argument("--rounds", type=int, default=3)
    asked = options.parse_args()
    columns, best = columns_of(asked.rows)
    day = _Day(np.array([20240102], np.int32), np.array([0]), np.array([82_800 * SECOND]))
    masks = {name: np.zeros(asked.rows, np.bool_) for name in columns if "_px_" in name}
    where = (np.zeros(asked.rows, np.int32), np.arange(asked.rows), ("0" * 64,), resolve("ES"), day)

    def build():
        return book_tape(columns, masks, *where)

    def lay():
        return schedule(tape, "1s", 3600 * SECOND, 82_000 * SECOND, 1_000_000, 8)

    tape = build()  # compiled, and checked, before the clock runs
    assert (tape.bid_ticks == best[:, None] - np.arange(LEVELS)).all() and (tape.ask_ticks == best[:, None] + 1 + np.arange(LEVELS)).all()
    assert (tape.tradable == ((columns["flags"] & 0x80) > 0)).all()
    plan = lay()
    assert (plan.ts_observed_ns <= plan.ts_decided_ns).all() and (plan.ts_arrived_ns <= plan.ts_filled_ns).all()
    features = market_features(tape, plan)
    assert np.isfinite(features).all() and features[:, 66].any()

    copied, _ = best_of(asked.rounds, lambda: {name: column.copy() for name, column in (columns | masks).items()})
    built, _ = best_of(asked.rounds, build)
    laid, _ = best_of(asked.rounds, lay)
    computed, again = best_of(asked.rounds, lambda: market_features(tape, plan))
    assert isinstance(again, np.ndarray) and again.tobytes() == features.tobytes()
    result = {
        "rows": asked.rows,
        "decisions": plan.decisions,
        "tape_rows_per_s": round(asked.rows / built),
        "tape_over_copy": round(built / copied, 2),
        "schedule_rows_per_s": round(asked.rows / laid),
        "features_rows_per_s": round(asked.rows / computed),
        "features_decisions_per_s": round(plan.decisions / computed),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
