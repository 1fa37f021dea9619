"""The environment as Gymnasium's own tools see it, and its laws against environments of one lane that are made anew for each episode."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env  # noqa: E402
from gymnasium.vector import AutoresetMode, SyncVectorEnv  # noqa: E402
from gymnasium.wrappers.vector import RecordEpisodeStatistics  # noqa: E402

from cuda_env import state as s  # noqa: E402
from cuda_env.env import Env  # noqa: E402
from lob.actions import EndReason, Phase  # noqa: E402
from lob.errors import BadInput, NotFound  # noqa: E402
from lob.picks import Picks  # noqa: E402
from sim.baselines import baselines  # noqa: E402
from sim.episode_options import plan_episodes  # noqa: E402
from sim.gymnasium_env import ID, MarketEnv, MarketVectorEnv  # noqa: E402
from sim.tape import load  # noqa: E402
from store.manifest import read_manifest  # noqa: E402
from tests.one_lane import OneLane, script  # noqa: E402
from tests.test_cli import document, here  # noqa: E402
from tests.window_days import store_of_days  # noqa: E402

LANES = 6
STEPS = 150
MARKET = {"instrument": "ESH4", "start": "2024-03-03T23:00Z", "end": "2024-03-07T22:00Z", "clock": "5m", "latency": "1ms"}
TERMS = {"max_lots": 4, "floor": 98_500, "step_limit": 60, "trail_ticks": 40}
"""Of episodes that end in all ways within `STEPS`: some at the floor, most at the step limit."""


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    return store_of_days(tmp_path_factory.mktemp("market"), 3_000)


def make(store, num_envs=LANES, **options) -> MarketVectorEnv:
    return MarketVectorEnv(num_envs, store, **MARKET | TERMS | options)


def play(envs, actions, seed=5):
    """[(observations, rewards, terminations, truncations, infos)] of a reset and then each action."""
    observations, infos = envs.reset(seed=seed)
    return [(observations, infos), *(envs.step(row) for row in actions)]


def equal(one, two) -> bool:
    """Bit for bit, in nested arrays, dicts and tuples."""
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(equal(one[name], two[name]) for name in one)
    if isinstance(one, tuple | list):
        return len(one) == len(two) and all(map(equal, one, two))
    if one is None or two is None:
        return one is two
    if one.dtype == object:
        return all(map(equal, one, two))
    return one.dtype == two.dtype and np.array_equal(one, two)


def oracle(store, mode) -> SyncVectorEnv:
    config = plan_episodes(store, lanes=LANES, **MARKET | TERMS)
    loaded = load(store, config)
    return SyncVectorEnv([lambda lane=lane: OneLane(loaded, config.env, lane) for lane in range(LANES)], autoreset_mode=mode)


def assert_infos_hold(theirs, ours):
    """Every entry that Gymnasium's own vector writes stands in ours, of the lanes that it writes it for."""
    for name, values in theirs.items():
        if name.startswith("_"):
            continue
        of = theirs[f"_{name}"]
        assert (ours[f"_{name}"] >= of).all(), name
        if isinstance(values, dict):
            assert_infos_hold(values, ours[name])
            continue
        for lane in np.flatnonzero(of):
            assert np.array_equal(values[lane], ours[name][lane]), (name, lane)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_each_autoreset_mode_is_gymnasiums_own_over_lanes_that_know_of_none(store, mode):
    ours, theirs = make(store, autoreset_mode=mode), oracle(store, mode)
    assert ours.metadata["autoreset_mode"] is mode
    both = [ours.reset(seed=5), theirs.reset(seed=[5] * LANES)]
    assert np.array_equal(both[0][0], both[1][0])
    ends = {"terminated": 0, "truncated": 0}
    for actions in script(LANES, STEPS, 1):
        (seen, rewards, terminated, truncated, infos), expected = ours.step(actions), theirs.step(actions)
        for mine, their in zip((seen, rewards, terminated, truncated), expected, strict=False):
            assert mine.dtype == their.dtype
            assert np.array_equal(mine, their)
        assert_infos_hold(expected[4], infos)
        ends["terminated"] += terminated.sum()
        ends["truncated"] += truncated.sum()
        ended = terminated | truncated
        if mode is AutoresetMode.DISABLED and ended.any():
            (seen, infos), expected = ours.reset(options={"reset_mask": ended}), theirs.reset(options={"reset_mask": ended.copy()})
            assert np.array_equal(seen, expected[0])
            assert_infos_hold(expected[1], infos)
    assert min(ends.values()) >= 2, ends


def test_what_same_step_hands_over_is_of_the_lanes_that_ended_alone(store):
    for _, _, terminated, truncated, infos in play(make(store), script(LANES, STEPS, 1))[1:]:
        ended = terminated | truncated
        assert ("final_obs" in infos) == ended.any()
        if ended.any():
            assert np.array_equal(infos["_final_obs"], ended)
            assert np.array_equal(infos["_final_info"], ended)
            assert [value is not None for value in infos["final_obs"]] == ended.tolist()
            assert all(np.array_equal(mask, ended) for name, mask in infos["final_info"].items() if name.startswith("_"))
            capital = infos["equity_usd_micros"][ended]
            assert (capital == 100_000 * 10**6).all()


QUEUES = {"queue_model": "risk_averse", "maker_fee_usd_micros": -500_000}


@pytest.mark.parametrize("account", [{}, QUEUES], ids=["market orders", "queues"])
def test_the_rewards_of_an_episode_sum_to_its_gain_to_the_micro_dollar(store, account):
    envs = make(store, reward_scale="250", env=account)
    capital = 100_000 * 10**6
    exact, scaled, episodes = np.zeros(LANES, np.int64), np.zeros(LANES), 0
    for _, rewards, terminated, truncated, infos in play(envs, script(LANES, STEPS, 2))[1:]:
        exact += infos["reward_usd_micros"]
        scaled += rewards
        ended = terminated | truncated
        final = infos["final_info"]["equity_usd_micros"] if ended.any() else None
        for lane in range(LANES):
            equity = final[lane] if ended[lane] else infos["equity_usd_micros"][lane]
            assert exact[lane] == equity - capital
            assert scaled[lane] * 250e6 == pytest.approx(exact[lane], abs=1e-3)
        episodes += ended.sum()
        exact[ended], scaled[ended] = 0, 0
    assert episodes > 5


def test_the_floor_terminates_and_the_windows_end_truncates(store):
    reasons: dict[tuple[bool, bool], set[int]] = {}
    for options in ({}, {"step_limit": None}):
        for _, _, terminated, truncated, infos in play(make(store, **options), script(LANES, 300, 3))[1:]:
            for lane in range(LANES):
                reasons.setdefault((bool(terminated[lane]), bool(truncated[lane])), set()).add(int(infos["end_reason"][lane]))
                assert infos["decided"][lane] or truncated[lane]  # an action that is not read ends its episode: the drain
    at_an_end = {EndReason.STEP_LIMIT, EndReason.WINDOW_END}
    assert reasons.pop((False, True)) - {EndReason.TAPE_END} == at_an_end
    assert reasons == {(False, False): {EndReason.RUNNING}, (True, False): {EndReason.CAPITAL_FLOOR}}


def test_equal_seeds_give_equal_trajectories_and_others_do_not(store):
    actions = script(LANES, STEPS, 4)
    envs = make(store)
    first = play(envs, actions, seed=9)
    assert equal(first, play(envs, actions, seed=9))
    assert equal(first, play(make(store, seed=9), actions, seed=None))
    assert not equal(first[0], play(envs, actions[:0], seed=10)[0])
    one, two = envs.reset(seed=9), envs.reset()  # without a seed the next episodes begin
    assert not equal(one[0], two[0])


def test_two_environments_side_by_side_share_nothing(store):
    actions = script(LANES, STEPS, 5), script(LANES, STEPS, 6)
    alone = [play(make(store), actions[i], seed=i) for i in range(2)]
    together = [make(store) for _ in range(2)]
    found = [[envs.reset(seed=i)] for i, envs in enumerate(together)]
    for rows in zip(*actions, strict=True):
        for envs, row, into in zip(together, rows, found, strict=True):
            into.append(envs.step(row))
    assert equal(found, alone)


def test_what_was_handed_out_does_not_change_with_later_steps(store):
    envs = make(store)
    given = play(envs, script(LANES, 80, 7))
    envs.reset(seed=1)
    assert equal(given, play(make(store), script(LANES, 80, 7)))


@pytest.mark.parametrize("account", [{}, QUEUES], ids=["market orders", "queues"])
def test_same_step_plays_what_a_training_of_the_house_plays(store, account):
    """`Env` with restarts, the kernels' own, from the same seed."""
    config = plan_episodes(store, lanes=LANES, env=account, **MARKET | TERMS)
    assert config.env.queue_model == account.get("queue_model", "none")
    loaded = load(store, config)
    house = Env(loaded.tape, loaded.schedule, loaded.features, config.env, LANES, Phase.TRAIN, emit=(), restarts=5)
    actions = script(LANES, STEPS, 8)
    full = torch.full((LANES,), 10**6, dtype=torch.int32)
    played = play(make(store, env=account), actions)
    assert np.array_equal(played[0][0], house.observe().numpy())
    for row, (seen, _, terminated, truncated, infos) in zip(actions, played[1:], strict=True):
        house.step(Picks(torch.from_numpy((row @ [27, 9, 3, 1]).astype(np.int32)), full, full, full))
        assert np.array_equal(infos["reward_usd_micros"], house.reward_raw.numpy())
        assert np.array_equal(terminated, house.terminated.numpy())
        assert np.array_equal(truncated, house.truncated.numpy())
        assert np.array_equal(seen, house.observe().numpy())
        assert np.array_equal(infos["equity_usd_micros"], house.state[s.EQUITY, :LANES].numpy())


def test_without_random_starts_each_lane_plays_its_window_as_an_evaluation_does(store):
    options = {"random_starts": False, "step_limit": None, "floor": 50_000}
    envs = make(store, num_envs=4, **options)
    config = plan_episodes(store, lanes=4, **MARKET | TERMS | options)
    for name, code in (("long", [2, 2, 0, 0]), ("short", [0, 2, 0, 0])):
        expected = baselines(load(store, config), config, (name,))[name].pnl_usd_micros
        for _ in range(2):  # its next episode is the same window again
            envs.reset()
            earned, over = np.zeros(4, np.int64), np.zeros(4, bool)
            while not over.all():
                _, _, terminated, truncated, infos = envs.step(np.array([code] * 4))
                earned += np.where(over, 0, infos["reward_usd_micros"])
                over |= terminated | truncated
            assert np.array_equal(earned, expected)


def test_codes_and_branches_are_two_ways_to_write_one_action(store):
    actions = script(LANES, 60, 9)
    branches, codes = make(store), make(store, actions="codes")
    assert codes.single_action_space == gymnasium.spaces.Discrete(108)
    assert branches.single_action_space == gymnasium.spaces.MultiDiscrete([4, 3, 3, 3])
    assert equal(play(branches, actions), play(codes, actions @ [27, 9, 3, 1]))


def test_gymnasiums_checker_passes_and_the_id_makes_both_forms(store):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*A Box observation space m.* value is -?infinity.*")  # returns have no bound
        envs = gymnasium.make_vec(ID, num_envs=3, store=store, **MARKET)
        assert isinstance(envs.unwrapped, MarketVectorEnv)
        one = gymnasium.make(ID, store=str(store), **MARKET)
        assert isinstance(one.unwrapped, MarketEnv)
        check_env(one.unwrapped)
        one.reset(seed=1)  # through the passive checker, which Gymnasium puts around what it makes
        one.action_space.seed(1)
        for _ in range(5):
            one.step(one.action_space.sample())
        check_env(gymnasium.make(ID, store=store, actions="codes", **MARKET).unwrapped)
    assert envs.spec.id == ID


def test_the_single_form_is_lane_0(store):
    one, many = MarketEnv(store, **MARKET | TERMS), make(store, autoreset_mode="Disabled")
    actions = script(LANES, STEPS, 10)
    (seen, _), (all_seen, _) = one.reset(seed=5), many.reset(seed=5)
    assert np.array_equal(seen, all_seen[0])
    for row in actions:
        seen, reward, terminated, truncated, info = one.step(row[0])
        all_seen, rewards, all_terminated, all_truncated, infos = many.step(row)
        assert np.array_equal(seen, all_seen[0])
        assert (reward, terminated, truncated) == (rewards[0], all_terminated[0], all_truncated[0])
        assert all(value == infos[name][0] for name, value in info.items())
        if (ended := all_terminated | all_truncated).any():
            all_seen, _ = many.reset(options={"reset_mask": ended})
        if terminated or truncated:
            with pytest.raises(BadInput, match="call reset"):
                one.step(row[0])
            assert np.array_equal(one.reset()[0], all_seen[0])


@pytest.mark.parametrize("mode", list(AutoresetMode)[:2])
def test_gymnasiums_statistics_wrapper_finds_each_episodes_return(store, mode):
    envs = RecordEpisodeStatistics(make(store, autoreset_mode=mode, reward_scale=1))
    envs.reset(seed=5)
    found = 0
    for row in script(LANES, STEPS, 11):
        _, _, terminated, truncated, infos = envs.step(row)
        if (ended := terminated | truncated).any():
            final = infos["final_info"] if mode is AutoresetMode.SAME_STEP else infos
            gains = final["equity_usd_micros"] / 1e6 - 100_000
            assert infos["episode"]["r"][ended] == pytest.approx(gains[ended])
            found += ended.sum()
    assert found > 3


def test_options_mean_what_those_of_a_replay_mean(store, capfd):
    """Through the command line's own parser of `sim replay`, to the config of a run."""
    words = {
        "clock": "10m", "capital": "250000", "max_lots": 8, "fees": "2.5", "margin": "15000", "floor": "100000.5", "trail_ticks": 12,
        "plan_lock_steps": 2, "reward_scale": "10", "latency": "3ms", "step_limit": 7, "seed": 11, "schema": "mbp-10",
        "fit_start": "2024-03-04T00:00Z", "fit_end": "2024-03-05T00:00Z",
    }  # fmt: skip
    where = {"instrument": "ESH4", "start": "2024-03-05T01:00Z", "end": "2024-03-05T12:00Z"}
    typed = [text for name, value in (where | words).items() for text in (f"--{name.replace('_', '-')}", str(value))]
    runs = store.parent / "runs"
    done = document(here(capfd, "replay", "--store", str(store), "--runs", str(runs), "--policy", "flat", *typed, "--json"))
    config = plan_episodes(store, lanes=1, random_starts=False, **where | words)
    replayed = read_manifest(Path(done["run"]))["identity"]["config"]
    ours = json.loads(config.model_dump_json())
    assert ours["env"] == replayed["env"]
    assert {name: value for name, value in ours["tape"].items() if name != "windows"} == replayed["tape"]
    assert (ours["seed"], ours["instrument"]) == (replayed["seed"], replayed["instrument"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"clok": "1s"}, "clok: there is no such option; there are capital, clock, end"),
        ({"clock": "soon"}, "clock"),
        ({"latency": 5}, "latency: "),
        ({"capital": "much"}, "capital: 'much' is not a dollar amount"),
        ({"capital": -1}, r"capital -1: must be above \$0"),
        ({"max_lots": 0}, "max_lots 0: must be above 0"),
        ({"max_lots": 1.5}, "max_lots: 1.5 is no whole number"),
        ({"floor": 100_000}, "the floor of .* must be below the capital"),
        ({"slippage_ticks": 2}, "slippage_ticks 2: is for bars alone"),
        ({"start": "2024-05-01", "end": "2024-05-02"}, "holds no session with data of ESH4"),
        ({"start": "2024-03-08"}, "start .* is not before the end"),
        ({"env": {"max_lots": 2}}, "env.max_lots: another option states that already"),
        ({"env": {"queue_model": "fifo"}}, "env.queue_model"),
        ({"env": {"queues": "power"}}, "env.queues: there is no such setting"),
        ({"autoreset_mode": "Never"}, "autoreset_mode 'Never': choose from NextStep, SameStep, Disabled"),
        ({"actions": "words"}, "actions 'words': choose branches or codes"),
        ({"num_envs": 3, "random_starts": False}, "4 windows need as many lanes at least"),
        ({"fit_start": "2024-03-04", "fit_end": "2024-03-06", "random_starts": False}, "the policy would look ahead"),
    ],
)
def test_what_cannot_be_used_is_refused_in_the_users_words(store, options, said):
    with pytest.raises(BadInput, match=said):
        make(store, **options)


def test_an_instrument_that_is_not_there_is_not_found(store):
    with pytest.raises(NotFound, match="no instrument NQH4"):
        make(store, instrument="NQH4")


def test_steps_and_resets_out_of_order_are_refused_and_change_nothing(store):
    envs = make(store, autoreset_mode="Disabled")
    hold = np.array([[1, 0, 0, 0]] * LANES)
    with pytest.raises(BadInput, match="call reset"):
        envs.step(hold)
    mask = np.ones(LANES, bool)
    with pytest.raises(BadInput, match="the first reset is every lane's"):
        envs.reset(options={"reset_mask": mask})
    with pytest.raises(BadInput, match="seed 18446744073709551616"):
        envs.reset(seed=2**64)
    first = envs.reset(seed=3)
    for wrong in (hold[:2], hold.astype(float), hold[:, :3], hold.astype(object)):
        with pytest.raises(BadInput, match=r"array of whole numbers of shape \(6, 4\), one of MultiDiscrete\(\[4 3 3 3\]\) for each lane"):
            envs.step(wrong)
    for wrong in (3, -1):
        hold[2, 1] = wrong
        with pytest.raises(BadInput, match=rf"lane 2: action \[ ?1 +{wrong} +0 +0\] is not in MultiDiscrete"):
            envs.step(hold)
    hold[2, 1] = 0
    for wrong in ([True] * LANES, mask[:2], ~mask, mask.astype(int)):
        with pytest.raises(BadInput, match="reset_mask has to be"):
            envs.reset(options={"reset_mask": wrong})
    with pytest.raises(BadInput, match="a seed is every lane's"):
        envs.reset(seed=1, options={"reset_mask": mask})
    assert equal(envs.step(hold), play(make(store, autoreset_mode="Disabled"), [hold], seed=3)[1])
    assert equal(first, envs.reset(seed=3))
    ended = np.zeros(LANES, bool)
    while not ended.any():
        _, _, terminated, truncated, _ = envs.step(hold)
        ended = terminated | truncated
    with pytest.raises(BadInput, match=f"lane {ended.argmax()}'s episode has ended"):
        envs.step(hold)
