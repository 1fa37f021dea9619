"""Laws of the commands over market data: synth, ingest, store, sql, from a shell's point of view."""

import csv
import io
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from cli.output import COMPILING
from tests.test_cli import REPO, document, here, reason, sim

EVENTS = 3000


@pytest.fixture(scope="module")
def market(tmp_path_factory) -> Path:
    """A folder with a synthetic day, `day.dbn.zst`, and a store `S` that it was put into."""
    folder = tmp_path_factory.mktemp("market")
    made = document(
        sim("synth", "--date", "2024-03-05", "--events", str(EVENTS), "--seed", "7", "--out", "day.dbn.zst", "--json", cwd=folder)
    )
    assert (made["symbol"], made["records"]) == ("ESH4", EVENTS)
    put_in = sim("ingest", "day.dbn.zst", "--store", "S", "--json", cwd=folder)
    assert put_in.returncode == 0, put_in.stderr
    report = document(put_in)
    assert (report["rows"], report["already"], report["sha256"]) == (EVENTS, False, made["sha256"])
    return folder


def test_a_synthetic_day_is_byte_equal_for_its_seed_and_reads_as_dbn(market, tmp_path):
    databento_dbn = pytest.importorskip("databento_dbn")
    sim("synth", "--date", "2024-03-05", "--events", str(EVENTS), "--seed", "7", "--out", str(tmp_path / "again.dbn.zst"))
    content = (tmp_path / "again.dbn.zst").read_bytes()
    assert content == (market / "day.dbn.zst").read_bytes()
    decoder = databento_dbn.DBNDecoder()
    import zstandard

    decoder.write(zstandard.ZstdDecompressor().stream_reader(io.BytesIO(content)).read())
    assert sum(hasattr(record, "levels") for record in decoder.decode()) == EVENTS


def test_the_same_file_again_is_a_no_op_and_says_so(market):
    before = sorted((path.name, path.stat().st_mtime_ns) for path in (market / "S").rglob("*") if path.is_file())
    again = sim("ingest", "day.dbn.zst", "--store", "S", cwd=market)
    assert again.returncode == 0
    assert "already in the store" in again.stdout
    assert before == sorted((path.name, path.stat().st_mtime_ns) for path in (market / "S").rglob("*") if path.is_file())


def test_the_listing_names_what_the_store_holds(market):
    found = document(sim("store", "ls", "--store", "S", "--json", cwd=market))
    assert [(row["instrument"], row["schema"], row["rows"]) for row in found] == [("ESH4", "mbp-10", EVENTS)]
    text = sim("store", "ls", "--store", "S", cwd=market)
    assert all(word in text.stdout for word in ("ESH4", "mbp-10", f"{EVENTS:,}"))
    reports = document(sim("store", "quality", "--store", "S", "--instrument", "ESH4", "--json", cwd=market))
    assert sum(report["rows"] for report in reports) == EVENTS


def test_sql_answers_as_table_csv_and_json_alike(market):
    question = (
        "select 9007199254740993 as big, 0.10::decimal(18,6) as usd, null as nothing, 'a,\"b\"' as words, count(*) as n from market.mbp_10"
    )
    found = document(sim("sql", "--store", "S", question, "--json", cwd=market))
    assert [column["name"] for column in found["columns"]] == ["big", "usd", "nothing", "words", "n"]
    assert found["rows"] == [[9007199254740993, "0.100000", None, 'a,"b"', EVENTS]]
    rows = list(csv.reader(io.StringIO(sim("sql", "--store", "S", question, "--csv", cwd=market).stdout)))
    assert rows == [["big", "usd", "nothing", "words", "n"], ["9007199254740993", "0.100000", "", 'a,"b"', str(EVENTS)]]
    assert Decimal(rows[1][1]) == Decimal("0.1")
    table = sim("sql", "--store", "S", question, cwd=market).stdout.splitlines()
    assert table[0].split() == ["big", "usd", "nothing", "words", "n"]
    assert "9007199254740993" in table[2]
    assert table[-1] == "(1 row)"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("ingest", "absent.dbn", "--store", "S"), "absent.dbn: "),
        (("ingest", "text.csv", "--store", "S"), "text.csv: "),
        (("store", "ls", "--store", "nowhere"), "nowhere: "),
        (("store", "quality", "--store", "S", "--instrument", "NQH4"), "NQH4"),
        (("sql", "--store", "S", "select * from market.mbp_11"), "market.mbp_10"),
        (("sql", "--store", "S", "select colour from market.mbp_10"), "colour"),
        (("sql", "--store", "S", "drop table x"), "only SELECT"),
        (("sql", "select 1"), "--store, --runs"),
        (("sql", "--store", "S", "select 1", "--csv"), "--csv and --json"),
        (("verify", "nowhere", "--store", "S"), "nowhere"),
        (("verify", "nowhere", "--head", "5d41402a"), "64 hex digits"),
        (("verify", "nowhere", "--store", "S", "--tolerance-usd", "much"), "much"),
        (("synth", "--date", "2024-13-05", "--out", "x.dbn"), "2024-13-05"),
        (("synth", "--date", "2024-03-05", "--instrument", "XX", "--out", "x.dbn"), "XX"),
        (("synth", "--date", "2024-03-05", "--instruments", "absent.toml", "--out", "x.dbn"), "absent.toml: "),
    ],
)
def test_unusable_input_is_one_line_on_stderr_and_exit_2(market, arguments, says, capfd, monkeypatch):
    (market / "text.csv").write_text("a,b\n1,2\n")
    monkeypatch.chdir(market)
    done = here(capfd, *arguments, "--json")
    assert done.returncode == 2
    assert [line for line in done.stderr.splitlines() if line != COMPILING] == [f"error: {reason(done)}"]
    assert says in reason(done)
    assert not (market / "x.dbn").exists()


def test_an_instruments_file_changes_the_terms_that_a_command_works_with(market, tmp_path):
    (tmp_path / "mine.toml").write_text('[WIDGET]\nlike = "ES"\ntick = "1/2"\n')
    made = document(
        sim(
            "synth",
            "--date",
            "2024-03-05",
            "--events",
            "200",
            "--instrument",
            "WIDGET",
            "--instruments",
            "mine.toml",
            "--out",
            "w.dbn",
            "--json",
            cwd=tmp_path,
        )
    )
    assert made["root"] == "WIDGET"


def test_a_reader_that_stops_early_ends_the_command_quietly(market):
    """`sim sql … | head -1`: no traceback, and no exit code that could be read as a finding."""
    code = "import sys; from cli.main import main; sys.argv = ['sim', 'sql', '--store', 'S', 'select * from range(200000)']; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=market,
        env=os.environ | {"PYTHONPATH": str(REPO)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().split() == [b"range"]
        process.stdout.close()
        errors = process.stderr.read()
        process.wait(timeout=60)
    assert (process.returncode, errors) == (141, b"")


@pytest.mark.parametrize("form", [("--csv",), ("--json",), ()])
def test_a_reader_that_is_gone_before_the_answer_comes_leaves_no_word_on_stderr(market, form):
    """A short answer stays in the buffer until the end: the broken pipe must be met there too."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "cli.main", "sql", "--store", "S", "select 1", *form]
    done = subprocess.run(
        command, cwd=market, env=os.environ | {"PYTHONPATH": str(REPO)}, stdout=writer, stderr=subprocess.PIPE, check=False, timeout=60
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")
