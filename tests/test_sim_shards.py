"""A training in shards gives the same bytes in one process as in two: log, checkpoints, summary; and it can go on in another number."""

import datetime as dt
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from cuda_env.diag import DIAG
from lob.errors import BadInput
from lob.instruments import REGISTRY
from sim.compare import first_difference
from sim.config import BadField
from sim.ingest import ingest
from sim.peers import Peers
from sim.shards import ADDED, CHECKSUM, merge, part_of
from sim.synth import synth
from sim.train import make_trainer, prepare, train
from sim.train_config import TrainConfig, plan_train

REPO = Path(__file__).resolve().parent.parent
LANES, STEPS = 8, 40
SETTINGS = {
    "split": {"test_days": 1, "validation_days": 1},
    "loop": {
        "steps": STEPS, "eval_steps": 5, "warmup_steps": 5, "block_steps": 10, "checkpoint_every": 20, "validate_every": STEPS, "shards": 2,
    },
    "learner": {"batch": 16, "capacity": 256, "popart": 1.0},
}  # fmt: skip
AT = tuple(f"2024-01-0{day}T00:00Z" for day in (1, 5))


@pytest.fixture(scope="module")
def market(tmp_path_factory) -> Path:
    """A folder with a store `S` of three synthetic days."""
    folder = tmp_path_factory.mktemp("shards")
    for day in (2, 3, 4):
        synth("ESH4", f"2024-01-0{day}", 2_000, 7, 1.0, folder / f"{day}.dbn")
        ingest(folder / f"{day}.dbn", folder / "S")
    return folder


def plan(market: Path, **changes: dict) -> TrainConfig:
    stated = {name: values | changes.get(name, {}) for name, values in SETTINGS.items()}
    start, end = (int(dt.datetime.fromisoformat(at).timestamp()) * 10**9 for at in AT)
    return plan_train(market / "S", "ESH4", REGISTRY, {"clock": "1m", "start_ns": start, "end_ns": end}, stated, seed=3, lanes=LANES)


@pytest.fixture(scope="module")
def whole(market) -> Path:
    """The run of one process that hosts both shards."""
    result = train(plan(market), market / "S", market / "whole")
    assert result is not None
    return result.run_dir


def command(*given: str) -> list[str]:
    """`sim train` of the same run."""
    settings = [f"--set={name}.{key}={value}" for name, values in SETTINGS.items() for key, value in values.items()]
    window = ["--store", "S", "--instrument", "ESH4", f"--start={AT[0]}", f"--end={AT[1]}", "--clock", "1m"]
    return ["train", *window, "--seed", "3", "--lanes", str(LANES), *settings, *given]


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(REPO)} | more


class Launch:
    """`sim` in several processes, as `torchrun` starts them; `codes` stand in for the command in the process of that rank."""

    def __init__(self, folder: Path, count: int, arguments: list[str], codes: dict[int, str] | None = None, start: int | None = None):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", f"import sys; sys.argv[0] = 'sim'; {(codes or {}).get(rank, '')}\nfrom cli.main import main; main()"]
                + arguments,
                cwd=folder, env=environment(**shared, RANK=str(rank), LOCAL_RANK=str(rank)),
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for rank in range(count if start is None else start)
        ]  # fmt: skip

    def __enter__(self) -> "Launch":
        return self

    def leader(self) -> tuple[int, str, str]:
        """(exit code, stdout, stderr) of the leader."""
        out, err = self.processes[0].communicate(timeout=120)
        return self.processes[0].returncode, out, err

    def __exit__(self, *_) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


def test_two_processes_over_gloo_leave_the_bytes_of_one_that_hosts_both_shards(market, whole):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "--", "cli.main"]
    done = subprocess.run(
        [*torchrun, *command("--runs", "two")], cwd=market, env=environment(), capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr
    (two,) = (market / "two").glob("train-*")
    assert first_difference(whole, two) is None
    assert done.stdout.count("judge it") == 1 and done.stderr.count("split by days") == 1  # one process speaks


@pytest.mark.deep
def test_a_run_begun_in_one_process_goes_on_in_two_as_if_it_had_never_stopped(market, whole):
    def stop(done: int, _: int) -> None:
        if done == 30:  # ten steps behind its checkpoint
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="30 steps"):
        train(plan(market), market / "S", market / "stopped", stop)
    (run,) = (market / "stopped").glob("train-*")
    with Launch(market, 2, ["train", "--resume", str(run)]) as launch:
        code, _, err = launch.leader()
        assert code == 0, err
        assert launch.processes[1].communicate(timeout=30) == ("", "") and launch.processes[1].returncode == 0
    assert first_difference(whole, run) is None


@pytest.mark.deep
def test_a_run_killed_in_two_processes_goes_on_in_one(market, whole):
    code = "import os, sim.loop\nold = sim.loop.Loop._watch\n"
    code += "sim.loop.Loop._watch = lambda loop, step, diag: os.kill(os.getpid(), 9) if step > 30 else old(loop, step, diag)"
    with Launch(market, 2, command("--runs", "killed"), {0: code}) as launch:
        assert launch.leader()[0] == -9
    (run,) = (market / "killed").glob("train-*")
    done = subprocess.run(
        [sys.executable, "-m", "cli.main", "train", "--resume", str(run)], cwd=market, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert first_difference(whole, run) is None


def test_three_processes_are_told_in_one_line_that_they_cannot_share_two_shards(market):
    with Launch(market, 3, command("--runs", "three"), start=1) as launch:
        code, out, err = launch.leader()
    assert code == 2 and out == ""
    assert err == (
        "error: 3 processes cannot host 2 shards evenly: start as many as divide loop.shards, or begin a run with loop.shards=3\n"
    )
    assert not (market / "three").exists()


@pytest.mark.parametrize(
    ("fault", "line", "code"),
    [
        ("raise lob.errors.BadInput('lane 5, step 19: a pick out of range')", "lane 5, step 19: a pick out of range", 2),
        pytest.param("1 // 0", "ZeroDivisionError: integer division", 1, marks=pytest.mark.deep),
        pytest.param("os.kill(os.getpid(), 9)", "without a word; failed/train-", 1, marks=pytest.mark.deep),
    ],
)
def test_a_process_that_fails_ends_the_run_and_the_first_says_why_in_one_line(market, fault, line, code):
    shutil.rmtree(market / "failed", ignore_errors=True)
    broken = "import os, lob.errors, sim.shards\nblocks = []\ndef check(*_):\n    blocks.append(len(blocks))\n    if len(blocks) == 2:\n"
    broken += f"        {fault}\nsim.shards.Hosted.check = check"
    with Launch(market, 2, command("--runs", "failed"), {1: broken}) as launch:
        found, out, err = launch.leader()
    assert (found, out) == (code, "")
    (said,) = (told for told in err.splitlines() if told.startswith("error"))
    assert line in said and "Traceback" not in err
    assert list((market / "failed").glob("train-*/journal"))  # what it had is kept


def test_every_column_of_a_split_run_is_that_of_all_lanes(market):
    """Against each shard's own rows: sums are sums, lane rows are global, what the policy counts is the same in both."""
    config = plan(market)
    sharded = make_trainer(config, prepare(config, market / "S").train)
    sharded.run(10)
    parts = [trainer.log.columns(trainer.log.fetch()) for trainer in sharded.hosted.trainers]
    rows = merge(parts)
    one, two, both = (part["diag"] for part in (*parts, rows))
    environment_sums = {column.name for column in DIAG if column.dtype == "int64"} - {"ts_observed_ns", "ts_decided_ns"}
    for name, values in both.items():
        if name == CHECKSUM:
            assert [int(v) for v in values] == [(int(a) + int(b)) % 2**63 for a, b in zip(one[name], two[name], strict=True)]
        elif name in environment_sums:
            assert np.array_equal(values, one[name] + two[name]), name
        else:
            assert np.array_equal(np.ma.filled(values, 7), np.ma.filled(one[name], 7)), name
            if not name.startswith("ts_"):
                assert np.array_equal(np.ma.filled(values, 7), np.ma.filled(two[name], 7)), name
    assert set(ADDED) == environment_sums and (both["lanes.played"] + both["lanes.not_played"]).max() == LANES
    keys = list(zip(*(rows["trades"][name].tolist() for name in ("step", "lane", "trade_id")), strict=True))
    lanes = {lane for _, lane, _ in keys}
    assert keys == sorted(keys) and lanes <= set(range(LANES)) and min(lanes) < LANES // 2 <= max(lanes)
    assert len(keys) == both["trading.trades"].sum()


def test_a_sum_over_shards_is_taken_in_their_order_and_put_in_place_of_each():
    parts = [torch.tensor([1e8, 1.0]), torch.tensor([1.0, 2.0]), torch.tensor([-1e8, 3.0])]
    wanted = (parts[0] + parts[1]) + parts[2]
    Peers().add(parts)
    assert all(torch.equal(part, wanted) for part in parts)


def test_a_shard_has_its_share_of_lanes_batch_and_replay(market):
    own = part_of(plan(market), 2)
    assert (own.lanes, own.learner.batch, own.learner.capacity) == (4, 8, 128)


@pytest.mark.parametrize(("section", "key", "count"), [("loop", "shards", 3), ("learner", "batch", 17)])
def test_lanes_and_batches_that_no_shards_share_evenly_are_refused(market, section, key, count):
    with pytest.raises((BadInput, BadField), match="cannot be divided into"):
        plan(market, **{section: {key: count}})


def test_shards_draw_from_their_memories_apart(market):
    config = plan(market)
    trainers = make_trainer(config, prepare(config, market / "S").train).hosted.trainers
    seeds = [trainer.memory.seed for trainer in trainers]
    assert seeds[0] == config.seed and len(set(seeds)) == 2
    assert [trainer.lane_ids.tolist() for trainer in trainers] == [[0, 1, 2, 3], [4, 5, 6, 7]]
