"""CUDA kernels around the scalar functions of `policy.replay_kernels`. Import only where CUDA is wanted; they compile when specialised."""

import lob.jit
from policy.replay_kernels import (
    BATCH,
    LANES,
    LENGTH,
    WORDS,
    ancestor,
    mark_one,
    refresh,
    sample_one,
    store_leaf,
    store_word,
)

cuda = lob.jit.cuda()

THREADS = 128
"""Threads in a block."""


@cuda.jit
def sample(sums, words, floats, params, counter, gamma, out):
    """One thread a draw."""
    i = cuda.grid(1)
    if i < params[BATCH]:
        sample_one(i, sums, words, floats, params, counter, gamma, out)


@cuda.jit
def mark(sums, words, params, alpha, slots, generation, errors, marked):
    """One thread a sampled slot. Neighbouring duplicates write once, so no two threads write one leaf."""
    i = cuda.grid(1)
    if i < params[BATCH]:
        mark_one(i, sums, words, params, alpha, slots, generation, errors, marked)


@cuda.jit
def refresh_above_batch(sums, params, slots, level):
    """One thread a sampled slot: its ancestor of `level[0]`. Threads that share it write the same sum."""
    i = cuda.grid(1)
    if i < params[BATCH]:
        refresh(sums, params, level[0], ancestor(slots[i], level[0]))


@cuda.jit
def store(sums, words, stage, params, written, greatest):
    """One thread a word, so that neighbouring threads write neighbouring words."""
    thread = cuda.grid(1)
    lane, word = thread // WORDS, thread % WORDS
    if lane < params[LANES]:
        store_word(lane, word, stage, words, params, written)
        if word == 0:
            store_leaf(lane, sums, stage, params, written, greatest)


@cuda.jit
def refresh_above_row(sums, params, written, level):
    """One thread a node of `level[0]` above the row of slots that was just written."""
    first = written[0] % params[LENGTH] * params[LANES]
    node = ancestor(first, level[0]) + cuda.grid(1)
    if node <= ancestor(first + params[LANES] - 1, level[0]):
        refresh(sums, params, level[0], node)
