"""Gates, Kelly, bins and terms against closed forms and fractions."""

from fractions import Fraction
from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuda_env import physics
from cuda_env.config import EnvConfig
from cuda_env.env import Env
from lob.actions import Direction, Magnitude, Phase
from lob.errors import BadInput
from tests.env_play import FLAT, HOLD, LONG, LONG_QUARTER, SHORT, scripted
from tests.market_maker import ES, book_tape, features, random_tape, second_ticks, slow_schedule

PPM = 10**6
MILLION = 10**6
DEEP = ([(100, MILLION)], [(101, MILLION)])
ppm = st.integers(0, PPM)
lots = st.integers(1, MILLION)


# --- sizing


@given(amount=st.integers(-(2**62), 2**62), whole=lots, data=st.data())
def test_a_share_is_the_floor_of_the_exact_product(amount, whole, data):
    part = data.draw(st.integers(0, whole))
    assert physics.share.py_func(amount, part, whole) == amount * part // whole
    assert physics.share(amount, part, whole) == amount * part // whole


@given(amount=st.integers(-(10**15), 10**15), parts=st.lists(st.integers(1, 50), min_size=1, max_size=8))
def test_shares_taken_one_after_the_other_give_back_the_whole(amount, parts):
    left, whole, given_back = amount, sum(parts), 0
    for part in parts:
        out = physics.share(left, part, whole)
        given_back, left, whole = given_back + out, left - out, whole - part
    assert (given_back, left) == (amount, 0)


@pytest.mark.parametrize(
    ("health", "conviction", "kelly", "share_of_max"),
    [(0, 0, 0, "0.25"), (1, 0, 0, "1"), ("0.5", 0, 0, "0.5625"), (0, 1, 0, "0.5"), (0, 0, 1, "0.5"), (0, "0.8", "0.6", "0.4")],
)
def test_the_kelly_cap_table_of_the_seed(health, conviction, kelly, share_of_max):
    """T12, with C8 and C9: max(kelly, conviction, 0.5 + 0.5 h) * (0.5 + 0.5 h) * max."""
    inputs = [int(Fraction(value) * PPM) for value in (kelly, conviction, health)]
    assert physics.kelly_cap_lots(*inputs, 10_000) == Fraction(share_of_max) * 10_000


def test_the_first_kelly_formula_would_have_frozen_a_cold_start():
    """C6 is the known-bad variant: at health 0 and conviction 0 it allows nothing; C8 allows a quarter."""
    maturity, kelly, conviction, safety = Fraction(0), Fraction(0), Fraction(0), Fraction(1, 2)
    assert (maturity * kelly + (1 - maturity) * conviction) * safety == 0
    assert physics.kelly_cap_lots(0, 0, 0, 4) == 1


@given(kelly=ppm, conviction=ppm, health=ppm, max_lots=lots)
def test_the_kelly_cap_is_the_floor_of_the_exact_product_and_at_least_one_lot(kelly, conviction, health, max_lots):
    safety = PPM // 2 + health // 2
    exact = Fraction(max(kelly, conviction, safety), PPM) * Fraction(safety, PPM) * max_lots
    assert physics.kelly_cap_lots(kelly, conviction, health, max_lots) == max(1, floor(exact))
    assert max_lots // 4 <= physics.kelly_cap_lots(kelly, conviction, health, max_lots) <= max_lots


def test_balanced_trades_have_no_kelly_and_keep_a_quarter():
    """T13: payoff 1 and win rate 1/2 give exactly 0; the cap keeps a quarter of the maximum."""
    assert physics.kelly_ppm(10, 10, 5_000 * MILLION, 5_000 * MILLION) == 0
    assert physics.kelly_cap_lots(0, 0, 0, 100) == 25


@given(wins=st.integers(0, 10**6), losses=st.integers(0, 10**6), data=st.data())
def test_kelly_is_the_textbook_fraction_floored(wins, losses, data):
    """(b*p - q)/b with b the ratio of average win to average loss; f < 0 gives 0; no trade gives 0; no loss gives the win rate 1."""
    sum_win = data.draw(st.integers(wins, 10**12)) if wins else 0
    sum_loss = data.draw(st.integers(losses, 10**12)) if losses else 0
    found = physics.kelly_ppm(wins, losses, sum_win, sum_loss)
    if wins == 0:
        exact = Fraction(0)
    elif losses == 0:
        exact = Fraction(1)
    else:
        p = Fraction(wins, wins + losses)
        b = Fraction(sum_win, wins) / Fraction(sum_loss, losses)
        exact = max(Fraction(0), (b * p - (1 - p)) / b)
    assert 0 <= exact * PPM - found < 2, "two floors"


@given(wins=st.integers(1, 10**6), losses=st.integers(1, 10**6), data=st.data())
def test_kelly_of_the_largest_sums_neither_overflows_nor_drifts(wins, losses, data):
    sum_win, sum_loss = (data.draw(st.integers(10**17, 2**61)) for _ in range(2))
    found = physics.kelly_ppm(wins, losses, sum_win, sum_loss)
    assert found == physics.kelly_ppm.py_func(wins, losses, sum_win, sum_loss)
    exact = max(Fraction(0), Fraction(wins, wins + losses) * Fraction(sum_win - sum_loss, sum_win))
    assert abs(exact * PPM - found) < 2


def test_the_margin_cap_of_the_seed_is_one_contract():
    """T14: $35K of equity at $17.9K a contract carry one, not none."""
    assert physics.margin_cap_lots(35_000 * MILLION, 17_900 * MILLION) == 1
    assert physics.margin_cap_lots(-1, 1) == 0
    assert physics.margin_cap_lots(17_900 * MILLION - 1, 17_900 * MILLION) == 0
    assert physics.margin_cap_lots(2**61, 1) == 2**31 - 1


@given(magnitude=st.sampled_from(list(Magnitude)), scale=ppm, max_lots=lots)
def test_lots_scale_with_magnitude_and_variance_and_are_at_least_one(magnitude, scale, max_lots):
    asked = {Magnitude.QUARTER: Fraction(1, 4), Magnitude.HALF: Fraction(1, 2), Magnitude.FULL: Fraction(1)}[magnitude]
    exact = floor(asked * Fraction(scale, PPM) * max_lots)
    assert physics.scaled_lots(int(magnitude), scale, max_lots) == max(1, exact)


def test_long_full_scaled_to_two_thirds_stays_long():
    """C15 and T11: action 77 with a variance scale of 0.66 ends long with 66 of 100 lots."""
    rows = scripted(book_tape([DEEP] * 4), rich(max_lots=100), [77], variance_scale=660_000)["steps"]
    assert (rows["target_lots"][0], rows["actual_direction"][0], rows["actual_magnitude"][0]) == (66, Direction.LONG, Magnitude.HALF)
    assert (rows["picked_direction"][0], rows["picked_magnitude"][0], rows["picked_urgency"][0]) == (2, 2, 2)


def test_a_large_value_variance_shrinks_full_to_a_quarter():
    """T35: sqrt(var q) = 5.67 gives a scale of 0.15, and a full pick lands in the quarter bin."""
    scale = int(PPM / (1 + 5.67))
    rows = scripted(book_tape([DEEP] * 4), rich(max_lots=1000), [LONG], variance_scale=scale)["steps"]
    assert rows["position_lots"][0] == 149
    assert (rows["picked_magnitude"][0], rows["actual_magnitude"][0]) == (Magnitude.FULL, Magnitude.QUARTER)


@pytest.mark.parametrize(("position", "code"), [(1, 0), (374, 0), (375, 1), (376, 1), (749, 1), (750, 2), (1000, 2), (-374, 0), (-376, 1)])
def test_magnitude_bins_change_at_three_and_six_eighths(position, code):
    """T34 and C17."""
    assert physics.magnitude_bin(position, 1000) == code


def test_a_close_is_attributed_to_the_position_that_was_closed():
    """T36: a full long that closes counts as full, not as the quarter that the flat position after it decodes to."""
    trades = scripted(book_tape([DEEP] * 5), rich(max_lots=10), [LONG, FLAT])["trades"]
    assert trades["magnitude_bin"].tolist() == [Magnitude.FULL]


def rich(**values):
    return EnvConfig(**({"capital_usd_micros": 10**13, "trail_ticks": 0} | values))


def test_hold_keeps_the_position_through_the_sizing_gates_and_still_logs_them():
    """C3: whatever margin, Kelly and variance say, hold is the position itself."""
    tape = book_tape([DEEP] * 6)
    terms = EnvConfig(capital_usd_micros=10**11, max_lots=4, trail_ticks=0, margin_usd_micros=2 * 10**10)
    rows = scripted(tape, terms, [LONG, HOLD, LONG_QUARTER], health=0, conviction=0, variance_scale=PPM)["steps"]
    assert rows["target_lots"].tolist()[:2] == [1, 1], "the cold Kelly cap allows a quarter"
    rows = scripted(tape, terms, [LONG, HOLD, HOLD])["steps"]
    assert rows["position_lots"].tolist()[:3] == [4, 4, 4]
    assert rows["scaled_lots"].tolist()[:3] == [4, -1, -1]
    assert rows["margin_cap_lots"].tolist()[:3] == [5, 4, 4]
    assert rows["actual_direction"].tolist()[:3] == [Direction.LONG, Direction.HOLD, Direction.HOLD]


def test_a_margin_cap_of_zero_takes_no_position():
    terms = EnvConfig(capital_usd_micros=10**10, max_lots=4, trail_ticks=0, margin_usd_micros=10**10 + 1)
    rows = scripted(book_tape([DEEP] * 4), terms, [LONG, SHORT])
    assert rows["steps"]["margin_cap_lots"].tolist()[0] == 0
    assert rows["steps"]["position_lots"].tolist() == [0] * len(rows["steps"]["step"])
    assert len(rows["orders"]["lots"]) == 0


def test_the_plan_lock_holds_a_new_position_for_its_steps_and_keeps_the_pick_in_the_log():
    """C25: locked for the decisions after the opening one; the pick stays what it was."""
    rows = scripted(book_tape([DEEP] * 9), rich(max_lots=4, plan_lock_steps=3), [LONG, FLAT, SHORT, SHORT, FLAT, HOLD])["steps"]
    assert rows["locked_direction"].tolist()[:5] == [2, 1, 1, 0, 1]
    assert rows["picked_direction"].tolist()[:5] == [2, 3, 0, 0, 3]
    assert rows["position_lots"].tolist()[:5] == [4, 4, 4, -4, -4]


def test_the_stop_acts_within_a_plan_lock():
    books = [([(m, 99)], [(m + 1, 99)]) for m in (100, 110, 100, 90, 90, 90)]
    rows = scripted(book_tape(books), rich(max_lots=1, plan_lock_steps=50, trail_ticks=4), [LONG])["steps"]
    assert rows["position_lots"].tolist()[-1] == 0
    assert 1 in rows["trail_triggered"].tolist()


# --- configuration


def test_open_terms_come_from_the_instrument_and_the_capital():
    terms = EnvConfig().resolved(ES)
    assert terms.fee_usd_micros == ES.fee_usd_micros
    assert terms.margin_usd_micros == ES.margin_usd_micros
    assert terms.floor_usd_micros == terms.capital_usd_micros // 2 == 50_000 * MILLION
    assert EnvConfig(fee_usd_micros=0, margin_usd_micros=1, floor_usd_micros=-5).resolved(ES).floor_usd_micros == -5


@pytest.mark.parametrize(
    "wrong",
    [{"capital_usd_micros": 0}, {"max_lots": 0}, {"max_lots": MILLION + 1}, {"trail_ticks": -1}, {"floor_usd_micros": 100_000 * MILLION}]
    + [{"fee_usd_micros": -1}, {"margin_usd_micros": 0}, {"reward_scale_usd_micros": 0}, {"capital": 1}, {"max_lots": 1.5}],
)
def test_terms_that_make_no_account_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        EnvConfig(**wrong)


def test_a_size_that_could_outgrow_64_bits_on_this_tape_is_refused_at_the_start():
    tape = random_tape(1)
    tape.bid_ticks[tape.tradable.argmax(), 0] = -(2**30)
    schedule = slow_schedule(tape, second_ticks(tape), 0, 4)
    with pytest.raises(BadInput, match="use fewer lots"):
        Env(tape, schedule, features(schedule), EnvConfig(max_lots=MILLION), 1, Phase.EVAL)
