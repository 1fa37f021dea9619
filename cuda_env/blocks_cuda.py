"""The CUDA side of a block of the log: kernels on the environment's stream, and copies to pinned memory when it is fetched."""

from __future__ import annotations

import numpy as np
import torch

from cuda_env import kernels_blocks as k
from cuda_env.arrays import LANES, World
from cuda_env.blocks import CAPTURED, NULL, Block, Captured
from cuda_env.kernels_cuda import THREADS
from cuda_env.rows import PACKED
from cuda_env.run_cuda import CudaRunner, as_device


class CudaCapture:
    """Everything goes through the environment's stream, in order with the caller's. Only `fetch` waits for the device."""

    def __init__(self, world: World, block: Block, runner: CudaRunner) -> None:
        self._runner, self._block = runner, block
        # One scan a table: torch scans rows of a matrix with one thread block each, ten times slower at 65,536 lanes.
        emitted = [row for name, (_, _, row) in PACKED.items() if len(getattr(world.out, name))]
        self._ends = [(world.out.counts[row], block.ends[row]) for row in emitted]
        self._pinned: dict[str, torch.Tensor] = {}
        with torch.cuda.device(world.state.device):
            torch.cuda.synchronize()
            w, b = as_device(world), as_device(block)
            self._launches = [
                runner.launcher(kernel, -(-threads // THREADS), w, b) for kernel, threads in k.launches(world, int(world.params[LANES]))
            ]

    def put(self, values: torch.Tensor) -> None:
        held = self._block.ints if values.dtype == torch.int64 else self._block.floats
        held.index_copy_(0, self._block.slot, values[None])

    def capture(self) -> None:
        def launch() -> None:
            for written, end in self._ends:
                torch.cumsum(written, dim=0, out=end)
            for one in self._launches:
                one()

        self._runner.ordered(launch)

    def fetch(self) -> Captured:
        stream, block = self._runner.stream, self._block
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            counters = self._to_host("counters", block.counters)
            small = {name: self._to_host(name, getattr(block, name)) for name in ("head", "ints", "floats")}
            stream.synchronize()
            count, used = int(counters[CAPTURED]), counters[CAPTURED + 1 :].tolist()
            room = len(block.head)
            if count > room:
                raise ValueError(f"{count} steps were captured in a block of {room}, and {count - room} are lost: drain it sooner")
            rows = {name: self._to_host(name, getattr(block, name)[:n]) for name, n in zip(PACKED, used, strict=True)}
            steps = self._to_host("steps", block.steps[:count])
            for zeroed in (block.counters, block.slot):
                zeroed.zero_()
            block.ints.fill_(NULL)
            block.floats.fill_(torch.nan)
            stream.synchronize()
        torch.cuda.current_stream(stream.device).wait_stream(stream)
        return Captured(small["head"][:count], small["ints"][:count], small["floats"][:count], steps, **rows)

    def _to_host(self, name: str, tensor: torch.Tensor) -> np.ndarray:
        """Start to copy a tensor into pinned memory that is kept for the next time; wait for the stream before reading it."""
        held = self._pinned.get(name)
        if held is None or held.numel() < tensor.numel():
            held = self._pinned[name] = torch.empty(2 * tensor.numel(), dtype=tensor.dtype, pin_memory=True)
        target = held[: tensor.numel()].view(tensor.shape)
        target.copy_(tensor, non_blocking=True)
        return target.numpy()
