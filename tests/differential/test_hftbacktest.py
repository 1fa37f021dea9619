"""The same rows and the same scripts through hftbacktest 2.4.4 and through our exchange: the same fills, times and money.

Between the two stands `plain_exchange`. With no rule of ours it gives hftbacktest's fills, with all of them it gives ours, so that each
difference between the two is one of those rules at work; where none of them has acted yet, there is none.
"""

import json
from typing import NamedTuple

import numpy as np
import pytest

from cuda_env.config import EnvConfig
from cuda_env.quotes import QuoteRun, make_quotes, play_quotes
from lob.tape import Tape
from tests.differential.hft_events import to_events
from tests.differential.markets import decisions, es_hour, synthetic_day
from tests.differential.peers import call_peer
from tests.differential.plain_exchange import OURS, Script, play, rows_of
from tests.exchange_markets import random_market

MILLISECOND = 10**6
FEE_USD_MICROS = 2_250_000
CAPITAL_USD_MICROS = 10**13
MARGIN_TICKS = 50  # what the peer's array of prices holds beyond those that the market shows
SLOTS = 20_000
TERMS = {
    "depth": "roi", "entry_ns": MILLISECOND, "response_ns": MILLISECOND,
    "tick": 0.25, "multiplier": 50.0, "maker_fee": FEE_USD_MICROS / 1e6, "taker_fee": FEE_USD_MICROS / 1e6,
}  # fmt: skip
QUEUES = {"averse": "risk_averse", "power": ["power", 3.0], "proportional": ["power", 1.0]}
MODELS = {
    "averse": {"queue_model": "risk_averse"},
    "power": {"queue_model": "power", "queue_power": 3},
    "proportional": {"queue_model": "proportional"},
}
PERIODS_NS = {"es": 100 * MILLISECOND, "synthetic": 5000 * MILLISECOND, "rough": 30 * MILLISECOND}


class Job(NamedTuple):
    market: str
    queue: str
    kind: str
    behind: int = 0

    @property
    def name(self) -> str:
        return "_".join(map(str, self))


JOBS = (
    *(Job("es", "averse", kind, behind) for kind, behind in (("quote", 0), ("flicker", 1), ("large", 0), ("sweep", 0))),
    *(Job("es", queue, "quote") for queue in ("power", "proportional")),
    *(Job("synthetic", "averse", kind, behind) for kind, behind in (("quote", 0), ("flicker", 8), ("both", 0))),
    *(Job("synthetic", "power", kind, behind) for kind, behind in (("flicker", 9), ("both", 1))),
    *(
        Job("rough", queue, kind, behind)
        for queue in QUEUES
        for kind, behind in (("both", 0), ("flicker", 1), ("flicker", 3), ("large", 0))
    ),
)


def lots_of(kind: str, count: int) -> np.ndarray:
    """int64[3, count], lots of bid, ask and market order at each decision: `quote` one lot on both sides all the time, `large` three,
    `flicker` one lot a side now and then, `take` one lot at some decisions, `sweep` up to six, `both` flickers and sweeps."""
    random = np.random.default_rng(11)
    bid, ask, take = np.zeros((3, count), np.int64)
    if kind in ("quote", "large"):
        bid[:] = ask[:] = 1 if kind == "quote" else 3
    if kind in ("flicker", "both"):
        bid[:], ask[:] = (np.repeat(random.integers(0, 2, count // 7 + 1), 7)[:count] for _ in range(2))
    if kind == "take":
        take[:] = np.where(random.random(count) < 0.02, random.choice([-1, 1], count), 0)
    if kind in ("sweep", "both"):
        take[:] = np.where(random.random(count) < 0.02, random.integers(-6, 7, count), 0)
    return np.stack([bid, ask, take])


@pytest.fixture(scope="module")
def tapes(shared_data, tmp_path_factory) -> dict[str, Tape]:
    es = es_hour(shared_data, tmp_path_factory.mktemp("es"))
    return {"es": es, "synthetic": synthetic_day(6000, 3), "rough": random_market(4, 4000, 4, sessions=1, calm=True).tape()}


@pytest.fixture(scope="module")
def scripts(tapes) -> dict[Job, np.ndarray]:
    """int64[4, T]: times and lots."""
    times = {name: decisions(tape, PERIODS_NS[name]) for name, tape in tapes.items()}
    return {job: np.vstack([times[job.market], lots_of(job.kind, len(times[job.market]))]) for job in JOBS}


@pytest.fixture(scope="module")
def theirs(tapes, scripts, tmp_path_factory):
    """What hftbacktest made of every job, in one process, because it compiles for ten seconds."""
    converted = {name: to_events(tape) for name, tape in tapes.items()}
    given = {name: market.events for name, market in converted.items()} | {f"script_{job.name}": scripts[job] for job in JOBS}
    jobs = {
        job.name: TERMS
        | {"market": job.market, "behind_ticks": job.behind, "queue": QUEUES[job.queue]}
        | {"low_ticks": converted[job.market].low_ticks - MARGIN_TICKS, "high_ticks": converted[job.market].high_ticks + MARGIN_TICKS}
        for job in JOBS
    }
    made = call_peer("peer_hftbacktest.py", given | {"jobs": json.dumps(jobs)}, tmp_path_factory.mktemp("peer"))
    return made | {"accounts": json.loads(str(made["accounts"]))}


@pytest.fixture(scope="module")
def by_rules(tapes, scripts):
    """(job, rules) -> what `plain_exchange` makes of it, made once."""
    rows = {name: rows_of(tape) for name, tape in tapes.items()}
    made = {}

    def ask(job: Job, rules: tuple[str, ...]):
        if (job, rules) not in made:
            script = Script(scripts[job][0].tolist(), job.behind, *scripts[job][1:].tolist())
            made[job, rules] = play(rows[job.market], script, QUEUES[job.queue], MILLISECOND, MILLISECOND, rules)
        return made[job, rules]

    return ask


@pytest.fixture(scope="module")
def ours(tapes, scripts) -> dict[Job, QuoteRun]:
    """What our exchange makes of every job; one decision more, after the end, shows what came of the last."""
    made = {}
    for job in JOBS:
        tape, (times, *lots) = tapes[job.market], scripts[job]
        end = int(tape.ts_recv_ns[-1]) + 10**9
        terms = MODELS[job.queue] | {
            "ack_latency_ns": MILLISECOND,
            "fee_usd_micros": FEE_USD_MICROS,
            "capital_usd_micros": CAPITAL_USD_MICROS,
        }
        quotes = make_quotes(tape, np.append(times, end), job.behind, job.behind, *(np.append(row, 0) for row in lots), from_touch=True)
        made[job] = play_quotes(tape, EnvConfig(**terms), quotes, latency_ns=MILLISECOND, slots=SLOTS)
    return made


def fills_of(run: QuoteRun) -> list[tuple[int, ...]]:
    """(exchange ns, side, ticks, lots) in the order of time, then as they came."""
    names = ("ts_filled_ns", "side", "price_ticks", "lots")
    return sorted(zip(*(run.fills[name].tolist() for name in names), strict=True))


def plain_fills(fills) -> list[tuple[int, ...]]:
    return sorted((ns, side, ticks, lots) for ns, _, side, ticks, lots, _ in fills)


def peer_fills(rows: np.ndarray) -> list[tuple[int, ...]]:
    return sorted(map(tuple, rows[:, [0, 2, 3, 4]].tolist()))


def equity_of(fills, mid2: int) -> int:
    """Micro-dollars won on fills (…, side, ticks, lots) with what is open at bid + ask of `mid2`, less a fee a lot."""
    return sum(lots * (side * (mid2 - 2 * ticks) * 6_250_000 - FEE_USD_MICROS) for *_, side, ticks, lots in fills)


def last_mid2(tape: Tape) -> int:
    row = int(np.flatnonzero(tape.tradable)[-1])
    return int(tape.bid_ticks[row, 0]) + int(tape.ask_ticks[row, 0])


def our_equity(run: QuoteRun, tape: Tape) -> int:
    open_ = int(run.position_lots[0]) * last_mid2(tape) - 2 * int(run.cost_ticks[0])
    return int(run.cash_usd_micros[0]) - CAPITAL_USD_MICROS + open_ * 6_250_000


def their_equity(account: dict, tape: Tape) -> int:
    return round((account["balance"] + account["position"] * last_mid2(tape) * 6.25 - account["fee"]) * 1e6)


@pytest.mark.differential
@pytest.mark.parametrize("market", PERIODS_NS)
def test_hftbacktests_fills_times_and_money_are_those_of_its_rules_in_plain_python(tapes, theirs, by_rules, market):
    for job in [job for job in JOBS if job.market == market]:
        fills, orders, _ = by_rules(job, ())
        rows = theirs[f"fills_{job.name}"]
        assert sorted((*fill[:5], fill[5]) for fill in fills) == sorted(map(tuple, rows[:, :6].tolist())), job
        account = theirs["accounts"][job.name]
        assert account["position"] == sum(side * lots for _, _, side, _, lots, _ in fills)
        assert account["fee"] * 1e6 == FEE_USD_MICROS * sum(fill[4] for fill in fills)
        assert their_equity(account, tapes[market]) == equity_of(plain_fills(fills), last_mid2(tapes[market]))
        assert len(orders) == len(theirs[f"orders_{job.name}"])


@pytest.mark.parametrize("market", PERIODS_NS)
def test_our_fills_times_and_money_are_those_of_its_rules_and_the_named_ones(tapes, ours, by_rules, market):
    for job in [job for job in JOBS if job.market == market]:
        fills, orders, _ = by_rules(job, OURS)
        run = ours[job]
        assert fills_of(run) == plain_fills(fills), job
        assert len(fills) > 0
        assert our_equity(run, tapes[market]) == equity_of(plain_fills(fills), last_mid2(tapes[market]))
        assert int(run.fees_usd_micros[0]) == FEE_USD_MICROS * sum(fill[4] for fill in fills)
        assert len(run.orders["order_id"]) <= len(orders)


@pytest.mark.differential
def test_until_a_named_rule_acts_ours_and_hftbacktests_fills_are_the_same_and_so_is_the_money_where_none_does(
    tapes, ours, theirs, by_rules
):
    acted_at_all, untouched = set(), 0
    for job in JOBS:
        mine, peers = fills_of(ours[job]), peer_fills(theirs[f"fills_{job.name}"])
        acted = by_rules(job, OURS)[2]
        first_ns = min((times[0] for times in acted.values()), default=None)
        if first_ns is None:
            untouched += 1
            assert mine == peers, job
            account = theirs["accounts"][job.name]
            assert our_equity(ours[job], tapes[job.market]) == their_equity(account, tapes[job.market]), job
            assert int(ours[job].position_lots[0]) == account["position"]
        else:
            assert [fill for fill in mine if fill[0] < first_ns] == [fill for fill in peers if fill[0] < first_ns], job
        acted_at_all |= set(acted)
        if job.queue == "averse" and job.kind in ("quote", "flicker"):
            assert mine == peers, "of one lot in the cautious queue every fill is the peer's"
    assert acted_at_all == set(OURS), "a rule that never acts explains nothing"
    assert untouched > 3
