"""What both value heads owe to selection (seed rows E16, E17, E28, F4; T51): mean, sigma and draws that belong together."""

from statistics import NormalDist

import numpy as np
import pytest
import torch

from policy.distributions import Atoms, Quantiles, distributions
from policy.heads import taus
from tests.select_cases import SUPPORT, random_heads

GRID = (torch.arange(20_000) + 0.5) / 20_000


def normal_quantiles(count: int) -> torch.Tensor:
    return torch.tensor([NormalDist().inv_cdf(float(fraction)) for fraction in taus(count)])


@pytest.mark.parametrize("which", [0, 1], ids=["c51", "iqn"])
def test_the_mean_of_all_draws_is_the_mean(which):
    """Over an even grid of draws, so that chance has no part."""
    heads = distributions(random_heads(1, 2), SUPPORT)[which]
    for lane, choice in ((0, 0), (1, 7), (1, 12)):
        one = type(heads)(*(part[lane, choice] if part.dim() > 1 else part for part in heads))
        repeated = type(one)(*(part.expand(len(GRID), *part.shape) if i == 0 else part for i, part in enumerate(one)))
        assert float(repeated.sample(GRID).double().mean()) == pytest.approx(float(one.mean()), abs=2e-3)


def test_sigma_of_the_quantiles_of_a_normal_distribution_is_its_own():
    """T51; five quantiles see its quartiles through chords, which lie a little further out."""
    assert float(Quantiles(normal_quantiles(101)).sigma()) == pytest.approx(1.0, abs=0.01)
    assert float(Quantiles(normal_quantiles(5) * 3 + 7).sigma()) == pytest.approx(3 * 1.058, abs=0.01)
    assert float(Quantiles(torch.full((5,), 2.5)).sigma()) == 0
    assert float(Quantiles(torch.tensor([4.0])).sample(torch.tensor(0.9))) == 4.0


def test_sigma_of_atoms_is_that_of_their_distribution_far_from_zero_too():
    rng = np.random.default_rng(0)
    for offset in (0.0, 1000.0):
        values, chances = np.arange(51) * 0.25 + offset, rng.dirichlet(np.ones(51))
        expected = np.sqrt(np.cov(values, aweights=chances, ddof=0))
        assert float(Atoms(torch.tensor(chances).float(), torch.tensor(values).float()).sigma()) == pytest.approx(expected, rel=1e-4)


def test_draws_between_quantiles_are_linear_and_beyond_them_constant():
    quantiles = Quantiles(torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0]).expand(7, 5))
    draws = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.45, 0.9, 0.999])
    assert quantiles.sample(draws).tolist() == pytest.approx([1, 1, 1.5, 2, 3.5, 16, 16], abs=1e-5)
