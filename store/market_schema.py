"""What a part of the market store holds, per schema: its columns, their Parquet form, and the way from records to columns and back.

Columns are those of `lob.records` without `length` (framing) and reserved bytes, plus `row`, the record's position in its source file.
Times become int64, the undefined price (2^63-1) and time (2^64-1) become null, and texts end at their first NUL; nothing else changes.
"""

import functools
from urllib.parse import quote

import numpy as np

from lob.errors import BadInput
from lob.records import RECORDS, has_receive_time
from lob.units import UNDEFINED_PRICE, UNDEFINED_TIMESTAMP

ROW = "row"
PRICES = (
    "price", "open", "high", "low", "close", "min_price_increment", "display_factor", "high_limit_price", "low_limit_price",
    "max_price_variation", "unit_of_measure_qty", "min_price_increment_amount", "price_ratio", "strike_price", "leg_price", "leg_delta",
    "quantity",
)  # fmt: skip
"""Columns of 64 bits whose 2^63-1 says "undefined": prices, what is written like one, and a statistic's quantity (a whole number)."""
TIMES = ("ts_event", "ts_recv", "ts_ref", "expiration", "activation")

_BLOCK_ROWS = 2048  # records that fit the second-level cache while each of their columns is copied out
ROW_GROUP_ROWS = 65_536


@functools.cache
def store_columns(schema: str) -> dict[str, np.dtype]:
    """{column: numpy dtype} of a schema's parts, in order. Raises BadInput for a schema that the store does not hold."""
    if schema not in RECORDS:
        raise BadInput(f"schema {schema} is not held by the store: it holds {', '.join(sorted(RECORDS))}")
    record = RECORDS[schema]
    names = [name for name in record.names or () if name != "length" and not name.startswith("_")]
    return {name: np.dtype("<i8") if name in TIMES else record[name] for name in names} | {ROW: np.dtype("<i8")}


def is_price(column: str) -> bool:
    return column in PRICES or "_px_" in column


def is_nullable(column: str) -> bool:
    """Only prices and times can be undefined."""
    return column in TIMES or is_price(column)


def is_text(schema: str, column: str) -> bool:
    """Whether a column is bytes in a record (a letter, or a text padded with NUL) and text in Parquet."""
    return store_columns(schema)[column].kind == "S"


def index_time(schema: str) -> str:
    """The column by which a schema's rows are dated and asked for: `ts_recv`, or `ts_event` for records without one."""
    return "ts_recv" if has_receive_time(schema) else "ts_event"


def checked_symbol(symbol: str, where: object) -> str:
    """The symbol. Raises BadInput, which names the file `where`, for one that cannot name a folder."""
    if symbol.isprintable() and 1 <= len(quote(symbol, safe="")) <= 200:
        return symbol
    shown = symbol if len(symbol) <= 40 else f"{symbol[:40]}…"
    raise BadInput(
        f"{where}: instrument {shown!r} cannot name a folder: 1 to 200 bytes (of them percent-encoded) that can be printed can: "
        "is the file damaged? Name one instrument with --instrument"
    )


def part_folder(schema: str, instrument: str, date: str) -> str:
    """The folder of a partition, relative to the store."""
    return f"market/schema={schema}/instrument={quote(instrument, safe='')}/date={date}"


def records_to_columns(records: np.ndarray, schema: str, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Contiguous columns of a batch of records, sentinels still in place. `rows` int64[n]: positions in the source."""
    n = len(records)
    columns = {name: np.empty(n, records.dtype[name]) for name in store_columns(schema) if name != ROW}
    for start in range(0, n, _BLOCK_ROWS):
        block = records[start : start + _BLOCK_ROWS]
        for name, values in columns.items():
            values[start : start + _BLOCK_ROWS] = block[name]
    columns[ROW] = rows.astype(np.int64, copy=False)
    return columns


def take_out_sentinels(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Times become int64, sentinels 0, and texts NUL from their first NUL on, so that equal values are equal bytes; returns the masks of
    the columns that have undefined rows. Changes `columns`."""
    undefined = {}
    for name, values in columns.items():
        if values.dtype.kind == "S" and values.dtype.itemsize > 1:
            letters = values.view(np.uint8).reshape(len(values), values.dtype.itemsize)
            letters[np.logical_or.accumulate(letters == 0, axis=1)] = 0
        if not is_nullable(name):
            continue
        mask = values == (np.uint64(UNDEFINED_TIMESTAMP) if name in TIMES else UNDEFINED_PRICE)
        if name in TIMES:
            values = columns[name] = values.view("<i8")
        if mask.any():
            values[mask] = 0
            undefined[name] = mask
    return undefined


@functools.cache
def arrow_schema(schema: str):
    """The pyarrow schema of a part."""
    import pyarrow as pa

    def field(name: str, dtype: np.dtype):
        form = pa.from_numpy_dtype(dtype)
        if dtype.kind == "S":
            form = pa.dictionary(pa.int16() if dtype.itemsize == 1 else pa.int32(), pa.string())
        return pa.field(name, form, nullable=is_nullable(name))

    return pa.schema([field(name, dtype) for name, dtype in store_columns(schema).items()])


@functools.cache
def parquet_options(schema: str) -> dict:
    """How a part is written. Measured on an hour of ES MBP-10: plain prices under zstd-1 are smaller and faster than DELTA_BINARY_PACKED or
    dictionaries (a level's price mostly repeats the one before it, which zstd sees), sizes and counts gain from BYTE_STREAM_SPLIT."""
    encodings = {}
    for name in store_columns(schema):
        if name in (*TIMES, ROW, "sequence", "ts_in_delta"):
            encodings[name] = "DELTA_BINARY_PACKED"
        elif "_sz_" in name or "_ct_" in name or name in ("size", "volume"):
            encodings[name] = "BYTE_STREAM_SPLIT"
    # A definition's columns hardly change from row to row: for them a dictionary is best.
    dictionaries = [name for name in store_columns(schema) if name not in encodings and (schema == "definition" or not is_price(name))]
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": dictionaries,
        "column_encoding": encodings,
        "write_statistics": [name for name in (*TIMES, ROW) if name in store_columns(schema)],
        "version": "2.6",
    }


def to_arrow(columns: dict[str, np.ndarray], undefined: dict[str, np.ndarray], schema: str):
    """A pyarrow table of columns without sentinels. Raises BadInput when a text is not UTF-8."""
    import pyarrow as pa

    arrays = []
    for field in arrow_schema(schema):
        values = columns[field.name]
        if values.dtype.kind == "S" and values.dtype.itemsize > 1:
            arrays.append(_texts(values, field.name))
        elif values.dtype.kind == "S":
            codes = values.view(np.uint8)
            used = np.flatnonzero(np.bincount(codes, minlength=256))
            place = np.zeros(256, np.int16)
            place[used] = np.arange(len(used))
            arrays.append(pa.DictionaryArray.from_arrays(pa.array(place[codes]), pa.array([chr(code) for code in used], pa.string())))
        else:
            arrays.append(pa.array(values, field.type, mask=undefined.get(field.name)))
    return pa.Table.from_arrays(arrays, schema=arrow_schema(schema))


def _texts(values: np.ndarray, name: str):
    """A text column as an Arrow dictionary; a text ends at its first NUL. Raises BadInput when one is not UTF-8."""
    import pyarrow as pa

    used, places = np.unique(values, return_inverse=True)
    try:
        texts = [bytes(text).split(b"\0", 1)[0].decode("utf-8") for text in used]
    except UnicodeDecodeError as error:
        raise BadInput(f"{name} {error.object[:20]!r} is no text") from None
    return pa.DictionaryArray.from_arrays(pa.array(places.astype(np.int32)), pa.array(texts, pa.string()))


def chunk_values(chunk, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray | None]:
    """(values, mask of the undefined ones or None) of a pyarrow chunk that was read from a part; undefined rows hold 0. `dtype` is the
    column's (`store_columns`)."""
    if dtype.kind == "S":
        # A letter is any byte; a text is UTF-8.
        form = "latin-1" if dtype.itemsize == 1 else "utf-8"
        texts = np.array([text.encode(form) for text in chunk.dictionary.to_pylist()], dtype)
        return texts[chunk.indices.to_numpy(zero_copy_only=False)], None
    if not chunk.null_count:
        return chunk.to_numpy(zero_copy_only=False), None
    return chunk.fill_null(0).to_numpy(zero_copy_only=False), chunk.is_null().to_numpy(zero_copy_only=False)
