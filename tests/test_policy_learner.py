"""The learner against plain Python: targets for every kind of ending, the whole gradient, the optimiser, its guard, its state."""

import copy
import itertools

import numpy as np
import pytest
import torch

from lob.errors import CheckFailed, ForeignCheckpoint
from policy import loss_kernels as k
from policy import losses, optimiser
from policy.controls import learn_controls
from policy.heads import HeadOutput
from policy.learner import LearnConfig, learn
from tests import oracle_targets
from tests.learners import LANE_BLOCK, SMALL, World, fill, make_learner, make_memory

GAMMA = float(np.float32(0.9))
CONTROLS = {"gamma": GAMMA, "share_c51": 0.3, "share_iqn": 0.4, "share_cql": 0.2, "share_aux": 0.1}


def say(model, world, row, lane_row):
    """What a network says of one observation, as lists."""
    observation = world.features[row].clone()
    observation[LANE_BLOCK] = lane_row
    with torch.no_grad():
        heads = model(observation[None], None, world.bus).heads
    return heads.logits[0].double().tolist(), heads.quantiles[0].double().tolist()


def lane_of(added, lane, start):
    """A lane's decisions from `start` on, as plain values."""
    names = ("reward", "terminated", "ends", "next_row", "next_lane_row")
    decisions = [{name: step[name][lane] for name in names} for step in added[start:]]
    plain = ("reward", "terminated", "next_row")
    return [{n: d[n].item() for n in plain} | {"truncated": bool(d["ends"]), "lane": d["next_lane_row"]} for d in decisions]


def shares_of(controls):
    return controls.share_c51, controls.share_iqn, controls.share_cql, controls.share_aux


@pytest.mark.parametrize("target", ["max", "sarsa"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_targets_losses_and_errors_for_every_ending_and_branch_are_the_hand_written_ones(n_step, target):
    """{terminated, truncated, both, neither} x {C51, IQN} x n x four branches; termination wins over truncation."""
    world, learner = World(), make_learner(n_step=n_step, target=target)
    memory = make_memory(learner)
    added = fill(memory)
    controls = learn_controls(**CONTROLS, sarsa_ratio=0.08)
    sample = memory.sample(controls.gamma, controls.beta)
    batch = memory.observations(sample, world.assemble, world.history, 0)
    _, board = learner.measure(batch, world.bus, controls, shares_of(controls))
    support, kinds = learner.support.double().tolist(), set()
    for i, (slot, weight) in enumerate(zip(sample.slots.tolist(), sample.weights.tolist(), strict=True)):
        time, lane = slot // 4, slot % 4
        reward, discount, last = oracle_targets.window(lane_of(added, lane, time), n_step, GAMMA)
        kinds.add((last["terminated"], last["truncated"], int(sample.taken[i])))
        online, lagged = (say(model, world, last["next_row"], last["lane"]) for model in (learner.model, learner.target))
        here = say(learner.model, world, added[time]["row"][lane], added[time]["lane_row"][lane])
        errors = []
        for branch, column in enumerate(oracle_targets.columns_of(int(added[time]["action"][lane]))):
            ratio = None if target == "max" else float(controls.sarsa_ratio)
            atoms, values = oracle_targets.target_of(branch, reward, discount, online, lagged, support, ratio)
            assert np.allclose(board.target[i, branch], atoms, atol=2e-5)
            categorical, regression, error = oracle_targets.losses_of(here, column, atoms, values, support)
            facts = board.facts[i, branch * k.PER_BRANCH :].tolist()
            wanted = [categorical * weight / 128, regression * weight / 128, error]
            assert np.allclose([facts[k.LOSS_C51], facts[k.LOSS_IQN], facts[k.ERROR]], wanted, rtol=1e-3, atol=2e-5)
            errors.append(error)
        assert float(board.errors[i]) == pytest.approx(np.mean(errors), abs=2e-5)
    assert {(t, e) for t, e, _ in kinds} == {(True, True), (False, True), (False, False)}
    assert {taken for *_, taken in kinds} == set(range(1, n_step + 1))


@pytest.mark.parametrize(("terminated", "truncated"), list(itertools.product([False, True], repeat=2)))
def test_the_bootstrap_is_cut_by_termination_alone(terminated, truncated):
    world, learner = World(), make_learner(lanes=1, batch=1)
    memory = make_memory(learner, lanes=1, steps=1)
    one = torch.ones(1)
    memory.add(
        one.long(), torch.zeros(1, 16), one.int(), 0.25 * one, 2 * one.long(), torch.ones(1, 16),
        torch.tensor([terminated]), torch.tensor([terminated or truncated]), one.bool(), one.int(), one.int(),
    )  # fmt: skip
    controls = learn_controls(gamma=GAMMA)
    batch = memory.observations(memory.sample(controls.gamma, controls.beta), world.assemble, world.history, 0)
    _, board = learner.measure(batch, world.bus, controls, shares_of(controls))
    online, lagged = (say(model, world, 2, torch.ones(16)) for model in (learner.model, learner.target))
    support = learner.support.double().tolist()
    for branch in range(4):
        discount = 0.0 if terminated else GAMMA
        atoms, values = oracle_targets.target_of(branch, 0.25, discount, online, lagged, support)
        assert np.allclose(board.target[0, branch], atoms, atol=1e-5)
        wanted = 0.5 * sum(m * z for m, z in zip(atoms, support, strict=True)) + 0.5 * sum(v * w for v, w in values)
        assert float(board.facts[0, branch * k.PER_BRANCH + k.AIM]) == pytest.approx(wanted, abs=1e-5)


def test_errors_of_branches_do_not_cancel():
    """User report 28: branch errors of +1 and -1 make a priority of 1, not 0."""
    learner, world = make_learner(), World()
    memory = make_memory(learner)
    fill(memory, scale=0.05)  # small beside the differences of branches
    controls = learn_controls(**CONTROLS)
    batch = memory.observations(memory.sample(controls.gamma, controls.beta), world.assemble, world.history, 0)
    _, board = learner.measure(batch, world.bus, controls, shares_of(controls))
    columns = torch.tensor([oracle_targets.columns_of(action) for action in batch.sample.action.tolist()])
    aims = board.facts[:, : k.SQUARE_CQL].view(32, 4, k.PER_BRANCH)[:, :, k.AIM]
    signed = aims - board.here.gather(1, columns)
    assert bool(((signed > 0).any(1) & (signed < 0).any(1)).any())
    assert torch.allclose(board.errors, signed.abs().mean(1), atol=1e-5)
    assert bool((board.errors > signed.mean(1).abs() + 1e-3).any())


def naive_loss(learner, batch, world, controls, scale):
    """The whole loss with torch operations that autograd differentiates; targets from double Q, C51's as the learner left them."""
    with torch.no_grad():
        online, lagged = (model(batch.next_observation, None, world.bus).heads for model in (learner.model, learner.target))
        next_values = 0.5 * (torch.softmax(online.logits, 2) @ learner.support) + 0.5 * online.quantiles.mean(dim=2)
    out = learner.model(batch.observation, None, world.bus)
    rows, target = torch.arange(32), learner._losses.board.target
    columns = torch.tensor([oracle_targets.columns_of(action) for action in batch.sample.action.tolist()])
    log_p = torch.log_softmax(out.heads.logits, dim=2)
    values = 0.5 * (log_p.exp() @ learner.support) + 0.5 * out.heads.quantiles.mean(dim=2)
    c51 = iqn = cql = torch.zeros(32)
    tau = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9])
    for branch, (first, size) in enumerate(zip(oracle_targets.FIRST, oracle_targets.SIZES, strict=True)):
        column, best = columns[:, branch], first + next_values[:, first : first + size].argmax(dim=1)
        c51 = c51 - (target[:, branch] * log_p[rows, column]).sum(1) / 4
        aimed = batch.sample.returns[:, None] + batch.sample.discount[:, None] * lagged.quantiles[rows, best]
        u = aimed[:, None, :] - out.heads.quantiles[rows, column][:, :, None]
        huber = torch.nn.functional.huber_loss(u, torch.zeros_like(u), reduction="none")
        iqn = iqn + ((tau[:, None] - (u.detach() < 0).float()).abs() * huber).mean(2).sum(1) / 4
        cql = cql + (torch.logsumexp(values[:, first : first + size], 1) - values[rows, column]) / 4
    aux = (out.aux - batch.label / scale) ** 2
    parts = controls.share_c51 * c51 + controls.share_iqn * iqn + controls.share_cql * cql + controls.share_aux * aux
    return (batch.sample.weights * parts).mean()


def test_the_whole_gradient_is_what_autograd_makes_of_the_written_loss():
    world, learner = World(), make_learner()
    memory = make_memory(learner)
    fill(memory)
    memory.update(memory.sample(torch.tensor(0.9), torch.tensor(0.4)), torch.rand(32) * 3)  # unequal importance weights
    controls = learn_controls(**CONTROLS, polyak=0.0, lr=0.0)
    batch = memory.observations(memory.sample(controls.gamma, controls.beta), world.assemble, world.history, 0)
    assert float(batch.sample.weights.min()) < 0.9
    done = learner.update(batch, world.bus, controls)
    loss = naive_loss(learner, batch, world, controls, float(world.bus[117]))
    wanted = torch.autograd.grad(loss, learner.parameters)
    for got, want in zip(learner._gradients, wanted, strict=True):
        assert torch.allclose(got, want, atol=1e-6)
        assert float(want.abs().max()) > 0
    assert float(done.stats.loss) == pytest.approx(loss.item(), rel=1e-5)
    assert float(done.stats.grad_norm) == pytest.approx(float(torch.cat([g.flatten() for g in wanted]).norm()), rel=1e-4)


def test_a_component_whose_share_is_zero_has_no_part_in_the_gradient():
    def gradient(shares, **config):
        world, learner = World(), make_learner(**config)
        memory = make_memory(learner)
        fill(memory)
        learn(learner, memory, world.assemble, world.history, world.bus, learn_controls(gamma=GAMMA, lr=0.0, **shares))
        return learner._gradient.clone()

    off = {f"share_{name}": 0.0 for name in ("c51", "iqn", "cql", "aux")}
    alone = {name: gradient(off | {f"share_{name}": 1.0}) for name in ("c51", "iqn", "cql", "aux")}
    assert torch.equal(gradient(off | {"share_c51": 1.0}, cql=0.0), alone["c51"])
    mixed = gradient({"share_c51": 0.3, "share_iqn": 0.4, "share_cql": 0.2, "share_aux": 0.1})
    wanted = 0.3 * alone["c51"] + 0.4 * alone["iqn"] + 0.2 * alone["cql"] + 0.1 * alone["aux"]
    assert torch.allclose(mixed, wanted, atol=1e-7)
    assert all(float(part.norm()) > 0 for part in alone.values())


def trunk_norms(learner, batch, bus, controls):
    """{component: norm of its whole gradient over all weights below the heads}."""
    below = [not name.startswith(("heads.", "aux.")) for name in learner.model.weights]
    none, one = torch.zeros(()), torch.ones(())
    norms = {}
    for place, name in enumerate(("c51", "iqn", "cql", "aux")):
        shares = tuple(one if place == other else none for other in range(4))
        gradients = learner._pull(*learner.measure(batch, bus, controls, shares), none)
        kept = [gradient.norm() for gradient, is_below in zip(gradients, below, strict=True) if is_below]
        norms[name] = torch.stack(kept).norm()
    return norms


def test_iqns_gradient_reaches_the_trunk_from_the_first_update_to_the_fiftieth():
    """Lesson 13: nothing whose opening needs its own output stands between IQN's loss and the trunk."""
    world, learner = World(), make_learner()
    memory = make_memory(learner)
    fill(memory)
    controls = learn_controls(**CONTROLS)
    for time in range(50):
        learn(learner, memory, world.assemble, world.history, world.bus, controls)
        if time in (0, 49):
            batch = memory.observations(memory.sample(controls.gamma, controls.beta), world.assemble, world.history, 0)
            before = learner.model.flat.clone()
            assert all(float(norm) > 1e-6 for norm in trunk_norms(learner, batch, world.bus, controls).values())
            assert torch.equal(learner.model.flat, before)


# The optimiser.


def stepping(weights, decay=0.1, clip_norm=2.0):
    """(optimiser, gradient buffer, target) of a flat buffer of weights."""
    gradient, target = torch.zeros_like(weights), weights.clone()
    return optimiser.Optimiser(weights, target, optimiser.moments(weights), gradient, decay, clip_norm), gradient, target


def test_adamw_clipping_and_the_lagged_target_are_torchs():
    generator = torch.Generator().manual_seed(1)
    ours = torch.randn(50, generator=generator)
    theirs = torch.nn.Parameter(ours.clone())
    reference = torch.optim.AdamW([theirs], lr=1e-2, weight_decay=0.1)
    made, given, lagged = stepping(ours)
    wanted = lagged.clone()
    for step in range(40):
        gradient = torch.randn(50, generator=generator) * 10 ** (step % 3 - 1)
        lr = 1e-2 / (1 + step)
        theirs.grad = gradient.clone()
        torch.nn.utils.clip_grad_norm_([theirs], 2.0)
        reference.param_groups[0]["lr"] = lr
        reference.step()
        given.copy_(gradient)
        made.step(gradient.norm(), torch.tensor(lr), torch.tensor(0.05), torch.tensor(1.0))
        wanted = 0.95 * wanted + 0.05 * theirs.detach()
        assert torch.allclose(ours, theirs.detach(), atol=1e-6)
    assert torch.allclose(lagged, wanted, atol=1e-6) and int(made.state.steps) == 40


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("norm", [1.0, float("nan"), float("inf")])
def test_a_step_that_does_not_go_leaves_everything_bit_for_bit(before, norm):
    weights = torch.randn(9, generator=torch.Generator().manual_seed(2))
    made, gradient, target = stepping(weights)
    lr = torch.tensor(0.1)
    for _ in range(before):
        gradient.fill_(1.0)
        made.step(gradient.norm(), lr, lr, torch.tensor(1.0))
    kept = [tensor.clone() for tensor in (weights, target, *made.state)]
    gradient.fill_(float("nan"))
    made.step(torch.tensor(norm), lr, lr, torch.tensor(0.0))
    assert all(torch.equal(a, b) for a, b in zip(kept, (weights, target, *made.state), strict=True))


# The guard.

WHERE = {"heads.weight": "next value", "aux.bias": "auxiliary value"}


def spoil(what, learner, batch):
    """The batch with one thing not finite, at row 7 where it is of rows."""
    if what == "return":
        batch.sample.returns[7] = float("inf")
    elif what == "label":
        return batch._replace(label=batch.label.index_fill(0, torch.tensor([7]), float("nan")))
    elif what == "observation":
        batch.observation[7, 3] = float("nan")
    elif what == "next observation":
        batch.next_observation[7, 90] = float("nan")
    elif what == "target":
        learner.target.weights["heads.bias"].view(-1)[5] = float("nan")
    else:
        learner.model.weights[what].data.view(-1)[0] = float("nan")
    return batch


def same(ours, theirs):
    """Whether tensors are equal bit for bit, NaN where NaN."""
    return all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("what", ["return", "label", "observation", "next observation", "target", "heads.weight", "aux.bias"])
def test_the_first_thing_that_is_not_finite_stops_the_run_and_is_named(what, tmp_path):
    world, learner = World(), make_learner()
    memory = make_memory(learner)
    fill(memory)
    controls = learn_controls(**CONTROLS)
    for _ in range(2):
        learn(learner, memory, world.assemble, world.history, world.bus, controls)
    learner.check(tmp_path, memory)
    batch = memory.observations(memory.sample(controls.gamma, controls.beta), world.assemble, world.history, 0)
    clean = batch._replace(sample=type(batch.sample)(*(t.clone() for t in batch.sample)), observation=batch.observation.clone())
    clean = clean._replace(next_observation=batch.next_observation.clone())
    batch = spoil(what, learner, batch)
    before = [tensor.clone() for tensor in (learner.model.flat, learner.target.flat, *learner.moments)]
    done = learner.update(batch, world.bus, controls)
    memory.update(batch.sample, done.errors)
    learner.update(clean, world.bus, controls)  # nothing after it counts, however sound
    assert same(before, (learner.model.flat, learner.target.flat, *learner.moments))
    with pytest.raises(CheckFailed) as caught:
        learner.check(tmp_path / "dump", memory)
    message, sample = str(caught.value), batch.sample
    row = int(torch.load(tmp_path / "dump" / "fault.pt", weights_only=True)["fault"][2] == sample.slots[7]) * 7
    place = f"lane {int(sample.slots[row]) % 4}, decided at step {int(sample.generation[row])}"
    assert message.startswith(f"update 2: {WHERE.get(what, what)} ({place}) is not finite") and "\n" not in message
    assert str(tmp_path / "dump" / "fault.pt") in message
    dump = torch.load(tmp_path / "dump" / "fault.pt", weights_only=True)
    assert {"weights", "target", "moments.first", "gradient"} <= set(dump)
    assert torch.equal(dump["record"], memory.words[int(sample.slots[row])])


def test_a_gradient_that_is_not_finite_is_named_by_its_weight(tmp_path):
    world, learner = World(), make_learner()
    memory = make_memory(learner)
    fill(memory)
    controls = learn_controls(**CONTROLS)._replace(share_iqn=torch.tensor(float("inf")))
    before = learner.state_dict()
    learn(learner, memory, world.assemble, world.history, world.bus, controls)
    after = learner.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before if name != "updates")
    first = next(iter(learner.model.weights))
    with pytest.raises(CheckFailed, match=f"update 0: gradient of {first} is not finite"):
        learner.check(tmp_path, memory)
    learner.load_state_dict(before)
    learner.check(tmp_path, memory)


# State.


def play(learner, memory, world, controls, updates):
    return [learn(learner, memory, world.assemble, world.history, world.bus, controls) for _ in range(updates)]


def test_the_same_updates_twice_give_the_same_bytes():
    def run():
        world, learner = World(), make_learner()
        memory = make_memory(learner)
        fill(memory)
        stats = play(learner, memory, world, learn_controls(**CONTROLS), 10)[-1]
        return [*learner.state_dict().values(), memory.sums, *(part for part in stats if part is not None)]

    assert all(torch.equal(a, b) for a, b in zip(run(), run(), strict=True))


def test_a_loaded_learner_goes_on_as_the_saved_one_and_shares_nothing_with_it():
    controls = learn_controls(**CONTROLS)
    world, first = World(), make_learner(popart=1.0)
    memory = make_memory(first)
    fill(memory)
    every = torch.ones(4, dtype=torch.bool)
    for reward in (1.0, -2.0, 0.5):
        first.observe_rewards(torch.full((4,), reward), every, ~every, controls.gamma)
    play(first, memory, world, controls, 5)
    state, kept = first.state_dict(), memory.state_dict()
    second, other = make_learner(seed=9, popart=1.0), make_memory(first)
    second.load_state_dict(state)
    other.load_state_dict(kept)
    bus = world.bus.clone()
    for tensor in state.values():
        tensor.fill_(7)  # neither may notice
    play(first, memory, world, controls, 5)
    world.bus.copy_(bus)
    play(second, other, world, controls, 5)
    ours, theirs = first.state_dict(), second.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert len({tensor.data_ptr() for tensor in (*first._kept().values(), *ours.values())}) == 2 * len(ours)


@pytest.mark.parametrize("change", ["names", "shape", "type"])
def test_a_foreign_state_is_refused_and_changes_nothing(change):
    learner = make_learner()
    state = learner.state_dict()
    before = copy.deepcopy(state)
    state["weights"] = state["weights"] + 1
    if change == "names":
        del state["moments.steps"]
    elif change == "shape":
        state["moments.first"] = state["moments.first"][:-1]
    else:
        state["updates"] = state["updates"].int()
    with pytest.raises(ForeignCheckpoint):
        learner.load_state_dict(state)
    assert all(torch.equal(before[name], tensor) for name, tensor in learner.state_dict().items())


# Scale, ranks, precision.


def test_with_popart_a_currency_a_thousand_times_smaller_changes_nothing_and_no_stored_reward():
    def gradient(scale, popart):
        world, learner = World(), make_learner(popart=popart)
        memory = make_memory(learner)
        added = fill(memory, scale=scale)
        controls = learn_controls(**CONTROLS)
        for step in added:
            learner.observe_rewards(step["reward"], step["valid"], step["ends"], controls.gamma)
        words = memory.words.clone()
        stats = learn(learner, memory, world.assemble, world.history, world.bus, controls)
        assert torch.equal(words, memory.words)
        return learner._gradient.clone(), float(stats.v_half[0])

    (small, half), (large, thousand) = gradient(1.0, 1.0), gradient(1000.0, 1.0)
    assert torch.allclose(small, large, rtol=1e-3, atol=1e-5)
    assert thousand == pytest.approx(1000 * half, rel=1e-4)
    assert not torch.allclose(small, gradient(1000.0, 0.0)[0], rtol=1e-3, atol=1e-5)


def test_ranks_take_their_share_of_the_return():
    world, learner = World(), make_learner(rank=0.25)
    memory = make_memory(learner)
    fill(memory)
    sample = memory.sample(torch.tensor(GAMMA), torch.tensor(0.4))
    wanted = 0.75 * sample.returns + 0.25 * losses.ranked(sample.returns)
    assert torch.allclose(learner._returns(sample.returns), wanted, atol=1e-6)
    assert torch.isfinite(learn(learner, memory, world.assemble, world.history, world.bus, learn_controls()).loss)


def test_bfloat16_products_leave_float32_weights_and_nearly_the_same_gradient():
    def gradient(dtype):
        world, learner = World(), make_learner(dtype=dtype)
        memory = make_memory(learner)
        fill(memory)
        learn(learner, memory, world.assemble, world.history, world.bus, learn_controls(**CONTROLS))
        assert learner.model.flat.dtype == torch.float32
        return learner._gradient.clone()

    exact, rough = gradient(torch.float32), gradient(torch.bfloat16)
    assert float((exact - rough).norm() / exact.norm()) < 0.1
    assert not torch.equal(exact, rough)


def test_the_label_scale_moves_before_the_loss_that_divides_by_it():
    world, learner = World(), make_learner()
    memory = make_memory(learner)
    fill(memory)
    controls = learn_controls(**CONTROLS)
    batch = memory.observations(memory.sample(controls.gamma, controls.beta), world.assemble, world.history, 0)
    done = learner.update(batch, world.bus, controls)
    scale = 0.95 + 0.05 * float(batch.label.abs().mean())
    assert float(world.bus[117]) == pytest.approx(scale, rel=1e-6)
    twin = make_learner()
    with torch.no_grad():
        world.bus[117] = scale
        aux = twin.model(batch.observation, None, world.bus).aux
    # The bus itself is an input of the network, so the forward pass has to have seen the moved scale as well.
    assert float(done.stats.loss_aux) == pytest.approx(float((batch.sample.weights * (aux - batch.label / scale) ** 2).mean()), rel=1e-4)


# It learns.


def test_the_greedy_policy_of_a_known_chain_is_found_in_three_hundred_updates():
    """Five states in a row; long goes right, short goes left, the rest stay; the right end pays 1 and is the end. gamma 0.9."""
    torch.manual_seed(0)
    world, learner = World(), make_learner(batch=64, cql=0.0, lanes=8)
    learner.target.flat.copy_(learner.model.flat)
    memory = make_memory(learner, lanes=8, steps=150)
    generator = torch.Generator().manual_seed(3)
    state, episode = torch.zeros(8, dtype=torch.int64), torch.zeros(8, dtype=torch.int64)
    none = torch.zeros(8, 16)
    for time in range(150):
        action = torch.randint(0, 108, (8,), generator=generator)
        direction = action // 27
        after = (state + (direction == 2).long() - (direction == 0).long()).clamp(0, 4)
        done = after == 4
        memory.add(state, none, action, done.float(), after, none, done, done, torch.ones(8), episode, torch.full((8,), time))
        episode += done
        state = torch.where(done, torch.randint(0, 4, (8,), generator=generator), after)
    controls = learn_controls(gamma=GAMMA, lr=3e-3, polyak=0.05, share_c51=0.5, share_iqn=0.5)
    for _ in range(300):
        learn(learner, memory, world.assemble, world.history, world.bus, controls)
    with torch.no_grad():
        heads = learner.model(world.assemble(torch.arange(4), none[:4]), None, world.bus).heads
    atoms = torch.softmax(HeadOutput(*heads).logits, 2) @ learner.support
    for values in (atoms, heads.quantiles.mean(2)):
        assert values[:, :4].argmax(1).tolist() == [2, 2, 2, 2]
        assert torch.allclose(values[:, 2], GAMMA ** torch.tensor([3.0, 2.0, 1.0, 0.0]), atol=0.12)


def test_defaults_are_usable_and_unknown_settings_are_refused():
    assert LearnConfig().target == "max" and LearnConfig().n_step == 1
    with pytest.raises(ValueError):
        LearnConfig(gamma=0.9)
    assert SMALL.window == 0
