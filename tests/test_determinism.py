"""Same seed, config, data and build: byte-equal logs across processes, hash seeds and thread counts."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

PLAY = """
import json, sys
from pathlib import Path
from lob.instruments import REGISTRY
from lob.units import parse_time_ns
from sim.plan import plan_replay
from sim.replay import replay
store, runs, threads, flush_rows, policy = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
tape = {"clock": "5s", "start_ns": parse_time_ns("2024-03-05T15:00")[0], "end_ns": parse_time_ns("2024-03-05T15:05")[0]}
execution = {"threads": threads, "flush_rows": flush_rows}
config = plan_replay(store, "ESH4", REGISTRY, tape, {}, {"segment_steps": 16}, policy=policy, seed=3, lanes=600, execution=execution)
result = replay(config, store, runs)
print(json.dumps({"run": str(result.run_dir), "head": result.head}))
"""


def play(store: Path, runs: Path, threads: int, hash_seed: str, flush_rows: int, policy: str) -> tuple[str, dict[str, str]]:
    """(head, {file: SHA-256}) of a run made in a process of its own; files outside every hash are left out."""
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": str(threads), "NUMBA_NUM_THREADS": "2"}
    command = [sys.executable, "-c", PLAY, str(store), str(runs), str(threads), str(flush_rows), policy]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    run = Path(said["run"])
    files = {
        str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(run.rglob("*"))
        if path.is_file() and "unhashed" not in str(path.relative_to(run)) and path.name != "manifest.json"
    }
    return said["head"], files


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    from sim.ingest import ingest
    from sim.synth import synth

    folder = tmp_path_factory.mktemp("market")
    synth("ES", "2024-03-05", 30_000, 1, 0.0, folder / "es.dbn.zst")
    ingest(folder / "es.dbn.zst", folder / "store")
    return folder / "store"


@pytest.mark.parametrize("kind", ["random", "checkpoint"])
def test_equal_runs_are_byte_equal_whatever_the_process_hash_seed_threads_and_flushing(store, tmp_path, kind):
    policy = kind
    if kind == "checkpoint":
        from sim.policy import init_checkpoint

        init_checkpoint(5, tmp_path / "net")
        policy = f"checkpoint:{tmp_path / 'net'}"
    one = play(store, tmp_path / "one", 1, "0", 262_144, policy)
    two = play(store, tmp_path / "two", 2, "4242", 1_000, policy)
    assert one[0] == two[0], "the heads differ"
    assert one[1] == two[1], "a file differs"
    assert sum(name.startswith("segments") for name in one[1]) > 8, "the comparison must cover every table's parts"
