"""The vectorised environment: torch tensors in and out, every buffer made once. docs/step.md says what a step does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from cuda_env import arrays as a
from cuda_env import rows as r
from cuda_env import state as s
from cuda_env.config import EnvConfig, check_magnitudes
from lob.errors import BadInput
from lob.layout import STATE_DIM

if TYPE_CHECKING:
    from lob.picks import Picks
    from lob.tape import Schedule, Tape

EMIT = ("steps", "orders", "fills", "trades")
"""What a step can write besides its outputs."""


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
        seed: int = 0,
        threads: int | None = None,
        slots: int = 32,
    ) -> None:
        if lanes < 1:
            raise BadInput(f"lanes {lanes}: at least one is needed")
        if unknown := sorted(set(emit) - set(EMIT)):
            raise BadInput(f"emit {', '.join(unknown)}: choose from {', '.join(EMIT)}")
        if features.shape != (schedule.decisions + 1, STATE_DIM):
            raise BadInput(
                f"features have shape {features.shape}; this schedule needs {(schedule.decisions + 1, STATE_DIM)}: build them anew"
            )
        self.tape, self.schedule, self.lanes, self.phase, self.seed, self.emit = tape, schedule, lanes, int(phase), seed, tuple(emit)
        self.config = config.resolved(tape.instrument)
        mids = tape.bid_ticks[:, 0].astype(np.int64) + tape.ask_ticks[:, 0]
        mids = mids[tape.tradable]
        check_magnitudes(self.config, tape.instrument.tick_value_usd_micros, int(mids.min()), int(mids.max()))
        self.device = torch.device(device)

        def zeros(shape, dtype):
            return torch.zeros(shape, dtype=dtype, device=self.device)

        def slotted(table, columns):
            return torch.empty((lanes if table in emit else 0, slots, columns), dtype=torch.int64, device=self.device)

        stride = s.padded(lanes)
        rows_emitted = stride if {"orders", "fills", "trades"} & set(emit) else 0
        self.reward_raw = zeros(lanes, torch.int64)
        self.end_reason = zeros(lanes, torch.int8)
        flags = zeros((2, lanes), torch.uint8)
        self.terminated, self.truncated = flags[0].view(torch.bool), flags[1].view(torch.bool)
        self.observation = zeros((lanes, STATE_DIM), torch.float32)
        self.last_observation = zeros((lanes, STATE_DIM), torch.float32)
        self.state = zeros((len(s.FIELDS), stride), torch.int64)
        self._out = a.Out(
            reward=self.reward_raw,
            end_reason=self.end_reason,
            terminated=flags[0],
            truncated=flags[1],
            fault=zeros(lanes, torch.int8),
            steps=zeros((len(a.STEP_SLOTS), stride if "steps" in emit else 0), torch.int64),
            counts=zeros((3, rows_emitted), torch.int64),
            orders=slotted("orders", len(a.ORDER_SLOTS)),
            fills=slotted("fills", len(a.FILL_SLOTS)),
            trades=slotted("trades", len(a.TRADE_SLOTS)),
        )
        self._initial = torch.tensor(s.reset_values(self.config.capital_usd_micros), device=self.device)[:, None]
        self._kept = torch.tensor(s.kept(), device=self.device)[:, None]
        self.state.copy_(self._initial.expand_as(self.state))
        market = a.market_arrays(tape)
        plan = a.plan_array(tape, schedule)
        params = a.params_vector(self.config, tape.instrument, schedule, lanes)
        features = np.ascontiguousarray(features, np.float32)
        if self.device.type == "cpu":
            from cuda_env.run_cpu import CpuRunner

            self._runner = CpuRunner(
                market, plan, params, features, self.state, self._out, self.observation, self.last_observation, threads
            )
        else:
            raise BadInput(f"device {device}: only cpu so far")

    def observe(self) -> torch.Tensor:
        """float32[lanes, 128]: what each lane may know before its next decision. One buffer, overwritten by the next call."""
        self._runner.observe()
        return self.observation

    def step(self, picks: Picks) -> None:
        """One decision of every lane. Raises BadInput, naming lane and step, on a pick out of range or past the last decision."""
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

    def rows(self, table: str) -> dict[str, np.ndarray]:
        """The last step's rows of a table in key order: one array per declared column, a masked array where the column is nullable."""
        if table not in self.emit:
            raise BadInput(f"table {table} is not emitted here; emitted: {', '.join(self.emit)}")
        out = self._runner.fetch()
        if table == "steps":
            return r.step_rows(out.steps, self.lanes, self.phase, self.tape, self.schedule, self.config.reward_scale_usd_micros)
        if table == "orders":
            return r.order_rows(out, self.phase)
        if table == "fills":
            return r.fill_rows(out, self.phase, self.tape)
        return r.trade_rows(out, self.phase)

    def _refuse(self) -> None:
        """Raise for the first lane with a fault."""
        fault = self._out.fault.cpu().numpy()
        lane = int(np.flatnonzero(fault)[0])
        step = int(self.state[s.CLOCK, lane])
        raise BadInput(f"lane {lane}, step {step}: {a.FAULTS[int(fault[lane])]}")
