"""Laws of SQL over the store and runs: it reads what is there, exactly; it reads nothing else; it changes nothing."""

import datetime as dt
import json
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lob.errors import BadInput, NotFound, TapeproofError
from lob.tables import LEVELS, Column, Table
from lob.units import UNDEFINED_PRICE
from sim.sql import ask
from store.market import ingest_file
from store.runlog import RunLog
from store.views import connect, query
from tests.market_files import T0, bar_records, book_records, raw, tree, write_raw

TURNS = Table(
    "turns",
    (
        Column("step", "int32", "1", "step"),
        Column("lane", "int32", "1", "lane"),
        Column("picked_direction", "int8", "code", "branch", {-1: "not_played", 0: "short", 2: "it's long"}),
        Column("cash_usd_micros", "int64", "usd_micros", "money"),
        Column("stop_ticks", "int64", "ticks", "null: none", nullable=True),
    ),
    key=("step", "lane"),
    levels=LEVELS,
    doc="test table",
)
DOTTED = Table(
    "dotted",
    (Column("step", "int32", "1", "step"), Column("picked.share", "float64", "1", "share")),
    key=("step",),
    levels=LEVELS,
    doc="a table with a dotted name",
)
QUIET = Table("quiet", (Column("step", "int32", "1", "step"),), key=("step",), levels=LEVELS, doc="no row ever", hashed=False)


def turn_rows(seed: int, steps: int) -> list[tuple]:
    """(step, lane, code, cash, stop) in plain Python."""
    random = np.random.default_rng(seed)
    return [
        (step, lane, int(random.choice([-1, 0, 1, 2])), int(random.integers(-(10**17), 10**17)), int(random.integers(0, 9)))
        for step in range(steps)
        for lane in range(3)
    ]


def write_run(folder: Path, seed: int, steps: int, finish: bool) -> list[tuple]:
    rows = turn_rows(seed, steps)
    log = RunLog.create(folder, identity={"seed": seed}, tables=(TURNS, QUIET, DOTTED), segment_steps=4, flush_rows=1)
    for step in range(steps):
        mine = [row for row in rows if row[0] == step]
        columns = {name: np.array([row[i] for row in mine], TURNS.column(name).dtype) for i, name in enumerate(TURNS.names)}
        columns["stop_ticks"] = np.ma.MaskedArray(columns["stop_ticks"], columns["stop_ticks"] == 0)
        log.append("turns", columns)
        log.end_step(step)
    if finish:
        log.finish("finished", {})
    else:
        log.commit()
        log.close()
    return rows


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """(store, records, bars, runs folder, {run id: rows}); one run is sealed, one ends in its journal. Its path holds glob letters."""
    folder = tmp_path_factory.mktemp("views") / "odd [a-z]* name?"
    folder.mkdir()
    records = book_records(4000, 31, (7, 8), start_ns=T0 + 3500 * 10**9, odd=0.02)
    symbols = {7: "ESH4", 8: "UD:1V: VT 2821913"}
    ingest_file(write_raw(folder / "f", records), folder / "S", open_source=raw(symbols=symbols))
    bars = bar_records(3 * 1440, 32)
    ingest_file(write_raw(folder / "b", bars), folder / "S", open_source=raw("ohlcv-1m"))
    (folder / "runs").mkdir()
    rows = {"alpha": write_run(folder / "runs" / "alpha", 1, 9, True), "beta": write_run(folder / "runs" / "beta", 2, 7, False)}
    return folder / "S", records, bars, folder / "runs", rows


def answer(sql, store=None, runs=None):
    return [tuple(row) for row in ask(sql, store, runs)["rows"]]


def test_each_row_has_the_session_and_the_state_that_the_calendar_gives_its_time(tmp_path):
    start = T0 - 2 * 3600 * 10**9  # two hours before the open: closed, pre-open, open
    books = book_records(4_000, 33, (7, 8), start_ns=start, step_ns=25 * 10**8, odd=0.01)
    symbols = {7: "ESH4", 8: "UD:1V: VT 2821913"}
    ingest_file(write_raw(tmp_path / "books", books), tmp_path / "S", open_source=raw("mbp-10", symbols))
    ingest_file(write_raw(tmp_path / "bars", bar_records(300, 5, start)), tmp_path / "S", open_source=raw("ohlcv-1m"))
    connection = connect(tmp_path / "S")
    for name, records in (("mbp_10", books), ("ohlcv_1m", bar_records(300, 5, start))):
        found = query(connection, f"select row, instrument, session_id, state from market.{name}_sessions order by row").to_pylist()
        assert [row["row"] for row in found] == list(range(len(records))) and len(found[0]) == 4
        states = set()
        for record, row in zip(records, found, strict=True):
            times = [int(record[column]) for column in ("ts_recv", "ts_event") if column in records.dtype.names]
            at = next(time for time in times if time != 2**64 - 1)
            expected = ("open", 20231226) if at >= T0 else ("pre_open" if at >= T0 - 3600 * 10**9 else "closed", None)
            if row["instrument"] != "ESH4":
                expected = (None, None)
            assert (row["state"], row["session_id"]) == expected
            states.add(row["state"])
        assert states >= {"open", "pre_open", "closed"}
    held = query(
        connection, "select instrument, session_id, open_ns, close_ns from market.sessions where session_id = 20231226"
    ).to_pylist()
    assert held == [{"instrument": "ESH4", "session_id": 20231226, "open_ns": T0, "close_ns": T0 + 23 * 3600 * 10**9}]


MOMENTS = (
    ("2023-12-25T22:00", "pre_open"),  # as the real file of that day has it
    ("2024-03-10T20:59", "closed"),  # Sunday
    ("2024-03-10T21:00", "pre_open"),  # 17:00 New York, an hour before the week's open
    ("2024-03-10T22:00", "open"),
    ("2024-03-11T21:00", "closed"),  # the daily halt
    ("2024-03-11T21:44", "closed"),
    ("2024-03-11T21:45", "pre_open"),
    ("2024-03-11T22:00", "open"),
    ("2024-07-03T17:14", "open"),
    ("2024-07-03T17:15", "closed"),  # an early close at 13:15
    ("2024-07-03T21:00", "pre_open"),  # and away for longer than the halt
)


@pytest.mark.parametrize("moments", [MOMENTS, *((moment,) for moment in MOMENTS)], ids=lambda moments: moments[0][0] + f" x{len(moments)}")
def test_a_moment_is_closed_pre_open_or_open_whatever_else_the_store_holds(tmp_path, moments):
    records = book_records(len(moments), 1)
    for row, (time, _) in enumerate(moments):
        records["ts_recv"][row] = records["ts_event"][row] = int(dt.datetime.fromisoformat(time + "+00:00").timestamp()) * 10**9
    ingest_file(write_raw(tmp_path / "books", records), tmp_path / "S", open_source=raw())
    found = query(connect(tmp_path / "S"), "select state from market.mbp_10_sessions order by row").to_pylist()
    assert [row["state"] for row in found] == [state for _, state in moments]


def test_market_views_hold_every_row_under_its_instrument(place):
    store, records, bars, _, _ = place
    found = answer("select instrument, date, count(*), sum(bid_sz_00), sum(price) from market.mbp_10 group by all order by all", store)
    expected = {}
    for record in records:
        time = int(record["ts_recv"]) if record["ts_recv"] < 2**63 else int(record["ts_event"])
        key = (
            "ESH4" if record["instrument_id"] == 7 else "UD:1V: VT 2821913",
            str(dt.date.fromtimestamp(0) + dt.timedelta(time // (86400 * 10**9))),
        )
        count, size, price = expected.get(key, (0, 0, 0))
        defined = int(record["price"]) if record["price"] != UNDEFINED_PRICE else 0
        expected[key] = (count + 1, size + int(record["bid_sz_00"]), price + defined)
    assert found == sorted((*key, *value) for key, value in expected.items())
    assert answer("select count(*), sum(volume), min(ts_event) from market.ohlcv_1m", store) == [
        (len(bars), int(bars["volume"].sum()), int(bars["ts_event"][0]))
    ]
    assert answer("select row from market.ohlcv_1m where date = date '2023-12-26' order by row limit 2", store) == [(60,), (61,)]


def test_sizes_can_be_subtracted_and_undefined_prices_are_null(place):
    store, records, _, _, _ = place
    assert answer("select sum(bid_sz_00 - ask_sz_00), min(flags - 255) from market.mbp_10", store) == [
        (int(records["bid_sz_00"].astype(np.int64).sum() - records["ask_sz_00"].astype(np.int64).sum()), int(records["flags"].min()) - 255)
    ]
    undefined = int((records["ask_px_09"] == UNDEFINED_PRICE).sum())
    assert answer("select count(*) from market.mbp_10 where ask_px_09 is null", store) == [(undefined,)]
    assert undefined > 0


def test_the_quality_view_shows_the_report(place):
    store, _, bars, _, _ = place
    assert answer("select sum(rows), sum(outside_session) > 0, max(crossed) from market.quality where schema = 'ohlcv-1m'", store) == [
        (len(bars), True, None)
    ]


def test_run_tables_show_names_beside_codes_and_exact_dollars_beside_micro_dollars(place):
    _, _, _, runs, rows = place
    found = answer(
        "select run_id, step, lane, picked_direction, picked_direction_code, cash_usd_micros, cash_usd, stop_ticks from turns "
        "order by 1, 2, 3",
        runs=runs,
    )
    names = {-1: "not_played", 0: "short", 2: "it's long", 1: "1"}
    expected = [
        (run, step, lane, names[code], code, cash, f"{Decimal(cash).scaleb(-6):.6f}", stop or None)
        for run in ("alpha", "beta")
        for step, lane, code, cash, stop in rows[run]
    ]
    assert found == expected
    every = [cash for run in rows.values() for *_, cash, _ in run]
    assert answer("select sum(cash_usd_micros), sum(cash_usd) from turns", runs=runs) == [
        (sum(every), f"{Decimal(sum(every)).scaleb(-6):.6f}")
    ]


def test_a_declared_table_without_rows_is_there_and_runs_say_where_they_end(place):
    _, _, _, runs, _ = place
    assert answer("select count(*) from quiet", runs=runs) == [(0,)]
    assert answer("select run_id, state, steps, sealed_steps from runs order by 1", runs=runs) == [
        ("alpha", "finished", 9, 9),
        ("beta", "unfinished", 7, 4),
    ]
    assert answer("select distinct run_id from turns", runs=runs / "beta") == [("beta",)]


REFUSED = [
    "create table x as select 1", "insert into turns values (1)", "drop view turns", "attach 'x.db'", "install httpfs", "load httpfs",
    "set threads = 1", "set enable_external_access = true", "reset lock_configuration", "pragma show_tables", "call pragma_version()",
    "copy (select 1) to '{store}/market/x.parquet'", "export database '{store}/market/x'", "begin", "vacuum", "checkpoint", "use memory",
    "with x as (copy (select 1) to '{store}/market/x.parquet') select * from x",
    "select (with x as (copy (select 1) to '{store}/market/x.parquet') select 1)",
    "select * from (with x as (insert into runs values (1) returning *) select * from x)",
    "with a as (select 1), b as (with c as (delete from runs returning *) from c) from b",
    "select 1 union all (with x as (copy (select 1) to '{store}/market/x.parquet') select 1 from x)",
    "select 1 where exists (with x as (copy (select 1) to '{store}/market/x.parquet') from x)",
    "from query('with x as (copy (select 1) to ''{store}/market/x.parquet'') from x')", "from query_table('runs')",
    "explain analyze copy (select 1) to '{store}/market/x.parquet'",
    "explain analyze with x as (copy (select 1) to '{store}/market/x.parquet') from x",
    "explain (format json) copy (select 1) to '{store}/market/x.parquet'", "/**/ explain /**/ analyze /**/ copy (select 1) to 'x'",
    "from json_execute_serialized_sql('{{}}')", "select 1; select 2", "", ";", "-- nothing",
    "from read_csv('/etc/passwd')", "from read_text('/etc/passwd')", "from read_blob('/proc/self/environ')", "from glob('/etc/*')",
    "from '/etc/passwd'", "from '/etc/passwd.csv'", "from read_parquet('/etc/passwd')", "from read_parquet('{store}/../secret.parquet')",
    "from read_parquet('{store}/market/../../secret.parquet')", "from '{store}2/market/secret.parquet'",
    "from parquet_metadata('/etc/passwd')",
    "from sniff_csv('/etc/passwd')", "from read_parquet('http://localhost:1/x.parquet')", "select getenv('HOME')", "from secret",
    "from sqlite_scan('/etc/passwd', 'x')", "prepare q as select 1", "select ?", "select $1",
]  # fmt: skip


@pytest.mark.parametrize("sql", REFUSED)
def test_nothing_but_reading_the_store_and_the_runs_is_possible(place, sql):
    store, _, _, runs, _ = place
    import pyarrow as pa
    import pyarrow.parquet as pq

    secret = pa.table({"a": [1]})
    for outside in (store.parent / "secret.parquet", store.with_name("S2") / "market" / "secret.parquet"):
        outside.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(secret, outside)
    before = tree(store.parent)
    with pytest.raises(TapeproofError) as caught:
        ask(sql.format(store=store), store, runs)
    assert str(caught.value).startswith("SQL: ")
    assert "\n" not in str(caught.value)
    assert tree(store.parent) == before


def test_the_connection_itself_reads_nothing_outside_whatever_the_guard_lets_through(place):
    import duckdb

    store, _, _, runs, _ = place
    with connect(store, runs) as connection:
        for sql in ("from read_csv('/etc/passwd')", "from glob('/etc/*')", "copy (select 1) to '/tmp/x.parquet'", "set threads = 1"):
            with pytest.raises(duckdb.Error):
                connection.execute(sql).fetchall()


@pytest.mark.parametrize(
    "sql",
    ["select 1", "from runs", "with a as (select 1 as b) select b from a", "values (1)", "table runs", "show tables", "describe turns",
     "summarize turns", "explain select 1", "explain analyze from runs", "explain (format json) select 1", "select * from range(3)",
     "select unnest([1, 2])", "with recursive t(n) as (values (1) union all select n + 1 from t where n < 3) from t",
     "select 'copy' as copy",
     "pivot turns on picked_direction in ('short') using count(*)", "select x from (select 1 as x) union all select 2;",
     "select count(*) filter (lane > 1) over (partition by step) from turns qualify row_number() over () > 1",
     "-- why\nselect 1 -- because"],
)  # fmt: skip
def test_every_form_of_reading_is_accepted(place, sql):
    store, _, _, runs, _ = place
    assert ask(sql, store, runs)["rows"]


@pytest.mark.parametrize("sql", ["show tables", "SHOW TABLES;", "show all tables", "describe"])
def test_a_listing_of_tables_names_views_alone(place, sql):
    store, _, _, runs, _ = place
    answer = ask(sql, store, runs)
    at = [column["name"] for column in answer["columns"]].index("name")
    names = [row[at] for row in answer["rows"]]
    assert {"turns", "runs"} <= set(names) and not [name for name in names if name.startswith("_")]


@pytest.mark.parametrize(
    ("sql", "line"),
    [
        (
            "from turn",
            r"no table or view turn; did you mean turns\? There are: dotted, market\.mbp_10, market\.mbp_10_sessions, market\.ohlcv_1m, ",
        ),
        ("from market.mbp10", r"no table or view .*mbp10; did you mean market\.mbp_10\?"),
        ("from market.mbp", r"no table or view .*mbp; did you mean market\.mbp_10 or market\.mbp_10_sessions\?"),
        ("from mbp_10", r"did you mean market\.mbp_10 or market\.mbp_10_sessions\?"),
        ("select x.lane from turns", r'Referenced table "x" not found! Candidate tables: "turns"'),
        ("select picked.share from dotted", r'a name with a dot stands in double quotes: "picked\.share"'),
        ("select picked.shore from dotted", r'dotted has run_id, step, "picked\.share"'),
        ("from nowhere.at_all", r"There are: dotted, market\.mbp_10"),
        (
            "select picked_dir from turns",
            r"no column picked_dir; did you mean picked_direction or picked_direction_code\? turns has run_id",
        ),
        ("select t.cash from turns t", r"no column cash; did you mean cash_usd_micros or cash_usd\?"),
        (
            "select * from market.ohlcv_1m where volum > 1",
            r"no column volum; did you mean volume\? market\.ohlcv_1m has instrument, date",
        ),
    ],
)
def test_a_wrong_name_gives_one_line_with_the_names_that_exist(place, sql, line):
    store, _, _, runs, _ = place
    with pytest.raises(NotFound, match=line) as caught:
        ask(sql, store, runs)
    assert "\n" not in str(caught.value)


def test_a_question_that_would_take_the_machines_memory_is_refused_in_one_line(place):
    with pytest.raises(BadInput, match=r"^SQL: this needs more than 1GB of memory: ask about fewer rows or columns, or add them up first$"):
        answer("select list(range order by hash(range)) from range(40000000)", place[0])


def test_answers_are_strict_json_with_exact_numbers(place):
    _, _, _, runs, _ = place
    found = ask(
        "select 'nan'::double a, 'inf'::double b, 0.1::decimal(18, 6) c, 9223372036854775807::hugeint * 2 d, date '2024-01-02' e, "
        "[1.50::decimal(4, 2)] f, {'k': 'nan'::float} g, '\\x01'::blob h",
        runs=runs,
    )
    assert found["rows"] == [[None, None, "0.100000", 2**64 - 2, "2024-01-02", ["1.50"], {"k": None}, "01"]]
    json.dumps(found, allow_nan=False)


def test_readers_stand_beside_a_writer_and_leave_no_trace(tmp_path):
    ingest_file(write_raw(tmp_path / "f", bar_records(10, 41)), tmp_path / "S", open_source=raw("ohlcv-1m"))
    log = RunLog.create(tmp_path / "R" / "run", identity={}, tables=(QUIET,), segment_steps=4, flush_rows=1)
    before = tree(tmp_path)
    readers = [connect(tmp_path / "S", tmp_path / "R") for _ in range(2)]
    assert tree(tmp_path) == before
    ingest_file(write_raw(tmp_path / "g", bar_records(10, 42, start_ns=T0 + 86400 * 10**9)), tmp_path / "S", open_source=raw("ohlcv-1m"))
    for step in range(10):
        log.append("quiet", {"step": np.array([step], np.int32)})
        log.end_step(step)
    counts = "select (select count(*) from market.ohlcv_1m) as bars, (select count(*) from quiet) as steps"
    assert [query(reader, counts).to_pylist() for reader in readers] == [[{"bars": 10, "steps": 0}]] * 2, "as of their connection"
    with connect(tmp_path / "S", tmp_path / "R") as reader:
        assert query(reader, counts).to_pylist() == [{"bars": 20, "steps": 10}]
    log.finish("finished", {})


def test_another_process_can_read_while_this_one_writes(tmp_path):
    ingest_file(write_raw(tmp_path / "f", bar_records(10, 43)), tmp_path / "S", open_source=raw("ohlcv-1m"))
    with connect(tmp_path / "S"):
        code = f"from sim.sql import ask; print(ask('select count(*) from market.ohlcv_1m', {str(tmp_path / 'S')!r})['rows'])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    assert done.stdout.strip() == "[[10]]", done.stderr


def test_hundreds_of_small_files_are_one_view(tmp_path):
    bars = bar_records(200, 44)
    bars["ts_event"] = T0 + np.arange(200) * 86400 * 10**9
    ingest_file(write_raw(tmp_path / "f", bars), tmp_path / "S", open_source=raw("ohlcv-1m"))
    assert len(list((tmp_path / "S").rglob("*.parquet"))) == 200
    assert answer("select count(*), count(distinct date), sum(volume) from market.ohlcv_1m", tmp_path / "S") == [
        (200, 200, int(bars["volume"].sum()))
    ]


def test_places_that_hold_nothing_are_named(tmp_path):
    with pytest.raises(BadInput, match="give --store, --runs or both"):
        ask("select 1")
    with pytest.raises(NotFound, match="no market store is here"):
        ask("select 1", store=tmp_path)
    with pytest.raises(NotFound, match="holds no run"):
        ask("select 1", runs=tmp_path)
    with pytest.raises(NotFound, match="no such folder"):
        ask("select 1", runs=tmp_path / "absent")


def test_times_beyond_pythons_years_are_answered_as_text():
    from sim.sql import _values

    beyond = pa.chunked_array([pa.array([2**62], pa.timestamp("us"))])
    assert len(_values(beyond)) == 1 and isinstance(_values(beyond)[0], str | int)
