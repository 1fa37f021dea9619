"""Local wall-clock times to UTC, over whole arrays, with the two traps of daylight saving handled in the open.

A time that the spring change skips does not exist and is a fault. A time in the hour that the autumn change repeats is told by file
order: the first run through the hour is the earlier one, and when the clock steps back the second begins; a file that runs through the
hour only once does not say which it means and is a fault.
"""

import datetime as dt
import zoneinfo
from dataclasses import dataclass

import numpy as np

from lob.errors import BadInput
from lob.units import NS_PER_SECOND

_DAY_NS = 86_400 * NS_PER_SECOND
_EPOCH = dt.datetime(1970, 1, 1)


def zone_of(name: str, where: str) -> zoneinfo.ZoneInfo:
    """The IANA time zone. Raises BadInput."""
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise BadInput(f"{where}: {name!r} is no IANA time zone: write it like America/New_York or UTC") from None


@dataclass
class RepeatedHour:
    """Where the conversion stands between two batches: the repeated hour it is in, and whether its second run has begun."""

    key: tuple[int, int] | None = None
    second: bool = False
    last_ns: int = 0
    line: int = 0
    text: str = ""


def to_utc(
    local_ns: np.ndarray, lines: np.ndarray, zone: zoneinfo.ZoneInfo, state: RepeatedHour, whole_days: bool, where: str
) -> np.ndarray:
    """UTC ns int64[n] of local ns int64[n]. `whole_days`: the times are days' openings, so a skipped or repeated midnight means the first
    instant of the day. Raises BadInput naming the line of a time that does not exist, or whose run of a repeated hour cannot be told."""
    days, of_day = np.unique(local_ns // _DAY_NS, return_inverse=True)
    constant, offsets = zip(*(_offset_of_day(int(day), zone) for day in days), strict=True)
    utc = local_ns - np.array(offsets, np.int64)[of_day]
    for i in np.flatnonzero(~np.array(constant)[of_day]):
        utc[i] = _one_to_utc(int(local_ns[i]), int(lines[i]), zone, state, whole_days, where)
    return utc


def finish(state: RepeatedHour, zone: zoneinfo.ZoneInfo, where: str) -> None:
    """Raises BadInput when the times end, or go on, after a repeated hour that was given once."""
    if state.key is not None and not state.second:
        raise BadInput(
            f"{where}: line {state.line}: {state.text} occurs twice in {zone.key} (clocks go back) and the file runs "
            "through that hour once, so which of the two is meant cannot be told: give the times in UTC"
        )
    state.key = None


def _offsets(local: dt.datetime, zone: zoneinfo.ZoneInfo) -> tuple[int, int]:
    """Offsets from UTC in ns, of the first and of the second reading of a local time."""
    first, second = (zone.utcoffset(local.replace(tzinfo=zone, fold=fold)) for fold in (0, 1))
    assert first is not None and second is not None
    return first // dt.timedelta(microseconds=1) * 1000, second // dt.timedelta(microseconds=1) * 1000


def _offset_of_day(day: int, zone: zoneinfo.ZoneInfo) -> tuple[bool, int]:
    """(whether one offset holds all day, that offset): asked for every second hour, closer than two changes ever are."""
    midnight = _EPOCH + dt.timedelta(days=day)
    found = {offset for hour in range(-2, 27, 2) for offset in _offsets(midnight + dt.timedelta(hours=hour), zone)}
    return len(found) == 1, min(found)


def _one_to_utc(local_ns: int, line: int, zone: zoneinfo.ZoneInfo, state: RepeatedHour, whole_days: bool, where: str) -> int:
    local = _EPOCH + dt.timedelta(seconds=local_ns // NS_PER_SECOND)
    first, second = _offsets(local, zone)
    if first == second or whole_days:
        finish(state, zone, where)
        return local_ns - first
    if first < second:
        raise BadInput(f"{where}: line {line}: {local} does not exist in {zone.key} (clocks go forward over it): is --timezone right?")
    key = (local_ns // _DAY_NS, second)
    if state.key != key:
        finish(state, zone, where)
        state.key, state.second, state.line, state.text = key, False, line, str(local)
    elif local_ns <= state.last_ns:
        if state.second:
            raise BadInput(f"{where}: line {line}: {local} runs a third time through the hour that {zone.key} repeats: sort the file")
        state.second = True
    state.last_ns = local_ns
    return local_ns - (second if state.second else first)
