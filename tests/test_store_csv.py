"""Laws of the CSV readers. The oracles are the csv module, `decimal`, `fractions` and `datetime`, cell by cell: no code of ours."""

import csv
import datetime as dt
import gzip
import re
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from zoneinfo import ZoneInfo

import databento_dbn
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from lob.errors import BadInput
from lob.records import OHLCV
from store.csv_cells import OK, TOO_FINE, TOO_LARGE, days_since_1970, parse_decimal, parse_moment
from store.csv_ohlcv import parse_columns, read_ohlcv_csv
from store.readers import open_source

HEADER = "timestamp,open,high,low,close,volume\n"
ROW = "2023-09-25 10:00:00,4365.00,4367.50,4364.25,4365.25,1132\n"
SECOND = "2023-09-25 10:01:00,4365.25,4366.00,4365.00,4365.75,7\n"
MINUTE_NS = 60 * 10**9


def bars(path: Path, schema: str = "ohlcv-1m", timezone: str | None = "UTC", **options) -> np.ndarray:
    batches = list(read_ohlcv_csv(path, schema, timezone, **options))
    return np.concatenate(batches) if batches else np.empty(0, OHLCV)


def text_file(folder: Path, text: str | bytes, name: str = "x.csv") -> Path:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / name


def fault(path: Path, **options) -> str:
    with pytest.raises(BadInput) as caught:
        bars(path, **options)
    line = str(caught.value)
    assert "\n" not in line and line.startswith(str(path)), line
    return line


def ns_of(*when: int, zone: str = "UTC", fold: int = 0) -> int:
    stamp = dt.datetime(*when, tzinfo=ZoneInfo(zone), fold=fold)  # type: ignore[misc,arg-type]
    return int(stamp.timestamp()) * 10**9


# ---------------------------------------------------------------- exactness


@settings(max_examples=300, deadline=None)
@given(
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**12), max_value=10**12), st.integers(0, 25), st.sampled_from("fEe")
)
def test_every_decimal_text_is_exact_or_refused(number, zeros, form):
    text = format(number, "f") if form == "f" else f"{number:{form}}"
    if "." in text and form == "f":
        text += "0" * zeros
    data = np.frombuffer(text.encode(), np.uint8)
    value, code = parse_decimal(data, 0, len(data), 9)
    true = Fraction(number) * 10**9
    exponent = re.search(r"[eE][+-]?(\d+)$", text)
    if exponent and len(exponent[1]) > 3:
        return
    if true.denominator != 1 and abs(true) < 2**63:
        assert code == TOO_FINE
    elif true.denominator != 1 or abs(true) >= 2**63:
        assert code in (TOO_FINE, TOO_LARGE)
    else:
        assert (int(value), code) == (true, OK)


@pytest.mark.parametrize("text", ["", "-", ".", "1.2.3", "1,5", "1_000", "0x10", "nan", "inf", "1e", "1e+", "1e99999", "--1", "1-", "١"])
def test_what_is_no_number_is_refused(text):
    data = np.frombuffer(text.encode(), np.uint8)
    assert parse_decimal(data, 0, len(data), 9)[1] != OK


def test_the_largest_prices_are_exact_and_one_more_is_refused():
    for text, expected in (("9223372036.854775807", 2**63 - 1), ("-9223372036.854775807", -(2**63) + 1), ("9223372036.854775808", None)):
        data = np.frombuffer(text.encode(), np.uint8)
        value, code = parse_decimal(data, 0, len(data), 9)
        assert (int(value), code) == (expected, OK) if expected is not None else code == TOO_LARGE


def test_every_day_from_1970_to_2261_counts_as_datetime_counts():
    day = dt.date(1970, 1, 1)
    for count in range(0, 106_000, 1):
        date = day + dt.timedelta(days=count)
        assert days_since_1970(date.year, date.month, date.day) == count
    for bad in ((2023, 2, 29), (1900, 2, 29), (2023, 4, 31), (2023, 13, 1), (2023, 0, 1), (2023, 1, 0), (1969, 12, 31), (2262, 1, 1)):
        assert days_since_1970(*bad) == -1


@settings(max_examples=200, deadline=None)
@given(
    st.datetimes(min_value=dt.datetime(1971, 1, 1), max_value=dt.datetime(2200, 1, 1)),
    st.integers(0, 999),
    st.integers(-14 * 60, 14 * 60),
    st.sampled_from("T "),
    st.booleans(),
)
def test_iso_times_are_exact_to_the_nanosecond(when, ns, minutes, mark, colon):
    sign, hours, rest = "-" if minutes < 0 else "+", *divmod(abs(minutes), 60)
    text = f"{when:%Y-%m-%d}{mark}{when:%H:%M:%S.%f}{ns:03d}{sign}{hours:02d}{':' if colon else ''}{rest:02d}"
    value, zoned, code = parse_moment(np.frombuffer(text.encode(), np.uint8), 0, len(text), 0)
    seconds = (when.replace(microsecond=0) - dt.datetime(1970, 1, 1)) // dt.timedelta(seconds=1)
    assert (int(value), bool(zoned), code) == ((seconds - minutes * 60) * 10**9 + when.microsecond * 1000 + ns, True, OK)


# ---------------------------------------------------------------- bars: real files


@pytest.mark.parametrize(
    ("name", "zone"),
    [("ES_1min_2023-09-24_2023-10-09.csv", "America/New_York"), ("ES_1min_2025-04-20_2025-05-05.csv", "America/New_York")]
    + [("6EH4.XCME_1min_bars_20240101_20240131.csv.gz", "UTC")],
)
def test_real_bars_equal_a_plain_reading_with_csv_and_decimal(shared_data, name, zone):
    path = shared_data / "ohlcv" / name
    ours = bars(path, timezone=zone)
    text = gzip.decompress(path.read_bytes()) if name.endswith(".gz") else path.read_bytes()
    rows = list(csv.reader(text.decode().splitlines()))[1:]
    assert len(ours) == len(rows) > 15_000
    for record, (stamp, *prices, volume) in zip(ours, rows, strict=True):
        when = dt.datetime.fromisoformat(stamp).replace(tzinfo=ZoneInfo(zone))
        assert int(record["ts_event"]) == int(when.timestamp()) * 10**9
        assert [int(record[part]) for part in ("open", "high", "low", "close")] == [int(Decimal(price) * 10**9) for price in prices]
        assert int(record["volume"]) == int(volume)
    assert set(ours["rtype"]) == {0x21} and set(ours["length"]) == {14}


# ---------------------------------------------------------------- bars: forms of a file


@pytest.mark.parametrize(
    "text",
    [
        HEADER + ROW,
        ROW,
        (HEADER + ROW).replace("\n", "\r\n"),
        "\ufeff" + HEADER + ROW,
        "\ufeff" + ROW,
        HEADER + ROW.rstrip("\n"),
        "\n\n" + HEADER + "\n" + ROW + "\n\n",
        (HEADER + ROW).replace(",", ";"),
        (HEADER + ROW).replace(",", "\t"),
        (HEADER + ROW).replace(",", "|"),
        (HEADER + ROW).replace(",", " , "),
        "Date,Time,O,H,L,C,Vol\n" + ROW.replace(" ", ","),
        ROW.replace(" ", ","),
        ROW.replace("2023-09-25 10:00:00", "20230925,100000"),
        ROW.replace("2023-09-25 10:00:00", "20230925 100000"),
        ROW.replace("2023-09-25 10:00:00", "2023.09.25,10:00"),
        ROW.replace("2023-09-25 10:00:00", "2023/9/25 10:00"),
        ROW.replace("2023-09-25 10:00:00", "2023-09-25T10:00:00.000Z"),
        ROW.replace("2023-09-25 10:00:00", "2023-09-25 12:00:00+02:00"),
        ROW.replace("2023-09-25 10:00:00", "1695636000"),
        ROW.replace("2023-09-25 10:00:00", "1695636000000"),
        ROW.replace("2023-09-25 10:00:00", "1695636000000000"),
        ROW.replace("2023-09-25 10:00:00", "1695636000000000000"),
        "<DATE>\t<TIME>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\t<TICKVOL>\t<VOL>\n2023.09.25\t10:00:00\t4365\t4367.5\t4364.25\t4365.25\t9\t1132\n",
        "Volume,Close,Low,High,Open,DateTime,Adj Close,Open Interest\n1132,4365.25,4364.25,4367.50,4365,2023-09-25 10:00,x,\n",
        ",timestamp,OPEN,HIGH,LOW,LAST,VOLUME\n0,2023-09-25 10:00:00,4365.00,4367.50,4364.25,4365.25,1132.0\n",
        '"timestamp","open","high","low","close","volume"\n"2023-09-25 10:00:00","4365.00","4367.50","4364.25","4365.25","1132"\n',
        HEADER + ROW.replace("4365.00", "+4365.000000000000000000000").replace("1132", "1.132e3"),
    ],
)
def test_every_usual_form_of_a_file_gives_the_same_bar(tmp_path, text):
    record = bars(text_file(tmp_path, text))
    assert record.tolist() == [(14, 0x21, 0, 0, ns_of(2023, 9, 25, 10), 4365 * 10**9, 4367500000000, 4364250000000, 4365250000000, 1132)]


def test_compressed_files_are_told_by_their_content(tmp_path):
    text = (HEADER + ROW + SECOND).encode()
    plain = bars(text_file(tmp_path, text))
    assert np.array_equal(plain, bars(text_file(tmp_path, gzip.compress(text), "y.csv")))
    assert np.array_equal(plain, bars(text_file(tmp_path, zstandard.compress(text), "z.txt")))


def test_a_bar_stamped_at_its_end_opens_one_bar_earlier(tmp_path):
    path = text_file(tmp_path, HEADER + ROW)
    assert bars(path, stamp="end")["ts_event"][0] == bars(path)["ts_event"][0] - MINUTE_NS
    assert bars(path, schema="ohlcv-1h", stamp="end")["ts_event"][0] == ns_of(2023, 9, 25, 9)
    daily = text_file(tmp_path, HEADER + "2023-11-05,1,1,1,1,1\n2023-11-06,1,1,1,1,1\n")
    opens = bars(daily, schema="ohlcv-1d", timezone="America/New_York", stamp="end")["ts_event"].tolist()
    assert opens == [ns_of(2023, 11, 4, zone="America/New_York"), ns_of(2023, 11, 5, zone="America/New_York")]
    assert opens[1] - opens[0] == 86_400 * 10**9 and opens[0] == ns_of(2023, 11, 4, 4)


def test_dates_with_the_year_last_need_their_order_stated(tmp_path):
    path = text_file(tmp_path, ROW.replace("2023-09-25 10:00:00", "09/05/2023,10:00"))
    assert "is '09/05/2023' month first or day first? State --date-order" in fault(path)
    assert bars(path, date_order="mdy")["ts_event"][0] == ns_of(2023, 9, 5, 10)
    assert bars(path, date_order="dmy")["ts_event"][0] == ns_of(2023, 5, 9, 10)


def test_columns_can_be_stated_by_name_or_number(tmp_path):
    path = text_file(tmp_path, "when,q,w,e,r,t\n" + ROW)
    assert "no column for time, open, high, low, close, volume among: when, q, w, e, r, t" in fault(path)
    stated = {"time": "when", "open": "q", "high": "w", "low": "e", "close": "r", "volume": "t"}
    assert bars(path, columns=stated)["close"][0] == 4365250000000
    bare = text_file(tmp_path, "7," + ROW)
    assert "7 columns and no header" in fault(bare)
    numbered = {"time": "2", "open": "3", "high": "4", "low": "5", "close": "6", "volume": "7"}
    assert bars(bare, columns=numbered)["close"][0] == 4365250000000
    assert "a number from 1 to 7, not '9'" in fault(bare, columns={**numbered, "volume": "9"})
    assert "one column is stated for two parts" in fault(bare, columns={**numbered, "volume": "6"})
    assert "no column is named 'f'" in fault(text_file(tmp_path, "when,q,w,e,r,t\n" + ROW), columns={**stated, "volume": "f"})
    assert "no such part of a bar: bid" in fault(path, columns={"bid": "q"})


def test_stated_columns_are_written_as_pairs():
    assert parse_columns("time=When, open=O") == {"time": "When", "open": "O"} and parse_columns(None) == {}
    for bad in ("time", "time=", "bid=1", "=x"):
        with pytest.raises(BadInput, match="write parts and columns like time=When"):
            parse_columns(bad)


def test_many_blocks_of_text_give_what_one_would(tmp_path):
    count = 200_000
    start = ns_of(2020, 1, 1) // 10**9
    rows = (f"{dt.datetime.fromtimestamp(start + 60 * i, dt.UTC):%Y-%m-%d %H:%M:%S},{i}.25,{i}.5,{i}.0,{i},{i}\n" for i in range(count))
    records = bars(text_file(tmp_path, HEADER + "".join(rows)))
    i = np.arange(count)
    assert np.array_equal(records["ts_event"], (start + 60 * i) * 10**9)
    assert np.array_equal(records["open"], i * 10**9 + 250_000_000) and np.array_equal(records["volume"], i)


def test_a_file_with_a_header_alone_has_no_bars(tmp_path):
    assert len(bars(text_file(tmp_path, HEADER))) == 0
    assert list(open_source(text_file(tmp_path, HEADER), schema="ohlcv-1m", timezone="UTC").batches()) == []


# ---------------------------------------------------------------- time zones


def test_the_zone_must_be_stated_unless_the_file_does(tmp_path):
    assert "state it, like --timezone America/New_York" in fault(text_file(tmp_path, HEADER + ROW), timezone=None)
    assert "'EST5' is no IANA time zone" in fault(text_file(tmp_path, HEADER + ROW), timezone="EST5")
    says = text_file(tmp_path, HEADER.replace("timestamp", "timestamp_utc") + ROW)
    assert bars(says, timezone=None)["ts_event"][0] == ns_of(2023, 9, 25, 10)
    assert "column 1 (timestamp_utc) says UTC, but --timezone is Asia/Tokyo" in fault(says, timezone="Asia/Tokyo")
    zoned = text_file(tmp_path, HEADER + ROW.replace("10:00:00", "10:00:00Z") + SECOND)
    assert "line 3: its time names no zone, unlike the lines before" in fault(zoned)


def minutes(first: dt.datetime, count: int) -> list[dt.datetime]:
    return [first + dt.timedelta(minutes=i) for i in range(count)]


def as_rows(stamps: list[dt.datetime]) -> str:
    return HEADER + "".join(f"{stamp:%Y-%m-%d %H:%M:%S},1,1,1,1,1\n" for stamp in stamps)


@pytest.mark.parametrize(("zone", "utc_start"), [("America/New_York", (2023, 11, 5, 4, 30)), ("Australia/Lord_Howe", (2023, 4, 1, 14, 0))])
def test_both_runs_through_the_repeated_hour_are_told_apart(tmp_path, zone, utc_start):
    true = [dt.datetime(*utc_start, tzinfo=dt.UTC) + dt.timedelta(minutes=i) for i in range(300)]
    local = [stamp.astimezone(ZoneInfo(zone)).replace(tzinfo=None) for stamp in true]
    assert len(set(local)) < len(local), "the hour is in the span"
    ours = bars(text_file(tmp_path, as_rows(local)), timezone=zone)["ts_event"].tolist()
    assert ours == [int(stamp.timestamp()) * 10**9 for stamp in true]


def test_a_repeated_hour_that_is_there_once_is_refused_by_line(tmp_path):
    path = text_file(tmp_path, as_rows(minutes(dt.datetime(2023, 11, 5, 0, 30), 180)))
    assert "line 32: 2023-11-05 01:00:00 occurs twice in America/New_York" in fault(path, timezone="America/New_York")
    at_the_end = text_file(tmp_path, as_rows(minutes(dt.datetime(2023, 11, 5, 0, 30), 40)))
    assert "line 32: 2023-11-05 01:00:00 occurs twice" in fault(at_the_end, timezone="America/New_York")


def test_a_time_that_the_spring_change_skips_is_refused_by_line(tmp_path):
    path = text_file(tmp_path, as_rows(minutes(dt.datetime(2024, 3, 10, 1, 58), 4)))
    assert "line 4: 2024-03-10 02:00:00 does not exist in America/New_York" in fault(path, timezone="America/New_York")
    fine = minutes(dt.datetime(2024, 3, 10, 1, 58), 2) + minutes(dt.datetime(2024, 3, 10, 3, 0), 2)
    ours = bars(text_file(tmp_path, as_rows(fine)), timezone="America/New_York")["ts_event"]
    assert np.diff(ours).tolist() == [MINUTE_NS] * 3


def test_days_open_at_local_midnight_also_where_midnight_is_skipped(tmp_path):
    stamps = [dt.datetime(2018, 11, 3), dt.datetime(2018, 11, 4), dt.datetime(2018, 11, 5)]
    text = HEADER + "".join(f"{stamp:%Y-%m-%d},1,1,1,1,1\n" for stamp in stamps)
    ours = bars(text_file(tmp_path, text), schema="ohlcv-1d", timezone="America/Sao_Paulo")["ts_event"].tolist()
    assert ours == [ns_of(2018, 11, 3, 3), ns_of(2018, 11, 4, 3), ns_of(2018, 11, 5, 2)]


# ---------------------------------------------------------------- order of bars


def test_a_bar_given_twice_is_refused_by_line(tmp_path):
    assert "line 3: the bar at 2023-09-25T10:00:00.000000000Z is given twice" in fault(text_file(tmp_path, HEADER + ROW + ROW))
    assert "line 5: the bar at 2023-09-25T10:00:00.000000000Z is given twice" in fault(
        text_file(tmp_path, HEADER + ROW + SECOND + "\n" + ROW)
    )


def test_bars_out_of_order_are_kept_in_file_order(tmp_path):
    late = [0, 1, 5, 3, 4, 6, 2, 7]
    stamps = [dt.datetime(2023, 9, 25, 10, i) for i in late]
    ours = bars(text_file(tmp_path, as_rows(stamps)))["ts_event"]
    assert [(int(ns) - ns_of(2023, 9, 25, 10)) // MINUTE_NS for ns in ours] == late


def test_a_schema_that_the_distances_contradict_is_refused(tmp_path):
    path = text_file(tmp_path, as_rows(minutes(dt.datetime(2023, 9, 25), 200)))
    assert "line 3: the bar at 2023-09-25T00:01:00.000000000Z opens 60 s after the one before, less than a bar of ohlcv-1h" in fault(
        path, schema="ohlcv-1h"
    )
    assert "all bars lie 60 s or a multiple apart, so they are not ohlcv-1s" in fault(path, schema="ohlcv-1s")
    newest_first = text_file(tmp_path, as_rows(minutes(dt.datetime(2023, 9, 25), 200)[::-1]))
    assert "from the newest to the oldest: turn the file round" in fault(newest_first)


# ---------------------------------------------------------------- bars: bad input, each with line and column


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEADER + ROW + SECOND.replace("4366.00", "43x6"), "line 3, column 3 (high): '43x6' is not a number"),
        (HEADER + ROW + SECOND.replace("4366.00", ""), "line 3, column 3 (high): '' is empty"),
        (HEADER + "\n" + ROW + SECOND.replace("4366.00", "NaN"), "line 4, column 3 (high): 'NaN' is not a number"),
        (HEADER + ROW.replace("4365.25", "4365.1234567891"), "line 2, column 5 (close): '4365.1234567891' is finer"),
        (HEADER + ROW.replace("4365.25", "1e11"), "line 2, column 5 (close): '1e11' is too large"),
        (HEADER + ROW.replace("1132", "1132.5"), "line 2, column 6 (volume): '1132.5' is finer"),
        (HEADER + ROW.replace("1132", "-1"), "line 2, column 6 (volume): '-1' is outside the column's range"),
        (HEADER + ROW.replace("10:00:00", "25:00:00"), "line 2, column 1 (timestamp): '2023-09-25 25:00:00' is not a date or time of day"),
        (HEADER + ROW.replace("09-25", "02-30"), "line 2, column 1 (timestamp): '2023-02-30 10:00:00' is not a date"),
        (HEADER + ROW.replace("2023-09-25 10:00:00", "yesterday"), "line 2, column 1 (timestamp): 'yesterday' is not a time"),
        (HEADER + ROW + SECOND.replace("2023-09-25 10:01:00", "1695636060"), "line 3, column 1 (timestamp): '1695636060' is not a date"),
        (HEADER + ROW + "2023-09-25 10:02:00,1,1,1\n", "line 3 has 4 cells, not 6"),
        (HEADER + ROW + SECOND.strip() + ",9\n", "line 3 has 7 cells, not 6"),
        (HEADER + ROW.replace("4365.00", '"4365.00'), "line 2, column 2 (open): "),
        (ROW + SECOND.replace("4365.75", "?"), "line 2, column 5 (close): '?' is not a number"),
        (HEADER.replace("high", "open") + ROW, "column 2 (open) and column 3 (open) could both be the open: rename one"),
        ("timestamp,open,high,low,close,last,volume\n" + ROW, "column 5 (close) and column 6 (last) could both be the close: say which"),
        (HEADER.replace(",volume", "") + ROW.replace(",1132", ""), "no column for volume among"),
        ("hello\nworld\n", "has one cell whatever the delimiter"),
        ("\n\n  \n", "holds no line of text"),
        ("", "the file is empty"),
        ((HEADER + ROW).replace("\n", "\r"), "has CR inside its first lines"),
        (b"\xff\xfe" + (HEADER + ROW).encode("utf-16-le"), "text in UTF-16: save it as UTF-8"),
        ("a" * 70_000, "its first line is longer than 65536 bytes"),
        (b"DBN\x03" + bytes(200), "a DBN file, not a CSV"),
        ("34200.004241176,1,16113575,18,5853300,1\n", "looks like a LOBSTER message file, which goes in with its order book file"),
        (bytes(range(256)), "not a DBN file and not UTF-8 text"),
    ],
)
def test_a_damaged_file_is_one_line_that_names_the_place(tmp_path, text, said):
    assert said in fault(text_file(tmp_path, text))


def test_a_damaged_cell_far_into_a_large_file_is_named(tmp_path):
    lines = as_rows(minutes(dt.datetime(2020, 1, 1), 250_000)).splitlines(keepends=True)
    lines[249_000] = lines[249_000].replace(",1\n", ",l\n")
    assert "line 249001, column 6 (volume): 'l' is not a number" in fault(text_file(tmp_path, "".join(lines)))


def test_a_truncated_gzip_is_refused(tmp_path):
    data = gzip.compress((HEADER + ROW * 50).encode())
    assert "gzip stream is cut off before its end" in fault(text_file(tmp_path, data[:-9], "x.csv.gz"))
    broken = bytearray(data)
    broken[len(data) // 2] ^= 0xFF
    assert "gzip stream is damaged" in fault(text_file(tmp_path, bytes(broken), "x.csv.gz"))


def test_a_line_without_an_end_is_refused_in_bounded_memory(tmp_path):
    assert "is longer than 4194304 bytes: not a CSV" in fault(text_file(tmp_path, HEADER + ROW + "1" * (9 << 20)))


def test_impossible_options_are_refused(tmp_path):
    path = text_file(tmp_path, HEADER + ROW)
    assert "cannot have schema mbp-10; these can: ohlcv-1s" in fault(path, schema="mbp-10")
    assert "not at 'middle'" in fault(path, stamp="middle")
    assert "a date order is one of ymd, mdy, dmy" in fault(path, date_order="ydm")
    assert "cannot be a delimiter" in fault(path, delimiter=",,")
    assert "no column for time" in fault(text_file(tmp_path, HEADER + ROW), delimiter=";")


# ---------------------------------------------------------------- one way in


def test_open_source_tells_every_format_and_checks_the_schema(tmp_path, shared_data):
    dbn = open_source(shared_data / "ohlcv" / "esu4_nqu4_20240701_30min.ohlcv-1m.dbn.zst")
    assert (dbn.format, dbn.schema) == ("dbn", "ohlcv-1m")
    assert dbn.symbol_of(118, dt.date(2024, 7, 1)) == "ESU4" and sum(map(len, dbn.batches())) == sum(map(len, dbn.batches())) == 60
    path = text_file(tmp_path, HEADER + ROW)
    source = open_source(path, schema="ohlcv-1m", timezone="UTC")
    assert (source.format, source.symbol_of(0, dt.date(2023, 9, 25))) == ("csv-ohlcv", None)
    assert sum(map(len, source.batches())) == 1
    with pytest.raises(BadInput, match="state it, like --schema ohlcv-1m"):
        open_source(path)
    with pytest.raises(BadInput, match="holds schema ohlcv-1m, not trades"):
        open_source(dbn.path, schema="trades")
    with pytest.raises(BadInput, match="holds schema mbp-10, not trades"):
        open_source(shared_data / "mbp10" / "aapl_xnas_20241021.mbp-10.csv", schema="trades")
    assert open_source(shared_data / "l1" / "esu4_nqu4_20240701.definition.dbn.zst").schema == "definition"


# ---------------------------------------------------------------- bars of several instruments; Databento's OHLCV CSV


def test_interleaved_instruments_are_told_apart_by_their_symbols(tmp_path):
    night = [dt.datetime(2023, 11, 5, 4, 30, tzinfo=dt.UTC) + dt.timedelta(minutes=i) for i in range(300)]
    local = [stamp.astimezone(ZoneInfo("America/New_York")) for stamp in night]
    rows = (
        f"{stamp:%Y-%m-%d %H:%M},{price},{price},{price},{price},1,{name}\n"
        for stamp in local
        for name, price in (("NQZ3", 2), ("ESZ3", 1))
    )
    path = text_file(tmp_path, "time,open,high,low,close,volume,Symbol\n" + "".join(rows))
    source = open_source(path, schema="ohlcv-1m", timezone="America/New_York")
    records = np.concatenate(list(source.batches()))
    assert records["instrument_id"].tolist() == [1, 2] * 300
    assert (source.symbol_of(1, dt.date(2023, 11, 5)), source.symbol_of(2, dt.date(2023, 11, 5))) == ("NQZ3", "ESZ3")
    for instrument_id in (1, 2):
        its = records[records["instrument_id"] == instrument_id]
        assert its["ts_event"].tolist() == [int(stamp.timestamp()) * 10**9 for stamp in night]


def databento_bars(path: Path, pretty: bool) -> str:
    """The bars of a DBN file as Databento's CSV has them, written from the public decoder's records."""
    decoder = databento_dbn.DBNDecoder()
    decoder.write(zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read())
    metadata, *records = decoder.decode()
    names = {int(interval["symbol"]): symbol for symbol, intervals in metadata.mappings.items() for interval in intervals}
    lines = ["ts_event,rtype,publisher_id,instrument_id,open,high,low,close,volume,symbol"]
    for record in records:
        seconds, ns = divmod(record.ts_event, 10**9)
        when = f"{dt.datetime.fromtimestamp(seconds, dt.UTC):%Y-%m-%dT%H:%M:%S}.{ns:09d}Z" if pretty else str(record.ts_event)
        prices = [f"{Decimal(p) / 10**9:.9f}" if pretty else str(p) for p in (record.open, record.high, record.low, record.close)]
        numbers = ["33", str(int(record.publisher_id)), str(record.instrument_id)]
        lines.append(",".join([when, *numbers, *prices, str(record.volume), names[record.instrument_id]]))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("pretty", [True, False])
def test_databentos_csv_of_bars_gives_the_bars_of_the_dbn_file(tmp_path, shared_data, pretty):
    dbn = shared_data / "ohlcv" / "esu4_nqu4_20240701_30min.ohlcv-1m.dbn.zst"
    text = databento_bars(dbn, pretty)
    source = open_source(text_file(tmp_path, text))
    assert source.schema == "ohlcv-1m", "told by rtype"
    ours, theirs = np.concatenate(list(source.batches())), np.concatenate(list(open_source(dbn).batches()))
    for name in OHLCV.names:
        assert np.array_equal(ours[name], theirs[name]), name
    assert source.symbol_of(118, dt.date(2024, 7, 1)) == "ESU4"
    assert "(rtype): '33' is outside the column's range" in fault(tmp_path / "x.csv", schema="ohlcv-1h")
    nameless = "\n".join(line.rsplit(",", 1)[0] for line in text.splitlines())
    assert "and no column that names them: add their symbols" in fault(text_file(tmp_path, nameless))
