"""The environment's columns of the `diag` table: integer sums over lanes of one step, so that no order of lanes or threads can change them.

A step writes a few words per lane. Counts are packed, eight bits each, into words that are summed over chunks of at most 64 lanes and
then unpacked; amounts have a word each.
"""

from typing import NamedTuple

import numpy as np

from cuda_env import state as s
from lob.actions import Direction, EndReason, Magnitude, OrderKind, Phase, Urgency, names
from lob.jit import scalar
from lob.tables import Column

CHUNK = 64
"""Lanes whose packed counts are summed before they are unpacked: no count of a chunk exceeds eight bits."""
BITS = 8
MASK63 = 2**63 - 1
HOLD = int(Direction.HOLD)
SESSION_CLOSE, CAPITAL_FLOOR, NOT_PLAYED = int(EndReason.SESSION_CLOSE), int(EndReason.CAPITAL_FLOOR), int(EndReason.NOT_PLAYED)

PICKED, PICKED_HOW, ACTUAL, GATES, ENDS, EVENTS, REALIZED, FEES, EQUITY, UNREALIZED, REWARD, LOTS, CHECKSUM = range(13)
WORD_COUNT = 13
EVENT_BITS = 20
LOTS_BITS = 32


class Leaf(NamedTuple):
    """One summed column: `bits` wide at `shift` of a word; 64 bits are a whole signed word."""

    column: Column
    word: int
    shift: int
    bits: int


def _counts(prefix: str, enum, word: int, first: int, doc: str) -> list[Leaf]:
    return [
        Leaf(Column(f"{prefix}_{member.name.lower()}", "int64", "1", f"lanes {doc} {member.name.lower()}"), word, BITS * (first + i), BITS)
        for i, member in enumerate(enum)
    ]


def _count(name: str, word: int, place: int, doc: str, bits: int = BITS) -> Leaf:
    return Leaf(Column(name, "int64", "1", doc), word, bits * place, bits)


def _amount(name: str, word: int, doc: str, unit: str = "usd_micros") -> Leaf:
    return Leaf(Column(name, "int64", unit, doc), word, 0, 64)


LEAVES = (
    *_counts("picked.direction", Direction, PICKED, 0, "that picked"),
    *_counts("picked.magnitude", Magnitude, PICKED, 4, "that picked"),
    *_counts("picked.order", OrderKind, PICKED_HOW, 0, "that picked"),
    *_counts("picked.urgency", Urgency, PICKED_HOW, 3, "that picked"),
    *_counts("actual.direction", Direction, ACTUAL, 0, "that physics left at"),
    *_counts("actual.magnitude", Magnitude, ACTUAL, 4, "that physics left at"),
    _count("gate.plan_lock", GATES, 0, "lanes whose direction the plan lock turned to hold"),
    _count("gate.variance_scale", GATES, 1, "lanes whose lots the variance scale lowered"),
    _count("gate.margin_cap", GATES, 2, "lanes whose lots the margin cap lowered"),
    _count("gate.kelly_cap", GATES, 3, "lanes whose lots the Kelly cap lowered further"),
    _count("gate.trail_stop", GATES, 4, "lanes that the trail stop closed"),
    _count("gate.capital_floor", GATES, 5, "lanes that have met the floor, in this step or before with lots left"),
    _count("lanes.played", GATES, 6, "lanes that decided"),
    _count("end.session_close", ENDS, 0, "episodes that ended with the session"),
    _count("end.capital_floor", ENDS, 1, "episodes that ended by the floor"),
    _count("end.final", ENDS, 2, "episodes that ended with the window, the tape or the step limit"),
    _count("lanes.not_played", ENDS, 3, "lanes that were dead before the step"),
    _count("trading.orders", EVENTS, 0, "orders sent", EVENT_BITS),
    _count("trading.fills", EVENTS, 1, "fills", EVENT_BITS),
    _count("trading.trades", EVENTS, 2, "trade rows closed", EVENT_BITS),
    _amount("trading.realized_pnl_usd_micros_delta", REALIZED, "realised in this step, net of its fees"),
    _amount("trading.fee_usd_micros_delta", FEES, "fees of this step"),
    _amount("trading.equity_usd_micros", EQUITY, "equity after the step"),
    _amount("trading.unrealized_usd_micros", UNREALIZED, "unrealised after the step"),
    _amount("trading.reward_raw_usd_micros", REWARD, "change of equity in this step"),
    Leaf(Column("trading.long_lots", "int64", "lots", "lots held long after the step"), LOTS, 0, LOTS_BITS),
    Leaf(Column("trading.short_lots", "int64", "lots", "lots held short after the step"), LOTS, LOTS_BITS, LOTS_BITS),
    Leaf(Column("checksum.accounts", "int64", "1", "of cash, cost, position, trail and counters, modulo 2^63"), CHECKSUM, 0, 64),
)
"""The summed columns, in the order of the totals vector."""

_CUMULATED = ("trading.realized_pnl_usd_micros_delta", "trading.fee_usd_micros_delta", "trading.trades")


def _cumulative(name: str) -> Column:
    of = next(leaf.column for leaf in LEAVES if leaf.column.name == name)
    return Column(name.removesuffix("_delta") + "_cum", "int64", of.unit, f"running sum over the phase: {of.doc}")


CUMULATED = tuple(next(i for i, leaf in enumerate(LEAVES) if leaf.column.name == name) for name in _CUMULATED)
"""Places in LEAVES of what has a running sum."""

KEY = (
    Column("phase", "int8", "code", "train, eval or replay", names(Phase)),
    Column("step", "int32", "1", "decision of the phase, counted from 0; the drain is the last"),
    Column("ts_observed_ns", "int64", "ns", "receive time of the last row that the observation rests on (lane 0)"),
    Column("ts_decided_ns", "int64", "ns", "when it decided (lane 0)"),
)

DIAG = KEY + tuple(leaf.column for leaf in LEAVES) + tuple(_cumulative(name) for name in _CUMULATED)
"""The environment's columns of `diag`; `sim` puts the policy's beside them."""


def unpacking() -> np.ndarray:
    """int64[leaves, 3]: word, shift and bits of each leaf, for kernels."""
    return np.array([[leaf.word, leaf.shift, leaf.bits] for leaf in LEAVES], np.int64)


@scalar
def checksum_word(lane, state):
    """A lane's share of the checksum: a sum of fields with odd weights, times an odd number of the lane, modulo 2^63."""
    mixed = (
        state[s.CASH, lane] * 1_000_003
        + state[s.COST, lane] * 7_368_787
        + state[s.POSITION, lane] * 15_485_863
        + state[s.TRAIL, lane] * 32_452_843
        + state[s.OPEN_FEE, lane] * 49_979_687
        + state[s.ORDER_COUNT, lane] * 67_867_967
        + state[s.FILL_COUNT, lane] * 86_028_121
        + state[s.TRADE_COUNT, lane] * 104_395_301
    ) & MASK63
    return (mixed * (2 * lane + 1)) & MASK63


@scalar
def write_amounts(lane, realized, fee, worth, orders, fills, trades, state, out):
    """The words that a living lane and a draining one have in common."""
    position = state[s.POSITION, lane]
    out.words[EVENTS, lane] = orders + (fills << EVENT_BITS) + (trades << (2 * EVENT_BITS))
    out.words[REALIZED, lane] = realized
    out.words[FEES, lane] = fee
    out.words[EQUITY, lane] = state[s.EQUITY, lane]
    out.words[UNREALIZED, lane] = worth
    out.words[REWARD, lane] = out.reward[lane]
    out.words[LOTS, lane] = position if position > 0 else (-position) << LOTS_BITS
    out.words[CHECKSUM, lane] = checksum_word(lane, state)


@scalar
def write_unpicked(lane, out):
    """The words of a lane that decided nothing in this step: dead, or at the drain."""
    out.words[PICKED, lane] = 0
    out.words[PICKED_HOW, lane] = 0
    out.words[ACTUAL, lane] = 0
    out.words[GATES, lane] = 0
    end = out.end_reason[lane]
    place = 2
    if end == NOT_PLAYED:
        place = 3
    elif end == CAPITAL_FLOOR:
        place = 1
    out.words[ENDS, lane] = 1 << (BITS * place)


@scalar
def write_picked(lane, action, actual, gates, asked, breached, out):
    """The packed counts of a lane that decided. `asked` are the lots of its magnitude without any gate."""
    direction, magnitude, order, urgency = action // 27, action % 27 // 9, action % 9 // 3, action % 3
    out.words[PICKED, lane] = (1 << (BITS * direction)) + (1 << (BITS * (4 + magnitude)))
    out.words[PICKED_HOW, lane] = (1 << (BITS * order)) + (1 << (BITS * (3 + urgency)))
    out.words[ACTUAL, lane] = (1 << (BITS * (actual // 27))) + (1 << (BITS * (4 + actual % 27 // 9)))
    bits = 1 << (BITS * 6)
    if direction != HOLD and gates.direction == HOLD:
        bits += 1
    if gates.scaled > 0:
        if gates.scaled < asked:
            bits += 1 << BITS
        if gates.margin_cap < gates.scaled:
            bits += 1 << (2 * BITS)
        if gates.kelly_cap < min(gates.scaled, gates.margin_cap):
            bits += 1 << (3 * BITS)
    bits += gates.trail << (4 * BITS)
    bits += breached << (5 * BITS)
    out.words[GATES, lane] = bits
    end = out.end_reason[lane]
    ended = 0
    if end == SESSION_CLOSE:
        ended = 1
    elif end == CAPITAL_FLOOR:
        ended = 1 << BITS
    out.words[ENDS, lane] = ended


@scalar
def leaf_of(word_sum, shift, bits):
    """The part of a chunk's summed word that a leaf holds."""
    if bits == 64:
        return word_sum
    return (word_sum >> shift) & ((1 << bits) - 1)


@scalar
def chunk_leaf(first, last, leaf, unpack, out):
    """One leaf's sum over lanes [first, last), at most CHUNK of them: what one CUDA thread does of `add_chunk`."""
    word = unpack[leaf, 0]
    total = 0
    for lane in range(first, last):
        total += out.words[word, lane]
    if word == CHECKSUM:
        total &= MASK63
    return leaf_of(total, unpack[leaf, 1], unpack[leaf, 2])


@scalar
def add_chunk(first, last, chunk, unpack, out, partials):
    """Sum the words of lanes [first, last), at most CHUNK of them, into `partials[chunk]`, unpacked."""
    for leaf in range(unpack.shape[0]):
        word = unpack[leaf, 0]
        if leaf > 0 and unpack[leaf - 1, 0] == word:
            continue
        total = 0
        for lane in range(first, last):
            total += out.words[word, lane]
        if word == CHECKSUM:
            total &= MASK63
        at = leaf
        while at < unpack.shape[0] and unpack[at, 0] == word:
            partials[chunk, at] = leaf_of(total, unpack[at, 1], unpack[at, 2])
            at += 1


@scalar
def total_leaf(leaf, chunks, partials, totals):
    """Sum one leaf over the chunks. The checksum stays modulo 2^63."""
    total = 0
    for chunk in range(chunks):
        total += partials[chunk, leaf]
    if leaf == partials.shape[1] - 1:
        total &= MASK63
    totals[leaf] = total
