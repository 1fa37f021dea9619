"""Laws of compaction: it moves rows and changes nothing else, at whatever moment it ends, and whoever else is there."""

import json
import multiprocessing
import os
import shutil

import numpy as np
import pytest

from lob.errors import BadInput, NotFound
from lob.units import format_time_ns
from store import compact as compaction
from store.market import compact, ingest_file, list_parts, quality_rows, read_columns, remove_source, summarize_store
from store.views import connect, query
from tests.kills import KILLED, die_at_event, in_child
from tests.market_files import T0, book_records, raw, tree, write_raw

MINUTE_NS = 60 * 10**9
DAY_NS = 86_400 * 10**9
WHOLE = (0, 2**62)
SYMBOLS = {7: "ESH4", 8: "NQ/H4"}
QUESTION = (
    "select instrument, date, count(*), sum(bid_sz_00), sum(row * ask_sz_03), count(price) from market.mbp_10 group by all order by all"
)


def minutes(folder, count=12, rows=90):
    """Files of a minute each, two instruments, on both sides of a midnight."""
    begin = T0 + 3600 * 10**9 - count // 2 * MINUTE_NS
    return [
        write_raw(folder / f"m{i}", book_records(rows, i, tuple(SYMBOLS), begin + i * MINUTE_NS, MINUTE_NS // rows - 1, odd=0.01))
        for i in range(count)
    ]


def put_in(files, store):
    for path in files:
        ingest_file(path, store, open_source=raw(symbols=SYMBOLS))
    return store


def seen(store):
    """All that a reader can see of it."""
    hashes = [read_columns(store, symbol, "mbp-10", *WHOLE).data_hash for symbol in sorted({part.instrument for part in list_parts(store)})]
    with connect(store) as connection:
        rows = query(connection, QUESTION).to_pylist()
    return hashes, rows, list_parts(store), quality_rows(store)


def parquet_files(store):
    return sorted(str(path.relative_to(store)) for path in store.rglob("*.parquet"))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A store of small files, and what is seen in it."""
    folder = tmp_path_factory.mktemp("small")
    store = put_in(minutes(folder), folder / "S")
    return store, seen(store)


@pytest.fixture
def store(small, tmp_path):
    return shutil.copytree(small[0], tmp_path / "S")


def test_every_day_becomes_one_file_and_nothing_that_is_seen_changes(small, store):
    days = compact(store)
    assert [(day.instrument, day.date, day.files_before) for day in days] == [
        (symbol, date, 6) for symbol in ("ESH4", "NQ/H4") for date in ("2023-12-25", "2023-12-26")
    ]
    assert len(parquet_files(store)) == 4 and os.listdir(store / "staging") == []
    assert seen(store) == small[1]
    assert [row["parts"] for row in summarize_store(store)] == [2, 2]
    assert sum(row["bytes"] for row in summarize_store(store)) == sum((store / path).stat().st_size for path in parquet_files(store))


def test_a_second_compaction_changes_no_byte(store):
    compact(store)
    before = tree(store)
    assert compact(store) == [] and tree(store) == before


def test_one_instrument_can_be_compacted_alone_and_one_that_is_not_there_is_named(small, store):
    assert {day.instrument for day in compact(store, "NQ/H4")} == {"NQ/H4"}
    assert len(parquet_files(store)) == 12 + 2 and seen(store) == small[1]
    with pytest.raises(NotFound, match=r"no instrument CL; the store holds ESH4, NQ/H4"):
        compact(store, "CL")


def test_any_range_reads_the_same_from_row_groups_that_span_files(small, store, monkeypatch):
    monkeypatch.setattr(compaction, "ROW_GROUP_ROWS", 100)
    compact(store)
    random = np.random.default_rng(5)
    first, last = min(part.start_ns for part in list_parts(store)), max(part.end_ns for part in list_parts(store))
    for _ in range(40):
        start, end = np.sort(random.integers(first - 10**9, last + 10**9, 2))
        columns = ("ts_recv", "bid_px_00", "action") if random.random() < 0.5 else None
        answers = []
        for place in (small[0], store):
            try:
                answers.append(read_columns(place, "ESH4", "mbp-10", int(start), int(end) + 1, columns).data_hash)
            except BadInput as error:
                answers.append(str(error).partition(": ")[2])
        assert answers[0] == answers[1], (format_time_ns(int(start)), format_time_ns(int(end)))


def test_files_that_come_later_lie_beside_the_days_and_the_next_compaction_takes_them_in(small, tmp_path):
    files = minutes(tmp_path)
    store = put_in(files[1::2], tmp_path / "S")
    compact(store)
    put_in(files[::2], store)
    assert seen(store) == small[1]
    assert len(compact(store)) == 4 and len(parquet_files(store)) == 4
    assert seen(store) == small[1]


def test_a_source_that_was_compacted_can_be_taken_out_and_put_in_again(small, store, tmp_path):
    files = minutes(tmp_path)
    compact(store)
    remove_source(store, name="m5")
    assert seen(store) == seen(put_in([path for path in files if path.name != "m5"], tmp_path / "without"))
    put_in([files[5]], store)
    compact(store)
    assert seen(store) == small[1] and len(parquet_files(store)) == 4
    for path in files:
        remove_source(store, name=path.name)
    assert parquet_files(store) == [] and list_parts(store) == [] and list((store / "market").iterdir()) == []


def test_a_reader_that_began_before_ends_with_its_files_and_they_go_after_it(small, store):
    connection = connect(store)
    before = query(connection, QUESTION).to_pylist()
    compact(store)
    assert len(parquet_files(store)) == 24 + 4
    assert query(connection, QUESTION).to_pylist() == before
    connection.close()
    del connection
    compact(store)
    assert len(parquet_files(store)) == 4 and seen(store) == small[1]


def _killed_at_every_event(store, act, states, stride):
    """Kills `act` at its n-th file operation, for every n, and looks; returns how many kills there were."""
    kept = store.with_name("kept")
    shutil.copytree(store, kept)
    for n in range(0, 2000, stride):
        shutil.rmtree(store)
        shutil.copytree(kept, store)
        code = in_child(lambda n=n: die_at_event(n, act, store))
        found = seen(store)
        assert found in states, f"killed at operation {n}"
        compact(store)
        assert seen(store) == found and os.listdir(store / "staging") == []
        assert len(parquet_files(store)) == len({(part.instrument, part.date) for part in list_parts(store)})
        if code != KILLED:
            return n // stride
    raise AssertionError("no attempt came to its end")


@pytest.mark.parametrize("stride", [23, pytest.param(1, marks=pytest.mark.deep)])
def test_a_compaction_killed_at_any_file_operation_leaves_the_store_whole(small, store, stride):
    assert _killed_at_every_event(store, lambda: compact(store), [small[1]], stride) > 100 // stride


@pytest.mark.parametrize("stride", [23, pytest.param(1, marks=pytest.mark.deep)])
def test_a_removal_of_a_compacted_source_killed_at_any_file_operation_leaves_all_of_it_or_nothing(small, store, tmp_path, stride):
    without = shutil.copytree(small[0], tmp_path / "without")
    remove_source(without, name="m5")
    compact(store)
    states = [small[1], seen(without)]
    assert _killed_at_every_event(store, lambda: remove_source(store, name="m5"), states, stride) > 50 // stride


def _compact_some(store, queue):
    queue.put(len(compact(store)))


def _look(store, expected, queue):
    queue.put(all(seen(store)[:2] == expected for _ in range(12)))


def test_two_compactions_at_once_and_a_reader_beside_them_see_one_store(small, store):
    context = multiprocessing.get_context("spawn")
    merged, looked = context.Queue(), context.Queue()
    processes = [context.Process(target=_compact_some, args=(store, merged)) for _ in range(2)]
    processes += [context.Process(target=_look, args=(store, small[1][:2], looked))]
    for process in processes:
        process.start()
    assert sum(merged.get(timeout=120) for _ in range(2)) == 4
    assert looked.get(timeout=120)
    for process in processes:
        process.join()
    compact(store)
    assert len(parquet_files(store)) == 4 and seen(store) == small[1] and os.listdir(store / "staging") == []


def test_a_damaged_part_is_not_merged_and_its_day_stays(small, store):
    part = next(part for part in list_parts(store) if part.date == "2023-12-26")
    other = next(one for one in list_parts(store) if one.rows == part.rows and one.path != part.path)
    shutil.copy(store / other.path, store / part.path)
    before = parquet_files(store)
    with pytest.raises(BadInput, match=r"its rows are not those of .* that were put in\): restore it or rebuild the store"):
        compact(store)
    assert set(before) - set(parquet_files(store)) <= {path for path in before if "date=2023-12-25" in path}
    assert part.path in parquet_files(store)


def test_rows_of_a_record_that_was_removed_by_hand_are_refused_until_they_are_taken_out(store):
    compact(store)
    gone = sorted((store / "catalog").glob("*.json"))[3]
    paths = {part["path"] for part in json.loads(gone.read_text())["parts"]}
    gone.unlink()
    for act in (lambda: connect(store), lambda: read_columns(store, "ESH4", "mbp-10", *WHOLE), lambda: summarize_store(store)):
        with pytest.raises(BadInput, match=r"no record of the catalogue names: `sim store compact --store .*` takes them out"):
            act()
    compact(store)
    with connect(store) as connection:
        rows = query(connection, "select count(*) as n from market.mbp_10").to_pylist()
    assert rows == [{"n": sum(part.rows for part in list_parts(store))}] and not paths & {part.path for part in list_parts(store)}


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[:-9],
        lambda text: text.replace("market/", "../market/", 1),
        lambda text: text.replace("date=2023-12-", "date=2023-11-"),
        lambda text: "[" * 100_000,
    ],
)
def test_a_damaged_record_of_merged_parts_is_one_line_and_touches_nothing(store, change):
    compact(store)
    record = sorted((store / "merged").glob("*.json"))[0]
    record.write_text(change(record.read_text()))
    before = tree(store)
    for act in (lambda: connect(store), lambda: read_columns(store, "ESH4", "mbp-10", *WHOLE), lambda: compact(store)):
        with pytest.raises(BadInput, match="the record of merged parts is damaged"):
            act()
    assert tree(store) == before
