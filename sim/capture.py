"""A training step as one launch: the step captured in a CUDA graph, and what its capture leaves as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from sim.trainer import Player

WARM_UPS = 3
"""Eager steps before a capture: kernels are compiled and loaded, cuBLAS has its workspaces, autograd its buffers."""


def capture(trainer: Player) -> dict[bool, Callable[[], None]]:
    """What launches one step that does not learn, and one that does. To be called before a block begins: its log is empty.

    Capturing needs eager steps first; the trainer is put back as it stood before them.
    """
    stood = {name: tensor.clone() for name, tensor in trainer.tensors().items()}
    launches = {}
    for learns in (False, True):
        side = trainer.env.stream
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                trainer.step(learns)
                trainer.log.fetch()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            trainer.step(learns)
        launches[learns] = _launcher(graph, side)
    trainer.load_tensors(stood, trainer.steps)
    trainer.log.fetch()
    torch.cuda.synchronize()
    return launches


def _launcher(graph: torch.cuda.CUDAGraph, side: torch.cuda.Stream) -> Callable[[], None]:
    def launch() -> None:
        with torch.cuda.stream(side):
            graph.replay()

    return launch
