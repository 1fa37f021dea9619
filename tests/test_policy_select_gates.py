"""No selector and no exploration gets past a gate (seed E23): whatever is picked, plan lock, caps, trail stop and floor decide after it."""

import numpy as np
import pytest
import torch

from cuda_env.config import EnvConfig
from cuda_env.env import Env
from lob.actions import Direction, Phase, decode_action
from lob.picks import Picks
from policy.controls import select_controls
from policy.select import select, to_picks
from policy.select_scalar import SELECTORS
from tests.market_maker import features, random_tape, second_ticks, slow_schedule
from tests.select_cases import SUPPORT, random_heads

LANES = 12
LOCK = 3
TERMS = EnvConfig(
    max_lots=4, trail_ticks=10, plan_lock_steps=LOCK, capital_usd_micros=40 * 10**9, floor_usd_micros=37 * 10**9,
    margin_usd_micros=15 * 10**9,
)  # fmt: skip


def play(selector: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """(rows of `steps` without the drain's, actions picked int[decisions, lanes]) of lanes that explore half of the time."""
    tape = random_tape(2, 400, 1, 3.0, 6)
    schedule = slow_schedule(tape, second_ticks(tape, 1.0), 0, TERMS.max_lots)
    env = Env(tape, schedule, features(schedule), TERMS, LANES, Phase.TRAIN)
    out = Picks(*(torch.zeros(LANES, dtype=torch.int32) for _ in range(4)))
    controls, lanes = select_controls(epsilon=0.5), torch.arange(LANES)
    rows, actions = [], []
    for step in range(schedule.decisions):
        chosen = select(random_heads(step, LANES), SUPPORT, controls, selector, True, 5, lanes, torch.tensor([step]))
        env.step(to_picks(chosen, torch.tensor([300_000]), out))
        rows.append({name: np.ma.filled(column, -99) for name, column in env.rows("steps").items()})
        actions.append(chosen.action.numpy())
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}, np.stack(actions)


@pytest.fixture(scope="module", params=SELECTORS)
def played(request):
    return play(request.param)


def test_what_was_picked_stays_in_the_log_beside_what_became_of_it(played):
    rows, actions = played
    living = rows["picked_action"] >= 0
    assert (rows["picked_action"] == actions)[living].all() and living.any(axis=0).all()
    picked = np.vectorize(lambda action: decode_action.py_func(action)[0])(actions)
    assert (rows["picked_direction"] == picked)[living].all()
    assert (rows["actual_direction"] != rows["picked_direction"])[living].mean() > 0.05, "no gate did anything"


def test_the_plan_lock_overrides_every_selector_and_uniform_choices_too(played):
    """C25, E23: while a position is younger than the lock the direction is hold, and the position changes by stop or floor alone."""
    rows, _ = played
    opened = np.full(LANES, -LOCK - 1)
    locked = 0
    for step in range(len(rows["step"])):
        before = rows["position_lots"][step - 1] if step else np.zeros(LANES, int)
        after = rows["position_lots"][step]
        living = rows["picked_action"][step] >= 0
        young = living & (before != 0) & (step - opened < LOCK)
        assert (rows["locked_direction"][step][young] == Direction.HOLD).all()
        free = living & ~young
        assert (rows["locked_direction"][step][free] == rows["picked_direction"][step][free]).all()
        forced = (rows["trail_triggered"][step] == 1) | (rows["floor_triggered"][step] == 1)
        assert (after == before)[young & ~forced].all()
        opened = np.where(living & (np.sign(after) != np.sign(before)) & (after != 0), step, opened)
        locked += int((young & (rows["picked_direction"][step] != Direction.HOLD)).sum())
    assert locked > 100, "the lock had nothing to override"


def test_caps_bound_every_position_that_is_taken(played):
    rows, _ = played
    sized = (rows["picked_action"] >= 0) & np.isin(rows["locked_direction"], (Direction.SHORT, Direction.LONG))
    target, cap = np.abs(rows["target_lots"])[sized], np.minimum(rows["margin_cap_lots"], rows["kelly_cap_lots"])[sized]
    assert (target <= cap).all() and (cap < TERMS.max_lots).any() and (target > 0).any()


def test_stop_and_floor_flatten_whatever_was_picked(played):
    rows, _ = played
    living = rows["picked_action"] >= 0
    stopped = living & (rows["trail_triggered"] == 1)
    assert stopped.any() and (rows["target_lots"][stopped] == 0).all()
    breached = np.cumsum(rows["floor_triggered"] == 1, axis=0) > 0
    dead = breached & (rows["picked_action"] < 0)
    assert dead.any() and (rows["position_lots"][dead] == 0).all()
