"""Holes of a store against a count made row by row."""

import datetime as dt

import numpy as np
import pytest

from lob.calendar import sessions
from lob.tape import HOLE_NS
from store.holes import Span, find_holes

SECOND = 10**9
DAY = 86_400 * SECOND
MINUTE = 60 * SECOND


def spans_of(rows: np.ndarray, source: np.ndarray) -> list[Span]:
    groups: dict[tuple[int, str], list[int]] = {}
    for time, file in zip(rows.tolist(), source.tolist(), strict=True):
        groups.setdefault((time // DAY, str(file)), []).append(time)
    return [Span(min(times), max(times), file) for (_, file), times in groups.items()]


@pytest.mark.parametrize("calendar", ["cme_globex", "us_equity_extended", "always"])
@pytest.mark.parametrize("seed", range(6))
def test_sessions_without_rows_and_holes_and_gaps_between_files_are_those_of_the_rows(calendar, seed):
    rng = np.random.default_rng([seed, 9])
    begin = int(dt.datetime(2024, 2, 20, tzinfo=dt.UTC).timestamp()) * SECOND
    held = sessions(calendar, begin, begin + 80 * DAY)
    rows = []
    for opened, closed in zip(held.open_ns.tolist(), held.close_ns.tolist(), strict=True):
        if rng.random() < 0.5:
            rows += sorted(rng.integers(opened, closed, rng.integers(1, 9)).tolist())
    keep = [time for time in rows if not begin + 30 * DAY < time < begin + int(rng.integers(36, 45)) * DAY]
    rows = np.array(keep)
    source = np.cumsum(rng.random(len(rows)) < 0.1)
    inside = sessions(calendar, int(rows[0]), int(rows[-1]) + 1)
    found = find_holes(spans_of(rows, source), inside, 10 * MINUTE)

    silences = list(zip(rows[:-1].tolist(), rows[1:].tolist(), (source[1:] != source[:-1]).tolist(), strict=True))
    assert found.holes == tuple((a, b) for a, b, _ in silences if b - a > HOLE_NS)
    bounds = list(zip(inside.open_ns.tolist(), inside.close_ns.tolist(), strict=True))
    empty = [1 for opened, closed in bounds if not any(opened <= time < closed for time in keep)]
    assert found.missing_sessions == len(empty)
    gaps = [b - a for a, b, other in silences if other and b - a > 10 * MINUTE and any(o <= a and b < c for o, c in bounds)]
    assert (found.gaps, found.longest_gap_ns) == (len(gaps), max(gaps, default=0))


def test_without_a_calendar_sessions_are_not_counted_and_every_silence_between_files_is_a_gap():
    found = find_holes([Span(DAY, DAY + 5, "b"), Span(0, 5, "a")], None, MINUTE)
    assert (found.holes, found.missing_sessions, found.gaps, found.longest_gap_ns) == ((), None, 1, DAY - 5)
