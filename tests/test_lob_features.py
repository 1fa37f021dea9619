"""Market features: hand-computed values, and every slot against its formula evaluated from its definition in plain Python."""

import math
from itertools import pairwise

import numpy as np
import pytest

from lob.errors import BadInput
from lob.features import FEATURES, STAGE, absent_slots, market_features
from lob.features_kernel import _return_between
from lob.layout import LANE, LANE_SLOTS, OFFSET, SLOTS
from lob.schedule import schedule
from tests.tapes import SECOND, bars, book, hours, random_events
from tests.test_lob_schedule import CLOCKS, brute_ticks


def _sign(x):
    return (x > 0) - (x < 0)


class Oracle:
    """Features of one tick at a time, each from the whole list of the session's ticks and rows: slow, without running state."""

    def __init__(self, tape, ticks):
        self.tape, self.ticks = tape, ticks
        self.marks, self.closed = {}, {}
        self.date = {t: self._date(t) for t in ticks}

    def _date(self, t):
        spans = zip(self.tape.session_dates, self.tape.session_open_ns, self.tape.session_close_ns, strict=True)
        return next(int(d) for d, o, c in spans if o <= t < c)

    def session_ticks(self, t):
        """The session's ticks up to t, from the first that has a tradable book."""
        return [u for u in self.ticks if u <= t and self.date[u] == self.date[t] and self.mark(u) is not None]

    def rows(self, t, after):
        recv, dates = self.tape.ts_recv_ns, self.tape.session
        return [i for i in range(self.tape.events) if recv[i] <= t and recv[i] > after and dates[i] == self.date[t]]

    def mark(self, t):
        if t not in self.marks:
            self.marks[t] = max((i for i in self.rows(t, -1) if self.tape.tradable[i]), default=None)
        return self.marks[t]

    def mid2(self, i):
        return int(self.tape.bid_ticks[i, 0]) + int(self.tape.ask_ticks[i, 0])

    def bars(self, t):
        """[(high, low, close)] in half ticks of every tick so far."""
        ticks = self.session_ticks(t)
        for k, u in enumerate(ticks):
            if u not in self.closed:
                inside = [self.mid2(i) for i in self.rows(u, ticks[k - 1] if k else -1) if self.tape.tradable[i]]
                close = self.mid2(self.mark(u))
                self.closed[u] = (max(inside, default=close), min(inside, default=close), close)
        return [self.closed[u] for u in ticks]

    def flow(self, t):
        """OFI of the eight slots at tick t, by the published formula."""
        ticks, tape = self.session_ticks(t), self.tape
        after = ticks[-2] if len(ticks) > 1 else -1
        levels = tape.bid_lots.shape[1]
        sums, depth, flows, before = [0] * levels, [0] * levels, 0, None
        for i in self.rows(t, -1):
            if not tape.tradable[i]:
                before = None if tape.trusted[i] else before
                continue
            if before is not None and tape.ts_recv_ns[i] > after:
                flows += 1
                for m in range(levels):
                    qb, qa, pb, pa = (int(x[i, m]) for x in (tape.bid_lots, tape.ask_lots, tape.bid_ticks, tape.ask_ticks))
                    qb0, qa0, pb0, pa0 = (int(x[before, m]) for x in (tape.bid_lots, tape.ask_lots, tape.bid_ticks, tape.ask_ticks))
                    pb, pb0 = pb if qb else -math.inf, pb0 if qb0 else -math.inf
                    pa, pa0 = pa if qa else math.inf, pa0 if qa0 else math.inf
                    sums[m] += (pb >= pb0) * qb - (pb <= pb0) * qb0 - (pa <= pa0) * qa + (pa >= pa0) * qa0
                    depth[m] += qb + qa
            before = i
        each = [s / (2 * (d / (2 * flows))) if d else 0.0 for s, d in zip(sums, depth, strict=True)]
        return (each + [0.0] * 7)[:7] + [sum(each) / levels]

    def signed(self, t, after):
        """(buys, sells) in lots of the interval that ends at t."""
        rows, tape = self.rows(t, after), self.tape
        return tuple(sum(int(tape.trade_lots[r]) for r in rows if tape.trade_side[r] * sign > 0) for sign in (1, -1))

    def wilder(self, series):
        """Wilder's moving average: the plain mean of the first 14, then (13 x old + new) / 14."""
        value = sum(series[:14]) / min(len(series), 14)
        for x in series[14:]:
            value = (13 * value + x) / 14
        return value

    def values(self, t):
        tape, out = self.tape, {}
        ticks, bar = self.session_ticks(t), self.bars(t)
        i, mids = self.mark(t), [b[2] for b in bar]
        moves = [b - a for a, b in pairwise(mids)]
        rows = self.rows(t, ticks[-2] if len(ticks) > 1 else -1)
        for n in (1, 5, 15, 60):
            then = mids[max(0, len(mids) - 1 - n)]
            out[f"log_return_{n}"] = (
                math.log(mids[-1] / then) if min(mids[-1], then) > 0 else (mids[-1] - then) / max(abs(mids[-1]), abs(then), 200)
            )
        for n in (5, 15, 60, 240):
            recent = moves[-n:]
            out[f"volatility_{n}"] = math.sqrt(sum(x * x for x in recent) / len(recent)) / 2 if recent else 0.0
        squares = sum(x * x for x in moves[-60:])
        out["momentum_60"] = math.tanh(sum(moves[-60:]) / math.sqrt(squares)) if squares else 0.0
        ranges = [max(h, c) - min(low, c) for (h, low, _), (_, _, c) in zip(bar[1:], bar[:-1], strict=True)]
        ups = [h - h0 if h - h0 > max(l0 - low, 0) else 0 for (h, low, _), (h0, l0, _) in zip(bar[1:], bar[:-1], strict=True)]
        downs = [l0 - low if l0 - low > max(h - h0, 0) else 0 for (h, low, _), (h0, l0, _) in zip(bar[1:], bar[:-1], strict=True)]
        atr = self.wilder(ranges) if ranges else 0.0
        out["atr_ticks"] = atr / 2
        out["move_over_atr"] = max(-10, min(10, moves[-1] / atr)) if atr else 0.0
        out["range_over_atr"] = min(10, (bar[-1][0] - bar[-1][1]) / atr) if atr else 0.0
        dx = []
        for n in range(14, len(ranges) + 1):
            up, down = self.wilder(ups[:n]), self.wilder(downs[:n])
            dx.append(abs(up - down) / (up + down) if up + down else 0.0)
        out["adx"] = self.wilder(dx) if len(dx) >= 14 else 0.0
        rise = fall = 0.0
        for k, move in enumerate(moves):
            recent = moves[max(0, k - 60) : k]
            deviation = math.sqrt(sum(x * x for x in recent) / len(recent)) if recent else 0.0
            x = max(-5.0, min(5.0, move / deviation)) if deviation else 0.0
            if max(rise, fall) > 5:
                rise = fall = 0.0
            rise, fall = max(0.0, rise + x - 0.5), max(0.0, fall - x - 0.5)
        out["cusum"] = (rise - fall) / 5
        s = list(tape.session_dates).index(self.date[t])
        opens, closes = int(tape.session_open_ns[s]), int(tape.session_close_ns[s])
        out["session_elapsed"] = (t - opens) / (closes - opens)
        out["session_sin"], out["session_cos"] = math.sin(math.tau * out["session_elapsed"]), math.cos(math.tau * out["session_elapsed"])
        out["log_bar_duration_s"] = math.log1p((t - (ticks[-2] if len(ticks) > 1 else opens)) / SECOND)
        out["log_staleness_s"] = math.log1p((t - int(tape.ts_recv_ns[i])) / SECOND)
        out["log_volume"] = math.log1p(sum(int(tape.trade_lots[r]) for r in rows))
        if tape.schema.startswith("ohlcv"):
            return out
        buy = sum(int(tape.trade_lots[r]) for r in rows if tape.trade_side[r] > 0)
        sell = sum(int(tape.trade_lots[r]) for r in rows if tape.trade_side[r] < 0)
        out["trade_imbalance"] = (buy - sell) / (buy + sell) if buy + sell else 0.0
        out["signed_volume"] = _sign(buy - sell) * math.log1p(abs(buy - sell))
        out["log_events"] = math.log1p(len(rows))
        lots = [self.signed(u, ticks[k - 1] if k else -1) for k, u in enumerate(ticks)][1:][-60:]
        x, y = [buys - sells for buys, sells in lots], [move / 2 for move in moves[-60:]]
        if any(x):
            out["kyle_lambda_60"] = sum(a * b for a, b in zip(x, y, strict=True)) / sum(a * a for a in x)
        if printed := sum(map(sum, lots)):
            out["toxicity_60"] = sum(map(abs, x)) / printed
        flow, earlier = self.flow(t), self.flow(ticks[-2]) if len(ticks) > 1 else [0.0] * 8
        for slot in range(8):
            out[f"ofi_{slot}"], out[f"ofi_delta_{slot}"] = flow[slot], flow[slot] - earlier[slot]
        bids = [(int(p), int(q)) for p, q in zip(tape.bid_ticks[i], tape.bid_lots[i], strict=True)]
        asks = [(int(p), int(q)) for p, q in zip(tape.ask_ticks[i], tape.ask_lots[i], strict=True)]
        for level, ((_, b), (_, a)) in enumerate(zip(bids, asks, strict=True)):
            out[f"queue_imbalance_{level}"] = (b - a) / (b + a) if b + a else 0.0
        bids, asks = [x for x in bids if x[1]], [x for x in asks if x[1]]
        mid, (pb, b), (pa, a) = self.mid2(i) / 2, bids[0], asks[0]
        out["spread_ticks"] = pa - pb
        out["microprice_offset_ticks"] = (pb * a + pa * b) / (a + b) - mid
        B, A = sum(q for _, q in bids), sum(q for _, q in asks)
        out["imbalance_10"] = (B - A) / (B + A)
        weight = [2.0**-level for level in range(len(tape.bid_lots[i]))]
        B_w, A_w = (sum(w * int(q) for w, q in zip(weight, lots[i], strict=True)) for lots in (tape.bid_lots, tape.ask_lots))
        out["imbalance_weighted"] = (B_w - A_w) / (B_w + A_w)
        out["centre_of_mass_bid_ticks"] = sum((mid - p) * q for p, q in bids) / B
        out["centre_of_mass_ask_ticks"] = sum((p - mid) * q for p, q in asks) / A
        out["centre_of_mass_skew_ticks"] = out["centre_of_mass_bid_ticks"] - out["centre_of_mass_ask_ticks"]
        out["depth_slope_bid"], out["depth_slope_ask"] = math.log1p(B / (pb - bids[-1][0] + 1)), math.log1p(A / (asks[-1][0] - pa + 1))
        out["log_depth_bid"], out["log_depth_ask"] = math.log1p(B), math.log1p(A)
        return out


def agree_with_oracle(tape, plan):
    """Every slot of the first decisions, of some later ones and of the drain, within float32 (the oracle takes a cube of the ticks)."""
    got = market_features(tape, plan)
    first = int(np.searchsorted(tape.session_open_ns, plan.ts_decided_ns[0], side="right")) - 1
    drain = int(plan.ts_decided_ns[-1])
    ticks = [*brute_ticks(tape, plan.clock, int(tape.session_open_ns[first]), drain), drain]
    oracle = Oracle(tape, ticks)
    for d in sorted({*range(5), *np.linspace(0, plan.decisions, 7).astype(int)}):
        expected = np.zeros(128)
        for name, value in oracle.values(int(plan.ts_decided_ns[d])).items():
            expected[OFFSET[name]] = value
        np.testing.assert_allclose(got[d], expected, rtol=1e-5, atol=1e-7, err_msg=f"decision {d}")
    return got


def random_plan(rng, **options):
    """A tape of up to two sessions with at least eight decisions on it."""
    for _ in range(100):
        sessions = hours((10 * SECOND, 80 * SECOND), (90 * SECOND, 400 * SECOND))
        tape = book(random_events(rng, 300, sessions), sessions)
        chosen = {
            "clock": str(rng.choice(CLOCKS)),
            "start_ns": 15 * SECOND,
            "end_ns": 300 * SECOND,
            "latency_ns": 0,
            "max_lots": 1,
        } | options
        try:
            plan = schedule(tape, **chosen)
        except BadInput:
            continue
        if plan.decisions >= 8:
            return tape, plan
    raise AssertionError(f"no such tape in 100 tries: {options}")


@pytest.mark.parametrize("clock", CLOCKS)
def test_every_slot_is_its_formula_on_random_books(clock):
    rng = np.random.default_rng(list(clock.encode()))
    for _ in range(3):
        got = agree_with_oracle(*random_plan(rng, clock=clock))
    assert np.isfinite(got).all()


def test_every_slot_is_its_formula_where_orders_skip_ticks():
    rng = np.random.default_rng(11)
    tape, plan = random_plan(rng, clock="300ms", latency_ns=1_100_000_000)
    assert plan.ticks_skipped > 5
    agree_with_oracle(tape, plan)


def test_every_slot_is_its_formula_on_a_long_session():
    """Past 240 ticks, so that every span and both of Wilder's phases are reached."""
    rng = np.random.default_rng(5)
    minute = 60 * SECOND
    rows, price = [], 300
    for i in range(330):
        move = int(rng.integers(-4, 5)) * (i < 200 or i > 230)
        first, price = price, price + move
        rows.append((i * minute, first, max(first, price) + int(rng.integers(0, 3)), min(first, price) - int(rng.integers(0, 3)), price, 9))
    tape = bars(rows, hours((0, 500 * minute)))
    plan = schedule(tape, "bar", 0, 400 * minute, 0, 1)
    got = agree_with_oracle(tape, plan)
    assert got[:, OFFSET["adx"]].max() > 0 and np.abs(got[:, OFFSET["cusum"]]).max() > 1, "the alarm must be reached"


def test_prices_at_and_below_zero_give_finite_returns():
    minute = 60 * SECOND
    closes = [120, 40, 3, 0, -1, -150, -3000, 5, 900]
    rows = [(i * minute, c, c, c, c, 1) for i, c in enumerate(closes)] + [(20 * minute, 0, 0, 0, 0, 1)]
    tape = bars(rows, hours((0, 500 * minute)))
    got = agree_with_oracle(tape, schedule(tape, "bar", 0, 30 * minute, 0, 1))
    assert np.isfinite(got).all()
    assert [_return_between(*pair) for pair in [(0, 300), (-300, 0), (-400, -100), (300, 100)]] == [-1.0, -1.0, -0.75, math.log(3)]


def test_a_book_by_hand():
    """bids 10@100 30@99, asks 5@102 5@104: mid 101."""
    shown = {"bids": [(100, 10), (99, 30)], "asks": [(102, 5), (104, 5)]}
    tape = book([{"at": t * SECOND, **shown} for t in range(1, 6)], hours((0, 100 * SECOND)))
    row = market_features(tape, schedule(tape, "1s", 2 * SECOND, 6 * SECOND, 0, 1))[0]
    expected = {
        "spread_ticks": 2, "imbalance_10": (40 - 10) / 50, "imbalance_weighted": (25 - 7.5) / 32.5,
        "queue_imbalance_0": 5 / 15, "queue_imbalance_1": 25 / 35, "queue_imbalance_2": 0,
        "microprice_offset_ticks": (100 * 5 + 102 * 10) / 15 - 101, "centre_of_mass_bid_ticks": (10 * 1 + 30 * 2) / 40,
        "centre_of_mass_ask_ticks": (5 * 1 + 5 * 3) / 10, "centre_of_mass_skew_ticks": -0.25,
        "depth_slope_bid": math.log(1 + 40 / 2), "depth_slope_ask": math.log(1 + 10 / 3),
        "log_depth_bid": math.log(41), "log_depth_ask": math.log(11),
        "log_return_1": 0, "atr_ticks": 0, "ofi_0": 0, "log_events": math.log(2), "log_bar_duration_s": math.log(2),
    }  # fmt: skip
    for name, value in expected.items():
        assert row[OFFSET[name]] == pytest.approx(value, abs=1e-6), name


def test_order_flow_by_hand():
    """Level 1: the bid rises (+7, its whole new size), then loses 3; the ask price falls (-4), then is taken away (+4 back)."""
    base = {"bids": [(100, 5)], "asks": [(103, 6)]}
    events = [
        {"at": 1, **base},
        {"at": SECOND + 1, "bids": [(101, 7)], "asks": [(103, 6)]},
        {"at": SECOND + 2, "bids": [(101, 4)], "asks": [(103, 6)]},
        {"at": 2 * SECOND + 1, "bids": [(101, 4)], "asks": [(102, 4)]},
        {"at": 3 * SECOND + 1, "bids": [(101, 4)], "asks": [(103, 6)]},
        {"at": 4 * SECOND + 1, "bids": [(105, 4)], "asks": [(103, 6)]},
        {"at": 4 * SECOND + 2, "bids": [(90, 4)], "asks": [(95, 6)]},
        {"at": 9 * SECOND, "bids": [(90, 4)], "asks": [(95, 6)]},
    ]
    tape = book(events, hours((0, 100 * SECOND)), levels=1)
    got = market_features(tape, schedule(tape, "1s", SECOND, 9 * SECOND, 0, 1))[:, OFFSET["ofi_0"]]
    first = (7 - 3) / (2 * ((7 + 6 + 4 + 6) / 4))
    assert got[:5] == pytest.approx([0, first, -4 / (2 * (8 / 2)), 4 / (2 * (10 / 2)), 0]), "no flow is measured across the crossed row"


def test_impact_and_toxicity_by_hand():
    """Four lots bought while mid rises by a tick, then three sold and one bought while it falls by half of one; then a tick of silence."""
    quiet, up = {"bids": [(100, 10)], "asks": [(101, 10)]}, {"bids": [(101, 10)], "asks": [(102, 10)]}
    down = {"bids": [(100, 10)], "asks": [(102, 10)]}
    traded = {"action": "T", "flags": 0}
    events = [
        {"at": 1, **quiet},
        {"at": SECOND + 1, **quiet, **traded, "side": "B", "size": 4},
        {"at": SECOND + 2, **up},
        {"at": 2 * SECOND + 1, **up, **traded, "side": "A", "size": 3},
        {"at": 2 * SECOND + 2, **up, **traded, "side": "B", "size": 1},
        {"at": 2 * SECOND + 3, **down},
        *({"at": t * SECOND, **down} for t in range(4, 8)),
    ]
    tape = book(events, hours((0, 100 * SECOND)))
    got = market_features(tape, schedule(tape, "1s", SECOND, 7 * SECOND, 0, 1))
    assert got[:4, OFFSET["kyle_lambda_60"]] == pytest.approx([0, 4 / 16, (4 + 1) / (16 + 4), 5 / 20])
    assert got[:4, OFFSET["toxicity_60"]] == pytest.approx([0, 1, (4 + 2) / (4 + 4), 6 / 8])


def test_trades_are_counted_in_their_interval_and_by_their_aggressor():
    shown = {"bids": [(100, 10)], "asks": [(101, 10)]}
    prints = [("B", 7), ("A", 2), ("N", 40)]
    row = {**shown, "action": "T", "flags": 0}
    events = [{"at": 1, **shown}, *({"at": SECOND + i + 1, **row, "side": s, "size": q} for i, (s, q) in enumerate(prints))]
    events += [{"at": t * SECOND, **shown} for t in range(3, 7)]
    tape = book(events, hours((0, 100 * SECOND)))
    got = market_features(tape, schedule(tape, "1s", SECOND, 6 * SECOND, 0, 1))
    assert got[:3, OFFSET["trade_imbalance"]] == pytest.approx([0, 5 / 9, 0])
    assert got[:3, OFFSET["signed_volume"]] == pytest.approx([0, math.log(6), 0])
    assert got[:3, OFFSET["log_volume"]] == pytest.approx([0, math.log(50), 0])


def test_features_do_not_depend_on_the_window():
    rng = np.random.default_rng(21)
    for clock in CLOCKS:
        tape, early = random_plan(rng, clock=clock)
        middle = int(early.ts_decided_ns[early.decisions // 2])
        late = schedule(tape, clock, middle, 250 * SECOND, 0, 1)
        a, b = market_features(tape, early), market_features(tape, late)
        times = {int(t): d for d, t in enumerate(early.ts_decided_ns[:-1])}
        shared = [(times[int(t)], d) for d, t in enumerate(late.ts_decided_ns[:-1]) if int(t) in times]
        assert len(shared) >= 3
        assert all(a[i].tobytes() == b[j].tobytes() for i, j in shared)


def test_a_session_starts_anew_whatever_came_before_it():
    rng = np.random.default_rng(31)
    sessions = hours((10 * SECOND, 80 * SECOND), (90 * SECOND, 400 * SECOND))
    events = [e for e in random_events(rng, 300, sessions) if e["at"] >= 0]
    whole = book(events, sessions)
    keep = [e for e, date in zip(events, whole.session, strict=True) if date != 20240101]
    alone = book(keep, sessions)
    a, b = (schedule(tape, "1s", 90 * SECOND, 300 * SECOND, 0, 1) for tape in (whole, alone))
    assert market_features(whole, a).tobytes() == market_features(alone, b).tobytes()


def test_every_market_slot_is_declared_once_and_every_other_slot_is_zero():
    assert {f.slot for f in FEATURES} == {i for i, name in enumerate(SLOTS) if not name.startswith("unused") and i < LANE}
    fixed = {"log_return_1": 0, "log_return_60": 3, "adx": 40, "cusum": 41, "ofi_0": 66, "ofi_7": 73, "ofi_delta_0": 74, "ofi_delta_7": 81}
    assert all(OFFSET[name] == slot for name, slot in fixed.items())
    assert all(f.formula and f.unit and f.scale > 0 for f in FEATURES)
    tape, plan = random_plan(np.random.default_rng(1))
    got = market_features(tape, plan)
    quiet = [i for i in range(128) if STAGE[i] in ("unused", "lane")]
    assert not got[:, quiet].any() and {LANE + i for i in range(len(LANE_SLOTS))} <= set(quiet)
    assert got.dtype == np.float32


def test_bounded_slots_are_bounded():
    rng = np.random.default_rng(2)
    for clock in CLOCKS:
        got = market_features(*random_plan(rng, clock=clock))
        for feature in FEATURES:
            if feature.stage == "bounded":
                assert np.abs(got[:, feature.slot]).max() <= (2 if feature.name == "cusum" else 1)


def test_what_bars_cannot_give_is_zero_and_listed():
    minute = 60 * SECOND
    tape = bars([(i * minute, 100 + i, 104 + i, 98 + i, 101 + i, 5) for i in range(40)], hours((0, 500 * minute)))
    got = market_features(tape, schedule(tape, "bar", 0, 40 * minute, 0, 1))
    absent = absent_slots("ohlcv-1m")
    assert "imbalance_10" in absent and "ofi_0" in absent and "log_return_1" not in absent
    assert not got[:, [OFFSET[name] for name in absent]].any()
    given = [f.slot for f in FEATURES if f.name not in absent and f.name not in ("log_staleness_s",)]
    assert got[:, given].any(axis=0).all()
    assert absent_slots("mbp-10") == ()
