"""`diag` against the tables that it sums: what was picked and done, gates, ends, counts, open lots and gate inputs of every step."""

import numpy as np

from lob.units import counted
from sim.verify_accounting import Grid
from sim.verify_gates import FLAT, HOLD, PPM
from sim.verify_types import Check, Log

DIRECTIONS, MAGNITUDES = ("short", "hold", "long", "flat"), ("quarter", "half", "full")
ORDERS, URGENCIES = ("market", "join", "improve"), ("normal", "patient", "aggressive")
BRANCHES = {"direction": DIRECTIONS, "magnitude": MAGNITUDES, "order": ORDERS, "urgency": URGENCIES}
assert DIRECTIONS[FLAT] == "flat" and DIRECTIONS[HOLD] == "hold"


def check_diag(log: Log, grid: Grid) -> list[Check]:
    """Every leaf of `diag` that the steps and the rows of orders, fills and trades give, where all lanes have them."""
    names = log.arrow("diag").column_names
    phase, step = log("diag", "phase"), log("diag", "step")
    rows = np.flatnonzero((phase == grid.phase) & (step >= 0) & (step < grid.steps))
    at = step[rows]
    return [log.equal("diag_leaf", "diag", name, values[at], rows) for name, values in _leaves(log, grid).items() if name in names]


def check_trades_alone(log: Log) -> list[Check]:
    """What trades say of themselves where the level keeps no fills: each row's dollars from its own lots and prices, the fee of both ends,
    and as many rows in a step as `diag` counts."""
    get = lambda name: log("trades", name)  # noqa: E731
    lots, side, entry, exit_ = get("lots"), get("side"), get("ts_entry_ns"), get("ts_exit_ns")
    best, worst = get("mfe_usd_micros"), get("mae_usd_micros")
    fee = 2 * lots * log.terms.fee_usd_micros
    gross = (side * lots * get("exit_ticks") - get("cost_ticks")) * log.terms.tick_value_usd_micros
    said = {
        "lots": ((lots < 1) | (lots > log.terms.max_lots), lambda i: f"{counted(int(lots[i]), 'lot')} closed"),
        "side": (np.abs(side) != 1, lambda i: f"side is {side[i]}"),
        "ts_exit_ns": (exit_ < entry, lambda i: f"closed at {exit_[i]}, opened at {entry[i]}"),
        "mfe_usd_micros": (best < np.maximum(gross, 0), lambda i: f"{best[i]}, and the exit alone made {gross[i]}"),
        "mae_usd_micros": (worst > np.minimum(gross, 0), lambda i: f"{worst[i]}, and the exit alone made {gross[i]}"),
    }
    checks = [log.judge(f"trades_{name}", "trades", name, bad, say) for name, (bad, say) in said.items()]
    if log.terms.working is not None:  # each end is a maker's or a taker's, which trades alone do not say
        ends = sorted((log.terms.fee_usd_micros, log.terms.working.maker_fee_usd_micros))
        fee = get("fee_usd_micros").clip(2 * lots * ends[0], 2 * lots * ends[1])
    checks.append(log.equal("trades_fee_usd_micros", "trades", "fee_usd_micros", fee))
    checks.append(log.equal("trades_realized_usd_micros", "trades", "realized_usd_micros", gross - fee))
    if not log.has("diag") or "trading.trades" not in log.arrow("diag").column_names:
        return checks
    key, own = log("diag", "phase") << 40 | log("diag", "step"), np.sort(get("phase") << 40 | get("step"))
    held = np.searchsorted(own, key, side="right") - np.searchsorted(own, key, side="left")
    checks.append(log.equal("diag_trades", "diag", "trading.trades", held))
    stray = ~np.isin(get("phase") << 40 | get("step"), key)
    return [*checks, log.judge("trades_step", "trades", "step", stray, lambda i: f"diag knows no step {get('step')[i]}")]


def _leaves(log: Log, grid: Grid) -> dict[str, np.ndarray]:
    get = lambda name: grid.matrix(log, name)  # noqa: E731
    played, end, position = get("picked_action") >= 0, get("end_reason"), get("position_lots")
    lanes: dict[str, np.ndarray] = {}
    for kind, branches in (("picked", BRANCHES), ("actual", {name: BRANCHES[name] for name in ("direction", "magnitude")})):
        for branch, members in branches.items():
            values = get(f"{kind}_{branch}")
            lanes |= {f"{kind}.{branch}_{member}": played & (values == code) for code, member in enumerate(members)}
    scaled, margin, kelly = get("scaled_lots"), get("margin_cap_lots"), get("kelly_cap_lots")
    sized = played & (scaled > 0)
    lanes |= {
        "gate.plan_lock": played & (get("picked_direction") != HOLD) & (get("locked_direction") == HOLD),
        "gate.variance_scale": sized & (get("variance_scale_ppm") < PPM),
        "gate.margin_cap": sized & (margin < scaled),
        "gate.kelly_cap": sized & (kelly < np.minimum(scaled, margin)),
        "gate.trail_stop": get("trail_triggered") == 1,
        "gate.capital_floor": get("floor_triggered") == 1,
        "lanes.played": played,
        "end.session_close": end == 1,
        "end.capital_floor": end == 5,
        "end.final": np.isin(end, (2, 3, 4)),
        "lanes.not_played": end == -1,
        "trading.long_lots": np.maximum(position, 0),
        "trading.short_lots": np.maximum(-position, 0),
    }
    for name in ("conviction_ppm", "health_ppm", "variance_scale_ppm"):
        lanes[f"policy.{name}_sum"] = np.where(played, get(name), 0)
    out = {name: values.sum(axis=1) for name, values in lanes.items()}
    for table in ("orders", "fills", "trades"):
        # An order in the book has its row where it ended, and `diag` counts it where it was sent.
        if log.has(table) and (table != "orders" or log.terms.working is None):
            steps = log(table, "step")[log(table, "phase") == grid.phase]
            out[f"trading.{table}"] = np.bincount(steps[(steps >= 0) & (steps < grid.steps)], minlength=grid.steps)
    return out | {name: get(name)[:, 0] for name in ("ts_observed_ns", "ts_decided_ns")}
