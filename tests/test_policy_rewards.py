"""Reward terms against plain Python, the chain's four tensors, and what shaping may and may not do to the best policy."""

import itertools
import math
import random

import pytest
import torch

from lob.layout import OFFSET, STATE_DIM
from lob.picks import Picks
from policy.bus import control_state
from policy.diag_columns import REWARD_TERMS
from policy.lane_kernels import CHURN_DECISIONS, EXPOSED_LANES, LOGGED, SCALED_SUM, TERM_SUMS
from policy.lane_pass import LanePass, Step
from policy.rewards import RewardConfig, reset_rewards, reward_state
from policy.select import Chosen
from policy.signals import INDEX

SCALE = 1_000_000_000
"""A thousand dollars, in micro-dollars."""
GAMMA = 0.9
TERMS = tuple(REWARD_TERMS)


def lane_pass(lanes, config=None, scale=SCALE, mean=None, std=None):
    bus = control_state().bus
    bus[INDEX["gamma"]] = GAMMA
    return LanePass(lanes, config or RewardConfig(), scale, bus, mean, std)


def unpicked(lanes):
    """Picks and a choice of which only the range of values matters here."""
    whole = torch.zeros(lanes, dtype=torch.int32)
    nothing, no = torch.zeros(lanes), torch.zeros(lanes, dtype=torch.bool)
    return Picks(whole, whole, whole, whole), Chosen(whole, nothing, nothing, nothing, nothing, no, nothing, nothing, whole.long())


def rows(**slots):
    """float32[lanes, 128] with the named slots filled."""
    lanes = len(next(iter(slots.values())))
    out = torch.zeros(lanes, STATE_DIM)
    for name, values in slots.items():
        out[:, OFFSET[name]] = torch.tensor(values, dtype=torch.float32)
    if "position_fraction" in slots:
        out[:, OFFSET["position_sign"]] = torch.sign(out[:, OFFSET["position_fraction"]])
    return out


def step(before, after, raw=None, decided=None, terminated=None, ends=None, q_range=None):
    """A step, and the range of values that it was decided on."""
    lanes = len(before)
    flags = lambda values, default: torch.full((lanes,), default) if values is None else torch.tensor(values)  # noqa: E731
    raws = torch.zeros(lanes, dtype=torch.int64) if raw is None else torch.tensor(raw, dtype=torch.int64)
    ranges = torch.zeros(lanes) if q_range is None else torch.tensor(q_range)
    return Step(raws, before, after, flags(decided, True), flags(terminated, False), flags(ends, False)), ranges


def taken(given, of=None):
    """The rewards of a step in copies, and the pass that made them."""
    moved, q_range = given
    of = of or lane_pass(len(moved.raw))
    picks, chosen = unpicked(len(moved.raw))
    found = of(moved, picks, chosen._replace(q_range=q_range))
    return type(found)(*(part.clone() for part in found)), of


def terms_of(given, of=None):
    return dict(zip(TERMS, taken(given, of)[0].terms, strict=True))


def walk(lanes, steps, seed):
    """Random observations, one per step and one more, with positions, and their steps."""
    draw = torch.Generator().manual_seed(seed)
    fractions = torch.tensor([-1.0, -0.5, 0.0, 0.0, 0.5, 1.0])
    seen = []
    for _ in range(steps + 1):
        observed = torch.randn(lanes, STATE_DIM, generator=draw)
        observed[:, OFFSET["position_fraction"]] = fractions[torch.randint(0, 6, (lanes,), generator=draw)]
        observed[:, OFFSET["position_sign"]] = observed[:, OFFSET["position_fraction"]].sign()
        seen.append(observed)
    for before, after in itertools.pairwise(seen):
        raw = torch.randint(-50_000_000, 50_000_000, (lanes,), generator=draw)
        flags = [torch.rand(lanes, generator=draw) < share for share in (0.9, 0.02, 0.05)]
        yield Step(raw, before, after, flags[0], flags[1], flags[1] | flags[2]), torch.rand(lanes, generator=draw)


def test_the_micro_reward_is_the_position_times_the_intervals_move_over_the_range_less_half_the_spread_traded():
    before = rows(position_fraction=[0.0, 1.0, -0.5, 0.5], spread_ticks=[1, 1, 2, 4], atr_ticks=[4, 4, 4, 0.25])
    after = rows(position_fraction=[0.5, 1.0, 0.5, 0.5], move_over_atr=[2.0, -1.5, 1.0, 0.0])
    assert terms_of(step(before, after))["micro"].tolist() == [0.5 * 2 - 0.5 * 0.25 / 2, -1.5, 0.5 - 1.0 * 0.5 / 2, 0.0]


def test_terms_read_raw_features_under_any_normalisation():
    mean, std = torch.randn(STATE_DIM, dtype=torch.float64), torch.rand(STATE_DIM, dtype=torch.float64) + 0.5
    for name in ("position_fraction", "position_sign", "unrealized_ticks_per_lot", "imbalance_10"):
        mean[OFFSET[name]], std[OFFSET[name]] = 0, 1
    ((moved, q_range),) = walk(16, 1, seed=3)
    normal = lambda rows: ((rows.double() - mean) / std).float()  # noqa: E731
    same = moved._replace(observation=normal(moved.observation), next_observation=normal(moved.next_observation))
    found, wanted = terms_of((same, q_range), lane_pass(16, mean=mean, std=std)), terms_of((moved, q_range))
    for name in TERMS:
        assert torch.allclose(found[name], wanted[name], atol=1e-5), name


def test_order_flow_pays_only_where_the_price_confirms_it_and_the_position_stands_with_it():
    cases = [(1.0, 1.0, 1.0), (1.0, -1.0, 1.0), (-1.0, -1.0, -1.0), (1.0, -1.0, -1.0), (0.0, 1.0, 1.0)]
    after = rows(**{name: [case[i] for case in cases] for i, name in enumerate(("position_fraction", "ofi_7", "move_over_atr"))})
    found = terms_of(step(torch.zeros_like(after), after))["flow"].tolist()
    full = math.tanh(1.0) ** 2
    assert found == pytest.approx([full, 0.0, full, -full, 0.0])


def test_idleness_costs_the_policys_own_predicted_edge_and_only_while_flat():
    before, after = rows(position_fraction=[0, 0, 1.0, 0, 0]), rows(position_fraction=[0, 1.0, 0, 0, 0])
    found = terms_of(step(before, after, q_range=[0.25, 0.25, 0.25, 7.0, -3.0]))["inaction"]
    assert found.tolist() == [-0.25, 0.0, 0.0, -1.0, 0.0]


def test_a_reversal_costs_the_more_the_sooner_it_comes_also_through_flat():
    of, costs, last = lane_pass(1), [], 0.0
    for position in [0.0, 1.0, -1.0, -1.0, 0.0, 1.0, *[1.0] * 9, -1.0]:
        costs.append(terms_of(step(rows(position_fraction=[last]), rows(position_fraction=[position])), of)["churn"].item())
        last = position
    cost = lambda held: -CHURN_DECISIONS / (CHURN_DECISIONS + held)  # noqa: E731
    assert costs == pytest.approx([0, 0, cost(1), 0, 0, cost(2), *[0] * 9, cost(10)])


def test_the_hold_bonus_is_the_share_kept_of_the_best_open_profit_and_comes_at_the_close_alone():
    path = [(0, 0.0), (1.0, 0.25), (1.0, 1.0), (1.0, 0.5), (0, 0.0), (-1.0, -0.25), (1.0, 0.125), (1.0, 0.125), (0, 0.0)]
    of, bonus = lane_pass(1), []
    for (was, profit), (position, later) in itertools.pairwise(path):
        before = rows(position_fraction=[was], unrealized_ticks_per_lot=[profit])
        given = step(before, rows(position_fraction=[position], unrealized_ticks_per_lot=[later]))
        bonus.append(terms_of(given, of)["hold"].item())
    assert bonus == [0, 0, 0, 0.5, 0, -1.0, 0, 1.0]


def test_the_differential_sharpe_ratio_is_the_derivative_of_the_ratio_by_its_decay():
    """D = d(A / sqrt(B - A^2)) / d(eta) at eta = 0, by a central difference in double precision."""
    draw, of = random.Random(5), lane_pass(1)
    flat = rows(position_fraction=[0.0])
    a, b = 0.0, 1.0
    for _ in range(50):
        raw = draw.randrange(-900_000_000, 900_000_000)
        r = raw / SCALE
        ratio = lambda eta, a=a, b=b, r=r: (a + eta * (r - a)) / math.sqrt(b + eta * (r * r - b) - (a + eta * (r - a)) ** 2)  # noqa: E731
        found = terms_of(step(flat, flat, raw=[raw]), of)["sharpe"].item()
        assert found == pytest.approx((ratio(1e-6) - ratio(-1e-6)) / 2e-6, rel=1e-3, abs=1e-4)
        a, b = a + 0.01 * (r - a), b + 0.01 * (r * r - b)
    assert of.state.mean.item() == pytest.approx(a, abs=1e-6) and of.state.square.item() == pytest.approx(b, rel=1e-5)


def test_a_lane_that_never_earns_has_a_finite_sharpe_term_for_ever():
    of, flat = lane_pass(1), rows(position_fraction=[0.0])
    for _ in range(2_000):
        taken(step(flat, flat), of)
    for raw in (0, 1, 10**12, -(10**12)):
        assert abs(terms_of(step(flat, flat, raw=[raw]), of)["sharpe"].item()) <= 10.0


def test_with_every_weight_at_zero_shaped_is_raw_in_dollars_and_scaled_is_raw_over_the_scale():
    of = lane_pass(32, RewardConfig(whitening=0))
    for given in walk(32, 20, seed=1):
        found, _ = taken(given, of)
        raw = torch.where(given[0].decided, given[0].raw, 0)
        assert torch.equal(found.raw, raw)
        assert torch.equal(found.shaped, (raw.double() / 1e6).float())
        assert torch.equal(found.scaled, (raw.double() / SCALE).float())
        assert torch.equal(found.whitened, found.scaled)


def test_the_four_tensors_of_the_chain_share_no_memory_and_leave_the_inputs_alone():
    of = lane_pass(8, RewardConfig(**dict.fromkeys(TERMS, 0.3)))
    ((moved, q_range),) = walk(8, 1, seed=2)
    copies = [part.clone() for part in moved]
    picks, chosen = unpicked(8)
    found = of(moved, picks, chosen._replace(q_range=q_range))
    assert len({part.untyped_storage().data_ptr() for part in (*found, *moved)}) == len(found) + len(moved)
    assert all(torch.equal(part, copy) for part, copy in zip(moved, copies, strict=True))


def test_changing_every_reward_setting_leaves_the_raw_series_untouched():
    """Lesson 2: a permutation of scale, weights and whitening cannot move a dollar."""
    series = []
    for weight, scale, whitening in ((0.0, SCALE, 0.0), (0.7, SCALE, 1.0), (3.0, 1_000_000, 0.5)):
        of = lane_pass(16, RewardConfig(whitening=whitening, **dict.fromkeys(TERMS, weight)), scale)
        series.append(torch.stack([taken(given, of)[0].raw for given in walk(16, 30, seed=9)]))
        assert series[-1].dtype == torch.int64
    assert torch.equal(series[0], series[1]) and torch.equal(series[0], series[2])


@pytest.mark.parametrize("name", TERMS)
def test_a_terms_weight_adds_that_term_and_no_other(name):
    plain, weighted = (lane_pass(64, RewardConfig(whitening=0, **weight)) for weight in ({}, {name: 0.5}))
    moved = 0
    for given in walk(64, 10, seed=4):
        base, found = taken(given, plain)[0], taken(given, weighted)[0]
        assert torch.equal(base.terms, found.terms), "a term's value does not depend on its weight"
        term = base.terms[TERMS.index(name)]
        assert torch.allclose(found.scaled, base.scaled + 0.5 * term, atol=1e-6)
        assert torch.allclose(found.shaped, base.shaped + 0.5 * term * SCALE / 1e6, rtol=1e-5, atol=1e-3)
        moved += int((term != 0).sum())
    assert moved > 0


def test_lanes_that_did_not_decide_have_no_reward_and_no_term():
    of = lane_pass(32, RewardConfig(**dict.fromkeys(TERMS, 1.0)))
    for moved, q_range in walk(32, 5, seed=6):
        found, _ = taken((moved._replace(decided=torch.zeros(32, dtype=torch.bool)), q_range), of)
        assert not any(part.any() for part in found)


def test_logged_sums_are_the_sums_over_lanes_in_parts_per_million():
    of = lane_pass(50, RewardConfig(micro=1.0))
    (given,) = walk(50, 1, seed=7)
    found, _ = taken(given, of)
    parts = [*found.terms, found.scaled]
    assert TERM_SUMS + len(TERMS) == SCALED_SUM and SCALED_SUM + 1 == LOGGED
    assert of.totals[TERM_SUMS:LOGGED].tolist() == [sum(round(value * 1e6) for value in part.tolist()) for part in parts]


def test_whitening_divides_by_the_root_mean_square_of_lanes_that_held_a_position_over_the_horizon():
    of, squares, sign = lane_pass(64, RewardConfig(horizon=9)), [], OFFSET["position_sign"]
    for given in walk(64, 40, seed=8):
        found, _ = taken(given, of)
        rows_of = zip(given[0].decided, given[0].observation[:, sign], given[0].next_observation[:, sign], strict=True)
        held = [bool(decided) and (before != 0 or after != 0) for decided, before, after in rows_of]
        kept = [value**2 for value, counts in zip(found.scaled.tolist(), held, strict=True) if counts]
        squares.append(sum(kept) / len(kept))
        unit = 3 * math.sqrt(sum(squares) / len(squares))
        assert torch.allclose(found.whitened, found.scaled / unit, rtol=1e-3)
        assert of.totals[EXPOSED_LANES].item() == sum(held) and of.state.unit.item() == pytest.approx(unit, rel=1e-3)


def test_an_idle_market_moves_no_whitener_and_whitens_finitely():
    of, flat = lane_pass(4), rows(position_fraction=[0.0] * 4)
    for _ in range(3):
        assert not taken(step(flat, flat), of)[0].whitened.any()
    assert of.state.mean_square.item() == 1.0 and of.state.steps.item() == 0


def test_lanes_split_over_two_processes_are_rewarded_and_counted_as_in_one():
    whole, parts = lane_pass(32), [lane_pass(16), lane_pass(16)]
    for moved, q_range in walk(32, 20, seed=11):
        found, _ = taken((moved, q_range), whole)
        for i, part in enumerate(parts):
            lanes = slice(16 * i, 16 * i + 16)
            picks, chosen = unpicked(16)
            part.count(Step(*(of[lanes] for of in moved)), picks, chosen._replace(q_range=q_range[lanes]))
        added = parts[0].totals + parts[1].totals
        for part in parts:
            part.totals.copy_(added)
        assert torch.equal(added, whole.totals)
        assert torch.equal(torch.cat([part.whiten().whitened for part in parts]), found.whitened)


def test_an_episodes_end_forgets_the_lanes_position_and_nothing_of_other_lanes():
    open_ = rows(position_fraction=[1.0, 1.0], unrealized_ticks_per_lot=[1.0, 1.0])
    state = taken(step(torch.zeros_like(open_), open_, ends=[True, False]))[1].state
    assert state.direction.tolist() == [0, 1] and state.held.tolist() == [0, 1] and state.best.tolist() == [0, 1]


def test_resetting_forgets_everything_a_fresh_state_does_not_know():
    of = lane_pass(8)
    for given in walk(8, 10, seed=12):
        taken(given, of)
    assert any(not torch.equal(held, fresh) for held, fresh in zip(of.state, reward_state(8), strict=True))
    reset_rewards(of.state)
    assert all(torch.equal(held, fresh) for held, fresh in zip(of.state, reward_state(8), strict=True))


def test_two_runs_over_the_same_steps_give_the_same_bytes():
    runs = []
    for _ in range(2):
        of = lane_pass(64, RewardConfig(**dict.fromkeys(TERMS, 0.1)))
        runs.append([[part.numpy().tobytes() for part in taken(given, of)[0]] for given in walk(64, 10, seed=13)])
    assert runs[0] == runs[1]


# What shaping does to the best policy.

STATES, CHOICES = 5, 2


def solve(reward, gamma=0.9):
    """Greedy policy of a deterministic 5-state ring by value iteration: choice 0 stays, 1 moves on; state 4 is the last."""
    value = [0.0] * STATES
    following = lambda s, a: min(s + a, STATES - 1)  # noqa: E731
    q = {}
    earned = {(s, a): reward(s, a, following(s, a)) for s in range(STATES - 1) for a in range(CHOICES)}
    for _ in range(500):
        for s in range(STATES - 1):
            for a in range(CHOICES):
                after = following(s, a)
                q[s, a] = earned[s, a] + (0.0 if after == STATES - 1 else gamma * value[after])
            value[s] = max(q[s, a] for a in range(CHOICES))
    return [max(range(CHOICES), key=lambda a, s=s: q[s, a]) for s in range(STATES - 1)]


def state_row(s):
    """An observation that stands for state s: the potential differs from state to state."""
    return rows(position_fraction=[[0.5, -1.0, 1.0, -0.5, 1.0][s]], imbalance_10=[[0.9, 0.8, -0.9, 0.7, 0.3][s]])


def shaped_by(name, weight):
    def reward(s, a, after):
        base = 1.0 if after == STATES - 1 else -0.01
        given = step(state_row(s), state_row(after), terminated=[after == STATES - 1])
        return base + weight * terms_of(given)[name].item()

    return reward


def test_the_potential_based_term_leaves_the_optimal_policy_of_a_five_state_problem_as_it_was():
    """Lesson 51, at weights far above the reward itself."""
    assert solve(shaped_by("potential", 0.0)) == [1, 1, 1, 1]
    for weight in (0.1, 1.0, 10.0, 100.0):
        assert solve(shaped_by("potential", weight)) == [1, 1, 1, 1]


def test_the_same_check_fails_for_a_bonus_that_is_no_difference_of_potentials():
    """Paying for the state itself ("almost potential") keeps the policy where the bonus is."""
    worth = lambda s: float(state_row(s)[0, OFFSET["position_fraction"]] * state_row(s)[0, OFFSET["imbalance_10"]])  # noqa: E731
    almost = lambda s, a, after: (1.0 if after == STATES - 1 else -0.01) + 10 * worth(after)  # noqa: E731
    assert solve(almost) != [1, 1, 1, 1]


def test_a_truncated_episode_keeps_the_potential_it_bootstraps_from_and_a_terminated_one_ends_at_zero():
    before, after = rows(position_fraction=[1.0, 1.0], imbalance_10=[0.5, 0.5]), rows(position_fraction=[1.0, 1.0], imbalance_10=[0.4, 0.4])
    found = terms_of(step(before, after, terminated=[True, False], ends=[True, True]))["potential"]
    assert found.tolist() == pytest.approx([-0.5, 0.9 * 0.4 - 0.5])


def drift_return(policy, weights, inventory=0.0):
    """Sum of scaled shaped rewards of a policy (a position for each step) over 100 steps of a market that mostly rises."""
    draw = random.Random(17)
    of, total, position, profit = lane_pass(1, RewardConfig(whitening=0, **weights)), 0.0, 0.0, 0.0
    for t in range(100):
        move = draw.gauss(0.3, 1.0)
        wanted = policy(t)
        before = rows(position_fraction=[position], spread_ticks=[1], atr_ticks=[4], unrealized_ticks_per_lot=[profit], imbalance_10=[0.3])
        profit = (profit if wanted == position else 0.0) + wanted * move / 32 if wanted else 0.0
        after = rows(
            position_fraction=[wanted], move_over_atr=[move], ofi_7=[move], unrealized_ticks_per_lot=[profit], imbalance_10=[0.3]
        )  # fmt: skip
        dollars = 50.0 * wanted * move - 12.5 * abs(wanted - position)
        given = step(before, after, raw=[round(dollars * 1e6)], q_range=[0.5])
        total += taken(given, of)[0].scaled.item() - inventory * abs(wanted)
        position = wanted
    return total


FLAT = lambda t: 0.0  # noqa: E731
ORACLE = lambda t: 1.0  # noqa: E731


def RANDOM(t):
    return random.Random(t).choice([-1.0, 0.0, 1.0])


@pytest.mark.parametrize("weights", [{}, *({name: 0.1} for name in TERMS), dict.fromkeys(TERMS, 0.1)], ids=lambda w: "+".join(w) or "none")
def test_always_flat_is_not_the_best_policy_in_a_drifting_market_under_any_term(weights):
    """Lesson 43."""
    flat, oracle = drift_return(FLAT, weights), drift_return(ORACLE, weights)
    assert oracle > flat and oracle > drift_return(RANDOM, weights)


def test_an_inventory_penalty_would_have_made_flat_the_best_policy():
    """J4, rejected: the check above is one that it fails."""
    assert drift_return(FLAT, {}, inventory=0.1) > max(drift_return(ORACLE, {}, inventory=0.1), drift_return(RANDOM, {}, inventory=0.1))


def test_micro_rewards_of_alternating_bars_have_the_bars_sign_over_one_step_and_not_over_five():
    """Lesson 44: why n is 1. A long position over bars of +1 and -2 average ranges."""
    moves = [1.0, -2.0] * 10
    long = [rows(position_fraction=[1.0], atr_ticks=[4.0], move_over_atr=[move]) for move in moves]
    micro = [terms_of(step(long[0], after))["micro"].item() for after in long]
    returns = {n: [sum(0.99**k * micro[t + k] for k in range(n)) for t in range(len(micro) - 5)] for n in (1, 5)}
    signs = {n: [math.copysign(1, value) for value in values] for n, values in returns.items()}
    assert signs[1] == [math.copysign(1, move) for move in moves[: len(signs[1])]]
    assert any(one != five for one, five in zip(signs[1], signs[5], strict=True))
