"""Whatever bytes a file holds, reading it ends in arrays or in one clear line: no other exception, no hang, no giant allocation."""

import datetime as dt
import gzip
import resource
import time
from pathlib import Path

import numpy as np
import pytest

from lob.errors import TapeproofError
from lob.records import RECORDS
from store.readers import open_source

SECONDS = 5.0
"""Longer for one file of a few kilobytes is a hang."""
GROWTH_KB = 300_000
"""How far the peak memory of the whole batch may grow: decompression windows and batches, no count read from a file."""

_DBN = (
    "edge/dbn_versions/test_data.mbp-10.v1.dbn",
    "edge/dbn_versions/test_data.mbp-1.v2.dbn",
    "edge/dbn_versions/test_data.ohlcv-1m.v2.dbn",
    "edge/dbn_versions/test_data.trades.v3.dbn.zst",
    "edge/venues/GLBX.MDP3.mbp-10.dbn.zst",
    "edge/header_only.mbp-10.dbn",
    "edge/venues/LIVE_mixed_schemas.dbn.zst",
    "l1/esu4_20240701_4min.trades.dbn.zst",
    "ohlcv/esu4_nqu4_20240701_30min.ohlcv-1m.dbn.zst",
)
_CSV = ("ohlcv/ES_1min_2023-09-24_2023-10-09.csv", "mbp10/aapl_xnas_20241021.mbp-10.csv")
_GARBAGE = (
    b"\xff\xff\xff\xff",
    b"\x00" * 8,
    b"\x7f" * 3,
    b",",
    b"\n",
    b'"',
    b"\r",
    b"-",
    b"9" * 25,
    b"\x28\xb5\x2f\xfd",
    b"DBN\x03",
    b"\xc3\x28",
)


def originals(shared_data: Path) -> list[tuple[bytes, dict[str, str]]]:
    """Small real files and the options to read them with; of the CSVs the first 6 kB, plain and gzipped."""
    bars, book = ((shared_data / name).read_bytes()[:6000] for name in _CSV)
    stated = {"schema": "ohlcv-1m", "timezone": "America/New_York"}
    dbn: list[tuple[bytes, dict[str, str]]] = [((shared_data / name).read_bytes(), {}) for name in _DBN]
    return [*dbn, (bars, stated), (gzip.compress(bars, mtime=0), stated), (book, {}), (gzip.compress(book, mtime=0), {})]


def mutate(data: bytes, rng: np.random.Generator) -> bytes:
    """One flipped byte, or up to four flips, cuts, insertions and repeats; half near the start, where the lengths and counts are."""
    changed = bytearray(data)
    if rng.random() < 0.3:
        changed[rng.integers(0, len(changed))] ^= 1 << int(rng.integers(0, 8))
        return bytes(changed)
    for _ in range(rng.integers(1, 5)):
        at = int(rng.integers(0, len(changed) + 1 if rng.random() < 0.5 else min(len(changed), 400) + 1))
        match rng.integers(0, 6):
            case 0:
                changed[at : at + 1] = bytes([int(rng.integers(0, 256))])
            case 1:
                changed = changed[:at]
            case 2:
                del changed[at : at + int(rng.integers(1, 64))]
            case 3:
                changed[at:at] = _GARBAGE[rng.integers(0, len(_GARBAGE))]
            case 4:
                chosen = _GARBAGE[rng.integers(0, len(_GARBAGE))]
                changed[at : at + len(chosen)] = chosen
            case _:
                changed[at:at] = changed[: int(rng.integers(0, 200))]
    return bytes(changed)


def outcome(path: Path, options: dict[str, str]) -> str:
    """What reading the file comes to: "records" or the one line."""
    try:
        source = open_source(path, **options)
        for batch in source.batches():
            assert batch.dtype == RECORDS[source.schema] and len(batch)
            source.symbol_of(int(batch["instrument_id"][0]), dt.date(2024, 7, 1))
        return "records"
    except TapeproofError as error:
        line = str(error)
        assert "\n" not in line and str(path) in line and len(line) < 700, line
        return line


def run_mutants(shared_data: Path, folder: Path, count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    files = originals(shared_data)
    path = folder / "mutant"
    outcomes = [outcome(_written(path, data), options) for data, options in files]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for number in range(count):
        original, options = files[number % len(files)]
        data = mutate(original, rng)
        path.write_bytes(data)
        began = time.perf_counter()
        try:
            outcomes.append(outcome(path, options))
        except Exception as error:
            raise AssertionError(f"mutant {number} of seed {seed} (length {len(data)}) ended in {error!r}") from error
        assert time.perf_counter() - began < SECONDS, f"mutant {number} of seed {seed} took too long"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_KB
    return outcomes


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_five_hundred_mutants_of_real_files_end_in_arrays_or_one_line(shared_data, tmp_path):
    outcomes = run_mutants(shared_data, tmp_path, 500, seed=1)
    assert 30 < outcomes.count("records") < 450, "the mutants reach both ends"
    assert len({line.split(":", 1)[1][:40] for line in outcomes if line != "records"}) > 15, "and many different faults"


@pytest.mark.deep
def test_ten_thousand_mutants_of_real_files_end_in_arrays_or_one_line(shared_data, tmp_path):
    outcomes = run_mutants(shared_data, tmp_path, 10_000, seed=2)
    assert outcomes.count("records") > 600
