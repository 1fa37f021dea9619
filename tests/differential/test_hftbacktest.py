"""hftbacktest 2.4.4 on the same events. What it does is written down in `plain_exchange`, and this shows that it is true."""

import json

import numpy as np
import pytest

from tests.differential.hft_events import to_events
from tests.differential.markets import decisions, es_hour, synthetic_day
from tests.differential.peers import call_peer, find_peer_python
from tests.differential.plain_exchange import Script, play, rows_of

pytestmark = pytest.mark.differential

MILLISECOND = 10**6
FEE_USD = 2.25
TERMS = {
    "depth": "roi", "entry_ns": MILLISECOND, "response_ns": MILLISECOND,
    "tick": 0.25, "multiplier": 50.0, "maker_fee": FEE_USD, "taker_fee": FEE_USD,
}  # fmt: skip
QUEUES = {"averse": "risk_averse", "power": ["power", 3.0], "proportional": ["power", 1.0]}
MARGIN_TICKS = 50  # what the peer's array of prices holds beyond those that the market shows


@pytest.fixture(scope="module")
def markets(shared_data, tmp_path_factory):
    """{name: (tape, print prices, converted events, decision times)}"""
    found = {"es": (es_hour(shared_data, tmp_path_factory.mktemp("es")), 100), "synthetic": (synthetic_day(6000, 3), 5000)}
    return {
        name: (tape, prints, to_events(tape, prints), decisions(tape, period * MILLISECOND))
        for name, ((tape, prints), period) in found.items()
    }


def script(kind: str, decide_ns: np.ndarray) -> np.ndarray:
    """int64[4, T] of a job: `quote` one lot on both sides all the time, `flicker` a lot a side now and then, `large` three lots a side, and
    `take` one lot at some decisions, `sweep` up to six."""
    random, count = np.random.default_rng(11), len(decide_ns)
    bid, ask, take = np.zeros((3, count), np.int64)
    if kind in ("quote", "large"):
        bid[:] = ask[:] = 1 if kind == "quote" else 3
    elif kind == "flicker":
        bid[:], ask[:] = (np.repeat(random.integers(0, 2, count // 7 + 1), 7)[:count] for _ in range(2))
    elif kind == "take":
        take[random.random(count) < 0.02] = 1
        take *= random.choice([-1, 1], count)
    else:
        take[:] = np.where(random.random(count) < 0.02, random.integers(-6, 7, count), 0)
    return np.stack([decide_ns, bid, ask, take])


JOBS = [
    (market, queue, kind, behind)
    for market in ("es", "synthetic")
    for queue in QUEUES
    for kind, behind in (("quote", 0), ("flicker", 1), ("large", 0), ("take", 0), ("sweep", 0))
    if queue == "averse" or kind not in ("take", "sweep")
]


def name_of(job) -> str:
    return "_".join(map(str, job))


@pytest.fixture(scope="module")
def theirs(markets, tmp_path_factory):
    """What hftbacktest made of every job, in one process, because it compiles for ten seconds."""
    if find_peer_python() is None:
        pytest.skip("the peers are not installed: make differential")
    jobs, given = {}, {}
    for job in JOBS:
        market, queue, kind, behind = job
        _, _, converted, decide_ns = markets[market]
        room = {"low_ticks": converted.low_ticks - MARGIN_TICKS, "high_ticks": converted.high_ticks + MARGIN_TICKS}
        jobs[name_of(job)] = TERMS | room | {"queue": QUEUES[queue], "market": market, "behind_ticks": behind}
        given[market], given[f"script_{name_of(job)}"] = converted.events, script(kind, decide_ns)
    return call_peer("peer_hftbacktest.py", given | {"jobs": json.dumps(jobs)}, tmp_path_factory.mktemp("peer"))


def in_order(fills: np.ndarray) -> list:
    """(exchange ns, local ns, side, ticks, lots, order) of the peer's rows, by time."""
    return fills[np.lexsort((fills[:, 5], fills[:, 0]))][:, :6].tolist()


def test_its_fills_times_and_money_are_those_of_its_rules_in_plain_python(markets, theirs):
    accounts, filled, expired = json.loads(str(theirs["accounts"])), 0, 0
    plain_rows = {name: rows_of(tape, prints) for name, (tape, prints, _, _) in markets.items()}
    for job in JOBS:
        market, queue, kind, behind = job
        decide_ns, *lots = script(kind, markets[market][3]).tolist()
        fills, orders, _ = play(plain_rows[market], Script(decide_ns, behind, *lots), QUEUES[queue], MILLISECOND, MILLISECOND)
        assert [list(fill) for fill in fills] == in_order(theirs[f"fills_{name_of(job)}"]), job
        account = accounts[name_of(job)]
        assert account["position"] == sum(side * lots for _, _, side, _, lots, _ in fills)
        assert account["balance"] == -sum(side * ticks * lots for _, _, side, ticks, lots, _ in fills) * 12.5
        assert account["fee"] == FEE_USD * sum(fill[4] for fill in fills)
        assert len(orders) == len(theirs[f"orders_{name_of(job)}"])
        filled += len(fills)
        expired += sum(order.state == "expired" for order in orders)
    assert filled > 1000
    assert expired > 0, "no order arrived where it would have crossed"
