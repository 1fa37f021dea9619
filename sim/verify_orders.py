"""What follows from a step's target: its order, why it was sent and how much the book filled; what a stop at the floor closes; who died.

Written from docs/step.md ("One step of a lane", 3 to 5) and sharing nothing with the environment.
"""

from dataclasses import dataclass

import numpy as np

from lob.units import counted
from sim.run_data import among
from sim.verify_accounting import Grid
from sim.verify_fills import CROSSED, FLOOR, STEP_LIMIT, STOP, WINDOW_END
from sim.verify_floor import met_by
from sim.verify_gates import CAPITAL_FLOOR, of_grid, shift
from sim.verify_market import Market, received_in
from sim.verify_types import NULL, Check, Log


@dataclass(frozen=True)
class _Sent:
    """Orders of a grid in order of (step, lane, id), int64[n]: their row in `orders`, their cell, and whether a decision (or the drain)
    sent them; the others are stops that rest at the floor."""

    rows: np.ndarray
    cell: np.ndarray
    decided: np.ndarray
    delta: np.ndarray  # int64[S, L]: what each step has to trade
    before: np.ndarray
    breached: np.ndarray  # bool[S, L]: at the decision, gate 6 included
    played: np.ndarray


def check_orders_follow(log: Log, grid: Grid, market: Market | None) -> list[Check]:
    """Every difference between target and position has its one order, every order has one, and the floor acts where it is met."""
    sent = _sent(log, grid)
    checks = _check_terms(log, grid, sent)
    if market is None or not len(market.key):
        return checks + _check_deaths(log, grid, sent, None)
    event = met_by(log, grid, market)
    checks += _check_execution(log, grid, sent, market, event)
    checks += _check_stops(log, grid, sent, market)
    stopped = np.zeros(grid.shape, bool)
    stopped.reshape(-1)[sent.cell[~sent.decided]] = True
    return checks + _check_deaths(log, grid, sent, stopped)


def _sent(log: Log, grid: Grid) -> _Sent:
    get = lambda name: grid.matrix(log, name)  # noqa: E731
    played = get("picked_action") >= 0
    before = shift(get("position_lots"), 0)
    breached = shift((get("floor_triggered") == 1).cumsum(axis=0) > 0, False)
    breached |= (shift(get("equity_usd_micros"), log.terms.capital_usd_micros) <= log.terms.floor_usd_micros) & played
    delta = np.where(played, get("target_lots") - before, -before)
    rows = of_grid(log, grid, "orders")
    cell = log("orders", "step")[rows] * len(grid.lanes) + np.searchsorted(grid.lanes, log("orders", "lane")[rows])
    order = np.lexsort((log("orders", "order_id")[rows], cell))
    rows, cell = rows[order], cell[order]
    first = np.diff(cell, prepend=-1) != 0
    return _Sent(rows, cell, first & (delta.reshape(-1)[cell] != 0), delta, before, breached, played)


def _check_terms(log: Log, grid: Grid, sent: _Sent) -> list[Check]:
    """Side, size, reason and what was picked of each order that a decision or the drain sent; and that none is missing or too many."""
    get = lambda name: grid.matrix(log, name)  # noqa: E731
    need = (sent.delta != 0).reshape(-1)
    has = np.zeros(need.size, bool)
    has[sent.cell[sent.decided]] = True
    delta = sent.delta.reshape(-1)
    checks = [
        log.judge(
            "steps_have_orders",
            "steps",
            "target_lots",
            need & ~has,
            lambda i: f"{counted(int(delta[i]), 'lot')} from the target, and no order for them",
            grid.order,
        )
    ]
    rest = ~sent.decided
    others = np.zeros(need.size, np.int64)
    np.add.at(others, sent.cell[rest], 1)
    reason = log("orders", "reason")[sent.rows]
    stray = rest & ((others[sent.cell] > 1) | ~sent.played.reshape(-1)[sent.cell] | (reason != FLOOR))
    checks.append(
        log.judge("orders_have_targets", "orders", "step", stray, lambda i: "an order that no target, drain or floor asked for", sent.rows)
    )
    rows, cell = sent.rows[sent.decided], sent.cell[sent.decided]
    at = lambda values: values.reshape(-1)[cell]  # noqa: E731
    why = np.select([~sent.played, sent.breached, get("trail_triggered") == 1], [WINDOW_END, FLOOR, STOP], CROSSED)
    picked = at(why) == CROSSED
    expected = {
        "lots": np.abs(at(sent.delta)),
        "side": np.sign(at(sent.delta)),
        "reason": at(why),
        "ts_submitted_ns": at(get("ts_decided_ns")),
        "picked_kind": np.where(picked, at(get("picked_order")), -1),
        "urgency": np.where(picked, at(get("picked_urgency")), -1),
    }
    checks += [log.equal(f"orders_{name}", "orders", name, values, rows) for name, values in expected.items()]
    every = np.zeros(len(sent.rows), np.int64)
    episode = get("episode").reshape(-1)[sent.cell]
    of_all = {"kind": every, "limit_ticks": every + NULL, "episode": episode}
    checks += [log.equal(f"orders_{name}", "orders", name, values, sent.rows) for name, values in of_all.items()]
    stops = sent.rows[rest]
    return checks + [log.equal(f"stops_{name}", "orders", name, np.full(len(stops), -1), stops) for name in ("picked_kind", "urgency")]


def _check_execution(log: Log, grid: Grid, sent: _Sent, market: Market, event: np.ndarray) -> list[Check]:
    """When each decided order met the book, and that it left nothing of what the row still showed to it."""
    width = len(grid.lanes)
    chosen = sent.decided & sent.played.reshape(-1)[sent.cell]
    rows, step = sent.rows[chosen], sent.cell[chosen] // width
    met = event[step, grid.group[sent.cell[chosen] % width]]
    there, at = met >= 0, np.maximum(met, 0)
    ts = np.maximum(log("orders", "ts_submitted_ns")[rows] + log.terms.latency_ns, market.ts_event[at])
    checks = [log.equal("orders_ts_event_ns", "orders", "ts_event_ns", ts, rows, there)]
    drained = sent.rows[sent.decided & ~sent.played.reshape(-1)[sent.cell]]
    checks.append(log.equal("orders_ts_event_ns", "orders", "ts_event_ns", log("orders", "ts_submitted_ns")[drained], drained))
    side, lane = log("orders", "side")[rows], log("orders", "lane")[rows]
    shown = np.where(side > 0, market.ask_lots.sum(axis=1)[at], market.bid_lots.sum(axis=1)[at])
    # What the lane took of the same row and side before: orders of one lane meet ascending rows, so these are neighbours.
    filled = log("orders", "filled_lots")[rows]
    order = np.lexsort((step, side, at, lane))
    key = np.stack([lane[order], at[order], side[order]], axis=1)
    fresh = np.append(True, (key[1:] != key[:-1]).any(axis=1)) if len(order) else np.empty(0, bool)
    total = filled[order].cumsum() - filled[order]
    taken = np.empty(len(rows), np.int64)
    taken[order] = total - np.maximum.accumulate(np.where(fresh, total, np.iinfo(np.int64).min)) if len(order) else total
    left = np.maximum(shown - taken, 0)
    checks.append(
        log.equal("orders_filled_by_the_book", "orders", "filled_lots", np.minimum(log("orders", "lots")[rows], left), rows, there)
    )
    fills = _of_orders(log, grid, sent.rows[chosen])
    place = grid.group[np.searchsorted(grid.lanes, log("fills", "lane")[fills])]
    wanted = np.append(market.key, -1)[event[log("fills", "step")[fills], place]]
    key = log("fills", "market_source")[fills] << 40 | log("fills", "market_row")[fills]
    wrong = (key != wanted) | ((log("fills", "book_level")[fills] != 0) & market.bars)
    checks.append(log.judge("orders_met_row", "fills", "market_row", wrong, lambda i: "not the row that its order met", fills))
    return checks


def _of_orders(log: Log, grid: Grid, orders: np.ndarray) -> np.ndarray:
    """Rows of `fills` that belong to rows of `orders`."""
    fills = of_grid(log, grid, "fills")
    return fills[among(log("fills", "order_id")[fills], np.sort(log("orders", "order_id")[orders]))]


def _check_stops(log: Log, grid: Grid, sent: _Sent, market: Market) -> list[Check]:
    """Each stop closes all that was open, from the row of its first fill (`verify_floor` says which that is) over the rows that follow."""
    width = len(grid.lanes)
    stops = [(int(row), int(cell)) for row, cell in zip(sent.rows[~sent.decided], sent.cell[~sent.decided], strict=True)]
    by_order = _fills_of(log, grid, [row for row, _ in stops])
    upto = received_in(market, grid.led(log, "ts_decided_ns"), grid.windows)[1:] + 1
    short, swept = np.zeros(log.rows("orders"), bool), np.zeros(log.rows("fills"), bool)
    for row, cell in stops:
        fills, step, lane = by_order.get(row, []), cell // width, cell % width
        side, lots = int(log("orders", "side")[row]), int(log("orders", "lots")[row])
        own = step * width + lane in set(sent.cell[sent.decided].tolist())
        if not own:
            short[row] = side * lots != -int(sent.before[step, lane])
        if not fills or step == grid.steps - 1:  # where the next decision is not in the log, nor is what was looked over
            continue
        event = int(market.find(np.array([fills[0][1] >> 40]), np.array([fills[0][1] & (1 << 40) - 1]))[0])
        event += fills[0][2] if market.bars else 0
        ts = market.ts_event[event]
        short[row] |= (log("orders", "ts_submitted_ns")[row] != ts) | (log("orders", "ts_event_ns")[row] != ts)
        events = np.arange(event, int(upto[step, grid.group[lane]]))
        named = [(int(market.key[e]), int(e) % 4 if market.bars else level, n) for e, level, n in _sweep(market, events, -side * lots)]
        if [fill[1:] for fill in fills] != named:
            swept[fills[0][0]] = True
    return [
        log.judge("stop_of_the_open_lots", "orders", "lots", short, lambda i: "not the stop of what was open, sent at the row that it met"),
        log.judge("stop_swept_rows", "fills", "market_row", swept, lambda i: "the stop did not take the rows that followed, best first"),
    ]


def _fills_of(log: Log, grid: Grid, orders: list[int]) -> dict[int, list[tuple[int, int, int, int]]]:
    """order's row -> its fills as (row in `fills`, key of the market row, level, lots), by id."""
    row_of = {int(log("orders", "order_id")[row]): row for row in orders}
    rows = _of_orders(log, grid, np.array(orders, np.int64))
    out: dict[int, list[tuple[int, int, int, int]]] = {}
    for row in rows[np.argsort(log("fills", "fill_id")[rows])].tolist():
        key = int(log("fills", "market_source")[row]) << 40 | int(log("fills", "market_row")[row])
        entry = (row, key, int(log("fills", "book_level")[row]), int(log("fills", "lots")[row]))
        out.setdefault(row_of[int(log("fills", "order_id")[row])], []).append(entry)
    return out


def _sweep(market: Market, events: np.ndarray, held: int) -> list[tuple[int, int, int]]:
    """(event, level, lots) by which a stop closes `held` lots over the tradable of these events, best level first."""
    lots = market.bid_lots if held > 0 else market.ask_lots
    left, out = abs(held), []
    for event in events:
        if not left:
            break
        for level in range(lots.shape[1]) if market.tradable[event] else ():
            take = min(left, int(lots[event, level]))
            if take > 0:
                out.append((int(event), level, take))
                left -= take
    return out


def _check_deaths(log: Log, grid: Grid, sent: _Sent, stops: np.ndarray | None) -> list[Check]:
    """`floor_triggered` stands where the floor was met and nowhere else; a lane ends by the floor where it was, once it is flat."""
    get = lambda name: grid.matrix(log, name)  # noqa: E731
    triggered, reason = get("floor_triggered") == 1, get("end_reason")
    checks = []
    if stops is not None:
        breached = sent.breached | stops | (get("equity_usd_micros") <= log.terms.floor_usd_micros)
        bad = sent.played & (triggered != breached)
        say = lambda i: f"floor_triggered is {int(triggered.reshape(-1)[i])}, the market says otherwise"  # noqa: E731
        checks.append(log.judge("floor_triggered", "steps", "floor_triggered", bad.reshape(-1), say, grid.order))
    ended = np.where(sent.played, triggered & (get("position_lots") == 0), sent.breached & (reason != -1))
    bad = (reason == CAPITAL_FLOOR) != ended
    say = lambda i: f"end_reason is {reason.reshape(-1)[i]}: the floor was {'' if ended.reshape(-1)[i] else 'not '}met"  # noqa: E731
    checks.append(log.judge("steps_end_by_floor", "steps", "end_reason", bad.reshape(-1), say, grid.order))
    limit = log.terms.step_limit
    limited = (reason == STEP_LIMIT) & ((np.arange(grid.steps)[:, None] != limit) | (limit is None))
    say = lambda i: f"end_reason says step limit, the manifest {limit or 'knows none'}"  # noqa: E731
    return [*checks, log.judge("steps_end_by_limit", "steps", "end_reason", limited.reshape(-1), say, grid.order)]
