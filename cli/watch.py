"""`sim watch`: how a run stands, from its log."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.output import Json, columns, emit

if TYPE_CHECKING:
    from sim.watch import Figure, Standing

REFRESH_S = 2.0
"""Seconds between two looks. A run commits about once a second: more often there would be nothing new to see."""

ABSENT = "absent"
NO_VALUE = "no value yet"

MONEY = (
    ("realised", "trading.realized_pnl_usd_micros_cum", "last"),
    ("realised a step", "trading.realized_pnl_usd_micros_delta", "mean"),
    ("unrealised", "trading.unrealized_usd_micros", "last"),
    ("fees", "trading.fee_usd_micros_cum", "last"),
    ("trades", "trading.trades_cum", "last"),
    ("lots long", "trading.long_lots", "last"),
    ("lots short", "trading.short_lots", "last"),
)
"""What the lanes made together: (label, column of `diag`, its last value or its mean over the recent steps)."""

LOSS, HEALTH = "learn.loss", "signal.learning_health"
COMPONENT = "health."
"""Prefix of a health component among the signals."""

Section = tuple[str, list[tuple[str, ...]]]
"""A title and rows of cells."""


def register(app: typer.Typer) -> None:
    app.command("watch")(watch)


def watch(
    run: Annotated[Path, typer.Argument(help="The run's folder, finished or being written by another process.", show_default=False)],
    once: Annotated[bool, typer.Option("--once", help="Print how the run stands now, and end.")] = False,
    as_json: Json = False,
) -> None:
    """Look on while a run is made.

    Speed and where a step's time goes, dollars, losses, learning health, signals, last events: read from what the run has
    committed, so any number may look on, from any process. Columns that a run does not log are shown as absent. On a terminal a
    page that renews itself; elsewhere one line every two seconds. Ends with the run. --json implies --once.

    \b
    Examples:
      sim watch R/train-ESH4-5d41402abc
      sim watch R/replay-ESH4-2b5a1a91fe --once
      sim watch R/train-ESH4-5d41402abc --json | jq .figures.learn.loss.last
    """
    show(run, once, as_json)


def show(run: Path, once: bool, as_json: bool) -> None:
    """Print or keep showing how the run stands, until it is over. Raises NotFound, DamagedLog."""
    from sim.watch import document, standing

    if once or as_json:
        seen = standing(run)
        emit(document(seen), text(seen), as_json)
    elif sys.stdout.isatty():
        _show_page(run)
    else:
        _print_lines(run)


def _print_lines(run: Path) -> None:
    from sim.watch import standing

    while True:
        seen = standing(run)
        print(line(seen), flush=True)
        if seen.is_over:
            return
        time.sleep(REFRESH_S)


def _show_page(run: Path) -> None:
    from rich.console import Console
    from rich.live import Live

    from sim.watch import standing

    with Live(console=Console(), auto_refresh=False) as page:
        while True:
            seen = standing(run)
            page.update(panels(seen), refresh=True)
            if seen.is_over:
                return
            time.sleep(REFRESH_S)


def line(seen: Standing) -> str:
    """One line: how far, how fast, where the time goes, dollars, loss, health."""
    from lob.units import counted

    done = counted(seen.steps, "step") if seen.planned is None else f"{_done(seen)} of {counted(seen.planned, 'step')}"
    parts = " ".join(f"{part} {_percent(share)}" for part, share in seen.shares.items() if share is not None)
    total = _shown(seen, "trading.realized_pnl_usd_micros_cum", "last")
    rate = ABSENT if seen.steps_per_s is None else f"{seen.steps_per_s:,.1f}"
    figures = [f"realised {total}", f"loss {_shown(seen, LOSS, 'last')}", f"health {_shown(seen, HEALTH, 'last')}"]
    return "  ".join([f"{seen.state}:", done, f"{rate} steps/s", *([parts] if parts else []), *figures])


def text(seen: Standing) -> str:
    """Every section, for a file or a pipe."""
    return "\n".join(f"{title}\n{columns(rows, '  ')}" for title, rows in sections(seen))


def panels(seen: Standing) -> Any:
    """The same sections as a page of rich."""
    from rich.columns import Columns
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    def panel(title: str, rows: list[tuple[str, ...]]) -> Panel:
        grid = Table.grid(padding=(0, 2))
        for row in rows:
            grid.add_row(*(Text(cell) for cell in row))
        return Panel(grid, title=title, title_align="left")

    first, *others, last = sections(seen)
    return Group(panel(*first), Columns([panel(*section) for section in others]), panel(*last))


def sections(seen: Standing) -> list[Section]:
    """Titles and rows of everything that is shown, the most important first."""
    from lob.units import counted
    from sim.watch import RECENT

    signals = seen.groups.get("signal", {})
    components = {name: figure for name, figure in signals.items() if name.startswith(COMPONENT)}
    rest = {name: figure for name, figure in signals.items() if name not in components and f"signal.{name}" != HEALTH}
    health = seen.figure(HEALTH)
    healths = ({"learning health": health} if health else {}) | {name.removeprefix(COMPONENT): f for name, f in components.items()}
    return [
        (f"run {seen.run_dir.name}", _run_rows(seen)),
        (f"speed (last {counted(min(RECENT, seen.steps), 'step')})", _speed_rows(seen)),
        ("dollars, all lanes", [(label, _shown(seen, name, which)) for label, name, which in MONEY]),
        ("picked and actual directions", _direction_rows(seen)),
        ("learning: last, mean", _figure_rows(seen.groups.get("learn", {}), "learn.*")),
        ("health", [(name, _number(f.last), _bar(f.last)) for name, f in healths.items()] or _lacks("signal.health.*")),
        ("signals", _family_rows(rest) or _lacks("signal.*")),
        ("last events", [(f"step {e['step']}", e["severity"], e["kind"], e["message"]) for e in seen.events] or [("none",)]),
    ]


def _run_rows(seen: Standing) -> list[tuple[str, ...]]:
    from lob.units import counted, format_time_ns

    planned = "" if not seen.planned else f" of {seen.planned:,} ({min(seen.steps, seen.planned) / seen.planned:.1%})"
    ago = "" if seen.age_s is None else f", last step {_seconds(seen.age_s)} ago"
    what = [seen.phase, seen.instrument, None if seen.lanes is None else counted(seen.lanes, "lane"), f"level {seen.level}", seen.device]
    rows: list[tuple[str, ...]] = [
        ("what", ", ".join(part for part in what if part)),
        ("state", f"{seen.state}{ago}" if not seen.is_over else seen.state),
        ("steps", f"{_done(seen)}{planned}"),
    ]
    if seen.ts_decided_ns is not None:
        rows.append(("market time", format_time_ns(seen.ts_decided_ns)))
    return rows


def _done(seen: Standing) -> str:
    """Steps so far; the row that closes a training comes on top of those that were planned and is none of them."""
    return f"{seen.steps if seen.planned is None else min(seen.steps, seen.planned):,}"


def _speed_rows(seen: Standing) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("steps/s", ABSENT if seen.steps_per_s is None else f"{seen.steps_per_s:,.1f}"),
        ("lane-steps/s", ABSENT if seen.lane_steps_per_s is None else f"{seen.lane_steps_per_s:,.0f}"),
    ]
    rows += [(part, ABSENT if share is None else _percent(share)) for part, share in seen.shares.items()]
    if seen.waited_s is not None:
        rows.append(("waited for disk", _seconds(seen.waited_s)))
    return rows


def _direction_rows(seen: Standing) -> list[tuple[str, ...]]:
    """Shares of the decisions that were played, over the recent steps."""
    played = seen.figure("lanes.played")
    names = [rest for rest in seen.groups.get("picked", {}) if rest.startswith("direction_")]
    if not names or played is None or not played.mean:
        return _lacks("picked.direction_*") if not names else [("none was played",)]

    def share(name: str) -> str:
        figure = seen.figure(name)
        return ABSENT if figure is None or figure.mean is None else _percent(figure.mean / (played.mean or 1))

    return [(rest.removeprefix("direction_"), share(f"picked.{rest}"), share(f"actual.{rest}")) for rest in names]


def _figure_rows(figures: dict[str, Figure], pattern: str) -> list[tuple[str, ...]]:
    return [(name, _number(figure.last), _number(figure.mean)) for name, figure in figures.items()] or _lacks(pattern)


def _family_rows(figures: dict[str, Figure]) -> list[tuple[str, ...]]:
    """A line for all columns `family.member`, since there are about a hundred."""
    families: dict[str, list[str]] = {}
    for name, figure in figures.items():
        family, _, member = name.partition(".")
        families.setdefault(family, []).append(f"{member} {_number(figure.last)}".strip())
    return [(family, ", ".join(members)) for family, members in families.items()]


def _lacks(pattern: str) -> list[tuple[str, ...]]:
    return [(f"{ABSENT}: this run logs no {pattern}",)]


def _shown(seen: Standing, name: str, which: str) -> str:
    """A figure's last value or mean, in its unit."""
    from lob.units import format_usd

    figure = seen.figure(name)
    if figure is None:
        return ABSENT
    value = figure.last if which == "last" else figure.mean
    if value is None or figure.unit != "usd_micros":
        return _number(value)
    return format_usd(round(value / 10_000) * 10_000 if which == "mean" else int(value))


def _number(value: int | float | None) -> str:
    if value is None:
        return NO_VALUE
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _seconds(seconds: float) -> str:
    return f"{seconds:,.1f} s"


def _bar(value: int | float | None, width: int = 20) -> str:
    """A value in [0, 1] as a bar."""
    return "" if value is None else "█" * round(min(max(value, 0.0), 1.0) * width)
