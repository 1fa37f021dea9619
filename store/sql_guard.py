"""What may be asked of a connection of `store.views`: one statement that reads. The rest gets one line that says why.

The type of a statement is not enough. In DuckDB 2 a SELECT may hold `WITH x AS (COPY … TO 'file')`, and `query('…')` runs text; so the
parsed statement is walked, and only query nodes and table functions that are known to read are let through.
"""

import difflib
import json
import re
from typing import TYPE_CHECKING, Any

from lob.errors import BadInput, NotFound, TapeproofError

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_QUERY_NODES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
_TABLE_FUNCTIONS = {
    "unnest", "range", "generate_series", "repeat", "repeat_row", "json_each", "json_tree", "read_parquet", "parquet_scan",
    "parquet_metadata", "parquet_schema", "parquet_file_metadata", "duckdb_columns", "duckdb_functions", "duckdb_schemas",
    "duckdb_settings", "duckdb_tables", "duckdb_types", "duckdb_views", "pragma_table_info", "pragma_version",
}  # fmt: skip
OWN = "__"
"""How the names of tables begin that only the views stand on."""

_LISTING = re.compile(r"\s*(?:show(?:\s+all)?\s+tables|describe|show)\s*;?\s*", re.I)
_EXPLAIN = re.compile(
    r"\s*explain\b(?P<analyze>\s+analyze\b)?(?P<options>\s*\(\s*(?:format|analyze)\b[^()]*\))?\s*(?P<rest>.*)", re.I | re.S
)


def query(connection: "duckdb.DuckDBPyConnection", sql: str) -> "pa.Table":
    """The answer to one SELECT or EXPLAIN, as an Arrow table; integers and decimals are exact.

    Raises NotFound for a table or column that does not exist (naming close ones, then those that do), BadInput for everything else that
    cannot be asked or fails.
    """
    import duckdb

    try:
        check(connection, sql)
        answer = connection.sql(sql).to_arrow_table()
        return _without_own(answer) if _LISTING.fullmatch(sql) and "name" in answer.schema.names else answer
    except (duckdb.Error, UnicodeDecodeError) as error:
        raise explain_error(connection, sql, str(error)) from None


def _without_own(listed: "pa.Table") -> "pa.Table":
    """A listing of tables without those that only the views stand on."""
    import pyarrow as pa

    return listed.filter(pa.array([not name.startswith(OWN) for name in listed.column("name").to_pylist()], pa.bool_()))


def check(connection: "duckdb.DuckDBPyConnection", sql: str) -> None:
    """Raises BadInput unless `sql` is one statement that only reads."""
    import duckdb

    try:
        sql.encode()
        statements = connection.extract_statements(sql)
    except UnicodeEncodeError:
        raise BadInput("SQL: the statement holds bytes that are no text: write it in UTF-8") from None
    except duckdb.Error as error:
        raise _one_line(str(error)) from None
    if len(statements) != 1:
        raise BadInput(f"SQL: {len(statements)} statements: give exactly one SELECT or EXPLAIN")
    kind = statements[0].type.name
    if kind == "EXPLAIN":
        match = _EXPLAIN.fullmatch(sql)
        if match is None or not match["rest"].strip():
            raise BadInput("SQL: this EXPLAIN cannot be told to be harmless: begin with EXPLAIN or EXPLAIN ANALYZE, then the SELECT")
        check(connection, match["rest"])
        return
    if kind != "SELECT":
        name = {"MULTI": "PIVOT without IN (...)"}.get(kind, kind)
        raise BadInput(f"SQL: {name} is not accepted: only SELECT and EXPLAIN are, for a store and a run are never changed by SQL")
    ((serialized,),) = connection.execute("SELECT json_serialize_sql(CAST(? AS VARCHAR))", [sql]).fetchall()
    parsed = json.loads(serialized)
    if parsed.get("error") is not False:
        raise BadInput(f"SQL: cannot be told to be harmless ({parsed.get('error_message', 'not understood')}): write it as a plain SELECT")
    _walk(parsed["statements"])


def _walk(node: Any) -> None:
    if isinstance(node, list):
        for item in node:
            _walk(item)
    elif isinstance(node, dict):
        kind = str(node.get("type", ""))
        if kind.endswith("_NODE") and kind not in _QUERY_NODES:
            raise BadInput(f"SQL: {kind.split('_')[0]} inside a query is not accepted: only SELECT and EXPLAIN are")
        if kind == "TABLE_FUNCTION":
            name = str((node.get("function") or {}).get("function_name", "")).lower()
            if name not in _TABLE_FUNCTIONS:
                known = ", ".join(sorted(_TABLE_FUNCTIONS))
                raise BadInput(f"SQL: the table function {name or 'here'} is not accepted: read the views, or use {known}")
        for value in node.values():
            _walk(value)


def existing(connection: "duckdb.DuckDBPyConnection") -> dict[str, list[str]]:
    """{view: its columns}, market views as `market.<name>`."""
    rows = connection.execute(
        f"SELECT schema_name, table_name, column_name FROM duckdb_columns() WHERE NOT internal AND NOT starts_with(table_name, '{OWN}') "
        "ORDER BY schema_name, table_name, column_index"
    ).fetchall()
    views: dict[str, list[str]] = {}
    for schema, table, column in rows:
        views.setdefault(table if schema == "main" else f"{schema}.{table}", []).append(column)
    return views


MEMORY_LIMIT = "1GB"
"""What a question may hold beside the answer. A scan holds row groups and what it adds up, whatever the range, and never comes near it;
sorts and joins of many rows do, and are refused: DuckDB's own limit, four fifths of the machine, would take what others run on."""


def explain_error(connection: "duckdb.DuckDBPyConnection", sql: str, message: str) -> TapeproofError:
    """One line for a DuckDB error: with what exists when a name does not."""
    if message.startswith("Out of Memory"):
        return BadInput(f"SQL: this needs more than {MEMORY_LIMIT} of memory: ask about fewer rows or columns, or add them up first")
    views = existing(connection)
    if match := re.search(r"Table with name \"?(.+?)\"? does not exist", message):
        asked = match[1]
        names = sorted(views)
        tail = asked.split(".")[-1]  # DuckDB leaves the schema away in some messages
        begins = [name for name in names if name.split(".")[-1].startswith(tail)]
        close = (begins or difflib.get_close_matches(asked, names, 3, 0.5))[:3]
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        absent = [option for option, view in (("--store", "market.quality"), ("--runs", "runs")) if view not in views]
        other = f" (without {absent[0]} only these)" if absent else ""
        return NotFound(f"SQL: no table or view {asked}; {hint}There are: {', '.join(names) or 'none'}{other}")
    wrong_column = re.search(r'Referenced column "([^"]+)" not found|does not have a column named "([^"]+)"', message)
    if wrong_column:
        asked = wrong_column[1] or wrong_column[2]
        used = [name for name in sorted(views) if re.search(rf"(?<![\w.]){re.escape(name)}\b", sql, re.I)] or sorted(views)
        columns = list(dict.fromkeys(column for name in used for column in views[name]))
        begins = [column for column in columns if column.startswith(asked)]
        close = (begins or difflib.get_close_matches(asked, columns, 3, 0.5))[:3]
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        return NotFound(f"SQL: no column {asked}; {hint}{_columns_of(used, views)}")
    if match := re.search(r'Referenced table "([^"]+)" not found', message):
        dotted = [(view, name) for view, names in views.items() for name in names if name.startswith(f"{match[1]}.")]
        if dotted:
            asked = [name for _, name in dotted if re.search(rf"(?<!\"){re.escape(name)}\b", sql)] or [dotted[0][1]]
            return NotFound(f'SQL: a name with a dot stands in double quotes: "{asked[0]}"; {_columns_of([dotted[0][0]], views)}')
        return NotFound(str(_one_line(message)))
    return _one_line(message)


MOST_NAMED = 60
"""Columns that an error names; more are no help, and `describe` shows them."""


def _columns_of(used: list[str], views: dict[str, list[str]]) -> str:
    if len(used) > 2 or sum(len(views[name]) for name in used) > MOST_NAMED:
        return f"`describe <view>` shows the columns of {', '.join(used)}"
    return "; ".join(f"{name} has {', '.join(_written(column) for column in views[name])}" for name in used)


def _written(column: str) -> str:
    """A column as SQL takes it: in double quotes where its name needs them."""
    return column if re.fullmatch(r"\w+", column) else f'"{column}"'


def _one_line(message: str) -> BadInput:
    lines = [line.strip() for line in message.splitlines() if line.strip() and not set(line.strip()) <= {"^"}]
    candidates = "".join(f" {line}" for line in lines[1:] if line.startswith("Candidate"))
    place = next((f" (in {line})" for line in lines[1:] if line.startswith("LINE ")), "")
    return BadInput(f"SQL: {lines[0] if lines else 'failed'}{candidates}{place}")
