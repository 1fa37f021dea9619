"""Exact conversions between what people write and the integers inside: micro-dollars, nanoseconds, parts per million."""

import datetime as dt
import re
from decimal import Context, Decimal, Inexact, InvalidOperation
from fractions import Fraction

from lob.errors import BadInput

USD_MICROS = 1_000_000
PPM = 1_000_000
PRICE_SCALE = 1_000_000_000
"""Store prices are integers in units of 1e-9 of the quote currency, as in DBN."""
NS_PER_SECOND = 1_000_000_000
UNDEFINED_PRICE = 2**63 - 1
UNDEFINED_TIMESTAMP = 2**64 - 1

_EXACT = Context(prec=60, traps=[Inexact, InvalidOperation])
"""Decimal arithmetic that raises where the default one would round."""
_FRACTION = re.compile(r"[-+]?[0-9]{1,20}(/[0-9]{1,20}|(\.[0-9]{0,20})?([eE][-+]?[0-9]{1,2})?)|[-+]?\.[0-9]{1,20}")
"""What stays a number of some dozen digits."""
_DURATION = re.compile(r"([0-9]{1,18})(ns|us|ms|s|m|h|d)")
_DURATION_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86400 * 10**9}
_ISO = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?)?\s*(Z|[+-]\d\d:?\d\d)?")


def usd_to_micros(text: str | int | Decimal) -> int:
    """Micro-dollars of a decimal dollar amount. Raises BadInput when it is no number or finer than a micro-dollar."""
    try:
        amount = Decimal(text)
    except (ArithmeticError, ValueError, TypeError):
        raise BadInput(f"{text!r} is not a dollar amount: write it like 250000 or 2.25") from None
    if not amount.is_finite() or amount.adjusted() > 12 or abs(amount) * USD_MICROS >= 2**63:
        raise BadInput(f"{text!r} is not a dollar amount that can be held: write a number below 9,000,000,000,000, like 250000 or 2.25")
    try:
        return int(_EXACT.multiply(amount, Decimal(USD_MICROS)).quantize(Decimal(1), context=_EXACT))
    except (Inexact, InvalidOperation):
        raise BadInput(f"{text!r} is finer than a micro-dollar: use at most six decimals") from None


def exact_fraction(value: str | int | Decimal) -> Fraction:
    """`0.25`, `1/64` or a whole number, exactly. Raises BadInput, at once also for what would have a million digits (`1e999999`)."""
    text = str(value).strip()
    if not _FRACTION.fullmatch(text):
        raise BadInput(f"{text[:40]!r} is no number: write it like 0.25 or 1/64")
    try:
        return Fraction(text)
    except ZeroDivisionError:
        raise BadInput(f"{text[:40]!r} divides by zero: write it like 0.25 or 1/64") from None


def format_usd(micros: int) -> str:
    """`$-4,457,625.18`: exact, two decimals when that is exact and six otherwise."""
    sign, magnitude = ("-" if micros < 0 else ""), abs(int(micros))
    dollars, rest = divmod(magnitude, USD_MICROS)
    decimals = f"{rest:06d}" if rest % 10_000 else f"{rest // 10_000:02d}"
    return f"${sign}{dollars:,}.{decimals}"


def parse_duration_ns(text: str) -> int:
    """Nanoseconds of `1ms`, `30s`, `5m`, … Raises BadInput."""
    match = _DURATION.fullmatch(text.strip())
    if not match:
        raise BadInput(f"{text!r} is not a duration: write a whole number and one of ns us ms s m h d, like 1ms")
    return int(match[1]) * _DURATION_NS[match[2]]


def parse_time_ns(text: str) -> tuple[int, bool]:
    """(UTC nanoseconds since 1970, whether the text named a zone). Without a zone the text is read as UTC. Raises BadInput."""
    match = _ISO.fullmatch(text.strip())
    if not match:
        raise BadInput(f"{text!r} is not a time: write it like 2023-12-25, 2023-12-25T23:00 or 2023-12-25T18:00:00-05:00")
    day, minute, second, fraction, zone = match.groups()
    try:
        base = dt.datetime.fromisoformat(f"{day}T{minute or '00:00'}:{second or '00'}+00:00")
        offset = dt.datetime.fromisoformat(f"2000-01-01T00:00:00{'+00:00' if zone in (None, 'Z') else zone}").utcoffset()
    except ValueError as error:
        raise BadInput(f"{text!r} is not a time: {error}") from None
    assert offset is not None
    seconds = (base - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(seconds=1) - offset // dt.timedelta(seconds=1)
    return seconds * NS_PER_SECOND + int((fraction or "").ljust(9, "0") or 0), zone is not None


def format_time_ns(ns: int) -> str:
    """`2023-12-25T23:00:00.000000000Z`, every digit kept."""
    seconds, rest = divmod(int(ns), NS_PER_SECOND)
    stamp = dt.datetime(1970, 1, 1) + dt.timedelta(seconds=seconds)
    return f"{stamp:%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def format_length_ns(ns: int) -> str:
    """A length of time for a person: `545 days`, `4.5 hours`, `12 minutes`, `40 seconds`; one decimal below ten, none of it exact."""
    for unit, unit_ns in (("days", 86400), ("hours", 3600), ("minutes", 60), ("seconds", 1)):
        amount = ns / (unit_ns * NS_PER_SECOND)
        if amount >= 2 or unit == "seconds":
            return f"{amount:.0f} {unit}" if amount >= 10 or amount == int(amount) else f"{amount:.1f} {unit}"
    raise AssertionError("seconds hold every length")


def counted(count: int, noun: str) -> str:
    """`1 lane`, `1,234 lanes`: a count with its noun, whose plural takes an s."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
