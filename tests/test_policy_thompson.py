"""Does sampling find an edge that argmax never tries? The seeds' phase 0 (K12: 0.A-0.E; T1-T4, T8, T9, T52), on the selection that trains.

All arms live on the direction branch. What must not play is sure of the support's lowest value.
"""

import math
import time

import numpy as np
import pytest
import torch

from lob.actions import Direction
from policy.controls import select_controls
from policy.distributions import Atoms
from tests.select_cases import heads_with_directions, picked, set_direction, shares

SHORT, HOLD, LONG, FLAT = map(int, Direction)
BANDIT = torch.tensor([-0.02, -0.01, 0.0, 0.01, 0.02])
P_LONG = torch.tensor([0.1, 0.2, 0.4, 0.2, 0.1])
EDGE = torch.tensor([0.0, 0.0, 0.5, 0.5, 0.0])  # a value of +0.005, projected onto the atoms
PULLS, RATE, SEEDS = 100, 0.05, 500


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Processor time is measured here, and a second thread of torch's would wait for its share by spinning."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def two_arms(lanes: int, p_long: torch.Tensor):
    """Hold is sure of 0 (and comes before long, so that a tie keeps it), long has the atoms given; IQN says 0 of both."""
    heads = heads_with_directions([-0.02, 0.0, 0.0, -0.02], lanes, BANDIT)
    set_direction(heads, LONG, p_long, torch.zeros(5))
    return heads


def play(selector: str) -> torch.Tensor:
    """float32[SEEDS]: what each of as many learners thinks that long is worth after its pulls. Its true worth is +0.005, at the start 0."""
    p_long = P_LONG.expand(SEEDS, 5).clone()
    for step in range(PULLS):
        pulled = picked(two_arms(SEEDS, p_long), selector, BANDIT, seed=1, step=step).codes[:, 0] == LONG
        p_long = torch.where(pulled.unsqueeze(1), (1 - RATE) * p_long + RATE * EDGE, p_long)
    return (p_long * BANDIT).sum(dim=1)


def gaussian_atoms(mean: float, sigma: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(support, probabilities, five quantiles) of a normal distribution, from the standard library's own inverse."""
    from statistics import NormalDist

    normal = NormalDist(mean, sigma)
    support = torch.linspace(-0.25, 0.25, 51)
    edges = [-math.inf, *((support[1:] + support[:-1]) / 2).tolist(), math.inf]
    below = [0.0 if e == -math.inf else 1.0 if e == math.inf else normal.cdf(e) for e in edges]
    quantiles = torch.tensor([normal.inv_cdf(fraction) for fraction in (0.1, 0.3, 0.5, 0.7, 0.9)])
    return support, torch.tensor(np.diff(below)), quantiles


def biased(lanes: int, sigma: float):
    """Hold and flat are sure of 0; long and short are spread and on average a little below."""
    support, probabilities, quantiles = gaussian_atoms(-0.005, sigma)
    heads = heads_with_directions([0.0, 0.0, 0.0, 0.0], lanes, support)
    for direction in (SHORT, LONG):
        set_direction(heads, direction, probabilities, quantiles)
    return heads, support


def test_0a_a_mean_alone_never_trades_and_sampling_does():
    """T8: argmax < Boltzmann < Thompson in the share of long; argmax's is zero, Boltzmann's 1 / (2 + 2e) whatever the spread."""
    heads, support = biased(10_000, 0.05)
    of = {selector: shares(picked(heads, selector, support, controls=sharp()))[LONG] for selector in ("greedy", "boltzmann", "thompson")}
    assert of["greedy"] == 0
    assert of["boltzmann"] == pytest.approx(1 / (2 + 2 * math.e), abs=0.012)
    assert of["thompson"] > 0.25 > of["boltzmann"] > of["greedy"]


def sharp():
    """A floor below the values' range of 0.005: the temperature is the range."""
    return select_controls()._replace(tau_floor=torch.full((4,), 1e-4))


@pytest.mark.parametrize(("arm", "expected"), [(SHORT, 0.9), (FLAT, 0.2)])
def test_0b_the_sample_is_the_inverse_cdf_and_ties_go_to_the_lowest_code(arm, expected):
    """T4: the arm draws -1, 0, +1 with .1 .7 .2 against sure zeros. First in order it wins its ties, last it loses them."""
    support = torch.tensor([-1.0, 0.0, 1.0])
    heads = heads_with_directions([0.0] * 4, 100_000, support)
    set_direction(heads, arm, [0.1, 0.7, 0.2], torch.zeros(5))
    assert abs(shares(picked(heads, "thompson", support, seed=3))[arm] - expected) < 0.004


def test_0c_two_equal_distributions_of_iqn_are_picked_equally():
    """T52."""
    support = torch.tensor([-9.0, 0.0, 9.0])
    heads = heads_with_directions([-9.0, 0.0, 0.0, -9.0], 100_000, support)
    for direction in (HOLD, LONG):
        heads.quantiles[:, direction] = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0])
    found = shares(picked(heads, "thompson", support, seed=4))
    # Draws beyond the outermost quantiles are equal with probability 2 * .1^2, and go to hold: half of that is its lead.
    assert found[[SHORT, FLAT]].sum() == 0
    assert abs(found[HOLD] - 0.51) < 0.005 and abs(found[LONG] - 0.49) < 0.005


def test_0d_thompson_reverses_what_argmax_has_settled():
    """T9: long and short a third each, though their mean is below the others'."""
    heads, support = biased(20_000, 0.05)
    assert shares(picked(heads, "greedy", support)).tolist() == [0, 1, 0, 0]
    found = shares(picked(heads, "thompson", support, seed=5))
    assert abs(found[LONG] - 0.35) < 0.02 and abs(found[SHORT] - 0.35) < 0.02


def test_0e_t1_an_argmax_learner_never_finds_the_edge():
    found = play("greedy")
    assert (found == (P_LONG * BANDIT).sum()).all()
    assert float(found.abs().max()) <= 0.001


def test_0e_t2_gate_a_thompson_learner_finds_the_edge():
    """A gate, no report (lesson 50): if this fails, sampling does not discover edges here and nothing may be built on it."""
    found = play("thompson")
    assert float(found.min()) > 0  # every one of the learners; flat's worth is 0
    assert float(found.mean()) == pytest.approx(0.0043, abs=0.0002)


def test_0e_t3_the_first_sample_of_long_is_positive_three_times_in_ten():
    found = shares(picked(two_arms(100_000, P_LONG), "thompson", BANDIT, seed=6))[LONG]
    assert abs(found - 0.30) < 0.005


def test_a_draw_at_a_boundary_meets_the_atom_after_it_and_one_without_probability_never():
    atoms = Atoms(torch.tensor([0.0, 0.5, 0.5, 0.0]).expand(4, 4), torch.tensor([10.0, 20.0, 30.0, 40.0]))
    assert atoms.sample(torch.tensor([0.0, 0.25, 0.5, 1 - 2.0**-24])).tolist() == [20, 20, 30, 30]


def test_under_the_contrarian_sign_the_sample_is_negated():
    """E21. An arm of -1, 0, +2 with .2 .5 .3 against zeros is best when it draws -1, not when it draws +2."""
    support = torch.tensor([-1.0, 0.0, 1.0, 2.0])
    heads = heads_with_directions([0.0] * 4, 50_000, support)
    set_direction(heads, FLAT, [0.2, 0.5, 0.0, 0.3], torch.zeros(5))
    for sign, expected in ((1.0, 0.3), (-1.0, 0.2)):
        controls = select_controls()._replace(contrarian=torch.tensor(sign))
        assert abs(shares(picked(heads, "thompson", support, controls=controls))[FLAT] - expected) < 0.01


def test_where_every_distribution_has_collapsed_only_epsilon_still_tries_the_rest():
    """Why epsilon acts on the direction under Thompson too: samples of what is sure are all the same."""
    support = torch.tensor([-1.0, 0.0, 1.0])
    heads = heads_with_directions([0.0, 0.0, 1.0, 0.0], 10_000, support)
    assert shares(picked(heads, "thompson", support)).tolist() == [0, 0, 1, 0]
    exploring = picked(heads, "thompson", support, explore=True, controls=select_controls(epsilon=0.4))
    assert shares(exploring) == pytest.approx([0.1, 0.1, 0.7, 0.1], abs=0.015)


def test_thompson_samples_the_direction_alone():
    """E20: on the magnitude, whose larger size has the larger spread, it would saturate; there the draw is Boltzmann's."""
    support, probabilities, quantiles = gaussian_atoms(-0.005, 0.05)
    heads = heads_with_directions([0.0] * 4, 20_000, support)
    for choice in range(4, 13):
        set_direction(heads, choice, probabilities, quantiles)
    thompson, boltzmann = (picked(heads, selector, support, seed=7) for selector in ("thompson", "boltzmann"))
    assert torch.equal(thompson.codes[:, 1:], boltzmann.codes[:, 1:])


def test_p_best_of_thompson_estimates_how_often_it_picks_the_best_mean():
    heads, support = biased(20_000, 0.05)
    chosen = picked(heads, "thompson", support, seed=8)
    assert set(chosen.p_best.tolist()) == {0.0, 1.0}
    assert float(chosen.p_best.mean()) == pytest.approx(shares(chosen)[HOLD])


def test_phase_0_takes_less_than_five_seconds_of_processor_time():
    """T7."""
    begun = time.process_time()
    test_0a_a_mean_alone_never_trades_and_sampling_does()
    test_0b_the_sample_is_the_inverse_cdf_and_ties_go_to_the_lowest_code(SHORT, 0.9)
    test_0c_two_equal_distributions_of_iqn_are_picked_equally()
    test_0d_thompson_reverses_what_argmax_has_settled()
    test_0e_t1_an_argmax_learner_never_finds_the_edge()
    test_0e_t2_gate_a_thompson_learner_finds_the_edge()
    test_0e_t3_the_first_sample_of_long_is_positive_three_times_in_ten()
    assert time.process_time() - begun < 5
