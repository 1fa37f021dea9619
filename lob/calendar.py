"""Trading hours: sessions in UTC nanoseconds by IANA zone, so that a change of daylight saving moves them in UTC only; holidays, early
closes and the pre-open before each session.

A calendar is a name of CALENDARS, or the text of a user's own (`parse_hours`), so that a run's configuration says its hours wholly.
"""

import datetime as dt
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np

from lob.closures import CLOSED, CLOSURES
from lob.errors import BadInput, NotFound
from lob.units import NS_PER_SECOND, format_time_ns

_MINUTE_NS = 60 * NS_PER_SECOND
_HALT_NS = 2 * 60 * _MINUTE_NS
"""Closed for no longer than this, the market has halted for the day; for longer, it was away (a weekend, a holiday, an early close)."""


@dataclass(frozen=True)
class Hours:
    """A calendar's rule. The session of trade date d opens `open_minute` minutes after the local midnight that begins d, or the day
    `open_days_before` it, and closes `close_minute` minutes after that of d. `closures`: {trade date as yyyymmdd: minute of the close,
    None: no session}. The pre-open begins `pre_open_minutes` before the open after the daily halt, `long_pre_open_minutes` after more.
    """

    zone: str
    open_days_before: int
    open_minute: int
    close_minute: int
    weekdays: tuple[int, ...]
    closures: Mapping[int, int | None] = field(default_factory=dict)
    pre_open_minutes: int = 0
    long_pre_open_minutes: int = 0


_WORKDAYS = (0, 1, 2, 3, 4)


def _minute(clock: str) -> int:
    """Minutes after midnight of HH:MM; 24:00 is the day's end. Raises ValueError."""
    found = re.fullmatch(r"(\d\d):(\d\d)", clock)
    if not found or not int(found[1]) * 60 + int(found[2]) <= 24 * 60 or int(found[2]) > 59:
        raise ValueError(clock)
    return int(found[1]) * 60 + int(found[2])


def _closures(calendar: str) -> dict[int, int | None]:
    return {day: None if close == CLOSED else _minute(close) for close, days in CLOSURES[calendar].items() for day in days}


def _globex(calendar: str) -> Hours:
    """Sunday 18:00 to Friday 17:00 New York with a halt from 17:00 to 18:00: the evening belongs to the next trade date. Orders can be
    entered from 17:45 on, after a weekend or a holiday from 17:00 on. (Until 18 September 2015 the close of equity indices was 17:15.)"""
    return Hours("America/New_York", 1, 18 * 60, 17 * 60, _WORKDAYS, _closures(calendar), 15, 60)


CALENDARS: dict[str, Hours] = {
    "cme_globex": _globex("cme_globex"),  # equity indices
    "cme_globex_energy_metals": _globex("cme_globex_energy_metals"),
    "cme_globex_rates": _globex("cme_globex_rates"),
    "cme_globex_fx": _globex("cme_globex_fx"),
    # Monday to Friday 04:00 to 20:00 New York: pre-market, the day, after hours.
    "us_equity_extended": Hours("America/New_York", 0, 4 * 60, 20 * 60, _WORKDAYS, _closures("us_equity_extended")),
    # Every UTC day, without a gap.
    "always": Hours("UTC", 0, 0, 24 * 60, (0, 1, 2, 3, 4, 5, 6)),
}


@dataclass(frozen=True)
class Sessions:
    """S sessions in order, disjoint; a session is [open, close), and [pre_open, open) its pre-open. `trade_date` is yyyymmdd, the date of
    the close (of `always`: the day)."""

    trade_date: np.ndarray  # int32[S]
    pre_open_ns: np.ndarray  # int64[S]
    open_ns: np.ndarray  # int64[S]
    close_ns: np.ndarray  # int64[S]


@functools.cache
def hours_of(calendar: str) -> Hours:
    """The rule of a calendar. Raises NotFound for an unknown name, BadInput for a text that is none."""
    if calendar in CALENDARS:
        return CALENDARS[calendar]
    if "=" in calendar:
        return parse_hours(calendar)
    raise NotFound(f"calendar {calendar!r} is not known: use one of {', '.join(sorted(CALENDARS))}")


LONGEST_HOURS = 200
"""Characters of a calendar's text: a run's manifest is not believed to hold a longer one (`sim.run_data`)."""

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_KEYS = ("zone", "open", "close", "days", "pre_open_minutes", "closed", "early")


def parse_hours(text: str) -> Hours:
    """The rule that a calendar's text states: `zone=Europe/London open=01:00 close=19:00 days=mon,tue,wed,thu,fri closed=20241225
    early=20241224@12:30 pre_open_minutes=15`. `open=-18:00` is the evening before. Raises BadInput.
    """
    if len(text) > LONGEST_HOURS:
        raise BadInput(f"calendar: its text has {len(text)} characters, and {LONGEST_HOURS} at most can be kept: state fewer dates")
    stated: dict[str, str] = {}
    for word in text.split():
        key, _, value = word.partition("=")
        if key not in _KEYS or key in stated:
            raise BadInput(f"calendar: {word!r} is none of {', '.join(_KEYS)}, or stands twice")
        stated[key] = value
    if missing := [key for key in ("zone", "open", "close") if key not in stated]:
        raise BadInput(f"calendar: {missing[0]} is missing: state zone, open and close")

    def read(key: str, convert: Callable[[str], Any], otherwise: str) -> Any:
        try:
            return convert(stated.get(key, otherwise))
        except (ValueError, KeyError, OSError):
            raise BadInput(f"calendar: {key} = {stated[key]!r} cannot be used: {_HINTS[key]}") from None

    zone = read("zone", lambda name: ZoneInfo(name).key, "")
    evening = stated["open"].startswith("-")
    opens, closes = read("open", lambda clock: _minute(clock.removeprefix("-")), ""), read("close", _minute, "")
    days = read("days", lambda names: tuple(sorted({_DAYS.index(name) for name in names.split(",")})), ",".join(_DAYS[:5]))
    pre_open = read("pre_open_minutes", _whole_minutes, "0")
    closed = read("closed", lambda dates: {_date(day): None for day in dates.split(",") if day}, "")
    early = read("early", lambda pairs: dict(_early(pair) for pair in pairs.split(",") if pair), "")
    earliest = -(24 * 60) + opens if evening else opens
    for what, minute in (("close", closes), *((f"early {day}", minute) for day, minute in early.items())):
        if not earliest < minute <= earliest + 24 * 60:
            raise BadInput(f"calendar: {what} is not after the open within a day: an open on the evening before is written -18:00")
    return Hours(zone, int(evening), opens, closes, days, {**closed, **early}, pre_open, pre_open)


_HINTS = {
    "zone": "name an IANA zone, like Europe/London",
    "open": "write it like 01:00, or -18:00 for the evening before",
    "close": "write it like 17:00",
    "days": "name weekdays, like mon,tue,wed,thu,fri",
    "pre_open_minutes": "use a whole number of minutes, 0 to 1440",
    "closed": "write dates like 20241225",
    "early": "write date and time like 20241224@12:30",
}


def _whole_minutes(text: str) -> int:
    if not 0 <= int(text) <= 24 * 60:
        raise ValueError(text)
    return int(text)


def _date(text: str) -> int:
    return int(dt.datetime.strptime(text, "%Y%m%d").strftime("%Y%m%d"))


def _early(text: str) -> tuple[int, int]:
    day, _, clock = text.partition("@")
    return _date(day), _minute(clock)


def _bounds_ns(hours: Hours, day: dt.date) -> tuple[int, int] | None:
    """(open, close) of a trade date in UTC nanoseconds; None when it has no session."""
    close = hours.closures.get(day.year * 10_000 + day.month * 100 + day.day, hours.close_minute)
    if day.weekday() not in hours.weekdays or close is None:
        return None
    midnight = dt.datetime(day.year, day.month, day.day, tzinfo=ZoneInfo(hours.zone))
    # Wall-clock arithmetic: adding a timedelta within one zone moves the local clock, whatever the offset does in between.
    opens = midnight + dt.timedelta(days=-hours.open_days_before, minutes=hours.open_minute)
    closes = midnight + dt.timedelta(minutes=close)
    return int(opens.timestamp()) * NS_PER_SECOND, int(closes.timestamp()) * NS_PER_SECOND


_LONGEST_AWAY_DAYS = 10
"""The close before a session is looked for so far back: no market of CALENDARS was away for as long."""


def sessions(calendar: str, start_ns: int, end_ns: int) -> Sessions:
    """Every session that has a moment in [start_ns, end_ns). Raises NotFound for an unknown calendar, BadInput when start is after end."""
    hours = hours_of(calendar)
    if start_ns > end_ns:
        raise BadInput(f"the range starts at {format_time_ns(start_ns)}, after its end {format_time_ns(end_ns)}: swap them")
    # Two days of margin on both sides cover every UTC offset and the evening before a trade date.
    epoch = dt.date(1970, 1, 1).toordinal()
    first = epoch + int(start_ns) // (86_400 * NS_PER_SECOND) - 2
    last = epoch + int(end_ns) // (86_400 * NS_PER_SECOND) + 2
    rows: list[tuple[int, int, int, int]] = []
    closed_since = -(2**62)
    for ordinal in range(first - _LONGEST_AWAY_DAYS, last + 1):
        day = dt.date.fromordinal(ordinal)
        if (bounds := _bounds_ns(hours, day)) is None:
            continue
        opens, closes = bounds
        if opens < end_ns and closes > start_ns:
            minutes = hours.pre_open_minutes if opens - closed_since <= _HALT_NS else hours.long_pre_open_minutes
            rows.append((day.year * 10_000 + day.month * 100 + day.day, max(closed_since, opens - minutes * _MINUTE_NS), opens, closes))
        closed_since = closes
    table = np.array(rows, np.int64).reshape(-1, 4)
    return Sessions(table[:, 0].astype(np.int32), *(table[:, column].copy() for column in (1, 2, 3)))


def session_bounds(calendar: str, date: dt.date) -> tuple[int, int]:
    """(open, close) of a trade date in UTC nanoseconds. Raises BadInput when the calendar has no session on that date."""
    hours = hours_of(calendar)
    if (bounds := _bounds_ns(hours, date)) is None:
        why = "a holiday" if date.weekday() in hours.weekdays else f"a {date:%A}"
        raise BadInput(f"{date} is {why}, no trade date of {calendar}: choose another day")
    return bounds


def session_of(sessions: Sessions, ts_ns: np.ndarray) -> np.ndarray:
    """int32[n]: trade date yyyymmdd of the session that holds each time, -1 outside every session of `sessions`."""
    ts = np.asarray(ts_ns).astype(np.int64, copy=False)
    if len(sessions.open_ns) == 0:
        return np.full(ts.shape, -1, np.int32)
    index = np.searchsorted(sessions.open_ns, ts, side="right") - 1
    inside = (index >= 0) & (ts < sessions.close_ns[index])
    return np.where(inside, sessions.trade_date[index], np.int32(-1)).astype(np.int32, copy=False)
