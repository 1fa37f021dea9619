"""One physics: plain Python with unbounded integers, njit and CUDA write the same bits."""

import numpy as np
import pytest

from cuda_env import arrays as a
from lob.actions import EndReason
from tests.env_builds import CASES, EVERY, Njit, make_env, random_inputs, trace, trace_elsewhere


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert one[name].shape == other[name].shape, name
        assert one[name].tobytes() == other[name].astype(one[name].dtype).tobytes(), name


@pytest.fixture(scope="module")
def njit():
    return [trace(case, Njit) for case in EVERY]


def test_plain_python_equals_njit_bit_for_bit(njit, tmp_path):
    for compiled, plain in zip(njit, trace_elsewhere("plain", EVERY, tmp_path), strict=True):
        assert_equal(compiled, plain)


def test_the_random_episodes_reach_every_end_reason_and_every_gate(njit):
    ends = {int(end) for played in njit for end in np.unique(played["end_reason"])}
    assert ends == {int(reason) for reason in EndReason}
    slot = {name: i for i, name in enumerate(a.STEP_SLOTS)}
    steps = np.concatenate([played["steps"].transpose(1, 0, 2).reshape(len(slot), -1) for played in njit], axis=1)
    assert (steps[slot["trail_triggered"]] == 1).any()
    assert (steps[slot["floor_triggered"]] == 1).any()
    assert ((steps[slot["picked_action"]] // 27 != 1) & (steps[slot["locked_direction"]] == 1)).any(), "plan lock"
    sized = steps[slot["scaled_lots"]] > 0
    assert (steps[slot["margin_cap_lots"]] < steps[slot["scaled_lots"]])[sized].any(), "margin cap"
    assert (steps[slot["kelly_cap_lots"]] < steps[slot["scaled_lots"]])[sized].any(), "Kelly cap"
    assert (steps[slot["kelly_ppm"]] > 0).any()
    orders = np.concatenate([played["orders"] for played in njit])
    column = {name: i for i, name in enumerate(a.ORDER_SLOTS)}
    assert set(orders[:, column["reason"]]) == {0, 3, 4, 5}
    assert set(orders[:, column["state"]]) == {0, 1, 2}
    fills = np.concatenate([played["fills"] for played in njit])
    assert fills[:, a.FILL_SLOTS.index("book_level")].max() == 9


def test_no_random_episode_meets_a_fault(njit):
    assert not any(played["fault"].any() for played in njit)


def test_threads_change_nothing():
    one = Njit(make_env(CASES[0]._replace(lanes=300), threads=1))
    two = Njit(make_env(CASES[0]._replace(lanes=300), threads=2))
    assert one.env._runner.parallel is False
    assert two.env._runner.parallel is True
    for inputs in random_inputs(CASES[0]._replace(lanes=300), one.env.schedule.decisions):
        for player in (one, two):
            player.observe()
            player.step(inputs)
    for player in (one, two):
        player.drain()
    for name, array in one.env.world._asdict().items():
        if name in ("state", "observation", "last_observation"):
            assert array.numpy().tobytes() == getattr(two.env.world, name).numpy().tobytes(), name
    assert one.env.diag() == two.env.diag()


def test_many_steps_at_once_leave_what_single_steps_leave():
    import torch

    from lob.picks import Picks

    case = CASES[1]._replace(lanes=70)
    inputs = random_inputs(case, make_env(case).schedule.decisions)
    inputs[:, 1:] = inputs[0, 1:]
    single, fused = make_env(case, emit=()), make_env(case, emit=())
    for row in inputs:
        Njit(single).observe()
        Njit(single).step(row)
    fused.run_steps(torch.from_numpy(inputs[:, 0].copy()), Picks(*(torch.from_numpy(row.copy()) for row in inputs[0])), observe=True)
    assert torch.equal(single.state, fused.state)
    assert torch.equal(single.observation, fused.observation)
    assert torch.equal(single.end_reason, fused.end_reason)
