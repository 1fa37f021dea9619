"""The environment as TorchRL's own tools see it; what it plays is what the Gymnasium form plays."""

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("torchrl")
pytest.importorskip("gymnasium")

from torchrl.data import Categorical, MultiCategorical
from torchrl.envs import RewardSum, TransformedEnv, check_env_specs

from lob.errors import BadInput
from sim.baselines import baselines
from sim.episode_options import plan_episodes
from sim.tape import load
from sim.torchrl_env import MarketTorchEnv
from tests.one_lane import script
from tests.test_sim_gymnasium import LANES, MARKET, STEPS, TERMS, play
from tests.test_sim_gymnasium import make as make_gymnasium
from tests.window_days import store_of_days

CAPITAL = 100_000 * 10**6


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> Path:
    return store_of_days(tmp_path_factory.mktemp("market"), 3_000)


def make(store, lanes=LANES, **options) -> MarketTorchEnv:
    return MarketTorchEnv(lanes, store, **MARKET | TERMS | options)


def following(actions):
    """A policy of TorchRL's form that plays the rows of `actions` one after another."""
    rows = iter(actions)
    return lambda tensordict: tensordict.set("action", torch.as_tensor(next(rows)))


def rollout(env, actions, seed=5):
    env.set_seed(seed)
    return env.rollout(len(actions), following(actions), break_when_any_done=False)


@pytest.mark.parametrize(("actions", "spec"), [("branches", MultiCategorical), ("codes", Categorical)])
def test_torchrls_checker_passes_in_both_forms_of_an_action(store, actions, spec):
    env = make(store, actions=actions)
    assert isinstance(env.action_spec, spec)
    check_env_specs(env, break_when_any_done="both")
    check_env_specs(env, seed=7)
    drawn = env.rollout(STEPS, break_when_any_done=False)  # TorchRL's own draws of every choice
    assert int(drawn["next", "done"].sum()) > 3
    assert env.full_done_spec["done"].shape == (LANES, 1)


def test_a_rollout_is_what_the_gymnasium_form_plays_in_same_step(store):
    actions = script(LANES, STEPS, 1)
    rolled = rollout(make(store), actions)
    played = play(make_gymnasium(store), actions)
    ends = 0
    for step, (seen, rewards, terminated, truncated, infos) in enumerate(played[1:]):
        now, then = rolled[:, step], rolled[:, step]["next"]
        assert np.array_equal(now["observation"].numpy(), played[step][0])
        assert np.array_equal(then["reward_usd_micros"][:, 0].numpy(), infos["reward_usd_micros"])
        assert np.array_equal(then["reward"][:, 0].numpy(), rewards.astype(np.float32))
        assert np.array_equal(then["terminated"][:, 0].numpy(), terminated)
        assert np.array_equal(then["truncated"][:, 0].numpy(), truncated)
        assert np.array_equal(then["decided"][:, 0].numpy(), infos["decided"])
        ended, last = terminated | truncated, seen.copy()
        for lane in np.flatnonzero(ended):
            last[lane] = infos["final_obs"][lane]
        assert np.array_equal(then["observation"].numpy(), last)
        if step + 1 < STEPS:  # what a reset shows: nothing earned, nothing decided
            shown = rolled[:, step + 1]
            assert np.array_equal(shown["reward_usd_micros"][:, 0].numpy(), np.where(ended, 0, infos["reward_usd_micros"]))
            assert np.array_equal(shown["decided"][:, 0].numpy(), infos["decided"] & ~ended)
            assert np.array_equal(shown["equity_usd_micros"][:, 0].numpy(), infos["equity_usd_micros"])
            assert not shown["done"].any()
        ends += ended.sum()
    assert ends > 5


def test_the_rewards_of_an_episode_sum_to_its_gain_to_the_micro_dollar(store):
    rolled = rollout(make(store, reward_scale=250), script(LANES, STEPS, 2))
    found = 0
    for lane in range(LANES):
        earned = 0
        for step in rolled["next"][lane]:
            earned += int(step["reward_usd_micros"])
            assert float(step["reward"]) == pytest.approx(int(step["reward_usd_micros"]) / 250e6, rel=1e-6)
            assert int(step["equity_usd_micros"]) - CAPITAL == earned
            if step["done"]:
                earned, found = 0, found + 1
    assert found > 5


def test_a_lane_that_is_done_stays_done_with_what_it_saw_last_until_it_is_reset(store):
    env = make(store)
    env.set_seed(5)
    tensordict, actions = env.reset(), script(LANES, STEPS, 3)
    done = torch.zeros(LANES, 1, dtype=torch.bool)
    last: dict[int, torch.Tensor] = {}
    for row in actions:
        then = env.step(tensordict.set("action", torch.from_numpy(row)))["next"]
        for lane in range(LANES):
            if done[lane]:
                assert then["done"][lane]
                assert int(then["reward_usd_micros"][lane]) == 0 and not then["decided"][lane]
                assert torch.equal(then["observation"][lane], last[lane])
            elif then["done"][lane]:
                last[lane] = then["observation"][lane]
        done = then["done"].clone()
        assert torch.equal(done, then["terminated"] | then["truncated"])
        tensordict = then.select("observation").clone()
    assert done.all()
    mask = torch.zeros(LANES, 1, dtype=torch.bool)
    mask[[1, 4]] = True
    begun = env.reset(then.clone().set("_reset", mask))
    assert torch.equal(begun["done"], ~mask)
    assert (begun["equity_usd_micros"][mask] == CAPITAL).all()
    assert torch.equal(begun["observation"][0], last[0])


def test_equal_seeds_give_equal_trajectories_and_two_environments_share_nothing(store):
    actions = script(LANES, STEPS, 4)
    one, two = make(store), make(store)
    alone = [rollout(make(store), actions, seed) for seed in (8, 9)]
    shown = [env.reset() for env in (one, two) if env.set_seed(8 if env is one else 9) is not None]
    for step, row in enumerate(actions):
        for i, env in enumerate((one, two)):
            played, shown[i] = env.step_and_maybe_reset(shown[i].set("action", torch.from_numpy(row)))
            assert (played.select(*alone[i].keys()) == alone[i][:, step]).all()
    assert (rollout(one, actions, 8) == alone[0]).all()
    assert not (alone[0]["observation"] == alone[1]["observation"]).all()


def test_a_seed_holds_for_the_next_reset_and_later_ones_go_on(store):
    env = make(store)
    env.set_seed(8)
    first, second = env.reset()["observation"], env.reset()["observation"]
    assert not torch.equal(first, second)
    env.set_seed(8)
    assert torch.equal(env.reset()["observation"], first)
    assert torch.equal(env.reset()["observation"], second)
    assert torch.equal(make(store, seed=8).reset()["observation"], first)


def test_what_was_handed_out_does_not_change_with_later_steps(store):
    env, actions = make(store), script(LANES, 80, 5)
    given = rollout(env, actions)
    kept = given.clone()
    rollout(env, script(LANES, 80, 6))
    assert (given == kept).all()


def test_a_rollout_until_all_are_done_ends_with_what_each_account_has_made(store):
    options = {"random_starts": False, "step_limit": None}
    config = plan_episodes(store, lanes=4, **MARKET | TERMS | options)
    long_full = torch.tensor([[2, 2, 0, 0]] * 4)
    env = make(store, lanes=4, **options)
    played = env.rollout(
        10_000, lambda tensordict: tensordict.set("action", long_full), break_when_any_done=False, break_when_all_done=True
    )
    ends = played["next", "done"][:, :, 0].float().argmax(dim=1)
    assert len(set(ends.tolist())) > 1  # some are done sooner
    gains = played["next", "equity_usd_micros"][:, -1, 0] - played["equity_usd_micros"][:, 0, 0]
    assert np.array_equal(gains.numpy(), baselines(load(store, config), config, ("long",))["long"].pnl_usd_micros)


def test_living_lanes_step_together(store):
    env = make(store, lanes=2)
    shown = env.reset().set("action", torch.tensor([[1, 0, 0, 0]] * 2))
    with pytest.raises(BadInput, match="lane 1: action -1 is outside"):
        env.step(shown.set("_step", torch.tensor([True, False])))


def test_torchrls_reward_sum_finds_each_episodes_return(store):
    env = TransformedEnv(make(store, reward_scale=1), RewardSum())
    env.set_seed(5)
    rolled = env.rollout(STEPS, following(script(LANES, STEPS, 1)), break_when_any_done=False)["next"]
    done = rolled["done"]
    assert int(done.sum()) > 5
    gains = (rolled["equity_usd_micros"][done] - CAPITAL) / 1e6
    assert torch.allclose(rolled["episode_reward"][done], gains.float(), atol=0.05)


@pytest.mark.parametrize(("actions", "wrong"), [("branches", [0, 3, 0, 0]), ("branches", [-1, 0, 0, 0]), ("codes", 108), ("codes", -1)])
def test_an_action_out_of_range_is_refused_before_anything_has_moved(store, actions, wrong):
    env = make(store, lanes=2, actions=actions)
    shown = env.reset()
    right = torch.zeros_like(env.action_spec.zero())
    action = right.clone()
    action[1] = torch.tensor(wrong)
    with pytest.raises(BadInput, match=r"lane 1: action -?\d+ is outside 0\.\.107"):
        env.step(shown.clone().set("action", action))
    expected = make(store, lanes=2, actions=actions)
    first = expected.step(expected.reset().set("action", right))
    assert (env.step(shown.clone().set("action", right)) == first).all()


def test_a_way_to_write_actions_that_there_is_not_is_refused(store):
    with pytest.raises(BadInput, match="actions 'words': choose branches or codes"):
        make(store, actions="words")
