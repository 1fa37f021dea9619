"""The CUDA side of an environment: kernels wrapped once around its tensors, launched on one stream, capturable in a torch graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from cuda_env import kernels_cuda as k
from cuda_env.arrays import LANES, NO_QUEUE, QUEUE_MODEL, Out, World
from cuda_env.diag import CHUNK
from cuda_env.run_cpu import as_numpy
from lob.jit import cuda
from lob.picks import Picks


def as_device(structure: Any) -> Any:
    """The same (nested) structure with numba's view in place of each CUDA tensor. The tensors must outlive it."""
    if isinstance(structure, torch.Tensor):
        return cuda().as_cuda_array(structure, sync=False)
    return type(structure)(*(as_device(part) for part in structure))


class CudaRunner:
    """Launches the kernels. No call waits for the device, so that a step can be captured; faults stay on the device until asked for.

    `stream` is the one stream of all launches. On another current stream, each call orders itself after what was queued there, and
    what is queued there next after itself.
    """

    def __init__(self, world: World) -> None:
        self._tensors = world
        device = world.state.device
        lanes = int(world.params[LANES])
        self.picks = Picks(*(torch.zeros(lanes, dtype=torch.int32, device=device) for _ in range(4)))
        with torch.cuda.device(device):
            self.stream = torch.cuda.Stream()
            # Everything that built the tensors has to be done before kernels on another stream read them.
            torch.cuda.synchronize()
            w, picks = self._world, self._picks = as_device(world), as_device(self.picks)
            per_lane, per_warp = -(-lanes // k.THREADS), -(-lanes * k.WARP // k.THREADS)

            self._moves: Any = k
            if int(world.params[QUEUE_MODEL]) != NO_QUEUE:
                from cuda_env import kernels_live_cuda

                self._moves = kernels_live_cuda
            self._step = self.launcher(self._moves.step, per_lane, picks, w)
            self._drain = self.launcher(self._moves.drain, per_lane, w)
            self._close_all = self.launcher(self._moves.close_all, per_lane, w)
            self._restart = self.launcher(k.restart, per_lane, w)
            self._observe = self.launcher(k.observe, -(-lanes // k.OBSERVED), w, threads=k.OBSERVERS)
            self._keep_last = self.launcher(k.keep_last, per_warp, w)
            self._count = self.launcher(k.count, world.sums.partials.shape[0], w, threads=CHUNK)
            self._carry_on = self.launcher(k.carry_on, 1, w, threads=k.WARP)

    def launcher(self, kernel: Any, blocks: int, *arguments: Any, threads: int = k.THREADS) -> Callable[[], None]:
        """A launch of the kernel on the stream, ready to be called: compiled now for these arguments, and no look-up of types later."""
        configured = kernel.specialize(*arguments)[blocks, threads, cuda().external_stream(self.stream.cuda_stream)]
        return lambda: configured(*arguments)

    def ordered(self, launch) -> None:
        """Run launches on the own stream, in order with the caller's."""
        current = torch.cuda.current_stream(self.stream.device)
        if current == self.stream:
            launch()
            return
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            launch()
        current.wait_stream(self.stream)

    def observe(self) -> None:
        self.ordered(self._observe)

    def step(self, picks: Picks) -> bool:
        """Always False: see `faulty`."""

        def launch() -> None:
            for mine, given in zip(self.picks, picks, strict=True):
                mine.copy_(given)
            self._step()
            self._after()
            if self._tensors.starts.rows.numel() > 0:
                self._restart()

        self.ordered(launch)
        return False

    def run(self, actions: torch.Tensor, picks: Picks, observe: bool) -> bool:
        """Always False: see `faulty`. Observations are not assembled here, whatever `observe` says."""
        return self._fused(self._moves.run, picks, as_device(actions))

    def follow(self, actions: torch.Tensor, part: torch.Tensor, steps: int, picks: Picks) -> bool:
        """Always False: see `faulty`."""
        return self._fused(self._moves.follow, picks, as_device(actions), as_device(part), steps)

    def _fused(self, kernel: Any, picks: Picks, *arguments: Any) -> bool:
        def launch() -> None:
            for mine, given in zip(self.picks, picks, strict=True):
                mine.copy_(given)
            per_lane = -(-self.picks.action.numel() // k.THREADS)
            self.launcher(kernel, per_lane, *arguments, self._picks, self._world)()

        self.ordered(launch)
        return False

    def drain(self) -> bool:
        """Returns whether a lane has a fault; waits for the device."""

        return self._ended_by(self._drain)

    def close_all(self) -> bool:
        """Returns whether a lane has a fault; waits for the device."""
        return self._ended_by(self._close_all)

    def _ended_by(self, kernel) -> bool:
        def launch() -> None:
            kernel()
            self._after()

        self.ordered(launch)
        return self.faulty()

    def _after(self) -> None:
        self._keep_last()
        if self._tensors.out.codes.shape[1] == 0:
            return
        self._count()
        torch.sum(self._tensors.sums.partials, dim=0, out=self._tensors.sums.merged)
        self._carry_on()

    def faulty(self) -> bool:
        """Whether a lane has a fault; waits for the device."""
        return bool(self._tensors.out.fault.any())

    def fetch(self) -> Out:
        """The outputs as numpy arrays on the host; waits for the device."""
        return as_numpy(Out(*(tensor.cpu() for tensor in self._tensors.out)))
