"""`sim verify`: tries to falsify a run's result from its log and the raw market, and says exactly what it found (design.md, law 6).

Five computations of every dollar, made apart from one another, and a list of checks; the first offender of each is named by table, part,
row and column. Nothing here imports `cuda_env`: declared terms come from the manifest, multipliers from
`sim.verify_terms` and, where the store holds it, from the exchange's definition.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lob.errors import BadInput, TapeproofError
from lob.units import counted
from sim import verify_sql as sql
from sim.evaluation import EVALUATION, concluded
from sim.run_data import FINISHED, PHASES, UNREADABLE, RunData, RunTerms, distinct, load, summary_file
from sim.summary import summarize
from sim.verify_accounting import (
    Grid,
    Walk,
    check_cumulative,
    check_excursions,
    check_ids,
    check_rewards,
    check_steps,
    check_trades,
    diag_columns,
    end_costs,
    grids,
    walk_fills,
)
from sim.verify_checkpoint import check_best, check_states
from sim.verify_contract import check_contract, defined_in
from sim.verify_data import check_data, read_market
from sim.verify_diag import check_diag, check_trades_alone
from sim.verify_fills import check_drain, check_fills, check_marks, check_standing, check_times, fees_of, fill_events, raw_price
from sim.verify_floor import check_floor, resting_stops
from sim.verify_gates import check_actual, check_ends, check_gates, check_sentinels, check_trail
from sim.verify_hashes import check_build
from sim.verify_market import Market
from sim.verify_orders import check_orders_follow
from sim.verify_schedule import check_schedule
from sim.verify_terms import ContractTerms
from sim.verify_types import COMPUTATIONS, FAILED, OK, Check, Key, Log, Verdict, failed, skipped, where
from sim.verify_working_checks import check_working

if TYPE_CHECKING:
    from store.definitions import Definition

__all__ = ["verify", "verify_tables"]

RATIO_TOLERANCE = 1e-9
"""Ratios of a summary (Sharpe, fractions) may differ by this much: their last bits follow numpy and the processor. Money never does."""

_HEAD = re.compile(r"[0-9a-fA-F]{64}")

PROOFS = {
    "full": "all five computations, per phase, lane and episode",
    "sampled": "(b), (c) and (e) of every lane; (a) and (d) of the sampled lanes only",
    "fills": "(b), (c) and (e) of every lane; (a) per phase only; (d) not at all: the level keeps no steps",
    "trades": "(b) against (a) per phase only: no fill can be recomputed or seen in the market. This does not prove the result",
    "diag": "(a) alone: nothing is proved, there is nothing to compare it with",
}


def verify(run_dir: str | Path, store: str | Path | None, head: str | None = None, tolerance_usd_micros: int = 0) -> Verdict:
    """The verdict on a run directory, finished or broken off. `head` is the chain head that the run printed when it ended.

    Raises NotFound (no such run or store), BadInput (a head that is none, a store that cannot be read or has nothing of the run's data: it
    says nothing against the run); damage in the log is a failed check, never an exception.
    """
    from store.catalog import check_store
    from store.reopen import describe_abandoned
    from store.run_check import verify_chain
    from store.run_read import read_run

    if store is not None:
        check_store(store)
    if head is not None and not _HEAD.fullmatch(head):
        raise BadInput(f"--head {head}: a head has 64 hex digits; give the whole one that the run printed")

    checks = [
        Check(
            "chain",
            FAILED,
            found.message,
            found.table or "",
            found.part or "",
            -1 if found.row is None else found.row,
            found.column or "",
            1,
        )
        for found in verify_chain(run_dir, head)
    ] or [Check("chain", OK, "")]
    try:
        run = load(run_dir)
        terms = run.terms
    except UNREADABLE as error:
        if all(check.status == OK for check in checks):
            checks.append(failed("log_readable", str(error), "manifest"))
        return _unreadable(run_dir, checks, tolerance_usd_micros)
    market: Market | None = None
    defined: Definition | None = None
    if store is None:
        checks.append(skipped("data_hash", "no store given"))
    else:
        try:
            if run.has("fills"):
                market, data_checks = read_market(terms, store)
            else:
                data_checks = [check_data(terms, store)]
            defined = defined_in(store, terms)
        except TapeproofError as error:
            if all(check.status == OK for check in checks):
                raise BadInput(f"this store cannot judge the run: {error}") from None
            # A log that was changed may ask for data that never was: its own faults come first.
            data_checks = [failed("data_hash", f"the store cannot give the run's data: {error}", "manifest", "data_hash")]
        checks += data_checks
    checks += check_build(run.manifest["identity"])
    try:
        checks += check_best(Path(run_dir), run) + check_states(Path(run_dir), run)
        verdict = verify_tables(run, market, Path(run_dir).name, tolerance_usd_micros, checks, defined)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:  # what no run's log holds breaks the arithmetic
        checks.append(failed("log_computable", f"its values are none that a run logs: {error!r}"[:300], "manifest"))
        return _unreadable(run_dir, checks, tolerance_usd_micros)
    files = read_run(run_dir)
    return replace(verdict, head=files.head, abandoned=describe_abandoned(files.abandoned))


def verify_tables(
    run: RunData,
    market: Market | None,
    name: str = "run",
    tolerance_usd_micros: int = 0,
    checks: list[Check] | None = None,
    defined: "Definition | None" = None,
) -> Verdict:
    """The verdict on loaded tables against a market (None: without one, which computation (e) then lacks). `defined`: the exchange's
    definition of the instrument, the second source of its terms.
    """
    log, terms = Log(run), run.terms
    checks = list(checks or [])
    hand, terms_by, term_checks = check_contract(terms, defined)
    checks += term_checks
    checks += _schema(run)
    booked = walk_fills(log) if log.has("fills") else None
    rectangles, rectangular = grids(log) if log.has("steps") else ([], [])
    checks += rectangular
    connection = sql.connect(log)
    try:
        checks += _accounts(log, booked, rectangles)
        if log.has("fills") and log.has("orders"):
            checks += sql.check_orders(connection, log)
        computed: dict[str, dict[Key, int]] = {}
        reasons: dict[str, str] = {}
        phase_a, phase_b = _compute(log, connection, booked, rectangles, market, hand, computed, reasons, checks)
    finally:
        connection.close()
    checks += _summary_is_of_this_log(run)
    largest, at, groups = _largest_difference(log, computed, phase_a, phase_b)
    totals: dict[str, int | None] = {letter: sum(computed[letter].values()) if letter in computed else None for letter in COMPUTATIONS}
    for letter, of_phases in (("a", phase_a), ("b", phase_b)):
        if totals[letter] is None and of_phases:
            totals[letter] = sum(of_phases.values())
    return Verdict(
        run=name,
        level=terms.level,
        finished=run.finished,
        ends=_ends(run),
        proof=_proof(terms, run, totals, terms_by, market),
        totals=totals,
        reasons=reasons,
        groups=groups,
        largest_difference_usd_micros=largest,
        largest_at=at,
        tolerance_usd_micros=tolerance_usd_micros,
        checks=tuple(checks),
    )


def _accounts(log: Log, booked: Walk | None, rectangles: Sequence[Grid]) -> list[Check]:
    """Every check that needs the log alone."""
    checks = check_cumulative(log)
    for table, column in (("orders", "order_id"), ("fills", "fill_id"), ("trades", "trade_id")):
        if log.has(table) and (table != "orders" or log.terms.level == "full"):
            checks += check_ids(log, table, column)
    if booked is not None and log.has("trades"):
        checks += check_trades(log, booked)
    elif log.has("trades"):
        checks += check_trades_alone(log)
    if not log.has("steps"):
        return checks + check_times(log, None)
    for grid in rectangles:
        checks += check_sentinels(log, grid) + check_ends(log, grid) + check_trail(log, grid, booked) + check_rewards(log, grid)
        checks += check_times(log, grid)
        if log.has("diag") and log.terms.level == "full":
            checks += check_diag(log, grid)
        if booked is not None:
            checks += check_steps(log, grid, booked) + check_actual(log, grid)
            if log.has("trades"):
                checks += check_gates(log, grid, booked) + check_excursions(log, grid, booked)
    return checks


def _compute(
    log: Log,
    connection,
    booked: Walk | None,
    rectangles: Sequence[Grid],
    market: Market | None,
    hand: ContractTerms | None,
    computed: dict[str, dict[Key, int]],
    reasons: dict[str, str],
    checks: list[Check],
) -> tuple[dict[int, int], dict[int, int]]:
    """Fill `computed` with the five, each by (phase, lane, episode); returns (a) and (b) per phase where they are not known by episode."""
    terms = log.terms
    phase_a: dict[int, int] = {}
    phase_b: dict[int, int] = {}
    delta, _ = diag_columns(log)
    if log.has("steps"):
        computed["a"] = sql.step_deltas(connection)
        moves = sql.cash_and_equity(connection, terms.capital_usd_micros)
        computed["d"] = {key: cash for key, (cash, _, _) in moves.items()}
        wrong = [key for key, (cash, equity, unrealized) in moves.items() if equity - unrealized != cash]
        checks.append(
            failed("equity_change", f"{where(wrong[0])}: equity moved otherwise than cash and unrealised", "steps", "equity_usd_micros")
            if wrong
            else Check("equity_change", OK, "")
        )
    else:
        reasons["d"] = f"level {terms.level} keeps no steps"
        reasons["a"] = "per phase only, from diag" if delta else f"level {terms.level} keeps no steps, and there is no diag"
    if delta and not (log.has("steps") and terms.level == "full"):
        phase_a = sql.diag_deltas(connection, delta)
    if log.has("trades"):
        episodes, phase_b = _from_summary(log.run, checks)
        if episodes is not None:
            computed["b"], phase_b = episodes, {}
        else:
            training = "train" in terms.phases
            unknown = "lots were open between two episodes, and only fills could bridge them"
            reasons["b"] = f"not per episode: {'the summary of a training lists none' if training else unknown}"
            for phase in phase_a.keys() & phase_b.keys():
                if phase_a[phase] != phase_b[phase]:
                    detail = f"diag realised {phase_a[phase]} in all, the summary says {phase_b[phase]}"
                    checks.append(failed("summary_against_diag", detail, summary_file(terms), "total_pnl_usd_micros"))
    else:
        reasons["b"] = f"level {terms.level} keeps no trades"
    if booked is None:
        reasons["c"] = reasons["e"] = f"level {terms.level} keeps no fills"
        return phase_a, phase_b
    flows = sql.fill_flows(connection)
    ends = end_costs(log, booked)
    computed["c"] = _realised(flows, ends, terms.tick_value_usd_micros)
    if market is None:
        reasons["e"] = "no market data to look at"
        return phase_a, phase_b
    index = fill_events(log, market)
    told = terms.level == "full" and log.has("orders") and bool(rectangles)
    checks += check_fills(log, market, index) + check_drain(log, market, index)
    if terms.working is None:
        stop_orders = np.sort(np.concatenate([resting_stops(log, grid).order_id for grid in rectangles])) if told else None
        checks += check_standing(log, market, index, stop_orders)
    if log.has("steps"):
        for grid in rectangles:
            checks += check_marks(log, grid, market) + check_schedule(log, grid, market)
            if told:
                if terms.working is None:
                    checks += check_orders_follow(log, grid, market) + check_floor(log, grid, booked, market, index)
                else:
                    checks += check_working(log, grid, market)
    price, _ = raw_price(log, market, index)
    if (price != log("fills", "price_ticks")).any():
        ends = end_costs(log, walk_fills(log, price))
    raw = sql.raw_flows(connection, price, fees_of(log))
    tick_value = _tick_value(terms, hand)
    computed["e"] = _realised(raw, ends, tick_value)
    return phase_a, phase_b


def _realised(flows: Mapping[Key, tuple[int, int]], ends: Mapping[Key, tuple[int, int, int]], tick_value: int) -> dict[Key, int]:
    """Cash flow plus the change of what the open lots cost, at their average: realised, net of all fees paid. Exact Python integers."""
    out: dict[Key, int] = {}
    cost_before: dict[tuple[int, int], int] = {}
    for key in sorted(flows):
        flow, fee = flows[key]
        cost = ends[key][1]
        out[key] = (flow + cost - cost_before.get(key[:2], 0)) * tick_value - fee
        cost_before[key[:2]] = cost
    return out


def _tick_value(terms: RunTerms, hand: ContractTerms | None) -> int:
    """Micro-dollars that one of the run's ticks is worth by the proved point value; the run's own word where nothing proves one."""
    if hand is None:
        return terms.tick_value_usd_micros
    return hand.point_value_usd_micros * terms.tick_price_e9 // 10**9


def _schema(run: RunData) -> list[Check]:
    """Tables and columns are those that the manifest declares; a USD column holds 64-bit integers."""
    checks = []
    for name, rows in run.tables.items():
        for column in rows.schema:
            if column.name.endswith("_usd_micros") and str(column.type) != "int64":
                checks.append(failed("usd_is_int64", f"{column.name} is {column.type}, USD is int64 micro-dollars", name, column.name))
    declared = {entry["name"]: [c["name"] for c in entry["columns"]] for entry in run.manifest.get("log", {}).get("tables", [])}
    for name, columns in declared.items():
        if name in run.tables and run.tables[name].column_names != columns:
            odd = sorted(set(columns) ^ set(run.tables[name].column_names)) or ["their order"]
            checks.append(failed("declared_columns", f"columns differ from the manifest's declaration: {', '.join(odd)}", name, odd[0]))
    return checks or [Check("declared_columns", OK, "")]


def _from_summary(run: RunData, checks: list[Check]) -> tuple[dict[Key, int] | None, dict[int, int]]:
    """(b) as the summary says it, per episode (None: not known for every episode) and per phase; computed now where the run wrote none."""
    summary: Mapping[str, Any] = run.summary if run.summary is not None else summarize(run)
    episodes: dict[Key, int] = {}
    totals: dict[int, int] = {}
    complete = True
    try:
        for phase in summary["phases"]:
            code, total = PHASES[phase["phase"]], phase["total_pnl_usd_micros"]
            if total is not None:
                totals[code] = int(total)
            if "episodes" not in phase:  # a training
                complete = False
                continue
            parts = [row["pnl_usd_micros"] for row in phase["episodes"]]
            complete &= None not in parts
            episodes |= {(code, int(row["lane"]), int(row["episode"])): row["pnl_usd_micros"] for row in phase["episodes"]}
            if None not in parts and total is not None and sum(parts) != total:
                detail = f"total_pnl_usd_micros of {phase['phase']} is {total}, its episodes sum to {sum(parts)}"
                checks.append(failed("summary_total", detail, summary_file(run.terms), "total_pnl_usd_micros"))
    except (KeyError, TypeError, ValueError) as error:
        checks.append(failed("summary_readable", f"not a summary of this version: {error!r}", summary_file(run.terms)))
        return None, {}
    return (episodes if complete else None), totals


def _summary_is_of_this_log(run: RunData) -> list[Check]:
    """The summary file says what the log says: it is computed anew and compared figure by figure. That of a training says more."""
    file = summary_file(run.terms)
    if run.summary is None:
        if run.finished:
            return [failed("summary", "the run is finished and has no summary", file)]
        return [skipped("summary", "the run wrote none: it did not finish")]
    expected = summarize(run)
    try:
        expected |= concluded(run, expected)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        return [failed("summary", f"its `{EVALUATION}` is not one of this version: {error!r}", file, EVALUATION)]
    found = {name: run.summary[name] for name in expected if name in run.summary} if "train" in run.terms.phases else run.summary
    path = _first_difference(found, expected, "")
    if path is None:
        return [Check("summary", OK, "")]
    place, said, wanted = path
    return [failed("summary", f"{place} is {said}, the log gives {wanted}", file, place)]


def _first_difference(found: Any, expected: Any, path: str) -> tuple[str, Any, Any] | None:
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in [*expected, *(key for key in found if key not in expected)]:
            below = f"{path}.{key}" if path else str(key)
            if key not in found or key not in expected:
                return below, found.get(key, "absent"), expected.get(key, "absent")
            difference = _first_difference(found[key], expected[key], below)
            if difference:
                return difference
        return None
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        return next(
            (d for i, pair in enumerate(zip(found, expected, strict=True)) if (d := _first_difference(*pair, f"{path}[{i}]"))), None
        )
    if type(found) is type(expected) is float and not path.endswith("_usd"):
        return None if math.isclose(found, expected, rel_tol=RATIO_TOLERANCE) else (path, found, expected)
    return None if found == expected and type(found) is type(expected) else (path, found, expected)


def _largest_difference(
    log: Log, computed: Mapping[str, Mapping[Key, int]], phase_a: Mapping[int, int], phase_b: Mapping[int, int]
) -> tuple[int, str, int]:
    """(largest difference between any two computations of one group, where, number of groups)."""
    keys = sorted({key for values in computed.values() for key in values})
    sampled = set(distinct(log("steps", "lane")).tolist()) if log.has("steps") else set()
    largest, at = 0, ""
    for key in keys:
        held = {
            letter: values.get(key, 0)
            for letter, values in computed.items()
            if (letter not in "ad" or key[1] in sampled)
            and (letter != "b" or key in values or "c" not in computed or computed["c"].get(key, 0) != 0)
        }
        spread = max(held.values()) - min(held.values())
        if spread > largest:
            largest, at = spread, f"{where(key)}: " + ", ".join(f"({letter}) {value}" for letter, value in held.items())
    if phase_a:
        summed = {letter: sql.by_phase(values) for letter, values in computed.items() if letter not in "ad" or log.terms.level == "full"}
        for letter, values in (summed | ({"b": phase_b} if phase_b else {})).items():
            for phase, total in values.items():
                spread = abs(total - phase_a.get(phase, 0))
                if spread > largest:
                    largest, at = spread, f"phase {phase}: (a) {phase_a.get(phase, 0)} from diag, ({letter}) {total}"
    return largest, at, len(keys)


def _proof(terms: RunTerms, run: RunData, totals: Mapping[str, int | None], terms_by: str | None, market: Market | None) -> str:
    level = terms.level.partition(":")[0]
    text = PROOFS[level]
    if level in ("full", "sampled", "fills"):
        if market is None:
            text = (
                "no fill was seen in the market, for lack of data: "
                + ", ".join(f"({k})" for k, v in totals.items() if v is not None)
                + " only"
            )
        elif terms_by is None:
            text += "; the multiplier is the run's own word"
        elif "definition" in terms_by:
            text += f"; the multiplier is proved by {terms_by}"
    if not run.finished:
        text += "; of the part of the run that the log holds, open lots bridged by their cost"
    return text


def _ends(run: RunData) -> str:
    """Where the log ends, in words; a finished one's last step is the drain, on which nothing is decided."""
    return f"{counted(run.steps - 1, 'decision')} and the drain, {FINISHED}" if run.finished and run.steps > 0 else run.ends


def _unreadable(run_dir: str | Path, checks: list[Check], tolerance: int) -> Verdict:
    nothing: dict[str, int | None] = dict.fromkeys(COMPUTATIONS)
    reasons = dict.fromkeys(COMPUTATIONS, "the log cannot be read")
    return Verdict(
        Path(run_dir).name, "unknown", False, "the log cannot be read", "none", nothing, reasons, 0, 0, "", tolerance, tuple(checks)
    )
