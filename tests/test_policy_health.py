"""Learning health, the controls it drives, and that none of them can lock itself shut."""

import itertools
import math
import random

import pytest
import torch
from pydantic import ValidationError

from policy.bus import controls_of, observe_labels
from policy.explore import SelectConfig, passive_pressure
from policy.health import ControlConfig, Controllers, LearnStats, responses, spectral_gap
from policy.health_kernels import ATTEMPTS, COUNTS, DECIDED, EXPLORED, FLAT_LANES, PARTS
from policy.signals import BRANCH_CHOICES, COMPONENTS, IN_USE, INDEX, SLOTS

DRIVEN = ("lr", "gamma", "polyak", "sarsa_ratio", "balance", "beta", "share_cql", "share_aux", "iqn_ratio", "share_c51", "share_iqn")


def made(config, **select):
    """(the state, the controllers) of a run that has measured nothing."""
    controls = Controllers(config, SelectConfig(**select))
    return controls.state, controls


def shut(config):
    """The same with every slot at 0: every component and every control is closed."""
    state, controls = made(config)
    state.bus.zero_()
    return state, controls


def stats(**changed):
    """Ordinary figures of an update."""
    branches = torch.full((4,), 0.5)
    values = {"v_half": torch.full((4,), 10.0), "q_range": branches, "q_sigma": branches, "td_abs": 0.4, "q_dir_abs": 0.5}
    values |= {"loss": 2.0, "loss_c51": 1.5, "loss_iqn": 0.4, "loss_cql": 0.3, "loss_aux": 0.2, "loss_balance": 1.0, "grad_norm": 1.0}
    values |= {"grad_c51": 0.6, "grad_iqn": 0.5, "grad_cql": 0.1, "grad_aux": 0.1}
    values |= {"gate_mean": torch.full((8,), 1 / 8), "gate_entropy": math.log(8)}
    values |= changed
    return LearnStats(**{name: value if value is None or torch.is_tensor(value) else torch.tensor(value) for name, value in values.items()})


def counts(decided=100, flat=50, attempts=25, explored=10, choices=None):
    out = torch.zeros(COUNTS, dtype=torch.int64)
    out[DECIDED], out[FLAT_LANES], out[ATTEMPTS], out[EXPLORED] = decided, flat, attempts, explored
    out[4:] = torch.tensor(choices or [25, 25, 25, 25, *[33, 33, 34] * 3])
    return out


def at(state, name):
    return state.bus[INDEX[name]].item()


def play(controls, updates, given=None, seen=None):
    for _ in range(updates):
        controls.observe_step(seen if seen is not None else counts())
        controls.observe_update(given or stats())
        controls.update()


def test_there_are_seven_components_and_their_weights_sum_to_one():
    assert len(COMPONENTS) == 7 and tuple(PARTS) == COMPONENTS
    assert sum(part.percent for part in PARTS.values()) == 100 and all(part.percent > 0 and part.reason for part in PARTS.values())


def test_health_is_the_weighted_mean_of_its_components_in_the_slots_and_in_ppm():
    state, controls = made(ControlConfig())
    play(controls, 5)
    wanted = sum(PARTS[name].percent / 100 * at(state, f"health.{name}") for name in COMPONENTS)
    assert at(state, "learning_health") == pytest.approx(wanted, abs=1e-6)
    assert controls.health_ppm.dtype == torch.int32
    assert controls.health_ppm.item() == round(at(state, "learning_health") * 1e6)


def test_components_follow_their_formulas():
    """In plain Python, from the figures of one update after a reset."""
    state, controls = made(ControlConfig())
    uses = [0.3, 0.3, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05]
    given = stats(
        q_range=torch.tensor([0.2, 1.0, 1.0, 1.0]), q_dir_abs=0.6, q_sigma=torch.tensor([0.1, 0.2, 0.3, 0.4]), td_abs=0.5,
        gate_mean=torch.tensor(uses),
    )  # fmt: skip
    controls.observe_update(given)
    controls.observe_update(given._replace(grad_norm=torch.tensor(3.0), loss=torch.tensor(4.0)))
    controls.observe_step(counts(choices=[70, 10, 10, 10, *[33, 33, 34] * 3]))
    state.bus[INDEX["spectral_gap"]] = 0.9
    controls.update()
    entropy = lambda shares: -sum(p * math.log(p) for p in shares)  # noqa: E731
    wanted = {
        "q_gap": 0.2 / (0.2 + 0.6),
        "grad_stability": 1 / (1 + (math.log(3) / 2) ** 2),
        "loss_trend": 1.0,
        "td_calibration": 0.25 / 0.5,
        "entropy": entropy([0.7, 0.1, 0.1, 0.1]) / math.log(4),
        "expert_use": (math.exp(entropy(uses)) - 1) / 7,
        "spectral_gap_norm": 0.1,
    }
    found = {name: at(state, f"health.{name}") for name in COMPONENTS}
    assert found == pytest.approx(wanted, rel=1e-5)


def test_before_anything_is_learned_only_what_selection_and_the_gate_show_counts_as_well():
    state, controls = made(ControlConfig())
    controls.update()
    well = [name for name in COMPONENTS if at(state, f"health.{name}") > 0]
    assert well == ["entropy", "expert_use", "spectral_gap_norm"] and at(state, "learning_health") == pytest.approx(0.3)


def test_a_loss_that_rises_above_its_own_past_lowers_its_component_and_one_that_falls_does_not():
    for factor, healthy in ((1.02, False), (0.98, True)):
        state, controls = made(ControlConfig())
        loss = 1.0
        for _ in range(300):
            controls.observe_update(stats(loss=loss))
            loss *= factor
        controls.update()
        assert (at(state, "health.loss_trend") == 1.0) == healthy
        assert healthy or at(state, "health.loss_trend") < 0.5


@pytest.mark.parametrize("value", [0.0, -1.0, 1e-38, 1e30, 3e38, -3e38])
def test_health_is_a_number_within_zero_and_one_whatever_the_bus_holds(value):
    draw = random.Random(7)
    for _ in range(20):
        state, controls = made(ControlConfig())
        state.bus.copy_(torch.tensor([draw.choice([value, SLOTS[i].reset, 1.0]) for i in range(127)]))
        controls.update()
        parts = [at(state, f"health.{name}") for name in COMPONENTS]
        assert all(0 <= part <= 1 for part in [*parts, at(state, "learning_health")])
        assert 0 <= controls.health_ppm.item() <= 1_000_000


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("field", LearnStats._fields)
def test_a_figure_that_is_not_finite_leaves_its_slots_as_they_were(field, bad):
    state, controls = made(ControlConfig())
    play(controls, 3)
    before = state.bus.clone()
    given = stats()
    play(controls, 1, given._replace(**{field: torch.full_like(getattr(given, field), bad)}))
    assert torch.isfinite(state.bus).all()
    kept = [INDEX[name] for name in INDEX if name == field or name == field.replace("_", ".", 1) or name.startswith(f"{field}.")]
    assert all(state.bus[place] == before[place] for place in kept)


def test_an_empty_step_leaves_the_shares_as_they_were():
    state, controls = made(ControlConfig())
    play(controls, 3)
    before = state.bus.clone()
    controls.observe_step(torch.zeros(COUNTS, dtype=torch.int64))
    assert torch.equal(state.bus, before) and state.clock.tolist() == [4, 3]


def test_an_amplitude_of_zero_holds_a_control_at_its_base_whatever_health_says():
    still = {name: 0.0 for name in ControlConfig.model_fields if name.endswith("_amplitude")}
    config = ControlConfig(**still)
    base = {name: getattr(config, name) for name in DRIVEN if name in ControlConfig.model_fields}
    state, controls = made(config)
    for given in (stats(), stats(q_range=torch.zeros(4), loss=1e9, td_abs=1e9)):
        play(controls, 5, given)
        assert {name: at(state, name) for name in base} == pytest.approx(base)


def bands(config):
    """The lowest and highest value that each driven control can take, over every corner of the components."""
    found = {}
    for row in responses(config):
        ends = row.offset, row.offset + row.slope
        found[row.control] = min(ends), max(ends)
    return found


def test_each_control_moves_within_its_stated_band_and_reaches_both_ends():
    config = ControlConfig(gamma_amplitude=0.005)
    wanted = {
        "lr": (1.5e-4, 3e-4), "gamma": (0.985, 0.995), "polyak": (0.005, 0.01), "sarsa_ratio": (0.05, 0.1), "balance": (0.01, 0.02),
        "beta": (0.4, 1.0), "share_cql": (0.01, 0.02), "share_aux": (0.025, 0.05), "iqn_ratio": (0.45, 0.6),
    }  # fmt: skip
    found = bands(config)
    assert set(found) == set(wanted)
    for name, band in wanted.items():
        assert found[name] == pytest.approx(band), name
    assert config.gamma_amplitude and ControlConfig().gamma_amplitude == 0, "the discount stands still unless asked to move"


def test_the_four_gradient_shares_sum_to_one_and_iqn_has_six_tenths_of_what_it_splits_with_c51():
    """F8, at full stability."""
    for given in (stats(q_range=torch.zeros(4), grad_norm=0.0), stats()):
        state, controls = made(ControlConfig())
        play(controls, 4, given)
        shares = [at(state, f"share_{name}") for name in ("c51", "iqn", "cql", "aux")]
        assert sum(shares) == pytest.approx(1.0, abs=1e-6) and min(shares) > 0
    assert at(state, "share_iqn") / (at(state, "share_iqn") + at(state, "share_c51")) == pytest.approx(0.6)


@pytest.mark.parametrize(("rate", "target", "epsilon"), [(0.1, 0.1, 0.02), (0.2, 0.1, 0.02), (0.0, 0.1, 0.5), (0.05, 0.1, 0.25)])
def test_the_direction_floor_follows_the_attempt_rate(rate, target, epsilon):
    """T17."""
    state, controls = made(ControlConfig(), epsilon_steps=1)
    state.clock[0] = 10
    state.bus[INDEX["trade_attempt_rate_ema"]], state.bus[INDEX["trade_target_rate"]] = rate, target
    controls.update()
    assert at(state, "epsilon.direction") == pytest.approx(epsilon)
    for branch in ("magnitude", "order", "urgency"):
        assert at(state, f"epsilon.{branch}") == pytest.approx(0.02), "only the direction has the attraction of flat"


@pytest.mark.parametrize(("rate", "pressure"), [(0.0, 1.0), (0.05, 0.0), (0.00005, 0.5)])
def test_before_the_target_is_frozen_the_pressure_is_one_only_while_nothing_is_tried(rate, pressure):
    """T18: what the formula gives, and not what the seed's prose says of it."""
    assert passive_pressure(rate, 0.0) == pytest.approx(pressure)


def test_the_target_rate_is_the_measured_rate_at_the_stated_step_and_stays():
    state, controls = made(ControlConfig(target_step=5))
    for step in range(1, 20):
        controls.observe_step(counts(attempts=25 if step <= 5 else 0))
        frozen = at(state, "trade_target_rate")
        assert frozen == (0.0 if step < 5 else pytest.approx(0.5))
    assert at(state, "trade_attempt_rate_ema") < 0.25


def test_exploration_falls_along_half_a_cosine_to_its_floor_and_never_below():
    state, controls = made(ControlConfig(), epsilon_start=0.5, epsilon_steps=100)
    for step in (0, 1, 50, 99, 100, 1_000_000):
        state.clock[0] = step
        controls.update()
        wanted = 0.02 + 0.48 * 0.5 * (1 + math.cos(math.pi * min(step / 100, 1)))
        assert at(state, "epsilon.order") == pytest.approx(wanted, abs=1e-6)


def test_the_directions_temperature_floor_and_convictions_scale_are_the_mean_absolute_value():
    """E8, C11; the other branches keep the plain floor."""
    state, controls = made(ControlConfig())
    play(controls, 1, stats(q_dir_abs=0.7))
    select = controls_of(state.bus)[0]
    assert select.tau_floor.tolist() == pytest.approx([0.7, 0.01, 0.01, 0.01]) and select.conviction_scale.item() == pytest.approx(0.7)
    play(controls, 500, stats(q_dir_abs=0.0))
    assert select.tau_floor.tolist() == pytest.approx([0.01] * 4) and select.conviction_scale.item() == pytest.approx(0.01)


def test_the_count_bonus_falls_with_the_root_of_all_picks_so_far_and_is_off_at_a_coefficient_of_zero():
    for coefficient in (0.0, 0.1):
        state, controls = made(ControlConfig(), bonus=coefficient)
        play(controls, 4, seen=counts(choices=[97, 1, 1, 1, *[33, 33, 34] * 3]))
        wanted = [coefficient / math.sqrt(1 + 4 * picks) for picks in [97, 1, 1, 1, *[33, 33, 34] * 3]]
        assert [at(state, f"bonus.{name}") for name in BRANCH_CHOICES] == pytest.approx(wanted)


def test_health_does_not_change_when_rewards_and_values_are_ten_times_larger():
    """A unit is no health (lesson 16)."""
    found = []
    for scale in (1.0, 10.0):
        state, controls = made(ControlConfig())
        small = stats()
        bigger = {
            name: getattr(small, name) * scale for name in ("q_range", "q_sigma", "td_abs", "q_dir_abs", "v_half", "loss", "grad_norm")
        }
        play(controls, 10, small._replace(**bigger))
        found.append(at(state, "learning_health"))
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_expert_use_is_the_batchs_mean_gate_and_sums_to_one():
    """T39."""
    state, controls = made(ControlConfig())
    draw = torch.Generator().manual_seed(3)
    for _ in range(50):
        gate = torch.softmax(torch.randn(32, 8, generator=draw), dim=1)
        entropy = -(gate * gate.log()).sum(dim=1).mean()
        controls.observe_update(stats(gate_mean=gate.mean(dim=0), gate_entropy=entropy))
        assert sum(at(state, f"expert_use.{i}") for i in range(8)) == pytest.approx(1.0, abs=1e-5)
    assert 0 < at(state, "gate_entropy") < math.log(8)


def test_a_network_without_experts_leaves_their_slots_uniform():
    state, controls = made(ControlConfig())
    play(controls, 3, stats(gate_mean=None, gate_entropy=None))
    assert [at(state, f"expert_use.{i}") for i in range(8)] == [0.125] * 8 and at(state, "health.expert_use") == pytest.approx(1.0)


# No deadlock: lessons 11 to 13, 40.


def test_from_every_gate_shut_ordinary_figures_open_every_control_and_component_within_ten_updates():
    state, controls = shut(ControlConfig())
    play(controls, 10)
    for name in (*DRIVEN, *(f"health.{name}" for name in COMPONENTS), "learning_health", "epsilon.direction", "tau_floor.direction"):
        assert at(state, name) > 0, name
    assert controls.health_ppm.item() > 0


def test_after_the_worst_figures_that_a_run_can_give_ordinary_ones_bring_health_back():
    state, controls = made(ControlConfig())
    worst = stats(
        q_range=torch.zeros(4), q_sigma=torch.zeros(4), td_abs=1e4, loss=1e4, grad_norm=1e5, gate_mean=torch.eye(8)[0], gate_entropy=0.0,
    )  # fmt: skip
    play(controls, 200)
    healthy = at(state, "learning_health")
    controls.observe_features(torch.ones(16, 8))
    play(controls, 200, worst, counts(attempts=0, choices=[0, 0, 0, 100, *[100, 0, 0] * 3]))
    assert at(state, "learning_health") < 0.25
    assert all(at(state, name) > 0 for name in DRIVEN), "a control is never shut, however ill"
    controls.observe_features(torch.eye(16))
    play(controls, 1_500)
    assert at(state, "learning_health") > 0.9 * healthy


@pytest.mark.parametrize("corner", list(itertools.product((0.0, 1.0), repeat=2)), ids=str)
def test_no_response_reaches_zero_at_any_corner_of_what_drives_it(corner):
    """The static check: a control whose lowest value is 0 could shut what its own drive depends on."""
    amplitude, other = (0.999 * part for part in corner)
    config = ControlConfig(
        lr_amplitude=amplitude, polyak_amplitude=amplitude, sarsa_amplitude=other, cql_amplitude=amplitude, aux_amplitude=other,
        iqn_amplitude=amplitude, balance_amplitude=other, beta_amplitude=amplitude,
    )  # fmt: skip
    assert all(low > 0 for low, _ in bands(config).values())


@pytest.mark.parametrize("name", ["lr", "polyak", "sarsa", "cql", "aux", "iqn"])
def test_an_amplitude_that_could_shut_a_control_is_refused(name):
    with pytest.raises(ValidationError, match="less than 1"):
        ControlConfig(**{f"{name}_amplitude": 1.0})


def opens(gate, answer, updates=500):
    """Whether a gate that starts shut opens: `gate(x)` is its opening, `answer(g, x)` what the world shows next at that opening."""
    opening, seen = 0.0, 0.0
    for _ in range(updates):
        seen = answer(opening, seen)
        opening = gate(seen)
    return opening > 0


def test_the_iqn_share_opens_where_the_seeds_readiness_gate_stayed_shut():
    """Lesson 13: the progress that readiness waited for needed the gradient that readiness held back."""
    learns = lambda opening, progress: min(1.0, progress + 0.02 * opening)  # noqa: E731
    assert not opens(lambda progress: min(max(progress, 0), 1) * 0.6, learns)

    state, controls = shut(ControlConfig())

    def share(progress):
        given = stats(loss=2.0 - progress, q_range=torch.full((4,), progress), grad_iqn=progress)
        play(controls, 1, given, counts(attempts=0))
        return at(state, "share_iqn")

    assert opens(share, learns)


def test_a_policy_that_never_trades_is_made_to_try_and_its_rate_recovers():
    """Lesson 19: at a rate of 0 half of all directions are drawn, of which half are long or short."""
    state, controls = made(ControlConfig(target_step=50), epsilon_steps=1)
    for _ in range(50):
        play(controls, 1)
    rates = []
    for _ in range(600):
        tried = round(1_000 * at(state, "epsilon.direction") * 0.5)
        play(controls, 1, seen=counts(decided=1_000, flat=1_000, attempts=tried, choices=[250] * 4 + [333, 333, 334] * 3))
        rates.append(at(state, "trade_attempt_rate_ema"))
    assert rates[-1] == pytest.approx(0.5 / 3, abs=0.02), "where 0.25 (1 - rate / 0.5) meets the rate"


def test_controllers_fed_the_same_figures_hold_the_same_bytes_and_restored_ones_go_on_the_same():
    (one, first), (two, second) = made(ControlConfig()), made(ControlConfig())
    draw = random.Random(3)
    for i in range(40):
        given = stats(loss=draw.random(), grad_norm=draw.random(), td_abs=draw.random())
        if i == 20:
            stored = [part.clone() for part in two]
            two, second = made(ControlConfig())
            for part, value in zip(two, stored, strict=True):
                part.copy_(value)
            second.update()
        for controls in (first, second):
            play(controls, 1, given)
    assert all(a.numpy().tobytes() == b.numpy().tobytes() for a, b in zip(one, two, strict=True))
    assert torch.equal(first.health_ppm, second.health_ppm)


def test_updating_again_changes_nothing():
    """Everything derived follows from the state alone: so a restored state needs no more than an update."""
    state, controls = made(ControlConfig(), bonus=0.1)
    play(controls, 30)
    before = state.bus.clone()
    controls.update()
    assert torch.equal(state.bus, before)


def test_every_slot_in_use_is_written_by_the_controllers_or_constant_by_declaration():
    """A slot that nothing moves would be a dead signal in the log."""
    state, controls = made(ControlConfig(target_step=2), bonus=0.1)
    marked = torch.full_like(state.bus, 123.0)
    state.bus.copy_(marked)
    state.bus[INDEX["contrarian"]] = 1.0
    play(controls, 3)
    controls.observe_features(torch.eye(16))
    observe_labels(state.bus, torch.ones(4), torch.ones(4, dtype=torch.bool))
    untouched = [SLOTS[place].name for place in IN_USE if state.bus[place] == 123.0]
    assert not untouched and SLOTS[INDEX["contrarian"]].reset == 1.0


def test_a_config_that_leaves_its_bounds_is_refused_in_words():
    with pytest.raises(ValidationError, match="reaches 1; lower one of them"):
        ControlConfig(gamma=0.995, gamma_amplitude=0.006)
    with pytest.raises(ValidationError, match="leave nothing for the Bellman losses"):
        ControlConfig(share_cql=0.6, share_aux=0.5)
    with pytest.raises(ValidationError, match=r"less than or equal to 0\.1"):
        ControlConfig(sarsa_ratio=0.2)


@pytest.mark.parametrize("eigenvalues", [(4.0, 1.0), (9.0, 6.0, 1.0), (1.0, 0.0)])
def test_the_spectral_gap_is_that_of_the_covariances_eigenvalues(eigenvalues):
    draw = torch.Generator().manual_seed(1)
    basis = torch.linalg.qr(torch.randn(24, 24, generator=draw, dtype=torch.float64))[0]
    scores = torch.linalg.qr(torch.randn(400, 25, generator=draw, dtype=torch.float64))[0][:, : len(eigenvalues)]
    scores = torch.linalg.qr(scores - scores.mean(dim=0))[0]
    features = (scores * torch.tensor(eigenvalues, dtype=torch.float64).sqrt()) @ basis[: len(eigenvalues)] + 3.0
    assert spectral_gap(features.float(), rounds=40).item() == pytest.approx(1 - eigenvalues[1] / eigenvalues[0], abs=0.02)
    assert spectral_gap(features.float()).item() == pytest.approx(1 - eigenvalues[1] / eigenvalues[0], abs=0.1)


def test_features_that_do_not_vary_are_one_line_and_the_gap_is_one():
    assert spectral_gap(torch.ones(16, 8)).item() == 1.0


def test_features_of_too_few_rows_are_not_looked_at():
    state, controls = made(ControlConfig())
    controls.observe_features(torch.ones(15, 8))
    assert at(state, "spectral_gap") == 0.0
    controls.observe_features(torch.ones(16, 8))
    assert at(state, "spectral_gap") == 1.0
