"""Regenerates every fill of a run from the raw DBN file (public decoder) and the logged `target_lots`, in Fractions.

The proof that needs us least: plain Python, no code of the house.

Decision times come from the log; the book that each order met, the floor's own exits and the drain are worked out again.
"""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

from tests.oracle.events import Decision, Event, events, last_received, last_tradable, meets, rows_of_dbn, session_at
from tests.oracle.lane import Terms, play

FILL_COLUMNS = (
    "phase", "lane", "step", "fill_id", "order_id", "ts_submitted_ns", "ts_filled_ns", "side", "lots", "price_ticks", "fee_usd_micros",
    "market_row", "book_level",
)  # fmt: skip


def decisions_of(
    tape: Sequence[Event], sessions: Sequence[tuple[int, int, int]], decided: Sequence[int], drain_row: int, latency: int
) -> list[Decision]:
    """The schedule that belongs to the logged decision times; the last of them is the drain, at market row `drain_row`."""
    out = []
    for ts in decided[:-1]:
        observed = last_received(tape, ts)
        fill = meets(tape, sessions, ts + latency)
        out.append(
            Decision(ts, observed, last_tradable(tape, observed), fill, max(ts + latency, tape[fill].ts_event), session_at(sessions, ts))
        )
    drain = next(i for i, event in enumerate(tape) if event.row == drain_row)
    observed = last_received(tape, decided[-1])
    last = tape[drain]
    return [*out, Decision(decided[-1], observed, last_tradable(tape, observed), drain, last.ts_event, last.session)]


def regenerate_fills(
    path: Path,
    tick: Fraction,
    terms: Terms,
    sessions: Sequence[tuple[int, int, int]],
    decided: Sequence[int],
    targets: dict[int, list[int]],
    drain_row: int,
    latency: int,
    instrument_id: int | None = None,
) -> list[dict]:
    """All lanes' fills in key order (phase, step, lane, fill_id), without their reasons, which are the gates' to say."""
    tape = events(rows_of_dbn(path, instrument_id), tick, sessions)
    decisions = decisions_of(tape, sessions, decided, drain_row, latency)
    accounts = [play(lane, tape, decisions, terms, targets=goals) for lane, goals in sorted(targets.items())]
    rows = [fill for account in accounts for fill in account.rows["fills"]]
    return [{name: row[name] for name in FILL_COLUMNS} for row in sorted(rows, key=lambda row: (row["step"], row["lane"]))]
