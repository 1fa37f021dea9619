"""`sim synth` writes a file that the public decoder reads, with every column as it was made."""

import hashlib
import io

import databento_dbn
import numpy as np
import pytest
import zstandard

from lob.errors import BadInput, NotFound
from sim.synth import synth
from tests.synth_days import imbalance_rule, trade_dates, trade_each_second


def _decode(path) -> tuple[databento_dbn.Metadata, list]:
    raw = path.read_bytes()
    if path.name.endswith(".zst"):
        raw = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(raw)).read()
    decoder = databento_dbn.DBNDecoder()
    decoder.write(raw)
    metadata, *records = decoder.decode()
    return metadata, records


@pytest.mark.parametrize("name", ["day.dbn.zst", "day.dbn"])
def test_the_public_decoder_reads_every_column_as_it_was_made(tmp_path, name: str) -> None:
    told = synth("ES", "2024-03-05", 3_000, 7, 1.0, tmp_path / name)
    metadata, records = _decode(tmp_path / name)
    assert (metadata.version, metadata.schema, metadata.symbols, metadata.dataset) == (3, "mbp-10", ["ESH4"], "TAPEPROOF.SYNTH")
    assert metadata.start == 1_709_593_200 * 10**9 and metadata.end == 1_709_676_000 * 10**9
    from lob.synth import synthesize_day
    from tests.synth_days import ES

    made = synthesize_day(ES, trade_dates(2)[1], 3_000, 7, 1.0)
    assert len(records) == told["records"] == 3_000
    for i, record in enumerate(records):
        row = made[i]
        assert (record.ts_event, record.ts_recv, record.price, record.size) == (row["ts_event"], row["ts_recv"], row["price"], row["size"])
        assert (str(record.action), str(record.side)) == (row["action"].decode(), row["side"].decode())
        assert (int(record.flags), record.depth, record.sequence, record.ts_in_delta) == tuple(
            int(row[name]) for name in ("flags", "depth", "sequence", "ts_in_delta")
        )
        assert record.instrument_id == 1
        for j, level in enumerate(record.levels):
            assert (level.bid_px, level.ask_px, level.bid_sz, level.ask_sz, level.bid_ct, level.ask_ct) == tuple(
                int(row[f"{column}_{j:02d}"]) for column in ("bid_px", "ask_px", "bid_sz", "ask_sz", "bid_ct", "ask_ct")
            )
    assert told["events"] == sum(int(record.flags) >> 7 for record in records)
    assert told["prints"] == sum(str(record.action) == "T" for record in records)
    assert told["sha256"] == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
    assert told["bytes"] == (tmp_path / name).stat().st_size


def test_the_edge_survives_the_way_through_the_file(tmp_path) -> None:
    """Decoded by the public decoder, then traded in plain Python integers: the same dollars as on the records in memory, and a gain."""
    synth("ES", "2024-03-05", 20_000, 7, 1.0, tmp_path / "day.dbn.zst")
    _, decoded = _decode(tmp_path / "day.dbn.zst")
    from lob.synth import synthesize_day
    from tests.synth_days import ES

    made = synthesize_day(ES, trade_dates(2)[1], 20_000, 7, 1.0)
    in_memory = sum(net for _, net in trade_each_second(made, imbalance_rule(made)))
    closed = [record for record in decoded if int(record.flags) & 0x80]
    position = cash_usd_cents = seen = standing = 0
    second = closed[0].ts_recv // 10**9 + 1
    while second * 10**9 <= closed[-1].ts_recv:
        while seen + 1 < len(closed) and closed[seen + 1].ts_recv <= second * 10**9:
            seen += 1
        while standing + 1 < len(closed) and closed[standing + 1].ts_event <= second * 10**9:
            standing += 1
        bids, asks = (sum(getattr(level, side) for level in closed[seen].levels) for side in ("bid_sz", "ask_sz"))
        want = position
        if position == 0:
            want = (2 * (bids - asks) > bids + asks) - (2 * (asks - bids) > bids + asks)
        elif (bids - asks) * position < 0:
            want = 0
        if want != position:
            best = closed[standing].levels[0]
            cash_usd_cents -= (want - position) * (best.ask_px if want > position else best.bid_px) // 250_000_000 * 1250 + 225
            position = want
        second += 1
    if position:
        best = closed[-1].levels[0]
        cash_usd_cents -= -position * (best.bid_px if position > 0 else best.ask_px) // 250_000_000 * 1250 + 225
    assert cash_usd_cents / 100 == in_memory > 0


def test_the_same_arguments_write_the_same_file(tmp_path) -> None:
    first, second = (synth("MES", "2024-03-05", 500, 1, 0.0, tmp_path / name) for name in ("a.dbn.zst", "b.dbn.zst"))
    assert first["sha256"] == second["sha256"] and first["symbol"] == "MESH4"


@pytest.mark.parametrize(
    ("asked", "date", "symbol"),
    [
        ("ES", "2024-03-05", "ESH4"),
        ("ESM4", "2024-03-05", "ESM4"),
        ("CL", "2024-03-05", "CLJ4"),
        ("ES.c.0", "2024-03-19", "ESM4"),
        ("EQUITY", "2024-03-05", "EQUITY"),
    ],
)
def test_the_file_names_the_contract(tmp_path, asked: str, date: str, symbol: str) -> None:
    assert synth(asked, date, 200, 1, 0.0, tmp_path / "day.dbn")["symbol"] == symbol
    assert _decode(tmp_path / "day.dbn")[0].symbols == [symbol]


@pytest.mark.parametrize(
    ("instrument", "date", "name", "error", "says"),
    [
        ("ES", "5 March", "day.dbn", BadInput, "is no date"),
        ("ES", "2024-03-09", "day.dbn", BadInput, "Saturday"),
        ("ES", "2024-03-05", "day.csv", BadInput, "name the file"),
        ("XX", "2024-03-05", "day.dbn", NotFound, "'XX' is not known"),
        ("ES", "2024-03-05", "no/such/folder/day.dbn", BadInput, "cannot be written"),
    ],
)
def test_what_cannot_be_written_leaves_nothing_behind(tmp_path, instrument, date, name, error, says) -> None:
    with pytest.raises(error, match=says):
        synth(instrument, date, 200, 1, 0.0, tmp_path / name)
    assert not np.any([path.is_file() for path in tmp_path.rglob("*")])
