"""Trading hours: sessions in UTC nanoseconds by IANA zone, so that a change of daylight saving moves them in UTC only.

Holidays and early closes are not in here yet: on such a day the session stands at its usual hours and the market data simply has no rows.
"""

import datetime as dt
from dataclasses import dataclass
from zoneinfo import ZoneInfo

import numpy as np

from lob.errors import BadInput, NotFound
from lob.units import NS_PER_SECOND, format_time_ns


@dataclass(frozen=True)
class Hours:
    """A calendar's rule. The session of trade date d opens at `open_hour` local time, `open_days_before` days before d, and closes on d."""

    zone: str
    open_days_before: int
    open_hour: int
    close_hour: int
    weekdays: tuple[int, ...]


_WORKDAYS = (0, 1, 2, 3, 4)

CALENDARS: dict[str, Hours] = {
    # Sunday 18:00 to Friday 17:00 New York with a halt from 17:00 to 18:00: the evening belongs to the next trade date.
    "cme_globex": Hours("America/New_York", 1, 18, 17, _WORKDAYS),
    # Monday to Friday 04:00 to 20:00 New York: pre-market, the day, after hours.
    "us_equity_extended": Hours("America/New_York", 0, 4, 20, _WORKDAYS),
    # Every UTC day, without a gap.
    "always": Hours("UTC", 0, 0, 24, (0, 1, 2, 3, 4, 5, 6)),
}


@dataclass(frozen=True)
class Sessions:
    """S sessions in order, disjoint; a session is [open, close). `trade_date` is yyyymmdd, the date of the close (of `always`: the day)."""

    trade_date: np.ndarray  # int32[S]
    open_ns: np.ndarray  # int64[S]
    close_ns: np.ndarray  # int64[S]


def _hours(calendar: str) -> Hours:
    if calendar not in CALENDARS:
        raise NotFound(f"calendar {calendar!r} is not known: use one of {', '.join(sorted(CALENDARS))}")
    return CALENDARS[calendar]


def _bounds_ns(hours: Hours, day: dt.date) -> tuple[int, int]:
    midnight = dt.datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(hours.zone))
    # Wall-clock arithmetic: adding a timedelta within one zone moves the local clock, whatever the offset does in between.
    opens = midnight + dt.timedelta(days=-hours.open_days_before, hours=hours.open_hour)
    closes = midnight + dt.timedelta(hours=hours.close_hour)
    return int(opens.timestamp()) * NS_PER_SECOND, int(closes.timestamp()) * NS_PER_SECOND


def sessions(calendar: str, start_ns: int, end_ns: int) -> Sessions:
    """Every session that has a moment in [start_ns, end_ns). Raises NotFound for an unknown calendar, BadInput when start is after end."""
    hours = _hours(calendar)
    if start_ns > end_ns:
        raise BadInput(f"the range starts at {format_time_ns(start_ns)}, after its end {format_time_ns(end_ns)}: swap them")
    # Two days of margin on both sides cover every UTC offset and the evening before a trade date.
    first = dt.date(1970, 1, 1) + dt.timedelta(days=int(start_ns) // (86_400 * NS_PER_SECOND) - 2)
    last = dt.date(1970, 1, 1) + dt.timedelta(days=int(end_ns) // (86_400 * NS_PER_SECOND) + 2)
    rows = []
    for ordinal in range(first.toordinal(), last.toordinal() + 1):
        day = dt.date.fromordinal(ordinal)
        if day.weekday() in hours.weekdays:
            opens, closes = _bounds_ns(hours, day)
            if opens < end_ns and closes > start_ns:
                rows.append((day.year * 10_000 + day.month * 100 + day.day, opens, closes))
    table = np.array(rows, np.int64).reshape(-1, 3)
    return Sessions(table[:, 0].astype(np.int32), table[:, 1].copy(), table[:, 2].copy())


def session_bounds(calendar: str, date: dt.date) -> tuple[int, int]:
    """(open, close) of a trade date in UTC nanoseconds. Raises BadInput when the calendar has no session on that date."""
    hours = _hours(calendar)
    if date.weekday() not in hours.weekdays:
        raise BadInput(f"{date} is a {date:%A}, no trade date of {calendar}: choose a day from Monday to Friday")
    return _bounds_ns(hours, date)


def session_of(sessions: Sessions, ts_ns: np.ndarray) -> np.ndarray:
    """int32[n]: trade date yyyymmdd of the session that holds each time, -1 outside every session of `sessions`."""
    ts = np.asarray(ts_ns).astype(np.int64, copy=False)
    if len(sessions.open_ns) == 0:
        return np.full(ts.shape, -1, np.int32)
    index = np.searchsorted(sessions.open_ns, ts, side="right") - 1
    inside = (index >= 0) & (ts < sessions.close_ns[index])
    return np.where(inside, sessions.trade_date[index], np.int32(-1)).astype(np.int32, copy=False)
