"""Work that shards of a run do in step: a generator that hands out each tensor which is to be summed over the shards, and goes on with the
sum in it. Whoever runs it does the summing, so the work itself knows neither how many shards there are nor in which processes they live.

It is suspended in no `torch.no_grad()` block, for that would reach into the work of the next shard.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

import torch

T = TypeVar("T")
Shared = Generator[torch.Tensor, None, T]
"""Yields tensors of equal shapes in every shard; the sum is put in place. Returns what the work is for."""


def alone(work: Shared[T]) -> T:
    """Do the work of the only shard: a sum over one is the tensor as it is."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value
