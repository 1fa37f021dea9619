"""The environment's columns of the `diag` table: integer sums over lanes of one step, so that no order of lanes or threads can change them.

A step adds each lane to a few words. Counts are packed, eight bits each, into words that hold the sum of at most 64 lanes and are then
unpacked; amounts have a word each. On the CPU the 64 lanes of a chunk, which one thread plays, add to one place; on CUDA every lane has a
place of its own and a second kernel sums them.
"""

from typing import NamedTuple

import numpy as np

from cuda_env import state as s
from lob.actions import Direction, EndReason, Magnitude, OrderKind, Phase, Urgency, names
from lob.jit import scalar
from lob.tables import Column
from lob.units import PPM

CHUNK_SHIFT = 6
CHUNK = 1 << CHUNK_SHIFT
"""Lanes whose packed counts are summed before they are unpacked: no count of a chunk exceeds eight bits."""
BITS = 8
MASK63 = 2**63 - 1
HOLD = int(Direction.HOLD)
SESSION_CLOSE, CAPITAL_FLOOR, NOT_PLAYED = int(EndReason.SESSION_CLOSE), int(EndReason.CAPITAL_FLOOR), int(EndReason.NOT_PLAYED)

PICKED, PICKED_HOW, ACTUAL, GATES, ENDS, EVENTS, REALIZED, FEES, EQUITY, UNREALIZED, REWARD, LOTS, CHECKSUM = range(13)
WORD_COUNT = 13
ROW = 16
"""Words of a place, rounded up to whole cache lines."""
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
    _count("gate.variance_scale", GATES, 1, "lanes sized by a variance scale below one"),
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
    Leaf(
        Column("checksum.accounts", "int64", "1", "of cash, cost, position, trail, fees and fills, modulo 2^63"),
        CHECKSUM,
        0,
        64,
    ),
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
        + (state[s.POSITION, lane] + 2 * state[s.FILL_COUNT, lane]) * 15_485_863
        + (state[s.TRAIL, lane] + 2 * state[s.OPEN_FEE, lane]) * 32_452_843
    ) & MASK63
    return (mixed * (2 * lane + 1)) & MASK63


@scalar
def clear_words(place, out):
    """Nothing summed yet at a place."""
    for word in range(WORD_COUNT):
        out.words[place, word] = 0


@scalar
def add_amounts(lane, place, realized, fee, worth, orders, fills, trades, state, out):
    """Add what living, dead and draining lanes have in common."""
    position = state[s.POSITION, lane]
    out.words[place, EVENTS] += orders + (fills << EVENT_BITS) + (trades << (2 * EVENT_BITS))
    out.words[place, REALIZED] += realized
    out.words[place, FEES] += fee
    out.words[place, EQUITY] += state[s.EQUITY, lane]
    out.words[place, UNREALIZED] += worth
    out.words[place, REWARD] += out.reward[lane]
    out.words[place, LOTS] += position if position > 0 else (-position) << LOTS_BITS
    out.words[place, CHECKSUM] = (out.words[place, CHECKSUM] + checksum_word(lane, state)) & MASK63


@scalar
def add_unpicked(lane, place, out):
    """Add a lane that decided nothing in this step: dead, or at the drain."""
    end = out.end_reason[lane]
    at = 2
    if end == NOT_PLAYED:
        at = 3
    elif end == CAPITAL_FLOOR:
        at = 1
    out.words[place, ENDS] += 1 << (BITS * at)


@scalar
def one_if(condition, at):
    """A packed count of one in field `at`, or nothing, without a branch."""
    return (1 if condition else 0) << (BITS * at)


@scalar
def add_picked(place, branches, actual_direction, actual_magnitude, gates, variance_scale, breached, end, out):
    """Add the packed counts of a lane that decided. `branches` are (direction, magnitude, order, urgency) of its pick."""
    direction, magnitude, order, urgency = branches
    out.words[place, PICKED] += (1 << (BITS * direction)) + (1 << (BITS * (4 + magnitude)))
    out.words[place, PICKED_HOW] += (1 << (BITS * order)) + (1 << (BITS * (3 + urgency)))
    out.words[place, ACTUAL] += (1 << (BITS * actual_direction)) + (1 << (BITS * (4 + actual_magnitude)))
    sized = gates.scaled > 0
    out.words[place, GATES] += (
        one_if((direction != HOLD) & (gates.direction == HOLD), 0)
        + one_if(sized & (variance_scale < PPM), 1)
        + one_if(sized & (gates.margin_cap < gates.scaled), 2)
        + one_if(sized & (gates.kelly_cap < min(gates.scaled, gates.margin_cap)), 3)
        + one_if(gates.trail != 0, 4)
        + one_if(breached != 0, 5)
        + one_if(True, 6)
    )
    out.words[place, ENDS] += one_if(end == SESSION_CLOSE, 0) + one_if(end == CAPITAL_FLOOR, 1)


@scalar
def leaf_of(word_sum, shift, bits):
    """The part of a summed word that a leaf holds."""
    if bits == 64:
        return word_sum
    return (word_sum >> shift) & ((1 << bits) - 1)


@scalar
def unpack_chunk(chunk, place, unpack, out, partials):
    """Unpack the words of one place, the sum of a whole chunk, into `partials[chunk]`."""
    for leaf in range(unpack.shape[0]):
        partials[chunk, leaf] = leaf_of(out.words[place, unpack[leaf, 0]], unpack[leaf, 1], unpack[leaf, 2])


@scalar
def chunk_leaf(first, last, leaf, unpack, out):
    """One leaf's sum over places [first, last), at most CHUNK lanes: what one CUDA thread does, whose words are one place a lane."""
    word = unpack[leaf, 0]
    total = 0
    for place in range(first, last):
        total += out.words[place, word]
    if word == CHECKSUM:
        total &= MASK63
    return leaf_of(total, unpack[leaf, 1], unpack[leaf, 2])


@scalar
def total_up(chunks, partials, totals, cumulated):
    """Sum the chunks' partials and carry the running sums on. The checksum stays modulo 2^63."""
    leaves = totals.shape[0]
    for leaf in range(leaves):
        totals[leaf] = 0
    for chunk in range(chunks):
        for leaf in range(leaves):
            totals[leaf] += partials[chunk, leaf]
    totals[leaves - 1] &= MASK63
    for i in range(len(CUMULATED)):
        cumulated[i] += totals[CUMULATED[i]]
