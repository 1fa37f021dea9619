"""The book that is built from messages about single orders, held against one in plain Python and against real files."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lob.book_mbo import FAULTS, MboBook, build, finish
from lob.errors import BadInput
from lob.order_book import ASK, BID, queue, side_levels
from lob.records import F_LAST, F_MAYBE_BAD_BOOK, F_SNAPSHOT, F_TOB, MBO
from lob.units import UNDEFINED_PRICE
from store.dbn import read_batches
from tests.oracle_book import PlainBook

FLAGS = (0, F_LAST, F_LAST, F_LAST | 2, F_SNAPSHOT, F_SNAPSHOT | F_LAST)
MESSAGES = st.tuples(
    st.sampled_from("AAAAAACCMMMTFNRX"),
    st.integers(0, 40) | st.sampled_from([2**64 - 1, 2**63]),
    st.sampled_from("BBAABANB"),
    st.integers(0, 30) | st.just(UNDEFINED_PRICE),
    st.integers(0, 9),
    st.sampled_from((0, 1, 1, 1, 1, 2, 3, 3) * 3 + (4, 5)).map(lambda i: FLAGS[i]),
)


def records(messages) -> np.ndarray:
    """MBO records of (action, id, side, price, size, flags)."""
    made = np.zeros(len(messages), MBO)
    made["length"], made["rtype"], made["publisher_id"], made["instrument_id"] = 14, 0xA0, 1, 7
    for i, (action, ident, side, price, size, flags) in enumerate(messages):
        made[i]["action"], made[i]["order_id"], made[i]["side"] = action.encode(), ident, side.encode()
        made[i]["price"], made[i]["size"], made[i]["flags"] = price, size, flags
    made["ts_event"] = np.arange(len(messages)) + 10**9
    made["ts_recv"] = made["ts_event"] + 5
    made["sequence"], made["ts_in_delta"] = np.arange(len(messages)), -3
    return made


def built(messages: np.ndarray, cuts=()):
    """(book, rows, numbers, faults) of messages that come in batches."""
    book, faults = MboBook(), np.zeros((1, len(FAULTS)), np.int64)
    edges = [0, *sorted(cuts), len(messages)]
    pieces = []
    for a, b in pairwise(edges):
        pieces.append(build(book, messages[a:b], np.arange(a, b), np.zeros(b - a, np.int64), faults))
    pieces.append(finish(book))
    return book, np.concatenate([rows for rows, _ in pieces]), np.concatenate([numbers for _, numbers in pieces]), faults[0]


def seen(row: np.void, number: int) -> tuple:
    """A row as the plain book tells it."""
    sides = []
    for side in ("bid", "ask"):
        levels = [tuple(int(row[f"{side}_{what}_{i:02d}"]) for what in ("px", "sz", "ct")) for i in range(10)]
        held = [level for level in levels if level[0] != UNDEFINED_PRICE]
        assert levels == held + [(UNDEFINED_PRICE, 0, 0)] * (10 - len(held))
        sides.append(held)
    fields = row["action"].decode(), row["side"].decode(), int(row["price"]), int(row["size"]), int(row["flags"]), int(row["depth"])
    return (int(number), *fields, *sides)


@settings(max_examples=200)
@given(st.lists(MESSAGES, max_size=120), st.data())
def test_rows_faults_and_queues_are_those_of_a_plain_book_however_the_stream_is_cut(messages, data):
    cuts = data.draw(st.lists(st.integers(0, len(messages)), max_size=4))
    made = records(messages)
    book, rows, numbers, faults = built(made, cuts)
    plain = PlainBook()
    due = [row for i, message in enumerate(messages) for row in plain.play(i, *message)] + plain.end_snapshot()
    assert [seen(row, number) for row, number in zip(rows, numbers, strict=True)] == due
    assert dict(zip(FAULTS, faults.tolist(), strict=True)) == plain.counts
    assert book.arrays.counts[2] == len(plain.orders)
    for side, letter in ((BID, "B"), (ASK, "A")):
        assert side_levels(book.arrays, side) == plain.side(letter)
        for price, _, _ in plain.side(letter):
            assert queue(book.arrays, side, price) == plain.queue(letter, price)
    for name in ("ts_event", "ts_recv", "ts_in_delta", "sequence", "publisher_id", "instrument_id"):
        assert (rows[name] == made[name][numbers]).all()
    assert (rows["rtype"] == 10).all() and (rows["length"] == 92).all()


def test_a_long_stream_grows_and_keeps_every_order():
    random = np.random.default_rng(3)
    messages, standing, plain = [], [], PlainBook()
    for i in range(12_000):
        if standing and random.random() < 0.35:
            ident, side = standing.pop(int(random.integers(len(standing))))
            messages.append(("C", ident, side, 0, 10**6, F_LAST))
            del plain.orders[ident]
        else:
            side = "BA"[int(random.integers(2))]
            price = int(random.integers(1, 3000)) * (1 if side == "A" else -1)
            messages.append(("A", i << 20, side, price, int(random.integers(1, 9)), F_LAST))
            standing.append((i << 20, side))
            plain.orders[i << 20] = (side, price, messages[-1][4])
    book, rows, _, _ = built(records(messages), range(500, 12_000, 1_500))
    assert len(standing) > 3000 and len(rows) < len(messages)
    for side, letter in ((BID, "B"), (ASK, "A")):
        assert side_levels(book.arrays, side) == plain.side(letter)
        assert [queue(book.arrays, side, level[0]) for level in plain.side(letter)[:50]] == [
            plain.queue(letter, level[0]) for level in plain.side(letter)[:50]
        ]


@pytest.mark.parametrize(
    ("size", "price", "first"),
    [(3, 100, True), (5, 100, True), (6, 100, False), (5, 101, False)],
    ids=["fewer lots keep the turn", "equal lots keep the turn", "more lots lose it", "another price loses it"],
)
def test_a_modify_loses_its_turn_only_with_more_lots_or_another_price(size, price, first):
    messages = [
        ("A", 1, "B", 100, 5, F_LAST),
        ("A", 2, "B", 100, 5, F_LAST),
        ("A", 3, "B", 101, 5, F_LAST),
        ("M", 1, "B", price, size, F_LAST),
    ]
    book, *_ = built(records(messages))
    assert (queue(book.arrays, BID, price)[0][0] == 1) is first
    assert (1, size) in queue(book.arrays, BID, price)


def test_trades_and_fills_change_no_book():
    standing = [("R", 0, "N", UNDEFINED_PRICE, 0, F_LAST), ("A", 1, "B", 100, 5, F_LAST), ("A", 2, "A", 101, 5, F_LAST)]
    _, rows, numbers, _ = built(records([*standing, ("T", 0, "A", 100, 5, 0), ("F", 1, "B", 100, 5, 0), ("C", 1, "B", 100, 5, F_LAST)]))
    assert numbers.tolist() == [0, 1, 2, 3, 5]
    assert rows["bid_sz_00"].tolist() == [0, 5, 5, 5, 0] and (rows["bid_px_00"][[0, 4]] == UNDEFINED_PRICE).all()


def test_until_a_snapshot_or_a_clear_has_come_every_row_may_be_bad():
    adds = [("A", i, "B", 100 - i, 5, F_LAST) for i in range(3)]
    _, rows, _, _ = built(records([*adds, ("R", 0, "N", UNDEFINED_PRICE, 0, F_LAST), *adds]))
    assert [bool(flags & F_MAYBE_BAD_BOOK) for flags in rows["flags"]] == [True] * 3 + [False] * 4


def test_a_second_snapshot_without_a_clear_begins_a_new_book_and_gives_one_row():
    snapshot = [("A", i, "B", 100 - i, 5, F_SNAPSHOT) for i in range(3)]
    _, rows, numbers, faults = built(records([*snapshot, ("A", 9, "A", 200, 1, F_LAST), *snapshot]))
    assert numbers.tolist() == [2, 3, 6] and not faults.any()
    assert rows["ask_px_00"].tolist() == [UNDEFINED_PRICE, 200, UNDEFINED_PRICE]
    assert [seen(rows[i], 0)[7] for i in (0, 2)] == [[(100, 5, 1), (99, 5, 1), (98, 5, 1)]] * 2
    assert rows["flags"].tolist() == [F_SNAPSHOT | F_LAST, F_LAST, F_SNAPSHOT | F_LAST]


def test_a_feed_without_orders_is_refused_in_one_line():
    with pytest.raises(BadInput, match="record 1 carries the flag F_TOB"):
        built(records([("A", 1, "B", 100, 5, F_LAST), ("A", 0, "B", 100, 5, F_LAST | F_TOB)]))


# ---------------------------------------------------------------- real files


def whole(path) -> np.ndarray:
    return np.concatenate([batch.copy() for batch in read_batches(path)])


def test_a_day_of_es_gives_every_row_of_the_file_derived_from_it_and_three_kinds_more(shared_data):
    messages = whole(shared_data / "mbo/esh4-glbx-mdp3-20231225.mbo.dbn.zst")
    theirs = whole(shared_data / "mbp10/esh4_20231225_derived.mbp-10.dbn.zst")
    _, rows, numbers, faults = built(messages, range(10_000, len(messages), 10_000))
    assert not faults.any()
    more: dict[str, list[int]] = {"snapshot": [], "moved out of view": [], "closes an event": []}
    at = 0
    for i, row in enumerate(rows):
        if at < len(theirs) and row.tobytes() == theirs[at].tobytes():
            at += 1
            continue
        message = messages[numbers[i]]
        if message["flags"] & F_SNAPSHOT:
            more["snapshot"].append(i)
        elif row["depth"] == 10:
            # The file derived ends this event without F_LAST: no row of it can be trusted.
            assert not rows[i - 1]["flags"] & F_LAST and message["flags"] & F_LAST
            more["closes an event"].append(i)
        else:
            # The order left a level in view for a price beyond it: that level changed, and the file derived shows it only a row later.
            side = "bid" if message["side"] == b"B" else "ask"
            prices = [rows[i - 1][f"{side}_px_{level:02d}"] for level in range(10)]
            assert message["action"] == b"M" and message["price"] not in prices
            changed = [name for name in rows.dtype.names if name.startswith(side) and rows[i - 1][name] != row[name]]
            assert changed
            more["moved out of view"].append(i)
    assert at == len(theirs) == 41_761, "every row of the file derived, byte for byte"
    assert {name: len(found) for name, found in more.items()} == {"snapshot": 1, "moved out of view": 2019, "closes an event": 1}


def test_a_snapshot_file_is_one_row_with_every_order_in_its_book(shared_data):
    messages = whole(shared_data / "mbo/esh4-glbx-mdp3-20231224.mbo.dbn.zst")
    book, rows, numbers, faults = built(messages)
    assert (len(rows), numbers.tolist(), faults.any()) == (1, [8724], False)
    assert book.arrays.counts[2] == len(np.unique(messages["order_id"])) == 8725
    for side, letter in ((BID, b"B"), (ASK, b"A")):
        mine = messages[messages["side"] == letter]
        prices, where = np.unique(mine["price"], return_inverse=True)
        lots = np.bincount(where, mine["size"]).astype(int)
        levels = list(zip(prices.tolist(), lots.tolist(), np.bincount(where).tolist(), strict=True))
        assert side_levels(book.arrays, side) == (levels[::-1] if side == BID else levels)
