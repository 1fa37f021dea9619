"""The environment as its callers see it: buffers, errors, reset, rows."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from cuda_env import state as s
from cuda_env.config import EnvConfig
from cuda_env.env import EMIT, Env
from cuda_env.tables import FILLS, ORDERS, STEPS, TRADES
from lob.actions import EndReason, Phase
from lob.errors import BadInput
from lob.layout import LANE, LANE_SLOTS
from lob.picks import Picks
from tests.market_maker import features, random_tape, second_ticks, slow_schedule

LANES = 8
TABLES = {"steps": STEPS, "orders": ORDERS, "fills": FILLS, "trades": TRADES}


def make(seed=1, lanes=LANES, emit=EMIT, **config):
    tape = random_tape(seed, events=200)
    schedule = slow_schedule(tape, second_ticks(tape), 2 * 10**6, 4)
    return Env(tape, schedule, features(schedule), EnvConfig(max_lots=4, **config), lanes, Phase.EVAL, emit=emit)


def picks(actions, conviction=10**6, health=10**6, variance_scale=10**6):
    actions = torch.as_tensor(np.asarray(actions), dtype=torch.int32)
    full = [torch.full_like(actions, value) for value in (conviction, health, variance_scale)]
    return Picks(actions, *full)


def random_picks(rng, lanes=LANES):
    return picks(rng.integers(0, 108, lanes))


def play(env, seed=0, upto=None):
    rng = np.random.default_rng(seed)
    for _ in range(env.schedule.decisions if upto is None else upto):
        env.step(random_picks(rng, env.lanes))


def test_buffers_keep_their_addresses():
    env = make()
    names = ("reward_raw", "terminated", "truncated", "end_reason", "observation", "last_observation", "state")
    before = [getattr(env, name).data_ptr() for name in names]
    play(env)
    env.drain()
    env.reset(torch.ones(LANES, dtype=torch.bool))
    env.observe()
    assert [getattr(env, name).data_ptr() for name in names] == before
    assert env.observe().data_ptr() == env.observation.data_ptr()


@pytest.mark.parametrize("action", [-1, 108, 2**31 - 1, -(2**31)])
def test_an_action_out_of_range_is_refused_naming_lane_and_step(action):
    env = make()
    play(env, upto=3)
    actions = np.full(LANES, 77)
    actions[5] = action
    with pytest.raises(BadInput, match=r"^lane 5, step 3: the action is outside 0\.\.107$"):
        env.step(picks(actions))


def test_a_gate_input_out_of_range_is_refused():
    for name in ("conviction", "health", "variance_scale"):
        for value in (-1, 10**6 + 1):
            with pytest.raises(BadInput, match=r"^lane 0, step 0: conviction_ppm"):
                make().step(picks([77] * LANES, **{name: value}))


def test_stepping_past_the_last_decision_and_draining_before_it_are_refused():
    env = make()
    with pytest.raises(BadInput, match="drain was asked for before"):
        env.drain()
    env = make()
    play(env)
    with pytest.raises(BadInput, match="call drain"):
        env.step(picks([27] * LANES))


def test_each_table_has_the_declared_columns_and_types():
    env = make(trail_ticks=8)
    play(env)
    for name, table in TABLES.items():
        rows = env.rows(name)
        assert tuple(rows) == table.names
        for column in table.columns:
            assert rows[column.name].dtype == np.dtype(column.dtype), column.name
            assert isinstance(rows[column.name], np.ma.MaskedArray) == column.nullable, column.name


def test_a_table_that_is_not_emitted_is_refused_and_one_that_is_unknown_too():
    env = make(emit=("trades",))
    with pytest.raises(BadInput, match="not emitted"):
        env.rows("steps")
    with pytest.raises(BadInput, match="emit wealth"):
        make(emit=("wealth",))


def test_rows_once_given_do_not_change_with_later_steps():
    env = make(trail_ticks=8)
    rng = np.random.default_rng(1)
    for _ in range(5):
        env.step(random_picks(rng))
    given = {name: env.rows(name) for name in TABLES}
    copies = {name: {column: values.copy() for column, values in rows.items()} for name, rows in given.items()}
    env.step(random_picks(rng))
    for name in TABLES:
        for column in copies[name]:
            assert np.ma.allequal(given[name][column], copies[name][column]), column
            assert not np.shares_memory(given[name][column], env.world.state.numpy())


def test_nothing_received_after_a_decision_changes_what_came_before_it():
    """No look-ahead: other prices after the rows that decision d has seen leave every observation up to d and every earlier row alone."""
    tape = random_tape(21, events=200)
    schedule = slow_schedule(tape, second_ticks(tape), 2 * 10**6, 4)
    d = schedule.decisions // 2
    later = np.arange(tape.events) > schedule.observed_event[d]
    shift = np.where(later, 700, 0).astype(np.int32)[:, None]
    changed = replace(
        tape, bid_ticks=tape.bid_ticks + shift, ask_ticks=tape.ask_ticks + shift, bid_lots=np.where(later[:, None], 9, tape.bid_lots)
    )
    other = slow_schedule(changed, second_ticks(tape), 2 * 10**6, 4)
    environments = [
        Env(t, p, features(schedule), EnvConfig(max_lots=4), LANES, Phase.EVAL) for t, p in ((tape, schedule), (changed, other))
    ]
    rng = np.random.default_rng(2)
    for step in range(d + 1):
        one, two = (env.observe().clone() for env in environments)
        assert torch.equal(one, two)
        chosen = random_picks(rng)
        for env in environments:
            env.step(chosen)
        if step < d:
            for name in TABLES:
                one, two = (env.rows(name) for env in environments)
                assert all(np.ma.allequal(one[column], two[column]) for column in one)


def test_a_step_that_needs_more_slots_than_there_are_is_refused():
    tape = random_tape(4, events=160, depth=1)
    schedule = slow_schedule(tape, second_ticks(tape), 0, 200)
    env = Env(tape, schedule, features(schedule), EnvConfig(max_lots=200, capital_usd_micros=10**14), LANES, Phase.EVAL, slots=2)
    with pytest.raises(BadInput, match="more orders, fills or trades than there are slots"):
        play(env)


def test_what_is_emitted_changes_nothing_else():
    loud, quiet = make(), make(emit=())
    play(loud)
    play(quiet)
    loud.drain()
    quiet.drain()
    assert torch.equal(loud.state, quiet.state)


def test_reset_touches_the_masked_lanes_only_and_keeps_the_log_counters():
    env = make()
    play(env, upto=10)
    before = env.state.clone()
    mask = torch.zeros(LANES, dtype=torch.bool)
    mask[2] = mask[6] = True
    env.reset(mask)
    kept = torch.tensor(s.kept())
    untouched = torch.ones(env.state.shape[1], dtype=torch.bool)
    untouched[2] = untouched[6] = False
    assert torch.equal(env.state[:, untouched], before[:, untouched])
    counters = kept & (torch.arange(len(s.NAMES)) != s.EPISODE)
    assert torch.equal(env.state[counters], before[counters])
    assert torch.equal(env.state[s.EPISODE, [2, 6]], before[s.EPISODE, [2, 6]] + 1)
    assert env.state[s.CASH, 2] == env.config.capital_usd_micros
    assert env.state[s.CURSOR, 2] == 0


def test_a_reset_begins_the_masked_lanes_at_the_rows_that_it_is_given():
    env = make()
    play(env, upto=10)
    mask = torch.arange(LANES) % 2 == 0
    env.reset(mask, torch.arange(LANES) + 3)
    assert env.row.tolist() == [lane + 3 if mask[lane] else 10 for lane in range(LANES)]
    assert (env.state[s.EQUITY, :LANES][mask] == env.config.capital_usd_micros).all()


def test_the_first_observation_after_a_reset_does_not_depend_on_the_past():
    env = make()
    first = env.observe().clone()
    play(env, upto=12)
    env.reset(torch.ones(LANES, dtype=torch.bool))
    assert torch.equal(env.observe(), first)


def test_lane_state_moves_lane_slots_only():
    env = make()
    lane = range(LANE, LANE + len(LANE_SLOTS))
    market = [i for i in range(128) if i not in lane]
    for _ in range(12):
        env.step(picks(np.arange(LANES) % 4 * 27 + 18))
        seen = env.observe()
        template = torch.from_numpy(features(env.schedule)[int(env.state[s.CURSOR, 0])])
        assert torch.equal(seen[:, market], template[market].expand(LANES, -1))
        assert torch.isfinite(seen).all()
    assert (env.observe()[:, list(lane)].std(dim=0) > 0).any()


def test_the_last_observation_of_an_episode_is_kept():
    env = make()
    env.last_observation.fill_(7)
    for step in range(env.schedule.decisions):
        env.step(picks([77] * LANES))
        ended = env.terminated | env.truncated
        assert torch.equal(ended, env.end_reason > 0)
        seen = env.observe()
        if env.schedule.closes_session[step]:
            assert ended.any()
        assert torch.equal(env.last_observation[ended], seen[ended])


def test_one_lane_alone_plays_as_it_plays_among_others():
    rng = np.random.default_rng(5)
    many, one = make(lanes=300), make(lanes=1)
    for _ in range(many.schedule.decisions):
        action = rng.integers(0, 108, 300)
        many.step(picks(action))
        one.step(picks(action[:1]))
    assert torch.equal(many.state[:, 0], one.state[:, 0])


def test_the_end_of_the_window_truncates_and_everything_is_closed():
    env = make()
    play(env)
    env.drain()
    rows = env.rows("steps")
    living = rows["end_reason"] == EndReason.WINDOW_END
    assert living.any()
    assert (rows["is_drain"] == 1).all()
    assert (rows["position_lots"] == 0).all()
    assert (rows["unrealized_usd_micros"] == 0).all()
    assert torch.equal(env.truncated, torch.from_numpy(living))
