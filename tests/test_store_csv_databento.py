"""Databento's CSV: every field back from both of its forms, and a damaged cell named by line and column."""

import csv
import datetime as dt
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from lob.errors import BadInput
from lob.records import MBP_10, RECORDS, RTYPE
from store.csv_databento import SCHEMAS, databento_schema, read_databento_csv
from store.readers import open_source
from tests.test_store_csv import text_file


def oracle_mbp10(path: Path) -> np.ndarray:
    """The file by csv, Decimal and datetime, cell by cell."""
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    records = np.zeros(len(rows), MBP_10)
    for i, row in enumerate(rows):
        records[i]["length"] = 92
        for name in MBP_10.names[1:]:
            cell = row[name]
            if name in ("ts_recv", "ts_event"):
                base, fraction = cell.rstrip("Z").split(".")
                stamp = dt.datetime.fromisoformat(base + "+00:00")
                records[i][name] = int(stamp.timestamp()) * 10**9 + int(fraction.ljust(9, "0"))
            elif name == "price" or "_px_" in name:
                records[i][name] = int(Decimal(cell) * 10**9) if cell else 2**63 - 1
            else:
                records[i][name] = cell if name in ("action", "side") else int(cell)
    return records


def mbp10(path: Path, **options) -> np.ndarray:
    return np.concatenate([batch.copy() for batch in read_databento_csv(path, "mbp-10", **options)])


def test_a_real_book_csv_equals_a_plain_reading_with_csv_and_decimal(shared_data):
    path = shared_data / "mbp10" / "aapl_xnas_20241021.mbp-10.csv"
    symbols: dict = {}
    ours = mbp10(path, symbols=symbols)
    assert len(ours) == 5000 and ours.tobytes() == oracle_mbp10(path).tobytes()
    assert symbols == {(38, dt.date(2024, 10, 21)): "AAPL"}
    source = open_source(path)
    assert (source.format, source.schema) == ("csv-databento", "mbp-10")
    assert np.concatenate(list(source.batches())).tobytes() == ours.tobytes()
    assert source.symbol_of(38, dt.date(2024, 10, 21)) == "AAPL" and source.symbol_of(38, dt.date(2024, 10, 22)) is None


def as_csv(records: np.ndarray, pretty: bool, names: list[str] | None = None) -> str:
    """Records as Databento writes them: decimal prices and ISO times, or integers."""
    names = names or [name for name in MBP_10.names if name != "length"]
    lines = [",".join(names + ["symbol"])]
    for record in records:
        cells = []
        for name in names:
            value = record[name]
            if isinstance(value, bytes):
                cells.append(value.decode())
            elif pretty and (name == "price" or "_px_" in name):
                cells.append("" if value == 2**63 - 1 else f"{Decimal(int(value)) / 10**9:.9f}")
            elif pretty and name == "quantity" and value == 2**63 - 1:
                cells.append("")
            elif pretty and name.startswith("ts_") and name != "ts_in_delta":
                seconds, ns = divmod(int(value), 10**9)
                cells.append("" if value == 2**64 - 1 else f"{dt.datetime.fromtimestamp(seconds, dt.UTC):%Y-%m-%dT%H:%M:%S}.{ns:09d}Z")
            else:
                cells.append(str(value))
        lines.append(",".join([*cells, "ESH4"]))
    return "\n".join(lines) + "\n"


def some_books(count: int = 40) -> np.ndarray:
    rng = np.random.default_rng(5)
    records = np.zeros(count, MBP_10)
    for name in MBP_10.names:
        dtype = MBP_10[name]
        if dtype.kind == "S":
            records[name] = rng.choice([b"A", b"C", b"T", b"N"], count)
        elif name == "price" or "_px_" in name:
            records[name] = rng.integers(-5000 * 10**9, 5000 * 10**9, count)
            records[name][rng.random(count) < 0.2] = 2**63 - 1
        elif name in ("ts_recv", "ts_event"):
            records[name] = rng.integers(0, 2**62, count)
        else:
            records[name] = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, count, dtype=dtype, endpoint=True)
    records["length"], records["rtype"] = 92, 10
    records["ts_event"][3:4] = 2**64 - 1
    return records


@pytest.mark.parametrize("pretty", [True, False])
def test_both_forms_of_a_book_csv_give_every_field_back(tmp_path, pretty):
    records = some_books()
    names = [name for name in MBP_10.names if name != "length"]
    assert mbp10(text_file(tmp_path, as_csv(records, pretty))).tobytes() == records.tobytes()
    assert mbp10(text_file(tmp_path, as_csv(records, pretty, names[::-1]))).tobytes() == records.tobytes()


def test_a_damaged_book_csv_is_one_line_that_names_the_place(tmp_path):
    text = as_csv(some_books(), True)
    lines = text.splitlines()
    names = lines[0].split(",")

    def said(changed: str) -> str:
        with pytest.raises(BadInput) as caught:
            mbp10(text_file(tmp_path, changed), symbols={})
        return str(caught.value)

    def with_cell(line: int, name: str, cell: str) -> str:
        cells = lines[line - 1].split(",")
        cells[names.index(name)] = cell
        return "\n".join([*lines[: line - 1], ",".join(cells), *lines[line:]])

    assert "line 7, column 28 (bid_sz_02): '-1' is outside the column's range" in said(with_cell(7, "bid_sz_02", "-1"))
    assert "line 7, column 2 (publisher_id): '65536' is outside" in said(with_cell(7, "publisher_id", "65536"))
    assert "(action): 'AB' is not a single character" in said(with_cell(9, "action", "AB"))
    assert "(size): '' is empty" in said(with_cell(9, "size", ""))
    assert "(rtype): '1' is outside" in said(with_cell(9, "rtype", "1"))
    assert "(ts_recv): '12:00' is not a time" in said(with_cell(9, "ts_recv", "12:00"))
    assert "line 9 has 75 cells, not 74" in said(with_cell(9, "ts_recv", "1,2"))
    assert "a CSV of mbp-10 without bid_px_09" in said(text.replace("bid_px_09", "bid_px_9"))
    assert "column bid_px_01 stands 2 times in line 1" in said(text.replace("symbol", "bid_px_01"))
    assert "is called ESM4, but ESH4 before it" in said("\n".join([*lines, lines[8].replace("ESH4", "ESM4")]))
    whole = as_csv(some_books(), False)
    assert "(bid_px_00): '12.5' is finer" in said(
        "\n".join(
            [*whole.splitlines()[:20], whole.splitlines()[20].replace(whole.splitlines()[20].split(",")[names.index("bid_px_00")], "12.5")]
        )
    )


def test_whole_dollar_prices_are_not_taken_for_billionths(tmp_path):
    records = some_books(1)
    for name in MBP_10.names:
        if name == "price" or "_px_" in name:
            records[name] = 4365
    with pytest.raises(BadInput, match="too small to be in 1e-9"):
        mbp10(text_file(tmp_path, as_csv(records, False)))


def test_instruments_of_a_book_csv_need_names_when_there_are_several(tmp_path):
    text = "\n".join(line.rsplit(",", 1)[0] for line in as_csv(some_books(), True).splitlines())
    with pytest.raises(BadInput, match="and no symbol column: fetch it with symbols"):
        mbp10(text_file(tmp_path, text))
    one_level = "\n".join(",".join(line.split(",")[:19]) for line in as_csv(some_books(), True).splitlines())
    with pytest.raises(BadInput, match="a CSV of mbp-10 without bid_px_01"):
        mbp10(text_file(tmp_path, one_level))


# ---------------------------------------------------------------- the other schemas


def some_records(schema: str, count: int = 30) -> np.ndarray:
    """Records of a schema as Databento's CSV can say them: letters, undefined values, integers to the ends of their widths."""
    rng = np.random.default_rng(7)
    records = np.zeros(count, RECORDS[schema])
    for name in fields(schema):
        dtype = records.dtype[name]
        if dtype.kind == "S":
            records[name] = rng.choice([b"A", b"Y", b"N", b"~"], count)
        elif name.startswith("ts_") and dtype.itemsize == 8:
            records[name] = rng.integers(0, 2**62, count)
            records[name][5] = 2**64 - 1
        elif name == "price" or "_px_" in name or name == "quantity":
            records[name] = rng.integers(-5000 * 10**9, 5000 * 10**9, count)
            records[name][rng.random(count) < 0.2] = 2**63 - 1
        else:
            limits = np.iinfo(dtype)
            records[name] = rng.integers(limits.min, min(limits.max, 2**63 - 1), count, dtype=dtype, endpoint=True)
    records["length"], records["rtype"] = records.dtype.itemsize // 4, RTYPE[schema]
    records["ts_event"][5] = 10**18
    return records


def fields(schema: str) -> list[str]:
    return [name for name in RECORDS[schema].names if name != "length" and not name.startswith("_")]


@pytest.mark.parametrize("pretty", [True, False])
@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_schema_comes_back_from_both_forms_of_its_csv(tmp_path, schema, pretty):
    records = some_records(schema)
    path = text_file(tmp_path, as_csv(records, pretty, fields(schema)))
    assert databento_schema(path, schema) == schema
    assert databento_schema(path) == ("mbp-1" if schema == "tbbo" else schema), "told by rtype, which tbbo has of mbp-1"
    source = open_source(path, schema=schema)
    found = np.concatenate(list(source.batches()))
    for name in records.dtype.names:
        if not name.startswith("_"):
            assert np.array_equal(found[name], records[name]), name


def renamed(text: str, **names: str) -> str:
    head, _, rest = text.partition("\n")
    return ",".join(names.get(name, name) for name in head.split(",")) + "\n" + rest


@pytest.mark.parametrize("second", ["ts_event", "ts_event.1"])
def test_ts_event_named_twice_says_that_the_receive_time_was_lost(tmp_path, second):
    records = some_books()
    lost = records.copy()
    lost["ts_recv"] = lost["ts_event"]
    names = [name for name in MBP_10.names if name not in ("length", "ts_recv", "ts_event")]
    text = renamed(as_csv(lost, True, ["ts_recv", "ts_event", *names]), ts_recv="ts_event", ts_event=second)
    expected = records.copy()
    expected["ts_recv"] = 2**64 - 1
    assert mbp10(text_file(tmp_path, text)).tobytes() == expected.tobytes()
    text = renamed(as_csv(records, True, ["ts_recv", "ts_event", *names]), ts_recv="ts_event", ts_event=second)
    with pytest.raises(BadInput, match=r"line 2: the two columns ts_event differ, and there is no ts_recv: name the one"):
        mbp10(text_file(tmp_path, text))


def test_other_columns_are_passed_by_and_a_schema_without_a_csv_says_so(tmp_path):
    records = some_records("trades")
    text = as_csv(records, True, fields("trades"))
    numbered = "\n".join(f"{',' if i == 0 else f'{i},'}{line}" for i, line in enumerate(text.splitlines()))  # as pandas writes its index
    assert np.concatenate(list(open_source(text_file(tmp_path, numbered)).batches()))["size"].tolist() == records["size"].tolist()
    with pytest.raises(BadInput, match=r"holds schema trades, not mbp-10"):
        open_source(text_file(tmp_path, text), schema="mbp-10")
    with pytest.raises(
        BadInput, match=r"a Databento CSV of schema definition; as CSV mbo, trades, .* and bars can be read: fetch it as DBN"
    ):
        open_source(text_file(tmp_path, text.replace("\n0,", "\n19,")))
    with pytest.raises(BadInput, match=r"'99' in line 2, column 1 \(rtype\)"):
        open_source(text_file(tmp_path, text.replace("\n0,", "\n99,")))
    with pytest.raises(BadInput, match=r"a CSV of trades without size, depth"):
        list(open_source(text_file(tmp_path, renamed(text, depth="d", size="s"))).batches())
    with pytest.raises(BadInput, match="holds no records"):
        open_source(text_file(tmp_path, text.partition("\n")[0]))
