"""Laws of the comparison of two runs: no difference between equal ones, and of unequal ones the first place, by name."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from lob.errors import NotFound
from lob.tables import LEVELS, Column, Table
from sim.compare import Difference, differences, first_difference
from store.run_read import read_run
from store.runlog import RunLog


def whole_number(name: str, dtype: str = "int32") -> Column:
    return Column(name, dtype, "1", name)


TABLES = (
    Table(
        "diag",
        (
            *(whole_number(name) for name in ("phase", "step", "lots")),
            Column("loss", "float64", "1", "loss", nullable=True),
            Column("size", "float32", "1", "size"),
        ),
        ("phase", "step"),
        LEVELS,
        "Rows of a step.",
    ),
    Table(
        "trades", (whole_number("step"), whole_number("lane"), Column("kind", "str", "1", "kind")), ("step", "lane"), LEVELS, "Of a lane."
    ),
    Table("timing", (whole_number("step"), whole_number("wall_ns", "int64")), ("step",), LEVELS, "Clocks.", hashed=False),
)
CHECKPOINT = {"step": 3, "tensors": {"env.cash": {"sha256": "aa"}, "learner.weights": {"sha256": "bb"}}}


def make(folder: Path, **changes) -> Path:
    """A run of six steps in segments of two; `changes` overrule cells (`diag`: {(step, column): value}) and the rest."""
    identity = {"config": {"lr": 0.5, "seed": 1}, "data": [1, 2]} | changes.get("identity", {})
    with RunLog.create(folder, identity=identity, tables=TABLES, segment_steps=2) as log:
        for step in range(6):
            row = {"phase": 0, "step": step, "lots": step, "loss": None if step == 1 else step / 2, "size": 0.0}
            for (at, column), value in changes.get("diag", {}).items():
                row |= {column: value} if at == step else {}
            log.append_row("diag", row)
            for lane in range(changes.get("lanes", {}).get(step, 2)):
                log.append_row("trades", {"step": step, "lane": lane, "kind": changes.get("kind", {}).get((step, lane), "close")})
            log.append_row("timing", {"step": step, "wall_ns": changes.get("wall_ns", 0) + step})
            log.end_step(step)
        log.finish("finished", {"total": {"pnl_usd_micros": 5}, "rows": [1, 2]} | changes.get("summary", {}), "train_summary.json")
    for name, document in {"step-00000003": CHECKPOINT, **changes.get("checkpoints", {})}.items():
        place = folder / "checkpoints" / name
        place.mkdir(parents=True)
        (place / "state.json").write_text(json.dumps(document))
    (folder / "checkpoints" / "last").symlink_to("step-00000003")
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    return make(tmp_path_factory.mktemp("plain") / "run")


def test_equal_runs_do_not_differ_wherever_they_lie_and_whenever_they_were_made(plain, tmp_path):
    assert list(differences(read_run(plain), read_run(make(tmp_path / "elsewhere", wall_ns=77)))) == []


CHANGES = {
    "identity": ({"identity": {"config": {"lr": 0.25, "seed": 1}}}, "manifest.json identity.config.lr", "0.5", "0.25"),
    "a row of diag": ({"diag": {(4, "lots"): 9}}, "diag, phase 0, step 4, lots", "4", "9"),
    "a float": ({"diag": {(2, "loss"): 1.0000000000000002}}, "diag, phase 0, step 2, loss", "1.0", "1.0000000000000002"),
    "a null": ({"diag": {(1, "loss"): 0.5}}, "diag, phase 0, step 1, loss", "None", "0.5"),
    "the sign of zero": ({"diag": {(3, "size"): -0.0}}, "diag, phase 0, step 3, size", "0.0", "-0.0"),
    "a string": ({"kind": {(5, 1): "flip"}}, "trades, step 5, lane 1, kind", "close", "flip"),
    "a row too many at the end": ({"lanes": {5: 3}}, "trades, step 5, lane 2", "missing", "there"),
    "a row that is missing on the way": ({"lanes": {2: 1}}, "trades, step 2, lane 1", "there", "missing"),
    "a summary's key": ({"summary": {"total": {"pnl_usd_micros": 6}}}, "train_summary.json.total.pnl_usd_micros", "5", "6"),
    "a summary's list": ({"summary": {"rows": [1, 3]}}, "train_summary.json.rows[1]", "2", "3"),
    "a tensor of a checkpoint": (
        {"checkpoints": {"step-00000003": {**CHECKPOINT, "tensors": {"env.cash": {"sha256": "aa"}, "learner.weights": {"sha256": "cc"}}}}},
        "checkpoints/last/state.json.tensors.learner.weights.sha256", '"bb"', '"cc"',
    ),
    "a checkpoint that is missing": ({"checkpoints": {"step-00000009": CHECKPOINT}}, "checkpoints/step-00000009", "missing", "there"),
}  # fmt: skip


@pytest.mark.parametrize("what", CHANGES)
def test_the_first_difference_is_named_by_its_place_with_what_both_runs_hold_there(plain, tmp_path, what):
    changes, where, first, second = CHANGES[what]
    other = make(tmp_path / "other", **changes)
    assert first_difference(plain, other) == Difference(where, first, second)
    assert first_difference(other, plain) == Difference(where, second, first)
    assert str(Difference(where, first, second)) == f"{where}: {first} in the first run, {second} in the second"


def test_of_two_differences_in_a_table_the_earlier_row_is_named_and_in_a_row_the_first_column(plain, tmp_path):
    other = make(tmp_path / "other", diag={(4, "lots"): 9, (3, "size"): 1.0, (3, "loss"): 7.0})
    found = first_difference(plain, other)
    assert found is not None and found.where == "diag, phase 0, step 3, loss"


def test_the_differences_come_in_the_order_identity_tables_checkpoints_summaries_head(plain, tmp_path):
    checkpoints = {"step-00000003": {**CHECKPOINT, "step": 4}}
    other = make(
        tmp_path / "o", identity={"data": [1, 3]}, diag={(0, "lots"): 1}, lanes={0: 3}, checkpoints=checkpoints, summary={"rows": []}
    )
    found = [difference.where for difference in differences(read_run(plain), read_run(other))]
    assert found == [
        "manifest.json identity.data[1]",
        "diag, phase 0, step 0, lots",
        "trades, step 0, lane 2",
        "checkpoints/last/state.json.step",
        "checkpoints/step-00000003/state.json.step",
        "train_summary.json.rows",
        "chain.jsonl head",
    ]


def test_a_run_that_is_none_is_refused(plain, tmp_path):
    with pytest.raises(NotFound):
        first_difference(plain, tmp_path / "nowhere")


def test_a_missing_summary_is_a_difference(plain, tmp_path):
    shutil.copytree(plain, tmp_path / "other", symlinks=True)
    (tmp_path / "other" / "train_summary.json").unlink()
    found = first_difference(plain, tmp_path / "other")
    assert found is not None and (found.where, found.second) == ("train_summary.json", "null")


def test_negative_zero_differs_from_zero_in_every_width_of_float(tmp_path):
    """As bytes: what a hash covers."""
    for width in ("loss", "size"):
        one = make(tmp_path / f"{width}1", diag={(0, width): 0.0})
        other = make(tmp_path / f"{width}2", diag={(0, width): -0.0})
        found = first_difference(one, other)
        assert found is not None and found.where == f"diag, phase 0, step 0, {width}" and np.signbit(float(found.second))
