"""What verify can say of a training: diag against the trades, phase by phase, each trade's own dollars, and never more."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from cuda_env.blocks import BlockLog
from cuda_env.env import Env
from cuda_env.state import EPISODE
from lob.actions import Phase
from lob.picks import Picks
from policy.tables import no_picks_row
from sim.replay import run_identity
from sim.run_data import RunData, load
from sim.summary import summarize
from sim.tables import RUN_TABLES
from sim.tape import load as load_tape
from sim.verify import verify, verify_tables
from sim.verify_types import render
from store.runlog import RunLog
from tests.falsification.faults import change, get, keep, put
from tests.window_days import DATES, config_of, day_bounds, store_of_days

STEPS = 150
TIGHT = {"capital_usd_micros": 60_000_000_000, "floor_usd_micros": 58_500_000_000, "margin_usd_micros": 10**9, "trail_ticks": 12}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return store_of_days(tmp_path_factory.mktemp("market"), dates=DATES[:2])


def nothing(count):
    return np.ma.masked_all(count, np.int64)


def trained(store, folder, level="trades"):
    """A training's log without a network: random picks, restarts, and every lane closed at the end."""
    windows = [day_bounds(date) for date in DATES[:2]]
    config = config_of(windows, "train", lanes=16, env=TIGHT, log={"level": level, "segment_steps": 64}, tape={"clock": "5m"})
    loaded = load_tape(store, config)
    emit = ("trades",) if level == "trades" else ()
    env = Env(loaded.tape, loaded.schedule, loaded.features, config.env, 16, Phase.TRAIN, emit=emit, restarts=9)
    log = RunLog.create(
        folder, identity=run_identity(config, {"name": "random"}, loaded.provenance), tables=RUN_TABLES, level=level, segment_steps=64
    )
    rng = np.random.default_rng(1)
    block = BlockLog(env, 50)
    with log:
        for step in range(STEPS + 1):
            if step < STEPS:
                env.step(Picks(*(torch.from_numpy(rng.integers(0, high, 16).astype(np.int32)) for high in (108, 10**6, 10**6, 10**6))))
            else:
                env.close_all()
            block.capture()
            tables = block.drain()
            count = len(tables["diag"]["step"])
            of_policy = {name: np.full(count, value) if value == 0 else nothing(count) for name, value in no_picks_row().items()}
            diag = tables["diag"] | of_policy
            log.append("diag", diag)
            for table in emit:
                log.append(table, tables[table])
            log.end_step(step)
        log.commit()
        summary = summarize(replace(load(folder), finished=True)) | {"best_step": 3}
        log.finish("finished", summary, "train_summary.json")
    assert env.state[EPISODE, :16].sum() > 20, "lanes have begun anew"
    return folder


@pytest.fixture(scope="module")
def run(store, tmp_path_factory):
    return trained(store, tmp_path_factory.mktemp("runs") / "train")


@pytest.fixture(scope="module")
def honest(run) -> RunData:
    data = load(run)
    return replace(data, summary=summarize(data))


def test_a_training_with_restarts_agrees_with_itself_to_the_micro_dollar_and_claims_no_proof(store, run):
    verdict = verify(run, store)
    assert verdict.ok, [check.line() for check in verdict.failed]
    assert verdict.totals["a"] == verdict.totals["b"] == load(run).summary["total_pnl_usd_micros"] != 0
    assert [verdict.totals[letter] for letter in "cde"] == [None] * 3
    assert (
        verdict.proof == "(b) against (a) per phase only: no fill can be recomputed or seen in the market. This does not prove the result"
    )
    last = "CHECKED: nothing contradicts the result, and nothing proves it (level trades keeps no fills)"
    assert render(verdict).splitlines()[-1] == last and "VERIFIED" not in render(verdict)
    assert (verdict.to_json()["verdict"], verdict.to_json()["ok"], verdict.exit_code) == ("CHECKED", True, 0)


def test_the_last_word_of_an_unfinished_run_says_that_it_is_unfinished(honest):
    verdict = verify_tables(replace(honest, finished=False, summary=None), None)
    assert verdict.ok and render(verdict).splitlines()[-1].startswith("CHECKED: ")
    assert render(verdict).endswith("; the run is unfinished")


def test_a_training_of_level_diag_proves_nothing_and_says_so(store, tmp_path):
    verdict = verify(trained(store, tmp_path / "run", "diag"), store)
    assert verdict.ok and verdict.proof == "(a) alone: nothing is proved, there is nothing to compare it with"
    assert verdict.totals["a"] is not None and verdict.totals["b"] is None


def test_the_summary_of_a_training_lists_no_lanes_and_keeps_what_the_run_adds(run):
    data = load(run)
    assert data.summary["best_step"] == 3
    assert "lane_rows" not in data.summary["phases"][0] and "episodes" not in data.summary["phases"][0]
    assert data.summary["phases"][0]["trades"] == data.tables["trades"].num_rows > 100


def resealed(data):
    return replace(data, summary=summarize(data))


def dropped_trade(data):
    mask = np.ones(data.tables["trades"].num_rows, bool)
    mask[-1] = False
    return keep(data, "trades", mask)


def richer_trade(data):
    return change(data, "trades", "realized_usd_micros", 7, 12_500_000)


def richer_trade_at_another_price(data):
    """The row adds up; only the running sums of diag know better."""
    side, lots = get(data, "trades", "side")[7], get(data, "trades", "lots")[7]
    moved = change(data, "trades", "exit_ticks", 7, 1)
    gain = int(side * lots) * data.terms.tick_value_usd_micros
    moved = change(moved, "trades", "realized_usd_micros", 7, gain)
    best, worst = get(moved, "trades", "mfe_usd_micros"), get(moved, "trades", "mae_usd_micros")
    best[7], worst[7] = best[7] + abs(gain), worst[7] - abs(gain)
    return put(moved, "trades", mfe_usd_micros=best, mae_usd_micros=worst)


def a_restart_counted_as_a_gain(data):
    """One step's delta and every running sum after it hold a restart's capital."""
    delta, cum = "trading.realized_pnl_usd_micros_delta", "trading.realized_pnl_usd_micros_cum"
    values = get(data, "diag", delta).copy()
    values[40] += 3_000_000_000
    return put(data, "diag", **{delta: values, cum: values.cumsum()})


def halved_fee(data):
    return put(data, "trades", fee_usd_micros=get(data, "trades", "fee_usd_micros") // 2)


FAULTS = {
    dropped_trade: {"diag_trades", "difference"},
    richer_trade: {"trades_realized_usd_micros", "difference"},
    richer_trade_at_another_price: {"summary_against_diag", "difference"},
    a_restart_counted_as_a_gain: {"summary_against_diag", "difference"},
    halved_fee: {"trades_fee_usd_micros"},
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_every_lie_that_the_level_can_tell_is_caught_by_name(honest, fault):
    assert verify_tables(honest, None).ok
    verdict = verify_tables(resealed(fault(honest)), None)
    found = {check.name for check in verdict.failed} | ({"difference"} if verdict.largest_difference_usd_micros else set())
    assert FAULTS[fault] <= found


def test_a_figure_of_the_summary_that_the_log_does_not_give_is_caught(honest):
    lying = {**honest.summary, "total_pnl_usd_micros": honest.summary["total_pnl_usd_micros"] + 1}
    assert {check.name for check in verify_tables(replace(honest, summary=lying), None).failed} >= {"summary"}
