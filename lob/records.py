"""Record layouts of the market files, as numpy dtypes: DBN's own columns, widths and integer encodings (`_dtypes` of `databento-dbn`).

One file declares them; the reader, the writer, the store's Parquet schemas and the synthetic market derive from it. Fields whose names
begin with `_` are reserved bytes: they hold nothing, and the store does not keep them.
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
_QUOTE = [
    ("price", "<i8"), ("size", "<u4"), ("_reserved1", "u1"), ("side", "S1"), ("flags", "u1"), ("_reserved2", "u1"),
    ("ts_recv", "<u8"), ("_reserved3", "V4"), ("sequence", "<u4"),
]  # fmt: skip
BBO = np.dtype(_HEADER + _QUOTE + _level(0))
STATUS = np.dtype(
    _HEADER
    + [
        ("ts_recv", "<u8"), ("action", "<u2"), ("reason", "<u2"), ("trading_event", "<u2"), ("is_trading", "S1"), ("is_quoting", "S1"),
        ("is_short_sell_restricted", "S1"), ("_reserved", "V7"),
    ]
)  # fmt: skip
_STATISTIC = [("ts_recv", "<u8"), ("ts_ref", "<u8"), ("price", "<i8")]
_STATISTIC_END = [
    ("sequence", "<u4"), ("ts_in_delta", "<i4"), ("stat_type", "<u2"), ("channel_id", "<u2"), ("update_action", "u1"), ("stat_flags", "u1"),
]  # fmt: skip
STATISTICS = np.dtype(_HEADER + _STATISTIC + [("quantity", "<i8"), *_STATISTIC_END, ("_reserved", "V18")])
_STATISTICS_OLD = np.dtype(_HEADER + _STATISTIC + [("quantity", "<i4"), *_STATISTIC_END, ("_reserved", "V6")])


def _all(form: str, names: str) -> list[tuple[str, str]]:
    return [(name, form) for name in names.split()]


_DEFINED = [
    ("ts_recv", "<u8"), ("min_price_increment", "<i8"), ("display_factor", "<i8"), ("expiration", "<u8"), ("activation", "<u8"),
    ("high_limit_price", "<i8"), ("low_limit_price", "<i8"), ("max_price_variation", "<i8"),
]  # fmt: skip
_AMOUNTS = _all("<i8", "unit_of_measure_qty min_price_increment_amount price_ratio")
_LOT_SIZES = _all("<u4", "market_segment_id max_trade_vol") + _all("<i4", "min_lot_size min_lot_size_block min_lot_size_round_lot")
_DEPTHS = _all("<i4", "market_depth_implied market_depth")
_CONTRACT = _all("<i4", "contract_multiplier decay_quantity original_contract_size")
_MATURITY = [("appl_id", "<i2"), *_all("<u2", "maturity_year decay_start_date channel_id")]
_NAMES = [("currency", "S4"), ("settl_currency", "S4"), ("secsubtype", "S6")]
_PRODUCT = [("group", "S21"), ("exchange", "S5")]
_KIND = [
    ("cfi", "S7"), ("security_type", "S7"), ("unit_of_measure", "S31"), ("underlying", "S21"), ("strike_price_currency", "S4"),
]  # fmt: skip
_UPDATE = [("security_update_action", "S1"), *_all("u1", "maturity_month maturity_day maturity_week"), ("user_defined_instrument", "S1")]
_SCHEDULE = [("contract_multiplier_unit", "i1"), ("flow_schedule_type", "i1"), ("tick_rule", "u1")]
_DISPLAY = _all("u1", "main_fraction price_display_format")
_OLD_REFERENCE = [("trading_reference_price", "<i8")]
_OLD_DISPLAY = [("md_security_trading_status", "u1"), *_DISPLAY, ("settl_price_type", "u1"), *_all("u1", "sub_fraction underlying_product")]

DEFINITION = np.dtype(
    _HEADER + _DEFINED + _AMOUNTS + [("strike_price", "<i8"), ("raw_instrument_id", "<u8"), *_all("<i8", "leg_price leg_delta")]
    + [("inst_attrib_value", "<i4"), ("underlying_id", "<u4"), *_DEPTHS, *_LOT_SIZES, ("min_trade_vol", "<u4"), *_CONTRACT]
    + [("leg_instrument_id", "<u4"), *_all("<i4", "leg_ratio_price_numerator leg_ratio_price_denominator")]
    + [*_all("<i4", "leg_ratio_qty_numerator leg_ratio_qty_denominator"), ("leg_underlying_id", "<u4"), *_MATURITY]
    + [*_all("<u2", "leg_count leg_index"), *_NAMES, ("raw_symbol", "S71"), *_PRODUCT, ("asset", "S11"), *_KIND, ("leg_raw_symbol", "S71")]
    + [("instrument_class", "S1"), ("match_algorithm", "S1"), *_DISPLAY, *_all("u1", "sub_fraction underlying_product"), *_UPDATE]
    + [*_SCHEDULE, ("leg_instrument_class", "S1"), ("leg_side", "S1"), ("_reserved", "V17")]
)  # fmt: skip
_DEFINITION_V2 = np.dtype(
    _HEADER + _DEFINED + _OLD_REFERENCE + _AMOUNTS + [("strike_price", "<i8"), ("inst_attrib_value", "<i4"), ("underlying_id", "<u4")]
    + [("raw_instrument_id", "<u4"), *_DEPTHS, *_LOT_SIZES, ("min_trade_vol", "<u4"), *_CONTRACT, ("trading_reference_date", "<u2")]
    + [*_MATURITY, *_NAMES, ("raw_symbol", "S71"), *_PRODUCT, ("asset", "S7"), *_KIND, ("instrument_class", "S1")]
    + [("match_algorithm", "S1"), *_OLD_DISPLAY, *_UPDATE, *_SCHEDULE, ("_reserved", "V10")]
)  # fmt: skip
_DEFINITION_V1 = np.dtype(
    _HEADER + _DEFINED + _OLD_REFERENCE + _AMOUNTS + [("inst_attrib_value", "<i4"), ("underlying_id", "<u4")]
    + [("raw_instrument_id", "<u4"), *_DEPTHS, *_LOT_SIZES, ("min_trade_vol", "<u4"), ("_reserved2", "V4"), *_CONTRACT]
    + [("_reserved3", "V4"), ("trading_reference_date", "<u2"), *_MATURITY, *_NAMES, ("raw_symbol", "S22"), *_PRODUCT, ("asset", "S7")]
    + [*_KIND, ("instrument_class", "S1"), ("_reserved4", "V2"), ("strike_price", "<i8"), ("_reserved5", "V6"), ("match_algorithm", "S1")]
    + [*_OLD_DISPLAY, *_UPDATE, *_SCHEDULE, ("_dummy", "V3")]
)  # fmt: skip

RECORDS: dict[str, np.dtype] = {
    "mbo": MBO,
    "trades": TRADE,
    "mbp-1": MBP_1,
    "mbp-10": MBP_10,
    "tbbo": MBP_1,
    "bbo-1s": BBO,
    "bbo-1m": BBO,
    "ohlcv-1s": OHLCV,
    "ohlcv-1m": OHLCV,
    "ohlcv-1h": OHLCV,
    "ohlcv-1d": OHLCV,
    "definition": DEFINITION,
    "statistics": STATISTICS,
    "status": STATUS,
}
"""schema name -> record dtype (as DBN version 3 has it), for every schema that the store holds."""

SYMBOL_MAPPING = np.dtype(
    _HEADER
    + [("stype_in", "u1"), ("stype_in_symbol", "S71"), ("stype_out", "u1"), ("stype_out_symbol", "S71")]
    + [("start_ts", "<u8"), ("end_ts", "<u8")]
)
_SYMBOL_MAPPING_V1 = np.dtype(
    _HEADER + [("stype_in_symbol", "S22"), ("stype_out_symbol", "S22"), ("_dummy", "V4"), ("start_ts", "<u8"), ("end_ts", "<u8")]
)
"""What an instrument id of a live recording stands for: no market data, and not held."""

_OLDER = {
    ("symbol-mapping", 1): _SYMBOL_MAPPING_V1,
    ("symbol-mapping", 2): SYMBOL_MAPPING,
    ("symbol-mapping", 3): SYMBOL_MAPPING,
    ("definition", 1): _DEFINITION_V1,
    ("definition", 2): _DEFINITION_V2,
    ("statistics", 1): _STATISTICS_OLD,
    ("statistics", 2): _STATISTICS_OLD,
}

RTYPE = {
    "mbo": 0xA0, "trades": 0x00, "mbp-1": 0x01, "mbp-10": 0x0A, "tbbo": 0x01, "bbo-1s": 0xC3, "bbo-1m": 0xC4,
    "ohlcv-1s": 0x20, "ohlcv-1m": 0x21, "ohlcv-1h": 0x22, "ohlcv-1d": 0x23, "definition": 0x13, "statistics": 0x18, "status": 0x12,
}  # fmt: skip
"""schema name -> DBN record type. A `tbbo` record is an `mbp-1` record of a trade."""

REPLAYABLE = ("mbp-1", "mbp-10", "ohlcv-1s", "ohlcv-1m", "ohlcv-1h", "ohlcv-1d")
"""The schemas that a tape can be built of."""

SPARSE = ("definition", "statistics", "status")
"""Facts about an instrument, not events of its market: that nothing comes for hours says nothing about the data."""

BAR_NS = {"ohlcv-1s": 10**9, "ohlcv-1m": 60 * 10**9, "ohlcv-1h": 3600 * 10**9, "ohlcv-1d": 86400 * 10**9}
"""schema name -> length of a bar. DBN stamps a bar with its open."""

F_LAST, F_TOB, F_SNAPSHOT, F_MBP, F_BAD_TS_RECV, F_MAYBE_BAD_BOOK = 0x80, 0x40, 0x20, 0x10, 0x08, 0x04
BOOK_ACTIONS = b"ACMR"
"""Only add, cancel, modify and clear change a book; T (trade), F (fill) and N (none) do not."""


def has_receive_time(schema: str) -> bool:
    """Whether the schema's records carry `ts_recv`; bars do not."""
    return "ts_recv" in (RECORDS[schema].names or ())


def layout(schema: str, version: int) -> np.dtype:
    """The record of a schema (or a `symbol-mapping`) as a DBN file of a version has it."""
    return _OLDER[schema, version] if (schema, version) in _OLDER else RECORDS[schema]


def upgraded(records: np.ndarray, schema: str) -> np.ndarray:
    """Records of an older layout as `RECORDS[schema]`: fields by name, as Databento's own upgrade has them. A quantity that version 1 and
    2 leave undefined (2^31-1) is version 3's undefined one (2^63-1); legs, which they do not tell, are none. What only they told
    (the trading reference price and date, the settlement price type, the trading status) is not kept.
    """
    dtype = RECORDS[schema]
    if records.dtype == dtype:
        return records
    found = np.zeros(len(records), dtype)
    for name in dtype.names or ():
        if name in (records.dtype.names or ()) and not name.startswith("_"):
            found[name] = records[name]
    found["length"] = dtype.itemsize // 4
    if schema == "statistics":
        found["quantity"][records["quantity"] == 2**31 - 1] = 2**63 - 1
    if schema == "definition":
        found["leg_price"] = found["leg_delta"] = 2**63 - 1
        found["leg_side"] = b"N"
    return found
