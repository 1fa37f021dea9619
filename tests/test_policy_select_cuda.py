"""The fused selection on a real CUDA device, eager and captured in a graph. Skipped where there is no device."""

import numpy as np
import pytest
import torch

from lob.errors import BadInput
from lob.picks import Picks
from policy.controls import SelectControls
from policy.heads import HeadOutput
from policy.select import Chosen, select
from policy.select_scalar import SELECTORS
from tests.select_builds import CASES, NAMES, Case, by_lane, controls_of, heads_of, lanes_of, support_of
from tests.test_policy_select_kernel import assert_same, clear_lanes, in_torch, oracle_of

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

MANY = tuple(
    Case(selector, explore, half, contrarian, lanes=2003)  # no multiple of a block's lanes
    for selector in SELECTORS
    for explore, half, contrarian in ((True, False, 1.0), (False, True, -1.0), (True, True, 1.0))
)


def on_device(heads: HeadOutput) -> HeadOutput:
    """The same views of the matrix, moved whole."""
    logits, quantiles = heads
    matrix = logits.as_strided((len(logits), logits.stride(0)), (logits.stride(0), 1)).cuda()
    each = logits.shape[2] + quantiles.shape[2]
    cells = matrix[:, : 13 * each].unflatten(1, (13, each))
    return HeadOutput(cells[..., : logits.shape[2]], cells[..., logits.shape[2] :])


class Fused:
    """The kernel with its buffers."""

    def __init__(self, case: Case, order: torch.Tensor | None = None) -> None:
        from policy.select_kernel import facts, fused_select

        lanes = lanes_of(case) if order is None else lanes_of(case)[order]
        self.stream = torch.cuda.Stream()
        self.controls = SelectControls(*(value.cuda() for value in controls_of(case)))
        self.step = torch.tensor([case.step], device="cuda")
        self.picks = Picks(*(torch.full((len(lanes),), -7, dtype=torch.int32, device="cuda") for _ in range(4)))
        self.found = facts(len(lanes), "cuda")
        dtype = torch.bfloat16 if case.half else torch.float32
        self.lanes, self.support = lanes.cuda(), support_of(case).cuda()
        with torch.cuda.stream(self.stream):
            self.launch = fused_select(
                case.atoms, case.quantiles, dtype, self.support, self.controls, case.selector, case.explore, case.seed, self.lanes,
                self.step, self.picks, self.found, self.stream,
            )  # fmt: skip

    def __call__(self, heads: HeadOutput) -> dict[str, np.ndarray]:
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            self.launch(heads)
        torch.cuda.synchronize()
        return self.result()

    def result(self) -> dict[str, np.ndarray]:
        return {name: getattr(self.picks if hasattr(self.picks, name) else self.found, name).cpu().numpy().copy() for name in NAMES}


@pytest.mark.parametrize("case", (*CASES, *MANY))
def test_the_kernel_picks_what_torch_and_the_scalar_source_pick(case):
    found = Fused(case)(on_device(heads_of(case)))
    if case.even:
        assert not found["action"].any()
        return
    clear = clear_lanes(oracle_of(case))
    assert clear.mean() > 0.97
    assert_same(found, in_torch(case), clear)
    assert_same(found, by_lane(case), clear)


@pytest.mark.parametrize("case", MANY[:3])
def test_torch_on_the_device_picks_what_torch_on_the_cpu_does(case):
    heads, controls = on_device(heads_of(case)), SelectControls(*(value.cuda() for value in controls_of(case)))
    lanes, step = lanes_of(case).cuda(), torch.tensor([case.step], device="cuda")
    chosen: Chosen = select(heads, support_of(case).cuda(), controls, case.selector, case.explore, case.seed, lanes, step)
    assert (chosen.action.cpu().numpy() == in_torch(case)["action"])[clear_lanes(oracle_of(case))].all()


@pytest.mark.parametrize("case", MANY[::3])
def test_a_lanes_results_are_the_same_bits_in_any_order_any_grid_and_again(case):
    """Lesson 36."""
    heads = heads_of(case)
    whole = Fused(case)(on_device(heads))
    assert all(np.array_equal(whole[name], again) for name, again in Fused(case)(on_device(heads)).items())
    order = torch.randperm(case.lanes, generator=torch.Generator().manual_seed(1))
    for part in (order, order[:1], order[:7], order[:129]):
        cells = torch.cat(heads, dim=2)[part]
        some = HeadOutput(cells[..., : case.atoms], cells[..., case.atoms :])
        for name, values in Fused(case, part)(on_device(some)).items():
            assert np.array_equal(values, whole[name][part.numpy()]), (name, len(part))


def test_a_captured_graph_follows_heads_controls_and_step_as_they_change():
    case = Case("boltzmann", True, True, lanes=1000)
    fused, heads = Fused(case), on_device(heads_of(case))
    fused(heads)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=fused.stream):
        fused.launch(heads)
        fused.step.add_(1)
    for turn in range(3):
        heads.logits.mul_(0.5)
        fused.controls.epsilon.fill_(0.3 * turn)
        fused.step.fill_(turn + 10)
        eager = Fused(case)
        eager.controls.epsilon.copy_(fused.controls.epsilon)
        eager.step.copy_(fused.step)
        expected = eager(heads)
        with torch.cuda.stream(fused.stream):
            graph.replay()
        torch.cuda.synchronize()
        for name, values in fused.result().items():
            assert np.array_equal(values, expected[name]), (turn, name)
        assert int(fused.step) == turn + 11


def test_heads_of_another_type_shape_or_layout_are_refused():
    case = Case("greedy", False, False, lanes=16)
    fused, heads = Fused(case), on_device(heads_of(case))
    apart = HeadOutput(heads.logits.contiguous(), heads.quantiles.contiguous())
    other = on_device(heads_of(case._replace(half=True)))
    for wrong in (apart, other, HeadOutput(heads.logits[:8], heads.quantiles[:8]), HeadOutput(heads.logits, heads.quantiles[..., :4])):
        with torch.cuda.stream(fused.stream), pytest.raises(BadInput):
            fused.launch(wrong)
