"""Blocks of the log: the outputs of consecutive steps, gathered beside the environment without waiting for it, and turned into columns many
steps at once. So a step that a CUDA graph holds can be logged, and on the CPU a row costs a copy instead of a page of Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from cuda_env import arrays as a
from cuda_env import diag as g
from cuda_env import rows as r
from lob.errors import BadInput
from lob.tables import Column

if TYPE_CHECKING:
    from cuda_env.env import Env

BLOCK_BYTES = 2**31
"""Memory that a block may take: at 4,096 lanes of four lots, 64 steps of `trades` take a quarter of it."""

NULL = -(2**63)
"""In an int64 vector that is `put`: no value. In a float64 vector NaN says so."""

MOVED = g.MERGED
CUMULATED = MOVED + len(g.SUMMED)
PLACE = CUMULATED + len(g.SUMMED)
HEAD = PLACE + 3
"""What `diag` needs of a step: the merged sums, what moved, the running sums, and by which it says when that was: the row that lane 0
played, whether it was drained there, and its clock."""

CAPTURED = 0
"""Entry of `counters`: steps since the last fetch. The entries behind it count rows, in the order of PACKED."""

PACKED = tuple(r.PACKED)


class Block(NamedTuple):
    """Buffers of a block on the environment's device. A table that is not emitted has zero lanes or rows."""

    counters: Any  # int64[1 + len(PACKED)]
    slot: Any  # int64[1]: where the coming step's vectors go; the last one, which nobody reads, when the block is full
    head: Any  # int64[steps, HEAD]; zero wide when the environment keeps no sums
    ints: Any  # int64[steps + 1, columns]
    floats: Any  # float64[steps + 1, columns]
    steps: Any  # int64[steps, len(STEP_SLOTS), stride]
    orders: Any  # int64[rows, len(ORDER_SLOTS) + 1], the last column is the lane; rows stand in the order step, lane, slot
    fills: Any
    trades: Any
    ends: Any  # int64[3, stride]: how many rows of a table this lane and those before it wrote in the step (CUDA)


class Captured(NamedTuple):
    """What `fetch` brought to the host: numpy arrays of the K steps that were captured, shapes as in `Block`."""

    head: np.ndarray
    ints: np.ndarray
    floats: np.ndarray
    steps: np.ndarray
    orders: np.ndarray
    fills: np.ndarray
    trades: np.ndarray


def _capture_of(env: Env, block: Block) -> Any:
    """What fills and empties the block on the environment's device."""
    if env.world.state.is_cuda:
        from cuda_env.blocks_cuda import CudaCapture

        return CudaCapture(env.world, block, env._runner)
    from cuda_env.blocks_cpu import CpuCapture

    return CpuCapture(env.world, block)


class BlockLog:
    """The last step's outputs, `steps` times, then `drain`.

    `put` (before) and `capture` (after each step) wait for nothing and can be captured in a CUDA graph; they find their place by a counter
    on the device. On CUDA the buffers hold the most rows that `steps` steps can write, so that no block can overflow; on the CPU they grow.
    `extra` declares further columns of `diag`, int64, float64 or float32, whose values the caller gives to `put`. `bytes` is the memory
    taken. Raises BadInput when that is over `budget_bytes`.
    """

    def __init__(self, env: Env, steps: int, extra: Sequence[Column] = (), budget_bytes: int = BLOCK_BYTES) -> None:
        if steps < 1:
            raise BadInput(f"a block of {steps} steps: at least one is needed")
        if odd := [column.name for column in extra if column.dtype not in ("int64", "float64", "float32")]:
            raise ValueError(f"column {odd[0]}: a value that is put is int64, float64 or float32")
        self.env, self.steps, self.extra = env, steps, tuple(extra)
        self._has_diag = env.world.out.codes.shape[1] > 0
        if extra and not self._has_diag:
            raise ValueError(f"column {extra[0].name} has no row to stand in: diag is off in this environment")
        ints = sum(column.dtype == "int64" for column in extra)
        shapes, one = (block_shapes(env.world.out, n, ints, len(extra) - ints, env.device.type) for n in (steps, 1))
        self.bytes = _bytes(shapes)
        if self.bytes > budget_bytes:
            fit = steps - -(-(self.bytes - budget_bytes) * (steps - 1) // (self.bytes - _bytes(one))) if budget_bytes >= _bytes(one) else 0
            tables = ", ".join(("diag",) * self._has_diag + env.emit)
            remedy = f"use fewer block steps ({fit} fit)" if fit else "log fewer tables or play fewer lanes: not one step fits"
            raise BadInput(
                f"a block of {steps} steps x {env.lanes} lanes takes {self.bytes / 1e9:.2f} GB for {tables}, over the budget of"
                f" {budget_bytes / 1e9:.2f} GB: {remedy}"
            )
        dtypes = {"floats": torch.float64}
        block = Block(
            **{name: torch.empty(shape, dtype=dtypes.get(name, torch.int64), device=env.device) for name, shape in shapes._asdict().items()}
        )
        for zeroed in (block.counters, block.slot, block.ends):
            zeroed.zero_()
        block.ints.fill_(NULL)
        block.floats.fill_(torch.nan)
        self._capture = _capture_of(env, block)

    def put(self, values: torch.Tensor) -> None:
        """Set the coming step's values of the `extra` columns: an int64 vector those of the int64 columns, a float64 vector the others', in
        their declared order. What is not put is null. On CUDA, a tensor on the device; on the CPU a numpy array will do.
        """
        self._capture.put(values)

    def capture(self) -> None:
        """Keep what the last `step` or `drain` of the environment wrote. Raises ValueError when the block is full (CUDA: `fetch` does)."""
        self._capture.capture()

    def fetch(self) -> Captured:
        """Bring the captured steps to the host and begin the next block; waits for the device.

        The arrays hold until the next `capture` (on CUDA, where the device may play on meanwhile: until the next `fetch`). Raises BadInput
        when a lane has met a fault, and ValueError when more steps were captured than there is room for.
        """
        captured = self._capture.fetch()
        if self.env.device.type == "cuda":
            self.env.check()  # a step there could not say so
        return captured

    def columns(self, captured: Captured) -> dict[str, dict[str, np.ndarray]]:
        """{table: columns} of what was fetched, `diag` and every emitted table, rows in key order, as `env.diag` and `env.rows` give them a
        step at a time and with the `extra` columns behind `diag`'s; arrays of their own. Masked where a column is nullable.
        """
        env = self.env
        tables: dict[str, dict[str, np.ndarray]] = {}
        if self._has_diag:
            tables["diag"] = self._diag(captured)
        for table in env.emit:
            if table == "steps":
                tables[table] = r.step_rows(_side_by_side(captured.steps, env.lanes), env.reading)
                continue
            tables[table] = r.packed_rows(table, getattr(captured, table), env.reading)
        return tables

    def drain(self) -> dict[str, dict[str, np.ndarray]]:
        """`columns` of `fetch`: the rows of all captured steps. Raises as `fetch` does."""
        return self.columns(self.fetch())

    def _diag(self, captured: Captured) -> dict[str, np.ndarray]:
        head = captured.head
        row, closed, clock = head[:, PLACE:].T
        observed_ns, decided_ns = r.times_of(row, closed != 0, self.env.reading)
        columns = {
            "phase": np.full(len(head), self.env.phase, np.int8),
            "step": (clock - 1).astype(np.int32),
            "ts_observed_ns": observed_ns,
            "ts_decided_ns": decided_ns,
        }
        values = g.diag_values(head[:, :MOVED], head[:, MOVED:CUMULATED], head[:, CUMULATED:PLACE])
        columns |= dict(zip(g.NAMES[len(columns) :], np.ascontiguousarray(values.T), strict=True))
        ints, floats = iter(captured.ints.T), iter(captured.floats.T)
        for column in self.extra:
            put = next(ints if column.dtype == "int64" else floats)
            columns[column.name] = _with_nulls(put.astype(column.dtype), put == NULL if column.dtype == "int64" else np.isnan(put), column)
        return columns


def _with_nulls(values: np.ndarray, nulls: np.ndarray, column: Column) -> np.ndarray:
    """Masked where null: also in a column that may hold none, so that the log refuses it."""
    return np.ma.masked_array(values, nulls, fill_value=0) if column.nullable or nulls.any() else values


def _side_by_side(steps: np.ndarray, lanes: int) -> np.ndarray:
    """int64[len(STEP_SLOTS), K * lanes] of int64[K, len(STEP_SLOTS), stride]: step by step, lane by lane."""
    return steps[:, :, :lanes].transpose(1, 0, 2).reshape(steps.shape[1], -1)


def block_shapes(out: a.Out, steps: int, ints: int, floats: int, device: str) -> Block:
    """The shape of every buffer of a block of so many steps with so many vectors' columns."""
    on_device = device == "cuda"

    def packed(table: str) -> tuple[int, int]:
        lanes, slots, columns = getattr(out, table).shape
        return (steps * lanes * slots if on_device else 0, columns + 1)

    return Block(
        counters=(1 + len(PACKED),),
        slot=(1,),
        head=(steps, HEAD if out.codes.shape[1] else 0),
        ints=(steps + 1, ints),
        floats=(steps + 1, floats),
        steps=(steps, *out.steps.shape),
        orders=packed("orders"),
        fills=packed("fills"),
        trades=packed("trades"),
        ends=tuple(out.counts.shape) if on_device else (0, 0),
    )


def _bytes(shapes: Block) -> int:
    return 8 * sum(int(np.prod(shape)) for shape in shapes)
