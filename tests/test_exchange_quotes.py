"""Orders that work in the book: the laws of docs/exchange.md, against brute force in plain Python (`tests.exchange_oracle`)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuda_env import arrays as a
from cuda_env.config import EnvConfig
from cuda_env.quotes import make_quotes, play_quotes
from lob.errors import BadInput
from tests.exchange_builds import CASES, Terms, played, script_of, trace, trace_elsewhere
from tests.exchange_markets import Market, random_market, random_script
from tests.exchange_oracle import Row, play
from tests.market_maker import ES

REASON = {0: "crossed", 1: "queue", 2: "trade_through"}
STATE = {0: "filled", 1: "partly_filled", 2: "unfilled", 3: "cancelled", 4: "expired"}
FAR = 2**62
MODELS = ("risk_averse", "proportional", "power")
LATENCIES = ((1_000_000, 1_000_000, 0), (30_000_000, 10_000_000, 0), (5_000_000, 90_000_000, 20_000_000), (0, 0, 0))
SEEDS = st.integers(0, 10**6)


def fills_of(run) -> list[tuple]:
    f = run.fills
    names = ("order_id", "ts_filled_ns", "side", "lots", "price_ticks", "reason", "market_event", "book_level")
    return [(*row[:5], REASON[row[5]], *row[6:]) for row in zip(*(f[name].tolist() for name in names), strict=True)]


def orders_of(run) -> list[tuple]:
    q = run.orders
    names = (
        "order_id",
        "ts_submitted_ns",
        "ts_ended_ns",
        "side",
        "lots",
        "filled_lots",
        "state",
        "limit_ticks",
        "asked_ticks",
        "queue_ahead_lots",
    )
    rows = zip(*(q[name].tolist() for name in names), strict=True)
    return sorted((*row[:6], STATE[row[6]], *(None if limit == FAR else limit for limit in row[7:9]), row[9]) for row in rows)


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.sampled_from(MODELS), st.integers(1, 3), st.sampled_from(LATENCIES))
def test_every_fill_and_every_order_is_what_brute_force_gives(seed, model, power, latencies):
    market = random_market(seed)
    script = random_script(seed, market)
    expected = play(market.rows, market.sessions, market.depth, model, power, script, *latencies)
    entry, cancel, ack = latencies
    run = played(seed, Terms(model, power, entry, cancel, ack))
    assert fills_of(run) == expected.fills
    ended = [o for o in expected.orders if o.phase == "done"]
    assert orders_of(run) == [
        (o.number, o.sent, o.ended, o.side, o.lots, o.lots - o.left, o.state, o.limit, o.asked, o.joined) for o in ended
    ]
    assert run.position_lots[0] == sum(side * lots for _, _, side, lots, *_ in expected.fills)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.sampled_from(MODELS))
def test_no_more_fills_than_was_printed_or_displayed_and_never_without_an_event(seed, model):
    market = random_market(seed)
    run = played(seed, Terms(model, 2))
    printed, displayed = defaultdict(int), defaultdict(int)
    last = {}
    for order, ts, side, lots, ticks, reason, event, level in fills_of(run):
        row = market.rows[event]
        assert lots > 0
        assert row.session >= 0
        assert ts >= row.ts
        if level < 0:
            assert row.aggressor == -side
            assert (ticks - row.print_ticks) * side >= 0
            assert (reason == "queue") == (ticks == row.print_ticks)
            printed[event] += lots
            assert printed[event] <= row.print_lots
        else:
            assert row.tradable
            price, shown = (row.asks if side > 0 else row.bids)[level]
            assert (ticks - price) * side >= 0
            assert reason != "crossed" or ticks == price
            displayed[event, side, price] += lots
            assert displayed[event, side, price] <= shown
        assert last.get(order, -1) <= ts
        last[order] = ts
    times = run.fills["ts_filled_ns"]
    assert (np.diff(times) >= 0).all()
    assert (run.fills["ts_submitted_ns"] <= times).all()


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.sampled_from(MODELS))
def test_the_mirrored_market_gives_the_mirrored_fills_and_the_same_money(seed, model):
    market = random_market(seed)
    flip = lambda book: [(-ticks, lots) for ticks, lots in book]  # noqa: E731
    rows = [
        replace(
            row,
            bids=flip(row.asks),
            asks=flip(row.bids),
            aggressor=-row.aggressor,
            print_ticks=None if row.print_ticks is None else -row.print_ticks,
        )
        for row in market.rows
    ]
    script = random_script(seed, market)
    tape = Market(rows, market.sessions, market.depth).tape()
    config = Terms(model, 3).config()
    sides = [[-limit for limit, _ in side] for side in (script.ask, script.bid)] + [
        [n for _, n in side] for side in (script.ask, script.bid)
    ]
    mirrored = play_quotes(tape, config, make_quotes(tape, np.array(script.ts), *sides, [-n for n in script.take]))
    run = played(seed, Terms(model, 3))
    key = lambda run: sorted((ts, lots, abs(ticks), *rest) for _, ts, _, lots, ticks, *rest in fills_of(run))  # noqa: E731
    assert key(run) == key(mirrored)
    assert mirrored.position_lots[0] == -run.position_lots[0]
    gone = [abs(int(r.cash_usd_micros[0]) - 10**11) for r in (run, mirrored) if r.position_lots[0] == 0]
    assert not gone or gone[0] == gone[1]


@pytest.mark.parametrize("fee", [-1_500_000, 0, 2_250_000])
def test_a_maker_fee_below_zero_raises_cash_by_just_that(fee):
    free, paid = played(11, Terms(maker_fee_usd_micros=0)), played(11, Terms(maker_fee_usd_micros=fee))
    passive = np.isin(free.fills["reason"], (1, 2))
    lots = int(free.fills["lots"][passive].sum())
    assert lots > 0
    assert int(paid.cash_usd_micros[0]) - int(free.cash_usd_micros[0]) == -lots * fee
    assert (paid.fills["fee_usd_micros"][passive] == fee * free.fills["lots"][passive]).all()
    assert (paid.fills["fee_usd_micros"][~passive] == ES.fee_usd_micros * free.fills["lots"][~passive]).all()


def test_plain_python_equals_njit_bit_for_bit(tmp_path):
    for (seed, terms), plain in zip(CASES, trace_elsewhere("plain", tmp_path), strict=True):
        compiled = trace("njit", seed, terms)
        assert compiled["counts"][a.FILLS_WRITTEN, 0] > 5
        for name, array in compiled.items():
            assert array.tobytes() == plain[name].astype(array.dtype).tobytes(), name


@pytest.mark.cudasim
def test_the_simulated_cuda_kernel_equals_njit_bit_for_bit(tmp_path):
    for (seed, terms), simulated in zip(CASES, trace_elsewhere("cudasim", tmp_path), strict=True):
        _, quotes = script_of(seed)
        short = quotes._replace(ts_ns=quotes.ts_ns[:25], observed_event=quotes.observed_event[:25])
        tape, _ = script_of(seed)
        alone = play_quotes(tape, terms.config(), short, slots=256)
        fills = simulated["fills"][0, : simulated["counts"][a.FILLS_WRITTEN, 0]]
        assert len(fills) > 1
        if isinstance(terms.entry_ns, int):  # drawn latencies go by lane, and the simulated lanes are numbered from 5 on
            for column, name in enumerate(a.WORKING_FILL_SLOTS):
                drift = 5 * 2**32 if name in ("order_id", "fill_id") else 0
                assert (fills[:, column] - drift == alone.fills[name]).all(), name


# Examples by hand: one bid of 5 lots at 100 that joins 10 lots, the ask at 102.


def hand(rows: list[Row], quotes: dict, model: str = "risk_averse", **terms):
    tape = Market(rows, [(0, 10**12)], 3).tape()
    base = {"bid_ticks": 0, "ask_ticks": 0, "bid_lots": 0, "ask_lots": 0} | quotes
    config = EnvConfig(queue_model=model, max_lots=20, **terms)
    return play_quotes(tape, config, make_quotes(tape, base.pop("ts"), **base))


def row(ms: int, bid: int = 10, ask: int = 10, bids=None, asks=None, trade=None) -> Row:
    ts = 1_000_000 * ms
    out = Row(ts, ts, bids or [(100, bid), (99, 7)], asks or [(102, ask), (103, 7)], trade is None, trade is None, 20240101)
    if trade:
        out.aggressor, out.print_ticks, out.print_lots = trade
    return out


BID = {"ts": [1_000_000, 900_000_000], "bid_ticks": 100, "bid_lots": [5, 0]}


def passive(run) -> list[tuple]:
    return [(lots, ticks, reason, event) for _, _, _, lots, ticks, reason, event, _ in fills_of(run)]


def test_prints_at_the_limit_consume_the_queue_then_fill_in_part():
    rows = [row(0), row(5, trade=(-1, 100, 6)), row(6, 4), row(7, trade=(-1, 100, 7)), row(8, 9), row(9, trade=(-1, 100, 1)), row(1000)]
    assert passive(hand(rows, BID)) == [(3, 100, "queue", 3), (1, 100, "queue", 5)]


def test_a_print_that_takes_just_the_queue_fills_nothing():
    assert passive(hand([row(0), row(5, trade=(-1, 100, 10)), row(1000)], BID)) == []


def test_a_print_through_the_limit_fills_no_more_than_it_printed():
    rows = [row(0), row(5, trade=(-1, 99, 2)), row(6, trade=(-1, 99, 9)), row(1000)]
    assert passive(hand(rows, BID)) == [(2, 100, "trade_through", 1), (3, 100, "trade_through", 2)]


def test_asks_that_come_to_the_limit_fill_what_they_display_at_the_limit_and_only_once():
    come = [(99, 2), (100, 1), (103, 5)]
    rows = [
        row(0),
        row(5, bids=[(98, 4)], asks=come),
        row(6, bids=[(98, 3)], asks=come),
        row(7, bids=[(98, 3)], asks=[(100, 2), (103, 5)]),
        row(1000),
    ]
    assert passive(hand(rows, BID)) == [(2, 100, "trade_through", 1), (1, 100, "trade_through", 1), (1, 100, "trade_through", 3)]


@pytest.mark.parametrize(("model", "ahead"), [("risk_averse", 10), ("proportional", 7), ("power", 9)])
def test_a_decrease_that_no_print_explains_is_behind_us_to_the_cautious_and_shared_by_the_others(model, ahead):
    """10 ahead, 20 join behind, then 9 of the 30 go: a third of them in front of us at n = 1, a ninth at n = 3."""
    for printed, filled in ((ahead, []), (ahead + 1, [(1, 100, "queue", 3)])):
        rows = [row(0), row(5, 30), row(6, 21), row(7, trade=(-1, 100, printed)), row(1000)]
        assert passive(hand(rows, BID, model)) == filled


def test_a_post_only_order_that_would_cross_is_re_priced_behind_the_touch_and_says_so():
    run = hand([row(0), row(900), row(990)], BID | {"ts": [1_000_000, 900_000_000, 990_000_000], "bid_ticks": 105, "bid_lots": [5, 0, 0]})
    assert run.orders["asked_ticks"].tolist() == [105]
    assert run.orders["limit_ticks"].tolist() == [101]
    assert run.orders["queue_ahead_lots"].tolist() == [0]
    assert passive(run) == []


def test_fewer_lots_keep_the_place_and_more_lose_it():
    quotes = {"ts": [1_000_000, 20_000_000, 900_000_000], "bid_ticks": 100}
    rows = [row(0), row(5, trade=(-1, 100, 9)), row(6, 12), row(30, trade=(-1, 100, 4)), row(1000)]
    assert passive(hand(rows, quotes | {"bid_lots": [5, 2, 0]})) == [(2, 100, "queue", 3)]
    assert passive(hand(rows, quotes | {"bid_lots": [5, 6, 0]})) == []


def test_ten_market_orders_of_one_lot_take_what_one_of_ten_takes():
    rows = [row(0, asks=[(102, 4), (103, 3), (104, 9)]), row(400, asks=[(102, 4), (103, 3), (104, 9)]), row(2000)]
    times = [1_000_000 + 50_000_000 * i for i in range(10)] + [1_500_000_000]
    ten = hand(rows, {"ts": times, "take_lots": [1] * 10 + [0]}, entry_latency_ns=1000)
    one = hand(rows, {"ts": [times[0], times[-1]], "take_lots": [10, 0]}, entry_latency_ns=1000)
    by_price = lambda run: [int(run.fills["lots"][run.fills["price_ticks"] == ticks].sum()) for ticks in (102, 103, 104)]  # noqa: E731
    assert by_price(ten) == by_price(one) == [4, 3, 3]
    for name in ("position_lots", "cost_ticks", "cash_usd_micros", "fees_usd_micros"):
        assert getattr(ten, name)[0] == getattr(one, name)[0], name


def test_ten_passive_orders_of_one_lot_fill_like_one_of_ten_where_nobody_stands_between():
    """Twice five lots at one price, sent one after the other, share a print in order of their age."""
    rows = [row(0), row(5, trade=(-1, 99, 3)), row(6, trade=(-1, 99, 4)), row(1000)]
    assert sum(lots for lots, *_ in passive(hand(rows, BID))) == 5
    assert [int(n) for n in hand(rows, BID | {"bid_lots": [7, 0]}).fills["lots"]] == [3, 4]


def test_what_was_consumed_is_back_once_its_price_has_left_the_book():
    rows = [row(0, ask=5), row(300, ask=5), row(500, asks=[(103, 9)]), row(700, ask=5), row(2000)]
    times = [1_000_000, 350_000_000, 800_000_000, 1_900_000_000]
    run = hand(rows, {"ts": times, "take_lots": [5, 5, 5, 0]})
    assert passive(run) == [(5, 102, "crossed", 0), (5, 103, "crossed", 1), (5, 102, "crossed", 3)]


def test_a_halt_fills_nothing_and_the_order_waits_for_the_next_tradable_book():
    halt = row(2)
    halt.tradable, halt.bids, halt.asks = False, [], []
    printed = row(100, trade=(-1, 99, 50))
    run = hand(
        [row(0), halt, printed, row(200), row(1000)], {"ts": [1_000_000, 900_000_000], "take_lots": [3, 0]}, entry_latency_ns=5_000_000
    )
    assert [(ts, event) for _, ts, *_, event, _ in fills_of(run)] == [(200_000_000, 3)]


def test_a_session_ends_what_rested_and_an_order_sent_into_the_gap_meets_the_next_session():
    rows = [row(0), row(5), row(7000), row(7100, trade=(-1, 99, 50)), row(8000)]
    for late in rows[2:]:
        late.session = 20240102
    tape = Market(rows, [(0, 10**9), (6 * 10**9, 10**10)], 3).tape()
    quotes = make_quotes(tape, [1_000_000, 999_999_999, 7_900_000_000], 100, 0, [5, 5, 0], 0, [0, 2, 0])
    run = play_quotes(tape, EnvConfig(queue_model="risk_averse", entry_latency_ns=1_000_000), quotes)
    assert [(lots, reason, event) for _, _, _, lots, _, reason, event, _ in fills_of(run)] == [(2, "crossed", 2)]
    assert next(state for *_, state, _, _, _ in orders_of(run)) == "expired"


def test_what_is_off_or_missing_is_refused_in_one_line():
    tape = random_market(1).tape()
    quotes = make_quotes(tape, [int(tape.ts_recv_ns[5])], 0, 0)
    with pytest.raises(BadInput, match="set queue_model"):
        play_quotes(tape, EnvConfig(), quotes)
    with pytest.raises(BadInput, match="no price"):
        play_quotes(replace(tape, trade_ticks=None), EnvConfig(queue_model="power"), quotes)
    with pytest.raises(BadInput, match="ascend"):
        make_quotes(tape, [int(tape.ts_recv_ns[9]), 5], 0, 0)
    with pytest.raises(BadInput, match="each of the 1 decisions"):
        make_quotes(tape, [int(tape.ts_recv_ns[5])], [1, 2, 3], 0)
    with pytest.raises(BadInput, match="for 3 lanes, not for 2"):
        play_quotes(tape, EnvConfig(queue_model="power"), make_quotes(tape, [int(tape.ts_recv_ns[5])], [[1, 2, 3]], 0), lanes=2)
    with pytest.raises(ValueError, match="set queue_model too"):
        EnvConfig(maker_fee_usd_micros=-5)
    with pytest.raises(ValueError, match="ascend"):
        EnvConfig(queue_model="power", entry_latency_ns=(5, 1))


def test_settings_of_working_orders_are_no_part_of_an_account_without_them():
    assert not [name for name in EnvConfig().model_dump() if "queue" in name or "latency" in name or "maker" in name]
    working = EnvConfig(queue_model="power", ack_latency_ns=7)
    assert EnvConfig(**working.model_dump(mode="json")) == working
