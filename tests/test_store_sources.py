"""Laws of what an ingested file is known by: its options, its one name, and the way out of the store."""

import json
import multiprocessing
import os
import re

import pytest

from lob.errors import BadInput, NotFound
from sim.ingest import ingest
from store.catalog import read_records
from store.dbn import write_dbn
from store.market import ingest_file, list_parts, read_columns, remove_source
from tests.market_files import T0, book_records, raw, tree, write_raw
from tests.test_store_ingest import DAY_NS, ODD_SYMBOLS, _in_child


def _kill_removals(tmp_path, queue):
    """Runs in a fresh process. Kills a removal at its n-th action on the disk, for every n; reports what was seen then and later."""
    paths = [
        write_raw(tmp_path / f"f{i}", book_records(200, 11 + i, tuple(ODD_SYMBOLS), start_ns=T0 + (3500 + 300 * i) * 10**9, step_ns=10**9))
        for i in range(2)
    ]

    def ingest(path):
        return ingest_file(path, store, open_source=raw(symbols=ODD_SYMBOLS))

    outcomes = []
    for n in range(1, 100):
        store = tmp_path / f"S{n}"
        gone, kept = (ingest(path).sha256 for path in paths)

        def killed(n=n, gone=gone, store=store):
            left = [n]
            for name in ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir"):
                original = getattr(os, name)

                def counted(*arguments, original=original, **options):
                    left[0] -= 1
                    if left[0] == 0:
                        os._exit(9)
                    return original(*arguments, **options)

                setattr(os, name, counted)
            remove_source(store, gone[:12])

        status = _in_child(killed)
        seen = sorted(record.sha256 == gone for record in read_records(store))
        readable = read_columns(store, "ESH4", "mbp-10", 0, 2**62).rows
        again = ingest(paths[0])
        after = len(list_parts(store)), len(list(store.rglob("*.parquet"))), os.listdir(store / "staging")
        outcomes.append((status, seen, readable, again.already, after))
        assert kept != gone
        if status == 0:
            break
    queue.put(outcomes)


def test_a_kill_at_any_moment_of_a_removal_leaves_all_of_a_file_or_nothing_and_the_next_ingest_cleans_up(tmp_path):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_kill_removals, args=(tmp_path, queue))
    process.start()
    outcomes = queue.get(timeout=120)
    process.join()
    assert len(outcomes) > 8
    assert {status for status, *_ in outcomes[:-1]} == {9} and outcomes[-1][0] == 0
    whole = {readable for _, seen, readable, *_ in outcomes if seen == [False, True]}
    without = {readable for _, seen, readable, *_ in outcomes if seen == [False]}
    assert {len(whole), len(without)} == {1} and len(outcomes) == sum(len(seen) in (1, 2) for _, seen, *_ in outcomes)
    assert [already for _, seen, _, already, _ in outcomes] == [len(seen) == 2 for _, seen, *_ in outcomes]
    assert {(parts, files) for *_, (parts, files, _) in outcomes} == {outcomes[0][-1][:2]}, "whole again, and nothing beside it"
    assert all(staging == [] for *_, (_, _, staging) in outcomes)


def test_a_source_file_goes_by_hash_or_by_name_and_what_it_does_not_share_stays(tmp_path):
    store = tmp_path / "S"
    ingest_file(write_raw(tmp_path / "first", book_records(500, 31)), store, open_source=raw())
    before = tree(store)
    later = T0 + 86400 * 10**9
    second = ingest_file(write_raw(tmp_path / "second", book_records(500, 32, start_ns=later)), store, open_source=raw())
    with pytest.raises(NotFound, match=r"no source file of name third; the store holds .*second \("):
        remove_source(store, name="third")
    with pytest.raises(BadInput, match=r"2 source files of SHA-256 …: .*name one by its SHA-256"):
        remove_source(store, sha256="")
    assert remove_source(store, name="second").sha256 == second.sha256
    assert tree(store) == before
    with pytest.raises(NotFound, match="holds first"):
        remove_source(store, sha256=second.sha256[:10].upper())
    assert not ingest_file(tmp_path / "second", store, open_source=raw()).already
    assert remove_source(store, sha256=second.sha256[:10].upper()).name == "second"
    assert tree(store) == before


@pytest.mark.parametrize("first_bytes", [0, 1 << 20])
def test_the_same_file_with_other_options_is_refused_by_the_option_that_differs_and_the_way_out(tmp_path, monkeypatch, first_bytes):
    """Whether it is hashed before it is read or, as large files are, meanwhile."""
    monkeypatch.setattr("store.ingest.HASH_FIRST_BYTES", first_bytes)
    path, store = tmp_path / "bars.csv", tmp_path / "S"
    lines = [f"2023-09-25 {10 + i // 60}:{i % 60:02d},4000.25,4001.00,4000.00,4000.50,{i}" for i in range(120)]
    path.write_text("\n".join(["time,open,high,low,close,volume", *lines]) + "\n")
    said = {"instrument": "ES", "schema": "ohlcv-1m", "timezone": "America/New_York"}
    report = ingest(path, store, **said)
    before = tree(store)
    changes = (
        ({"stamp": "end"}, "with --stamp start", "with --stamp end"),
        ({"timezone": "UTC"}, "with --timezone America/New_York", "with --timezone UTC"),
        ({"timezone": None}, "with --timezone America/New_York", "without --timezone"),
        ({"instrument": "NQ"}, "with --instrument ES", "with --instrument NQ"),
        ({"schema": "ohlcv-1s"}, "with --schema ohlcv-1m", "with --schema ohlcv-1s"),
        ({"columns": "time=time,open=open"}, "without --columns", "with --columns open=open,time=time"),
        ({"delimiter": ","}, "without --delimiter", "with --delimiter ,"),
        ({"date_order": "mdy"}, "without --date-order", "with --date-order mdy"),
    )
    for change, stored, given in changes if first_bytes else changes[:2]:
        with pytest.raises(BadInput, match=re.escape(f"ingested {stored}, and not {given}: ")) as refused:
            ingest(path, store, **said | change)
        assert f"sim store rm --store {store} --source {report['sha256'][:12]}" in str(refused.value)
        assert tree(store) == before
    assert ingest(path, store, **said)["already"]
    remove_source(store, report["sha256"][:12])
    ingest(path, store, **said | {"stamp": "end"})
    (part,) = list_parts(store)
    assert part.start_ns == report["start_ns"] - 60 * 10**9, "the times are those of the new option"


def test_options_that_mean_nothing_to_a_format_make_no_difference_and_a_record_without_options_is_taken_as_it_is(tmp_path):
    path, store = tmp_path / "w.dbn", tmp_path / "S"
    write_dbn(path, book_records(100, 33), "mbp-10", "ESH4", 7, "GLBX.MDP3", T0, T0 + DAY_NS)
    ingest(path, store)
    assert ingest(path, store, timezone="UTC", stamp="end", schema="mbp-10", instrument="ESH4")["already"]
    (record,) = (store / "catalog").glob("*.json")
    fields = json.loads(record.read_text())
    assert fields.pop("options") == {}
    record.write_text(json.dumps(fields))
    assert ingest(path, store, timezone="UTC")["already"]


def test_one_name_is_given_to_one_unmapped_instrument_only(tmp_path):
    store, two = tmp_path / "S", write_raw(tmp_path / "f", book_records(500, 34, (7, 8)))
    with pytest.raises(BadInput, match="does not say what instrument_id 7 and 8 are, and --instrument ESH4 can name only one"):
        ingest_file(two, store, open_source=raw(symbols={}), instrument="ESH4")
    assert not store.exists()
    ingest_file(two, store, open_source=raw(symbols={8: "ESH4"}), instrument="ESH4")
    assert {part.instrument for part in list_parts(store)} == {"ESH4"}
