"""The TorchRL form on a GPU: the CPU's integers, and no step that waits for the device. By hand, with `-m cuda`."""

import pytest
import torch

pytest.importorskip("torchrl")
pytest.importorskip("gymnasium")

from lob.errors import BadInput
from tests.one_lane import script
from tests.test_sim_torchrl import make, rollout, store  # noqa: F401 (a fixture)

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

LANES = 300


def test_a_rollout_equals_the_cpus(store):  # noqa: F811
    actions = script(LANES, 150, 1)
    cpu, gpu = (rollout(make(store, LANES, device=device), torch.from_numpy(actions).to(device)) for device in ("cpu", "cuda"))
    assert int(cpu["next", "done"].sum()) > LANES
    for name in ("reward_usd_micros", "equity_usd_micros", "decided", "terminated", "truncated", "done", "reward", "observation"):
        assert torch.equal(cpu["next", name], gpu["next", name].cpu()), name
        if name in cpu.keys():  # noqa: SIM118 (a TensorDict is iterated over its batch)
            assert torch.equal(cpu[name], gpu[name].cpu()), name


def test_neither_a_step_nor_a_reset_of_ended_lanes_waits_for_the_device(store):  # noqa: F811
    env = make(store, LANES, device="cuda")
    actions = torch.from_numpy(script(LANES, 100, 2)).cuda()
    shown = env.reset()
    for row in actions[:3]:  # whatever is made once
        _, shown = env.step_and_maybe_reset(shown.set("action", row))
    ends = torch.zeros((), dtype=torch.int64, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for row in actions[3:]:
            played, shown = env.step_and_maybe_reset(shown.set("action", row))
            ends += played["next", "done"].sum()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert int(ends) > LANES // 2
    env.check()


def test_an_action_out_of_range_is_told_by_check(store):  # noqa: F811
    env = make(store, 2, device="cuda")
    shown = env.reset()
    env.step(shown.set("action", torch.tensor([[0, 0, 0, 0], [0, 3, 0, 0]], device="cuda")))
    with pytest.raises(BadInput, match=r"lane 1, step 0: the action is outside 0\.\.107"):
        env.check()
