"""Losses against plain Python written from the papers, and their closed-form gradients against central differences of it."""

import math
import random

import numpy as np
import pytest
import torch

from lob.actions import encode_action
from lob.errors import BadInput
from lob.jit import kernel_cpu
from policy import loss_kernels as k
from policy import losses
from policy.heads import BRANCH_FIRST
from policy.losses import HeadLosses
from tests import oracle_targets

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


@kernel_cpu
def project_rows(weights, returns, discount, support, out):
    for row in range(weights.shape[0]):
        for branch in range(weights.shape[1]):
            k.project(weights[row, branch], np.float32(1), returns[row], discount[row], support, out[row, branch])


def projected(p, returns, discount, low=-10.0, high=10.0):
    weights = torch.as_tensor(p, dtype=torch.float32).numpy()
    out = np.zeros_like(weights)
    with np.errstate(all="ignore"):
        returns, discount = np.array(returns, np.float32), np.array(discount, np.float32)
    project_rows(weights, returns, discount, np.linspace(low, high, weights.shape[2], dtype=np.float32), out)
    return torch.from_numpy(out)


def random_probabilities(batch=6, atoms=51, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(3 * torch.randn(batch, 4, atoms, generator=generator), dim=2)


@pytest.mark.parametrize("atoms", [2, 3, 51, 64])
def test_the_projection_is_that_of_the_paper(atoms):
    p = random_probabilities(40, atoms)
    source = random.Random(atoms)
    returns = [source.choice([0.0, 0.4, -0.4, 3.0, source.uniform(-25, 25)]) for _ in range(40)]
    discount = [source.choice([0.0, 1.0, 0.99, source.random()]) for _ in range(40)]
    support = np.linspace(-10, 10, atoms, dtype=np.float32).tolist()
    got = projected(p, returns, discount)
    wanted = [[project_by_hand(p[i, b].tolist(), returns[i], discount[i], support) for b in range(4)] for i in range(40)]
    assert np.allclose(got, wanted, atol=5e-6)
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


def test_the_exponential_is_the_exponential_and_hides_nothing_that_is_no_number():
    @kernel_cpu
    def each(x, out):
        for i in range(x.size):
            out[i] = k.exp32(x[i])

    x = np.concatenate([np.linspace(-87.2, 0, 100_001), [-1e30, -np.inf, np.nan]]).astype(np.float32)
    out = np.zeros_like(x)
    each(x, out)
    wanted = np.exp(x[:-3].astype(np.float64))
    assert (np.abs(out[:-3] - wanted) <= 3e-7 * wanted).all() and out[100_000] == 1
    assert 0 < out[-3] == out[-2] < 2e-38 and np.isnan(out[-1])


# Both heads at once.

ATOMS, QUANTILES, ROWS = 5, 3, 4
SUPPORT = torch.linspace(-2.0, 2.0, ATOMS)
SHARES = (0.3, 0.4, 0.3)


def heads_of(matrix):
    """[(logits[13][A], quantiles[13][T])] of the rows of a matrix, as lists."""
    cells = matrix[:, : 13 * (ATOMS + QUANTILES)].double().view(len(matrix), 13, ATOMS + QUANTILES)
    return [(row[:, :ATOMS].tolist(), row[:, ATOMS:].tolist()) for row in cells]


def case(seed, sarsa=False, cql=1.0, batch=ROWS, device="cpu"):
    """(losses, their arguments) of random rows; the discount of one row is 0."""
    generator = torch.Generator().manual_seed(seed)
    columns = 13 * (ATOMS + QUANTILES) + 8

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    given = {
        "online": 2 * normal(batch, columns), "lagged": 2 * normal(batch, columns), "now": 2 * normal(batch, columns),
        "aux": normal(batch), "action": torch.randint(0, 108, (batch,), generator=generator, dtype=torch.int32),
        "returns": normal(batch), "discount": torch.rand(batch, generator=generator), "weights": torch.rand(batch, generator=generator),
        "label": normal(batch), "observation": normal(batch, 128), "next_observation": normal(batch, 128),
    }  # fmt: skip
    given["discount"][0] = 0.0
    made = HeadLosses(batch, columns, SUPPORT.to(device), QUANTILES, cql, sarsa)
    tensors = [torch.tensor(value, device=device) for value in (*SHARES, 0.25, 0.7, 0.08)]
    made.set_dials(tuple(tensors[:4]), tensors[4], tensors[5])
    return made, given


def targets_by_hand(given, sarsa):
    online, lagged = heads_of(given["online"]), heads_of(given["lagged"])
    rows = zip(given["returns"].tolist(), given["discount"].tolist(), online, lagged, strict=True)
    ratio = float(np.float32(0.08)) if sarsa else None
    return [[oracle_targets.target_of(b, *row, SUPPORT.tolist(), ratio) for b in range(4)] for row in rows]


@pytest.mark.parametrize("sarsa", [False, True])
def test_targets_losses_and_errors_are_those_of_plain_python(sarsa):
    made, given = case(1, sarsa)
    targets = targets_by_hand(given, sarsa)
    board = made(**given)
    for i, here in enumerate(heads_of(given["now"])):
        errors = []
        weight = float(given["weights"][i]) / (4 * ROWS)
        for branch, choice in enumerate(oracle_targets.columns_of(int(given["action"][i]))):
            atoms, values = targets[i][branch]
            assert np.allclose(board.target[i, branch], atoms, atol=1e-6)
            categorical, regression, error = oracle_targets.losses_of(here, choice, atoms, values, SUPPORT.tolist())
            conservative = oracle_targets.conservative_of(here, branch, choice, SUPPORT.tolist())
            facts = board.facts[i, branch * k.PER_BRANCH : (branch + 1) * k.PER_BRANCH].tolist()
            wanted = [weight * loss for loss in (categorical, regression, conservative)]
            assert np.allclose([facts[k.LOSS_C51], facts[k.LOSS_IQN], facts[k.LOSS_CQL]], wanted, rtol=1e-4, atol=1e-7)
            p = oracle_targets.softmax(here[0][choice])
            mean = sum(a * b for a, b in zip(p, SUPPORT.tolist(), strict=True))
            sigma = math.sqrt(sum(a * (b - mean) ** 2 for a, b in zip(p, SUPPORT.tolist(), strict=True)))
            online = heads_of(given["online"])[i]
            first, size = oracle_targets.FIRST[branch], oracle_targets.SIZES[branch]
            means = [oracle_targets.mean_of(online, c, SUPPORT.tolist()) for c in range(first, first + size)]
            assert np.allclose([facts[k.SIGMA], facts[k.RANGE]], [sigma, max(means) - min(means)], rtol=1e-4)
            errors.append(error)
        assert float(board.errors[i]) == pytest.approx(np.mean(errors), rel=1e-4)
        residual = float(given["aux"][i]) - float(given["label"][i]) / 0.7
        assert float(board.facts[i, k.LOSS_AUX]) == pytest.approx(weight * 4 * residual**2, rel=1e-4)
        assert float(board.pull_aux[i]) == pytest.approx(0.25 * weight * 4 * 2 * residual, rel=1e-4)


@pytest.mark.parametrize("sarsa", [False, True])
def test_the_gradient_is_that_of_the_plain_python_loss_by_central_differences(sarsa):
    made, given = case(2, sarsa, cql=0.5)
    board = made(**given)
    targets, shares = targets_by_hand(given, sarsa), (SHARES[0], SHARES[1], SHARES[2] * 0.5)
    for i in range(ROWS):
        weight, action = float(given["weights"][i]) / ROWS, int(given["action"][i])
        for column in range(13 * (ATOMS + QUANTILES)):
            ends = []
            for sign in (1, -1):
                moved = given["now"][i : i + 1].double().clone()
                moved[0, column] += sign * 1e-5
                ends.append(oracle_targets.row_loss(heads_of(moved)[0], action, targets[i], SUPPORT.tolist(), shares))
            assert float(board.pull[i, column]) == pytest.approx(weight * (ends[0] - ends[1]) / 2e-5, abs=1e-6), column
    assert not board.pull[:, 13 * (ATOMS + QUANTILES) :].any()


def test_squares_are_those_of_each_components_own_gradient():
    made, given = case(3)
    squares = {}
    for i, name in enumerate(("c51", "iqn", "cql")):
        one = [torch.tensor(float(i == j)) for j in range(4)]
        made.set_dials(tuple(one), torch.tensor(1.0), torch.tensor(0.1))
        board = made(**given)
        squares[name] = float(board.pull.square().sum())
    by_branch = board.facts[:, : k.SQUARE_CQL].view(ROWS, 4, k.PER_BRANCH).sum(dim=(0, 1))
    got = (by_branch[k.SQUARE_C51], by_branch[k.SQUARE_IQN], board.facts[:, k.SQUARE_CQL : k.LOSS_AUX].sum())
    assert np.allclose([float(x) for x in got], list(squares.values()), rtol=1e-4)


def test_without_a_weight_cql_has_neither_loss_nor_gradient():
    (made, given), (off, _) = case(4, cql=0.0), case(4, cql=0.0)
    off.set_dials(tuple(torch.tensor(x) for x in (0.3, 0.4, 0.0, 0.25)), torch.tensor(0.7), torch.tensor(0.08))
    board, other = made(**given), off(**given)
    assert torch.equal(board.pull, other.pull)
    assert not board.facts[:, k.SQUARE_CQL : k.LOSS_AUX].any()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_sarsas_policy_stays_near_the_maximum_and_ignores_the_values_scale(scale):
    values = np.array([[0.0, 1.0, 2.0, 3.0, *[0.0] * 9]], np.float32) * np.float32(scale)

    def policy(branch, ratio):
        first, size = oracle_targets.FIRST[branch], oracle_targets.SIZES[branch]
        best, top, worst = k.extremes(values, 0, branch)
        return [k.share_of(values, 0, branch, c, best, top, worst, np.float32(ratio)) for c in range(first, first + size)]

    weights = [math.exp(-10 * (3 - i) / 3) for i in range(4)]
    assert np.allclose(policy(0, 0.1), np.array(weights) / sum(weights), rtol=1e-4)
    assert np.allclose(policy(1, 0.1), 1 / 3)
    for beyond in (0.5, 1.0, 100.0):
        assert policy(0, beyond) == policy(0, 0.1)
    assert np.allclose(policy(0, 0.0), [0, 0, 0, 1]) and policy(0, -1.0) == [0, 0, 0, 1]


def test_columns_are_those_of_the_action_code():
    for action in range(108):
        columns = [int(k.chosen(action, branch)) for branch in range(4)]
        assert columns == oracle_targets.columns_of(action)
        assert encode_action.py_func(*(c - first for c, first in zip(columns, BRANCH_FIRST, strict=True))) == action


def test_branches_and_choices_are_those_of_the_heads():
    assert [k.first_of(branch) for branch in range(5)] == [*oracle_targets.FIRST, 13]
    assert [k.branch_of(choice) for choice in range(13)] == [0] * 4 + [1] * 3 + [2] * 3 + [3] * 3


def test_the_best_choice_of_a_branch_is_the_first_of_equals():
    values = np.zeros((2, 13), np.float32)
    values[1, [2, 3, 6, 9, 10]] = 1.0
    assert [[int(k.extremes(values, row, b)[0]) for b in range(4)] for row in range(2)] == [[0, 4, 7, 10], [2, 6, 9, 10]]


@pytest.mark.parametrize("name", k.LOOKED_AT[:-1])
def test_what_is_not_finite_is_named_by_where_it_was_made_first(name):
    made, given = case(5)
    assert set(made(**given).bad.tolist()) == {k.NONE_BAD}
    where = {
        "return": "returns", "next value": "online", "target": "lagged", "value": "now", "auxiliary value": "aux",
        "next observation": "next_observation",
    }  # fmt: skip
    tensor = given[where.get(name, name)]
    for value in (float("nan"), float("inf"), -float("inf")):
        spoiled = given | {where.get(name, name): tensor.clone()}
        spoiled[where.get(name, name)].view(ROWS, -1)[2].fill_(value)
        assert made(**spoiled).bad.tolist() == [k.NONE_BAD, k.NONE_BAD, k.LOOKED_AT.index(name), k.NONE_BAD]


@pytest.mark.parametrize("support", [[1.0], [1.0, 1.0], [2.0, 1.0], [0.0, float("nan")], [0.0, float("inf")], [1.0, 0.0, 2.0]])
def test_a_support_of_no_width_is_refused(support):
    with pytest.raises(BadInput, match="no width"):
        HeadLosses(2, 13 * (len(support) + 1), torch.tensor(support), 1, 0.0, False)


def test_a_raw_price_for_a_label_makes_the_auxiliary_loss_a_million_times_larger():
    """T24: the loss is of order one with a return for a label; with a raw price 2.6e7 was seen."""
    returns, prices = torch.randn(256, generator=torch.Generator().manual_seed(1)) * 1e-4, torch.full((256,), 5089.0)
    scale = returns.abs().mean()
    made, given = case(6, batch=256)
    seen = []
    for label, divisor in ((returns, scale), (prices, torch.tensor(1.0))):
        made.set_dials(tuple(torch.tensor(x) for x in (0.3, 0.4, 0.2, 0.1)), divisor, torch.tensor(0.1))
        board = made(**given | {"aux": torch.zeros(256), "label": label, "weights": torch.ones(256)})
        seen.append(float(board.facts[:, k.LOSS_AUX].sum()))
    assert 0.06 < seen[0] < 3 and seen[1] / seen[0] > 1e6


def test_a_label_scale_of_zero_divides_by_nothing():
    made, given = case(7)
    made.set_dials(tuple(torch.tensor(x) for x in (0.3, 0.4, 0.2, 0.1)), torch.tensor(0.0), torch.tensor(0.1))
    board = made(**given | {"label": torch.zeros(ROWS)})
    assert torch.allclose(board.facts[:, k.LOSS_AUX], given["weights"] / ROWS * given["aux"] ** 2)


def test_the_balance_loss_is_least_when_experts_are_used_alike():
    assert float(losses.balance(torch.full((5, 8), 0.125))) == pytest.approx(1)
    one = torch.zeros(5, 8)
    one[:, 3] = 1
    assert float(losses.balance(one)) == pytest.approx(8)
    assert float(losses.balance(torch.eye(8))) == pytest.approx(1)


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


@pytest.mark.parametrize("build", ["plain", pytest.param("cudasim", marks=pytest.mark.cudasim)])
def test_plain_python_and_simulated_cuda_equal_njit_to_rounding(build, tmp_path):
    from tests.loss_builds import boards, boards_elsewhere

    ours, theirs = boards("njit"), boards_elsewhere(build, tmp_path)
    assert set(ours) == set(theirs)
    for name, array in ours.items():
        assert np.allclose(array, theirs[name], rtol=2e-5, atol=1e-6), name
