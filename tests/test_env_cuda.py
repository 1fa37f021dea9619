"""The CUDA build on a real card: equal to njit bit for bit, eager and captured in a torch graph. Run by hand: `pytest -m cuda`."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cuda_env.env import EMIT  # noqa: E402
from lob.picks import Picks  # noqa: E402
from tests.env_builds import CASES, make_env, random_inputs  # noqa: E402

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")]

OUTPUTS = ("reward_raw", "terminated", "truncated", "end_reason", "last_observation")


def picks_of(inputs: np.ndarray, step: int, device: str) -> Picks:
    return Picks(*(torch.from_numpy(np.ascontiguousarray(row, np.int32)).to(device) for row in inputs[step]))


def bits(tensor) -> np.ndarray:
    values = tensor.cpu().numpy()
    return values.view(np.int32) if values.dtype == np.float32 else values


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"case-{case.seed}")
def test_cuda_equals_njit_bit_for_bit_in_every_row_observation_and_sum(case):
    host, card = make_env(case), make_env(case, "cuda")
    decisions = host.schedule.decisions
    inputs = random_inputs(case, decisions)
    for step in range(decisions + 1):
        if step < decisions:
            assert np.array_equal(bits(host.observe()), bits(card.observe())), step
            host.step(picks_of(inputs, step, "cpu"))
            card.step(picks_of(inputs, step, "cuda"))
        else:
            host.drain()
            card.drain()
        for table in EMIT:
            ours, theirs = host.rows(table), card.rows(table)
            for name, values in ours.items():
                assert np.array_equal(np.ma.getmaskarray(values), np.ma.getmaskarray(theirs[name])), (step, table, name)
                assert np.array_equal(np.ma.filled(values, 0), np.ma.filled(theirs[name], 0)), (step, table, name)
        assert host.diag() == card.diag(), step
        for name in OUTPUTS:
            assert np.array_equal(bits(getattr(host, name)), bits(getattr(card, name))), (step, name)


def test_a_captured_step_equals_eager_steps_and_keeps_every_address():
    case = CASES[0]
    eager, captured = make_env(case, "cuda"), make_env(case, "cuda")
    decisions = eager.schedule.decisions
    inputs = random_inputs(case, decisions)
    static = Picks(*(torch.zeros(case.lanes, dtype=torch.int32, device="cuda") for _ in range(4)))
    stream = captured.stream
    fresh = captured.state.clone()
    with torch.cuda.stream(stream):
        captured.observe()
        captured.step(static)  # every kernel has run once before the capture
        stream.synchronize()
        captured.state.copy_(fresh)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            captured.observe()
            captured.step(static)
    addresses = [tensor.data_ptr() for tensor in (captured.state, captured.observation, captured.reward_raw)]
    for step in range(decisions):
        eager.observe()
        seen = bits(eager.observation).copy()
        eager.step(picks_of(inputs, step, "cuda"))
        with torch.cuda.stream(stream):
            for mine, given in zip(static, picks_of(inputs, step, "cuda"), strict=True):
                mine.copy_(given)
            graph.replay()
            stream.synchronize()
        assert np.array_equal(seen, bits(captured.observation)), step
        assert np.array_equal(bits(eager.state), bits(captured.state)), step
        for name in OUTPUTS:
            assert np.array_equal(bits(getattr(eager, name)), bits(getattr(captured, name))), (step, name)
    assert addresses == [tensor.data_ptr() for tensor in (captured.state, captured.observation, captured.reward_raw)]
