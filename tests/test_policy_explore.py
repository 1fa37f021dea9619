"""Laws of how much training explores (seed rows E9-E11, E25; T17, T18; lessons 13, 19)."""

import math

import pytest
import torch
from pydantic import ValidationError

from policy.controls import select_controls
from policy.explore import SelectConfig, branch_epsilon, count_bonus, count_picks, passive_pressure, scheduled_epsilon
from policy.heads import BRANCH_FIRST, CHOICES
from tests.select_cases import heads_of, picked, shares

CONFIG = SelectConfig(epsilon_start=0.8, epsilon_end=0.1, epsilon_steps=100)
OVER = SelectConfig(epsilon_start=0.0, epsilon_end=0.0)  # a schedule that asks for nothing
COARSE = torch.tensor([-1.0, 0.0, 1.0])


def epsilon(rate: float, target: float, config: SelectConfig = OVER, step: int = 10**6) -> list[float]:
    return branch_epsilon(config, torch.tensor([step]), torch.tensor(rate), torch.tensor(target)).tolist()


def test_epsilon_follows_half_a_cosine_and_then_stays():
    expected = {0: 0.8, 25: 0.1 + 0.35 * (1 + math.cos(math.pi / 4)), 50: 0.45, 100: 0.1, 101: 0.1, 10**12: 0.1}
    for step, value in expected.items():
        assert float(scheduled_epsilon(CONFIG, torch.tensor([step]))) == pytest.approx(value, abs=1e-6)
        assert epsilon(1.0, 1.0, CONFIG, step) == pytest.approx([value] * 4, abs=1e-6)


@pytest.mark.parametrize(("rate", "expected"), [(0.3, 0.02), (0.6, 0.02), (0.0, 0.5), (0.15, 0.25)])
def test_the_direction_explores_the_more_the_less_is_traded(rate, expected):
    """T17: at the target's rate or above, the floor; at none, half; at half of it, a quarter. Other branches do not care."""
    assert epsilon(rate, 0.3) == pytest.approx([expected, 0.02, 0.02, 0.02], abs=1e-6)


@pytest.mark.parametrize(("rate", "expected"), [(0.0, 1.0), (0.05, 0.0), (0.00005, 0.5)])
def test_before_the_target_is_frozen_any_attempt_is_enough(rate, expected):
    """T18: the target is 0 then, and counts as 1e-4."""
    assert float(passive_pressure(torch.tensor(rate), torch.tensor(0.0))) == pytest.approx(expected, abs=1e-6)


def test_a_larger_schedule_wins_over_the_pressure():
    assert epsilon(0.0, 0.3, CONFIG, 0) == pytest.approx([0.8] * 4)


def test_a_policy_that_never_trades_gets_four_random_directions_in_ten_in_training_and_none_in_evaluation():
    """Lesson 19, and no deadlock: what closes the gate (no attempts) is what opens it."""
    lanes = 20_000
    heads = heads_of(torch.eye(CHOICES)[3].expand(lanes, CHOICES), COARSE)  # sure of flat
    wanted = branch_epsilon(OVER, torch.tensor([10**6]), torch.tensor(0.0), torch.tensor(0.3))
    controls = select_controls()._replace(epsilon=wanted * torch.tensor([1.0, 0.0, 0.0, 0.0]))
    training = picked(heads, "greedy", COARSE, explore=True, controls=controls)
    assert float(training.explored.float().mean()) >= 0.4
    assert shares(training)[[0, 2]].sum() == pytest.approx(0.25, abs=0.02)  # attempts: half of the uniform ones
    evaluation = picked(heads, "greedy", COARSE, explore=False, controls=controls)
    assert not evaluation.explored.any() and (evaluation.codes[:, 0] == 3).all()


def test_counts_are_those_of_the_picks_of_lanes_that_decided():
    codes = torch.stack(
        [torch.arange(1000) % 4, torch.arange(1000) % 3, torch.zeros(1000, dtype=torch.int64), torch.arange(1000) // 500], dim=1
    )
    decided = torch.arange(1000) < 600
    counts = torch.full((CHOICES,), 5, dtype=torch.int64)
    count_picks(counts, codes, decided)
    expected = [5] * CHOICES
    for row in codes[:600].tolist():
        for branch, code in enumerate(row):
            expected[BRANCH_FIRST[branch] + code] += 1
    assert counts.tolist() == expected


def test_the_count_bonus_falls_with_the_root_of_the_picks_and_a_coefficient_of_0_disables_it():
    counts = torch.tensor([0, 3, 8, 99, *range(9)])
    assert count_bonus(2.0, counts).tolist()[:4] == pytest.approx([2.0, 1.0, 2 / 3, 0.2])
    assert count_bonus(0.0, counts).tolist() == [0.0] * CHOICES
    assert count_bonus(1.0, torch.full((CHOICES,), 2**52)).dtype == torch.float32


def test_the_bonus_makes_a_greedy_learner_try_everything_and_then_stop():
    """With equal values every choice is picked in turn; with one clearly better, the rest fade."""
    counts, lanes = torch.zeros(CHOICES, dtype=torch.int64), torch.ones(1, dtype=torch.bool)
    heads = heads_of(torch.eye(CHOICES)[2:3] * 0.5, torch.tensor([0.0, 0.5]))
    picks = []
    for step in range(400):
        controls = select_controls()._replace(bonus=count_bonus(1.0, counts))
        chosen = picked(heads, "greedy", torch.tensor([0.0, 0.5]), explore=True, controls=controls, step=step)
        count_picks(counts, chosen.codes, lanes)
        picks.append(int(chosen.codes[0, 0]))
    assert set(picks) == {0, 1, 2, 3}
    assert picks[200:].count(2) > 190
    assert max(counts[4:7].tolist()) - min(counts[4:7].tolist()) <= 1


@pytest.mark.parametrize(
    "wrong", [{"epsilon_start": 1.5}, {"epsilon_steps": 0}, {"tau_floor": 0.0}, {"bonus": -1}, {"selector": "ucb"}, {"use_bonus": 1}]
)
def test_a_configuration_that_makes_no_selection_is_refused(wrong):
    with pytest.raises(ValidationError):
        SelectConfig(**wrong)
