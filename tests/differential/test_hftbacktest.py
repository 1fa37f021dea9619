"""hftbacktest 2.4.4 on the same events. What it does is written down in `plain_exchange`, and this shows that it is true."""

import json

import numpy as np
import pytest

from tests.differential.hft_events import to_events
from tests.differential.markets import decisions, es_hour, synthetic_day
from tests.differential.peers import call_peer, find_peer_python
from tests.differential.plain_exchange import quotes, replay, rows_of, signals

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


@pytest.fixture(scope="module")
def played(markets, tmp_path_factory):
    """(jobs, what hftbacktest made of them): quotes and signals on each market, in one process, because it compiles for ten seconds."""
    if find_peer_python() is None:
        pytest.skip("the peers are not installed: make differential")
    jobs, given = {}, {}
    for market, (_, _, converted, decide_ns) in markets.items():
        room = {"low_ticks": converted.low_ticks - MARGIN_TICKS, "high_ticks": converted.high_ticks + MARGIN_TICKS}
        for queue, model in QUEUES.items():
            for behind, lots in ((0, 1), (1, 3)):
                terms = {"strategy": "quotes", "queue": model, "behind_ticks": behind, "lots": lots, "limit_lots": 6}
                jobs[f"{market}_{queue}_{behind}_{lots}"] = TERMS | room | terms
        jobs[f"{market}_signal"] = TERMS | room | {"strategy": "signal", "queue": "risk_averse"}
        random = np.random.default_rng(11)
        given[f"signal_{market}_signal"] = np.where(random.random(len(decide_ns)) < 0.02, random.integers(-4, 5, len(decide_ns)), 0)
        for job in jobs:
            if job.startswith(market):
                given[f"events_{job}"], given[f"decide_ns_{job}"] = converted.events, decide_ns
    made = call_peer("peer_hftbacktest.py", given | {"jobs": json.dumps(jobs)}, tmp_path_factory.mktemp("peer"))
    return jobs, given, made


def test_its_fills_times_and_money_are_those_of_its_rules_in_plain_python(markets, played):
    jobs, given, made = played
    accounts, filled, expired = json.loads(str(made["accounts"])), 0, 0
    for job, terms in jobs.items():
        rows = rows_of(given[f"events_{job}"])
        if terms["strategy"] == "quotes":
            strategy = quotes(terms["behind_ticks"], terms["lots"], terms["limit_lots"])
        else:
            strategy = signals(given[f"signal_{job}"].tolist())
        fills, orders = replay(rows, given[f"decide_ns_{job}"].tolist(), strategy, terms["queue"], terms["entry_ns"], terms["response_ns"])
        theirs = made[f"fills_{job}"]
        theirs = theirs[np.lexsort((theirs[:, 5], theirs[:, 0]))]
        assert [list(fill) for fill in fills] == theirs[:, :6].tolist(), job
        account = accounts[job]
        assert account["position"] == sum(side * lots for _, _, side, _, lots, _ in fills)
        assert account["balance"] == -sum(side * ticks * lots for _, _, side, ticks, lots, _ in fills) * 12.5
        assert account["fee"] == FEE_USD * sum(fill[4] for fill in fills)
        assert len(orders) == len(made[f"orders_{job}"])
        filled += len(fills)
        expired += sum(order.state == "expired" for order in orders.values())
    assert filled > 1000
    assert expired > 0, "no order arrived where it would have crossed"
