"""The summary of a run (`eval_summary.json`): strict JSON, a function of the log alone, byte-equal for equal logs.

USD comes from `trades`, and from `fills` for the bridge of open lots; equity figures come from `steps`. What the log level does not hold is
null, and its reason stands beside it. Money is given twice: `*_usd_micros` is the integer, `*_usd` the same number in dollars.
"""

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lob.actions import Direction, EndReason, Magnitude, OrderKind, Phase, Urgency
from lob.units import USD_MICROS
from sim import metrics
from sim.metrics import Figure, Undefined
from sim.run_data import PHASES, RunData, RunTerms, distinct, ints

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = 1
AGGREGATION = "USD and counts are sums over lanes; ratios are means over the lanes in which they are defined; drawdown is the worst lane's"
PNL_RULE = "closed price differences minus every fee, each booked when it happens; open lots count with their entry fees only"


def summarize(run: RunData | str | Path, finished: bool | None = None) -> dict[str, Any]:
    """The summary as a JSON-ready dict. `run` is loaded tables or a run directory (its committed log, finished or not).

    `finished` overrules what the log says of itself: a run computes its summary after its last step and before it closes its log.
    """
    if not isinstance(run, RunData):
        from sim.run_data import load

        run = load(run)
    if finished is not None:
        run = replace(run, finished=finished)
    terms = run.terms
    phases = [_phase(run, terms, name) for name in terms.phases]
    total = sum(phase["total_pnl_usd_micros"] for phase in phases) if all(_known(p, "total_pnl_usd_micros") for p in phases) else None
    out: dict[str, Any] = {
        "format": FORMAT,
        "instrument": terms.instrument,
        "schema": terms.schema,
        "level": terms.level,
        "lanes": terms.lanes,
    }
    out |= {"start_ns": terms.start_ns, "end_ns": terms.end_ns, "finished": run.finished}
    if terms.is_joined:
        out["windows"] = [list(window) for window in terms.windows]
    put_usd(out, "total_pnl", Undefined("level_has_no_trades") if total is None else total)
    out |= {"pnl_rule": PNL_RULE, "aggregation": AGGREGATION, "limit": "the tape does not react to us", "phases": phases}
    return out


def to_json(summary: Mapping[str, Any]) -> str:
    """Strict JSON text (no NaN, no Infinity), keys in their order, one newline at the end."""
    return json.dumps(summary, indent=2, allow_nan=False) + "\n"


def session_ns_per_year(calendar: str, start_ns: int) -> int:
    """Open market in the calendar year that holds `start_ns`, in ns, from the calendar's own sessions."""
    from lob.calendar import sessions

    year = (dt.datetime(1970, 1, 1) + dt.timedelta(seconds=start_ns // 10**9)).year
    first, last = (int(dt.datetime(y, 1, 1, tzinfo=dt.UTC).timestamp()) * 10**9 for y in (year, year + 1))
    held = sessions(calendar, first, last)
    return int((np.minimum(held.close_ns, last) - np.maximum(held.open_ns, first)).clip(min=0).sum())


# --- one phase ---


def _phase(run: RunData, terms: RunTerms, name: str) -> dict[str, Any]:
    code = PHASES[name]
    tables = {table: _of_phase(run.tables[table], code) for table in ("steps", "fills", "trades") if table in run.tables}
    diag = _of_phase(run.tables["diag"], code) if "diag" in run.tables else None
    lanes = _lane_figures(tables["steps"], terms) if "steps" in tables else {}
    out: dict[str, Any] = {"phase": name, "lanes": terms.lanes}
    put_usd(out, "initial_equity", terms.lanes * terms.capital_usd_micros)
    out |= _trade_figures(tables, terms, run.finished)
    out |= _step_figures(tables, terms, lanes)
    out |= _distributions(tables.get("steps") if len(lanes) == terms.lanes else None, diag)
    if name != "train":  # whose lanes are many, and whose episodes begin and end where chance has it
        out["lane_rows"] = _lane_rows(tables, terms, run.finished, lanes)
        out["episodes"] = _episode_rows(tables, terms, run.finished)
    return out


def _trade_figures(tables: Mapping[str, "pa.Table"], terms: RunTerms, finished: bool) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if "trades" not in tables:
        for name in ("total_pnl", "trades_pnl", "bridge_of_open_lots", "fees"):
            put_usd(out, name, metrics.LEVEL_HAS_NO_TRADES)
        put(out, "trades", metrics.LEVEL_HAS_NO_TRADES)
        return out
    trades = tables["trades"]
    realized, fee = ints(trades, "realized_usd_micros"), ints(trades, "fee_usd_micros")
    bridge = _bridge(tables, finished)
    closed = int(realized.sum())
    put_usd(out, "total_pnl", closed + bridge if not isinstance(bridge, Undefined) else bridge)
    put_usd(out, "trades_pnl", closed)
    put_usd(out, "bridge_of_open_lots", bridge)
    put_usd(out, "fees", int(fee.sum()) - bridge if not isinstance(bridge, Undefined) else bridge)
    out |= _outcomes(realized)
    out["per_magnitude"] = _split(realized, fee, ints(trades, "magnitude_bin"), {m.name.lower(): int(m) for m in Magnitude})
    out["per_direction"] = _split(realized, fee, ints(trades, "side"), {"long": 1, "short": -1})
    return out


def _bridge(tables: Mapping[str, "pa.Table"], finished: bool) -> int | Undefined:
    """Minus the entry fees of lots still open: they are booked, and in no trade yet. All fees paid less those that trades carry."""
    if "fills" in tables:
        return int(ints(tables["trades"], "fee_usd_micros").sum() - ints(tables["fills"], "fee_usd_micros").sum())
    return 0 if finished else Undefined("open_lots_need_fills")  # the drain closed everything


def _outcomes(realized: np.ndarray) -> dict[str, Any]:
    wins, losses = int((realized > 0).sum()), int((realized < 0).sum())
    won, lost = int(realized[realized > 0].sum()), int(realized[realized < 0].sum())
    out: dict[str, Any] = {"trades": len(realized), "wins": wins, "losses": losses}
    put(out, "win_rate", metrics.ratio(wins, len(realized), metrics.NO_TRADES))
    put(out, "profit_factor", metrics.ratio(won, -lost, metrics.NO_LOSS if len(realized) else metrics.NO_TRADES))
    return out


def _split(realized: np.ndarray, fee: np.ndarray, key: np.ndarray, groups: Mapping[str, int]) -> dict[str, Any]:
    out = {}
    for name, code in groups.items():
        chosen = key == code
        row = _outcomes(realized[chosen])
        put_usd(row, "pnl", int(realized[chosen].sum()))
        put_usd(row, "fees", int(fee[chosen].sum()))
        out[name] = row
    return out


def _step_figures(tables: Mapping[str, "pa.Table"], terms: RunTerms, lanes: Mapping[int, "LaneFigures"]) -> dict[str, Any]:
    names = (
        "decisions",
        "annualisation_factor",
        "sharpe",
        "sharpe_per_step",
        "compounded_return",
        "max_drawdown_fraction",
        "exposed_fraction",
    )
    out: dict[str, Any] = {}
    if "steps" not in tables:
        for name in names:
            put(out, name, metrics.LEVEL_HAS_NO_STEPS)
        for name in ("final_equity", "unrealized", "max_drawdown"):
            put_usd(out, name, metrics.LEVEL_HAS_NO_STEPS)
        return out
    steps = tables["steps"]
    out["lanes_in_steps"] = len(lanes)
    out["decisions"] = sum(lane.decisions for lane in lanes.values())
    whole = len(lanes) == terms.lanes
    partial = Undefined("steps_of_some_lanes_only")
    held = list(lanes.values())
    put_usd(out, "final_equity", sum(lane.final_equity for lane in held) if whole else partial)
    put_usd(out, "unrealized", sum(lane.unrealized for lane in held) if whole else partial)
    put_usd(out, "max_drawdown", max((lane.max_drawdown for lane in held), default=0))
    put(out, "max_drawdown_fraction", _worst([lane.max_drawdown_fraction for lane in held]))
    put(out, "compounded_return", mean_of([lane.compounded_return for lane in held]))
    put(out, "annualisation_factor", _factor(steps, terms))
    put(out, "sharpe", mean_of([lane.sharpe for lane in held]))
    put(out, "sharpe_per_step", mean_of([lane.sharpe_per_step for lane in held]))
    played = ints(steps, "picked_action") >= 0
    exposed = int((ints(steps, "position_lots")[played] != 0).sum())
    put(out, "exposed_fraction", metrics.ratio(exposed, int(played.sum()), metrics.NO_STEPS))
    return out


BRANCHES: dict[str, type[IntEnum]] = {"direction": Direction, "magnitude": Magnitude, "order": OrderKind, "urgency": Urgency}
"""Branch of an action -> its members; `diag` counts lanes in `<picked or actual>.<branch>_<member>`."""


def _distributions(steps: "pa.Table | None", diag: "pa.Table | None") -> dict[str, Any]:
    """Of every decision of every lane, what was picked beside what physics made of it: from `steps` where they hold all lanes, else (None)
    from the counts in `diag`. A slot that was not played counts nowhere."""
    out: dict[str, Any] = {}
    for kind, branches in (("picked", tuple(BRANCHES)), ("actual", ("direction", "magnitude"))):
        for branch in branches:
            counts = _counts(steps, diag, kind, branch)
            out[f"{kind}_{branch}"] = counts
            if branch == "direction":
                short, hold, long, flat = counts.values()
                total = sum(counts.values())
                put(out, f"{kind}_entropy_4way", metrics.entropy(tuple(counts.values())))
                put(out, f"{kind}_entropy_3way", metrics.entropy((short, hold + flat, long)))
                put(out, f"{kind}_active_fraction", metrics.ratio(short + long, total, metrics.NO_STEPS))
    out["played_decisions"] = sum(out["picked_direction"].values())
    put(out, "active_fraction", out["actual_active_fraction"] if out["played_decisions"] else metrics.NO_STEPS)
    return out


def _counts(steps: "pa.Table | None", diag: "pa.Table | None", kind: str, branch: str) -> dict[str, int]:
    """{member: decisions}."""
    members = {member.name.lower(): int(member) for member in BRANCHES[branch]}
    if steps is not None:
        values = ints(steps, f"{kind}_{branch}")[ints(steps, "picked_action") >= 0]
        return {name: int((values == code).sum()) for name, code in members.items()}
    if diag is not None and f"{kind}.{branch}_{next(iter(members))}" in diag.column_names:
        return {name: int(ints(diag, f"{kind}.{branch}_{name}").sum()) for name in members}
    return dict.fromkeys(members, 0)


# --- rows per lane and per episode ---


def _lane_rows(
    tables: Mapping[str, "pa.Table"], terms: RunTerms, finished: bool, figures: Mapping[int, "LaneFigures"]
) -> list[dict[str, Any]]:
    sums = _pnl_by(tables, np.arange(terms.lanes), lambda rows: ints(rows, "lane").astype(np.int64))
    missing = Undefined("lane_not_in_steps") if "steps" in tables else metrics.LEVEL_HAS_NO_STEPS
    out = []
    for lane in range(terms.lanes):
        row: dict[str, Any] = {"lane": lane}
        if terms.is_joined:
            window = lane % len(terms.windows)
            row |= {"window": window, "start_ns": terms.windows[window][0], "end_ns": terms.windows[window][1]}
        row |= _pnl_row(sums, lane, flat_at_end=finished)
        held = figures.get(lane)
        put_usd(row, "final_equity", held.final_equity if held else missing)
        put_usd(row, "max_drawdown", held.max_drawdown if held else missing)
        put(row, "compounded_return", held.compounded_return if held else missing)
        put(row, "sharpe", held.sharpe if held else missing)
        put(row, "end_reason", held.end_reason if held else missing)
        out.append(row)
    return out


def _episode_rows(tables: Mapping[str, "pa.Table"], terms: RunTerms, finished: bool) -> list[dict[str, Any]]:
    keys = distinct(np.concatenate([distinct(_episode_key(rows)) for rows in tables.values()] or [np.empty(0, np.int64)]))
    last_of_lane = {int(key) >> 24: int(key) for key in keys.tolist()}
    first_of_lane = {int(key) >> 24: int(key) for key in keys.tolist()[::-1]}
    sums = _pnl_by(tables, keys, _episode_key)
    out = []
    for i, key in enumerate(keys.tolist()):
        lane, episode = key >> 24, key & (1 << 24) - 1
        alone = last_of_lane[lane] == first_of_lane[lane] == key  # else lots may cross the boundary, and only fills tell
        out.append({"lane": lane, "episode": episode} | _pnl_row(sums, i, flat_at_end=finished and alone))
    return out


def _pnl_by(tables: Mapping[str, "pa.Table"], keys: np.ndarray, key_of) -> dict[str, np.ndarray]:
    """Exact int64 sums per key: trades (count, wins, realised, fees carried) and fees paid by fills."""
    out = {}
    for name, columns in (("trades", ("realized_usd_micros", "fee_usd_micros")), ("fills", ("fee_usd_micros",))):
        if name not in tables:
            continue
        rows = tables[name]
        where = np.searchsorted(keys, key_of(rows))
        for column in columns:
            out[f"{name}.{column}"] = _add_at(where, ints(rows, column), len(keys))
        out[f"{name}.count"] = _add_at(where, np.ones(len(where), np.int64), len(keys))
        if name == "trades":
            out["trades.wins"] = _add_at(where, (ints(rows, "realized_usd_micros") > 0).astype(np.int64), len(keys))
    return out


def _pnl_row(sums: Mapping[str, np.ndarray], i: int, flat_at_end: bool) -> dict[str, Any]:
    row: dict[str, Any] = {}
    if "trades.count" not in sums:
        for name in ("pnl", "fees", "bridge_of_open_lots"):
            put_usd(row, name, metrics.LEVEL_HAS_NO_TRADES)
        return row
    realized, carried, count = (int(sums[f"trades.{name}"][i]) for name in ("realized_usd_micros", "fee_usd_micros", "count"))
    bridge: int | Undefined
    if "fills.count" in sums:
        bridge = carried - int(sums["fills.fee_usd_micros"][i])
    else:
        bridge = 0 if flat_at_end else Undefined("open_lots_need_fills")
    put_usd(row, "pnl", realized + bridge if not isinstance(bridge, Undefined) else bridge)
    put_usd(row, "fees", carried - bridge if not isinstance(bridge, Undefined) else bridge)
    put_usd(row, "bridge_of_open_lots", bridge)
    row["trades"] = count
    put(row, "win_rate", metrics.ratio(int(sums["trades.wins"][i]), count, metrics.NO_TRADES))
    return row


# --- series ---


@dataclass(frozen=True)
class LaneFigures:
    """One lane's figures from its equity after every row up to its drain, flat steps and the drain included. Money in micro-dollars."""

    decisions: int
    final_equity: int
    unrealized: int
    max_drawdown: int
    max_drawdown_fraction: Figure
    compounded_return: Figure
    sharpe: Figure
    sharpe_per_step: Figure
    end_reason: str


def _lane_figures(steps: "pa.Table", terms: RunTerms) -> dict[int, LaneFigures]:
    lane, equity, unrealized, reason, drain = (
        ints(steps, name) for name in ("lane", "equity_usd_micros", "unrealized_usd_micros", "end_reason", "is_drain")
    )
    factor = _factor(steps, terms)
    order = np.argsort(lane.astype(np.uint16) if len(lane) and lane.min() >= 0 and lane.max() < 1 << 16 else lane, kind="stable")
    starts = np.flatnonzero(np.diff(lane[order], prepend=-1))
    out = {}
    for every in np.split(order, starts[1:]) if len(order) else ():
        end = int(drain[every].argmax()) + 1 if drain[every].any() else len(every)
        rows = every[:end]  # what follows the drain waits for lanes of longer windows
        values = np.concatenate(([terms.capital_usd_micros], equity[rows]))
        # The drain takes no time of its own, so it is no period: its equity stands in place of the last decision's.
        periods = np.concatenate((values[:-2], values[-1:])) if drain[rows[-1]] and len(values) > 2 else values
        returns = metrics.step_returns(periods)
        per_step = metrics.sharpe(returns, 1.0)
        said = reason[rows][reason[rows] > 0]
        out[int(lane[rows[0]])] = LaneFigures(
            decisions=len(rows) - int(drain[rows[-1]]),
            final_equity=int(values[-1]),
            unrealized=int(unrealized[rows[-1]]),
            max_drawdown=metrics.max_drawdown_usd_micros(values),
            max_drawdown_fraction=metrics.max_drawdown_fraction(values),
            compounded_return=metrics.compounded_return(returns),
            sharpe=metrics.annualised(per_step, factor),
            sharpe_per_step=per_step,
            end_reason=EndReason(int(said[-1]) if len(said) else 0).name.lower(),
        )
    return out


def _factor(steps: "pa.Table", terms: RunTerms) -> Figure:
    """The annualisation factor of the phase: its decisions over the session time that they took, per year of the calendar."""
    lane = ints(steps, "lane")
    if not len(lane):
        return metrics.NO_STEPS
    # The lanes of a window decide at the same times: one of each tells.
    _, leaders = np.unique(distinct(lane) % len(terms.windows), return_index=True)
    decisions, spans = 0, 0
    for leader in distinct(lane)[leaders].tolist():
        rows = np.flatnonzero(lane == leader)
        ts, episode, drain = (ints(steps, name)[rows] for name in ("ts_decided_ns", "episode", "is_drain"))
        decisions += int(drain.argmax()) if drain.any() else len(rows)
        spans += sum(int(ts[episode == e].max()) - int(ts[episode == e].min()) for e in distinct(episode))
    return metrics.annualisation_factor(decisions, spans, session_ns_per_year(terms.calendar, terms.start_ns))


def _episode_key(rows: "pa.Table") -> np.ndarray:
    return ints(rows, "lane").astype(np.int64) << 24 | ints(rows, "episode").astype(np.int64)


def _add_at(where: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    out = np.zeros(size, np.int64)
    np.add.at(out, where, values)
    return out


def _of_phase(rows: "pa.Table", code: int) -> "pa.Table":
    phase = ints(rows, "phase")
    if (phase == code).all():
        return rows
    import pyarrow as pa

    return rows.filter(pa.array(phase == code))


# --- figures into JSON ---


def put(out: dict[str, Any], name: str, value: Figure | str) -> None:
    out[name] = None if isinstance(value, Undefined) else value
    if isinstance(value, Undefined):
        out[f"{name}_reason"] = value.code


def put_usd(out: dict[str, Any], name: str, micros: int | Undefined) -> None:
    """Both forms; the quotient of an integer below 2^53 by 10^6 prints as the exact decimal."""
    put(out, f"{name}_usd_micros", micros)
    put(out, f"{name}_usd", micros if isinstance(micros, Undefined) else micros / USD_MICROS)


def _known(row: Mapping[str, Any], name: str) -> bool:
    return row.get(name) is not None


def mean_of(figures: list[Figure]) -> Figure:
    defined = [float(figure) for figure in figures if not isinstance(figure, Undefined)]
    if defined:
        import math

        return math.fsum(defined) / len(defined)
    return next((figure for figure in figures if isinstance(figure, Undefined)), metrics.NO_STEPS)


def _worst(figures: list[Figure]) -> Figure:
    defined = [float(figure) for figure in figures if not isinstance(figure, Undefined)]
    return max(defined) if defined else next(iter(figures), metrics.NO_STEPS)


assert {int(phase) for phase in Phase} == set(PHASES.values())
