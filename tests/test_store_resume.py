"""A run that was killed and resumed from its checkpoint has the log of the run that was never stopped."""

import os
import random
import shutil
from pathlib import Path

import pytest

from lob.errors import BadInput, DamagedLog
from store import reopen as reopen_module
from store.journal import read_journal
from store.reopen import read_abandoned
from store.run_check import verify_chain
from store.run_read import read_run, read_table, seal
from store.runlog import RunLog
from store.views import connect, query
from tests.kills import KILLED, die_at_event, in_child
from tests.runlog_runs import IDENTITY, TABLES, as_arrays, expected, same_rows, write_steps

STEPS = 40
EVERY = 7
SEGMENT_STEPS = 16
LAST_WORDS = {"step": STEPS, "seq": 0, "text": "the end", "reason": None}
OPTIONS = {"identity": IDENTITY, "tables": TABLES, "flush_rows": 13, "flush_seconds": 10**9}


def checkpoint_file(run_dir):
    return run_dir.with_name(f"{run_dir.name}.checkpoint")


def checkpoint(log):
    """The smallest durable checkpoint: how many steps lie behind it, and the head at that point."""
    log.sync()
    aside = log.run_dir.with_name("aside")
    aside.write_text(f"{log.steps} {log.head}")
    os.replace(aside, checkpoint_file(log.run_dir))
    log.checkpointed(log.steps)


def start(run_dir):
    """The log of a run that begins, or of one that goes on from its checkpoint."""
    try:
        begun = b"\n" in (run_dir / "chain.jsonl").read_bytes()
    except FileNotFoundError:
        begun = False
    if not begun:
        shutil.rmtree(run_dir, ignore_errors=True)
        return RunLog.create(run_dir, **OPTIONS, segment_steps=SEGMENT_STEPS, seal_behind_checkpoints=True)
    steps, head = checkpoint_file(run_dir).read_text().split() if checkpoint_file(run_dir).exists() else (0, None)
    return RunLog.resume(run_dir, int(steps), head=head, **OPTIONS)


def train(run_dir, stop=STEPS, finish=True):
    """Play to step `stop`, with a checkpoint every few steps and at the end; a broken-off run goes on."""
    if (run_dir / "manifest.json").exists() and (run_dir / "chain.jsonl").exists() and b'"end"' in (run_dir / "chain.jsonl").read_bytes():
        seal(run_dir)  # killed between its end and the note of it
        return
    with start(run_dir) as log:
        while log.steps < stop:
            write_steps(log, 7, log.steps, log.steps + 1)
            if log.steps % EVERY == 0 or log.steps == STEPS:
                checkpoint(log)
        if finish:
            log.append("notes", as_arrays(TABLES[2], [LAST_WORDS]))
            log.finish("finished", {"total_pnl_usd_micros": 12})


def proved(run_dir):
    """{name: bytes} of everything that must be equal: chain, sealed parts, summary, manifest."""
    files = [run_dir / name for name in ("chain.jsonl", "manifest.json", "eval_summary.json")] + sorted((run_dir / "segments").rglob("*"))
    return {str(path.relative_to(run_dir)): path.read_bytes() for path in files if path.is_file()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The files of the run that was never stopped."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    train(run_dir)
    assert verify_chain(run_dir) == [] and read_abandoned(run_dir) == ()
    return proved(run_dir)


def assert_whole(run_dir, whole):
    assert proved(run_dir) == whole
    assert verify_chain(run_dir) == []
    run = read_run(run_dir)
    assert (run.state, run.steps, run.sealed_steps) == ("finished", STEPS, STEPS)
    for table in TABLES:
        rows = expected(table.name, 7, STEPS) + ([LAST_WORDS] if table.name == "notes" else [])
        assert same_rows(read_table(run, table.name), rows), table.name
    assert not (run_dir / "journal").exists()
    assert not list(run_dir.rglob("*.tmp")) and not list(run_dir.rglob("pending"))


@pytest.mark.parametrize("stop", [1, 6, 7, 8, 14, 15, 16, 17, 21, 28, 32, 33, 39, 40])
def test_a_run_stopped_anywhere_and_resumed_is_the_run_that_never_stopped(tmp_path, whole, stop):
    train(tmp_path / "run", stop, finish=False)
    train(tmp_path / "run")
    assert_whole(tmp_path / "run", whole)
    kept = stop // EVERY * EVERY if stop < STEPS else STEPS
    assert [(found.kept_steps, found.steps) for found in read_abandoned(tmp_path / "run")] == ([(kept, stop)] if stop > kept else [])


@pytest.mark.parametrize("stride", [37, pytest.param(1, marks=pytest.mark.deep)])
def test_a_run_killed_at_any_file_operation_and_resumed_is_the_run_that_never_stopped(tmp_path, whole, stride):
    moment = 0
    while in_child(lambda moment=moment: die_at_event(moment, lambda: train(tmp_path / f"run{moment}"))) == KILLED:
        train(tmp_path / f"run{moment}")
        assert_whole(tmp_path / f"run{moment}", whole)
        shutil.rmtree(tmp_path / f"run{moment}")
        moment += stride
    assert moment > 150


@pytest.mark.parametrize("stop", [13, 35, 39])
@pytest.mark.parametrize("stride", [19, pytest.param(1, marks=pytest.mark.deep)])
def test_a_resume_killed_at_any_file_operation_can_be_repeated_and_sets_each_row_aside_once(tmp_path, whole, stride, stop):
    train(tmp_path / "run", stop, finish=False)
    kept = stop // EVERY * EVERY
    moment = 0
    while True:
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        shutil.copy(checkpoint_file(tmp_path / "run"), checkpoint_file(tmp_path / "copy"))
        died = in_child(lambda at=moment: die_at_event(at, lambda: start(tmp_path / "copy").close())) == KILLED
        run = read_run(tmp_path / "copy")
        assert kept <= run.steps <= stop and verify_chain(tmp_path / "copy") == []
        for table in TABLES:
            assert same_rows(read_table(run, table.name), expected(table.name, 7, run.steps))
        if moment % 2:
            in_child(lambda at=moment + 3: die_at_event(at, lambda: start(tmp_path / "copy").close()))
        train(tmp_path / "copy")
        assert_whole(tmp_path / "copy", whole)
        rows = {table.name: len(expected(table.name, 7, stop)) - len(expected(table.name, 7, kept)) for table in TABLES}
        assert [(a.kept_steps, a.steps, a.rows) for a in read_abandoned(tmp_path / "copy")] == (
            [(kept, stop, {name: count for name, count in rows.items() if count})] if stop > kept else []
        )
        shutil.rmtree(tmp_path / "copy")
        if not died:
            break
        moment += stride
    assert moment > 20


def test_what_a_resume_set_aside_is_still_there_and_is_named_but_counts_nowhere(tmp_path):
    train(tmp_path / "run", 34, finish=False)
    before = read_run(tmp_path / "run")
    start(tmp_path / "run").close()
    run = read_run(tmp_path / "run")
    (found,) = run.abandoned
    assert (found.kept_steps, found.steps, run.steps) == (28, 34, 28)
    wide = []
    for folder in sorted((found.folder / "journal").iterdir()):
        wide += read_journal(folder, before.tables).tables["wide"].to_pylist()
    assert repr(wide) == repr(expected("wide", 7, 34)[16 * 5 :]), "from the start of the first journal of which something was set aside"
    with connect(runs=tmp_path / "run") as connection:
        (row,) = query(connection, "select steps, abandoned_steps, abandoned_rows from runs").to_pylist()
        counted = query(connection, "select count(*) as n from wide").to_pylist()
    assert row == {"steps": 28, "abandoned_steps": 6, "abandoned_rows": sum(found.rows.values())}
    assert counted == [{"n": 28 * 5}] and found.rows["wide"] == 30
    assert verify_chain(tmp_path / "run") == []


def test_rows_of_a_step_that_had_not_ended_are_no_part_of_a_resumed_run(tmp_path, whole):
    with start(tmp_path / "run") as log:
        write_steps(log, 7, 0, 7)
        checkpoint(log)
        log.append("wide", as_arrays(TABLES[0], expected("wide", 7, 8)[35:38]))
    train(tmp_path / "run")
    assert_whole(tmp_path / "run", whole)


@pytest.mark.parametrize("seed", range(8))
def test_power_loss_behind_a_checkpoint_costs_nothing_that_the_checkpoint_needs(tmp_path, whole, seed):
    """What was not made durable before the checkpoint may be cut or garbled; raw, it is set aside."""
    draw = random.Random(seed)
    with start(tmp_path / "run") as log:
        write_steps(log, 7, 0, 21)
        checkpoint(log)
        folder = tmp_path / "run" / "journal" / "00000002"
        durable = {path.name: path.stat().st_size for path in folder.iterdir()}
        write_steps(log, 7, 21, 30)
    path = folder / draw.choice(["wide.arrows", "deals.arrows", "commits"])
    content = bytearray(path.read_bytes())
    at = draw.randrange(durable[path.name], len(content))
    content[at] ^= 1 << draw.randrange(8)
    path.write_bytes(content if seed % 2 else content[:at])
    train(tmp_path / "run")
    assert_whole(tmp_path / "run", whole)
    torn = path.name == "commits" and not seed % 2 and b"\n" not in content[durable[path.name] : at]
    assert len(read_abandoned(tmp_path / "run")) == (not torn), "what no commit counts is no row"
    for found in read_abandoned(tmp_path / "run"):
        assert (found.folder / "journal" / "00000002" / path.name).read_bytes() == (content if seed % 2 else content[:at])


@pytest.mark.parametrize("name", ["wide.arrows", "commits"])
def test_a_log_damaged_before_its_checkpoint_is_refused_and_left_as_it_was(tmp_path, name):
    train(tmp_path / "run", 34, finish=False)
    path = tmp_path / "run" / "journal" / "00000002" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes(content)
    before = {str(file): file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    with pytest.raises(DamagedLog, match=rf"holds the run up to step \d+ \(journal/00000002/{name} is damaged.*after step 28") as refusal:
        start(tmp_path / "run")
    assert "\n" not in str(refusal.value)
    assert before == {str(file): file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}


def test_a_log_that_is_shorter_than_its_checkpoint_is_refused(tmp_path):
    train(tmp_path / "run", 20, finish=False)
    with pytest.raises(DamagedLog, match=r"holds the run up to step 20 .*but the checkpoint was taken after step 21"):
        RunLog.resume(tmp_path / "run", 21, **OPTIONS)
    with pytest.raises(DamagedLog, match=r"up to step 16 .*the journal ends there.*after step 40"):
        shutil.rmtree(tmp_path / "run" / "journal" / "00000002")
        RunLog.resume(tmp_path / "run", 40, **OPTIONS)


def test_a_step_at_which_nothing_was_committed_is_no_checkpoint(tmp_path):
    with RunLog.create(tmp_path / "run", **OPTIONS | {"flush_rows": 10**9}, segment_steps=64, seal_behind_checkpoints=True) as log:
        write_steps(log, 7, 0, 5)
        log.commit()
        write_steps(log, 7, 5, 9)
    with pytest.raises(DamagedLog, match=r"up to step 5 \(no commit ends at the checkpoint\).*after step 7"):
        RunLog.resume(tmp_path / "run", 7, **OPTIONS)


def test_a_log_sealed_beyond_its_checkpoint_is_refused(tmp_path):
    with RunLog.create(tmp_path / "run", **OPTIONS, segment_steps=4) as log:
        write_steps(log, 7, 0, 14)
    with pytest.raises(DamagedLog, match=r"sealed up to step 12, beyond the checkpoint after step 9.*sim seal") as refusal:
        RunLog.resume(tmp_path / "run", 9, **OPTIONS)
    assert "\n" not in str(refusal.value)


def test_a_checkpoint_of_another_log_is_refused(tmp_path):
    train(tmp_path / "run", 20, finish=False)
    with pytest.raises(DamagedLog, match=r"whose head was 0000.*this is not that log"):
        RunLog.resume(tmp_path / "run", 14, **OPTIONS, head="0" * 64)


def test_a_run_that_has_ended_is_not_resumed(tmp_path):
    train(tmp_path / "run")
    with pytest.raises(BadInput, match=r"the run has ended \(finished, 40 steps\)"):
        start(tmp_path / "run")
    train(tmp_path / "other", 20, finish=False)
    seal(tmp_path / "other")
    with pytest.raises(BadInput, match=r"the run has ended \(sealed_where_it_stood, 20 steps\)"):
        start(tmp_path / "other")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"config": {"capital": 1, "fee": 2.0}}, "config.capital is 250000 in the run and 1 now"),
        ({"config": {"capital": 250_000, "fee": 2.5}}, "config.fee is 2.25 in the run and 2.5 now"),
        ({"config": {"capital": 250_000, "fee": 2.25, "lr": 1}}, "config.lr is absent in the run and 1 now"),
        ({"device": "cuda", "seeds": {"run": 8}}, 'device is "cpu" in the run and "cuda" now'),
        ({"code": "b" * 99}, 'code is "abc" in the run and "bbbb'),
    ],
)
def test_a_run_started_differently_is_refused_and_the_first_difference_named(tmp_path, change, words):
    train(tmp_path / "run", 8, finish=False)
    with pytest.raises(BadInput) as refusal:
        RunLog.resume(tmp_path / "run", 7, **OPTIONS | {"identity": IDENTITY | change})
    assert words in str(refusal.value) and "\n" not in str(refusal.value) and len(str(refusal.value)) < 400


def test_a_run_that_declared_other_tables_is_refused(tmp_path):
    train(tmp_path / "run", 8, finish=False)
    with pytest.raises(BadInput, match=r"log\.tables.* in the run and .* now; resume it as it was started"):
        RunLog.resume(tmp_path / "run", 7, **OPTIONS | {"tables": TABLES[:3]})


def test_a_manifest_changed_after_the_start_is_refused(tmp_path):
    train(tmp_path / "run", 8, finish=False)
    path = tmp_path / "run" / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b"2.25", b"2.26"))
    with pytest.raises(DamagedLog, match=r"manifest.json: it was changed"):
        RunLog.resume(tmp_path / "run", 7, **OPTIONS | {"identity": IDENTITY | {"config": {"capital": 250_000, "fee": 2.26}}})


def test_two_processes_cannot_resume_one_run(tmp_path):
    train(tmp_path / "run", 8, finish=False)
    with start(tmp_path / "run"):

        def second():
            with pytest.raises(BadInput, match="another process is writing this run"):
                start(tmp_path / "run")

        assert in_child(second) == 0


@pytest.mark.parametrize("call", ["os.rename", "os.truncate", "shutil.copytree", "replace_file", "sync_folder", "sync_journal"])
def test_a_disk_that_refuses_while_a_run_is_resumed_is_one_clear_line_and_nothing_is_lost(tmp_path, whole, monkeypatch, call):
    train(tmp_path / "run", 34, finish=False)

    def full(*_):
        raise OSError(28, "No space left on device", "somewhere")

    monkeypatch.setattr(f"store.reopen.{call}", full)
    with pytest.raises(BadInput, match=r"somewhere: the run cannot be resumed .No space left on device.*resume again; nothing is lost"):
        start(tmp_path / "run")
    monkeypatch.undo()
    assert read_run(tmp_path / "run").steps in range(28, 35) and verify_chain(tmp_path / "run") == []
    train(tmp_path / "run")
    assert_whole(tmp_path / "run", whole)
    assert [(found.kept_steps, found.steps) for found in read_abandoned(tmp_path / "run")] == [(28, 34)]


def test_lines_torn_by_power_loss_are_written_anew(tmp_path, whole):
    train(tmp_path / "run", 39, finish=False)
    shutil.copytree(tmp_path / "run", tmp_path / "straight")
    assert read_run(tmp_path / "run").sealed_steps == 32
    for name in ("chain.jsonl", "unhashed.jsonl"):
        path = tmp_path / "run" / name
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:-1]) + lines[-1][:30])
    folder = tmp_path / "run" / "journal" / "00000002"
    log = RunLog.create(tmp_path / "again", **OPTIONS, segment_steps=SEGMENT_STEPS, seal_behind_checkpoints=True)
    write_steps(log, 7, 0, 39)
    log.close()
    shutil.copytree(tmp_path / "again" / "journal" / "00000002", folder)
    train(tmp_path / "run")
    assert_whole(tmp_path / "run", whole)


def test_an_interrupted_run_with_unsealed_full_segments_is_closed_where_it_stands(tmp_path):
    """Two full journals wait for a checkpoint that never came; a rewind that was broken off comes to its end first."""
    with RunLog.create(tmp_path / "run", **OPTIONS, segment_steps=SEGMENT_STEPS, seal_behind_checkpoints=True) as log:
        write_steps(log, 7, 0, 35)
        log.sync()
        write_steps(log, 7, 35, 39)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    head = seal(tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert (run.state, run.steps, run.sealed_steps, run.head) == ("sealed_where_it_stood", 39, 39, head)
    assert verify_chain(tmp_path / "run", head) == []

    def broken_off():
        reopen_module._cut = lambda *_: os._exit(KILLED)
        RunLog.resume(tmp_path / "copy", 35, **OPTIONS)

    assert in_child(broken_off) == KILLED
    seal(tmp_path / "copy")
    run = read_run(tmp_path / "copy")
    assert (run.state, run.steps) == ("sealed_where_it_stood", 35) and verify_chain(tmp_path / "copy") == []
    assert not list((tmp_path / "copy").rglob("pending"))


def test_a_run_is_not_finished_without_a_checkpoint_of_its_last_step(tmp_path):
    with RunLog.create(tmp_path / "run", **OPTIONS, segment_steps=SEGMENT_STEPS, seal_behind_checkpoints=True) as log:
        write_steps(log, 7, 0, 20)
        log.sync()
        log.checkpointed(19)
        with pytest.raises(ValueError, match="20 steps have ended and the last checkpoint was taken after 19"):
            log.finish("finished")
        log.checkpointed(20)
        log.finish("finished")


def test_the_head_at_a_checkpoint_follows_from_the_steps_of_the_checkpoints_alone(tmp_path):
    def heads(run_dir, stops):
        found = []
        for stop in stops:
            with start(run_dir) as log:
                while log.steps < stop:
                    write_steps(log, 7, log.steps, log.steps + 1)
                    if log.steps % EVERY == 0:
                        checkpoint(log)
                        found.append((log.steps, Path(checkpoint_file(run_dir)).read_text()))
        return dict(found)

    assert heads(tmp_path / "a", [35]) == heads(tmp_path / "b", [9, 15, 34, 35])
