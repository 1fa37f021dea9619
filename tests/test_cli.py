"""Laws of the command line, from a shell's point of view: streams, exit codes, help."""

import json
import os
import pty
import select
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
GROUPS = {("export",), ("policy",), ("store",)}
COMMANDS = {tuple(words.split()) for words in (
    "bench", "determinism", "doctor", "eval", "export tensorboard", "features", "ingest", "policy init", "replay", "seal", "sql",
    "store compact", "store ls", "store quality", "store rm", "synth", "train", "verdict", "verify", "watch",
)}  # fmt: skip
HEAVY = ("torch", "numba", "duckdb", "pyarrow", "pydantic", "numpy", "zstandard", "rich")


def sim(*arguments: str, cwd: Path = REPO, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user's shell would: its own process, streams apart, none of them a terminal."""
    paths = os.pathsep.join(filter(None, [str(REPO), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", "cli.main", *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": paths} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def here(capfd, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The same in this process, where the imports are paid already: what the two streams' descriptors received, and the exit code."""
    from cli.main import main

    capfd.readouterr()
    before = sys.argv
    sys.argv = ["sim", *arguments]
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        sys.argv = before
    out, err = capfd.readouterr()
    return subprocess.CompletedProcess(arguments, ended.value.code or 0, out, err)


def document(done: subprocess.CompletedProcess[str]):
    """The one JSON document that stdout holds, read strictly."""

    def refuse(constant: str):
        raise AssertionError(f"{constant} in JSON")

    return json.loads(done.stdout, parse_constant=refuse)


def reason(done: subprocess.CompletedProcess[str]) -> str:
    """Why a command that was asked for JSON gave no result: the whole of what it says on stdout."""
    [(key, said)] = document(done).items()
    assert key == "error"
    return said


@pytest.mark.parametrize("command", sorted({(), *GROUPS, *COMMANDS}), ids=" ".join)
def test_every_command_has_help_on_stdout(command):
    done = sim(*command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: sim {' '.join(command)}".rstrip())


def commands() -> dict[tuple[str, ...], object]:
    """Every command that can be run, by the words that call it."""
    from typer.main import get_command

    from cli.app import app

    def walk(command, words):
        inner = getattr(command, "commands", None)
        return (
            {words: command} if inner is None else {k: v for name, child in inner.items() for k, v in walk(child, (*words, name)).items()}
        )

    return walk(get_command(app), ())


def test_every_command_teaches_by_example_and_speaks_json():
    found = commands()
    assert set(found) == COMMANDS
    for words, command in found.items():
        assert f"sim {' '.join(words)}" in command.help, words
        assert "Example" in command.help, words
        assert len(command.help.split("\n\n")[0]) <= 45, f"{words}: `sim --help` would cut its first sentence"
        assert "--json" in {option for parameter in command.params for option in parameter.opts}, words
        assert all(parameter.help for parameter in command.params if parameter.param_type_name == "option"), words


HELP = """
import sys
from cli.main import main
sys.argv = ["sim", "--help"]
try:
    main()
finally:
    print([name for name in {heavy} if name in sys.modules], file=sys.stderr)
"""


def test_the_defaults_that_replays_help_states_are_the_configs():
    import re

    from cuda_env.config import EnvConfig
    from sim.config import LogConfig

    options = {parameter.opts[0]: parameter for parameter in commands()["replay",].params}

    def stated(option: str) -> int:
        match = re.search(r"\[default: (\d+)\]", options[option].help)
        assert match, options[option].help
        return int(match[1])

    env = EnvConfig()
    assert stated("--capital") * 10**6 == env.capital_usd_micros
    assert stated("--max-lots") == env.max_lots
    assert stated("--trail-ticks") == env.trail_ticks
    assert stated("--plan-lock-steps") == env.plan_lock_steps
    assert stated("--reward-scale") * 10**6 == env.reward_scale_usd_micros
    assert options["--segment-steps"].default == LogConfig().segment_steps
    assert options["--level"].default == LogConfig().level


def test_features_lists_every_slot_of_the_layout():
    from lob.layout import OFFSET, layout_fingerprint

    found = document(sim("features", "--json"))
    assert found["fingerprint"] == layout_fingerprint()
    assert {slot["name"]: slot["slot"] for slot in found["slots"]} == OFFSET
    assert "imbalance_10" in sim("features").stdout
    said = sim("features", "--explain").stdout.splitlines()
    for slot in found["slots"]:
        if slot["stage"] != "unused":
            (at,) = (i for i, line in enumerate(said) if line.startswith(f"{slot['slot']:>3}  {slot['name']} ("))
            assert (slot["formula"] or "the state of the account") in said[at + 1], slot["name"]
            assert slot["source"] is None or said[at + 2] == f"     source: {slot['source']}"


def test_help_imports_nothing_heavy():
    done = run_python(HELP.format(heavy=HEAVY))
    assert (done.returncode, done.stderr) == (0, "[]\n")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nope",), "nope"),
        (("policy", "nope"), "nope"),
        (("doctor", "--nope"), "--nope"),
        (("policy", "init"), "--out"),
        (("policy", "init", "--out", "x", "--seed", "seven"), "'--seed'"),
        (("policy", "init", "--out", "x", "--seed", "-1"), "seed -1"),
        (("policy", "init", "--out", "x", "--health-ppm", "1000001"), "'--health-ppm'"),
        ((), "Usage"),
    ],
)
def test_wrong_usage_exits_2_and_says_what_on_stdout_only_where_json_was_asked_for(arguments, says, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for extra in ((), ("--json",)) if arguments else ((),):
        done = here(capfd, *arguments, *extra)
        assert done.returncode == 2
        assert says in (reason(done) if extra else done.stderr)
        assert extra or done.stdout == ""
        assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_doctor_says_what_the_machine_has():
    done = sim("doctor", "--json")
    found = document(done)
    assert done.stderr == ""
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["packages"]["numpy"] == __import__("numpy").__version__
    assert found["ok"] == all(check["ok"] for check in found["checks"])
    assert done.returncode == (0 if found["ok"] else 1)
    assert found["processors"]["usable"] >= 1
    text = sim("doctor")
    assert text.returncode == done.returncode
    assert found["packages"]["numpy"] in text.stdout


def test_doctor_fails_with_a_remedy_when_the_cache_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    done = sim("doctor", "--json", TAPEPROOF_CACHE=str(tmp_path / "file"))
    failed = [check for check in document(done)["checks"] if not check["ok"]]
    assert done.returncode == 1
    assert [check["name"] for check in failed] == ["cache"]
    assert "TAPEPROOF_CACHE" in failed[0]["remedy"]


def test_policy_init_makes_the_same_checkpoint_for_the_same_seed(tmp_path, capfd):
    first, second = (document(here(capfd, "policy", "init", "--seed", "3", "--out", str(tmp_path / name), "--json")) for name in ("a", "b"))
    assert first["content_hash"] == second["content_hash"]
    assert (tmp_path / "a" / "tensors.pt").read_bytes() == (tmp_path / "b" / "tensors.pt").read_bytes()
    trunk = document(here(capfd, "policy", "init", "--profile", "trunk", "--out", str(tmp_path / "c"), "--json"))
    assert (trunk["profile"], trunk["architecture"]["hidden"]) == ("trunk", [256, 256])
    unknown = here(capfd, "policy", "init", "--profile", "huge", "--out", str(tmp_path / "d"), "--json")
    assert unknown.returncode == 2 and "choose one of small, trunk" in reason(unknown)
    again = here(capfd, "policy", "init", "--seed", "3", "--out", str(tmp_path / "a"), "--json")
    assert again.returncode == 2
    assert again.stderr == f"error: {reason(again)}\n"
    assert again.stderr.startswith("error: ")
    assert again.stderr.count("\n") == 1


def test_seal_closes_an_interrupted_run_once_and_says_where_it_ends(tmp_path):
    from tests.runlog_runs import write_run

    write_run(tmp_path / "run", 20, finish=False)
    first, second = (document(sim("seal", str(tmp_path / "run"), "--json")) for _ in range(2))
    assert (first["steps"], first["steps_sealed_now"], first["end_state"]) == (20, 4, "sealed_where_it_stood")
    assert second == first | {"steps_sealed_now": 0}
    text = sim("seal", str(tmp_path / "run"))
    assert (text.returncode, text.stderr) == (0, "")
    assert first["head"] in text.stdout
    missing = sim("seal", str(tmp_path / "none"), "--json")
    assert (missing.returncode, missing.stderr) == (2, f"error: {reason(missing)}\n")
    assert missing.stderr.count("\n") == 1


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=REPO, capture_output=True, text=True, check=False, timeout=60)


RAISING = """
import sys, cli.app, sim.doctor
def examine(): raise {error}
sim.doctor.examine = examine
sys.argv = ["sim", "doctor", "--json"]
from cli.main import main
main()
"""


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        ("__import__('lob.errors').errors.CheckFailed('it does not add up')", 1, "error: it does not add up"),
        ("__import__('lob.errors').errors.BadInput('f.csv: row 3: no; mend it')", 2, "error: f.csv: row 3: no; mend it"),
        ("KeyboardInterrupt", 130, "interrupted"),
        ("KeyboardInterrupt('R/x is resumable')", 130, "interrupted: R/x is resumable"),
    ],
)
def test_an_error_is_one_line_on_stderr_an_exit_code_and_one_json_document(error, code, line):
    done = run_python(RAISING.format(error=error))
    assert (done.returncode, done.stderr) == (code, line + "\n")
    assert reason(done) == line.removeprefix("error: ")


@pytest.mark.parametrize("asked", ["import numpy; numpy.empty(2**55)", "import torch; torch.empty(2**55)"])
def test_more_memory_than_there_is_is_one_line_that_says_what_to_make_smaller(asked):
    done = run_python(RAISING.replace("raise {error}", asked))
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "out of memory (" in reason(done) and "fewer --lanes" in reason(done)
    assert done.stderr == f"error: {reason(done)}\n"


def test_what_a_run_keeps_when_memory_ends_is_said_in_the_same_line():
    done = run_python(RAISING.replace("raise {error}", "e = MemoryError(); e.add_note('R/x keeps its first 10 steps'); raise e"))
    assert done.returncode == 2 and reason(done).endswith("a shorter window; R/x keeps its first 10 steps")


def test_a_fault_of_ours_shows_its_traceback_and_exits_70():
    done = run_python(RAISING.format(error="ZeroDivisionError('x')"))
    assert done.returncode == 70
    assert "fault of ours" in reason(done)
    assert "ZeroDivisionError: x" in done.stderr
    assert done.stderr.endswith("please report it with the lines above\n")


def test_json_output_refuses_a_number_that_is_none():
    done = run_python("from cli.output import emit; emit({'x': float('nan')}, '', True)")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "ValueError" in done.stderr


PROGRESS = """
import sys, time
from cli.output import progress
with progress("working") as update:
    for done in range({steps}):
        update(done, {steps})
        time.sleep({pause})
print("result")
"""


UNCOUNTED = """
import time
from cli.output import progress
with progress("searching"):
    time.sleep(1.5)
print("result")
"""


def test_no_progress_is_drawn_where_stderr_is_no_terminal():
    done = run_python(PROGRESS.format(steps=4, pause=0.4))
    assert (done.returncode, done.stdout, done.stderr) == (0, "result\n", "")


def on_terminal(code: str) -> tuple[str, str]:
    """(stdout, what the terminal showed) of a program whose stderr is a terminal and whose stdout is a pipe."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=REPO, stdout=subprocess.PIPE, stderr=theirs, text=True, env=os.environ | {"TERM": "xterm"}
    )
    os.close(theirs)
    shown = b""
    while True:
        ready, _, _ = select.select([ours], [], [], 30)
        if not ready:
            break
        try:
            chunk = os.read(ours, 65536)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
    os.close(ours)
    out, _ = process.communicate(timeout=30)
    return out, shown.decode(errors="replace")


def test_progress_is_drawn_on_a_terminal_only_after_a_second():
    out, shown = on_terminal(PROGRESS.format(steps=4, pause=0.4))
    assert out == "result\n"
    assert "working" in shown
    out, shown = on_terminal(UNCOUNTED)
    assert out == "result\n"
    assert "searching" in shown
    out, shown = on_terminal(PROGRESS.format(steps=4, pause=0.01))
    assert (out, shown) == ("result\n", "")
