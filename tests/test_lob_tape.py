"""The tape: which rows count, in exact ticks, and nothing lost or renamed on the way."""

from fractions import Fraction

import numpy as np
import pytest

from lob.errors import BadInput
from lob.instruments import Instrument
from lob.tape import NO_PRICE
from lob.tape_build import BAR_LOTS, BAR_REASONS, bar_tape, book_tape
from tests.tapes import ES, SECOND, TICK_E9, bar_columns, bars, book, book_columns, hours, random_events, undefined_prices

DAY = hours((0, 1000 * SECOND))
GOOD = {"bids": [(100, 3), (99, 4)], "asks": [(101, 2), (103, 5)]}


def test_a_row_is_barred_once_under_the_first_reason_that_holds():
    events = [
        {"at": 1, **GOOD},
        {"at": 2, **GOOD, "flags": 0},
        {"at": 3, **GOOD, "action": "R"},
        {"at": 4, **GOOD, "flags": 0x84},
        {"at": 5},
        {"at": 6, "bids": [(100, 1)]},
        {"at": 7, "bids": [(100, 1)], "asks": [(101.3, 1)]},
        {"at": 8, "bids": [(102, 1)], "asks": [(101, 1)]},
        {"at": 9, "bids": [(101, 1)], "asks": [(101, 1)]},
        {"at": 2000 * SECOND, **GOOD},
    ]
    tape = book(events, DAY)
    assert tape.tradable.tolist() == [True] + [False] * 9
    assert tape.trusted.tolist() == [True, False] + [True] * 8
    reasons = ["mid_event", "cleared", "maybe_bad_book", "no_book", "one_sided", "off_tick", "crossed", "locked", "outside_session"]
    assert tape.barred == dict.fromkeys(reasons, 1)
    assert set(tape.barred) <= set(BAR_REASONS)
    assert sum(tape.barred.values()) == (~tape.tradable).sum()
    assert tape.session.tolist() == [20240101] * 9 + [-1]


def test_a_clear_row_shows_no_lots_even_when_the_feed_left_levels_on_it():
    tape = book([{"at": 1, **GOOD}, {"at": 2, **GOOD, "action": "R", "flags": 0}], DAY)
    assert tape.bid_lots[1].tolist() == [0, 0] and tape.ask_lots[1].tolist() == [0, 0]
    assert tape.trusted[1]


def test_a_trade_row_carries_the_standing_book_and_prints_the_aggressor():
    events = [
        {"at": 1, **GOOD, "action": "T", "side": "B", "size": 7},
        {"at": 2, **GOOD, "action": "T", "side": "A", "size": 2, "flags": 0},
        {"at": 3, **GOOD, "action": "T", "side": "N", "size": 44},
        {"at": 4, **GOOD, "action": "F", "side": "A", "size": 9},
        {"at": 5, **GOOD, "action": "N", "side": "N", "size": 9},
        {"at": 6, **GOOD, "action": "M", "side": "B", "size": 9},
    ]
    tape = book(events, DAY)
    assert tape.trade_side.tolist() == [1, -1, 0, 0, 0, 0]
    assert tape.trade_lots.tolist() == [7, 2, 44, 0, 0, 0]
    assert tape.tradable.tolist() == [True, False, True, True, True, True]


def test_a_print_has_its_price_where_the_columns_hold_one_and_off_the_tick_it_has_none():
    columns = book_columns([{"at": i, **GOOD, "action": action, "side": "B", "size": 3} for i, action in enumerate("TATT")])
    assert book_tape(columns, undefined_prices(columns), np.zeros(4, np.int32), np.arange(4), ("f" * 64,), ES, DAY).trade_ticks is None
    columns["price"] = np.array([101, 101, 101.5, 99]) * 250_000_000
    columns["price"] = columns["price"].astype(np.int64)
    null = {"price": np.array([False, False, False, True])} | undefined_prices({n: c for n, c in columns.items() if n != "price"})
    tape = book_tape(columns, null, np.zeros(4, np.int32), np.arange(4), ("f" * 64,), ES, DAY)
    assert tape.trade_ticks.tolist() == [101, NO_PRICE, NO_PRICE, NO_PRICE]
    assert tape.tradable.all()


def test_a_snapshot_is_tradable_from_its_last_row_on_and_bad_receive_times_are_noted():
    tape = book([{"at": 1, **GOOD, "flags": 40}, {"at": 1, **GOOD, "flags": 168}], DAY)
    assert tape.tradable.tolist() == [False, True]
    assert tape.noted == {"bad_ts_recv": 2, "snapshot": 2}


def test_thin_books_hold_no_sentinel():
    tape = book([{"at": 1, "bids": [(100, 3)], "asks": [(101, 2)]}], DAY, levels=10)
    assert tape.tradable[0]
    assert tape.bid_lots[0].tolist() == [3] + [0] * 9 and tape.bid_ticks[0].tolist() == [100] + [0] * 9
    assert tape.ask_lots[0].tolist() == [2] + [0] * 9 and tape.ask_ticks[0].tolist() == [101] + [0] * 9


def test_a_price_off_the_tick_on_any_level_bars_its_row_and_is_named():
    events = [
        {"at": 1, **GOOD},
        {"at": 2, "bids": [(100, 1), (98.5, 2)], "asks": [(101, 1)]},
        {"at": 3, "bids": [(99.5, 1)], "asks": [(101, 1)]},
    ]
    tape = book(events, DAY)
    assert tape.tradable.tolist() == [True, False, False] and tape.barred == {"off_tick": 2}
    assert len(tape.notes) == 1
    assert (
        "2 rows" in tape.notes[0]
        and "first row 1 of source ffffffffffff" in tape.notes[0]
        and "bid_px_01 = 24625000000e-9" in tape.notes[0]
    )


def test_an_off_tick_price_on_an_undefined_level_bars_nothing():
    columns = book_columns([{"at": 1, **GOOD}])
    columns["ask_px_01"][0] = 25_900_000_001
    columns["ask_sz_01"][0] = 0
    tape = book_tape(columns, {}, np.zeros(1, np.int32), np.zeros(1, np.int64), ("f" * 64,), ES, DAY)
    assert tape.tradable[0] and not tape.notes


@pytest.mark.parametrize("tick", [Fraction(1, 4), Fraction(1, 128), Fraction(1, 20_000), Fraction(1, 10**9), Fraction(7, 1000)])
def test_ticks_are_exact_for_every_price_that_an_int32_can_hold(tick):
    """Plain integers are the oracle: quotient and remainder of Python's divmod, at random prices, at the ends, one unit off."""
    instrument = Instrument("X", tick, Fraction(2) / tick, 0, 1, "always")
    tick_e9 = instrument.tick_price_e9
    rng = np.random.default_rng(7)
    whole = [int(x) for x in rng.integers(-(2**31) + 3, 2**31 - 3, 3000)] + [0, 1, -1, 2**31 - 3, -(2**31) + 3]
    prices = [q * tick_e9 for q in whole]
    prices += [p + int(d) for p, d in zip(prices, rng.choice([-1, 1], len(prices)), strict=True)]
    n = len(prices)
    columns = book_columns([{"at": 1, **GOOD}] * n, levels=1)
    columns["bid_px_00"] = np.array(prices, np.int64)
    columns["ask_px_00"] = np.array([(2**31 - 1) * tick_e9] * n, np.int64)
    tape = book_tape(columns, {}, np.zeros(n, np.int32), np.arange(n), ("f" * 64,), instrument, DAY)
    for i, price in enumerate(prices):
        quotient, rest = divmod(price, tick_e9)
        assert tape.tradable[i] == (rest == 0)
        if rest == 0:
            assert tape.bid_ticks[i, 0] == quotient


def test_negative_prices_are_prices():
    tape = book([{"at": 1, "bids": [(-150, 3)], "asks": [(-149, 2)]}], DAY)
    assert tape.tradable[0] and tape.bid_ticks[0, 0] == -150


@pytest.mark.parametrize("fault", ["price", "size"])
def test_what_an_int32_cannot_hold_is_refused_with_its_row(fault):
    columns = book_columns([{"at": 1, **GOOD}, {"at": 2, **GOOD}])
    if fault == "price":
        columns["ask_px_01"][1] = 2**31 * TICK_E9
    else:
        columns["ask_sz_01"][1] = 2**32 - 1
    with pytest.raises(BadInput, match=r"ask_px_01 of row 8 of source ffffffffffff"):
        book_tape(columns, {}, np.zeros(2, np.int32), np.array([7, 8]), ("f" * 64,), ES, DAY)


def test_times_are_running_maxima_in_file_order_and_null_times_take_the_other_one():
    columns = book_columns([{"at": t, "recv": r, **GOOD} for t, r in [(5, 9), (3, 7), (8, 11), (0, 12), (20, 0)]])
    undefined = {"ts_event": np.array([0, 0, 0, 1, 0], bool), "ts_recv": np.array([0, 0, 0, 0, 1], bool)}
    tape = book_tape(columns, undefined, np.zeros(5, np.int32), np.arange(5), ("f" * 64,), ES, DAY)
    assert tape.ts_event_ns.tolist() == [5, 5, 8, 12, 20]
    assert tape.ts_recv_ns.tolist() == [9, 9, 11, 12, 20]
    assert tape.noted == {"no_ts_event": 1, "no_ts_recv": 1, "ts_event_out_of_order": 1, "ts_recv_out_of_order": 1}


def test_nothing_is_dropped_and_rows_keep_their_names():
    rng = np.random.default_rng(3)
    sessions = hours((10 * SECOND, 200 * SECOND))
    events = random_events(rng, 500, sessions)
    columns = book_columns(events)
    source, row = rng.integers(0, 2, 500).astype(np.int32), rng.permutation(500).astype(np.int64)
    tape = book_tape(columns, undefined_prices(columns), source, row, ("a" * 64, "b" * 64), ES, sessions)
    assert tape.events == 500 and (tape.source == source).all() and (tape.row == row).all()
    assert sum(tape.barred.values()) + tape.tradable.sum() == 500


def test_columns_may_hold_codes_or_letters():
    events = [{"at": 1, **GOOD, "action": "T", "side": "A", "size": 7}, {"at": 2, **GOOD, "action": "R"}]
    letters = book_columns(events)
    codes = letters | {name: letters[name].view(np.uint8) for name in ("action", "side")}
    text = letters | {name: letters[name].astype("U1") for name in ("action", "side")}
    tapes = [book_tape(c, undefined_prices(c), np.zeros(2, np.int32), np.arange(2), ("f" * 64,), ES, DAY) for c in (letters, codes, text)]
    for tape in tapes[1:]:
        assert (tape.trade_side == tapes[0].trade_side).all() and tape.barred == tapes[0].barred


def test_columns_without_a_book_or_without_rows_are_refused():
    columns = book_columns([{"at": 1, **GOOD}])
    empty = {name: column[:0] for name, column in columns.items()}
    with pytest.raises(BadInput, match="no rows"):
        book_tape(empty, {}, np.zeros(0, np.int32), np.zeros(0, np.int64), (), ES, DAY)
    trades = {name: column for name, column in columns.items() if "_px_" not in name and "_sz_" not in name}
    with pytest.raises(BadInput, match="no book"):
        book_tape(trades, {}, np.zeros(1, np.int32), np.zeros(1, np.int64), (), ES, DAY)


def test_a_bar_is_four_events_received_at_its_end():
    start = 60 * SECOND
    tape = bars([(start, 100, 108, 90, 104, 77)], hours((0, 1000 * SECOND)), slippage_ticks=2)
    assert tape.point.tolist() == [0, 1, 2, 3]
    assert tape.bid_ticks[:, 0].tolist() == [98, 88, 106, 102] and tape.ask_ticks[:, 0].tolist() == [102, 92, 110, 106]
    assert tape.bid_lots.tolist() == [[BAR_LOTS]] * 4
    assert tape.ts_event_ns.tolist() == [start] + [start + 60 * SECOND] * 3
    assert tape.ts_recv_ns.tolist() == [start + 60 * SECOND] * 4
    assert tape.trade_lots.tolist() == [0, 0, 0, 77]
    assert tape.row.tolist() == [0] * 4 and tape.tradable.all()


def test_a_bar_is_barred_whole():
    minute = 60 * SECOND
    rows = [
        (0, 100, 108, 90, 104, 1),
        (minute, 100, 108, 90.4, 104, 1),
        (2 * minute, 100, 103, 90, 104, 1),
        (3 * minute, 100, 108, 101, 104, 1),
        (50 * minute, 100, 108, 90, 104, 1),
    ]
    tape = bars(rows, hours((0, 10 * minute)))
    assert tape.tradable.reshape(5, 4).tolist() == [[True] * 4] + [[False] * 4] * 4
    assert tape.barred == {"off_tick": 1, "inconsistent_bar": 2, "outside_session": 1}
    assert "first row 1" in tape.notes[0] and "low = 22600000000e-9" in tape.notes[0]


def test_the_last_bar_of_a_session_belongs_to_it():
    minute = 60 * SECOND
    tape = bars([(9 * minute, 100, 108, 90, 104, 1), (10 * minute, 100, 108, 90, 104, 1)], hours((0, 10 * minute)))
    assert tape.session.tolist() == [20240101] * 4 + [-1] * 4


def test_undefined_bar_prices_bar_the_bar_and_slippage_below_a_tick_is_refused():
    columns = bar_columns([(0, 100, 108, 90, 104, 1)])
    args = (np.zeros(1, np.int32), np.zeros(1, np.int64), ("f" * 64,), ES, "ohlcv-1m", DAY)
    tape = bar_tape(columns, {"high": np.array([True])}, *args, 1)
    assert tape.barred == {"no_book": 1} and not tape.tradable.any()
    with pytest.raises(BadInput, match="slippage"):
        bar_tape(columns, {}, *args, 0)
