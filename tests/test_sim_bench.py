"""`sim bench`: medians and ranges of what was timed, and no time for an output that is wrong, which each benchmark's check notices."""

import json
from dataclasses import replace as replace_field

import numpy as np
import pyarrow as pa
import pytest
import torch

from cuda_env import state as s
from sim import bench_cases
from sim.bench import Case, Trial, measure, require
from tests.test_cli import document, here, reason

SMALL = {
    "tape": lambda: bench_cases.tape_case(rows=2_000),
    "env": lambda: bench_cases.env_case(lanes=8, decisions=40),
    "replay": lambda: bench_cases.replay_case(lanes=2, minutes=3, events=4_000),
    "verify": lambda: bench_cases.verify_case(lanes=2, minutes=3, events=4_000),
    "learner": lambda: bench_cases.learner_case(batch=16, lanes=8, updates=2),
}


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    """{name: (case, its trial)} at sizes that take a moment."""
    threads = torch.get_num_threads()
    yield {name: (case := make(), case.prepare(tmp_path_factory.mktemp(name), 1)) for name, make in SMALL.items()}
    torch.set_num_threads(threads)


def clock_of(*times: float):
    left = list(times)
    return lambda: left.pop(0)


def counting(*verdicts: bool) -> tuple[Case, Trial]:
    """A benchmark of a hundred units whose rounds are right or wrong as stated."""
    left = list(verdicts)

    def check(given, output) -> None:
        assert given == "given" and output == "output"
        require(left.pop(0), "the output is wrong")

    trial = Trial("a hundred", 100, lambda: "given", lambda given: "output", check)
    return Case("count", "counting", "units/s", "the count", "nothing", lambda folder, threads: trial), trial


def test_the_median_and_the_range_are_those_of_the_rounds_after_the_first():
    case, trial = counting(*[True] * 4)
    made = measure(case, trial, 3, clock=clock_of(0, 1000, 1000, 1010, 1010, 1030, 1030, 1034)).document()
    assert made["seconds"] == [10, 20, 4]
    assert (made["median"], made["least"], made["greatest"]) == (10.0, 5.0, 25.0)
    assert made["refused"] is None


@pytest.mark.parametrize("wrong", range(4))
def test_one_wrong_output_leaves_no_time_whichever_round_it_is_in(wrong):
    case, trial = counting(*(turn != wrong for turn in range(4)))
    made = measure(case, trial, 3).document()
    assert made["refused"] == "the output is wrong"
    assert (made["seconds"], made["median"], made["least"], made["greatest"]) == ([], None, None, None)


def test_the_set_that_is_run_is_the_set_that_is_tested():
    names = [case.name for case in bench_cases.cases()]
    assert [name for name in names if not name.endswith("-cuda")] == list(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_every_benchmark_gives_a_time_for_right_outputs_and_says_what_it_checked_and_what_limits_it(trials, name):
    case, trial = trials[name]
    made = measure(case, trial, 2).document()
    assert made["refused"] is None
    assert 0 < made["least"] <= made["median"] <= made["greatest"]
    assert len(made["checked"]) > 20 and len(made["limit"]) > 20
    json.dumps(made, allow_nan=False)


def spoiled_tape(given, tape):
    ticks = tape.ask_ticks.copy()
    ticks[7, 3] += 1
    return given, replace_field(tape, ask_ticks=ticks)


def spoiled_env(env, output):
    env.state[s.CASH, 1] += 1
    return env, output


def spoiled_verify(given, verdict):
    return given, replace_field(verdict, totals={name: total + (name == "c") for name, total in verdict.totals.items()})


def spoiled_learner(given, stats):
    return given, stats._replace(loss=torch.tensor(float("nan")))


@pytest.mark.parametrize("name", [name for name in SMALL if name != "replay"])
def test_a_wrong_output_is_refused(trials, name):
    case, trial = trials[name]
    spoil = globals()[f"spoiled_{name}"]

    def check(given, output) -> None:
        trial.check(*spoil(given, output))

    made = measure(case, trial._replace(check=check), 1).document()
    assert made["refused"], f"{name} takes a wrong output for a right one"
    assert made["median"] is None


def test_a_replay_whose_log_does_not_add_up_is_refused(trials, monkeypatch):
    case, trial = trials["replay"]
    real = bench_cases.load_log

    def tampered(run_dir):
        data = real(run_dir)
        trades = data.tables["trades"]
        place = trades.schema.get_field_index("realized_usd_micros")
        values = trades.column(place).to_numpy().copy()
        values[0] += 1
        return replace_field(data, tables={**data.tables, "trades": trades.set_column(place, "realized_usd_micros", pa.array(values))})

    monkeypatch.setattr(bench_cases, "load_log", tampered)
    assert measure(case, trial, 1).document()["refused"] == "trades do not sum to the change of equity"
    monkeypatch.setattr(bench_cases, "load_log", real)
    assert measure(case, trial, 1).document()["refused"] is None


def test_the_command_prints_machine_versions_command_and_figures(capfd, monkeypatch):
    monkeypatch.setattr(bench_cases, "cases", lambda: [SMALL["tape"](), SMALL["env"]()])
    done = here(capfd, "bench", "--rounds", "2", "--json")
    assert done.returncode == 0, done.stderr
    found = document(done)
    assert found["command"] == "sim bench --rounds 2 --json"
    assert [result["name"] for result in found["results"]] == ["tape", "env"]
    assert all(len(result["seconds"]) == 2 for result in found["results"])
    assert found["machine"]["processors"]["usable"] >= 1 and found["versions"]["numpy"] == np.__version__
    text = here(capfd, "bench", "tape", "--rounds", "1").stdout
    for part in ("machine ", "versions ", "command ", "median", "least", "greatest", "rows/s", "checked: ", "limit: "):
        assert part in text
    assert "env" not in text.split("command")[1].split("\n\n")[1]


def test_a_refused_time_is_told_and_the_command_exits_one(capfd, monkeypatch):
    case, _ = counting(True, False)
    monkeypatch.setattr(bench_cases, "cases", lambda: [case])
    done = here(capfd, "bench", "--rounds", "1")
    assert done.returncode == 1
    assert "count: NO TIME, its output is wrong: the output is wrong" in done.stdout
    assert "units/s" in done.stdout and "checked" not in done.stdout


def test_a_benchmark_that_there_is_not_is_refused_with_those_that_there_are(capfd):
    done = here(capfd, "bench", "fast", "--json")
    assert done.returncode == 2
    assert reason(done) == "no benchmark fast; there are tape, env, replay, verify, learner" + (
        ", env-cuda" if torch.cuda.is_available() else ""
    )


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_the_captured_step_gives_a_time_on_a_gpu(tmp_path):
    case = bench_cases.env_cuda_case(lanes=256, decisions=50)
    made = measure(case, case.prepare(tmp_path, 1), 2).document()
    assert made["refused"] is None and made["median"] > 0
