"""What training logs of a step is declared once, and without torch."""

import subprocess
import sys

from policy import diag_columns as d
from policy.health import LearnStats
from policy.signals import COMPONENTS, IN_USE, SLOTS


def test_every_column_is_declared_once_and_only_the_gate_inputs_may_not_be_null():
    names = [column.name for column in d.COLUMNS]
    assert len(set(names)) == len(names)
    assert [column.name for column in d.COLUMNS if not column.nullable] == [column.name for column in d.GATE_INPUTS]
    assert {column.dtype for column in d.INTEGERS} == {"int64"} and {column.dtype for column in d.FLOATS} == {"float64"}


def test_every_signal_in_use_has_a_column_and_health_all_of_its_seven_parts():
    names = [column.name for column in d.SIGNALS]
    assert names == [f"signal.{SLOTS[place].name}" for place in IN_USE]
    assert {f"signal.health.{part}" for part in COMPONENTS} | {"signal.learning_health"} <= set(names)


def test_every_figure_of_an_update_has_a_column_or_a_signal():
    """A figure that is measured and not logged could not be asked for."""
    signals = {column.name for column in d.SIGNALS}
    in_blocks = {"v_half", "q_range", "q_sigma"}
    assert all(f"signal.{name}.direction" in signals for name in in_blocks)
    rest = set(LearnStats._fields) - set(d.LEARN_FIGURES) - in_blocks
    assert rest == {"gate_mean", "gate_entropy"} and {"signal.expert_use.0", "signal.gate_entropy"} <= signals


def test_a_log_is_declared_without_loading_torch():
    code = "import sim.tables, sys; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
