"""Market files for tests: records made from a seed, written as DBN's raw records, and the source that reads them back in small batches."""

import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lob.records import F_LAST, MBP_10, OHLCV, RECORDS, RTYPE
from lob.units import UNDEFINED_PRICE, UNDEFINED_TIMESTAMP

T0 = 1_703_545_200 * 10**9  # 2023-12-25T23:00:00Z, the opening of an ES session
TICK = 250_000_000


def book_records(n: int, seed: int, ids: tuple[int, ...] = (7,), start_ns: int = T0, step_ns: int = 10**8, odd: float = 0.0) -> np.ndarray:
    """`n` MBP-10 records around 4800.00, in time order; a share `odd` of prices and times is undefined."""
    random = np.random.default_rng(seed)
    records = np.zeros(n, MBP_10)
    records["length"], records["rtype"], records["publisher_id"] = 92, RTYPE["mbp-10"], 1
    records["instrument_id"] = random.choice(ids, n)
    records["ts_recv"] = start_ns + np.arange(n) * step_ns
    records["ts_event"] = records["ts_recv"] - random.integers(0, 50_000, n).astype("u8")
    records["price"] = 19_200 * TICK + random.integers(-40, 40, n) * TICK
    records["size"] = random.integers(1, 9, n)
    records["action"] = random.choice(np.array([b"A", b"C", b"M", b"T"]), n)
    records["side"] = random.choice(np.array([b"A", b"B", b"N"]), n)
    records["flags"] = random.choice([F_LAST, F_LAST, 0, 0xFF], n)
    records["ts_in_delta"] = random.integers(-(2**31), 2**31, n)
    records["sequence"] = random.integers(0, 2**32, n)
    for level in range(10):
        records[f"bid_px_{level:02d}"] = (19_200 - level + random.integers(-1, 2, n)) * TICK
        records[f"ask_px_{level:02d}"] = (19_201 + level + random.integers(-1, 2, n)) * TICK
        for name in ("bid_sz", "ask_sz", "bid_ct", "ask_ct"):
            records[f"{name}_{level:02d}"] = random.integers(0, 2**32, n)
    for name in records.dtype.names:
        if name.endswith("price") or "_px_" in name:
            records[name][random.random(n) < odd] = UNDEFINED_PRICE
    records["ts_event"][random.random(n) < odd] = UNDEFINED_TIMESTAMP
    records["ts_recv"][(random.random(n) < odd) & (records["ts_event"] != UNDEFINED_TIMESTAMP)] = UNDEFINED_TIMESTAMP
    return records


def bar_records(n: int, seed: int, start_ns: int = T0, schema: str = "ohlcv-1m") -> np.ndarray:
    random = np.random.default_rng(seed)
    records = np.zeros(n, OHLCV)
    records["length"], records["rtype"], records["instrument_id"] = 14, RTYPE[schema], 7
    records["ts_event"] = start_ns + np.arange(n) * 60 * 10**9
    for name in ("open", "close"):
        records[name] = (19_200 + random.integers(-3, 4, n)) * TICK
    records["low"], records["high"] = 19_195 * TICK, 19_205 * TICK
    records["volume"] = random.integers(0, 1000, n)
    return records


def write_raw(path: Path, records: np.ndarray) -> Path:
    path.write_bytes(struct.pack("<I", len(records)) + records.tobytes())
    return path


@dataclass(frozen=True)
class RawSource:
    """A file of `write_raw` as a source for an ingest."""

    path: Path
    schema: str = "mbp-10"
    symbols: dict[int, str] = field(default_factory=lambda: {7: "ESH4"})
    batch: int = 1000

    def batches(self):
        with open(self.path, "rb") as file:
            file.read(4)
            while data := file.read(self.batch * RECORDS[self.schema].itemsize):
                yield np.frombuffer(data, RECORDS[self.schema])

    def symbol_of(self, instrument_id, date):
        return self.symbols.get(instrument_id)


def raw(schema: str = "mbp-10", symbols: dict[int, str] | None = None, batch: int = 1000):
    """What `ingest_file` takes as `open_source`."""
    return lambda path: RawSource(path, schema, {7: "ESH4"} if symbols is None else symbols, batch)


def tree(folder: Path) -> dict[str, bytes]:
    """{relative path: bytes} of every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
