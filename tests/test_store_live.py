"""Laws of live recordings: every record of a kind that the store holds goes in under its schema, the others are counted by type."""

import datetime as dt

import numpy as np
import pytest

import store.dbn_live
from lob.errors import BadInput
from lob.records import RECORDS, RTYPE, layout
from lob.units import UNDEFINED_TIMESTAMP
from sim.ingest import ingest
from sim.sql import ask
from store.dbn_live import SCHEMA_OF, read_live, read_recording
from store.dbn_metadata import DbnMetadata, encode_metadata
from store.market import list_parts
from tests.market_files import T0, bar_records, book_records, tree
from tests.test_store_dbn import decoded, fault

DAY_NS = 86_400 * 10**9
LIVE = "edge/venues/LIVE_mixed_schemas.dbn.zst"


def header(version=3, ts_out=False):
    metadata = DbnMetadata(3, "GLBX.MDP3", None, T0, None, None, None, "instrument_id", ts_out, 71, (), (), (), ())
    data = bytearray(encode_metadata(metadata))
    data[3] = version
    return bytes(data)


def mapping(symbol, ident=7, told_ns=T0, start_ns=UNDEFINED_TIMESTAMP, end_ns=UNDEFINED_TIMESTAMP, version=3):
    dtype = layout("symbol-mapping", version)
    record = np.zeros(1, dtype)
    record["length"], record["rtype"], record["instrument_id"], record["ts_event"] = dtype.itemsize // 4, 0x16, ident, told_ns
    record["stype_in_symbol"], record["stype_out_symbol"] = b"ES.c.0", symbol.encode()
    record["start_ts"], record["end_ts"] = start_ns, end_ns
    return record.tobytes()


def system(words=80):
    return bytes([words, 0x17]) + bytes(words * 4 - 2)


def test_every_record_of_the_real_recording_is_the_public_decoders_under_its_own_number(shared_data):
    path = shared_data / LIVE
    records = [bytes(record) for record in decoded(path)]
    recording = read_recording(path)
    assert recording.others == {"symbol-mapping": 20}
    seen = {}
    for schema in recording.schemas:
        for batch, numbers in read_live(path, schema):
            assert batch.dtype == RECORDS[schema]
            seen |= {int(number): row.tobytes() for number, row in zip(numbers, batch, strict=True)}
    assert seen == {number: record for number, record in enumerate(records) if record[1] in SCHEMA_OF}
    assert len(seen) == 26


def test_the_real_recording_goes_in_by_schema_once(shared_data, tmp_path):
    report = ingest(shared_data / LIVE, tmp_path / "S")
    held = {one["schema"]: one["rows"] for one in report["live"]}
    assert held == {"mbo": 5, "trades": 2, "mbp-1": 2, "mbp-10": 2, "ohlcv-1s": 2, "ohlcv-1m": 2, "definition": 2, "statistics": 9}
    assert (report["rows"], report["others"], report["already"]) == (26, {"symbol-mapping": 20}, False)
    assert {part.instrument for part in list_parts(tmp_path / "S")} == {"ESZ4"}
    rows = ask("select row, stat_type, quantity from market.statistics order by row", tmp_path / "S")["rows"]
    expected = [
        [i, int(r.stat_type), None if r.quantity == 2**63 - 1 else r.quantity]
        for i, r in enumerate(decoded(shared_data / LIVE))
        if type(r).__name__ == "StatMsg"
    ]
    assert rows == expected
    before = tree(tmp_path / "S")
    assert ingest(shared_data / LIVE, tmp_path / "S")["already"]
    assert ingest(shared_data / LIVE, tmp_path / "S", schema="mbo")["already"]
    assert tree(tmp_path / "S") == before


def test_one_schema_alone_goes_in_when_it_is_asked_for(shared_data, tmp_path):
    report = ingest(shared_data / LIVE, tmp_path / "S", schema="mbp-10")
    assert [(one["schema"], one["rows"]) for one in report["live"]] == [("mbp-10", 2)]
    with pytest.raises(BadInput, match="a live recording without status; it holds mbo, trades, mbp-1, mbp-10, ohlcv-1s"):
        ingest(shared_data / LIVE, tmp_path / "T", schema="status")
    assert not (tmp_path / "T").exists()


@pytest.mark.parametrize(("version", "ts_out", "block"), [(3, False, 1 << 20), (1, False, 4096), (2, True, 4096), (3, True, 1777)])
def test_records_are_picked_out_whatever_surrounds_them_and_wherever_a_block_ends(tmp_path, monkeypatch, version, ts_out, block):
    monkeypatch.setattr(store.dbn_live, "BLOCK_BYTES", block)
    books, bars = book_records(300, 1), bar_records(200, 2)
    rng = np.random.default_rng(3)
    stream, where = [mapping("ESH4", version=version)], {"mbp-10": [], "ohlcv-1m": []}
    queues = {"mbp-10": list(books), "ohlcv-1m": list(bars)}
    while any(queues.values()):
        kind = rng.choice(["mbp-10", "ohlcv-1m", "system", "unknown"])
        if queues.get(kind):
            where[kind].append(len(stream))
            stream.append(queues[kind].pop(0).tobytes())
        elif kind not in queues:
            stream.append(system(int(rng.integers(4, 256))) if kind == "system" else bytes([5, 0x99]) + bytes(18))
    others = len(stream) - 501
    if ts_out:
        stream = [bytes([one[0] + 2]) + one[1:] + bytes(8) if one[0] < 254 else one for one in stream]
    path = tmp_path / "x.dbn"
    path.write_bytes(header(version, ts_out) + b"".join(stream))
    recording = read_recording(path)
    assert recording.schemas == ("mbp-10", "ohlcv-1m") and sum(recording.others.values()) == others + 1
    for schema, records in (("mbp-10", books), ("ohlcv-1m", bars)):
        found = list(read_live(path, schema))
        assert np.concatenate([numbers for _, numbers in found]).tolist() == where[schema]
        assert b"".join(batch.tobytes() for batch, _ in found) == records.tobytes()


def test_an_instrument_is_named_by_the_mapping_of_its_date(tmp_path):
    day = T0 // DAY_NS * DAY_NS
    path = tmp_path / "x.dbn"
    path.write_bytes(
        header()
        + mapping("ESH4", told_ns=day + 2 * DAY_NS)
        + mapping("ESM4", told_ns=day + 5 * DAY_NS + 1)
        + mapping("NQH4", ident=8, told_ns=day, start_ns=day, end_ns=day + 3 * DAY_NS)
        + mapping("NQM4", ident=8, told_ns=day, start_ns=day + 3 * DAY_NS, end_ns=day + 9 * DAY_NS)
    )
    recording = read_recording(path)

    def named(ident, days):
        return recording.symbol_of(ident, dt.date(1970, 1, 1) + dt.timedelta(days=day // DAY_NS + days))

    assert [named(7, days) for days in (0, 2, 4, 5, 6)] == ["ESH4", "ESH4", "ESH4", "ESM4", "ESM4"]
    assert [named(8, days) for days in (-1, 0, 2, 3, 8, 9)] == [None, "NQH4", "NQH4", "NQM4", "NQM4", None]
    assert named(9, 0) is None


def test_a_recording_of_nothing_that_is_known_says_what_it_holds(tmp_path):
    path = tmp_path / "x.dbn"
    path.write_bytes(header() + system() * 3 + mapping("ESH4"))
    with pytest.raises(BadInput, match="holds nothing that can be used: symbol-mapping 1, system 3"):
        ingest(path, tmp_path / "S")
    path.write_bytes(header())
    with pytest.raises(BadInput, match="holds nothing that can be used: no record at all"):
        ingest(path, tmp_path / "S")
    assert not (tmp_path / "S").exists()


def test_damage_is_named_by_record_and_byte_and_leaves_no_store(tmp_path):
    head, books = header(), book_records(3, 1)
    good = mapping("ESH4") + books.tobytes()
    path = tmp_path / "x.dbn"
    for data, said in (
        (good[:-5], f"ends inside record 3 at byte {len(head) + 176 + 2 * 368}"),
        (good + bytes([0, 0x17]) + bytes(30), f"record 4 at byte {len(head) + len(good)} is a record of 0 bytes"),
        (
            good + bytes([60, RTYPE["mbp-10"]]) + bytes(238),
            f"record 4 at byte {len(head) + len(good)} is a record of 240 bytes and type mbp-10",
        ),
        (good + b"\x05", "ends inside record 4"),
    ):
        path.write_bytes(head + data)
        with pytest.raises(BadInput, match=said) as caught:
            ingest(path, tmp_path / "S")
        assert "\n" not in str(caught.value) and str(caught.value).startswith(str(path))
        assert not (tmp_path / "S").exists()


def test_when_one_schema_cannot_go_in_none_does(tmp_path):
    """The bars overlap what is there: the books that went in before them come out again."""
    path = tmp_path / "bars.dbn"
    path.write_bytes(header() + mapping("ESH4") + bar_records(5, 1).tobytes())
    ingest(path, tmp_path / "S")
    before = tree(tmp_path / "S")
    path = tmp_path / "both.dbn"
    path.write_bytes(header() + mapping("ESH4") + book_records(9, 1).tobytes() + bar_records(6, 2).tobytes())
    with pytest.raises(BadInput, match=r"ohlcv-1m .* is in the store already"):
        ingest(path, tmp_path / "S")
    assert tree(tmp_path / "S") == before


def test_a_reader_of_one_schema_says_that_a_recording_needs_a_choice(shared_data):
    assert "a live recording, its schema not stated" in fault(shared_data / LIVE)
