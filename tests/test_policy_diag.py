"""What training logs of a step: every declared column once, in order, whole where it is a sum, null where it is no number."""

import math
import subprocess
import sys

import pytest
import torch

from lob.layout import OFFSET, STATE_DIM
from lob.picks import Picks
from policy import diag_columns as d
from policy.bus import control_state
from policy.diag_values import pack_floats, pack_integers
from policy.health import LearnStats
from policy.rewards import TERMS, Rewards
from policy.select import Chosen
from policy.signals import COMPONENTS, IN_USE, SLOTS

LANES = 200


def drawn(seed):
    """Random tensors of one step: picks, chosen, observation, decided, rewards."""
    g = torch.Generator().manual_seed(seed)
    ppm = lambda: torch.randint(0, 1_000_001, (LANES,), generator=g, dtype=torch.int32)  # noqa: E731
    unit = lambda: torch.rand(LANES, generator=g)  # noqa: E731
    picks = Picks(torch.randint(0, 108, (LANES,), generator=g, dtype=torch.int32), ppm(), ppm(), ppm())
    q_range = torch.where(unit() < 0.1, 0.0, unit())
    codes = torch.zeros(LANES, 4, dtype=torch.int64)
    chosen = Chosen(picks.action, unit(), unit(), q_range, unit(), unit() < 0.3, unit(), unit(), codes)
    observation = torch.rand(LANES, STATE_DIM, generator=g)
    sums = torch.randint(-(10**9), 10**9, (len(TERMS) + 2,), generator=g)
    rewards = Rewards(*(torch.zeros(1) for _ in range(5)), sums)
    return picks, chosen, observation, unit() < 0.8, rewards


def stats(**changed):
    values = {name: torch.full((4,), 0.5) for name in ("v_half", "q_range", "q_sigma")}
    values |= {name: torch.tensor(float(i)) for i, name in enumerate(d.LEARN_FIGURES)}
    return LearnStats(**values | changed)


def named(values, columns):
    return dict(zip((column.name for column in columns), values.tolist(), strict=True))


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


@pytest.mark.parametrize("seed", range(3))
def test_packed_integers_are_the_sums_of_a_plain_loop_over_lanes_that_played(seed):
    picks, chosen, observation, decided, rewards = drawn(seed)
    state = control_state()
    state.clock[1] = 77
    found = named(pack_integers(picks, chosen, observation, decided, rewards, state), d.INTEGERS)
    ppm = lambda value: round(float(value) * 1e6)  # noqa: E731
    wanted = dict.fromkeys((column.name for column in d.GATE_INPUTS + d.SELECTION), 0)
    for i in range(LANES):
        if not decided[i]:
            continue
        conviction, health = int(picks.conviction_ppm[i]), int(picks.health_ppm[i])
        wanted["policy.conviction_ppm_sum"] += conviction
        wanted["policy.health_ppm_sum"] += health
        wanted["policy.variance_scale_ppm_sum"] += int(picks.variance_scale_ppm[i])
        wanted["select.explored"] += int(chosen.explored[i])
        wanted["select.p_best_ppm_sum"] += ppm(chosen.p_best[i])
        if chosen.q_range[i] > 0:
            wanted["select.ranged"] += 1
            wanted["select.tau_over_range_ppm_sum"] += ppm((chosen.tau[i] / chosen.q_range[i]).clamp(max=1000))
        kelly = ppm(observation[i, OFFSET["kelly_fraction"]])
        wanted["select.kelly_above_floor"] += kelly > max(conviction, 500_000 + health // 2)
    assert {name: found[name] for name in wanted} == wanted
    assert found["policy.q_range_ppm_sum"] == sum(ppm(value) for value in chosen.q_range)
    assert [found[column.name] for column in d.REWARDS] == rewards.sums.tolist() and found["learn.updates"] == 77


def test_at_full_health_no_kelly_fraction_stands_above_its_floor():
    """Lesson 54: 0 by construction."""
    picks, chosen, observation, decided, rewards = drawn(4)
    picks.health_ppm.fill_(1_000_000)
    found = named(pack_integers(picks, chosen, observation, decided, rewards, control_state()), d.INTEGERS)
    assert found["select.kelly_above_floor"] == 0


def test_packed_floats_are_the_last_updates_figures_and_the_bus_by_name():
    state = control_state()
    state.bus.copy_(torch.arange(127.0))
    found = named(pack_floats(state, stats()), d.FLOATS)
    assert [found[f"learn.{name}"] for name in d.LEARN_FIGURES] == list(range(len(d.LEARN_FIGURES)))
    assert {name: found[f"signal.{SLOTS[place].name}"] for place, name in ((place, SLOTS[place].name) for place in IN_USE)} == {
        SLOTS[place].name: float(place) for place in IN_USE
    }


def test_what_is_not_finite_or_not_measured_is_packed_as_no_value():
    state = control_state()
    state.bus[3] = float("inf")
    found = named(pack_floats(state, stats(loss=torch.tensor(-math.inf), spectral_gap=None)), d.FLOATS)
    nothing = [name for name, value in found.items() if math.isnan(value)]
    assert nothing == ["learn.loss", "learn.spectral_gap", "signal.health.loss_trend"]
    without = named(pack_floats(state, None), d.FLOATS)
    assert all(math.isnan(without[column.name]) for column in d.LEARN)


def test_values_that_are_not_finite_never_reach_an_integer():
    picks, chosen, observation, decided, rewards = drawn(5)
    broken = chosen._replace(q_range=torch.full((LANES,), math.nan), tau=torch.full((LANES,), math.inf))
    found = named(pack_integers(picks, broken, observation, decided, rewards, control_state()), d.INTEGERS)
    assert found["policy.q_range_ppm_sum"] == found["select.ranged"] == found["select.tau_over_range_ppm_sum"] == 0


def test_a_log_is_declared_without_loading_torch():
    code = "import sim.tables, sys; raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
