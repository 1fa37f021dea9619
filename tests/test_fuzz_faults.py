"""Laws that the fuzzers of `tests.fuzz` found broken, each with the smallest input that broke it."""

import pytest

from lob.errors import BadInput, printable
from sim.ingest import ingest
from tests.market_files import tree

BARS = "time,open,high,low,close,volume,symbol\n2024-03-05 10:00,1,2,1,2,5,{}\n"


def test_a_line_of_error_shows_what_cannot_be_printed_as_an_escape():
    assert str(BadInput("a\nb\x1b[31m\u2028é 日本")) == "a\\nb\\x1b[31m\\u2028é 日本"
    assert printable("plain é") == "plain é"


@pytest.mark.parametrize("symbol", ["a\x7f", "\u2028", "x" * 201, "é" * 40])
def test_a_symbol_that_cannot_be_printed_or_name_a_folder_is_refused_with_the_files_name(tmp_path, symbol):
    path = tmp_path / "bars.csv"
    path.write_text(BARS.format(symbol))
    with pytest.raises(BadInput, match=r"bars\.csv: instrument .* cannot name a folder") as caught:
        ingest(path, tmp_path / "store", schema="ohlcv-1m", timezone="UTC")
    assert str(caught.value).isprintable() and not (tmp_path / "store").exists()


@pytest.mark.parametrize("symbol", ["a\nb", "\x1b[2J", ""])
def test_the_stated_instrument_is_held_to_the_same(tmp_path, symbol):
    path = tmp_path / "bars.csv"
    path.write_text(BARS.replace(",symbol", "").replace(",{}", ""))
    before = tree(tmp_path)
    with pytest.raises(BadInput, match=r"bars\.csv: instrument .* cannot name a folder") as caught:
        ingest(path, tmp_path / "store", schema="ohlcv-1m", timezone="UTC", instrument=symbol)
    assert str(caught.value).isprintable() and tree(tmp_path) == before
