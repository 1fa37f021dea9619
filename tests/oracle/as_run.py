"""An oracle run as `sim` reads runs: Arrow tables, a market of raw columns, a manifest, a summary."""

import json
from types import SimpleNamespace

import numpy as np
import pyarrow as pa

from cuda_env.tables import TABLES
from sim.run_data import RunData
from sim.summary import summarize, to_json
from sim.verify_market import Market, market_of
from tests.oracle.events import E9
from tests.oracle.simulate import OracleRun, manifest_of, record_array

UNDEFINED = 2**63 - 1


def arrow_tables(run: OracleRun) -> dict[str, pa.Table]:
    """The oracle's rows in the declared tables' columns and dtypes, in key order."""
    out = {}
    for table in TABLES:
        rows = run.table(table.name)
        columns = {}
        for column in table.columns:
            kind = pa.float32() if column.dtype == "float32" else column.dtype
            columns[column.name] = pa.array([row[column.name] for row in rows], kind)
        out[table.name] = pa.table(columns)
    return out


def run_data(run: OracleRun, **changes) -> RunData:
    """A finished run with its summary. `changes` replace whole tables by name before the summary is made."""
    tables = arrow_tables(run) | changes
    data = RunData(manifest_of(run), tables, {name: (("part-1", rows.num_rows),) for name, rows in tables.items()})
    return with_summary(data)


def with_summary(data: RunData) -> RunData:
    return RunData(**{**data.__dict__, "summary": json.loads(to_json(summarize(data)))})


def columns_of(run: OracleRun) -> SimpleNamespace:
    """What `store.market_read.read_columns` gives for the run's rows: nulls as masks over zeros."""
    if run.bars:
        return _bar_columns(run)
    records = record_array(run.rows)
    arrays = {name: records[name].copy() for name in records.dtype.names or () if name != "length"}
    undefined = {}
    for name, values in arrays.items():
        if "_px_" in name:
            undefined[name] = values == UNDEFINED
            values[undefined[name]] = 0
    for name in ("ts_event", "ts_recv"):
        arrays[name] = arrays[name].astype(np.int64)
    n = len(records)
    return SimpleNamespace(
        arrays=arrays, undefined=undefined, source=np.zeros(n, np.int32), row=np.arange(n), sources=("0" * 64,), data_hash=""
    )


def _bar_columns(run: OracleRun) -> SimpleNamespace:
    assert run.bars is not None
    n = len(run.bars)
    arrays = {"ts_event": np.array([bar.start for bar in run.bars]), "volume": np.ones(n, np.uint64)}
    undefined = {}
    for i, name in enumerate(("open", "low", "high", "close")):
        arrays[name] = np.array([bar.prices[i] for bar in run.bars])
        undefined[name] = arrays[name] == UNDEFINED
        arrays[name][undefined[name]] = 0
    return SimpleNamespace(
        arrays=arrays, undefined=undefined, source=np.zeros(n, np.int32), row=np.arange(n), sources=("0" * 64,), data_hash=""
    )


def sessions_of(run: OracleRun) -> SimpleNamespace:
    table = np.array(run.sessions, dtype=np.int64)
    return SimpleNamespace(trade_date=table[:, 0], open_ns=table[:, 1], close_ns=table[:, 2])


def market(run: OracleRun) -> Market:
    return market_of(
        columns_of(run), "ohlcv-1m" if run.bars else "mbp-10", int(run.root.tick * E9), run.slippage, sessions_of(run), ("0" * 64,)
    )
