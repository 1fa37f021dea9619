"""The vectorised environment: torch tensors in and out, every buffer made once. docs/step.md says what a step does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from cuda_env import arrays as a
from cuda_env import diag as g
from cuda_env import rows as r
from cuda_env import state as s
from cuda_env import working as w
from cuda_env.config import EnvConfig, check_magnitudes
from lob.errors import BadInput
from lob.layout import LANE, LANE_SLOTS, STATE_DIM
from lob.windows import closes, decision_rows, window_of

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


def _enough_slots(max_lots: int, lanes: int, working: bool) -> int:
    """Rows of one table that a lane can write in a step: an order's ten levels and a floor stop of `max_lots` single lots; for large
    sizes, which no book sells lot by lot, as many as 64 thousand slots over all lanes allow, and 64 at least.

    Where orders work in the book, an older order and one that reverses it can come before the stop, each lot by lot."""
    return min(10 + (4 if working else 1) * max_lots, max(64, 2**16 // lanes))


class Env:
    """`lanes` accounts on one tape and schedule.

    Outputs after `step` or `drain`, all tensors of `lanes`: `reward_raw` int64 (micro-dollars), `terminated` and `truncated` bool (on the
    step that ended an episode), `end_reason` int8 (`lob.actions.EndReason`), `decided` bool (the pick was used: the lane lived and was not
    drained), `closed` bool (the lane was drained, living or dead), `last_observation` float32[lanes, 128] and `last_row` int64 (as of the
    end of the lane's last episode), `played_row` and `row` int64 (row of the plan that the step played; row of the coming observation).

    A schedule that is not joined has one window for all lanes: stepping past its last decision is refused, and `drain` closes it. In a
    joined one (`lob.windows.join`) lane i plays window i mod W from its first row; the step after its last decision drains it, and its
    later steps are not played. A lane that died by the floor takes no further part; its picks are not read.

    With `restarts` (a seed below 2^64) no lane stays dead or drained: in the step in which its episode ended, after every output was
    written, it begins anew with the capital, in the next episode, at a row drawn from Philox (seed, lane, episode) uniformly over the
    decisions of all windows, as is the row of its first episode. Session closes end an episode and carry the account on, as always.

    `features` is float32[R, 128] for the schedule's R rows: the normalised market slots, with zeros in the lane's slots. `slots` bounds the
    rows that one lane can write to a table in one step. `first_lane` is the number of lane 0 where several processes share a run's lanes.
    Buffers keep their addresses for the life of the environment. Raises BadInput.
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
        restarts: int | None = None,
        first_lane: int = 0,
    ) -> None:
        if lanes < 1:
            raise BadInput(f"lanes {lanes}: at least one is needed")
        if unknown := sorted(set(emit) - set(EMIT)):
            raise BadInput(f"emit {', '.join(unknown)}: choose from {', '.join(EMIT)}")
        if features.shape != (schedule.rows, STATE_DIM):
            raise BadInput(f"features have shape {features.shape}; this schedule needs {(schedule.rows, STATE_DIM)}: build them anew")
        self.tape, self.schedule, self.lanes, self.phase, self.emit = tape, schedule, lanes, int(phase), tuple(emit)
        self.first_lane, self.restarts = first_lane, restarts
        self.config = config.resolved(tape.instrument)
        self.working = self.config.queue_model != "none"
        mids = tape.bid_ticks[:, 0].astype(np.int64) + tape.ask_ticks[:, 0]
        mids = mids[tape.tradable]
        check_magnitudes(self.config, tape.instrument.tick_value_usd_micros, int(mids.min()), int(mids.max()))
        self.device = torch.device(device)
        self.closes, self.window = closes(tape, schedule, self.config.max_lots), window_of(schedule)
        scale = self.config.reward_scale_usd_micros
        self.reading = r.Reading(self.phase, lanes, first_lane, tape, schedule, self.closes, self.window, scale, self.working)
        self.world = self._allocate(features, slots or _enough_slots(self.config.max_lots, lanes, self.working), diag)
        out = self.world.out
        self.state, self.observation, self.last_observation = self.world.state, self.world.observation, self.world.last_observation
        self.row, self.played_row, self.last_row = self.state[s.CURSOR, :lanes], out.row, out.last_row
        self.reward_raw, self.end_reason = out.reward, out.end_reason
        self.terminated, self.truncated = out.terminated.view(torch.bool), out.truncated.view(torch.bool)
        self.decided, self.closed = out.decided.view(torch.bool), out.closed.view(torch.bool)
        self._first_row = torch.from_numpy(self.window.first_row).to(self.device)
        of_orders = w.initial_values() if self.working else []
        self._kept = torch.tensor(s.kept() + [False] * len(of_orders), device=self.device)[:, None]
        initial = torch.tensor(s.reset_values(self.config.capital_usd_micros) + of_orders, device=self.device)
        self._initial = initial[:, None].repeat(1, len(self.state[0]))
        self._initial[s.CURSOR, :lanes] = torch.from_numpy(self._begin_at()).to(self.device)
        self.state.copy_(self._initial)
        self._rebase()
        self._runner = _runner(self.world, threads)

    def _begin_at(self) -> np.ndarray:
        """int64[lanes]: the row at which each lane's first episode begins."""
        if self.restarts is None:
            first = np.array([window.first for window in self.schedule.windows], np.int64)
            return first[(self.first_lane + np.arange(self.lanes)) % len(first)]
        from cuda_env.kernels_cpu import draw_starts

        rows = np.empty(self.lanes, np.int64)
        draw_starts(self.world.params.cpu().numpy(), a.Starts(*(part.cpu().numpy() for part in self.world.starts)), rows)
        return rows

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
            row=zeros(lanes),
            last_row=zeros(lanes),
            decided=zeros(lanes, torch.uint8),
            closed=zeros(lanes, torch.uint8),
            steps=zeros((len(a.STEP_SLOTS), stride if "steps" in self.emit else 0)),
            counts=zeros((3, stride if {"orders", "fills", "trades"} & set(self.emit) else 0)),
            orders=slotted("orders", len(a.WORKING_ORDER_SLOTS if self.working else a.ORDER_SLOTS)),
            fills=slotted("fills", len(a.WORKING_FILL_SLOTS if self.working else a.FILL_SLOTS)),
            trades=slotted("trades", len(a.TRADE_SLOTS)),
            codes=zeros((g.CODES, stride if diag else 0), torch.int16),
        )
        chunk = g.chunk_lanes(lanes, self.device.type)
        drains = bool(self.schedule.joined) or self.restarts is not None
        sums = a.Sums(
            partials=zeros((-(-lanes // chunk), g.MERGED)),
            merged=zeros(g.MERGED),
            previous=zeros(len(g.SUMMED)),
            restarted=zeros((-(-lanes // chunk), len(g.SUMMED))),
            moved=zeros(len(g.SUMMED)),
            cumulated=zeros(len(g.SUMMED)),
        )
        return a.World(
            market=a.Market(*(given(array) for array in a.market_arrays(self.tape, self.working))),
            plan=given(a.plan_array(self.tape, self.schedule, self.closes)),
            params=given(
                a.params_vector(
                    self.config, self.tape.instrument, lanes, self.first_lane, drains, chunk, self.restarts or 0, self.schedule.latency_ns
                )
            ),
            starts=a.Starts(
                given(np.zeros(0, np.int64) if self.restarts is None else decision_rows(self.schedule)),
                given(np.array(s.fresh_values(self.config.capital_usd_micros) + (w.initial_values() if self.working else []), np.int64)),
            ),
            features=given(features.astype(np.float32, copy=False)),
            state=zeros((len(s.FIELDS) + (w.FIELDS if self.working else 0), stride)),
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

    def close_all(self) -> None:
        """Drain every lane where it stands, as at the end of a training: it closes at the next row deep enough for `max_lots`
        (`lob.windows.closes`), reason `step_limit` unless its window is at its end anyway. None begins anew."""
        if self._runner.close_all():
            self._refuse()

    def history(self, window: int, rows: torch.Tensor | None = None) -> torch.Tensor:
        """float32[n, window, 96]: the market slots of the `window` rows up to each of `rows` int64[n] (default: the lanes' coming ones),
        oldest first, zeros before the first row of the row's own window."""
        rows = self.row if rows is None else rows
        back = rows[:, None] + torch.arange(1 - window, 1, device=self.device)
        inside = back >= self._first_row[rows][:, None]
        seen = self.world.features[torch.where(inside, back, 0)][:, :, :LANE]
        return torch.where(inside[:, :, None], seen, 0)

    def assemble(self, rows: torch.Tensor, lane_rows: torch.Tensor) -> torch.Tensor:
        """float32[n, 128]: the observations whose template rows are `rows` int64[n] and whose lane slots are float32[n, 16]; bit for bit
        what `observe` gave, whose slots 96..111 the lane slots are."""
        assembled = self.world.features[rows]
        assembled[:, LANE : LANE + len(LANE_SLOTS)] = lane_rows
        return assembled

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Every tensor that a resumed run needs, by name: lanes, running sums, and the outputs of the last step. The tensors themselves."""
        outputs = ("reward", "end_reason", "terminated", "truncated", "fault", "row", "last_row", "decided", "closed")
        named = {"state": self.state, "observation": self.observation, "last_observation": self.last_observation}
        named |= {f"out.{name}": getattr(self.world.out, name) for name in outputs}
        return named | {f"sums.{name}": getattr(self.world.sums, name) for name in ("merged", "previous", "moved", "cumulated")}

    def load_state_dict(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Copy what `state_dict` gave into the buffers. Raises BadInput for another set of names, another shape or another dtype."""
        own = self.state_dict()
        if odd := sorted(set(own) ^ set(saved)):
            raise BadInput(
                f"saved environment: {', '.join(odd)} {'is' if len(odd) == 1 else 'are'} missing or unknown: it is of another version"
            )
        for name, tensor in own.items():
            if (tensor.shape, tensor.dtype) != (saved[name].shape, saved[name].dtype):
                is_, wanted = (f"{t.dtype} of shape {list(t.shape)}" for t in (saved[name], tensor))
                raise BadInput(f"saved environment: {name} is {is_}, here {wanted}: resume with the lanes that it was saved with")
        for name, tensor in own.items():
            tensor.copy_(saved[name])

    def reset(self, mask: torch.Tensor, rows: torch.Tensor | None = None) -> None:
        """Begin anew (capital, next episode) the lanes of a bool[lanes] mask, each at its entry of `rows` int64[lanes] (None: at the row of
        its first episode). Log counters go on. Waits for nothing."""
        chosen = torch.zeros(self.state.shape[1], dtype=torch.bool, device=self.device)
        chosen[: self.lanes] = mask
        self.state.copy_(torch.where(chosen & ~self._kept, self._initial, self.state))
        if rows is not None:
            self.row.copy_(torch.where(mask, rows, self.row))
        self.state[s.EPISODE] += chosen
        self._rebase()

    def _rebase(self) -> None:
        """What `diag` says that the next step moved counts from the state as it is now."""
        fields = [self.state[field, : self.lanes].sum() for field in g.SUMMED]
        self.world.sums.previous.copy_(torch.stack(fields))

    def run_steps(self, actions: torch.Tensor, inputs: Picks, observe: bool = False) -> None:
        """Many steps in one call (one launch on CUDA), for picks that are known: actions int32[T, lanes], gate inputs from `inputs` (whose
        `action` is overwritten). Only the state after the last step, and that step's outputs, are left; nothing is summed for `diag`. With
        `observe`, on the CPU, each observation is assembled too, as a policy would have seen it. Raises BadInput.
        """
        self._fuse(actions, (self.lanes,))
        if observe and self.device.type != "cpu":
            raise BadInput("run_steps assembles observations on the CPU alone: on CUDA capture observe() and step() in a graph")
        if self._runner.run(actions, inputs, observe):
            self._refuse()
        self._rebase()

    def follow(self, actions: torch.Tensor, part: torch.Tensor, steps: int, inputs: Picks) -> None:
        """`steps` steps in one call (one launch on CUDA), each lane after a rule: it picks actions[part[lane], row, 1 + sign of its
        position] of int32[rules, R, 3] for the plan's R rows. Otherwise as `run_steps`. Raises BadInput.
        """
        self._fuse(actions, (self.schedule.rows, 3))
        if part.shape != (self.lanes,) or int(part.min()) < 0 or int(part.max()) >= len(actions):
            raise BadInput(f"follow: give each of the {self.lanes} lanes one of the {len(actions)} rules")
        if self._runner.follow(actions, part, steps, inputs):
            self._refuse()
        self._rebase()

    def _fuse(self, actions: torch.Tensor, shape: tuple[int, ...]) -> None:
        """Raise BadInput for an environment, or actions, that many steps cannot be played with at once."""
        if self.emit:
            raise BadInput("many steps at once write no tables: make the environment with emit=()")
        if actions.dtype != torch.int32 or actions.shape[1:] != shape:
            raise BadInput(
                f"actions are {actions.dtype} of shape {tuple(actions.shape)}: int32 of shape (any, {', '.join(map(str, shape))}) is needed"
            )

    def diag(self) -> dict[str, int]:
        """The environment's part of the last step's `diag` row (`cuda_env.diag.DIAG`)."""
        if self.world.out.codes.shape[1] == 0:
            raise BadInput("diag is off in this environment")
        row, closed, clock = (tensor[:1].cpu().numpy() for tensor in (self.played_row, self.closed, self.state[s.CLOCK]))
        observed_ns, decided_ns = r.times_of(row, closed, self.reading)
        values = [self.phase, int(clock[0]) - 1, int(observed_ns[0]), int(decided_ns[0])]
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
            return r.step_rows(out.steps[:, : self.lanes], self.reading)
        return r.packed_rows(table, r.packed(getattr(out, table), out.counts[r.PACKED[table][2]]), self.reading)

    def _refuse(self) -> None:
        """Raise for the first lane with a fault."""
        fault = self.world.out.fault.cpu().numpy()
        lane = int(np.flatnonzero(fault)[0])
        step = int(self.state[s.CLOCK, lane])
        raise BadInput(f"lane {self.first_lane + lane}, step {step}: {a.FAULTS[int(fault[lane])]}")
