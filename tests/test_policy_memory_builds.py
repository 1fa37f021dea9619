"""Replay's kernels are one text: plain Python with unbounded integers, njit, the CUDA simulator and a CUDA device leave the same bits."""

import numpy as np
import pytest
import torch

from tests import replay_builds

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")


def assert_equal(ours, theirs):
    assert set(ours) == set(theirs)
    for name in ours:
        assert np.array_equal(ours[name], theirs[name]), name


@pytest.mark.parametrize("build", ["plain", pytest.param("cudasim", marks=pytest.mark.cudasim)])
def test_plain_python_and_simulated_cuda_equal_njit(build, tmp_path):
    assert_equal(replay_builds.trace(None), replay_builds.trace_elsewhere(build, tmp_path))


@pytest.mark.cuda
@needs_cuda
def test_a_cuda_device_equals_njit():
    ours, theirs = replay_builds.trace(None), replay_builds.trace(None, device="cuda")
    # A power and a fused multiply-add may differ in the last bit; integers that do not hang on one may not.
    exact = {"generation", "action", "taken", "row", "next_row", "label_row", "lane_row", "next_lane_row", "episode", "step", "written"}
    assert_equal({name: ours[name] for name in exact}, {name: theirs[name] for name in exact})
    for name in set(ours) - exact - {"words"}:
        assert np.allclose(ours[name], theirs[name], rtol=1e-5), name


@pytest.mark.cuda
@needs_cuda
def test_a_captured_step_equals_the_eager_one():
    from policy.memory import Memory

    def play(captured: bool):
        memory = Memory(64, 20, 128, 3, 0.6, 5, "cuda")
        time = torch.zeros((), dtype=torch.int64, device="cuda")
        lanes = torch.arange(64, device="cuda")
        rows = torch.arange(16, device="cuda") + torch.zeros(64, 1, device="cuda")
        gamma, beta = torch.tensor(0.9, device="cuda"), torch.tensor(0.4, device="cuda")

        def once():
            ends = (time + lanes) % 7 == 0
            memory.add(
                lanes + time, rows + time, lanes, (lanes + time).float(), lanes + time + 1, rows - time,
                ends & (lanes % 2 == 0), ends, lanes % 5 > 0, torch.zeros_like(lanes), time + 0 * lanes,
            )  # fmt: skip
            sample = memory.sample(gamma, beta)
            memory.update(sample, sample.returns.abs() * 0.01)
            time.add_(1)
            gamma.mul_(0.999)

        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                once()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            if captured:
                with torch.cuda.graph(graph, stream=stream):
                    once()
            for _ in range(50):
                graph.replay() if captured else once()
            torch.cuda.synchronize()
        return memory.state_dict()

    eager, captured = play(False), play(True)
    assert all(torch.equal(eager[name], captured[name]) for name in eager if name != "settings")
    assert int(captured["written"]) == 53
