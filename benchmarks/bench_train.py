"""Training's three figures, never one: environment and inference; environment, inference and learning; what the log adds.

    python -m benchmarks.bench_train [--device cpu|cuda] [--rounds 5]

Environment alone is `benchmarks.bench_env`. A synthetic ES day at 100 ms, lanes at random starts. Inference is observation, network, fused
selection and step in one captured graph, nothing logged; learning is `sim.trainer`, with its log fetched once a block. Before a time is
printed, no lane may have a fault, picks must differ, and the learner must have updated as often as was asked. What limits the numbers: on
one H200 at 65,536 lanes the writer of observations and the network's products, each a third of a step; in learning, the losses of a batch.
"""

import argparse
import time
from pathlib import Path

import torch

from benchmarks.bench_env import make_market
from cuda_env.env import Env
from lob.actions import Phase
from lob.features import period_s
from lob.instruments import REGISTRY
from lob.normalise import fixed
from policy.architecture import profile
from policy.bus import controls_of
from policy.explore import SelectConfig
from policy.health import ControlConfig, Controllers
from policy.model import Actor, initialise, parameters, support
from policy.protocol import constant_picks
from sim.exactness import exact
from sim.loop_config import LoopConfig
from sim.tape import Loaded
from sim.train_config import TrainConfig, plan_train
from sim.trainer import Trainer

STEPS = 200
DECISIONS = 20_000


def config_of(lanes: int, **stated) -> TrainConfig:
    tape = {"market_schema": "mbp-10", "clock": "100ms", "start_ns": 1, "end_ns": 2}
    return plan_train(None, "ESH4", REGISTRY, tape, stated, seed=1, lanes=lanes)  # type: ignore[arg-type]  # no store is asked


def loaded_of(market) -> Loaded:
    tape, plan, features = market
    return Loaded(tape, plan, features, fixed(period_s("100ms", "mbp-10")), {}, ())


def best_of(rounds: int, work, device: str) -> float:
    """Seconds of the best round; the first warms up."""
    best = float("inf")
    for turn in range(rounds + 1):
        if device == "cuda":
            torch.cuda.synchronize()
        begun = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        if turn:
            best = min(best, time.perf_counter() - begun)
    return best


def inference(market, name: str, lanes: int, dtype: torch.dtype, rounds: int) -> None:
    """Environment and inference on CUDA, one captured graph a step."""
    from policy.select_kernel import facts, fused_select

    tape, plan, features = market
    config = config_of(lanes)
    env = Env(tape, plan, features, config.env, lanes, Phase.TRAIN, "cuda", emit=(), diag=False, restarts=1)
    architecture = profile(name)
    model = initialise(architecture, 1, "cuda")
    actor = Actor(model, dtype)
    controllers = Controllers(ControlConfig(), SelectConfig(), "cuda")
    controls, _ = controls_of(controllers.state.bus)
    picks, found = constant_picks(lanes, "cuda"), facts(lanes, "cuda")
    ids, step = torch.arange(lanes, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")
    table = None
    with torch.no_grad():
        if model.window:
            rows = plan.rows
            table = actor.encode_tape(lambda chosen: env.history(model.window, chosen), rows)

        def heads_of():
            encoded = None if table is None else table[env.row]
            return actor(env.observe(), None, controllers.state.bus, encoded)

        with torch.cuda.stream(env.stream):
            said = heads_of()
            launch = fused_select(
                said.logits.shape[2], said.quantiles.shape[2], said.logits.dtype, support(architecture, "cuda"), controls, "boltzmann",
                True, 1, ids, step, picks, found, env.stream,
            )  # fmt: skip

            def one() -> None:
                launch(heads_of())
                env.step(picks)
                step.add_(1)

            for _ in range(3):
                one()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=env.stream):
            one()

        def work() -> None:
            with torch.cuda.stream(env.stream):
                for _ in range(STEPS):
                    graph.replay()

        seconds = best_of(rounds, work, "cuda") / STEPS
    env.check()
    assert len(picks.action.unique()) > 20, "the picks do not differ"
    assert int(step) == 3 + STEPS * (rounds + 1), "a step was lost"
    named = f"{name} ({parameters(architecture):,} parameters)"
    kept = ", temporal encoder from a table of the tape" if table is not None else ""
    print(
        f"env + inference  {named:32s} {str(dtype)[6:]:8s} {lanes:6d} lanes {seconds * 1e6:8.1f} us {lanes / seconds / 1e6:8.1f} M/s{kept}"
    )


def learning(market, name: str, lanes: int, batch: int, mode: int, device: str, rounds: int, level: str, dtype: str = "float32") -> float:
    """Environment, inference, one update a step and the log; returns seconds a step."""
    loop = {"block_steps": 50, "device": device, "determinism": mode, "warmup_steps": 1, "dtype": dtype}
    stated = {"model": {"profile": name}, "learner": {"batch": batch, "capacity": 64 * lanes}, "loop": loop, "log": {"level": level}}
    config = config_of(lanes, **stated)
    exact(LoopConfig(**loop))
    trainer = Trainer(config, loaded_of(market))
    steps = STEPS if device == "cuda" else 50

    def work() -> None:
        for _ in range(steps // 50):
            trainer.run(50)
            rows = trainer.log.drain()
            assert len(rows["diag"]["step"]) == 50, "a row of the log is missing"

    seconds = best_of(rounds, work, device) / steps
    trainer.learner.check(Path("faults"), trainer.memory)
    assert int(trainer.learner.updates) == trainer.steps - 1, "an update is missing"
    shown = f"{name}, batch {batch}, {dtype}, mode {mode}, level {level}"
    print(f"env + inference + train  {shown:52s} {lanes:6d} lanes {seconds * 1e6:8.1f} us {lanes / seconds / 1e6:8.2f} M/s")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    market = make_market(DECISIONS)
    if options.device == "cpu":
        logged = [learning(market, "small", 128, 256, 1, "cpu", options.rounds, level) for level in ("diag", "trades")]
        print(f"trades beside diag: {100 * (logged[1] / logged[0] - 1):+.1f} %")
        return
    for name in ("small", "trunk", "default"):
        inference(market, name, 65_536, torch.bfloat16, options.rounds)
    for mode in (0, 1):
        learning(market, "small", 4_096, 4_096, mode, "cuda", options.rounds, "diag")
    learning(market, "small", 4_096, 4_096, 1, "cuda", options.rounds, "trades")
    learning(market, "small", 4_096, 4_096, 0, "cuda", options.rounds, "diag", "bfloat16")
    learning(market, "default", 4_096, 4_096, 1, "cuda", options.rounds, "diag")


if __name__ == "__main__":
    main()
