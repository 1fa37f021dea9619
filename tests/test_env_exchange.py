"""The exchange on books written by hand: what a market order takes, where the floor fills, what goes through zero."""

import numpy as np
import pytest

from cuda_env.config import EnvConfig
from lob.actions import EndReason, FillReason, OrderState
from tests.env_play import FLAT, HOLD, LONG, LONG_HALF, LONG_QUARTER, SHORT, scripted
from tests.market_maker import ES, bar_tape, book_tape

TICK = 12_500_000
FEE = ES.fee_usd_micros
DEEP = ([(100, 1000)], [(101, 1000)])
RICH = {"capital_usd_micros": 10**13, "trail_ticks": 0}


def config(**values):
    return EnvConfig(**({"max_lots": 10} | RICH | values))


def fills(played, *columns):
    return list(zip(*(played["fills"][name].tolist() for name in columns), strict=True))


def test_a_market_order_walks_the_levels_best_first_and_takes_no_more_than_each_shows():
    book = ([(100, 9), (99, 9)], [(101, 3), (102, 0), (103, 4), (104, 50)])
    played = scripted(book_tape([book, DEEP, DEEP]), config(), [LONG])
    assert fills(played, "price_ticks", "lots", "book_level")[:3] == [(101, 3, 0), (103, 4, 2), (104, 3, 3)]
    assert played["orders"]["state"][0] == OrderState.FILLED


def test_what_the_book_does_not_show_expires():
    thin = ([(100, 1)], [(101, 3), (105, 2)])
    played = scripted(book_tape([thin, DEEP, DEEP]), config(), [LONG])
    order = {name: played["orders"][name][0] for name in played["orders"]}
    assert (order["lots"], order["filled_lots"], order["state"]) == (10, 5, OrderState.PARTLY_FILLED)
    assert played["steps"]["position_lots"][0] == 5


def test_lots_taken_from_a_standing_row_stay_gone_until_another_row_comes():
    thin = ([(100, 1000)], [(101, 3), (102, 4)])
    tape = book_tape([thin, DEEP, DEEP], seconds=[1, 60, 61])
    played = scripted(tape, config(), [LONG_QUARTER, LONG_HALF, LONG, LONG], ticks_s=[2, 3, 4, 5])
    assert fills(played, "step", "price_ticks", "lots", "book_level")[:4] == [
        (0, 101, 2, 0),
        (1, 101, 1, 0),
        (1, 102, 2, 1),
        (2, 102, 2, 1),
    ]
    assert played["orders"]["state"].tolist()[2:4] == [OrderState.PARTLY_FILLED, OrderState.UNFILLED]
    assert played["steps"]["position_lots"].tolist()[3] == 7


def test_buying_takes_nothing_from_the_other_side():
    thin = ([(100, 10)], [(101, 10)])
    tape = book_tape([thin, DEEP, DEEP], seconds=[1, 60, 61])
    played = scripted(tape, config(), [LONG, FLAT], ticks_s=[2, 3])
    assert fills(played, "side", "lots", "price_ticks") == [(1, 10, 101), (-1, 10, 100)]


def test_two_levels_at_one_price_cost_what_one_level_does():
    split = ([(100, 1000)], [(101, 1)] * 10)
    whole = ([(100, 1000)], [(101, 10)])
    one, ten = (scripted(book_tape([book, DEEP, DEEP]), config(), [LONG]) for book in (whole, split))
    assert len(ten["fills"]["lots"]) == len(one["fills"]["lots"]) + 9
    for name in ("cash_usd_micros", "equity_usd_micros", "position_lots", "cost_ticks", "fee_usd_micros"):
        assert ten["steps"][name].tolist() == one["steps"][name].tolist(), name


def test_an_order_through_zero_closes_and_opens_in_one_fill_with_one_trade():
    played = scripted(book_tape([DEEP, ([(110, 1000)], [(111, 1000)]), DEEP, DEEP]), config(max_lots=4), [LONG, SHORT])
    assert fills(played, "side", "lots", "price_ticks", "fee_usd_micros")[:2] == [(1, 4, 101, 4 * FEE), (-1, 8, 110, 8 * FEE)]
    trade = {name: played["trades"][name][0] for name in played["trades"]}
    assert (trade["side"], trade["lots"], trade["cost_ticks"], trade["exit_ticks"]) == (1, 4, 404, 110)
    assert trade["realized_usd_micros"] == 4 * 9 * TICK - 8 * FEE
    assert trade["fee_usd_micros"] == 8 * FEE
    assert played["steps"]["position_lots"].tolist()[:2] == [4, -4]
    assert played["steps"]["cost_ticks"].tolist()[1] == -4 * 110
    assert played["steps"]["fee_usd_micros"].tolist()[1] == 8 * FEE
    assert played["trades"]["ts_entry_ns"][1] == played["fills"]["ts_filled_ns"][1], "the short began with that fill"


def test_an_order_meets_the_row_that_stands_at_its_arrival_not_the_one_seen():
    moved = ([(200, 1000)], [(201, 1000)])
    played = scripted(book_tape([DEEP, moved, DEEP, DEEP]), config(), [LONG], ticks_s=[1.5], latency_ns=600_000_000)
    assert played["fills"]["price_ticks"][0] == 201
    assert played["fills"]["ts_filled_ns"][0] == 2_100_000_000


def floor_config(loss_ticks, **values):
    """Floor at the capital less one full position's fee and a loss of that many half ticks a lot."""
    base = {"capital_usd_micros": 10**13, "max_lots": 10, "trail_ticks": 0} | values
    return EnvConfig(floor_usd_micros=10**13 - 10 * FEE - 10 * loss_ticks * TICK // 2, **base)


def test_a_floor_that_is_gapped_through_fills_at_the_next_tradable_price_never_at_the_stop():
    gap = ([(50, 1000)], [(51, 1000)])
    played = scripted(book_tape([DEEP, gap, DEEP, DEEP]), floor_config(20), [LONG], ticks_s=[1.5, 2.5])
    assert fills(played, "reason", "price_ticks", "lots")[1:] == [(FillReason.FLOOR, 50, 10)]
    assert played["steps"]["end_reason"].tolist() == [EndReason.CAPITAL_FLOOR, EndReason.NOT_PLAYED, EndReason.NOT_PLAYED]
    assert played["fills"]["ts_submitted_ns"][1] == played["fills"]["ts_filled_ns"][1] == 2_000_000_000


@pytest.mark.parametrize(("beyond", "ends"), [(0, EndReason.CAPITAL_FLOOR), (1, EndReason.RUNNING)])
def test_equity_equal_to_the_floor_terminates_and_one_micro_dollar_more_does_not(beyond, ends):
    lower = ([(98, 1000)], [(99, 1000)])
    bought = 10**13 - 10 * FEE
    equity = bought + 10 * (98 + 99 - 2 * 101) * TICK // 2
    terms = EnvConfig(capital_usd_micros=10**13, max_lots=10, trail_ticks=0, floor_usd_micros=equity - beyond)
    played = scripted(book_tape([DEEP, lower, DEEP, DEEP]), terms, [LONG])
    assert played["steps"]["end_reason"][0] == ends
    assert played["steps"]["floor_triggered"][0] == (ends == EndReason.CAPITAL_FLOOR)


def test_the_floor_is_met_on_a_row_between_two_decisions_on_the_same_step():
    dip = ([(80, 1000)], [(81, 1000)])
    tape = book_tape([DEEP, dip, DEEP, DEEP], seconds=[1, 1.7, 1.9, 3])
    played = scripted(tape, floor_config(20), [LONG], ticks_s=[1.5, 2.5])
    assert played["fills"]["price_ticks"].tolist() == [101, 80]
    assert played["fills"]["market_row"].tolist() == [0, 1]
    assert played["steps"]["end_reason"][0] == EndReason.CAPITAL_FLOOR


def test_no_floor_is_checked_while_an_order_is_in_flight():
    dip = ([(80, 1000)], [(81, 1000)])
    tape = book_tape([DEEP, DEEP, dip, DEEP, DEEP, DEEP], seconds=[1, 1.9, 2.7, 2.9, 4, 5])
    sold = scripted(tape, floor_config(20), [LONG, FLAT], ticks_s=[1.5, 2.5, 4.5], latency_ns=450_000_000)
    held = scripted(tape, floor_config(20), [LONG, HOLD], ticks_s=[1.5, 2.5, 4.5], latency_ns=450_000_000)
    assert sold["fills"]["reason"].tolist() == [FillReason.CROSSED, FillReason.CROSSED]
    assert held["fills"]["reason"].tolist() == [FillReason.CROSSED, FillReason.FLOOR]


def test_what_the_stop_cannot_sell_goes_on_to_the_next_tradable_rows_as_one_order():
    thin = ([(60, 4), (59, 2)], [(61, 5)])
    tape = book_tape([DEEP, thin, thin, DEEP, DEEP], seconds=[1, 1.7, 1.8, 1.9, 3])
    tape.tradable[2] = False
    played = scripted(tape, floor_config(20), [LONG], ticks_s=[1.5, 2.5])
    assert fills(played, "market_row", "price_ticks", "lots")[1:] == [(1, 60, 4), (1, 59, 2), (3, 100, 4)]
    assert len(set(played["fills"]["order_id"].tolist()[1:])) == 1
    assert played["orders"]["filled_lots"].tolist() == [10, 10]
    assert set(played["fills"]["ts_submitted_ns"].tolist()[1:]) == {1_700_000_000}
    assert played["steps"]["end_reason"][0] == EndReason.CAPITAL_FLOOR


def test_a_breached_lane_with_lots_left_only_closes_and_dies_when_it_is_flat():
    thin = ([(60, 4)], [(61, 5)])
    tape = book_tape([DEEP, thin, ([(300, 3)], [(301, 900)]), DEEP, DEEP], seconds=[1, 1.7, 2.7, 3.7, 5])
    played = scripted(tape, floor_config(20), [LONG, LONG, LONG], ticks_s=[1.5, 2.8, 3.8])
    # The third row shows three lots, which the stop takes; the order of the next decision meets that same row and finds nothing.
    assert fills(played, "step", "reason", "lots", "market_row") == [(0, 0, 10, 0), (0, 4, 4, 1), (0, 4, 3, 2), (2, 4, 3, 3)]
    assert played["steps"]["end_reason"].tolist() == [0, 0, EndReason.CAPITAL_FLOOR, EndReason.NOT_PLAYED]
    assert played["orders"]["reason"].tolist() == [0, 4, 4, 4]
    assert played["orders"]["state"].tolist()[2] == OrderState.UNFILLED
    steps = played["steps"]
    dead = steps["end_reason"].tolist().index(EndReason.CAPITAL_FLOOR)
    assert steps["target_lots"].tolist()[1 : dead + 1] == [0] * dead
    assert steps["position_lots"][dead] == 0
    assert set(played["fills"]["reason"].tolist()[1:]) == {FillReason.FLOOR}


def test_a_breach_at_the_row_of_the_fill_itself_closes_at_the_next_decision():
    wide = ([(50, 1000)], [(101, 1000)])
    tape = book_tape([DEEP, wide, wide, DEEP, DEEP], seconds=[1, 2, 3, 4, 5])
    played = scripted(tape, floor_config(20), [HOLD, LONG, LONG], ticks_s=[1.5, 2.5, 2.7, 3.5])
    steps = played["steps"]
    assert steps["floor_triggered"].tolist()[1] == 1
    assert steps["position_lots"].tolist()[1:3] == [10, 0]
    assert steps["end_reason"].tolist()[1:3] == [EndReason.RUNNING, EndReason.CAPITAL_FLOOR]
    assert fills(played, "step", "reason", "price_ticks")[1] == (2, FillReason.FLOOR, 50)


def test_a_dead_lane_stays_dead_and_its_rows_hold_minus_one_where_they_say_so():
    gap = ([(50, 1000)], [(51, 1000)])
    played = scripted(book_tape([DEEP, gap, DEEP, DEEP, DEEP]), floor_config(20), [LONG] * 4)
    steps = played["steps"]
    assert steps["end_reason"].tolist() == [EndReason.CAPITAL_FLOOR] + [EndReason.NOT_PLAYED] * 4
    sentinels = [name for name in steps if name.startswith(("picked_", "actual_"))]
    sentinels += ["conviction_ppm", "health_ppm", "variance_scale_ppm", "locked_direction", "scaled_lots", "margin_cap_lots"]
    sentinels += ["kelly_ppm", "kelly_cap_lots", "trail_triggered", "floor_triggered"]
    for name in sentinels:
        assert steps[name].tolist()[1:] == [-1] * 4, name
        assert steps[name][0] != -1, name
    for name in (
        "position_lots",
        "target_lots",
        "realized_usd_micros",
        "fee_usd_micros",
        "reward_raw",
        "unrealized_usd_micros",
        "cost_ticks",
    ):
        assert steps[name].tolist()[1:] == [0] * 4, name
    for name in ("cash_usd_micros", "equity_usd_micros"):
        assert set(steps[name].tolist()[1:]) == {steps["cash_usd_micros"][0]}, name
    assert max(played["orders"]["step"]) == 0


def test_a_row_that_is_not_tradable_neither_fills_nor_triggers():
    dip = ([(50, 1000)], [(51, 1000)])
    tape = book_tape([DEEP, dip, DEEP, DEEP], seconds=[1, 1.7, 1.9, 3])
    tape.tradable[1] = False
    played = scripted(tape, floor_config(20), [LONG], ticks_s=[1.5, 2.5])
    assert EndReason.CAPITAL_FLOOR not in played["steps"]["end_reason"].tolist()


def test_the_trail_stop_ratchets_triggers_at_equality_and_says_so():
    marks = [100, 104, 108, 106, 104, 104, 104]
    books = [([(m, 1000)], [(m + 1, 1000)]) for m in marks]
    played = scripted(book_tape(books), config(max_lots=1, trail_ticks=4), [LONG])
    steps = played["steps"]
    level = [2 * m + 1 - 8 for m in marks]
    assert steps["trail_mid2_ticks"].tolist()[:4] == [level[1], level[2], level[2], level[2]]
    assert steps["trail_triggered"].tolist()[:5] == [0, 0, 0, 0, 1], "mark 104 is the level 108 - 4"
    assert played["fills"]["reason"].tolist() == [FillReason.CROSSED, FillReason.STOP]
    assert np.ma.is_masked(steps["trail_mid2_ticks"][4])


def test_the_trail_of_a_short_mirrors_that_of_a_long():
    marks = [100, 96, 92, 94, 96, 96, 96]
    books = [([(m, 1000)], [(m + 1, 1000)]) for m in marks]
    played = scripted(book_tape(books), config(max_lots=1, trail_ticks=4), [SHORT])
    assert played["steps"]["trail_triggered"].tolist()[:5] == [0, 0, 0, 0, 1]


def test_the_floor_wins_over_the_stop_and_the_stop_over_the_pick():
    marks = [100, 90, 90, 90, 90]
    books = [([(m, 1000)], [(m + 1, 1000)]) for m in marks]
    stopped = scripted(book_tape(books), config(max_lots=1, trail_ticks=4), [LONG, SHORT], ticks_s=[1.5, 2.5, 3.5])
    assert stopped["steps"]["trail_mid2_ticks"][0] == 181 - 8, "armed anew at the mark after the opening"
    wide = [([(100, 1000)], [(101, 1000)]), ([(50, 1000)], [(111, 1000)]), ([(40, 1000)], [(111, 1000)]), DEEP, DEEP]
    both = scripted(
        book_tape(wide), EnvConfig(capital_usd_micros=10**13, max_lots=1, trail_ticks=1, floor_usd_micros=10**13 - 5 * TICK), [HOLD, LONG]
    )
    reasons = both["fills"]["reason"].tolist()
    assert reasons[1] == FillReason.FLOOR


def test_bars_fill_at_the_next_open_and_meet_the_adverse_extreme():
    opens, highs, lows, closes = [100, 102, 101, 100], [103, 104, 103, 101], [99, 80, 100, 99], [101, 100, 101, 100]
    ticks = [61.0, 121.0, 181.0]
    for action, level, price in ((LONG, 1, 79), (SHORT, 2, None)):
        terms = EnvConfig(capital_usd_micros=10**13, max_lots=2, trail_ticks=0, floor_usd_micros=10**13 - 2 * FEE - 2 * 15 * TICK)
        played = scripted(bar_tape(opens, highs, lows, closes), terms, [action], ticks_s=ticks)
        assert played["fills"]["book_level"][0] == 0
        assert played["fills"]["price_ticks"][0] == (103 if action == LONG else 101), "open of the bar after, and a tick of slippage"
        if price is not None:
            assert fills(played, "book_level", "price_ticks", "reason")[1] == (level, price, FillReason.FLOOR)
        else:
            assert played["fills"]["reason"].tolist()[-1] == FillReason.WINDOW_END
            assert played["fills"]["book_level"].tolist()[-1] == 3


def test_the_drain_of_a_breached_lane_ends_it_by_the_floor():
    wide = ([(50, 1000)], [(101, 1000)])
    tape = book_tape([DEEP, wide, ([(60, 1000)], [(61, 1000)])], seconds=[1, 2, 3])
    tape.ts_recv_ns[2] += 10**8  # so that the drain row is not among those that the last step has received
    played = scripted(tape, floor_config(20), [HOLD, LONG], ticks_s=[1.5, 2.5])
    assert played["steps"]["floor_triggered"].tolist() == [0, 1, -1]
    assert played["steps"]["end_reason"].tolist()[1:] == [EndReason.RUNNING, EndReason.CAPITAL_FLOOR]
    assert played["fills"]["reason"].tolist() == [FillReason.CROSSED, FillReason.WINDOW_END]
