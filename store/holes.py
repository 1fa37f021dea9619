"""Where a store has no rows between the first and the last of an instrument: over all of its files, from the spans that ingests kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from lob.calendar import Sessions, session_of
from lob.tape import HOLE_NS


@dataclass(frozen=True)
class Span:
    """First and last index time of one source's rows on one UTC date."""

    start_ns: int
    end_ns: int
    source: str


@dataclass(frozen=True)
class Holes:
    """`holes`: (last row before, first row after), ns, of each silence longer than HOLE_NS. `missing_sessions`: sessions of the calendar
    between the first and the last row that have no row; None where the calendar is not known. `gaps`, `longest_gap_ns`: silences inside
    a session from one file to the next, which no file's own report counts.
    """

    holes: tuple[tuple[int, int], ...]
    missing_sessions: int | None
    gaps: int
    longest_gap_ns: int


def find_holes(spans: Sequence[Span], sessions: Sessions | None, gap_ns: int) -> Holes:
    """`spans`: those of one instrument and schema, disjoint, in any order, at least one. `gap_ns`: silence up to this is no gap."""
    ordered = sorted(spans, key=lambda span: span.start_ns)
    pairs = list(pairwise(ordered))
    holes = tuple((before.end_ns, after.start_ns) for before, after in pairs if after.start_ns - before.end_ns > HOLE_NS)
    silences = [(before.end_ns, after.start_ns) for before, after in pairs if before.source != after.source]
    long = [(end, start) for end, start in silences if start - end > gap_ns and _one_session(sessions, end, start)]
    missing = None if sessions is None else _without_rows(ordered, sessions)
    return Holes(holes, missing, len(long), max((start - end for end, start in long), default=0))


def _one_session(sessions: Sessions | None, first_ns: int, last_ns: int) -> bool:
    """Without a calendar every silence counts, as it does within a file."""
    if sessions is None:
        return True
    first, last = session_of(sessions, np.array([first_ns, last_ns])).tolist()
    return first == last >= 0


def _without_rows(ordered: Sequence[Span], sessions: Sessions) -> int:
    """A date's span that reaches into a session has rows in it: none is so short that the span of a date could reach over it."""
    starts, ends = np.array([span.start_ns for span in ordered]), np.array([span.end_ns for span in ordered])
    inside = (sessions.open_ns > starts[0]) & (sessions.close_ns <= ends[-1])
    ended_before = np.searchsorted(ends, sessions.open_ns, side="left")
    begun_before = np.searchsorted(starts, sessions.close_ns, side="left")
    return int(np.count_nonzero(inside & (begun_before <= ended_before)))
