"""Laws of the trading hours. Every UTC time here is typed by hand from the exchanges' local hours."""

import csv
import datetime as dt
import gzip

import numpy as np
import pytest

from lob.calendar import CALENDARS, session_bounds, session_of, sessions
from lob.errors import BadInput, NotFound


def _ns(text: str) -> int:
    return int(dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp()) * 10**9


def _spans(calendar: str, start: str, end: str) -> list[tuple[int, int, int]]:
    found = sessions(calendar, _ns(start), _ns(end))
    assert found.trade_date.dtype == np.int32 and found.open_ns.dtype == np.int64 and found.close_ns.dtype == np.int64
    return list(zip(found.trade_date.tolist(), found.open_ns.tolist(), found.close_ns.tolist(), strict=True))


def test_globex_moves_in_utc_when_daylight_saving_begins() -> None:
    assert _spans("cme_globex", "2024-03-07T22:00", "2024-03-12T00:00") == [
        (20240308, _ns("2024-03-07T23:00"), _ns("2024-03-08T22:00")),
        (20240311, _ns("2024-03-10T22:00"), _ns("2024-03-11T21:00")),
        (20240312, _ns("2024-03-11T22:00"), _ns("2024-03-12T21:00")),
    ]


def test_globex_moves_in_utc_when_daylight_saving_ends() -> None:
    assert _spans("cme_globex", "2024-10-31T21:00", "2024-11-05T00:00") == [
        (20241101, _ns("2024-10-31T22:00"), _ns("2024-11-01T21:00")),
        (20241104, _ns("2024-11-03T23:00"), _ns("2024-11-04T22:00")),
        (20241105, _ns("2024-11-04T23:00"), _ns("2024-11-05T22:00")),
    ]


def test_us_equities_trade_from_four_to_eight_in_new_york_in_both_seasons() -> None:
    assert _spans("us_equity_extended", "2024-03-08T00:00", "2024-03-12T00:00") == [
        (20240307, _ns("2024-03-07T09:00"), _ns("2024-03-08T01:00")),
        (20240308, _ns("2024-03-08T09:00"), _ns("2024-03-09T01:00")),
        (20240311, _ns("2024-03-11T08:00"), _ns("2024-03-12T00:00")),
    ]
    assert _spans("us_equity_extended", "2024-11-01T00:00", "2024-11-05T00:00") == [
        (20241101, _ns("2024-11-01T08:00"), _ns("2024-11-02T00:00")),
        (20241104, _ns("2024-11-04T09:00"), _ns("2024-11-05T01:00")),
    ]


def test_always_is_every_utc_day_without_a_gap() -> None:
    spans = _spans("always", "2024-02-28T12:00", "2024-03-01T00:00")
    assert spans == [(20240228, _ns("2024-02-28"), _ns("2024-02-29")), (20240229, _ns("2024-02-29"), _ns("2024-03-01"))]


@pytest.mark.parametrize(
    ("time", "date"),
    [
        ("2024-03-10T21:59:59.999999999", -1),  # Sunday before the open
        ("2024-03-10T22:00:00.000000000", 20240311),  # Sunday 18:00 New York: Monday's session
        ("2024-03-11T20:59:59.999999999", 20240311),
        ("2024-03-11T21:00:00.000000000", -1),  # the close itself is in the halt
        ("2024-03-11T21:59:59.999999999", -1),
        ("2024-03-11T22:00:00.000000000", 20240312),
        ("2024-03-15T21:00:00.000000000", -1),  # Friday's close
        ("2024-03-16T12:00:00.000000000", -1),  # Saturday
    ],
)
def test_a_session_holds_its_open_and_not_its_close(time: str, date: int) -> None:
    seconds, fraction = time.split(".")
    span = sessions("cme_globex", _ns("2024-03-08"), _ns("2024-03-20"))
    assert session_of(span, np.array([_ns(seconds) + int(fraction)])).tolist() == [date]


def test_times_outside_the_laid_out_range_belong_to_no_session() -> None:
    span = sessions("always", _ns("2024-01-02"), _ns("2024-01-03"))
    assert session_of(span, np.array([_ns("2024-01-01"), _ns("2024-01-02"), _ns("2024-01-03")], np.uint64)).tolist() == [-1, 20240102, -1]
    empty = sessions("cme_globex", _ns("2024-03-16"), _ns("2024-03-17"))
    assert len(empty.trade_date) == 0 and session_of(empty, np.array([_ns("2024-03-16")])).tolist() == [-1]


@pytest.mark.parametrize(("calendar", "hours"), [("cme_globex", 23), ("us_equity_extended", 16), ("always", 24)])
def test_every_session_of_ten_years_has_its_length_and_none_overlap(calendar: str, hours: int) -> None:
    span = sessions(calendar, _ns("2016-01-01"), _ns("2026-01-01"))
    assert set((span.close_ns - span.open_ns).tolist()) == {hours * 3600 * 10**9}
    assert (span.open_ns[1:] >= span.close_ns[:-1]).all() and (np.diff(span.trade_date) > 0).all()
    weekdays = 7 if calendar == "always" else 5
    assert abs(len(span.trade_date) - 3653 * weekdays / 7) < 3


def test_the_sessions_of_a_part_are_those_of_the_whole() -> None:
    whole = _spans("cme_globex", "2024-02-01", "2024-04-01")
    part = _spans("cme_globex", "2024-03-01", "2024-03-14T12:00")
    assert part == [row for row in whole if row[1] < _ns("2024-03-14T12:00") and row[2] > _ns("2024-03-01")]


def test_the_bounds_of_a_trade_date_are_its_session() -> None:
    assert session_bounds("cme_globex", dt.date(2024, 3, 5)) == (_ns("2024-03-04T23:00"), _ns("2024-03-05T22:00"))
    with pytest.raises(BadInput, match="2024-03-09 is a Saturday"):
        session_bounds("cme_globex", dt.date(2024, 3, 9))
    assert session_bounds("always", dt.date(2024, 3, 9)) == (_ns("2024-03-09"), _ns("2024-03-10"))


def test_an_unknown_calendar_and_a_reversed_range_are_said_so() -> None:
    with pytest.raises(NotFound, match=f"use one of {', '.join(sorted(CALENDARS))}"):
        sessions("lunar", 0, 1)
    with pytest.raises(BadInput, match="after its end"):
        sessions("always", 1, 0)


def test_real_es_bars_in_new_york_time_lie_inside_the_sessions(shared_data) -> None:
    with open(shared_data / "ohlcv" / "ES_1min_2023-09-24_2023-10-09.csv", newline="") as file:
        stamps = [row["timestamp"] for row in csv.DictReader(file)]
    # The whole file lies in daylight saving time: New York is UTC-4.
    utc = np.array([_ns(stamp.replace(" ", "T")) + 4 * 3600 * 10**9 for stamp in stamps])
    dates = session_of(sessions("cme_globex", int(utc[0]), int(utc[-1]) + 1), utc)
    assert (dates >= 0).all() and len(utc) == 15_176
    assert dates[0] == 20230925 and stamps[0].startswith("2023-09-24 18:00")


def test_real_6e_bars_in_utc_lie_inside_the_sessions(shared_data) -> None:
    with gzip.open(shared_data / "ohlcv" / "6EH4.XCME_1min_bars_20240101_20240131.csv.gz", "rt", newline="") as file:
        rows = list(csv.reader(file))[1:]
    # The file stamps a bar with its end (the first one says 23:01), so each began a minute earlier.
    utc = np.array([_ns(row[0][:19].replace(" ", "T")) for row in rows]) - 60 * 10**9
    assert (session_of(sessions("cme_globex", int(utc[0]), int(utc[-1]) + 1), utc) >= 0).all() and len(utc) == 29_996
