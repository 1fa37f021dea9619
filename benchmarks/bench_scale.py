"""A month of ES in a store: ingested, asked in SQL and made into tapes, at growing sizes, each step in a process whose peak memory is read.

    python -m benchmarks.bench_scale [--rows 2000000 8000000] [--days 22] [--small 300] [--folder /tmp]

`--rows 150000000` is the month: half an hour on two cores, and 10 GB of disk in `--folder`. Days of the synthetic market, tiled with
times that go on, go in as one huge .dbn.zst; then `--small` files of a minute are ingested one by one, asked, compacted and asked again.
Asserted: every row is there, the answers of SQL and the hashes of each session's columns are the same after a compaction, and no step takes
more than `LIMIT_MB` but the tapes: a tape is of one session at a time, so its peak grows with the session and not with the range.
"""

import argparse
import datetime as dt
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

LIMIT_MB = 2000
SEED_ROWS = 50_000
MINUTES = (
    "select time_bucket(interval 1 minute, make_timestamp_ns(ts_recv)) as minute, arg_min(price, row), max(price), min(price), "
    "arg_max(price, row), sum(size) from market.mbp_10 where action = 'T' group by minute order by minute"
)
SUMS = "select count(*), sum(bid_sz_00), sum(ask_sz_09), sum(row), max(ask_px_09 - bid_px_09), sum(bid_ct_05) from market.mbp_10"


def trade_dates(count: int) -> list[dt.date]:
    """Weekdays from Monday 2024-02-26 on: the next day without a session is 2024-03-29."""
    return [dt.date(2024, 2, 26) + dt.timedelta(days=i // 5 * 7 + i % 5) for i in range(count)]


def pieces(dates: list[dt.date], rows: int) -> Iterator[np.ndarray]:
    """`rows` MBP-10 records over the sessions of the dates, in time order, `SEED_ROWS` at a time."""
    from lob.instruments import REGISTRY
    from lob.synth import synthesize_day

    at = 0
    for i, date in enumerate(dates):
        of_day = rows * (i + 1) // len(dates) - rows * i // len(dates)
        seed = synthesize_day(REGISTRY["ES"], date, min(SEED_ROWS, of_day), i)
        tiles = -(-of_day // len(seed))
        first = int(seed["ts_event"].min())
        slot = (int(seed["ts_recv"].max()) - first) // tiles
        for tile in range(tiles):
            records = seed[: min(len(seed), of_day - tile * len(seed))].copy()
            for name in ("ts_event", "ts_recv"):
                records[name] = first + tile * slot + (records[name] - np.uint64(first)) // np.uint64(tiles)
            records["sequence"] = np.arange(at, at + len(records))
            at += len(records)
            yield records


def make_huge(path: Path, rows: int, days: int) -> None:
    """One .dbn.zst, streamed."""
    import zstandard

    from lob.records import MBP_10
    from lob.synth import INSTRUMENT_ID
    from store.dbn import ZSTD_LEVEL, write_dbn

    dates = trade_dates(days)
    start = int(dt.datetime(2024, 2, 25, tzinfo=dt.UTC).timestamp()) * 10**9
    head = path.with_suffix(".head.dbn")
    write_dbn(head, np.empty(0, MBP_10), "mbp-10", "ESH4", INSTRUMENT_ID, "GLBX.MDP3", start, start + (2 * days + 7) * 86_400 * 10**9)
    with open(path, "wb") as file, zstandard.ZstdCompressor(level=ZSTD_LEVEL).stream_writer(file) as sink:
        sink.write(head.read_bytes())
        for records in pieces(dates, rows):
            sink.write(records.tobytes())
    head.unlink()


def make_small(folder: Path, count: int) -> list[Path]:
    """Files of a minute, 100 records each, one behind the other."""
    from lob.synth import INSTRUMENT_ID
    from store.dbn import write_dbn

    start = int(dt.datetime(2024, 3, 4, 23, tzinfo=dt.UTC).timestamp()) * 10**9
    seed = next(pieces(trade_dates(1), 100))
    seed["ts_event"] = start + np.arange(100, dtype="u8") * np.uint64(599 * 10**6)
    seed["ts_recv"] = seed["ts_event"] + np.uint64(1000)
    made = []
    for i in range(count):
        records = seed.copy()
        for name in ("ts_event", "ts_recv"):
            records[name] += np.uint64(i * 60 * 10**9)
        made.append(folder / f"minute{i:05d}.dbn")
        first = int(records["ts_event"][0])
        write_dbn(made[-1], records, "mbp-10", "ESH4", INSTRUMENT_ID, "GLBX.MDP3", first, first + 60 * 10**9)
    return made


def ingest(store: str, source: str) -> dict:
    from sim.ingest import ingest as put

    paths = sorted(Path(source).glob("*.dbn")) if Path(source).is_dir() else [source]
    return {"rows": sum(put(path, store)["rows"] for path in paths)}


def compact(store: str, _: str) -> dict:
    from store.market import compact as merge

    return {"rows": sum(day.rows for day in merge(store))}


def ask(store: str, question: str) -> dict:
    from store.sql_guard import query
    from store.views import connect

    with connect(store) as connection:
        answer = query(connection, question)
    return {"rows": answer.num_rows, "answer": json.dumps(answer.to_pylist(), default=str)}


def tapes(store: str, _: str) -> dict:
    """Each session's columns and tape, one after another, as `sim.tape_windows` reads them."""
    from lob.instruments import resolve
    from lob.prepare import columns_of, tape_of
    from sim.tape import sessions_of
    from store.market import read_columns

    instrument = resolve("ESH4")
    rows, most, hashes = 0, 0, []
    for _date, start, end in sessions_of(Path(store), "ESH4", "mbp-10", instrument, 0, 2**62):
        held = read_columns(store, "ESH4", "mbp-10", start, end, columns_of("mbp-10"))
        tape = tape_of(held.arrays, held.undefined, held.source, held.row, held.sources, instrument, "mbp-10", (start, end), 1)
        rows, most, hashes = rows + held.rows, max(most, held.rows), [*hashes, held.data_hash]
        assert tape.events > 0
        del held, tape
    return {"rows": rows, "most": most, "answer": json.dumps(hashes)}


STEPS = {"ingest": ingest, "compact": compact, "ask": ask, "tapes": tapes}


def step(name: str, store: Path, argument: str = "") -> dict:
    """One step in a process of its own: what it returns, its seconds and its peak memory."""
    command = [sys.executable, "-m", "benchmarks.bench_scale", "--child", name, str(store), argument]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def child(name: str, store: str, argument: str) -> None:
    began = time.perf_counter()
    result = STEPS[name](store, argument)
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(json.dumps(result | {"s": time.perf_counter() - began, "peak_mb": int(peak.split()[1]) / 1024}))


def files_of(store: Path) -> list[Path]:
    return list((store / "market").rglob("*.parquet"))


def say(rows: int, name: str, done: dict, note: str = "") -> None:
    print(f"{rows / 1e6:7.2f} M rows  {name:22} {done['s']:8.2f} s  peak {done['peak_mb']:6.0f} MB  {note}", flush=True)


def huge(folder: Path, rows: int, days: int) -> None:
    path, store = folder / "huge.dbn.zst", folder / "huge"
    make_huge(path, rows, days)
    put = step("ingest", store, str(path))
    assert put["rows"] == rows
    size, files = sum(file.stat().st_size for file in files_of(store)), len(files_of(store))
    say(rows, "ingest", put, f"{rows / put['s'] / 1e6:.2f} M rows/s, {size / rows:.1f} B/row (file {path.stat().st_size / rows:.1f})")
    path.unlink()
    before = {}
    for when in ("", ", compacted"):
        if when:
            merged = step("compact", store)
            assert len(files_of(store)) == len({file.parent for file in files_of(store)})
            say(rows, "compact", merged, f"{files} files became {len(files_of(store))}")
            assert merged["peak_mb"] < LIMIT_MB
        for name, act, argument in (("SQL minutes", "ask", MINUTES), ("SQL sums", "ask", SUMS), ("tapes", "tapes", "")):
            done = step(act, store, argument)
            assert before.setdefault(name, done["answer"]) == done["answer"], f"{name}: another answer after the compaction"
            most = done.get("most")
            note = f"{rows / done['s'] / 1e6:.2f} M rows/s; the longest session has {most:,} rows" if most else ""
            say(rows, name + when, done, note)
            assert most or done["peak_mb"] < LIMIT_MB
    assert put["peak_mb"] < LIMIT_MB
    shutil.rmtree(store)


def small(folder: Path, count: int) -> None:
    sources, store = folder / "minutes", folder / "small"
    sources.mkdir()
    rows = 100 * len(make_small(sources, count))
    put = step("ingest", store, str(sources))
    assert put["rows"] == rows and put["peak_mb"] < LIMIT_MB
    say(rows, f"ingest {count:,} files", put, f"{put['s'] / count * 1e3:.0f} ms a file")
    before = step("ask", store, SUMS)
    say(rows, "SQL sums", before, f"{len(files_of(store)):,} files")
    looked = step("tapes", store)
    say(rows, "tapes", looked)
    merged = step("compact", store)
    assert merged["rows"] == rows
    say(rows, "compact", merged)
    after = step("ask", store, SUMS)
    assert before["answer"] == after["answer"]
    say(rows, "SQL sums, compacted", after, f"{len(files_of(store)):,} files")
    again = step("tapes", store)
    assert looked["answer"] == again["answer"]
    say(rows, "tapes, compacted", again)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[2_000_000, 8_000_000])
    parser.add_argument("--days", type=int, default=22)
    parser.add_argument("--small", type=int, default=300)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        for rows in options.rows:
            huge(Path(name), rows, options.days)
        if options.small:
            small(Path(name), options.small)


if __name__ == "__main__":
    main()
