"""A DBN file into the market store, against `databento`'s `to_parquet` of the same file, in one run.

    python -m benchmarks.bench_ingest [--records 2000000] [--rounds 3] [--loaded]

Each tool runs in a child process of its own, so wall time, CPU time and peak memory are its own; rounds alternate. Before a time is
printed, every value of the store is compared with the public decoder's records, and their rows are counted. Limits: Parquet encoding
(zstd-1) takes half of our CPU time and SHA-256 of file and columns a quarter; a .dbn costs more than a .dbn.zst, for more bytes are hashed.
Refuses a loaded machine (`--loaded` measures anyway: then only the ratio per CPU-second means anything).
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from lob.records import MBP_10

SEED_ROWS = 40_000


def make_file(folder: Path, records: int, suffix: str) -> Path:
    """A day of the synthetic market, tiled to `records` with times that go on, as one DBN file."""
    import datetime as dt

    from lob.instruments import REGISTRY
    from lob.synth import INSTRUMENT_ID, synthesize_day
    from store.dbn import write_dbn

    day = synthesize_day(REGISTRY["ES"], dt.date(2024, 3, 5), SEED_ROWS, 1, 0.0)[:SEED_ROWS]
    first, last = day["ts_event"].min(), day["ts_recv"].max()
    span = int(last - first) // 400 + 1
    for name in ("ts_event", "ts_recv"):  # pressed together, so that the file spans days and not years
        day[name] = first + (day[name] - first) // np.uint64(400)
    tiles = -(-records // len(day))
    tiled = np.tile(day, tiles)
    shift = np.repeat(np.arange(tiles, dtype="u8") * np.uint64(span), len(day))
    for name in ("ts_event", "ts_recv"):
        tiled[name] += shift
    tiled["sequence"] = np.arange(len(tiled))
    path = folder / f"bench.{suffix}"
    start = int(tiled["ts_event"][0])
    write_dbn(path, tiled[:records], "mbp-10", "ESH4", INSTRUMENT_ID, "GLBX.MDP3", start, int(tiled["ts_recv"].max()) + 1)
    return path


def run_tool(tool: str, path: str, out: str) -> None:
    """What the child process does; prints its figures as JSON."""
    if tool == "tapeproof":
        from sim.ingest import ingest

        ingest(Path(path).with_name("warm.dbn"), Path(out).parent / "warm")
        clock, cpu = time.perf_counter(), time.process_time()
        ingest(path, out)
    else:
        import warnings

        import databento

        warnings.simplefilter("ignore")
        databento.DBNStore.from_file(str(Path(path).with_name("warm.dbn"))).to_parquet(out + ".warm", price_type="fixed")
        clock, cpu = time.perf_counter(), time.process_time()
        databento.DBNStore.from_file(path).to_parquet(out, price_type="fixed")
    figures = {"wall_s": time.perf_counter() - clock, "cpu_s": time.process_time() - cpu}
    # Not ru_maxrss: it begins at what the parent had when it forked.
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(json.dumps(figures | {"peak_mb": int(peak.split()[1]) / 1024}))


def child(tool: str, path: Path, out: Path) -> dict[str, float]:
    if out.is_dir():
        shutil.rmtree(out)
    shutil.rmtree(out.parent / "warm", ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench_ingest", "--child", tool, str(path), str(out)], capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def assert_equal(path: Path, store: Path, theirs: Path) -> int:
    """Every value of the store against the file's own records, read with the public decoder. Returns the rows."""
    import databento
    import pyarrow.parquet as pq

    from store.market import list_parts

    at = 0
    parts = iter(list_parts(store))
    table, offset = None, 0
    for batch in databento.DBNStore.from_file(path).to_ndarray(count=65_536):
        records = np.ascontiguousarray(batch).view(MBP_10)
        done = 0
        while done < len(records):
            if table is None or offset == table.num_rows:
                table, offset = pq.read_table(store / next(parts).path, partitioning=None), 0
            count = min(len(records) - done, table.num_rows - offset)
            piece = table.slice(offset, count)
            for name in piece.column_names:
                expected = np.arange(at, at + count) if name == "row" else records[name][done : done + count]
                found = piece[name].combine_chunks()
                if expected.dtype.kind == "S":
                    assert (np.array(found.cast("string").to_pylist(), "S1") == expected).all(), name
                    continue
                if found.null_count:
                    sentinel = 2**64 - 1 if name.startswith("ts_") else 2**63 - 1
                    found = found.cast("uint64").fill_null(sentinel)
                assert (found.to_numpy() == expected).all(), name
            done, offset, at = done + count, offset + count, at + count
    assert pq.ParquetFile(theirs).metadata.num_rows == at, "databento wrote another number of rows"
    return at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loaded", action="store_true")
    parser.add_argument("--child", nargs=3)
    options = parser.parse_args()
    if options.child:
        run_tool(*options.child)
        return
    load = os.getloadavg()[0]
    if load > 0.5 and not options.loaded:
        raise SystemExit(f"the machine is loaded ({load:.1f}): a wall time would mean nothing; run again when it is idle, or with --loaded")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_file(folder, 2_000, "dbn").rename(folder / "warm.dbn")
        for suffix in ("dbn", "dbn.zst"):
            path = make_file(folder, options.records, suffix)
            results: dict[str, list[dict[str, float]]] = {"tapeproof": [], "databento": []}
            for i in range(options.rounds):
                for tool, figures in results.items():
                    figures.append(child(tool, path, folder / f"{tool}.{suffix}"))
                if i == 0:
                    rows = assert_equal(path, folder / f"tapeproof.{suffix}", folder / f"databento.{suffix}")
            best = {tool: {key: min(figure[key] for figure in figures) for key in figures[0]} for tool, figures in results.items()}
            ours = sum(file.stat().st_size for file in (folder / f"tapeproof.{suffix}").rglob("*.parquet"))
            for tool, figure in best.items():
                size = ours if tool == "tapeproof" else (folder / f"databento.{suffix}").stat().st_size
                print(
                    f"{suffix:8} {tool:10} {rows / figure['wall_s'] / 1e6:6.2f} M rec/s  "
                    f"{rows / figure['cpu_s'] / 1e6:6.2f} M rec per CPU-s  "
                    f"{size / rows:5.1f} B/rec (file {path.stat().st_size / rows:.1f})  peak {figure['peak_mb']:.0f} MB"
                )
            wall = best["databento"]["wall_s"] / best["tapeproof"]["wall_s"]
            cpu = best["databento"]["cpu_s"] / best["tapeproof"]["cpu_s"]
            print(f"{suffix:8} tapeproof / databento: {wall:.2f}x in wall time, {cpu:.2f}x per CPU-second")


if __name__ == "__main__":
    main()
