"""The count of trials: every distinct configuration that met the same stretch of market, and nothing else."""

import copy
import json
from pathlib import Path

import pytest

from sim.config import config_hash
from sim.trials import count_trials, overlap, windows_of
from store.manifest import new_manifest

CONFIG = {"phase": "eval", "instrument": {"symbol": "ESH4"}, "tape": {"start_ns": 100, "end_ns": 200}, "policy": {"checkpoint": "a"}}


def other(**changes):
    """CONFIG with values replaced by dotted path (`__` for the dot)."""
    config = copy.deepcopy(CONFIG)
    for path, value in changes.items():
        *parents, name = path.split("__")
        place = config
        for parent in parents:
            place = place[parent]
        place[name] = value
    return config


def write(runs: Path, name: str, config: dict) -> None:
    (runs / name).mkdir()
    manifest = new_manifest({"config": config}, {}, "diag", 1, ())
    (runs / name / "manifest.json").write_text(json.dumps(manifest))


def test_equal_configurations_count_once_and_every_other_one_counts(tmp_path):
    assert count_trials(tmp_path, [CONFIG]).count == 1, "the evaluation at hand is a trial, though it has no folder yet"
    write(tmp_path, "first", CONFIG)
    write(tmp_path, "first-2", CONFIG)
    assert count_trials(tmp_path, [CONFIG]).configs == (config_hash(CONFIG),)
    for i in range(5):
        write(tmp_path, f"checkpoint-{i}", other(policy__checkpoint=f"b{i}"))
    write(tmp_path, "training", other(phase="train", policy__checkpoint="none"))
    found = count_trials(tmp_path, [CONFIG])
    assert (found.count, found.runs) == (7, 8) and list(found.configs) == sorted(found.configs)
    assert count_trials(tmp_path, [CONFIG, other(policy__checkpoint="new")]).count == 8


@pytest.mark.parametrize(
    "changes",
    [
        {"phase": "replay"},
        {"instrument__symbol": "NQH4"},
        {"tape__start_ns": 200, "tape__end_ns": 300},
        {"tape__start_ns": 0, "tape__end_ns": 100},
        {"tape__windows": [[0, 50], [250, 300]]},
    ],
    ids=str,
)
def test_a_run_on_another_market_or_another_time_is_no_trial(tmp_path, changes):
    write(tmp_path, "run", other(policy__checkpoint="b", **changes))
    assert count_trials(tmp_path, [CONFIG]).count == 1


def test_a_window_that_overlaps_in_one_moment_counts(tmp_path):
    write(tmp_path, "late", other(tape__start_ns=199, tape__end_ns=300))
    write(tmp_path, "split", other(tape__windows=[[0, 50], [150, 160], [250, 300]]))
    assert count_trials(tmp_path, [CONFIG]).count == 3


def test_what_is_no_run_is_passed_over(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "manifest.json").write_text('{"format": 1, "identity"')
    write(tmp_path, "foreign", {"phase": "eval"})
    assert count_trials(tmp_path, [CONFIG]).count == 1
    assert count_trials(tmp_path / "nothing", [CONFIG]).count == 1


def test_windows_touch_without_overlapping():
    assert windows_of(CONFIG) == ((100, 200),)
    assert not overlap([(0, 10)], [(10, 20)]) and overlap([(0, 11)], [(10, 20)]) and not overlap([], [(0, 1)])
