"""The fuzzer of `sim ingest`: damaged and odd files of every kind, with odd options. A file goes in whole, or one line says why not.

In both cases the process lives, within its limits of memory and time, and the store is as it was or holds the file wholly: the catalogue
names every part that lies there and no other, each is what it says, and taking the file out again leaves the bytes that were there before.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from lob.errors import TapeproofError
from sim.ingest import ingest
from store.catalog import read_records
from store.hashes import canonical_hash
from store.market import quality_rows, read_columns, remove_source, summarize_store
from tests.fuzz.mutate import NAMES, bomb, bytes_changed, packed, pick, text_changed
from tests.fuzz.samples import Sample, bars_csv, databento_csv, dbn, live, lobster, real
from tests.market_files import tree

MOST_LINE = 1500
"""Characters of one line of error beside the paths that it names."""

_OPTIONS = {
    "schema": ("ohlcv-1m", "ohlcv-1s", "ohlcv-1d", "mbp-10", "mbo", "trades", "", "x\ny", "nonsense"),
    "timezone": ("UTC", "America/New_York", "Europe/Dublin", "Pacific/Apia", "", "../../etc/passwd", "/etc/passwd", "\0",
    "a" * 300, "posix"),
    "stamp": ("start", "end", "", "x\ny"),
    "delimiter": (",", ";", "", "\n", "é", ",,", '"', "\0"),
    "date_order": ("mdy", "dmy", "ymd", "", "x"),
    "columns": ("time=1,open=2,high=3,low=4,close=5,volume=6", "time=time,open=o", "time=²", "open=0", "=", "x",
    "time=1,open=1", "clock=99999"),
    "date": ("2024-03-05", "1970-01-01", "0001-01-01", "9999-12-31", "2262-04-11", "", "x", "2024-02-30"),
}  # fmt: skip


def prepare(folder: Path) -> Callable[[np.random.Generator], str]:
    """A store that holds one file, and what plays a case beside it."""
    folder.mkdir(exist_ok=True)
    held = folder / "held"
    (folder / "kept.csv").write_text("time,open,high,low,close,volume\n2023-01-03 10:00,1,2,1,2,5\n2023-01-03 10:01,1,2,1,2,5\n")
    ingest(folder / "kept.csv", held, instrument="KEPT", schema="ohlcv-1m", timezone="UTC")
    found = real()

    def play(rng: np.random.Generator) -> str:
        return _case(folder, held, made(rng, found), rng)

    return play


def made(rng: np.random.Generator, found: list[Sample]) -> Sample:
    """A sample and what was done to it."""
    kind = rng.integers(0, 12)
    if found and kind < 4:
        sample = pick(rng, found)
    elif kind < 8:
        sample = dbn(rng, odd=rng.random() < 0.6) if rng.random() < 0.85 else live(rng, odd=rng.random() < 0.5)
    else:
        sample = pick(rng, (bars_csv, bars_csv, databento_csv, databento_csv, lobster))(rng)
    files = dict(sample.files)
    if len(files) > 1 and rng.random() < 0.05:
        files = dict(reversed(files.items()))
    for name in files:
        if rng.random() < 0.75:
            text = sample.kind != "dbn" and not name.endswith(".gz") and rng.random() < 0.85
            files[name] = text_changed(files[name], rng) if text else bytes_changed(files[name], rng)
        if rng.random() < 0.01:
            files[name] = bomb(files[name], rng)
        elif rng.random() < 0.3:
            files[name] = packed(files[name], rng)
            if rng.random() < 0.3:
                files[name] = bytes_changed(files[name], rng)
    options = dict(sample.options)
    if rng.random() < 0.2:
        name = pick(rng, list(_OPTIONS))
        options[name] = pick(rng, _OPTIONS[name])
    if rng.random() < 0.1:
        options["instrument"] = pick(rng, NAMES)
    if rng.random() < 0.05 and options:
        options.pop(pick(rng, list(options)))
    return Sample(sample.kind, files, options)


def _case(folder: Path, held: Path, sample: Sample, rng: np.random.Generator) -> str:
    inputs = folder / "in"
    inputs.mkdir(exist_ok=True)
    paths = []
    for name, data in sample.files.items():
        paths.append(inputs / name)
        paths[-1].write_bytes(data)
    store = held if rng.random() < 0.7 else folder / "new" / "store"
    shutil.rmtree(folder / "new", ignore_errors=True)
    (folder / "new").mkdir()
    before = tree(folder / "new") if store != held else tree(held)
    try:
        report = ingest(paths[0], store, also=paths[1] if len(paths) > 1 else None, **sample.options)
    except TapeproofError as error:
        line = str(error)
        assert line.isprintable(), f"not one line of print: {line!r}"
        assert "--" in line or any(str(path) in line for path in paths), f"names neither file nor option: {line!r}"
        assert len(line) < MOST_LINE, f"{len(line)} characters: {line[:3000]!r}"
        assert tree(held) == before if store == held else not store.exists(), f"the store changed: {line!r}"
        return "refused"
    finally:
        shutil.rmtree(inputs)
    assert all(warning.isprintable() for warning in report["warnings"]), report["warnings"]
    if report["already"]:
        assert tree(store) == before
        return "already"
    check_store_whole(store)
    known = {(record.sha256, record.schema, record.rows) for record in read_records(store)}
    put_in = report.get("live") or [report, *([report["books"]] if report.get("books") else [])]
    for one in put_in:
        assert (one["sha256"], one["schema"], one["rows"]) in known
        remove_source(store, one["sha256"])
    assert tree(store) == before if store == held else not list(store.rglob("*.parquet")), "taking it out leaves what was there"
    return "live" if "live" in report else report["schema"]


def check_store_whole(store: Path) -> None:
    """The catalogue and what lies in the store agree, and every part is what its record says."""
    records = read_records(store)
    parts = {part.path: part for record in records for part in record.parts}
    assert sorted(parts) == sorted(str(path.relative_to(store)) for path in (store / "market").rglob("*") if path.is_file())
    assert not list((store / "staging").iterdir())
    for record in records:
        assert sum(part.rows for part in record.parts) == record.rows == sum(day["rows"] for day in record.quality)
        numbers: dict[str, list[int]] = {}
        for part in record.parts:
            path = store / part.path
            assert path.stat().st_size == part.bytes
            rows = pq.read_table(path, partitioning=None).column("row").to_pylist()
            assert len(rows) == part.rows and rows[0] == part.first_row
            numbers.setdefault(part.instrument, []).extend(rows)
        every = [row for rows in numbers.values() for row in rows]
        assert record.schema == "mbp-10" or len(set(every)) == len(every), "a record of the file went in twice"
        for symbol, start_ns, end_ns in record.spans:
            columns = read_columns(store, symbol, record.schema, start_ns, end_ns + 1)
            assert columns.rows == len(numbers[symbol])
            assert columns.row.tolist() == sorted(numbers[symbol]), "rows are not in the order of the file"
            for part in (part for part in record.parts if part.instrument == symbol and len(record.parts) == 1):
                assert canonical_hash(columns.arrays | {"row": columns.row}, columns.undefined) == part.content_hash
    summarize_store(store)
    quality_rows(store)
