"""How much of what the quality report counts is too much: a file is warned of, or refused, by a session's count over its rows.

One table of defaults, each with its reason; a TOML file overrules them by counter:

    [warn]
    off_tick_rows = 0.01     # 0: at the first; false: never (a count of values, as undefined_prices, can pass 1)
    [refuse]
    crossed_fault = 0.001
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lob.errors import BadInput
from store.quality import COUNTERS
from store.toml_file import read_toml

LIMITABLE = tuple(name for name in COUNTERS if name not in ("rows", "longest_gap_ns", "trades", "traded_lots", "snapshots"))
"""Counters of faults; the others count what is there, or are a time."""

_ALWAYS = (
    "inconsistent_bars", "off_tick_rows", "unknown_orders", "duplicate_orders", "oversized_cancels", "bad_messages", "book_mismatches",
    "unfounded_books", "crossed_fault", "out_of_order_recv",
)  # fmt: skip
WARN: Mapping[str, float | None] = MappingProxyType(dict.fromkeys(_ALWAYS, 0.0))
"""Shares above which a person is told: one such row says that something is wrong with the file or with how it was read."""
WARN_OF_BARS: Mapping[str, float | None] = MappingProxyType(dict.fromkeys(("outside_session", "out_of_order_event"), 0.0))
"""Of bars also these. Books lie outside the session in every pre-open, and their event times go back where channels interleave."""


@dataclass(frozen=True)
class Limits:
    """{counter: share of a session's rows, None: any} above which a file is warned of, beside the defaults, and above which it is refused.

    Nothing is refused unless it is asked for: what is odd is kept out of the tape, not out of the store.
    """

    warn: Mapping[str, float | None]
    refuse: Mapping[str, float | None]
    named: str

    def warn_of(self, bars: bool) -> dict[str, float]:
        """Of bars or of books, by the counters' order."""
        shares = {**(WARN_OF_BARS if bars else {}), **WARN, **self.warn}
        return {name: share for name in COUNTERS if (share := shares.get(name)) is not None}


DEFAULT = Limits({}, {}, "the defaults")


def read_limits(file: str | Path) -> Limits:
    """The limits of a TOML file, the defaults where it says nothing. Raises NotFound, BadInput with file, key and remedy."""
    stated = read_toml(file, "file of limits")
    if unknown := sorted(set(stated) - {"warn", "refuse"}):
        raise BadInput(f"{file}: {unknown[0]!r} is neither [warn] nor [refuse]")
    warn, refuse = (_shares(file, name, stated.get(name, {})) for name in ("warn", "refuse"))
    return Limits(warn, refuse, str(file))


def _shares(file: str | Path, section: str, table: Any) -> dict[str, float | None]:
    if not isinstance(table, dict):
        raise BadInput(f"{file}: {section} is a table: write it as [{section}]")
    for name, share in table.items():
        if name not in LIMITABLE:
            raise BadInput(f"{file}: [{section}] {name}: there is no such count; there are {', '.join(LIMITABLE)}")
        if share is not False and (isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1):
            raise BadInput(f"{file}: [{section}] {name} = {share!r}: use a share of a session's rows, 0 to 1, or false")
    return {name: None if share is False else float(share) for name, share in table.items()}


def refuse_beyond(quality: Iterable[Mapping[str, Any]], limits: Limits, path: Path) -> None:
    """Raises BadInput when a count of a session (rows outside every session: of the day) is above its share; `quality` as in a record."""
    totals: dict[tuple[str, str], dict[str, int]] = {}
    for row in quality:
        when = f"session {row['session_id']}" if row.get("session_id") else f"{row['date']} outside every session"
        line = totals.setdefault((row["instrument"], when), dict.fromkeys(("rows", *limits.refuse), 0))
        for name in line:
            line[name] += row.get(name) or 0
    for (instrument, when), line in totals.items():
        for name, share in limits.refuse.items():
            if share is not None and line[name] > share * line["rows"]:
                raise BadInput(
                    f"{path}: {instrument}, {when}: {name} is {line[name]:,} of {line['rows']:,} rows, above the share of {share:g} that "
                    f"{limits.named} allows: mend the file, or raise the limit"
                )
