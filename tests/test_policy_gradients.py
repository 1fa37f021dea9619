"""No part of the network, and nothing that it is shown, is left without a gradient (lesson 34; seeds G15, F22)."""

import pytest
import torch

from lob.layout import BUS_SLOTS, STATE_DIM
from policy.architecture import PROFILES, profile
from policy.blocks import GROUPS
from policy.model import HISTORY_SLOTS, Model, initialise
from policy.temporal import FLOW_SLOTS

ROWS = 64


def seen(model: Model, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Observation, history and bus that gradients are asked of; a quarter of the lanes are at the start of their window."""
    generator = torch.Generator().manual_seed(seed)
    observation = torch.randn(ROWS, STATE_DIM, generator=generator)
    history = torch.randn(ROWS, model.window, HISTORY_SLOTS, generator=generator)
    history[: ROWS // 4, : model.window // 2] = 0
    bus = torch.randn(BUS_SLOTS, generator=generator)
    return tuple(tensor.requires_grad_() for tensor in (observation, history, bus))


def two_updates(model: Model) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The greatest absolute gradients of each parameter and of each input over two updates of a loss on all that the model says."""
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3)
    of_parameters = {name: torch.zeros_like(p) for name, p in model.weights.items()}
    of_inputs: dict[str, torch.Tensor] = {}
    for update in range(2):
        inputs = seen(model, update)
        said = model(*inputs)
        generator = torch.Generator().manual_seed(99)
        parts = (said.heads.logits, said.heads.quantiles, said.aux)
        loss = sum(((part - torch.randn(part.shape, generator=generator)) ** 2).mean() for part in parts)
        optimiser.zero_grad()
        loss.backward()
        for name, p in model.weights.items():
            of_parameters[name] = torch.maximum(of_parameters[name], p.grad.abs())
        for name, tensor in zip(("observation", "history", "bus"), inputs, strict=True):
            if tensor.numel() and tensor.grad is not None:
                of_inputs[name] = torch.maximum(of_inputs.get(name, torch.zeros_like(tensor)), tensor.grad.abs())
        optimiser.step()
    return of_parameters, of_inputs


@pytest.mark.parametrize("name", list(PROFILES))
def test_after_two_updates_every_parameter_and_every_input_has_had_a_gradient(name):
    model = initialise(profile(name), 3)
    of_parameters, of_inputs = two_updates(model)
    for parameter, gradient in of_parameters.items():
        assert float(gradient.max()) > 0, f"{parameter} never had a gradient"
    for group, slots in GROUPS.items():
        assert float(of_inputs["observation"][:, slots].amax(0).min()) > 0, f"a slot of {group} never had a gradient"
    assert float(of_inputs["bus"].min()) > 0, "a signal never had a gradient"
    if model.window:
        history = of_inputs["history"]
        assert float(history[ROWS // 4 :].amax((0, 2)).min()) > 0, "a row of the window never had a gradient"
        assert float(history.amax((0, 1))[list(FLOW_SLOTS)].min()) > 0, "an input of the order-flow embedding never had a gradient"
        assert float(history.amax((0, 1)).min()) > 0, "a slot of the history never had a gradient"
        assert float(history[: ROWS // 4, : model.window // 2].max()) == 0, "what lies before the start has a gradient"


def test_every_expert_every_stream_and_every_head_has_had_a_gradient():
    of_parameters, _ = two_updates(initialise(profile("default"), 3))
    for name in ("experts.w1", "experts.b1", "experts.w2", "experts.b2", "heads.bias", "scan.rate", "selection.1.weight", "gate.w2"):
        assert float(of_parameters[name].flatten(1).amax(1).min() if of_parameters[name].dim() > 1 else of_parameters[name].min()) > 0, name
    assert float(of_parameters["heads.weight"].amax(2).min()) > 0, "a stream's atom or quantile never had a gradient"


def test_with_a_gate_of_zeros_its_first_layer_never_has_a_gradient():
    """What the first values of the gate are there to prevent (lesson 40): the check above can fail."""
    model = initialise(profile("default"), 3)
    model.weights["gate.w1"].data.zero_()
    of_parameters, _ = two_updates(model)
    assert float(of_parameters["gate.w1"].max()) == 0
