"""The right answer of a market whose right answer is known, by way of the whole product: file, store, replay, summary."""

import datetime as dt
import math

import numpy as np
import pytest

from lob.instruments import REGISTRY
from sim.ingest import ingest
from sim.plan import plan_replay
from sim.replay import replay
from sim.synth import synth
from tests.synth_days import trade_dates

DAYS = 20


def hours_pnl_usd(folder, edge: float) -> tuple[np.ndarray, np.ndarray]:
    """(net, fees) in dollars of one lot under the built-in policy `imbalance`, in the hour from 14:30 UTC of each day, at $2.25 a side."""
    net, fees = [], []
    for number, date in enumerate(trade_dates(DAYS)):
        path = folder / f"{date}.dbn"
        synth("ESH4", date.isoformat(), 40_000, 100 + number, edge, path)
        ingest(path, folder / "store")
        start = int(dt.datetime(date.year, date.month, date.day, 14, 30, tzinfo=dt.UTC).timestamp()) * 10**9
        window = {"clock": "1s", "start_ns": start, "end_ns": start + 3600 * 10**9, "latency_ns": 10**6}
        account = {"max_lots": 1, "trail_ticks": 0, "fee_usd_micros": 2_250_000}
        config = plan_replay(folder / "store", "ESH4", REGISTRY, window, account, {"level": "fills"}, policy="imbalance")
        summary = replay(config, folder / "store", folder / "runs").summary
        net.append(summary["total_pnl_usd_micros"] / 1e6)
        fees.append(summary["phases"][0]["fees_usd_micros"] / 1e6)
    return np.array(net), np.array(fees)


def t_of(values: np.ndarray) -> float:
    return values.mean() / values.std(ddof=1) * math.sqrt(len(values))


@pytest.mark.deep
def test_the_built_in_imbalance_policy_earns_at_edge_one_with_t_above_five_over_twenty_days(tmp_path):
    net, _ = hours_pnl_usd(tmp_path, 1.0)
    assert t_of(net) > 5


@pytest.mark.deep
def test_the_built_in_imbalance_policy_earns_no_more_than_minus_its_fees_without_edge(tmp_path):
    net, fees = hours_pnl_usd(tmp_path, 0.0)
    assert fees.min() > 0
    assert t_of(net) < 0
    assert t_of(net + fees) < 3
