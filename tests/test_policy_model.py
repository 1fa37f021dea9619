"""Laws of the network: one manifest, equal seeds, dueling folded into weights, gradients that reach everything."""

import copy
import hashlib
from statistics import NormalDist

import numpy as np
import pytest
import torch

from lob.errors import BadInput, NotFound
from lob.layout import BUS_SLOTS, STATE_DIM
from policy.architecture import PROFILES, Architecture, ModelConfig, profile
from policy.distributions import distributions
from policy.heads import BRANCHES, CHOICES, HeadOutput
from policy.model import HISTORY_SLOTS, Actor, Model, fold, initialise, layout, parameters, support, unreached
from policy.weights import ALIGN, TensorSpec, fingerprint, offsets


def inputs(architecture: Architecture, rows: int = 8, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """An observation, its history and a bus, as the environment and the controllers would give them."""
    generator = torch.Generator().manual_seed(seed)
    observation = torch.randn(rows, STATE_DIM, generator=generator)
    history = torch.randn(rows, architecture.window, HISTORY_SLOTS, generator=generator)
    if architecture.window:
        history[:, -1] = observation[:, :HISTORY_SLOTS]
    return observation, history, torch.randn(BUS_SLOTS, generator=generator)


def hash_of(model: Model) -> str:
    return hashlib.sha256(b"".join(tensor.detach().numpy().tobytes() for tensor in model.state_dict().values())).hexdigest()


WINDOW = {"window": 16, "row": 54, "flow": 10, "states": 16, "scan_heads": 8, "attention_heads": 4}

every_profile = pytest.mark.parametrize("name", list(PROFILES))


@every_profile
def test_two_networks_of_one_seed_are_equal_and_the_global_generator_is_not_touched(name):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, two, other = (initialise(profile(name), seed) for seed in (7, 7, 8))
    assert torch.equal(before, torch.get_rng_state())
    assert hash_of(one) == hash_of(two) != hash_of(other)


@every_profile
def test_the_networks_tensors_are_those_of_the_layout_in_its_order(name):
    architecture = profile(name)
    model, specs = initialise(architecture, 3), layout(architecture)
    assert {key: tuple(value.shape) for key, value in model.state_dict().items()} == {spec.name: spec.shape for spec in specs}
    assert list(model.weights) == [spec.name for spec in specs]
    assert parameters(architecture) == sum(p.numel() for p in model.parameters())


@every_profile
def test_the_flat_buffer_holds_every_parameter_at_its_aligned_place(name):
    architecture = profile(name)
    model, specs = initialise(architecture, 3), layout(architecture)
    places = offsets(specs)
    assert all(place % ALIGN == 0 for place in places)
    for spec, place in zip(specs, places, strict=False):
        assert torch.equal(model.flat[place : place + spec.size].view(spec.shape), model.weights[spec.name])
    model.flat.fill_(2.0)
    assert all(bool((p == 2).all()) for p in model.parameters())


def test_a_tensors_first_values_do_not_change_when_another_layer_is_added():
    small, large = initialise(Architecture(hidden=(128, 64)), 3), initialise(Architecture(hidden=(128, 64, 64)), 3)
    assert torch.equal(small.weights["trunk.0.weight"], large.weights["trunk.0.weight"])
    assert torch.equal(small.weights["heads.weight"], large.weights["heads.weight"])


def test_a_copy_has_weights_of_its_own():
    model = initialise(profile("small"), 3)
    twin = copy.deepcopy(model)
    twin.flat.zero_()
    assert hash_of(model) == hash_of(initialise(profile("small"), 3))
    assert not any(bool(p.any()) for p in twin.parameters())


def test_the_profiles_have_the_sizes_that_were_asked_for():
    assert 90_000 < parameters(profile("small")) < 110_000
    trunk = initialise(profile("trunk"), 1)
    read_per_row = sum(trunk.weights[f"trunk.{i}.weight"].numel() for i in (0, 1)) + fold(trunk)[0].numel()
    assert 250_000 < read_per_row < 350_000
    with pytest.raises(NotFound, match="small, trunk, default"):
        profile("large")


def test_the_mixture_has_the_seeds_parameter_counts():
    """T38, G11: all from the one layout."""
    size = {spec.name: spec.size for spec in layout(profile("default"))}
    of_experts = sum(size[f"experts.{part}"] for part in ("w1", "b1", "w2", "b2"))
    of_gate = sum(size[f"gate.{part}"] for part in ("w1", "b1", "w2", "b2"))
    assert (of_experts // 8, of_gate, of_experts + of_gate) == (33_088, 8_776, 273_480)
    assert size["flow.weight"] + size["flow.bias"] == 190


def test_a_tensor_that_nothing_reads_is_an_error(monkeypatch):
    whole = layout(profile("small"))
    monkeypatch.setattr("policy.model.layout", lambda architecture: (*whole, TensorSpec("legacy.weight", (3, 3))))
    with pytest.raises(ValueError, match=r"no output depends on legacy\.weight"):
        initialise(profile("small"), 1)


@every_profile
def test_every_tensor_is_reached_from_the_outputs(name):
    assert unreached(initialise(profile(name), 1)) == []


@every_profile
def test_what_is_said_of_a_choice_is_its_branchs_value_plus_its_advantage_less_the_mean_one(name):
    """Against numpy in float64, from the unfolded head."""
    architecture = profile(name)
    model = initialise(architecture, 3)
    observation, history, bus = inputs(architecture)
    with torch.no_grad():
        features, _ = model.body(observation, history, bus)
        heads = model(observation, history, bus).heads
    weight, bias = (model.weights[f"heads.{part}"].detach().double().numpy() for part in ("weight", "bias"))
    streams = np.einsum("bi,sai->bsa", features.double().numpy(), weight) + bias
    expected, first = [], 0
    for size in BRANCHES.values():
        value, advantage = streams[:, first : first + 1], streams[:, first + 1 : first + 1 + size]
        expected.append(value + advantage - advantage.mean(axis=1, keepdims=True))
        first += 1 + size
    combined = np.concatenate(expected, axis=1)
    assert heads.logits.shape == (8, 13, architecture.atoms) and heads.quantiles.shape == (8, 13, architecture.quantiles)
    assert np.abs(heads.logits.numpy() - combined[..., : architecture.atoms]).max() < 1e-5
    assert np.abs(heads.quantiles.numpy() - combined[..., architecture.atoms :]).max() < 1e-5


@pytest.mark.parametrize(("atoms", "quantiles"), [(51, 5), (7, 3), (51, 32)])
def test_the_folded_heads_width_is_a_multiple_of_eight_and_its_output_is_views(atoms, quantiles):
    architecture = Architecture(atoms=atoms, quantiles=quantiles)
    model = initialise(architecture, 3)
    weight, bias = fold(model)
    assert weight.shape[0] == bias.shape[0] == -(-13 * (atoms + quantiles) // 8) * 8
    heads = model(*inputs(architecture)).heads
    assert heads.logits.untyped_storage().data_ptr() == heads.quantiles.untyped_storage().data_ptr()
    assert heads.logits.shape == (8, 13, atoms) and heads.quantiles.shape == (8, 13, quantiles)


@every_profile
def test_in_bfloat16_a_forward_pass_says_nearly_the_same_and_the_weights_stay_float32(name):
    architecture = profile(name)
    model = initialise(architecture, 3)
    exact, coarse = (model(*inputs(architecture), dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
    assert coarse.heads.logits.dtype == torch.bfloat16 and model.flat.dtype == torch.float32
    for a, b in ((exact.heads.logits, coarse.heads.logits), (exact.heads.quantiles, coarse.heads.quantiles)):
        assert float((a - b.float()).detach().abs().max()) < 0.05 * float(a.detach().abs().max())
    coarse.heads.logits.float().sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in model.parameters() if p.grad is not None)


def test_the_support_spans_the_values_range_in_equal_steps():
    z = support(Architecture(value_min=-4.0, value_max=6.0, atoms=11))
    assert z.tolist() == pytest.approx([-4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6])


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"hidden": ()}, "hidden widths"),
        ({"hidden": (64.0,)}, "hidden widths"),
        ({"hidden": (10**12,)}, "hidden widths"),
        ({"hidden": (True,)}, "hidden widths"),
        ({"atoms": 1}, "atoms is 1"),
        ({"quantiles": 0}, "quantiles is 0"),
        ({"gated": 1}, "gated is 1"),
        ({"window": 16}, "row is 0, and window not"),
        ({"experts": 8}, "bottleneck is 0, and experts not"),
        ({"experts": 9, "bottleneck": 64, "gate": 64}, "experts is 9"),
        ({"experts": 1, "bottleneck": 64, "gate": 64}, "a gate over one expert"),
        (WINDOW | {"scan_heads": 7}, "scan_heads is 7: row \\+ flow, 64"),
        (WINDOW | {"attention_heads": 5}, "attention_heads is 5"),
        ({"value_max": -11.0}, "its start must lie below"),
        ({"value_max": float("nan")}, "finite decimals"),
    ],
)
def test_a_size_that_cannot_be_built_is_refused_in_one_line(sizes, says):
    with pytest.raises(BadInput, match=says) as caught:
        Architecture(**sizes)
    assert "\n" not in str(caught.value)


def test_the_fingerprint_changes_with_every_tensors_shape_and_name_and_with_what_else_is_told():
    specs = layout(profile("small"))
    prints = {fingerprint(specs), fingerprint(specs, "bus")}
    for i, spec in enumerate(specs):
        wider = spec._replace(shape=(*spec.shape[:-1], spec.shape[-1] + 1))
        for other in (wider, spec._replace(name=f"{spec.name}x")):
            prints.add(fingerprint((*specs[:i], other, *specs[i + 1 :])))
    prints.add(fingerprint((specs[1], specs[0], *specs[2:])))
    assert len(prints) == 3 + 2 * len(specs)
    assert fingerprint(specs) == fingerprint(layout(Architecture()))


@every_profile
def test_an_actor_says_what_its_model_says_and_follows_it_when_refreshed(name):
    architecture = profile(name)
    model = initialise(architecture, 3)
    seen = inputs(architecture)
    exact, coarse = Actor(model), Actor(model, torch.bfloat16)
    places = [tensor.data_ptr() for actor in (exact, coarse) for tensor in (actor.weight, actor.bias, actor.body.flat)]
    for _ in range(2):
        said = model(*seen).heads
        for logits in (exact(*seen).logits, exact(*seen).logits):
            assert float((logits - said.logits).detach().abs().max()) < 1e-5
        assert float((exact(*seen).quantiles - said.quantiles).detach().abs().max()) < 1e-5
        assert coarse(*seen).logits.dtype == torch.bfloat16
        assert float((coarse(*seen).logits.float() - said.logits).detach().abs().max()) < 0.05 * float(said.logits.detach().abs().max())
        with torch.no_grad():
            model.flat.mul_(1.5)
        exact.refresh()
        coarse.refresh()
    assert places == [tensor.data_ptr() for actor in (exact, coarse) for tensor in (actor.weight, actor.bias, actor.body.flat)]


def test_a_config_is_a_profile_and_what_differs_from_it():
    assert ModelConfig().architecture() == profile("small")
    changed = ModelConfig(profile="default", window=32, experts=4).architecture()
    assert (changed.window, changed.experts, changed.hidden) == (32, 4, profile("default").hidden)
    for wrong, says in (({"profile": "huge"}, "choose one of"), ({"experts": 3}, "bottleneck is 0"), ({"wide": 3}, "wide")):
        with pytest.raises(ValueError, match=says):
            ModelConfig(**wrong)


def test_a_config_can_change_every_size_of_the_architecture():
    assert set(ModelConfig.model_fields) - {"profile"} == set(Architecture().document())


def test_before_anything_is_learnt_every_choice_is_said_to_be_normal_with_a_deviation_of_one():
    model = initialise(Architecture(), 3)
    said = model(torch.zeros(2, STATE_DIM), None, torch.zeros(BUS_SLOTS)).heads
    c51, _ = distributions(HeadOutput(*(part.detach() for part in said)), support(model.architecture))
    assert torch.allclose(c51.sigma(), torch.ones(2, CHOICES), atol=0.1)
    assert c51.mean().abs().max() < 0.5
    expected = torch.tensor([NormalDist().inv_cdf(tau) for tau in (0.1, 0.3, 0.5, 0.7, 0.9)])
    assert (said.quantiles - expected).abs().max() < 0.6  # the layers' own first values are spread around it
