"""A fold begins as a first one does: everything that remembers is found, and put back or made anew."""

import importlib
import inspect
from pathlib import Path

import pytest
import torch

from policy.bands import MetricBandsRegistry
from policy.bus import control_state
from policy.explore import SelectConfig
from policy.fold import MADE_ANEW, RESETS, reset_for_fold
from policy.health import ControlConfig, Controllers
from policy.rewards import reward_state

POLICY = Path(__file__).resolve().parent.parent / "policy"
REMEMBERING = ("restore", "load_state_dict", "load_state", "load")
NEEDS_A_GPU = "cuda"


def stateful_classes():
    """Every class of the package that says it keeps state: a tuple of tensors called ...State, or a class that can be restored."""
    found = {}
    for path in sorted(POLICY.glob("*.py")):
        if NEEDS_A_GPU in path.stem or path.stem == "__init__":
            continue
        module = importlib.import_module(f"policy.{path.stem}")
        for name, value in vars(module).items():
            if not inspect.isclass(value) or value.__module__ != module.__name__:
                continue
            if name.endswith("State") or any(callable(getattr(value, method, None)) for method in REMEMBERING):
                found[name] = value
    return found


def test_every_class_that_keeps_state_is_reset_or_made_anew():
    """Lesson 30: a streak that no reset knew ended a healthy run."""
    found = stateful_classes()
    assert {"ControlState", "RewardState", "MetricBandsRegistry", "Model", "Memory"} <= set(found), "the search finds what is known"
    assert {name for name in found if name not in MADE_ANEW} == {kind.__name__ for kind in RESETS}


def states():
    return control_state(), reward_state(3), MetricBandsRegistry()


def contents(state):
    """All that an instance holds, by introspection."""
    held = state._asdict() if hasattr(state, "_asdict") else vars(state)
    return {name: value.tolist() if torch.is_tensor(value) else value for name, value in held.items()}


def disturb(state):
    """Change every part that an instance holds, whatever it is called."""
    for name, value in (state._asdict() if hasattr(state, "_asdict") else dict(vars(state))).items():
        if torch.is_tensor(value):
            value.add_(3)
        elif name != "bands":
            setattr(state, name, {"x": (5, 5)} if isinstance(value, dict) else [1.0])


def test_a_reset_leaves_every_part_of_every_state_as_in_a_new_one():
    disturbed = states()
    for state, fresh in zip(disturbed, states(), strict=True):
        disturb(state)
        assert all(contents(state)[name] != value for name, value in contents(fresh).items() if name != "bands")
    reset_for_fold(*disturbed)
    assert [contents(state) for state in disturbed] == [contents(fresh) for fresh in states()]
    assert {type(state) for state in disturbed} == set(RESETS)


def test_controls_after_a_reset_are_those_of_a_first_start():
    controls = Controllers(ControlConfig(), SelectConfig())
    first = controls.state.bus.clone()
    disturb(controls.state)
    reset_for_fold(controls.state)
    controls.update()
    assert torch.equal(controls.state.bus, first)


def test_a_state_without_a_declared_reset_is_refused_by_name():
    with pytest.raises(TypeError, match="no reset is declared for list"):
        reset_for_fold([])
