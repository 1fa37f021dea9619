"""Laws of the network's parts: each against its paper's formula in numpy or plain Python, and what its first values must not do."""

import math

import numpy as np
import pytest
import torch

from lob.layout import SLOTS
from policy import blocks
from policy.architecture import Architecture, profile
from policy.losses import balance
from policy.model import Model, initialise

DEFAULT = profile("default")


def draw(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def numbers(model: Model) -> dict[str, np.ndarray]:
    return {name: tensor.detach().double().numpy() for name, tensor in model.weights.items()}


def unlike_at_first(model: Model) -> Model:
    """With every tensor away from its first values, so that nothing hides behind a zero."""
    with torch.no_grad():
        model.flat.add_(draw(len(model.flat), seed=9) * 0.05)
    return model


def test_every_slot_that_something_fills_belongs_to_exactly_one_group():
    placed = [slot for slots in blocks.GROUPS.values() for slot in slots]
    assert sorted(placed) == [i for i, name in enumerate(SLOTS) if not name.startswith("unused_")]
    assert all(blocks.GROUPS.values())


def test_the_selection_lets_everything_through_at_first_and_weighs_groups_by_a_softmax_later():
    model = initialise(DEFAULT, 3)
    x, groups = draw(5, 128), blocks.grouping("cpu", torch.float32)
    x[:, [i for i, name in enumerate(SLOTS) if name.startswith("unused_")]] = 0
    assert float((blocks.selected(model.weights, x, groups) - x).detach().abs().max()) < 1e-6
    w = numbers(unlike_at_first(model))
    hidden = x.double().numpy() @ w["selection.0.weight"].T + w["selection.0.bias"]
    hidden = np.where(hidden > 0, hidden, np.expm1(hidden))
    share = np.exp(hidden @ w["selection.1.weight"].T + w["selection.1.bias"])
    share /= share.sum(1, keepdims=True)
    expected = np.zeros((5, 128))
    for group, slots in enumerate(blocks.GROUPS.values()):
        for slot in slots:
            expected[:, slot] = x[:, slot].double().numpy() * share[:, group] * len(blocks.GROUPS)
    assert np.abs(blocks.selected(model.weights, x, groups).detach().numpy() - expected).max() < 1e-5


def test_a_gated_trunk_is_the_papers_gated_residual_network():
    """Lim et al. 2021, equations 2 to 5, with the bus as the first one's context."""
    a = Architecture(hidden=(24, 24), gated=True)
    model = unlike_at_first(initialise(a, 3))
    x, bus, w = draw(6, 128), draw(127, seed=2), numbers(model)
    y = x.double().numpy()
    for i in range(2):
        a_in = y @ w[f"trunk.{i}.weight"].T + w[f"trunk.{i}.bias"] + (w["bus.weight"] @ bus.double().numpy() if i == 0 else 0)
        eta2 = np.where(a_in > 0, a_in, np.expm1(a_in))
        eta1 = eta2 @ w[f"trunk.{i}.second.weight"].T + w[f"trunk.{i}.second.bias"]
        both = eta1 @ w[f"trunk.{i}.glu.weight"].T + w[f"trunk.{i}.glu.bias"]
        glu = both[:, :24] / (1 + np.exp(-both[:, 24:]))
        total = glu + (y @ w["trunk.0.skip.weight"].T + w["trunk.0.skip.bias"] if i == 0 else y)
        centred = total - total.mean(1, keepdims=True)
        y = centred / np.sqrt(total.var(1, keepdims=True) + 1e-5) * w[f"trunk.{i}.norm.weight"] + w[f"trunk.{i}.norm.bias"]
    assert np.abs(blocks.trunk(model.weights, x, bus, a).detach().numpy() - y).max() < 1e-5


def test_the_gate_is_uniform_at_first_and_the_mixture_is_the_mean_of_the_experts():
    model = initialise(DEFAULT, 3)
    x, h, w = draw(7, 128), draw(7, 256, seed=2), numbers(model)
    shares = blocks.gate(model.weights, x).detach()
    assert torch.equal(shares, torch.full((7, 8), 1 / 8))
    entropy = -(shares * shares.log()).sum(1)
    assert float(entropy[0]) == pytest.approx(math.log(8), abs=1e-6)
    each = [expert(w, k, h) for k in range(8)]
    assert np.abs(blocks.mixture(model.weights, h, shares).detach().numpy() - np.mean(each, axis=0)).max() < 1e-5


def expert(w: dict[str, np.ndarray], k: int, h: torch.Tensor) -> np.ndarray:
    hidden = np.maximum(h.double().numpy() @ w["experts.w1"][k].T + w["experts.b1"][k], 0)
    return hidden @ w["experts.w2"][k] + w["experts.b2"][k]


def test_the_mixture_is_the_gates_weighted_sum_of_its_experts():
    model = unlike_at_first(initialise(DEFAULT, 3))
    x, h, w = draw(7, 128), draw(7, 256, seed=2), numbers(model)
    logits = np.maximum(x.double().numpy() @ w["gate.w1"] + w["gate.b1"], 0) @ w["gate.w2"] + w["gate.b2"]
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    shares = blocks.gate(model.weights, x).detach()
    assert np.abs(shares.numpy() - expected).max() < 1e-6 and float((shares.sum(1) - 1).abs().max()) < 1e-6
    mixed = sum(expected[:, k : k + 1] * expert(w, k, h) for k in range(8))
    assert np.abs(blocks.mixture(model.weights, h, shares).detach().numpy() - mixed).max() < 1e-4


SMALL_MIXTURE = Architecture(hidden=(32,), experts=8, bottleneck=16, gate=16)


def two_regimes(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Observations of two regimes that their first slots tell apart, and a label that calls for the opposite rule in each."""
    x = draw(rows, 128, seed=seed)
    regime = torch.arange(rows) % 2 * 2 - 1
    x[:, :8] = regime.unsqueeze(1) * 2.0
    return x, x[:, 50] * regime


def learned(model: Model, steps: int, rate: float, weight: float) -> float:
    """Train the auxiliary output on both regimes; the least expert's share, averaged as the signal bus averages it."""
    optimiser = torch.optim.AdamW(model.parameters(), rate)
    used = torch.full((8,), 1 / 8)
    for step in range(steps):
        x, label = two_regimes(64, step)
        said = model(x, None, torch.zeros(127))
        optimiser.zero_grad()
        ((said.aux - label).square().mean() + weight * balance(said.gate)).backward()
        optimiser.step()
        used.lerp_(said.gate.detach().mean(0), 0.05)
    return float(used.min())


def difference(model: Model) -> float:
    """How far the mean gates of two regimes lie apart."""
    shares = blocks.gate(model.weights, two_regimes(64, 10_000)[0]).detach()
    return float((shares[::2].mean(0) - shares[1::2].mean(0)).abs().max())


def test_after_twenty_steps_on_two_regimes_the_gate_has_moved_and_tells_them_apart():
    model = initialise(SMALL_MIXTURE, 3)
    before = model.weights["gate.w1"].detach().clone()
    assert difference(model) == 0
    learned(model, 20, 3e-3, 0.01)
    assert float((model.weights["gate.w1"].detach() - before).abs().max()) > 1e-3
    assert difference(model) > 0.01


def test_a_gate_that_is_zero_throughout_never_learns_to_tell_regimes_apart():
    model = initialise(SMALL_MIXTURE, 3)
    for name in ("w1", "b1", "w2", "b2"):
        model.weights[f"gate.{name}"].data.zero_()
    learned(model, 20, 3e-3, 0.01)
    assert difference(model) == 0


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_an_expert_with_a_head_start_locks_the_others_out_unless_the_load_is_balanced(seed):
    """Lesson 41, from a gate that gives one expert all but a four-hundredth."""
    least = {}
    for weight in (0.0, 0.01):
        model = initialise(SMALL_MIXTURE, seed)
        model.weights["gate.b2"].data[0] = 8.0
        least[weight] = learned(model, 300, 1e-2, weight)
    assert least[0.0] < 0.02 < least[0.01]
