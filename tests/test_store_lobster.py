"""LOBSTER pairs: the book that the messages make is the book file on every row that messages can explain; what is no pair is refused."""

import csv
import datetime as dt
import gzip
from decimal import Decimal
from itertools import pairwise
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lob.book_lobster import FAULTS, SAME, SIZES_DIFFER, LobsterBook, follow
from lob.errors import BadInput
from lob.records import F_LAST, F_MAYBE_BAD_BOOK
from lob.units import UNDEFINED_PRICE
from sim.ingest import ingest
from sim.sql import ask
from store.detect import kind_of
from store.market import read_columns
from tests.oracle_book import PlainBook

AAPL = "lobster/AAPL_2012-06-21_first49s_{}_10.csv"
AMZN = "lobster/AMZN_2012-06-21_34200000_57600000_{}_1.csv"
ES = "lobster/ESH4_2023-12-25_61200000_64800000_{}_10.DERIVED.csv.gz"
NOON_NS = 12 * 3600 * 10**9


def market(seed: int, n: int, levels: int) -> tuple[list[list[int]], list[list[int]], list[dict]]:
    """(messages, books, counts of orders by side and price) as LOBSTER would write them of a plain book of full depth: only what changes
    one of the first `levels`, trades against hidden orders besides."""
    random = np.random.default_rng(seed)
    plain = PlainBook()
    for ident in range(1, 60):
        side = "BA"[ident % 2]
        plain.orders[ident] = (side, 1000 - ident % 17 if side == "B" else 1001 + ident % 17, int(random.integers(1, 50)))
    messages, books, known = [], [], []
    ident = 1000
    while len(messages) < n:
        before = [plain.side(side)[:levels] for side in "AB"]
        kind = int(random.choice([1, 1, 1, 2, 3, 4, 5]))
        ident += 1
        if kind == 1:
            side = "BA"[int(random.integers(2))]
            touch = plain.side("A" if side == "B" else "B")
            price = (touch[0][0] if touch else 1000) - int(random.integers(1, 20)) * (1 if side == "B" else -1)
            order = (ident, side, price, int(random.integers(1, 50)))
            plain.orders[ident] = order[1:]
        elif kind == 5:
            order = (0, "B", 1000, 5)
        elif not plain.orders:
            continue
        else:
            name = int(random.choice(list(plain.orders)))
            side, price, lots = plain.orders[name]
            size = lots if kind == 3 else int(random.integers(1, lots + 1))
            order = (name, side, price, size)
            if size == lots:
                del plain.orders[name]
            else:
                plain.orders[name] = (side, price, lots - size)
        after = [plain.side(side)[:levels] for side in "AB"]
        if kind != 5 and before == after:
            continue
        messages.append([NOON_NS + len(messages) * 1000, kind, order[0], order[3], order[2], 1 if order[1] == "B" else -1])
        row = []
        for level in range(levels):
            for i, empty in ((0, 9999999999), (1, -9999999999)):
                row += list(after[i][level][:2]) if level < len(after[i]) else [empty, 0]
        books.append(row)
        known.append({(side, price): orders for i, side in enumerate("AB") for price, _, orders in after[i]})
    return messages, books, known


def followed(messages, books, cuts=()):
    """(records, verdict, faults by name) of a pair that comes in batches."""
    m, b = np.array(messages, np.int64), np.array(books, np.int64)
    book, faults = LobsterBook(), np.zeros(len(FAULTS), np.int64)
    edges = [0, *sorted(cuts), len(m)]
    pieces = [follow(book, m[i:j], b[i:j], m[i:j, 0].copy(), np.arange(i, j), faults) for i, j in pairwise(edges) if j > i]
    return (
        np.concatenate([records for records, _ in pieces]),
        np.concatenate([verdict for _, verdict in pieces]),
        dict(zip(FAULTS, faults.tolist(), strict=True)),
    )


def differing(records: np.ndarray, books) -> np.ndarray:
    """Rows whose levels are not the book file's, by the columns themselves."""
    shown = np.array(books, np.int64)
    differs = np.zeros(len(records), bool)
    for level in range(10):
        for side, at in (("ask", 4 * level), ("bid", 4 * level + 2)):
            price, size = records[f"{side}_px_{level:02d}"], records[f"{side}_sz_{level:02d}"]
            if at >= shown.shape[1]:
                differs |= (price != UNDEFINED_PRICE) | (size != 0)
                continue
            due = np.where(shown[:, at + 1] > 0, shown[:, at] * 100_000, UNDEFINED_PRICE)
            differs |= (price != due) | (size != shown[:, at + 1])
    return differs


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 14), st.lists(st.integers(0, 150), max_size=3))
def test_the_messages_make_the_book_file_at_any_depth_however_the_pair_is_cut(seed, levels, cuts):
    messages, books, known = market(seed, 150, levels)
    records, verdict, faults = followed(messages, books, cuts)
    assert not differing(records, books).any() and (verdict == SAME).all()
    assert not any(count for name, count in faults.items() if name != "revealed_levels")
    for i, record in enumerate(records):
        for level in range(min(levels, 10)):
            for side, letter in (("bid", "B"), ("ask", "A")):
                orders = int(record[f"{side}_ct_{level:02d}"])
                price = int(record[f"{side}_px_{level:02d}"])
                assert orders == 0 or orders == known[i][letter, price // 100_000], "a count is given only where every order is known"
    assert (records["flags"] == F_LAST).all() and records["sequence"].tolist() == list(range(150))
    letters = {1: b"A", 2: b"C", 3: b"C", 4: b"T", 5: b"T"}
    assert records["action"].tolist() == [letters[message[1]] for message in messages]
    resting = np.where(np.array(messages)[:, 5] > 0, b"B", b"A")
    traded = records["action"] == b"T"
    assert (records["side"] == np.where(traded, np.where(resting == b"B", b"A", b"B"), resting)).all(), "of a trade the aggressor's side"


def test_orders_that_were_added_in_view_are_counted():
    messages, books, _ = market(5, 400, 5)
    records, _, _ = followed(messages, books)
    assert (records["bid_ct_00"] > 0).any() and (records["ask_ct_00"] > 0).any()


@pytest.mark.parametrize("what", ["size", "price"])
def test_a_row_of_the_book_file_that_no_message_explains_is_found_and_flagged(what):
    messages, books, _ = market(2, 120, 4)
    books = [list(row) for row in books]
    books[70][0 if what == "price" else 1] += 1
    _, verdict, faults = followed(messages, books)
    assert (verdict[:70] == SAME).all() and verdict[70] != SAME
    assert faults[f"{what}_differs"] >= 1


def test_a_halt_is_flagged_until_trading_resumes():
    book = [1001, 5, 1000, 5]
    kinds = [(1, 7, 0), (7, -1, 0), (1, 7, 1), (7, 0, 0), (7, 1, 0), (5, 1000, 0)]
    messages = [[NOON_NS + i, kind, 0, 0 if kind == 7 else 5, price, -1 if kind == 7 else 1] for i, (kind, price, _) in enumerate(kinds)]
    messages[0][4], messages[2][1], messages[2][4] = 1000, 6, 1000
    records, _, _ = followed(messages, [book] * 6)
    assert [bool(flags & F_MAYBE_BAD_BOOK) for flags in records["flags"]] == [False, True, True, True, False, False]
    assert (records["price"][[1, 3, 4]] == UNDEFINED_PRICE).all()
    assert records["side"][2] == b"N", "an auction's print has no aggressor"


# ---------------------------------------------------------------- files


def write_pair(folder, messages, books, mark=",", end="\n", name="XYZ_2024-03-08_34200000_57600000_{}_4.csv"):
    """The pair as text: seconds with their trailing zeros dropped."""
    folder.mkdir(exist_ok=True)
    paths = [folder / name.format(what) for what in ("message", "orderbook")]
    rows = [[f"{m[0] // 10**9}.{m[0] % 10**9:09d}".rstrip("0").removesuffix("."), *m[1:]] for m in messages]
    for path, lines in zip(paths, (rows, books), strict=True):
        path.write_text(end.join(mark.join(map(str, line)) for line in lines) + end, newline="")
    return paths


@pytest.mark.parametrize(("mark", "end"), [(",", "\n"), (";", "\r\n"), (";", "\n"), (",", "\r\n")])
def test_either_delimiter_line_end_and_order_of_the_files_gives_the_same_rows(tmp_path, mark, end):
    messages, books, _ = market(1, 300, 4)
    message, book = write_pair(tmp_path / "P", messages, books, mark, end)
    report = ingest(book, tmp_path / "S", also=message)
    assert (report["schema"], report["rows"], report["instruments"]) == ("mbp-10", 300, ["XYZ"])
    found = ask("select ts_recv, bid_px_00, ask_sz_03, bid_px_04 from market.mbp_10 order by row", tmp_path / "S")["rows"]
    midnight = int(dt.datetime(2024, 3, 8, tzinfo=ZoneInfo("America/New_York")).timestamp()) * 10**9
    assert [row[0] for row in found] == [midnight + message[0] for message in messages]
    assert [row[1:] for row in found] == [[b[2] * 100_000, b[13], None] for b in books]
    assert ingest(message, tmp_path / "S", also=book)["already"]


def test_files_of_unequal_length_are_refused_with_both_counts(tmp_path):
    messages, books, _ = market(1, 300, 4)
    for m, b in ((messages, books[:299]), (messages[:299], books)):
        paths = write_pair(tmp_path / "P", m, b)
        with pytest.raises(BadInput, match=f"has {len(m)} rows and .* has {len(b)}: ") as caught:
            ingest(paths[0], tmp_path / "S", also=paths[1])
        assert "\n" not in str(caught.value) and not (tmp_path / "S").exists()


def test_files_of_equal_length_that_are_no_pair_are_refused_with_the_count_of_rows(tmp_path):
    messages, _, _ = market(1, 300, 4)
    _, books, _ = market(2, 300, 4)
    paths = write_pair(tmp_path / "P", messages, books)
    with pytest.raises(BadInput, match="of 300 rows the book is not what the messages make: these two files are not a pair"):
        ingest(paths[0], tmp_path / "S", also=paths[1])
    assert not (tmp_path / "S").exists()


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda m, b: m[5].__setitem__(1, 9), r"line 6, column 2 \(type\): '9' is outside"),
        (lambda m, b: m[5].__setitem__(3, "x"), r"line 6, column 4 \(size\): 'x' is not a number"),
        (lambda m, b: m[5].__setitem__(0, 90_000 * 10**9), "line 6: a time after the end of the day"),
        (lambda m, b: b[5].__setitem__(2, "?"), r"line 6, column 3 \(bid price 1\): '\?' is not a number"),
        (lambda m, b: b[5].pop(), "line 6 has 15 cells, not 16"),
        (lambda m, b: b[0].pop(), "no LOBSTER order book file: its first line has 15 cells"),
    ],
)
def test_a_damaged_cell_is_one_line_with_its_place(tmp_path, change, line):
    messages, books, _ = market(1, 20, 4)
    change(messages, books)
    paths = write_pair(tmp_path / "P", messages, books)
    with pytest.raises(BadInput, match=line):
        ingest(paths[0], tmp_path / "S", also=paths[1])
    assert not (tmp_path / "S").exists()


def test_what_the_files_do_not_say_is_asked_for(tmp_path):
    paths = write_pair(tmp_path / "P", *market(1, 20, 4)[:2], name="{}.csv")
    with pytest.raises(BadInput, match="state it, like --date 2012-06-21"):
        ingest(paths[0], tmp_path / "S", also=paths[1])
    with pytest.raises(BadInput, match="name it with --instrument"):
        ingest(paths[0], tmp_path / "S", also=paths[1], date="2024-03-08")
    stated = {"date": "2024-03-08", "instrument": "XYZ", "timezone": "UTC"}
    assert ingest(paths[0], tmp_path / "S", also=paths[1], **stated)["start_ns"] == 1_709_899_200 * 10**9
    with pytest.raises(BadInput, match="ingested with --timezone UTC, and not without --timezone"):
        ingest(paths[0], tmp_path / "S", also=paths[1], date="2024-03-08", instrument="XYZ")
    with pytest.raises(BadInput, match="both are LOBSTER message files"):
        ingest(paths[0], tmp_path / "S", also=paths[0])
    with pytest.raises(BadInput, match="goes in with its order book file"):
        ingest(paths[0], tmp_path / "S")


# ---------------------------------------------------------------- real files


def raw(path) -> list[list[str]]:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", newline="") as file:
        text = file.read().replace(";", ",")
    return [row for row in csv.reader(text.splitlines()) if row]


def real(shared_data, name):
    messages = [[int(Decimal(row[0]) * 10**9), *map(int, row[1:])] for row in raw(shared_data / name.format("message"))]
    return messages, [[int(cell) for cell in row] for row in raw(shared_data / name.format("orderbook"))]


@pytest.mark.parametrize(("name", "rows", "unknown", "oversized"), [(AAPL, 999, 0, 0), (ES, 45_333, 8, 28)])
def test_the_messages_of_a_real_pair_make_its_book_file_on_every_row(shared_data, name, rows, unknown, oversized):
    messages, books = real(shared_data, name)
    records, verdict, faults = followed(messages, books)
    assert len(records) == rows and not differing(records, books).any() and not verdict.any()
    # Of ES: executions of orders beyond the ten levels, and of icebergs, which execute more than they show and leave all that they showed.
    assert (faults["unknown_orders"], faults["oversized"], faults["duplicate_orders"]) == (unknown, oversized, 0)


def test_amzns_book_file_differs_only_while_a_level_holds_more_than_that_file_ever_shows(shared_data):
    messages, books = real(shared_data, AMZN)
    records, verdict, faults = followed(messages, books)
    differs = differing(records, books)
    assert ((verdict == SIZES_DIFFER) == differs).all() and (faults["unknown_orders"], faults["oversized"]) == (0, 0)
    most = int(np.array(books)[:, 1::2].max())
    clipped = (records["bid_sz_00"] > most) | (records["ask_sz_00"] > most)
    large = {message[2] for message in messages if message[1] == 1 and message[3] > most}
    assert (most, len(large)) == (5700, 3)
    assert (differs == clipped).all() and differs.sum() == 87, "unexplained: 0"
    assert len(records) == 57_515


def test_real_pairs_go_into_a_store_with_the_book_files_own_levels(shared_data, tmp_path):
    report = ingest(shared_data / AMZN.format("message"), tmp_path / "S", also=shared_data / AMZN.format("orderbook"))
    assert any("87 of 57,515 rows of the book file are not what the messages make" in line for line in report["warnings"])
    _, books = real(shared_data, AMZN)
    held = read_columns(tmp_path / "S", "AMZN", "mbp-10", 0, 2**62, ("ask_px_00", "ask_sz_00", "bid_px_00", "bid_sz_00", "flags"))
    columns = [held.arrays[name] // (100_000 if "_px_" in name else 1) for name in ("ask_px_00", "ask_sz_00", "bid_px_00", "bid_sz_00")]
    assert np.stack(columns, axis=1).tolist() == books
    assert np.count_nonzero(held.arrays["flags"] & F_MAYBE_BAD_BOOK) == 87
    with pytest.raises(BadInput, match=r"has 57,515 rows and .* has 999"):
        ingest(shared_data / AMZN.format("message"), tmp_path / "T", also=shared_data / AAPL.format("orderbook"))


def test_a_message_file_is_told_by_its_first_row():
    assert kind_of(b"34200.1,1,16113575,18,5853300,1\n") == "lobster"
    assert kind_of(b"5859400,200,5853300,18\n") == "csv-ohlcv"
