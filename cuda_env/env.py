"""The vectorised environment: torch tensors in and out, every buffer made once. docs/step.md says what a step does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from cuda_env import arrays as a
from cuda_env import diag as g
from cuda_env import rows as r
from cuda_env import state as s
from cuda_env.config import EnvConfig, check_magnitudes
from lob.actions import EndReason
from lob.errors import BadInput
from lob.layout import STATE_DIM

if TYPE_CHECKING:
    from lob.picks import Picks
    from lob.tape import Schedule, Tape

EMIT = ("steps", "orders", "fills", "trades")
"""Tables that a step can write; `diag` is apart."""


def _runner(world: a.World, threads: int | None):
    """What calls the kernels of the device that the world's tensors lie on."""
    if world.state.is_cuda:
        from cuda_env.run_cuda import CudaRunner

        return CudaRunner(world)
    from cuda_env.run_cpu import CpuRunner

    return CpuRunner(world, threads)


def _enough_slots(max_lots: int, lanes: int) -> int:
    """Rows of one table that a lane can write in a step: an order's ten levels and a floor stop of `max_lots` single lots; for large
    sizes, which no book sells lot by lot, as many as 64 thousand slots over all lanes allow, and 64 at least."""
    return min(10 + max_lots, max(64, 2**16 // lanes))


class Env:
    """`lanes` accounts on one tape and schedule.

    Outputs after `step` or `drain`, all tensors of `lanes`: `reward_raw` int64 (micro-dollars), `terminated` and `truncated` bool (on the
    step that ended an episode), `end_reason` int8 (`lob.actions.EndReason`), `last_observation` float32[lanes, 128] (as of the end of
    the lane's last episode). A lane that died by the floor takes no further part until `reset`; its picks are not read.

    `features` is float32[D+1, 128], the normalised market slots, with zeros in the lane's slots. `slots` bounds the rows that one lane can
    write to a table in one step. Buffers keep their addresses for the life of the environment. Raises BadInput.
    """

    def __init__(
        self,
        tape: Tape,
        schedule: Schedule,
        features: np.ndarray,
        config: EnvConfig,
        lanes: int,
        phase: int,
        device: str = "cpu",
        emit: tuple[str, ...] = EMIT,
        threads: int | None = None,
        diag: bool = True,
        slots: int | None = None,
    ) -> None:
        if lanes < 1:
            raise BadInput(f"lanes {lanes}: at least one is needed")
        if unknown := sorted(set(emit) - set(EMIT)):
            raise BadInput(f"emit {', '.join(unknown)}: choose from {', '.join(EMIT)}")
        if features.shape != (schedule.decisions + 1, STATE_DIM):
            raise BadInput(
                f"features have shape {features.shape}; this schedule needs {(schedule.decisions + 1, STATE_DIM)}: build them anew"
            )
        self.tape, self.schedule, self.lanes, self.phase, self.emit = tape, schedule, lanes, int(phase), tuple(emit)
        self.config = config.resolved(tape.instrument)
        mids = tape.bid_ticks[:, 0].astype(np.int64) + tape.ask_ticks[:, 0]
        mids = mids[tape.tradable]
        check_magnitudes(self.config, tape.instrument.tick_value_usd_micros, int(mids.min()), int(mids.max()))
        self.device = torch.device(device)
        self.world = self._allocate(features, slots or _enough_slots(self.config.max_lots, lanes), diag)
        out = self.world.out
        self.state, self.observation, self.last_observation = self.world.state, self.world.observation, self.world.last_observation
        self.reward_raw, self.end_reason = out.reward, out.end_reason
        self.terminated, self.truncated = out.terminated.view(torch.bool), out.truncated.view(torch.bool)
        self._initial = torch.tensor(s.reset_values(self.config.capital_usd_micros), device=self.device)[:, None]
        self._kept = torch.tensor(s.kept(), device=self.device)[:, None]
        self.state.copy_(self._initial.expand_as(self.state))
        self._rebase()
        self._runner = _runner(self.world, threads)

    def _allocate(self, features: np.ndarray, slots: int, diag: bool) -> a.World:
        """All buffers, made once, and the arrays that never change, as tensors on the device."""
        lanes, stride = self.lanes, s.padded(self.lanes)

        def zeros(shape, dtype=torch.int64):
            return torch.zeros(shape, dtype=dtype, device=self.device)

        def given(array: np.ndarray) -> torch.Tensor:
            # A read-only array (a mapped file) is copied: torch warns of it, and numba would compile anew for it.
            array = np.ascontiguousarray(array)
            return torch.from_numpy(array if array.flags.writeable else array.copy()).to(self.device)

        def slotted(table: str, columns: int) -> torch.Tensor:
            return torch.empty((lanes if table in self.emit else 0, slots, columns), dtype=torch.int64, device=self.device)

        out = a.Out(
            reward=zeros(lanes),
            end_reason=zeros(lanes, torch.int8),
            terminated=zeros(lanes, torch.uint8),
            truncated=zeros(lanes, torch.uint8),
            fault=zeros(lanes, torch.int8),
            steps=zeros((len(a.STEP_SLOTS), stride if "steps" in self.emit else 0)),
            counts=zeros((3, stride if {"orders", "fills", "trades"} & set(self.emit) else 0)),
            orders=slotted("orders", len(a.ORDER_SLOTS)),
            fills=slotted("fills", len(a.FILL_SLOTS)),
            trades=slotted("trades", len(a.TRADE_SLOTS)),
            codes=zeros((g.CODES, stride if diag else 0), torch.int16),
        )
        chunk = g.chunk_lanes(lanes, self.device.type)
        sums = a.Sums(
            partials=zeros((-(-lanes // chunk), g.MERGED)),
            merged=zeros(g.MERGED),
            previous=zeros(len(g.SUMMED)),
            moved=zeros(len(g.SUMMED)),
            cumulated=zeros(len(g.SUMMED)),
        )
        return a.World(
            market=a.Market(*(given(array) for array in a.market_arrays(self.tape))),
            plan=given(a.plan_array(self.tape, self.schedule)),
            params=given(a.params_vector(self.config, self.tape.instrument, self.schedule, lanes, chunk)),
            features=given(features.astype(np.float32, copy=False)),
            state=zeros((len(s.FIELDS), stride)),
            out=out,
            observation=zeros((lanes, STATE_DIM), torch.float32),
            last_observation=zeros((lanes, STATE_DIM), torch.float32),
            sums=sums,
        )

    @property
    def stream(self) -> torch.cuda.Stream:
        """The CUDA stream of every kernel of this environment: capture steps on it."""
        return self._runner.stream

    def check(self) -> None:
        """Raise BadInput if a lane has met a fault. On CUDA a step does not wait for the device, so it cannot; `drain` and `rows` do."""
        if self._runner.faulty():
            self._refuse()

    def observe(self) -> torch.Tensor:
        """float32[lanes, 128]: what each lane may know before its next decision. One buffer, overwritten by the next call."""
        self._runner.observe()
        return self.observation

    def step(self, picks: Picks) -> None:
        """One decision of every lane. Raises BadInput, naming lane and step, on a pick out of range or past the last decision.

        Such a lane stays as it was, for good. On CUDA nothing is raised here: see `check`.
        """
        if self._runner.step(picks):
            self._refuse()

    def drain(self) -> None:
        """Close what is open at the drain row. Raises BadInput before the last decision."""
        if self._runner.drain():
            self._refuse()

    def reset(self, mask: torch.Tensor) -> None:
        """Begin anew (capital, first decision, next episode) the lanes of a bool[lanes] mask. Log counters go on."""
        chosen = torch.zeros(self.state.shape[1], dtype=torch.bool, device=self.device)
        chosen[: self.lanes] = mask
        self.state.copy_(torch.where(chosen & ~self._kept, self._initial, self.state))
        self.state[s.EPISODE] += chosen
        self._rebase()

    def _rebase(self) -> None:
        """What `diag` says that the next step moved counts from the state as it is now."""
        fields = [self.state[field, : self.lanes].sum() for field in g.SUMMED]
        self.world.sums.previous.copy_(torch.stack(fields))

    def run_steps(self, actions: np.ndarray, inputs: Picks, observe: bool = False) -> None:
        """Many steps at once on the CPU, for picks that are known: actions int32[T, lanes], gate inputs from `inputs` (whose `action`
        is overwritten). Only the state after the last step, and that step's outputs, are left; nothing is summed for `diag`. With
        `observe`, each observation is assembled too, as a policy would have seen it.
        """
        if self.emit:
            raise BadInput("run_steps writes no tables: make the environment with emit=()")
        if self.device.type != "cpu":
            raise BadInput("run_steps runs on the CPU: capture step() in a graph instead")
        if self._runner.run(np.ascontiguousarray(actions, np.int32), inputs, observe):
            self._refuse()
        self._rebase()

    @property
    def played(self) -> torch.Tensor:
        """bool[lanes]: which lanes decided in the last step; none at the drain."""
        return (self.end_reason != EndReason.NOT_PLAYED) & (self.state[s.STATUS, : self.lanes] != s.DRAINED)

    def diag(self) -> dict[str, int]:
        """The environment's part of the last step's `diag` row (`cuda_env.diag.DIAG`)."""
        if self.world.out.codes.shape[1] == 0:
            raise BadInput("diag is off in this environment")
        cursor, status, clock = (self.state[field, 0].item() for field in (s.CURSOR, s.STATUS, s.CLOCK))
        row = cursor if status == s.DRAINED else cursor - 1
        values = [self.phase, clock - 1, int(self.schedule.ts_observed_ns[row]), int(self.schedule.ts_decided_ns[row])]
        sums = self.world.sums
        values += g.diag_values(*(tensor.cpu().numpy()[None] for tensor in (sums.merged, sums.moved, sums.cumulated)))[0].tolist()
        return dict(zip(g.NAMES, values, strict=True))

    def rows(self, table: str) -> dict[str, np.ndarray]:
        """The last step's rows of a table in key order: one array per declared column, a masked array where the column is nullable."""
        if table not in self.emit:
            raise BadInput(f"table {table} is not emitted here; emitted: {', '.join(self.emit)}")
        self.check()
        out = self._runner.fetch()
        if table == "steps":
            steps = out.steps[:, : self.lanes]
            return r.step_rows(steps, self.lanes, self.phase, self.tape, self.schedule, self.config.reward_scale_usd_micros)
        stored = r.packed(getattr(out, table), out.counts[r.PACKED[table][2]])
        return r.packed_rows(table, stored, self.phase, self.tape)

    def _refuse(self) -> None:
        """Raise for the first lane with a fault."""
        fault = self.world.out.fault.cpu().numpy()
        lane = int(np.flatnonzero(fault)[0])
        step = int(self.state[s.CLOCK, lane])
        raise BadInput(f"lane {lane}, step {step}: {a.FAULTS[int(fault[lane])]}")
