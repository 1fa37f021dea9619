"""Laws of the split into training, validation and test."""

import datetime as dt
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lob.errors import BadInput
from sim.split import SplitConfig, split

HOUR = 3600 * 10**9


def days(count: int, hours: int = 23) -> list[tuple[dt.date, int, int]]:
    return [(dt.date(2024, 1, 1) + dt.timedelta(days=i), i * 24 * HOUR, i * 24 * HOUR + hours * HOUR) for i in range(count)]


def test_the_last_fifth_of_the_days_tests_and_the_tenth_before_it_validates():
    parts = split(days(50), SplitConfig())
    assert (len(parts.train), len(parts.validation), len(parts.test)) == (35, 5, 10)
    assert [*parts.train, *parts.validation, *parts.test] == [(start, end) for _, start, end in days(50)]


def test_a_stated_number_of_days_overrules_the_share():
    parts = split(days(55), SplitConfig(test_days=20, validation_days=5))
    assert (len(parts.train), len(parts.validation), len(parts.test)) == (30, 5, 20)


@given(count=st.integers(1, 4), test=st.floats(0.05, 0.5), validation=st.floats(0.05, 0.4), hours=st.integers(1, 23))
def test_fewer_than_five_days_are_cut_by_open_time_without_a_gap_or_an_overlap(count, test, validation, hours):
    parts = split(days(count, hours), SplitConfig(test_share=test, validation_share=validation))
    assert parts.by == "time"
    pieces = [*parts.train, *parts.validation, *parts.test]
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(pieces))
    covered = {day: sum(e - s for s, e in pieces if start <= s and e <= end) for day, start, end in days(count, hours)}
    assert set(covered.values()) == {hours * HOUR}
    total = count * hours * HOUR
    assert abs(sum(e - s for s, e in parts.test) - total * test) < 2
    assert abs(sum(e - s for s, e in parts.validation) - total * validation) < 2


def test_no_part_sees_a_later_one():
    parts = split(days(7), SplitConfig())
    assert parts.train_range[1] <= parts.validation[0][0] < parts.validation[-1][1] <= parts.test[0][0]


@pytest.mark.parametrize("count, config", [(0, {}), (6, {"test_days": 4, "validation_days": 2}), (3, {"test_days": 3})])
def test_a_part_without_a_day_is_refused_in_one_line(count, config):
    with pytest.raises(BadInput) as error:
        split(days(count), SplitConfig(**config))
    assert "\n" not in str(error.value) and "train on" in str(error.value)


def test_a_part_shorter_than_a_minute_is_refused():
    with pytest.raises(BadInput, match=r"validation part .* is shorter than a minute"):
        split([(dt.date(2024, 1, 1), 0, 300 * 10**9)], SplitConfig())
