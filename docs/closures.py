"""Writes lob/closures.py, the holidays and early closes, from the calendars of pandas_market_calendars: `python -m docs.closures`.

A test holds the file to them. The library is a development tool: what a run's sessions are must not change with what is installed beside
it, and sessions are asked for where pandas would take longer to import than the command takes.
"""

from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parent.parent / "lob" / "closures.py"
FIRST, LAST = 2012, 2031
SOURCES = {
    "cme_globex": ("CME Globex Equity", "17:00", {}),
    "cme_globex_energy_metals": ("CMEGlobex_EnergyAndMetals", "17:00", {}),
    "cme_globex_rates": ("CME Globex Interest Rate Products", "17:00", {}),
    "cme_globex_fx": ("CMEGlobex_FX", "17:00", {}),
    # Where the day ends at 13:00, trading after hours ends at 17:00.
    "us_equity_extended": ("NYSE", "16:00", {"13:00": "17:00"}),
}
"""Our name: the library's, its usual close in New York, and its early closes that end our session at another time."""

_HEAD = f'''"""Holidays and early closes, {FIRST} to {LAST}: `python -m docs.closures` writes them from pandas_market_calendars.

What the exchanges add later is not in here, nor a day of national mourning on which futures stopped early: such a session stands at its
usual hours and has no rows at its end. One that is too short would lose rows, one that is too long loses nothing.
"""

CLOSED = "closed"

# fmt: off
CLOSURES: dict[str, dict[str, tuple[int, ...]]] = {{
'''


def closures(calendar: str) -> dict[str, list[int]]:
    """{close in New York as HH:MM, or "closed": dates as yyyymmdd} of the weekdays that are not as usual."""
    import pandas as pd
    import pandas_market_calendars

    name, usual, ours = SOURCES[calendar]
    start, end = f"{FIRST}-01-01", f"{LAST}-12-31"
    schedule: Any = pandas_market_calendars.get_calendar(name).schedule(start, end)
    closes = schedule["market_close"].dt.tz_convert("America/New_York").dt.strftime("%H:%M")
    found: dict[str, list[int]] = {}
    for day in pd.bdate_range(start, end):
        close = closes.get(day, "closed")
        if close != usual:
            found.setdefault(ours.get(close, close), []).append(int(day.strftime("%Y%m%d")))
    return dict(sorted(found.items()))


def render() -> str:
    lines = [_HEAD]
    for calendar in SOURCES:
        lines.append(f'    "{calendar}": {{\n')
        for close, days in closures(calendar).items():
            lines.append(f'        "{close}": (\n')
            lines += [f"            {', '.join(map(str, days[i : i + 12]))},\n" for i in range(0, len(days), 12)]
            lines.append("        ),\n")
        lines.append("    },\n")
    lines.append("}\n# fmt: on\n")
    lines.append('"""{calendar: {local close as HH:MM, or CLOSED: trade dates as yyyymmdd}}, weekdays that are not as usual."""\n')
    return "".join(lines)


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
