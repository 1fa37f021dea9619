"""Limits on what a quality report counts: warned of or refused by the share of a session's rows, by a table that a TOML file overrules."""

import numpy as np
import pytest

from lob.errors import BadInput, NotFound
from sim.ingest import ingest
from store.dbn import write_dbn
from store.market import ingest_file
from store.quality_limits import DEFAULT, LIMITABLE, WARN, WARN_OF_BARS, read_limits
from tests.market_files import T0, TICK, bar_records, book_records, raw, tree, write_raw

CROSSED = 40


def books(n, seed, crossed):
    """`n` books that end their event, a tick wide, but for the rows `crossed`."""
    records = book_records(n, seed, start_ns=T0 + 3600 * 10**9)
    records["flags"] |= 0x80
    records["bid_px_00"], records["ask_px_00"] = 19_200 * TICK, 19_201 * TICK
    records["bid_px_00"][crossed] = 19_202 * TICK
    return records


@pytest.fixture
def crossed(tmp_path):
    """A file of 1,000 books of one session, CROSSED of them crossed."""
    return write_raw(tmp_path / "crossed.bin", books(1_000, 3, slice(0, 1_000, 1_000 // CROSSED)))


def limits(tmp_path, text):
    file = tmp_path / "limits.toml"
    file.write_text(text)
    return read_limits(file)


@pytest.mark.parametrize(("share", "refused"), [(CROSSED / 1_000, False), (CROSSED / 1_000 - 1e-9, True), (0, True), ("false", False)])
def test_a_file_is_refused_above_the_share_and_not_at_it_and_leaves_the_store_as_it_was(tmp_path, crossed, share, refused):
    store = tmp_path / "S"
    ingest_file(write_raw(tmp_path / "bars", bar_records(50, 1)), store, open_source=raw("ohlcv-1m"))
    before = tree(store)
    asked = limits(tmp_path, f"[refuse]\ncrossed_fault = {share}\n")
    if not refused:
        report = ingest_file(crossed, store, open_source=raw(), limits=asked)
        assert sum(row["crossed_fault"] for row in report.quality) == CROSSED and tree(store) != before
        return
    with pytest.raises(
        BadInput, match=f"ESH4, session 20231226: crossed_fault is {CROSSED} of 1,000 rows, above the share of .*limits.toml"
    ) as said:
        ingest_file(crossed, store, open_source=raw(), limits=asked)
    assert str(crossed) in str(said.value) and "\n" not in str(said.value) and tree(store) == before


def test_a_session_is_judged_by_its_own_rows_and_not_by_the_files(tmp_path):
    """Thirty crossed rows of 1,300 are few; they are a tenth of the second session's."""
    records = books(1_300, 4, slice(1_000, 1_030))
    late = np.arange(1_300) >= 1_000
    for name in ("ts_recv", "ts_event"):
        records[name][late] += np.uint64(86_400 * 10**9)
    file = write_raw(tmp_path / "two.bin", records)
    with pytest.raises(BadInput, match="session 20231227: crossed_fault is 30 of 300 rows"):
        ingest_file(file, tmp_path / "S", open_source=raw(), limits=limits(tmp_path, "[refuse]\ncrossed_fault = 0.05\n"))
    assert not (tmp_path / "S").exists()


def test_a_warning_comes_above_its_share_and_false_silences_it(tmp_path, crossed):
    warnings = {}
    for name, text in (("default", ""), ("above", "[warn]\ncrossed_fault = 0.05\n"), ("never", "[warn]\ncrossed_fault = false\n")):
        report = ingest_file(crossed, tmp_path / name, open_source=raw(), limits=limits(tmp_path, text) if text else DEFAULT)
        warnings[name] = [line for line in report.warnings if "crossed book" in line]
    assert len(warnings["default"]) == 1 and f"{CROSSED} of 1,000 rows show a crossed book" in warnings["default"][0]
    assert warnings["above"] == warnings["never"] == []


def test_a_count_that_nobody_is_warned_of_by_default_can_be_asked_for(tmp_path, crossed):
    asked = limits(tmp_path, "[warn]\nundefined_prices = 0\nduplicate_rows = 0\noutside_session = 0\nmaybe_bad_book = 0\n")
    report = ingest_file(crossed, tmp_path / "S", open_source=raw(), limits=asked)
    asked_for = ("undefined_prices", "duplicate_rows", "maybe_bad_book")
    expected = {name for name in asked_for if any(row[name] for row in report.quality)}
    assert expected and {name for name in asked_for if f"counted as {name}" in " ".join(report.warnings)} == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[warn\n", "not valid TOML"),
        ("[stop]\n", "'stop' is neither"),
        ("warn = 3\n", "warn is a table"),
        ("[warn]\ncrosed = 0\n", r"\[warn\] crosed: there is no such count; there are gaps, "),
        ("[refuse]\nrows = 0\n", r"\[refuse\] rows: there is no such count"),
        ("[refuse]\ngaps = 2\n", r"gaps = 2: use a share of a session's rows, 0 to 1, or false"),
        ("[refuse]\ngaps = true\n", "gaps = True: use a share"),
        ('[refuse]\ngaps = "1 %"\n', "use a share"),
        ("[refuse]\ngaps = nan\n", "use a share"),
    ],
)
def test_a_file_of_limits_that_cannot_be_used_is_one_line_that_names_it(tmp_path, text, said):
    with pytest.raises(BadInput, match=said) as caught:
        limits(tmp_path, text)
    assert str(tmp_path / "limits.toml") in str(caught.value) and "\n" not in str(caught.value)


def test_absent_limits_are_not_found_and_the_defaults_name_counts_that_exist(tmp_path):
    with pytest.raises(NotFound, match="no such file of limits"):
        read_limits(tmp_path / "none.toml")
    assert {*WARN, *WARN_OF_BARS} <= set(LIMITABLE) and DEFAULT.refuse == {}


def test_the_use_case_takes_the_file_by_name(tmp_path):
    write_dbn(tmp_path / "a.dbn", books(500, 5, 7), "mbp-10", "ESH4", 7, "TEST.BOOK", T0, T0 + 2 * 3600 * 10**9)
    (tmp_path / "limits.toml").write_text("[refuse]\ncrossed_fault = 0\n")
    with pytest.raises(BadInput, match="crossed_fault is 1 of 500 rows"):
        ingest(tmp_path / "a.dbn", tmp_path / "S", limits=tmp_path / "limits.toml")
    assert not ingest(tmp_path / "a.dbn", tmp_path / "S")["already"]
