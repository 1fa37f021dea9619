"""Laws of how much training explores (seed rows E9-E11, E25; T17, T18; lessons 13, 19)."""

import math

import pytest
import torch
from pydantic import ValidationError

from policy.controls import select_controls
from policy.explore import SelectConfig, branch_epsilon, count_bonus, passive_pressure, scheduled_epsilon
from policy.heads import BRANCH_FIRST, CHOICES
from tests.select_cases import heads_of, picked, shares

CONFIG = SelectConfig(epsilon_start=0.8, epsilon_end=0.1, epsilon_steps=100)
OVER = SelectConfig(epsilon_start=0.0, epsilon_end=0.0)  # a schedule that asks for nothing
COARSE = torch.tensor([-1.0, 0.0, 1.0])


def scheduled(config: SelectConfig, step: int) -> float:
    return scheduled_epsilon(config.epsilon_start, config.epsilon_end, config.epsilon_steps, step)


def epsilon(rate: float, target: float, config: SelectConfig = OVER, step: int = 10**6) -> list[float]:
    pressure = passive_pressure(rate, target)
    return [branch_epsilon(branch, scheduled(config, step), pressure) for branch in range(4)]


def test_epsilon_follows_half_a_cosine_and_then_stays():
    expected = {0: 0.8, 25: 0.1 + 0.35 * (1 + math.cos(math.pi / 4)), 50: 0.45, 100: 0.1, 101: 0.1, 10**12: 0.1}
    for step, value in expected.items():
        assert scheduled(CONFIG, step) == pytest.approx(value, abs=1e-6)
        assert epsilon(1.0, 1.0, CONFIG, step) == pytest.approx([value] * 4, abs=1e-6)


@pytest.mark.parametrize(("rate", "expected"), [(0.3, 0.02), (0.6, 0.02), (0.0, 0.5), (0.15, 0.25)])
def test_the_direction_explores_the_more_the_less_is_traded(rate, expected):
    """T17: at the target's rate or above, the floor; at none, half; at half of it, a quarter. Other branches do not care."""
    assert epsilon(rate, 0.3) == pytest.approx([expected, 0.02, 0.02, 0.02], abs=1e-6)


@pytest.mark.parametrize(("rate", "expected"), [(0.0, 1.0), (0.05, 0.0), (0.00005, 0.5)])
def test_before_the_target_is_frozen_any_attempt_is_enough(rate, expected):
    """T18: the target is 0 then, and counts as 1e-4."""
    assert passive_pressure(rate, 0.0) == pytest.approx(expected, abs=1e-6)


def test_a_larger_schedule_wins_over_the_pressure():
    assert epsilon(0.0, 0.3, CONFIG, 0) == pytest.approx([0.8] * 4)


def test_a_policy_that_never_trades_gets_four_random_directions_in_ten_in_training_and_none_in_evaluation():
    """Lesson 19, and no deadlock: what closes the gate (no attempts) is what opens it."""
    lanes = 20_000
    heads = heads_of(torch.eye(CHOICES)[3].expand(lanes, CHOICES), COARSE)  # sure of flat
    wanted = torch.tensor(epsilon(0.0, 0.3))
    controls = select_controls()._replace(epsilon=wanted * torch.tensor([1.0, 0.0, 0.0, 0.0]))
    training = picked(heads, "greedy", COARSE, explore=True, controls=controls)
    assert float(training.explored.float().mean()) >= 0.4
    assert shares(training)[[0, 2]].sum() == pytest.approx(0.25, abs=0.02)  # attempts: half of the uniform ones
    evaluation = picked(heads, "greedy", COARSE, explore=False, controls=controls)
    assert not evaluation.explored.any() and (evaluation.codes[:, 0] == 3).all()


def test_the_count_bonus_falls_with_the_root_of_the_picks_and_a_coefficient_of_0_disables_it():
    assert [count_bonus(2.0, picks) for picks in (0, 3, 8, 99)] == pytest.approx([2.0, 1.0, 2 / 3, 0.2])
    assert [count_bonus(0.0, picks) for picks in (0, 3, 2**52)] == [0.0] * 3


def test_the_bonus_makes_a_greedy_learner_try_everything_and_then_stop():
    """With equal values every choice is picked in turn; with one clearly better, the rest fade."""
    counts = [0] * CHOICES
    heads = heads_of(torch.eye(CHOICES)[2:3] * 0.5, torch.tensor([0.0, 0.5]))
    picks = []
    for step in range(400):
        controls = select_controls()._replace(bonus=torch.tensor([count_bonus(1.0, picks) for picks in counts]))
        chosen = picked(heads, "greedy", torch.tensor([0.0, 0.5]), explore=True, controls=controls, step=step)
        for first, code in zip(BRANCH_FIRST, chosen.codes[0].tolist(), strict=True):
            counts[first + code] += 1
        picks.append(int(chosen.codes[0, 0]))
    assert set(picks) == {0, 1, 2, 3}
    assert picks[200:].count(2) > 190
    assert max(counts[4:7]) - min(counts[4:7]) <= 1


@pytest.mark.parametrize(
    "wrong", [{"epsilon_start": 1.5}, {"epsilon_steps": 0}, {"tau_floor": 0.0}, {"bonus": -1}, {"selector": "ucb"}, {"use_bonus": 1}]
)
def test_a_configuration_that_makes_no_selection_is_refused(wrong):
    with pytest.raises(ValidationError):
        SelectConfig(**wrong)
