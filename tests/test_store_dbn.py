"""Laws of the DBN reader and writer. The oracle is the public decoder (`databento-dbn`), which shares no code with ours."""

import datetime as dt
import gc
import io
import subprocess
import sys
from pathlib import Path

import databento_dbn
import numpy as np
import pytest
import zstandard

from lob.errors import BadInput
from lob.records import RECORDS, RTYPE, layout
from store.dbn import read_batches, read_metadata, write_dbn
from store.dbn_metadata import SCHEMAS, STYPES, encode_metadata, parse_metadata, parse_prefix
from store.detect import kind_of

USABLE = ("trades", "mbp-1", "mbp-10", "ohlcv-1m", "ohlcv-1d", "bbo-1m", "definition")
DAY_NS = 86_400 * 10**9
START_NS = 1_703_548_800 * 10**9  # 2023-12-26T00:00Z


def random_records(schema: str, count: int, seed: int = 1, instrument_id: int = 17077) -> np.ndarray:
    """Records of the schema whose every other byte is random."""
    dtype = RECORDS[schema]
    records = np.frombuffer(np.random.default_rng(seed).bytes(count * dtype.itemsize), dtype).copy()
    records["length"], records["rtype"], records["instrument_id"] = dtype.itemsize // 4, RTYPE[schema], instrument_id
    return records


def write(path: Path, records: np.ndarray, schema: str = "mbp-10") -> Path:
    write_dbn(path, records, schema, "ESH4", 17077, "GLBX.MDP3", START_NS, START_NS + DAY_NS)
    return path


def read(path: Path, **options) -> np.ndarray:
    batches = [batch.copy() for batch in read_batches(path, **options)]
    return np.concatenate(batches) if batches else np.empty(0)


def plain(path: Path) -> bytes:
    data = path.read_bytes()
    if data[:4] == zstandard.FRAME_HEADER[:4]:
        data = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    return data


def decoded(path: Path, policy=databento_dbn.VersionUpgradePolicy.UPGRADE_TO_V3) -> list:
    """The records of a file as the public decoder gives them, in the widths of version 3."""
    decoder = databento_dbn.DBNDecoder(ts_out=False, upgrade_policy=policy)
    decoder.write(plain(path))
    return decoder.decode()[1:]


def fault(path: Path) -> str:
    """The one line with which reading the file fails."""
    with pytest.raises(BadInput) as caught:
        read(path)
    line = str(caught.value)
    assert "\n" not in line and line.startswith(str(path))
    return line


# ---------------------------------------------------------------- reading what others wrote


def real_files(shared_data: Path) -> list[Path]:
    files = [p for p in sorted(shared_data.rglob("*.dbn*")) if any(f".{schema}." in p.name for schema in USABLE)]
    return [p for p in files if ".frag" not in p.name]


def test_every_real_file_is_read_byte_for_byte_as_the_public_decoder_reads_it(shared_data):
    files = real_files(shared_data)
    assert len(files) > 25
    for path in files:
        records = [bytes(record) for record in decoded(path)]
        ours = read(path)
        assert ours.tobytes() == b"".join(records), path
        assert len(ours) == len(records), path


def test_the_fields_of_a_real_book_equal_the_public_decoders(shared_data):
    path = shared_data / "mbp10" / "esh4_20231225_derived.mbp-10.dbn.zst"
    ours = read(path)
    assert len(ours) == 41_761
    for row, record in list(enumerate(decoded(path)))[::97]:
        assert (ours["ts_recv"][row], ours["ts_event"][row], ours["price"][row]) == (record.ts_recv, record.ts_event, record.price)
        assert (ours["size"][row], ours["flags"][row], ours["depth"][row]) == (record.size, int(record.flags), record.depth)
        assert (ours["sequence"][row], ours["ts_in_delta"][row]) == (record.sequence, record.ts_in_delta)
        assert (ours["action"][row].decode(), ours["side"][row].decode()) == (str(record.action), str(record.side))
        for i, level in enumerate(record.levels):
            for name in ("bid_px", "ask_px", "bid_sz", "ask_sz", "bid_ct", "ask_ct"):
                assert ours[f"{name}_{i:02d}"][row] == getattr(level, name), (row, i, name)


def test_the_record_dtypes_are_the_public_decoders():
    for schema, message in (("mbp-10", databento_dbn.MBP10Msg), ("mbp-1", databento_dbn.MBP1Msg), ("trades", databento_dbn.TradeMsg)):
        assert [(n, RECORDS[schema][n].str) for n in RECORDS[schema].names] == [(n, np.dtype(t).str) for n, t in message._dtypes]
    assert RECORDS["mbo"] == np.dtype(databento_dbn.MBOMsg._dtypes)
    assert RECORDS["ohlcv-1m"] == np.dtype(databento_dbn.OHLCVMsg._dtypes)


@pytest.mark.parametrize(
    ("schema", "version", "name"),
    [("tbbo", 3, "MBP1Msg"), ("bbo-1s", 3, "BBOMsg"), ("bbo-1m", 1, "BBOMsg"), ("status", 3, "StatusMsg"), ("status", 1, "StatusMsg")]
    + [("statistics", 1, "StatMsgV1"), ("statistics", 2, "StatMsgV1"), ("statistics", 3, "StatMsg")]
    + [("definition", 1, "InstrumentDefMsgV1"), ("definition", 2, "InstrumentDefMsgV2"), ("definition", 3, "InstrumentDefMsg")],
)
def test_the_layouts_of_every_version_are_the_public_decoders(schema, version, name):
    ours, theirs = layout(schema, version), np.dtype(getattr(databento_dbn, name)._dtypes)
    assert ours.itemsize == theirs.itemsize

    def fields(dtype):
        return [(n, dtype.fields[n][1], dtype[n].str.lstrip("<|").replace("V", "S")) for n in dtype.names]

    assert fields(ours) == fields(theirs)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("schema", ["definition", "statistics"])
def test_records_of_older_versions_are_upgraded_as_the_public_decoder_upgrades_them(tmp_path, schema, version):
    dtype = layout(schema, version)
    rng = np.random.default_rng(version)
    records = np.frombuffer(rng.bytes(200 * dtype.itemsize), dtype).copy()
    for name in dtype.names:
        if dtype[name].kind == "S":  # what is text in the older widths is so in the newer ones
            records[name] = rng.choice([b"", b"A", b"Z"] if dtype[name].itemsize == 1 else [b"", b"ES", b"USD"], 200)
    records["length"], records["rtype"], records["instrument_id"] = dtype.itemsize // 4, RTYPE[schema], 17077
    if schema == "statistics":
        records["quantity"][::3] = 2**31 - 1
    head = bytearray(plain(write(tmp_path / "v3.dbn", random_records(schema, 0), schema)))
    if version == 1:  # the mapping's symbols are 22 bytes wide: no symbols at all
        fixed = bytes(head[8:24]) + head[24:26] + head[26:50] + bytes(8) + bytes([1, 0, 0]) + bytes(47)
        head = b"DBN\x01" + len(fixed + bytes(20)).to_bytes(4, "little") + fixed + bytes(20)
    else:
        head[3] = version
    path = tmp_path / "old.dbn"
    path.write_bytes(bytes(head) + records.tobytes())
    theirs = np.frombuffer(b"".join(bytes(record) for record in decoded(path)), RECORDS[schema])
    ours = read(path)
    for name in RECORDS[schema].names:
        if not name.startswith("_"):
            assert np.array_equal(ours[name], theirs[name]), name


def test_metadata_of_every_real_file_equals_the_public_decoders(shared_data):
    for path in sorted(shared_data.rglob("*.dbn*")):
        if ".frag" in path.name or path.stat().st_size == 0:
            continue
        data = plain(path)
        theirs = databento_dbn.Metadata.decode(data, upgrade_policy=databento_dbn.VersionUpgradePolicy.AS_IS)
        ours = read_metadata(path)
        assert ours.version == theirs.version
        assert ours.dataset == theirs.dataset
        assert ours.schema == (None if theirs.schema is None else str(theirs.schema))
        assert ours.stype_in == (None if theirs.stype_in is None else str(theirs.stype_in))
        assert ours.stype_out == str(theirs.stype_out)
        assert (ours.start_ns, ours.end_ns, ours.limit, ours.ts_out) == (theirs.start, theirs.end, theirs.limit, theirs.ts_out)
        assert (list(ours.symbols), list(ours.partial), list(ours.not_found)) == (theirs.symbols, theirs.partial, theirs.not_found)
        mappings = {
            m.raw_symbol: [{"start_date": i.start, "end_date": i.end, "symbol": i.symbol} for i in m.intervals] for m in ours.mappings
        }
        assert mappings == theirs.mappings


def test_instruments_are_named_through_the_mappings_by_date(shared_data):
    two = read_metadata(shared_data / "ohlcv" / "esu4_nqu4_20240701_30min.ohlcv-1m.dbn.zst")
    records = read(shared_data / "ohlcv" / "esu4_nqu4_20240701_30min.ohlcv-1m.dbn.zst")
    names = {int(ident): two.symbol_of(int(ident), dt.date(2024, 7, 2)) for ident in np.unique(records["instrument_id"])}
    assert sorted(names.values()) == ["ESU4", "NQU4"]
    assert two.symbol_of(118, dt.date(2024, 7, 3)) is None, "the end date is excluded"
    assert two.symbol_of(118, dt.date(2024, 6, 30)) is None
    assert two.symbol_of(999, dt.date(2024, 7, 2)) is None
    huge = read_metadata(shared_data / "edge" / "venues" / "GLBX_es-opt_huge_metadata.definition.dbn.zst")
    assert len(huge.mappings) == 11_294 and len(huge.partial) == 8_429
    assert huge.symbol_of(2825782, dt.date(2023, 8, 29)) == "UD:1V: GN 2825782"


def test_schema_and_symbol_type_codes_are_the_public_ones():
    def encoded(schema, stype):
        made = databento_dbn.Metadata(
            dataset="GLBX.MDP3", start=1, stype_in=stype, stype_out=stype, schema=schema, symbols=[], partial=[], not_found=[], mappings=[]
        )
        data = made.encode()
        version, length = parse_prefix(data[:8], "made")
        return parse_metadata(version, data[8 : 8 + length], "made")

    assert [str(s) for s in databento_dbn.Schema.variants()] == list(SCHEMAS)
    assert [str(s) for s in databento_dbn.SType.variants()] == list(STYPES)
    for schema in databento_dbn.Schema.variants():
        assert encoded(schema, databento_dbn.SType.RAW_SYMBOL).schema == str(schema)
    for stype in databento_dbn.SType.variants():
        assert (encoded(databento_dbn.Schema.MBO, stype).stype_in, encoded(databento_dbn.Schema.MBO, stype).stype_out) == (
            str(stype),
            str(stype),
        )


# ---------------------------------------------------------------- writing


@pytest.mark.parametrize("suffix", ["dbn", "dbn.zst"])
@pytest.mark.parametrize("schema", list(RECORDS))
def test_what_is_written_is_read_back_byte_for_byte_by_us_and_by_the_public_decoder(tmp_path, schema, suffix):
    records = random_records(schema, 3000)
    path = write(tmp_path / f"x.{suffix}", records, schema)
    assert read(path, batch_records=1000).tobytes() == records.tobytes()
    assert b"".join(bytes(record) for record in decoded(path)) == records.tobytes()
    metadata = databento_dbn.Metadata.decode(plain(path))
    assert (metadata.version, metadata.dataset, str(metadata.schema), metadata.symbols) == (3, "GLBX.MDP3", schema, ["ESH4"])
    assert metadata.encode() == plain(path)[: len(metadata.encode())], "our metadata are the public encoder's bytes"
    assert read_metadata(path).symbol_of(17077, dt.date(2023, 12, 26)) == "ESH4"


def test_the_same_arguments_write_the_same_bytes(tmp_path):
    records = random_records("mbp-10", 500)
    assert write(tmp_path / "a.dbn.zst", records).read_bytes() == write(tmp_path / "b.dbn.zst", records).read_bytes()


def test_a_span_of_several_days_maps_the_symbol_on_each(tmp_path):
    write_dbn(tmp_path / "x.dbn", random_records("trades", 1), "trades", "ESH4", 17077, "D", START_NS + 1, START_NS + 2 * DAY_NS + 1)
    interval = read_metadata(tmp_path / "x.dbn").mappings[0].intervals[0]
    assert (interval.start, interval.end) == (dt.date(2023, 12, 26), dt.date(2023, 12, 29))


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    path = write(tmp_path / "x.dbn", random_records("mbp-10", 5))
    before = path.read_bytes()
    mixed = random_records("mbp-10", 5)
    mixed["instrument_id"][3] = 9
    with pytest.raises(BadInput, match="record 3 has instrument_id 9, not 17077"):
        write(path, mixed)
    with pytest.raises(BadInput, match="does not fit into the 70 bytes"):
        write_dbn(path, random_records("mbp-10", 1), "mbp-10", "X" * 71, 17077, "D", 0, 1)
    with pytest.raises(BadInput, match="cannot be written: No such file or directory"):
        write(tmp_path / "absent" / "x.dbn", random_records("mbp-10", 1))
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["x.dbn"]


def test_a_full_disk_is_one_clear_line(tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    script = (
        "import builtins, sys; sys.path.insert(0, '.'); from tests.test_store_dbn import *\n"
        "real = builtins.open\n"
        "builtins.open = lambda name, *a, **k: real('/dev/full' if str(name).endswith('.part') else name, *a, **k)\n"
        f"write(Path({str(tmp_path / 'x.dbn')!r}), random_records('mbp-10', 1000))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=Path(__file__).parent.parent)
    assert done.returncode != 0 and "x.dbn: cannot be written: No space left on device" in done.stderr
    assert not (tmp_path / "x.dbn").exists()


# ---------------------------------------------------------------- streams


def test_batches_are_in_file_order_and_no_longer_than_asked(tmp_path):
    records = random_records("mbp-10", 10_001)
    path = write(tmp_path / "x.dbn", records)
    sizes = [len(batch) for batch in read_batches(path, batch_records=4096)]
    assert sizes == [4096, 4096, 1809]
    assert read(path, batch_records=1).tobytes() == records.tobytes()


def test_a_batch_that_is_held_is_never_overwritten(tmp_path):
    records = random_records("trades", 5000)
    path = write(tmp_path / "x.dbn", records, "trades")
    held = list(read_batches(path, batch_records=100))
    assert np.concatenate(held).tobytes() == records.tobytes()
    columns = [batch["price"][10:] for batch in read_batches(path, batch_records=100)]
    gc.collect()
    assert np.array_equal(np.concatenate(columns), np.concatenate([records["price"][i + 10 : i + 100] for i in range(0, 5000, 100)]))


def test_a_loop_that_drops_its_batches_runs_in_two_buffers(tmp_path):
    path = write(tmp_path / "x.dbn", random_records("trades", 5000), "trades")
    addresses = set()
    for batch in read_batches(path, batch_records=100):
        addresses.add(batch.__array_interface__["data"][0])
    assert len(addresses) == 2


def test_whichever_batch_is_held_the_others_go_on_in_free_buffers(tmp_path):
    records = random_records("trades", 5000)
    path = write(tmp_path / "x.dbn", records, "trades")
    for keep in range(4):
        kept = [(i, batch) for i, batch in enumerate(read_batches(path, batch_records=100)) if i % 4 == keep]
        assert all(batch.tobytes() == records[100 * i : 100 * i + 100].tobytes() for i, batch in kept)


def test_two_zstd_frames_are_one_file(tmp_path):
    records = random_records("mbp-10", 999)
    data = write(tmp_path / "x.dbn", records).read_bytes()
    compress = zstandard.ZstdCompressor().compress
    skippable = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
    for cut in (4, 200, 1000, len(data) - 1):
        (tmp_path / "y.dbn.zst").write_bytes(compress(data[:cut]) + skippable + compress(data[cut:]))
        assert read(tmp_path / "y.dbn.zst").tobytes() == records.tobytes()


def test_the_kind_is_told_by_the_content_not_by_the_name(tmp_path):
    records = random_records("mbp-10", 99)
    write(tmp_path / "a.dbn.zst", records).rename(tmp_path / "a.txt")
    write(tmp_path / "b.dbn", records).rename(tmp_path / "b.dbn.zst")
    assert read(tmp_path / "a.txt").tobytes() == read(tmp_path / "b.dbn.zst").tobytes() == records.tobytes()


def test_the_gateways_send_time_is_stripped(tmp_path):
    records = random_records("trades", 300)
    path = write(tmp_path / "x.dbn", records, "trades")
    head = path.read_bytes()[: -records.nbytes]
    wide = np.zeros(300, [("record", records.dtype), ("ts_out", "<u8")])
    wide["record"], wide["ts_out"] = records, 7
    wide["record"]["length"] += 2
    flagged = head[: 8 + 44] + b"\x01" + head[8 + 45 :]
    path.write_bytes(flagged + wide.tobytes())
    assert read_metadata(path).ts_out
    assert read(path).tobytes() == records.tobytes()
    assert [bytes(record) for record in decoded(path, databento_dbn.VersionUpgradePolicy.AS_IS)] == [row.tobytes() for row in wide], (
        "the file is what the public decoder calls ts_out"
    )


# ---------------------------------------------------------------- bad input, one clear line each


def test_an_empty_file_is_said_to_be_empty(shared_data):
    assert "empty (0 bytes)" in fault(shared_data / "edge" / "zero_bytes.dbn")


def test_a_file_of_metadata_only_has_zero_records(shared_data):
    assert len(read(shared_data / "edge" / "header_only.mbp-10.dbn")) == 0
    assert read_metadata(shared_data / "edge" / "header_only.mbp-10.dbn").symbols == ("ESU9",)


def test_dbz_and_fragments_are_named_for_what_they_are(shared_data):
    folder = shared_data / "edge" / "dbn_versions"
    for path in sorted(folder.glob("*.dbz")):
        assert "a DBZ file, the format before DBN" in fault(path)
    for path in sorted(folder.glob("*.frag*")):
        assert "DBN records without metadata (a fragment)" in fault(path)


def test_a_live_recording_is_refused_with_what_it_holds(shared_data):
    line = fault(shared_data / "edge" / "venues" / "LIVE_mixed_schemas.dbn.zst")
    assert "symbol-mapping 20, statistics 9, mbo 5" in line


def test_a_schema_that_cannot_be_used_is_refused_with_those_that_can(tmp_path):
    data = bytearray(write(tmp_path / "x.dbn", random_records("trades", 3), "trades").read_bytes())
    data[8 + 16] = SCHEMAS.index("imbalance")
    (tmp_path / "y.dbn").write_bytes(data)
    assert "schema imbalance cannot be used; these can: mbo, trades, mbp-1, mbp-10, tbbo" in fault(tmp_path / "y.dbn")


def test_another_schema_than_the_one_asked_for_is_refused(tmp_path):
    path = write(tmp_path / "x.dbn", random_records("trades", 3), "trades")
    with pytest.raises(BadInput, match="holds schema trades, not mbp-10"):
        read(path, schema="mbp-10")


def test_what_is_no_dbn_is_refused(tmp_path):
    path = tmp_path / "x.dbn"
    for content, said in (
        (b"timestamp,open,high,low,close,volume\n", "text, not DBN"),
        (b"PAR1" + bytes(100), "a Parquet file"),
        (bytes(range(256)) * 4, "not a DBN file and not UTF-8 text"),
        (b"\xff\xfet\0i\0", "UTF-16"),
        (b"DB", "text, not DBN"),
        (b"DBN", "not a DBN file"),
        (b"DBN\x03", "not a DBN file"),
    ):
        path.write_bytes(content)
        assert said in fault(path), content
    with pytest.raises(BadInput, match="No such file"):
        read(tmp_path / "absent.dbn")
    with pytest.raises(BadInput, match="not a regular file"):
        read(tmp_path)


def test_a_version_of_the_future_or_of_no_time_is_refused(tmp_path):
    data = bytearray(write(tmp_path / "x.dbn", random_records("mbp-10", 2)).read_bytes())
    for version, said in ((4, "DBN version 4; this program reads versions 1 to 3: update it"), (255, "version 255"), (0, "does not exist")):
        data[3] = version
        (tmp_path / "y.dbn").write_bytes(data)
        assert said in fault(tmp_path / "y.dbn")


def test_a_file_cut_inside_a_record_is_refused_with_the_offset(tmp_path):
    records = random_records("mbp-10", 100)
    data = write(tmp_path / "x.dbn", records).read_bytes()
    head = len(data) - records.nbytes
    for cut in (1, 367, 368 * 99 + 1):
        (tmp_path / "y.dbn").write_bytes(data[:-cut])
        whole = (len(data) - cut - head) // 368
        assert f"ends inside record {whole} at byte {head + whole * 368} " in fault(tmp_path / "y.dbn")


def test_a_truncated_zstd_stream_is_refused_wherever_it_is_cut(tmp_path):
    data = write(tmp_path / "x.dbn.zst", random_records("mbp-10", 2000)).read_bytes()
    for keep in (5, 100, len(data) // 2, len(data) - 5, len(data) - 1):
        (tmp_path / "y.dbn.zst").write_bytes(data[:keep])
        assert "zstd stream is cut off before its end" in fault(tmp_path / "y.dbn.zst"), keep


def test_a_damaged_zstd_stream_is_refused(tmp_path):
    data = bytearray(write(tmp_path / "x.dbn.zst", random_records("mbp-10", 2000)).read_bytes())
    data[len(data) // 2] ^= 0xFF
    (tmp_path / "y.dbn.zst").write_bytes(data)
    assert "zstd stream is damaged" in fault(tmp_path / "y.dbn.zst")


@pytest.mark.parametrize("row", [0, 1, 2848, 2849, 65_535, 65_536, 69_999])
def test_a_record_of_another_type_is_named_by_index_and_offset(tmp_path, row):
    records = random_records("mbp-10", 70_000)
    records["rtype"][row] = 0x16
    head = write(tmp_path / "x.dbn", random_records("mbp-10", 0)).read_bytes()
    (tmp_path / "y.dbn").write_bytes(head + records.tobytes())
    line = fault(tmp_path / "y.dbn")
    assert f"record {row} at byte {len(head) + row * 368} is a record of 368 bytes and type symbol-mapping" in line
    records["rtype"][row], records["length"][row] = 10, 20
    (tmp_path / "y.dbn").write_bytes(head + records.tobytes())
    assert f"record {row} at byte {len(head) + row * 368} is a record of 80 bytes" in fault(tmp_path / "y.dbn")


def test_an_absurd_count_is_refused_before_anything_is_allocated(tmp_path):
    data = write(tmp_path / "x.dbn", random_records("mbp-10", 2)).read_bytes()
    places = {4: "metadata", 8 + 104: "list of 4294967295 items", 8 + 104 + 75: "list", 8 + 104 + 79: "list", 8 + 104 + 83: "list"}
    for at in places:
        broken = data[:at] + b"\xff\xff\xff\xff" + data[at + 4 :]
        (tmp_path / "y.dbn").write_bytes(broken)
        script = (
            "import resource, sys; sys.path.insert(0, '.')\n"
            "from store.dbn import read_metadata\nfrom lob.errors import BadInput\n"
            "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
            f"try:\n    read_metadata({str(tmp_path / 'y.dbn')!r})\nexcept BadInput as error:\n    print(error)\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=Path(__file__).parent.parent)
        line, grown_kb = done.stdout.splitlines()
        assert "metadata" in line and int(grown_kb) < 20_000, (at, done.stdout, done.stderr)


def test_metadata_that_claims_more_than_the_file_holds_is_refused(tmp_path):
    data = write(tmp_path / "x.dbn", random_records("mbp-10", 2)).read_bytes()
    (tmp_path / "y.dbn").write_bytes(data[:4] + (100 << 20).to_bytes(4, "little") + data[8:])
    assert "ends inside its metadata" in fault(tmp_path / "y.dbn")
    (tmp_path / "y.dbn").write_bytes(data[:200])
    assert "ends inside its metadata" in fault(tmp_path / "y.dbn")


def test_impossible_metadata_are_refused(tmp_path):
    data = write(tmp_path / "x.dbn", random_records("mbp-10", 2)).read_bytes()
    body = 8
    interval = body + 100 + 4 + 4 + 71 + 4 + 4 + 4 + 71 + 4
    for at, value, said in (
        (body + 16, b"\x63\x00", "unknown schema code 99"),
        (body + 42, b"\x63", "unknown symbol type code 99"),
        (body + 44, b"\x09", "ts_out flag 9"),
        (body + 45, b"\x00\x00", "symbols of zero bytes"),
        (body + 100, b"\x01", "a schema definition"),
        (body, b"\xff\xfe", "is no text"),
        (interval, (20231399).to_bytes(4, "little"), "20231399 is no date"),
    ):
        (tmp_path / "y.dbn").write_bytes(data[:at] + value + data[at + len(value) :])
        assert said in fault(tmp_path / "y.dbn"), said


def test_metadata_survive_encoding_and_parsing(tmp_path):
    metadata = read_metadata(write(tmp_path / "x.dbn", random_records("mbp-10", 1)))
    data = encode_metadata(metadata)
    assert parse_metadata(3, data[8:], "again") == metadata
    assert kind_of(data) == "dbn" and io.BytesIO(data).read(3) == b"DBN"
