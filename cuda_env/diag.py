"""The environment's columns of the `diag` table: integer sums over lanes of one step, so that no order of lanes or threads can change them.

A step leaves three small codes per lane. They are counted into bins, chunk by chunk of lanes, and a few fields of the state are summed
beside them; what a step moved is the difference of two such sums. Only when a row is asked for are the bins spread over the columns.
"""

import numpy as np

from cuda_env import state as s
from lob.actions import ACTIONS, Direction, EndReason, Magnitude, OrderKind, Phase, Urgency, names
from lob.jit import kernel_cpu, scalar
from lob.tables import Column
from lob.units import PPM

CHUNK = 128
"""Lanes that are counted together: a block on CUDA, and at least on the CPU, where one thread plays them and keeps their state near."""
MOST_CHUNKS = 32
"""More lanes than 32 chunks hold make longer chunks on the CPU, since merging chunks is work for one thread."""
MASK63 = 2**63 - 1
HOLD = int(Direction.HOLD)
SESSION_CLOSE, CAPITAL_FLOOR = int(EndReason.SESSION_CLOSE), int(EndReason.CAPITAL_FLOOR)
WINDOW_END, STEP_LIMIT, TAPE_END = int(EndReason.WINDOW_END), int(EndReason.STEP_LIMIT), int(EndReason.TAPE_END)

PICKED_CODE, ACTUAL_CODE, GATE_CODE = range(3)
"""Rows of `out.codes`: the action picked, the action that physics made of it, the gates that acted, as bits."""
CODES = 3
UNPLAYED = ACTIONS
"""Code of no action."""
PLAN_LOCK, VARIANCE, MARGIN, KELLY, TRAIL, FLOOR = range(6)
"""Bits of a gate code."""

PICKED_BIN = 0
ACTUAL_BIN = PICKED_BIN + ACTIONS + 1
GATE_BIN = ACTUAL_BIN + ACTIONS + 1
END_BIN = GATE_BIN + 64
BINS = END_BIN + len(EndReason)
RUNNING_BIN = END_BIN + 1 + int(EndReason.RUNNING)
"""Counted: each action picked, each actual action, each combination of gates, each end reason (one up: NOT_PLAYED is -1)."""

SUMMED = (s.CASH, s.FEES, s.ORDER_COUNT, s.FILL_COUNT, s.TRADE_COUNT, s.EQUITY)
CASH_SUM, FEES_SUM, EQUITY_SUM = (SUMMED.index(field) for field in (s.CASH, s.FEES, s.EQUITY))
"""State fields whose sums are kept from step to step: what moved is a difference."""
LONG, SHORT, CHECKSUM = range(len(SUMMED), len(SUMMED) + 3)
AMOUNTS = len(SUMMED) + 3
MERGED = BINS + AMOUNTS

_COUNTS = (
    *((f"picked.direction_{m.name.lower()}", f"lanes that picked {m.name.lower()}") for m in Direction),
    *((f"picked.magnitude_{m.name.lower()}", f"lanes that picked {m.name.lower()}") for m in Magnitude),
    *((f"picked.order_{m.name.lower()}", f"lanes that picked {m.name.lower()}") for m in OrderKind),
    *((f"picked.urgency_{m.name.lower()}", f"lanes that picked {m.name.lower()}") for m in Urgency),
    *((f"actual.direction_{m.name.lower()}", f"lanes that physics left at {m.name.lower()}") for m in Direction),
    *((f"actual.magnitude_{m.name.lower()}", f"lanes that physics left at {m.name.lower()}") for m in Magnitude),
    ("gate.plan_lock", "lanes whose direction the plan lock turned to hold"),
    ("gate.variance_scale", "lanes sized by a variance scale below one"),
    ("gate.margin_cap", "lanes whose lots the margin cap lowered"),
    ("gate.kelly_cap", "lanes whose lots the Kelly cap lowered further"),
    ("gate.trail_stop", "lanes that the trail stop closed"),
    ("gate.capital_floor", "lanes that have met the floor, in this step or before with lots left"),
    ("lanes.played", "lanes that decided"),
    ("end.session_close", "episodes that ended with the session"),
    ("end.capital_floor", "episodes that ended by the floor"),
    ("end.final", "episodes that ended with the window, the tape or the step limit"),
    ("lanes.not_played", "lanes that were dead or at their end before the step"),
)
_AMOUNTS = (
    Column("trading.orders", "int64", "1", "orders sent"),
    Column("trading.fills", "int64", "1", "fills"),
    Column("trading.trades", "int64", "1", "trade rows closed"),
    Column("trading.realized_pnl_usd_micros_delta", "int64", "usd_micros", "realised in this step, net of its fees"),
    Column("trading.fee_usd_micros_delta", "int64", "usd_micros", "fees of this step"),
    Column("trading.equity_usd_micros", "int64", "usd_micros", "equity after the step"),
    Column("trading.unrealized_usd_micros", "int64", "usd_micros", "unrealised after the step"),
    Column("trading.reward_raw_usd_micros", "int64", "usd_micros", "change of equity in this step"),
    Column("trading.long_lots", "int64", "lots", "lots held long after the step"),
    Column("trading.short_lots", "int64", "lots", "lots held short after the step"),
    Column("checksum.accounts", "int64", "1", "of cash, cost, position, trail, fees and fills of all lanes, modulo 2^63"),
    Column(
        "trading.realized_pnl_usd_micros_cum", "int64", "usd_micros", "running sum over the phase: realised in this step, net of its fees"
    ),
    Column("trading.fee_usd_micros_cum", "int64", "usd_micros", "running sum over the phase: fees of this step"),
    Column("trading.trades_cum", "int64", "1", "running sum over the phase: trade rows closed"),
)

DIAG = (
    Column("phase", "int8", "code", "train, eval or replay", names(Phase)),
    Column("step", "int32", "1", "decision of the phase, counted from 0; the drain is the last"),
    Column("ts_observed_ns", "int64", "ns", "receive time of the last row that the observation rests on (lane 0)"),
    Column("ts_decided_ns", "int64", "ns", "when it decided (lane 0)"),
    *(Column(name, "int64", "1", doc) for name, doc in _COUNTS),
    *_AMOUNTS,
)
"""The environment's columns of `diag`; `sim` puts the policy's beside them."""


def chunk_lanes(lanes: int, device: str) -> int:
    """Lanes of a chunk, a multiple of 8."""
    return CHUNK if device == "cuda" else max(CHUNK, -(-lanes // (8 * MOST_CHUNKS)) * 8)


@scalar
def bit(condition, at):
    """1 << at if the condition holds, else 0: no branch, since what random lanes do cannot be predicted."""
    return (1 if condition else 0) << at


@scalar
def gate_code(direction, gates, variance_scale, breached):
    """Which gates acted, as bits."""
    sized = gates.scaled > 0
    return (
        bit((direction != HOLD) & (gates.direction == HOLD), PLAN_LOCK)
        + bit(sized & (variance_scale < PPM), VARIANCE)
        + bit(sized & (gates.margin_cap < gates.scaled), MARGIN)
        + bit(sized & (gates.kelly_cap < min(gates.scaled, gates.margin_cap)), KELLY)
        + (gates.trail << TRAIL)
        + (breached << FLOOR)
    )


@scalar
def write_codes(lane, picked, actual, gates, out):
    """Leave a lane's codes for `count_lane`."""
    out.codes[PICKED_CODE, lane] = picked
    out.codes[ACTUAL_CODE, lane] = actual
    out.codes[GATE_CODE, lane] = gates


@scalar
def bins_of(lane, out):
    """The four bins that a lane counts in."""
    return (
        PICKED_BIN + out.codes[PICKED_CODE, lane],
        ACTUAL_BIN + out.codes[ACTUAL_CODE, lane],
        GATE_BIN + out.codes[GATE_CODE, lane],
        END_BIN + 1 + out.end_reason[lane],
    )


@scalar
def amount_rows(first, last, state):
    """The state fields that amounts are made of, as slices: their indices are known not to be negative, so loops become vector code."""
    return (
        state[s.CASH, first:last],
        state[s.FEES, first:last],
        state[s.ORDER_COUNT, first:last],
        state[s.FILL_COUNT, first:last],
        state[s.TRADE_COUNT, first:last],
        state[s.EQUITY, first:last],
        state[s.POSITION, first:last],
        state[s.COST, first:last],
        state[s.TRAIL, first:last],
        state[s.OPEN_FEE, first:last],
    )


@scalar
def amounts_of(i, lane, rows):
    """One lane's amounts: the fields of SUMMED, long lots, short lots, and its share of the checksum.

    The checksum is a sum of shifted fields times an odd number of the lane; wrapped or not, its low 63 bits are the same.
    """
    cash, fees, orders, fills, trades, equity, position, cost, trail, open_fee = rows
    mixed = cash[i] + (cost[i] << 9) + ((position[i] + 2 * fills[i]) << 17) + ((trail[i] + 2 * open_fee[i]) << 23)
    share = (mixed * (2 * lane + 1)) & MASK63
    return cash[i], fees[i], orders[i], fills[i], trades[i], equity[i], max(position[i], 0), max(-position[i], 0), share


@scalar
def count_chunk(first, last, chunk, first_lane, state, out, partials):
    """Bins and amounts of lanes [first, last) into `partials[chunk]`. Most lanes go on running: that bin is what the others leave.

    `first_lane`: number of lane 0 among those of all processes."""
    row = partials[chunk]
    for place in range(MERGED):
        row[place] = 0
    ended = 0
    for lane in range(first, last):
        picked, actual, gates, end = bins_of(lane, out)
        row[picked] += 1
        row[actual] += 1
        row[gates] += 1
        if end != RUNNING_BIN:
            row[end] += 1
            ended += 1
    row[RUNNING_BIN] = last - first - ended
    rows = amount_rows(first, last, state)
    cash, fees, orders, fills, trades, equity, long_lots, short_lots, check = 0, 0, 0, 0, 0, 0, 0, 0, 0
    for i in range(last - first):
        a, b, c, d, e, f, g, h, j = amounts_of(i, first_lane + first + i, rows)
        cash += a
        fees += b
        orders += c
        fills += d
        trades += e
        equity += f
        long_lots += g
        short_lots += h
        check += j
    for which, total in enumerate((cash, fees, orders, fills, trades, equity, long_lots, short_lots, check & MASK63)):
        row[BINS + which] = total


@scalar
def merge(chunks, sums):
    """Sum the chunks' partials."""
    merged = sums.merged
    for place in range(MERGED):
        merged[place] = 0
    for chunk in range(chunks):
        row = sums.partials[chunk]
        for place in range(MERGED):
            merged[place] += row[place]


@scalar
def carry(sums):
    """What the step moved, and the running sums; the checksum stays modulo 2^63."""
    for i in range(len(SUMMED)):
        now = sums.merged[BINS + i]
        sums.moved[i] = now - sums.previous[i]
        sums.cumulated[i] += sums.moved[i]
        sums.previous[i] = now
    sums.merged[BINS + CHECKSUM] &= MASK63


@scalar
def rebase(chunks, sums):
    """Count the next step's movements from what restarts made of the sums."""
    for chunk in range(chunks):
        for which in range(len(SUMMED)):
            sums.previous[which] += sums.restarted[chunk, which]


@scalar
def spread(merged, counts):
    """Spread the bins over the counted columns, in the order of `_COUNTS`."""
    counts[:] = 0
    played = 0
    for action in range(ACTIONS):
        picked, actual = merged[PICKED_BIN + action], merged[ACTUAL_BIN + action]
        counts[action // 27] += picked
        counts[4 + action % 27 // 9] += picked
        counts[7 + action % 9 // 3] += picked
        counts[10 + action % 3] += picked
        counts[13 + action // 27] += actual
        counts[17 + action % 27 // 9] += actual
        played += picked
    for code in range(64):
        for at in range(6):
            if code >> at & 1:
                counts[20 + at] += merged[GATE_BIN + code]
    counts[26] = played
    counts[27] = merged[END_BIN + 1 + SESSION_CLOSE]
    counts[28] = merged[END_BIN + 1 + CAPITAL_FLOOR]
    counts[29] = merged[END_BIN + 1 + WINDOW_END] + merged[END_BIN + 1 + STEP_LIMIT] + merged[END_BIN + 1 + TAPE_END]
    counts[30] = merged[END_BIN]


@kernel_cpu
def spread_steps(merged, counts):
    """`spread` of each step: int64[K, MERGED] to int64[K, len(_COUNTS)]."""
    for step in range(merged.shape[0]):
        spread(merged[step], counts[step])


NAMES = tuple(column.name for column in DIAG)


def diag_values(merged: np.ndarray, moved: np.ndarray, cumulated: np.ndarray) -> np.ndarray:
    """int64[K, len(DIAG) - 4]: the values of DIAG after its first four columns, of K steps, from their sums, int64[K, ...] each."""
    counts = np.empty((len(merged), len(_COUNTS)), np.int64)
    spread_steps(merged, counts)
    cash, _, _, _, _, equity, long_lots, short_lots, check = merged[:, BINS:].T
    realized, fees, orders, fills, trades, reward = moved.T
    realized_cum, fees_cum, _, _, trades_cum, _ = cumulated.T
    amounts = (
        orders, fills, trades, realized, fees, equity, equity - cash, reward, long_lots, short_lots, check, realized_cum, fees_cum,
        trades_cum,
    )  # fmt: skip
    return np.column_stack([counts, *amounts])
