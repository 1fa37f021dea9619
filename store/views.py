"""SQL over the market store and over runs: an in-memory DuckDB connection with views that can read those files and change nothing.

`market.<schema>` (`market.mbp_10`, `market.ohlcv_1m`, …), each again as `market.<schema>_sessions` with `session_id` and `state`,
`market.sessions`, `market.quality`, and, over runs, every table that they declare, with `run_id`
(the run folder's name) in front. Views name the files that the catalogue and the chains name, as of the moment of `connect`; no lock is
taken, so any number of readers stand beside a writer. What may be asked is `store.sql_guard`'s part.
"""

import os
import weakref
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lob.calendar import sessions
from lob.errors import BadInput, DamagedLog, NotFound, first_line
from lob.instruments import resolve
from lob.tables import Column, Table
from store.catalog import Part, check_store, read_records
from store.market_read import in_order, quality_rows
from store.market_schema import index_time, store_columns
from store.merged import hold_files, read_held
from store.quality import COUNTERS, TRADED
from store.run_read import RunFiles, read_run
from store.sql_guard import MEMORY_LIMIT, query

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

__all__ = ["connect", "find_runs", "query"]

MANIFEST = "manifest.json"
MOST_THREADS = 8
"""Each holds a row group of every column it reads, 24 MB of MBP-10: more threads would spend the limit, and a disk feeds no more."""
DAY_NS = 86_400 * 10**9
_SIGNED = {"u1": "SMALLINT", "u2": "INTEGER", "u4": "BIGINT", "u8": "BIGINT"}
"""Unsigned store columns as SQL shows them: wide enough, and signed, for DuckDB refuses `bid_sz_00 - ask_sz_00` < 0 of unsigned ones."""


def connect(
    store: str | os.PathLike | None = None, runs: str | os.PathLike | Iterable[str | os.PathLike] | None = None
) -> "duckdb.DuckDBPyConnection":
    """The connection. `runs`: a run's folder, a folder of runs, or several of either.

    Raises NotFound (no store, no run there), BadInput, StaleCache, DamagedLog (a run that cannot be read at all).
    """
    import duckdb

    folders = find_runs(runs) if runs is not None else []
    connection = duckdb.connect(
        ":memory:",
        config={
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "python_enable_replacements": "false",
            "temp_directory": "",
            "memory_limit": MEMORY_LIMIT,
            "threads": str(min(MOST_THREADS, os.cpu_count() or 1)),
        },
    )
    allowed = []
    if store is not None:
        root = check_store(store).resolve()
        weakref.finalize(connection, hold_files(root))
        allowed.append(_market_views(connection, root))
    if folders:
        _run_views(connection, [read_run(folder) for folder in folders])
        allowed += [folder / place for folder in folders for place in ("segments", "unhashed")]
    # DuckDB compares the pattern, and then what it found, with what is allowed.
    readable = [f"{form}/" for folder in allowed for form in (str(folder), _pattern(folder))]
    connection.execute(f"SET allowed_directories = [{', '.join(map(_text, readable))}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def find_runs(runs: str | os.PathLike | Iterable[str | os.PathLike]) -> list[Path]:
    """The run folders at or directly below the given folders, by name. Raises NotFound for none, BadInput when two share a name."""
    found: dict[str, Path] = {}
    for place in [runs] if isinstance(runs, str | os.PathLike) else runs:
        root = Path(place).resolve()
        if (root / MANIFEST).is_file():
            here = [root]
        elif root.is_dir():
            here = sorted(folder for folder in root.iterdir() if (folder / MANIFEST).is_file())
        else:
            raise NotFound(f"{place}: no such folder; give a run's folder or the folder that holds runs")
        if not here:
            raise NotFound(f"{place}: holds no run (no {MANIFEST} in it or one folder below)")
        for folder in here:
            if found.get(folder.name, folder) != folder:
                raise BadInput(f"two runs are called {folder.name}: {found[folder.name]} and {folder}; ask about one at a time")
            found[folder.name] = folder
    return [found[name] for name in sorted(found)]


def _name(name: str) -> str:
    """A quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    """A quoted SQL string."""
    return "'" + value.replace("'", "''") + "'"


def _pattern(path: Path) -> str:
    """The glob pattern that matches this path alone."""
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in str(path))


def _file(path: Path) -> str:
    """A quoted path as `read_parquet` takes it."""
    return _text(_pattern(path))


def _market_views(connection: "duckdb.DuckDBPyConnection", root: Path) -> Path:
    """Makes the schema `market`; returns the folder that its views read."""
    import duckdb

    connection.execute("CREATE SCHEMA market")
    files: dict[str, dict[str, None]] = {}
    held = read_held(root, read_records)
    parts = in_order(held.records)
    connection.register("__sessions", _sessions_table(parts))
    connection.execute("CREATE VIEW market.sessions AS SELECT * FROM __sessions")
    for part in parts:
        files.setdefault(part.schema, {})[held.of(part).path] = None
    for folder in root.parts:
        key = folder.partition("=")[0] if "=" in folder else ""
        if files and key in {"schema", "instrument", "date", *(name for schema in files for name in store_columns(schema))}:
            raise BadInput(f"{root}: a folder above the store is called {folder}, which Parquet readers take for a column: move the store")
    for schema, paths in files.items():
        columns = ["instrument", "date"]
        for name, dtype in store_columns(schema).items():
            # An id takes all 64 bits, and nobody subtracts it.
            shown = _SIGNED.get(dtype.str[1:]) if name not in ("order_id", "raw_instrument_id") else None
            columns.append(f"CAST({_name(name)} AS {shown}) AS {_name(name)}" if shown else _name(name))
        types = "{'schema': VARCHAR, 'instrument': VARCHAR, 'date': DATE}"
        named = ", ".join(_file(root / path) for path in paths)
        source = f"read_parquet([{named}], hive_partitioning = true, hive_types_autocast = false, hive_types = {types})"
        try:
            connection.execute(f"CREATE VIEW market.{_name(schema.replace('-', '_'))} AS SELECT {', '.join(columns)} FROM {source}")
        except (duckdb.Error, UnicodeDecodeError) as error:
            where = _damaged_part([root / path for path in paths])
            raise BadInput(f"{where}: the part cannot be read ({first_line(error)}): restore it or rebuild the store") from None
        _view_in_sessions(connection, schema)
    # A view over an Arrow table that is not ours to write: there is no table in this database that a statement could change.
    connection.register("__quality", _quality_table(quality_rows(root)))
    connection.execute('CREATE VIEW market.quality AS SELECT * REPLACE (CAST("date" AS DATE) AS "date") FROM __quality')
    return root / "market"


def _sessions_table(parts: Iterable[Part]) -> "pa.Table":
    """Sessions of each instrument whose hours are known, from the day before its first row to the day after its last; times in ns."""
    import pyarrow as pa

    spans: dict[str, tuple[int, int]] = {}
    for part in parts:
        first, last = spans.get(part.instrument, (part.start_ns, part.end_ns))
        spans[part.instrument] = (min(first, part.start_ns), max(last, part.end_ns))
    rows: list[dict[str, Any]] = []
    for instrument, (first, last) in sorted(spans.items()):
        with suppress(NotFound):
            held = sessions(resolve(instrument).calendar, first - DAY_NS, last + DAY_NS)
            columns = (held.trade_date, held.pre_open_ns, held.open_ns, held.close_ns)
            rows += [dict(zip(_SESSION, (instrument, *map(int, row)), strict=True)) for row in zip(*columns, strict=True)]
    return pa.Table.from_pylist(rows, pa.schema([(name, pa.string() if name == "instrument" else pa.int64()) for name in _SESSION]))


_SESSION = ("instrument", "session_id", "pre_open_ns", "open_ns", "close_ns")


def _view_in_sessions(connection: "duckdb.DuckDBPyConnection", schema: str) -> None:
    """The schema's view with the session that holds a row (its trade date, yyyymmdd; null outside) and the market's state by the calendar:
    `open`, `closed`, or `pre_open`, when orders can be entered and nothing trades; null where the hours are not known. A view of its own,
    for the join costs what a sort costs."""
    name, at = schema.replace("-", "_"), f"coalesce(m.{index_time(schema)}, m.ts_event)"
    is_open = f"{at} >= s.open_ns AND {at} < s.close_ns"
    connection.execute(
        f"CREATE VIEW market.{_name(f'{name}_sessions')} AS SELECT m.*, CASE WHEN {is_open} THEN s.session_id END AS session_id, "
        "CASE WHEN m.instrument NOT IN (SELECT instrument FROM __sessions) THEN NULL "
        f"WHEN {is_open} THEN 'open' WHEN {at} < s.open_ns THEN 'pre_open' ELSE 'closed' END AS state "
        f"FROM market.{_name(name)} m ASOF LEFT JOIN __sessions s ON m.instrument = s.instrument AND {at} >= s.pre_open_ns"
    )


def _quality_table(rows: list[dict[str, Any]]) -> "pa.Table":
    import pyarrow as pa

    words = ("source", "source_sha256", "instrument", "schema", "date")
    names = [*words, "session_id", "start_ns", "end_ns", "crossed", "locked", *COUNTERS, *TRADED, "off_tick_reason", "session_reason"]
    schema = pa.schema([(name, pa.string() if name in words or name.endswith("_reason") else pa.int64()) for name in names])
    return pa.Table.from_pylist(rows, schema)


def _run_views(connection: "duckdb.DuckDBPyConnection", runs: list[RunFiles]) -> None:
    """Makes a view per declared table, the union of all runs that declare it, and `runs`."""
    import duckdb
    import pyarrow as pa

    facts = [
        {
            "run_id": run.run_dir.name,
            "state": run.state,
            "steps": run.steps,
            "sealed_steps": run.sealed_steps,
            "level": str(run.manifest["log"]["level"]),
            "head": run.head,
            "ends": run.ends,
            "abandoned_steps": sum(found.steps - found.kept_steps for found in run.abandoned),
            "abandoned_rows": sum(sum(found.rows.values()) for found in run.abandoned),
        }
        for run in runs
    ]
    connection.register("__runs", pa.Table.from_pylist(facts))
    connection.execute("CREATE VIEW runs AS SELECT * FROM __runs")
    selects: dict[str, list[str]] = {}
    for i, run in enumerate(runs):
        for name, table in run.tables.items():
            sources = []
            if run.parts[name]:
                files = ", ".join(_file(Path(os.path.realpath(path))) for path in run.parts[name])
                sources.append(f"read_parquet([{files}], hive_partitioning = false)")
            if run.journal[name].num_rows or not sources:
                journal = f"__journal_{i}_{name}"
                connection.register(journal, run.journal[name])
                sources.append(_name(journal))
            columns = ", ".join(_shown(table))
            selects.setdefault(name, []).extend(
                f"SELECT {_text(run.run_dir.name)} AS run_id, {columns} FROM {source}" for source in sources
            )
    for name, parts in selects.items():
        try:
            connection.execute(f"CREATE VIEW {_name(name)} AS {' UNION ALL BY NAME '.join(parts)}")
        except (duckdb.Error, UnicodeDecodeError) as error:
            where = _damaged_part([path for run in runs for path in run.parts.get(name, ())])
            raise DamagedLog(f"{where}: table {name} cannot be read ({first_line(error)}); `sim verify` says what was changed") from None


def _damaged_part(paths: list[Path]) -> Path:
    """The first part that is no Parquet file, else the first."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in paths:
        try:
            pq.read_metadata(path)
        except (OSError, ValueError, pa.ArrowException):
            return path
    return paths[0]


def _shown(table: Table) -> list[str]:
    """A declared table's columns as SQL shows them: names beside codes, dollars beside micro-dollars."""
    declared = set(table.names)
    columns = []
    for column in table.columns:
        name = _name(column.name)
        if column.codes is not None:
            columns.append(f"{_named(column)} AS {name}")
            columns.append(f"{name} AS {_name(f'{column.name}_code')}")
            continue
        columns.append(name)
        dollars = column.name.replace("_usd_micros", "_usd")
        if dollars != column.name and dollars not in declared:
            # Exact: an integer times 0.000001 in decimals, never a division (which DuckDB makes in floats).
            columns.append(f"CAST(CAST({name} AS DECIMAL(18, 0)) * CAST(0.000001 AS DECIMAL(7, 6)) AS DECIMAL(18, 6)) AS {_name(dollars)}")
    return columns


def _named(column: Column) -> str:
    """SQL for the name of a code; a code without a name shows as its number."""
    cases = " ".join(f"WHEN {code} THEN {_text(name)}" for code, name in sorted((column.codes or {}).items()))
    plain = f"CAST({_name(column.name)} AS VARCHAR)"
    return f"CASE {_name(column.name)} {cases} ELSE {plain} END" if cases else plain
