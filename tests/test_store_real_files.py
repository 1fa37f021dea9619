"""The market store on real files: what the public decoder and a plain CSV reader say is what SQL says."""

import csv
import datetime as dt
from decimal import Decimal
from zoneinfo import ZoneInfo

import databento_dbn
import pytest
import zstandard

from lob.errors import BadInput
from sim.ingest import ingest
from sim.sql import ask
from store.market import list_parts, read_columns

ES_HOUR = "mbp10/esh4_20231225_derived.mbp-10.dbn.zst"
ES_BARS = "ohlcv/ES_1min_2023-09-24_2023-10-09.csv"


def decoded(path):
    """Records of a DBN file as Python objects, by the public decoder."""
    data = path.read_bytes()
    if path.suffix == ".zst":
        data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
    decoder = databento_dbn.DBNDecoder()
    decoder.write(data)
    return [record for record in decoder.decode() if not isinstance(record, databento_dbn.Metadata)]


@pytest.fixture(scope="module")
def store(tmp_path_factory, shared_data):
    store = tmp_path_factory.mktemp("real") / "S"
    ingest(shared_data / ES_HOUR, store)
    ingest(shared_data / ES_BARS, store, instrument="ES", schema="ohlcv-1m", timezone="America/New_York")
    ingest(shared_data / "ohlcv/esu4_nqu4_20240701_30min.ohlcv-1m.dbn.zst", store)
    return store


def test_an_hour_of_es_has_the_decoders_rows(store, shared_data):
    records = decoded(shared_data / ES_HOUR)
    assert len(records) == 41_761
    names = ["ts_event", "ts_recv", "sequence", "ts_in_delta", "price", "size", "flags", "bid_px_00", "ask_px_09", "bid_sz_04", "ask_ct_07"]
    held = read_columns(store, "ESH4", "mbp-10", 0, 2**62, names)
    for name in names:
        if name[-3:-2] == "_" and name[-2:].isdigit():
            expected = [getattr(record.levels[int(name[-2:])], name[:-3]) for record in records]
        else:
            expected = [int(getattr(record, name)) for record in records]
        assert held.arrays[name].tolist() == expected, name
        assert not held.undefined.get(name, held.row < 0).any()
    assert held.row.tolist() == list(range(len(records)))


def test_an_hour_of_es_has_the_known_quality(store):
    before, session = ask(
        "select session_id, rows, crossed, crossed_fault, trades, outside_session, off_tick_prices, gaps from market.quality "
        "where schema = 'mbp-10' order by session_id nulls first",
        store,
    )["rows"]
    opened = 1703545200000000000  # 2023-12-25 18:00 New York: the evening belongs to the trade date after the holiday
    ((outside, inside),) = ask(
        f"select count(*) filter (ts_recv < {opened}), count(*) filter (ts_recv >= {opened}) from market.mbp_10", store
    )["rows"]
    assert before[:2] == [None, outside] and before[3:] == [0, 0, outside, 0, 0]
    assert session[:2] == [20231226, inside] and session[4:] == [2973, 0, 0, 0]
    assert session[2] > session[3]


def test_a_store_of_es_is_smaller_than_its_compressed_source(store, shared_data):
    held = sum((store / part.path).stat().st_size for part in list_parts(store) if part.schema == "mbp-10")
    assert held < (shared_data / ES_HOUR).stat().st_size


def test_es_bars_from_csv_are_the_csvs_own_decimals_in_utc(store, shared_data):
    with open(shared_data / ES_BARS, newline="") as file:
        rows = list(csv.DictReader(file))
    stamp = next(iter(rows[0]))
    found = ask("select ts_event, open, high, low, close, volume from market.ohlcv_1m where instrument = 'ES' order by row", store)["rows"]
    assert len(found) == len(rows) == 15_176
    for row, values in zip(rows, found, strict=True):
        time = dt.datetime.fromisoformat(row[stamp]).replace(tzinfo=ZoneInfo("America/New_York"))
        prices = [int(Decimal(row[name]) * 10**9) for name in ("open", "high", "low", "close")]
        assert values == [int(time.timestamp()) * 10**9, *prices, int(row["volume"])]


def test_a_csv_in_the_wrong_time_zone_warns_with_counts(shared_data, tmp_path):
    right = ingest(shared_data / ES_BARS, tmp_path / "A", instrument="ES", schema="ohlcv-1m", timezone="America/New_York")
    wrong = ingest(shared_data / ES_BARS, tmp_path / "B", instrument="ES", schema="ohlcv-1m", timezone="UTC")
    assert right["warnings"] == []
    assert any("of 15,176 bars lie outside the trading session" in line for line in wrong["warnings"])


def test_interleaved_instruments_are_split_and_keep_their_rows(store):
    found = ask(
        "select instrument, count(*), min(row) from market.ohlcv_1m where instrument in ('ESU4', 'NQU4') group by all order by all",
        store,
    )
    assert [row[:2] for row in found["rows"]] == [["ESU4", 30], ["NQU4", 30]]
    assert {row[2] for row in found["rows"]} == {0, 1}


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("edge/zero_bytes.dbn", "empty"),
        ("edge/header_only.mbp-10.dbn", "holds no records"),
        ("edge/dbn_versions/test_data.mbp-10.dbz", "DBZ"),
        ("edge/dbn_versions/test_data.definition.v1.dbn.frag", "without metadata"),
        (ES_BARS, "--schema ohlcv-1m"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line_and_makes_no_store(shared_data, tmp_path, name, line):
    with pytest.raises(BadInput, match=line) as caught:
        ingest(shared_data / name, tmp_path / "S")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "S").exists()


@pytest.mark.parametrize("version", ["v1.dbn", "v1.dbn.zst", "v2.dbn", "v2.dbn.zst", "v3.dbn.zst"])
def test_every_dbn_version_gives_the_same_rows(shared_data, tmp_path, version):
    ingest(shared_data / f"edge/dbn_versions/test_data.mbp-10.{version}", tmp_path / "S")
    found = ask("select instrument, ts_event, price, bid_px_00, ask_sz_09, row from market.mbp_10 order by row", tmp_path / "S")["rows"]
    records = decoded(shared_data / f"edge/dbn_versions/test_data.mbp-10.{version}")
    expected = [[record.ts_event, record.price, record.levels[0].bid_px, record.levels[9].ask_sz, i] for i, record in enumerate(records)]
    assert [row[1:] for row in found] == expected
    assert found[0][0] == "ESH1"


def test_prices_a_hundredfold_wrong_are_warned_of_in_whichever_order_the_files_come(shared_data, tmp_path):
    versions = shared_data / "edge" / "dbn_versions"
    bars, trades = versions / "test_data.ohlcv-1m.v1.dbn.zst", versions / "test_data.trades.v1.dbn.zst"
    for order in ((bars, trades), (trades, bars)):
        store = tmp_path / order[0].name
        assert not ingest(order[0], store)["warnings"]
        (line,) = ingest(order[1], store)["warnings"]
        assert "372,025 to 372,150" in line and "3,720.25 to 3,720.25" in line and "wrong price scale" in line
        assert order[0].name in line and "\n" not in line
