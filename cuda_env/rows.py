"""The log rows of the last step, in key order, from what the kernels stored of them (`cuda_env.arrays`, `*_SLOTS`)."""

from typing import NamedTuple

import numpy as np

from cuda_env import arrays as a
from cuda_env.state import NONE_MID2
from cuda_env.tables import FILLS, ORDERS, STEPS, TRADES, WORKING_FILLS, WORKING_ORDERS
from lob.actions import NOT_PLAYED
from lob.tables import Table
from lob.tape import Schedule, Tape
from lob.units import USD_MICROS
from lob.windows import Closes, WindowOf


def _typed(table: Table, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The table's columns in their declared order and types, copied: the next step overwrites the buffers."""
    return {column.name: values[column.name].astype(column.dtype) for column in table.columns}


class Reading(NamedTuple):
    """What stored values are read with."""

    phase: int
    lanes: int
    first_lane: int
    tape: Tape
    schedule: Schedule
    closes: Closes
    window: WindowOf
    reward_scale_usd_micros: int
    working: bool = False  # orders work in the book


def times_of(row: np.ndarray, closed: np.ndarray, reading: Reading) -> tuple[np.ndarray, np.ndarray]:
    """(ts_observed_ns, ts_decided_ns) of rows of the plan: of the decision, or of the close where the lane was drained."""
    schedule, closes = reading.schedule, reading.closes
    observed = np.where(closed, closes.ts_observed_ns[row], schedule.ts_observed_ns[row])
    return observed, np.where(closed, closes.ts_ns[row], schedule.ts_decided_ns[row])


def step_rows(steps: np.ndarray, reading: Reading) -> dict[str, np.ndarray]:
    """`steps` of int64[len(STEP_SLOTS), T * lanes], step by step, lane by lane. Whitening and shaping are the learner's: until it
    overwrites them they equal scaled and raw.
    """
    _, lanes, _, tape, schedule, closes, window, reward_scale_usd_micros, _ = reading
    values = dict(zip(a.STEP_SLOTS, steps, strict=True))
    row, drained = values["cursor"], values["is_drain"] != 0
    last = window.last_row[row]
    marked = np.where(drained | (row == last), closes.event[row], schedule.mark_event[np.minimum(row + 1, last)])
    values["phase"] = np.full(len(row), reading.phase)
    values["lane"] = reading.first_lane + np.tile(np.arange(lanes), len(row) // lanes)
    values["ts_observed_ns"], values["ts_decided_ns"] = times_of(row, drained, reading)
    for kind in ("picked", "actual"):
        action = values[f"{kind}_action"]
        unplayed = action == NOT_PLAYED
        branches = (action // 27, action % 27 // 9, action % 9 // 3, action % 3)
        for branch, code in zip(("direction", "magnitude", "order", "urgency"), branches, strict=True):
            values[f"{kind}_{branch}"] = np.where(unplayed, NOT_PLAYED, code)
    values["mark_mid2_ticks"] = tape.bid_ticks[marked, 0].astype(np.int64) + tape.ask_ticks[marked, 0]
    values["mark_source"] = tape.source[marked]
    values["mark_row"] = tape.row[marked]
    trail = values["trail_mid2_ticks"]
    values["trail_mid2_ticks"] = np.ma.masked_array(trail, mask=trail == NONE_MID2, fill_value=0)
    values["reward_shaped"] = values["reward_raw"] / USD_MICROS
    values["reward_scaled"] = values["reward_raw"] / reward_scale_usd_micros
    values["reward_whitened"] = values["reward_scaled"]
    return _typed(STEPS, values)


def packed(stored: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """int64[rows, columns + 1] in (lane, slot) order, the lane in the last column, from int64[lanes, slots, columns] and the number of rows
    that each lane wrote.
    """
    lanes, slot_count, _ = stored.shape
    written = np.flatnonzero(counts[:lanes])
    at_most = int(counts[written].max(initial=0))
    used = np.arange(min(at_most, slot_count)) < counts[written, None]
    return np.column_stack([stored[written, : used.shape[1]][used], np.repeat(written, counts[written])])


PACKED = {
    "orders": (ORDERS, a.ORDER_SLOTS, a.ORDERS_WRITTEN),
    "fills": (FILLS, a.FILL_SLOTS, a.FILLS_WRITTEN),
    "trades": (TRADES, a.TRADE_SLOTS, a.TRADES_WRITTEN),
}
"""Tables of any number of rows a step: declaration, what kernels store of a row, and their row of `Out.counts`."""

_WORKING = {"orders": (WORKING_ORDERS, a.WORKING_ORDER_SLOTS), "fills": (WORKING_FILLS, a.WORKING_FILL_SLOTS)}


def _price(ticks: np.ndarray) -> np.ndarray:
    """Limits, masked where an order had none."""
    return np.ma.masked_array(ticks, mask=ticks == NONE_MID2, fill_value=0)


def packed_rows(table: str, stored: np.ndarray, reading: Reading) -> dict[str, np.ndarray]:
    """Rows of `orders`, `fills` or `trades`, from `packed`."""
    declared, slots = _WORKING[table] if reading.working and table in _WORKING else PACKED[table][:2]
    values = dict(zip((*slots, "lane"), stored.T, strict=True))
    values["phase"] = np.full(len(stored), reading.phase)
    values["lane"] = reading.first_lane + values["lane"]
    if table == "orders" and reading.working:
        values |= {name: _price(values[name]) for name in ("limit_ticks", "asked_ticks")}
        # Orders are stored as they end: one that waits in a halt may end behind a younger one.
        by_id = np.lexsort((values["order_id"], values["lane"], values["step"]))
        values = {name: array[by_id] for name, array in values.items()}
    elif table == "orders":
        values["limit_ticks"] = np.ma.masked_array(np.zeros(len(stored), np.int64), mask=True)  # every order is a market order so far
    elif table == "fills":
        values["market_source"] = reading.tape.source[values["market_event"]]
        values["market_row"] = reading.tape.row[values["market_event"]]
    return _typed(declared, values)
