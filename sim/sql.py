"""The use case behind `sim sql`: one question to the market store and to runs, answered in values that JSON can hold exactly."""

import datetime as dt
import math
import os
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from lob.errors import BadInput, first_line


def ask(
    sql: str, store: str | os.PathLike | None = None, runs: str | os.PathLike | Iterable[str | os.PathLike] | None = None
) -> dict[str, Any]:
    """The answer to one SELECT or EXPLAIN: `columns` (name, type) and `rows` (lists in the columns' order).

    Integers stay integers, decimals (dollars) become strings with all their digits, times ISO text, NaN and infinities None. `store`: a
    market store; `runs`: a run's folder, a folder of runs, or several. Raises NotFound, BadInput, StaleCache, DamagedLog.
    """
    if store is None and runs is None:
        raise BadInput("nothing to ask: give --store, --runs or both")
    from store.sql_guard import query
    from store.views import connect

    with connect(store, runs) as connection:
        answer = query(connection, sql)
    columns = [{"name": field.name, "type": str(field.type)} for field in answer.schema]
    lists = [[json_value(value) for value in _values(column)] for column in answer.columns]
    return {"columns": columns, "rows": [list(row) for row in zip(*lists, strict=True)]}


def _values(column: Any) -> list[Any]:
    """A column's values; dates and times outside Python's years 1 to 9999 as Arrow's text."""
    import pyarrow as pa

    try:
        return column.to_pylist()
    except (OverflowError, ValueError):
        pass
    try:
        return column.cast(pa.string()).to_pylist()
    except pa.ArrowException as error:
        raise BadInput(f"SQL: a value cannot be shown ({first_line(error)}): cast it to VARCHAR") from None


def json_value(value: Any) -> Any:
    """A value of an answer as strict JSON holds it."""
    if isinstance(value, Decimal):
        return int(value) if value.as_tuple().exponent == 0 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dt.datetime | dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, dict):
        return {str(key): json_value(item) for key, item in value.items()}
    return value
