"""`sim train` and `sim determinism` from a shell's point of view, on a synthetic week."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.test_cli import REPO, document, here, reason, sim
from tests.test_cli_replay import listen_to_ctrl_c
from tests.train_days import make_store, run_of

FILE = """
[learner]
batch = 16
capacity = 512
[loop]
steps = 40
checkpoint_every = 20
validate_every = 20
block_steps = 10
warmup_steps = 8
eval_steps = 5
[log]
segment_steps = 25
"""
WINDOW = ("--store", "S", "--instrument", "ESH4", "--start", "2024-03-03T23:00Z", "--end", "2024-03-08T22:00Z", "--clock", "5m")
SMALL = ("--config", "train.toml", "--lanes", "8", "--seed", "3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A store `S` and a configuration beside it."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("train")
    make_store(folder).rename(folder / "S")
    (folder / "train.toml").write_text(FILE)
    return folder


@pytest.fixture
def at(folder, monkeypatch) -> Path:
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="module")
def trained(folder) -> dict:
    """What `sim train --json` says of a run of forty steps in `R`."""
    done = sim("train", *WINDOW, *SMALL, "--runs", "R", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return document(done)


def test_training_says_where_run_checkpoint_and_evaluations_are_and_they_are_proved(at, trained, capfd):
    assert (trained["steps"], trained["lanes"]) == (40, 8) and trained["summary"]["training"]["stopped"] is None
    assert [one["selector"] for one in trained["evaluations"]] == ["greedy", "boltzmann"]
    for run, head in [(trained["run"], trained["head"]), *((one["run"], one["head"]) for one in trained["evaluations"])]:
        done = here(capfd, "verify", run, "--store", "S", "--head", head)
        last = done.stdout.splitlines()[-1]
        assert done.returncode == 0 and (last.startswith("CHECKED: ") if run == trained["run"] else last == "VERIFIED"), done.stdout
    assert (Path(trained["best"]) / "state.json").exists()


def test_the_text_names_steps_best_evaluations_and_limit_and_equal_settings_give_the_equal_head(at, trained, capfd):
    settings = ("--set", "loop.steps=99", "--steps", "40", "--set", "learner.batch=16")
    done = here(capfd, "train", *WINDOW, *SMALL, *settings, "--runs", "again")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{trained['run'].replace('R/', 'again/')}: 40 steps x 8 lanes (") and " decisions a second" in lines[0]
    assert trained["head"] in done.stdout and "Traceback" not in done.stderr
    assert any(line.startswith("greedy: $") for line in lines) and any(line.startswith("boltzmann: $") for line in lines)
    assert lines[-1] == "limit: the tape does not react to us"
    assert "1 test (split by days)" in done.stderr


def test_a_finished_run_resumed_reports_the_same_and_adds_no_run(at, trained, capfd):
    before = sorted(Path("R").iterdir())
    again = document(here(capfd, "train", "--resume", trained["run"], "--json"))
    for name in ("run", "head", "steps", "lanes", "best", "summary", "evaluations"):
        assert again[name] == trained[name], name
    assert sorted(Path("R").iterdir()) == before
    text = here(capfd, "train", "--resume", trained["run"]).stdout
    assert "decisions a second" not in text.splitlines()[0], "nothing was played"


@pytest.mark.parametrize("option", [("--steps", "50"), ("--seed", "3"), ("--set", "learner.batch=3"), ("--lanes", "4"), ("--runs", "R")])
def test_a_resumed_run_keeps_its_settings_and_options_that_could_contradict_them_are_refused(at, trained, capfd, option):
    done = here(capfd, "train", "--resume", trained["run"], *option, "--json")
    assert done.returncode == 2 and reason(done).startswith(("--steps", "--seed", "--set", "--lanes", "--runs"))
    assert reason(done).endswith("a run that is there already keeps the settings it began with; leave it out")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--resume", "nowhere"), "nowhere"),
        (("--resume", "S"), "S"),
        (WINDOW, "--runs is missing: say where the run goes (or --resume RUN)"),
        ((*WINDOW, "--runs", "X", "--steps", "0"), "--steps 0: "),
        ((*WINDOW, "--runs", "X", "--clock", "7 days"), "--clock"),
        ((*WINDOW, "--runs", "X", "--set", "loop.steps=0"), "loop.steps: must be greater than or equal to 1, not 0"),
        ((*WINDOW, "--runs", "X", "--set", "learner.bach=3"), "learner.bach: there is no such setting; learner has"),
        ((*WINDOW, "--runs", "X", "--set", "learner.learning_rate=3"), "clip_norm, weight_decay, cql, popart, rank, lr, "),
        ((*WINDOW, "--runs", "X", "--set", "learner.lr=-1"), "learner.lr: must be greater than 0, not -1"),
        ((*WINDOW, "--runs", "X", "--steps", "40", "--set", "learner.steps=3"), "learner.steps: there is no such setting; learner has"),
        ((*WINDOW, "--runs", "X", "--set", "tape.foo=3"), "tape.foo: there is no such setting"),
        ((*WINDOW, "--runs", "X", "--set", "model.profile=huge"), "there is no network profile 'huge'"),
        ((*WINDOW, "--runs", "X", "--profile", "huge"), "there is no network profile 'huge'"),
        ((*WINDOW, "--runs", "X", "--config", "none.toml"), "none.toml: there is no such configuration file"),
        (("--store", "none", *WINDOW[2:], "--runs", "X"), "none"),
        ((*WINDOW[:2], "--instrument", "NQH4", *WINDOW[4:], "--runs", "X"), "NQH4"),
        ((*WINDOW[:4], "--start", "2023-03-03", "--end", "2023-03-04", "--runs", "X"), ""),
    ],
)
def test_what_cannot_be_trained_on_is_one_line_that_names_it_and_nothing_is_left(at, capfd, arguments, said):
    for command in ("train", "determinism") if "--resume" not in arguments else ("train",):
        done = here(capfd, command, *arguments, "--json")
        assert done.returncode == 2, done.stdout
        assert said in reason(done) and "\n" not in reason(done)
        assert done.stderr.splitlines()[-1] == f"error: {reason(done)}"
        assert not Path("X").exists()


def test_an_evaluation_cannot_be_resumed(at, trained, capfd):
    done = here(capfd, "train", "--resume", trained["evaluations"][0]["run"], "--json")
    assert done.returncode == 2 and "is no run of `sim train` (phase 'eval')" in reason(done)


def test_ctrl_c_says_how_to_go_on_and_going_on_gives_the_run_that_never_stopped(at, trained):
    command = [sys.executable, "-m", "cli.main", "train", *WINDOW, *SMALL, "--runs", "stopped"]
    process = subprocess.Popen(
        command, env=os.environ | {"PYTHONPATH": str(REPO)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=listen_to_ctrl_c,
    )  # fmt: skip
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and not list(Path("stopped").glob("train-*/checkpoints/step-*")):
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    run = run_of(Path("stopped"))
    assert (process.returncode, out) == (130, "") and "Traceback" not in errors
    assert errors.splitlines()[-1].startswith("interrupted: ") and errors.endswith(f"`sim train --resume {run}`\n")
    done = document(sim("train", "--resume", str(run), "--json", cwd=at))
    assert (done["head"], done["summary"]) == (trained["head"], trained["summary"])
    assert [one["head"] for one in done["evaluations"]] == [one["head"] for one in trained["evaluations"]]


def test_a_store_that_has_moved_is_named_when_a_run_is_resumed(at, trained, capfd, tmp_path):
    shutil.copytree("R", tmp_path / "R", symlinks=True)
    [greedy, _] = trained["evaluations"]
    shutil.rmtree(tmp_path / greedy["run"])
    shutil.copytree("S", tmp_path / "moved")
    run = tmp_path / trained["run"]
    done = document(here(capfd, "train", "--resume", str(run), "--store", str(tmp_path / "moved"), "--json"))
    assert [one["head"] for one in done["evaluations"]] == [one["head"] for one in trained["evaluations"]]
