"""Reading files of parts: rows of a range of one file, into arrays, checked against what the store writes."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lob.errors import BadInput, first_line
from lob.records import has_receive_time
from store.market_schema import arrow_schema, chunk_values, index_time, is_nullable, is_text, store_columns

_BATCH_GROUPS = 2
"""Row groups that are decoded at a time: a day's file holds a hundred of them, and they stand in memory beside the arrays."""


@dataclass(frozen=True)
class Chosen:
    """Row groups of the file at `path`, which follow one another, and of their rows [first, end) those that are asked for.

    Rows are counted from the file's first.
    """

    path: Path
    groups: tuple[int, ...]
    begin: int  # row of the first group's first
    first: int
    end: int

    @property
    def rows(self) -> int:
        return self.end - self.first


def damaged(path: Path, error: Exception) -> BadInput:
    return BadInput(f"{path}: the part cannot be read ({first_line(error)}): restore it or rebuild the store")


def choose(path: Path, schema: str, file_rows: int, first: int, end: int, span: tuple[int, int] | None) -> list[Chosen]:
    """What of the file's rows [first, end) may lie in the span [start ns, end ns) (None: all), in batches.

    Raises BadInput for a file that is damaged, or not `file_rows` long.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        metadata = pq.read_metadata(path)
        if metadata.num_rows != file_rows or index_time(schema) not in metadata.schema.names:
            raise pa.ArrowInvalid(f"it holds {metadata.num_rows:,} rows, and not the {file_rows:,} that were put in")
    except (OSError, ValueError, pa.ArrowException) as error:
        raise damaged(path, error) from None
    chosen: list[Chosen] = []
    at = 0
    for g in range(metadata.num_row_groups):
        group = metadata.row_group(g)
        begin, at = at, at + group.num_rows
        if begin >= end or at <= first or (span is not None and not _may_hold(group, schema, *span)):
            continue
        last = chosen[-1] if chosen else None
        if last is not None and last.groups[-1] == g - 1 and len(last.groups) < _BATCH_GROUPS:
            chosen[-1] = Chosen(path, (*last.groups, g), last.begin, last.first, min(at, end))
        else:
            chosen.append(Chosen(path, (g,), begin, max(begin, first), min(at, end)))
    return chosen


def read_chosen(
    chosen: Chosen,
    schema: str,
    span: tuple[int, int] | None,
    arrays: dict[str, np.ndarray],
    undefined: dict[str, np.ndarray],
    at: int,
) -> np.ndarray | int:
    """Writes the rows of the span [start ns, end ns) (None: all) into `arrays` and `undefined` from `at` on.

    Returns how many they are when all chosen rows are, else which of them (bool). Raises BadInput for a file that is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    known = store_columns(schema)
    wanted = [name for name in known if name in arrays or name in ("ts_event", "ts_recv")]
    try:
        with pq.ParquetFile(chosen.path, read_dictionary=[name for name in known if is_text(schema, name)]) as file:
            table = file.read_row_groups(list(chosen.groups), columns=wanted)
        _check_columns(table, schema, wanted)
        table = table.slice(chosen.first - chosen.begin, chosen.rows)
        inside = None if span is None else _inside(table, schema, *span)
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise damaged(chosen.path, error) from None
    rows = table.num_rows if inside is None else int(inside.sum())
    for name in wanted:
        if name in arrays:
            mask = undefined[name][at : at + rows] if name in undefined else None
            _copy(table[name], known[name], inside, arrays[name][at : at + rows], mask)
    return rows if inside is None else inside


def _check_columns(table, schema: str, wanted: list[str]) -> None:
    """Raises ArrowInvalid for a column that is not there, or not as a part's is: of another type, with nulls where none may be."""
    import pyarrow as pa

    if missing := set(wanted) - set(table.column_names):
        raise pa.ArrowInvalid(f"column {min(missing)} is missing")
    if len(set(table.column_names)) < len(table.column_names):
        raise pa.ArrowInvalid("a column stands twice")
    for name in wanted:
        column, size = table[name], store_columns(schema)[name].itemsize
        if is_text(schema, name):
            alike = pa.types.is_dictionary(column.type) and pa.types.is_string(column.type.value_type)
            texts = {text for chunk in column.chunks for text in chunk.dictionary.to_pylist()} if alike else set()
            form = "latin-1" if size == 1 else "utf-8"
            alike = alike and all(text is not None and len(text.encode(form)) <= size for text in texts)
        else:
            alike = column.type == arrow_schema(schema).field(name).type
        if not alike or (column.null_count and not is_nullable(name)):
            raise pa.ArrowInvalid(f"column {name} is not what the store writes")


def _inside(table, schema: str, start_ns: int, end_ns: int) -> np.ndarray | None:
    """Which rows lie in the range; None: all."""
    times = {name: np.empty(table.num_rows, np.int64) for name in ("ts_event", index_time(schema))}
    late = np.zeros(table.num_rows, bool)
    for name, values in times.items():
        _copy(table[name], np.dtype(np.int64), None, values, late if name == "ts_recv" else None)
    index = np.where(late, times["ts_event"], times["ts_recv"]) if has_receive_time(schema) else times["ts_event"]
    inside = (index >= start_ns) & (index < end_ns)
    return None if inside.all() else inside


def _copy(column, dtype: np.dtype, inside: np.ndarray | None, values: np.ndarray, mask: np.ndarray | None) -> None:
    """Copies the rows `inside` of a column into `values`, and where they are undefined into `mask`."""
    read = at = 0
    for chunk in column.chunks:
        found, absent = chunk_values(chunk, dtype)
        if inside is not None:
            pick = inside[read : read + len(chunk)]
            found, absent = found[pick], None if absent is None else absent[pick]
        values[at : at + len(found)] = found
        if mask is not None and absent is not None:
            mask[at : at + len(found)] = absent
        read, at = read + len(chunk), at + len(found)


def _may_hold(group, schema: str, start_ns: int, end_ns: int) -> bool:
    """Whether a row group can hold rows of the range, by its statistics; undefined times make it uncertain."""
    column = next(group.column(i) for i in range(group.num_columns) if group.column(i).path_in_schema == index_time(schema))
    statistics = column.statistics
    if statistics is None or not statistics.has_min_max or statistics.null_count or type(statistics.min) is not int:
        return True
    return statistics.min < end_ns and statistics.max >= start_ns
