"""Laws of the built-in policies: what each picks, and that a pick depends on nothing that it should not."""

from pathlib import Path

import numpy as np
import pytest
import torch

from lob.errors import BadInput, NotFound
from lob.layout import OFFSET
from policy.builtin import NAMES, make
from policy.protocol import constant_picks
from policy.tables import DIAG, NO_VALUES, diag_row

LONG, SHORT, HOLD, FLAT = 72, 18, 27, 81  # direction*27 + magnitude*9, by hand: long full, short full, hold, flat


def observations(lanes: int, **slots: list[float]) -> torch.Tensor:
    out = torch.zeros(lanes, 128)
    for name, values in slots.items():
        out[:, OFFSET[name]] = torch.tensor(values)
    return out


def actions(spec: str, observation: torch.Tensor, step: int = 0, seed: int = 1, **options) -> list[int]:
    return make(spec, seed, len(observation), **options).act(observation, None, step).action.tolist()


@pytest.mark.parametrize(("spec", "action"), [("flat", FLAT), ("long", LONG), ("short", SHORT)])
def test_a_constant_policy_picks_the_same_at_every_step_and_observation(spec, action):
    for step in (0, 1, 10**6):
        assert actions(spec, torch.randn(5, 128), step) == [action] * 5


def test_momentum_follows_the_sign_of_its_slot_and_holds_at_zero():
    assert actions("momentum", observations(4, momentum_60=[0.1, -0.1, 0.0, -0.0])) == [LONG, SHORT, HOLD, HOLD]


def test_imbalance_goes_in_beyond_one_half_and_out_at_the_change_of_sign():
    cases = [  # (imbalance, sign of the position) -> action
        (0.6, 0, LONG), (-0.6, 0, SHORT), (0.5, 0, HOLD), (-0.5, 0, HOLD), (0.3, 0, HOLD),
        (0.6, 1, HOLD), (0.1, 1, HOLD), (0.0, 1, HOLD), (-0.1, 1, FLAT), (-0.5, 1, FLAT), (-0.6, 1, SHORT),
        (-0.6, -1, HOLD), (-0.1, -1, HOLD), (0.0, -1, HOLD), (0.1, -1, FLAT), (0.5, -1, FLAT), (0.6, -1, LONG),
    ]  # fmt: skip
    seen = observations(len(cases), imbalance_10=[c[0] for c in cases], position_sign=[float(c[1]) for c in cases])
    assert actions("imbalance", seen) == [c[2] for c in cases]


def test_a_rules_levels_are_meant_before_the_normalisation_of_its_observations():
    mean, std = np.full(128, 0.25), np.full(128, 0.5)
    raw = [0.6, 0.45, -0.6, -0.45]
    seen = observations(4, imbalance_10=[(value - 0.25) / 0.5 for value in raw])
    assert actions("imbalance", seen, mean=mean, std=std) == [LONG, HOLD, SHORT, HOLD]
    assert actions("momentum", observations(2, momentum_60=[-0.4, -0.6]), mean=mean, std=std) == [LONG, SHORT]


def test_a_random_pick_depends_on_seed_lane_and_step_alone():
    few, many = torch.zeros(3, 128), torch.randn(64, 128)
    picked = {(seed, step): actions("random", many, step, seed) for seed in (7, 8) for step in (0, 1)}
    assert len({tuple(row) for row in picked.values()}) == 4
    for (seed, step), row in picked.items():
        assert actions("random", few, step, seed) == row[:3]
    policy = make("random", 7, 64)
    policy.act(many, None, 1)
    assert policy.act(many, None, 0).action.tolist() == picked[7, 0]


@pytest.mark.parametrize("seed", [0, 7, 2**63 - 1, 2**63, 2**64 - 1])
def test_random_draws_are_philox_words_of_plain_python_and_reach_every_action(seed):
    from tests.oracle_philox import philox4x32_10

    picked = np.array([actions("random", torch.zeros(16, 128), step, seed) for step in range(3)])
    key = (seed & 0xFFFFFFFF, seed >> 32)
    for (step, lane), action in np.ndenumerate(picked):
        assert action == philox4x32_10((lane, step, 0x7069636B, 0), key)[0] * 108 >> 32
    counts = np.bincount([a for step in range(100) for a in actions("random", torch.zeros(108, 128), step, seed)], minlength=108)
    assert len(counts) == 108
    # Chi-squared with 107 degrees of freedom: sd 14.6; 200 is beyond six of them.
    assert ((counts - 100.0) ** 2 / 100).sum() < 200


def script(tmp_path: Path, text: str, lanes: int = 3):
    path = tmp_path / "plan.csv"
    path.write_bytes(text.encode())
    return make(f"script:{path}", 1, lanes)


def picks_of(policy, step: int) -> list[list[int]]:
    return [values.tolist() for values in policy.act(torch.zeros(3, 128), None, step)]


def test_a_script_picks_what_its_rows_say_and_holds_elsewhere(tmp_path):
    full = [1_000_000] * 3
    policy = script(tmp_path, "step,action\r\n5,72\r\n2,81\r\n")
    assert [picks_of(policy, step)[0] for step in (0, 2, 5, 6)] == [[HOLD] * 3, [81] * 3, [72] * 3, [HOLD] * 3]
    assert picks_of(policy, 5)[1:] == [full] * 3
    policy = script(tmp_path, "\ufeffaction, lane ,step,conviction_ppm,health_ppm\n72,2,0,5,6\n18,0,0,7,8\n\n0,1,3,0,0\n")
    assert picks_of(policy, 0) == [[18, HOLD, 72], [7, 1_000_000, 5], [8, 1_000_000, 6], full]
    assert picks_of(policy, 3) == [[HOLD, 0, HOLD], [1_000_000, 0, 1_000_000], [1_000_000, 0, 1_000_000], full]
    assert picks_of(policy, 1) == [[HOLD] * 3, full, full, full]


def test_a_scripts_identity_is_its_content_and_not_its_path(tmp_path):
    one = script(tmp_path, "step,action\n0,72\n").identity()
    (tmp_path / "elsewhere").mkdir()
    assert script(tmp_path / "elsewhere", "step,action\n0,72\n").identity() == one
    assert script(tmp_path, "step,action\n0,73\n").identity() != one


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 1, "header"),
        ("step,act\n0,1\n", 1, "header"),
        ("step,action,action\n0,1,1\n", 1, "header"),
        ("lane,action\n0,1\n", 1, "header"),
        ("step,action\n0,72\n1,108\n", 3, "108"),
        ("step,action\n0,72\n1,-1\n", 3, "-1"),
        ("step,action\n0,72\n1,\n", 3, "action"),
        ("step,action\n0,72\n1.5,72\n", 3, "1.5"),
        ("step,action\n0,72\n\n²,72\n", 4, "²"),
        ("step,action\n0,72\n1\n", 3, "1 cells under 2"),
        ("step,action\n0,72\n0,72\n", 3, "line 2"),
        ("step,action,lane\n0,72,3\n", 2, "lane"),
        ("step,action\n2147483648,1\n", 2, "2147483648"),
        ("step,action\n" + "9" * 5000 + ",1\n", 2, "step"),
        ("step,action,health_ppm\n0,1,1000001\n", 2, "health_ppm"),
        ('step,action\n0,"72\n', 2, ""),
    ],
)
def test_a_bad_script_row_is_refused_by_file_and_line(tmp_path, text, line, says):
    with pytest.raises(BadInput) as caught:
        script(tmp_path, text)
    message = str(caught.value)
    assert f"plan.csv: line {line}:" in message
    assert says in message
    assert "\n" not in message


def test_a_script_without_rows_or_file_or_encoding_is_refused_by_name(tmp_path):
    with pytest.raises(BadInput, match=r"plan\.csv: no row"):
        script(tmp_path, "step,action\n")
    with pytest.raises(BadInput, match=r"absent\.csv: cannot be read"):
        make(f"script:{tmp_path / 'absent.csv'}", 1, 3)
    (tmp_path / "latin.csv").write_bytes(b"step,action\n0,7\xe92\n")
    with pytest.raises(BadInput, match=r"latin\.csv: byte 15 is not UTF-8"):
        make(f"script:{tmp_path / 'latin.csv'}", 1, 3)


def test_an_unknown_policy_is_refused_with_the_names_that_exist():
    with pytest.raises(NotFound) as caught:
        make("moon", 1, 1)
    assert all(name in str(caught.value) for name in NAMES)


def test_every_builtin_says_who_it_is_and_writes_into_its_own_buffers():
    for name in NAMES[:-1]:
        policy = make(name, 3, 4)
        assert policy.name == policy.identity()["name"] == name
        first = policy.act(torch.randn(4, 128), None, 0)
        again = policy.act(torch.randn(4, 128), None, 1)
        assert [a.data_ptr() for a in first] == [b.data_ptr() for b in again]
        assert all(values.dtype == torch.int32 and values.shape == (4,) for values in again)


def test_the_diag_row_sums_gate_inputs_over_lanes_that_played():
    picks = constant_picks(3, "cpu")
    picks.conviction_ppm.copy_(torch.tensor([1, 20, 300]))
    row = diag_row(picks, NO_VALUES, torch.tensor([True, False, True]))
    assert list(row) == [column.name for column in DIAG]
    assert list(row.values()) == [301, 2_000_000, 2_000_000, None, None]
