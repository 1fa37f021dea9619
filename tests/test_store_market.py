"""Laws of reading the market store: what is read is what was asked for, in order, and its hash is its values'."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lob.errors import BadInput, NotFound
from lob.units import UNDEFINED_PRICE, UNDEFINED_TIMESTAMP
from store.catalog import read_records
from store.market import ingest_file, list_parts, read_columns, summarize_store
from store.market_schema import is_nullable
from tests.market_files import T0, bar_records, book_records, raw, write_raw

SECOND = 10**9


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """(store, records): one instrument over two files, the later ingested first, crossing midnight, with undefined prices and times."""
    folder = tmp_path_factory.mktemp("market")
    records = book_records(6000, 21, start_ns=T0 + 3300 * SECOND, odd=0.02)
    middle = 3500
    parts = [records[:middle], records[middle:]]
    for i in (1, 0):
        ingest_file(write_raw(folder / f"file{i}", parts[i]), folder / "S", open_source=raw())
    return folder / "S", records, middle


def index_ns(records):
    recv = records["ts_recv"]
    return np.where(recv == UNDEFINED_TIMESTAMP, records["ts_event"], recv).astype(np.int64)


@pytest.mark.parametrize(
    ("start", "end"), [(0, 2**62), (T0 + 3310 * SECOND, T0 + 3311 * SECOND), (T0 + 3500 * SECOND, T0 + 3701 * SECOND + 1)]
)
def test_a_range_holds_the_rows_received_from_start_up_to_but_without_end(held, start, end):
    store, records, middle = held
    read = read_columns(store, "ESH4", "mbp-10", start, end)
    index = index_ns(records)
    chosen = np.flatnonzero((index >= start) & (index < end))
    files = (chosen >= middle).astype(np.int32)
    assert read.source.tolist() == (files - files.min()).tolist()
    assert read.row.tolist() == (chosen - middle * files).tolist()
    assert len(read.sources) == len(set(files.tolist()))
    for name, values in read.arrays.items():
        if name == "row":
            continue
        expected = records[name][chosen]
        if is_nullable(name):
            sentinel = UNDEFINED_TIMESTAMP if name.startswith("ts_") else UNDEFINED_PRICE
            assert (read.undefined[name] == (expected == sentinel)).all(), name
            expected = np.where(expected == sentinel, 0, expected.astype(np.int64))
        assert values.tolist() == expected.tolist(), name
    assert read.arrays["action"].dtype == "S1"
    assert read.arrays["ts_recv"].dtype == np.int64


def test_the_data_hash_knows_values_and_not_the_order_of_columns(held):
    store, _, _ = held
    whole = read_columns(store, "ESH4", "mbp-10", 0, 2**62, ["bid_px_00", "ask_px_00"])
    swapped = read_columns(store, "ESH4", "mbp-10", 0, 2**62, ["ask_px_00", "bid_px_00"])
    fewer = read_columns(store, "ESH4", "mbp-10", 0, 2**62, ["bid_px_00"])
    shorter = read_columns(store, "ESH4", "mbp-10", 0, T0 + 3600 * SECOND, ["bid_px_00", "ask_px_00"])
    assert whole.data_hash == swapped.data_hash
    assert len({whole.data_hash, fewer.data_hash, shorter.data_hash}) == 3


def test_the_data_hash_does_not_change_when_a_part_is_encoded_anew_and_does_when_a_value_changes(tmp_path):
    ingest_file(write_raw(tmp_path / "f", book_records(1000, 22, odd=0.02)), tmp_path / "S", open_source=raw())
    (part,) = list_parts(tmp_path / "S")
    path = tmp_path / "S" / part.path
    before = read_columns(tmp_path / "S", "ESH4", "mbp-10", 0, 2**62)
    table = pq.read_table(path, partitioning=None)
    pq.write_table(table, path, compression="none", row_group_size=77)
    assert read_columns(tmp_path / "S", "ESH4", "mbp-10", 0, 2**62).data_hash == before.data_hash
    sizes = table["bid_sz_04"].to_numpy().copy()
    sizes[500] ^= 1
    i = table.schema.get_field_index("bid_sz_04")
    pq.write_table(table.set_column(i, table.schema.field(i), [sizes]), path)
    assert read_columns(tmp_path / "S", "ESH4", "mbp-10", 0, 2**62).data_hash != before.data_hash


def test_what_is_not_there_is_named_with_what_is(held, tmp_path):
    store, _, _ = held
    with pytest.raises(NotFound, match="sim ingest FILE --store"):
        list_parts(tmp_path / "nowhere")
    with pytest.raises(NotFound, match="no instrument NQH4; the store holds ESH4"):
        read_columns(store, "NQH4", "mbp-10", 0, 1)
    with pytest.raises(NotFound, match="ESH4 has no ohlcv-1m; it has mbp-10"):
        read_columns(store, "ESH4", "ohlcv-1m", 0, 1)
    with pytest.raises(NotFound, match=r"no column bid_px_10; it has rtype, .*ask_px_09"):
        read_columns(store, "ESH4", "mbp-10", 0, 1, ["bid_px_10"])
    with pytest.raises(BadInput, match="the range is empty"):
        read_columns(store, "ESH4", "mbp-10", 5, 5)
    with pytest.raises(BadInput, match=r"no rows from 1970.* it has rows from 2023-12-25T23:55:00.000000000Z to 2023-12-26T00:0"):
        read_columns(store, "ESH4", "mbp-10", 0, 1)


def test_a_damaged_part_is_one_line_with_its_name(tmp_path):
    ingest_file(write_raw(tmp_path / "f", bar_records(10, 23)), tmp_path / "S", open_source=raw("ohlcv-1m"))
    (part,) = list_parts(tmp_path / "S")
    path = tmp_path / "S" / part.path
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BadInput, match=r"\.parquet: the part cannot be read") as caught:
        read_columns(tmp_path / "S", "ESH4", "ohlcv-1m", 0, 2**62)
    assert "\n" not in str(caught.value)
    pq.write_table(pa.table({"ts_event": [T0] * 10, "row": [0] * 10}), path)
    with pytest.raises(BadInput, match="column close is missing"):
        read_columns(tmp_path / "S", "ESH4", "ohlcv-1m", 0, 2**62)
    path.unlink()
    with pytest.raises(BadInput, match=r"\.parquet: the part cannot be read"):
        read_columns(tmp_path / "S", "ESH4", "ohlcv-1m", 0, 2**62)


def test_the_summary_adds_up_what_the_catalogue_holds(held):
    store, records, _ = held
    (row,) = summarize_store(store)
    assert (row["instrument"], row["schema"], row["rows"], row["dates"], row["sources"]) == ("ESH4", "mbp-10", 6000, 2, ["file0", "file1"])
    assert row["bytes"] == sum((store / part.path).stat().st_size for part in list_parts(store))
    assert row["quality"]["undefined_prices"] == sum(int((records[name] == UNDEFINED_PRICE).sum()) for name in records.dtype.names)
    assert len(read_records(store)) == 2


def test_parts_are_listed_by_schema_instrument_span_and_row(held):
    store, _, middle = held
    parts = list_parts(store)
    assert [part.start_ns for part in parts] == sorted(part.start_ns for part in parts)
    assert sum(part.rows for part in parts) == 6000
    assert parts[0].rows <= middle
