"""The environment: physics alone, with observation, what `diag` costs, what the tables cost; on CUDA, captured in a graph.

    python -m benchmarks.bench_env [--lanes 1024] [--threads 2] [--rounds 5] [--device cpu|cuda]

A synthetic ES day of ten levels at a clock of 100 ms, random actions, every gate on. Before a time is printed, each account is drained
and its closed trades have to sum to the change of its cash. Variants alternate within each round, and the best round counts: other work
on the machine only ever adds time. What limits the numbers: physics, integer divisions and the branches of random actions; observation,
writing 512 bytes a lane; one call a step, about 10 us for dispatch and waking the threads.
"""

import argparse
import datetime as dt
import time

import numpy as np
import torch

from cuda_env import state as s
from cuda_env.config import EnvConfig
from cuda_env.env import EMIT, Env
from lob.actions import ACTIONS, Phase
from lob.calendar import sessions
from lob.instruments import resolve
from lob.layout import LANE, STATE_DIM
from lob.picks import Picks
from lob.schedule import schedule
from lob.synth import synthesize_day
from lob.tape_build import book_tape

SECOND = 10**9
PPM = 10**6
SCRIPTS = 16  # different random picks, used in turn
TERMS = {"max_lots": 8, "trail_ticks": 40, "plan_lock_steps": 2, "capital_usd_micros": 10**12}


def make_market(decisions: int):
    """(tape, schedule, features) with at least that many decisions."""
    instrument, date = resolve("ESH4"), dt.date(2024, 1, 3)
    records = synthesize_day(instrument, date, 400_000, seed=3)
    columns = {name: records[name] for name in records.dtype.names}
    first, last = int(records["ts_event"][0]), int(records["ts_recv"][-1])
    rows = np.arange(len(records), dtype=np.int64)
    held = sessions(instrument.calendar, first, last)
    tape = book_tape(columns, {}, np.zeros(len(records), np.int32), rows, ("0" * 64,), instrument, held)
    middle = int(tape.ts_recv_ns[tape.events // 2])
    plan = schedule(tape, "100ms", middle, last, 10**6, TERMS["max_lots"], step_limit=decisions)
    features = np.random.default_rng(0).normal(size=(plan.decisions + 1, STATE_DIM)).astype(np.float32)
    features[:, LANE:] = 0
    return tape, plan, features


def make_env(market, lanes: int, threads: int, device: str = "cpu", **options) -> Env:
    return Env(*market, EnvConfig(**TERMS), lanes, Phase.TRAIN, device=device, threads=threads, **options)


def make_picks(lanes: int, device: str = "cpu") -> list[Picks]:
    rng = np.random.default_rng(1)

    def tensor(low: int, high: int) -> torch.Tensor:
        return torch.from_numpy(rng.integers(low, high, lanes).astype(np.int32)).to(device)

    return [Picks(tensor(0, ACTIONS), tensor(0, PPM), tensor(0, PPM), tensor(PPM // 4, PPM)) for _ in range(SCRIPTS)]


def assert_accounts_add_up(env: Env) -> None:
    """Drain; then wins less losses of the closed trades must be the change of every account's cash."""
    env.drain()
    state = env.state[:, : env.lanes]
    assert torch.equal(env.config.capital_usd_micros + state[s.SUM_WIN] - state[s.SUM_LOSS], state[s.CASH]), "trades do not sum to cash"
    assert not state[s.POSITION].any(), "a position is left"
    assert torch.equal(state[s.CASH], state[s.EQUITY]), "something is left unrealised"


def time_calls(env: Env, picks: list[Picks], observe: bool, rows: bool = False) -> tuple[float, int]:
    """(seconds, rows fetched) of a whole window, one call a step."""
    count = 0
    begun = time.perf_counter()
    for step in range(env.schedule.decisions):
        if observe:
            env.observe()
        env.step(picks[step % SCRIPTS])
        if rows:
            count += sum(len(env.rows(table)["lane"]) for table in env.emit)
    return time.perf_counter() - begun, count


def time_fused(env: Env, picks: list[Picks], observe: bool) -> float:
    """Seconds of a whole window in one call."""
    order = np.arange(env.schedule.decisions) % SCRIPTS
    actions = torch.from_numpy(np.stack([p.action.numpy() for p in picks])[order])
    inputs = Picks(*(tensor.clone() for tensor in picks[0]))
    begun = time.perf_counter()
    env.run_steps(actions, inputs, observe)
    return time.perf_counter() - begun


def bench_cpu(lanes: int, threads: int, rounds: int, decisions: int) -> None:
    market, picks = make_market(decisions), make_picks(lanes)
    steps = market[1].decisions * lanes
    quiet = {"emit": (), "diag": False}
    variants = {
        "physics, fused": (quiet, lambda env: (time_fused(env, picks, False), 0)),
        "physics, one call a step": (quiet, lambda env: time_calls(env, picks, False)),
        "with observation, fused": (quiet, lambda env: (time_fused(env, picks, True), 0)),
        "with observation, one call a step": (quiet, lambda env: time_calls(env, picks, True)),
        "... and diag": ({"emit": ()}, lambda env: time_calls(env, picks, True)),
        "... and every table's rows": ({"emit": EMIT}, lambda env: time_calls(env, picks, True, rows=True)),
    }
    best: dict[str, tuple[float, int]] = {}
    fills = 0
    for turn in range(rounds + 1):
        for name, (options, measure) in variants.items():
            env = make_env(market, lanes, threads, **options)
            result = measure(env)
            assert_accounts_add_up(env)
            fills = int(env.state[s.FILL_COUNT, :lanes].sum())
            if turn > 0:  # the first round compiles and warms up
                best[name] = min(best.get(name, result), result)
    print(f"{lanes} lanes, {threads} threads, {market[1].decisions} decisions, {fills / steps:.2f} fills a step; accounts add up")
    for name, (seconds, rows) in best.items():
        extra = f", {rows / seconds / 1e6:.1f} M rows/s" if rows else ""
        print(f"  {name:36s} {steps / seconds / 1e6:7.1f} M steps/s{extra}")


def bench_diag(lanes: int, threads: int, rounds: int, decisions: int) -> None:
    """What summing `diag` adds to a step with observation: the median ratio of neighbouring runs."""
    market, picks = make_market(decisions), make_picks(lanes)
    ratios = []
    for turn in range(rounds + 1):
        with_diag, without = (make_env(market, lanes, threads, emit=(), diag=diag) for diag in (True, False))
        pair = time_calls(without, picks, True)[0], time_calls(with_diag, picks, True)[0]
        assert torch.equal(with_diag.state, without.state), "diag changed a state"
        if turn > 0:
            ratios.append(pair[1] / pair[0])
    print(
        f"{lanes} lanes, {threads} threads: diag adds {100 * (float(np.median(ratios)) - 1):+.1f} % (best {100 * (min(ratios) - 1):+.1f} %)"
    )


def bench_cuda(lanes: int, decisions: int) -> None:
    """One captured graph a step: observation, the picks' copy, physics, and the sums of `diag`."""
    market, picks = make_market(decisions), make_picks(lanes, "cuda")
    for name, observe, diag in (("physics", False, False), ("with observation", True, False), ("... and diag", True, True)):
        env = make_env(market, lanes, 1, "cuda", emit=(), diag=diag)
        begun = env.state.clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(env.stream):
            for _ in range(2):
                env.observe()
                env.step(picks[0])
            env.state.copy_(begun)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=env.stream):
            if observe:
                env.observe()
            env.step(picks[0])
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(env.stream):
            start.record()
            for _ in range(env.schedule.decisions):
                graph.replay()
            stop.record()
        torch.cuda.synchronize()
        per_step = start.elapsed_time(stop) / env.schedule.decisions
        env.check()
        assert_accounts_add_up(env)
        print(f"{lanes:7d} lanes, {name:18s} {1000 * per_step:8.1f} us a replay {lanes / per_step / 1e3:10.1f} M steps/s; accounts add up")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--decisions", type=int, default=2000)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    if options.device == "cuda":
        for lanes in (4096, 65536, 524288):
            bench_cuda(lanes, options.decisions)
        return
    bench_cpu(options.lanes, options.threads, options.rounds, options.decisions)
    bench_diag(8192, options.threads, options.rounds, options.decisions // 8)


if __name__ == "__main__":
    main()
