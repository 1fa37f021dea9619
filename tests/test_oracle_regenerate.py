"""All fills of the product's own runs, worked out again from the raw DBN by the public decoder and the logged targets, in fractions."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from lob.calendar import sessions
from lob.instruments import REGISTRY
from lob.units import parse_time_ns
from sim.ingest import ingest
from sim.plan import plan_replay
from sim.replay import replay
from sim.run_data import RunData, load
from tests.oracle.lane import Terms
from tests.oracle.regenerate import FILL_COLUMNS, regenerate_fills
from tests.replays import replayed, synthetic_store


def assert_fills_regenerate(data: RunData, dbn: Path) -> int:
    """The logged fills equal the oracle's; returns how many there are."""
    terms, steps = data.terms, data.tables["steps"]
    config = data.manifest["identity"]["config"]
    usd = lambda name: Fraction(config["env"][name], 10**6)  # noqa: E731
    tick, multiplier = Fraction(config["instrument"]["tick"]), Fraction(config["instrument"]["multiplier"])
    account = Terms(
        tick_value=tick * multiplier,
        fee=usd("fee_usd_micros"),
        margin=usd("margin_usd_micros"),
        capital=usd("capital_usd_micros"),
        floor=usd("floor_usd_micros"),
        max_lots=terms.max_lots,
    )
    held = sessions(terms.calendar, terms.read_start_ns, terms.end_ns)
    hours = list(zip(held.trade_date.tolist(), held.open_ns.tolist(), held.close_ns.tolist(), strict=True))
    lane, target = (steps.column(name).to_numpy() for name in ("lane", "target_lots"))
    one = lane == 0
    regenerated = regenerate_fills(
        dbn,
        tick,
        account,
        hours,
        steps.column("ts_decided_ns").to_numpy()[one].tolist(),
        {int(i): target[lane == i].tolist() for i in np.unique(lane)},
        int(steps.column("mark_row").to_numpy()[one][-1]),
        terms.latency_ns,
    )
    fills = data.tables["fills"]
    assert fills.select(list(FILL_COLUMNS)).to_pylist() == regenerated
    return fills.num_rows


def test_all_fills_of_a_synthetic_run_are_regenerated_from_its_dbn(tmp_path):
    store = synthetic_store(tmp_path, events=8_000)
    env = {"capital_usd_micros": 200_000_000_000, "floor_usd_micros": 185_000_000_000, "max_lots": 9, "trail_ticks": 6}
    result = replayed(store, tmp_path / "runs", lanes=3, minutes=20, latency_ns=20_000_000, env=env)
    data = load(result.run_dir)
    assert assert_fills_regenerate(data, tmp_path / "ESH4.dbn") > 200
    assert {3, 4} <= set(data.tables["fills"].column("reason").to_pylist())


def test_all_fills_of_a_real_opening_are_regenerated_from_its_dbn(shared_data, tmp_path):
    path = shared_data / "mbp10" / "esh4_20231225_derived.mbp-10.dbn.zst"
    ingest(path, tmp_path / "store")
    window = {
        "clock": "1s",
        "start_ns": parse_time_ns("2023-12-25T23:00")[0],
        "end_ns": parse_time_ns("2023-12-25T23:05")[0],
        "latency_ns": 10**6,
    }
    config = plan_replay(
        tmp_path / "store", "ESH4", REGISTRY, window, {"max_lots": 40, "capital_usd_micros": 10**12}, {}, policy="random", seed=3, lanes=2
    )
    data = load(replay(config, tmp_path / "store", tmp_path / "runs").run_dir)
    assert assert_fills_regenerate(data, path) > 500
    assert max(data.tables["fills"].column("book_level").to_pylist()) >= 2


@pytest.mark.deep
def test_all_fills_of_a_real_hour_are_regenerated_from_its_dbn(shared_data, tmp_path):
    path = shared_data / "mbp10" / "esh4_20231225_derived.mbp-10.dbn.zst"
    ingest(path, tmp_path / "store")
    window = {"clock": "1s", "start_ns": parse_time_ns("2023-12-25T23:00")[0], "end_ns": parse_time_ns("2023-12-26T00:00")[0]}
    config = plan_replay(tmp_path / "store", "ESH4", REGISTRY, window, {}, {}, policy="random", seed=7, lanes=64)
    assert assert_fills_regenerate(load(replay(config, tmp_path / "store", tmp_path / "runs").run_dir), path) > 50_000
