"""Tensor Philox: the same words as the scalar one, the known answers, and uniforms that never reach 1."""

import numpy as np
import pytest
import torch

from lob import philox
from policy.draws import below, draw, philox4x32, uniform
from tests.test_lob_philox import KNOWN


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_the_known_answers_of_random123_come_out_of_tensors(counter, key, answer):
    words = philox4x32(*(torch.tensor([c, c]) for c in counter), *key)
    assert [word.tolist() for word in words] == [[a, a] for a in answer]


@pytest.mark.parametrize("seed", [0, 1, 2**32, 2**63 - 1, 2**64 - 1, -1, 0x9E3779B97F4A7C15])
def test_tensor_words_equal_the_scalar_ones_for_any_seed_lane_step_and_purpose(seed):
    rng = np.random.default_rng(seed % 2**32)
    lanes = torch.from_numpy(np.concatenate([rng.integers(0, 2**32, 50), [0, 2**32 - 1, 2**31]]))
    for step, purpose in ((0, 0), (2**32 - 1, 2**32 - 3), (12345, 0x73656C30)):
        words = draw(seed, lanes, torch.tensor([step]), purpose, 3)
        for which in range(3):
            scalar = [philox.draw.py_func(seed, lane, step, purpose + which) for lane in lanes.tolist()]
            assert [tuple(int(word[which, i]) for word in words) for i in range(len(lanes))] == scalar


def test_a_uniform_is_a_24_bit_integer_over_its_range_and_never_1():
    words = torch.tensor([0, 255, 256, 2**31, 2**32 - 257, 2**32 - 1])
    found = uniform(words)
    assert found.dtype == torch.float32
    assert (found.double() * 2**24).tolist() == [0, 0, 1, 2**23, 2**24 - 2, 2**24 - 1]
    assert float(found.max()) < 1


@pytest.mark.parametrize("n", [3, 4, 108])
def test_words_map_onto_a_range_as_the_scalar_does(n):
    words = torch.tensor([0, 1, 2**30, 2**31, 2**32 - 2, 2**32 - 1])
    assert below(words, n).tolist() == [philox.below.py_func(word, n) for word in words.tolist()]


def test_lanes_in_another_order_or_alone_draw_the_same():
    lanes, step = torch.arange(100), torch.tensor([7])
    together = torch.stack(draw(5, lanes, step, 9, 2))
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    assert torch.equal(torch.stack(draw(5, lanes[order], step, 9, 2)), together[:, :, order])
    assert torch.equal(torch.stack(draw(5, lanes[41:42], step, 9, 2)), together[:, :, 41:42])
