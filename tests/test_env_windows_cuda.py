"""Windows and restarts on a real CUDA device, captured in a graph. Skipped where there is no device."""

import pytest
import torch

from tests.env_builds import WINDOWED, Njit, make_env, random_inputs
from tests.test_env_cuda import capture, on_device

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

MANY = WINDOWED[0]._replace(lanes=1000)  # several blocks, the last one partly filled; restarts


def test_a_captured_graph_begins_lanes_anew_as_njit_does():
    reference, env = make_env(MANY), make_env(MANY, device="cuda")
    inputs = random_inputs(MANY, MANY.steps)
    graph, _held = capture(env, on_device(inputs), observe=True)
    restarted = 0
    for row in inputs:
        Njit(reference).observe()
        Njit(reference).step(row)
        restarted += int((reference.terminated | (reference.closed & reference.truncated)).sum())
        with torch.cuda.stream(env.stream):
            graph.replay()
    torch.cuda.synchronize()
    assert restarted > 1000
    for name, tensor in reference.state_dict().items():
        assert tensor.numpy().tobytes() == env.state_dict()[name].cpu().numpy().tobytes(), name
    assert reference.diag() == env.diag()
    reference.close_all()
    env.close_all()
    assert torch.equal(reference.state, env.state.cpu()) and reference.diag() == env.diag()


def test_history_and_assembly_can_be_captured_and_equal_the_cpu():
    reference, env = make_env(MANY), make_env(MANY, device="cuda")
    seen = env.observe()
    with torch.cuda.stream(env.stream):
        for _ in range(2):
            env.history(8)
            env.assemble(env.row, seen[:, 96:112])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=env.stream):
        history = env.history(8)
        assembled = env.assemble(env.row, env.observe()[:, 96:112])
    for row in random_inputs(MANY, 20):
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(history.cpu(), reference.history(8))
        assert torch.equal(assembled.cpu(), reference.observe())
        Njit(reference).step(row)
        env.step(_picks(row))
        torch.cuda.synchronize()


def _picks(row):
    from lob.picks import Picks

    return Picks(*on_device(row))


def test_a_saved_state_goes_on_from_one_device_to_the_other():
    reference, env = make_env(MANY), make_env(MANY, device="cuda")
    inputs = random_inputs(MANY, 60)
    for row in inputs[:30]:
        Njit(reference).step(row)
    env.load_state_dict({name: tensor.cuda() for name, tensor in reference.state_dict().items()})
    for row in inputs[30:]:
        Njit(reference).step(row)
        env.step(_picks(row))
    assert torch.equal(reference.state, env.state.cpu()) and reference.diag() == env.diag()
