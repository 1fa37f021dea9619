"""A run's log in TensorBoard's files, read back with TensorBoard's own reader."""

import json
import struct
import subprocess
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lob.errors import BadInput, NotFound
from sim.export_tensorboard import export_tensorboard
from tests.runlog_runs import write_run
from tests.test_cli import REPO, document, here, reason
from tests.training_logs import DIAG, IDENTITY, TIMED, diag_row, timing_row, write_training

STEPS = 40


def read_back(folder):
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return found


def float32(number):
    return struct.unpack("f", struct.pack("f", number))[0]


def expected(told_apart: bool) -> dict[str, list[tuple[float, int, float]]]:
    """{tag: (wall-clock, step, value)} in plain Python from the rows that were logged."""
    tags: dict[str, list[tuple[float, int, float]]] = {}
    for step in range(STEPS):
        row, spent = diag_row(step), timing_row(step, told_apart)
        numbers = {}
        for column in DIAG.columns:
            group, _, rest = column.name.partition(".")
            if rest and group != "checksum" and row[column.name] is not None:
                dollars = column.unit == "usd_micros"
                numbers[f"{group}/{rest.replace('_usd_micros', '_usd')}"] = row[column.name] / 10**6 if dollars else row[column.name]
        for column in TIMED.columns:
            if column.name.endswith("_ns") and column.name != "wall_ns" and spent[column.name] is not None:
                numbers[f"timing/{column.name[:-3]}_ms"] = spent[column.name] / 10**6
        for tag, number in numbers.items():
            tags.setdefault(tag, []).append((spent["wall_ns"] / 10**9, step, float32(number)))
    return tags


@pytest.mark.parametrize(("finish", "told_apart"), [(True, True), (False, True), (True, False)])
def test_every_number_comes_back_from_tensorboards_own_reader(tmp_path, finish, told_apart):
    write_training(tmp_path / "run", STEPS, finish=finish, told_apart=told_apart)
    made = export_tensorboard(tmp_path / "run", tmp_path / "boards")
    assert made.folders == (tmp_path / "boards" / "run" / "train",)
    found, wanted = read_back(made.folders[0]), expected(told_apart)
    assert set(found.Tags()["scalars"]) == set(wanted)
    for tag, points in wanted.items():
        assert [(event.wall_time, event.step, event.value) for event in found.Scalars(tag)] == points, tag
    assert (made.steps, made.tags, made.values) == (STEPS, len(wanted), sum(map(len, wanted.values())))
    assert len(wanted) > 150
    assert len(wanted["trading/realized_pnl_usd_cum"]) == STEPS
    assert len(wanted["learn/loss"]) < STEPS, "a null is no point"
    assert ("timing/learn_ms" in wanted) is told_apart


def test_the_runs_identity_comes_along_as_text(tmp_path):
    write_training(tmp_path / "run", 3)
    folder = export_tensorboard(tmp_path / "run", tmp_path / "boards").folders[0]
    [text] = read_back(folder).Tensors("identity/text_summary")
    assert json.loads(text.tensor_proto.string_val[0]) == IDENTITY


def test_exporting_again_into_the_same_folder_is_refused_and_changes_nothing(tmp_path):
    write_training(tmp_path / "run", 3)
    export_tensorboard(tmp_path / "run", tmp_path / "boards")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "boards").rglob("*")}
    with pytest.raises(BadInput, match=r"was exported there already; give another --out"):
        export_tensorboard(tmp_path / "run", tmp_path / "boards")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "boards").rglob("*")} == before


def test_a_run_without_a_step_and_a_folder_without_a_run(tmp_path, capfd):
    write_training(tmp_path / "run", 0, finish=False)
    assert export_tensorboard(tmp_path / "run", tmp_path / "boards").folders == ()
    with pytest.raises(NotFound):
        export_tensorboard(tmp_path, tmp_path / "boards")


def test_a_run_without_diag_is_refused(tmp_path):
    write_run(tmp_path / "odd", 3)
    with pytest.raises(BadInput, match="logs no table diag"):
        export_tensorboard(tmp_path / "odd", tmp_path / "boards")


def test_from_a_shell(tmp_path, capfd):
    write_training(tmp_path / "run", STEPS)
    told = document(here(capfd, "export", "tensorboard", str(tmp_path / "run"), "--out", str(tmp_path / "boards"), "--json"))
    assert told["folders"] == [str(tmp_path / "boards" / "run" / "train")]
    assert told["steps"] == STEPS
    done = here(capfd, "export", "tensorboard", str(tmp_path / "run"), "--out", str(tmp_path / "again"))
    assert done.stdout.splitlines()[1].startswith(f"{STEPS} steps, ")
    done = here(capfd, "export", "tensorboard", str(tmp_path / "run"), "--out", str(tmp_path / "again"), "--json")
    assert (done.returncode, done.stderr) == (2, f"error: {reason(done)}\n")


MISSING = """
import sys
sys.modules["tensorboard"] = None
sys.argv = ["sim", "export", "tensorboard", sys.argv[1], "--out", sys.argv[2]]
from cli.main import main
main()
"""


def test_without_tensorboard_one_line_says_what_to_install(tmp_path):
    write_training(tmp_path / "run", 3)
    command = [sys.executable, "-c", MISSING, str(tmp_path / "run"), str(tmp_path / "boards")]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith("pip install 'tapeproof[tensorboard]'\n")
    assert not (tmp_path / "boards").exists()
