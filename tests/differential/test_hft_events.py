"""Our rows as hftbacktest's events: nothing within sight is lost, and no book is crossed on the way."""

import numpy as np
import pytest

from lob.tape import NO_PRICE
from tests.differential.hft_events import BUY, CLEAR, DEPTH, SNAPSHOT, TRADE, to_events
from tests.differential.markets import es_hour, synthetic_day
from tests.exchange_markets import random_market


@pytest.fixture(scope="module", params=["es", "synthetic", "rough"])
def market(request, tmp_path_factory):
    if request.param == "es":
        return es_hour(request.getfixturevalue("shared_data"), tmp_path_factory.mktemp("es"))
    if request.param == "synthetic":
        return synthetic_day(5000, 2)
    return random_market(5, 4000, 4).tape()


def test_the_events_rebuild_every_book_that_could_be_traded_on_and_never_a_crossed_one(market):
    tape = market
    made = to_events(tape)
    columns = (made.events[name].tolist() for name in ("ev", "px", "qty", "ival"))
    events = list(zip(*columns, strict=True))
    sizes: tuple[dict, dict] = ({}, {})
    at = checked = 0
    for row in range(tape.events):
        while at < len(events) and events[at][3] == row:
            ev, price, lots, _ = events[at]
            side, ticks = 0 if ev & BUY else 1, round(price * 4)
            if ev & 0xFF == CLEAR:
                sizes = ({}, {})
            elif ev & 0xFF in (DEPTH, SNAPSHOT):
                assert sizes[side].pop(ticks, 0) != lots, "an event that changes nothing"
                if lots:
                    sizes[side][ticks] = lots
                assert not (sizes[0] and sizes[1]) or max(sizes[0]) < min(sizes[1])
            at += 1
        if not tape.tradable[row]:
            continue
        for side, (ticks, lots) in enumerate(((tape.bid_ticks, tape.bid_lots), (tape.ask_ticks, tape.ask_lots))):
            shown = int((lots[row] > 0).sum())
            best = sorted(sizes[side].items(), reverse=side == 0)[:shown]
            assert best == list(zip(ticks[row, :shown].tolist(), lots[row, :shown].tolist(), strict=True))
            checked += 1
    assert at == len(events)
    assert checked == 2 * int(tape.tradable.sum()) > 0


def test_every_print_with_an_aggressor_is_one_event_at_its_own_times(market):
    tape = market
    first = int(np.nonzero(tape.tradable)[0][0])
    rows = np.nonzero((tape.trade_side != 0) & (tape.session >= 0) & (tape.trade_ticks != NO_PRICE) & (np.arange(tape.events) > first))[0]
    events = to_events(tape).events
    prints = events[(events["ev"] & 0xFF) == TRADE]
    assert len(rows) > 0
    assert np.array_equal(prints["ival"], rows)
    assert np.array_equal((prints["ev"] & BUY) > 0, tape.trade_side[rows] > 0)
    assert np.array_equal(prints["qty"], tape.trade_lots[rows])
    assert np.array_equal(prints["px"] * 4, tape.trade_ticks[rows])
    for name, times in (("exch_ts", tape.ts_event_ns), ("local_ts", tape.ts_recv_ns)):
        assert np.array_equal(events[name], times[events["ival"]])
        assert (np.diff(events[name]) >= 0).all()
