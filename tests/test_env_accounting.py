"""Accounting against a ledger in fractions, plain cash flows, and markets that are scaled or mirrored."""

from dataclasses import replace
from fractions import Fraction
from math import floor

import numpy as np
import pytest

from cuda_env.config import EnvConfig
from cuda_env.env import Env
from cuda_env.state import TRADE_COUNT
from lob.actions import Direction, EndReason, FillReason, Phase
from tests.env_builds import CASES, make_env, random_inputs
from tests.env_play import FLAT, HOLD, LONG, LONG_HALF, LONG_QUARTER, SHORT, gather, scripted
from tests.market_maker import ES, book_tape, features, random_tape, second_ticks, slow_schedule

PPM = 10**6
MILLION = 10**6
DEEP = ([(100, MILLION)], [(101, MILLION)])


@pytest.fixture(scope="module")
def played():
    """(environment, rows) of each random case."""
    environments = [make_env(case) for case in CASES]
    return [(env, gather(env, random_inputs(case, env.schedule.decisions))) for case, env in zip(CASES, environments, strict=True)]


def rich(**values):
    return EnvConfig(**({"capital_usd_micros": 10**13, "trail_ticks": 0} | values))


class Ledger:
    """An account kept in fractions: cost and entry fees leave in exact proportion, then are floored as money is whole."""

    def __init__(self, capital, tick_value, fee):
        self.cash, self.tick_value, self.fee = capital, tick_value, fee
        self.position, self.cost, self.entry_fees = 0, Fraction(0), Fraction(0)

    def fill(self, side, size, price):
        """(lots closed, cost that left, net realised, fees) of the closing part, or None."""
        closed = min(size, abs(self.position)) if self.position * side < 0 else 0
        trade = None
        if closed:
            part = Fraction(closed, abs(self.position))
            cost_out, fees_out = Fraction(floor(self.cost * part)), Fraction(floor(self.entry_fees * part))
            gross = (-side * closed * price - cost_out) * self.tick_value
            trade = closed, cost_out, gross - fees_out - closed * self.fee, fees_out + closed * self.fee
            self.cost, self.entry_fees = self.cost - cost_out, self.entry_fees - fees_out
            self.cash += gross
        self.cash -= size * self.fee
        self.cost += side * (size - closed) * price
        self.entry_fees += (size - closed) * self.fee
        self.position += side * size
        return trade

    def equity(self, mid2):
        return self.cash + (self.position * Fraction(mid2, 2) - self.cost) * self.tick_value


def test_every_trade_and_every_equity_is_what_a_ledger_in_fractions_says(played):
    closed = 0
    for env, rows in played:
        steps, fills, trades = rows["steps"], rows["fills"], rows["trades"]
        terms = env.config.capital_usd_micros, env.tape.instrument.tick_value_usd_micros, env.config.fee_usd_micros
        ledgers = [Ledger(*terms) for _ in range(env.lanes)]
        at, trade_at = 0, 0
        for i in range(len(steps["step"])):
            step, lane = steps["step"][i], steps["lane"][i]
            ledger, cash_before = ledgers[lane], ledgers[lane].cash
            while at < len(fills["step"]) and (fills["step"][at], fills["lane"][at]) == (step, lane):
                trade = ledger.fill(*(int(fills[name][at]) for name in ("side", "lots", "price_ticks")))
                assert fills["fee_usd_micros"][at] == int(fills["lots"][at]) * ledger.fee
                if trade:
                    names = ("lots", "cost_ticks", "realized_usd_micros", "fee_usd_micros")
                    assert trade == tuple(int(trades[name][trade_at]) for name in names)
                    assert trades["fill_id"][trade_at] == fills["fill_id"][at]
                    trade_at += 1
                at += 1
            assert steps["position_lots"][i] == ledger.position
            assert steps["cash_usd_micros"][i] == ledger.cash
            assert steps["realized_usd_micros"][i] == ledger.cash - cash_before
            assert steps["equity_usd_micros"][i] == ledger.equity(int(steps["mark_mid2_ticks"][i]))
        assert (at, trade_at) == (len(fills["step"]), len(trades["step"]))
        closed += trade_at
    assert closed > 500


def test_a_finished_run_leaves_nothing_unrealised_and_its_trades_sum_to_the_change_of_equity(played):
    for env, rows in played:
        last = rows["steps"]["is_drain"] == 1
        final = rows["steps"]["equity_usd_micros"][last]
        assert (rows["steps"]["position_lots"][last] == 0).all()
        assert (final == rows["steps"]["cash_usd_micros"][last]).all()
        by_lane = np.zeros(env.lanes, np.int64)
        np.add.at(by_lane, rows["trades"]["lane"], rows["trades"]["realized_usd_micros"])
        assert (env.config.capital_usd_micros + by_lane == final).all()


def test_fills_alone_pay_every_dollar(played):
    """Bought at, sold at, fees: no average cost in it."""
    for env, rows in played:
        f = rows["fills"]
        flow = -f["side"].astype(np.int64) * f["lots"] * f["price_ticks"] * env.tape.instrument.tick_value_usd_micros - f["fee_usd_micros"]
        by_lane = np.zeros(env.lanes, np.int64)
        np.add.at(by_lane, f["lane"], flow)
        final = rows["steps"]["cash_usd_micros"][rows["steps"]["is_drain"] == 1]
        assert (env.config.capital_usd_micros + by_lane == final).all()


def test_the_raw_reward_telescopes_to_the_change_of_equity(played):
    for env, rows in played:
        reward = rows["steps"]["reward_raw"].reshape(-1, env.lanes)
        equity = rows["steps"]["equity_usd_micros"].reshape(-1, env.lanes)
        assert (np.cumsum(reward, axis=0) + env.config.capital_usd_micros == equity).all()


def test_fills_take_from_a_row_no_more_than_it_shows_at_prices_that_it_shows(played):
    for env, rows in played:
        f = rows["fills"]
        event = np.searchsorted(env.tape.row, f["market_row"])
        assert env.tape.tradable[event].all()
        level, buys = f["book_level"], f["side"] == 1
        price = np.where(buys, env.tape.ask_ticks[event, level], env.tape.bid_ticks[event, level])
        shown = np.where(buys, env.tape.ask_lots[event, level], env.tape.bid_lots[event, level])
        assert (f["price_ticks"] == price).all()
        keys, place = np.unique(np.stack([f["lane"], event, buys, level]), axis=1, return_inverse=True)
        taken = np.zeros(keys.shape[1], np.int64)
        np.add.at(taken, place.ravel(), f["lots"])
        shown_once = np.zeros_like(taken)
        shown_once[place.ravel()] = shown
        assert (taken <= shown_once).all(), "over all steps that met the same row"


def test_times_run_forward_and_ids_count_within_a_lane(played):
    for env, rows in played:
        steps, fills = rows["steps"], rows["fills"]
        assert (steps["ts_observed_ns"] <= steps["ts_decided_ns"]).all()
        assert (fills["ts_submitted_ns"] <= fills["ts_filled_ns"]).all()
        decided = steps["ts_decided_ns"].reshape(-1, env.lanes)[:, 0][fills["step"]]
        sent = fills["reason"] != FillReason.FLOOR
        assert (decided[sent] <= fills["ts_submitted_ns"][sent]).all()
        for table, name in (("orders", "order_id"), ("fills", "fill_id"), ("trades", "trade_id")):
            ids, lane = rows[table][name], rows[table]["lane"]
            for i in range(env.lanes):
                own = ids[lane == i]
                assert own.tolist() == list(range(i * 2**32, i * 2**32 + len(own)))


def test_orders_sum_their_fills(played):
    for _, rows in played:
        order, lots_filled = rows["orders"], {}
        for number, size in zip(rows["fills"]["order_id"].tolist(), rows["fills"]["lots"].tolist(), strict=True):
            lots_filled[number] = lots_filled.get(number, 0) + size
        assert [lots_filled.get(number, 0) for number in order["order_id"].tolist()] == order["filled_lots"].tolist()
        assert (order["filled_lots"] <= order["lots"]).all()


def test_diag_sums_what_the_tables_hold():
    for case in CASES:
        env = make_env(case)
        inputs = random_inputs(case, env.schedule.decisions)
        cum = 0
        for step in range(env.schedule.decisions + 1):
            tables = one_step(env, inputs, step)
            steps, diag = tables["steps"], env.diag()
            cum += int(steps["realized_usd_micros"].sum())
            assert diag["step"] == step
            assert diag["trading.realized_pnl_usd_micros_delta"] == steps["realized_usd_micros"].sum()
            assert diag["trading.realized_pnl_usd_micros_cum"] == cum
            assert diag["trading.fee_usd_micros_delta"] == steps["fee_usd_micros"].sum()
            assert diag["trading.equity_usd_micros"] == steps["equity_usd_micros"].sum()
            assert diag["trading.unrealized_usd_micros"] == steps["unrealized_usd_micros"].sum()
            assert diag["trading.reward_raw_usd_micros"] == steps["reward_raw"].sum()
            assert diag["trading.long_lots"] - diag["trading.short_lots"] == steps["position_lots"].sum()
            assert diag["trading.long_lots"] + diag["trading.short_lots"] == abs(steps["position_lots"]).sum()
            for name in ("orders", "fills", "trades"):
                assert diag[f"trading.{name}"] == len(tables[name]["lane"])
            for kind, branches in (("picked", ("direction", "magnitude", "order", "urgency")), ("actual", ("direction", "magnitude"))):
                for branch in branches:
                    values = steps[f"{kind}_{branch}"]
                    names = [name for name in diag if name.startswith(f"{kind}.{branch}_")]
                    assert [diag[name] for name in names] == [int((values == code).sum()) for code in range(len(names))], branch
            assert diag["lanes.not_played"] == (steps["end_reason"] == EndReason.NOT_PLAYED).sum()
            assert diag["end.capital_floor"] == (steps["end_reason"] == EndReason.CAPITAL_FLOOR).sum()
            final = np.isin(steps["end_reason"], [EndReason.WINDOW_END, EndReason.STEP_LIMIT, EndReason.TAPE_END])
            assert diag["end.final"] == final.sum()
            locked = (steps["picked_direction"] != Direction.HOLD) & (steps["locked_direction"] == Direction.HOLD)
            assert diag["gate.plan_lock"] == locked.sum()
            assert diag["gate.variance_scale"] == ((steps["scaled_lots"] > 0) & (steps["variance_scale_ppm"] < PPM)).sum()
            assert diag["trading.trades_cum"] == env.state[TRADE_COUNT, : env.lanes].sum()
            assert diag["end.session_close"] == (steps["end_reason"] == EndReason.SESSION_CLOSE).sum()
            assert diag["gate.trail_stop"] == (steps["trail_triggered"] == 1).sum()
            assert diag["gate.capital_floor"] == (steps["floor_triggered"] == 1).sum()
            sized = steps["scaled_lots"] > 0
            margin = steps["margin_cap_lots"] < steps["scaled_lots"]
            kelly = steps["kelly_cap_lots"] < np.minimum(steps["scaled_lots"], steps["margin_cap_lots"])
            assert diag["gate.margin_cap"] == (margin & sized).sum()
            assert diag["gate.kelly_cap"] == (kelly & sized).sum()
            assert diag["lanes.played"] == (steps["picked_action"] >= 0).sum() == env.decided.sum()


def one_step(env, inputs, step):
    """Play one decision, or the drain; every table's rows of it."""
    import torch

    from lob.picks import Picks

    if step < env.schedule.decisions:
        env.step(Picks(*(torch.from_numpy(row.copy()) for row in inputs[step])))
    else:
        env.drain()
    return {name: env.rows(name) for name in env.emit}


# --- metamorphic laws


def final_cash(tape, schedule, terms, inputs):
    env = Env(tape, schedule, features(schedule), terms, inputs.shape[2], Phase.EVAL)
    steps = gather(env, inputs)["steps"]
    return steps["cash_usd_micros"].reshape(-1, env.lanes), steps


def open_inputs(seed, decisions, lanes=8):
    """Random actions with every gate input at one, so that sizes do not depend on money."""
    inputs = np.full((decisions, 4, lanes), PPM, np.int32)
    inputs[:, 0] = np.random.default_rng(seed).integers(0, 108, (decisions, lanes))
    return inputs


@pytest.mark.parametrize("k", [2, 7, 1000])
def test_a_multiplier_k_times_as_large_scales_every_dollar_by_k(k):
    """Law 2: with capital, floor, fee and margin k times as large, so is all the rest."""
    tape = random_tape(11, events=160, volatility=2.0)
    schedule = slow_schedule(tape, second_ticks(tape), 0, 5)
    inputs = random_inputs(CASES[0]._replace(lanes=8), schedule.decisions)
    terms = {"capital_usd_micros": 10**11, "floor_usd_micros": 98 * 10**9, "fee_usd_micros": 2_250_001, "margin_usd_micros": 2 * 10**10 + 7}
    cash, steps = final_cash(tape, schedule, EnvConfig(max_lots=5, trail_ticks=12, **terms), inputs)
    large = replace(tape, instrument=replace(ES, multiplier=ES.multiplier * k))
    scaled = EnvConfig(max_lots=5, trail_ticks=12, **{name: value * k for name, value in terms.items()})
    cash_k, steps_k = final_cash(large, schedule, scaled, inputs)
    assert (cash * k == cash_k).all()
    for name in ("realized_usd_micros", "unrealized_usd_micros", "fee_usd_micros", "equity_usd_micros", "reward_raw"):
        assert (steps[name] * k == steps_k[name]).all(), name
    for name in ("position_lots", "end_reason", "actual_action", "kelly_ppm", "margin_cap_lots"):
        assert (steps[name] == steps_k[name]).all(), name


def mirrored(tape):
    """Prices negated: what was bid is ask."""
    return replace(tape, bid_ticks=-tape.ask_ticks, ask_ticks=-tape.bid_ticks, bid_lots=tape.ask_lots, ask_lots=tape.bid_lots)


def test_negated_prices_and_sides_earn_the_same_and_negated_sides_alone_earn_the_opposite_gross():
    tape = random_tape(12, events=200, volatility=2.0)
    schedule, mirror_schedule = (slow_schedule(t, second_ticks(tape), 0, 6) for t in (tape, mirrored(tape)))
    inputs = open_inputs(3, schedule.decisions)
    direction = inputs[:, 0] // 27
    flipped = inputs.copy()
    flipped[:, 0] += np.where(direction == 0, 54, np.where(direction == 2, -54, 0)).astype(np.int32)
    terms = rich(max_lots=6, trail_ticks=15)
    cash, steps = final_cash(tape, schedule, terms, inputs)
    cash_mirror, steps_mirror = final_cash(mirrored(tape), mirror_schedule, terms, flipped)
    assert (steps["position_lots"] == -steps_mirror["position_lots"]).all()
    assert (steps["trail_triggered"] == steps_mirror["trail_triggered"]).all()
    assert (cash[-1] == cash_mirror[-1]).all(), "remainders may leave at another time, never in another sum"
    flat = (steps["position_lots"] == 0).reshape(cash.shape)
    assert (cash[flat] == cash_mirror[flat]).all()

    fee_free = rich(max_lots=6, trail_ticks=0, fee_usd_micros=0)
    wide = replace(tape, ask_ticks=tape.bid_ticks + 1, bid_lots=tape.bid_lots * 0 + MILLION, ask_lots=tape.ask_lots * 0 + MILLION)
    long_cash, long_steps = final_cash(wide, schedule, fee_free, inputs)
    short_cash, _ = final_cash(wide, schedule, fee_free, flipped)
    turnover = abs(np.diff(long_steps["position_lots"].reshape(long_cash.shape), axis=0, prepend=0)).sum(axis=0)
    spread = turnover * ES.tick_value_usd_micros
    assert (long_cash[-1] + short_cash[-1] == 2 * 10**13 - spread).all(), "opposite gross; both pay half a tick a lot"


def test_fees_cost_lots_times_fee_and_nothing_else():
    tape = random_tape(13, events=160, volatility=2.0)
    schedule = slow_schedule(tape, second_ticks(tape), 0, 6)
    inputs = open_inputs(4, schedule.decisions)
    free, steps = final_cash(tape, schedule, rich(max_lots=6, trail_ticks=9, fee_usd_micros=0), inputs)
    paid, steps_paid = final_cash(tape, schedule, rich(max_lots=6, trail_ticks=9, fee_usd_micros=1_234_567), inputs)
    assert (steps["position_lots"] == steps_paid["position_lots"]).all()
    fees = steps_paid["fee_usd_micros"].reshape(paid.shape).sum(axis=0)
    assert (fees > 0).all()
    assert (fees % 1_234_567 == 0).all()
    assert (free[-1] - paid[-1] == fees).all()


def test_whole_tick_values_give_whole_tick_dollars():
    """T49: without fees, every realised dollar of ES is a multiple of $12.50."""
    tape = random_tape(14, events=160)
    schedule = slow_schedule(tape, second_ticks(tape), 0, 6)
    _, steps = final_cash(tape, schedule, rich(max_lots=6, fee_usd_micros=0), open_inputs(5, schedule.decisions))
    assert (steps["realized_usd_micros"] % 12_500_000 == 0).all()


def test_excursions_bound_what_a_trade_brought_before_fees(played):
    for _, rows in played:
        trades = rows["trades"]
        assert (trades["mfe_usd_micros"] >= 0).all()
        assert (trades["mae_usd_micros"] <= 0).all()
        gross = trades["realized_usd_micros"] + trades["fee_usd_micros"]
        assert (trades["mae_usd_micros"] <= gross).all() and (gross <= trades["mfe_usd_micros"]).all()
        assert (trades["bars_held"] >= 0).all()
        assert (trades["ts_entry_ns"] <= trades["ts_exit_ns"]).all() or (trades["exit_reason"] == FillReason.FLOOR).any()


def test_excursions_are_those_of_the_marks_when_the_exit_lies_between_them():
    books = [([(m, 99)], [(m + 1, 99)]) for m in (100, 100, 110, 95, 103, 103, 103)]
    trades = scripted(book_tape(books), rich(max_lots=2), [HOLD, LONG, HOLD, HOLD, FLAT])["trades"]
    half_ticks = [2 * m + 1 - 2 * 101 for m in (110, 95)]
    assert trades["mfe_usd_micros"].tolist() == [2 * half_ticks[0] * 6_250_000]
    assert trades["mae_usd_micros"].tolist() == [2 * half_ticks[1] * 6_250_000]
    assert trades["bars_held"].tolist() == [3]


def test_adding_and_reducing_keeps_one_entry_and_a_reversal_begins_another():
    trades = scripted(book_tape([DEEP] * 8), rich(max_lots=4), [LONG_QUARTER, LONG, LONG_HALF, SHORT, FLAT])["trades"]
    assert trades["lots"].tolist() == [2, 2, 4]
    assert trades["bars_held"].tolist() == [2, 3, 1]
    assert len(set(trades["ts_entry_ns"].tolist())) == 2


@pytest.mark.deep
def test_a_million_episodes_leave_no_dollar_unexplained():
    """Wins less losses of the closed trades is the change of cash, on a million random accounts."""
    import torch

    from cuda_env import state as s
    from lob.picks import Picks

    lanes, played_lanes = 8192, 0
    for seed in range(123):
        tape = random_tape(seed, events=120, volatility=3.0)
        schedule = slow_schedule(tape, second_ticks(tape), 10**6, 9)
        env = Env(tape, schedule, features(schedule), EnvConfig(max_lots=9, trail_ticks=20), lanes, Phase.TRAIN, emit=())
        rng = np.random.default_rng(seed)
        inputs = Picks(*(torch.from_numpy(rng.integers(0, PPM + 1, lanes).astype(np.int32)) for _ in range(4)))
        env.run_steps(torch.from_numpy(rng.integers(0, 108, (schedule.decisions, lanes), np.int32)), inputs)
        env.drain()
        state = env.state[:, :lanes]
        assert (state[s.POSITION] == 0).all()
        assert torch.equal(state[s.CASH], state[s.EQUITY])
        assert torch.equal(env.config.capital_usd_micros + state[s.SUM_WIN] - state[s.SUM_LOSS], state[s.CASH])
        assert (state[s.COST] == 0).all()
        assert (state[s.OPEN_FEE] == 0).all()
        played_lanes += lanes
    assert played_lanes > 10**6
