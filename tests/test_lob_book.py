"""Laws of what a row of a book shows, against definitions in fractions, in both builds."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lob.book import CROSSED, EMPTY, LOCKED, ONE_SIDED, TWO_SIDED, imbalance, microprice_offset, shape_of

lots = st.integers(0, 2**31 - 1)
ticks = st.integers(-(2**31), 2**31 - 1)


@pytest.mark.parametrize("build", [shape_of, shape_of.py_func], ids=["compiled", "plain"])
@pytest.mark.parametrize(
    ("bid", "ask", "bid_lots", "ask_lots", "shape"),
    [
        (100, 101, 5, 5, TWO_SIDED), (-2, -1, 1, 1, TWO_SIDED), (100, 99, 1, 1, CROSSED), (100, 100, 1, 1, LOCKED),
        (100, 101, 0, 5, ONE_SIDED), (100, 101, 5, 0, ONE_SIDED), (101, 100, 0, 5, ONE_SIDED), (0, 0, 0, 0, EMPTY), (7, 3, 0, 0, EMPTY),
    ],
)  # fmt: skip
def test_a_side_that_shows_nothing_has_no_price_and_a_book_of_two_sides_is_open_locked_or_crossed(
    build, bid, ask, bid_lots, ask_lots, shape
) -> None:
    assert build(bid, ask, bid_lots, ask_lots) == shape


@given(lots, lots)
def test_the_imbalance_is_the_share_of_bids_less_that_of_asks(bid_lots: int, ask_lots: int) -> None:
    value = imbalance(bid_lots, ask_lots)
    assert value == imbalance.py_func(bid_lots, ask_lots) and -1 <= value <= 1 and value == -imbalance(ask_lots, bid_lots)
    exact = Fraction(bid_lots - ask_lots, bid_lots + ask_lots) if bid_lots + ask_lots else Fraction(0)
    assert value == float(exact)


@given(ticks, st.integers(1, 1000), lots, lots)
def test_the_microprice_weights_each_price_by_the_other_sides_size(bid: int, spread: int, bid_lots: int, ask_lots: int) -> None:
    offset = microprice_offset(spread, bid_lots, ask_lots)
    assert offset == microprice_offset.py_func(spread, bid_lots, ask_lots) and abs(offset) <= spread / 2
    if bid_lots + ask_lots:
        ask = bid + spread
        exact = Fraction(ask * bid_lots + bid * ask_lots, bid_lots + ask_lots) - Fraction(bid + ask, 2)
        assert offset == pytest.approx(float(exact), rel=1e-12, abs=1e-9)
