"""Laws of the trading hours. Every UTC time here is typed by hand from the exchanges' local hours."""

import csv
import datetime as dt
import gzip
from zoneinfo import ZoneInfo

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


@pytest.mark.parametrize(
    ("calendar", "quarters", "short"),
    [
        ("cme_globex", 92, {61, 76, 77}),  # until 09:15, 13:00 and 13:15
        ("cme_globex_energy_metals", 92, {76, 79, 82}),
        ("cme_globex_rates", 92, {69, 76, 77}),
        ("cme_globex_fx", 92, {69, 76, 77}),
        ("us_equity_extended", 64, {52}),
        ("always", 96, set()),
    ],
)
def test_every_session_of_ten_years_has_its_length_and_none_overlap(calendar, quarters, short) -> None:
    span = sessions(calendar, _ns("2016-01-01T12:00"), _ns("2026-01-01"))
    lengths = (span.close_ns - span.open_ns) // (900 * 10**9)
    assert set(lengths.tolist()) == {quarters, *short} and (lengths != quarters).mean() < 0.05
    assert (span.open_ns[1:] >= span.close_ns[:-1]).all() and (np.diff(span.trade_date) > 0).all()
    assert (span.pre_open_ns <= span.open_ns).all() and (span.pre_open_ns[1:] >= span.close_ns[:-1]).all()


def test_a_year_of_the_new_york_exchanges_has_as_many_trading_days_as_they_count() -> None:
    span = sessions("us_equity_extended", _ns("2016-01-01T12:00"), _ns("2026-01-01"))
    days = np.bincount(span.trade_date // 10_000)[2016:].tolist()
    assert days == [252, 251, 251, 252, 253, 252, 251, 250, 252, 250]


# Typed by hand from the exchange's holiday notices: New York times of the close, None where there is no session.
KNOWN = [
    ("cme_globex", "2023-11-22", "17:00"),
    ("cme_globex", "2023-11-23", "13:00"),  # Thanksgiving
    ("cme_globex", "2023-11-24", "13:15"),  # the day after
    ("cme_globex", "2023-12-25", None),
    ("cme_globex", "2024-01-01", None),
    ("cme_globex", "2024-01-15", "13:00"),  # Martin Luther King
    ("cme_globex", "2023-04-07", "09:15"),  # a Good Friday with a report on employment
    ("cme_globex", "2024-06-19", "13:00"),  # Juneteenth
    ("cme_globex", "2024-07-03", "13:15"),
    ("cme_globex", "2024-07-04", "13:00"),
    ("cme_globex", "2024-11-29", "13:15"),
    ("cme_globex", "2024-12-24", "13:15"),
    ("cme_globex", "2024-12-31", "17:00"),
    ("cme_globex_energy_metals", "2024-03-29", None),  # Good Friday
    ("cme_globex_energy_metals", "2024-07-04", "14:30"),
    ("cme_globex_rates", "2024-11-28", "13:00"),
    ("cme_globex_fx", "2024-01-15", "17:00"),
    ("us_equity_extended", "2024-07-03", "17:00"),  # after the day's end at 13:00, trading after hours goes on until 17:00
    ("us_equity_extended", "2024-01-15", None),
    ("us_equity_extended", "2025-01-09", None),  # a day of national mourning
]


@pytest.mark.parametrize(("calendar", "day", "close"), KNOWN)
def test_holidays_and_early_closes_are_those_that_the_exchanges_announced(calendar, day, close) -> None:
    date = dt.date.fromisoformat(day)
    if close is None:
        with pytest.raises(BadInput, match=f"{day} is a holiday"):
            session_bounds(calendar, date)
        return
    local = dt.datetime.fromisoformat(f"{day}T{close}").replace(tzinfo=ZoneInfo("America/New_York"))
    assert session_bounds(calendar, date)[1] == int(local.timestamp()) * 10**9


def test_the_table_of_closures_is_what_its_source_says_today() -> None:
    from docs.closures import PAGE, render

    assert PAGE.read_text() == render(), "write it anew with `python -m docs.closures`, and look at what has changed"


def test_the_evening_after_a_holiday_opens_the_next_trade_date() -> None:
    assert _spans("cme_globex", "2023-12-22T22:00", "2023-12-27T00:00") == [
        (20231226, _ns("2023-12-25T23:00"), _ns("2023-12-26T22:00")),
        (20231227, _ns("2023-12-26T23:00"), _ns("2023-12-27T22:00")),
    ]


def test_the_pre_open_before_a_session_does_not_depend_on_where_the_range_begins() -> None:
    whole = sessions("cme_globex", _ns("2023-12-01"), _ns("2024-08-01"))
    for i in range(0, len(whole.open_ns), 5):
        alone = sessions("cme_globex", int(whole.open_ns[i]), int(whole.open_ns[i]) + 1)
        assert (alone.trade_date[0], alone.pre_open_ns[0]) == (whole.trade_date[i], whole.pre_open_ns[i])


LME = "zone=Europe/London open=01:00 close=19:00 days=mon,tue,wed,thu,fri closed=20241225,20241226 early=20241224@12:30 pre_open_minutes=15"


def test_a_calendar_of_ones_own_is_stated_in_words() -> None:
    assert _spans(LME, "2024-12-24T00:00", "2024-12-28T00:00") == [
        (20241224, _ns("2024-12-24T01:00"), _ns("2024-12-24T12:30")),
        (20241227, _ns("2024-12-27T01:00"), _ns("2024-12-27T19:00")),
    ]
    assert _spans(LME, "2024-07-01T00:00", "2024-07-02T00:00") == [(20240701, _ns("2024-07-01T00:00"), _ns("2024-07-01T18:00"))]
    assert _spans("zone=America/Chicago open=-17:00 close=16:00", "2024-03-04", "2024-03-05T00:00")[-1][1:] == (
        _ns("2024-03-04T23:00"), _ns("2024-03-05T22:00"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("open=01:00 close=19:00", "zone is missing"),
        ("zone=Nowhere/Land open=01:00 close=19:00", "zone = 'Nowhere/Land' cannot be used: name an IANA zone"),
        ("zone=UTC open=1am close=19:00", "open = '1am' cannot be used: write it like 01:00"),
        ("zone=UTC open=19:00 close=01:00", "close is not after the open within a day"),
        ("zone=UTC open=-18:00 close=19:00", "close is not after the open within a day"),
        ("zone=UTC open=01:00 close=19:00 early=20240102@00:30", "early 20240102 is not after the open"),
        ("zone=UTC open=01:00 close=19:00 days=mon,funday", "days = 'mon,funday' cannot be used"),
        ("zone=UTC open=01:00 close=19:00 closed=20241301", "closed = '20241301' cannot be used: write dates like 20241225"),
        ("zone=UTC open=01:00 close=24:01", "close = '24:01' cannot be used"),
        ("zone=UTC open=01:00 close=19:00 close=20:00", "'close=20:00' is none of"),
        ("zone=UTC open=01:00 close=19:00 lunch=12:00", "'lunch=12:00' is none of"),
        ("zone=UTC open=01:00 close=19:00 closed=" + ",".join(["20240101"] * 20), "218 characters, and 200 at most can be kept"),
    ],
)
def test_a_calendar_that_cannot_be_used_is_refused_by_the_word(text, said) -> None:
    with pytest.raises(BadInput, match=said):
        sessions(text, 0, 1)


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
    assert (session_of(sessions("cme_globex_fx", int(utc[0]), int(utc[-1]) + 1), utc) >= 0).all() and len(utc) == 29_996
