"""Laws of selection: what each selector picks, how exploring changes that, and what it never changes (seed rows E1-E20, lessons 15-20)."""

import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lob.actions import decode_action
from lob.errors import BadInput
from lob.picks import Picks
from policy.controls import select_controls
from policy.distributions import distributions
from policy.heads import BRANCH_FIRST, BRANCH_SIZES, CHOICES, HeadOutput
from policy.select import boltzmann, select, to_picks
from policy.select_scalar import SELECTORS
from tests.select_cases import (
    DIRECTION,
    SUPPORT,
    assert_follows,
    heads_of,
    heads_with_directions,
    oracle_picks,
    picked,
    random_controls,
    random_heads,
    shares,
)

E = math.e
FINE = torch.linspace(-1, 1, 21)
COARSE = torch.tensor([-1.0, 0.0, 1.0])

# Q vectors over a range of 1, and the probabilities at tau = that range, by hand: exp(q) over their sum.
ONE_BEST = ((0.0, 0.5, 1.0, 0.5), (0.1425, 0.2350, 0.3875, 0.2350))
TWO_BEST = ((0.0, 1.0, 0.0, 1.0), (0.1345, 0.3655, 0.1345, 0.3655))


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("explore", [False, True])
@pytest.mark.parametrize("contrarian", [1.0, -1.0])
def test_a_pick_is_what_plain_python_makes_of_the_definitions(selector, explore, contrarian):
    heads, controls = random_heads(3, 150), random_controls(4, contrarian)
    lanes, seed, step = torch.arange(150) * 7919 % 2**32, 2**63 + 12345, 2**31 + 5
    chosen = select(heads, SUPPORT, controls, selector, explore, seed, lanes, torch.tensor([step]))
    oracle = oracle_picks(heads, SUPPORT, controls, selector, explore, seed, lanes, step)
    assert_follows(oracle, {name: value.numpy() for name, value in chosen._asdict().items()})
    assert bool(chosen.explored.any()) == explore


def test_every_action_is_a_code_and_decodes_to_its_choices():
    chosen = picked(random_heads(1, 5000, atoms=3), "boltzmann", COARSE, explore=True, controls=select_controls(epsilon=0.5))
    assert chosen.action.dtype == torch.int32
    assert [tuple(decode_action(action)) for action in chosen.action.tolist()] == [tuple(codes) for codes in chosen.codes.tolist()]
    assert chosen.codes.min() >= 0
    assert (chosen.codes.amax(dim=0) == torch.tensor(BRANCH_SIZES) - 1).all()  # E29: each direction below 4, and all are met
    assert len(set(chosen.action.tolist())) == 108


def test_heads_sure_of_long_full_join_aggressive_pick_77():
    values = torch.zeros(1, CHOICES)
    for branch, code in enumerate((2, 2, 1, 2)):
        values[0, BRANCH_FIRST[branch] + code] = 1.0
    assert picked(heads_of(values, SUPPORT), "greedy").action.tolist() == [77]
    values = torch.zeros(1, CHOICES)
    assert picked(heads_of(values, SUPPORT), "greedy").action.tolist() == [0]


@pytest.mark.parametrize("selector", ["greedy", "thompson"])
def test_of_equal_values_the_lowest_code_is_picked(selector):
    """Heads that are sure of one value for all: Thompson's samples are equal too."""
    chosen = picked(heads_with_directions([0.3, 0.3, 0.3, 0.3], 500, FINE), selector, FINE)
    assert not chosen.codes[:, 0].any()
    chosen = picked(heads_with_directions([0.1, 0.3, 0.2, 0.3], 500, FINE), selector, FINE)
    assert (chosen.codes[:, 0] == 1).all()


def chi_square(counts: np.ndarray, probabilities) -> float:
    expected = np.asarray(probabilities) / np.sum(probabilities) * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize(("values", "expected"), [ONE_BEST, TWO_BEST])
def test_eval_action_select_boltzmann_bounded(values, expected):
    """T5, both vectors, and the seed's window: in evaluation the best direction has between a quarter and six tenths."""
    exact = np.exp(values) / np.exp(values).sum()
    assert np.abs(exact - expected).max() < 1e-4
    chosen = picked(heads_with_directions(values, 10_000, FINE), "boltzmann", FINE, seed=11)
    assert chi_square(np.bincount(chosen.codes[:, 0].numpy(), minlength=4), exact) < 16.27  # 3 degrees of freedom, p = 0.001
    assert torch.allclose(chosen.p_best, torch.tensor(max(exact), dtype=torch.float32), atol=1e-6)
    assert 0.25 <= shares(chosen)[int(np.argmax(values))] <= 0.6
    assert torch.allclose(chosen.tau, torch.tensor(1.0)) and torch.allclose(chosen.q_range, torch.tensor(1.0))


finite = st.floats(-1e4, 1e4, width=32)


@given(st.lists(finite, min_size=4, max_size=4), st.floats(2.0**-10, 1e5, width=32))
def test_no_values_and_no_floor_give_a_direction_more_than_e_of_e_plus_3_or_less_than_1_of_1_plus_3e(values, floor):
    """T6, lesson 17: with tau at or above the range, `tau too low` can never be why a policy commits."""
    probabilities, tau = boltzmann(torch.tensor([values]), torch.tensor(floor))
    assert float(tau) >= (max(values) - min(values)) * (1 - 2**-23)
    assert float(probabilities.max()) <= E / (E + 3) + 1e-6 < 0.4754
    assert float(probabilities.min()) >= 1 / (1 + 3 * E) - 1e-6 > 0.1091
    assert float(probabilities.sort(descending=True).values[0, :2].sum()) <= 2 * E / (2 * E + 2) + 1e-6 < 0.7311
    assert float(probabilities.max()) >= 0.25 - 1e-6


@pytest.mark.parametrize("values", [(0.2, 0.2, 0.2, 0.2), (0.0, 0.0, 0.0, 0.0)])
def test_equal_values_are_picked_evenly(values):
    chosen = picked(heads_with_directions(values, 10_000, FINE), "boltzmann", FINE)
    assert torch.allclose(chosen.p_best, torch.tensor(0.25))
    assert chi_square(np.bincount(chosen.codes[:, 0].numpy(), minlength=4), [1, 1, 1, 1]) < 16.27


def test_the_bounds_are_reached_by_one_best_of_four():
    probabilities, _ = boltzmann(torch.tensor([[0.0, 0.0, 1.0, 0.0], [1.0, 1.0, 0.0, 1.0]]), torch.tensor(0.01))
    assert float(probabilities[0].max()) == pytest.approx(E / (E + 3), abs=1e-6)
    assert float(probabilities[1].min()) == pytest.approx(1 / (1 + 3 * E), abs=1e-6)


def test_dqn_action_collapse_fix():
    """Lesson 15: over ten thousand steps of one peaked value vector greedy picks one direction; Boltzmann at least three, in fact all."""
    heads = heads_with_directions([-0.7, -0.5, 0.7, -0.5], 10_000, FINE)
    assert len(set(picked(heads, "greedy", FINE).codes[:, 0].tolist())) == 1
    assert len(set(picked(heads, "boltzmann", FINE).codes[:, 0].tolist())) == 4


@pytest.mark.parametrize("selector", SELECTORS)
def test_values_ten_times_as_large_leave_every_pick_as_it_was(selector):
    """Lesson 16, and why PopArt's scale does not matter here: the temperature scales with the values. (16: exact in binary.)"""
    heads = random_heads(5, 400)
    ranges = distributions(heads, SUPPORT)
    least = min(float((r[:, f : f + n].amax(1) - r[:, f : f + n].amin(1)).min()) for r in [sum(d.mean() for d in ranges) / 2]
                for f, n in zip(BRANCH_FIRST, BRANCH_SIZES, strict=True))  # fmt: skip
    assert least > 0.01  # above the floor everywhere, or the floor would rightly matter
    larger = HeadOutput(heads.logits, heads.quantiles * 16)
    assert torch.equal(picked(larger, selector, SUPPORT * 16).codes, picked(heads, selector, SUPPORT).codes)
    ten = picked(HeadOutput(heads.logits, heads.quantiles * 10), selector, SUPPORT * 10)
    assert (ten.codes == picked(heads, selector, SUPPORT).codes).float().mean() > 0.999


def test_a_ten_times_higher_temperature_flattens_but_keeps_every_rank():
    """Lesson 18: no temperature cures a bias that was learned."""
    scores = torch.tensor(np.random.default_rng(0).normal(size=(200, 4)), dtype=torch.float32)
    mild, _ = boltzmann(scores, torch.tensor(10.0))
    hot, _ = boltzmann(scores, torch.tensor(100.0))
    assert torch.equal(mild.argsort(dim=1), hot.argsort(dim=1))
    assert (hot.amax(dim=1) < mild.amax(dim=1)).all()


@pytest.mark.parametrize("selector", SELECTORS)
def test_without_exploration_epsilon_and_bonus_change_nothing(selector):
    """Lesson 20: evaluation with epsilon 0.5 in the configuration is the same trace as with 0."""
    heads, quiet = random_heads(6, 600), select_controls()
    loud = quiet._replace(epsilon=torch.full((4,), 0.5), bonus=torch.linspace(0, 3, CHOICES))
    one, other = (picked(heads, selector, controls=controls) for controls in (quiet, loud))
    for name, values in one._asdict().items():
        assert torch.equal(values, getattr(other, name)), name
    assert not other.explored.any()
    # ... and exploring with nothing to explore by is no exploration.
    assert torch.equal(picked(heads, selector, explore=True, controls=quiet).action, one.action)
    assert not torch.equal(picked(heads, selector, explore=True, controls=loud).action, one.action)


def test_epsilon_is_the_share_of_uniform_choices_of_its_branch_alone():
    heads = heads_of(torch.eye(CHOICES)[0].expand(40_000, CHOICES), COARSE)  # sure of short; other branches' first choice by the tie rule
    for branch, count in enumerate(BRANCH_SIZES):
        controls = select_controls()
        controls.epsilon[branch] = 0.3
        chosen = picked(heads, "greedy", COARSE, explore=True, controls=controls, seed=branch)
        assert shares(chosen, branch) == pytest.approx([0.7 + 0.3 / count] + [0.3 / count] * (count - 1), abs=0.01)
        assert float(chosen.explored.float().mean()) == pytest.approx(0.3, abs=0.01)
        assert not chosen.codes[:, [other for other in range(4) if other != branch]].any()


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_epsilon_of_0_never_explores_and_of_1_always(epsilon):
    chosen = picked(random_heads(2, 20_000, atoms=3), "greedy", COARSE, explore=True, controls=select_controls(epsilon=epsilon))
    assert (chosen.explored == bool(epsilon)).all()


def test_the_count_bonus_lifts_what_was_rarely_picked_and_only_while_exploring():
    heads = heads_with_directions([0.0, 0.5, 0.0, 0.0], 4, FINE)
    controls = select_controls()
    controls.bonus[3] = 0.6  # flat
    assert picked(heads, "greedy", FINE, explore=True, controls=controls).codes[:, 0].tolist() == [3] * 4
    assert picked(heads, "greedy", FINE, explore=False, controls=controls).codes[:, 0].tolist() == [1] * 4


def test_the_bound_on_the_best_direction_holds_with_a_bonus():
    controls = select_controls()._replace(bonus=torch.rand(CHOICES, generator=torch.Generator().manual_seed(1)) * 100)
    chosen = picked(random_heads(8, 500), "boltzmann", explore=True, controls=controls)
    assert float(chosen.p_best.max()) <= E / (E + 3) + 1e-6 and float(chosen.p_best.min()) >= 0.25


def test_the_contrarian_sign_turns_the_directions_values_alone():
    heads = random_heads(9, 300)
    plain, turned = (picked(heads, "greedy", controls=select_controls()._replace(contrarian=torch.tensor(sign))) for sign in (1.0, -1.0))
    mean = sum(d.mean() for d in distributions(heads, SUPPORT)) / 2
    assert torch.equal(plain.codes[:, 0], mean[:, DIRECTION].argmax(dim=1))
    assert torch.equal(turned.codes[:, 0], mean[:, DIRECTION].argmin(dim=1))
    assert torch.equal(plain.codes[:, 1:], turned.codes[:, 1:])
    assert torch.equal(plain.q_range, turned.q_range)


def test_conviction_and_variance_scale_follow_their_formulas():
    heads = heads_with_directions([0.0, 0.0, 0.5, 0.1], 1, FINE)
    chosen = picked(heads, "greedy", FINE, controls=select_controls(conviction_scale=0.7))
    assert float(chosen.conviction[0]) == pytest.approx((0.5 - 0.15) / 0.7, abs=1e-6)
    assert float(chosen.variance_scale[0]) == pytest.approx(1.0) and float(chosen.q_sigma[0]) == pytest.approx(0.0, abs=1e-6)
    assert float(picked(heads, "greedy", FINE, controls=select_controls(conviction_scale=0.1)).conviction[0]) == 1.0
    assert float(picked(heads_with_directions([0.2] * 4, 1, FINE), "greedy", FINE).conviction[0]) == pytest.approx(0.0, abs=1e-7)
    # A coin between 0 and 2 has a sigma of 1 on the atoms; a quarter lies three quarters of the way from the tenth to the three tenths.
    coin = HeadOutput(torch.full((1, CHOICES, 2), 0.0), torch.tensor([0.0, 1.0, 1.0, 1.0, 2.0]).expand(1, CHOICES, 5))
    sigma = (1 + (1.25 - 0.75) / 1.349) / 2
    assert float(picked(coin, "greedy", torch.tensor([0.0, 2.0])).variance_scale[0]) == pytest.approx(1 / (1 + sigma), abs=1e-6)


@pytest.mark.parametrize("selector", SELECTORS)
def test_conviction_is_of_values_and_does_not_jitter_with_the_draws(selector):
    heads = HeadOutput(*(part[:1].expand(200, *part.shape[1:]) for part in random_heads(10, 1)))
    chosen = picked(heads, selector, explore=True, controls=select_controls(epsilon=0.3))
    assert len(set(chosen.conviction.tolist())) == 1
    assert len(set(chosen.action.tolist())) > 1


@pytest.mark.parametrize("selector", SELECTORS)
def test_a_lanes_pick_is_the_same_in_any_batch_any_order_and_again(selector):
    """Lesson 36, and what makes resuming and sharding free: nothing but the lane's own heads, id, seed and step matters, bit for bit."""
    heads, controls = random_heads(11, 257), random_controls(12)
    lanes = torch.arange(257) * 31 + 5
    whole = picked(heads, selector, explore=True, controls=controls, lanes=lanes, seed=3, step=9)
    order = torch.randperm(257, generator=torch.Generator().manual_seed(2))
    for part in (*order.split(1)[:40], *order.split(7)[:20], *order.split(128), order):
        some = picked(HeadOutput(*(h[part] for h in heads)), selector, explore=True, controls=controls, lanes=lanes[part], seed=3, step=9)
        for name, values in whole._asdict().items():
            assert torch.equal(values[part], getattr(some, name)), name


@pytest.mark.parametrize("selector", ["boltzmann", "thompson"])
def test_seed_lane_and_step_each_change_the_draws(selector):
    heads = random_heads(13, 300)
    base = picked(heads, selector)
    for other in ({"seed": 1}, {"seed": 2**32}, {"step": 1}, {"lanes": torch.arange(300) + 300}):
        assert not torch.equal(picked(heads, selector, **other).codes, base.codes), other


def test_the_draws_of_branches_are_independent():
    chosen = picked(heads_of(torch.zeros(60_000, CHOICES), COARSE), "boltzmann", COARSE, seed=21)
    table = np.bincount(chosen.action.numpy(), minlength=108)
    assert chi_square(table, np.ones(108)) < 155.6  # 107 degrees of freedom, p = 0.0015


def test_the_batched_draw_is_ten_times_as_fast_as_a_loop_over_seeds():
    """T7, in processor time."""
    heads = random_heads(14, 400)
    one = HeadOutput(*(part[:1] for part in heads))
    begun = time.process_time()
    picked(heads, "thompson")
    batched = (time.process_time() - begun) / 400
    begun = time.process_time()
    for seed in range(20):
        picked(one, "thompson", seed=seed)
    assert (time.process_time() - begun) / 20 > 10 * batched


def test_picks_are_quantised_in_one_place_and_written_into_the_buffers_given():
    chosen = picked(random_heads(15, 50), "greedy")
    chosen = chosen._replace(conviction=torch.linspace(0, 1, 50), variance_scale=torch.full((50,), 1 / 3))
    out = Picks(*(torch.full((50,), -7, dtype=torch.int32) for _ in range(4)))
    addresses = [tensor.data_ptr() for tensor in out]
    assert to_picks(chosen, torch.tensor(123_456), out) is out
    assert [tensor.data_ptr() for tensor in out] == addresses
    assert torch.equal(out.action, chosen.action)
    assert out.conviction_ppm.tolist() == [round(float(value) * 10**6) for value in chosen.conviction.double()]
    assert out.variance_scale_ppm.tolist() == [333_333] * 50
    assert out.health_ppm.tolist() == [123_456] * 50


def test_a_value_that_is_not_finite_sizes_nothing_and_stays_to_be_seen():
    heads = random_heads(16, 3)
    heads.logits[1] = torch.nan
    chosen = picked(heads, "greedy")
    out = to_picks(chosen, torch.tensor(0), Picks(*(torch.zeros(3, dtype=torch.int32) for _ in range(4))))
    assert torch.isfinite(chosen.q_range).tolist() == [True, False, True]
    assert out.conviction_ppm[1] == 0 and out.variance_scale_ppm[1] == 0
    assert (chosen.codes < torch.tensor(BRANCH_SIZES)).all() and (chosen.codes >= 0).all()


def test_heads_in_bfloat16_are_read_as_the_floats_that_they_are():
    heads = HeadOutput(*(part.bfloat16() for part in random_heads(17, 100)))
    exact = HeadOutput(*(part.float() for part in heads))
    for selector in SELECTORS:
        assert torch.equal(picked(heads, selector).action, picked(exact, selector).action)


def test_an_unknown_selector_is_refused_by_name():
    with pytest.raises(BadInput, match=r"no selector 'argmax': choose one of greedy, boltzmann, thompson"):
        picked(random_heads(1, 1), "argmax")
