"""A network as a policy: what replay and evaluation follow. It never explores and learns nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from lob.errors import ForeignCheckpoint
from lob.layout import STATE_DIM
from lob.picks import Picks
from policy.bus import controls_of
from policy.diag_columns import NO_VALUES
from policy.heads import HeadOutput
from policy.model import HISTORY_SLOTS, Actor, Model, support
from policy.protocol import constant_picks
from policy.select import select, to_picks, to_ppm

BATCH = 64
"""Rows of every forward pass; the last one is padded. A matrix product's last bits depend on its shape, so a fixed shape makes a lane's
pick independent of how many lanes run beside it."""


class NetworkPolicy:
    """Picks by `policy.select.select` without exploration, greedily unless another selector is asked for.

    The signal bus, float32[127], is the checkpoint's and stays as it is: no controller runs in replay. So does health, which is stated in
    ppm. Lanes are known to the selector by their number.
    """

    def __init__(
        self, model: Model, bus: torch.Tensor, health_ppm: int, content_hash: str, lanes: int, selector: str = "greedy", seed: int = 0
    ) -> None:
        device = model.flat.device
        self.name = "network"
        self.model, self.window = model, model.window
        self._content_hash, self._selector, self._seed = content_hash, selector, seed
        self._actor, self._bus = Actor(model), bus.to(device)
        self._controls, _ = controls_of(self._bus)
        self._support = support(model.architecture, device)
        self._lanes = torch.arange(lanes, device=device)
        self._step = torch.zeros(1, dtype=torch.int64, device=device)
        self._health_ppm = torch.tensor([health_ppm], dtype=torch.int32, device=device)
        self._picks = constant_picks(lanes, str(device))
        self._picks_of = {device.type: self._picks}
        padded = -(-lanes // BATCH) * BATCH
        self._rows = torch.zeros(padded, STATE_DIM, device=device)
        self._past = torch.zeros(padded, self.window, HISTORY_SLOTS, device=device)
        self._totals = torch.zeros(3, dtype=torch.int64, device=device)
        self._launch: Callable[[], None] | None = None if device.type == "cuda" else self._think
        self._diagnostics = NO_VALUES

    def identity(self) -> dict[str, Any]:
        return {"name": self.name, "checkpoint": self._content_hash, "selector": self._selector} | where(self.model.flat.device)

    @torch.inference_mode()
    def act(self, observation: torch.Tensor, history: torch.Tensor | None, step: int) -> Picks:
        """The picks lie where the observation does, which may be another device than the network's."""
        lanes = len(observation)
        self._rows[:lanes] = observation
        if history is not None:
            self._past[:lanes] = history
        self._step.fill_(step)
        if self._launch is None:
            self._launch = captured(self._think)
        self._launch()
        not_finite, *of_step = self._totals.tolist()
        if not_finite:
            raise ForeignCheckpoint(f"the network's values are not finite at step {step}: the checkpoint is damaged; make it anew")
        self._diagnostics = dict(zip(NO_VALUES, of_step, strict=True))
        return self._picks_on(observation.device)

    def _think(self) -> None:
        """From the buffers of what is seen to those of picks and totals."""
        lanes = len(self._lanes)
        said = [self._actor(rows, past, self._bus) for rows, past in zip(self._rows.split(BATCH), self._past.split(BATCH), strict=True)]
        heads = HeadOutput(*(torch.cat(parts)[:lanes] for parts in zip(*said, strict=True)))
        chosen = select(heads, self._support, self._controls, self._selector, False, self._seed, self._lanes, self._step)
        finite = torch.isfinite(chosen.q_range + chosen.q_sigma)
        self._totals[0] = (~finite).sum()
        for at, values in enumerate((chosen.q_range, chosen.q_sigma), 1):
            self._totals[at] = to_ppm(torch.where(finite, values, 0)).sum()
        to_picks(chosen, self._health_ppm, self._picks)

    def _picks_on(self, device: torch.device) -> Picks:
        picks = self._picks_of.setdefault(device.type, constant_picks(len(self._lanes), str(device)))
        if picks is not self._picks:
            for into, value in zip(picks, self._picks, strict=True):
                into.copy_(value)
        return picks

    def diagnostics(self) -> dict[str, int | None]:
        return self._diagnostics


def where(device: str | torch.device) -> dict[str, str]:
    """What a policy's identity says of the device that it computes on: another kind of device may pick otherwise. Nothing of the CPU."""
    device = torch.device(device)
    return {"device": f"cuda-{torch.cuda.get_device_name(device)}"} if device.type == "cuda" else {}


def captured(work: Callable[[], None]) -> Callable[[], None]:
    """What launches `work`, which reads and writes buffers of fixed addresses, as one CUDA graph.

    It is run three times before: kernels are loaded, cuBLAS has its workspaces.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay
