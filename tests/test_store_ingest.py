"""Laws of putting a file into the market store: nothing is lost, nothing is half there, nothing is there twice."""

import json
import multiprocessing
import os
import resource
from datetime import UTC, datetime

import numpy as np
import pyarrow.parquet as pq
import pytest

from lob.calendar import session_of, sessions
from lob.errors import BadInput, NotFound, StaleCache, TapeproofError
from lob.records import F_BAD_TS_RECV, F_LAST, F_MAYBE_BAD_BOOK, F_SNAPSHOT
from lob.units import UNDEFINED_PRICE, UNDEFINED_TIMESTAMP
from store.dbn import read_batches, write_dbn
from store.hashes import canonical_hash
from store.market import ingest_file, list_parts, quality_rows, read_columns, summarize_store
from store.market_schema import chunk_values, store_columns
from store.quality import BUILT
from tests.market_files import T0, TICK, bar_records, book_records, raw, tree, write_raw

DAY_NS = 86400 * 10**9
TRADE_DATE = 20231226
"""Of the session that opens at T0."""
ODD_SYMBOLS = {7: "ESH4", 8: "UD:1V: VT 2821913", 9: "A/B=.%"}


def utc_date(ns):
    return datetime.fromtimestamp(ns // 10**9, UTC).strftime("%Y-%m-%d")


def test_every_value_of_every_record_comes_back_and_only_sentinels_become_null(tmp_path):
    records = book_records(5000, 1, tuple(ODD_SYMBOLS), start_ns=T0 + 3599 * 10**9 - 10**11, odd=0.05)
    report = ingest_file(write_raw(tmp_path / "f", records), tmp_path / "S", open_source=raw(symbols=ODD_SYMBOLS))
    assert (report.rows, report.already, set(report.instruments)) == (5000, False, set(ODD_SYMBOLS.values()))
    seen = 0
    for part in list_parts(tmp_path / "S"):
        table = pq.read_table(tmp_path / "S" / part.path, partitioning=None)
        rows = table["row"].to_numpy()
        source = records[rows]
        seen += len(rows)
        assert (np.diff(rows) > 0).all(), "file order"
        for name in store_columns("mbp-10"):
            if name == "row":
                continue
            expected = [value.decode() if isinstance(value, bytes) else value for value in source[name].tolist()]
            sentinel = UNDEFINED_TIMESTAMP if name.startswith("ts_") and name != "ts_in_delta" else UNDEFINED_PRICE
            assert table[name].to_pylist() == [None if value == sentinel else value for value in expected], name
        for record in source:
            time = int(record["ts_recv"]) if record["ts_recv"] != UNDEFINED_TIMESTAMP else int(record["ts_event"])
            assert utc_date(time) == part.date
            assert ODD_SYMBOLS[int(record["instrument_id"])] == part.instrument
    assert seen == 5000


def test_symbols_are_percent_encoded_in_paths(tmp_path):
    records = book_records(50, 2, (8,))
    ingest_file(write_raw(tmp_path / "f", records), tmp_path / "S", open_source=raw(symbols=ODD_SYMBOLS))
    (part,) = list_parts(tmp_path / "S")
    assert part.path.startswith("market/schema=mbp-10/instrument=UD%3A1V%3A%20VT%202821913/date=2023-12-25/")


def test_a_part_is_written_in_row_groups_and_batches_do_not_change_what_is_read(tmp_path):
    records = book_records(140_000, 3, step_ns=10**6)
    path = write_raw(tmp_path / "f", records)
    hashes = set()
    for batch in (7_000, 65_536, 140_000):
        ingest_file(path, tmp_path / f"S{batch}", open_source=raw(batch=batch))
        hashes.add(read_columns(tmp_path / f"S{batch}", "ESH4", "mbp-10", 0, 2**62, ["bid_px_00", "ts_event"]).data_hash)
    assert len(hashes) == 1
    parts = list_parts(tmp_path / "S7000")
    assert len(parts) > 1
    assert sum(part.rows for part in parts) == 140_000


def test_content_hash_depends_on_values_and_not_on_how_parquet_holds_them(tmp_path):
    records = book_records(3000, 4, odd=0.02)
    ingest_file(write_raw(tmp_path / "f", records), tmp_path / "S", open_source=raw())
    (part,) = list_parts(tmp_path / "S")
    table = pq.read_table(tmp_path / "S" / part.path, partitioning=None)
    pq.write_table(table, tmp_path / "other.parquet", compression="none", row_group_size=100, use_dictionary=True)

    def content(path):
        columns, undefined = {}, {}
        read = pq.ParquetFile(path, read_dictionary=["action", "side"]).read()
        for name, dtype in store_columns("mbp-10").items():
            pieces = [chunk_values(chunk, store_columns("mbp-10")[name]) for chunk in read[name].chunks]
            columns[name] = np.concatenate([values for values, _ in pieces])
            undefined[name] = np.concatenate([np.zeros(len(values), bool) if mask is None else mask for values, mask in pieces])
            assert columns[name].dtype == dtype
        return canonical_hash(columns, undefined)

    assert content(tmp_path / "other.parquet") == content(tmp_path / "S" / part.path) == part.content_hash
    changed = records.copy()
    changed["ask_ct_09"][2999] ^= 1
    ingest_file(write_raw(tmp_path / "g", changed), tmp_path / "S2", open_source=raw())
    assert list_parts(tmp_path / "S2")[0].content_hash != part.content_hash


def test_ingesting_a_file_again_changes_nothing_and_says_so(tmp_path):
    path = write_raw(tmp_path / "f", book_records(500, 5))
    first = ingest_file(path, tmp_path / "S", open_source=raw())
    before = tree(tmp_path / "S")
    again = ingest_file(path.rename(tmp_path / "renamed"), tmp_path / "S", open_source=raw())
    assert (first.already, again.already) == (False, True)
    assert again.sha256 == first.sha256
    assert again.quality == first.quality
    assert tree(tmp_path / "S") == before


def test_a_file_too_large_to_be_hashed_first_is_known_again_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("store.ingest.HASH_FIRST_BYTES", 0)
    path = write_raw(tmp_path / "f", book_records(5000, 5))
    ingest_file(path, tmp_path / "S", open_source=raw())
    before = tree(tmp_path / "S")
    assert ingest_file(path, tmp_path / "S", open_source=raw()).already
    assert tree(tmp_path / "S") == before
    with pytest.raises(BadInput, match="is in the store already, from f"):
        ingest_file(write_raw(tmp_path / "g", book_records(5000, 6)), tmp_path / "S", open_source=raw())
    assert tree(tmp_path / "S") == before


def test_another_file_over_the_same_span_is_refused_by_both_names_and_one_beside_it_is_not(tmp_path):
    end = T0 + 500 * 10**8
    ingest_file(write_raw(tmp_path / "first.dbn", book_records(500, 6)), tmp_path / "S", open_source=raw())
    before = tree(tmp_path / "S")
    overlapping = write_raw(tmp_path / "second.dbn", book_records(10, 7, start_ns=end - 10**8))
    with pytest.raises(BadInput, match=r"second\.dbn: ESH4 mbp-10 .* is in the store already, from first\.dbn"):
        ingest_file(overlapping, tmp_path / "S", open_source=raw())
    assert tree(tmp_path / "S") == before
    ingest_file(write_raw(tmp_path / "third.dbn", book_records(10, 7, start_ns=end)), tmp_path / "S", open_source=raw())
    ingest_file(overlapping, tmp_path / "S", open_source=raw(symbols={7: "ESM4"}))
    assert {part.instrument for part in list_parts(tmp_path / "S")} == {"ESH4", "ESM4"}


@pytest.mark.parametrize("cut", ["record", "zstd"])
def test_a_cut_file_is_an_error_with_its_place_and_leaves_nothing(tmp_path, cut):
    records = book_records(4000, 8)
    whole = tmp_path / ("w.dbn.zst" if cut == "zstd" else "w.dbn")
    write_dbn(whole, records, "mbp-10", "ESH4", 7, "GLBX.MDP3", T0, T0 + DAY_NS)
    damaged = tmp_path / "cut.dbn"
    damaged.write_bytes(whole.read_bytes()[:-100])

    class Dbn:
        schema = "mbp-10"

        def batches(self):
            return read_batches(damaged, batch_records=1000)

        def symbol_of(self, instrument_id, date):
            return "ESH4"

    with pytest.raises(BadInput, match=r"record 3999 at byte" if cut == "record" else r"cut off before its end"):
        ingest_file(damaged, tmp_path / "S", open_source=lambda path: Dbn())
    assert not (tmp_path / "S").exists()
    ingest_file(write_raw(tmp_path / "good", records), tmp_path / "S", open_source=raw())
    before = tree(tmp_path / "S")
    with pytest.raises(BadInput):
        ingest_file(damaged, tmp_path / "S", open_source=lambda path: Dbn())
    assert tree(tmp_path / "S") == before


def test_a_file_that_changes_while_it_is_read_is_refused(tmp_path):
    path = write_raw(tmp_path / "f", book_records(2000, 9))

    class Growing(type(raw()(path))):
        def batches(self):
            for batch in super().batches():
                with open(path, "ab") as file:
                    file.write(b"x")
                yield batch
                return

    with pytest.raises(BadInput, match="changed while it was read"):
        ingest_file(path, tmp_path / "S", open_source=Growing)
    assert not (tmp_path / "S").exists()


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [("ts_recv", 2**63, "record 1234 has a time after the year 2262"), ("both", UNDEFINED_TIMESTAMP, "record 1234 has no time at all")],
)
def test_a_record_without_a_usable_time_is_named(tmp_path, name, value, line):
    records = book_records(2000, 10)
    for column in ("ts_recv", "ts_event") if name == "both" else (name,):
        records[column][1234] = value
    with pytest.raises(BadInput, match=line):
        ingest_file(write_raw(tmp_path / "f", records), tmp_path / "S", open_source=raw())


def test_unusable_files_and_folders_each_give_one_line(tmp_path):
    empty = write_raw(tmp_path / "empty", book_records(0, 1))
    good = write_raw(tmp_path / "good", book_records(10, 1))
    (tmp_path / "file").write_text("")
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer" / "store.json").write_text('{"format": "tapeproof market store", "version": 2}')
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "store.json").write_text('{"shop": 1}')
    cases = [
        (tmp_path / "absent", "S", {}, NotFound, "no such file"),
        (tmp_path, "S", {}, BadInput, "cannot be read"),
        (empty, "S", {}, BadInput, "holds no records"),
        (good, "file", {}, BadInput, "cannot be written"),
        (good, "file/sub", {}, BadInput, "cannot be written"),
        (good, "newer", {}, StaleCache, "version 2, but this program reads up to 1"),
        (good, "foreign", {}, BadInput, "not the head of a market store"),
        (good, "S", {"open_source": raw(symbols={})}, BadInput, "name it with --instrument"),
        (good, "S", {"instrument": "NQH4"}, BadInput, "holds ESH4 by its own metadata, not NQH4"),
    ]
    for path, store, options, error, line in cases:
        with pytest.raises(TapeproofError, match=line) as caught:
            ingest_file(path, tmp_path / store, **({"open_source": raw()} | options))
        assert caught.type is error, line
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "S").exists()


def test_a_file_without_symbols_takes_the_name_that_the_user_gives(tmp_path):
    path = write_raw(tmp_path / "f", book_records(10, 1))
    report = ingest_file(path, tmp_path / "S", open_source=raw(symbols={}), instrument="ES")
    assert report.instruments == ("ES",)


def _in_child(action) -> int:
    """Exit status of a forked child that runs `action`."""
    child = os.fork()
    if child == 0:
        try:
            action()
            os._exit(0)
        except TapeproofError:
            os._exit(2)
        except BaseException:
            os._exit(3)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _kills(tmp_path, queue, stride):
    """Runs in a fresh process (no threads yet). Kills an ingest at its n-th durable action, for every n, and reports what was seen then."""
    path = write_raw(tmp_path / "f", book_records(900, 11, tuple(ODD_SYMBOLS), start_ns=T0 + 3500 * 10**9, step_ns=10**9))

    def ingest():
        return ingest_file(path, store, open_source=raw(symbols=ODD_SYMBOLS))

    store = tmp_path / "S0"
    ingest()  # loads what the children would each load again; its threads are gone when it returns
    outcomes = []
    for n in range(1, 200, stride):
        store = tmp_path / f"S{n}"

        def killed(n=n):
            left = [n]
            for name in ("fsync", "rename", "replace", "mkdir"):
                original = getattr(os, name)

                def counted(*arguments, original=original, **options):
                    left[0] -= 1
                    if left[0] == 0:
                        os._exit(9)
                    return original(*arguments, **options)

                setattr(os, name, counted)
            ingest()

        status = _in_child(killed)
        visible = len(list_parts(store)) if (store / "store.json").exists() else 0
        files = len(list(store.rglob("*.parquet")))
        _in_child(ingest)
        outcomes.append(
            (status, visible, files, len(list_parts(store)), len(list(store.rglob("*.parquet"))), os.listdir(store / "staging"))
        )
        if status == 0:
            break
    queue.put(outcomes)


@pytest.mark.parametrize("stride", [6, pytest.param(1, marks=pytest.mark.deep)])
def test_a_kill_at_any_moment_leaves_all_of_a_file_or_nothing_and_the_next_ingest_cleans_up(tmp_path, stride):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_kills, args=(tmp_path, queue, stride))
    process.start()
    outcomes = queue.get(timeout=120)
    process.join()
    whole = outcomes[-1][1]
    assert whole >= 6, "three instruments on two dates"
    assert len(outcomes) > 30 // stride
    assert outcomes[-1][0] == 0
    assert {status for status, *_ in outcomes[:-1]} == {9}
    assert {visible for _, visible, *_ in outcomes} == {0, whole}
    assert any(visible == 0 and files > 0 for _, visible, files, *_ in outcomes), "some kills came between the move and the record"
    for _, _, _, parts, files, staging in outcomes:
        assert (parts, files, staging) == (whole, whole, [])


def _race(path, store, queue):
    report = ingest_file(path, store, open_source=raw(batch=100))
    queue.put((report.already, report.rows))


def test_two_ingests_of_one_file_at_once_make_it_visible_once(tmp_path):
    path = write_raw(tmp_path / "f", book_records(20_000, 12, step_ns=10**6))
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    processes = [context.Process(target=_race, args=(path, tmp_path / "S", queue)) for _ in range(2)]
    for process in processes:
        process.start()
    results = [queue.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    assert sorted(results) == [(False, 20_000), (True, 20_000)]
    assert sum(part.rows for part in list_parts(tmp_path / "S")) == 20_000
    assert len(list((tmp_path / "S").rglob("*.parquet"))) == len(list_parts(tmp_path / "S"))
    assert os.listdir(tmp_path / "S" / "staging") == []


def _small_disk(path, store, queue):
    def ingest():
        # No file may grow beyond this: the write fails as it does on a full disk, with another number.
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            ingest_file(path, store, open_source=raw())
        except BadInput as error:
            (store.parent / "line").write_text(str(error))
            raise

    queue.put(_in_child(ingest))


def test_a_disk_that_takes_no_more_is_one_line_and_leaves_nothing(tmp_path):
    path = write_raw(tmp_path / "f", book_records(3000, 13))
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_small_disk, args=(path, tmp_path / "S", queue))
    process.start()
    assert queue.get(timeout=120) == 2
    process.join()
    line = (tmp_path / "line").read_text()
    assert "the store cannot be written" in line
    assert "nothing was changed" in line
    assert "\n" not in line
    assert not (tmp_path / "S").exists()


def test_quality_counts_of_each_session_equal_a_count_by_hand(tmp_path):
    records = book_records(4000, 14, start_ns=T0 - 200 * 10**9, odd=0.01)
    random = np.random.default_rng(0)
    received = records["ts_recv"] != UNDEFINED_TIMESTAMP
    records["ts_recv"][received & (random.random(4000) < 0.01)] -= np.uint64(10**10)
    records["ts_event"][(records["ts_event"] != UNDEFINED_TIMESTAMP) & (random.random(4000) < 0.01)] -= np.uint64(10**9)
    records["bid_px_03"][(records["bid_px_03"] != UNDEFINED_PRICE) & (random.random(4000) < 0.01)] += 1
    records["ts_recv"][received & (np.arange(4000) >= 3000)] += np.uint64(90 * 10**9)
    records[2001], records[2002] = records[2000], records[2000]
    ingest_file(write_raw(tmp_path / "f", records), tmp_path / "S", open_source=raw())
    rows = quality_rows(tmp_path / "S")
    assert [row["session_id"] for row in rows] == [None, TRADE_DATE]
    by_session = {-1: dict.fromkeys(rows[0], 0), TRADE_DATE: dict.fromkeys(rows[0], 0)}
    traded: dict[int, list[int]] = {-1: [], TRADE_DATE: []}
    before = b""
    bounds = sessions("cme_globex", T0 - DAY_NS, T0 + DAY_NS)
    last_recv = last_event = last_index = last_session = -1
    for record in records:
        values = {name: record[name].item() for name in record.dtype.names}
        recv, event = values["ts_recv"], values["ts_event"]
        index = event if recv == UNDEFINED_TIMESTAMP else recv
        session = int(session_of(bounds, np.array([index]))[0])
        expected = by_session[session]
        expected["rows"] += 1
        expected["duplicate_rows"] += record.tobytes() == before
        before = record.tobytes()
        expected["undefined_times"] += (recv == UNDEFINED_TIMESTAMP) + (event == UNDEFINED_TIMESTAMP)
        if recv != UNDEFINED_TIMESTAMP:
            expected["out_of_order_recv"] += recv < last_recv
            last_recv = max(recv, last_recv)
        if event != UNDEFINED_TIMESTAMP:
            expected["out_of_order_event"] += event < last_event
            last_event = max(event, last_event)
        if session == last_session != -1 and index - last_index > 60 * 10**9:
            expected["gaps"] += 1
            expected["longest_gap_ns"] = max(expected["longest_gap_ns"], index - last_index)
        last_index, last_session = index, session
        expected["outside_session"] += session == -1
        prices = [value for name, value in values.items() if name == "price" or "_px_" in name]
        off = sum(price != UNDEFINED_PRICE and price % TICK != 0 for price in prices)
        expected["undefined_prices"] += prices.count(UNDEFINED_PRICE)
        expected["off_tick_prices"] += off
        expected["off_tick_rows"] += off > 0
        expected["bad_ts_recv"] += bool(values["flags"] & F_BAD_TS_RECV)
        expected["maybe_bad_book"] += bool(values["flags"] & F_MAYBE_BAD_BOOK)
        expected["snapshots"] += bool(values["flags"] & F_SNAPSHOT)
        if values["action"] == b"T":
            expected["trades"] += 1
            expected["traded_lots"] += values["size"]
            traded[session] += [values["price"]] if values["price"] != UNDEFINED_PRICE else []
        bid, ask = values["bid_px_00"], values["ask_px_00"]
        if UNDEFINED_PRICE in (bid, ask):
            expected["empty_books" if bid == ask else "one_sided_books"] += 1
        elif bid >= ask:
            kind = "crossed" if bid > ask else "locked"
            expected[kind] += 1
            reason = "pre_open" if session == -1 else "mid_event" if not values["flags"] & F_LAST else "fault"
            expected[f"{kind}_{reason}"] += 1
    exempt = {"source", "source_sha256", "instrument", "schema", "date", "session_id", "start_ns", "end_ns", "inconsistent_bars"}
    exempt |= {"off_tick_reason", "session_reason", "traded_low_e9", "traded_high_e9", *BUILT}
    for row, (session, expected) in zip(rows, by_session.items(), strict=True):
        assert {name: row[name] for name in row if name not in exempt} == {name: expected[name] for name in expected if name not in exempt}
        assert (row["traded_low_e9"], row["traded_high_e9"]) == (min(traded[session]), max(traded[session]))
    reached = {name: sum(expected[name] for expected in by_session.values()) for name in rows[0] if name not in exempt}
    assert [name for name, value in reached.items() if value == 0] == [], "every count was reached"


def test_the_counts_of_sessions_are_the_same_however_the_file_is_cut_into_batches(tmp_path):
    records = book_records(4000, 14, start_ns=T0 - 200 * 10**9, odd=0.01)
    records[1500:1503] = records[1500]
    found = []
    for batch in (7, 4000):
        ingest_file(write_raw(tmp_path / f"f{batch}", records), tmp_path / f"S{batch}", open_source=raw(batch=batch))
        found.append([{name: row[name] for name in row if not name.startswith("source")} for row in quality_rows(tmp_path / f"S{batch}")])
    assert found[0] == found[1] and len(found[0]) > 1


def test_a_record_from_before_sessions_were_counted_is_still_read_and_shown(tmp_path):
    ingest_file(write_raw(tmp_path / "f", book_records(100, 15)), tmp_path / "S", open_source=raw())
    (path,) = (tmp_path / "S" / "catalog").glob("*.json")
    record = json.loads(path.read_text())
    for day in record["quality"]:
        for name in ("session_id", "duplicate_rows", "traded_low_e9", "traded_high_e9"):
            del day[name]
    path.write_text(json.dumps(record))
    again = ingest_file(tmp_path / "f", tmp_path / "S", open_source=raw())
    assert again.already and [row["rows"] for row in quality_rows(tmp_path / "S")] == [100]
    ingest_file(write_raw(tmp_path / "g", book_records(100, 15, start_ns=T0 + 3600 * 10**9)), tmp_path / "S", open_source=raw())
    (summary,) = summarize_store(tmp_path / "S")
    assert summary["rows"] == 200 and summary["quality"]["duplicate_rows"] == 0, "the sum over the records that have the count"


def test_an_unknown_instrument_has_no_tick_counts_and_says_why(tmp_path):
    report = ingest_file(write_raw(tmp_path / "f", book_records(10, 15)), tmp_path / "S", open_source=raw(symbols={7: "UD:1V: VT"}))
    (row,) = report.quality
    assert row["off_tick_rows"] is None
    assert row["outside_session"] is None
    assert "UD:1V: VT" in row["off_tick_reason"]
    assert "ticks and sessions were not checked" in report.warnings[-1]
    assert "inside the session" not in " ".join(report.warnings)


def test_bars_in_a_wrong_time_zone_are_warned_of_with_their_count(tmp_path):
    # An ES day, 18:00 to 17:00 in New York, read as if that were UTC: the halt of 22:00 to 23:00 UTC is what gives it away.
    bars = bar_records(23 * 60, 16, start_ns=T0 + DAY_NS - 5 * 3600 * 10**9)
    report = ingest_file(write_raw(tmp_path / "f", bars), tmp_path / "S", open_source=raw("ohlcv-1m"))
    outside = sum(row["outside_session"] for row in report.quality)
    assert outside == 60
    assert "60 of 1,380 bars lie outside the trading session (first on 2023-12-26)" in " ".join(report.warnings)


def test_bars_whose_close_lies_outside_their_range_and_missing_bars_are_counted(tmp_path):
    bars = bar_records(100, 17)
    bars["close"][10] = bars["high"][10] * 100
    bars["ts_event"][50:] += np.uint64(5 * 60 * 10**9)
    report = ingest_file(write_raw(tmp_path / "f", bars), tmp_path / "S", open_source=raw("ohlcv-1m"))
    assert sum(row["inconsistent_bars"] for row in report.quality) == 1
    assert sum(row["gaps"] for row in report.quality) == 1
    assert max(row["longest_gap_ns"] for row in report.quality) == 6 * 60 * 10**9
    assert report.quality[0]["crossed"] is None


@pytest.mark.parametrize(("factor", "warned"), [(1, 0), (10, 0), (100, 1)])
def test_a_price_of_another_scale_than_its_neighbours_in_the_file_is_warned_of(tmp_path, factor, warned):
    bars = bar_records(100, 17)
    for name in ("open", "high", "low", "close"):
        bars[name][40:] *= factor
    report = ingest_file(write_raw(tmp_path / "f", bars), tmp_path / "S", open_source=raw("ohlcv-1m"))
    assert sum("of one scale" in line for line in report.warnings) == warned


def test_many_instruments_within_little_memory_are_written_early_and_stay_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("store.ingest.BUFFER_BYTES", 400_000)
    symbols = {i: f"S{i}" for i in range(20)}
    records = book_records(5000, 18, tuple(symbols))
    ingest_file(write_raw(tmp_path / "f", records), tmp_path / "S", open_source=raw(symbols=symbols, batch=500))
    for instrument_id, symbol in symbols.items():
        held = read_columns(tmp_path / "S", symbol, "mbp-10", 0, 2**62, ["sequence"])
        expected = records[records["instrument_id"] == instrument_id]
        assert held.arrays["sequence"].tolist() == expected["sequence"].tolist()
        assert held.row.tolist() == np.flatnonzero(records["instrument_id"] == instrument_id).tolist()
