"""A file of single orders in the store: its messages, and the books that they make, which a replay can be played on."""

import datetime as dt

import numpy as np
import pytest

from lob.errors import BadInput
from lob.records import F_LAST, F_SNAPSHOT, MBO
from lob.units import UNDEFINED_PRICE
from sim.ingest import ingest
from sim.sql import ask
from store.dbn import read_batches, write_dbn
from store.dbn_metadata import DbnMetadata, Interval, Mapping, encode_metadata
from store.market import list_parts, read_columns
from tests.market_files import T0, TICK
from tests.oracle_book import PlainBook

ES_DAY = "mbo/esh4-glbx-mdp3-20231225.mbo.dbn.zst"
DAY_NS = 86_400 * 10**9


def stream(n: int, seed: int, ident: int = 7, start_ns: int = T0, step_ns: int = 10**6, snapshot: bool = True) -> np.ndarray:
    """`n` messages of one instrument around 4800.00: a snapshot, then adds, cancels, modifies and trades, some of unknown orders."""
    random = np.random.default_rng(seed)
    made = np.zeros(n, MBO)
    made["length"], made["rtype"], made["publisher_id"], made["instrument_id"] = 14, 0xA0, 1, ident
    made["ts_recv"] = start_ns + np.arange(n) * step_ns
    made["ts_event"] = made["ts_recv"] - 1000
    made["order_id"] = random.integers(1, 80, n)
    made["side"] = random.choice([b"B", b"A"], n)
    away = random.integers(0, 14, n)
    made["price"] = np.where(made["side"] == b"B", 19_200 - away, 19_201 + away) * TICK
    made["size"] = random.integers(1, 9, n)
    made["action"] = random.choice(np.array([b"A", b"A", b"C", b"M", b"T", b"F"]), n)
    made["flags"] = random.choice([F_LAST, F_LAST, 0], n)
    if snapshot:
        first = made[:20]
        first["action"], first["flags"], first["order_id"] = b"A", F_SNAPSHOT, np.arange(1000, 1020)
        first["flags"][-1] |= F_LAST
    made["sequence"] = np.arange(n)
    return made


def write(path, records: np.ndarray, symbols: dict[int, str] | None = None):
    symbols = symbols or {7: "ESH4"}
    if len(symbols) == 1:
        ((ident, name),) = symbols.items()
        write_dbn(path, records, "mbo", name, ident, "GLBX.MDP3", T0 - DAY_NS, T0 + 3 * DAY_NS)
        return path
    span = [dt.date(2023, 12, 1), dt.date(2024, 1, 31)]
    mappings = tuple(Mapping(name, (Interval(*span, str(ident)),)) for ident, name in symbols.items())
    names = tuple(symbols.values())
    head = DbnMetadata(3, "GLBX.MDP3", "mbo", T0, None, None, "raw_symbol", "instrument_id", False, 71, names, (), (), mappings)
    path.write_bytes(encode_metadata(head) + records.tobytes())
    return path


def plain_rows(records: np.ndarray) -> tuple[PlainBook, list[tuple]]:
    plain, rows = PlainBook(), []
    for i, r in enumerate(records):
        message = r["action"].decode(), int(r["order_id"]), r["side"].decode(), int(r["price"]), int(r["size"]), int(r["flags"])
        rows += plain.play(i, *message)
    return plain, rows + plain.end_snapshot()


def held(store, symbol: str) -> list[tuple]:
    """The store's books as the plain book tells its rows."""
    found = read_columns(store, symbol, "mbp-10", 0, 2**62)
    a = found.arrays
    rows = []
    for i in range(found.rows):
        sides = []
        for side in ("bid", "ask"):
            there = [k for k in range(10) if not found.undefined[f"{side}_px_{k:02d}"][i]]
            sides.append([tuple(int(a[f"{side}_{what}_{k:02d}"][i]) for what in ("px", "sz", "ct")) for k in there])
        fields = (a["action"][i].decode(), a["side"][i].decode(), int(a["price"][i]), int(a["size"][i]), int(a["flags"][i]))
        rows.append((int(found.row[i]), *fields, int(a["depth"][i]), *sides))
    return rows


def test_the_messages_go_in_whole_and_their_books_are_a_plain_books_with_the_messages_rows(tmp_path):
    records = stream(3000, 1)
    report = ingest(write(tmp_path / "x.mbo.dbn.zst", records), tmp_path / "S")
    assert (report["schema"], report["rows"], report["books"]["schema"]) == ("mbo", 3000, "mbp-10")
    messages = read_columns(tmp_path / "S", "ESH4", "mbo", 0, 2**62)
    for name in MBO.names[1:]:
        assert messages.arrays[name].tolist() == records[name].tolist(), name
    plain, rows = plain_rows(records)
    assert held(tmp_path / "S", "ESH4") == rows
    (counts,) = ask(
        "select unknown_orders, duplicate_orders, oversized_cancels, bad_messages, unfounded_books from market.quality "
        "where schema = 'mbp-10'",
        tmp_path / "S",
    )["rows"]
    due = plain.counts
    unknown = due["unknown_cancels"] + due["unknown_modifies"]
    assert counts == [unknown, due["duplicate_adds"], due["oversized_cancels"], due["bad_messages"], 0]
    assert unknown and due["duplicate_adds"] and due["oversized_cancels"]
    assert any(f"{unknown:,} of" in line and "not in the book" in line for line in report["warnings"])


def test_instruments_that_are_interleaved_have_books_of_their_own_over_midnight(tmp_path):
    two = [stream(1500, seed, ident, T0 + 3000 * 10**9, 10**9) for seed, ident in ((1, 7), (2, 8))]
    records = np.empty(3000, MBO)
    records[0::2], records[1::2] = two
    store = tmp_path / "S"
    ingest(write(tmp_path / "x.dbn", records, {7: "ESH4", 8: "NQH4"}), store, schema="mbp-10")
    for i, symbol in enumerate(("ESH4", "NQH4")):
        _, rows = plain_rows(two[i])
        assert held(store, symbol) == [(2 * row[0] + i, *row[1:]) for row in rows]
        found = ask(f"select date, unknown_orders, rows from market.quality where instrument = '{symbol}' order by date", store)["rows"]
        assert len(found) == 2 and sum(row[2] for row in found) == len(rows)
        later = plain_rows(two[i][two[i]["ts_recv"] < T0 + 3600 * 10**9])[0]
        assert found[0][1] == later.counts["unknown_cancels"] + later.counts["unknown_modifies"]
    assert {part.schema for part in list_parts(store)} == {"mbp-10"}


@pytest.mark.parametrize("schema", ["mbo", "mbp-10"])
def test_one_of_the_two_can_go_in_alone_and_the_other_later(tmp_path, schema):
    path, store = write(tmp_path / "x.dbn", stream(500, 1)), tmp_path / "S"
    assert "books" not in ingest(path, store, schema=schema)
    assert {part.schema for part in list_parts(store)} == {schema}
    assert ingest(path, store, schema=schema)["already"]
    both = ingest(path, store)
    assert {part.schema for part in list_parts(store)} == {"mbo", "mbp-10"}
    assert (both["already"], both["books"]["already"]) == (schema == "mbo", schema == "mbp-10")
    again = ingest(path, store)
    assert again["already"] and again["books"]["already"] and again["sha256"] != again["books"]["sha256"]


def test_where_the_books_cannot_go_in_the_messages_do_not_either_and_the_remedy_is_named(tmp_path):
    records, store = stream(500, 1), tmp_path / "S"
    first = write(tmp_path / "a.dbn", records)
    ingest(first, store, schema="mbp-10")
    records["channel_id"] = 1
    before = sorted(store.rglob("*"))
    with pytest.raises(BadInput, match=r"in the store already, from a.dbn .books 1.*--schema mbo puts the messages in alone"):
        ingest(write(tmp_path / "b.dbn", records), store)
    assert sorted(store.rglob("*")) == before
    records["publisher_id"][200:] = 2
    with pytest.raises(BadInput, match="record 200 of instrument_id 7 is of publisher 2, those before it of 1"):
        ingest(write(tmp_path / "c.dbn", records), tmp_path / "T")
    assert not (tmp_path / "T").exists()


def test_a_file_that_begins_in_the_middle_of_a_book_says_so_and_is_never_traded_on(tmp_path):
    report = ingest(write(tmp_path / "x.dbn", stream(400, 1, snapshot=False)), tmp_path / "S")
    rows = report["books"]["rows"]
    assert any(f"{rows:,} of {rows:,} rows show a book whose beginning is not in the file" in line for line in report["warnings"])
    assert ask("select count(*) from market.mbp_10 where flags & 4 = 0", tmp_path / "S")["rows"] == [[0]]


def test_messages_of_which_no_book_comes_are_refused_with_the_way_to_keep_them(tmp_path):
    records = stream(2, 1, snapshot=False)
    records["action"], records["flags"] = b"C", F_LAST
    path = write(tmp_path / "x.dbn", records)
    with pytest.raises(BadInput, match=r"no message in it makes a book: nothing to ingest .--schema mbo puts the messages in alone"):
        ingest(path, tmp_path / "S")
    assert not (tmp_path / "S").exists()
    assert ingest(path, tmp_path / "S", schema="mbo")["rows"] == 2


def test_orders_of_all_64_bits_can_be_asked_for_in_sql(tmp_path):
    records = stream(30, 1)
    records["order_id"][5] = 2**64 - 1
    records["price"][6] = UNDEFINED_PRICE
    ingest(write(tmp_path / "x.dbn", records), tmp_path / "S", schema="mbo")
    assert ask("select max(order_id), count(price) from market.mbo", tmp_path / "S")["rows"] == [[2**64 - 1, 29]]


def test_a_real_day_of_orders_goes_in_smaller_than_its_file_with_books_to_replay(shared_data, tmp_path):
    report = ingest(shared_data / ES_DAY, tmp_path / "S")
    assert report["rows"] == 68_792 and report["bytes"] < (shared_data / ES_DAY).stat().st_size
    records = np.concatenate([batch.copy() for batch in read_batches(shared_data / ES_DAY)])
    messages = read_columns(tmp_path / "S", "ESH4", "mbo", 0, 2**62)
    assert all((messages.arrays[name] == records[name]).all() for name in MBO.names[1:])
    assert report["books"]["rows"] == 41_761 + 2_021
