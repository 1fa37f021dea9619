"""Losses against plain Python written from the papers, and their closed-form gradients against central differences."""

import math
import random

import numpy as np
import pytest
import torch

from lob.actions import encode_action
from lob.errors import BadInput
from policy import losses
from policy.heads import BRANCH_FIRST, BRANCH_SIZES
from policy.losses import Projection
from policy.projection import project_rows

CPU = torch.device("cpu")


def project_by_hand(p, reward, discount, atoms):
    """Algorithm 1 of Bellemare, Dabney, Munos (2017) in plain Python, with the mass of an atom that lands on another kept whole."""
    low, high, n = atoms[0], atoms[-1], len(atoms)
    width = (high - low) / (n - 1)
    m = [0.0] * n
    for share, atom in zip(p, atoms, strict=True):
        place = (min(high, max(low, reward + discount * atom)) - low) / width
        below, above = math.floor(place), math.ceil(place)
        if below == above:
            m[below] += share
        else:
            m[below] += share * (above - place)
            m[above] += share * (place - below)
    return m


def projected(p, returns, discount, low=-10.0, high=10.0):
    p = torch.as_tensor(p, dtype=torch.float32)
    return Projection(len(p), p.shape[2], low, high, CPU)(p, torch.tensor(returns), torch.tensor(discount)).clone()


def random_probabilities(batch=6, atoms=51, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(3 * torch.randn(batch, 4, atoms, generator=generator), dim=2)


@pytest.mark.parametrize("atoms", [2, 3, 51, 64])
def test_the_projection_is_that_of_the_paper(atoms):
    p = random_probabilities(40, atoms)
    source = random.Random(atoms)
    returns = [source.choice([0.0, 0.4, -0.4, 3.0, source.uniform(-25, 25)]) for _ in range(40)]
    discount = [source.choice([0.0, 1.0, 0.99, source.random()]) for _ in range(40)]
    support = np.linspace(-10, 10, atoms).tolist()
    got = projected(p, returns, discount)
    wanted = [[project_by_hand(p[i, b].tolist(), returns[i], discount[i], support) for b in range(4)] for i in range(40)]
    assert np.allclose(got, wanted, atol=1e-6)
    assert np.allclose(got.sum(2), 1, atol=2e-6)


def test_the_projection_is_the_triangular_kernel():
    p, support = random_probabilities(8), torch.linspace(-10, 10, 51, dtype=torch.float64)
    returns, discount = torch.linspace(-12, 12, 8), torch.full((8,), 0.97)
    moved = (returns[:, None] + discount[:, None] * support).clamp(-10, 10)
    kernel = (1 - (moved[:, :, None] - support).abs() / 0.4).clamp(0, 1)
    assert torch.allclose(projected(p, returns.tolist(), discount.tolist()).double(), p.double() @ kernel, atol=1e-6)


@pytest.mark.parametrize("where", range(51))
def test_a_terminal_reward_on_an_atom_puts_the_whole_mass_there(where):
    reward = -10 + 0.4 * where
    got = projected(random_probabilities(1), [reward], [0.0])
    assert got[0, 0, where] == pytest.approx(1, abs=1e-5) and got[0, 0].sum() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(("reward", "atom"), [(-10.0, 0), (-1e30, 0), (10.0, 50), (1e30, 50), (float("inf"), 50), (-float("inf"), 0)])
def test_what_lies_beyond_either_end_is_at_that_end(reward, atom):
    got = projected(random_probabilities(1), [reward], [0.0])
    wanted = torch.zeros(51)
    wanted[atom] = 1
    assert torch.allclose(got[0], wanted.expand(4, -1), atol=1e-6)


def test_the_mean_moves_as_the_values_do_inside_the_support():
    p, support = random_probabilities(5), torch.linspace(-10, 10, 51)
    before = (p * support).sum(2)
    got = projected(p, [0.05, -0.3, 0.0, 0.1, 0.0], [0.9] * 4 + [1.0])
    wanted = before * torch.tensor([0.9] * 4 + [1.0])[:, None] + torch.tensor([0.05, -0.3, 0.0, 0.1, 0.0])[:, None]
    assert torch.allclose((got * support).sum(2), wanted, atol=1e-4)


@pytest.mark.parametrize("spoiled", ["return", "discount", "probability"])
def test_what_is_not_a_number_stays_visible_and_reaches_no_other_row(spoiled):
    p, returns, discount = random_probabilities(3), [0.0, 0.5, 1.0], [0.9] * 3
    clean = projected(p, returns, discount)
    if spoiled == "probability":
        p[1, :, 7] = float("nan")
    else:
        (returns if spoiled == "return" else discount)[1] = float("nan")
    got = projected(p, returns, discount)
    assert got[1].isnan().any(dim=1).all()
    assert torch.equal(got[0], clean[0]) and torch.equal(got[2], clean[2])


@pytest.mark.parametrize(("atoms", "low", "high"), [(1, -1, 1), (51, 1, 1), (51, 1, -1), (51, float("nan"), 1), (51, -1, float("inf"))])
def test_a_support_of_no_width_is_refused(atoms, low, high):
    with pytest.raises(BadInput, match="no width"):
        Projection(2, atoms, low, high, CPU)


def test_the_compiled_projection_equals_its_plain_text():
    p, out = random_probabilities(5).flatten(0, 1).numpy(), np.zeros((2, 20, 51), np.float32)
    rest = (np.array([4]), p, np.linspace(-12, 12, 5, dtype=np.float32), np.full(5, 0.93, np.float32), np.array([-10.0, 10.0]))
    project_rows(*rest, out[0])
    project_rows.py_func(*rest, out[1])
    assert np.array_equal(*out)


# Losses and their gradients.


def assert_gradient(loss, gradient, x, tolerance=1e-6):
    """Central differences of sum(loss(x)) in float64, which share nothing with autograd or the closed form."""
    step, flat = 1e-6, x.double().flatten()
    numeric = torch.empty_like(flat)
    for i in range(len(flat)):
        ends = []
        for sign in (1, -1):
            moved = flat.clone()
            moved[i] += sign * step
            ends.append(float(loss(moved.view(x.shape)).sum()))
        numeric[i] = (ends[0] - ends[1]) / (2 * step)
    assert torch.allclose(gradient.double().flatten(), numeric, atol=tolerance)


def test_the_cross_entropy_and_its_gradient():
    generator = torch.Generator().manual_seed(1)
    logits, target = torch.randn(2, 4, 5, generator=generator).double(), torch.rand(2, 4, 5, generator=generator).double()
    loss, gradient = losses.cross_entropy(logits, target)
    for i in range(2):
        for b in range(4):
            row = logits[i, b].tolist()
            normal = math.log(sum(math.exp(x) for x in row))
            wanted = -sum(t * (x - normal) for t, x in zip(target[i, b].tolist(), row, strict=True))
            assert float(loss[i, b]) == pytest.approx(wanted)
    assert_gradient(lambda x: losses.cross_entropy(x, target)[0], gradient, logits)


def quantile_huber_by_hand(quantiles, targets, shares):
    total = 0.0
    for i, quantile in enumerate(quantiles):
        tau = (2 * i + 1) / (2 * len(quantiles))
        for target, share in zip(targets, shares, strict=True):
            u = target - quantile
            huber = 0.5 * u * u if abs(u) <= 1 else abs(u) - 0.5
            total += share * abs(tau - (1 if u < 0 else 0)) * huber
    return total


@pytest.mark.parametrize("weighted", [False, True])
def test_the_quantile_loss_and_its_gradient(weighted):
    source = torch.Generator().manual_seed(2)
    quantiles, target = 2 * torch.randn(3, 4, 5, generator=source).double(), 2 * torch.randn(3, 4, 7, generator=source).double()
    shares = torch.softmax(torch.randn(3, 4, 7, generator=source).double(), dim=2) if weighted else None
    loss, gradient = losses.quantile_huber(quantiles, target, shares)
    for i in range(3):
        for b in range(4):
            held = [1 / 7] * 7 if shares is None else shares[i, b].tolist()
            assert float(loss[i, b]) == pytest.approx(quantile_huber_by_hand(quantiles[i, b].tolist(), target[i, b].tolist(), held))
    assert_gradient(lambda x: losses.quantile_huber(x, target, shares)[0], gradient, quantiles)


def test_the_conservative_loss_and_its_gradient():
    values = torch.randn(3, 13, generator=torch.Generator().manual_seed(3)).double()
    columns = torch.tensor([[0, 4, 7, 10], [3, 6, 9, 12], [2, 5, 7, 11]])
    loss, gradient = losses.conservative(values, columns)
    for i in range(3):
        wanted = 0.0
        for first, size, column in zip(BRANCH_FIRST, BRANCH_SIZES, columns[i].tolist(), strict=True):
            wanted += math.log(sum(math.exp(float(values[i, first + a])) for a in range(size))) - float(values[i, column])
        assert float(loss[i]) == pytest.approx(wanted / 4)
    assert_gradient(lambda x: losses.conservative(x, columns)[0], gradient, values)


def test_a_gradient_at_a_mean_reaches_the_logits():
    logits = torch.randn(2, 13, 5, generator=torch.Generator().manual_seed(4)).double()
    support, at_mean = torch.linspace(-2, 3, 5).double(), torch.linspace(-1, 1, 26).double().view(2, 13)

    def mean(x):
        return (torch.softmax(x, 2) * support).sum(2)

    gradient = losses.through_mean(torch.softmax(logits, 2), support, mean(logits), at_mean)
    assert_gradient(lambda x: mean(x) * at_mean, gradient, logits)


def test_the_auxiliary_loss_divides_the_label_by_a_scale_above_zero():
    prediction, label = torch.tensor([0.5, -1.0]).double(), torch.tensor([4.0, 0.0]).double()
    loss, gradient = losses.auxiliary(prediction, label, torch.tensor(2.0).double())
    assert loss.tolist() == [(0.5 - 2) ** 2, 1.0] and gradient.tolist() == [-3.0, -2.0]
    loss, _ = losses.auxiliary(prediction, torch.zeros(2).double(), torch.tensor(0.0).double())
    assert loss.tolist() == [0.25, 1.0]


def test_a_raw_price_for_a_label_makes_the_auxiliary_loss_a_million_times_larger():
    """T24: the loss is of order one with a return for a label; with a raw price 2.6e7 was seen."""
    returns, prices = torch.randn(256, generator=torch.Generator().manual_seed(1)) * 1e-4, torch.full((256,), 5089.0)
    scale = returns.abs().mean()
    right, _ = losses.auxiliary(torch.zeros(256), returns, scale)
    wrong, _ = losses.auxiliary(torch.zeros(256), prices, torch.tensor(1.0))
    assert 0.06 < float(right.mean()) < 3
    assert float(wrong.mean() / right.mean()) > 1e6


def test_the_balance_loss_is_least_when_experts_are_used_alike():
    assert float(losses.balance(torch.full((5, 8), 0.125))) == pytest.approx(1)
    one = torch.zeros(5, 8)
    one[:, 3] = 1
    assert float(losses.balance(one)) == pytest.approx(8)
    assert float(losses.balance(torch.eye(8))) == pytest.approx(1)


# Branches and choices.


def test_columns_are_those_of_the_action_code():
    for action in range(108):
        parts = [int(column) - first for column, first in zip(losses.chosen_columns(torch.tensor([action]))[0], BRANCH_FIRST, strict=True)]
        assert encode_action.py_func(*parts) == action


def test_values_go_to_the_named_choices_and_come_back():
    columns = losses.chosen_columns(torch.tensor([0, 77, 107], dtype=torch.int32))
    values = torch.arange(3 * 4 * 2, dtype=torch.float32).view(3, 4, 2) + 1
    placed = losses.at_choices(values, columns)
    assert torch.equal(losses.of_branches(placed, columns), values)
    assert placed.count_nonzero() == values.numel()


def test_the_best_choice_of_a_branch_is_the_first_of_equals():
    values = torch.zeros(2, 13)
    values[1, [2, 3, 6, 9, 10]] = 1.0
    assert losses.best_columns(values).tolist() == [[0, 4, 7, 10], [2, 6, 9, 10]]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_sarsas_policy_stays_near_the_maximum_and_ignores_the_values_scale(scale):
    values = torch.tensor([[0.0, 1.0, 2.0, 3.0, *[0.0] * 9]]) * scale
    ratio = torch.tensor(0.1)
    policy = losses.sarsa_policy(values, ratio)[0]
    weights = [math.exp(-10 * (3 - i) / 3) for i in range(4)]
    assert np.allclose(policy[:4], np.array(weights) / sum(weights), rtol=1e-4)
    assert np.allclose(policy[4:], 1 / 3)
    for beyond in (0.5, 1.0, 100.0):
        assert torch.equal(losses.sarsa_policy(values, torch.tensor(beyond)), losses.sarsa_policy(values, ratio))
    greedy = losses.sarsa_policy(values, torch.tensor(0.0))[0, :4]
    assert greedy.tolist() == [0, 0, 0, 1]


def test_ranks_keep_zero_at_zero_and_the_order_of_the_rest():
    returns = torch.tensor([5.0, -1.0, 9e-6, 0.0, -9e-6, 7.0, 7.0, 1.1e-5])
    got = losses.ranked(returns).tolist()
    held = [0.0 if abs(x) < 1e-5 else x for x in returns.tolist()]
    mean_rank = {x: np.mean([i for i, y in enumerate(sorted(held)) if y == x]) for x in held}
    wanted = [(mean_rank[x] - mean_rank[0.0]) / 8 for x in held]
    assert np.allclose(got, wanted)
    assert losses.ranked(torch.tensor([3.0, 4.0])).min() > 0


# The scale of returns.


def test_the_return_scale_is_the_deviation_of_the_running_returns_of_real_rewards():
    rng = np.random.default_rng(1)
    scale, gamma = losses.return_scale(3, CPU), torch.tensor(0.9)
    sums, seen = [0.0] * 3, []
    for _ in range(50):
        reward, valid, ends = rng.normal(2, 3, 3).astype(np.float32), rng.random(3) < 0.7, rng.random(3) < 0.2
        reward[~valid] = 1e9  # what no lane earned must not be looked at
        losses.observe_rewards(scale, *(torch.from_numpy(x) for x in (reward, valid, ends)), gamma)
        for lane in range(3):
            if valid[lane]:
                sums[lane] = float(np.float32(0.9)) * sums[lane] + float(reward[lane])
                seen.append(sums[lane])
            if ends[lane]:
                sums[lane] = 0.0
    assert float(losses.deviation(scale)) == pytest.approx(float(np.std(seen)), rel=1e-6)


def test_the_return_scale_is_one_until_returns_vary():
    scale = losses.return_scale(1, CPU)
    assert float(losses.deviation(scale)) == 1
    on, off = torch.tensor([True]), torch.tensor([False])
    for _ in range(5):
        losses.observe_rewards(scale, torch.tensor([2.0]), on, on, torch.tensor(0.9))
    assert float(losses.deviation(scale)) == 1
    losses.observe_rewards(scale, torch.tensor([float("nan")]), on, off, torch.tensor(0.9))
    assert float(losses.deviation(scale)) == 1 and bool(torch.isfinite(scale.running).all())
