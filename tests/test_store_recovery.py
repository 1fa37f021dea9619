"""A run killed at any moment: everything up to its last commit reads back as an uninterrupted run's prefix, and `seal` makes it whole."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from store.run_check import verify_chain
from store.run_read import read_run, read_table, seal
from store.runlog import RunLog
from tests.kills import KILLED, die_at_event, in_child
from tests.runlog_runs import IDENTITY, TABLES, expected, plain_rows, same_rows, write_run, write_steps

REPO = Path(__file__).resolve().parent.parent
STEPS = 400


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The uninterrupted run."""
    run_dir = tmp_path_factory.mktemp("whole") / "run"
    write_run(run_dir, STEPS)
    return run_dir


def segments_of(run_dir):
    """The chain's lines up to the last full segment, as bytes."""
    lines = (run_dir / "chain.jsonl").read_bytes().splitlines()
    return [line for line in lines if b'"tables"' not in line or (lambda s: s[1] - s[0] == 16)(json.loads(line)["steps"])]


def assert_prefix_then_whole(run_dir, whole, at_least=0):
    """What a killed run must be: an exact prefix without a finding; after `seal`, the uninterrupted run cut there."""
    run = read_run(run_dir)
    assert verify_chain(run_dir) == []
    assert at_least <= run.steps <= STEPS
    for table in TABLES:
        assert same_rows(read_table(run, table.name), expected(table.name, 7, run.steps)), table.name
    head = seal(run_dir)
    sealed = read_run(run_dir)
    assert (sealed.steps, sealed.sealed_steps, sealed.head) == (run.steps, run.steps, head)
    assert sealed.state == ("finished" if run.state == "finished" else "sealed_where_it_stood")
    assert sealed.manifest["head"] == head and sealed.manifest["end_state"] == sealed.state
    for table in TABLES:
        assert same_rows(read_table(sealed, table.name), expected(table.name, 7, run.steps)), table.name
    assert verify_chain(run_dir, head) == []
    full = run.steps // 16
    assert segments_of(run_dir)[: full + 1] == segments_of(whole)[: full + 1]
    for k in range(1, full + 1):
        name = Path("segments") / f"{k:08d}" / "wide.parquet"
        assert (run_dir / name).read_bytes() == (whole / name).read_bytes()
    files = sorted(p for p in run_dir.rglob("*"))
    assert seal(run_dir) == head and files == sorted(p for p in run_dir.rglob("*")), "sealing again changes nothing"
    assert not (run_dir / "journal").exists() and not list(run_dir.rglob("*.tmp"))
    return run.steps


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.deep] if seed >= 3 else []) for seed in range(20)])
def test_a_run_killed_at_a_random_moment_is_a_prefix_and_can_be_made_whole(tmp_path, whole, seed):
    command = [
        sys.executable,
        "-m",
        "tests.runlog_runs",
        str(tmp_path / "run"),
        str(STEPS),
        f"flush_rows={random.Random(seed).choice([1, 40, 300])}",
    ]
    writer = subprocess.Popen(command, cwd=REPO, stdout=subprocess.DEVNULL)
    while not (tmp_path / "run" / "journal").exists():
        time.sleep(0.005)
    time.sleep(random.Random(seed).uniform(0, 0.35))
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert_prefix_then_whole(tmp_path / "run", whole)


def killed_at_event(work, number):
    """Whether `work` in a child comes to its `number`-th call that touches the file system, at which it dies."""
    return in_child(lambda: die_at_event(number, work)) == KILLED


def broken_off(run_dir):
    """A run of two full segments and a rest, nothing sealed yet: the most that a seal can find."""
    log = RunLog.create(run_dir, identity=IDENTITY, tables=TABLES, segment_steps=16, flush_rows=40, seal_behind_checkpoints=True)
    write_steps(log, 7, 0, 40)
    log.close()


@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.deep)])
def test_a_seal_killed_at_any_file_operation_can_be_repeated(tmp_path, whole, stride):
    broken_off(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "straight")
    head = seal(tmp_path / "straight")
    wanted = {str(p.relative_to(tmp_path / "straight")): p.read_bytes() for p in (tmp_path / "straight").rglob("*") if p.is_file()}
    moments = 0
    while True:
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
        died = killed_at_event(lambda: seal(tmp_path / "copy"), moments)
        assert assert_prefix_then_whole(tmp_path / "copy", whole) == 40
        found = {str(p.relative_to(tmp_path / "copy")): p.read_bytes() for p in (tmp_path / "copy").rglob("*") if p.is_file()}
        # The index of unhashed parts may list a segment twice: the seal that was killed and the one that was not.
        assert {n: c for n, c in found.items() if n != "unhashed.jsonl"} == {n: c for n, c in wanted.items() if n != "unhashed.jsonl"}
        assert read_run(tmp_path / "copy").head == head
        shutil.rmtree(tmp_path / "copy")
        if not died:
            break
        moments += stride
    assert moments > 40


@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.deep)])
def test_a_writer_killed_at_any_file_operation_leaves_a_prefix(tmp_path, whole, stride):
    moment, survived = 0, 0
    while True:
        run_dir = tmp_path / f"run{moment}"
        died = killed_at_event(lambda run_dir=run_dir: write_run(run_dir, 40), moment)
        if (run_dir / "chain.jsonl").exists() and (run_dir / "chain.jsonl").stat().st_size:
            assert_prefix_then_whole(run_dir, whole)
            survived += 1
        if not died:
            break
        moment += stride
    assert survived > 10
    assert read_run(run_dir).state == "finished"


@pytest.mark.parametrize("seed", range(12))
def test_a_journal_cut_anywhere_ends_at_a_commit_before_the_cut(tmp_path, seed):
    """Power loss may take any tail of any file that was not fsynced."""
    write_run(tmp_path / "run", 14, finish=False, flush_rows=1)
    draw = random.Random(seed)
    folder = tmp_path / "run" / "journal" / "00000001"
    path = folder / draw.choice(["wide.arrows", "deals.arrows", "commits", "notes.arrows"])
    os.truncate(path, draw.randrange(path.stat().st_size))
    run = read_run(tmp_path / "run")
    assert run.steps < 14
    for table in TABLES:
        assert same_rows(read_table(run, table.name), expected(table.name, 7, max(run.steps, 0)))
    seal(tmp_path / "run")
    assert read_run(tmp_path / "run").steps == run.steps and verify_chain(tmp_path / "run") == []


@pytest.mark.parametrize("cut", [1, 40, 500])
def test_a_chain_line_cut_by_power_loss_is_sealed_anew_from_its_journal(tmp_path, whole, cut):
    broken_off(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "straight")
    seal(tmp_path / "straight")
    line = (tmp_path / "straight" / "chain.jsonl").read_bytes().splitlines()[1]
    with open(tmp_path / "run" / "chain.jsonl", "ab") as handle:
        handle.write(line[:cut])
    shutil.copytree(tmp_path / "straight" / "segments" / "00000001", tmp_path / "run" / "segments" / "00000001")
    assert any("cut short" in finding.message for finding in verify_chain(tmp_path / "run"))
    seal(tmp_path / "run")
    assert (tmp_path / "run" / "chain.jsonl").read_bytes() == (tmp_path / "straight" / "chain.jsonl").read_bytes()
    assert verify_chain(tmp_path / "run") == []


def test_a_damaged_journal_ends_the_log_and_what_stands_behind_it_is_kept_aside(tmp_path):
    broken_off(tmp_path / "run")
    path = tmp_path / "run" / "journal" / "00000002" / "wide.arrows"
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 4
    path.write_bytes(content)
    (finding,) = [finding for finding in verify_chain(tmp_path / "run") if finding.table]
    run = read_run(tmp_path / "run")
    assert 16 <= run.steps < 32 and f"the log ends after step {run.steps}" in finding.message
    seal(tmp_path / "run")
    assert read_run(tmp_path / "run").steps == run.steps
    assert (tmp_path / "run" / "abandoned" / "journal-00000003" / "wide.arrows").is_file()
    assert verify_chain(tmp_path / "run") == []


def interrupted_at_line(number, work):
    """Run `work` with a KeyboardInterrupt before the `number`-th line that this thread executes in `store/`; whether it came."""
    left = number
    rooms = str(REPO / "store")

    def at_line(frame, event, _):
        nonlocal left
        if event == "line":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return at_line

    sys.settrace(lambda frame, event, _: at_line if frame.f_code.co_filename.startswith(rooms) else None)
    try:
        work()
    except KeyboardInterrupt:
        assert left == 0
    finally:
        sys.settrace(None)
    return left <= 0


@pytest.mark.parametrize("options", [{"flush_rows": 1}, {"flush_rows": 60}, {"block": 5}, {"by_row": True}], ids=str)
@pytest.mark.parametrize("stride", [401, pytest.param(23, marks=pytest.mark.deep)])
def test_an_interrupt_at_any_line_loses_no_step_that_had_ended(tmp_path, stride, options):
    options = dict(options)
    block, by_row = options.pop("block", 1), options.pop("by_row", False)
    number, seen = 1, set()
    while True:
        run_dir = tmp_path / f"run{number}"
        log = RunLog.create(run_dir, identity=IDENTITY, tables=TABLES, segment_steps=4, **options)
        ended = 0

        def work(log=log):
            nonlocal ended
            for start in range(0, 15, block):
                if by_row:
                    for name, rows in plain_rows(7, start).items():
                        for row in rows:
                            log.append_row(name, row)
                    log.end_step(start)
                else:
                    write_steps(log, 7, start, start + block, block)
                ended = start + block

        came = interrupted_at_line(number, work)
        log.close()
        run = read_run(run_dir)
        assert ended <= run.steps <= ended + block
        for table in TABLES:
            assert same_rows(read_table(run, table.name), expected(table.name, 7, run.steps)), (number, table.name)
        assert verify_chain(run_dir) == []
        seen.add(run.steps)
        if not came:
            break
        number += stride
    assert len(seen) > 3


def test_an_interrupt_inside_a_flush_is_undone_by_the_next(tmp_path, monkeypatch):
    log = RunLog.create(tmp_path / "run", identity=IDENTITY, tables=TABLES, segment_steps=64, flush_rows=10**9, flush_seconds=10**9)
    real = os.write
    steps = 0
    for writes in range(60):
        write_steps(log, 7, steps, steps + 1)
        steps += 1
        left = writes

        def interrupted(handle, data):
            nonlocal left
            left -= 1
            if left == 0:
                real(handle, data[: len(data) // 2])
                raise KeyboardInterrupt
            return real(handle, data)

        monkeypatch.setattr(os, "write", interrupted)
        if writes % 3:
            try:
                log.commit()
            except KeyboardInterrupt:
                assert left == 0
        monkeypatch.undo()
    log.close()
    run = read_run(tmp_path / "run")
    assert run.steps == steps and verify_chain(tmp_path / "run") == []
    for table in TABLES:
        assert same_rows(read_table(run, table.name), expected(table.name, 7, steps))


def test_a_check_beside_a_writer_that_seals_meanwhile_finds_nothing(tmp_path, monkeypatch):
    """The chain is read first and the folders last: what was sealed in between belongs to the run."""
    from store import run_check

    run_dir = tmp_path / "run"
    log = RunLog.create(run_dir, identity=IDENTITY, tables=TABLES, segment_steps=16, flush_seconds=0)
    write_steps(log, 7, 0, 20)
    real, more = run_check._check_ends, [True]

    def sealing_meanwhile(*arguments):
        if more:
            more.clear()
            write_steps(log, 7, 20, 70)
            deadline = time.monotonic() + 60
            while read_run(run_dir).sealed_steps < 64 and time.monotonic() < deadline:
                time.sleep(0.01)
        return real(*arguments)

    monkeypatch.setattr(run_check, "_check_ends", sealing_meanwhile)
    assert verify_chain(run_dir) == []
    log.close()
