"""Rewards, counts and controllers in a CUDA graph: replays with changing inputs give what eager calls give, and wait for nothing.

Skipped where there is no device.
"""

import pytest
import torch

from policy.bus import observe_labels
from policy.diag_columns import REWARD_TERMS
from policy.diag_values import pack_floats, pack_integers
from policy.explore import SelectConfig
from policy.health import ControlConfig, Controllers, LearnStats
from policy.lane_kernels import SCALED_SUM, TERM_SUMS
from policy.lane_pass import LanePass
from policy.rewards import RewardConfig
from tests.test_policy_lanes import SCALE, drawn

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

LANES = 512


def inputs(seed, lanes):
    """The tensors of one training step, drawn on the host: (step, picks, chosen, stats, labels)."""
    g = torch.Generator().manual_seed(seed)
    blocks = [torch.rand(4, generator=g) for _ in range(3)]
    figures = [torch.rand((), generator=g) for _ in range(13)]
    stats = LearnStats(*blocks, *figures, torch.rand(8, generator=g), torch.rand((), generator=g))
    return (*drawn(seed, lanes), stats, torch.randn(lanes, generator=g))


def on(device, part):
    return part.to(device) if torch.is_tensor(part) else type(part)(*(tensor.to(device) for tensor in part))


def built(device, lanes=LANES):
    """One training step's part of this over static inputs: (inputs, everything that is kept, a call that returns what it says)."""
    static = tuple(on(device, part) for part in inputs(0, lanes))
    controls = Controllers(ControlConfig(target_step=20), SelectConfig(epsilon_steps=30, bonus=0.1), device)
    of_lanes = LanePass(lanes, RewardConfig(**dict.fromkeys(REWARD_TERMS, 0.1)), SCALE, controls.state.bus)

    def call():
        step, picks, chosen, stats, label = static
        rewards = of_lanes(step, picks, chosen)
        controls.observe_step(of_lanes.counts)
        observe_labels(controls.state.bus, label, step.decided)
        controls.observe_update(stats)
        controls.update()
        packed = pack_integers(of_lanes.totals, controls.state.clock), pack_floats(of_lanes.state.unit, controls.state.bus, stats)
        return (*rewards, of_lanes.totals, *packed)

    return static, (*controls.state, controls.health_ppm, *of_lanes.state), call


def fill(static, given):
    for target, source in zip(static, given, strict=True):
        for into, value in zip(
            [target] if torch.is_tensor(target) else target, [source] if torch.is_tensor(source) else source, strict=True
        ):
            into.copy_(value)


def captured(call, kept):
    """(graph, outputs) of a call, what it keeps left as it was."""
    before = [part.clone() for part in kept]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # a look at the host would raise here
        outputs = call()
    for part, value in zip(kept, before, strict=True):
        part.copy_(value)
    return graph, outputs


def test_a_captured_step_replayed_with_changing_inputs_gives_the_bytes_of_eager_calls():
    """Lesson 42."""
    eager_in, eager_kept, eager = built("cuda")
    static, kept, call = built("cuda")
    graph, outputs = captured(call, kept)
    for seed in range(50):
        given = inputs(seed, LANES)
        fill(eager_in, given)
        fill(static, given)
        wanted = eager()
        graph.replay()
        for ours, theirs in zip((*outputs, *kept), (*wanted, *eager_kept), strict=True):
            assert torch.equal(torch.nan_to_num(ours.double(), nan=-1.0), torch.nan_to_num(theirs.double(), nan=-1.0))


def test_a_device_counts_what_the_cpu_counts_and_rewards_within_a_rounding():
    """Counts are exact. Sums of terms in ppm, and floats, rest on functions whose last bits differ between a GPU and a CPU."""
    results = []
    for device in ("cpu", "cuda"):
        static, kept, call = built(device)
        for seed in range(20):
            fill(static, inputs(seed, LANES))
            outputs = call()
        results.append([part.cpu() for part in (*outputs, *kept)])
    for place, (ours, theirs) in enumerate(zip(*results, strict=True)):
        if place == 5:  # the totals
            assert torch.equal(ours[:TERM_SUMS], theirs[:TERM_SUMS]) and torch.equal(ours[SCALED_SUM + 1 : -2], theirs[SCALED_SUM + 1 : -2])
        if ours.is_floating_point():
            assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_two_runs_on_a_device_give_the_same_bytes():
    runs = []
    for _ in range(2):
        static, kept, call = built("cuda")
        for seed in range(10):
            fill(static, inputs(seed, LANES))
            outputs = call()
        runs.append([part.cpu().numpy().tobytes() for part in (*outputs, *kept)])
    assert runs[0] == runs[1]
