"""DBN files to arrays: ours against `databento`'s `to_ndarray(count=...)`, same file, same run, same process layout.

    python -m benchmarks.bench_dbn [--records 2000000] [--batch 65536] [--rounds 3]

Each reader runs in a child process of its own, so its peak memory is its own. The SHA-256 over all record bytes is compared before a time
is printed; the timed rounds then touch one price of every batch. What limits the numbers: .dbn is bound by copying from the page cache (a
record is 368 bytes), .zst by one core of zstd decompression.
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from lob.records import MBP_10, RTYPE

SEED_ROWS = 50_000


def sample_rows(rows: int = SEED_ROWS) -> np.ndarray:
    """A walking ten-level book, MBP_10[rows]: compressible like a real one."""
    rng = np.random.default_rng(11)
    records = np.zeros(rows, MBP_10)
    tick = 250_000_000
    middle = 4_800_000_000_000 + tick * np.cumsum(rng.integers(-1, 2, rows) * (rng.random(rows) < 0.05))
    records["length"], records["rtype"], records["publisher_id"], records["instrument_id"] = 92, RTYPE["mbp-10"], 1, 17077
    records["ts_event"] = 1_703_545_200 * 10**9 + np.cumsum(rng.integers(1_000, 200_000, rows))
    records["ts_recv"] = records["ts_event"] + rng.integers(100_000, 300_000, rows).astype("u8")
    records["action"], records["side"], records["flags"] = rng.choice([b"A", b"C", b"M"], rows), rng.choice([b"A", b"B"], rows), 130
    records["price"], records["size"], records["sequence"] = middle, rng.integers(1, 20, rows), np.arange(rows)
    for level in range(10):
        for side, sign in (("bid", -1), ("ask", 1)):
            records[f"{side}_px_{level:02d}"] = middle + sign * tick * (level + (sign > 0))
            records[f"{side}_sz_{level:02d}"] = np.repeat(rng.integers(1, 90, rows // 10 + 1), 10)[:rows]
            records[f"{side}_ct_{level:02d}"] = records[f"{side}_sz_{level:02d}"] // 3 + 1
    return records


def make_files(folder: Path, records: int) -> tuple[Path, Path]:
    """The sample repeated to `records`, as .dbn and .dbn.zst, streamed to disk."""
    import zstandard

    from store.dbn import ZSTD_LEVEL, write_dbn

    rows = sample_rows()
    first = int(rows["ts_event"][0])
    plain, packed = folder / "bench.dbn", folder / "bench.dbn.zst"
    write_dbn(folder / "seed.dbn", rows[:0], "mbp-10", "ESH4", 17077, "GLBX.MDP3", first, first + 10**12)
    header, body = (folder / "seed.dbn").read_bytes(), rows.tobytes()
    with open(plain, "wb") as a, open(packed, "wb") as b, zstandard.ZstdCompressor(level=ZSTD_LEVEL).stream_writer(b) as c:
        for sink in (a, c):
            sink.write(header)
        left = records * MBP_10.itemsize
        while left > 0:
            for sink in (a, c):
                sink.write(body[:left])
            left -= len(body)
    return plain, packed


def batches_of(tool: str, path: str, batch: int):
    """Record arrays of the file, by our reader or by `databento`'s."""
    if tool == "tapeproof":
        from store.dbn import read_batches

        return read_batches(path, batch_records=batch)
    import databento

    return databento.DBNStore.from_file(path).to_ndarray(count=batch)


def measure(tool: str, path: str, batch: int, rounds: int) -> dict:
    """In a child: content hash, then wall and CPU seconds of the best round, then the process's peak memory."""
    digest, count = hashlib.sha256(), 0
    for array in batches_of(tool, path, batch):
        digest.update(array.view("u1").data if array.flags.c_contiguous else array.tobytes())
        count += len(array)
    best = (float("inf"), float("inf"))
    for _ in range(rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        total = sum(int(array["price"][-1]) for array in batches_of(tool, path, batch))
        best = min(best, (time.perf_counter() - wall, time.process_time() - cpu))
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"sha256": digest.hexdigest(), "records": count, "wall_s": best[0], "cpu_s": best[1], "peak_mb": peak_mb, "total": total}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--batch", type=int, default=65536)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=2, metavar=("TOOL", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(*options.child, options.batch, options.rounds)))
        return
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder:
        for path in make_files(Path(folder), options.records):
            results = {}
            for tool in ("tapeproof", "databento"):
                command = [sys.executable, "-m", "benchmarks.bench_dbn", "--child", tool, str(path)]
                command += ["--batch", str(options.batch), "--rounds", str(options.rounds)]
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    print(f"{tool}: not measured ({done.stderr.strip().splitlines()[-1]})")
                    continue
                results[tool] = json.loads(done.stdout)
            ours = results["tapeproof"]
            assert ours["records"] == options.records
            for tool, result in results.items():
                assert (result["sha256"], result["records"]) == (ours["sha256"], ours["records"]), f"{tool} read something else"
                rate, per_cpu = (result["records"] / result[key] / 1e6 for key in ("wall_s", "cpu_s"))
                print(f"{path.name:14} {tool:10} {rate:6.2f} M rec/s  {per_cpu:6.2f} M rec per CPU-s  peak {result['peak_mb']:6.0f} MB")
            if "databento" in results:
                print(f"{path.name:14} ratio      {results['databento']['wall_s'] / ours['wall_s']:6.2f} x wall")
    print(
        f"{options.records} records, content equal; load {load:.1f} on {cores} cores when it began"
        + (": loaded, expect noise" if load > 0.5 else "")
    )


if __name__ == "__main__":
    main()
