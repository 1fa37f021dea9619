"""How a run stands, told from its committed log alone: so any process can look on while another writes, and a finished run reads the same.

Everything goes by the names of columns, grouped by what stands before their first dot; what a run does not log is absent, which is
not zero. Speed and shares are of the last RECENT steps.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from store.run_read import RunFiles

RECENT = 512
"""Steps over which speed, shares and means are taken: minutes of a slow run, a second of a fast one, and a few parts of the log at most."""

EVENTS_SHOWN = 5
"""Last events that are shown."""

PARTS = {"env": ("observe_ns", "physics_ns"), "inference": ("policy_ns",), "learn": ("learn_ns",), "log": ("log_ns",)}
"""Part of a step's time -> the columns of `timing` that it is the sum of. Other durations there have a part of their own."""

_NO_PARTS = {"wall_ns", "elapsed_ns", "waited_ns"}
"""Times in `timing` that are no part of a step's."""

HEALTH = "signal.health."
"""Prefix of the components of learning health; the whole is `signal.learning_health`."""


@dataclass(frozen=True)
class Figure:
    """A column of `diag`: its value in the last row that has one, and its mean over the recent ones that do. Integers stay integers in
    `last`; both are None where the column is there and every recent row of it is null.
    """

    unit: str
    last: int | float | None
    mean: float | None


@dataclass(frozen=True)
class Standing:
    """A run at one moment. None: the run does not say. `groups[prefix][rest]` are the figures of the column `prefix.rest` of `diag`,
    `shares` the parts of a step's time as fractions of it (None: absent), `age_s` the time since the last committed step.
    """

    run_dir: Path
    phase: str | None
    instrument: str | None
    lanes: int | None
    level: str
    device: str | None
    state: str
    ends: str
    steps: int
    planned: int | None
    ts_decided_ns: int | None
    age_s: float | None
    steps_per_s: float | None
    waited_s: float | None
    shares: dict[str, float | None]
    groups: dict[str, dict[str, Figure]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        from store.run_read import UNFINISHED

        return self.state != UNFINISHED

    @property
    def lane_steps_per_s(self) -> float | None:
        return None if self.steps_per_s is None or self.lanes is None else self.steps_per_s * self.lanes

    def figure(self, name: str) -> Figure | None:
        """Of a column by its whole name; None where the run has none."""
        group, _, rest = name.partition(".")
        return self.groups.get(group, {}).get(rest)


def standing(run_dir: Path) -> Standing:
    """How the run stands now. Raises NotFound when the folder is no run, DamagedLog when its log cannot be read."""
    from store.run_read import read_run

    run = read_run(run_dir)
    diag, timing, events = (_tail(run, name, RECENT) for name in ("diag", "timing", "events"))
    steps_per_s, shares = _speed(timing)
    times = _last_of(timing, ("wall_ns", "waited_ns"))
    return Standing(
        run_dir=Path(run_dir),
        phase=_said(run, "config.phase", str),
        instrument=_said(run, "config.instrument.symbol", str),
        lanes=_said(run, "config.lanes", int),
        level=run.manifest["log"]["level"],
        device=_said(run, "device", str),
        state=run.state,
        ends=run.ends,
        steps=run.steps,
        planned=_said(run, "config.loop.steps", int),
        ts_decided_ns=_last_of(diag, ("ts_decided_ns",)).get("ts_decided_ns"),
        age_s=max(0.0, (time.time_ns() - times["wall_ns"]) / 1e9) if "wall_ns" in times else None,
        steps_per_s=steps_per_s,
        waited_s=times["waited_ns"] / 1e9 if "waited_ns" in times else None,
        shares=shares,
        groups=_groups(run, diag),
        events=_last_events(events),
    )


def _said(run: RunFiles, path: str, kind: type) -> Any:
    """What the run's identity states there; None where it states none of that kind."""
    from sim.run_data import stated

    value = stated(run.manifest["identity"], path)
    return value if type(value) is kind else None


def _tail(run: RunFiles, name: str, rows: int) -> pa.Table | None:
    """The last rows of a table, from as few parts of the log as hold them; None where the run has no such table."""
    from dataclasses import replace

    import pyarrow as pa
    import pyarrow.parquet as pq

    from store.run_read import read_table

    if name not in run.tables:
        return None
    parts = run.parts[name]
    first, missing = len(parts), rows - run.journal[name].num_rows
    with suppress(OSError, ValueError, pa.ArrowException):  # `read_table` says what is wrong with such a part
        while first and missing > 0:
            first -= 1
            missing -= pq.read_metadata(parts[first]).num_rows
    found = read_table(replace(run, parts={name: parts[first:]}), name)
    return found.slice(max(0, found.num_rows - rows))


def _last_of(table: pa.Table | None, names: Iterable[str]) -> dict[str, Any]:
    """The last row's values of those columns that are there."""
    if table is None or not table.num_rows:
        return {}
    return {name: table.column(name)[-1].as_py() for name in names if name in table.column_names}


def _speed(timing: pa.Table | None) -> tuple[float | None, dict[str, float | None]]:
    """(steps a second, the share of each part) over the rows. Time between two starts of a run is in no step, so it does not count."""
    import pyarrow.compute as pc

    shares: dict[str, float | None] = dict.fromkeys(PARTS)
    if timing is None or not timing.num_rows or "elapsed_ns" not in timing.column_names:
        return None, shares
    total = {name: pc.sum(timing.column(name)).as_py() for name in timing.column_names if name.endswith("_ns")}
    elapsed = total["elapsed_ns"]
    if not elapsed:
        return None, shares
    known = {name for names in PARTS.values() for name in names} | _NO_PARTS
    parts = PARTS | {name.removesuffix("_ns"): (name,) for name in total if name not in known}
    for part, names in parts.items():
        held = [total[name] for name in names if total.get(name) is not None]
        shares[part] = sum(held) / elapsed if held else None
    return timing.num_rows / (elapsed / 1e9), shares


def _groups(run: RunFiles, diag: pa.Table | None) -> dict[str, dict[str, Figure]]:
    """The figures of every column of `diag` that has a dot in its name, by prefix, in the declared order."""
    import pyarrow.compute as pc

    groups: dict[str, dict[str, Figure]] = {}
    if diag is None or not diag.num_rows:
        return groups
    for column in run.tables["diag"].columns:
        group, dot, rest = column.name.partition(".")
        if dot and column.dtype != "str":
            held = pc.drop_null(diag.column(column.name))
            last = held[-1].as_py() if len(held) else None
            groups.setdefault(group, {})[rest] = Figure(column.unit, last, pc.mean(held).as_py() if len(held) else None)
    return groups


def _last_events(events: pa.Table | None) -> list[dict[str, Any]]:
    from sim.tables import SEVERITY

    if events is None:
        return []
    shown = events.slice(max(0, events.num_rows - EVENTS_SHOWN)).to_pylist()
    return [
        {"step": row["step"], "severity": SEVERITY.get(row["severity"], row["severity"]), "kind": row["kind"], "message": row["message"]}
        for row in shown
    ]


def document(seen: Standing) -> dict[str, Any]:
    """The same as JSON values; what the run does not log is left out, what it could not know is null."""
    figures = {
        group: {rest: {"last": figure.last, "mean": figure.mean, "unit": figure.unit} for rest, figure in held.items()}
        for group, held in seen.groups.items()
    }
    facts: Mapping[str, Any] = {
        "run": str(seen.run_dir),
        "phase": seen.phase,
        "instrument": seen.instrument,
        "lanes": seen.lanes,
        "level": seen.level,
        "device": seen.device,
        "state": seen.state,
        "ends": seen.ends,
        "steps": seen.steps,
        "planned_steps": seen.planned,
        "ts_decided_ns": seen.ts_decided_ns,
        "age_s": seen.age_s,
        "steps_per_s": seen.steps_per_s,
        "lane_steps_per_s": seen.lane_steps_per_s,
        "waited_s": seen.waited_s,
    }
    shares = {part: share for part, share in seen.shares.items() if share is not None}
    return {
        **{name: value for name, value in facts.items() if value is not None},
        "recent_steps": RECENT,
        "shares": shares,
        "figures": figures,
        "events": seen.events,
    }
