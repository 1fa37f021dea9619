"""The accounts of a log recomputed from its fills: average cost in integers, no remainder lost (docs/step.md, "Accounting")."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from lob.units import counted
from sim.run_data import among, distinct, place_in
from sim.verify_types import OK, Check, Log, failed, skipped


@dataclass(frozen=True)
class Walk:
    """Per fill, in the fills table's own row order: what average cost makes of it. Ticks, lots and micro-dollars, int64[n]."""

    before: np.ndarray  # position before the fill
    after: np.ndarray
    cost: np.ndarray  # cost_ticks after it
    open_fee: np.ndarray  # entry fees of what is open after it
    closed: np.ndarray  # lots that it closed
    cost_out: np.ndarray  # their share of the cost
    gross_ticks: np.ndarray  # sign * closed * price - cost_out
    entry_fee: np.ndarray  # their share of the entry fees
    exit_fee: np.ndarray
    opened_ts: np.ndarray  # when the position that it reduced was opened
    opened_step: np.ndarray


def accounts_of(phase: np.ndarray, lane: np.ndarray) -> np.ndarray:
    return phase << 32 | lane


def walk(
    account: np.ndarray, side: np.ndarray, lots: np.ndarray, price: np.ndarray, fee: np.ndarray, ts: np.ndarray, step: np.ndarray
) -> Walk:
    """Average cost over fills, int64[n] each, every account's fills in order. The k-th fills of all accounts are booked together."""
    n = len(account)
    order = by_account(account)
    starts = np.flatnonzero(np.diff(account[order], prepend=-1)) if n else np.empty(0, np.int64)
    counts = np.diff(np.append(starts, n))
    by_count = np.argsort(-counts, kind="stable")
    starts, counts = starts[by_count], counts[by_count]
    out = {name: np.zeros(n, np.int64) for name in Walk.__dataclass_fields__}
    position, cost, open_fee, opened_ts, opened_step = (np.zeros(len(starts), np.int64) for _ in range(5))
    busiest = int(counts[0]) if len(counts) else 0
    still = len(counts) - np.searchsorted(counts[::-1], np.arange(busiest), side="right")  # accounts with more than k fills
    for k in range(busiest):
        m = int(still[k])
        at = order[starts[:m] + k]
        s, q, p, f = side[at], lots[at], price[at], fee[at]
        held = position[:m].copy()
        size = np.abs(held)
        sign = np.sign(held)
        closed = np.where(sign == -s, np.minimum(q, size), 0)
        share = np.maximum(size, 1)
        cost_out = cost[:m] * closed // share
        entry_fee = open_fee[:m] * closed // share
        exit_fee = f * closed // np.maximum(q, 1)
        opened = q - closed
        position[:m] += s * q
        fresh = (opened > 0) & (size == closed)
        out["before"][at], out["closed"][at], out["cost_out"][at] = held, closed, cost_out
        out["gross_ticks"][at] = sign * closed * p - cost_out
        out["entry_fee"][at], out["exit_fee"][at] = entry_fee, exit_fee
        out["opened_ts"][at], out["opened_step"][at] = opened_ts[:m], opened_step[:m]
        opened_ts[:m] = np.where(fresh, ts[at], opened_ts[:m])
        opened_step[:m] = np.where(fresh, step[at], opened_step[:m])
        cost[:m] += s * opened * p - cost_out
        open_fee[:m] += f - exit_fee - entry_fee
        out["after"][at], out["cost"][at], out["open_fee"][at] = position[:m], cost[:m], open_fee[:m]
    return Walk(**out)


def walk_fills(log: Log, price: np.ndarray | None = None) -> Walk:
    """The walk over the log's fills, at their logged prices or at `price`."""
    account = accounts_of(log("fills", "phase"), log("fills", "lane"))
    columns = [log("fills", name) for name in ("side", "lots", "price_ticks", "fee_usd_micros", "ts_filled_ns", "step")]
    if price is not None:
        columns[2] = price
    return walk(account, *columns)


def check_trades(log: Log, booked: Walk) -> list[Check]:
    """Every reducing fill has its one trade row, and each figure of that row is what average cost gives."""
    reducing = np.flatnonzero(booked.closed > 0)
    fill_id = log("fills", "fill_id")
    trade_fill = log("trades", "fill_id")
    phase_key = lambda table, rows: log(table, "phase")[rows] << 60 | log(table, "fill_id")[rows]  # noqa: E731
    wanted, held = phase_key("fills", reducing), phase_key("trades", np.arange(len(trade_fill)))
    same = len(wanted) == len(held) and bool((wanted == held).all())  # as in every log that nobody touched: both stand in key order
    missing = np.zeros(len(wanted), bool) if same else ~among(wanted, distinct(held))
    known = np.ones(len(held), bool) if same else among(held, distinct(wanted))
    checks = [
        log.judge(
            "fills_have_trades",
            "fills",
            "fill_id",
            missing,
            lambda i: f"fill {fill_id[reducing[i]]} closed lots, but trades has no row for it",
            reducing,
        ),
        log.judge(
            "trades_have_fills",
            "trades",
            "fill_id",
            ~known,
            lambda i: f"trade of fill {trade_fill[i]}, which closed nothing or is not there",
        ),
        _unique(log, "trades_once_per_fill", "trades", "fill_id", held),
    ]
    matched, fill = np.arange(len(held)), reducing
    if not same:
        order = np.argsort(wanted)
        matched = np.flatnonzero(known)
        fill = reducing[order[np.searchsorted(wanted[order], held[matched])]]
    tick_value = log.terms.tick_value_usd_micros
    before_order = _before_order(log, booked)
    expected = {
        "lane": log("fills", "lane")[fill],
        "episode": log("fills", "episode")[fill],
        "step": log("fills", "step")[fill],
        "side": np.sign(booked.before[fill]),
        "lots": booked.closed[fill],
        "cost_ticks": booked.cost_out[fill],
        "exit_ticks": log("fills", "price_ticks")[fill],
        "ts_exit_ns": log("fills", "ts_filled_ns")[fill],
        "ts_entry_ns": booked.opened_ts[fill],
        "bars_held": log("fills", "step")[fill] - booked.opened_step[fill],
        "exit_reason": log("fills", "reason")[fill],
        "fee_usd_micros": booked.exit_fee[fill] + booked.entry_fee[fill],
        "realized_usd_micros": booked.gross_ticks[fill] * tick_value - booked.exit_fee[fill] - booked.entry_fee[fill],
        "magnitude_bin": magnitude_bin(before_order[fill], log.terms.max_lots),
    }
    checks += [log.equal(f"trades_{name}", "trades", name, values, matched) for name, values in expected.items()]
    return checks


def magnitude_bin(position: np.ndarray, max_lots: int) -> np.ndarray:
    size = np.abs(position)
    return np.where(8 * size < 3 * max_lots, 0, np.where(4 * size < 3 * max_lots, 1, 2))


def _before_order(log: Log, booked: Walk) -> np.ndarray:
    """Position before the first fill of each fill's order, int64[fills]. A market order's fills stand together, in the order of the log."""
    key = log("fills", "phase") << 60 | log("fills", "order_id")
    if log.terms.working is not None:
        _, earliest, of = np.unique(key, return_index=True, return_inverse=True)
        return booked.before[earliest[of]]
    first = np.where(np.diff(key, prepend=-1) != 0, np.arange(len(key)), 0)
    return booked.before[np.maximum.accumulate(first)] if len(key) else booked.before


def _unique(log: Log, name: str, table: str, column: str, key: np.ndarray) -> Check:
    order = np.argsort(key, kind="stable")
    again = np.zeros(len(key), bool)
    again[order[1:]] = key[order][1:] == key[order][:-1]
    values = log(table, column)
    return log.judge(name, table, column, again, lambda i: f"{column} {values[i]} stands twice")


@dataclass(frozen=True)
class Grid:
    """One phase's steps as a rectangle: row `order[s * lanes + l]` of the table is step s of the l-th lane."""

    phase: int
    steps: int
    lanes: np.ndarray
    order: np.ndarray | slice  # a slice when the table stands in that order, as a log does: nothing is copied then
    windows: np.ndarray  # int64[G]: the windows that the lanes play,
    leaders: np.ndarray  # int64[G]: the place of the first lane of each: all lanes of a window decide at the same times
    group: np.ndarray  # int64[L]: which of them each lane plays

    def first(self, steps: int) -> np.ndarray | slice:
        """The rows of the first steps."""
        count = steps * len(self.lanes)
        return slice(0, count) if isinstance(self.order, slice) else self.order[:count]

    def led(self, log: Log, name: str) -> np.ndarray:
        """int64[S, G]: a column that all lanes of a window share, as the first lane of each has it."""
        return self.matrix(log, name)[:, self.leaders]

    def spread(self, led: np.ndarray) -> np.ndarray:
        """[S, L] of [S, G]: what holds for a window, for each of its lanes."""
        return led[:, self.group]

    def group_of(self, log: Log, lane: np.ndarray) -> np.ndarray:
        """Which of the windows each lane of any table plays; -1 where no lane of its window has steps."""
        group = np.full(len(log.terms.windows), -1)
        group[self.windows] = np.arange(len(self.windows))
        return group[lane % len(group)]

    def drained(self, log: Log) -> np.ndarray:
        """int64[G]: the step in which a window's lanes are drained, S where the log does not reach it."""
        found = self.led(log, "is_drain") == 1
        return np.where(found.any(axis=0), found.argmax(axis=0), self.steps)

    @property
    def shape(self) -> tuple[int, int]:
        return self.steps, len(self.lanes)

    def matrix(self, log: Log, name: str) -> np.ndarray:
        return log("steps", name)[self.order].reshape(self.shape)


def grids(log: Log) -> tuple[list[Grid], list[Check]]:
    """The rectangle of each phase, or the check that says where it is none."""
    phase, step, lane = log("steps", "phase"), log("steps", "step"), log("steps", "lane")
    found: list[Grid] = []
    checks: list[Check] = []
    if len(phase) and (phase == phase[0]).all():
        lanes = distinct(lane)
        index = np.arange(len(phase))
        if (step == index // len(lanes)).all() and (lane == lanes[index % len(lanes)]).all() and len(phase) % len(lanes) == 0:
            found = [_grid(log, int(phase[0]), len(phase) // len(lanes), lanes, slice(0, len(phase)))]
            checks = [Check("steps_rectangular", OK, "", "steps")] + _all_lanes(log, lanes)
            return found, checks
    order = np.lexsort((lane, step, phase))
    for code in distinct(phase).tolist():
        rows = order[phase[order] == code]
        lanes = distinct(lane[rows])
        steps = len(rows) // len(lanes)
        index = np.arange(len(rows))
        bad = (step[rows] != index // len(lanes)) | (lane[rows] != lanes[index % len(lanes)])
        found_at = _describe_cells(step[rows], lane[rows], lanes)
        check = log.judge("steps_rectangular", "steps", "step", bad, found_at, rows)
        checks.append(check)
        checks += _all_lanes(log, lanes)
        if not bad.any():
            found.append(_grid(log, code, steps, lanes, rows))
    return found, checks


def _grid(log: Log, phase: int, steps: int, lanes: np.ndarray, order: np.ndarray | slice) -> Grid:
    windows, leaders, group = np.unique(lanes % len(log.terms.windows), return_index=True, return_inverse=True)
    return Grid(phase, steps, lanes, order, windows, leaders, group)


def _all_lanes(log: Log, lanes: np.ndarray) -> list[Check]:
    expected = log.terms.lanes if log.terms.level == "full" else len(lanes)
    if len(lanes) == expected:
        return []
    return [failed("steps_lanes", f"{counted(len(lanes), 'lane')} in steps, {expected} in the manifest", "steps", "lane")]


def by_account(account: np.ndarray) -> np.ndarray:
    """Row numbers in order of account, rows of one account as they stand. 16-bit keys sort by radix, many times faster."""
    least = int(account.min()) if len(account) else 0
    narrow = len(account) > 0 and int(account.max()) - least < 1 << 16
    return np.argsort((account - least).astype(np.uint16) if narrow else account, kind="stable")


def _describe_cells(step: np.ndarray, lane: np.ndarray, lanes: np.ndarray) -> Callable[[int], str]:
    width = len(lanes)
    return lambda i: (
        f"steps are not rectangular: expected step {i // width} of lane {lanes[i % width]}, found step {step[i]} of lane {lane[i]}"
    )


def check_steps(log: Log, grid: Grid, booked: Walk) -> list[Check]:
    """Position, cost, cash, equity, realised, fees and raw reward of every step from the fills alone and the logged marks."""
    terms = log.terms
    lane = log("fills", "lane")
    chosen = np.flatnonzero((log("fills", "phase") == grid.phase) & among(lane, grid.lanes))
    step = log("fills", "step")[chosen]
    beyond = (step < 0) | (step >= grid.steps)
    if beyond.any():
        return [
            log.judge("fills_step", "fills", "step", beyond, lambda i: f"fill in step {step[i]}, steps end at {grid.steps - 1}", chosen)
        ]
    cell = step * len(grid.lanes) + place_in(lane[chosen], grid.lanes)
    size = grid.steps * len(grid.lanes)

    def per_step(values: np.ndarray) -> np.ndarray:
        out = np.zeros(size, np.int64)
        np.add.at(out, cell, values[chosen])
        return out.reshape(grid.shape)

    fee = per_step(log("fills", "fee_usd_micros"))
    realized = per_step(booked.gross_ticks) * terms.tick_value_usd_micros - fee
    position = per_step(log("fills", "side") * log("fills", "lots")).cumsum(axis=0)
    cash = terms.capital_usd_micros + realized.cumsum(axis=0)
    cost = _last_known(booked.cost[chosen], cell, grid.shape)
    unrealized = (position * grid.matrix(log, "mark_mid2_ticks") - 2 * cost) * (terms.tick_value_usd_micros // 2)
    equity = cash + unrealized
    start = np.full((1, len(grid.lanes)), terms.capital_usd_micros)
    expected = {
        "position_lots": position,
        "cost_ticks": cost,
        "fee_usd_micros": fee,
        "realized_usd_micros": realized,
        "cash_usd_micros": cash,
        "unrealized_usd_micros": unrealized,
        "equity_usd_micros": equity,
        "reward_raw": np.diff(equity, axis=0, prepend=start),
    }
    return [log.equal(f"steps_{name}", "steps", name, values.reshape(-1), grid.order) for name, values in expected.items()]


def _last_known(values: np.ndarray, cell: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Last value written to a lane at or before each step (0 before the first)."""
    source = np.full(shape[0] * shape[1], -1, np.int64)
    source[cell] = np.arange(len(cell))  # the last fill of a step wins: fills stand in order
    source = np.maximum.accumulate(source.reshape(shape), axis=0)
    return np.where(source >= 0, np.append(values, 0)[source], 0)


def check_excursions(log: Log, grid: Grid, booked: Walk) -> list[Check]:
    """Best and worst result of each trade's lots over the closing marks since the opening and the exit (docs/step.md, "Rows")."""
    step, lots, cost, side = (log("trades", name) for name in ("step", "lots", "cost_ticks", "side"))
    group = grid.group_of(log, log("trades", "lane"))
    rows = np.flatnonzero((log("trades", "phase") == grid.phase) & (step >= 0) & (step < grid.steps) & (group >= 0))
    key = log("fills", "phase") << 60 | log("fills", "fill_id")
    order = np.argsort(key)
    wanted = log("trades", "phase")[rows] << 60 | log("trades", "fill_id")[rows]
    at = np.minimum(np.searchsorted(key[order], wanted), len(key) - 1)
    known = key[order][at] == wanted if len(key) else np.zeros(len(rows), bool)
    rows, fill = rows[known], order[at[known]] if len(key) else rows[:0]
    opened, closed = booked.opened_step[fill], step[rows]
    marks = grid.led(log, "mark_mid2_ticks").T.reshape(-1)  # the same for every lane of a window; one window after another
    first = group[rows] * grid.steps
    held = (opened >= 0) & (opened < closed)
    high, low = range_extremes(marks, first + np.where(held, opened, 0), first + np.where(held, closed, 1))
    half = log.terms.tick_value_usd_micros // 2
    values = [(side[rows] * lots[rows] * mid2 - 2 * cost[rows]) * half for mid2 in (high, low)]
    at_exit = 2 * (side[rows] * lots[rows] * log("trades", "exit_ticks")[rows] - cost[rows]) * half
    best = np.maximum(np.maximum(0, at_exit), np.where(held, np.maximum(*values), 0))
    worst = np.minimum(np.minimum(0, at_exit), np.where(held, np.minimum(*values), 0))
    return [
        log.equal("trades_mfe_usd_micros", "trades", "mfe_usd_micros", best, rows),
        log.equal("trades_mae_usd_micros", "trades", "mae_usd_micros", worst, rows),
    ]


def range_extremes(values: np.ndarray, start: np.ndarray, stop: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(greatest, least) of values[start:stop] for every pair, from tables of powers of two."""
    high, low = [values], [values]
    while 2 ** len(high) <= len(values):
        half = 2 ** (len(high) - 1)
        high.append(np.maximum(high[-1][:-half], high[-1][half:]))
        low.append(np.minimum(low[-1][:-half], low[-1][half:]))
    level = np.frexp((stop - start).astype(np.float64))[1] - 1  # floor(log2), exact for integers below 2^53
    top, bottom = np.empty(len(start), np.int64), np.empty(len(start), np.int64)
    for k in distinct(level).tolist():
        at = np.flatnonzero(level == k)
        first, last = start[at], stop[at] - 2**k
        top[at] = np.maximum(high[k][first], high[k][last])
        bottom[at] = np.minimum(low[k][first], low[k][last])
    return top, bottom


def check_rewards(log: Log, grid: Grid) -> list[Check]:
    """Shaped is raw in dollars, scaled is raw over the scale, whitened is scaled: no shaping and no whitening acts outside of training."""
    raw = log("steps", "reward_raw")[grid.order].astype(np.float64)
    scaled = (raw / log.terms.reward_scale_usd_micros).astype(np.float32)
    expected = {"reward_shaped": (raw / 1e6).astype(np.float32), "reward_scaled": scaled, "reward_whitened": scaled}
    checks = []
    for name, values in expected.items():
        found = log.arrow("steps").column(name).combine_chunks().to_numpy(zero_copy_only=False)[grid.order]
        say = partial(_other_reward, name, found, values)
        checks.append(log.judge(f"steps_{name}", "steps", name, found != values, say, grid.order))
    return checks


def _other_reward(name: str, found: np.ndarray, values: np.ndarray, i: int) -> str:
    return f"{name} is {found[i]}, recomputed {values[i]}"


def end_costs(log: Log, booked: Walk) -> dict[tuple[int, int, int], tuple[int, int, int]]:
    """(phase, lane, episode) -> (position, cost_ticks, open_fee) after its last fill."""
    phase, lane, episode = (log("fills", name) for name in ("phase", "lane", "episode"))
    order = by_account(accounts_of(phase, lane))
    key = np.stack([phase[order], lane[order], episode[order]], axis=1)
    last = np.flatnonzero(np.append((key[1:] != key[:-1]).any(axis=1), True)) if len(order) else order
    return {
        tuple(key[i].tolist()): (int(booked.after[order[i]]), int(booked.cost[order[i]]), int(booked.open_fee[order[i]]))
        for i in last.tolist()
    }


def check_ids(log: Log, table: str, column: str) -> list[Check]:
    """`lane * 2^32 + count`: ids count up by one within a lane, so none is missing and none stands twice."""
    phase, lane, ids = log(table, "phase"), log(table, "lane"), log(table, column)
    in_order = table != "orders" or log.terms.working is None  # an order in the book has its row where it ended
    checks = [
        log.judge(
            f"{table}_{column}_lane",
            table,
            column,
            ids >> 32 != lane,
            lambda i: f"{column} {ids[i]} belongs to lane {ids[i] >> 32}, the row to {lane[i]}",
        )
    ]
    order = by_account(accounts_of(phase, lane)) if in_order else np.lexsort((ids, lane, phase))
    same = (np.diff(lane[order]) == 0) & (np.diff(phase[order]) == 0)
    gap = np.zeros(len(ids), bool)
    missing = (
        np.diff(ids[order]) != 1 if in_order or log.run.finished else np.diff(ids[order]) < 1
    )  # and in a log broken off it may be to come
    gap[1:] = same & missing
    first = np.append(True, ~same) if len(ids) else np.empty(0, bool)
    if len(log.terms.phases) == 1 and (in_order or log.run.finished):
        gap |= first & (ids[order] & 0xFFFFFFFF != 0)
    checks.append(
        log.judge(
            f"{table}_{column}_count",
            table,
            column,
            gap,
            lambda i: f"{column} {ids[order[i]]} does not follow the one before it in lane {lane[order[i]]}",
            order,
        )
    )
    return checks


STEP_SUMS = {
    "trading.realized_pnl_usd_micros_delta": "realized_usd_micros",
    "trading.fee_usd_micros_delta": "fee_usd_micros",
    "trading.equity_usd_micros": "equity_usd_micros",
    "trading.unrealized_usd_micros": "unrealized_usd_micros",
    "trading.reward_raw_usd_micros": "reward_raw",
}
"""diag leaf -> the column of `steps` that it sums over lanes."""


def check_cumulative(log: Log) -> list[Check]:
    """diag: every cumulative is the running sum of its delta, and what it sums over lanes is what the lanes' steps say."""
    delta, _ = diag_columns(log)
    if delta is None:
        return [skipped("diag_cumulative", "diag has no realised delta and cumulative")]
    phase, step = log("diag", "phase"), log("diag", "step")
    order = np.lexsort((step, phase))
    names = log.arrow("diag").column_names
    checks = []
    for cum in (name for name in names if name.endswith("_cum")):
        base = cum.removesuffix("_cum")
        source = next((name for name in (f"{base}_delta", base) if name in names), None)
        if source is None:
            continue
        running = np.empty(len(order), np.int64)
        for code in distinct(phase).tolist():
            rows = order[phase[order] == code]
            running[rows] = log("diag", source)[rows].cumsum()
        checks.append(log.equal("diag_cumulative", "diag", cum, running))
    if not log.has("steps") or log.terms.level != "full":
        return checks
    wanted = phase << 40 | step
    by = np.argsort(wanted)
    cells = log("steps", "phase") << 40 | log("steps", "step")
    at = by[np.minimum(np.searchsorted(wanted[by], cells), len(by) - 1)] if len(by) else by
    known = wanted[at] == cells if len(by) else np.zeros(len(cells), bool)
    checks.append(log.judge("diag_step", "steps", "step", ~known, lambda i: f"diag has no row for step {log('steps', 'step')[i]}"))
    for leaf, column in STEP_SUMS.items():
        if leaf in names:
            totals = np.zeros(len(wanted), np.int64)
            np.add.at(totals, at[known], log("steps", column)[known])
            checks.append(log.equal("diag_sum", "diag", leaf, totals))
    return checks


def diag_columns(log: Log) -> tuple[str | None, str]:
    """Names of the realised delta and its cumulative in diag, if it has them."""
    names = log.arrow("diag").column_names if log.has("diag") else []
    delta, cum = "trading.realized_pnl_usd_micros_delta", "trading.realized_pnl_usd_micros_cum"
    return (delta, cum) if delta in names and cum in names else (None, "")
