"""Laws of windows and restarts: each episode's money adds up, no lane leaves its window, a new episode knows nothing of the old."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from cuda_env import state as s
from cuda_env.config import EnvConfig
from cuda_env.env import Env
from lob.actions import EndReason, Phase
from lob.errors import BadInput
from lob.layout import LANE, LANE_SLOTS
from lob.picks import Picks
from lob.windows import closes, decision_rows, window_of
from tests.env_play import FLAT, HOLD, LONG
from tests.market_maker import SECOND, book_tape, features, random_tape, session_windows, slow_schedule
from tests.oracle_philox import philox4x32_10

SESSIONS, LATENCY = 4, 2 * 10**6
TIGHT = {
    "capital_usd_micros": 40_000_000_000,
    "floor_usd_micros": 37_500_000_000,
    "margin_usd_micros": 10**9,
    "max_lots": 4,
    "trail_ticks": 20,
}
SEED = 2**63 + 11
START_PURPOSE = 0x73747274
FINAL = {EndReason.WINDOW_END, EndReason.STEP_LIMIT, EndReason.TAPE_END}
REASONS = (EndReason.WINDOW_END, EndReason.TAPE_END)


def make(lanes=32, restarts=SEED, seed=3, events=240, **options):
    tape = random_tape(seed, events, SESSIONS)
    plan = session_windows(tape, SESSIONS, LATENCY, 4, reasons=REASONS)
    return Env(tape, plan, features(plan, seed), EnvConfig(**TIGHT), lanes, Phase.TRAIN, restarts=restarts, **options)


def random_picks(rng, lanes):
    actions = rng.integers(0, 108, lanes)
    inputs = rng.integers(0, 10**6 + 1, (3, lanes))
    return Picks(*(torch.from_numpy(row.astype(np.int32)) for row in (actions, *inputs)))


def played(env, steps, seed=0, close=True):
    """(per step) copies of what the environment wrote, tables' rows and the state before and after included."""
    rng = np.random.default_rng(seed)
    names = ("row", "played_row", "last_row", "decided", "closed", "reward_raw", "end_reason", "last_observation")
    for step in range(steps + close):
        before = {"state": env.state[:, : env.lanes].clone(), "observation": env.observe().clone(), "coming": env.row.clone()}
        if step < steps:
            env.step(random_picks(rng, env.lanes))
        else:
            env.close_all()
        tables = {name: env.rows(name) for name in env.emit}
        yield before | {name: getattr(env, name).clone() for name in names} | {"tables": tables, "diag": env.diag()}


def total(rows, column, of="lane", value=None):
    chosen = slice(None) if value is None else rows[of] == value
    return int(rows[column][chosen].sum())


def test_every_episodes_money_adds_up_and_diag_counts_no_restart_as_gain():
    env = make()
    window = window_of(env.schedule)
    capital = env.config.capital_usd_micros
    equity = {}  # (lane, episode) -> [rewards, first equity, last equity, realised by steps, realised by trades]
    realized = fees = restarts = 0
    ended = set()
    at = [int(row) for row in env.row]
    for step in played(env, 3000):
        steps, trades, diag = step["tables"]["steps"], step["tables"]["trades"], step["diag"]
        for lane in range(env.lanes):
            key = (lane, int(steps["episode"][lane]))
            before = equity.setdefault(key, [0, int(step["state"][s.EQUITY, lane]), 0, 0, 0])
            before[0] += int(steps["reward_raw"][lane])
            before[2] = int(steps["equity_usd_micros"][lane])
            before[3] += int(steps["realized_usd_micros"][lane])
            assert steps["reward_raw"][lane] == step["reward_raw"][lane]
            assert steps["step"][lane] == diag["step"]
        for lane, episode, gain in zip(trades["lane"], trades["episode"], trades["realized_usd_micros"], strict=True):
            equity[(int(lane), int(episode))][4] += int(gain)
        realized += total(steps, "realized_usd_micros")
        fees += total(steps, "fee_usd_micros")
        assert diag["trading.realized_pnl_usd_micros_delta"] == total(steps, "realized_usd_micros")
        assert diag["trading.realized_pnl_usd_micros_cum"] == realized
        assert diag["trading.fee_usd_micros_cum"] == fees
        assert diag["trading.reward_raw_usd_micros"] == total(steps, "reward_raw")
        assert diag["trading.equity_usd_micros"] == total(steps, "equity_usd_micros")
        assert diag["lanes.played"] == int(step["decided"].sum())
        over = np.isin(steps["end_reason"], [*FINAL, EndReason.CAPITAL_FLOOR])
        ended |= {int(reason) for reason in np.unique(steps["end_reason"])}
        restarts += int(over.sum())
        for lane in range(env.lanes):
            assert step["played_row"][lane] == at[lane], "a lane plays the row that it was to play"
            at[lane] = int(step["row"][lane])
            if not over[lane] and diag["step"] < 3000:
                assert at[lane] == step["played_row"][lane] + 1 <= window.last_row[step["played_row"][lane]], "a lane left its window"
    assert restarts > 1000 and ended >= {0, *REASONS, EndReason.CAPITAL_FLOOR, EndReason.STEP_LIMIT}
    for (lane, episode), (rewards, first, last, by_steps, by_trades) in equity.items():
        assert rewards == last - first, (lane, episode)
        assert first == capital or (lane, episode - 1) in equity
        assert by_steps == by_trades == last - first, "flat at both ends"


def test_no_position_is_carried_over_a_restart_and_nothing_else_is_either():
    env = make()
    fresh = torch.tensor(s.reset_values(env.config.capital_usd_micros))
    counters = [s.CLOCK, s.EPISODE, s.CURSOR, s.ORDER_COUNT, s.FILL_COUNT, s.TRADE_COUNT]
    others = [i for i in range(len(s.FIELDS)) if i not in counters]
    restarted = 0
    for step in played(env, 400, close=False):
        over = torch.isin(step["end_reason"], torch.tensor([*FINAL, EndReason.CAPITAL_FLOOR], dtype=torch.int8))
        after = env.state[:, : env.lanes]
        assert torch.equal(after[others][:, over], fresh[others][:, None].expand(-1, int(over.sum())))
        assert (after[s.EPISODE, over] == step["state"][s.EPISODE, over] + 1).all()
        assert (after[s.CLOCK] == step["state"][s.CLOCK] + 1).all()
        assert (after[s.ORDER_COUNT] >= step["state"][s.ORDER_COUNT]).all(), "log counters go on"
        rows = step["tables"]["steps"]
        assert (rows["position_lots"][over.numpy()] == 0).all(), "an episode that is over holds nothing"
        restarted += int(over.sum())
    assert restarted > 200


def test_the_first_observation_after_a_restart_is_that_of_a_fresh_environment_at_that_row():
    env = make()
    restarted = 0
    for step in played(env, 200, close=False):
        over = torch.isin(step["end_reason"], torch.tensor([*FINAL, EndReason.CAPITAL_FLOOR], dtype=torch.int8))
        seen = env.observe()[over]
        unborn = make(lanes=max(1, int(over.sum())), restarts=1, emit=())
        unborn.row[: int(over.sum())] = env.row[over]
        assert torch.equal(seen, unborn.observe()[: int(over.sum())])
        restarted += int(over.sum())
    assert restarted > 100


def test_the_last_observation_and_its_row_are_the_old_episodes():
    """What the lane would have seen next had it not begun anew: the twin that plays the same without restarts shows it."""
    rng = np.random.default_rng(9)
    env, twin = make(), make(restarts=None)
    compared = 0
    for _ in range(60):
        twin.state.copy_(env.state)
        picks = random_picks(rng, env.lanes)
        env.step(picks)
        twin.step(picks)
        ended = env.terminated | env.truncated
        assert torch.equal(ended, twin.terminated | twin.truncated)
        assert torch.equal(env.last_observation[ended], twin.observe()[ended])
        assert torch.equal(env.last_row[ended], twin.row[ended])
        compared += int(ended.sum())
    assert compared > 50


def test_starts_are_drawn_by_seed_lane_and_episode_over_every_decision_of_every_window():
    env = make(lanes=64, first_lane=1000)
    rows = decision_rows(env.schedule)
    drains = {window.drain for window in env.schedule.windows}
    assert set(rows.tolist()) == set(range(env.schedule.rows)) - drains

    def drawn(lane, episode):
        word = philox4x32_10((lane, episode, START_PURPOSE, 0), (SEED & 0xFFFFFFFF, SEED >> 32))[0]
        return int(rows[word * len(rows) >> 32])

    assert env.row.tolist() == [drawn(1000 + lane, 0) for lane in range(64)]
    seen = env.row.tolist()
    for step in played(env, 600, close=False):
        over = torch.isin(step["end_reason"], torch.tensor([*FINAL, EndReason.CAPITAL_FLOOR], dtype=torch.int8))
        for lane in torch.nonzero(over)[:, 0].tolist():
            assert int(env.row[lane]) == drawn(1000 + lane, int(env.state[s.EPISODE, lane]))
            seen.append(int(env.row[lane]))
    counts = np.bincount(np.searchsorted(rows, seen), minlength=len(rows))
    expected = len(seen) / len(rows)
    chi2 = ((counts - expected) ** 2 / expected).sum()
    degrees = len(rows) - 1
    assert len(seen) > 1000 and abs(chi2 - degrees) < 5 * (2 * degrees) ** 0.5, "uniform over the decision rows"


def test_processes_that_share_lanes_play_what_one_process_plays():
    whole = make(lanes=24)
    halves = [make(lanes=12, first_lane=first) for first in (0, 12)]
    rng = np.random.default_rng(4)
    for _ in range(150):
        picks = random_picks(rng, 24)
        whole.step(picks)
        for i, half in enumerate(halves):
            half.step(Picks(*(values[12 * i : 12 * i + 12].clone() for values in picks)))
        one = whole.rows("trades")
        two = [half.rows("trades") for half in halves]
        assert all(np.array_equal(one[name], np.concatenate([part[name] for part in two])) for name in one)
        diags = [half.diag() for half in halves]
        for name in ("trading.realized_pnl_usd_micros_cum", "trading.equity_usd_micros", "lanes.played", "trading.fills"):
            assert whole.diag()[name] == sum(diag[name] for diag in diags)
    assert torch.equal(whole.state[:, :24], torch.cat([half.state[:, :12] for half in halves], dim=1))


def evaluated(lanes, picks_of, **options):
    """The rows of `steps` of an evaluation to its end, by step."""
    env = make(lanes=lanes, restarts=None, **options)
    longest = max(drain - first for first, drain, _ in env.schedule.windows)
    out = []
    for step in range(longest + 1):
        env.step(picks_of(step))
        out.append((env.rows("steps"), env.decided.clone(), env.closed.clone()))
    return env, out


def test_in_an_evaluation_lane_i_plays_window_i_mod_w_once_and_is_drained_where_it_ends():
    rng = np.random.default_rng(1)
    env, rows = evaluated(6, lambda _: random_picks(rng, 6))
    windows = env.schedule.windows
    assert len({drain - first for first, drain, _ in windows}) > 1, "windows of unequal length"
    for lane in range(6):
        first, drain, reason = windows[lane % len(windows)]
        mine = [{name: values[lane] for name, values in table.items()} for table, _, _ in rows]
        decisions = drain - first
        assert [r["is_drain"] for r in mine] == [int(step == decisions) for step in range(len(mine))]
        assert [bool(closed[lane]) for _, _, closed in rows] == [step == decisions for step in range(len(mine))]
        times = env.schedule.ts_decided_ns[first : drain + 1]
        assert [r["ts_decided_ns"] for r in mine[: decisions + 1]] == times.tolist()
        drained = mine[decisions]
        assert drained["end_reason"] in (reason, EndReason.CAPITAL_FLOOR, EndReason.NOT_PLAYED) and drained["position_lots"] == 0
        for later in mine[decisions + 1 :]:
            assert later["end_reason"] == EndReason.NOT_PLAYED and later["picked_action"] == -1 and later["reward_raw"] == 0
            assert later["equity_usd_micros"] == drained["equity_usd_micros"] and later["ts_decided_ns"] == times[-1]
            assert later["mark_row"] == drained["mark_row"]
    assert (env.state[s.STATUS, :6] == s.DRAINED).all()
    assert env.diag()["lanes.not_played"] + env.diag()["end.final"] + env.diag()["end.capital_floor"] == 6


def test_a_lane_of_a_joined_plan_plays_as_it_plays_its_window_alone():
    tape = random_tape(3, 240, SESSIONS)
    plan = session_windows(tape, SESSIONS, LATENCY, 4, reasons=REASONS)
    rng = np.random.default_rng(2)
    longest = max(drain - first for first, drain, _ in plan.windows)
    picks = [random_picks(rng, 1) for _ in range(longest)]
    for i, (first, drain, _) in enumerate(plan.windows):
        own = session_windows(tape, SESSIONS, LATENCY, 4, reasons=REASONS)
        alone = Env(tape, part_of(own, i), features(plan, 3)[first : drain + 1], EnvConfig(**TIGHT), 1, Phase.TRAIN)
        _, joined = evaluated(SESSIONS, lambda step: Picks(*(values.repeat(SESSIONS) for values in picks[min(step, longest - 1)])))
        for step in range(drain - first + 1):
            if step < drain - first:
                alone.step(picks[step])
            else:
                alone.drain()
            one = alone.rows("steps")
            for name, values in one.items():
                if name != "lane":
                    assert np.ma.allequal(values, joined[step][0][name][i : i + 1]), name


def part_of(plan, i):
    """The i-th window of a joined plan as a schedule of its own."""
    first, drain, reason = plan.windows[i]
    rows = ("ts_decided_ns", "observed_event", "ts_observed_ns", "mark_event", "fill_event", "ts_arrived_ns", "ts_filled_ns", "session")
    held = ("low_held_mid2", "high_held_mid2", "low_after_mid2", "high_after_mid2", "closes_session")
    columns = {name: getattr(plan, name)[first : drain + 1] for name in rows} | {name: getattr(plan, name)[first:drain] for name in held}
    return replace(plan, **columns, final_reason=reason, joined=())


def test_a_plan_that_is_not_joined_refuses_to_go_past_its_end():
    tape = random_tape(3, 240, SESSIONS)
    plan = part_of(session_windows(tape, SESSIONS, LATENCY, 4), 1)
    env = Env(tape, plan, features(plan), EnvConfig(**TIGHT), 2, Phase.EVAL)
    for _ in range(plan.decisions):
        env.step(random_picks(np.random.default_rng(0), 2))
    with pytest.raises(BadInput, match="call drain"):
        env.step(random_picks(np.random.default_rng(0), 2))


def test_a_forced_close_meets_the_first_deep_row_after_the_last_fill_and_the_decision_that_comes_no_more():
    """By linear search; and a lane closed before decision d ends as one whose window has the step limit d."""
    tape = random_tape(5, 240, SESSIONS, depth=2)
    for max_lots in (1, 4, 9):
        plan = session_windows(tape, SESSIONS, LATENCY, max_lots)
        at = closes(tape, plan, max_lots)
        depth = np.minimum(tape.bid_lots.sum(axis=1), tape.ask_lots.sum(axis=1)).tolist()
        for first, drain, _ in plan.windows:
            for d in range(first, drain + 1):
                after = -1 if d == first else int(plan.fill_event[d - 1])
                e = next(
                    e
                    for e in range(after + 1, tape.events)
                    if tape.tradable[e] and depth[e] >= max_lots and tape.ts_event_ns[e] >= plan.ts_decided_ns[d]
                )
                expected = plan.fill_event[drain] if d == drain else e
                assert at.event[d] == expected <= plan.fill_event[drain]
                assert at.ts_ns[d] == tape.ts_event_ns[expected]
                received = [i for i in range(expected + 1) if tape.ts_recv_ns[i] <= tape.ts_event_ns[expected]]
                if d < drain:
                    assert at.ts_observed_ns[d] == tape.ts_recv_ns[received[-1]]


def test_a_forced_close_never_meets_the_row_that_the_last_order_filled_on():
    """What that row showed is gone: the order may have taken it, at the very tick at which the next decision would have come."""
    tape = book_tape([([(100, 5)], [(101, 5)])] * 5)
    tape = replace(tape, tradable=np.array([True, False, True, True, True]))
    plan = slow_schedule(tape, [SECOND, 2 * SECOND, 3 * SECOND], 0, 5)
    assert plan.fill_event.tolist()[1] == 2 and plan.ts_decided_ns[2] == tape.ts_event_ns[2] == plan.ts_filled_ns[1]
    assert closes(tape, plan, 5).event[2] == 3


@pytest.mark.parametrize("steps", [1, 7, 20])
def test_close_all_leaves_every_lane_flat_with_a_row_of_its_own_and_none_begins_anew(steps):
    env = make()
    rng = np.random.default_rng(steps)
    for _ in range(steps):
        env.step(random_picks(rng, env.lanes))
    held, coming = env.state[s.POSITION, : env.lanes].clone(), env.row.clone()
    env.close_all()
    rows, fills = env.rows("steps"), env.rows("fills")
    assert held.any() and not env.state[s.POSITION, : env.lanes].any()
    assert (rows["is_drain"] == 1).all() and env.closed.all() and not env.decided.any()
    assert torch.equal(env.played_row, coming)
    at_end = np.isin(coming.numpy(), [window.drain for window in env.schedule.windows])
    limit = rows["end_reason"] == EndReason.STEP_LIMIT
    assert np.array_equal(limit, ~at_end & (rows["end_reason"] != EndReason.CAPITAL_FLOOR)) and limit.any()
    event = env.closes.event[coming.numpy()]
    assert np.array_equal(rows["mark_row"], env.tape.row[event])
    assert np.array_equal(rows["ts_decided_ns"], env.tape.ts_event_ns[event])
    assert np.array_equal(fills["market_row"], env.tape.row[event][fills["lane"]])
    assert np.array_equal(fills["ts_filled_ns"], env.tape.ts_event_ns[event][fills["lane"]])
    assert (env.state[s.STATUS, : env.lanes] == s.DRAINED).all()


def test_history_is_the_market_slots_of_the_rows_before_in_the_same_window_and_zeros_before_its_start():
    env = make()
    features_of = env.world.features.numpy()
    rng = np.random.default_rng(0)
    short = 0
    for _ in range(30):
        env.step(random_picks(rng, env.lanes))
        for width in (1, 5, 16):
            seen = env.history(width)
            assert seen.shape == (env.lanes, width, LANE) and seen.dtype == torch.float32
            for lane in range(env.lanes):
                row = int(env.row[lane])
                first = next(window.first for window in env.schedule.windows if window.first <= row <= window.drain)
                expected = np.zeros((width, LANE), np.float32)
                for back in range(width):
                    if row - back >= first:
                        expected[width - 1 - back] = features_of[row - back, :LANE]
                short += row - width + 1 < first
                assert expected.tobytes() == seen[lane].numpy().tobytes()
    assert short > 0
    rows = torch.tensor([3, 0, env.schedule.windows[1].first])
    assert not env.history(4, rows)[1, :3].any() and not env.history(4, rows)[2, :3].any()


def test_the_assembler_gives_the_observation_bit_for_bit():
    env = make()
    rng = np.random.default_rng(0)
    kept = []
    for _ in range(40):
        seen = env.observe()
        kept.append((env.row.clone(), seen[:, LANE : LANE + len(LANE_SLOTS)].clone(), seen.clone()))
        env.step(random_picks(rng, env.lanes))
        ended = env.terminated | env.truncated
        last = env.assemble(env.last_row[ended], env.last_observation[ended][:, LANE : LANE + len(LANE_SLOTS)])
        assert torch.equal(last, env.last_observation[ended])
    rows, lane_rows, seen = (torch.cat(parts) for parts in zip(*kept, strict=True))
    assert env.assemble(rows, lane_rows).numpy().tobytes() == seen.numpy().tobytes()
    assert not torch.equal(env.assemble(rows, torch.zeros_like(lane_rows)), seen)


def test_a_resumed_environment_plays_what_the_uninterrupted_one_plays():
    one, other = make(), make(seed=3)
    rng = np.random.default_rng(7)
    for _ in range(80):
        one.step(random_picks(rng, one.lanes))
    saved = {name: tensor.clone() for name, tensor in one.state_dict().items()}
    addresses = [tensor.data_ptr() for tensor in other.state_dict().values()]
    other.load_state_dict(saved)
    assert [tensor.data_ptr() for tensor in other.state_dict().values()] == addresses
    for _ in range(80):
        picks = random_picks(rng, one.lanes)
        assert torch.equal(one.observe(), other.observe())
        one.step(picks)
        other.step(picks)
        assert one.diag() == other.diag()
        for table in one.emit:
            a, b = one.rows(table), other.rows(table)
            assert all(np.ma.allequal(a[name], b[name]) for name in a)
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in one.state_dict().items())
    assert not torch.equal(saved["state"], one.state), "what was saved is a copy of its own"


def test_a_state_of_other_lanes_or_another_version_is_refused_in_one_line():
    saved = make(lanes=32).state_dict()
    with pytest.raises(BadInput, match="resume with the lanes"):
        make(lanes=16).load_state_dict(saved)
    with pytest.raises(BadInput, match=r"sums\.moved is missing or unknown"):
        make(lanes=32).load_state_dict({name: tensor for name, tensor in saved.items() if name != "sums.moved"})


def test_a_step_at_the_drain_uses_no_pick():
    env = make(restarts=None, lanes=SESSIONS)
    long, hold = (
        Picks(*(torch.full((SESSIONS,), value, dtype=torch.int32) for value in (action, 10**6, 10**6, 10**6))) for action in (LONG, HOLD)
    )
    longest = max(drain - first for first, drain, _ in env.schedule.windows)
    for step in range(longest + 1):
        env.step(long if step == 0 else hold)
        drained = env.closed & (env.end_reason != EndReason.NOT_PLAYED)
        assert not (env.decided & env.closed).any()
        rows = env.rows("steps")
        assert (rows["picked_action"][drained.numpy()] == -1).all()
        assert env.diag()["lanes.played"] == int(env.decided.sum())
    env.step(Picks(*(torch.full((SESSIONS,), value, dtype=torch.int32) for value in (FLAT, 0, 0, 0))))
    assert not env.decided.any() and not env.reward_raw.any()
