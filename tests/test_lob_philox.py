"""Philox4x32-10 against the known answers that its authors publish (Random123, `kat_vectors`), in plain Python and compiled."""

import numpy as np
import pytest

from lob.jit import kernel_cpu
from lob.philox import below, draw, philox4x32

# counter, key, answer
KNOWN = [
    ((0x00000000, 0x00000000, 0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


@kernel_cpu
def _draws(seed, lanes, steps, out):
    for i in range(len(lanes)):
        out[i, 0], out[i, 1], out[i, 2], out[i, 3] = draw(seed, lanes[i], steps[i], 5)


@pytest.mark.parametrize("build", [philox4x32, philox4x32.py_func], ids=["compiled", "plain"])
@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_the_known_answers_of_random123(build, counter, key, answer) -> None:
    assert build(*counter, *key) == answer


def test_compiled_and_plain_draws_are_equal_for_any_seed_lane_and_step() -> None:
    source = np.random.default_rng(1)
    for seed in (0, 1, 2**32, 2**63 - 1, int(source.integers(2**63))):
        lanes, steps = source.integers(0, 2**32, 200), source.integers(0, 2**32, 200)
        out = np.empty((200, 4), np.int64)
        _draws(seed, lanes, steps, out)
        plain = [philox4x32.py_func(int(lane), int(step), 5, 0, seed % 2**32, seed >> 32) for lane, step in zip(lanes, steps, strict=True)]
        assert out.tolist() == [list(words) for words in plain]
        assert out.min() >= 0 and out.max() < 2**32


@pytest.mark.parametrize("n", [1, 2, 3, 7, 108, 2**31 - 1])
def test_a_word_maps_onto_a_range_evenly_and_stays_inside(n: int) -> None:
    words = [0, 1, 2**31, 2**32 - 2, 2**32 - 1]
    assert [below(word, n) for word in words] == [word * n // 2**32 for word in words]
    assert below(0, n) == 0 and below(2**32 - 1, n) == n - 1


def test_seed_lane_step_and_purpose_each_name_another_stream() -> None:
    base = draw(7, 1, 2, 3)
    assert len({base, draw(8, 1, 2, 3), draw(7 + 2**32, 1, 2, 3), draw(7, 2, 2, 3), draw(7, 1, 3, 3), draw(7, 1, 2, 4)}) == 6
