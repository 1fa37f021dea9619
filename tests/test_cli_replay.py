"""Laws of replay, verify, seal and sql over runs, from a shell's point of view: what the README promises, on a small synthetic day."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli.output import COMPILING
from tests.test_cli import REPO, document, here, reason, sim

WINDOW = ("--store", "S", "--instrument", "ESH4", "--start", "2024-03-05T14:30Z", "--end", "2024-03-05T16:30Z", "--runs", "R")
RANDOM = ("--clock", "10s", "--policy", "random", "--seed", "7", "--lanes", "5", "--latency", "1ms")


@pytest.fixture(scope="module")
def market(tmp_path_factory) -> Path:
    """A folder with a store `S` that holds a synthetic ES day."""
    from sim.ingest import ingest
    from sim.synth import synth

    folder = tmp_path_factory.mktemp("replay")
    synth("ES", "2024-03-05", 20_000, 7, 1.0, folder / "day.dbn.zst")
    ingest(folder / "day.dbn.zst", folder / "S")
    return folder


@pytest.fixture(scope="module")
def played(market) -> dict:
    """A finished run of 5 random lanes, as `sim replay --json` describes it."""
    done = sim("replay", *WINDOW, *RANDOM, "--json", cwd=market)
    assert done.returncode == 0, done.stderr
    return document(done)


def test_a_replay_says_where_its_run_is_and_verify_proves_it(market, played):
    assert played["lanes"] == 5
    assert played["summary"]["finished"] is True
    done = sim("verify", played["run"], "--store", "S", "--head", played["head"], "--json", cwd=market)
    verdict = document(done)
    assert (done.returncode, verdict["ok"], verdict["largest_difference_usd_micros"]) == (0, True, 0)
    totals = {computation["name"]: computation["usd_micros"] for computation in verdict["computations"]}
    assert set(totals) == set("abcde")
    assert set(totals.values()) == {played["summary"]["total_pnl_usd_micros"]}
    text = sim("verify", played["run"], "--store", "S", cwd=market)
    assert "$0.00" in text.stdout
    assert text.stdout.splitlines()[0].endswith(": level full, 720 decisions and the drain, finished")
    assert text.stdout.splitlines()[-1] == "VERIFIED"


def test_the_same_command_makes_the_same_bytes_on_any_number_of_threads(market, played):
    again = document(
        sim(
            *(
                "replay",
                *WINDOW,
                *RANDOM,
                "--threads",
                "2",
                "--json",
            ),
            cwd=market,
            PYTHONHASHSEED="12",
            OMP_NUM_THREADS="2",
        )
    )
    assert again["run"] != played["run"]
    assert again["head"] == played["head"]
    assert again["summary"] == played["summary"]


def test_rows_that_a_resume_set_aside_are_named_by_verify_and_sql_and_falsify_nothing(market, played, tmp_path, capfd):
    run = shutil.copytree(market / played["run"], tmp_path / "run")
    clean = document(here(capfd, "verify", str(run), "--store", str(market / "S"), "--json"))
    (run / "abandoned" / "1").mkdir(parents=True)
    (run / "abandoned" / "1" / "rewind.json").write_text('{"kept_steps": 7, "rows": {"diag": 3, "trades": 1200}, "steps": 10}')
    verdict = document(here(capfd, "verify", str(run), "--store", str(market / "S"), "--json"))
    said = "set aside when the run was resumed, and no part of it: 1,203 rows of 3 steps after step 7 in abandoned/1"
    assert (verdict["ok"], clean["abandoned"], verdict["abandoned"]) == (True, "", said)
    assert f"\nabandoned: {said}\n" in here(capfd, "verify", str(run), "--store", str(market / "S")).stdout
    answer = document(here(capfd, "sql", "select abandoned_steps, abandoned_rows from runs", "--runs", str(run), "--json"))
    assert answer["rows"] == [[3, 1203]]


def test_sql_over_a_run_shows_names_and_dollars(market, played, capfd, monkeypatch):
    monkeypatch.chdir(market)
    rows = document(
        here(capfd, "sql", "--runs", "R", f"select sum(realized_usd) from trades where run_id = '{Path(played['run']).name}'", "--json")
    )
    assert rows["rows"] == [[f"{played['summary']['total_pnl_usd_micros'] / 1e6:.6f}"]]
    directions = document(here(capfd, "sql", "--runs", played["run"], "select distinct picked_direction from steps order by 1", "--json"))
    assert [row[0] for row in directions["rows"]] == ["flat", "hold", "long", "not_played", "short"]


def test_a_changed_byte_falsifies_the_run_with_exit_1(market, played, capfd, monkeypatch):
    monkeypatch.chdir(market)
    import shutil

    shutil.copytree(market / played["run"], market / "forged")
    part = next((market / "forged" / "segments").rglob("*fills*"))
    part = part if part.is_file() else next(part.rglob("*.parquet"))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.chmod(0o644)
    part.write_bytes(bytes(content))
    done = here(capfd, "verify", "forged", "--store", "S", "--json")
    verdict = document(done)
    assert (done.returncode, verdict["ok"]) == (1, False)
    assert any(check["status"] == "failed" and check["table"] == "fills" for check in verdict["checks"])
    text = here(capfd, "verify", "forged", "--store", "S")
    assert text.returncode == 1
    assert text.stdout.splitlines()[-1] == "FALSIFIED"


def test_everything_that_was_stated_is_in_the_runs_config(market, capfd, monkeypatch):
    monkeypatch.chdir(market)
    import json

    here(capfd, "policy", "init", "--seed", "2", "--out", "ck")
    done = here(
        capfd,
        *(
            "replay",
            *WINDOW,
            "--clock",
            "1m",
            "--checkpoint",
            "ck",
            "--seed",
            "9",
            "--lanes",
            "2",
            "--capital",
            "250000",
            "--max-lots",
            "8",
        ),
        *(
            "--fees",
            "2.17",
            "--margin",
            "1000.5",
            "--floor",
            "-10",
            "--trail-ticks",
            "12",
            "--plan-lock-steps",
            "3",
            "--reward-scale",
            "50",
        ),
        *("--plan-lock-steps", "3", "--reward-scale", "50", "--latency", "3ms"),
        *("--step-limit", "60", "--level", "sampled:1", "--segment-steps", "16", "--json"),
    )
    assert done.returncode == 0, done.stderr
    run = document(done)
    manifest = json.loads((market / run["run"] / "manifest.json").read_text())
    config = manifest["identity"]["config"]
    assert config["env"] == {
        "capital_usd_micros": 250_000_000_000,
        "max_lots": 8,
        "fee_usd_micros": 2_170_000,
        "margin_usd_micros": 1_000_500_000,
        "floor_usd_micros": -10_000_000,
        "trail_ticks": 12,
        "plan_lock_steps": 3,
        "reward_scale_usd_micros": 50_000_000,
    }
    tape = config["tape"]
    assert (tape["clock"], tape["latency_ns"], tape["step_limit"], tape["market_schema"]) == ("1m", 3_000_000, 60, "mbp-10")
    assert (config["seed"], config["lanes"]) == (9, 2)
    assert (config["log"]["level"], config["log"]["segment_steps"]) == ("sampled:1", 16)
    assert config["policy"]["name"] == "network"
    assert len(config["policy"]["checkpoint"]) == 64
    assert str(market) not in json.dumps(manifest["identity"])
    assert here(capfd, "verify", run["run"], "--store", "S").returncode == 0


def test_a_fit_range_before_the_window_is_used_and_logged_and_one_inside_it_is_refused(market, capfd, monkeypatch):
    monkeypatch.chdir(market)
    options = ("--clock", "1m", "--policy", "momentum", "--fit-start", "2024-03-05T10:00Z", "--json")
    done = here(capfd, "replay", *WINDOW, *options, "--fit-end", "2024-03-05T14:00Z")
    assert done.returncode == 0, done.stderr
    run = document(done)["run"]
    assert "fitted on 2024-03-05T10:00" in (market / run / "manifest.json").read_text()
    assert here(capfd, "verify", run, "--store", "S").returncode == 0
    again = here(capfd, "replay", *WINDOW, *options, "--fit-end", "2024-03-05T14:00Z", "--rebuild-features")
    assert document(again)["head"] == document(done)["head"]
    ahead = here(capfd, "replay", *WINDOW, *options, "--fit-end", "2024-03-05T15:00Z")
    assert ahead.returncode == 2
    assert "look ahead" in reason(ahead)


def test_a_time_without_a_zone_is_utc_and_said_so_on_stderr(market, played, capfd, monkeypatch):
    monkeypatch.chdir(market)
    bare = [word.removesuffix("Z") if word.startswith("2024") else word for word in WINDOW]
    done = here(capfd, "replay", *bare, *RANDOM, "--json")
    assert document(done)["head"] == played["head"]
    assert "note: --start 2024-03-05T14:30 names no zone and is read as UTC" in done.stderr


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ((), "--policy NAME or --checkpoint DIR"),
        (("--policy", "flat", "--checkpoint", "ck"), "--policy NAME or --checkpoint DIR"),
        (("--policy", "moon"), "no policy 'moon'"),
        (("--policy", "script:absent.csv"), "absent.csv: cannot be read"),
        (("--checkpoint", "absent"), "absent: is no checkpoint directory"),
        (("--policy", "flat", "--instrument", "NQH4"), "no instrument NQH4; the store holds ESH4"),
        (("--policy", "flat", "--store", "nowhere"), "nowhere: "),
        (("--policy", "flat", "--clock", "soon"), "clock 'soon'"),
        (("--policy", "flat", "--clock", "bar"), "has no bars"),
        (("--policy", "flat", "--schema", "ohlcv-1m"), "ohlcv-1m"),
        (("--policy", "flat", "--start", "yesterday"), "--start: 'yesterday' is not a time"),
        (("--policy", "flat", "--start", "2024-03-05T17:00Z"), "is not before the end"),
        (("--policy", "flat", "--start", "2025-03-05T14:30Z", "--end", "2025-03-05T16:30Z"), "has no rows from"),
        (("--policy", "flat", "--latency", "fast"), "--latency: 'fast' is not a duration"),
        (("--policy", "flat", "--capital", "much"), "--capital: 'much' is not a dollar amount"),
        (("--policy", "flat", "--fees", "0.0000001"), "--fees: "),
        (("--policy", "flat", "--max-lots", "0"), "--max-lots 0: must be above 0"),
        (("--policy", "flat", "--capital", "-5"), "--capital -5: must be above $0.00"),
        (("--policy", "flat", "--fees", "-1"), "--fees -1: must be at least $0.00"),
        (("--policy", "flat", "--margin", "0"), "--margin 0: must be above $0.00"),
        (("--policy", "flat", "--reward-scale", "0"), "--reward-scale 0: must be above $0.00"),
        (("--policy", "flat", "--trail-ticks", "-1"), "--trail-ticks -1: must be at least 0"),
        (("--policy", "flat", "--plan-lock-steps", "-1"), "--plan-lock-steps -1: must be at least 0"),
        (("--policy", "flat", "--step-limit", "0"), "--step-limit 0: must be at least 1"),
        (("--policy", "flat", "--segment-steps", "0"), "--segment-steps 0: must be at least 1"),
        (("--policy", "flat", "--slippage-ticks", "9"), "--slippage-ticks 9: is for bars alone"),
        (("--policy", "flat", "--schema", "mbo"), "--schema: 'mbo' cannot be replayed"),
        (("--policy", "flat", "--floor", "200000"), "the floor of $200,000.00 must be below the capital of $100,000.00"),
        (("--policy", "flat", "--lanes", "0"), "--lanes 0: must be at least 1"),
        (("--policy", "flat", "--seed", "-1"), "--seed -1: must be at least 0"),
        (("--policy", "flat", "--threads", "0"), "--threads 0: must be at least 1"),
        (("--policy", "flat", "--level", "loud"), "--level loud: a replay is there to be proved: it logs full, sampled:n"),
        (("--policy", "flat", "--level", "trades"), "--level trades: a replay is there to be proved"),
        (("--policy", "flat", "--level", "sampled:9"), "more lanes than the run's 1"),
    ],
)
def test_a_replay_that_cannot_be_is_one_line_and_leaves_no_run(market, change, says, capfd, monkeypatch):
    monkeypatch.chdir(market)
    sooner = sorted(Path("R").glob("*"))
    done = here(capfd, "replay", *WINDOW, *change, "--json")
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if line != COMPILING]
    assert said == [f"error: {reason(done)}"]
    assert says in said[0]
    assert not any(name in said[0] for name in ("_usd_micros", "env.", "tape.", "execution.", "log."))
    assert sorted(Path("R").glob("*")) == sooner


def listen_to_ctrl_c() -> None:
    """A suite started in the background of a shell inherits an ignored SIGINT; the command under test must not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_keeps_what_was_committed_and_seal_closes_it(market):
    """The run is stopped in its middle; what it leaves verifies as unfinished, and sealed."""
    command = [
        sys.executable,
        "-m",
        "cli.main",
        "replay",
        *WINDOW[:-1],
        "stopped",
        "--clock",
        "100ms",
        "--policy",
        "random",
        "--lanes",
        "3",
    ]
    process = subprocess.Popen(
        command,
        cwd=market,
        env=os.environ | {"PYTHONPATH": str(REPO)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=listen_to_ctrl_c,
    )
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and not list((market / "stopped").glob("*/journal/*/commits")):
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in errors
    [run] = (market / "stopped").iterdir()
    relative = run.relative_to(market)
    steps = int(errors.split(" keeps its first ")[1].split(" step")[0].replace(",", ""))
    assert errors.endswith(f"interrupted: {relative} keeps its first {steps:,} steps; close it with `sim seal {relative}`\n")
    assert sim("verify", str(run), "--store", "S", cwd=market).returncode == 0
    sealed = document(sim("seal", str(run), "--json", cwd=market))
    assert (sealed["steps"], sealed["end_state"]) == (steps, "sealed_where_it_stood")
    assert sim("verify", str(run), "--store", "S", "--head", sealed["head"], cwd=market).returncode == 0


def test_an_equal_run_that_is_there_already_is_named(market, played, capfd, monkeypatch):
    monkeypatch.chdir(market)
    done = here(capfd, "replay", *WINDOW, *RANDOM)
    assert f"note: an equal run is there already: {played['run']} (same head)" in done.stderr
    other = here(capfd, "replay", *WINDOW, *RANDOM, "--seed", "8")
    assert "equal run" not in other.stderr
    assert "720 decisions and the drain x 5 lanes in " in done.stdout


def test_a_capital_below_the_margin_of_one_lot_is_said(market, capfd, monkeypatch):
    monkeypatch.chdir(market)
    poor = here(capfd, "replay", *WINDOW, "--clock", "1m", "--policy", "long", "--capital", "5000", "--json")
    assert "note: the capital of $5,000.00 is below the margin of one lot ($17,900.00): nothing can be opened" in poor.stderr
    assert document(poor)["summary"]["phases"][0]["trades"] == 0
    just = here(capfd, "replay", *WINDOW, "--clock", "1m", "--policy", "long", "--capital", "17900", "--json")
    assert "nothing can be opened" not in just.stderr
    assert document(just)["summary"]["phases"][0]["trades"] == 1


def test_accounts_that_the_floor_closed_are_counted_and_their_dead_steps_are_no_decisions(market, capfd, monkeypatch):
    monkeypatch.chdir(market)
    ruinous = ("--clock", "10s", "--policy", "random", "--lanes", "3", "--floor", "99990")
    run = document(here(capfd, "replay", *WINDOW, *ruinous, "--json"))
    rows = document(here(capfd, "sql", "--runs", run["run"], "select count(*) from steps where picked_action >= 0", "--json"))["rows"]
    ended = document(here(capfd, "sql", "--runs", run["run"], "select count(*) from steps where end_reason = 'capital_floor'", "--json"))
    assert (run["decisions_played"], run["lanes_closed_at_floor"]) == (rows[0][0], ended["rows"][0][0])
    assert run["decisions_played"] < run["decisions"] * 3
    less = here(capfd, "replay", *WINDOW, *ruinous, "--level", "fills")
    assert f"3 of 3 accounts were closed at the floor; {rows[0][0]:,} of 2,160 decisions played" in less.stdout
    unhurt = here(capfd, "replay", *WINDOW, "--clock", "10s", "--policy", "flat")
    assert "closed at the floor" not in unhurt.stdout
    assert "x 1 lane in " in unhurt.stdout


def test_a_table_shows_heads_whole(market, played, capfd, monkeypatch):
    monkeypatch.chdir(market)
    assert played["head"] in here(capfd, "sql", "--runs", played["run"], "select head from runs").stdout


def test_a_store_that_cannot_judge_a_run_is_unusable_input_and_one_that_contradicts_it_falsifies(
    market, played, tmp_path, capfd, monkeypatch
):
    from sim.ingest import ingest
    from sim.synth import synth

    monkeypatch.chdir(market)
    (tmp_path / "empty").mkdir()
    for name, symbol, date, seed in (
        ("other", "ESH4", "2024-03-05", 8), ("elsewhen", "ESH4", "2024-03-06", 7), ("elsewhat", "NQH4", "2024-03-05", 7),
    ):  # fmt: skip
        synth(symbol, date, 2_000, seed, 1.0, tmp_path / f"{name}.dbn")
        ingest(tmp_path / f"{name}.dbn", tmp_path / name)
    for name in ("empty", "absent", "elsewhen", "elsewhat"):
        done = here(capfd, "verify", played["run"], "--store", str(tmp_path / name), "--json")
        assert (done.returncode, done.stderr) == (2, f"error: {reason(done)}\n"), name
    done = here(capfd, "verify", played["run"], "--store", str(tmp_path / "other"), "--json")
    assert (done.returncode, document(done)["ok"]) == (1, False)
    assert any(check["name"] == "data_hash" and check["status"] == "failed" for check in document(done)["checks"])


def test_a_short_head_is_no_head_and_a_foreign_one_falsifies(market, played, capfd, monkeypatch):
    monkeypatch.chdir(market)
    short = here(capfd, "verify", played["run"], "--head", played["head"][:12], "--json")
    assert (short.returncode, "64 hex digits" in reason(short)) == (2, True)
    assert here(capfd, "verify", played["run"], "--head", "0" * 64).returncode == 1


COMPILED = """
import sys, torch
from pathlib import Path
import sim.replay
from lob.jit import numba
from numba.core.registry import CPUDispatcher
from tests.replays import replayed

def compiled():
    rooms = ("lob.", "cuda_env.", "policy.")
    found = {f"{m}.{k}": v for m, module in list(sys.modules.items()) if m.startswith(rooms) for k, v in vars(module).items()}
    return {name: len(value.signatures) for name, value in found.items() if isinstance(value, CPUDispatcher)}

play, seen = sim.replay._play, []
def watched(*arguments):
    seen.append(compiled())
    result = play(*arguments)
    seen.append(compiled())
    return result
sim.replay._play = watched
for level in ("full", "fills"):
    replayed(Path(sys.argv[1]), Path(sys.argv[2]), lanes=3, minutes=1, level=level)
print(sum(seen[0].values()) > 3, seen[0] == seen[1], seen[2] == seen[3], sim.replay.kernels_are_compiled())
"""


def test_nothing_is_compiled_while_the_clock_runs(market, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, str(market / "S"), str(tmp_path)], cwd=REPO, capture_output=True, text=True, check=False
    )
    assert done.stdout == "True True True True\n", done.stderr


def test_compiling_is_announced_where_the_cache_has_no_kernels_yet(tmp_path, monkeypatch):
    from sim.replay import kernels_are_compiled

    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert not kernels_are_compiled()
    (tmp_path / "lob_0").mkdir()
    (tmp_path / "lob_0" / "synth_kernel.put-72.py311.nbi").touch()
    assert not kernels_are_compiled()
    for name in ("cuda_env_0/kernels_cpu.step_one-106.py311.nbi", "cuda_env_0/step_live.live_step_lane-140.py311.nbi"):
        assert not kernels_are_compiled("power")
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert kernels_are_compiled("power") and kernels_are_compiled() and not kernels_are_compiled(training=True)


def test_orders_stand_in_queues_where_a_setting_says_so_and_the_run_is_proved(market):
    queues = ("--set", "env.queue_model=power", "--set", "env.entry_latency_ns=[0, 2000000]", "--set", "env.maker_fee_usd_micros=-250000")
    run = document(sim("replay", *WINDOW, *RANDOM, *queues, "--json", cwd=market))
    verdict = document(sim("verify", run["run"], "--store", "S", "--head", run["head"], "--json", cwd=market))
    assert (verdict["ok"], verdict["largest_difference_usd_micros"]) == (True, 0)
    query = "select count(distinct kind), count(limit_ticks) from orders"
    answer = document(sim("sql", "--runs", run["run"], query, "--json", cwd=market))
    ((kinds, limits),) = answer["rows"]
    assert kinds > 1 and limits > 0


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (("--set", "env.queue_model=fifo"), "env.queue_model: must be 'none', 'risk_averse', 'proportional' or 'power'"),
        (("--set", "env.maker_fee_usd_micros=1"), "maker_fee_usd_micros acts on orders that work in the book: set queue_model too"),
        (("--set", "loop.steps=1"), "--set loop: a replay's account alone is set this way"),
        (("--set", "env.max_lots=3", "--max-lots", "4"), "--set env.max_lots: an option states that already"),
    ],
)
def test_a_setting_that_cannot_be_is_one_line_that_names_it(market, settings, says):
    done = sim("replay", *WINDOW, *RANDOM, *settings, "--json", cwd=market)
    assert done.returncode != 0
    assert says in reason(done)
