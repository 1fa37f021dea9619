"""The decisions of a run laid anew over the raw market: which ticks of the clock decide, where the run ends and why, which session is which
episode. Written from docs/step.md ("Time") and sharing nothing with `lob.schedule`.
"""

import re
from typing import NamedTuple

import numpy as np

from lob.units import counted, parse_duration_ns
from sim.verify_accounting import Grid
from sim.verify_gates import CAPITAL_FLOOR, NOT_PLAYED_END
from sim.verify_market import Market, meets
from sim.verify_types import Check, Log, failed

WINDOW_END, STEP_LIMIT, TAPE_END = 2, 3, 4
TAPE_END_NS = 60 * 10**9


class Plan(NamedTuple):
    """Decision times int64[D] of a window, the event that it closes at, and the end reason of who still lives there."""

    decided: np.ndarray
    drain: int
    reason: int


def ticks_of(market: Market, clock: str, start_ns: int, end_ns: int) -> tuple[np.ndarray, np.ndarray]:
    """(times, trade dates) of the clock's ticks in [start, end) inside a session."""
    counted = re.fullmatch(r"(\d+)([ev])", clock)
    if clock != "bar" and not counted:
        period = parse_duration_ns(clock)
        first = -(-np.maximum(market.opens, start_ns) // period)
        counts = np.maximum(-(-np.minimum(market.closes, end_ns) // period) - first, 0)
        within = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
        return (np.repeat(first, counts) + within) * period, np.repeat(market.dates, counts)
    if clock == "bar":
        rows = np.arange(3, len(market.key), 4)
    else:
        assert counted is not None
        size = int(counted[1])
        begins = np.maximum.accumulate(np.where(np.diff(market.session, prepend=-2) != 0, np.arange(len(market.key)), 0))
        amount = np.ones(len(market.key), np.int64) if counted[2] == "e" else market.printed
        total = amount.cumsum()
        of_session = total - (total - amount)[begins]
        rows = np.flatnonzero((of_session // size > (of_session - amount) // size) & (market.session >= 0))
    times = market.ts_recv[rows]
    fresh = np.diff(times, prepend=-1) > 0
    rows, times = rows[fresh], times[fresh]
    dates = market.session_of(times)
    keep = (times >= start_ns) & (times < end_ns) & (dates >= 0) & ((clock == "bar") | (dates == market.session[rows]))
    return times[keep], dates[keep]


def plan_of(log: Log, whole: Market, clock: str, window: int) -> Plan | None:
    """The schedule that the manifest's terms give for a window; None when they give none."""
    terms, (market, first_event) = log.terms, whole.of_window(window)
    start_ns, end_ns = terms.windows[window]
    times, dates = ticks_of(market, clock, start_ns, end_ns)
    n = len(market.key)
    received = int(np.searchsorted(market.ts_recv, end_ns, side="left"))
    last_tradable = np.maximum.accumulate(np.where(market.tradable, np.arange(n), -1))
    seen = np.searchsorted(market.ts_recv, times, side="right") - 1
    mark = np.where(seen >= 0, last_tradable[np.maximum(seen, 0)], -1)
    good = (mark >= 0) & (market.session[np.maximum(mark, 0)] == dates)
    times = times[good]
    event = meets(market, times + terms.latency_ns)
    filled = np.maximum(times + terms.latency_ns, market.ts_event[np.maximum(event, 0)])
    ready = np.maximum(filled, market.ts_recv[np.maximum(event, 0)])
    following = np.maximum(np.searchsorted(times, ready, side="left"), np.arange(len(times)) + 1)
    chosen, at = [], 0
    while at < len(times) and 0 <= event[at] < received:
        chosen.append(at)
        at = int(following[at])
    picked = np.array(chosen, np.int64)
    deep = market.tradable & (np.minimum(market.bid_lots.sum(axis=1), market.ask_lots.sum(axis=1)) >= terms.max_lots)
    deep &= (np.arange(n) % 4 == 3) | (not market.bars)
    closing = np.flatnonzero(deep[:received])
    if not len(picked) or not len(closing):
        return None
    drain = int(closing[-1])
    count = int(((event[picked] < drain) & (ready[picked] <= market.ts_event[drain])).sum())
    left = np.minimum(market.closes, end_ns) - np.maximum(market.opens, market.ts_recv[received - 1])
    reason = TAPE_END if received == n and left.clip(min=0).sum() > TAPE_END_NS else WINDOW_END
    if terms.step_limit is not None and count > terms.step_limit:
        count, reason = terms.step_limit, STEP_LIMIT
        after = np.flatnonzero(deep & (np.arange(n) > event[picked[count - 1]]) & (market.ts_event >= times[picked[count]]))
        drain = int(after[0])
    return Plan(times[picked[:count]], first_event + drain, reason)


def check_schedule(log: Log, grid: Grid, market: Market) -> list[Check]:
    """Decision times, the drain of each lane, its reason and the episodes are those that clock, window, latency and step limit give."""
    clock = log.run.manifest["identity"]["config"]["tape"].get("clock")
    plans = {w: plan_of(log, market, str(clock), w) if len(market.key) else None for w in range(len(log.terms.windows))}
    played = [plan for plan in plans.values() if plan is not None and len(plan.decided)]
    if len(played) < len(plans):
        return [failed("schedule", f"clock {clock} makes no decision in the window that the manifest states", "manifest", "clock")]
    own = [played[w] for w in grid.windows.tolist()]
    longest = max(len(plan.decided) for plan in played)
    complete = log.run.finished or bool((grid.matrix(log, "is_drain")[-1] == 1).any() and not log.terms.is_joined)
    checks = []
    if (grid.steps != longest + 1) if complete else (grid.steps > longest + 1):
        detail = f"{counted(grid.steps, 'step')} in the log, the clock {clock} gives {counted(longest, 'decision')} and the drain"
        checks.append(failed("schedule_steps", detail, "steps", "step"))
    steps = min(grid.steps, longest + 1)
    rows = np.arange(log.rows("steps"))[grid.order][: steps * len(grid.lanes)]
    drained = np.array([len(plan.decided) for plan in own])

    def laid(values: list[np.ndarray]) -> np.ndarray:
        """Columns of the windows' rows, decisions and drain, the drain's again for the steps after it; for each lane."""
        columns = [np.append(column, np.full(max(steps - len(column), 0), column[-1]))[:steps] for column in values]
        return grid.spread(np.stack(columns, axis=1)).reshape(-1)

    times = [np.append(plan.decided, market.ts_event[plan.drain]) for plan in own]
    checks.append(log.equal("schedule_ts_decided_ns", "steps", "ts_decided_ns", laid(times), rows))
    if steps < grid.steps or (complete and grid.steps != longest + 1):
        return checks
    drains = (np.arange(steps)[:, None] == drained).astype(np.int64)
    checks.append(log.equal("schedule_is_drain", "steps", "is_drain", grid.spread(drains).reshape(-1), rows))
    dates = [np.append(market.session_of(plan.decided), market.session[plan.drain]) for plan in own]
    episodes = laid([(np.diff(of, prepend=of[:1]) != 0).cumsum() for of in dates])
    checks.append(log.equal("schedule_episode", "steps", "episode", episodes, rows))
    group = np.tile(grid.group, steps)
    at = np.flatnonzero(np.repeat(np.arange(steps), len(grid.lanes)) == drained[group])
    if not len(at):
        return checks
    last, window = rows[at], group[at]
    key = market.key[np.array([plan.drain for plan in own])[window]]
    checks.append(log.equal("schedule_drain_row", "steps", "mark_row", key & (1 << 40) - 1, last))
    checks.append(log.equal("schedule_drain_source", "steps", "mark_source", key >> 40, last))
    said = log("steps", "end_reason")[last]
    lives = ~np.isin(said, (CAPITAL_FLOOR, NOT_PLAYED_END))
    reasons = np.array([plan.reason for plan in own])[window]
    # Rows behind the window's end are in no hash of the run, but they say that the tape did not end there: only the market was silent.
    ends = np.array([log.terms.windows[w][1] for w in grid.windows.tolist()])[window]
    silent = (reasons == TAPE_END) & (said == WINDOW_END) & (market.goes_on_until_ns >= ends)
    reasons = np.where(silent, WINDOW_END, reasons)
    return [*checks, log.equal("schedule_end_reason", "steps", "end_reason", reasons, last, lives)]
