"""The chain: any changed byte of a run is found and named, and nothing is found in a run that nobody touched."""

import contextlib
import hashlib
import json
import os
import random
import shutil
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lob.errors import DamagedLog
from store.run_check import verify_chain
from store.run_read import read_run, read_table, seal
from tests.runlog_runs import IDENTITY, TABLES, expected, same_rows, write_run

STEPS = 40


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A finished run of three segments, its head, and one closed without an end (its journal in place)."""
    folder = tmp_path_factory.mktemp("runs")
    head = write_run(folder / "whole", STEPS)
    write_run(folder / "open", STEPS, finish=False, flush_rows=1)
    write_run(folder / "other", STEPS, seed=8)
    return folder, head


@pytest.fixture
def run(made, tmp_path):
    shutil.copytree(made[0] / "whole", tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def open_run(made, tmp_path):
    shutil.copytree(made[0] / "open", tmp_path / "open")
    return tmp_path / "open"


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << (at % 8)
    path.write_bytes(content)


def canonical(value) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def test_an_untouched_run_has_no_finding(run, open_run, made):
    assert verify_chain(run) == [] and verify_chain(run, made[1]) == []
    assert verify_chain(open_run) == []


def test_the_chain_follows_from_its_published_formula(run):
    manifest = json.loads((run / "manifest.json").read_text())
    lines = [json.loads(line) for line in (run / "chain.jsonl").read_text().splitlines()]
    running = hashlib.sha256(canonical({key: manifest[key] for key in ("format", "identity", "log")})).hexdigest()
    assert lines[0] == {"k": 0, "hash": running}
    for k, line in enumerate(lines[1:], 1):
        body = {key: value for key, value in line.items() if key != "hash"}
        running = hashlib.sha256(bytes.fromhex(running) + canonical(body)).hexdigest()
        assert (line["k"], line["hash"]) == (k, running)
    assert manifest["head"] == running
    assert [line["steps"] for line in lines[1:-1]] == [[0, 16], [16, 32], [32, 40]]
    assert [line["step"] for line in lines[1:-1]] == [15, 31, 39]
    for line in lines[1:-1]:
        for table, entry in line["tables"].items():
            path = run / "segments" / f"{line['k']:08d}" / f"{table}.parquet"
            assert entry["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest() and entry["bytes"] == path.stat().st_size
            assert entry["rows"] == pq.read_metadata(path).num_rows
    summary = lines[-1]["end"]["summary"]
    assert summary["sha256"] == hashlib.sha256((run / summary["file"]).read_bytes()).hexdigest()


@pytest.mark.parametrize("name", ["chain.jsonl", "eval_summary.json", "segments/00000002/wide.parquet", "segments/00000001/notes.parquet"])
@pytest.mark.parametrize("seed", range(8))
def test_any_flipped_byte_of_a_sealed_file_is_found_and_the_file_named(run, made, name, seed):
    size = (run / name).stat().st_size
    flip(run / name, random.Random(f"{name}{seed}").randrange(size))
    found = verify_chain(run, made[1])
    assert found and any(name in (finding.part or "") for finding in found), found


@pytest.mark.deep
def test_every_byte_of_a_sealed_part_is_proved(run):
    path = run / "segments" / "00000001" / "deals.parquet"
    original = path.read_bytes()
    for at in range(len(original)):
        flip(path, at)
        assert [finding.part for finding in verify_chain(run)][:1] == ["segments/00000001/deals.parquet"], at
        path.write_bytes(original)


def test_a_byte_flipped_in_a_column_names_the_column(run):
    path = run / "segments" / "00000002" / "wide.parquet"
    chunk = next(c for c in (pq.read_metadata(path).row_group(0).column(i) for i in range(8)) if c.path_in_schema == "cash_usd_micros")
    flip(path, chunk.data_page_offset + chunk.total_compressed_size // 2)
    (finding,) = verify_chain(run)
    assert (finding.table, finding.part, finding.column) == ("wide", "segments/00000002/wide.parquet", "cash_usd_micros")
    assert finding.byte == chunk.data_page_offset


def test_a_part_that_was_written_anew_with_the_same_values_is_found_as_changed_bytes(run):
    path = run / "segments" / "00000002" / "wide.parquet"
    pq.write_table(pq.read_table(path, partitioning=None), path, compression="zstd")
    (finding,) = verify_chain(run)
    assert "its bytes differ, the values that they hold do not" in finding.message


def test_one_changed_value_in_a_part_written_anew_names_its_column(run):
    path = run / "segments" / "00000001" / "deals.parquet"
    rows = pq.read_table(path, partitioning=None)
    lots = rows["lots"].to_pylist()
    pq.write_table(rows.set_column(4, rows.schema.field("lots"), pa.array([lots[0] + 1, *lots[1:]], pa.int32())), path)
    (finding,) = verify_chain(run)
    assert (finding.table, finding.column) == ("deals", "lots")


def test_a_removed_part_is_found(run):
    (run / "segments" / "00000002" / "deals.parquet").unlink()
    (finding,) = verify_chain(run)
    assert "missing" in finding.message and finding.table == "deals"


def test_a_part_from_another_run_is_found(run, made):
    shutil.copy(made[0] / "other" / "segments" / "00000002" / "wide.parquet", run / "segments" / "00000002" / "wide.parquet")
    (finding,) = verify_chain(run)
    assert finding.table == "wide" and "changed" in finding.message


def test_two_swapped_parts_are_both_found(run):
    one, two = (run / "segments" / k / "wide.parquet" for k in ("00000001", "00000002"))
    content = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(content)
    assert {finding.part for finding in verify_chain(run)} == {"segments/00000001/wide.parquet", "segments/00000002/wide.parquet"}


@pytest.mark.parametrize("name", ["segments/00000004/wide.parquet", "segments/00000001/wide2.parquet", "segments/00000002/note.txt"])
def test_a_part_that_the_chain_does_not_list_is_found_and_not_read(run, name):
    (run / name).parent.mkdir(exist_ok=True)
    shutil.copy(run / "segments" / "00000001" / "wide.parquet", run / name)
    (finding,) = verify_chain(run)
    assert finding.part == name and "does not list it" in finding.message
    assert same_rows(read_table(read_run(run), "wide"), expected("wide", 7, STEPS))


def test_a_chain_line_cut_short_is_found_and_the_log_ends_before_it(run):
    path = run / "chain.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]) + lines[2][:50])
    found = verify_chain(run)
    assert any(finding.part == "chain.jsonl" and finding.byte == len(lines[0] + lines[1]) for finding in found)
    assert any(finding.part == "segments/00000002/wide.parquet" for finding in found)
    assert read_run(run).steps == 16 and "line 3 is cut short" in read_run(run).ends
    with pytest.raises(DamagedLog, match="cut short"):
        seal(run)


@pytest.mark.parametrize("dropped", [1, 2, 3, 4])
def test_a_chain_line_removed_is_found(run, dropped):
    path = run / "chain.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:dropped] + lines[dropped + 1 :]))
    assert verify_chain(run) != []


def test_a_log_rewritten_whole_is_told_by_its_head_alone(tmp_path, made):
    write_run(tmp_path / "forged", STEPS, seed=8)
    assert verify_chain(tmp_path / "forged") == []
    (finding,) = verify_chain(tmp_path / "forged", made[1])
    assert "this is not the log that had it" in finding.message and made[1] in finding.message


def test_a_head_from_the_middle_of_the_chain_is_said_to_be_one(run):
    middle = json.loads((run / "chain.jsonl").read_text().splitlines()[2])["hash"]
    (finding,) = verify_chain(run, middle)
    assert "after line 3" in finding.message


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["identity"]["seeds"].update(run=8),
        lambda m: m["identity"]["config"].update(fee=0.0),
        lambda m: m["log"].update(level="fills"),
        lambda m: m["log"]["tables"][0]["columns"][0]["codes"].update({"0": "eval", "1": "train"}),
    ],
)
def test_a_changed_identity_or_declaration_is_found(run, change):
    manifest = json.loads((run / "manifest.json").read_text())
    change(manifest)
    (run / "manifest.json").write_text(json.dumps(manifest))
    (finding,) = verify_chain(run)
    assert finding.part == "manifest.json" and "identity or declared tables were changed" in finding.message


@pytest.mark.parametrize("change", [{"end_state": "killed"}, {"head": "0" * 64}, {"steps": 41}])
def test_a_changed_end_in_the_manifest_is_found(run, change):
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | change))
    (finding,) = verify_chain(run)
    assert finding.part == "manifest.json"


def test_attributes_are_outside_every_hash(run, made):
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"attributes": {"host": "x"}}))
    assert verify_chain(run, made[1]) == []


def test_a_missing_or_changed_summary_is_found(run):
    (run / "eval_summary.json").write_text("{}\n")
    assert ["changed after the run ended" in finding.message for finding in verify_chain(run)] == [True]
    (run / "eval_summary.json").unlink()
    assert ["missing" in finding.message for finding in verify_chain(run)] == [True]


def test_a_summary_that_the_chain_does_not_cover_is_found(run):
    (run / "train_summary.json").write_text("{}\n")
    assert [finding.part for finding in verify_chain(run)] == ["train_summary.json"]


@pytest.mark.parametrize("name", ["wide.arrows", "deals.arrows", "commits"])
@pytest.mark.parametrize("seed", range(6))
def test_any_flipped_byte_of_a_committed_journal_is_found_and_ends_the_log_before_it(open_run, name, seed):
    folder = open_run / "journal" / "00000003"
    at = random.Random(f"{name}{seed}").randrange((folder / name).stat().st_size)
    flip(folder / name, at)
    before = {p: p.read_bytes() for p in open_run.rglob("*") if p.is_file()}
    (finding, *_) = verify_chain(open_run)
    assert finding.part == f"journal/00000003/{name}" and finding.byte is not None and finding.byte <= at
    run = read_run(open_run)
    assert 32 <= run.steps < STEPS and f"{name.removesuffix('.arrows')} is damaged at byte" in run.ends
    assert all(same_rows(read_table(run, table.name), expected(table.name, 7, run.steps)) for table in TABLES)
    assert before == {p: p.read_bytes() for p in open_run.rglob("*") if p.is_file()}, "a reader never modifies"
    seal(open_run)
    assert read_run(open_run).steps == run.steps and verify_chain(open_run) == []


def test_bytes_after_the_last_commit_are_no_damage(open_run):
    folder = open_run / "journal" / "00000003"
    with open(folder / "wide.arrows", "ab") as handle:
        handle.write(os.urandom(300))
    with open(folder / "commits", "ab") as handle:
        handle.write(b'0123abcd {"steps":')
    assert verify_chain(open_run) == []
    run = read_run(open_run)
    assert run.steps == STEPS and "a commit record cut short" in run.ends and "300 uncommitted bytes of wide" in run.ends
    assert same_rows(read_table(run, "wide"), expected("wide", 7, STEPS))


def test_a_journal_that_does_not_follow_is_found(run, open_run):
    shutil.copytree(open_run / "journal", run / "journal")
    assert [finding.part for finding in verify_chain(run)] == []  # segment 3 is sealed here: a journal the writer had not dropped yet
    os.rename(run / "journal" / "00000003", run / "journal" / "00000004")
    assert [finding.part for finding in verify_chain(run)] == ["journal/00000004"]


def test_garbage_in_place_of_any_file_is_found_and_never_raised(run, made):
    for path in sorted(p for p in run.rglob("*") if p.is_file() and "unhashed" not in str(p)):
        original = path.read_bytes()
        for content in (b"", b"\x00" * 100, b"{}", b"[1,2]\n", b'{"k":0,"hash":"zz"}\n', original[: len(original) // 2], os.urandom(500)):
            path.write_bytes(content)
            assert verify_chain(run, made[1]) != [], (path, content)
        path.write_bytes(original)
    assert verify_chain(run, made[1]) == []


def test_a_lost_unhashed_part_is_said_and_proves_nothing_else(run, made):
    (run / "unhashed" / "00000001" / "clock.parquet").unlink()
    (finding,) = verify_chain(run, made[1])
    assert "outside every hash" in finding.message and finding.table == "clock"


def test_the_identity_is_kept_as_it_was_given(run):
    assert json.loads((run / "manifest.json").read_text())["identity"] == IDENTITY


def rewrite_chain(run, change):
    """The chain with `change` made to its parsed lines and every hash made to fit: what a forger would do."""
    lines = [json.loads(line) for line in (run / "chain.jsonl").read_text().splitlines()]
    change(lines)
    text, running = b"", ""
    for line in lines:
        body = {key: value for key, value in line.items() if key != "hash"}
        running = hashlib.sha256(bytes.fromhex(running) + canonical(body)).hexdigest() if running else line["hash"]
        text += canonical(body | {"hash": running}) + b"\n"
    (run / "chain.jsonl").write_bytes(text)
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"head": running}))


def paths_in(value, path=()):
    yield path
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from paths_in(item, (*path, key))


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.deep] if seed >= 6 else []) for seed in range(40)])
def test_a_forged_chain_whose_hashes_fit_is_never_raised_on(run, made, seed):
    draw = random.Random(seed)

    def change(lines):
        for _ in range(draw.choice([1, 1, 2])):
            path = draw.choice([path for path in paths_in(lines) if len(path) > 1 and path[-1] != "hash"])
            holder = lines
            for key in path[:-1]:
                holder = holder[key]
            if draw.random() < 0.3 and isinstance(holder, dict):
                del holder[path[-1]]
            else:
                holder[path[-1]] = draw.choice([None, -1, 2**70, "x", "../../etc", [], {}, [1], {"rows": 1}, 1.5, True])

    rewrite_chain(run, change)
    assert verify_chain(run, made[1]) != []
    verify_chain(run)
    with contextlib.suppress(DamagedLog):
        read_table(read_run(run), "wide")


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["log"].update(tables=None),
        lambda m: m["log"].update(tables=[1]),
        lambda m: m["log"]["tables"][0].update(name="../wide"),
        lambda m: m["log"]["tables"][0].pop("key"),
        lambda m: m["log"]["tables"][0]["columns"][0].update(dtype="float16"),
        lambda m: m.update(log=[]),
        lambda m: m.update(log={}),
    ],
)
def test_a_manifest_that_declares_nonsense_is_found_and_refused(run, change):
    manifest = json.loads((run / "manifest.json").read_text())
    change(manifest)
    (run / "manifest.json").write_text(json.dumps(manifest))
    assert [finding.part for finding in verify_chain(run)] == ["manifest.json"]
    with pytest.raises(DamagedLog, match="cannot be read"):
        read_run(run)


def test_a_commit_with_a_fitting_checksum_and_nonsense_in_it_is_damage(open_run):
    path = open_run / "journal" / "00000003" / "commits"
    for record in (b"[]", b'{"steps":34}', b'{"step":1,"steps":"x","tables":{}}', b'{"step":1,"steps":34,"tables":{"wide":3}}'):
        path.write_bytes(b"%08x %s\n" % (zlib.crc32(record), record))
        assert [finding.part for finding in verify_chain(open_run)] == ["journal/00000003/commits"]
        assert read_run(open_run).steps == 32
    garbage = b"no arrow at all"
    (path.parent / "wide.arrows").write_bytes(garbage)
    record = canonical({"step": 33, "steps": 34, "tables": {"wide": [len(garbage), zlib.crc32(garbage)]}})
    path.write_bytes(b"%08x %s\n" % (zlib.crc32(record), record))
    assert [finding.table for finding in verify_chain(open_run)] == ["wide"]
    assert read_run(open_run).steps == 32
