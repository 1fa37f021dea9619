"""Rules that live in the kernel: many steps in one call leave what the same rules leave, asked step by step."""

import numpy as np
import pytest
import torch

from lob.errors import BadInput, NotFound
from policy.builtin import TABULATED, make, tabulate
from policy.protocol import constant_picks
from tests.env_builds import CASES, WINDOWED, make_env

QUIET = {"emit": (), "diag": False}


def followed(case, steps: int, threads: int = 1):
    """The case's lanes after `steps` steps, lane i by rule i mod 5, in one call."""
    env = make_env(case, threads=threads, **QUIET)
    rows = env.world.features
    tables = torch.stack([tabulate(name, rows) for name in TABULATED])
    env.follow(tables, torch.arange(case.lanes) % len(TABULATED), steps, constant_picks(case.lanes, "cpu"))
    return env


def asked(case, steps: int):
    """The same, every rule asked at every step for what it observes."""
    env = make_env(case, **QUIET)
    rules = [make(name, 0, case.lanes) for name in TABULATED]
    picks = constant_picks(case.lanes, "cpu")
    for step in range(steps):
        observation = env.observe()
        for i, rule in enumerate(rules):
            picks.action[i :: len(rules)] = rule.act(observation, None, step).action[i :: len(rules)]
        env.step(picks)
    return env


@pytest.mark.parametrize("case", [CASES[0]._replace(lanes=600), WINDOWED[0]._replace(lanes=25), WINDOWED[1]._replace(lanes=25)])
def test_rules_in_the_kernel_leave_what_rules_that_are_asked_step_by_step_leave(case):
    steps = 40
    one, two = followed(case, steps, threads=2), asked(case, steps)
    assert torch.equal(one.state, two.state)
    assert torch.equal(one.reward_raw, two.reward_raw) and torch.equal(one.end_reason, two.end_reason)
    from cuda_env import state as s

    trades = one.state[s.TRADE_COUNT, : case.lanes]
    by_rule = [int(trades[i :: len(TABULATED)].sum()) for i in range(len(TABULATED))]
    assert by_rule[0] == 0 and by_rule[3] > 0 and by_rule[4] > 0, "the rules did something"


def test_a_rule_that_looks_at_more_than_market_and_sign_has_no_table():
    for spec in ("random", "script:x.csv", "nobody"):
        with pytest.raises(NotFound, match="has no table of its picks"):
            tabulate(spec, torch.zeros(3, 128))


def test_many_steps_at_once_are_refused_in_one_line_where_they_cannot_be_played():
    env, inputs = make_env(CASES[0], **QUIET), constant_picks(6, "cpu")
    fits = torch.zeros((1, env.schedule.rows, 3), dtype=torch.int32)
    with pytest.raises(BadInput, match=r"actions are torch.int64 of shape \(4, 6\): int32 of shape \(any, 6\)"):
        env.run_steps(torch.zeros((4, 6), dtype=torch.int64), inputs)
    with pytest.raises(BadInput, match="give each of the 6 lanes one of the 1 rules"):
        env.follow(fits, torch.ones(6, dtype=torch.int64), 1, inputs)
    with pytest.raises(BadInput, match="write no tables"):
        make_env(CASES[0]).follow(fits, torch.zeros(6, dtype=torch.int64), 1, inputs)
    fits[:] = 108
    with pytest.raises(BadInput, match=r"the action is outside 0\.\.107"):
        env.follow(fits, torch.zeros(6, dtype=torch.int64), 1, inputs)
    assert np.all(env.state[0, :6].numpy() == 0), "a lane with a fault stays as it was"
