"""Writes loaded tables as a real run folder: sealed segments, a consistent chain, a summary. What a forger with our own code could do.

A fault in content is thereby sealed as well as the truth is, so that the accounting has to catch it, not a hash.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lob.tables import Column, Table
from sim.run_data import FINISHED, RunData
from sim.summary import summarize
from store.ingest import ingest_file
from store.market_read import read_columns
from store.readers import open_source
from store.runlog import RunLog
from tests.oracle.as_run import arrow_tables
from tests.oracle.simulate import OracleRun, manifest_of, write_dbn

_PHASE = Column("phase", "int8", "code", "phase", {0: "train", 1: "eval", 2: "replay"})
DIAG = Table(
    "diag",
    (
        _PHASE,
        Column("step", "int32", "1", "step"),
        Column("trading.realized_pnl_usd_micros_delta", "int64", "usd_micros", "realised in this step, all lanes"),
        Column("trading.realized_pnl_usd_micros_cum", "int64", "usd_micros", "its running sum"),
    ),
    key=("phase", "step"),
    levels=("full", "sampled", "fills", "trades", "diag"),
    doc="the two leaves of diag that verify reads",
)
DELTA, CUM = DIAG.names[2:]


def diag_of(steps: pa.Table) -> pa.Table:
    """The diag rows that belong to a `steps` table."""
    step, realized = steps.column("step").to_numpy(), steps.column("realized_usd_micros").to_numpy()
    delta = np.zeros(int(step.max()) + 1, np.int64)
    np.add.at(delta, step, realized)
    columns = [np.full(len(delta), 2, np.int8), np.arange(len(delta), dtype=np.int32), delta, delta.cumsum()]
    return pa.table(dict(zip(DIAG.names, columns, strict=True)))


def make_store(oracle: OracleRun, folder: Path) -> Path:
    """A market store with the run's rows, ingested from a DBN file that the public library encoded."""
    path = folder / "market.dbn"
    write_dbn(oracle.rows, oracle.root.symbol, path)
    ingest_file(path, folder / "store", open_source=open_source, instrument=oracle.root.symbol)
    return folder / "store"


def data_of(oracle: OracleRun, store: Path) -> RunData:
    """The run as loaded tables, its manifest naming the store's data; no summary yet."""
    columns = read_columns(store, oracle.root.symbol, "mbp-10", oracle.start, oracle.end)
    manifest = manifest_of(oracle)
    manifest["identity"]["data"] = {"sources": list(columns.sources), "data_hash": columns.data_hash}
    tables = arrow_tables(oracle)
    return RunData(manifest, tables | {"diag": diag_of(tables["steps"])})


def record(data: RunData, run_dir: Path, summary: Mapping[str, Any] | None = None, segment_steps: int = 16, finish: bool = True) -> str:
    """Write the tables as a run. Returns the head. `summary` replaces the one that the tables give."""
    from cuda_env.tables import TABLES

    log = RunLog.create(
        run_dir,
        identity=data.manifest["identity"],
        tables=(*TABLES, DIAG),
        level=data.manifest["log"]["level"],
        segment_steps=segment_steps,
    )
    for name, rows in data.tables.items():
        table = next(table for table in (*TABLES, DIAG) if table.name == name)
        log.append(name, {column.name: _array(rows.column(column.name), column) for column in table.columns})
    steps = data.tables["diag"].num_rows
    log.end_step(steps - 1, steps)
    if not finish:
        log.close()
        return log.head
    return log.finish(FINISHED, summary if summary is not None else summarize(data))


def _array(values: pa.ChunkedArray, column: Column) -> np.ndarray:
    flat = values.combine_chunks()
    data = np.asarray(flat.fill_null(0).to_numpy(zero_copy_only=False), column.dtype)
    return np.ma.MaskedArray(data, flat.is_null().to_numpy(zero_copy_only=False)) if column.nullable else data
