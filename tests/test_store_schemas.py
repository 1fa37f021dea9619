"""Laws of the schemas beside books, trades and bars: quotes at intervals, trades with their quote, definitions, statistics, status.

The oracle of their values is the public decoder (`databento-dbn`), which shares no code with ours.
"""

import numpy as np
import pytest

from lob.errors import BadInput
from lob.records import RECORDS, RTYPE, SPARSE
from lob.units import UNDEFINED_PRICE, UNDEFINED_TIMESTAMP
from sim.ingest import ingest
from sim.sql import ask
from store.dbn import write_dbn
from store.market import read_columns, summarize_store
from store.market_schema import store_columns
from tests.market_files import T0
from tests.test_store_dbn import decoded

NEW = ("tbbo", "bbo-1s", "bbo-1m", "definition", "statistics", "status")


def made(schema, count=50, seed=3):
    """Records with times in order, letters and names that are text, and every other field random."""
    dtype = RECORDS[schema]
    rng = np.random.default_rng(seed)
    records = np.frombuffer(rng.bytes(count * dtype.itemsize), dtype).copy()
    for name in dtype.names:
        if (name.startswith("ts_") and dtype[name] == np.dtype("<u8")) or name in ("expiration", "activation"):
            records[name] = T0 + np.arange(count) * 10**9
            records[name][rng.random(count) < (0.1 if name != "ts_recv" else 0)] = UNDEFINED_TIMESTAMP
        elif dtype[name].kind == "S":
            records[name] = rng.choice([b"A", b"B", b"N"] if dtype[name].itemsize == 1 else [b"", b"ES", "é".encode()], count)
    if "price" in dtype.names:
        records["price"][::7] = UNDEFINED_PRICE
    records["length"], records["rtype"], records["instrument_id"] = dtype.itemsize // 4, RTYPE[schema], 7
    return records


def stored(tmp_path, records, schema):
    path = tmp_path / f"x.{schema}.dbn.zst"
    write_dbn(path, records, schema, "ESH4", 7, "GLBX.MDP3", T0, T0 + 3600 * 10**9)
    report = ingest(path, tmp_path / "S")
    assert (report["schema"], report["rows"]) == (schema, len(records))
    return tmp_path / "S"


@pytest.mark.parametrize("schema", NEW)
def test_every_value_of_every_schema_comes_back_from_the_store_and_is_seen_in_sql(tmp_path, schema):
    records = made(schema)
    store = stored(tmp_path, records, schema)
    held = read_columns(store, "ESH4", schema, 0, 2**62)
    kept = [name for name in store_columns(schema) if name != "row"]
    assert set(kept) == {name for name in records.dtype.names if name != "length" and not name.startswith("_")}
    for name in kept:
        undefined = held.undefined.get(name, np.zeros(len(records), bool))
        sentinel = UNDEFINED_TIMESTAMP if records.dtype[name] == np.dtype("<u8") else UNDEFINED_PRICE
        assert np.array_equal(undefined, records[name] == sentinel if name in held.undefined else undefined), name
        assert np.array_equal(held.arrays[name][~undefined], records[name][~undefined].astype(held.arrays[name].dtype)), name
    seen = ask(f"select count(*), count(distinct instrument), min(row) from market.{schema.replace('-', '_')}", store)["rows"]
    assert seen == [[len(records), 1, 0]]


@pytest.mark.parametrize("name", ["l1/esz5_esh6_20251219_10min.bbo-1m.dbn.zst", "l1/esm4_puts_20240509_10min.bbo-1m.dbn.zst"])
def test_real_quotes_at_intervals_are_the_public_decoders(shared_data, tmp_path, name):
    ingest(shared_data / name, tmp_path / "S")
    columns = "instrument_id, ts_event, ts_recv, price, size, side, flags, sequence, bid_px_00, ask_px_00, bid_sz_00, ask_sz_00, ask_ct_00"
    found = ask(f"select {columns} from market.bbo_1m order by row", tmp_path / "S")["rows"]
    expected = [
        [r.instrument_id, r.ts_event, r.ts_recv, r.price, r.size, str(r.side), int(r.flags), r.sequence]
        + [r.levels[0].bid_px, r.levels[0].ask_px, r.levels[0].bid_sz, r.levels[0].ask_sz, r.levels[0].ask_ct]
        for r in decoded(shared_data / name)
    ]
    assert found == expected and len(found) == 20


def test_real_definitions_of_every_version_are_the_public_decoders(shared_data, tmp_path):
    paths = [p for p in sorted(shared_data.rglob("*definition*.dbn.zst")) if ".frag" not in p.name]
    assert len(paths) == 5
    for i, path in enumerate(paths):
        store = tmp_path / f"S{i}"
        ingest(path, store)
        columns = "raw_symbol, min_price_increment, unit_of_measure_qty, expiration, asset, security_type, currency, match_algorithm"
        found = ask(f"select {columns}, contract_multiplier, maturity_month, instrument from market.definition order by row", store)["rows"]
        expected = [
            [r.raw_symbol, *[None if v == UNDEFINED_PRICE else v for v in (r.min_price_increment, r.unit_of_measure_qty)]]
            + [None if r.expiration == UNDEFINED_TIMESTAMP else r.expiration, r.asset, r.security_type, r.currency]
            + [str(r.match_algorithm), r.contract_multiplier, r.maturity_month, r.raw_symbol]
            for r in decoded(path)
        ]
        assert found == expected and found, path


def test_silence_between_facts_is_no_gap_and_no_hole(tmp_path):
    for schema in SPARSE:
        records = made(schema, 4)
        records["ts_recv"] = T0 + np.arange(4) * 900 * 10**9
        (tmp_path / schema).mkdir()
        (row,) = summarize_store(stored(tmp_path / schema, records, schema))
        assert (row["holes"], row["missing_sessions"], row["quality"]["gaps"], row["quality"]["crossed"]) == ([], None, None, None)
        assert row["quality"]["out_of_order_recv"] == 0


def test_facts_out_of_order_are_counted(tmp_path):
    records = made("status", 6)
    records["ts_recv"] = T0 + np.array([0, 5, 3, 4, 6, 1], "u8")
    (row,) = summarize_store(stored(tmp_path, records, "status"))
    assert row["quality"]["out_of_order_recv"] == sum(1 for i, t in enumerate([0, 5, 3, 4, 6, 1]) if t < max([0, 5, 3, 4, 6, 1][: i + 1]))


def test_a_definition_names_its_instrument_where_the_file_does_not(tmp_path):
    records = made("definition", 3)
    records["raw_symbol"], records["instrument_id"] = b"NQH4", 9
    path = tmp_path / "x.dbn"
    empty = records[:0]
    write_dbn(path, empty, "definition", "ESH4", 7, "GLBX.MDP3", T0, T0 + 3600 * 10**9)  # the metadata map id 7 alone
    path.write_bytes(path.read_bytes() + records.tobytes())
    assert ingest(path, tmp_path / "S")["instruments"] == ["NQH4"]


def test_a_text_that_is_none_is_refused_with_file_column_and_remedy(tmp_path):
    records = made("definition", 3)
    records["asset"][1] = b"\xff\xfe"
    with pytest.raises(BadInput, match=r"x\.definition\.dbn\.zst: ESH4 on 2023-12-25: asset .* is no text: the file is damaged, fetch it"):
        stored(tmp_path, records, "definition")
    assert not (tmp_path / "S").exists()
    records["asset"][1] = b"ES\0\xff"  # beyond the NUL nothing is read
    assert read_columns(stored(tmp_path, records, "definition"), "ESH4", "definition", 0, 2**62).arrays["asset"][1] == b"ES"


def test_a_time_of_a_fact_after_2262_is_refused(tmp_path):
    records = made("definition", 3)
    records["expiration"][2] = 2**63
    with pytest.raises(BadInput, match="record 2 has a time after the year 2262"):
        stored(tmp_path, records, "definition")
