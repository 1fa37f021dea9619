"""Laws of `sim store`: a file goes out as it came in, and what the listing leaves out is not in the store's data."""

import pytest

from tests.market_files import T0, bar_records, tree
from tests.test_cli import document, here

DAY_NS = 86_400 * 10**9


def bars_csv(path, start_ns, count=30):
    """One-minute bars of ES with their times as counts of nanoseconds from 1970."""
    rows = [
        f"{r['ts_event']},{r['open'] / 1e9},{r['high'] / 1e9},{r['low'] / 1e9},{r['close'] / 1e9},{r['volume']}"
        for r in bar_records(count, 1, start_ns)
    ]
    path.write_text("\n".join(["time,open,high,low,close,volume", *rows]) + "\n")
    return path


def put_in(capfd, path, *more):
    return here(
        capfd, "ingest", str(path), "--store", "S", "--instrument", "ES", "--schema", "ohlcv-1m", "--timezone", "UTC", "--json", *more
    )


@pytest.fixture
def store(tmp_path, monkeypatch, capfd):
    """A store `S` in the current folder with the bars of two files, 18 months apart."""
    monkeypatch.chdir(tmp_path)
    for name, start in (("old.csv", T0), ("new.csv", T0 + 546 * DAY_NS)):
        done = put_in(capfd, bars_csv(tmp_path / name, start))
        assert done.returncode == 0, done.stderr
    return tmp_path / "S"


def test_a_file_put_in_with_a_wrong_option_is_refused_the_right_one_until_it_is_taken_out(store, capfd):
    before = tree(store)
    refused = put_in(capfd, "new.csv", "--stamp", "end")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "ingested with --stamp start, and not with --stamp end" in refused.stderr and tree(store) == before
    remedy = refused.stderr.split("`")[1].split()
    gone = document(here(capfd, *remedy[1:], "--json"))
    assert (gone["source"], gone["rows"], gone["instruments"]) == ("new.csv", 30, ["ES"])
    again = document(put_in(capfd, "new.csv", "--stamp", "end"))
    assert (again["already"], again["rows"]) == (False, 30)
    text = here(capfd, "store", "rm", "--store", "S", "--file", "old.csv").stdout
    assert text.startswith("old.csv (sha256 ") and "30 rows of ohlcv-1m of ES" in text
    (row,) = document(here(capfd, "store", "ls", "--store", "S", "--json"))
    assert row["sources"] == ["new.csv"]


@pytest.mark.parametrize("chosen", [(), ("--source", "0" * 12, "--file", "old.csv"), ("--file", "none.csv"), ("--source", "zz")])
def test_a_removal_that_names_no_one_file_changes_nothing_and_says_so_in_one_line(store, capfd, chosen):
    before = tree(store)
    done = here(capfd, "store", "rm", "--store", "S", *chosen)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert tree(store) == before


def test_the_listing_shows_the_hole_between_two_files_with_both_ends_and_the_sessions_it_swallows(store, capfd):
    (row,) = document(here(capfd, "store", "ls", "--store", "S", "--json"))
    (hole,) = row["holes"]
    assert (hole["start"], hole["end"]) == ("2023-12-25T23:29:00.000000000Z", "2025-06-23T23:00:00.000000000Z")
    assert hole["ns"] == (546 * 1440 - 29) * 60 * 10**9
    assert row["missing_sessions"] == 386, "Monday to Friday from 2023-12-27 to 2025-06-23, but for two New Years and a Christmas"
    text = here(capfd, "store", "ls", "--store", "S").stdout
    assert f"1 hole, 546 days between {hole['start']} and {hole['end']}; 386 sessions without rows" in text
    put_in(capfd, bars_csv(store.parent / "next.csv", T0 + 60 * 60 * 10**9))
    (row,) = document(here(capfd, "store", "ls", "--store", "S", "--json"))
    assert (row["quality"]["gaps"], row["quality"]["longest_gap_ns"]) == (1, 31 * 60 * 10**9), "from one file to the next in one session"
    assert len(row["holes"]) == 1
