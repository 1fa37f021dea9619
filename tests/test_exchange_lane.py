"""Lanes whose orders work in the book: every fill and order against brute force, three builds of one exchange, and what must hold."""

from __future__ import annotations

import numpy as np
import pytest

from cuda_env import arrays as a
from lob.actions import EndReason, FillReason, OrderState, names
from lob.tape import NO_PRICE
from tests.env_builds import CASES, LIVE, Njit, make_env, random_inputs, trace, trace_elsewhere
from tests.exchange_lane_oracle import Decision, Terms, play_lane
from tests.exchange_oracle import Row
from tests.test_env_three_builds import assert_equal

REASON, STATE = names(FillReason), names(OrderState)
ORDER = {name: i for i, name in enumerate(a.WORKING_ORDER_SLOTS)}
FILL = {name: i for i, name in enumerate(a.WORKING_FILL_SLOTS)}
PLAYED = tuple(case for case in LIVE if not case.steps)


@pytest.fixture(scope="module")
def njit():
    return {case.seed: trace(case, Njit) for case in LIVE}


def oracle_rows(tape) -> list[Row]:
    rows = []
    for i in range(tape.events):
        book = [
            [(int(p), int(n)) for p, n in zip(ticks[i], lots[i], strict=True) if n > 0]
            for ticks, lots in ((tape.bid_ticks, tape.bid_lots), (tape.ask_ticks, tape.ask_lots))
        ]
        times, flags = (int(tape.ts_event_ns[i]), int(tape.ts_recv_ns[i])), (bool(tape.trusted[i]), bool(tape.tradable[i]))
        row = Row(*times, *book, *flags, int(tape.session[i]))
        if tape.trade_side[i]:
            price = int(tape.trade_ticks[i])
            row.aggressor, row.print_lots = int(tape.trade_side[i]), int(tape.trade_lots[i])
            row.print_ticks = None if price == NO_PRICE else price
        rows.append(row)
    return rows


@pytest.mark.parametrize("case", PLAYED, ids=lambda case: str(case.seed))
def test_every_order_fill_and_position_is_what_brute_force_gives(case, njit):
    env = make_env(case)
    tape, plan, terms, played = env.tape, env.schedule, env.config, njit[case.seed]
    rows = oracle_rows(tape)
    entry = terms.entry_latency_ns or (plan.latency_ns,)
    oracle_terms = Terms(
        terms.capital_usd_micros, terms.floor_usd_micros, terms.trail_ticks, tape.instrument.tick_value_usd_micros, terms.fee_usd_micros,
        terms.maker_fee_usd_micros, terms.cross_after_ppm, terms.latency_seed, entry, terms.cancel_latency_ns or entry,
        terms.ack_latency_ns,
    )  # fmt: skip
    inputs = random_inputs(case, plan.decisions)
    steps = played["steps"].reshape(plan.rows, len(a.STEP_SLOTS), case.lanes)
    sessions = list(zip(tape.session_open_ns.tolist(), tape.session_close_ns.tolist(), strict=True))
    for lane in range(case.lanes):
        target = steps[:, a.STEP_SLOTS.index("target_lots"), lane]
        action = np.append(inputs[:, 0, lane], 0)
        decisions = [
            Decision(int(ts), int(seen), int(mark), int(wanted), int(code) % 9 // 3, int(code) % 3)
            for ts, seen, mark, wanted, code in zip(plan.ts_decided_ns, plan.observed_event, plan.mark_event, target, action, strict=True)
        ]
        depth = tape.bid_ticks.shape[1]
        model = "power" if terms.queue_model != "risk_averse" else "risk_averse"
        power = terms.queue_power if terms.queue_model == "power" else 1
        expected = play_lane(rows, sessions, depth, model, power, oracle_terms, lane, decisions, int(plan.fill_event[-1]))
        fills = played["fills"][played["fills"][:, FILL["order_id"]] >> 32 == lane]
        named = [
            (f[FILL["order_id"]] % 2**32, f[FILL["ts_filled_ns"]], f[FILL["side"]], f[FILL["lots"]], f[FILL["price_ticks"]],
             REASON[f[FILL["reason"]]], f[FILL["market_event"]], f[FILL["book_level"]])
            for f in fills.tolist()
        ]  # fmt: skip
        levels = [(*f[:7], book_level(tape, f)) for f in expected.fills]
        assert named == levels
        assert fills[:, FILL["step"]].tolist() == expected.step_of_fill
        position = steps[: plan.decisions, a.STEP_SLOTS.index("position_lots"), lane]
        assert position.tolist() == expected.steps
        orders = played["orders"][played["orders"][:, ORDER["order_id"]] >> 32 == lane]
        columns = ("order_id", "ts_submitted_ns", "ts_event_ns", "side", "kind", "picked_kind", "urgency", "lots", "filled_lots", "reason",
                   "state", "limit_ticks", "asked_ticks", "ts_ended_ns", "queue_ahead_lots")  # fmt: skip
        found = sorted(tuple(int(row[ORDER[name]]) for name in columns) for row in orders)
        code = {name: number for number, name in (REASON | {}).items()}
        states = {name: number for number, name in STATE.items()}
        none = lambda limit: 2**62 if limit is None else limit  # noqa: E731
        assert found == [
            (lane * 2**32 + o.number, o.sent, o.accepted if o.style != "post" or o.joined >= 0 else o.arrival, o.side, o.kind, o.picked,
             o.urgency, o.lots, o.lots - o.left, code[o.reason], states[o.state], none(o.limit), none(o.asked), o.ended, o.joined)
            for o in expected.orders
        ]  # fmt: skip


def book_level(tape, fill) -> int:
    """Level of the tape's row: levels without lots in its midst count too, which the oracle's rows leave out."""
    _, _, side, _, _, _, event, level = fill
    if level < 0:
        return -1
    lots = (tape.ask_lots if side > 0 else tape.bid_lots)[event]
    return int(np.flatnonzero(lots > 0)[level])


def test_plain_python_equals_njit_bit_for_bit(njit, tmp_path):
    for case, plain in zip(LIVE, trace_elsewhere("plain", LIVE, tmp_path), strict=True):
        assert_equal(njit[case.seed], plain)


@pytest.mark.cudasim
def test_simulated_cuda_kernels_equal_njit_bit_for_bit(tmp_path):
    from tests.env_builds import short

    chosen = (LIVE[0], LIVE[2])
    for case, simulated in zip(chosen, trace_elsewhere("cudasim", chosen, tmp_path), strict=True):
        assert_equal(trace(short(case), Njit), simulated)


def test_the_random_episodes_reach_every_kind_of_order_and_end(njit):
    orders = np.concatenate([played["orders"] for played in njit.values()])
    fills = np.concatenate([played["fills"] for played in njit.values()])
    assert set(orders[:, ORDER["state"]]) == {int(state) for state in OrderState} - {int(OrderState.UNFILLED)}
    assert set(fills[:, FILL["reason"]]) == {int(reason) for reason in FillReason}
    assert set(orders[:, ORDER["kind"]]) == {0, 1, 2}
    assert (orders[:, ORDER["limit_ticks"]] != orders[:, ORDER["asked_ticks"]]).any(), "re-priced"
    ends = {int(end) for played in njit.values() for end in np.unique(played["end_reason"])}
    assert ends == {int(reason) for reason in EndReason}
    assert not any(played["fault"].any() for played in njit.values())


def test_no_position_ever_leaves_what_the_targets_asked_for(njit):
    for case, played in zip(LIVE, njit.values(), strict=True):
        positions = played["steps"].reshape(-1, len(a.STEP_SLOTS), case.lanes)[:, a.STEP_SLOTS.index("position_lots")]
        assert np.abs(positions).max() <= case.config["max_lots"]
        fills = played["fills"]
        for lane in np.unique(fills[:, FILL["order_id"]] >> 32):
            own = fills[fills[:, FILL["order_id"]] >> 32 == lane]
            if not case.steps:  # a lane that begins anew begins flat
                assert np.abs((own[:, FILL["side"]] * own[:, FILL["lots"]]).cumsum()).max() <= case.config["max_lots"]


def test_a_case_of_market_orders_keeps_its_state_and_its_tables_as_they_were():
    env = make_env(CASES[0])
    assert env.state.shape[0] == 30
    assert env.world.out.orders.shape[2] == len(a.ORDER_SLOTS)
    assert env.world.out.fills.shape[2] == len(a.FILL_SLOTS)
    assert env.world.market.marks.numel() == 0


def test_threads_change_nothing():
    import torch

    case = LIVE[0]._replace(lanes=300)
    one, two = (Njit(make_env(case, threads=threads)) for threads in (1, 2))
    assert two.env._runner.parallel and not one.env._runner.parallel
    for inputs in random_inputs(case, one.env.schedule.decisions):
        for player in (one, two):
            player.step(inputs)
    for player in (one, two):
        player.drain()
    assert torch.equal(one.env.state, two.env.state)
