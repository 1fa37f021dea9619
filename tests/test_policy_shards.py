"""A batch learnt in two halves, each by a learner of its own, is the batch learnt at once."""

import pytest
import torch

from lob.errors import CheckFailed
from policy.architecture import Architecture
from policy.controls import learn_controls
from policy.learner import LearnConfig, Learner, Update
from policy.memory import Batch
from policy.model import initialise
from policy.shared import alone
from sim.peers import Peers
from tests.learners import SMALL, World, fill, make_learner, make_memory

LANES, ROWS = 4, 32
CONTROLS = {"gamma": 0.9, "lr": 0.01, "polyak": 0.1, "share_c51": 0.3, "share_iqn": 0.4, "share_cql": 0.2, "share_aux": 0.1}


def drawn(learner: Learner, world: World) -> Batch:
    memory = make_memory(learner)
    fill(memory)
    memory.update(memory.sample(torch.tensor(0.9), torch.tensor(0.4)), torch.rand(ROWS, generator=torch.Generator().manual_seed(1)) * 3)
    batch = memory.observations(memory.sample(torch.tensor(0.9), torch.tensor(0.4)), world.assemble, world.history, 0)
    return batch._replace(sample=batch.sample._replace(**{name: part.clone() for name, part in batch.sample._asdict().items()}))


def half_of(batch: Batch, which: int) -> Batch:
    rows = slice(which * ROWS // 2, (which + 1) * ROWS // 2)
    take = lambda part: None if part is None else part[rows]  # noqa: E731
    return Batch(type(batch.sample)(*map(take, batch.sample)), *map(take, batch[1:]))


def halves(architecture: Architecture = SMALL) -> list[Learner]:
    made = []
    for shard in range(2):
        model = initialise(architecture, 1)
        learner = Learner(model, LearnConfig(batch=ROWS // 2, capacity=512), LANES // 2, shards=2, first_lane=shard * LANES // 2)
        learner.target.flat.copy_(initialise(architecture, 101).flat)
        made.append(learner)
    return made


def update_together(learners: list[Learner], batch: Batch, worlds: list[World]) -> list[Update]:
    """One update of each, from its half of the batch; the sums are taken as one process that hosts both takes them."""
    works = [
        learner.update_together(half_of(batch, i), world.bus, learn_controls(**CONTROLS))
        for i, (learner, world) in enumerate(zip(learners, worlds, strict=True))
    ]
    found: list[Update] = []
    while not found:
        parts = []
        for work in works:
            try:
                parts.append(next(work))
            except StopIteration as end:
                found.append(end.value)
        if parts:
            Peers().add(parts)
    return found


def test_two_halves_of_a_batch_take_the_step_and_say_the_figures_of_the_whole():
    world, whole = World(), make_learner()
    batch = drawn(whole, world)
    parts, worlds = halves(), [World(), World()]
    done = whole.update(batch, world.bus, learn_controls(**CONTROLS))
    both = update_together(parts, batch, worlds)
    assert torch.allclose(torch.cat([part.errors for part in both]), done.errors, rtol=1e-5)
    for learner, own, said in zip(parts, worlds, both, strict=True):
        assert torch.allclose(learner.model.flat, whole.model.flat, atol=1e-5)
        assert torch.allclose(learner.target.flat, whole.target.flat, atol=1e-6)
        assert torch.allclose(own.bus, world.bus, rtol=1e-5)
        for name, value in done.stats._asdict().items():
            assert value is None or torch.allclose(getattr(said.stats, name), value, rtol=1e-4), name
    assert torch.equal(parts[0].model.flat, parts[1].model.flat) and torch.equal(worlds[0].bus, worlds[1].bus)
    assert not torch.equal(parts[0].model.flat, initialise(SMALL, 1).flat)


def test_two_halves_of_the_lanes_know_the_scale_of_the_returns_of_all():
    whole, parts = make_learner(), halves()
    draw = torch.Generator().manual_seed(7)
    on, gamma = torch.ones(LANES, dtype=torch.bool), torch.tensor(0.9)
    for _ in range(20):
        reward, ends = torch.randn(LANES, generator=draw), torch.rand(LANES, generator=draw) < 0.1
        whole.observe_rewards(reward, on, ends, gamma)
        lanes = [slice(0, LANES // 2), slice(LANES // 2, LANES)]
        works = [part.observe_rewards_together(reward[i], on[i], ends[i], gamma) for part, i in zip(parts, lanes, strict=True)]
        for sums in zip(*works, strict=True):
            Peers().add(sums)
    for part in parts:
        for name in ("count", "total", "square"):
            assert torch.allclose(getattr(part.scale, name), getattr(whole.scale, name))
    assert torch.equal(torch.cat([part.scale.running for part in parts]), whole.scale.running)


@pytest.mark.parametrize("guilty", [0, 1])
def test_what_is_not_finite_in_one_half_stops_both_and_is_told_by_its_own_lane_of_the_run(tmp_path, guilty):
    parts, worlds = halves(), [World(), World()]
    batch = drawn(make_learner(), World())
    row = guilty * ROWS // 2 + 3
    batch.sample.returns[row] = torch.inf
    for _ in range(2):
        update_together(parts, batch, worlds)
    clean = drawn(make_learner(), World())
    update_together(parts, clean, worlds)
    for learner in parts:
        assert torch.equal(learner.model.flat, initialise(SMALL, 1).flat) and int(learner.moments.steps) == 0
    slot, step = int(batch.sample.slots[row]), int(batch.sample.generation[row])
    memory = make_memory(parts[guilty], lanes=LANES // 2, steps=48)
    lane = guilty * LANES // 2 + slot % (LANES // 2)
    with pytest.raises(CheckFailed, match=rf"update 0: return \(lane {lane}, decided at step {step}\) is not finite"):
        parts[guilty].check(tmp_path, memory)
    parts[1 - guilty].check(tmp_path, memory)  # nothing of it is known there


def test_work_done_alone_returns_what_it_is_for_and_sums_nothing():
    def work():
        part = torch.tensor([3])
        yield part
        return int(part)

    assert alone(work()) == 3
