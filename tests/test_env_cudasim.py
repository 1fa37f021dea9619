"""The CUDA kernels in numba's simulator: indexing, bounds and order of launches. Types and the device itself are for the `cuda` tests."""

import numpy as np
import pytest

from tests.env_builds import CASES, LIVE, NUMBERED, WINDOWED, Njit, short, trace, trace_elsewhere, trace_fused
from tests.test_env_three_builds import assert_equal


@pytest.mark.cudasim
def test_simulated_cuda_kernels_equal_njit_bit_for_bit(tmp_path):
    cases = (CASES[0], CASES[2], WINDOWED[0], LIVE[0])
    for case, simulated in zip(cases, trace_elsewhere("cudasim", cases, tmp_path), strict=True):
        assert_equal(trace(short(case), Njit), simulated)
        assert_equal(trace_fused(short(case), Njit), dict(np.load(tmp_path / f"fused{NUMBERED.index(case)}.npz")))
