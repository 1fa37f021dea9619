"""Small files of every kind that can be ingested, made here byte by byte (DBN by its published layout, not by our writer), and real ones.

A sample is the bytes of one file or two, their names, and the options to ingest them with.
"""

import gzip
import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.conftest import find_shared_data
from tests.fuzz.mutate import NAMES, pick

DAY_NS = 86_400 * 10**9
NOON_NS = 1_709_649_000 * 10**9  # 2024-03-05T14:30:00Z
SCHEMAS = {
    "mbo": (0, 0xA0, 56), "mbp-1": (1, 0x01, 80), "mbp-10": (2, 0x0A, 368), "tbbo": (3, 0x01, 80), "trades": (4, 0x00, 48),
    "ohlcv-1s": (5, 0x20, 56), "ohlcv-1m": (6, 0x21, 56), "ohlcv-1h": (7, 0x22, 56), "ohlcv-1d": (8, 0x23, 56),
    "definition": (9, 0x13, 520), "statistics": (10, 0x18, 80), "status": (11, 0x12, 40), "imbalance": (12, 0x14, 112),
    "bbo-1s": (18, 0xC3, 80), "bbo-1m": (19, 0xC4, 80),
}  # fmt: skip
"""Schema -> (code, record type, bytes of a record in version 3)."""
_OLDER_BYTES = {("definition", 1): 360, ("definition", 2): 400, ("statistics", 1): 64, ("statistics", 2): 64}
INTS = (0, 1, -1, 2**31 - 1, -(2**31), 2**32 - 1, 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 2**62, 10**9, 255, 65535)


@dataclass(frozen=True)
class Sample:
    """`files`: {name: bytes}, the first is the one that is named first. `kind`: "dbn", "csv", "lobster" or "table"."""

    kind: str
    files: dict[str, bytes]
    options: dict[str, str] = field(default_factory=dict)


def dbn(rng: np.random.Generator, odd: bool) -> Sample:
    """A DBN file of any version and schema; with `odd`, a few of its lengths, counts, codes, names, dates and fields are extremes."""
    version = int(pick(rng, (1, 2, 3, 3)))
    schema = pick(rng, ("mbp-10", "mbo", "mbo", "trades", "mbp-1", "ohlcv-1m", *SCHEMAS))
    code, rtype, size = SCHEMAS[schema]
    size = _OLDER_BYTES.get((schema, version), size)
    ids = [7] if rng.random() < 0.6 else [7, 9, 4_000_000_000]
    body = records(schema, rtype, size, ids, int(rng.integers(1, 30)), rng, odd)
    names = {7: "ESH4", 9: "NQH4", 4_000_000_000: "ESH4-ESM4"}
    if odd and rng.random() < 0.3:
        names[int(pick(rng, ids))] = pick(rng, NAMES)
    header = metadata(version, code, {ident: names[ident] for ident in ids}, rng, odd)
    return Sample("dbn", {"x.dbn": header + body})


def live(rng: np.random.Generator, odd: bool) -> Sample:
    """A live recording: no schema stated, symbols told by mapping records among records of several types."""
    version = int(pick(rng, (1, 3, 3)))
    width, text_bytes = (22, 64) if version == 1 else (71, 304)
    parts = []
    for ident, name in ((7, "ESH4"), (9, pick(rng, NAMES) if odd else "NQH4")):
        symbols = [name.encode()[:width].ljust(width, b"\0"), str(ident).encode().ljust(width, b"\0")]
        body = b"".join(symbols) + b"\0" * 4 if version == 1 else b"\1" + symbols[0] + b"\0" + symbols[1]
        body += struct.pack("<QQ", NOON_NS, pick(rng, (NOON_NS + DAY_NS, 2**64 - 1, 0)) if odd else 2**64 - 1)
        parts.append(struct.pack("<BBHIQ", (16 + len(body)) // 4, 0x16, 1, ident, NOON_NS) + body)
    for schema in rng.choice(["trades", "mbp-1", "mbp-10", "mbo", "ohlcv-1m", "bbo-1s", "status", "statistics", "imbalance"], 4):
        _, rtype, size = SCHEMAS[schema]
        size = _OLDER_BYTES.get((schema, version), size)
        parts.append(records(schema, rtype, size, [7, 9], int(rng.integers(1, 8)), rng, odd))
    system = struct.pack("<BBHIQ", (16 + text_bytes) // 4, int(pick(rng, (0x17, 0x15))), 0, 0, NOON_NS) + b"Heartbeat".ljust(
        text_bytes, b"\0"
    )
    parts.insert(int(rng.integers(0, len(parts))), system)
    header = metadata(version, 0xFFFF, {}, rng, odd and rng.random() < 0.3)
    return Sample("dbn", {"live.dbn": header + b"".join(parts)})


def metadata(version: int, schema: int, names: dict[int, str], rng: np.random.Generator, odd: bool) -> bytes:
    """Prefix and metadata of a DBN file that maps `names` on 2024-03-05; with `odd`, often one thing in it is an extreme."""
    what = rng.integers(0, 24) if odd else -1

    def number(place: int, usual: int, width: int) -> bytes:
        value = int(pick(rng, INTS)) if place == what else usual
        return (value % 2 ** (8 * width)).to_bytes(width, "little")

    width = 22 if version == 1 else 71
    if what == 0:
        width = int(pick(rng, (0, 1, 2, 22, 71, 255, 65535)))

    def text(value: str) -> bytes:
        return value.encode()[:width].ljust(width, b"\0")

    start, day = number(1, NOON_NS // DAY_NS * DAY_NS, 8), 20240305
    end, limit = number(2, NOON_NS // DAY_NS * DAY_NS + DAY_NS, 8), number(3, 0, 8)
    code = int(pick(rng, (0xFFFF, 20, 255, *range(20)))) if what == 4 else schema
    stypes = number(5, 1, 1) + number(6, 0, 1) + number(7, 0, 1)
    fixed = b"GLBX.MDP3".ljust(16, b"\0") + struct.pack("<H", code) + start + end + limit
    fixed += (b"\0" * 8 + stypes + b"\0" * 47) if version == 1 else (stypes + struct.pack("<H", width) + b"\0" * 53)
    parts = [fixed, number(8, 0, 4), number(9, len(names), 4), *[text(name) for name in names.values()], number(10, 0, 4), number(11, 0, 4)]
    parts.append(number(12, len(names), 4))
    for ident, name in names.items():
        first = int(pick(rng, (0, 20240230, 99991231, 20240306, 19700101, 2**32 - 1))) if what == 13 else day
        last = int(pick(rng, (0, 20240305, 20240304, 99991231, 2**31))) if what == 14 else 20250101
        shown = pick(rng, ("", "0", "-7", "７", "7" * 60, "x", str(ident + 1), "99999999999999999999")) if what == 15 else str(ident)
        parts += [text(name), number(16, 1, 4), struct.pack("<II", first, last), text(shown)]
    if what == 17:  # one id with two names on one day
        parts += [text("ESM4"), struct.pack("<III", 1, day, day + 1), text("7")]
    body = b"".join(parts)
    body += b"\0" * (-len(body) % 8)
    if what == 18:
        body = body[: int(rng.integers(0, len(body)))]
    if what == 19:
        body += b"\0" * int(pick(rng, (1, 8, 5000, 1 << 20)))
    length = int(pick(rng, (0, 1, 99, 119, len(body) + 1, len(body) - 1, 2**29, 2**29 + 1, 2**32 - 1))) if what == 20 else len(body)
    stated = int(pick(rng, (0, 1, 2, 3, 4, 255))) if what == 21 else version
    return b"DBN" + bytes([stated]) + struct.pack("<I", length) + body


def records(schema: str, rtype: int, size: int, ids: list[int], count: int, rng: np.random.Generator, odd: bool) -> bytes:
    """`count` records in time order; what no reader of ours knows the layout of has random bytes after its header."""
    from lob.records import RECORDS

    found = []
    order = 0
    for i in range(count):
        ident, when = int(pick(rng, ids)), NOON_NS + i * 60 * 10**9 * (60 if schema == "ohlcv-1h" else 1440 if schema == "ohlcv-1d" else 1)
        header = struct.pack("<BBHIQ", size // 4, rtype, 1, ident, when)
        price, lots, side = 4800_000_000_000 + int(rng.integers(-8, 8)) * 250_000_000, int(rng.integers(1, 9)), pick(rng, (b"A", b"B"))
        flags = pick(rng, (0x80, 0x80, 0, 0x20, 0xA8))
        if schema == "mbo":
            first = i < len(ids)
            ident = ids[i] if first else ident
            header = struct.pack("<BBHIQ", 14, rtype, 1, ident, when)
            action = b"R" if first else pick(rng, (b"A", b"A", b"A", b"C", b"M", b"T", b"F", b"N", b"R"))
            order = order + 1 if action == b"A" else order
            body = struct.pack("<QqIBBccQiI", order, price, lots, flags, 0, action, b"N" if first else side, when + 5, 5, i)
        elif schema.startswith("ohlcv"):
            body = struct.pack("<qqqqQ", price, price + 250_000_000, price - 250_000_000, price, lots)
        elif schema in ("definition", "statistics", "status", "imbalance"):
            letters = bytes(range(256)) if odd else b"\0\0\0AZ1"
            body = struct.pack("<Q", when + 5) + bytes(pick(rng, letters) for _ in range(size - 24))
        else:
            body = struct.pack("<qIccBBQiI", price, lots, pick(rng, (b"A", b"C", b"T", b"M")), side, flags, 0, when + 5, 5, i)
            for level in range((size - 48) // 32):
                body += struct.pack("<qqIIII", price - level * 250_000_000, price + (level + 1) * 250_000_000, lots, lots, 1, 1)
        found.append(header + body)
    data = b"".join(found)
    if odd and schema in RECORDS and RECORDS[schema].itemsize == size and rng.random() < 0.7:
        table = np.frombuffer(data, RECORDS[schema]).copy()
        for _ in range(rng.integers(1, 4)):
            name = pick(rng, table.dtype.names)
            row = slice(None) if rng.random() < 0.2 else int(rng.integers(0, count))
            if table.dtype[name].kind == "S":
                table[name][row] = bytes([int(pick(rng, (0, 1, 65, 67, 77, 82, 84, 70, 78, 127, 128, 255)))])
            else:
                table[name][row] = np.array(int(pick(rng, INTS)) % 2**64, "u8").astype(table.dtype[name])
        data = table.tobytes()
    return data


def bars_csv(rng: np.random.Generator) -> Sample:
    """Bars in one of the forms in which vendors write them."""
    count = int(rng.integers(1, 40))
    stated = {"schema": "ohlcv-1m"}
    form = rng.integers(0, 6)
    rows = []
    for i in range(count):
        minute, prices = 30 + i % 30 if i < 30 else i % 60, [f"{4800 + int(rng.integers(-9, 9)) * 0.25:.2f}" for _ in range(2)]
        hour = 14 + (1 if i >= 30 else 0)
        low, high = sorted(prices, key=float)
        numbers = [prices[0], high, low, prices[1], str(int(rng.integers(0, 99)))]
        epoch = NOON_NS // 10**9 + 60 * i
        when = {
            0: [f"2024-03-05 {hour:02d}:{minute:02d}:00"], 1: ["2024-03-05", f"{hour:02d}:{minute:02d}"], 2: [str(epoch)],
            3: [f"2024-03-05T{hour:02d}:{minute:02d}:00Z"], 4: [f"03/05/2024 {hour:02d}:{minute:02d}"],
            5: [f"{epoch}000000000", "33", "1", "7"],
        }[int(form)]  # fmt: skip
        rows.append([*when, *numbers, *(["ESH4"] if form in (3, 5) else [])])
    header = {
        0: ["time", "open", "high", "low", "close", "volume"], 1: ["Date", "Time", "Open", "High", "Low", "Last", "Vol"],
        2: ["timestamp", "o", "h", "l", "c", "v"], 3: ["datetime", "open", "high", "low", "close", "volume", "symbol"],
        4: ["date", "open", "high", "low", "close", "volume"],
        5: ["ts_event", "rtype", "publisher_id", "instrument_id", "open", "high", "low", "close", "volume", "symbol"],
    }[int(form)]  # fmt: skip
    if form not in (3, 5):
        stated["instrument"] = "ESH4"
    if form in (0, 1, 4):
        stated["timezone"] = pick(rng, ("UTC", "America/New_York", "Europe/London"))
    if form == 4:
        stated["date_order"] = "mdy"
    if form in (0, 1, 2) and rng.random() < 0.2:
        header = []
    mark = pick(rng, (",", ",", ",", ";", "\t"))
    text = "\n".join(mark.join(row) for row in ([header] if header else []) + rows) + "\n"
    return Sample("csv", {"bars.csv": text.encode()}, stated)


def databento_csv(rng: np.random.Generator) -> Sample:
    """Databento's CSV of a schema, prices decimal or in 1e-9, times ISO or in ns; now and then its receive time was lost to `ts_event`."""
    from lob.records import RECORDS

    schema = pick(rng, ("mbp-10", "mbp-10", "mbp-1", "tbbo", "trades", "mbo", "bbo-1s", "status", "statistics"))
    _, rtype, size = SCHEMAS[schema]
    table = np.frombuffer(records(schema, rtype, size, [7], int(rng.integers(1, 20)), rng, odd=False), RECORDS[schema])
    names = [name for name in table.dtype.names or () if name != "length" and not name.startswith("_")]
    fixed, iso, lost = bool(rng.integers(2)), bool(rng.integers(2)), rng.random() < 0.15

    def cell(name: str, value: Any) -> str:
        if isinstance(value, bytes):
            return value.decode("ascii", "ignore").strip("\0").strip() or "N"
        if name in ("ts_event", "ts_recv", "ts_ref") and iso:
            return str(np.datetime64(min(int(value), 2**62), "ns")) + "Z"
        if not fixed and (name == "price" or "_px_" in name):
            return f"{int(value) // 10**9}.{int(value) % 10**9:09d}"
        return str(value)

    head = [*("ts_event" if lost and name == "ts_recv" else name for name in names), "symbol"]
    rows = [[*(cell(name, row["ts_event" if lost and name == "ts_recv" else name]) for name in names), "ESH4"] for row in table]
    text = "\n".join(",".join(row) for row in [head, *rows]) + "\n"
    return Sample("csv", {"book.csv": text.encode()}, {"schema": "tbbo"} if schema == "tbbo" else {})


def lobster(rng: np.random.Generator) -> Sample:
    """A message file and its book of two levels: adds, deletions and executions at the touch, in whole units."""
    bids: dict[int, int] = {}
    asks: dict[int, int] = {}
    orders: dict[int, tuple[int, int, int]] = {}
    messages, shown = [], []
    for i in range(int(rng.integers(2, 60))):
        when = f"{34200 + i}.{i:09d}".rstrip("0").removesuffix(".")
        if not orders or rng.random() < 0.7:
            side = int(pick(rng, (-1, 1)))
            price = 1_000_000 - int(rng.integers(1, 6)) * 100 if side == 1 else 1_000_000 + int(rng.integers(1, 6)) * 100
            ident, lots, kind = i + 1, int(rng.integers(1, 50)), 1
            orders[ident] = (price, lots, side)
            book = bids if side == 1 else asks
            book[price] = book.get(price, 0) + lots
        else:
            ident = int(pick(rng, sorted(orders)))
            price, lots, side = orders.pop(ident)
            book, kind = bids if side == 1 else asks, int(pick(rng, (3, 4)))
            book[price] -= lots
            if not book[price]:
                del book[price]
        messages.append(f"{when},{kind},{ident},{lots},{price},{side}")
        row: list[str] = []
        best = sorted(asks), sorted(bids, reverse=True)
        for level in range(2):
            for side_prices, book, empty in ((best[0], asks, 9_999_999_999), (best[1], bids, -9_999_999_999)):
                found = side_prices[level] if level < len(side_prices) else empty
                row += [str(found), str(book.get(found, 0))]
        shown.append(",".join(row))
    name = "XYZ_2024-03-08_34200000_57600000_{}_2.csv"
    files = {name.format("message"): "\n".join(messages) + "\n", name.format("orderbook"): "\n".join(shown) + "\n"}
    return Sample("lobster", {key: text.encode() for key, text in files.items()})


_REAL_DBN = (
    "edge/dbn_versions/*.dbn", "edge/dbn_versions/*.dbn.zst", "edge/dbn_versions/*.frag", "edge/dbn_versions/*.dbz", "edge/venues/*.mbo.*",
    "edge/venues/*.mbp*", "edge/venues/*.trades.*", "edge/venues/LIVE*", "edge/header_only.mbp-10.dbn", "l1/*.dbn.zst", "ohlcv/*.dbn.zst",
)  # fmt: skip


def real() -> list[Sample]:
    """Small real files, and the first kilobytes of larger ones that are text; none where there are none."""
    folder = find_shared_data()
    if folder is None:
        return []
    paths = sorted(path for pattern in _REAL_DBN for path in folder.glob(pattern) if path.stat().st_size < 50_000)
    samples = [Sample("dbn", {"real.dbn": path.read_bytes()}) for path in paths]
    stated = {"schema": "ohlcv-1m", "timezone": "America/New_York", "instrument": "ES"}
    bars = (folder / "ohlcv/ES_1min_2023-09-24_2023-10-09.csv").read_bytes()[:6000].rpartition(b"\n")[0]
    book = (folder / "mbp10/aapl_xnas_20241021.mbp-10.csv").read_bytes()[:12000].rpartition(b"\n")[0]
    samples += [Sample("csv", {"bars.csv": bars}, stated), Sample("csv", {"bars.csv.gz": gzip.compress(bars, mtime=0)}, stated)]
    samples.append(Sample("csv", {"book.csv": book}))
    pair = {}
    for what in ("message", "orderbook"):
        text = (folder / f"lobster/AAPL_2012-06-21_first49s_{what}_10.csv").read_bytes().split(b"\n")[:60]
        pair[f"AAPL_2012-06-21_34200000_57600000_{what}_10.csv"] = b"\n".join(text) + b"\n"
    return [*samples, Sample("lobster", pair)]
