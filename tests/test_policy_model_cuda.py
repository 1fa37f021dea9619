"""The network on a GPU: captured in a graph it says and learns, bit for bit, what it does when called, and near to what a CPU says."""

import pytest
import torch

from lob.layout import BUS_SLOTS, STATE_DIM
from policy.architecture import PROFILES, profile
from policy.model import HISTORY_SLOTS, Actor, Model, initialise

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]

ROWS = 512


@pytest.fixture(autouse=True)
def deterministic(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def seen(model: Model, seed: int, device: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((ROWS, STATE_DIM), (ROWS, model.window, HISTORY_SLOTS), (BUS_SLOTS,))
    return [torch.randn(*shape, generator=generator).to(device) for shape in shapes]


def captured(work) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        work()
    return graph


@pytest.mark.parametrize("name", list(PROFILES))
def test_a_captured_update_gives_the_eager_ones_gradients_for_inputs_that_change(name):
    model = initialise(profile(name), 3, "cuda")
    inputs = seen(model, 0, "cuda")
    for p in model.parameters():
        p.grad = torch.zeros_like(p)

    def work() -> None:
        for p in model.parameters():
            p.grad.zero_()
        said = model(*inputs)
        (said.heads.logits.square().mean() + said.heads.quantiles.square().mean() + said.aux.square().mean()).backward()

    graph = captured(work)
    for seed in (1, 2):
        for held, new in zip(inputs, seen(model, seed, "cuda"), strict=True):
            held.copy_(new)
        graph.replay()
        replayed = [p.grad.clone() for p in model.parameters()]
        work()
        assert all(torch.equal(a, p.grad) for a, p in zip(replayed, model.parameters(), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", list(PROFILES))
def test_a_captured_actor_follows_weights_and_observations_as_the_eager_one_does(name, dtype):
    model = initialise(profile(name), 3, "cuda")
    actor, inputs, said = Actor(model, dtype), seen(model, 0, "cuda"), {}

    def work() -> None:
        actor.refresh()
        said["heads"] = actor(*inputs)

    graph = captured(work)
    held = said["heads"]
    for seed in (1, 2):
        with torch.no_grad():
            model.flat.mul_(1.1)
        for target, new in zip(inputs, seen(model, seed, "cuda"), strict=True):
            target.copy_(new)
        graph.replay()
        replayed = [part.clone() for part in held]
        work()
        assert all(torch.equal(a, b) for a, b in zip(replayed, said["heads"], strict=True))


@pytest.mark.parametrize("name", list(PROFILES))
def test_the_first_weights_are_the_cpus_and_what_they_say_is_near_to_it(name):
    here, there = initialise(profile(name), 3, "cuda"), initialise(profile(name), 3)
    assert torch.equal(here.flat.cpu(), there.flat)
    with torch.no_grad():
        ours, theirs = here(*seen(here, 1, "cuda")), there(*seen(there, 1, "cpu"))
    assert float((ours.heads.logits.cpu() - theirs.heads.logits).abs().max()) < 1e-4
    assert float((ours.heads.quantiles.cpu() - theirs.heads.quantiles).abs().max()) < 1e-4


def test_lanes_look_up_on_the_tape_what_they_would_have_encoded():
    model = initialise(profile("default"), 3, "cuda")
    actor, (observation, history, bus) = Actor(model), seen(model, 1, "cuda")
    table = actor.encode_tape(lambda rows: history[rows], ROWS)
    own, looked_up = actor(observation, history, bus), actor(observation, None, bus, table)
    assert float((own.logits - looked_up.logits).abs().max()) < 1e-5
