"""Laws of the synthetic market: what a record is, what lies under it, and who can earn on it. Brute force over generated days."""

import datetime as dt
import hashlib
import itertools
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lob.errors import BadInput
from lob.instruments import REGISTRY
from lob.records import MBP_10
from lob.synth import synthesize, synthesize_day
from lob.synth_kernel import half_to_the, print_lots
from tests.synth_days import ES, TICK_E9, best, days, displayed_imbalance, first_day, imbalance_rule, is_last, lots, trade_each_second, z

DATE = dt.date(2024, 3, 5)


def _sha(records: np.ndarray) -> str:
    return hashlib.sha256(records.tobytes()).hexdigest()


# ---- bytes ----------------------------------------------------------------------------------------------------------------------------


def test_a_seed_gives_these_bytes_on_every_machine() -> None:
    assert _sha(synthesize_day(ES, DATE, 5_000, 7, 1.0)) == "7c209ef8f8ab92809ffe94819f6594fb7084ab3877f60d0853c23503f2ba8f07"


def test_plain_python_in_another_process_gives_the_same_bytes() -> None:
    code = (
        "import datetime as dt, hashlib; from lob.instruments import REGISTRY; from lob.synth import synthesize_day; "
        "print(hashlib.sha256(synthesize_day(REGISTRY['ES'], dt.date(2024, 3, 5), 1500, 9, 0.5).tobytes()).hexdigest())"
    )
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONHASHSEED": "123", "OMP_NUM_THREADS": "3"}
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == _sha(synthesize_day(ES, DATE, 1_500, 9, 0.5))


def test_another_seed_or_date_is_another_day() -> None:
    shas = {_sha(synthesize_day(ES, date, 500, seed)) for date in (DATE, dt.date(2024, 3, 6)) for seed in (0, 1, 2**32, 2**63 - 1)}
    assert len(shas) == 8


@pytest.mark.parametrize(
    ("instrument", "date", "events", "seed", "edge", "says"),
    [
        ("ES", "2024-03-09", 1000, 1, 0.0, "Saturday"),
        ("ES", "2024-03-05", 99, 1, 0.0, "99 events"),
        ("ES", "2024-03-05", 2**31, 1, 0.0, "events"),
        ("ES", "2024-03-05", 1000, -1, 0.0, "seed -1"),
        ("ES", "2024-03-05", 1000, 2**63, 0.0, "seed"),
        ("ES", "2024-03-05", 1000, 1, float("nan"), "edge nan"),
        ("ES", "2024-03-05", 1000, 1, 11.0, "edge 11"),
    ],
)
def test_what_cannot_be_synthesized_is_said_in_one_line(instrument, date, events, seed, edge, says) -> None:
    with pytest.raises(BadInput, match=says):
        synthesize(REGISTRY[instrument], dt.date.fromisoformat(date), events, seed, edge)


# ---- records --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("root", ["ES", "6E", "ZT", "CL", "EQUITY"])
@pytest.mark.parametrize("events", [100, 101, 5_003])
def test_every_record_is_well_formed(root: str, events: int) -> None:
    instrument = REGISTRY[root]
    r = synthesize_day(instrument, DATE, events, 3)
    assert r.dtype == MBP_10 and len(r) == events
    assert set(r["length"].tolist()) == {92} and set(r["rtype"].tolist()) == {10}
    assert set(r["action"].tolist()) <= {b"A", b"C", b"M", b"T"} and set(r["side"].tolist()) <= {b"A", b"B"}
    assert set(r["flags"].tolist()) <= {0, 0x80} and r["flags"][-1] == 0x80
    assert r["sequence"].tolist() == list(range(1, events + 1))
    event, receive = r["ts_event"].astype(np.int64), r["ts_recv"].astype(np.int64)
    assert (receive > event).all() and (np.diff(event) >= 0).all() and (np.diff(receive) >= 0).all()
    # One time per event, and F_LAST on its last row alone.
    assert (is_last(r)[:-1] == (np.diff(event) > 0)).all()
    # 2024-03-05 of CME Globex is 23:00 UTC the evening before to 22:00 UTC; of US equities 09:00 UTC to 01:00 UTC of the next day.
    opens, closes = (1_709_593_200, 1_709_676_000) if root != "EQUITY" else (1_709_629_200, 1_709_686_800)
    assert opens * 10**9 <= event[0] and receive[-1] < closes * 10**9
    assert event[0] - opens * 10**9 < 0.1 * (closes - opens) * 10**9 > closes * 10**9 - event[-1]
    tick = instrument.tick_price_e9
    for side, step in (("bid", -tick), ("ask", tick)):
        prices = np.stack([r[f"{side}_px_{i:02d}"] for i in range(10)], axis=1)
        assert (prices % tick == 0).all() and (np.diff(prices, axis=1) == step).all()
        sizes, counts = lots(r, side), np.stack([r[f"{side}_ct_{i:02d}"].astype(np.int64) for i in range(10)], axis=1)
        assert (sizes >= 1).all() and (counts >= 1).all() and (counts <= sizes).all()
    closed = r[is_last(r)]
    assert (closed["ask_px_00"] - closed["bid_px_00"] == tick).all()
    assert (r["ask_px_00"] > r["bid_px_00"]).all()


def test_a_print_takes_no_more_than_its_level_shows_and_names_the_aggressor() -> None:
    r = first_day(60_000, 0.0).records
    prints = r[r["action"] == b"T"]
    assert len(prints) > 10_000
    depth = prints["depth"].astype(np.int64)
    for side, resting in ((b"A", "bid"), (b"B", "ask")):
        chosen = prints["side"] == side
        row, level = np.flatnonzero(chosen), depth[chosen]
        assert len(row) > 4_000
        assert (np.stack([prints[f"{resting}_px_{i:02d}"] for i in range(10)], axis=1)[row, level] == prints["price"][chosen]).all()
        assert (prints["size"][chosen] <= lots(prints, resting)[row, level]).all()
    assert 3.5 < prints["size"].mean() < 4.5  # the mean of a draw is 4.5, cut where a level shows less


def test_a_row_that_moves_no_price_changes_the_book_by_what_it_says() -> None:
    """In plain Python, against the row before: A adds and C takes `size` lots at one level; a T row changes nothing."""
    r = first_day(60_000, 0.0).records
    checked = 0
    bids, asks = lots(r, "bid").tolist(), lots(r, "ask").tolist()
    top = list(zip(best(r, "bid").tolist(), best(r, "ask").tolist(), strict=True))
    for i in range(1, len(r)):
        action, side = r["action"][i], r["side"][i]
        if action == b"T":
            assert (bids[i], asks[i], top[i]) == (bids[i - 1], asks[i - 1], top[i - 1])
        elif top[i] == top[i - 1] and action in b"AC":
            own, other = (bids, asks) if side == b"B" else (asks, bids)
            level, sign = int(r["depth"][i]), 1 if action == b"A" else -1
            expected = list(own[i - 1])
            expected[level] += sign * int(r["size"][i])
            assert own[i] == expected and other[i] == other[i - 1]
            assert r["price"][i] == r[f"{'bid' if side == b'B' else 'ask'}_px_{level:02d}"][i]
            checked += 1
    assert checked > 5_000


def test_the_day_is_busier_in_new_york_hours_and_never_silent() -> None:
    r = synthesize_day(ES, DATE, 200_000, 5)
    second = r["ts_event"].astype(np.int64) // 10**9 - 1_709_593_200
    hourly = np.bincount(second // 3600, minlength=23)
    assert len(hourly) == 23 and hourly.min() > 0.25 * hourly.mean() and hourly[15:22].mean() > 2 * hourly[:8].mean()
    assert np.diff(r["ts_event"].astype(np.int64)).max() < 40 * 10**9


def test_depths_are_plausible() -> None:
    closed = first_day(60_000, 0.0).records
    mean = (lots(closed, "bid") + lots(closed, "ask")).mean(axis=0) / 2
    assert 30 < mean[0] < 80 and (mean[3:] > 80).all() and (mean[3:] < 130).all()


# ---- what lies hidden ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("events", "edge"), [(100, 1.0), (5_003, 0.0), (60_000, 1.0), (300_000, 0.5)])
def test_the_fair_value_lies_between_bid_and_ask_after_every_event(events: int, edge: float) -> None:
    day = synthesize(ES, DATE, events, 11, edge)
    last = is_last(day.records)
    fair, bid, ask = day.fair_ticks[last], best(day.records[last], "bid"), best(day.records[last], "ask")
    assert (bid <= fair).all() and (fair <= ask).all() and (ask - bid == 1).all()


@pytest.mark.parametrize("events", [100, 5_003, 60_000, 300_000])
def test_the_displayed_imbalance_is_the_hidden_one_up_to_whole_lots(events: int) -> None:
    day = synthesize(ES, DATE, events, 12, 1.0)
    closed = day.records[is_last(day.records)]
    total = (lots(closed, "bid") + lots(closed, "ask")).sum(axis=1)
    assert (np.abs(displayed_imbalance(closed) - day.imbalance[is_last(day.records)]) <= 1.0 / total + 1e-12).all()


def test_the_imbalance_has_standard_deviation_one_half_and_a_half_life_of_thirty_seconds() -> None:
    now, later = [], []
    for day in days(20, 50_000, 0.0):
        closed = day.records[is_last(day.records)]
        shown, time = displayed_imbalance(closed), closed["ts_event"].astype(np.int64)
        clock = np.arange(time[0], time[-1], 10**9)
        sampled = shown[np.searchsorted(time, clock, side="right") - 1]
        now.append(sampled[:-30])
        later.append(sampled[30:])
    x, y = np.concatenate(now), np.concatenate(later)
    assert abs(x.std() - 0.5) < 0.01 and abs(x.mean()) < 0.02
    # The step function that a one-second clock sees lags the event by half a gap at most, which shifts both ends alike.
    assert abs((x * y).mean() / (x * x).mean() - 0.5) < 0.02


@pytest.mark.parametrize("events", [1_000, 20_000, 400_000])
def test_the_fair_value_has_a_variance_of_one_tick_squared_a_second(events: int) -> None:
    day = synthesize(ES, DATE, events, 13, 0.0)
    last = is_last(day.records)
    steps, seconds = np.diff(day.fair_ticks[last]), np.diff(day.records["ts_event"][last].astype(np.int64)) / 1e9
    ratio = steps**2 / seconds
    assert abs(ratio.mean() - 1.0) < 4 * ratio.std() / math.sqrt(len(ratio))


@pytest.mark.parametrize("edge", [0.0, 0.5, 1.0, -1.0])
def test_the_drift_is_a_fifth_of_a_tick_a_second_times_edge_times_displayed_imbalance(edge: float) -> None:
    slopes, errors = 0.0, 0.0
    for day in days(10, 50_000, edge):
        closed = day.records[is_last(day.records)]
        seconds = np.diff(closed["ts_event"].astype(np.int64)) / 1e9
        drive, moved = displayed_imbalance(closed)[:-1], np.diff(day.fair_ticks[is_last(day.records)])
        slopes += (drive * moved).sum()  # generalised least squares: each step's variance is its length
        errors += (drive**2 * seconds).sum()
    assert abs(slopes / errors - 0.2 * edge) < 4 / math.sqrt(errors)


# ---- who can earn ----------------------------------------------------------------------------------------------------------------------


def test_without_edge_nothing_visible_predicts_the_fair_value() -> None:
    for steps in (1, 10):
        predictors: dict[str, list[np.ndarray]] = {}
        outcomes = []
        for day in days(20, 50_000, 0.0):
            r, last = day.records, is_last(day.records)
            closed, fair = r[last], day.fair_ticks[last]
            group = np.cumsum(last) - last
            signed = np.where(r["action"] == b"T", np.where(r["side"] == b"B", 1, -1) * r["size"].astype(np.int64), 0)
            flow = np.bincount(group, weights=signed, minlength=len(closed))
            bid = best(closed, "bid")
            for name, column in {
                "imbalance": displayed_imbalance(closed),
                "best_imbalance": (lots(closed, "bid")[:, 0] - lots(closed, "ask")[:, 0]) / 100,
                "prints": np.sign(flow),
                "last_move": np.sign(np.diff(bid, prepend=bid[0])),
            }.items():
                predictors.setdefault(name, []).append(column[:-steps:steps])
            outcomes.append((fair[steps:] - fair[:-steps])[::steps])
        outcome = np.concatenate(outcomes)
        for name, parts in predictors.items():
            assert abs(z(np.concatenate(parts) * outcome)) < 4, (name, steps)


def _maker_gain(day, side: bytes, value: np.ndarray) -> np.ndarray:
    """Ticks that whoever was hit by each print of an aggressor's side gains: V against the best price that stood before it."""
    chosen = (day.records["action"] == b"T") & (day.records["side"] == side)
    r = day.records[chosen]
    return value[chosen] - best(r, "bid") if side == b"A" else best(r, "ask") - value[chosen]


@pytest.mark.parametrize("side", [b"A", b"B"])
@pytest.mark.parametrize("events", [50_000, pytest.param(1_000_000, marks=pytest.mark.deep)])
def test_without_edge_the_fair_value_after_a_print_is_no_better_than_the_price_before_it(events: int, side: bytes) -> None:
    gains, conditions = [], {"imbalance": [], "size": [], "depth_shown": [], "hidden_place": []}
    for day in days(20, events, 0.0):
        r = day.records
        chosen = (r["action"] == b"T") & (r["side"] == side)
        gains.append(_maker_gain(day, side, day.fair_ticks))
        conditions["imbalance"].append(displayed_imbalance(r)[chosen])
        conditions["size"].append(r["size"][chosen].astype(float))
        conditions["depth_shown"].append(lots(r, "bid" if side == b"A" else "ask")[chosen, 0].astype(float))
        # Even who knew the hidden value before the event could not choose the better prints.
        before = day.fair_ticks[np.maximum(np.searchsorted(r["ts_event"], r["ts_event"], side="left") - 1, 0)]
        conditions["hidden_place"].append((before - best(r, "bid"))[chosen])
    gain = np.concatenate(gains)
    assert len(gain) > 100_000 and gain.mean() <= 0
    for parts in conditions.values():
        condition = np.concatenate(parts)
        edges = np.quantile(condition, [0, 0.2, 0.4, 0.6, 0.8, 1])
        for low, high in itertools.pairwise(edges):
            inside = gain[(condition >= low) & (condition <= high)]
            assert len(inside) < 1000 or z(inside) <= 4


def test_the_maker_test_would_notice_prints_that_know_nothing() -> None:
    """The same prints valued by V before their event: as if noise had made them. The law must then fail, by half a tick or so."""
    for day in days(1, 50_000, 0.0):
        event = day.records["ts_event"]
        before = day.fair_ticks[np.maximum(np.searchsorted(event, event, side="left") - 1, 0)]
        for side in (b"A", b"B"):
            assert z(_maker_gain(day, side, before)) > 20


def test_without_edge_quoting_one_lot_first_in_line_on_both_sides_loses_the_fees_at_least() -> None:
    """Filled at the best prices by any print of the event, marked at V after it: no more than nothing before fees."""
    per_fill = []
    for day in days(20, 50_000, 0.0):
        r = day.records
        first = np.flatnonzero(r["action"] == b"T")
        first = first[r["depth"][first] == 0]
        sells = r["side"][first] == b"A"
        gain = np.where(sells, day.fair_ticks[first] - best(r, "bid")[first], best(r, "ask")[first] - day.fair_ticks[first])
        per_fill.append(gain)
    gain = np.concatenate(per_fill)
    assert z(gain) <= 4 and gain.mean() * 12.50 - 2.25 < -2.0


def _rest_in_line(day, place: float) -> list[float]:
    """Ticks gained, fill by fill, by one lot that always rests at the best bid, joined behind `place` of what the level showed.

    Prints at its price serve the line; a book that moves through it fills it. Marked at V after the event.
    """
    r = day.records
    columns = (
        r["action"] == b"T",
        r["side"] == b"A",
        is_last(r),
        r["price"] // TICK_E9,
        r["size"],
        best(r, "bid"),
        best(r, "ask"),
        r["bid_sz_00"],
    )
    gains, price, ahead, filled = [], None, 0.0, False
    for printed, sell, last, at, size, bid, ask, shown, value in zip(*(c.tolist() for c in columns), day.fair_ticks.tolist(), strict=True):
        if printed and sell and at == price:
            ahead -= size
            filled = filled or ahead < 0
        if last:
            if price is not None and (filled or ask <= price):
                gains.append(value - price)
                price = None
            if price != bid:
                price, ahead = bid, place * shown
            filled = False
    return gains


@pytest.mark.parametrize("place", [0.0, 0.05, 0.2, 1.0])
def test_without_edge_no_place_in_the_line_earns(place: float) -> None:
    gain = np.concatenate([_rest_in_line(day, place) for day in days(5, 100_000, 0.0)])
    assert len(gain) > 20_000 and z(gain) <= 4


@pytest.mark.parametrize("rule", ["imbalance", "against_imbalance", "follow_move", "against_move", "coin"])
def test_without_edge_no_taker_earns_more_than_minus_the_fees(rule: str) -> None:
    trips = []
    for number, day in enumerate(days(5, 50_000, 0.0)):
        closed = day.records[is_last(day.records)]
        inner = imbalance_rule(day.records)
        bid = best(closed, "bid").tolist()
        coin = np.random.default_rng(number).random(len(closed)).tolist()

        def wants(seen, position, inner=inner, bid=bid, coin=coin):
            if rule == "imbalance":
                return inner(seen, position)
            if rule == "against_imbalance":
                return -inner(seen, -position)
            if rule == "coin":
                return position if coin[seen] > 0.05 else (1, 0, -1)[int(coin[seen] * 1e6) % 3]
            move = bid[seen] - bid[max(seen - 20, 0)]
            sign = (move > 6) - (move < -6)
            return position if sign == 0 else sign if rule == "follow_move" else -sign

        trips += trade_each_second(day.records, wants)
    gross, net = np.array(trips).T
    assert len(gross) > 500 and z(gross) <= 4 and z(net + 4.50) <= 4
    if rule in ("imbalance", "against_imbalance", "coin"):
        # What is decided apart from V meets it anywhere within the tick: half a tick on each side, $12.50 a round trip.
        assert abs(z(gross + 12.50)) < 4


@pytest.mark.parametrize("events", [50_000, pytest.param(1_000_000, marks=pytest.mark.deep)])
def test_with_edge_one_the_imbalance_rule_earns_over_twenty_days_with_t_above_five(events: int) -> None:
    daily_usd = np.array([sum(net for _, net in trade_each_second(d.records, imbalance_rule(d.records))) for d in days(20, events, 1.0)])
    assert z(daily_usd) > 5 and (daily_usd > 0).all()
    # The stated model earns $12.9k in the 6.5 hours of a New York day; a Globex day has 23 hours.
    assert 0.8 < daily_usd.mean() * 6.5 / 23 / 12_900 < 1.5


def test_with_edge_one_a_round_trip_earns_what_the_mean_reversion_of_the_imbalance_implies() -> None:
    """By optional stopping E[integral of I] = (I at entry - I at exit) / kappa with kappa = ln 2 / 30 s: no market is needed to know it."""
    net_usd, reverted = [], []
    for day in days(3, 300_000, 1.0):
        shown = displayed_imbalance(day.records[is_last(day.records)]).tolist()
        rule = imbalance_rule(day.records)
        changes: list[tuple[int, float]] = []

        def wants(seen, position, rule=rule, shown=shown, changes=changes):
            want = rule(seen, position)
            if want != position:
                changes.append((want - position, shown[seen]))
            return want

        net_usd += [net for _, net in trade_each_second(day.records, wants)]
        entries, exits = changes[::2], changes[1::2]
        reverted += [side * (entered - left) for (side, entered), (_, left) in zip(entries, exits, strict=False)]
    drift_ticks = 0.2 * float(np.mean(reverted)) * 30 / math.log(2)
    expected_usd = (drift_ticks - 1) * 12.50 - 4.50  # half a tick of spread and a fee on each side
    net = np.array(net_usd)
    assert len(net) > 2_000
    assert abs(net.mean() - expected_usd) < 4 * net.std() / math.sqrt(len(net)) + 0.05 * expected_usd


def test_the_rule_that_earns_with_edge_loses_against_it() -> None:
    done = [trade_each_second(day.records, imbalance_rule(day.records)) for day in days(5, 50_000, -1.0)]
    assert z(np.array([sum(net for _, net in trips) for trips in done])) < -5


# ---- parts -----------------------------------------------------------------------------------------------------------------------------


def test_half_to_the_is_the_power_of_two_to_the_last_digits() -> None:
    for y in [0.0, 1e-12, 0.1, 0.5, 1.0, 1.5, 3.25, 17.9, 60.0, 1000.0, 5000.0]:
        assert half_to_the(y) == pytest.approx(2.0 ** -min(y, 1100.0), rel=1e-15, abs=1e-300)


def test_the_size_of_a_print_averages_four_and_a_half_and_respects_its_bound() -> None:
    words = np.random.default_rng(0).integers(0, 2**32, 50_000).tolist()
    sizes = [print_lots(word, 1_000) for word in words]
    assert min(sizes) == 1 and max(sizes) <= 128 and abs(np.mean(sizes) - 4.5) < 0.15
    assert {print_lots(word, 1) for word in words[:100]} == {1}


def test_prices_are_those_of_the_instruments_tick() -> None:
    six_e = synthesize_day(REGISTRY["6E"], DATE, 200, 1)
    assert abs(int(six_e["bid_px_00"][0]) - 1_000_000_000) < 50_000 * 100 and TICK_E9 == 250_000_000
