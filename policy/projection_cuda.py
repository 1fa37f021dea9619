"""The CUDA kernel around `policy.projection.project_row`. Import only where CUDA is wanted; it compiles when specialised."""

import lob.jit
from policy.projection import project_row

cuda = lob.jit.cuda()

THREADS = 64
"""Threads in a block: a row is one thread's work, and a batch of 4,096 has 16,384 rows to spread over 132 processors."""


@cuda.jit
def project_rows(branches, probabilities, returns, discount, span, out):
    """One thread a row; `span` holds the least and the greatest value."""
    row = cuda.grid(1)
    if row < out.shape[0]:
        project_row(row, branches[0], probabilities, returns, discount, span[0], span[1], out)
