"""The fuzzer of the SQL guard: statements put together from what reads, what writes, what looks outside, and every function of DuckDB.

Whatever is asked, the answer never holds what lies outside the store and the runs, nothing is written anywhere, and a refusal is one line.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lob.errors import TapeproofError
from sim.ingest import ingest
from sim.sql import ask
from tests.fuzz.mutate import CELLS, NAMES, pick
from tests.fuzz.runs import snapshot
from tests.runlog_runs import write_run

SECRET = "zq7secret"
_BARS = "time,open,high,low,close,volume\n2023-01-03 10:00,1,2,1,2,5\n2023-01-03 10:01,1,2,1,2,5\n"

SELECTS = (
    "select 1 as a", "from runs", "select * from wide", "select * from market.ohlcv_1m", "from market.quality",
    "select count(*) from deals",
    "with x as ({q}) select * from x", "select * from ({q})", "{q} union all {q}", "select (select count(*) from ({q}))", "explain {q}",
    "explain analyze {q}", "explain (format json) {q}", "describe {q}", "summarize {q}", "pivot ({q}) on a using count(*)", "from ({w})",
    "with x as ({w}) from x", "select * from query('{w}')", "select * from query_table('{n}')",
    "with recursive t(n) as (select 1 union all "
    "select n + 1 from t where n < 3) from t", "select exists ({w})", "select * from {t}", "select {s}", "select * from {n}", "show {n}",
    "select unnest([{s}])", "select a from ({q}) where a in ({w})", "values ({s})", "from ({q}) t, lateral (select {s})", "table {n}",
    "select list_transform([1], x -> ({q}))", "select * from (values ({s})) v(a)", "select columns(*) from ({q})", "{w}; {q}", "{q}; {w}",
    "/* {w} */ {q}", "-- {w}\n{q}", "explain {w}", "select getvariable('x')", "execute p", "select $$ {w} $$", "select 'a' || {s}",
)  # fmt: skip
WRITES = (
    "copy (select 1) to '{p}'", "copy {n} from '{p}'", "create table x as select 1", "create or replace view runs as select 1",
    "drop view runs",
    "insert into runs values (1)", "delete from runs", "update runs set a = 1", "attach '{p}'",
    "attach '{p}' as d (type duckdb)", "detach d",
    "install httpfs", "load '{p}'", "set {o} = '{p}'", "reset {o}", "pragma {o} = '{p}'", "pragma {o}", "export database '{p}'", "begin",
    "import database '{p}'", "vacuum", "checkpoint", "call {t}", "prepare q as {q}", "set variable x = ({q})", "use market",
    "create macro f() as 1",
    "create secret (type s3)", "comment on view runs is 'x'", "alter view runs rename to x", "truncate runs", "deallocate q",
    "force checkpoint",
    "create temp table x as {q}", "merge into runs using runs r on true when matched then delete", "explain analyze {w}",
    "copy database a to b",
)  # fmt: skip
OPTIONS = (
    "enable_external_access", "allowed_directories", "allowed_paths", "lock_configuration", "temp_directory", "home_directory",
    "extension_directory", "secret_directory", "file_search_path", "log_query_path", "profiling_output", "enable_profiling", "threads",
    "memory_limit", "custom_extension_repository", "autoload_known_extensions", "allow_unsigned_extensions", "http_logging_output",
    "enable_object_cache", "python_enable_replacements", "search_path", "custom_user_agent", "disabled_filesystems",
)  # fmt: skip
_SLOW = {"repeat", "range", "generate_series", "repeat_row", "sleep", "rpad", "lpad", "array_resize", "list_resize"}
"""Functions that may make as many rows or letters as they are asked for: what that costs is the asker's own choice."""


def prepare(folder: Path) -> Callable[[np.random.Generator], str]:
    """A store, a run, secrets beside them, and every function that DuckDB knows."""
    import duckdb

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "bars.csv").write_text(_BARS)
    store, runs = folder / "store", folder / "runs"
    ingest(folder / "bars.csv", store, instrument="X", schema="ohlcv-1m", timezone="UTC")
    write_run(runs / "run", 20)
    os.environ["FUZZ_SECRET"] = SECRET
    for suffix in ("txt", "csv", "json"):
        (folder / f"secret.{suffix}").write_text(json.dumps({"a": SECRET}) if suffix == "json" else f"a\n{SECRET}\n")
    for place in (
        folder / "secret.parquet",
        runs / "run/secret.parquet",
        store / "secret.parquet",
        folder / "store2/market/secret.parquet",
    ):
        place.parent.mkdir(exist_ok=True, parents=True)
        pq.write_table(pa.table({"a": [SECRET]}), place)
    with duckdb.connect() as connection:
        connection.execute(f"attach '{folder}/secret.duckdb' as d; create table d.t as select '{SECRET}' as a; detach d")
        known = connection.execute("select distinct function_name, function_type from duckdb_functions()").fetchall()
    names = {kind: sorted({name for name, of in known if of == kind and name not in _SLOW and re.fullmatch(r"\w+", name)})
             for kind in {of for _, of in known}}  # fmt: skip
    secrets = sorted(folder.glob("secret.*"))
    paths = [
        str(path) for path in (*secrets, folder / "store2/market/secret.parquet", runs / "run/secret.parquet", store / "secret.parquet")
    ]
    paths += [
        f"{store}/market/../../secret.parquet",
        f"{store}/market/**/../../../*.parquet",
        f"{folder}/*",
        "/etc/passwd",
        "/proc/self/environ",
    ]
    paths += [
        f"file://{folder}/secret.parquet",
        f"{runs}/run/manifest.json",
        "http://127.0.0.1:1/x.parquet",
        "",
        "*",
        "/dev/stdin",
        f"{folder}/out",
    ]

    def play(rng: np.random.Generator) -> str:
        sql = statement(rng, names, paths)
        before = snapshot(folder)
        try:
            said = json.dumps(ask(sql, store, runs), ensure_ascii=False)
        except TapeproofError as error:
            said = str(error)
            assert said.startswith("SQL: ") and said.isprintable(), f"{sql!r}: {said!r}"
            assert SECRET not in said.replace(sql, ""), f"{sql!r}: {said!r}"
            outcome = "refused"
        else:
            outcome = "answered"
            assert SECRET not in said and "root:" not in said and "LS0K" not in said, f"{sql!r} told a secret: {said[:300]}"
        assert snapshot(folder) == before, f"{sql!r} wrote"
        return outcome

    return play


def statement(rng: np.random.Generator, names: dict[str, list[str]], paths: list[str]) -> str:
    """A statement from the templates, three levels deep at most; one in eight with letters changed."""

    def fill(template: str, depth: int) -> str:
        def one(match: re.Match[str]) -> str:
            match match[1]:
                case "q":
                    return fill(pick(rng, SELECTS[: 6 if depth > 2 else None]), depth + 1)
                case "w":
                    return fill(pick(rng, WRITES), depth + 1) if depth < 3 else "copy (select 1) to 'x'"
                case "t":
                    return call(pick(rng, names["table"]))
                case "s":
                    return call(pick(rng, names[pick(rng, [kind for kind in names if kind != "table"])]))
                case "o":
                    return pick(rng, OPTIONS)
                case "p":
                    return pick(rng, paths)
                case _:
                    odd = pick(rng, (*paths, *NAMES, "__quality", "__runs", "runs", "market.ohlcv_1m", "duckdb_secrets()", "sqlite_master"))
                    return f"'{odd}'" if rng.random() < 0.5 else odd if odd.isidentifier() else f'"{odd}"'

        return re.sub(r"\{([qwtsonp])\}", one, template)

    def call(name: str) -> str:
        values = [f"'{pick(rng, paths)}'", f"['{pick(rng, paths)}']", "1", "null", "'a'", "'FUZZ_SECRET'", "*", f"'{pick(rng, OPTIONS)}'"]
        return f"{name}({', '.join(pick(rng, values) for _ in range(int(rng.integers(0, 4))))})"

    sql = fill(pick(rng, SELECTS + WRITES), 0)
    if rng.random() < 0.12:
        at = int(rng.integers(0, len(sql) + 1))
        sql = (
            sql[:at]
            + pick(rng, (*CELLS[:80], "'", '"', ";", "--", "/*", "$$", "(", ")", "\0", "\ud800"))
            + sql[at + int(rng.integers(0, 4)) :]
        )
    return sql
