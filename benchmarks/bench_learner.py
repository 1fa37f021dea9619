"""The learner: one whole update (draw, assemble, two networks, losses, AdamW, priorities), replay alone, and C51's target alone.

    python -m benchmarks.bench_learner [--batch 256] [--rounds 7] [--device cpu|cuda] [--profile small]

Beside tianshou and torchrl where they are installed (extra `peers`), at equal batch, with a trunk of equal widths, 13 x 51 outputs, their
own replay (tianshou's prioritised, torchrl's uniform: its prioritised one needs a compiled part that not every torch has) and Adam. They
learn one categorical head of one branch; ours learns four branches of two heads, CQL and the auxiliary head in the same update. One
thread. Before a time is printed, values have to be finite and replay's root the sum of its leaves. Variants alternate within a round and
the best round counts. What limits the numbers: on the CPU, the products of the heads; on CUDA, the number of launches in the graph.
"""

import argparse
import time
from collections.abc import Callable
from importlib.util import find_spec
from itertools import pairwise

import torch

from lob.layout import BUS_SLOTS, LANE, LANE_SLOTS, STATE_DIM
from policy.architecture import profile
from policy.controls import learn_controls
from policy.learner import LearnConfig, Learner, learn
from policy.losses import HeadLosses
from policy.memory import Memory
from policy.model import initialise

LANES, ROWS = 128, 4096
ATOMS, CHOICES = 51, 13
LANE_BLOCK = slice(LANE, LANE + len(LANE_SLOTS))
MILLION = 2**20


class World:
    """Random market rows, and replay's assembler over them."""

    def __init__(self, device: str) -> None:
        self.features = torch.randn(ROWS, STATE_DIM, generator=torch.Generator().manual_seed(1)).to(device)
        self.bus = torch.zeros(BUS_SLOTS, device=device)

    def assemble(self, rows: torch.Tensor, lane_rows: torch.Tensor) -> torch.Tensor:
        observation = self.features[rows]
        observation[:, LANE_BLOCK] = lane_rows
        return observation

    def history(self, width: int, rows: torch.Tensor) -> torch.Tensor:
        back = torch.arange(1 - width, 1, device=rows.device)
        return self.features[:, :LANE][(rows[:, None] + back).clamp(min=0)]


def fill(memory: Memory, steps: int) -> None:
    generator = torch.Generator().manual_seed(2)
    lanes, device = memory.lanes, memory.device
    zeros = torch.zeros(lanes, device=device)
    for time_ in range(steps):
        row = torch.randint(0, ROWS - 1, (lanes,), generator=generator).to(device)
        ends = (torch.rand(lanes, generator=generator) < 0.01).to(device)
        reward, slots = torch.randn(lanes, generator=generator), torch.randn(lanes, 16, generator=generator).to(device)
        action = torch.randint(0, 108, (lanes,), generator=generator).to(device)
        memory.add(row, slots, action, reward.to(device), row + 1, slots, ends, ends, zeros + 1, zeros.int(), zeros.int() + time_)


def ours(batch: int, name: str, device: str, lanes: int = LANES, dtype: torch.dtype = torch.float32) -> tuple[Callable[[], object], Memory]:
    """(one update, its memory)."""
    world = World(device)
    model = initialise(profile(name), 1, device)
    learner = Learner(model, LearnConfig(batch=batch, capacity=lanes * 512), lanes, dtype)
    memory = Memory(lanes, 512, batch, 1, 0.6, 3, device)
    fill(memory, 64)
    controls = learn_controls(device, share_c51=0.36, share_iqn=0.54, share_cql=0.05, share_aux=0.05)
    return lambda: learn(learner, memory, world.assemble, world.history, world.bus, controls), memory


def sound(memory: Memory, stats) -> None:
    assert bool(torch.isfinite(stats.loss + stats.grad_norm)), "the loss is not finite"
    assert int(memory.total) == int(memory.leaves.sum()), "the root is not the sum of the leaves"


def network(outputs: int) -> torch.nn.Sequential:
    """A plain network with the trunk of the profile `small`."""
    widths = (STATE_DIM, *profile("small").hidden)
    layers = [part for a, b in pairwise(widths) for part in (torch.nn.Linear(a, b), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(widths[-1], outputs))


def tianshou(batch: int) -> Callable[[], object]:
    """One update of tianshou's C51 from its prioritised replay."""
    import numpy as np
    from gymnasium.spaces import Box, Discrete
    from tianshou.algorithm.modelfree.c51 import C51, C51Policy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Batch, PrioritizedReplayBuffer

    class Net(torch.nn.Module):
        num_atoms = ATOMS

        def __init__(self) -> None:
            super().__init__()
            self.body = network(CHOICES * ATOMS)

        def forward(self, obs, state=None, info=None):
            values = self.body(torch.as_tensor(obs, dtype=torch.float32))
            return torch.softmax(values.view(-1, CHOICES, ATOMS), dim=-1), state

    space = Box(-10, 10, (STATE_DIM,), np.float32)
    policy = C51Policy(model=Net(), action_space=Discrete(CHOICES), observation_space=space, num_atoms=ATOMS, v_min=-10, v_max=10)
    algorithm = C51(policy=policy, optim=AdamOptimizerFactory(lr=3e-4), gamma=0.99, target_update_freq=100)
    buffer = PrioritizedReplayBuffer(8192, alpha=0.6, beta=0.4)
    rng = np.random.default_rng(1)
    for _ in range(8192):
        done = bool(rng.random() < 0.01)
        seen, after = rng.normal(size=(2, STATE_DIM)).astype(np.float32)
        choice, reward = int(rng.integers(CHOICES)), float(rng.normal())
        buffer.add(Batch(obs=seen, act=choice, rew=reward, terminated=done, truncated=False, obs_next=after, info={}))
    from tianshou.algorithm.algorithm_base import policy_within_training_step

    def once():
        with policy_within_training_step(policy):
            return algorithm.update(buffer=buffer, sample_size=batch)

    return once


def torchrl_parts(batch: int):
    """(DistributionalDQNLoss, a replay of random decisions)."""
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, OneHot, TensorDictReplayBuffer
    from torchrl.modules import DistributionalQValueActor
    from torchrl.objectives import DistributionalDQNLoss

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = network(CHOICES * ATOMS)

        def forward(self, observation):
            return torch.log_softmax(self.body(observation).view(*observation.shape[:-1], ATOMS, CHOICES), dim=-2)

    support = torch.linspace(-10, 10, ATOMS)
    actor = DistributionalQValueActor(Net(), spec=OneHot(CHOICES), in_keys=["observation"], support=support)
    loss = DistributionalDQNLoss(actor, gamma=0.99, delay_value=True)
    replay = TensorDictReplayBuffer(storage=LazyTensorStorage(8192), batch_size=batch)
    seen = torch.randn(8192, STATE_DIM)
    action = torch.nn.functional.one_hot(torch.randint(0, CHOICES, (8192,)), CHOICES)
    done = torch.rand(8192, 1) < 0.01
    after = {"observation": torch.randn(8192, STATE_DIM), "reward": torch.randn(8192, 1), "done": done, "terminated": done}
    replay.extend(TensorDict({"observation": seen, "action": action, "next": TensorDict(after, [8192])}, [8192]))
    return loss, replay


def torchrl_loss(batch: int) -> Callable[[], object]:
    """The loss alone, forward: one head of one branch."""
    loss, replay = torchrl_parts(batch)
    drawn = replay.sample()
    return lambda: loss(drawn)


def torchrl(batch: int) -> Callable[[], object]:
    """One update of torchrl's DistributionalDQNLoss from uniform replay, with its soft update."""
    from torchrl.objectives import SoftUpdate

    loss, replay = torchrl_parts(batch)
    soft = SoftUpdate(loss, tau=0.01)
    optimiser = torch.optim.AdamW(loss.parameters(), lr=3e-4, weight_decay=1e-4)

    def once():
        drawn = replay.sample()
        value = loss(drawn)["loss"]
        optimiser.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(loss.parameters(), 10.0)
        optimiser.step()
        soft.step()
        return value

    return once


def seconds(call: Callable[[], object], calls: int) -> float:
    begun = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - begun) / calls


def bench_cpu(batch: int, rounds: int, name: str) -> None:
    torch.set_num_threads(1)
    update, memory = ours(batch, name, "cpu")
    variants: dict[str, Callable[[], object]] = {"ours": update}
    if name == "small":
        for peer in (tianshou, torchrl):
            if find_spec(peer.__name__):
                variants[peer.__name__] = peer(batch)
    big = replay_alone("cpu", 4096)
    variants["replay alone, 1 M slots, batch 4096"] = big
    variants["targets, losses, gradients of both heads"] = heads_alone(batch, "cpu")
    variants["C51 target alone, dense torch, four branches"] = lambda: dense_target(p, returns, discount)
    p, returns, discount = torch.rand(batch, 4, ATOMS), torch.randn(batch), torch.rand(batch)
    if find_spec("torchrl"):
        variants["torchrl's DistributionalDQNLoss, forward"] = torchrl_loss(batch)
    best: dict[str, float] = {}
    for turn in range(rounds + 1):
        for label, call in variants.items():
            took = seconds(call, 20)
            if turn > 0:  # the first round compiles and warms up
                best[label] = min(best.get(label, took), took)
    sound(memory, update())
    for label, took in best.items():
        relation = f", {took / best['ours']:.1f} of ours" if label in ("tianshou", "torchrl") else ""
        print(f"  {label:40s} {1e3 * took:9.3f} ms{relation}")


def dense_target(p: torch.Tensor, returns: torch.Tensor, discount: torch.Tensor) -> torch.Tensor:
    """The triangular kernel, dense, as tianshou writes it; for comparison."""
    support = torch.linspace(-10, 10, ATOMS, device=p.device)
    moved = (returns[:, None] + discount[:, None] * support).clamp(-10, 10)
    kernel = (1 - (moved[:, :, None] - support).abs() / (20 / (ATOMS - 1))).clamp(0, 1)
    return p @ kernel


def heads_alone(batch: int, device: str) -> Callable[[], object]:
    """Everything between the networks' outputs and the gradient there: both heads, four branches, CQL, the auxiliary head."""
    generator = torch.Generator().manual_seed(5)
    columns = 13 * (ATOMS + 5)
    said = [torch.randn(batch, columns, generator=generator).to(device) for _ in range(3)]
    rows = [torch.rand(batch, generator=generator).to(device) for _ in range(5)]
    action = torch.randint(0, 108, (batch,), generator=generator, dtype=torch.int32).to(device)
    seen = torch.randn(batch, STATE_DIM, generator=generator).to(device)
    made = HeadLosses(batch, columns, torch.linspace(-10, 10, ATOMS, device=device), 5, 1.0, False)
    one = torch.tensor(0.25, device=device)
    made.set_dials((one, one, one, one), one, one)

    def once():
        return made(*said, rows[0], action, *rows[1:], seen, seen).target

    mass = once().sum(dim=2)
    assert torch.allclose(mass, torch.ones_like(mass), atol=1e-5), "a target's probabilities do not sum to 1"
    return once


def replay_alone(device: str, batch: int) -> Callable[[], object]:
    """Draw and update of a million slots."""
    lanes = 4096
    memory = Memory(lanes, MILLION // lanes, batch, 1, 0.6, 3, device)
    fill(memory, MILLION // lanes)
    gamma, beta = torch.tensor(0.99, device=device), torch.tensor(0.4, device=device)

    def once():
        sample = memory.sample(gamma, beta)
        memory.update(sample, sample.returns.abs())

    return once


def graph_microseconds(call: Callable[[], object], replays: int = 300) -> float:
    """Median over seven rounds of a captured call's replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            call()
        took = []
        for _ in range(7):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(replays):
                graph.replay()
            stop.record()
            torch.cuda.synchronize()
            took.append(1e3 * start.elapsed_time(stop) / replays)
    return sorted(took)[3]


def bench_cuda(name: str) -> None:
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # nothing is read before it is written; each fill is a launch
    batch, device = 4096, "cuda"
    for dtype in (torch.float32, torch.bfloat16):
        update, memory = ours(batch, name, device, 4096, dtype)
        took = graph_microseconds(update)
        sound(memory, update())
        print(f"  {f'update, {name}, batch {batch}, {dtype}':52s} {took:9.1f} us a replay")
    took = graph_microseconds(replay_alone(device, batch))
    print(f"  {f'replay alone, 1 M slots, batch {batch}':52s} {took:9.1f} us a replay")
    took = graph_microseconds(heads_alone(batch, device))
    print(f"  {f'targets, losses, gradients of both heads, batch {batch}':52s} {took:9.1f} us a replay")
    p, returns, discount = torch.rand(batch, 4, ATOMS, device=device), torch.randn(batch, device=device), torch.rand(batch, device=device)
    took = graph_microseconds(lambda: dense_target(p, returns, discount))
    print(f"  {f'C51 target alone, dense torch, batch {batch}':52s} {took:9.1f} us a replay")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--profile", default="small")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    if options.device == "cuda":
        bench_cuda(options.profile)
    else:
        print(f"batch {options.batch}, profile {options.profile}, float32, one thread")
        bench_cpu(options.batch, options.rounds, options.profile)


if __name__ == "__main__":
    main()
