"""The environment on a real CUDA device: the same bits as njit, eager and captured in a graph. Skipped where there is no device."""

import numpy as np
import pytest
import torch

from cuda_env import state as s
from lob.errors import BadInput
from lob.picks import Picks
from tests.env_builds import CASES, NUMBERED, Njit, make_env, random_inputs, trace
from tests.test_env_three_builds import assert_equal

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

MANY = CASES[0]._replace(lanes=1000)  # several blocks, the last one partly filled; several chunks of diag


def on_device(inputs):
    return torch.from_numpy(np.ascontiguousarray(inputs)).cuda()


def capture(env, inputs, observe=False):
    """(graph, clock): one replay plays the step that the clock names and advances it. What changes between replays is on the device."""
    clock = torch.zeros(1, dtype=torch.int64, device="cuda")
    row = torch.zeros((1, *inputs.shape[1:]), dtype=torch.int32, device="cuda")
    picks = Picks(*row[0])

    def one():
        torch.index_select(inputs, 0, clock, out=row)
        if observe:
            env.observe()
        env.step(picks)
        clock.add_(1)

    begun = [tensor.clone() for tensor in (env.state, *env.world.sums)]
    env.stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(env.stream):
        for _ in range(2):  # loads every module: that is not allowed during capture
            one()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=env.stream):
        one()
    for tensor, before in zip((env.state, *env.world.sums), begun, strict=True):
        tensor.copy_(before)
    clock.zero_()
    torch.cuda.synchronize()
    return graph, (clock, row)


@pytest.mark.parametrize("number", range(len(NUMBERED)))
def test_cuda_equals_njit_bit_for_bit(number):
    on_cpu, on_gpu = trace(NUMBERED[number], Njit), trace(NUMBERED[number], Njit, device="cuda")
    assert_equal(on_cpu, on_gpu)


def test_many_lanes_equal_njit_bit_for_bit():
    assert_equal(trace(MANY, Njit), trace(MANY, Njit, device="cuda"))


def test_a_captured_graph_replays_what_eager_steps_and_njit_do():
    reference, env = make_env(MANY), make_env(MANY, device="cuda")
    inputs = random_inputs(MANY, reference.schedule.decisions)
    graph, held = capture(env, on_device(inputs), observe=True)
    for row in inputs:
        Njit(reference).observe()
        Njit(reference).step(row)
        with torch.cuda.stream(env.stream):
            graph.replay()
    torch.cuda.synchronize()
    assert int(held[0]) == reference.schedule.decisions
    for name in ("state", "reward_raw", "end_reason", "terminated", "truncated", "observation", "last_observation"):
        assert getattr(reference, name).numpy().tobytes() == getattr(env, name).cpu().numpy().tobytes(), name
    assert reference.diag() == env.diag()
    reference.drain()
    env.drain()
    assert torch.equal(reference.state, env.state.cpu())
    assert reference.diag() == env.diag()


def test_the_rows_of_every_table_equal_those_of_the_cpu():
    reference, env = make_env(MANY), make_env(MANY, device="cuda")
    for row in random_inputs(MANY, reference.schedule.decisions)[:40]:
        Njit(reference).step(row)
        env.step(Picks(*on_device(row)))
        for table in reference.emit:
            one, other = reference.rows(table), env.rows(table)
            for name in one:
                assert np.ma.getmaskarray(one[name]).tobytes() == np.ma.getmaskarray(other[name]).tobytes(), name
                assert np.ma.filled(one[name], 0).tobytes() == np.ma.filled(other[name], 0).tobytes(), name


def test_a_fault_on_the_device_names_lane_and_step_when_it_is_asked_for():
    env = make_env(MANY, device="cuda")
    inputs = random_inputs(MANY, 3)
    env.step(Picks(*on_device(inputs[0])))
    inputs[1, 0, 777] = 108
    env.step(Picks(*on_device(inputs[1])))
    with pytest.raises(BadInput, match=r"^lane 777, step 1: the action is outside"):
        env.check()


def test_outputs_are_ordered_with_the_streams_of_their_reader():
    """A step runs on the environment's stream; what a reader queues next on its own stream comes after it, without a wait on the host."""
    env, reference = make_env(MANY, device="cuda", emit=()), make_env(MANY, emit=())
    inputs = random_inputs(MANY, reference.schedule.decisions)
    total = torch.zeros(MANY.lanes, dtype=torch.int64, device="cuda")
    expected = torch.zeros(MANY.lanes, dtype=torch.int64)
    for row in inputs:
        env.step(Picks(*on_device(row)))
        total += env.reward_raw
        Njit(reference).step(row)
        expected += reference.reward_raw
    assert torch.equal(total.cpu(), expected)
    assert torch.equal(env.state[s.EQUITY, : MANY.lanes].cpu() - env.config.capital_usd_micros, expected)


def test_reset_by_mask_equals_the_cpu_and_keeps_addresses():
    env, reference = make_env(MANY, device="cuda"), make_env(MANY)
    mask = torch.arange(MANY.lanes) % 3 == 0
    inputs = random_inputs(MANY, 8)
    address = env.state.data_ptr()
    for turn in range(2):
        for row in inputs[4 * turn : 4 * turn + 4]:
            env.step(Picks(*on_device(row)))
            Njit(reference).step(row)
        env.reset(mask.cuda())
        reference.reset(mask)
        assert torch.equal(env.state.cpu(), reference.state)
        assert torch.equal(env.observe().cpu(), reference.observe())
    assert env.state.data_ptr() == address
