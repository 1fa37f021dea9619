"""Laws of an ingest of several files, folders and globs: each source goes in wholly or has its line, whatever becomes of the others."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lob.errors import BadInput, NotFound
from sim.ingest_many import Found, find_sources, ingest_many, ingest_one
from sim.sql import ask
from store.catalog import read_records, staging
from store.dbn import write_dbn
from store.market import list_parts
from tests.market_files import T0, book_records, tree
from tests.test_cli import here

REPO = Path(__file__).parent.parent
DAY_NS = 86_400 * 10**9


def day(folder, number, name=None, rows=200):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (name or f"{number}.mbp-10.dbn.zst")
    start = T0 + number * DAY_NS
    write_dbn(path, book_records(rows, number, start_ns=start, step_ns=10**6), "mbp-10", "ESH4", 7, "GLBX.MDP3", start, start + 10**9)
    return path


def put(sources, store, **options):
    told = []
    reports = ingest_many(sources, store, told.append, **options)
    assert told == reports
    return reports


def sim(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "cli.main", *map(str, arguments)],
        cwd=cwd, env=os.environ | {"PYTHONPATH": str(REPO)}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_files_folders_and_globs_name_each_source_once_in_their_order(tmp_path):
    for name in ("a/1.dbn", "a/b/2.dbn.zst", "a/.hidden/3.dbn", "a/metadata.json", "c/4.csv.gz", "c/5.dbz", "c/.6.dbn", "odd name"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    sources, passed = find_sources([tmp_path / "odd name", tmp_path / "a", str(tmp_path / "c" / "*"), tmp_path / "a" / "1.dbn"])
    assert [str(one.path.relative_to(tmp_path)) for one in sources] == ["odd name", "a/1.dbn", "a/b/2.dbn.zst", "c/4.csv.gz", "c/5.dbz"]
    assert passed == [tmp_path / "a" / "metadata.json"]
    assert [one.path for one in find_sources([tmp_path / "absent.dbn"])[0]] == [tmp_path / "absent.dbn"], "who opens it says why"
    (tmp_path / "x[1].dbn").write_bytes(b"")
    assert find_sources([tmp_path / "x[1].dbn"])[0] == [Found(tmp_path / "x[1].dbn")], "a file of that very name is no pattern"
    (tmp_path / "none").mkdir()
    for nothing in (tmp_path / "none", str(tmp_path / "*.parquet")):
        with pytest.raises(NotFound):
            find_sources([nothing])


def test_lobster_pairs_stay_together(tmp_path):
    names = ["AAPL_2012-06-21_1_2_message_10.csv", "AAPL_2012-06-21_1_2_orderbook_10.csv", "MSFT_2012-06-21_1_2_message_5.csv"]
    for name in names:
        (tmp_path / name).write_text("34200.1,1,5,6,1000000,1\n" if "message" in name else "1000100,1,1000000,6\n")
    pair, lone = find_sources([tmp_path])[0]
    assert pair == Found(tmp_path / names[0], tmp_path / names[1]) and lone == Found(tmp_path / names[2])
    (tmp_path / names[0]).rename(tmp_path / "m")
    (tmp_path / names[1]).rename(tmp_path / "b")
    assert find_sources([tmp_path / "b", tmp_path / "m"])[0] == [Found(tmp_path / "b", tmp_path / "m")], "two files alone"


def test_real_lobster_pairs_of_a_folder_go_in(shared_data, tmp_path):
    sources, _ = find_sources([shared_data / "lobster"])
    chosen = [one for one in sources if "AAPL" in one.path.name]
    (report,) = put(chosen, tmp_path / "S")
    assert (report["schema"], report["rows"], report["instruments"]) == ("mbp-10", 999, ["AAPL"])
    assert len(sources) == 3 and all(one.also is not None for one in sources)


@pytest.mark.parametrize("at_once", [1, 4])
def test_many_sources_at_once_make_the_store_that_one_after_the_other_makes(tmp_path, at_once):
    paths = [day(tmp_path / "in", number) for number in range(8)]
    put([Found(path) for path in paths], tmp_path / "S", at_once=at_once)
    for path in paths:
        put([Found(path)], tmp_path / "T")
    assert tree(tmp_path / "S") == tree(tmp_path / "T")


def test_a_bad_file_has_its_line_and_the_others_go_in(tmp_path):
    folder = tmp_path / "in"
    paths = [day(folder, number) for number in range(3)]
    (folder / "1.mbp-10.dbn.zst").write_bytes(paths[1].read_bytes()[:200])
    (folder / "0.again.csv").write_text("no data\n")
    (folder / "0.overlap.dbn").write_bytes(b"")
    done = sim("ingest", "in", "--store", "S", cwd=tmp_path)
    assert done.returncode == 2
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [
        "in/0.mbp-10.dbn.zst", "in/2.mbp-10.dbn.zst", "2 put in, 0 held already, 3 refused",
    ]  # fmt: skip
    assert [line.split(": ")[:2] for line in done.stderr.splitlines() if not line.startswith("warning: ")] == [
        ["error", "in/0.again.csv"], ["error", "in/0.overlap.dbn"], ["error", "in/1.mbp-10.dbn.zst"],
    ]  # fmt: skip
    assert len(list_parts(tmp_path / "S")) == 2
    shutil.copy(day(tmp_path / "other", 1), folder / "1.mbp-10.dbn.zst")
    for name in ("0.again.csv", "0.overlap.dbn"):
        (folder / name).unlink()
    again = sim("ingest", "in", "--store", "S", "--json", cwd=tmp_path)
    assert again.returncode == 0, "what is held is passed by, what was missing comes in"
    document = json.loads(again.stdout)
    assert [report["already"] for report in document["sources"]] == [True, False, True] and document["refused"] == 0
    assert ask("select count(*) from market.mbp_10", tmp_path / "S")["rows"] == [[600]]


def test_when_nothing_goes_in_there_is_no_store(tmp_path):
    (tmp_path / "in").mkdir()
    for i in range(9):
        (tmp_path / "in" / f"{i}.dbn").write_bytes(b"DBN\x03")
    reports = put(find_sources([tmp_path / "in"])[0], tmp_path / "S", at_once=4)
    assert all("error" in report for report in reports) and not (tmp_path / "S").exists()


def test_two_commands_at_once_into_a_store_that_is_not_there_put_everything_in(tmp_path):
    for number in range(6):
        day(tmp_path / ("a" if number % 2 else "b"), number)
        (tmp_path / "a" / f"{number}.bad.dbn").parent.mkdir(exist_ok=True)
        (tmp_path / "a" / f"{number}.bad.dbn").write_bytes(day(tmp_path / "bad", number).read_bytes()[:300])
    shutil.copytree(tmp_path / "b", tmp_path / "a" / "same")
    command = [sys.executable, "-m", "cli.main", "ingest", "--store", "S"]
    both = [
        subprocess.Popen([*command, folder], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(REPO)}, stderr=subprocess.PIPE, text=True)
        for folder in ("a", "b")
    ]
    errors = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [2, 0], errors
    assert errors[0].count("error: ") == 6 and "error: " not in errors[1], errors
    assert len(read_records(tmp_path / "S")) == 6 and not list((tmp_path / "S" / "staging").iterdir())


def test_a_store_that_another_took_away_empty_is_made_again(tmp_path):
    from store.catalog import ensure_store, remove_empty_store

    root, _ = ensure_store(tmp_path / "S")
    remove_empty_store(root)
    assert not root.exists()
    with staging(root) as folder:
        remove_empty_store(root)
        assert folder.exists(), "a store in use stays"
    remove_empty_store(root)
    assert not root.exists()


def test_a_store_inside_the_folder_is_no_source(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    day(tmp_path, 1), day(tmp_path, 2)
    assert here(capfd, "ingest", ".", "--store", "S").returncode == 0
    before = tree(tmp_path / "S")
    again = here(capfd, "ingest", ".", "--store", "S")
    assert again.stdout.splitlines()[-1] == "0 put in, 2 held already, 0 refused"
    assert "passed by" not in again.stderr and tree(tmp_path / "S") == before


def test_an_order_book_file_without_its_messages_says_what_it_lacks(tmp_path):
    book = tmp_path / "AAPL_2012-06-21_1_2_orderbook_1.csv"
    book.write_text("1000100,1,1000000,6\n")
    day(tmp_path, 1)
    reports = put(find_sources([tmp_path])[0], tmp_path / "S")
    assert [report.get("error") for report in reports] == [
        None, f"{book}: looks like a LOBSTER order book file, which goes in with its message file: name that too",
    ]  # fmt: skip
    with pytest.raises(BadInput, match="goes in with its message file"):
        ingest_one(find_sources([book])[0][0], tmp_path / "S")


def test_books_that_come_to_messages_that_were_held_are_told(shared_data, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    path = str(shared_data / "edge/venues/GLBX.MDP3.mbo.dbn.zst")
    day(tmp_path / "in", 1)
    assert here(capfd, "ingest", path, "--store", "S", "--schema", "mbo").returncode == 0
    first = here(capfd, "ingest", path, "in", "--store", "S").stdout.splitlines()
    assert first[0] == f"{path}: 1 row of mbp-10 of ESH1" and first[-1] == "2 put in, 0 held already, 0 refused"
    second = here(capfd, "ingest", path, "in", "--store", "S").stdout.splitlines()
    assert second[0] == f"{path}: already in the store" and second[-1] == "0 put in, 2 held already, 0 refused"


def test_a_command_that_was_killed_is_given_again_and_goes_on(tmp_path):
    for number in range(8):
        day(tmp_path / "in", number, rows=2000)
    put(find_sources([tmp_path / "in"])[0], tmp_path / "whole")
    command = [sys.executable, "-m", "cli.main", "ingest", "in", "--store", "S"]
    killed = subprocess.Popen(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(REPO)}, stdout=subprocess.PIPE, text=True)
    assert killed.stdout is not None and ": 2,000 rows of mbp-10 of ESH4" in killed.stdout.readline()
    killed.kill()
    killed.communicate()
    assert 1 <= len(list_parts(tmp_path / "S")) <= 8
    assert sim("ingest", "in", "--store", "S", cwd=tmp_path).returncode == 0
    assert tree(tmp_path / "S") == tree(tmp_path / "whole")


def test_a_source_for_which_memory_is_too_short_stops_no_other(tmp_path):
    class Scarce(dict):
        def get(self, *_):
            raise MemoryError

        __contains__ = __getitem__ = __iter__ = get

    (tmp_path / "in").mkdir()
    bars = tmp_path / "in" / "bars.dbn"
    bars.write_bytes(day(tmp_path / "in", 1).read_bytes())
    reports = put([Found(bars)], tmp_path / "S", registry=Scarce())
    assert "out of memory" in reports[0]["error"] and not (tmp_path / "S").exists()
