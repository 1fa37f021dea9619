"""The gates of every step recomputed from the log: sentinels, codes, lock, sizes, caps, stops, target, actual action."""

from collections.abc import Callable

import numpy as np

from lob.units import counted
from sim.run_data import among, place_in
from sim.verify_accounting import Grid, Walk, magnitude_bin
from sim.verify_types import NULL, Check, Log

SHORT, HOLD, LONG, FLAT = range(4)
NOT_PLAYED_END, SESSION_CLOSE, CAPITAL_FLOOR = -1, 1, 5
PPM = 1_000_000
MAGNITUDE_PPM = np.array([250_000, 500_000, 1_000_000])

PICKED = (
    "picked_action",
    "picked_direction",
    "picked_magnitude",
    "picked_order",
    "picked_urgency",
    "conviction_ppm",
    "health_ppm",
    "variance_scale_ppm",
    "locked_direction",
    "margin_cap_lots",
    "kelly_ppm",
    "kelly_cap_lots",
    "trail_triggered",
    "floor_triggered",
    "actual_action",
    "actual_direction",
    "actual_magnitude",
    "actual_order",
    "actual_urgency",
)
"""Columns that hold -1 exactly where a slot was not played."""

BRANCHES = (("direction", 27, 4), ("magnitude", 9, 3), ("order", 3, 3), ("urgency", 1, 3))


def check_sentinels(log: Log, grid: Grid) -> list[Check]:
    """-1 in every gate and action column of a slot that was not played (dead lane, drain), and nowhere else; actions 0..107 decode."""
    played = ~_unplayed(log, grid).reshape(-1)
    checks = []
    for column in PICKED:
        values = log("steps", column)[grid.order]
        say = lambda i, c=column, v=values: (  # noqa: E731
            f"{c} is {v[i]} in a played slot" if played[i] else f"{c} is {v[i]} in a slot that was never played, where only -1 stands"
        )
        checks.append(log.judge(f"steps_sentinel_{column}", "steps", column, (values == -1) == played, say, grid.order))
    scaled = log("steps", "scaled_lots")[grid.order]
    hold = log("steps", "locked_direction")[grid.order] == HOLD
    bad = (scaled == -1) != (~played | hold)
    checks.append(log.judge("steps_sentinel_scaled_lots", "steps", "scaled_lots", bad, lambda i: f"scaled_lots is {scaled[i]}", grid.order))
    for kind in ("picked", "actual"):
        action = log("steps", f"{kind}_action")[grid.order]
        outside = (action < -1) | (action > 107)
        say_action = _say(action, "is no action: 0..107, or -1 where not played")
        checks.append(log.judge(f"steps_{kind}_action_range", "steps", f"{kind}_action", outside, say_action, grid.order))
        for branch, unit, size in BRANCHES:
            expected = np.where(action >= 0, action // unit % size, -1)
            checks.append(log.equal(f"steps_{kind}_{branch}", "steps", f"{kind}_{branch}", expected, grid.order))
    return checks


def _say(values: np.ndarray, what: str) -> Callable[[int], str]:
    return lambda i: f"{values[i]} {what}"


def _unplayed(log: Log, grid: Grid) -> np.ndarray:
    """bool[S, L]: the drain, and every step after it or after the one in which a lane ended by the floor."""
    return _over(log, grid) | (grid.matrix(log, "is_drain") == 1)


def _over(log: Log, grid: Grid) -> np.ndarray:
    """bool[S, L]: the lane has ended before the step, by the floor or by its drain."""
    ends = (grid.matrix(log, "end_reason") == CAPITAL_FLOOR) | (grid.matrix(log, "is_drain") == 1)
    return shift(ends.cumsum(axis=0) > 0, False)


def check_gates(log: Log, grid: Grid, booked: Walk) -> list[Check]:
    """Each gate's output from its logged inputs, and the target that follows; holds for slots that were played."""
    terms = log.terms
    get = lambda name: grid.matrix(log, name)  # noqa: E731
    played = get("picked_action") >= 0
    before = shift(get("position_lots"), 0)
    equity = shift(get("equity_usd_micros"), terms.capital_usd_micros)
    mark = shift(get("mark_mid2_ticks"), NULL)
    trail = shift(get("trail_mid2_ticks"), NULL)
    direction = get("picked_direction")
    held = np.arange(grid.steps)[:, None] - shift(_opened_step(log, grid, booked), 0)
    locked = np.where((before != 0) & (held < terms.plan_lock_steps), HOLD, direction)
    magnitude = MAGNITUDE_PPM[np.maximum(get("picked_magnitude"), 0)]
    scaled = np.maximum(1, terms.max_lots * magnitude * get("variance_scale_ppm") // PPM**2)
    scaled = np.where((locked == LONG) | (locked == SHORT), scaled, np.where(locked == FLAT, 0, -1))
    margin_cap = np.minimum(np.maximum(0, equity // terms.margin_usd_micros), 2**31 - 1)
    kelly = _kelly(log, grid)
    safety = PPM // 2 + get("health_ppm") // 2
    kelly_cap = np.maximum(1, np.maximum(np.maximum(kelly, get("conviction_ppm")), safety) * safety * terms.max_lots // PPM**2)
    lots = np.minimum(np.minimum(scaled, margin_cap), kelly_cap)
    target = np.select([locked == LONG, locked == SHORT, locked == FLAT], [lots, -lots, 0], before)
    hit = (before != 0) & (trail != NULL) & np.where(before > 0, mark <= trail, mark >= trail) & (terms.trail_ticks > 0)
    # Breached before this step, or at its decision mark: every later target is 0 (docs/step.md, gate 6 and "Floor on every event").
    breached = shift((get("floor_triggered") == 1).cumsum(axis=0) > 0, False)
    at_floor = (equity <= terms.floor_usd_micros) | breached
    target = np.where(hit | at_floor, 0, target)
    expected = {
        "locked_direction": locked,
        "scaled_lots": scaled,
        "margin_cap_lots": margin_cap,
        "kelly_ppm": kelly,
        "kelly_cap_lots": kelly_cap,
        "trail_triggered": hit.astype(np.int64),
        "target_lots": target,
    }
    chosen = played.reshape(-1)
    checks = [log.equal(f"gate_{name}", "steps", name, values.reshape(-1), grid.order, chosen) for name, values in expected.items()]
    target_column = log("steps", "target_lots")[grid.order]
    unplayed_target = ~chosen & (target_column != 0)
    checks.append(
        log.judge(
            "steps_unplayed_target",
            "steps",
            "target_lots",
            unplayed_target,
            lambda i: f"target {target_column[i]} in a slot that was not played",
            grid.order,
        )
    )
    triggered = log("steps", "floor_triggered")[grid.order]
    must = (at_floor | ((get("equity_usd_micros") <= terms.floor_usd_micros) & played)).reshape(-1)
    checks.append(
        log.judge(
            "gate_floor_triggered",
            "steps",
            "floor_triggered",
            chosen & must & (triggered != 1),
            lambda i: f"equity is at or below the floor, floor_triggered is {triggered[i]}",
            grid.order,
        )
    )
    return checks


def check_actual(log: Log, grid: Grid) -> list[Check]:
    """The actual branches from the position after the step (docs/step.md, "Actual action")."""
    chosen = (grid.matrix(log, "picked_action") >= 0).reshape(-1)
    position = grid.matrix(log, "position_lots")
    traded = _traded(log, grid)
    held = (grid.matrix(log, "locked_direction") == HOLD) & ~traded
    direction = np.where(held, HOLD, np.where(position > 0, LONG, np.where(position < 0, SHORT, FLAT)))
    magnitude = np.where(held | (position == 0), 0, magnitude_bin(position, log.terms.max_lots))
    order = np.zeros_like(direction)
    if log.terms.working is not None:  # the kind of what was sent: `verify_working` knows it
        order = grid.matrix(log, "actual_order")
    urgency = grid.matrix(log, "picked_urgency")
    columns = {"direction": direction, "magnitude": magnitude, "order": order, "urgency": urgency}
    return [
        log.equal(f"actual_{name}", "steps", f"actual_{name}", values.reshape(-1), grid.order, chosen) for name, values in columns.items()
    ]


def check_trail(log: Log, grid: Grid, booked: Walk | None = None) -> list[Check]:
    """The trail ratchets at marks: set anew when a position is opened or reversed, else never loosened; none when flat or unused.

    Orders in the book can close and open again within one step, of which the fills know (`booked`)."""
    trail, mark, position = (grid.matrix(log, name) for name in ("trail_mid2_ticks", "mark_mid2_ticks", "position_lots"))
    before, last = shift(position, 0), shift(trail, NULL)
    sign = np.sign(position)
    level = mark - sign * 2 * log.terms.trail_ticks
    kept = (np.sign(before) == sign) & (last != NULL)
    if booked is not None and log.terms.working is not None:
        kept &= _opened_step(log, grid, booked) != np.arange(grid.steps)[:, None]
    ratcheted = np.where(kept, np.where(sign > 0, np.maximum(last, level), np.minimum(last, level)), level)
    expected = np.where((position == 0) | (log.terms.trail_ticks == 0), NULL, ratcheted)
    return [log.equal("steps_trail_mid2_ticks", "steps", "trail_mid2_ticks", expected.reshape(-1), grid.order)]


def check_ends(log: Log, grid: Grid) -> list[Check]:
    """End reasons: lanes that have ended say not_played, the drain ends every living lane once, a session's last step says so, and the
    floor wins."""
    reason = grid.matrix(log, "end_reason")
    drain = grid.matrix(log, "is_drain")
    episode = grid.matrix(log, "episode")
    dead = _over(log, grid)
    closes = np.append(episode[1:] != episode[:-1], np.zeros((1, len(grid.lanes)), bool), axis=0)
    floor_now = reason == CAPITAL_FLOOR
    say = lambda i: f"end_reason is {log('steps', 'end_reason')[grid.order][i]}"  # noqa: E731
    bad = (
        (dead != (reason == NOT_PLAYED_END)) | ((closes & ~dead & ~floor_now) != (reason == SESSION_CLOSE)) | ((reason > 5) | (reason < -1))
    )
    bad |= (drain == 1) & (reason == 0)
    bad |= (drain == 0) & np.isin(reason, (2, 3, 4))
    flat_at_floor = floor_now & (grid.matrix(log, "position_lots") != 0)
    is_last = np.zeros(grid.shape, bool)
    is_last[-1] = True
    drained = (drain == 1).cumsum(axis=0)
    drains = (drain == 1) & (shift(drained, 0) > 0 if log.terms.is_joined else ~is_last)
    what = "a second drain of the lane" if log.terms.is_joined else "a drain row before the last step"
    checks = [
        log.judge("steps_end_reason", "steps", "end_reason", (bad | flat_at_floor).reshape(-1), say, grid.order),
        log.judge("steps_drain_is_last", "steps", "is_drain", drains.reshape(-1), lambda i: what, grid.order),
    ]
    if log.run.finished:
        position = grid.matrix(log, "position_lots")
        missing = is_last & (drained != 1)
        checks.append(
            log.judge(
                "steps_drain_row",
                "steps",
                "is_drain",
                missing.reshape(-1),
                lambda i: "the run is finished, but the lane was not drained",
                grid.order,
            )
        )
        open_lots = is_last & (position != 0)
        checks.append(
            log.judge(
                "steps_flat_at_end",
                "steps",
                "position_lots",
                open_lots.reshape(-1),
                lambda i: f"{counted(int(position.reshape(-1)[i]), 'lot')} open after the drain",
                grid.order,
            )
        )
    step_back = np.diff(episode, axis=0, prepend=0)
    checks.append(
        log.judge(
            "steps_episode",
            "steps",
            "episode",
            ((step_back < 0) | (step_back > 1)).reshape(-1),
            lambda i: "episodes count up by one",
            grid.order,
        )
    )
    return checks


def shift(values: np.ndarray, first) -> np.ndarray:
    """Each step's value before it: the row above, `first` at the start."""
    return np.concatenate([np.full((1, values.shape[1]), first, values.dtype), values[:-1]])


def _traded(log: Log, grid: Grid) -> np.ndarray:
    out = np.zeros(grid.shape, bool)
    rows = of_grid(log, grid, "fills")
    out[log("fills", "step")[rows], place_in(log("fills", "lane")[rows], grid.lanes)] = True
    return out


def of_grid(log: Log, grid: Grid, table: str) -> np.ndarray:
    step = log(table, "step")
    return np.flatnonzero((log(table, "phase") == grid.phase) & among(log(table, "lane"), grid.lanes) & (step >= 0) & (step < grid.steps))


def _opened_step(log: Log, grid: Grid, booked: Walk) -> np.ndarray:
    """int64[S, L]: the step in which the position that stands after each step was opened or reversed."""
    rows = of_grid(log, grid, "fills")
    fresh = rows[(booked.after[rows] != 0) & (np.sign(booked.before[rows]) != np.sign(booked.after[rows]))]
    out = np.zeros(grid.shape, np.int64)
    out[log("fills", "step")[fresh], place_in(log("fills", "lane")[fresh], grid.lanes)] = log("fills", "step")[fresh]
    return np.maximum.accumulate(out, axis=0)


def _kelly(log: Log, grid: Grid) -> np.ndarray:
    """int64[S, L]: Kelly in ppm of the trades closed before each step (docs/step.md, "Kelly")."""
    rows = of_grid(log, grid, "trades")
    realized = log("trades", "realized_usd_micros")[rows]
    cell = log("trades", "step")[rows] * len(grid.lanes) + place_in(log("trades", "lane")[rows], grid.lanes)

    def so_far(values: np.ndarray) -> np.ndarray:
        out = np.zeros(grid.steps * len(grid.lanes), np.int64)
        np.add.at(out, cell, values)
        return shift(out.reshape(grid.shape).cumsum(axis=0), 0)

    wins, losses = so_far((realized > 0).astype(np.int64)), so_far((realized < 0).astype(np.int64))
    won, lost = so_far(np.maximum(realized, 0)), so_far(np.maximum(-realized, 0))
    while (big := won >= 2**43).any():
        won, lost = np.where(big, won >> 1, won), np.where(big, lost >> 1, lost)
    ratio = (won - lost) * PPM // np.maximum(won, 1)
    return np.where(lost >= won, 0, wins * ratio // np.maximum(wins + losses, 1))
