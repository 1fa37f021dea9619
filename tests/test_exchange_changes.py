"""Rows that concern nobody: what a row changes is told truly, and a lane that passes rows by ends as one that lives through each."""

from __future__ import annotations

import numpy as np
import pytest

from cuda_env import arrays as a
from cuda_env import changes as c
from cuda_env import state as s
from cuda_env.changes import row_changes
from cuda_env.interest import NO_STOP, stop_band
from tests.env_builds import LIVE, Njit, trace
from tests.exchange_builds import CASES
from tests.exchange_builds import trace as trace_quotes
from tests.exchange_markets import random_market

SEEDS = range(6)
OUT_OF_SIGHT = -1


def shown(levels: dict[int, int], depth: int, side: int, price: int) -> int:
    """Lots that a row shows at a price; OUT_OF_SIGHT behind the last level of a full one."""
    if price in levels:
        return levels[price]
    return OUT_OF_SIGHT if len(levels) == depth and all((price - other) * side < 0 for other in levels) else 0


def side_of(tape, row: int, side: int) -> dict[int, int]:
    ticks, lots = (tape.bid_ticks, tape.bid_lots) if side > 0 else (tape.ask_ticks, tape.ask_lots)
    return {p: n for p, n in zip(ticks[row].tolist(), lots[row].tolist(), strict=True) if n}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_size_that_changed_lies_between_low_and_high_or_at_the_edge_of_sight_and_these_are_changes(seed):
    tape = random_market(seed, 400, depth=4).tape()
    changes, before, tight = a.market_arrays(tape, working=True).changes, None, 0
    for row in np.flatnonzero(tape.tradable).tolist():
        if before is None:
            before = row
            continue
        for side, (low, high, edge) in ((1, changes[row, :3].tolist()), (-1, changes[row, 3:6].tolist())):
            old, new = side_of(tape, before, side), side_of(tape, row, side)
            prices = range(min(*old, *new) - 3, max(*old, *new) + 4)
            changed = [p for p in prices if shown(old, 4, side, p) != shown(new, 4, side, p)]
            for price in changed:
                assert low <= price <= high or (price - edge) * side <= 0
            if low <= high and not tape.trade_side[row]:
                assert low in changed and high in changed
                tight += 1
            if c.BOTTOM < edge < c.TOP:
                assert edge in changed
        before = row
    assert tight > 50


def test_a_row_stands_until_the_next_trusted_one_and_a_print_shows_at_its_price():
    tape = random_market(7, 400).tape()
    market = a.market_arrays(tape, working=True)
    trusted = [-1]
    for row in range(tape.events):
        trusted += [row] if tape.trusted[row] else []
        assert market.changes[row, c.STANDING] == trusted[-1]
        if market.marks[row] & a.PRINT_BUY:
            assert market.changes[row, c.BID_HIGH] >= tape.trade_ticks[row]
        if market.marks[row] & a.PRINT_SELL:
            assert market.changes[row, c.ASK_LOW] <= tape.trade_ticks[row]


def test_the_band_of_the_stops_is_where_the_floor_or_the_trail_is_met_to_the_last_half_tick():
    rng, met = np.random.default_rng(3), 0
    state, params = np.zeros((len(s.FIELDS), 1), np.int64), np.zeros(len(a.PARAMS), np.int64)
    for _ in range(400):
        position, trail_ticks = int(rng.choice([-3, -1, 1, 2, 7])), int(rng.integers(0, 2))
        cost = position * 20_000 + int(rng.integers(-5, 6))
        cash, floor = int(rng.integers(0, 10**10)), int(rng.integers(0, 10**10))
        trail = int(rng.choice([s.NONE_MID2, 40_000 + rng.integers(-30, 30)]))
        for field, value in ((s.POSITION, position), (s.COST, cost), (s.CASH, cash), (s.TRAIL, trail)):
            state[field, 0] = value
        for entry, value in ((a.FLOOR, floor), (a.TICK_VALUE, 12_500_000), (a.TRAIL_TICKS, trail_ticks)):
            params[entry] = value
        low, high = stop_band(0, True, params, state)
        edge = 40_000 + (floor - cash) // (6_250_000 * position)
        for mid2 in (*range(edge - 30, edge + 31), *range(39_965, 40_036)):
            floored = cash + (position * mid2 - 2 * cost) * 6_250_000 <= floor
            trailed = trail_ticks > 0 and trail != s.NONE_MID2 and (mid2 - trail) * position <= 0
            assert (mid2 <= low or mid2 >= high) == (floored or trailed)
            met += floored
        assert stop_band(0, False, params, state) == NO_STOP
    assert 1000 < met < 400 * 100


def changes_everything(*columns):
    """Rows of which each concerns every lane that waits for anything."""
    changes = row_changes(*columns)
    changes[:, [c.BID_LOW, c.ASK_LOW, c.ASK_EDGE]] = c.BOTTOM
    changes[:, [c.BID_HIGH, c.ASK_HIGH, c.BID_EDGE]] = c.TOP
    return changes


def assert_same(passed_by, lived_through):
    for name, values in passed_by.items():
        assert np.array_equal(values, lived_through[name]), name


@pytest.mark.parametrize(("case", "terms"), CASES)
def test_a_script_that_passes_rows_by_ends_as_one_that_lives_through_each(monkeypatch, case, terms):
    runs = [trace_quotes("njit", 10 * case + i, terms) for i in range(10)]
    monkeypatch.setattr(a, "row_changes", changes_everything)
    for i, run in enumerate(runs):
        assert_same(run, trace_quotes("njit", 10 * case + i, terms))
    assert sum(int(run["counts"][a.FILLS_WRITTEN].sum()) for run in runs) > 100


@pytest.mark.parametrize("case", LIVE, ids=lambda case: str(case.seed))
def test_a_step_that_passes_rows_by_ends_as_one_that_lives_through_each(monkeypatch, case):
    run = trace(case, Njit)
    monkeypatch.setattr(a, "row_changes", changes_everything)
    assert_same(run, trace(case, Njit))
