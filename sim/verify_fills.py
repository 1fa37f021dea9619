"""Every fill against the raw market row that it claims, every mark and observation against its row, and the order of all times."""

import numpy as np

from lob.actions import FillReason
from sim.run_data import among, distinct, place_in
from sim.verify_accounting import Grid
from sim.verify_market import Market
from sim.verify_types import Check, Log, failed, skipped

CROSSED, STOP, FLOOR, WINDOW_END = (
    int(reason) for reason in (FillReason.CROSSED, FillReason.STOP, FillReason.FLOOR, FillReason.WINDOW_END)
)


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
    return np.where(there, price, 0), np.where(there, lots, 0)


def check_fills(log: Log, market: Market, index: np.ndarray) -> list[Check]:
    """The row, its eligibility, the level's price and size, and the fee of every fill."""
    terms = log.terms
    row, level, lots, side = (log("fills", name) for name in ("market_row", "book_level", "lots", "side"))
    price, shown = raw_price(log, market, index)
    found = index >= 0
    at = np.maximum(index, 0)
    tradable = market.tradable[at] if len(market.key) else np.zeros(len(at), bool)
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
        log.judge("fills_lots_positive", "fills", "lots", lots <= 0, lambda i: f"a fill of {lots[i]} lots"),
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
            lambda i: f"{lots[i]} lots from the {side_name(i)} at level {level[i]} of row {row[i]}, which shows {shown[i]}",
        ),
        log.equal("fills_fee", "fills", "fee_usd_micros", lots * terms.fee_usd_micros),
    ]
    if not market.bars and found.any():
        checks += _check_depth(log, market, index, shown)
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
            lambda i: f"the lane takes {total[i]} lots in all from a level that shows {shown[rows[i]]}",
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
    expected = np.where(index[chosen] >= 0, meets(market, arrival), -1)
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


def meets(market: Market, arrival: np.ndarray) -> np.ndarray:
    """Index of the event that an order arriving at each time meets; -1 none. docs/step.md, "Time"."""
    n = len(market.key)
    if not n:
        return np.full(len(arrival), -1)
    ahead = np.append(np.where(market.tradable & ((np.arange(n) % 4 == 0) | (not market.bars)), np.arange(n), n), n)
    following = np.minimum.accumulate(ahead[::-1])[::-1]  # first tradable event at or after i
    if market.bars:
        first = np.searchsorted(market.ts_event[0::4], arrival, side="left") * 4
        return _or_none(following[np.minimum(first, n)], n)
    trusted = np.maximum.accumulate(np.where(market.trusted, np.arange(n), -1))
    last = np.searchsorted(market.ts_event, arrival, side="right") - 1
    standing = np.where(last >= 0, trusted[np.maximum(last, 0)], -1)
    at = np.maximum(standing, 0)
    session = market.session_of(arrival)
    stands = (standing >= 0) & market.tradable[at] & (market.session[at] == session) & (session >= 0)
    return _or_none(np.where(stands, standing, following[last + 1]), n)


def _or_none(index: np.ndarray, n: int) -> np.ndarray:
    return np.where(index < n, index, -1)


def _decision_times(log: Log) -> tuple[np.ndarray, np.ndarray] | None:
    """Sorted keys (phase, step) and their decision times, from steps."""
    if not log.has("steps"):
        return None
    one = np.flatnonzero(log("steps", "lane") == log("steps", "lane").min()) if log.rows("steps") else np.empty(0, np.int64)
    key = log("steps", "phase")[one] << 40 | log("steps", "step")[one]
    order = np.argsort(key)
    return (key[order], log("steps", "ts_decided_ns")[one[order]]) if len(one) else None


def check_drain(log: Log, market: Market, index: np.ndarray) -> list[Check]:
    """`window_end` fills meet one row, and where the window was played to its end it is the last deep enough one in it."""
    terms = log.terms
    rows = np.flatnonzero(log("fills", "reason") == WINDOW_END)
    if not len(rows):
        return []
    first = index[rows[0]]
    checks = [
        log.judge(
            "fills_drain_one_row",
            "fills",
            "market_row",
            index[rows] != first,
            lambda i: f"row {log('fills', 'market_row')[rows[i]]} is not where the others closed",
            rows,
        )
    ]
    if not log.run.finished or _stopped_by_limit(log):
        return checks
    deep = market.tradable & (np.minimum(market.bid_lots.sum(axis=1), market.ask_lots.sum(axis=1)) >= terms.max_lots)
    deep &= (market.ts_recv < terms.end_ns) & ((np.arange(len(deep)) % 4 == 3) | (not market.bars))
    last = int(np.flatnonzero(deep)[-1]) if deep.any() else -1
    name = lambda e: int(market.key[e]) & (1 << 40) - 1 if e >= 0 else "none"  # noqa: E731
    checks.append(
        log.judge(
            "fills_drain_row",
            "fills",
            "market_row",
            index[rows] != last,
            lambda i: f"closed at row {name(index[rows[i]])}, the last tradable row of the window is {name(last)}",
            rows,
        )
    )
    return checks


def _stopped_by_limit(log: Log) -> bool:
    if not log.has("steps"):
        return log.terms.step_limit is not None
    return bool((log("steps", "end_reason") == 3).any())


def check_marks(log: Log, grid: Grid, market: Market) -> list[Check]:
    """Marks stand at the last tradable row received by the next decision; observations at the last row received by theirs."""
    decided = grid.matrix(log, "ts_decided_ns")
    n = len(market.key)
    if not n:
        return [failed("steps_mark_row", "the store has no rows for this run", "steps", "mark_row")]
    received = np.searchsorted(market.ts_recv, decided[:, 0], side="right") - 1
    tradable = np.maximum.accumulate(np.where(market.tradable, np.arange(n), -1))
    mark = np.where(received >= 0, tradable[np.maximum(received, 0)], -1)
    mark = np.append(mark[1:], mark[-1:])  # a step is marked at the next decision's mark
    complete = bool((grid.matrix(log, "is_drain")[-1] == 1).any())
    if complete:  # the drain is marked at its own row
        mark[-1] = market.find(grid.matrix(log, "mark_source")[-1, :1], grid.matrix(log, "mark_row")[-1, :1])[0]
        mark[-1] += 3 if market.bars else 0
    checks = [_same(log, "steps_ts_decided", "ts_decided_ns", grid)]
    rows = grid.first(grid.steps if complete else grid.steps - 1)  # the last step's next decision may not be in the log
    count = (grid.steps if complete else grid.steps - 1) * len(grid.lanes)
    spread = lambda values: np.repeat(values, len(grid.lanes))[:count]  # noqa: E731
    row, source = market.key & (1 << 40) - 1, market.key >> 40
    at = np.maximum(mark, 0)
    checks += [
        log.equal("steps_mark_row", "steps", "mark_row", spread(row[at]), rows),
        log.equal("steps_mark_source", "steps", "mark_source", spread(source[at]), rows),
        log.equal("steps_mark_mid2_ticks", "steps", "mark_mid2_ticks", spread(market.mid2[at]), rows),
        log.equal(
            "steps_ts_observed_ns",
            "steps",
            "ts_observed_ns",
            np.repeat(market.ts_recv[np.maximum(received, 0)], len(grid.lanes)),
            grid.order,
        ),
    ]
    return checks


def _same(log: Log, name: str, column: str, grid: Grid) -> Check:
    """All lanes of a step hold the same value."""
    values = grid.matrix(log, column)
    return log.equal(name, "steps", column, np.repeat(values[:, 0], len(grid.lanes)), grid.order)


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
        times = grid.matrix(log, "ts_decided_ns")
        back = np.diff(times, axis=0, prepend=times[:1] - 1) <= 0
        back[-1] &= times[-1] < times[-2] if grid.steps > 1 else False
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
    decided_at = _decision_times(log)
    if decided_at is None:
        return [*checks, skipped("fills_after_decision", "the level keeps no steps")]
    keys, decided = decided_at
    submitted = log("fills", "ts_submitted_ns")
    key = log("fills", "phase") << 40 | log("fills", "step")
    at = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
    # A stop rests at the exchange: its row may have happened before the decision, and been received after it (`verify_floor`).
    early = (keys[at] != key) | ((submitted < decided[at]) & (log("fills", "reason") != FLOOR))
    checks.append(
        log.judge(
            "fills_after_decision",
            "fills",
            "ts_submitted_ns",
            early,
            lambda i: f"submitted at {submitted[i]}, its step decided at {decided[at[i]]}",
        )
    )
    at_decision = np.isin(log("fills", "reason"), (CROSSED, STOP))
    late = at_decision & (submitted != decided[at])
    checks.append(
        log.judge(
            "fills_submitted_at_decision",
            "fills",
            "ts_submitted_ns",
            late & ~early,
            lambda i: f"submitted at {submitted[i]}, its step decided at {decided[at[i]]}",
        )
    )
    return checks
