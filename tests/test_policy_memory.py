"""Prioritised replay against plain Python: exact draws, integer priorities, windows that cross neither an episode nor the write head."""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch

from lob.errors import BadInput, ForeignCheckpoint
from policy import replay_kernels as k
from policy.memory import Memory
from tests.oracle_philox import philox4x32_10

GAMMA, BETA = torch.tensor(0.5), torch.tensor(0.4)


def memory(lanes=1, steps=8, batch=4, n_step=1, alpha=0.6, seed=7) -> Memory:
    return Memory(lanes, steps, batch, n_step, alpha, seed)


def add(m: Memory, time: int, rng=None, **given) -> dict:
    """One decision of every lane: distinct values unless given."""
    lanes = m.lanes
    lane = torch.arange(lanes)
    rows = {
        "row": lane + 1000 * time,
        "lane_row": (lane[:, None] + time + torch.arange(16) / 16).float(),
        "action": (lane + time) % 108,
        "reward": (lane + 1.0) * 2.0 ** (time % 20),
        "next_row": lane + 1000 * time + 500,
        "next_lane_row": (lane[:, None] - time - torch.arange(16) / 16).float(),
        "terminated": torch.zeros(lanes, dtype=torch.bool),
        "ends": torch.zeros(lanes, dtype=torch.bool),
        "valid": torch.ones(lanes, dtype=torch.bool),
        "episode": torch.zeros(lanes, dtype=torch.int32),
        "step": torch.full((lanes,), time, dtype=torch.int32),
    } | given
    m.add(**rows)
    return {name: values.clone() for name, values in rows.items()}


def set_leaves(m: Memory, leaves) -> None:
    state = m.state_dict()
    state["leaves"] = torch.tensor(leaves, dtype=torch.int64)
    m.load_state_dict(state)


def find(m: Memory, point: int) -> int:
    return k.find(m.sums.numpy(), m._params.numpy(), point)


CAPACITIES = [*range(1, 18), 31, 32, 33, 1023, 1024, 1025]


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("zeros", [0.0, 0.5])
def test_a_point_at_either_end_of_a_slots_share_finds_that_slot(capacity, zeros):
    rng = np.random.default_rng(capacity)
    leaves = [0 if rng.random() < zeros else int(rng.integers(1, 2**40)) for _ in range(capacity)]
    leaves[int(rng.integers(capacity))] = 1
    m = memory(lanes=1, steps=capacity)
    set_leaves(m, leaves)
    assert int(m.total) == sum(leaves)
    before = 0
    for slot, weight in enumerate(leaves):
        if weight:
            assert find(m, before) == slot
            assert find(m, before + weight - 1) == slot
        before += weight


def test_a_million_slots_find_every_edge_of_every_family():
    capacity = 2**20 + 5
    rng = np.random.default_rng(3)
    leaves = rng.integers(0, 2**38, capacity) * (rng.random(capacity) < 0.7)
    m = memory(lanes=5, steps=capacity // 5)
    leaves = leaves[: m.capacity]
    set_leaves(m, leaves.tolist())
    ends = np.cumsum(leaves)  # below 2^58: exact
    slots = np.unique(np.concatenate([np.arange(0, m.capacity, 1024), np.arange(1023, m.capacity, 1024), [m.capacity - 1]]))
    for slot in slots[leaves[slots] > 0][:1500]:
        assert find(m, int(ends[slot] - leaves[slot])) == slot
        assert find(m, int(ends[slot] - 1)) == slot


def test_the_root_is_the_sum_of_the_leaves_and_every_node_that_of_its_children_after_any_writing():
    m = memory(lanes=7, steps=150, batch=64)
    rng = torch.Generator().manual_seed(1)
    for time in range(400):
        add(m, time, valid=torch.rand(7, generator=rng) < 0.8)
        sample = m.sample(GAMMA, BETA)
        m.update(sample, torch.rand(64, generator=rng) * 10)
    leaves = [int(x) for x in m.leaves]
    assert int(m.total) == sum(leaves)
    assert set(m.sums[m.capacity : -(-m.capacity // 32) * 32].tolist()) <= {0}
    fresh = memory(lanes=7, steps=150, batch=64)
    fresh.load_state_dict(m.state_dict())
    assert torch.equal(fresh.sums, m.sums)


@pytest.mark.deep
def test_a_million_updates_leave_no_drift():
    m = memory(lanes=128, steps=32, batch=4096)
    rng = torch.Generator().manual_seed(1)
    for time in range(256):
        add(m, time)
        m.update(m.sample(GAMMA, BETA), torch.rand(4096, generator=rng) * 100)
    assert int(m.total) == sum(int(x) for x in m.leaves)


def test_a_draw_lies_in_its_stratum_and_is_the_one_that_philox_names():
    m = memory(lanes=3, steps=11, batch=9, seed=2**40 + 5)
    for time in range(11):
        add(m, time)
    rng = np.random.default_rng(0)
    leaves = rng.integers(0, 50, m.capacity).tolist()
    leaves[0] = leaves[-1] = 1
    set_leaves(m, leaves)
    total, counter = sum(leaves), int(m.drawn)
    expected = []
    for i in range(9):
        low, high = i * total // 9, (i + 1) * total // 9
        first, second, *_ = philox4x32_10((i, counter, k.REPLAY_PURPOSE, 0), ((2**40 + 5) % 2**32, (2**40 + 5) >> 32))
        point = low + (first * 2**31 + second // 2) % max(1, high - low)
        assert low <= point < max(high, low + 1)
        expected.append(next(s for s in range(m.capacity) if sum(leaves[: s + 1]) > point))
    assert m.sample(GAMMA, BETA).slots.tolist() == expected
    assert int(m.drawn) == counter + 1


def test_slots_are_drawn_in_proportion_to_their_weights_and_those_of_weight_zero_never():
    m = memory(lanes=4, steps=5, batch=50)
    for time in range(5):
        add(m, time)
    weights = np.array([3, 0, 1, 5, 0, 0, 9, 2, 4, 0, 7, 1, 1, 8, 0, 6, 0, 2, 0, 1]) * 1_000_003
    set_leaves(m, weights.tolist())
    rounds = 400
    counts = np.zeros(20)
    for _ in range(rounds):
        np.add.at(counts, m.sample(GAMMA, BETA).slots.numpy(), 1)
    expected = weights / weights.sum() * rounds * 50
    assert not counts[weights == 0].any()
    live = weights > 0
    chi2 = ((counts - expected)[live] ** 2 / expected[live]).sum()
    # Stratified counts vary less than multinomial ones; 36.1 is the 0.999 quantile of chi-square with 13 degrees of freedom + slack.
    assert chi2 < 36.1
    assert counts[0] > 0 and counts[-1] > 0


def test_fewer_points_than_draws_still_find_a_living_slot():
    m = memory(lanes=1, steps=6, batch=16)
    for time in range(6):
        add(m, time)
    set_leaves(m, [0, 0, 1, 0, 0, 0])
    assert set(m.sample(GAMMA, BETA).slots.tolist()) == {2}


def test_an_empty_memory_gives_weights_of_zero():
    sample = memory().sample(GAMMA, BETA)
    assert not sample.weights.any()
    m = memory(lanes=2)
    add(m, 0, valid=torch.zeros(2, dtype=torch.bool))
    sample = m.sample(GAMMA, BETA)
    assert not sample.weights.any() and int(m.total) == 0
    m.update(sample, torch.ones(4))
    assert int(m.total) == 0


def test_a_priority_is_the_rounded_power_at_least_one_and_at_most_the_limit():
    errors = [0.0, 1e-30, 0.25, 1.0, 2.0, 1000.0, 1e30]
    m = memory(lanes=1, steps=7, batch=7)
    for time in range(7):
        add(m, time)
    sample = m.sample(GAMMA, BETA)
    assert sample.slots.tolist() == list(range(7))  # seven equal weights, one stratum each
    m.update(sample, torch.tensor(errors))
    expected = [min(2**38, max(1, int(float(np.float32(e)) ** 0.6 * 2**20 + 0.5))) for e in errors]
    assert m.leaves.tolist() == expected
    assert int(m.greatest) == 2**38


def test_a_new_slot_has_exactly_the_running_maximum():
    m = memory(lanes=2, steps=6, batch=5)
    add(m, 0)
    assert m.leaves[:2].tolist() == [2**20, 2**20]
    greatest = 2**20
    for time in range(1, 6):
        m.update(m.sample(GAMMA, BETA), torch.linspace(0.5, time, 5))
        greatest = max(greatest, int(m.leaves.max()))
        add(m, time)
        assert m.leaves[2 * time : 2 * time + 2].tolist() == [greatest] * 2
        assert int(m.greatest) == greatest


def test_of_equal_slots_the_last_entry_counts_and_twice_gives_the_same():
    def play():
        m = memory(lanes=1, steps=3, batch=12)
        for time in range(3):
            add(m, time)
        sample = m.sample(GAMMA, BETA)
        errors = torch.arange(1.0, 13.0)
        m.update(sample, errors)
        return m, sample.slots.tolist(), errors.tolist()

    m, slots, errors = play()
    assert len(set(slots)) < len(slots)
    wanted = {slot: int(error**0.6 * 2**20 + 0.5) for slot, error in zip(slots, errors, strict=True)}
    assert {slot: int(m.leaves[slot]) for slot in wanted} == wanted
    assert torch.equal(play()[0].sums, m.sums)


def test_an_update_of_an_overwritten_slot_is_dropped_and_counted():
    m = memory(lanes=2, steps=3, batch=6)
    for time in range(3):
        add(m, time)
    sample = m.sample(GAMMA, BETA)
    slots = sample.slots.tolist()
    add(m, 3)  # overwrites slots 0 and 1
    before = m.leaves.clone()
    m.update(sample, torch.full((6,), 0.25))
    stale = [slot for slot in slots if slot < 2]
    assert stale and int(m.dropped) == len(stale)
    assert torch.equal(m.leaves[:2], before[:2])
    assert set(m.leaves[sorted(set(slots) - {0, 1})].tolist()) == {int(0.25**0.6 * 2**20 + 0.5)}


def test_an_error_that_is_not_finite_leaves_its_slot_as_it_was():
    m = memory(lanes=1, steps=3, batch=3)
    for time in range(3):
        add(m, time)
    sample = m.sample(GAMMA, BETA)
    m.update(sample, torch.tensor([float("nan"), float("inf"), 0.25]))
    assert m.leaves.tolist() == [2**20, 2**20, int(0.25**0.6 * 2**20 + 0.5)]
    assert int(m.dropped) == 2


def test_importance_weights_come_from_the_same_integers_and_their_greatest_is_one():
    m = memory(lanes=1, steps=4, batch=8)
    for time in range(4):
        add(m, time)
    set_leaves(m, [2**20, 3 * 2**20, 2**22, 2**24])
    for beta in (0.0, 0.4, 1.0):
        sample = m.sample(GAMMA, torch.tensor(beta))
        drawn = [int(m.leaves[slot]) for slot in sample.slots]
        assert sample.priority.tolist() == drawn
        wanted = [float(Fraction(min(drawn), priority)) ** float(np.float32(beta)) for priority in drawn]
        assert float(sample.weights.max()) == 1.0
        assert np.allclose(sample.weights.tolist(), wanted, rtol=1e-6)


def test_a_record_takes_160_bytes_and_the_sums_an_eight_and_a_bit_more():
    m = memory(lanes=64, steps=64)
    assert m.words.dtype == torch.int32 and m.words.nbytes == 160 * 4096
    assert m.sums.dtype == torch.int64 and m.bytes - m.words.nbytes == 8 * (4096 + 128 + 32 + 1)


# Windows.


class History:
    """Plays random episodes into a memory and remembers each lane's decisions in order."""

    def __init__(self, m: Memory, steps: int, seed: int, ending: float = 0.15, dying: float = 0.05) -> None:
        rng = np.random.default_rng(seed)
        lanes = m.lanes
        episode, step = np.zeros(lanes, int), np.zeros(lanes, int)
        dead = np.zeros(lanes, bool)
        self.records = {}  # (time, lane) -> record
        for time in range(steps):
            ends = rng.random(lanes) < ending
            terminated = ends & (rng.random(lanes) < 0.5)
            given = {
                "reward": torch.from_numpy(rng.integers(-8, 9, lanes).astype(np.float32)),
                "terminated": torch.from_numpy(terminated),
                "ends": torch.from_numpy(ends),
                "valid": torch.from_numpy(~dead),
                "episode": torch.from_numpy(episode.copy()),
                "step": torch.from_numpy(step.copy()),
            }
            rows = add(m, time, **given)
            for lane in range(lanes):
                self.records[time, lane] = {name: values[lane] for name, values in rows.items()}
            episode += ends & ~dead
            step += 1
            dead = rng.random(lanes) < dying

    def window(self, time: int, lane: int, n: int, written: int, gamma: float):
        """By hand: the decisions of the window, in order."""
        taken = [self.records[time, lane]]
        while len(taken) < n and not taken[-1]["ends"] and not taken[-1]["terminated"]:
            after = time + len(taken)
            if after >= written or not self.records[after, lane]["valid"]:
                break
            following = self.records[after, lane]
            assert following["episode"] == taken[-1]["episode"] and following["step"] == taken[-1]["step"] + 1
            taken.append(following)
        reward = sum(gamma**i * float(r["reward"]) for i, r in enumerate(taken))
        return taken, reward, 0.0 if taken[-1]["terminated"] else gamma ** len(taken)


@pytest.mark.parametrize("n_step", [1, 2, 3, 7])
@pytest.mark.parametrize("steps", [5, 11, 40])
def test_a_window_equals_the_hand_sum_and_crosses_neither_episode_nor_write_head(n_step, steps):
    m = memory(lanes=3, steps=11, batch=64, n_step=n_step)
    played = History(m, steps, seed=steps)
    seen = set()
    for _ in range(6):
        s = m.sample(GAMMA, BETA)
        for i in range(64):
            generation, lane = int(s.generation[i]), int(s.slots[i]) % 3
            assert int(s.slots[i]) == generation % 11 * 3 + lane and generation >= steps - 11
            taken, reward, discount = played.window(generation, lane, n_step, steps, 0.5)
            begin, end = taken[0], taken[-1]
            assert begin["valid"]
            assert (float(s.returns[i]), float(s.discount[i]), int(s.taken[i])) == (reward, discount, len(taken))
            assert (int(s.row[i]), int(s.action[i])) == (int(begin["row"]), int(begin["action"]))
            assert (int(s.episode[i]), int(s.step[i])) == (int(begin["episode"]), int(begin["step"]))
            assert (int(s.next_row[i]), int(s.label_row[i])) == (int(end["next_row"]), int(begin["next_row"]))
            assert torch.equal(s.lane_row[i], begin["lane_row"]) and torch.equal(s.next_lane_row[i], end["next_lane_row"])
            seen.add((len(taken), bool(end["terminated"]), bool(end["ends"])))
    if steps == 40:
        assert {length for length, *_ in seen} == set(range(1, n_step + 1))
        assert {ends for _, *ends in seen for ends in [tuple(ends)]} >= {(True, True), (False, True), (False, False)}


def test_every_decision_of_a_five_step_episode_is_there_with_its_own_exponent():
    """User report 22: the last n - 1 decisions of an episode are stored too, and gamma is raised to the decisions summed."""
    m = memory(lanes=1, steps=10, batch=50, n_step=3)
    for time in range(5):
        ends = torch.tensor([time == 4])
        add(m, time, reward=torch.tensor([10.0**time]), ends=ends, terminated=torch.tensor([False]))
    add(m, 5, reward=torch.tensor([7e6]), episode=torch.tensor([1]), step=torch.tensor([0]))
    s = m.sample(torch.tensor(0.1), BETA)
    got = {int(s.step[i]): (float(s.returns[i]), int(s.taken[i]), float(s.discount[i])) for i in range(50) if s.episode[i] == 0}
    tenth = float(np.float32(0.1))
    for step, length in zip(range(5), (3, 3, 3, 2, 1), strict=True):
        reward, taken, discount = got[step]
        assert taken == length
        assert reward == pytest.approx(sum(tenth**i * 10.0 ** (step + i) for i in range(length)), rel=1e-6)
        assert discount == pytest.approx(tenth**length, rel=1e-6)


def test_no_reward_comes_from_beyond_the_write_head():
    """User report 14: at the write head the window is cut before the oldest record, and bootstraps from what is stored there."""
    m = memory(lanes=1, steps=4, batch=16, n_step=3)
    for time in range(6):  # slots hold steps 4, 5, 2, 3
        add(m, time, reward=torch.tensor([float(time)]))
    s = m.sample(torch.tensor(1.0), BETA)
    got = {int(s.step[i]): (float(s.returns[i]), int(s.taken[i]), int(s.next_row[i])) for i in range(16)}
    assert got == {2: (9.0, 3, 4500), 3: (12.0, 3, 5500), 4: (9.0, 2, 5500), 5: (5.0, 1, 5500)}


def test_windows_of_neighbouring_lanes_do_not_mix():
    m = memory(lanes=2, steps=6, batch=24, n_step=3)
    for time in range(6):
        add(m, time, reward=torch.tensor([1.0, 1000.0]))
    s = m.sample(torch.tensor(1.0), BETA)
    for slot, value, taken in zip(s.slots.tolist(), s.returns.tolist(), s.taken.tolist(), strict=True):
        assert value == taken * (1000.0 if slot % 2 else 1.0)


@pytest.mark.parametrize("n_step", [1, 3])
def test_states_from_rows_equal_those_that_were_seen_bit_for_bit(n_step):
    """The observation is the market's template row with the lane's slots laid over it; replay keeps the row's number and the slots."""
    from lob.layout import LANE, LANE_SLOTS, STATE_DIM

    rng = np.random.default_rng(5)
    features = torch.from_numpy(rng.normal(size=(60, STATE_DIM)).astype(np.float32))
    lane_slots = slice(LANE, LANE + len(LANE_SLOTS))

    def assemble(rows, lane_rows):
        observation = features[rows].clone()
        observation[:, lane_slots] = lane_rows
        return observation

    def history(width, rows):
        return torch.stack([features[rows - width + 1 + i, :LANE] for i in range(width)], dim=1)

    m = memory(lanes=2, steps=40, batch=30, n_step=n_step)
    seen = {}
    state = torch.from_numpy(rng.normal(size=(2, 16)).astype(np.float32))
    for time in range(40):
        row = torch.tensor([time + 3, time + 4])
        after = torch.from_numpy(rng.normal(size=(2, 16)).astype(np.float32))
        seen[time] = assemble(row, state)
        add(m, time, row=row, lane_row=seen[time][:, lane_slots], next_row=row + 1, next_lane_row=after)
        state = after
    seen[40] = assemble(row + 1, state)
    sample = m.sample(GAMMA, BETA)
    batch = m.observations(sample, assemble, history, 3)
    for i, (slot, taken) in enumerate(zip(sample.slots.tolist(), sample.taken.tolist(), strict=True)):
        time, lane = slot // 2, slot % 2
        assert torch.equal(batch.observation[i], seen[time][lane])
        assert torch.equal(batch.next_observation[i], seen[time + taken][lane])
        assert batch.label[i] == seen[time + 1][lane, 0]
        assert torch.equal(batch.history[i], features[time + 1 + lane : time + 4 + lane, :LANE])
        assert torch.equal(batch.next_history[i, -1], seen[time + taken][lane, :LANE])
    assert set(sample.taken.tolist()) >= {n_step}


# State.


def test_a_loaded_memory_goes_on_as_the_saved_one_and_shares_nothing_with_it():
    first = memory(lanes=3, steps=9, batch=6, n_step=2)
    History(first, 14, seed=2)
    first.update(first.sample(GAMMA, BETA), torch.arange(6.0))
    state = first.state_dict()
    second = memory(lanes=3, steps=9, batch=6, n_step=2)
    second.load_state_dict(state)
    for tensor in (value for value in state.values() if isinstance(value, torch.Tensor)):
        tensor.fill_(-5)  # neither memory may notice
    for m in (first, second):
        for time in range(14, 30):
            add(m, time)
            m.update(m.sample(GAMMA, BETA), torch.arange(6.0) + time)
    assert all(torch.equal(a, b) for a, b in zip(first.sample(GAMMA, BETA), second.sample(GAMMA, BETA), strict=True))
    ours, theirs = first.state_dict(), second.state_dict()
    assert ours.pop("settings") == theirs.pop("settings")
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    for name, tensor in ours.items():
        assert tensor.data_ptr() != getattr(first, name).data_ptr()


@pytest.mark.parametrize("change", ["alpha", "steps", "names", "type"])
def test_a_foreign_state_is_refused_and_changes_nothing(change):
    m = memory(lanes=2, steps=4)
    add(m, 0)
    before = m.state_dict()
    state = memory(lanes=2, steps=5 if change == "steps" else 4, alpha=0.5 if change == "alpha" else 0.6).state_dict()
    if change == "names":
        del state["greatest"]
    if change == "type":
        state["words"] = state["words"].long()
    with pytest.raises(ForeignCheckpoint):
        m.load_state_dict(state)
    after = m.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before if name != "settings")


@pytest.mark.parametrize("wrong", [{"lanes": 0}, {"n_step": 0}, {"alpha": 1.5}, {"lanes": 2**14, "steps": 2**14}])
def test_sizes_out_of_range_are_refused_before_anything_is_allocated(wrong):
    with pytest.raises(BadInput):
        memory(**wrong)


def test_buffers_keep_their_addresses():
    m = memory(lanes=2, steps=4)
    add(m, 0)
    first = m.sample(GAMMA, BETA)
    pointers = [t.data_ptr() for t in (m.words, m.sums, m.written, m.drawn, m.greatest, m.dropped, first.slots, first.returns)]
    for time in range(1, 9):
        add(m, time)
        s = m.sample(GAMMA, BETA)
        m.update(s, torch.ones(4))
    assert pointers == [t.data_ptr() for t in (m.words, m.sums, m.written, m.drawn, m.greatest, m.dropped, s.slots, s.returns)]
    assert all(a <= b for a, b in pairwise(s.slots.tolist()))
