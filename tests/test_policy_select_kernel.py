"""The fused selection's scalar source against `policy.select` and the plain-Python oracle: njit, plain Python, and the CUDA simulator."""

import numpy as np
import pytest
import torch

from lob.errors import BadInput
from lob.picks import Picks
from policy.heads import HeadOutput
from policy.select import select, to_picks
from policy.select_scalar import bfloat16_value, sample, to_ppm
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


def test_the_kernel_reads_the_models_heads_where_they_are():
    """The matrix of a real network's heads, and of the cases; what is laid out otherwise is refused."""
    from policy.architecture import Architecture
    from policy.model import initialise
    from policy.select_kernel import matrix_of

    model = initialise(Architecture(), 1)
    with torch.no_grad():
        history = torch.zeros(3, model.window, 96) if model.window else None
        heads = model(torch.randn(3, 128), history, torch.zeros(127)).heads
    matrix = matrix_of(heads)
    each = heads.logits.shape[2] + heads.quantiles.shape[2]
    assert matrix.data_ptr() == heads.logits.data_ptr() and matrix.is_contiguous()
    assert torch.equal(matrix[:, : 13 * each].view(3, 13, each), torch.cat(heads, dim=2))
    half = heads_of(CASES[3])
    assert matrix_of(half).dtype == torch.int16
    assert torch.equal(matrix_of(half).view(torch.bfloat16)[:, :51], half.logits[:, 0])
    apart = HeadOutput(*(part.contiguous() for part in heads))
    for wrong in (apart, HeadOutput(heads.logits[:, :, :-1], heads.quantiles), HeadOutput(heads.logits[:, 1:], heads.quantiles[:, 1:])):
        with pytest.raises(BadInput, match="views of one matrix"):
            matrix_of(wrong)


def test_a_block_fits_into_shared_memory_and_its_warps_meet_in_no_bank():
    from policy.select_kernel import MAX_CELLS, ROWS, row_pitch

    for each in range(2, MAX_CELLS + 1):
        pitch = row_pitch(each)
        small = 4 * (MAX_CELLS + ROWS * (13 + 3 * 4 + 4)) + ROWS * 4  # support, scores, three of the directions, codes; explored
        assert 13 * each <= pitch and 4 * ROWS * pitch + small <= 48 * 1024
    pitch = row_pitch(56)
    assert len({(row * pitch + choice * 56) % 32 for row in range(8) for choice in range(4)}) == 32


@pytest.mark.parametrize("build", ["compiled", "plain"])
def test_bfloat16_bits_become_the_float_that_they_stand_for(build):
    function = bfloat16_value if build == "compiled" else bfloat16_value.py_func
    values = torch.tensor([0.0, -0.0, 1.0, -2.5, 3.140625, 1e-30, -1e30, torch.inf, -torch.inf]).bfloat16()
    for bits, value in zip(values.view(torch.int16).numpy(), values.float().tolist(), strict=True):
        found = function(bits)
        assert float(found) == value and np.signbit(found) == np.signbit(value)
    assert np.isnan(function(np.int16(0x7FC0)))


@pytest.mark.parametrize("build", ["compiled", "plain"])
def test_a_draw_at_a_boundary_meets_the_atom_after_it_and_one_without_weight_never(build):
    """Weights 0 2 2 0 on the values 10 20 30 40, and a quantile of 0: half of the atom."""
    function = sample if build == "compiled" else sample.py_func
    cells, support = np.array([0, 2, 2, 0, 0], np.float32), np.array([10, 20, 30, 40], np.float32)
    draws = {0.0: 20, 0.25: 20, 0.5: 30, 1 - 2.0**-24: 30}
    zero, total = np.float32(0), np.float32(4)
    assert {u: 2 * float(function(cells, 0, 4, 1, support, total, np.float32(u), zero)) for u in draws} == draws


@pytest.mark.parametrize("build", ["compiled", "plain"])
def test_ppm_round_to_the_nearest_halves_to_even_and_no_number_is_0(build):
    function = to_ppm if build == "compiled" else to_ppm.py_func
    values = np.concatenate([np.random.default_rng(0).random(2000), np.arange(0, 129, dtype=float) / 128]).astype(np.float32)
    assert [int(function(value)) for value in values] == [round(float(value) * 10**6) for value in values.astype(np.float64)]
    assert int(function(np.float32(np.nan))) == 0
