"""The same market and picks through the house's own tape, schedule and environment: what the oracle is compared with."""

import numpy as np

from cuda_env.config import EnvConfig
from cuda_env.env import Env
from lob.instruments import Instrument, resolve
from lob.layout import STATE_DIM
from lob.picks import Picks
from lob.schedule import schedule
from lob.tape import Schedule
from lob.tape_build import bar_tape, book_tape
from tests.oracle.as_run import columns_of, sessions_of
from tests.oracle.lane import Pick, micros
from tests.oracle.simulate import OracleRun

TABLES = ("steps", "orders", "fills", "trades")


def instrument_of(run: OracleRun) -> Instrument:
    return resolve(run.root.symbol)


def config_of(run: OracleRun) -> EnvConfig:
    terms = run.terms
    return EnvConfig(
        capital_usd_micros=micros(terms.capital),
        max_lots=terms.max_lots,
        fee_usd_micros=micros(terms.fee),
        margin_usd_micros=micros(terms.margin),
        floor_usd_micros=micros(terms.floor),
        trail_ticks=terms.trail_ticks,
        plan_lock_steps=terms.plan_lock_steps,
        reward_scale_usd_micros=micros(terms.reward_scale),
    )


def house_schedule(run: OracleRun) -> tuple:
    columns = columns_of(run)
    rows = (columns.arrays, columns.undefined, columns.source, columns.row, columns.sources, instrument_of(run))
    tape = bar_tape(*rows, "ohlcv-1m", sessions_of(run), run.slippage) if run.bars else book_tape(*rows, sessions_of(run))
    return tape, schedule(tape, run.clock, run.start, run.end, run.latency, run.terms.max_lots)


def as_picks(picks: list[Pick]) -> Picks:
    """One decision's picks of all lanes."""
    columns = [
        np.array([getattr(pick, name) for pick in picks]) for name in ("action", "conviction_ppm", "health_ppm", "variance_scale_ppm")
    ]
    import torch

    return Picks(*(torch.from_numpy(column.astype(np.int32)) for column in columns))


def house_rows(run: OracleRun, picks: list[list[Pick]], plan: tuple | None = None) -> dict[str, dict[str, np.ndarray]]:
    """Every table's columns as the environment logs them; `picks[lane][step]`."""
    tape, laid = plan or house_schedule(run)
    assert isinstance(laid, Schedule)
    env = Env(tape, laid, np.zeros((laid.decisions + 1, STATE_DIM), np.float32), config_of(run), len(picks), 2)
    pieces: dict[str, list] = {name: [] for name in TABLES}
    for step in range(laid.decisions + 1):
        if step < laid.decisions:
            env.step(as_picks([lane[step] for lane in picks]))
        else:
            env.drain()
        for name in TABLES:
            pieces[name].append({column: np.ma.copy(values) for column, values in env.rows(name).items()})
    return {name: {column: np.ma.concatenate([piece[column] for piece in held]) for column in held[0]} for name, held in pieces.items()}
