"""Orders, fills and stops of lanes whose orders work in the book, against `sim.verify_working`; and what fills alone say of themselves."""

from collections.abc import Iterator, Sequence

import numpy as np

from sim.run_data import among
from sim.verify_accounting import Grid
from sim.verify_gates import CAPITAL_FLOOR
from sim.verify_market import Market
from sim.verify_types import FAILED, NULL, OK, Check, Log, failed
from sim.verify_working import FAR, QUEUE, TRADE_THROUGH, Decision, Lane, LaneTerms, Rows, play_lane

FILL_COLUMNS = (
    "step", "order_id", "ts_submitted_ns", "ts_filled_ns", "side", "lots", "price_ticks", "reason", "market_row", "market_source",
    "book_level", "queue_ahead_lots",
)  # fmt: skip
ORDER_COLUMNS = (
    "step", "order_id", "ts_submitted_ns", "ts_event_ns", "side", "kind", "picked_kind", "urgency", "lots", "filled_lots", "reason",
    "state", "limit_ticks", "asked_ticks", "ts_ended_ns", "queue_ahead_lots",
)  # fmt: skip
_ROW = (1 << 40) - 1


def check_working(log: Log, grid: Grid, market: Market) -> list[Check]:
    """Every lane played again from its targets: each of its fills and orders, the kind of order of each step, the floor and who died."""
    if not len(market.key) or grid.steps < 2:
        return []
    lanes = list(_played(log, grid, market))
    known = grid.steps if log.run.finished or log.terms.is_joined else grid.steps - 1  # the last step's next decision may not be in the log
    fills = [[_fill(lane, market, first, fill) for fill in lane.fills if fill.step < known] for lane, first in lanes]
    orders = [[_order(lane, order) for order in lane.orders if 0 <= order.ended_step < known] for lane, _ in lanes]
    checks = [
        _compare(log, grid, "working_fills", "fills", "fill_id", FILL_COLUMNS, fills, known),
        _compare(log, grid, "working_orders", "orders", "order_id", ORDER_COLUMNS, orders, known),
    ]
    return checks + _check_steps(log, grid, [lane for lane, _ in lanes])


def _played(log: Log, grid: Grid, market: Market) -> Iterator[tuple[Lane, int]]:
    """Each lane of the grid, played again, and the first of its window's events in the market."""
    terms, working = log.terms, log.terms.working
    assert working is not None
    account = LaneTerms(
        terms.capital_usd_micros, terms.floor_usd_micros, terms.trail_ticks, terms.fee_usd_micros, terms.tick_value_usd_micros
    )  # fmt: skip
    target, kind, urgency = (grid.matrix(log, name) for name in ("target_lots", "picked_order", "picked_urgency"))
    decided, drained = grid.led(log, "ts_decided_ns"), grid.drained(log)
    source, row = grid.led(log, "mark_source"), grid.led(log, "mark_row")
    windows: dict[int, tuple[Rows, int, np.ndarray, np.ndarray, int | None]] = {}
    for place, number in enumerate(grid.lanes.tolist()):
        g = int(grid.group[place])
        if g not in windows:
            part, first = market.of_window(int(grid.windows[g]))
            received = np.searchsorted(part.ts_recv, decided[:, g], side="right") - 1
            tradable = np.maximum.accumulate(np.where(part.tradable, np.arange(len(part.key)), -1))
            drain = None
            if drained[g] < grid.steps:
                drain = int(part.find(source[drained[g], g : g + 1], row[drained[g], g : g + 1])[0])
            windows[g] = Rows(part), first, received, tradable[np.maximum(received, 0)], drain
        rows, first, received, mark, drain = windows[g]
        if drain == -1 or received[0] < 0:  # named by other checks
            continue
        count = int(drained[g]) + 1 if drain is not None else grid.steps
        columns = (decided[:, g], received, mark, target[:, place], kind[:, place], urgency[:, place])
        decisions = [Decision(*values) for values in zip(*(column[:count].tolist() for column in columns), strict=True)]
        if drain is not None:
            decisions[-1] = decisions[-1]._replace(kind=-1)
        yield play_lane(rows, working, account, number, iter(decisions), drain), first


def _fill(lane: Lane, market: Market, first: int, fill) -> tuple[int, ...]:
    key = int(market.key[first + fill.row])
    order = lane.number << 32 | fill.order
    return (
        fill.step,
        order,
        fill.submitted,
        fill.ts,
        fill.side,
        fill.lots,
        fill.ticks,
        fill.reason,
        key & _ROW,
        key >> 40,
        fill.level,
        fill.ahead,
    )


def _order(lane: Lane, order) -> tuple[int, ...]:
    limits = (NULL if ticks == FAR else ticks for ticks in (order.limit, order.asked))
    picked = (order.kind, order.picked, order.urgency)
    of_book = (*limits, order.ended, order.joined)
    return (order.ended_step, lane.number << 32 | order.number, order.submitted, order.accepted, order.side, *picked, order.lots,
            order.lots - order.left, order.reason, order.state, *of_book)  # fmt: skip


def _compare(
    log: Log, grid: Grid, name: str, table: str, key: str, columns: Sequence[str], expected: list[list[tuple[int, ...]]], known: int
) -> Check:  # fmt: skip
    """A table's rows of the grid's lanes, in order of their ids, must be the expected ones, column by column."""
    chosen = (log(table, "phase") == grid.phase) & (log(table, "step") < known) & among(log(table, "lane"), grid.lanes)
    rows = np.flatnonzero(chosen)
    rows = rows[np.lexsort((log(table, key)[rows], log(table, "lane")[rows]))]
    wanted = sorted((row for of_lane in expected for row in of_lane), key=lambda row: row[1] >> 32)
    if table == "orders":
        wanted.sort(key=lambda row: row[1])
    found = np.stack([log(table, column)[rows] for column in columns], axis=1)
    count = min(len(rows), len(wanted))
    right = np.array(wanted[:count], np.int64).reshape(count, len(columns))
    wrong = (found[:count] != right).any(axis=1)
    if wrong.any():
        i = int(np.flatnonzero(wrong)[0])
        c = int(np.flatnonzero(found[i] != right[i])[0])
        said, given = ("null" if value == NULL else int(value) for value in (found[i, c], right[i, c]))
        part, place = log.run.place(table, int(rows[i]))
        return Check(
            name, FAILED, f"{columns[c]} is {said}, the market and the targets give {given}",
            table, part, place, columns[c], int(wrong.sum()),
        )  # fmt: skip
    if len(rows) > count:
        part, place = log.run.place(table, int(rows[count]))
        return failed(name, "the market and the targets give no such row", table, key, part, place)
    if len(wanted) > count:
        row = dict(zip(columns, wanted[count], strict=True))
        return failed(name, f"lane {row['order_id'] >> 32}, step {row['step']}: a row of order {row['order_id']} is missing", table, key)
    return Check(name, OK, "", table)


def _check_steps(log: Log, grid: Grid, lanes: list[Lane]) -> list[Check]:
    """`actual_order`, `floor_triggered` and who ended by the floor."""
    place = {number: i for i, number in enumerate(grid.lanes.tolist())}
    kinds, breached = np.zeros(grid.shape, np.int64), np.zeros(grid.shape, bool)
    over, judged = np.zeros(grid.shape, bool), np.zeros(grid.shape, bool)
    drained = grid.drained(log)
    for lane in lanes:
        i, n = place[lane.number], len(lane.breached)
        kinds[:n, i], breached[:n, i], judged[:n, i] = lane.kinds[:n], lane.breached, True
        end = int(drained[grid.group[i]])
        dies = n > 0 and lane.breached[-1] and n < end
        if dies or (n == end and n > 0 and lane.breached[-1] and grid.matrix(log, "position_lots")[n - 1, i] == 0):
            over[n - 1, i] = True
        elif end < grid.steps:
            over[end, i], judged[end, i] = lane.is_breached, True
    reason = grid.matrix(log, "end_reason")
    played = grid.matrix(log, "picked_action") >= 0
    say = lambda i: f"end_reason is {reason.reshape(-1)[i]}, which the market and the targets do not give"  # noqa: E731
    return [
        log.equal("working_actual_order", "steps", "actual_order", kinds.reshape(-1), grid.order, (judged & played).reshape(-1)),
        log.equal(
            "working_floor", "steps", "floor_triggered", breached.astype(np.int64).reshape(-1), grid.order, (judged & played).reshape(-1)
        ),
        log.judge("working_deaths", "steps", "end_reason", (judged & ((reason == CAPITAL_FLOOR) != over)).reshape(-1), say, grid.order),
    ]


def is_passive(log: Log) -> np.ndarray:
    """bool[n]: fills of an order that rested, by their reason."""
    return np.isin(log("fills", "reason"), (QUEUE, TRADE_THROUGH))


def allowed_price(log: Log, market: Market, index: np.ndarray, price: np.ndarray, shown: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(price, lots) that the raw market allows each fill: of a passive one by a print that price or, through it, any limit that the print
    passed; by a displayed level any limit at or beyond it. `price` and `shown` are those of the level that it names."""
    side, ticks, reason = (log("fills", name) for name in ("side", "price_ticks", "reason"))
    passive, printed = is_passive(log), log("fills", "book_level") < 0
    at = np.maximum(index, 0)
    against = (market.aggressor[at] == -side) & market.print_on_tick[at] & (index >= 0) & (market.session[at] >= 0)
    past = (ticks - market.print_ticks[at]) * side
    by_print = np.where(against & np.where(reason == QUEUE, past == 0, past > 0), ticks, market.print_ticks[at])
    by_book = np.where((ticks - price) * side >= 0, ticks, price)
    out = np.where(passive, np.where(printed, by_print, by_book), price)
    return out, np.where(passive & printed, np.where(against, market.printed[at], 0), shown)


def check_prints(log: Log, market: Market, index: np.ndarray) -> Check:
    """What a lane's fills take of one print is no more than it printed."""
    rows = np.flatnonzero(is_passive(log) & (log("fills", "book_level") < 0) & (index >= 0))
    account = log("fills", "phase")[rows] << 32 | log("fills", "lane")[rows]
    order = np.lexsort((index[rows], account))
    key = np.stack([account[order], index[rows][order]], axis=1)
    first = np.append(True, (key[1:] != key[:-1]).any(axis=1)) if len(order) else np.zeros(0, bool)
    group = np.cumsum(first) - 1
    total = np.bincount(group, weights=log("fills", "lots")[rows][order], minlength=1)
    over = np.zeros(len(rows), bool)
    if len(rows):
        over[order] = total[group] > market.printed[index[rows]][order]
    say = lambda i: f"the lane takes more of this print than the {int(market.printed[index[rows[i]]])} lots that it printed"  # noqa: E731
    return log.judge("fills_printed", "fills", "lots", over, say, rows)
