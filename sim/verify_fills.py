"""Every fill against the raw market row that it claims, every mark and observation against its row, and the order of all times."""

import numpy as np

from lob.actions import FillReason
from lob.units import counted
from sim.run_data import among, distinct, place_in
from sim.verify_accounting import Grid
from sim.verify_market import Market, met_in, received_in
from sim.verify_types import Check, Log, failed, skipped
from sim.verify_working_checks import allowed_price, check_prints, is_passive

CROSSED, STOP, FLOOR, WINDOW_END = (
    int(reason) for reason in (FillReason.CROSSED, FillReason.STOP, FillReason.FLOOR, FillReason.WINDOW_END)
)
STEP_LIMIT = 3


def fill_events(log: Log, market: Market) -> np.ndarray:
    """Index of the market event that each fill names, -1 where the store has no such row. Bars: the event of its `book_level`."""
    index = market.find(log("fills", "market_source"), log("fills", "market_row"))
    if market.bars:
        level = log("fills", "book_level")
        index = np.where((index >= 0) & (level >= 0) & (level < 4), index + level, -1)
    return index


def raw_price(log: Log, market: Market, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(price in ticks, lots shown) of the side and level that each fill took, from the raw row; 0 lots where there is none."""
    level = np.zeros(len(index), np.int64) if market.bars else log("fills", "book_level")
    there = (index >= 0) & (level >= 0) & (level < market.bid.shape[1])
    at, depth, buy = np.where(there, index, 0), np.where(there, level, 0), log("fills", "side") > 0
    if not len(market.key):
        return np.zeros(len(index), np.int64), np.zeros(len(index), np.int64)
    price = np.where(buy, market.ask[at, depth], market.bid[at, depth])
    lots = np.where(buy, market.ask_lots[at, depth], market.bid_lots[at, depth])
    price, lots = np.where(there, price, 0), np.where(there, lots, 0)
    return allowed_price(log, market, index, price, lots) if log.terms.working is not None else (price, lots)


def fees_of(log: Log) -> np.ndarray:
    """int64[n]: the scheduled fee of every fill."""
    terms, lots = log.terms, log("fills", "lots")
    if terms.working is None:
        return lots * terms.fee_usd_micros
    return lots * np.where(is_passive(log), terms.working.maker_fee_usd_micros, terms.fee_usd_micros)


def check_fills(log: Log, market: Market, index: np.ndarray) -> list[Check]:
    """The row, its eligibility, the level's price and size, and the fee of every fill."""
    terms = log.terms
    row, level, lots, side = (log("fills", name) for name in ("market_row", "book_level", "lots", "side"))
    price, shown = raw_price(log, market, index)
    found = index >= 0
    at = np.maximum(index, 0)
    tradable = market.tradable[at] if len(market.key) else np.zeros(len(at), bool)
    if terms.working is not None:  # a print may stand on a row in the midst of an event
        tradable = tradable | (is_passive(log) & (level < 0))
    ticks = log("fills", "price_ticks")
    side_name = lambda i: "ask" if side[i] > 0 else "bid"  # noqa: E731
    checks = [
        log.judge(
            "fills_market_row", "fills", "market_row", ~found, lambda i: f"the store has no row {row[i]} at level {level[i]} in that source"
        ),
        log.judge(
            "fills_eligible_row",
            "fills",
            "market_row",
            found & ~tradable,
            lambda i: f"row {row[i]} is no tradable book: an order cannot meet it",
        ),
        log.judge("fills_side", "fills", "side", np.abs(side) != 1, lambda i: f"side is {side[i]}"),
        log.judge("fills_lots_positive", "fills", "lots", lots <= 0, lambda i: f"a fill of {counted(int(lots[i]), 'lot')}"),
        log.judge(
            "fills_price",
            "fills",
            "price_ticks",
            found & (ticks != price),
            lambda i: f"price {ticks[i]} ticks, the {side_name(i)} at level {level[i]} of row {row[i]} is {price[i]}",
        ),
        log.judge(
            "fills_lots_shown",
            "fills",
            "lots",
            found & (lots > shown),
            lambda i: f"{counted(int(lots[i]), 'lot')} from the {side_name(i)} at level {level[i]} of row {row[i]}, which shows {shown[i]}",
        ),
        log.equal("fills_fee", "fills", "fee_usd_micros", fees_of(log)),
    ]
    if terms.working is not None:
        checks.append(check_prints(log, market, index))
    if not market.bars and found.any():
        checks += _check_depth(log, market, index, shown)[: 1 if terms.working is not None else 2]  # consumed levels are passed over
    return checks


def _check_depth(log: Log, market: Market, index: np.ndarray, shown: np.ndarray) -> list[Check]:
    """Per lane, row and side: no level gives more than it shows, and one is touched only when the better ones are empty."""
    rows = np.flatnonzero((index >= 0) & (log("fills", "book_level") >= 0) & (log("fills", "book_level") < market.bid.shape[1]))
    lane, level = log("fills", "phase")[rows] << 32 | log("fills", "lane")[rows], log("fills", "book_level")[rows]
    side, lots, event = log("fills", "side")[rows], log("fills", "lots")[rows], index[rows]
    # One integer per lane, row, side and level; fills of one key stay as they stand, in order of their ids.
    lanes, rows_of_market = distinct(lane), np.int64(len(market.key))
    whole = ((place_in(lane, lanes) * rows_of_market + event) * 2 + (side > 0)) * 16 + level
    order = np.argsort(whole, kind="stable")
    new_level = np.diff(whole[order], prepend=-1) != 0
    taken = _running(lots[order], new_level)
    over = np.zeros(len(rows), bool)
    over[order] = taken > shown[rows][order]
    total = np.zeros(len(rows), np.int64)
    total[order] = taken
    checks = [
        log.judge(
            "fills_lots_taken_once",
            "fills",
            "lots",
            over,
            lambda i: f"the lane takes {counted(int(total[i]), 'lot')} in all from a level that shows {shown[rows[i]]}",
            rows,
        )
    ]
    # Depth in front of a level, against what the lane took in front of it on that row and side.
    ahead = np.zeros(len(rows), np.int64)
    deep = np.flatnonzero(level > 0)
    shown_there = np.where((side[deep] > 0)[:, None], market.ask_lots[event[deep]], market.bid_lots[event[deep]])
    ahead[deep] = shown_there.cumsum(axis=1)[np.arange(len(deep)), level[deep] - 1]
    new_side = np.diff(whole[order] >> 4, prepend=-1) != 0
    before = _running(lots[order], new_side) - taken
    taken_before = np.zeros(len(rows), np.int64)
    taken_before[order] = before
    checks.append(
        log.judge(
            "fills_best_first",
            "fills",
            "book_level",
            taken_before < ahead,
            lambda i: f"level {level[i]} is taken while {ahead[i] - taken_before[i]} lots stand in front of it",
            rows,
        )
    )
    return checks


def _running(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Running sum that begins anew at each marked start."""
    total = values.cumsum()
    base = np.where(starts, total - values, 0)
    return total - np.maximum.accumulate(base) if len(values) else total


def check_standing(log: Log, market: Market, index: np.ndarray, stop_orders: np.ndarray | None) -> list[Check]:
    """The row is the one standing at the order's arrival, or the next tradable one; stops at the floor and the drain fill at their row.

    `stop_orders`: ids of the resting stops, ascending; None where the log keeps no steps to tell them by.
    """
    reason, submitted, filled = (log("fills", name) for name in ("reason", "ts_submitted_ns", "ts_filled_ns"))
    chosen = np.flatnonzero((index >= 0) & ((reason == CROSSED) | (reason == STOP)))
    swept = np.flatnonzero((index >= 0) & (reason == FLOOR))
    # An order sent because of an earlier breach carries reason floor too, but was sent at the decision: it arrives after the latency.
    # Without the steps all that can be said is that a stop fills at the time of its row.
    resting = filled[swept] == (market.ts_event[index[swept]] if len(market.key) else 0)
    if stop_orders is not None:
        resting = among(log("fills", "order_id")[swept], stop_orders)
    chosen = np.sort(np.append(chosen, swept[~resting]))
    arrival = submitted[chosen] + log.terms.latency_ns
    expected = np.where(index[chosen] >= 0, met_in(market, arrival, log("fills", "lane")[chosen] % len(log.terms.windows)), -1)
    row = log("fills", "market_row")
    where = lambda e: f"row {market.key[e] & (1 << 40) - 1}" if e >= 0 else "no row"  # noqa: E731
    checks = [
        log.judge(
            "fills_standing_row",
            "fills",
            "market_row",
            index[chosen] != expected,
            lambda i: f"the order met row {row[chosen[i]]}, but at its arrival {where(expected[i])} stood",
            chosen,
        )
    ]
    event_ts = market.ts_event[np.maximum(index, 0)] if len(market.key) else np.zeros(len(index), np.int64)
    ts = np.maximum(arrival, event_ts[chosen])
    checks.append(log.equal("fills_ts_filled", "fills", "ts_filled_ns", ts, chosen))
    at_row = np.sort(np.append(swept[resting], np.flatnonzero((index >= 0) & (reason == WINDOW_END))))
    checks.append(log.equal("fills_ts_at_row", "fills", "ts_filled_ns", event_ts[at_row], at_row))
    known = np.isin(reason, [CROSSED, STOP, FLOOR, WINDOW_END])
    checks.append(
        log.judge("fills_reason", "fills", "reason", ~known, lambda i: f"reason {reason[i]} is none that a market order can have")
    )
    early = filled < submitted
    checks.append(
        log.judge("fills_after_submission", "fills", "ts_filled_ns", early, lambda i: f"filled at {filled[i]}, submitted at {submitted[i]}")
    )
    return checks


def check_drain(log: Log, market: Market, index: np.ndarray) -> list[Check]:
    """`window_end` fills of a window meet one row, and where it was played to its end it is the last deep enough one in it."""
    terms = log.terms
    rows = np.flatnonzero(log("fills", "reason") == WINDOW_END)
    if not len(rows):
        return []
    window = log("fills", "lane")[rows] % len(terms.windows)
    first = np.full(len(terms.windows), -1)
    first[window[::-1]] = index[rows][::-1]
    checks = [
        log.judge(
            "fills_drain_one_row",
            "fills",
            "market_row",
            index[rows] != first[window],
            lambda i: f"row {log('fills', 'market_row')[rows[i]]} is not where the others closed",
            rows,
        )
    ]
    if not log.run.finished:
        return checks
    limited = _stopped_by_limit(log)
    last = np.array([-1 if limited[w] else _last_deep(log, market, w) for w in range(len(terms.windows))])
    name = lambda e: int(market.key[e]) & (1 << 40) - 1 if e >= 0 else "none"  # noqa: E731
    checks.append(
        log.judge(
            "fills_drain_row",
            "fills",
            "market_row",
            ~limited[window] & (index[rows] != last[window]),
            lambda i: f"closed at row {name(index[rows[i]])}, the last tradable row of the window is {name(last[window[i]])}",
            rows,
        )
    )
    return checks


def _last_deep(log: Log, market: Market, window: int) -> int:
    """Index of the last tradable event received in a window that shows `max_lots` on both sides, -1 none."""
    part, first = market.of_window(window)
    deep = part.tradable & (np.minimum(part.bid_lots.sum(axis=1), part.ask_lots.sum(axis=1)) >= log.terms.max_lots)
    deep &= (part.ts_recv < log.terms.windows[window][1]) & ((np.arange(len(deep)) % 4 == 3) | (not market.bars))
    return first + int(np.flatnonzero(deep)[-1]) if deep.any() else -1


def _stopped_by_limit(log: Log) -> np.ndarray:
    """bool[W]: which windows a step limit ended, as far as the log knows; all of them where it cannot tell."""
    count = len(log.terms.windows)
    if not log.has("steps"):
        return np.full(count, log.terms.step_limit is not None)
    ended = log("steps", "lane")[log("steps", "end_reason") == STEP_LIMIT] % count
    out = np.zeros(count, bool)
    out[ended] = True
    return out


def check_marks(log: Log, grid: Grid, market: Market) -> list[Check]:
    """Marks stand at the last tradable row received by the next decision; observations at the last row received by theirs; those of the
    drain and after it at its own row."""
    n = len(market.key)
    if not n:
        return [failed("steps_mark_row", "the store has no rows for this run", "steps", "mark_row")]
    decided, drained = grid.led(log, "ts_decided_ns"), grid.drained(log)
    received = received_in(market, decided, grid.windows)
    tradable = np.maximum.accumulate(np.where(market.tradable, np.arange(n), -1))
    mark = np.where(received >= 0, tradable[np.maximum(received, 0)], -1)
    mark = np.concatenate([mark[1:], mark[-1:]])  # a step is marked at the next decision's mark
    source, row = grid.led(log, "mark_source"), grid.led(log, "mark_row")
    for g, step in enumerate(drained.tolist()):
        if step < grid.steps:  # `verify_schedule` says which row it has to be
            mark[step:, g] = market.find(source[step, g : g + 1], row[step, g : g + 1])[0] + (3 if market.bars else 0)
    steps = np.arange(grid.steps)[:, None]
    known = grid.spread((steps < grid.steps - 1) | (steps >= drained)).reshape(-1)  # the last step's next decision may not be in the log
    at = grid.spread(np.maximum(mark, 0)).reshape(-1)
    seen = grid.spread(market.ts_recv[np.maximum(received, 0)]).reshape(-1)
    return [
        log.equal("steps_ts_decided", "steps", "ts_decided_ns", grid.spread(decided).reshape(-1), grid.order),
        log.equal("steps_mark_row", "steps", "mark_row", (market.key & (1 << 40) - 1)[at], grid.order, known),
        log.equal("steps_mark_source", "steps", "mark_source", (market.key >> 40)[at], grid.order, known),
        log.equal("steps_mark_mid2_ticks", "steps", "mark_mid2_ticks", market.mid2[at], grid.order, known),
        log.equal("steps_ts_observed_ns", "steps", "ts_observed_ns", seen, grid.order),
    ]


def check_times(log: Log, grid: Grid | None) -> list[Check]:
    """observed <= decided <= submitted <= filled, and decisions ascend."""
    checks = []
    if grid is not None:
        observed, decided = log("steps", "ts_observed_ns"), log("steps", "ts_decided_ns")
        checks.append(
            log.judge(
                "steps_observed_before_decided",
                "steps",
                "ts_observed_ns",
                observed > decided,
                lambda i: f"observed at {observed[i]}, decided at {decided[i]}",
            )
        )
        times, drain = grid.matrix(log, "ts_decided_ns"), grid.matrix(log, "is_drain") == 1
        moved = np.diff(times, axis=0, prepend=times[:1] - 1)
        after = drain.cumsum(axis=0) - drain > 0
        back = np.where(after, moved != 0, np.where(drain, moved < 0, moved <= 0))
        checks.append(
            log.judge(
                "steps_decisions_ascend",
                "steps",
                "ts_decided_ns",
                back.reshape(-1),
                lambda i: "does not come after the decision before it",
                grid.order,
            )
        )
    if not log.has("fills"):
        return checks
    if grid is None:
        return [*checks, skipped("fills_after_decision", "the level keeps no steps")]
    group = grid.group_of(log, log("fills", "lane"))
    # Where only some lanes have steps, no lane of the fill's window may be among them.
    rows = np.flatnonzero((log("fills", "phase") == grid.phase) & (group >= 0))
    submitted, step, reason = (log("fills", name)[rows] for name in ("ts_submitted_ns", "step", "reason"))
    there = (step >= 0) & (step < grid.steps)
    decided = grid.led(log, "ts_decided_ns")[np.where(there, step, 0), group[rows]]
    # A stop rests at the exchange: its row may have happened before the decision, and been received after it (`verify_floor`).
    working = log.terms.working is not None
    early = ~there | ((submitted < decided) & (reason != FLOOR) & (not working))  # an order lives on, `verify_working` says how long
    checks.append(
        log.judge(
            "fills_after_decision",
            "fills",
            "ts_submitted_ns",
            early,
            lambda i: f"submitted at {submitted[i]}, its step decided at {decided[i]}",
            rows,
        )
    )
    late = np.isin(reason, (CROSSED, STOP)) & (submitted != decided) & (not working)
    checks.append(
        log.judge(
            "fills_submitted_at_decision",
            "fills",
            "ts_submitted_ns",
            late & ~early,
            lambda i: f"submitted at {submitted[i]}, its step decided at {decided[i]}",
            rows,
        )
    )
    return checks
