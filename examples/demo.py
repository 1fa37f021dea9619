"""`make demo`: a synthetic ES day from file to proof, by the command line alone. Everything it makes lies in `demo/`.

Each command is printed as a user would type it, then its real output. The demo ends at the first command that does not do what it should.
"""

import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

HOUSE = Path(__file__).resolve().parent.parent
SIM = Path(sys.executable).parent / "sim"
FOLDER = "demo"
DAY = f"{FOLDER}/es-20240305.mbp-10.dbn.zst"
STORE, RUNS, FORGED = f"{FOLDER}/store", f"{FOLDER}/runs", f"{FOLDER}/forged"


def say(text: str) -> None:
    print(f"\n# {text}", flush=True)


def quoted(word: str) -> str:
    """The word as a person would quote it for a shell."""
    return f'"{word}"' if "'" in word and not set(word) & set('"$`\\') else shlex.quote(word)


def sim(*arguments: str, expected: int = 0) -> None:
    """Run one command, in view."""
    print("$ sim", *map(quoted, arguments), flush=True)
    done = subprocess.run([SIM, *arguments], cwd=HOUSE, check=False)
    if done.returncode:
        print(f"(exit code {done.returncode})", flush=True)
    if done.returncode != expected:
        sys.exit(f"demo: exit code {done.returncode} where {expected} should be")


def newest_run() -> str:
    """The folder of the run made last, as a user would complete it with the tab key."""
    return max((HOUSE / RUNS).iterdir(), key=lambda path: path.stat().st_mtime_ns).relative_to(HOUSE).as_posix()


def forge(run: str) -> None:
    """A copy of a run in which one buy was a tick cheaper than it was: what somebody would change who wants to look better."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    shutil.copytree(HOUSE / run, HOUSE / FORGED)
    part = next(path for path in sorted((HOUSE / FORGED / "segments").rglob("fills.parquet")))
    rows = pq.read_table(part)
    sides, prices = rows.column("side").to_pylist(), rows.column("price_ticks").to_pylist()
    row = sides.index(1)
    prices[row] -= 1
    place = rows.column_names.index("price_ticks")
    changed = rows.set_column(place, rows.schema.field(place), pa.array(prices, rows.schema.field(place).type))
    part.chmod(0o644)
    pq.write_table(changed, part)


def main() -> None:
    begun = time.monotonic()
    if not SIM.exists():
        sys.exit(f"demo: there is no `sim` beside {sys.executable}; `make demo` sets it up")
    shutil.rmtree(HOUSE / FOLDER, ignore_errors=True)
    (HOUSE / FOLDER).mkdir()

    say("A synthetic ES day whose right answer is known: the displayed imbalance moves the price (K = 1).")
    sim("synth", "--instrument", "ES", "--date", "2024-03-05", "--events", "200000", "--seed", "7", "--edge", "1", "--out", DAY)

    say("Into the store, once.")
    sim("ingest", DAY, "--store", STORE)
    sim("store", "ls", "--store", STORE)

    say("Replay two hours of it: the rule that knows, then one that draws at random in 16 accounts.")
    window = ("--store", STORE, "--instrument", "ESH4", "--start", "2024-03-05T14:30Z", "--end", "2024-03-05T16:30Z", "--clock", "1s")
    sim("replay", *window, "--policy", "imbalance", "--max-lots", "1", "--trail-ticks", "0", "--latency", "1ms", "--runs", RUNS)
    knowing = newest_run()
    sim("replay", *window, "--policy", "random", "--seed", "7", "--lanes", "16", "--latency", "1ms", "--runs", RUNS)

    say("Prove it: five computations of every dollar, from the log and from the raw market rows.")
    sim("verify", newest_run(), "--store", STORE)

    say("Make one buy a tick cheaper in a copy of the other run: verify must find it, and the row.")
    sim("verify", knowing, "--store", STORE)
    forge(knowing)
    sim("verify", FORGED, "--store", STORE, expected=1)

    say("Ask the log and the market anything in SQL.")
    ask = ("sql", "--runs", RUNS, "--store", STORE)
    sim(*ask, "select run_id, lane, count(*) as trades, sum(realized_usd) as realized_usd from trades group by all order by 4 desc limit 5")
    sim(*ask, "select picked_direction, actual_direction, count(*) as steps from steps group by all order by all")
    sim(*ask, "select reason, count(*) as fills, sum(lots) as lots, sum(fee_usd) as fees_usd from fills group by all order by all")
    hours = "select date_trunc('hour', make_timestamp_ns(ts_event)) as hour, count(*) as records from market.mbp_10"
    sim(*ask, f"{hours} group by all order by all limit 5")

    say(f"Done in {time.monotonic() - begun:.0f} s. The tape does not react to us: no result here says what an order would have moved.")


if __name__ == "__main__":
    main()
