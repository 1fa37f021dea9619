"""The learner on a CUDA device: an update captured in a graph equals the eager one while rate, discount, shares and counters change."""

import pytest
import torch

from policy.controls import LearnControls, learn_controls
from policy.learner import learn
from tests.learners import World, fill, make_learner, make_memory

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


@pytest.fixture(autouse=True)
def exact():
    """Deterministic algorithms, as training has them by default."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def play(captured: bool, updates: int, dtype=torch.float32, **config):
    world, learner = World(device="cuda"), make_learner(device="cuda", dtype=dtype, **config)
    memory = make_memory(learner)
    fill(memory)
    controls = learn_controls("cuda", share_c51=0.3, share_iqn=0.4, share_cql=0.2, share_aux=0.1)
    drift = LearnControls(*(torch.tensor(0.999, device="cuda") for _ in controls))
    losses = torch.zeros(updates + 3, device="cuda")
    at = torch.zeros(1, dtype=torch.int64, device="cuda")

    def once():
        stats = learn(learner, memory, world.assemble, world.history, world.bus, controls)
        losses.index_copy_(0, at, stats.loss.reshape(1))
        at.add_(1)
        for value, factor in zip(controls, drift, strict=True):
            value.mul_(factor)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            once()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        if captured:
            with torch.cuda.graph(graph, stream=stream):
                once()
        for _ in range(updates):
            graph.replay() if captured else once()
        torch.cuda.synchronize()
    return learner, memory, losses.cpu()


@pytest.mark.parametrize("config", [{}, {"target": "sarsa", "n_step": 3, "popart": 1.0}], ids=["max", "sarsa"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fifty_captured_updates_equal_fifty_eager_ones_bit_for_bit(config, dtype, tmp_path):
    (learner, memory, losses), (twin, other, theirs) = play(False, 50, dtype, **config), play(True, 50, dtype, **config)
    assert torch.equal(losses, theirs) and len(set(losses.tolist())) > 45
    ours, its = learner.state_dict(), twin.state_dict()
    assert all(torch.equal(ours[name], its[name]) for name in ours) and int(ours["updates"]) == 53
    assert torch.equal(memory.sums, other.sums) and int(other.drawn) == 53
    learner.check(tmp_path, memory)


def test_a_device_learns_what_the_cpu_learns():
    learner, _, losses = play(True, 50)
    world, twin = World(), make_learner()
    memory = make_memory(twin)
    fill(memory)
    controls = learn_controls(share_c51=0.3, share_iqn=0.4, share_cql=0.2, share_aux=0.1)
    first = learn(twin, memory, world.assemble, world.history, world.bus, controls)
    assert float(first.loss) == pytest.approx(float(losses[0]), rel=1e-4)
    assert torch.isfinite(learner.model.flat).all()


def test_the_losses_on_a_device_are_the_cpus():
    from tests.test_policy_losses import case

    boards = []
    for device in ("cpu", "cuda"):
        made, given = case(9, batch=1000, device=device)
        boards.append(made(**{name: tensor.to(device) for name, tensor in given.items()}))
    for name, ours, theirs in zip(boards[0]._fields, *boards, strict=True):
        assert torch.allclose(ours.double(), theirs.double().cpu(), rtol=1e-3, atol=1e-6), name
