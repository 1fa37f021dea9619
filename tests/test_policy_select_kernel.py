"""The fused selection's scalar source against `policy.select` and the plain-Python oracle: njit, plain Python, and the CUDA simulator."""

import numpy as np
import pytest
import torch

from lob.picks import Picks
from policy.select import SELECTORS, select, to_picks
from policy.select_scalar import BOLTZMANN, GREEDY, THOMPSON, bfloat16_value, to_ppm
from tests.select_builds import CASES, Case, by_lane, controls_of, elsewhere, floats_of, heads_of, lanes_of, short, support_of
from tests.select_cases import NEAR_TIE, assert_follows, oracle_picks


def in_torch(case: Case) -> dict[str, np.ndarray]:
    """`select` and `to_picks` of the case."""
    lanes, step = lanes_of(case), torch.tensor([case.step])
    chosen = select(heads_of(case), support_of(case), controls_of(case), case.selector, case.explore, case.seed, lanes, step)
    picks = to_picks(chosen, torch.tensor(0), Picks(*(torch.zeros(case.lanes, dtype=torch.int32) for _ in range(4))))
    facts = {name: getattr(chosen, name).numpy() for name in ("q_range", "q_sigma", "p_best", "tau", "explored")}
    return {name: getattr(picks, name).numpy() for name in ("action", "conviction_ppm", "variance_scale_ppm")} | facts


def oracle_of(case: Case):
    arguments = (support_of(case), controls_of(case), case.selector, case.explore, case.seed, lanes_of(case), case.step)
    return oracle_picks(floats_of(heads_of(case)), *arguments)


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray], clear: np.ndarray) -> None:
    """The same picks on clear lanes; what goes with them to the last bits of a float32 sum."""
    for name in ("action", "explored"):
        assert (one[name] == other[name])[clear].all(), name
    for name in ("conviction_ppm", "variance_scale_ppm"):
        assert np.abs(one[name].astype(int) - other[name])[clear].max() <= 5, name
    for name in ("q_range", "q_sigma", "p_best", "tau"):
        assert np.allclose(one[name][clear], other[name][clear], rtol=2e-5, atol=2e-5), name


def clear_lanes(oracle) -> np.ndarray:
    return np.array([lane.margin > NEAR_TIE for lane in oracle])


@pytest.mark.parametrize("case", [case for case in CASES if not case.even])
def test_the_scalar_source_picks_what_torch_and_plain_python_pick(case):
    oracle = oracle_of(case)
    found, reference = by_lane(case), in_torch(case)
    assert_same(found, reference, clear_lanes(oracle))
    assert_follows(oracle, {name: found[name] for name in ("action", "explored", "q_range", "q_sigma", "p_best", "tau")})
    ppm = {name: np.array([round(getattr(lane, name) * 10**6) for lane in oracle]) for name in ("conviction", "variance_scale")}
    for name, expected in ppm.items():
        assert np.abs(found[f"{name}_ppm"] - expected)[clear_lanes(oracle)].max() <= 5


@pytest.mark.cudasim
def test_the_simulated_kernel_picks_what_the_scalar_source_does_lane_by_lane(tmp_path):
    """Indexing, bounds, synchronisation: bit for bit, since both are the same floats in plain Python."""
    (tmp_path / "plain").mkdir()
    (tmp_path / "sim").mkdir()
    cases = (CASES[2], CASES[4], CASES[5])
    plain, sim = elsewhere("plain", cases, tmp_path / "plain"), elsewhere("cudasim", cases, tmp_path / "sim")
    for case, one, other in zip(cases, plain, sim, strict=True):
        for name, values in one.items():
            assert np.array_equal(values, other[name]), (case, name)
        small = short(case)
        assert_same(by_lane(small), other, clear_lanes(oracle_of(small)))


def test_equal_choices_tie_to_the_lowest_code():
    even = next(case for case in CASES if case.even)
    assert not by_lane(even)["action"].any() and not in_torch(even)["action"].any()


@pytest.mark.parametrize("build", ["compiled", "plain"])
def test_bfloat16_bits_become_the_float_that_they_stand_for(build):
    function = bfloat16_value if build == "compiled" else bfloat16_value.py_func
    values = torch.tensor([0.0, -0.0, 1.0, -2.5, 3.140625, 1e-30, -1e30, torch.inf, -torch.inf]).bfloat16()
    for bits, value in zip(values.view(torch.int16).numpy(), values.float().tolist(), strict=True):
        found = function(bits)
        assert float(found) == value and np.signbit(found) == np.signbit(value)
    assert np.isnan(function(np.int16(0x7FC0)))


@pytest.mark.parametrize("build", ["compiled", "plain"])
def test_ppm_round_to_the_nearest_halves_to_even_and_no_number_is_0(build):
    function = to_ppm if build == "compiled" else to_ppm.py_func
    values = np.concatenate([np.random.default_rng(0).random(2000), np.arange(0, 65, dtype=float) / 64]).astype(np.float32)
    assert [int(function(value)) for value in values] == [round(float(value) * 10**6) for value in values.astype(np.float64)]
    assert int(function(np.float32(np.nan))) == 0


def test_the_scalar_source_numbers_the_selectors_as_their_names_stand():
    assert [SELECTORS.index(name) for name in ("greedy", "boltzmann", "thompson")] == [GREEDY, BOLTZMANN, THOMPSON]
