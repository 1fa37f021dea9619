"""Plays scripts in one build of the exchange: njit here, plain Python and the CUDA simulator in a process of their own
(`python -m tests.exchange_builds plain|cudasim FILE`). In those two every array is a list of Python ints, so that nothing can wrap."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cuda_env import arrays as a
from cuda_env.config import EnvConfig
from cuda_env.quotes import QuoteRun, Quotes, make_quotes, play_quotes, quote_buffers
from lob.tape import Tape
from tests.env_builds import Grid, each
from tests.exchange_markets import random_market, random_script


class Terms(NamedTuple):
    """The exchange of a case."""

    model: str = "risk_averse"
    power: int = 3
    entry_ns: tuple[int, ...] | int = 1_000_000
    cancel_ns: tuple[int, ...] | int = 1_000_000
    ack_ns: tuple[int, ...] | int = 0
    maker_fee_usd_micros: int = 1_000_000

    def config(self) -> EnvConfig:
        return EnvConfig(
            queue_model=self.model, queue_power=self.power, entry_latency_ns=self.entry_ns, cancel_latency_ns=self.cancel_ns,
            ack_latency_ns=self.ack_ns, maker_fee_usd_micros=self.maker_fee_usd_micros,
        )  # fmt: skip


CASES = (
    (1, Terms()),
    (2, Terms("proportional", entry_ns=30_000_000, cancel_ns=10_000_000)),
    (3, Terms("power", 3, (0, 90_000_000), (1_000_000, 2_000_000, 200_000_000), (0, 40_000_000), -7)),
    (4, Terms("power", 2, 5_000_000, 90_000_000, 20_000_000)),
)


def script_of(seed: int, tape: Tape | None = None) -> tuple[Tape, Quotes]:
    """A random market's tape and a random script over it, as arrays."""
    market = random_market(seed)
    script = random_script(seed, market)
    tape = tape or market.tape()
    sides = [[pair[part] for pair in side] for part in (0, 1) for side in (script.bid, script.ask)]
    return tape, make_quotes(tape, np.array(script.ts), *sides, script.take)


def played(seed: int, terms: Terms) -> QuoteRun:
    tape, quotes = script_of(seed)
    return play_quotes(tape, terms.config(), quotes)


def trace(build: str, seed: int, terms: Terms, lanes: int = 3) -> dict[str, np.ndarray]:
    """State and every stored row after the script, in a build."""
    tape, quotes = script_of(seed)
    if build == "cudasim":
        quotes = quotes._replace(ts_ns=quotes.ts_ns[:25], observed_event=quotes.observed_event[:25])
    config = terms.config().resolved(tape.instrument)
    params = a.params_vector(config, tape.instrument, lanes, 5, False, 64, 0)
    state, out = quote_buffers(config, lanes, 256)
    world = (quotes, a.market_arrays(tape, working=True), params, state, out)
    if build == "njit":
        from cuda_env.kernels_quotes import run_quotes

        run_quotes(*world)
    else:
        grids = [each(part, Grid) for part in world[1:]]
        script = Quotes(*(part if isinstance(part, int) else Grid(part) for part in quotes))
        if build == "plain":
            from cuda_env.kernels_quotes import run_quotes

            assert not hasattr(run_quotes, "py_func"), "numba compiles: NUMBA_DISABLE_JIT=1 must be set"
            run_quotes(script, *grids)
        else:
            from cuda_env import kernels_live_cuda

            assert os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
            kernels_live_cuda.quotes[1, 32](script, *grids)
        state, out = (each(part, lambda grid: grid.numpy()) for part in grids[2:])
    return {"state": state, "fills": out.fills, "orders": out.orders, "counts": out.counts, "fault": out.fault}


def trace_elsewhere(build: str, folder: Path) -> list[dict[str, np.ndarray]]:
    """`trace` of every case in a process of its own, with the switches that the build needs."""
    switches = {"NUMBA_DISABLE_JIT": "1"} | ({"NUMBA_ENABLE_CUDASIM": "1"} if build == "cudasim" else {})
    house = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-m", "tests.exchange_builds", build, str(folder)]
    done = subprocess.run(command, cwd=house, env=os.environ | switches, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [dict(np.load(folder / f"{build}{i}.npz")) for i in range(len(CASES))]


if __name__ == "__main__":
    which, target = sys.argv[1:]
    for i, (seed, terms) in enumerate(CASES):
        np.savez(Path(target) / f"{which}{i}.npz", **trace(which, seed, terms))
