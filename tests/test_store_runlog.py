"""The run log's writer: what is appended is read back exactly, equal rows give equal bytes, bad rows are refused, nothing is dropped."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import store.runlog as runlog_module
from cuda_env.tables import TABLES as ENV_TABLES
from lob.errors import BadInput, CheckFailed, DamagedLog, NotFound
from lob.tables import LEVELS
from store.run_check import verify_chain
from store.run_read import read_run, read_table, seal
from store.runlog import RunLog, lanes_kept
from tests.runlog_runs import (
    DEALS,
    IDENTITY,
    NOTES,
    TABLES,
    WIDE,
    as_arrays,
    expected,
    plain_rows,
    same_rows,
    write_run,
    write_steps,
)

REPO = Path(__file__).resolve().parent.parent


def all_rows_hold(run_dir, steps, seed=7):
    run = read_run(run_dir)
    return run.steps == steps and all(same_rows(read_table(run, table.name), expected(table.name, seed, steps)) for table in TABLES)


def folder_bytes(run_dir, *, with_manifest=False):
    """Every file of a run that equal runs must share, by name."""
    names = sorted(p for p in Path(run_dir).rglob("*") if p.is_file() and (with_manifest or p.name != "manifest.json"))
    return {str(p.relative_to(run_dir)): p.read_bytes() for p in names}


@pytest.mark.parametrize("steps", [0, 1, 15, 16, 17, 50])
def test_what_is_appended_is_read_back_exactly(tmp_path, steps):
    head = write_run(tmp_path / "run", steps)
    assert all_rows_hold(tmp_path / "run", steps)
    run = read_run(tmp_path / "run")
    assert (run.state, run.head, run.sealed_steps) == ("finished", head, steps)
    assert run.manifest["head"] == head and run.manifest["end_state"] == "finished"
    assert not (tmp_path / "run" / "journal").exists()
    assert verify_chain(tmp_path / "run", head) == []


def test_declared_tables_come_back_from_the_manifest(tmp_path):
    with RunLog.create(tmp_path / "run", identity=IDENTITY, tables=TABLES + ENV_TABLES) as log:
        log.finish("finished")
    assert tuple(read_run(tmp_path / "run").tables.values()) == TABLES + ENV_TABLES


def test_a_sealed_part_holds_plain_coded_columns_sorted_by_key(tmp_path):
    write_run(tmp_path / "run", 20, shuffle=True, block=20)
    file = pq.ParquetFile(tmp_path / "run" / "segments" / "00000001" / "wide.parquet")
    assert [str(field.type) for field in file.schema_arrow] == ["int8", "int32", "int32", "int16", "int64", "int64", "float", "double"]
    assert [field.name for field in file.schema_arrow if field.nullable] == ["stop_ticks", "precise"]
    rows = file.read().to_pylist()
    assert [(r["step"], r["lane"]) for r in rows] == sorted((r["step"], r["lane"]) for r in rows)
    assert len(rows) == 16 * 5


def test_an_open_run_reads_as_its_committed_steps(tmp_path):
    log = RunLog.create(tmp_path / "run", identity=IDENTITY, tables=TABLES, segment_steps=8, flush_rows=10**9, flush_seconds=10**9)
    write_steps(log, 7, 0, 12)
    assert read_run(tmp_path / "run").steps == 8
    log.commit()
    write_steps(log, 7, 12, 13)
    assert all_rows_hold(tmp_path / "run", 12)
    assert read_run(tmp_path / "run").state == "unfinished"
    log.close()
    assert all_rows_hold(tmp_path / "run", 13)


def test_rows_of_a_step_that_never_ended_are_not_in_the_log(tmp_path):
    with RunLog.create(tmp_path / "run", identity=IDENTITY, tables=TABLES, segment_steps=8) as log:
        write_steps(log, 7, 0, 3)
        log.append("wide", as_arrays(WIDE, plain_rows(7, 3)["wide"]))
    assert all_rows_hold(tmp_path / "run", 3)


@pytest.mark.parametrize(
    "options",
    [
        {"flush_rows": 1},
        {"flush_rows": 10**9, "flush_seconds": 10**9},
        {"flush_seconds": 0.0},
        {"block": 7},
        {"block": 50},
        {"block": 16},
        {"shuffle": True},
        {"attributes": {"host": "another", "started": "2026-01-01"}},
    ],
    ids=str,
)
def test_equal_rows_give_equal_bytes_whatever_the_flushes_and_blocks(tmp_path, options):
    head = write_run(tmp_path / "a", 50)
    assert write_run(tmp_path / "b_another_name", 50, **options) == head
    assert folder_bytes(tmp_path / "a") == folder_bytes(tmp_path / "b_another_name")


def test_equal_runs_are_byte_equal_across_processes_hash_seeds_and_threads(tmp_path):
    heads = set()
    for name, environment in {
        "a": {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "ARROW_IO_THREADS": "1"},
        "b": {"PYTHONHASHSEED": "4711", "OMP_NUM_THREADS": "7", "TZ": "Asia/Tokyo", "LANG": "C"},
    }.items():
        command = [sys.executable, "-m", "tests.runlog_runs", str(tmp_path / name), "50"]
        done = subprocess.run(command, cwd=REPO, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
        heads.add(done.stdout)
    assert len(heads) == 1
    assert folder_bytes(tmp_path / "a", with_manifest=True) == folder_bytes(tmp_path / "b", with_manifest=True)


@pytest.mark.parametrize("change", [{"seeds": {"run": 8}}, {"device": "cuda"}, {"config": {"capital": 250_001, "fee": 2.25}}])
def test_the_chain_starts_from_the_identity(tmp_path, change):
    heads = []
    for name, identity in {"a": IDENTITY, "b": IDENTITY | change}.items():
        with RunLog.create(tmp_path / name, identity=identity, tables=TABLES) as log:
            heads.append(log.finish("finished"))
    assert heads[0] != heads[1]


def test_the_head_covers_the_summary(tmp_path):
    heads = []
    for name, total in {"a": 1, "b": 2}.items():
        with RunLog.create(tmp_path / name, identity=IDENTITY, tables=TABLES) as log:
            heads.append(log.finish("finished", {"total": total}))
    assert heads[0] != heads[1]


@pytest.mark.parametrize("steps", [0, 15, 16])
def test_rows_that_follow_the_last_step_are_in_a_finished_log(tmp_path, steps):
    last = {"step": steps, "seq": 99, "text": "done", "reason": None}
    with RunLog.create(tmp_path / "run", identity=IDENTITY, tables=TABLES, segment_steps=16) as log:
        write_steps(log, 7, 0, steps)
        log.append_row("notes", last)
        head = log.finish("finished")
    run = read_run(tmp_path / "run")
    assert same_rows(read_table(run, "notes"), [*expected("notes", 7, steps), last]) and run.steps == steps
    assert verify_chain(tmp_path / "run", head) == []


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("column", ["score", "precise"])
def test_an_undefined_number_is_refused_by_name_and_the_log_stays_as_it_was(tmp_path, bad, column):
    with RunLog.create(tmp_path / "run", identity=IDENTITY, tables=TABLES) as log:
        write_steps(log, 7, 0, 2)
        columns = as_arrays(WIDE, plain_rows(7, 2)["wide"])
        columns[column][3] = bad
        with pytest.raises(CheckFailed, match=rf"table wide, column {column}, row 3 \(phase 1, step 2, lane 3\): value -?(nan|inf)"):
            log.append("wide", columns)
        write_steps(log, 7, 2, 3)
        log.finish("finished")
    assert all_rows_hold(tmp_path / "run", 3)


def test_an_undefined_number_under_a_null_is_a_null(tmp_path):
    with RunLog.create(tmp_path / "run", identity=IDENTITY, tables=TABLES) as log:
        columns = as_arrays(WIDE, plain_rows(7, 0)["wide"])
        columns["precise"] = np.ma.MaskedArray(np.full(5, np.nan), [True] * 5)
        log.append("wide", columns)
        log.end_step(0)
        log.finish("finished")
    assert read_table(read_run(tmp_path / "run"), "wide")["precise"].to_pylist() == [None] * 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"score": None}, "missing"),
        ({"extra": np.zeros(5)}, "extra"),
        ({"small": np.zeros(5, np.int32)}, "int32"),
        ({"small": np.zeros(5, bool)}, "bool"),
        ({"score": np.zeros(5)}, "float64"),
        ({"small": np.zeros(4, np.int16)}, r"int16\[4\] given"),
        ({"small": np.zeros((5, 1), np.int16)}, "int16"),
        ({"small": [0] * 5}, "list given"),
        ({"small": np.zeros(5, ">i2")}, ">i2"),
    ],
)
def test_wrong_names_types_and_lengths_are_refused(tmp_path, change, message):
    with RunLog.create(tmp_path / "run", identity=IDENTITY, tables=TABLES) as log:
        columns = as_arrays(WIDE, plain_rows(7, 0)["wide"]) | change
        columns = {name: values for name, values in columns.items() if values is not None}
        with pytest.raises(ValueError, match=message):
            log.append("wide", columns)
        with pytest.raises(ValueError, match="no string"):
            log.append("notes", as_arrays(NOTES, [{"step": 0, "seq": 0, "text": "x", "reason": None}]) | {"text": [None]})
        with pytest.raises(ValueError, match="not declared; declared are wide"):
            log.append("nowhere", columns)


def test_a_null_where_none_may_be_is_refused(tmp_path):
    with RunLog.create(tmp_path / "run", identity=IDENTITY, tables=TABLES) as log:
        columns = as_arrays(WIDE, plain_rows(7, 0)["wide"])
        columns["small"] = np.ma.MaskedArray(columns["small"], [False, False, True, False, False])
        with pytest.raises(CheckFailed, match=r"column small, row 2 .*null in a column that is not nullable"):
            log.append("wide", columns)


def test_each_level_keeps_the_tables_that_the_design_names():
    kept = {level: [t.name for t in ENV_TABLES if lanes_kept(t, "sampled:3" if level == "sampled" else level) != 0] for level in LEVELS}
    assert kept == {
        "full": ["steps", "orders", "fills", "trades"],
        "sampled": ["steps", "orders", "fills", "trades"],
        "fills": ["fills", "trades"],
        "trades": ["trades"],
        "diag": [],
    }
    assert [lanes_kept(t, "sampled:3") for t in ENV_TABLES] == [3, 3, None, None]


@pytest.mark.parametrize("level", ["sampled", "sampled:0", "sampled:x", "fulll", "full:3", ""])
def test_an_unknown_level_is_refused_and_nothing_is_made(tmp_path, level):
    with pytest.raises(BadInput, match="log level"):
        RunLog.create(tmp_path / "run", identity=IDENTITY, tables=TABLES, level=level)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("level", ["sampled:2", "fills", "trades", "diag"])
def test_a_level_thins_and_drops_and_the_rest_is_whole(tmp_path, level):
    write_run(tmp_path / "run", 20, level=level)
    run = read_run(tmp_path / "run")
    wide = [row for row in expected("wide", 7, 20) if level == "sampled:2" and row["lane"] < 2]
    assert same_rows(read_table(run, "wide"), wide)
    assert same_rows(read_table(run, "deals"), expected("deals", 7, 20) if level != "diag" else [])
    assert same_rows(read_table(run, "notes"), expected("notes", 7, 20))


def test_keeps_says_what_the_level_takes(tmp_path):
    with RunLog.create(tmp_path / "run", identity=IDENTITY, tables=TABLES, level="trades") as log:
        assert [log.keeps(table.name) for table in TABLES] == [False, True, True, True]


def test_tables_outside_every_hash_change_no_hash(tmp_path):
    heads = []
    for name, wall in {"a": 1, "b": 2}.items():
        with RunLog.create(tmp_path / name, identity=IDENTITY, tables=TABLES, segment_steps=1) as log:
            log.append("clock", {"step": np.zeros(1, np.int32), "wall_ns": np.full(1, wall, np.int64)})
            log.append("deals", as_arrays(DEALS, [{"phase": 1, "lane": 0, "step": 0, "deal_id": 0, "lots": 1}]))
            log.end_step(0)
            heads.append(log.finish("finished"))
        assert read_table(read_run(tmp_path / name), "clock")["wall_ns"].to_pylist() == [wall]
    assert heads[0] == heads[1]
    assert b"clock" not in (tmp_path / "a" / "chain.jsonl").read_bytes()


def test_one_writer_at_a_time(tmp_path):
    log = RunLog.create(tmp_path / "run", identity=IDENTITY, tables=TABLES)
    with pytest.raises(BadInput, match="another process is writing this run"):
        seal(tmp_path / "run")
    with pytest.raises(BadInput, match="another process is writing this run"):
        RunLog.create(tmp_path / "run", identity=IDENTITY, tables=TABLES)
    log.close()
    with pytest.raises(BadInput, match="already there"):
        RunLog.create(tmp_path / "run", identity=IDENTITY, tables=TABLES)
    assert all_rows_hold(tmp_path / "run", 0)


def test_a_folder_that_cannot_be_made_is_one_clear_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot be written there"):
        RunLog.create(tmp_path / "file" / "run", identity=IDENTITY, tables=TABLES)


def test_what_is_no_run_is_said_to_be_none(tmp_path):
    with pytest.raises(NotFound, match="not a run folder"):
        read_run(tmp_path)
    write_run(tmp_path / "run", 3)
    with pytest.raises(NotFound, match="no table nowhere; the run declares wide"):
        read_table(read_run(tmp_path / "run"), "nowhere")
    with pytest.raises(NotFound, match="no column nothing; it has phase"):
        read_table(read_run(tmp_path / "run"), "wide", ["nothing"])
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest | {"format": 99}))
    with pytest.raises(DamagedLog, match="format 99"):
        read_run(tmp_path / "run")


def test_a_summary_with_nan_is_refused_before_anything_is_sealed(tmp_path):
    with RunLog.create(tmp_path / "run", identity=IDENTITY, tables=TABLES) as log:
        write_steps(log, 7, 0, 3)
        with pytest.raises(ValueError, match="JSON"):
            log.finish("finished", {"sharpe": float("nan")})
        assert read_run(tmp_path / "run").state == "unfinished"
        log.finish("finished", {"sharpe": None})
    assert json.loads((tmp_path / "run" / "eval_summary.json").read_text()) == {"sharpe": None}
    assert all_rows_hold(tmp_path / "run", 3)


def test_when_sealing_is_slower_than_the_run_the_run_waits_and_nothing_is_dropped(tmp_path, monkeypatch):
    write_segment = runlog_module.write_segment
    running = []

    def slowly(*arguments):
        running.append(len(list((tmp_path / "run" / "journal").iterdir())))
        time.sleep(0.05)
        return write_segment(*arguments)

    monkeypatch.setattr(runlog_module, "write_segment", slowly)
    with RunLog.create(tmp_path / "run", identity=IDENTITY, tables=TABLES, segment_steps=4) as log:
        write_steps(log, 7, 0, 48)
        waited = log.waited_s
        log.finish("finished")
    assert waited > 0.2
    assert max(running) <= runlog_module.MAX_UNSEALED + 2
    assert all_rows_hold(tmp_path / "run", 48)


def test_a_segment_waits_for_a_durable_checkpoint(tmp_path):
    log = RunLog.create(tmp_path / "run", identity=IDENTITY, tables=TABLES, segment_steps=4, seal_behind_checkpoints=True)
    write_steps(log, 7, 0, 14)
    log.commit()
    assert read_run(tmp_path / "run").sealed_steps == 0 and all_rows_hold(tmp_path / "run", 14)
    log.checkpointed(9)
    log.commit()
    log.close()
    assert read_run(tmp_path / "run").sealed_steps == 8 and all_rows_hold(tmp_path / "run", 14)
    seal(tmp_path / "run")
    assert all_rows_hold(tmp_path / "run", 14)


def test_a_run_that_waited_for_checkpoints_has_the_bytes_of_one_that_did_not(tmp_path):
    assert write_run(tmp_path / "a", 50) == write_run(tmp_path / "b", 50, seal_behind_checkpoints=True)
    assert folder_bytes(tmp_path / "a") == folder_bytes(tmp_path / "b")


def test_a_reader_beside_a_living_writer_sees_a_prefix(tmp_path):
    log = RunLog.create(tmp_path / "run", identity=IDENTITY, tables=TABLES, segment_steps=3, flush_rows=7)
    writer = threading.Thread(target=write_steps, args=(log, 7, 0, 150))
    writer.start()
    seen = []
    while writer.is_alive():
        run = read_run(tmp_path / "run")
        for name in ("deals", "wide"):
            assert same_rows(read_table(run, name), expected(name, 7, run.steps))
        seen.append(run.steps)
    writer.join()
    log.close()
    assert seen == sorted(seen) and len(set(seen)) > 2
    assert all_rows_hold(tmp_path / "run", 150)


def test_a_full_disk_is_one_clear_line_and_keeps_what_was_committed(tmp_path):
    script = f"""
import resource, sys
from tests.runlog_runs import write_run
from lob.errors import TapeproofError
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    write_run({str(tmp_path / "run")!r}, 10_000, segment_steps=10_000)
except TapeproofError as error:
    print(error)
    sys.exit(error.exit_code)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert len(done.stdout.splitlines()) == 1 and "sim seal" in done.stdout and "committed up to step" in done.stdout
    steps = read_run(tmp_path / "run").steps
    assert f"committed up to step {steps} of" in done.stdout
    assert steps > 20 and all_rows_hold(tmp_path / "run", steps)
    assert verify_chain(tmp_path / "run") == []
    seal(tmp_path / "run")
    assert all_rows_hold(tmp_path / "run", steps)


def test_a_disk_that_fills_while_sealing_is_one_clear_line(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device", "part")

    with RunLog.create(tmp_path / "run", identity=IDENTITY, tables=TABLES, segment_steps=4) as log:
        write_steps(log, 7, 0, 6)
        monkeypatch.setattr(runlog_module, "write_segment", full)
        with pytest.raises(BadInput, match=r"No space left on device.*sim seal"):
            write_steps(log, 7, 6, 60)
        with pytest.raises(BadInput, match="No space left on device"):
            log.append("wide", {})
    monkeypatch.undo()
    steps = read_run(tmp_path / "run").steps
    assert steps >= 8 and all_rows_hold(tmp_path / "run", steps)
    seal(tmp_path / "run")
    assert all_rows_hold(tmp_path / "run", steps) and verify_chain(tmp_path / "run") == []


def test_no_segment_is_sealed_after_one_that_could_not_be(tmp_path, monkeypatch):
    write_segment = runlog_module.write_segment

    def full_once(run_dir, k, *arguments):
        if k == 2:
            time.sleep(0.05)
            raise OSError(28, "No space left on device", "part")
        return write_segment(run_dir, k, *arguments)

    monkeypatch.setattr(runlog_module, "write_segment", full_once)
    log = RunLog.create(tmp_path / "run", identity=IDENTITY, tables=TABLES, segment_steps=2)
    with pytest.raises(BadInput, match="No space left"), log:
        write_steps(log, 7, 0, 60)
    run = read_run(tmp_path / "run")
    assert run.sealed_steps == 2 and run.steps >= 6 and all_rows_hold(tmp_path / "run", run.steps)
    monkeypatch.undo()
    seal(tmp_path / "run")
    assert all_rows_hold(tmp_path / "run", run.steps) and verify_chain(tmp_path / "run") == []


def by_row(log, steps):
    for step in range(steps):
        for table in TABLES:
            for row in plain_rows(7, step)[table.name]:
                log.append_row(table.name, row)
        log.end_step(step)


@pytest.mark.parametrize("options", [{}, {"flush_rows": 1}, {"level": "sampled:2"}], ids=str)
def test_rows_given_one_by_one_give_the_bytes_of_arrays(tmp_path, options):
    head = write_run(tmp_path / "a", 20, **options)
    with RunLog.create(tmp_path / "b", identity=IDENTITY, tables=TABLES, **{"segment_steps": 16, "flush_rows": 40, **options}) as log:
        by_row(log, 20)
        assert log.finish("finished", {"total_pnl_usd_micros": 12, "win_rate": None}) == head
    assert folder_bytes(tmp_path / "a") == folder_bytes(tmp_path / "b")


def test_rows_and_arrays_may_alternate_and_keep_their_order(tmp_path):
    rows = expected("wide", 7, 4)
    with RunLog.create(tmp_path / "run", identity=IDENTITY, tables=TABLES, segment_steps=2) as log:
        for start in range(0, 20, 4):
            log.append("wide", as_arrays(WIDE, rows[start : start + 2]))
            log.append_row("wide", rows[start + 2])
            log.append_row("wide", rows[start + 3])
        log.end_step(3, 4)
        log.finish("finished")
    assert same_rows(read_table(read_run(tmp_path / "run"), "wide"), rows)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"score": float("nan")}, CheckFailed, r"table wide, column score, row 0 \(phase 1, step 0, lane 0\): value nan"),
        ({"small": None}, CheckFailed, "column small, row 0 .*null"),
        ({"other": 1}, ValueError, "not declared .*other"),
        ({"small": 2**15}, ValueError, "do not fit int16"),
        ({"small": 0.5}, ValueError, "do not fit int16"),
        ({"small": "1"}, ValueError, "do not fit int16"),
        ({"cash_usd_micros": 2**63}, ValueError, "do not fit int64"),
        ({"score": "x"}, TypeError, "must be real number"),
    ],
)
def test_a_row_that_does_not_fit_is_refused_and_what_was_committed_stays(tmp_path, change, error, message):
    with RunLog.create(tmp_path / "run", identity=IDENTITY, tables=TABLES, flush_seconds=10**9) as log:
        write_steps(log, 7, 0, 2)
        log.commit()
        with pytest.raises(error, match=message):
            log.append_row("wide", plain_rows(7, 0)["wide"][0] | change)
            log.end_step(2)
            log.commit()
    assert all_rows_hold(tmp_path / "run", 2)
