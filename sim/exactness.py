"""How exactly floats are computed: torch's global switches, set in one place before anything is computed.

Mode 0 lets the device choose (TF32, any algorithm), 1 is exact (no TF32, deterministic algorithms alone), 2 is torch's default without
TF32: the control that tells which of the two a difference comes from (seed rows M4-M6).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from lob.errors import BadInput

if TYPE_CHECKING:
    from sim.loop_config import LoopConfig

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
FIXED_WORKSPACE = ":4096:8"
"""cuBLAS picks another summation order when its workspace changes; it reads this when it starts, and torch does not check it any more."""


def exact(loop: LoopConfig) -> None:
    """Set torch's threads and the mode. Raises BadInput when CUDA was already started with a workspace that mode 1 forbids."""
    import torch

    torch.set_num_threads(loop.torch_threads)
    if loop.device == "cuda":
        if not torch.cuda.is_available():
            raise BadInput("device cuda: this machine has no CUDA device that torch can use; use --device cpu")
        if loop.determinism == 1 and os.environ.setdefault(WORKSPACE, FIXED_WORKSPACE) != FIXED_WORKSPACE:
            raise BadInput(f"{WORKSPACE} is {os.environ[WORKSPACE]}: determinism 1 needs {FIXED_WORKSPACE}; unset it or use mode 0")
    torch.use_deterministic_algorithms(loop.determinism == 1)
    # Mode 1 would fill every new tensor first: fifty launches more in an update, and nothing here reads what it has not written.
    torch.utils.deterministic.fill_uninitialized_memory = False
    precision = "tf32" if loop.determinism == 0 else "ieee"
    torch.backends.cuda.matmul.fp32_precision = precision
    torch.backends.cudnn.fp32_precision = precision
