"""Laws of the conversions: what people write becomes an exact integer or one clear line, and comes back as it was."""

import datetime as dt
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lob.errors import BadInput
from lob.units import counted, format_time_ns, format_usd, parse_duration_ns, parse_time_ns, usd_to_micros

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("2.25", 2_250_000),
        ("250000", 250_000_000_000),
        (17_900, 17_900_000_000),
        ("-0.000001", -1),
        (Decimal("1e-6"), 1),
        ("0", 0),
        ("1E3", 10**9),
    ],
)
def test_a_dollar_amount_is_exact(text, micros: int) -> None:
    assert usd_to_micros(text) == micros


@pytest.mark.parametrize(
    "text", ["", "abc", "1,000", "$5", "nan", "inf", "-Infinity", "sNaN", "1e400", "1e999999999", "9223372036854.775808", None]
)
def test_what_is_no_dollar_amount_is_refused(text) -> None:
    with pytest.raises(BadInput, match="not a dollar amount"):
        usd_to_micros(text)


@pytest.mark.parametrize("text", ["0.0000001", "2.2500001", "1." + "0" * 40 + "1", "1." + "0" * 80 + "1", "1e-400"])
def test_what_is_finer_than_a_micro_dollar_is_refused_and_never_rounded(text: str) -> None:
    with pytest.raises(BadInput, match="finer than a micro-dollar"):
        usd_to_micros(text)


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_a_formatted_amount_reads_back_as_it_was(micros: int) -> None:
    text = format_usd(micros)
    assert text[0] == "$" and usd_to_micros(text[1:].replace(",", "")) == micros
    assert Fraction(text[1:].replace(",", "")) == Fraction(micros, 10**6)


def test_amounts_are_written_with_two_decimals_when_that_is_exact() -> None:
    assert [format_usd(m) for m in (0, -4_457_625_180_000, 10_000, 10_001, -1)] == [
        "$0.00", "$-4,457,625.18", "$0.01", "$0.010001", "$-0.000001",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1ns", 1),
        ("7us", 7_000),
        ("1ms", 10**6),
        ("30s", 30 * 10**9),
        ("5m", 300 * 10**9),
        ("2h", 7_200 * 10**9),
        ("1d", 86_400 * 10**9),
        (" 0s ", 0),
    ],
)
def test_a_duration_is_whole_nanoseconds(text: str, ns: int) -> None:
    assert parse_duration_ns(text) == ns


@pytest.mark.parametrize("text", ["", "1", "s", "1.5s", "-1s", "1 s", "1w", "1sm"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="not a duration"):
        parse_duration_ns(text)


@given(st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2250, 1, 1)), st.integers(0, 999), st.integers(-14 * 60, 14 * 60))
def test_a_time_with_its_zone_is_the_instant_that_it_names(local: dt.datetime, nanos: int, offset_minutes: int) -> None:
    zone = dt.timezone(dt.timedelta(minutes=offset_minutes))
    aware = local.replace(tzinfo=zone)
    sign, hours, minutes = ("-" if offset_minutes < 0 else "+"), abs(offset_minutes) // 60, abs(offset_minutes) % 60
    text = f"{local:%Y-%m-%dT%H:%M:%S}.{local.microsecond:06d}{nanos:03d}{sign}{hours:02d}:{minutes:02d}".replace(
        f"{local:%Y}", f"{local.year:04d}", 1
    )
    elapsed = aware - EPOCH
    expected = (elapsed.days * 86_400 + elapsed.seconds) * 10**9 + elapsed.microseconds * 1_000 + nanos
    assert parse_time_ns(text) == (expected, True)
    assert parse_time_ns(format_time_ns(expected)) == (expected, True)


def test_a_time_without_zone_is_read_as_utc_and_says_so() -> None:
    assert parse_time_ns("2023-12-25") == (1_703_462_400 * 10**9, False)
    assert parse_time_ns("2023-12-25T23:00") == (1_703_545_200 * 10**9, False)
    assert parse_time_ns("2023-12-25 23:00:00.5Z") == (1_703_545_200 * 10**9 + 500_000_000, True)
    assert parse_time_ns("2023-12-25T18:00:00-05:00") == (1_703_545_200 * 10**9, True)
    assert format_time_ns(1_703_545_200 * 10**9 + 1) == "2023-12-25T23:00:00.000000001Z"


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2023-13-01", "2023-02-29", "2023-12-25T25:00", "2023-12-25T23", "25.12.2023", "2023-12-25T23:00+99:00"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="not a time"):
        parse_time_ns(text)


def test_one_thing_is_singular_and_every_other_count_is_not():
    assert [counted(n, "lane") for n in (0, 1, 2, 1234)] == ["0 lanes", "1 lane", "2 lanes", "1,234 lanes"]


def test_an_error_without_words_is_told_by_its_type_and_a_long_one_by_its_first_line():
    from lob.errors import first_line

    assert first_line(ValueError()) == "ValueError"
    assert first_line(OSError("disk gone\nand more")) == "disk gone"
