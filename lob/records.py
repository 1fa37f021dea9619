"""Record layouts of the market files, as numpy dtypes: DBN's own columns, widths and integer encodings (`_dtypes` of `databento-dbn`).

One file declares them; the reader, the writer, the store's Parquet schemas and the synthetic market derive from it.
"""

import numpy as np

LEVELS = 10

_HEADER = [("length", "u1"), ("rtype", "u1"), ("publisher_id", "<u2"), ("instrument_id", "<u4"), ("ts_event", "<u8")]
_TRADE = [
    ("price", "<i8"), ("size", "<u4"), ("action", "S1"), ("side", "S1"), ("flags", "u1"), ("depth", "u1"),
    ("ts_recv", "<u8"), ("ts_in_delta", "<i4"), ("sequence", "<u4"),
]  # fmt: skip


def _level(i: int) -> list[tuple[str, str]]:
    return [
        (f"bid_px_{i:02d}", "<i8"), (f"ask_px_{i:02d}", "<i8"), (f"bid_sz_{i:02d}", "<u4"),
        (f"ask_sz_{i:02d}", "<u4"), (f"bid_ct_{i:02d}", "<u4"), (f"ask_ct_{i:02d}", "<u4"),
    ]  # fmt: skip


_ORDER = [
    ("order_id", "<u8"), ("price", "<i8"), ("size", "<u4"), ("flags", "u1"), ("channel_id", "u1"), ("action", "S1"), ("side", "S1"),
    ("ts_recv", "<u8"), ("ts_in_delta", "<i4"), ("sequence", "<u4"),
]  # fmt: skip

MBO = np.dtype(_HEADER + _ORDER)
TRADE = np.dtype(_HEADER + _TRADE)
MBP_1 = np.dtype(_HEADER + _TRADE + _level(0))
MBP_10 = np.dtype(_HEADER + _TRADE + [field for i in range(LEVELS) for field in _level(i)])
OHLCV = np.dtype(_HEADER + [("open", "<i8"), ("high", "<i8"), ("low", "<i8"), ("close", "<i8"), ("volume", "<u8")])

RECORDS: dict[str, np.dtype] = {
    "mbo": MBO,
    "trades": TRADE,
    "mbp-1": MBP_1,
    "mbp-10": MBP_10,
    "ohlcv-1s": OHLCV,
    "ohlcv-1m": OHLCV,
    "ohlcv-1h": OHLCV,
    "ohlcv-1d": OHLCV,
}
"""schema name -> record dtype, for every schema that the store holds."""

RTYPE = {
    "mbo": 0xA0, "trades": 0x00, "mbp-1": 0x01, "mbp-10": 0x0A, "ohlcv-1s": 0x20, "ohlcv-1m": 0x21, "ohlcv-1h": 0x22, "ohlcv-1d": 0x23,
}  # fmt: skip
"""schema name -> DBN record type."""

BAR_NS = {"ohlcv-1s": 10**9, "ohlcv-1m": 60 * 10**9, "ohlcv-1h": 3600 * 10**9, "ohlcv-1d": 86400 * 10**9}
"""schema name -> length of a bar. DBN stamps a bar with its open."""

F_LAST, F_TOB, F_SNAPSHOT, F_MBP, F_BAD_TS_RECV, F_MAYBE_BAD_BOOK = 0x80, 0x40, 0x20, 0x10, 0x08, 0x04
BOOK_ACTIONS = b"ACMR"
"""Only add, cancel, modify and clear change a book; T (trade), F (fill) and N (none) do not."""


def has_receive_time(schema: str) -> bool:
    """Whether the schema's records carry `ts_recv`; bars do not."""
    return "ts_recv" in (RECORDS[schema].names or ())
