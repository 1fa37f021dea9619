"""Laws of the value distributions: mean, deviation and draw of both heads against closed forms, numpy and plain Python."""

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch

from policy.distributions import Atoms, Quantiles, blend, distributions
from policy.heads import BRANCH_FIRST, BRANCH_SIZES, BRANCHES, CHOICES, HeadOutput, taus

SUPPORT = torch.linspace(-10, 10, 51)


def logits(*shape: int, scale: float = 3.0, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, 51, generator=torch.Generator().manual_seed(seed)) * scale


def atoms(raw: torch.Tensor) -> Atoms:
    return Atoms(torch.softmax(raw, -1), SUPPORT)


def normal_quantiles(count: int, mean: float = 0.0, sigma: float = 1.0) -> torch.Tensor:
    return torch.tensor([NormalDist(mean, sigma).inv_cdf((2 * i + 1) / (2 * count)) for i in range(count)])


def test_the_choices_lie_side_by_side_in_the_order_of_the_action_code():
    assert list(BRANCHES) == ["direction", "magnitude", "order", "urgency"]
    assert BRANCH_SIZES == (4, 3, 3, 3) and BRANCH_FIRST == (0, 4, 7, 10) and CHOICES == 13
    assert 4 * 3 * 3 * 3 == 108


def test_five_fractions_are_the_midpoints_of_equal_shares():
    assert taus(5).tolist() == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9])


def test_c51_mean_and_sigma_are_the_moments_of_its_probabilities():
    raw = logits(6, 13)
    p = np.exp(raw.double().numpy())
    p /= p.sum(-1, keepdims=True)
    z = SUPPORT.double().numpy()
    mean = p @ z
    assert np.abs(atoms(raw).mean().numpy() - mean).max() < 1e-5
    assert np.abs(atoms(raw).sigma().numpy() - np.sqrt(p @ z**2 - mean**2)).max() < 1e-4


def test_c51_sigma_of_a_sure_thing_is_zero_and_of_a_coin_half_its_distance():
    sure, coin = torch.full((51,), -1e9), torch.full((51,), -1e9)
    sure[40], coin[5], coin[25] = 0.0, 0.0, 0.0
    assert atoms(sure).sigma() == 0
    assert float(atoms(coin).sigma()) == pytest.approx(float(SUPPORT[25] - SUPPORT[5]) / 2)


def test_a_c51_draw_is_the_first_atom_whose_cumulative_probability_exceeds_the_uniform():
    raw, uniform = logits(200, scale=1.0), torch.rand(200, generator=torch.Generator().manual_seed(2))
    drawn = atoms(raw).sample(uniform)
    for row, u, found in zip(torch.softmax(raw.double(), -1).tolist(), uniform.tolist(), drawn.tolist(), strict=True):
        atom = 0
        while sum(row[: atom + 1]) <= u:
            atom += 1
        assert found == SUPPORT[atom]


def test_c51_draws_at_the_ends_of_the_unit_interval_stay_on_atoms_that_have_probability():
    two = torch.full((2, 51), -1e9)
    two[:, 7], two[:, 30] = 0.0, 0.0
    assert atoms(two).sample(torch.tensor([0.0, 1 - 2**-24])).tolist() == [SUPPORT[7], SUPPORT[30]]
    spread = torch.zeros(1, 51)  # 51 shares of 1/51 may add up to less than the greatest uniform
    assert atoms(spread).sample(torch.tensor([1 - 2**-24])).item() == SUPPORT[50]


def test_c51_draws_have_the_frequencies_of_the_probabilities():
    p = torch.tensor([0.1, 0.2, 0.4, 0.2, 0.1])
    uniform = (torch.arange(100_000) + 0.5) / 100_000
    drawn = Atoms(p.expand(100_000, 5), torch.arange(5.0)).sample(uniform)
    assert [round(float((drawn == k).float().mean()), 3) for k in range(5)] == [0.1, 0.2, 0.4, 0.2, 0.1]


@pytest.mark.parametrize(("mean", "sigma"), [(0.0, 1.0), (3.0, 0.05)])
def test_iqn_sigma_of_a_normals_quantiles_is_its_deviation_within_a_hundredth(mean, sigma):
    assert float(Quantiles(normal_quantiles(50, mean, sigma)).sigma()) == pytest.approx(sigma, rel=0.01)


def test_iqn_sigma_of_five_quantiles_is_what_linear_interpolation_of_the_quartiles_gives():
    q = normal_quantiles(5)
    lower, upper = np.interp([0.25, 0.75], taus(5).numpy(), q.numpy())
    assert float(Quantiles(q).sigma()) == pytest.approx((upper - lower) / 1.349, rel=1e-6)
    assert float(Quantiles(q).sigma()) == pytest.approx(1.058, abs=0.001)


def test_iqn_sigma_is_never_negative_though_quantiles_cross():
    assert float(Quantiles(torch.tensor([2.0, 1.0, 0.0, -1.0, -2.0])).sigma()) > 0
    assert float(Quantiles(torch.tensor([4.0])).sigma()) == 0


def test_iqn_mean_is_the_mean_of_its_quantiles():
    assert float(Quantiles(torch.tensor([-1.0, 0.0, 0.5, 1.0, 7.0])).mean()) == pytest.approx(1.5)


@pytest.mark.parametrize("count", [1, 2, 5, 32])
def test_an_iqn_draw_is_numpys_linear_interpolation_over_the_fractions(count):
    q = torch.randn(500, count, generator=torch.Generator().manual_seed(3)).sort(-1).values
    uniform = torch.rand(500, generator=torch.Generator().manual_seed(4))
    uniform[:2] = torch.tensor([0.0, 1 - 2**-24])
    expected = [np.interp(u, taus(count).numpy(), row.numpy()) for u, row in zip(uniform.tolist(), q, strict=True)]
    assert np.abs(Quantiles(q).sample(uniform).numpy() - expected).max() < 1e-5


def test_of_two_equal_choices_each_wins_half_of_the_independent_iqn_draws():
    generator = torch.Generator().manual_seed(5)
    q = normal_quantiles(5).expand(2, 40_000, 5)
    left, right = Quantiles(q).sample(torch.rand(2, 40_000, generator=generator))
    wins = float((left > right).float().mean() + (left == right).float().mean() / 2)
    assert abs(wins - 0.5) < 4 * math.sqrt(0.25 / 40_000)


def test_a_choices_value_is_the_mean_of_both_heads_expectations():
    raw = logits(3, 13)
    quantiles = torch.randn(3, 13, 5, generator=torch.Generator().manual_seed(6))
    c51, iqn = distributions(HeadOutput(raw, quantiles), SUPPORT)
    p = np.exp(raw.double().numpy())
    expected = (p @ np.linspace(-10, 10, 51) / p.sum(-1) + quantiles.double().numpy().mean(-1)) / 2
    assert np.abs(blend(c51.mean(), iqn.mean()).numpy() - expected).max() < 1e-5


def test_what_a_row_says_does_not_depend_on_the_rows_beside_it():
    raw, quantiles = logits(64, 13), torch.randn(64, 13, 5, generator=torch.Generator().manual_seed(7))
    uniform = torch.rand(64, 13, generator=torch.Generator().manual_seed(8))
    for of in (
        lambda n: atoms(raw[:n]).mean(),
        lambda n: atoms(raw[:n]).sigma(),
        lambda n: atoms(raw[:n]).sample(uniform[:n]),
        lambda n: Quantiles(quantiles[:n]).mean(),
        lambda n: Quantiles(quantiles[:n]).sigma(),
        lambda n: Quantiles(quantiles[:n]).sample(uniform[:n]),
    ):
        assert torch.equal(of(64)[:1], of(1)) and torch.equal(of(64)[:7], of(7))
