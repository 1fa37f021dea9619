"""The decision schedule against docs/step.md, read again here as slow plain Python, and its laws on random tapes."""

import numpy as np
import pytest

from lob.actions import EndReason
from lob.errors import BadInput
from lob.schedule import clock_ticks, parse_clock, schedule
from tests.tapes import SECOND, bars, book, hours, random_events

GOOD = {"bids": [(100, 5)], "asks": [(101, 5)]}
CLOCKS = ("1s", "300ms", "7s", "5e", "9v")


def _session(tape, t):
    return next((int(d) for d, o, c in zip(tape.session_dates, tape.session_open_ns, tape.session_close_ns, strict=True) if o <= t < c), -1)


def brute_ticks(tape, clock, start, end):
    """Every clock tick in [start, end) inside a session, by definition."""
    kind, size = parse_clock(clock)
    times = set()
    if kind == "time":
        for o, c in zip(tape.session_open_ns, tape.session_close_ns, strict=True):
            times |= {t for t in range(int(o) // size * size, int(c), size) if t >= o}
    elif kind == "bar":
        times = {int(t) for t, p in zip(tape.ts_recv_ns, tape.point, strict=True) if p == 3}
    else:
        for date in tape.session_dates:
            done = 0
            for i in np.nonzero(tape.session == date)[0]:
                before, done = done, done + (1 if kind == "events" else int(tape.trade_lots[i]))
                if before // size < done // size and _session(tape, int(tape.ts_recv_ns[i])) == date:
                    times.add(int(tape.ts_recv_ns[i]))
    return sorted(t for t in times if start <= t < end and _session(tape, t) >= 0)


def brute_schedule(tape, clock, start, end, latency, max_lots, step_limit=None):
    """List of (decided, observed, mark, fill, filled), the drain last, and the ticks skipped; None when there is no run."""
    event, recv = [int(t) for t in tape.ts_event_ns], [int(t) for t in tape.ts_recv_ns]
    tradable, rows = [bool(x) for x in tape.tradable], range(tape.events)
    is_bars = tape.schema.startswith("ohlcv")

    def seen_at(t):
        return max((i for i in rows if recv[i] <= t), default=-1)

    def mark_at(t):
        return max((i for i in rows if recv[i] <= t and tradable[i]), default=-1)

    def fill_at(arrival):
        if is_bars:
            return min((i for i in rows if tradable[i] and tape.point[i] == 0 and event[i] >= arrival), default=None)
        j = max((i for i in rows if tape.trusted[i] and event[i] <= arrival), default=-1)
        if j >= 0 and tradable[j] and tape.session[j] == _session(tape, arrival):
            return j
        return min((i for i in rows if i > j and tradable[i]), default=None)

    deep = [
        i for i in rows
        if recv[i] < end and tradable[i] and min(tape.bid_lots[i].sum(), tape.ask_lots[i].sum()) >= max_lots
        and (not is_bars or tape.point[i] == 3)
    ]  # fmt: skip
    if not deep:
        return None
    drain = deep[-1]
    decisions, skipped, kept, pending, ready = [], 0, 0, 0, None
    for t in brute_ticks(tape, clock, start, end):
        mark = mark_at(t)
        if mark < 0 or tape.session[mark] != _session(tape, t):
            continue
        if ready is not None and t < ready:
            pending += 1
            continue
        fill = fill_at(t + latency)
        if fill is None:
            break
        filled = max(t + latency, event[fill])
        ready = max(filled, recv[fill])
        if not (fill < drain and ready <= event[drain]):
            break
        skipped = pending
        if step_limit is not None and len(decisions) == step_limit:
            drain = next(i for i in deep if event[i] >= t and i > decisions[-1][3])
            skipped = kept
            break
        kept = skipped
        decisions.append((t, seen_at(t), mark, fill, filled))
    if not decisions:
        return None
    at = event[drain]
    return decisions + [(at, seen_at(at), mark_at(at), drain, at)], skipped


def rows_of(plan):
    columns = (plan.ts_decided_ns, plan.observed_event, plan.mark_event, plan.fill_event, plan.ts_filled_ns)
    return [tuple(int(x) for x in row) for row in zip(*columns, strict=True)]


def random_case(seed):
    rng = np.random.default_rng([seed, 5])
    first = int(rng.integers(20, 120))
    sessions = hours((10 * SECOND, (10 + first) * SECOND), ((10 + first + int(rng.integers(0, 40))) * SECOND, 400 * SECOND))
    tape = book(random_events(rng, int(rng.integers(40, 260)), sessions), sessions)
    start = int(rng.integers(0, 60)) * SECOND + int(rng.choice([0, 123_456_789]))
    return tape, {
        "clock": str(rng.choice(CLOCKS)),
        "start_ns": start,
        "end_ns": start + int(rng.integers(5, 200)) * SECOND,
        "latency_ns": int(rng.choice([0, 1, 1_000_000, 300_000_000, 2_500_000_000, 11 * SECOND])),
        "max_lots": int(rng.integers(1, 9)),
        "step_limit": None if rng.random() < 0.6 else int(rng.integers(1, 12)),
    }


def check_laws(tape, plan):
    D = plan.decisions
    assert (plan.ts_observed_ns <= plan.ts_decided_ns).all()
    assert (plan.ts_decided_ns <= plan.ts_arrived_ns).all()
    assert (plan.ts_arrived_ns <= plan.ts_filled_ns).all()
    assert (np.diff(plan.ts_decided_ns) > 0).all()
    assert (tape.ts_event_ns[plan.fill_event] <= plan.ts_filled_ns).all()
    assert (np.diff(plan.fill_event) >= 0).all() and (plan.fill_event[:-1] < plan.fill_event[D]).all()
    assert (plan.fill_event[:-1] <= plan.mark_event[1:]).all(), "a fill row is received by the next decision"
    assert (tape.ts_recv_ns[plan.fill_event[:-1]] <= plan.ts_decided_ns[1:]).all()
    assert (plan.ts_filled_ns[:-1] <= plan.ts_decided_ns[1:]).all()
    assert (plan.mark_event <= plan.observed_event).all()
    assert tape.tradable[plan.mark_event].all() and tape.tradable[plan.fill_event].all()
    assert (tape.session[plan.mark_event[:-1]] == plan.session[:-1]).all(), "the first decision of a session has a book of its own"
    for d in range(D):
        for low, high, after in (
            (plan.low_held_mid2, plan.high_held_mid2, plan.observed_event[d]),
            (plan.low_after_mid2, plan.high_after_mid2, plan.fill_event[d]),
        ):
            inside = [
                int(tape.bid_ticks[i, 0]) + int(tape.ask_ticks[i, 0])
                for i in range(after + 1, plan.observed_event[d + 1] + 1)
                if tape.tradable[i]
            ]
            assert low[d] == min(inside, default=2**62) and high[d] == max(inside, default=-(2**62))
        assert plan.closes_session[d] == (plan.session[d] != plan.session[d + 1])


@pytest.mark.parametrize("block", range(8))
def test_the_schedule_is_the_page_read_by_brute_force(block):
    runs = limited = 0
    for seed in range(block * 50, block * 50 + 50):
        tape, options = random_case(seed)
        expected = brute_schedule(
            tape,
            options["clock"],
            options["start_ns"],
            options["end_ns"],
            options["latency_ns"],
            options["max_lots"],
            options["step_limit"],
        )
        if expected is None:
            with pytest.raises(BadInput):
                schedule(tape, **options)
            continue
        plan = schedule(tape, **options)
        assert rows_of(plan) == expected[0], (seed, options)
        assert plan.ticks_skipped == expected[1], (seed, options)
        check_laws(tape, plan)
        runs += 1
        limited += plan.final_reason == EndReason.STEP_LIMIT
    assert runs > 15 and limited > 0, "the cases must reach the code"


@pytest.mark.parametrize("seed", range(60))
def test_bars_are_scheduled_by_the_page(seed):
    rng = np.random.default_rng([seed, 9])
    minute = 60 * SECOND
    sessions = hours((10 * minute, 40 * minute), ((40 + int(rng.integers(0, 9))) * minute, 90 * minute))
    rows, price = [], 5000
    for i in range(100):
        if rng.random() < 0.1:
            continue
        first, last = price, price + int(rng.integers(-3, 4))
        price = last
        off = 0.3 if rng.random() < 0.05 else 0
        rows.append(
            (i * minute, first, max(first, last) + int(rng.integers(0, 3)) + off, min(first, last) - int(rng.integers(0, 3)), last, 5)
        )
    tape = bars(rows, sessions)
    start = int(rng.integers(0, 50)) * minute
    options = {
        "clock": str(rng.choice(["bar", "1m", "5m", "30s"])),
        "start_ns": start, "end_ns": start + int(rng.integers(4, 60)) * minute,
        "latency_ns": int(rng.choice([0, 1_000_000, 90 * SECOND])), "max_lots": 5,
        "step_limit": None if rng.random() < 0.6 else int(rng.integers(1, 9)),
    }  # fmt: skip
    expected = brute_schedule(tape, *options.values())
    if expected is None:
        with pytest.raises(BadInput):
            schedule(tape, **options)
        return
    plan = schedule(tape, **options)
    assert rows_of(plan) == expected[0] and plan.ticks_skipped == expected[1]
    assert (tape.point[plan.fill_event[:-1]] == 0).all() and tape.point[plan.fill_event[-1]] == 3
    check_laws(tape, plan)


def test_an_order_meets_the_book_that_stands_at_its_arrival_not_the_one_observed():
    events = [{"at": t * SECOND, "recv": t * SECOND + 500, "bids": [(100 + t, 5)], "asks": [(101 + t, 5)]} for t in range(6)]
    events += [{"at": 2 * SECOND + 1_000_000, "recv": 2 * SECOND + 1_000_500, "bids": [(200, 5)], "asks": [(201, 5)]}]
    events.sort(key=lambda e: e["at"])
    tape = book(events, hours((0, 100 * SECOND)))
    plan = schedule(tape, "1s", SECOND, 6 * SECOND, 2_000_000, 5)
    assert plan.ts_decided_ns[0] == SECOND, "row 0 is received; row 1 happens now but arrives 500 ns later"
    assert plan.observed_event[0] == 0 and plan.fill_event[0] == 1
    assert tape.bid_ticks[plan.fill_event[1], 0] == 200, "the row 1 ms after the second decision stands at its arrival"
    assert plan.ts_filled_ns[1] == 2 * SECOND + 2_000_000, "also when no new event comes at that moment"


def test_a_halt_makes_the_order_wait_for_the_next_tradable_book():
    crossed = {"bids": [(105, 5)], "asks": [(101, 5)]}
    events = [
        {"at": 0, **GOOD},
        {"at": 2 * SECOND, **crossed},
        {"at": 7 * SECOND + 5, **GOOD},
        {"at": 9 * SECOND, **GOOD},
        {"at": 12 * SECOND, **GOOD},
    ]
    tape = book(events, hours((0, 100 * SECOND)))
    plan = schedule(tape, "1s", SECOND, 13 * SECOND, 0, 5)
    assert plan.ts_decided_ns[:3].tolist() == [SECOND, 2 * SECOND, 8 * SECOND], "in flight until the fill is received"
    assert plan.fill_event[:2].tolist() == [0, 2] and plan.ts_filled_ns[1] == 7 * SECOND + 5
    assert plan.ticks_skipped == 5
    assert plan.mark_event[1] == 0, "marked at the last tradable row"


def test_a_clear_ends_the_standing_book_even_without_f_last():
    events = [{"at": 0, **GOOD}, {"at": 2 * SECOND, "action": "R", "flags": 0}, {"at": 4 * SECOND, **GOOD}, {"at": 8 * SECOND, **GOOD}]
    plan = schedule(book(events, hours((0, 100 * SECOND))), "1s", 2 * SECOND, 13 * SECOND, 0, 5)
    assert plan.fill_event[0] == 2


def test_a_mid_event_row_is_never_met():
    events = [
        {"at": 0, **GOOD},
        {"at": SECOND, "bids": [(90, 5)], "asks": [(91, 5)], "flags": 0},
        {"at": 5 * SECOND, **GOOD},
        {"at": 9 * SECOND, **GOOD},
    ]
    plan = schedule(book(events, hours((0, 100 * SECOND))), "1s", 2 * SECOND, 13 * SECOND, 0, 5)
    assert plan.observed_event[0] == 1 and plan.mark_event[0] == 0 and plan.fill_event[0] == 0


def test_an_order_that_arrives_after_the_close_waits_for_the_next_session():
    sessions = hours((0, 10 * SECOND), (20 * SECOND, 40 * SECOND))
    events = [{"at": t * SECOND, **GOOD} for t in (*range(10), *range(12, 30))]
    tape = book(events, sessions)
    plan = schedule(tape, "1s", 8 * SECOND, 29 * SECOND, SECOND, 5)
    assert plan.ts_decided_ns[:3].tolist() == [8 * SECOND, 9 * SECOND, 20 * SECOND]
    assert tape.ts_event_ns[plan.fill_event[1]] == 20 * SECOND
    assert plan.closes_session[:2].tolist() == [False, True]
    assert plan.session[1] == 20240101 and plan.session[2] == 20240102


def test_decisions_of_a_session_begin_with_a_book_of_that_session():
    sessions = hours((0, 10 * SECOND), (20 * SECOND, 40 * SECOND))
    events = [{"at": t * SECOND, **GOOD} for t in (*range(10), 24, 25, 26, 30, 31)]
    plan = schedule(book(events, sessions), "1s", 8 * SECOND, 40 * SECOND, 0, 5)
    assert plan.ts_decided_ns[2] == 24 * SECOND


def test_the_drain_shows_the_lots_and_follows_every_fill():
    thin = {"bids": [(100, 1)], "asks": [(101, 9)]}
    events = [{"at": t * SECOND, **GOOD} for t in range(6)] + [{"at": t * SECOND, **thin} for t in range(6, 9)]
    tape = book(events, hours((0, 100 * SECOND)))
    plan = schedule(tape, "1s", 0, 9 * SECOND, 0, 5)
    assert plan.fill_event[-1] == 5 and plan.ts_decided_ns[-1] == 5 * SECOND and plan.ts_decided_ns[-2] == 4 * SECOND


def test_a_step_limit_moves_the_drain_to_the_decision_that_comes_no_more():
    tape = book([{"at": t * SECOND + 7, **GOOD} for t in range(50)], hours((0, 100 * SECOND)))
    plan = schedule(tape, "1s", 0, 40 * SECOND, 0, 5, step_limit=3)
    assert plan.final_reason == EndReason.STEP_LIMIT and plan.decisions == 3
    assert plan.ts_decided_ns.tolist() == [SECOND, 2 * SECOND, 3 * SECOND, 4 * SECOND + 7]
    free = schedule(tape, "1s", 0, 40 * SECOND, 0, 5)
    assert schedule(tape, "1s", 0, 40 * SECOND, 0, 5, step_limit=free.decisions).final_reason == EndReason.WINDOW_END


def test_a_tape_that_stops_early_says_so():
    tape = book([{"at": t * SECOND, **GOOD} for t in range(50)], hours((0, 1000 * SECOND)))
    assert schedule(tape, "1s", 0, 40 * SECOND, 0, 5).final_reason == EndReason.WINDOW_END
    assert schedule(tape, "1s", 0, 90 * SECOND, 0, 5).final_reason == EndReason.WINDOW_END, "a quiet minute is no end of the tape"
    assert schedule(tape, "1s", 0, 900 * SECOND, 0, 5).final_reason == EndReason.TAPE_END
    closing = book([{"at": t * SECOND, **GOOD} for t in range(50)], hours((0, 60 * SECOND), (800 * SECOND, 801 * SECOND)))
    assert schedule(closing, "1s", 0, 700 * SECOND, 0, 5).final_reason == EndReason.WINDOW_END, (
        "nothing can come while the market is closed"
    )


def test_ticks_do_not_depend_on_the_window():
    tape, _ = random_case(3)
    for clock in CLOCKS:
        every, dates = clock_ticks(tape, clock, 0, 2**60)
        some, some_dates = clock_ticks(tape, clock, 40 * SECOND, 120 * SECOND)
        keep = (every >= 40 * SECOND) & (every < 120 * SECOND)
        assert (some == every[keep]).all() and (some_dates == dates[keep]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"start_ns": 9 * SECOND, "end_ns": 9 * SECOND}, "start must come first"),
        ({"start_ns": 60 * SECOND, "end_ns": 70 * SECOND}, "no rows were received between"),
        ({"max_lots": 6}, "the deepest shows 5"),
        ({"clock": "bar"}, "clock bar needs bars"),
        ({"clock": "1x"}, "is none of"),
        ({"clock": "0s"}, "is none of"),
        ({"clock": "0e"}, "is none of"),
        ({"clock": "1h"}, "no tick inside a session"),
        ({"clock": "50e"}, "no tick inside a session"),
        ({"latency_ns": -1}, "latency"),
        ({"step_limit": 0}, "step limit"),
        ({"latency_ns": 50 * SECOND}, "makes no decision"),
        ({"clock": "1ns", "end_ns": 20 * SECOND}, "take a coarser clock"),
    ],
)
def test_each_fault_is_one_clear_line(change, message):
    tape = book([{"at": t * SECOND, **GOOD} for t in range(20)], hours((1, 1000 * SECOND)))
    options = {"clock": "1s", "start_ns": SECOND, "end_ns": 30 * SECOND, "latency_ns": 0, "max_lots": 5} | change
    with pytest.raises(BadInput, match=message) as caught:
        schedule(tape, **options)
    assert "\n" not in str(caught.value)


def test_a_range_without_a_tradable_book_says_why():
    tape = book([{"at": t * SECOND, "bids": [(105, 5)], "asks": [(101, 5)]} for t in range(20)], hours((0, 10 * SECOND)))
    with pytest.raises(BadInput, match=r"10 crossed, 10 outside_session"):
        schedule(tape, "1s", 0, 30 * SECOND, 0, 5)


def test_event_clocks_need_books():
    tape = bars([(0, 100, 108, 90, 104, 1)], hours((0, 1000 * SECOND)))
    for clock in ("100e", "500v"):
        with pytest.raises(BadInput, match="needs books"):
            schedule(tape, clock, 0, 900 * SECOND, 0, 5)
