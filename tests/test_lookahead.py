"""Law 4, no look-ahead: change any row received after t, and everything observed up to t keeps its bytes; change any row stamped after
a fill, and the fill is the same.
"""

import numpy as np
import pytest

from lob.errors import BadInput
from lob.features import market_features
from lob.normalise import apply, fixed
from lob.schedule import schedule
from lob.tape_build import book_tape
from tests.tapes import ES, SECOND, bars, book_columns, hours, random_events, undefined_prices
from tests.test_lob_schedule import CLOCKS

SESSIONS = hours((10 * SECOND, 80 * SECOND), (90 * SECOND, 400 * SECOND))


def build(columns):
    n = len(columns["ts_event"])
    return book_tape(columns, undefined_prices(columns), np.zeros(n, np.int32), np.arange(n), ("f" * 64,), ES, SESSIONS)


def shuffled_future(columns, first, rng):
    """The same columns with every row from `first` on replaced: other books, prints, flags, later times; some rows dropped."""
    n = len(columns["ts_event"])
    other = book_columns(random_events(rng, n, SESSIONS))
    latest = max(int(columns["ts_event"][:first].max()), int(columns["ts_recv"][:first].max())) + 1
    shift = latest - int(min(other["ts_event"].min(), other["ts_recv"].min()))
    for name in ("ts_event", "ts_recv"):
        other[name] = other[name] + shift
    keep = first + int(rng.integers(0, n - first + 1))
    return {name: np.concatenate([columns[name][:first], other[name][first:keep]]) for name in columns}


def plan_of(tape, options):
    try:
        return schedule(tape, **options)
    except BadInput:
        return None


def options_of(rng):
    return {
        "clock": str(rng.choice(CLOCKS)),
        "start_ns": int(rng.integers(10, 40)) * SECOND,
        "end_ns": 350 * SECOND,
        "latency_ns": int(rng.choice([0, 1_000_000, 700_000_000])),
        "max_lots": 1,
    }


def known_by(tape, plan, t):
    """How many decisions come by t whose predecessor's fill has been received by t. An order in flight at t meets a row that happened
    but is received later: that row moves the next decision in time, though never what any moment shows.
    """
    count = 0
    while count < plan.decisions and plan.ts_decided_ns[count] <= t and (count == 0 or tape.ts_recv_ns[plan.fill_event[count - 1]] <= t):
        count += 1
    return count


@pytest.mark.parametrize("block", range(4))
def test_rows_received_after_a_decision_cannot_change_what_it_observes(block):
    compared = 0
    for seed in range(block * 25, block * 25 + 25):
        rng = np.random.default_rng([seed, 77])
        columns = book_columns(random_events(rng, 260, SESSIONS))
        options = options_of(rng)
        tape = build(columns)
        plan = plan_of(tape, options)
        if plan is None:
            continue
        first = int(rng.integers(20, 250))
        changed = build(shuffled_future(columns, first, rng))
        other = plan_of(changed, options)
        if other is None:
            continue
        t = int(tape.ts_recv_ns[first]) - 1
        past = min(known_by(tape, plan, t), known_by(changed, other, t))
        for field in ("ts_decided_ns", "observed_event", "ts_observed_ns", "mark_event", "session"):
            assert getattr(plan, field)[:past].tolist() == getattr(other, field)[:past].tolist(), (seed, field)
        a, b = (apply(market_features(*pair), fixed()) for pair in ((tape, plan), (changed, other)))
        assert a[:past].tobytes() == b[:past].tobytes(), seed
        times, times_other = ({int(at): d for d, at in enumerate(x.ts_decided_ns[:-1]) if at <= t} for x in (plan, other))
        for at in times.keys() & times_other.keys():
            assert a[times[at]].tobytes() == b[times_other[at]].tobytes(), (seed, at)
        compared += past
    assert compared > 100, "the cases must reach decisions"


@pytest.mark.parametrize("block", range(4))
def test_rows_stamped_after_a_fill_cannot_change_the_fill(block):
    compared = waited = 0
    for seed in range(block * 25, block * 25 + 25):
        rng = np.random.default_rng([seed, 78])
        columns = book_columns(random_events(rng, 260, SESSIONS))
        options = options_of(rng)
        tape = build(columns)
        plan = plan_of(tape, options)
        if plan is None:
            continue
        d = int(rng.integers(0, plan.decisions))
        # The first row that happened after the fill and was not yet received when the decision was made.
        first = max(int(np.searchsorted(tape.ts_event_ns, plan.ts_filled_ns[d], side="right")), int(plan.observed_event[d]) + 1)
        if first >= 255:
            continue
        changed = build(shuffled_future(columns, first, rng))
        other = plan_of(changed, options)
        if other is None or other.decisions <= d:
            continue
        f = int(plan.fill_event[d])
        assert (
            other.fill_event[d] == f and other.ts_filled_ns[d] == plan.ts_filled_ns[d] and other.ts_decided_ns[d] == plan.ts_decided_ns[d]
        ), seed
        for field in ("bid_ticks", "ask_ticks", "bid_lots", "ask_lots"):
            assert getattr(tape, field)[f].tobytes() == getattr(changed, field)[f].tobytes()
        compared += 1
        waited += bool(plan.ts_arrived_ns[d] < plan.ts_filled_ns[d])
    assert compared > 8 and waited > 0


def test_a_truncated_tape_gives_the_same_features_as_the_whole_one():
    rng = np.random.default_rng(3)
    columns = book_columns(random_events(rng, 400, SESSIONS))
    tape = build(columns)
    compared = 0
    for cut in range(60, 400, 20):
        short = build({name: column[:cut] for name, column in columns.items()})
        options = {"clock": "1s", "start_ns": 12 * SECOND, "end_ns": 350 * SECOND, "latency_ns": 0, "max_lots": 1}
        plan, other = plan_of(tape, options), plan_of(short, options)
        if other is None:
            continue
        n = other.decisions
        assert plan.ts_decided_ns[:n].tolist() == other.ts_decided_ns[:n].tolist()
        assert market_features(tape, plan)[:n].tobytes() == market_features(short, other)[:n].tobytes()
        compared += n
    assert compared > 50


def test_a_bar_is_unseen_until_it_has_ended():
    """The bar that a decision falls into, and the one that its order fills in, may hold any prices at all."""
    minute = 60 * SECOND
    rows = [(i * minute, 100 + i, 104 + i, 98 + i, 101 + i, 5) for i in range(30)]
    hours_ = hours((0, 400 * minute))
    for k in range(5, 25):
        tail = [(at, o + 500, h + 900, low - 90, c - 70, 1) for at, o, h, low, c, _ in rows[k:]]
        tape, other = bars(rows, hours_), bars(rows[:k] + tail, hours_)
        for clock in ("bar", "30s", "5m"):
            plan, plan_other = (schedule(x, clock, 0, 30 * minute, 0, 1) for x in (tape, other))
            past = int(np.searchsorted(plan.ts_decided_ns, k * minute, side="right"))
            a, b = market_features(tape, plan)[:past], market_features(other, plan_other)[:past]
            assert past and a.tobytes() == b.tobytes()
            assert (plan.mark_event[:past] < 4 * k).all()


def test_a_shift_of_the_tape_by_one_row_is_seen():
    """The tests above can fail: features that peek one row ahead differ."""
    rng = np.random.default_rng(9)
    columns = book_columns(random_events(rng, 300, SESSIONS))
    shifted = {name: column if name.startswith("ts_") else np.append(column[1:], column[-1:]) for name, column in columns.items()}
    options = {"clock": "1s", "start_ns": 12 * SECOND, "end_ns": 350 * SECOND, "latency_ns": 0, "max_lots": 1}
    tape, peeking = build(columns), build(shifted)
    plan = schedule(tape, **options)
    assert market_features(tape, plan).tobytes() != market_features(peeking, plan).tobytes()
