"""An evaluation over several windows: every lane is drained where its window ends, all five computations prove it, every lie is named."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from lob.actions import EndReason
from sim.replay import replay
from sim.run_data import RunData, load, summary_file
from sim.summary import summarize
from sim.verify import verify, verify_tables
from sim.verify_data import read_market
from sim.verify_types import FAILED
from tests.falsification.faults import get, keep, put
from tests.window_days import DATES, HOUR, config_of, day_bounds, store_of_bars, store_of_days

MONDAY, TUESDAY, WEDNESDAY, THURSDAY = (day_bounds(date) for date in DATES)
WINDOWS = [
    (MONDAY[0] + HOUR, MONDAY[0] + 3 * HOUR),
    (TUESDAY[0] + 2 * HOUR, TUESDAY[0] + 3 * HOUR),
    (TUESDAY[0] + 4 * HOUR, TUESDAY[0] + 7 * HOUR),
    (THURSDAY[1] - 2 * HOUR, THURSDAY[1]),
]
TIGHT = {"capital_usd_micros": 60_000_000_000, "floor_usd_micros": 57_500_000_000, "margin_usd_micros": 10**9, "trail_ticks": 12}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return store_of_days(tmp_path_factory.mktemp("market"), events=20_000)


def evaluated(store, folder, level="full", lanes=9, **rest):
    config = config_of(WINDOWS, lanes=lanes, seed=5, env=TIGHT, log={"level": level, "segment_steps": 64}, **rest)
    return replay(config, store, folder)


@pytest.fixture(scope="module")
def run(store, tmp_path_factory):
    return evaluated(store, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def honest(store, run):
    data = load(run.run_dir)
    return data, read_market(data.terms, store)[0]


def test_an_evaluation_of_several_windows_is_proved_by_all_five_computations(store, run):
    verdict = verify(run.run_dir, store, head=run.head)
    assert verdict.ok, [check.line() for check in verdict.failed]
    assert verdict.largest_difference_usd_micros == 0 and len(set(verdict.totals.values())) == 1 and None not in verdict.totals.values()
    assert verdict.groups == 9
    assert {check.name for check in verdict.checks} >= {
        "schedule_drain_row",
        "schedule_is_drain",
        "orders_met_row",
        "floor_stop",
        "fills_drain_row",
    }


@pytest.mark.parametrize("level", ["sampled:3", "fills"])
def test_a_lower_level_keeps_the_same_dollars_and_is_proved_as_far_as_it_goes(store, run, tmp_path, level):
    less = evaluated(store, tmp_path, level)
    assert less.summary["total_pnl_usd_micros"] == run.summary["total_pnl_usd_micros"]
    verdict = verify(less.run_dir, store)
    assert verdict.ok, [check.line() for check in verdict.failed]


def test_windows_over_bars_are_proved(tmp_path):
    store = store_of_bars(tmp_path)
    nine = [day_bounds(date)[0] + 10 * HOUR for date in DATES[:3]]
    windows = [
        (nine[0], nine[0] + 2 * HOUR),
        (nine[1], nine[1] + HOUR),
        (nine[1] + 3 * HOUR, nine[1] + 5 * HOUR),
        (nine[2], nine[2] + HOUR),
    ]
    tape = {"market_schema": "ohlcv-1m", "clock": "bar", "latency_ns": 0}
    config = config_of(windows, lanes=6, seed=3, env=TIGHT, tape=tape)
    result = replay(config, store, tmp_path / "runs")
    verdict = verify(result.run_dir, store)
    assert verdict.ok, [check.line() for check in verdict.failed]
    assert verdict.totals["e"] == result.summary["total_pnl_usd_micros"] != 0


@pytest.mark.parametrize("joined", [True, False])
def test_data_that_stops_early_ends_the_window_where_the_store_goes_on_and_the_tape_where_it_does_not(tmp_path, joined):
    """Bars stop at 21:00 UTC every day, an hour before the session closes; Wednesday's are the last."""
    store = store_of_bars(tmp_path)
    tape = {"market_schema": "ohlcv-1m", "clock": "bar", "latency_ns": 0} | ({} if joined else {"windows": None})
    for date, reason in ((DATES[0], "window_end"), (DATES[2], "tape_end")):
        _, close = day_bounds(date)
        result = replay(config_of([(close - 4 * HOUR, close)], lanes=2, tape=tape), store, tmp_path / "runs")
        assert {row["end_reason"] for row in result.summary["phases"][0]["lane_rows"]} == {reason}
        verdict = verify(result.run_dir, store)
        assert verdict.ok, [check.line() for check in verdict.failed]
        data = load(result.run_dir)
        said = get(data, "steps", "end_reason")
        lying = put(data, "steps", end_reason=np.where((said == 2) | (said == 4), 6 - said, said))
        market = replace(read_market(data.terms, store)[0], goes_on_until_ns=-1)
        assert ("schedule_end_reason" in {check.name for check in verify_tables(resealed(lying), market).failed}) == (reason == "tape_end")


def test_a_step_limit_holds_for_every_window_and_is_proved(store, tmp_path):
    limited = evaluated(store, tmp_path, tape={"step_limit": 70})
    assert verify(limited.run_dir, store).ok
    reasons = {row["end_reason"] for row in limited.summary["phases"][0]["lane_rows"]}
    assert "step_limit" in reasons and reasons <= {"step_limit", "capital_floor", "window_end"}


def test_a_broken_off_run_is_proved_as_far_as_it_goes(honest):
    data, market = honest
    for cut in (30, 58, 59, 60, 150):
        tables = {
            name: rows.filter(pa.array(rows.column("step").to_numpy() < cut)) for name, rows in data.tables.items() if name != "attempts"
        }
        broken = replace(data, tables=tables, summary=None, finished=False)
        verdict = verify_tables(broken, market)
        assert verdict.ok, (cut, [check.line() for check in verdict.failed])


def test_every_lane_plays_its_own_window_to_its_own_drain(run, honest):
    data, _ = honest
    steps = (
        data.tables["steps"].to_pandas()
        if False
        else {name: get(data, "steps", name) for name in ("lane", "step", "is_drain", "end_reason")}
    )
    ts = get(data, "steps", "ts_decided_ns")
    for lane in range(9):
        start, end = WINDOWS[lane % 4]
        mine = steps["lane"] == lane
        assert ((ts[mine] >= start) & (ts[mine] < end)).all()
        assert steps["is_drain"][mine].sum() == 1
    assert run.steps == 3 * 60
    assert {int(EndReason.WINDOW_END), int(EndReason.CAPITAL_FLOOR), int(EndReason.NOT_PLAYED)} <= set(steps["end_reason"].tolist())


def test_the_summary_tells_each_lane_by_its_own_window(run, honest):
    data, _ = honest
    phase = run.summary["phases"][0]
    rows = {name: get(data, "steps", name) for name in ("lane", "equity_usd_micros", "is_drain", "picked_action", "step")}
    decisions = 0
    for row in phase["lane_rows"]:
        assert (row["window"], row["start_ns"], row["end_ns"]) == (row["lane"] % 4, *WINDOWS[row["lane"] % 4])
        mine = rows["lane"] == row["lane"]
        drain = int(np.flatnonzero(rows["is_drain"][mine])[0])
        decisions += drain
        equity = np.append(60_000_000_000, rows["equity_usd_micros"][mine][: drain + 1])
        assert row["final_equity_usd_micros"] == equity[-1] and row["pnl_usd_micros"] == equity[-1] - equity[0]
        periods = np.append(equity[:-2], equity[-1])  # the drain's equity stands in place of the last decision's
        returns = np.diff(periods) / periods[:-1]
        factor = phase["annualisation_factor"]
        assert row["sharpe"] == pytest.approx(returns.mean() / returns.std(ddof=1) * factor, rel=1e-9)
    assert phase["decisions"] == decisions
    assert run.summary["windows"] == [list(window) for window in WINDOWS]
    # 1m decisions in open sessions: so many a year as an open year has minutes, less one interval of each window.
    spans = sum(end - start - 2 * 60 * 10**9 for start, end in WINDOWS)
    assert phase["annualisation_factor"] == pytest.approx((364 * 24 * 60 * 0.68) ** 0.5, rel=0.1) and spans > 0


def resealed(data: RunData) -> RunData:
    """With the summary that its own tables give: only the accounting and the market can then find the lie."""
    return replace(data, summary=summarize(data))


def cells(data, lane, step=None):
    mask = get(data, "steps", "lane") == lane
    return mask if step is None else mask & (get(data, "steps", "step") == step)


def drain_step(data, lane):
    return int(get(data, "steps", "step")[cells(data, lane) & (get(data, "steps", "is_drain") == 1)][0])


def shifted_decision(data):
    """One lane's window decides a second later at one step, observations alike."""
    ts = get(data, "steps", "ts_decided_ns").copy()
    ts[np.isin(get(data, "steps", "lane"), (1, 5)) & (get(data, "steps", "step") == 20)] += 10**9
    return put(data, "steps", ts_decided_ns=ts)


def missing_drain(data):
    """The lane of a short window is said never to have been drained."""
    at = cells(data, 1, drain_step(data, 1))
    drain, reason = get(data, "steps", "is_drain").copy(), get(data, "steps", "end_reason").copy()
    drain[at], reason[at] = 0, -1
    return put(data, "steps", is_drain=drain, end_reason=reason)


def drain_at_a_wrong_row(data):
    """A window's lanes close one market row too early, times and prices said to be as they were."""
    step = drain_step(data, 1)
    row = get(data, "steps", "mark_row").copy()
    for lane in (1, 5):
        row[cells(data, lane) & (get(data, "steps", "step") >= step)] -= 1
    return put(data, "steps", mark_row=row)


def lane_in_the_wrong_window(data):
    """Lanes 0 and 3 have exchanged their windows."""
    tables = {}
    for name in ("steps", "orders", "fills", "trades"):
        lane = get(data, name, "lane")
        swapped = np.where(lane == 0, 3, np.where(lane == 3, 0, lane))
        columns = {"lane": swapped}
        for column in ("order_id", "fill_id", "trade_id"):
            if column in data.tables[name].column_names:
                columns[column] = (swapped << 32) + (get(data, name, column) & 0xFFFFFFFF)
        changed = put(data, name, **columns).tables[name]
        keys = [key for key in ("phase", "step", "lane", "order_id", "fill_id", "trade_id") if key in changed.column_names]
        tables[name] = changed.sort_by([(key, "ascending") for key in keys])
    return replace(data, tables=dict(data.tables) | tables)


def a_row_played_after_the_drain(data):
    """A lane that was drained holds on, as if it had picked, in the step that follows."""
    at = cells(data, 1, drain_step(data, 1) + 1)
    columns = {}
    for name, value in (
        ("picked_action", 27),
        ("picked_direction", 1),
        ("picked_magnitude", 0),
        ("picked_order", 0),
        ("picked_urgency", 0),
    ):
        columns[name] = np.where(at, value, get(data, "steps", name))
    columns["end_reason"] = np.where(at, 0, get(data, "steps", "end_reason"))
    return put(data, "steps", **columns)


def drained_twice(data):
    at = cells(data, 1, drain_step(data, 1) + 1)
    return put(data, "steps", is_drain=np.where(at, 1, get(data, "steps", "is_drain")))


def a_step_after_the_last_drain(data):
    """Every lane has one more row."""
    last = int(get(data, "steps", "step").max())
    tables = {}
    for name in ("steps", "diag"):
        rows = data.tables[name]
        more = rows.filter(pa.array(get(data, name, "step") == last))
        more = put(replace(data, tables={name: more}), name, step=get(replace(data, tables={name: more}), name, "step") + 1).tables[name]
        tables[name] = pa.concat_tables([rows, more])
    return replace(data, tables=dict(data.tables) | tables)


def close_said_to_be_another_windows(data):
    """The closing fill of one window names the row at which another window closed."""
    reason, lane = get(data, "fills", "reason"), get(data, "fills", "lane") % 4
    row, source = get(data, "fills", "market_row").copy(), get(data, "fills", "market_source").copy()
    closing = reason == 5
    windows = sorted({int(w) for w in lane[closing]})
    one, other = (np.flatnonzero(closing & (lane == w)) for w in windows[:2])
    row[one], source[one] = row[other[0]], source[other[0]]
    return put(data, "fills", market_row=row, market_source=source)


FAULTS = {
    shifted_decision: {"schedule_ts_decided_ns"},
    missing_drain: {"schedule_is_drain", "steps_drain_row"},
    drain_at_a_wrong_row: {"schedule_drain_row"},
    lane_in_the_wrong_window: {"schedule_ts_decided_ns"},
    a_row_played_after_the_drain: {"steps_end_reason", "steps_sentinel_picked_action"},
    drained_twice: {"steps_drain_is_last", "schedule_is_drain"},
    a_step_after_the_last_drain: {"schedule_steps"},
    close_said_to_be_another_windows: {"fills_drain_row"},
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_every_lie_about_windows_is_caught_by_name(honest, fault):
    data, market = honest
    assert verify_tables(resealed(data), market).ok
    verdict = verify_tables(resealed(fault(data)), market)
    assert FAULTS[fault] <= {check.name for check in verdict.failed}


def test_a_store_with_other_rows_in_one_read_is_told(store, run, tmp_path):
    other = store_of_days(tmp_path, events=20_000, dates=(*DATES[:3], "2024-03-07"))
    assert verify(run.run_dir, other).ok, "the same days again"
    manifest = load(run.run_dir)
    changed = replace(manifest.terms, reads=(*manifest.terms.reads[:-1], (*manifest.terms.reads[-1][:2], "0" * 64)))
    _, checks = read_market(changed, store)
    assert checks[0].status == FAILED and "the store's data hash is" in checks[0].detail
    swapped = replace(manifest.terms, reads=manifest.terms.reads[:-1])
    _, checks = read_market(swapped, store)
    assert checks[0].status == FAILED


def test_the_summary_file_of_a_phase_has_its_name(run):
    assert (run.run_dir / summary_file(load(run.run_dir).terms)).is_file()


def test_dropping_rows_of_a_drained_lane_breaks_the_rectangle(honest):
    data, market = honest
    late = cells(data, 1) & (get(data, "steps", "step") > drain_step(data, 1))
    verdict = verify_tables(resealed(keep(data, "steps", ~late)), market)
    assert "steps_rectangular" in {check.name for check in verdict.failed}
