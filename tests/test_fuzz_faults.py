"""Laws that the fuzzers of `tests.fuzz` found broken, each with the smallest input that broke it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lob.errors import BadInput, DamagedLog, TapeproofError, printable
from lob.records import RECORDS
from lob.units import exact_fraction, parse_duration_ns
from sim.ingest import ingest
from sim.sql import ask
from sim.train_config import read_settings
from sim.watch import standing
from store.hashes import canonical_hash
from store.manifest import parse_json
from store.market import ingest_file, list_parts, quality_rows, read_columns, remove_source, summarize_store
from store.run_check import verify_chain
from store.run_read import read_run, read_table
from store.toml_instruments import read_instruments
from tests.market_files import T0, book_records, raw, tree, write_raw
from tests.runlog_runs import write_run
from tests.test_cli import here
from tests.training_logs import write_training

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


# ---------------------------------------------------------------- stores


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "bars.csv"
    path.write_text(BARS.format("ESH4"))
    ingest(path, tmp_path / "store", schema="ohlcv-1m", timezone="UTC")
    return tmp_path / "store"


def record_of(store):
    (path,) = (store / "catalog").glob("*.json")
    return path, json.loads(path.read_text())


@pytest.mark.parametrize(
    "place", ["../outside.parquet", "{outside}", "store.json", "market/schema=x/instrument=y/date=z/../../../a.parquet"]
)
def test_a_record_that_names_a_file_where_no_part_lies_is_damage_and_the_file_stays(store, tmp_path, place):
    outside = tmp_path / "outside.parquet"
    outside.write_bytes(b"mine")
    path, record = record_of(store)
    record["parts"][0]["path"] = place.format(outside=outside)
    path.write_text(json.dumps(record))
    for act in (lambda: remove_source(store, name="bars.csv"), lambda: ask("select 1", store), lambda: list_parts(store)):
        with pytest.raises(BadInput, match=r"the catalogue record is damaged"):
            act()
    assert outside.read_bytes() == b"mine" and (store / "store.json").exists()


@pytest.mark.parametrize(
    "text", ['{"sha256": "%s", "parts": ["../outside.parquet"]}' % ("0" * 64), "{", "[]", '{"sha256": 1}', "[" * 100_000]
)
def test_a_plan_that_no_ingest_writes_removes_nothing_and_stops_nobody(store, tmp_path, text):
    outside = tmp_path / "outside.parquet"
    outside.write_bytes(b"mine")
    plan = store / "staging/1.killed/plan.json"
    plan.parent.mkdir()
    plan.write_text(text)
    (tmp_path / "more.csv").write_text(BARS.format("NQH4"))
    assert ingest(tmp_path / "more.csv", store, schema="ohlcv-1m", timezone="UTC")["rows"] == 1
    assert outside.exists() and not list((store / "staging").iterdir())


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.pop("parts"),
        lambda record: record.update(rows="5"),
        lambda record: record.update(sha256="0" * 64),
        lambda record: record.update(spans=[]),
        lambda record: record.update(spans=[["ESH4", 2, 1]]),
        lambda record: record["parts"][0].update(rows=-1),
        lambda record: record["parts"][0].update(rows=True),
        lambda record: record["parts"][0].update(instrument=["ESH4"]),
        lambda record: record["quality"][0].pop("schema"),
        lambda record: record["quality"][0].update(gaps="many"),
        lambda record: record.update(more=1),
    ],
)
def test_a_damaged_catalogue_record_is_one_line_with_its_name_whoever_reads_it(store, change):
    path, record = record_of(store)
    change(record)
    path.write_text(json.dumps(record))
    for read in (summarize_store, quality_rows, list_parts, remove_source):
        with pytest.raises(BadInput, match=rf"{path.name}: the catalogue record is damaged"):
            read(store)


@pytest.mark.parametrize("text", [b"\xff\xfe", b"[" * 100_000, b'"x"'])
def test_a_store_of_which_head_or_record_is_no_text_is_said_to_be_none(store, text):
    path, _ = record_of(store)
    for file, line in ((path, "catalogue record is damaged"), (store / "store.json", "not the head of a market store")):
        file.write_bytes(text)
        with pytest.raises(BadInput, match=line):
            list_parts(store)


def test_a_part_of_other_types_or_with_nulls_is_damage(store):
    (path,) = (store / "market").rglob("*.parquet")
    whole = pq.read_table(path, partitioning=None)
    at = whole.column_names.index("volume")
    for values in (pa.array(["5"]), pa.nulls(1, pa.uint64()), pa.array([5.0])):
        pq.write_table(whole.set_column(at, "volume", values), path)
        with pytest.raises(BadInput, match=r"the part cannot be read \(column volume is not what the store writes"):
            read_columns(store, "ESH4", "ohlcv-1m", 0, 2**62)


def test_a_part_without_a_column_of_letters_is_damage(tmp_path):
    ingest_file(write_raw(tmp_path / "f", book_records(5, 1)), tmp_path / "S", open_source=raw())
    (path,) = (tmp_path / "S/market").rglob("*.parquet")
    pq.write_table(pq.read_table(path, partitioning=None).drop_columns(["side"]), path)
    with pytest.raises(BadInput, match=r"\.parquet: the part cannot be read"):
        read_columns(tmp_path / "S", "ESH4", "mbp-10", 0, 2**62)


def test_a_quotation_mark_in_a_cell_beyond_the_last_column_is_refused_by_its_place(tmp_path):
    (tmp_path / "bars.csv").write_text(BARS.format("ESH4").rstrip() + ',"x\n')
    with pytest.raises(BadInput, match=r"bars\.csv: line 2, column 8: .* quotation mark"):
        ingest(tmp_path / "bars.csv", tmp_path / "store", schema="ohlcv-1m", timezone="UTC")


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    "text",
    ["a = " + "[" * 50_000, "a = " + "9" * 5000, "[ES]\ntick = 1e999999999", '[ES]\ntick = "1e999999999"', '[ES]\ntick = "1/0"',
     '["E\\nS"]\nx = 1',
     "[ES]\nfee_usd = 1e999999999", "[ES]\nmultiplier = " + "9" * 4000],
)  # fmt: skip
def test_an_instruments_file_that_nests_or_counts_without_end_is_one_line_at_once(tmp_path, text):
    (tmp_path / "terms.toml").write_text(text)
    with pytest.raises(BadInput, match=r"terms\.toml: ") as caught:
        read_instruments(tmp_path / "terms.toml")
    assert str(caught.value).isprintable() and len(str(caught.value)) <= 2500


@pytest.mark.parametrize("text", ["a = " + "[" * 50_000, "a = " + "9" * 5000])
def test_a_training_configuration_that_nests_or_counts_without_end_is_one_line(tmp_path, text):
    (tmp_path / "train.toml").write_text(text)
    with pytest.raises(BadInput, match=r"train\.toml: is not TOML"):
        read_settings(tmp_path / "train.toml", [])
    assert read_settings(None, [f"learner.lr={text[4:]}"])["learner"]["lr"] == text[4:], "what is no TOML is a string"


def test_a_path_that_the_system_refuses_is_one_line_whichever_option_names_it(tmp_path, capfd):
    long = str(tmp_path / ("x" * 300))
    times = ["--start", "2024-03-05T00:00Z", "--end", "2024-03-06T00:00Z", "--instrument", "ES", "--policy", "flat"]
    for command in (
        ["ingest", long, "--store", tmp_path / "S"],
        ["ingest", __file__, "--store", long],
        ["replay", "--store", long, "--runs", tmp_path / "R", *times],
        ["verify", long],
        ["sql", "select 1", "--runs", long],
        ["store", "ls", "--store", long],
        ["watch", long, "--once"],
        ["seal", long],
    ):
        done = here(capfd, *map(str, command))
        assert done.returncode == 2 and done.stderr.count("error: ") == 1 and "Traceback" not in done.stderr, (command, done.stderr)


def test_a_duration_and_a_fraction_of_thousands_of_digits_are_refused():
    for text in ("9" * 5000 + "s", "٣s"):
        with pytest.raises(BadInput, match="is not a duration"):
            parse_duration_ns(text)
    for text in ("9" * 5000, "1e999999999", "1e-999999999", "1/0", "nan", "0x1"):
        with pytest.raises(BadInput, match=r"is no number|divides by zero"):
            exact_fraction(text)
    assert exact_fraction("1/64") == exact_fraction("0.015625") == exact_fraction("15625e-6")


# ---------------------------------------------------------------- runs


def test_a_run_whose_files_are_folders_or_lead_to_themselves_is_one_line(tmp_path):
    for name in ("manifest.json", "chain.jsonl", "unhashed.jsonl", "segments/00000001/wide.parquet", "segments/00000001"):
        run = tmp_path / name.replace("/", "-") / "run"
        write_run(run, 20)
        for damage in (_to_folder, _to_loop):
            damage(run / name)
            assert verify_chain(run) or name == "unhashed.jsonl"
            for act in (lambda run=run: ask("select count(*) from wide", runs=run), lambda run=run: read_table(read_run(run), "wide")):
                try:
                    act()
                except TapeproofError as error:
                    assert str(error).isprintable()


def _to_folder(path):
    if path.is_dir():
        shutil.rmtree(path)
        return
    path.unlink()
    path.mkdir()


def _to_loop(path):
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(path.name)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(identity=None),
        lambda m: m.update(attributes=[]),
        lambda m: m.update(head=3),
        lambda m: m.update(steps="many"),
        lambda m: m["log"].update(level=None),
        lambda m: m["log"].update(segment_steps=0),
        lambda m: m["log"]["tables"][0].update(name=["x"]),
        lambda m: m["log"]["tables"][0].update(columns=[]),
        lambda m: m["log"]["tables"][0]["columns"][0].update(name="a\0b"),
        lambda m: m["log"]["tables"][0]["columns"][0].update(dtype="x" * 10_000),
        lambda m: m.update(identity={"device": "\ud800"}),
    ],
)
def test_a_manifest_with_a_member_of_another_kind_is_damage(tmp_path, change):
    write_run(tmp_path / "run", 5)
    manifest = json.loads((tmp_path / "run/manifest.json").read_bytes())
    change(manifest)
    (tmp_path / "run/manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DamagedLog, match="cannot be read") as caught:
        read_run(tmp_path / "run")
    assert len(str(caught.value)) < 2500
    assert [finding.part for finding in verify_chain(tmp_path / "run")] == ["manifest.json"]


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 100_000, b'"\\ud800"', b"9" * 5000])
def test_json_that_nests_or_counts_without_end_is_no_json(text):
    with pytest.raises(ValueError):
        parse_json(text)


def test_text_of_a_part_that_is_no_utf8_and_nulls_where_none_may_be_are_damage(tmp_path):
    write_run(tmp_path / "run", 40)
    (path,) = (tmp_path / "run/segments/00000001").glob("notes.parquet")
    whole = pq.read_table(path)
    bad = pa.Array.from_buffers(pa.string(), len(whole), pa.array([b"\xff"] * len(whole), pa.binary()).buffers())
    for values in (bad, pa.nulls(len(whole), pa.string())):
        pq.write_table(whole.set_column(whole.column_names.index("text"), "text", values), path)
        with pytest.raises(DamagedLog, match=r"notes\.parquet: cannot be read"):
            read_table(read_run(tmp_path / "run"), "notes")


def test_a_run_of_which_the_identity_states_other_kinds_is_watched_without_them(tmp_path):
    write_training(tmp_path / "run", 5)
    manifest = json.loads((tmp_path / "run/manifest.json").read_bytes())
    for config in (None, "x", {"phase": [], "instrument": 3, "lanes": "many", "loop": []}):
        manifest["identity"]["config"] = config
        (tmp_path / "run/manifest.json").write_text(json.dumps(manifest))
        seen = standing(tmp_path / "run")
        assert (seen.phase, seen.instrument, seen.lanes, seen.planned, seen.steps) == (None, None, None, None, 5)


def test_a_statement_of_bytes_that_are_no_text_is_refused(store):
    with pytest.raises(BadInput, match="no text"):
        ask("select '\ud800'", store)


# ---------------------------------------------------------------- what goes in comes out


def test_options_and_file_names_of_any_characters_leave_a_store_that_can_be_read(tmp_path):
    path = tmp_path / os.fsdecode(b"b\xff\n.csv")
    path.write_text(BARS.format("ESH4").replace(",", "\t"))
    ingest(path, tmp_path / "store", schema="ohlcv-1m", timezone="UTC", delimiter="\t")
    assert ask("select source from market.quality", tmp_path / "store")["rows"] == [["b\\udcff\\n.csv"]]
    assert ingest(path, tmp_path / "store", schema="ohlcv-1m", timezone="UTC", delimiter="\t")["already"]
    command = [sys.executable, "-m", "cli.main", "ingest", str(path), "--store", str(tmp_path / "S2"), "--schema", "ohlcv-1m"]
    for form in ([], ["--json"]):
        done = subprocess.run([*command, "--timezone", "UTC", *form], capture_output=True, cwd=Path(__file__).parent.parent)
        assert done.returncode == 0 and b"b\\udcff" in done.stdout, done.stderr
    assert remove_source(tmp_path / "store", name=path.name).rows == 1


def test_what_stands_behind_a_texts_nul_is_in_no_hash(tmp_path):
    hashes = []
    for number, behind in enumerate((b"\0\0", b"\0x", b"xx")):
        records = np.zeros(1, RECORDS["definition"])
        records["length"], records["rtype"], records["instrument_id"], records["ts_event"] = 130, 0x13, 7, T0
        records.view("u1")[records.dtype.fields["asset"][1] :][:5] = list(b"ES\0" + behind)
        ingest_file(write_raw(tmp_path / f"f{number}", records), tmp_path / f"S{number}", open_source=raw("definition"))
        (part,) = list_parts(tmp_path / f"S{number}")
        found = read_columns(tmp_path / f"S{number}", "ESH4", "definition", 0, 2**62)
        hashes.append((part.content_hash, canonical_hash(found.arrays | {"row": found.row}, found.undefined)))
        assert found.arrays["asset"].tolist() == [b"ES"]
    assert len({one for pair in hashes for one in pair}) == 1


def test_rows_that_go_back_over_midnight_are_read_in_the_order_of_their_file(tmp_path):
    records = book_records(30, 3, start_ns=T0 + 3590 * 10**9, step_ns=10**9)
    records[[5, 20]], records[[10, 25]] = records[[20, 5]], records[[25, 10]]
    ingest_file(write_raw(tmp_path / "f", records), tmp_path / "S", open_source=raw())
    assert len(list_parts(tmp_path / "S")) == 2, "one a date"
    found = read_columns(tmp_path / "S", "ESH4", "mbp-10", 0, 2**62)
    assert found.row.tolist() == list(range(30))
    assert found.arrays["sequence"].tolist() == records["sequence"].tolist()
