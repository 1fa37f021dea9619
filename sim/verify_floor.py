"""The capital floor between two decisions: whether each resting stop met the first row at which the equity was at or below the floor.

docs/step.md, "Floor on every event": the rows between a step's fill (or its observation, when it sent nothing) and the next decision's
observation are looked over for every lane at once, from range minima and maxima of the mid.
"""

from dataclasses import dataclass

import numpy as np

from sim.run_data import place_in
from sim.verify_accounting import Grid, Walk, range_extremes
from sim.verify_fills import FLOOR
from sim.verify_market import Market, met_in, received_in
from sim.verify_types import Check, Log

NOTHING = 2**62


@dataclass(frozen=True)
class Stops:
    """The resting stops of a phase: per order row of `orders` with reason floor that no decision sent; and its cell in the grid."""

    order_id: np.ndarray
    cell: np.ndarray


def breached_before(log: Log, grid: Grid) -> np.ndarray:
    """bool[S, L]: the lane had breached before the step, or stands at or below the floor at its decision mark."""
    first = np.zeros((1, len(grid.lanes)), bool)
    capital = np.full((1, len(grid.lanes)), log.terms.capital_usd_micros)
    triggered = (grid.matrix(log, "floor_triggered") == 1).cumsum(axis=0) > 0
    equity = np.concatenate([capital, grid.matrix(log, "equity_usd_micros")[:-1]])
    return np.concatenate([first, triggered[:-1]]) | (equity <= log.terms.floor_usd_micros)


def resting_stops(log: Log, grid: Grid) -> Stops:
    """Orders with reason floor, less those that a decision sent: the first of a step in which a breached lane still held lots."""
    step, lane, reason = (log("orders", name) for name in ("step", "lane", "reason"))
    rows = np.flatnonzero((reason == FLOOR) & (log("orders", "phase") == grid.phase) & (step >= 0) & (step < grid.steps))
    place = place_in(lane[rows], grid.lanes)
    rows = rows[(place < len(grid.lanes)) & (grid.lanes[np.minimum(place, len(grid.lanes) - 1)] == lane[rows])]
    cell = step[rows] * len(grid.lanes) + place_in(lane[rows], grid.lanes)
    held = np.concatenate([np.zeros((1, len(grid.lanes)), np.int64), grid.matrix(log, "position_lots")[:-1]]) != 0
    decided = (breached_before(log, grid) & held).reshape(-1)
    ids = log("orders", "order_id")[rows]
    order = np.lexsort((ids, cell))
    first = np.zeros(len(rows), bool)
    first[order] = np.diff(cell[order], prepend=-1) != 0
    resting = ~(first & decided[cell])
    return Stops(ids[resting], cell[resting])


def check_floor(log: Log, grid: Grid, booked: Walk, market: Market, index: np.ndarray) -> list[Check]:
    """A stop exactly where the equity met the floor between two decisions, and on the first such row."""
    if not len(market.key) or grid.steps < 2:
        return []
    terms, width = log.terms, len(grid.lanes)
    decided = grid.led(log, "ts_decided_ns")
    observed = grid.spread(received_in(market, decided, grid.windows))
    met = grid.spread(met_by(log, grid, market))[:-1]
    position = grid.matrix(log, "position_lots")
    before = np.concatenate([np.zeros((1, width), np.int64), position[:-1]])
    sent = (grid.matrix(log, "target_lots") != before)[:-1]
    start = np.where(sent, met, observed[:-1]) + 1
    stop = observed[1:] + 1
    stops = resting_stops(log, grid)
    stopped = np.zeros(grid.shape, bool)
    stopped.reshape(-1)[stops.cell] = True
    held, cost, cash = _before_the_stop(log, grid, booked, stops)
    played = (grid.matrix(log, "picked_action") >= 0)[:-1]
    low, high = extremes(market, start, stop)
    half = terms.tick_value_usd_micros // 2
    worst = np.where(held[:-1] > 0, low, high)
    seen = (np.abs(worst) < NOTHING) & (held[:-1] != 0) & played
    equity = cash[:-1] + (held[:-1] * np.where(seen, worst, 0) - 2 * cost[:-1]) * half
    breach = seen & (equity <= terms.floor_usd_micros)
    wrong = np.append(breach != stopped[:-1], np.zeros((1, width), bool), axis=0).reshape(-1)
    what = {
        True: "the equity met the floor between two decisions and no stop was sent",
        False: "a stop was sent without a row at the floor",
    }
    met_floor = np.append(breach, np.zeros((1, width), bool), axis=0).reshape(-1)
    checks = [log.judge("floor_stop", "steps", "floor_triggered", wrong, lambda i: what[bool(met_floor[i])], grid.order)]
    # The row of each stop's first fill: at the floor, and none before it was.
    fills = _first_fills(log, stops)
    row, cell = index[fills], (log("fills", "step")[fills] * width + place_in(log("fills", "lane")[fills], grid.lanes))
    here = row >= 0
    fills, row, cell = fills[here], row[here], cell[here]
    flat = [matrix.reshape(-1)[cell] for matrix in (held, cost, cash)]
    at = flat[2] + (flat[0] * market.mid2[row] - 2 * flat[1]) * half
    earlier_low, earlier_high = extremes(market, start.reshape(-1)[cell], row)
    earlier = np.where(flat[0] > 0, earlier_low, earlier_high)
    seen_before = np.abs(earlier) < NOTHING
    sooner = seen_before & (flat[2] + (flat[0] * np.where(seen_before, earlier, 0) - 2 * flat[1]) * half <= terms.floor_usd_micros)
    outside = (row < start.reshape(-1)[cell]) | (row >= stop.reshape(-1)[cell])
    bad = (at > terms.floor_usd_micros) | sooner | outside
    checks.append(
        log.judge("floor_first_row", "fills", "market_row", bad, lambda i: "the stop did not fill on the first row at the floor", fills)
    )
    return checks


def met_by(log: Log, grid: Grid, market: Market) -> np.ndarray:
    """int64[S, G]: the event that an order decided in each step meets, -1 none."""
    decided = grid.led(log, "ts_decided_ns")
    window = np.broadcast_to(grid.windows, decided.shape)
    return met_in(market, decided.reshape(-1) + log.terms.latency_ns, window.reshape(-1)).reshape(decided.shape)


def extremes(market: Market, start: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(least, greatest) mid2 over the tradable events in [start, stop) of every pair; +-2^62 where there is none."""
    mid2 = market.mid2
    low, high = np.where(market.tradable, mid2, NOTHING), np.where(market.tradable, mid2, -NOTHING)
    some = (stop > start) & (start >= 0)
    first, last = np.where(some, start, 0).reshape(-1), np.where(some, stop, 1).reshape(-1)
    least, most = range_extremes(low, first, last)[1], range_extremes(high, first, last)[0]
    return np.where(some.reshape(-1), least, NOTHING).reshape(start.shape), np.where(some.reshape(-1), most, -NOTHING).reshape(start.shape)


def _first_fills(log: Log, stops: Stops) -> np.ndarray:
    """Row in `fills` of the first fill of each resting stop that filled at all."""
    order = np.lexsort((log("fills", "fill_id"), log("fills", "order_id")))
    ids = log("fills", "order_id")[order]
    at = np.searchsorted(ids, stops.order_id)
    there = at < len(ids)
    at = at[there]
    return order[at[ids[at] == stops.order_id[there]]]


def _before_the_stop(log: Log, grid: Grid, booked: Walk, stops: Stops) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(position, cost_ticks, cash) int64[S, L] after each step's own order and before its resting stop, if it has one."""
    out = [grid.matrix(log, name).copy() for name in ("position_lots", "cost_ticks", "cash_usd_micros")]
    fills = _first_fills(log, stops)
    account = log("fills", "phase") << 32 | log("fills", "lane")
    order = np.lexsort((log("fills", "fill_id"), log("fills", "step"), account))
    realized = (booked.gross_ticks * log.terms.tick_value_usd_micros - log("fills", "fee_usd_micros"))[order]
    starts = np.diff(account[order], prepend=-1) != 0
    total = realized.cumsum()
    first = np.flatnonzero(starts)
    base = np.repeat(total[first] - realized[first], np.diff(np.append(first, len(order)))) if len(order) else total
    cash, cost = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
    cash[order] = log.terms.capital_usd_micros + total - base - realized  # before the fill
    earlier = np.append(0, booked.cost[order][:-1]) if len(order) else booked.cost
    cost[order] = np.where(starts, 0, earlier)
    cell = log("fills", "step")[fills] * len(grid.lanes) + place_in(log("fills", "lane")[fills], grid.lanes)
    for matrix, values in zip(out, (booked.before, cost, cash), strict=True):
        matrix.reshape(-1)[cell] = values[fills]
    return out[0], out[1], out[2]
