"""A run told from its committed log: by any process, at any moment, what it lacks absent and not zero."""

import io
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest

import cli.watch
from lob.errors import NotFound
from sim.watch import RECENT, standing
from tests.runlog_runs import write_run
from tests.test_cli import REPO, document, here
from tests.training_logs import DIAG, LANES, PLANNED, SPENT, diag_row, write_training


def mean(values):
    held = [value for value in values if value is not None]
    return sum(held) / len(held) if held else None


@pytest.mark.parametrize("steps", [1, 40, RECENT + 33])
@pytest.mark.parametrize("finish", [True, False])
def test_figures_are_the_last_value_and_the_mean_of_the_recent_steps(tmp_path, steps, finish):
    write_training(tmp_path / "run", steps, finish=finish)
    seen = standing(tmp_path / "run")
    recent = [diag_row(step) for step in range(max(0, steps - RECENT), steps)]
    dotted = [column.name for column in DIAG.columns if "." in column.name]
    assert sum(len(figures) for figures in seen.groups.values()) == len(dotted) > 150
    for name in dotted:
        values, figure = [row[name] for row in recent], seen.figure(name)
        assert figure.last == next((value for value in reversed(values) if value is not None), None), name
        assert figure.mean == (None if mean(values) is None else pytest.approx(mean(values))), name
    assert (seen.steps, seen.planned, seen.lanes, seen.phase) == (steps, PLANNED, LANES, "train")
    assert seen.is_over is finish
    assert seen.state == ("finished" if finish else "unfinished")
    assert seen.ts_decided_ns == recent[-1]["ts_decided_ns"]


def test_speed_and_shares_are_of_the_time_inside_steps(tmp_path):
    write_training(tmp_path / "run", 20)
    seen = standing(tmp_path / "run")
    assert seen.steps_per_s == pytest.approx(1e9 / 20_000)
    assert seen.lane_steps_per_s == pytest.approx(LANES * 1e9 / 20_000)
    assert seen.shares == pytest.approx({"env": 0.15, "inference": 0.15, "learn": 0.65, "log": 0.05})
    assert sum(SPENT.values()) == 20_000
    assert seen.waited_s == 0.5
    assert seen.age_s > 10**6, "the log's clock says 2023"


def test_parts_of_a_step_that_a_gpu_does_not_tell_apart_are_absent_and_not_zero(tmp_path, capfd):
    write_training(tmp_path / "run", 20, told_apart=False)
    assert standing(tmp_path / "run").shares == {"env": None, "inference": None, "learn": None, "log": pytest.approx(0.05)}
    page = here(capfd, "watch", str(tmp_path / "run"), "--once").stdout
    assert "env              absent" in page and "log              5.0%" in page
    assert "50,000.0 steps/s  log 5.0%  realised" in here(capfd, "watch", str(tmp_path / "run")).stdout
    assert document(here(capfd, "watch", str(tmp_path / "run"), "--json"))["shares"] == {"log": pytest.approx(0.05)}


def test_what_a_run_does_not_log_is_absent_and_not_zero(tmp_path, capfd):
    write_run(tmp_path / "odd", 20)
    seen = standing(tmp_path / "odd")
    assert (seen.groups, seen.events, seen.steps_per_s, seen.age_s, seen.planned, seen.steps) == ({}, [], None, None, None, 20)
    assert set(seen.shares.values()) == {None}
    assert seen.figure("learn.loss") is None
    done = here(capfd, "watch", str(tmp_path / "odd"), "--once")
    assert done.returncode == 0
    for absent in ("steps/s       absent", "learn         absent", "realised         absent", "absent: this run logs no learn.*"):
        assert absent in done.stdout, done.stdout
    assert "0.0%" not in done.stdout
    told = document(here(capfd, "watch", str(tmp_path / "odd"), "--json"))
    assert not {"steps_per_s", "age_s", "planned_steps", "phase"} & set(told)
    assert told["shares"] == told["figures"] == {}


def test_a_run_without_a_step_yet_can_be_looked_at(tmp_path, capfd):
    write_training(tmp_path / "run", 0, finish=False)
    done = here(capfd, "watch", str(tmp_path / "run"), "--once")
    assert (done.returncode, done.stderr) == (0, "")
    assert "steps  0 of 100 (0.0%)" in done.stdout
    assert "steps/s       absent" in done.stdout


def test_once_prints_every_section_and_json_the_numbers(tmp_path, capfd):
    write_training(tmp_path / "run", 40, finish=False)
    told = document(here(capfd, "watch", str(tmp_path / "run"), "--json"))
    last = diag_row(39)
    assert told["figures"]["trading"]["realized_pnl_usd_micros_cum"]["last"] == last["trading.realized_pnl_usd_micros_cum"]
    assert told["figures"]["signal"]["health.entropy"]["unit"] == "1"
    assert [event["message"] for event in told["events"]] == ["at 3", "at 7"]
    lines = here(capfd, "watch", str(tmp_path / "run"), "--once").stdout.splitlines()
    for expected in ("steps        40 of 100 (40.0%)", "env              15.0%", "lane-steps/s     200,000", "learning: last, mean"):
        assert any(expected in line for line in lines), expected
    assert any(line.split()[:1] == ["loss"] for line in lines)
    assert any("pick_share" in line and "direction.short" in line for line in lines)
    assert any(line.split() == ["step", "7", "warning", "band.left", "at", "7"] for line in lines)


def test_a_line_per_look_until_the_run_is_over_where_there_is_no_terminal(tmp_path, capfd, monkeypatch):
    """The other process writes a step each 20 ms; this one sees it grow, and its end."""
    monkeypatch.setattr(cli.watch, "REFRESH_S", 0.1)
    command = [sys.executable, "-m", "tests.training_logs", str(tmp_path / "run"), "60", "0.02"]
    writer = subprocess.Popen(command, cwd=REPO)
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (tmp_path / "run" / "chain.jsonl").exists():
            time.sleep(0.02)
        done = here(capfd, "watch", str(tmp_path / "run"))
    finally:
        assert writer.wait(timeout=60) == 0
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    steps = [int(line.split(":  ")[1].split(" of")[0]) for line in lines]
    assert len(steps) > 3
    assert steps == sorted(steps)
    assert [line.split(":")[0] for line in lines] == ["unfinished"] * (len(lines) - 1) + ["finished"]
    last = diag_row(59)
    assert lines[-1].startswith("finished:  60 of 100 steps  50,000.0 steps/s  env 15.0% inference 15.0% learn 65.0% log 5.0%  realised $-")
    assert f"loss {last['learn.loss'] or diag_row(58)['learn.loss']:.4g}" in lines[-1]


def test_on_a_terminal_there_is_a_page(tmp_path):
    write_training(tmp_path / "run", 20)
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "200"}
    command = [sys.executable, "-m", "cli.main", "watch", str(tmp_path / "run")]
    process = subprocess.Popen(command, cwd=REPO, stdout=theirs, stderr=subprocess.PIPE, env=environment)
    os.close(theirs)
    shown = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
    os.close(ours)
    assert process.wait(timeout=60) == 0, process.stderr.read()
    process.stderr.close()
    page = shown.decode()
    for expected in ("╭─ run run", "lane-steps/s", "learning health", "█", "pick_share", "band.left"):
        assert expected in page, expected


def test_a_page_fits_the_widths_of_terminals(tmp_path):
    from rich.console import Console

    write_training(tmp_path / "run", 20)
    for width in (40, 80, 200):
        out = io.StringIO()
        Console(file=out, width=width).print(cli.watch.panels(standing(tmp_path / "run")))
        assert max(len(line) for line in out.getvalue().splitlines()) <= width


def test_the_row_that_closes_a_training_is_no_step_beyond_its_plan(tmp_path, capfd):
    write_training(tmp_path / "run", PLANNED + 1)
    assert "steps        100 of 100 (100.0%)" in here(capfd, "watch", str(tmp_path / "run"), "--once").stdout
    assert here(capfd, "watch", str(tmp_path / "run")).stdout.startswith("finished:  100 of 100 steps  ")


def test_a_folder_that_is_no_run_is_one_line(tmp_path, capfd):
    with pytest.raises(NotFound):
        standing(tmp_path)
    done = here(capfd, "watch", str(tmp_path / "none"))
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_few_parts_are_read_of_a_long_run(tmp_path, monkeypatch):
    """What a look costs does not grow with the run."""
    import pyarrow.parquet as pq

    write_training(tmp_path / "run", 400, segment_steps=8)
    monkeypatch.setattr("sim.watch.RECENT", 20)
    opened = []
    read = pq.read_table
    monkeypatch.setattr(pq, "read_table", lambda path, **rest: opened.append(Path(path).name) or read(path, **rest))
    standing(tmp_path / "run")
    assert 0 < len(opened) <= 3 * 3 + 2
