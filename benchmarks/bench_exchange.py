"""The event-level exchange: one lane beside hftbacktest on the same rows and script, and many lanes at once.

    python -m benchmarks.bench_exchange [--lanes 1024] [--threads 2] [--rounds 5]

One lane keeps two quotes of one lot at the touch, 1 ms to the exchange and 1 ms back, and decides each 100 ms or 10 ms; then, on a busier
synthetic day, each 10 s. hftbacktest 2.4.4 plays the same script on the same rows with its fastest book (an array of prices), as a loop in
numba that asks for nothing it does not need; it runs in the environment of `make differential`. Before a time is printed, its fills have
to be those of its rules in plain Python and ours those of the same rules with ours (`tests.differential.plain_exchange`).

Many lanes play the ES hour in steps of a second, each with quotes of its own; some of them are played again alone and have to give the same
account to the last micro-dollar. A lane-event is one row of the session for one lane.

The environment's own steps follow on the same hour: picks that mostly wait in the book, a new one each twenty seconds, and random picks,
each a new order that replaces the last; wins less losses of the closed trades have to be the change of every account's cash.

What limits it: the rows that change something for an order (its price's size, a print, the touch): some 40 of a lane's numbers are read for
each; a row that does not is passed by with a few comparisons. Random picks: the orders, half a fill a step, and the gates.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from benchmarks.bench_env import assert_accounts_add_up
from cuda_env import arrays as a
from cuda_env import state as s
from cuda_env.config import EnvConfig
from cuda_env.env import Env
from cuda_env.kernels_quotes import run_quotes, run_quotes_many
from cuda_env.quotes import Quotes, make_quotes, quote_buffers
from lob.actions import ACTIONS, Direction, OrderKind, Phase, Urgency, encode_action
from lob.jit import set_threads
from lob.layout import STATE_DIM
from lob.picks import Picks
from lob.schedule import schedule
from lob.tape import Tape
from tests.conftest import find_shared_data
from tests.differential.hft_events import to_events
from tests.differential.markets import decisions, es_hour, synthetic_day
from tests.differential.peers import call_peer, find_peer_python
from tests.differential.plain_exchange import OURS, Script, play, rows_of

MILLISECOND, SECOND = 10**6, 10**9
CONFIG = EnvConfig(queue_model="risk_averse", ack_latency_ns=MILLISECOND, capital_usd_micros=10**13)
MARGIN_TICKS = 50  # of the peer's array beyond the prices that the market shows
SLOTS = 100_000
SYNTHETIC_ROWS = 300_000
MAX_LOTS = 8


def make_inputs(tape: Tape, quotes: Quotes, lanes: int, slots: int, chunk: int = 64):
    """Arguments of `run_quotes`, with a state that has not begun."""
    terms = CONFIG.resolved(tape.instrument)
    params = a.params_vector(terms, tape.instrument, lanes, 0, False, chunk, 0, MILLISECOND)
    return quotes, a.market_arrays(tape, working=True), params, *quote_buffers(terms, lanes, slots)


def time_runs(play_all, tape: Tape, quotes: Quotes, lanes: int, rounds: int) -> list[float]:
    """Seconds of each round, after one that compiles; no log."""
    seconds = []
    for turn in range(rounds + 1):
        inputs = make_inputs(tape, quotes, lanes, 0)
        begun = time.perf_counter()
        play_all(*inputs)
        if turn > 0:
            seconds.append(time.perf_counter() - begun)
    return seconds


def fills_by_rules(rows, decide_ns: np.ndarray, rules) -> list[tuple]:
    """(ns, side, ticks, lots) of two quotes at the touch by the rules written in plain Python, as known at the last decision."""
    ones, none = [1] * len(decide_ns), [0] * len(decide_ns)
    fills, _, _ = play(rows, Script(decide_ns.tolist(), 0, ones, ones, none), "risk_averse", MILLISECOND, MILLISECOND, rules)
    return sorted((ns, side, ticks, lots) for ns, known, side, ticks, lots, _ in fills if known <= decide_ns[-1])


def our_fills(tape: Tape, quotes: Quotes) -> list[tuple]:
    inputs = make_inputs(tape, quotes, 1, SLOTS)
    run_quotes(*inputs)
    out = inputs[-1]
    rows = out.fills[0, : out.counts[a.FILLS_WRITTEN, 0]]
    columns = [a.WORKING_FILL_SLOTS.index(name) for name in ("ts_filled_ns", "side", "price_ticks", "lots")]
    return sorted(map(tuple, rows[:, columns].tolist()))


def bench_one_lane(tapes: dict[str, Tape], rounds: int, folder: Path) -> None:
    """One lane against the peer, each checked first against its rules."""
    cases = [("es", 100 * MILLISECOND), ("es", 10 * MILLISECOND), ("synthetic", 10 * SECOND)]
    cases = [case for case in cases if case[0] in tapes]
    rows = {name: rows_of(tape) for name, tape in tapes.items()}
    converted = {name: to_events(tape) for name, tape in tapes.items()}
    jobs, given = {}, {name: market.events for name, market in converted.items()}
    for market, period in cases:
        times = decisions(tapes[market], period)
        ones = np.ones(len(times), np.int64)
        given[f"script_{market}_{period}"] = np.stack([times, ones, ones, 0 * ones])
        jobs[f"{market}_{period}"] = {
            "market": market, "behind_ticks": 0, "queue": "risk_averse", "depth": "roi", "repeats": rounds + 1, "tick": 0.25,
            "multiplier": 50.0, "entry_ns": MILLISECOND, "response_ns": MILLISECOND, "maker_fee": 2.25, "taker_fee": 2.25,
            "low_ticks": converted[market].low_ticks - MARGIN_TICKS, "high_ticks": converted[market].high_ticks + MARGIN_TICKS,
        }  # fmt: skip
    made = call_peer("peer_hftbacktest.py", given | {"jobs": json.dumps(jobs)}, folder) if find_peer_python() else None
    accounts = json.loads(str(made["accounts"])) if made else {}
    for market, period in cases:
        name, tape = f"{market}_{period}", tapes[market]
        times = given[f"script_{name}"][0]
        quotes = make_quotes(tape, times, 0, 0, from_touch=True)
        mine = our_fills(tape, quotes)
        assert mine == fills_by_rules(rows[market], times, OURS), "our fills are not those of our rules"
        seconds = time_runs(run_quotes, tape, quotes, 1, rounds)
        print(
            f"{market}, {tape.events} rows, {len(times)} decisions {period // MILLISECOND} ms apart, {len(mine)} fills: "
            f"{1000 * np.median(seconds):.1f} ms ({1000 * min(seconds):.1f} to {1000 * max(seconds):.1f}), "
            f"{tape.events / np.median(seconds) / 1e6:.1f} M rows/s"
        )
        if made is None:
            print("  hftbacktest is not here: make differential")
            continue
        theirs = [row for row in made[f"fills_{name}"].tolist() if row[1] <= times[-1]]
        theirs = sorted((row[0], row[2], row[3], row[4]) for row in theirs)
        assert theirs == fills_by_rules(rows[market], times, ()), "the peer's fills are not those of its rules"
        peer = accounts[name]["seconds"][1:]
        print(
            f"  hftbacktest, {len(converted[market].events)} events, {len(theirs)} fills, {len(set(mine) & set(theirs))} of them ours too: "
            f"{1000 * np.median(peer):.1f} ms ({1000 * min(peer):.1f} to {1000 * max(peer):.1f}); we take "
            f"1/{np.median(peer) / np.median(seconds):.1f} of its time"
        )


def bench_many_lanes(name: str, tape: Tape, lanes: int, threads: int, rounds: int) -> None:
    """Lanes with quotes of their own, 0 to 3 ticks behind the touch, a side now and then silent; some of them checked alone."""
    random = np.random.default_rng(1)
    times = decisions(tape, SECOND)
    shape = len(times), lanes
    behind = [random.integers(0, 4, (1, lanes)) for _ in range(2)]
    lots = [(random.random(shape) < 0.9).astype(np.int32) for _ in range(2)]
    quotes = make_quotes(tape, times, *behind, *lots, from_touch=True)
    set_threads(threads)
    inputs = make_inputs(tape, quotes, lanes, 0)
    run_quotes_many(*inputs)
    state = inputs[3]
    for lane in range(0, lanes, max(1, lanes // 8)):
        one = make_quotes(tape, times, *(b[:, lane] for b in behind), *(side[:, lane] for side in lots), from_touch=True)
        alone = make_inputs(tape, one, 1, 0)
        run_quotes(*alone)
        for field in (s.POSITION, s.CASH, s.COST, s.FEES, s.FILL_COUNT):
            assert state[field, lane] == alone[3][field, 0], f"lane {lane} plays otherwise among others than alone"
    seconds = time_runs(run_quotes_many, tape, quotes, lanes, rounds)
    rows = int((tape.session >= 0).sum())
    rates = sorted(rows * lanes / second / 1e6 for second in seconds)
    print(
        f"{name}, {lanes} lanes, {threads} threads, {rows} rows, {len(times)} steps of 1 s, {state[s.FILL_COUNT, :lanes].sum()} fills: "
        f"{np.median(rates):.1f} M lane-events/s ({rates[0]:.1f} to {rates[-1]:.1f})"
    )


def bench_steps(tape: Tape, lanes: int, threads: int, rounds: int) -> None:
    """The environment's steps of a second, many in one call, with picks that mostly wait and with random ones."""
    random = np.random.default_rng(2)
    times = decisions(tape, SECOND)
    plan = schedule(tape, "1s", int(times[0]), int(tape.ts_recv_ns[-1]), MILLISECOND, MAX_LOTS)
    waiting = [
        encode_action(int(to), 2, int(OrderKind.JOIN), int(Urgency.PATIENT)) for to in (Direction.LONG, Direction.SHORT, Direction.FLAT)
    ]
    shape = plan.decisions, lanes
    picks = {
        "picks that wait": np.repeat(random.choice(waiting, (plan.decisions // 20 + 1, lanes)), 20, axis=0)[: plan.decisions],
        "random picks": random.integers(0, ACTIONS, shape),
    }
    rows = int(plan.observed_event[-1] - plan.observed_event[0])
    config = CONFIG.model_copy(update={"max_lots": MAX_LOTS})
    features = np.zeros((plan.rows, STATE_DIM), np.float32)
    for name, actions in picks.items():
        rates, fills = [], 0
        for turn in range(rounds + 1):
            env = Env(tape, plan, features, config, lanes, Phase.TRAIN, emit=(), threads=threads, diag=False)
            inputs = Picks(*(torch.full((lanes,), 10**6, dtype=torch.int32) for _ in Picks._fields))
            ready = torch.from_numpy(actions.astype(np.int32))
            begun = time.perf_counter()
            env.run_steps(ready, inputs)
            if turn > 0:
                rates.append(rows * lanes / (time.perf_counter() - begun) / 1e6)
            fills = int(env.state[s.FILL_COUNT, :lanes].sum())
            assert_accounts_add_up(env)
        print(
            f"environment, {lanes} lanes, {threads} threads, {plan.decisions} steps of 1 s, {name}, {fills / plan.decisions / lanes:.2f} "
            f"fills a step: {np.median(rates):.1f} M lane-events/s ({min(rates):.1f} to {max(rates):.1f}); accounts add up"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shared = find_shared_data()
        tapes = {"synthetic": synthetic_day(SYNTHETIC_ROWS, 3)}
        if shared is None:
            print("the ES hour is not here (set TAPEPROOF_DATA): only the synthetic day is played")
        else:
            tapes["es"] = es_hour(shared, Path(folder))
        bench_one_lane(tapes, options.rounds, Path(folder))
        if "es" in tapes:
            bench_many_lanes("es", tapes["es"], options.lanes, options.threads, options.rounds)
            bench_steps(tapes["es"], options.lanes, options.threads, options.rounds)


if __name__ == "__main__":
    main()
