"""verify's own playing of a lane, over random rough markets, against the environment: equal fill by fill, under its exchange alone."""

from __future__ import annotations

import numpy as np
import pytest

from cuda_env import arrays as a
from lob.tape import NO_PRICE
from sim.run_data import WorkingTerms
from sim.verify_market import Market, row_key
from sim.verify_working import Decision, Lane, LaneTerms, Rows, play_lane
from tests.env_builds import LIVE, Njit, make_env, random_inputs, trace

PLAYED = tuple(case for case in LIVE if not case.steps)
FILL = {name: i for i, name in enumerate(a.WORKING_FILL_SLOTS)}


def market_of(tape) -> Market:
    """verify's market of a tape whose rows are known."""
    lots = np.where(tape.trade_ticks != NO_PRICE, tape.trade_lots, 0)
    return Market(
        key=row_key(tape.source, tape.row), ts_event=tape.ts_event_ns, ts_recv=tape.ts_recv_ns, trusted=tape.trusted,
        tradable=tape.tradable, session=tape.session, bid=tape.bid_ticks.astype(np.int64), ask=tape.ask_ticks.astype(np.int64),
        bid_lots=tape.bid_lots.astype(np.int64), ask_lots=tape.ask_lots.astype(np.int64), opens=tape.session_open_ns,
        closes=tape.session_close_ns, dates=tape.session_dates, bars=False, printed=lots, aggressor=tape.trade_side.astype(np.int64),
        print_ticks=tape.trade_ticks.astype(np.int64), print_on_tick=tape.trade_ticks != NO_PRICE,
    )  # fmt: skip


@pytest.fixture(scope="module")
def traced():
    return {case.seed: trace(case, Njit) for case in PLAYED}


def replayed(case, played, **other) -> list[Lane]:
    """Every lane of a case as verify plays it, with `other` terms of the exchange than the case's."""
    env = make_env(case)
    tape, plan, terms = env.tape, env.schedule, env.config
    entry = terms.entry_latency_ns or (plan.latency_ns,)
    power = {"risk_averse": 0, "proportional": 1, "power": terms.queue_power}[terms.queue_model]
    working = WorkingTerms(
        power, terms.maker_fee_usd_micros, entry, terms.cancel_latency_ns or entry, terms.ack_latency_ns, terms.latency_seed,
        terms.cross_after_ppm,
    )._replace(**other)  # fmt: skip
    account = LaneTerms(
        terms.capital_usd_micros, terms.floor_usd_micros, terms.trail_ticks, terms.fee_usd_micros, tape.instrument.tick_value_usd_micros
    )  # fmt: skip
    rows, inputs = Rows(market_of(tape)), random_inputs(case, plan.decisions)
    steps = played["steps"].reshape(plan.rows, len(a.STEP_SLOTS), case.lanes)
    lanes = []
    for lane in range(case.lanes):
        action = np.append(inputs[:, 0, lane], -9)  # the drain: kind -1
        target = steps[:, a.STEP_SLOTS.index("target_lots"), lane]
        columns = (plan.ts_decided_ns, plan.observed_event, plan.mark_event, target, np.where(action < 0, -1, action % 9 // 3), action % 3)
        decisions = [Decision(*(int(value) for value in values)) for values in zip(*columns, strict=True)]
        lanes.append(play_lane(rows, working, account, lane, iter(decisions), int(plan.fill_event[-1])))
    return lanes


def fills_of(played, lane: int) -> list[list[int]]:
    names = ("step", "order_id", "ts_submitted_ns", "ts_filled_ns", "side", "lots", "price_ticks", "reason", "market_event", "book_level",
             "queue_ahead_lots")  # fmt: skip
    rows = played["fills"][played["fills"][:, FILL["order_id"]] >> 32 == lane]
    rows = rows[:, [FILL[name] for name in names]]
    rows[:, 1] &= 2**32 - 1
    return rows.tolist()


@pytest.mark.parametrize("case", PLAYED, ids=lambda case: str(case.seed))
def test_verify_plays_every_lane_fill_by_fill_as_the_environment_did(case, traced):
    played = traced[case.seed]
    orders = 0
    for lane in replayed(case, played):
        found = fills_of(played, lane.number)
        for fill in found:
            fill[10] = -1 if fill[7] == 5 else fill[10]
        assert [list(fill) for fill in lane.fills] == found
        orders += len(lane.orders)
    assert orders == len(played["orders"])


@pytest.mark.parametrize("lie", [{"power": 0}, {"power": 1}, {"maker_fee_usd_micros": 9**9}, {"cross_after_ppm": 1}, {"ack_ns": (10**9,)}])
def test_another_exchange_gives_other_fills_or_other_accounts(lie, traced):
    differ = 0
    for case in PLAYED:
        for lane, honest in zip(replayed(case, traced[case.seed], **lie), replayed(case, traced[case.seed]), strict=True):
            differ += lane.fills != honest.fills or lane.base != honest.base
    assert differ > 0
