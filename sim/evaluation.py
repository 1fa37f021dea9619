"""What an evaluation says beyond its log's summary, under the key `evaluation` of `eval_summary.json`.

Everything but the `Evidence` is a function of the log, and `sim verify` computes it anew; the evidence (what other runs there are, what the
trivial rules earned, whether a changed future changed the past) is held by the chain, whose last line holds the hash of the whole file.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sim import stats
from sim.metrics import Undefined
from sim.summary import mean_of, put, put_usd
from sim.trials import RULE, windows_of

if TYPE_CHECKING:
    from sim.run_data import RunData

TRIVIAL = ("flat", "long", "short", "random", "momentum")
"""Rules that know nothing: a policy that is not above them has learnt nothing."""

BASELINES = (*TRIVIAL, "imbalance")
"""Built-in policies that every evaluation is put beside, on the same windows, account and exchange. `imbalance` is no trivial one: on a
synthetic market with an edge it is told the answer."""

UNIT = "one account on one window; copies of an account add no evidence, so a day's value is the mean over its accounts"
SHARPE_RULE = "variance of the trials' Sharpe ratios: 1 / (days - 1), what luck alone gives them"
INTERVAL_RULE = "stationary bootstrap of days, expanded percentiles"

_E = math.e
REACHABLE = {"boltzmann": ((1 / (1 + 3 * _E), _E / (_E + 3)), 2 * _E / (2 * _E + 2))}
"""Selector -> ((least, greatest) share that one of four directions can have in the long run, greatest share of two together). At a
temperature not below the range of the values, picks cannot concentrate further, whatever the values are (seed T6, lesson 56)."""

ANYTHING = ((0.0, 1.0), 1.0)
NEAR = 0.01
"""A share this close to an end of its reachable interval is as far out as the selector lets it be."""


@dataclass(frozen=True)
class Evidence:
    """What the log alone cannot tell, as JSON values.

    `trials`: config hashes (`sim.trials`). `baselines`: name -> {days_usd_micros, fees_usd_micros, trades}, a day's value per window.
    `leak`: what `sim.leak` found.
    """

    trials: Sequence[str]
    baselines: Mapping[str, Mapping[str, Any]]
    leak: Mapping[str, Any]


EVALUATION = "evaluation"
"""Key of the document in a summary."""


def concluded(run: RunData, summary: Mapping[str, Any]) -> dict[str, Any]:
    """What the run's summary file says beside `summary`, computed anew from its evidence; nothing where it is no evaluation's.

    Raises KeyError, TypeError, ValueError, IndexError or AttributeError when it is no document of this version.
    """
    stated = (run.summary or {}).get(EVALUATION)
    return {} if stated is None else {EVALUATION: evaluation(run, summary, evidence_of(stated))}


def evidence_of(document: Mapping[str, Any]) -> Evidence:
    """The evidence in an evaluation's document. Raises KeyError, TypeError."""
    stated = ("days_usd_micros", "fees_usd_micros", "trades")
    baselines = {name: {key: row[key] for key in stated} for name, row in document["baselines"].items()}
    return Evidence(document["trials"]["configs"], baselines, document["leak"])


def evaluation(run: RunData, summary: Mapping[str, Any], evidence: Evidence) -> dict[str, Any]:
    """The document. `summary` is the run's own (`sim.summary.summarize`)."""
    identity = run.manifest["identity"]
    config, phase = identity["config"], summary["phases"][0]
    windows = windows_of(config)
    lanes = phase["lane_rows"]
    days = [_day(window, lanes[i :: len(windows)], run.terms.calendar) for i, window in enumerate(windows)]
    values = [day["mean_pnl_usd_micros"] for day in days]
    return {
        "parent": identity.get("parent"),
        "checkpoint": config["policy"].get("checkpoint"),
        "selector": _selector(config["policy"].get("selector", "greedy"), phase["picked_direction"]),
        "sessions": {
            "windows": len(windows),
            "distinct": len(set(windows)),
            "accounts": len(lanes),
            "distinct_paths": distinct_paths(run, len(windows)),
        },
        "days": days,
        "statistics": _statistics(values, len(evidence.trials)),
        "trials": {"count": len(evidence.trials), "rule": RULE, "configs": list(evidence.trials)},
        "baselines": {name: _baseline(row, values) for name, row in evidence.baselines.items()},
        "leak": dict(evidence.leak),
    }


def _day(window: tuple[int, int], lanes: Sequence[Mapping[str, Any]], calendar: str) -> dict[str, Any]:
    """One window, over the accounts that played it; ratios are means over those in which they are defined."""
    pnl, fees = (sum(lane[name] for lane in lanes) for name in ("pnl_usd_micros", "fees_usd_micros"))
    out: dict[str, Any] = {"start_ns": window[0], "end_ns": window[1], "session": session_date(window[0], calendar), "accounts": len(lanes)}
    put_usd(out, "pnl", pnl)
    put_usd(out, "mean_pnl", pnl // len(lanes))
    put_usd(out, "fees", fees)
    out["trades"] = sum(lane["trades"] for lane in lanes)
    for name in ("win_rate", "sharpe", "compounded_return"):
        put(out, name, mean_of([_figure(lane, name) for lane in lanes]))
    worst = [lane["max_drawdown_usd_micros"] for lane in lanes if lane["max_drawdown_usd_micros"] is not None]
    put_usd(out, "max_drawdown", max(worst) if worst else _figure(lanes[0], "max_drawdown_usd_micros"))
    return out


def _figure(row: Mapping[str, Any], name: str) -> Any:
    return Undefined(row[f"{name}_reason"]) if row[name] is None else row[name]


def session_date(start_ns: int, calendar: str) -> str:
    """Trade date, yyyy-mm-dd, of the session that holds a time or opens next after it."""
    from lob.calendar import sessions

    held = sessions(calendar, start_ns, start_ns + 7 * 86_400 * 10**9)
    return str(dt.datetime.strptime(str(int(held.trade_date[0])), "%Y%m%d").date())


def distinct_paths(run: RunData, windows: int) -> int:
    """How many (window, sequence of fills) differ among the accounts: equal accounts on a deterministic market are one observation."""
    from sim.run_data import ints

    fills = run.tables["fills"]
    lane = ints(fills, "lane").astype(np.int64)
    content = np.stack([ints(fills, name).astype(np.int64) for name in ("step", "side", "lots", "price_ticks")], axis=1)
    order = np.argsort(lane, kind="stable")
    starts = np.searchsorted(lane[order], np.arange(run.terms.lanes + 1))
    paths = set()
    for account in range(run.terms.lanes):
        rows = content[order[starts[account] : starts[account + 1]]]
        paths.add((account % windows, hashlib.sha256(rows.tobytes()).hexdigest()))
    return len(paths)


def _statistics(values: Sequence[int], trials: int) -> dict[str, Any]:
    out: dict[str, Any] = {"unit": UNIT, "days": len(values)}
    put_usd(out, "mean_day", sum(values) // len(values))
    out["winning_days"] = sum(value > 0 for value in values)
    interval = stats.mean_interval(values)
    for end in ("low", "high"):
        put_usd(out, f"interval_{end}", interval if isinstance(interval, Undefined) else getattr(interval, end))
    known = None if isinstance(interval, Undefined) else interval
    out["interval"] = known and {"rule": INTERVAL_RULE, "level": known.level, "draws": known.draws, "block_days": known.block}
    test = stats.mean_test(values)
    p = test if isinstance(test, Undefined) else test.p
    put(out, "t", test if isinstance(test, Undefined) else test.t)
    put(out, "p", p)
    put(out, "p_best_of_trials", stats.best_of_trials(p, trials))
    put(out, "sharpe_per_day", stats.sharpe_per_day(values))
    put(out, "probabilistic_sharpe", stats.probabilistic_sharpe(values))
    put(out, "deflated_sharpe", stats.deflated_sharpe(values, trials))
    out["deflated_sharpe_rule"] = SHARPE_RULE
    return out


def _baseline(row: Mapping[str, Any], values: Sequence[int]) -> dict[str, Any]:
    days = [int(value) for value in row["days_usd_micros"]]
    out: dict[str, Any] = {"days_usd_micros": days}
    put_usd(out, "mean_day", sum(days) // len(days))
    put_usd(out, "fees", row["fees_usd_micros"])
    out["trades"] = row["trades"]
    test = stats.paired_test(values, days)
    put_usd(out, "ahead_of_it", sum(a - b for a, b in zip(values, days, strict=True)) // len(days))
    put(out, "p_ahead_of_it", test if isinstance(test, Undefined) else test.p)
    return out


def _selector(name: str, picked: Mapping[str, int]) -> dict[str, Any]:
    """The shares of the picked directions beside what the selector can reach: at an end of it they are its doing, not the policy's."""
    (least, greatest), pair = REACHABLE.get(name, ANYTHING)
    total = sum(picked.values())
    share = {direction: count / total if total else None for direction, count in picked.items()}
    at_end = [] if name not in REACHABLE else [d for d, s in share.items() if s is not None and not least + NEAR < s < greatest - NEAR]
    return {
        "name": name,
        "picked_share": share,
        "reachable_share": [least, greatest],
        "reachable_share_of_two": pair,
        "at_an_end_of_it": at_end,
    }
