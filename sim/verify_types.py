"""What verify says: checks, the five computations side by side, and the verdict, printable and as JSON."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lob.units import counted, format_usd
from sim.run_data import RunData, ints

if TYPE_CHECKING:
    import pyarrow as pa

COMPUTATIONS = {
    "a": "running sum of the per-step deltas",
    "b": "the summary: trades plus the bridge of open lots",
    "c": "SQL over fills alone",
    "d": "logged cash, last minus first",
    "e": "fills against the raw market, scheduled fee, hand-typed multiplier",
}

Rows = np.ndarray | slice | None
"""Which rows of a table an array speaks of: their numbers; a slice from 0 on, or None, when it is the first ones as they stand."""

Key = tuple[int, int, int]
"""(phase, lane, episode)."""

OK, FAILED, SKIPPED = "ok", "failed", "not possible"

VERIFIED, CHECKED, FALSIFIED = "VERIFIED", "CHECKED", "FALSIFIED"
"""The last word: every dollar was proved; nothing was found that contradicts them, which is less; something was."""

PROVING = "ce"
"""Without these two nothing is proved: the fills by themselves, and each of them in the market."""


@dataclass(frozen=True)
class Check:
    """One check. A failed one names the first offender; `skipped` says why it could not be made."""

    name: str
    status: str
    detail: str
    table: str = ""
    part: str = ""
    row: int = -1
    column: str = ""
    offenders: int = 0

    def line(self) -> str:
        if self.status != FAILED:
            return f"{self.name}: {self.status}{': ' + self.detail if self.detail else ''}"
        place = ", ".join(
            text
            for text in (self.table, f"part {self.part}" if self.part else "", f"row {self.row}" if self.row >= 0 else "", self.column)
            if text
        )
        return f"{self.name}: FAILED at {place}: {self.detail}" + (f" ({self.offenders} offenders)" if self.offenders > 1 else "")


@dataclass(frozen=True)
class Verdict:
    """Whether the log proves its result. `ok` is False on any failed check or on a difference beyond the tolerance."""

    run: str
    level: str
    finished: bool
    ends: str
    proof: str
    totals: dict[str, int | None]
    reasons: dict[str, str]
    groups: int
    largest_difference_usd_micros: int
    largest_at: str
    tolerance_usd_micros: int
    checks: tuple[Check, ...]
    head: str | None = None
    abandoned: str = ""
    """What resumes have set aside, in words: it is no part of the log and was not judged. Empty when nothing was."""

    @property
    def ok(self) -> bool:
        return self.largest_difference_usd_micros <= self.tolerance_usd_micros and not self.failed

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.status == FAILED)

    @property
    def exit_code(self) -> int:
        return 0 if self.ok else 1

    @property
    def word(self) -> str:
        """VERIFIED only where every fill was summed and seen in the market."""
        if not self.ok:
            return FALSIFIED
        return CHECKED if self.unproved else VERIFIED

    @property
    def unproved(self) -> str:
        """Why no dollar is proved, in words; empty where they are."""
        return next((self.reasons.get(name, "not computed") for name in PROVING if self.totals[name] is None), "")

    def to_json(self) -> dict[str, Any]:
        out = asdict(self)
        out["computations"] = [
            {"name": name, "what": what, "usd_micros": self.totals[name], "reason": self.reasons.get(name)}
            for name, what in COMPUTATIONS.items()
        ]
        del out["totals"], out["reasons"]
        return {"ok": self.ok, "verdict": self.word} | out


def render(verdict: Verdict) -> str:
    """The verdict as text: the five computations, the largest difference to the micro-dollar, and every check that did not pass."""
    lines = [f"run {verdict.run}: level {verdict.level}, {verdict.ends}"]
    for name, what in COMPUTATIONS.items():
        total = verdict.totals[name]
        value = format_usd(total) if total is not None else f"not computed: {verdict.reasons.get(name, '')}"
        lines.append(f"  ({name}) {what + ' ':.<68} {value}")
    lines.append(
        f"largest difference over {counted(verdict.groups, 'lane episode')}: {format_usd(verdict.largest_difference_usd_micros)}"
        + (f" at {verdict.largest_at}" if verdict.largest_difference_usd_micros else "")
        + (f" (tolerance {format_usd(verdict.tolerance_usd_micros)})" if verdict.tolerance_usd_micros else "")
    )
    lines += [check.line() for check in verdict.checks if check.status != OK]
    passed = sum(check.status == OK for check in verdict.checks)
    lines.append(f"{counted(passed, 'check')} passed, {len(verdict.failed)} failed")
    lines.append(f"proof: {verdict.proof}")
    if verdict.abandoned:
        lines.append(f"abandoned: {verdict.abandoned}")
    lines.append(_last_line(verdict))
    return "\n".join(lines)


def _last_line(verdict: Verdict) -> str:
    """The last word, with what keeps it from meaning that the whole result is proved."""
    less = [f"nothing contradicts the result, and nothing proves it ({verdict.unproved})"] if verdict.word == CHECKED else []
    less += [] if verdict.finished else ["the run is unfinished"]
    return verdict.word if not less or verdict.word == FALSIFIED else f"{verdict.word}: {'; '.join(less)}"


class Log:
    """A run's columns as numpy arrays, read once."""

    def __init__(self, run: RunData) -> None:
        self.run, self.terms = run, run.terms
        self._columns: dict[tuple[str, str], np.ndarray] = {}

    def has(self, table: str) -> bool:
        return table in self.run.tables

    def rows(self, table: str) -> int:
        return self.run.tables[table].num_rows

    def __call__(self, table: str, name: str) -> np.ndarray:
        """int64 values of a column; a null is -2^63."""
        key = (table, name)
        if key not in self._columns:
            self._columns[key] = ints(self.run.tables[table], name, null=NULL if self._nullable(table, name) else 0).astype(
                np.int64, copy=False
            )
        return self._columns[key]

    def _nullable(self, table: str, name: str) -> bool:
        return self.run.tables[table].column(name).null_count > 0

    def arrow(self, table: str) -> "pa.Table":
        return self.run.tables[table]

    def judge(self, name: str, table: str, column: str, bad: np.ndarray, say: Callable[[int], str], rows: Rows = None) -> Check:
        """A check over rows of a table: `bad[i]` marks row `rows[i]`; `say(i)` explains the first offender."""
        if isinstance(rows, slice):
            rows = None
        offenders = np.flatnonzero(bad)
        if not len(offenders):
            return Check(name, OK, "", table, column=column)
        where = offenders if rows is None else rows[offenders]
        first = int(offenders[int(np.argmin(where))])
        part, row = self.run.place(table, int(first if rows is None else rows[first]))
        return Check(name, FAILED, say(first), table, part, row, column, len(offenders))

    def equal(self, name: str, table: str, column: str, expected: np.ndarray, rows: Rows = None, chosen: np.ndarray | None = None) -> Check:
        """The column must equal `expected` (both restricted to `rows`; `chosen` excuses some of them)."""
        found = self(table, column) if rows is None else self(table, column)[rows]
        bad = found != expected
        if chosen is not None:
            bad &= chosen
        return self.judge(name, table, column, bad, lambda i: f"{column} is {_number(found[i])}, recomputed {_number(expected[i])}", rows)


NULL = -(2**63)


def _number(value: Any) -> str:
    return "null" if int(value) == NULL else str(int(value))


def skipped(name: str, why: str) -> Check:
    return Check(name, SKIPPED, why)


def failed(name: str, detail: str, table: str, column: str = "", part: str = "", row: int = -1) -> Check:
    return Check(name, FAILED, detail, table, part, row, column, 1)


def where(key: Sequence[int]) -> str:
    phase, lane, episode = key
    return f"phase {('train', 'eval', 'replay')[phase]}, lane {lane}, episode {episode}"
