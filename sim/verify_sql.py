"""The sums of the five computations, in SQL (DuckDB) over the log's tables: whole numbers only, exact, per phase, lane and episode."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.verify_types import Check, Key, Log, failed

if TYPE_CHECKING:
    import duckdb

GROUP = "phase, lane, episode"


def connect(log: Log) -> "duckdb.DuckDBPyConnection":
    """An in-memory database that sees the log's tables by name, and nothing else."""
    import duckdb

    connection = duckdb.connect(config={"enable_external_access": False})
    for name, rows in log.run.tables.items():
        connection.register(name, rows)
    return connection


def step_deltas(connection: "duckdb.DuckDBPyConnection") -> dict[Key, int]:
    """(a) What the kernel says that each step realised, summed."""
    return _sums(connection, f"select {GROUP}, sum(realized_usd_micros)::hugeint from steps group by all")


def diag_deltas(connection: "duckdb.DuckDBPyConnection", column: str) -> dict[int, int]:
    """(a) at levels without steps: the sum over all lanes of a phase."""
    return {
        int(phase): int(total)
        for phase, total in connection.execute(f'select phase, sum("{column}")::hugeint from diag group by all').fetchall()
    }


def fill_flows(connection: "duckdb.DuckDBPyConnection") -> dict[Key, tuple[int, int]]:
    """(c) (cash flow in ticks before fees, fees) of the fills: what was sold brings its price in, what was bought takes it out."""
    query = f"select {GROUP}, -sum(side::hugeint * lots * price_ticks), sum(fee_usd_micros)::hugeint from fills group by all"
    return {(p, lane, e): (int(flow), int(fee)) for p, lane, e, flow, fee in connection.execute(query).fetchall()}


def raw_flows(connection: "duckdb.DuckDBPyConnection", raw_ticks: np.ndarray, fee: np.ndarray) -> dict[Key, tuple[int, int]]:
    """(e) (cash flow in ticks at the raw market's prices, the scheduled fees) of the fills; both arrays int64[n], as the fills stand."""
    import pyarrow as pa

    rows = connection.table("fills").select("phase, lane, episode, side, lots").to_arrow_table()
    connection.register("raw_fills", rows.append_column("raw_ticks", pa.array(raw_ticks)).append_column("raw_fee", pa.array(fee)))
    query = f"select {GROUP}, -sum(side::hugeint * lots * raw_ticks), sum(raw_fee)::hugeint from raw_fills group by all"
    return {(p, lane, e): (int(flow), int(fees)) for p, lane, e, flow, fees in connection.execute(query).fetchall()}


def cash_and_equity(connection: "duckdb.DuckDBPyConnection", capital: int) -> dict[Key, tuple[int, int, int]]:
    """(d) (cash change, equity change, unrealised change) of each episode, from its last row and the last row of the one before it."""
    query = f"""
        with last as (
            select {GROUP}, arg_max(cash_usd_micros, step) as cash, arg_max(equity_usd_micros, step) as equity,
                   arg_max(unrealized_usd_micros, step) as unrealized
            from steps group by all
        )
        select {GROUP}, cash - coalesce(lag(cash) over w, {capital}), equity - coalesce(lag(equity) over w, {capital}),
               unrealized - coalesce(lag(unrealized) over w, 0)
        from last window w as (partition by phase, lane order by episode)
    """
    return {(p, lane, e): (int(c), int(q), int(u)) for p, lane, e, c, q, u in connection.execute(query).fetchall()}


def check_orders(connection: "duckdb.DuckDBPyConnection", log: Log) -> list[Check]:
    """Every fill has its order: same step, side and reason; and an order's fills are what it says it filled.

    An order that works in the book may fill before the step in which it ends (and has its row), passively under a reason of the fill's own,
    and be cancelled (3) or expire (4); in a log that was broken off it may not have ended.
    """
    working = log.terms.working is not None
    other = "f.reason not in (1, 2) and o.reason <> f.reason" if working else "o.reason <> f.reason"
    states = "o.state not in (3, 4) and " if working else ""
    other_step = "o.step < f.step" if working else "o.step <> f.step"
    missing = "o.order_id is null" if not working or log.run.finished else "false"
    for table in ("fills", "orders"):
        connection.register(f"numbered_{table}", _numbered(log, table))
    only = "" if log.terms.level == "full" else "f.lane in (select distinct lane from steps) and"
    mismatched = f"""
        select f.row_number,
               case when {missing} then 'order_id' when {other_step} then 'step' when o.side <> f.side then 'side'
                    when {other} then 'reason' when o.ts_submitted_ns <> f.ts_submitted_ns then 'ts_submitted_ns'
                    else '' end as wrong
        from numbered_fills f left join orders o using (phase, lane, order_id)
        where {only} wrong <> '' order by 1 limit 1
    """
    filled = f"""
        with sums as (select phase, lane, order_id, sum(lots)::hugeint as lots from fills group by all)
        select o.row_number,
               case when o.filled_lots <> coalesce(f.lots, 0) then 'filled_lots'
                    when o.filled_lots > o.lots or o.lots <= 0 then 'lots'
                    when {states}o.state <> (case when o.filled_lots = o.lots then 0 when o.filled_lots > 0 then 1 else 2 end) then 'state'
                    else '' end as wrong
        from numbered_orders o left join sums f using (phase, lane, order_id)
        where wrong <> '' order by 1 limit 1
    """
    return [
        _first(log, "fills_have_orders", "fills", connection.execute(mismatched).fetchone(), "does not agree with its order"),
        _first(log, "orders_filled_lots", "orders", connection.execute(filled).fetchone(), "does not agree with its fills"),
    ]


def _first(log: Log, name: str, table: str, found: tuple[Any, ...] | None, what: str) -> Check:
    if found is None:
        return Check(name, "ok", "", table)
    row, column = int(found[0]), str(found[1])
    part, place = log.run.place(table, row)
    return failed(name, f"{column} {log(table, column)[row]} {what}", table, column, part, place)


def _numbered(log: Log, table: str):
    import pyarrow as pa

    rows = log.arrow(table)
    return rows.append_column("row_number", pa.array(np.arange(rows.num_rows)))


def _sums(connection: "duckdb.DuckDBPyConnection", query: str) -> dict[Key, int]:
    return {(int(p), int(lane), int(e)): int(total) for p, lane, e, total in connection.execute(query).fetchall()}


def by_phase(groups: Mapping[Key, int]) -> dict[int, int]:
    out: dict[int, int] = {}
    for (phase, _, _), value in groups.items():
        out[phase] = out.get(phase, 0) + value
    return out
