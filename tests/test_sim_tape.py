"""From a store of real files to tape, schedule and features, through the cache."""

import shutil

import numpy as np
import pytest

from lob.errors import BadInput, StaleCache
from lob.features import FEATURES
from lob.instruments import resolve
from lob.layout import OFFSET
from lob.units import parse_time_ns
from sim.config import run_config
from sim.ingest import ingest
from sim.tape import load
from store.feature_cache import cache_path, features_hash
from tests.conftest import find_shared_data
from tests.test_store_feature_cache import rewrite

BOOKS, BARS = "mbp10/esh4_20231225_derived.mbp-10.dbn.zst", "ohlcv/ES_1min_2023-09-24_2023-10-09.csv"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    data = find_shared_data()
    if data is None:
        pytest.skip("no real market files here: set TAPEPROOF_DATA to their folder")
    folder = tmp_path_factory.mktemp("market") / "S"
    ingest(data / BOOKS, folder)
    ingest(data / BARS, folder, instrument="ES", schema="ohlcv-1m", timezone="America/New_York")
    return folder


def config(symbol, schema, clock, start, end, **tape):
    settings = {"market_schema": schema, "clock": clock, "start_ns": parse_time_ns(start)[0], "end_ns": parse_time_ns(end)[0]} | tape
    return run_config(symbol, resolve(symbol), settings, {"capital_usd_micros": 10**12, "max_lots": 8}, policy="flat")


def books(**tape):
    return config("ESH4", "mbp-10", "1s", "2023-12-25T23:00", "2023-12-26T00:00", latency_ns=1_000_000, **tape)


def entries(store):
    return sorted((store / "features").glob("*.parquet"))


def test_the_first_decision_on_real_books_comes_after_the_crossed_pre_open(store):
    got = load(store, books())
    tape, plan = got.tape, got.schedule
    opens = parse_time_ns("2023-12-25T23:00")[0]
    assert plan.ts_decided_ns[0] == opens + 10**9 and plan.decisions == 3599
    assert (tape.bid_ticks[plan.fill_event, 0] < tape.ask_ticks[plan.fill_event, 0]).all()
    assert tape.barred["mid_event"] == 6667 and tape.session.max() == 20231226
    early = load(store, config("ESH4", "mbp-10", "1s", "2023-12-25T22:00", "2023-12-26T00:00", latency_ns=1_000_000))
    assert early.schedule.ts_decided_ns.tolist() == plan.ts_decided_ns.tolist(), "nothing is decided before the session opens"
    assert early.features.tobytes() == got.features.tobytes()


def test_features_of_real_books_are_finite_alive_and_of_declared_scale(store):
    x = load(store, books()).features
    assert np.isfinite(x).all()
    for feature in FEATURES:
        column = x[:, feature.slot]
        assert column.any(), feature.name
        assert np.abs(column).mean() < 5, feature.name


def test_a_later_window_sees_the_same_at_the_same_time(store):
    whole, late = (
        load(store, books()),
        load(store, config("ESH4", "mbp-10", "1s", "2023-12-25T23:30", "2023-12-26T00:00", latency_ns=1_000_000)),
    )
    first = int(np.searchsorted(whole.schedule.ts_decided_ns, late.schedule.ts_decided_ns[0]))
    assert whole.features[first:].tobytes() == late.features.tobytes()
    assert late.provenance["read_start_ns"] == parse_time_ns("2023-12-25T23:00")[0]


def test_the_cache_gives_the_bytes_that_computing_gives(store):
    shutil.rmtree(store / "features", ignore_errors=True)
    computed = load(store, books())
    assert len(entries(store)) == 1
    cached, rebuilt = load(store, books()), load(store, books(), rebuild=True)
    assert cached.features.tobytes() == computed.features.tobytes() == rebuilt.features.tobytes()
    assert cached.provenance == computed.provenance == rebuilt.provenance
    assert cached.provenance["features_hash"] == features_hash(cached.features)


def test_a_stale_cache_stops_the_run_until_it_is_rebuilt(store):
    load(store, books())
    for path in entries(store):
        rewrite(path, schema_hash="0" * 64)
    with pytest.raises(StaleCache, match="--rebuild-features"):
        load(store, books())
    load(store, books(), rebuild=True)
    load(store, books())


def test_every_setting_that_moves_a_feature_is_another_entry(store):
    shutil.rmtree(store / "features", ignore_errors=True)
    for i, change in enumerate(
        ({}, {"latency_ns": 2_000_000}, {"step_limit": 50}, {"clock": "2s"}, {"end_ns": parse_time_ns("2023-12-25T23:50")[0]})
    ):
        load(store, books().model_copy(update={"tape": books().tape.model_copy(update=change)}))
        assert len(entries(store)) == i + 1


def test_a_store_that_cannot_be_written_still_gives_features_and_says_so(store, tmp_path):
    expected = load(store, books())
    copy = tmp_path / "S"
    shutil.copytree(store, copy, ignore=shutil.ignore_patterns("features"))
    (copy / "features").write_text("in the way")
    (copy / "features").unlink()
    path = cache_path(copy, {})
    path.parent.symlink_to(tmp_path / "nowhere" / "else")
    got = load(copy, books())
    assert got.features.tobytes() == expected.features.tobytes()
    assert any("cannot be written" in note for note in got.notes)


def test_real_bars_decide_at_bar_ends_and_fill_at_the_next_open(store):
    got = load(store, config("ES", "ohlcv-1m", "bar", "2023-09-25T13:30", "2023-09-28T20:00"))
    tape, plan = got.tape, got.schedule
    assert plan.ts_decided_ns[0] == parse_time_ns("2023-09-25T13:30")[0]
    assert (tape.point[plan.fill_event[:-1]] == 0).all() and tape.point[plan.fill_event[-1]] == 3
    assert plan.closes_session.sum() == 3
    assert not got.features[:, OFFSET["imbalance_10"]].any() and "imbalance_10" in got.provenance["absent_slots"]
    mids = (tape.bid_ticks[plan.mark_event, 0] + tape.ask_ticks[plan.mark_event, 0]) / 2
    same = np.nonzero(plan.session[1:-1] == plan.session[:-2])[0]
    returns = np.log(mids[1:-1] / mids[:-2])[same]
    np.testing.assert_allclose(got.features[1:-1, 0][same] * got.normaliser.std[0], returns, atol=1e-8)


def test_a_fit_uses_its_own_range_alone(store):
    fit = {"fit_start_ns": parse_time_ns("2023-09-24T22:00")[0], "fit_end_ns": parse_time_ns("2023-09-25T13:30")[0]}
    a = load(store, config("ES", "ohlcv-1m", "bar", "2023-09-25T13:30", "2023-09-26T20:00", **fit))
    b = load(store, config("ES", "ohlcv-1m", "bar", "2023-09-28T13:30", "2023-09-28T20:00", **fit))
    assert a.normaliser.fingerprint == b.normaliser.fingerprint and a.normaliser.label.startswith("fitted on 2023-09-24T22:00")
    assert 0.3 < a.features[:, 0].std() < 3


def test_a_window_that_the_store_outlives_is_no_end_of_the_tape(store):
    from lob.actions import EndReason

    pause = load(store, config("ES", "ohlcv-1m", "bar", "2023-09-29T19:00", "2023-10-01T23:00"))
    assert pause.schedule.final_reason == EndReason.WINDOW_END
    ended = load(store, config("ES", "ohlcv-1m", "bar", "2023-10-09T19:00", "2023-10-10T20:00"))
    assert ended.schedule.final_reason == EndReason.TAPE_END


def test_a_day_bar_is_refused_in_one_line(store):
    with pytest.raises(BadInput, match="spans sessions"):
        load(store, config("ES", "ohlcv-1d", "bar", "2023-09-25T13:30", "2023-09-28T20:00"))
