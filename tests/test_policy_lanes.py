"""One pass over the lanes: what is counted of a step is what a plain loop counts, and the compiled loop is the plain one."""

import numpy as np
import pytest
import torch

from lob.layout import OFFSET, STATE_DIM
from lob.picks import Picks
from policy import lane_kernels as k
from policy.bus import control_state
from policy.diag_columns import FLOATS, GATE_INPUTS, INTEGERS, LEARN, LEARN_FIGURES, REWARDS, SELECTION
from policy.diag_values import pack_floats, pack_integers
from policy.health import LearnStats
from policy.lane_pass import LanePass, Step
from policy.rewards import RewardConfig
from policy.select import Chosen
from policy.signals import IN_USE, SLOTS

LANES, SCALE = 200, 1_000_000_000


def drawn(seed, lanes=LANES):
    """Random tensors of one step: (step, picks, chosen)."""
    g = torch.Generator().manual_seed(seed)
    unit = lambda: torch.rand(lanes, generator=g)  # noqa: E731
    ppm = lambda: torch.randint(0, 1_000_001, (lanes,), generator=g, dtype=torch.int32)  # noqa: E731
    seen = [torch.randn(lanes, STATE_DIM, generator=g) for _ in range(2)]
    for observed in seen:
        observed[:, OFFSET["position_fraction"]] = (unit() * 4 - 2).round() / 2
        observed[:, OFFSET["position_sign"]] = observed[:, OFFSET["position_fraction"]].sign()
        observed[:, OFFSET["kelly_fraction"]] = unit()
    raw = torch.randint(-50_000_000, 50_000_000, (lanes,), generator=g)
    ends = unit() < 0.1
    step = Step(raw, *seen, unit() < 0.8, ends & (unit() < 0.5), ends)
    picks = Picks(torch.randint(0, 108, (lanes,), generator=g, dtype=torch.int32), ppm(), ppm(), ppm())
    q_range = torch.where(unit() < 0.1, 0.0, unit())
    codes = torch.zeros(lanes, 4, dtype=torch.int64)
    return step, picks, Chosen(picks.action, unit(), unit(), q_range, unit(), unit() < 0.3, unit(), unit(), codes)


def passed(given, config=None):
    of = LanePass(len(given[0].raw), config or RewardConfig(), SCALE, control_state().bus)
    of(*given)
    return of


def named(values, columns):
    return dict(zip((column.name for column in columns), values.tolist(), strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_step_counts_are_those_of_a_plain_count(seed):
    step, picks, chosen = drawn(seed)
    live = [i for i in range(LANES) if step.decided[i]]
    flat = [i for i in live if step.observation[i, OFFSET["position_sign"]] == 0]
    codes = {i: (a // 27, a // 9 % 3, a // 3 % 3, a % 3) for i, a in enumerate(picks.action.tolist())}
    wanted = [len(live), len(flat), sum(codes[i][0] in (0, 2) for i in flat), sum(bool(chosen.explored[i]) for i in live)]
    wanted += [sum(codes[i][branch] == code for i in live) for branch, size in enumerate((4, 3, 3, 3)) for code in range(size)]
    assert passed((step, picks, chosen)).counts.tolist() == wanted


@pytest.mark.parametrize("seed", range(3))
def test_packed_integers_are_the_sums_of_a_plain_loop_over_lanes_that_decided(seed):
    step, picks, chosen = drawn(seed)
    of = passed((step, picks, chosen))
    found = named(pack_integers(of.totals, torch.tensor([5, 77])), INTEGERS)
    ppm = lambda value: round(float(value) * 1e6)  # noqa: E731
    wanted = dict.fromkeys((column.name for column in GATE_INPUTS + SELECTION), 0)
    for i in range(LANES):
        if not step.decided[i]:
            continue
        conviction, health = int(picks.conviction_ppm[i]), int(picks.health_ppm[i])
        wanted["policy.conviction_ppm_sum"] += conviction
        wanted["policy.health_ppm_sum"] += health
        wanted["policy.variance_scale_ppm_sum"] += int(picks.variance_scale_ppm[i])
        wanted["select.explored"] += int(chosen.explored[i])
        wanted["select.p_best_ppm_sum"] += ppm(chosen.p_best[i])
        if chosen.q_range[i] > 0:
            wanted["select.ranged"] += 1
            wanted["select.tau_over_range_ppm_sum"] += ppm(min(float(chosen.tau[i]) / float(chosen.q_range[i]), 1000))
        wanted["select.kelly_above_floor"] += ppm(step.observation[i, OFFSET["kelly_fraction"]]) > max(conviction, 500_000 + health // 2)
    assert {name: found[name] for name in wanted} == wanted
    assert found["policy.q_range_ppm_sum"] == sum(ppm(value) for value in chosen.q_range)
    assert found["policy.q_sigma_ppm_sum"] == sum(ppm(value) for value in chosen.q_sigma)
    assert [found[column.name] for column in REWARDS] == of.totals[k.TERM_SUMS : k.LOGGED].tolist() and found["learn.updates"] == 77


def test_at_full_health_no_kelly_fraction_stands_above_its_floor():
    """Lesson 54: 0 by construction."""
    step, picks, chosen = drawn(4)
    assert passed((step, picks, chosen)).totals[k.KELLY_ABOVE] > 0
    picks.health_ppm.fill_(1_000_000)
    assert passed((step, picks, chosen)).totals[k.KELLY_ABOVE] == 0


def test_values_that_are_not_finite_never_reach_an_integer_or_a_reward():
    step, picks, chosen = drawn(5)
    broken = torch.full((LANES,), torch.nan)
    chosen = chosen._replace(q_range=broken, q_sigma=broken, tau=torch.full((LANES,), torch.inf), p_best=broken)
    step.next_observation[:, OFFSET["move_over_atr"]] = torch.inf
    of = passed((step, picks, chosen), RewardConfig(micro=1, flow=1, inaction=1))
    assert of.totals[[k.RANGE_SUM, k.SIGMA_SUM, k.P_BEST_SUM, k.TAU_SUM, k.RANGED]].tolist() == [0] * 5
    assert all(torch.isfinite(part).all() for part in of.rewards)


def test_the_compiled_loop_gives_what_plain_python_gives():
    """`.py_func` of the same text, where numpy's floats round a little sooner: sums in ppm may differ by their last digits."""
    given = drawn(6, 40)
    compiled, plain = (LanePass(40, RewardConfig(micro=0.3, potential=0.2), SCALE, control_state().bus) for _ in range(2))
    plain._lanes = lambda: None
    compiled(*given)
    plain(*given)  # stages the inputs alone
    arrays = [type(part)(*(tensor.numpy() for tensor in part)) for part in (plain._given, plain.state, plain._out)]
    for lane in range(40):
        _plain(k.of_lane)(lane, arrays[0], arrays[1], plain._params.numpy(), np.float64(0.0), arrays[2])
    assert (plain._out.counted - compiled._out.counted).abs().max() <= 2
    for ours, theirs in zip((*plain.state, *plain._out), (*compiled.state, *compiled._out), strict=True):
        if ours.shape and len(ours) > 1:
            assert torch.allclose(ours.double(), theirs.double(), rtol=1e-5, atol=2e-6 if ours.is_floating_point() else 2)


def _plain(function):
    """A scalar function with everything that it calls as plain Python."""
    own = dict(vars(k))
    own |= {name: value.py_func for name, value in own.items() if hasattr(value, "py_func")}
    for name, value in list(own.items()):
        if callable(value) and getattr(value, "__module__", "") == k.__name__ and hasattr(value, "__code__"):
            own[name] = type(value)(value.__code__, own, name)
    return own[function.py_func.__name__]


def stats(**changed):
    values = {name: torch.full((4,), 0.5) for name in ("v_half", "q_range", "q_sigma")}
    values |= {name: torch.tensor(float(i)) for i, name in enumerate(LEARN_FIGURES)}
    return LearnStats(**values | changed)


def test_packed_floats_are_the_unit_the_last_updates_figures_and_the_bus_by_name():
    bus = torch.arange(127.0)
    found = named(pack_floats(torch.tensor([0.25]), bus, stats()), FLOATS)
    assert found["reward.unit"] == 0.25
    assert [found[f"learn.{name}"] for name in LEARN_FIGURES] == list(range(len(LEARN_FIGURES)))
    assert {place: found[f"signal.{SLOTS[place].name}"] for place in IN_USE} == {place: float(place) for place in IN_USE}


def test_what_is_not_finite_or_not_measured_is_packed_as_no_value():
    bus = control_state().bus
    bus[3] = torch.inf
    found = named(pack_floats(torch.ones(1), bus, stats(loss=torch.tensor(-torch.inf))), FLOATS)
    assert [name for name, value in found.items() if value != value] == ["learn.loss", "signal.health.loss_trend"]
    without = named(pack_floats(torch.ones(1), bus, None), FLOATS)
    assert all(without[column.name] != without[column.name] for column in LEARN)


def test_random_lanes_reach_every_term_and_every_count():
    """The comparisons above would be weak if some never left zero."""
    of = LanePass(LANES, RewardConfig(), SCALE, control_state().bus)
    seen = torch.zeros(k.TOTALS, dtype=torch.bool)
    for seed in range(4):
        of(*drawn(seed))
        seen |= of.totals != 0
    assert seen.all()
