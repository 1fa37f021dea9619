"""CUDA kernels around the three passes of `policy.loss_kernels`. Import only where CUDA is wanted; they compile when specialised."""

import lob.jit
from policy.heads import CHOICES
from policy.loss_kernels import BRANCHES, aim, settle, think, turn

cuda = lob.jit.cuda()

THREADS = 64
"""Threads in a block: a part of a row is one thread's work, and a batch of 4,096 has to fill 132 processors."""


@cuda.jit
def think_all(b):
    """One thread a choice of a row."""
    thread = cuda.grid(1)
    if thread < b.weights.size * CHOICES:
        think(thread // CHOICES, thread % CHOICES, b)


@cuda.jit
def aim_all(b):
    """One thread a branch of a row."""
    thread = cuda.grid(1)
    if thread < b.weights.size * BRANCHES:
        aim(thread // BRANCHES, thread % BRANCHES, b)


@cuda.jit
def turn_all(b):
    """One thread a choice of a row, and one for the row."""
    thread = cuda.grid(1)
    row, choice = thread // (CHOICES + 1), thread % (CHOICES + 1)
    if row < b.weights.size:
        if choice < CHOICES:
            turn(row, choice, b)
        else:
            settle(row, b)
