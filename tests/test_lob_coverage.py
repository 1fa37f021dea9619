"""A reader is told what of the window the data does not cover, and why decisions are later or fewer than the clock says."""

import numpy as np
import pytest

from lob.coverage import window_notes
from lob.errors import BadInput
from lob.schedule import schedule
from lob.tape import HOLE_NS
from lob.units import format_length_ns, format_time_ns
from tests.tapes import SECOND, bars, book, hours

HOUR, DAY = 3600 * SECOND, 86_400 * SECOND
GOOD = {"bids": [(100, 5)], "asks": [(101, 5)]}


def every(period, first, last):
    return [{"at": t, **GOOD} for t in range(first, last, period)]


def notes_of(tape, start, end, clock="1m", latency=0, **limits):
    plan = schedule(tape, clock, start, end, latency, 1, **limits)
    return plan, window_notes(tape, plan, start, end)


def days(count, first=0):
    """A session of eight hours on every day."""
    return hours(*((d * DAY, d * DAY + 8 * HOUR) for d in range(first, first + count)))


def test_a_window_that_the_data_covers_has_no_note():
    tape = book(every(30 * SECOND, 0, 8 * HOUR), days(1))
    assert notes_of(tape, 0, 8 * HOUR)[1] == ()
    assert notes_of(tape, 0, DAY)[1] == (), "a closed exchange is no lack of data"
    assert notes_of(tape, HOUR, 2 * HOUR)[1] == ()


@pytest.mark.parametrize(("first", "last"), [(0, 5 * HOUR), (2 * HOUR, 8 * HOUR), (2 * HOUR, 5 * HOUR)])
def test_a_window_beyond_the_data_on_either_side_is_said_with_both_ends_of_the_data(first, last):
    tape = book(every(30 * SECOND, first, last), days(1))
    _, (note,) = notes_of(tape, 0, 8 * HOUR)
    assert f"the data covers {format_time_ns(first)} to {format_time_ns(last - 30 * SECOND)} of the window" in note


def test_a_step_limit_that_ends_the_run_before_the_data_ends_makes_its_end_no_matter():
    tape = book(every(30 * SECOND, 0, 5 * HOUR), days(1))
    assert notes_of(tape, 0, 8 * HOUR, step_limit=5)[1] == ()


def test_a_first_decision_that_waits_for_a_tradable_book_or_for_the_session_is_said():
    crossed = [{"at": t, "bids": [(101, 5)], "asks": [(100, 5)]} for t in range(0, HOUR, 30 * SECOND)]
    plan, (note,) = notes_of(book(crossed + every(30 * SECOND, HOUR, 8 * HOUR), days(1)), 0, 8 * HOUR)
    assert plan.ts_decided_ns[0] == HOUR
    assert note.startswith("the first decision comes 60 minutes after") and format_time_ns(HOUR) in note and "no tradable book" in note
    early = [{"at": t, **GOOD} for t in range(DAY - HOUR, DAY + 8 * HOUR, 30 * SECOND)]
    _, (note,) = notes_of(book(early, days(1, first=1)), DAY - HOUR, DAY + 8 * HOUR)
    assert f"its session opens at {format_time_ns(DAY)}" in note


def test_sessions_without_a_row_inside_the_data_are_counted_and_dated():
    rows = [event for d in (0, 1, 4) for event in every(30 * SECOND, d * DAY, d * DAY + 8 * HOUR)]
    tape = book(rows, days(6))
    _, notes = notes_of(tape, 0, 4 * DAY + 8 * HOUR)
    (note,) = notes
    assert note.startswith("2 sessions of the calendar") and note.endswith(": 2024-01-03, 2024-01-04")
    assert notes_of(tape, 0, DAY + 8 * HOUR)[1] == (), "a window on one side of it sees nothing of it"


@pytest.mark.parametrize("over", [0, 1])
def test_nothing_is_played_over_a_hole_of_more_than_seven_days(over):
    resumes = HOUR + HOLE_NS + over
    tape = book(every(30 * SECOND, 0, HOUR + 1) + [{"at": resumes + i * SECOND, **GOOD} for i in range(200)], days(9))
    if not over:
        assert schedule(tape, "1m", 0, 9 * DAY, 0, 1).decisions > 60
        return
    with pytest.raises(BadInput, match="no position is carried over such a hole: end the window before it or start after it") as refused:
        schedule(tape, "1m", 0, 9 * DAY, 0, 1)
    assert f"between {format_time_ns(HOUR)} and {format_time_ns(resumes)}," in str(refused.value)
    for start, end, limit in ((0, 2 * HOUR, None), (resumes, 9 * DAY, None), (DAY, 9 * DAY, None), (0, 9 * DAY, 20)):
        assert schedule(tape, "1m", start, end, 0, 1, limit).decisions > 0, "one side of it, or a step limit before it, is playable"


def test_an_order_is_not_filled_over_a_hole_either():
    """The last decision before the hole would fill on the first row after it."""
    rows = [{"at": 0, **GOOD}, {"at": SECOND, "bids": [(101, 5)], "asks": [(100, 5)]}]
    tape = book(rows + every(SECOND, 9 * DAY, 9 * DAY + 300 * SECOND), days(10))
    with pytest.raises(BadInput, match="hole"):
        schedule(tape, "1s", 0, 10 * DAY, SECOND, 1)


@pytest.mark.parametrize(
    ("clock", "latency_s", "apart", "says"),
    [("bar", 0, 1, []), ("1s", 0, 1, ["finer"]), ("bar", 5, 2, ["2 bars apart"]), ("1s", 61, 3, ["finer", "3 bars apart"])],
)
def test_bars_say_why_decisions_are_fewer_than_the_clocks_ticks(clock, latency_s, apart, says):
    minute = 60 * SECOND
    tape = bars([(i * minute, 100, 102, 98, 101, 7) for i in range(400)], days(1))
    plan, notes = notes_of(tape, 0, 400 * minute, clock, latency_s * SECOND)
    assert set(np.diff(plan.ts_decided_ns[:-1])) == {apart * minute}
    assert len(notes) == len(says) and all(word in note for word, note in zip(says, notes, strict=True))


def test_a_clock_slow_enough_for_the_latency_is_not_said_to_be_slowed():
    minute = 60 * SECOND
    tape = bars([(i * minute, 100, 102, 98, 101, 7) for i in range(400)], days(1))
    plan, (note,) = notes_of(tape, 0, 400 * minute, "5m", SECOND)
    assert set(np.diff(plan.ts_decided_ns[:-1])) == {5 * minute} and "apart" not in note and "next bar's open" in note


def test_a_bar_tape_counts_bars():
    tape = bars([(i * 60 * SECOND, 100, 99, 98, 101, 7) for i in range(3)], days(1))
    assert (tape.records, tape.events, tape.barred) == (3, 12, {"inconsistent_bar": 3})


def test_lengths_are_said_in_their_largest_unit():
    lengths = (547 * DAY, 36 * HOUR, 90 * 60 * SECOND, 119 * SECOND, 1_500_000_000, 0)
    assert [format_length_ns(ns) for ns in lengths] == ["547 days", "36 hours", "90 minutes", "119 seconds", "1.5 seconds", "0 seconds"]
