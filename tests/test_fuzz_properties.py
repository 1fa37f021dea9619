"""Properties of the readers over all that hypothesis can think of: a cell is read exactly or refused by its place, a header as the public
decoder reads it or refused."""

import struct
from decimal import Decimal, InvalidOperation

import databento_dbn
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lob.errors import BadInput
from store.csv_ohlcv import read_ohlcv_csv
from store.dbn_metadata import PREFIX_BYTES, parse_metadata, parse_prefix

OF_A_FOLDER = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


def cells() -> st.SearchStrategy[str]:
    """What may stand in a cell: text of any kind without the file's own marks, and numbers in every spelling."""
    marks = st.characters(exclude_characters='\n\r,"', exclude_categories=("Cs",))
    number = st.one_of(st.integers().map(str), st.decimals(allow_nan=True).map(str), st.floats().map(repr))
    return st.one_of(st.text(marks, max_size=30), number, number.map(lambda text: f" {text} "), st.just("0" * 400))


@OF_A_FOLDER
@given(cells())
@example("\uff11")
@example("1_0")
@example("\u00a01")
@example("9223372036.854775807")
@example("9223372036.854775808")
def test_a_cell_is_the_price_that_decimal_reads_in_it_or_is_refused_by_line_and_column(tmp_path, cell):
    path = tmp_path / "bars.csv"
    path.write_text(f"time,open,high,low,close,volume\n2024-03-05 10:00,1,2,1,2,5\n2024-03-05 10:01,1,{cell},1,2,5\n", encoding="utf-8")
    try:
        exact = Decimal(cell.strip(" \t")) * 10**9 if cell.isascii() and "_" not in cell else None
    except InvalidOperation:
        exact = None
    try:
        found = np.concatenate(list(read_ohlcv_csv(path, "ohlcv-1m", "UTC")))
    except BadInput as error:
        assert str(path) in str(error) and str(error).isprintable()
        assert "line 3, column 3 (high)" in str(error) or "not UTF-8 text" in str(error) or "CR inside" in str(error)
        held = exact is not None and exact.is_finite() and exact == exact.to_integral_value() and abs(exact) < 2**63 - 1
        assert not held or abs(exact.adjusted()) > 40 or "e" in cell.lower(), f"{cell!r} is a price"
    else:
        assert exact is not None and exact == int(found["high"][1]), f"{cell!r} was read as {found['high'][1]}"


names = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20)
dates = st.one_of(st.dates().map(lambda day: day.year * 10000 + day.month * 100 + day.day), st.integers(0, 2**32 - 1))


@st.composite
def headers(draw) -> tuple[int, bytes]:
    """(version, metadata after the prefix): counts, names, dates and codes of any value, more often possible ones."""
    version = draw(st.sampled_from([1, 2, 3]))
    width = 22 if version == 1 else 71

    def text(value: str) -> bytes:
        return value.encode()[: width - 1].ljust(width, b"\0")

    def listed(items: list[bytes]) -> bytes:
        count = draw(st.sampled_from([len(items)] * 9 + [2**32 - 1]))
        return struct.pack("<I", count) + b"".join(items)

    times = struct.pack("<QQQ", *(draw(st.integers(0, 2**64 - 1)) for _ in range(3)))
    codes = bytes(
        [draw(st.sampled_from([255, 0, 1, 4, 11, 200])), draw(st.sampled_from([0, 0, 1, 99])), draw(st.sampled_from([0, 1, 0, 7]))]
    )
    fixed = draw(names)[:15].encode().ljust(16, b"\0") + struct.pack("<H", draw(st.sampled_from([0, 2, 6, 19, 0xFFFF, 999]))) + times
    fixed += b"\0" * 8 + codes + b"\0" * 47 if version == 1 else codes + struct.pack("<H", width) + b"\0" * 53
    body = fixed + b"\0" * 4
    for _ in range(3):
        body += listed([text(name) for name in draw(st.lists(names, max_size=3))])
    mappings = []
    for name in draw(st.lists(names, max_size=3)):
        intervals = [struct.pack("<II", draw(dates), draw(dates)) + text(draw(names)) for _ in range(draw(st.integers(0, 3)))]
        mappings.append(text(name) + listed(intervals))
    body += listed(mappings)
    return version, body + b"\0" * (-len(body) % 8)


@settings(max_examples=200)
@given(headers())
def test_a_header_is_what_the_public_decoder_reads_in_it_or_is_refused(made):
    version, body = made
    data = b"DBN" + bytes([version]) + struct.pack("<I", len(body)) + body
    try:
        assert parse_prefix(data[:PREFIX_BYTES], "x.dbn") == (version, len(body))
        ours = parse_metadata(version, body, "x.dbn")
    except BadInput as error:
        assert str(error).startswith("x.dbn: damaged metadata before byte ") and str(error).isprintable()
        return
    theirs = databento_dbn.Metadata.decode(data, upgrade_policy=databento_dbn.VersionUpgradePolicy.AS_IS)
    assert (ours.dataset, list(ours.symbols), list(ours.partial), list(ours.not_found)) == (
        theirs.dataset, theirs.symbols, theirs.partial, theirs.not_found,
    )  # fmt: skip
    found = [
        (mapping.raw_symbol, [(interval.start, interval.end, interval.symbol) for interval in mapping.intervals])
        for mapping in ours.mappings
    ]
    assert sorted(found) == sorted(
        (name, [(interval["start_date"], interval["end_date"], interval["symbol"]) for interval in intervals])
        for name, intervals in theirs.mappings.items()
    ) or len({name for name, _ in found}) < len(found), "the public decoder keeps one of two mappings of a name"


@OF_A_FOLDER
@given(st.lists(st.lists(cells(), min_size=1, max_size=8), max_size=6), st.sampled_from([",", ";", "\t", "|"]))
def test_any_table_is_bars_or_is_refused_with_its_name(tmp_path, rows, mark):
    path = tmp_path / "table.csv"
    path.write_text("time,open,high,low,close,volume\n" + "\n".join(mark.join(row) for row in rows), encoding="utf-8", newline="")
    try:
        for batch in read_ohlcv_csv(path, "ohlcv-1m", "UTC"):
            assert len(batch)
    except BadInput as error:
        assert str(path) in str(error) and str(error).isprintable()


@pytest.mark.parametrize("text", ["１２", "٣", "²", "1_000", "0x10", "\u00a01"])
def test_digits_of_other_scripts_and_spellings_of_programs_are_no_numbers(tmp_path, text):
    path = tmp_path / "bars.csv"
    path.write_text(f"time,open,high,low,close,volume\n2024-03-05 10:01,1,2,1,2,{text}\n", encoding="utf-8")
    with pytest.raises(BadInput, match=r"line 2, column 6 \(volume\): .* is not a number"):
        list(read_ohlcv_csv(path, "ohlcv-1m", "UTC"))
