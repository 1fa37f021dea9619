"""The metadata that starts a DBN file: parsed from bytes into a plain dataclass, and back.

Source of the layout: Databento, "Databento Binary Encoding (DBN)", versions 1 to 3. All integers are little-endian:
`"DBN"`, version u8, length u32 of what follows; 100 fixed bytes; then length-counted lists of fixed-width, NUL-padded symbols.
"""

import datetime as dt
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from lob.errors import BadInput

MAGIC = b"DBN"
NEWEST_VERSION = 3
PREFIX_BYTES = 8
FIXED_BYTES = 100
MAX_METADATA_BYTES = 512 << 20
"""More than any real file needs (every option symbol of a day is about 240 MB); beyond it the length is taken as damage."""

SCHEMAS = (
    "mbo", "mbp-1", "mbp-10", "tbbo", "trades", "ohlcv-1s", "ohlcv-1m", "ohlcv-1h", "ohlcv-1d", "definition", "statistics",
    "status", "imbalance", "ohlcv-eod", "cmbp-1", "cbbo-1s", "cbbo-1m", "tcbbo", "bbo-1s", "bbo-1m",
)  # fmt: skip
"""Schema names by their code in the file."""

STYPES = (
    "instrument_id", "raw_symbol", "smart", "continuous", "parent", "nasdaq_symbol", "cms_symbol", "isin", "us_code",
    "bbg_comp_id", "bbg_comp_ticker", "figi", "figi_ticker", "listing_id", "issuer_id", "security_id",
)  # fmt: skip
"""Kinds of symbol by their code in the file."""

_NO_SCHEMA, _NO_STYPE, _NO_TIME = 0xFFFF, 0xFF, 2**64 - 1
_V1_FIXED = struct.Struct("<16sHQQQQBBB47x")
_V2_FIXED = struct.Struct("<16sHQQQBBBH53x")
_V1_SYMBOL_BYTES, _SYMBOL_BYTES = 22, 71


@dataclass(frozen=True)
class Interval:
    """From `start` up to, not including, `end` (UTC dates) the input symbol stood for `symbol`."""

    start: dt.date
    end: dt.date
    symbol: str


@dataclass(frozen=True)
class Mapping:
    """What one input symbol resolved to, by date."""

    raw_symbol: str
    intervals: tuple[Interval, ...]


@dataclass(frozen=True)
class DbnMetadata:
    """What a DBN file says about itself. `schema` and `stype_in` are None in live recordings; `end_ns` and `limit` when not stated."""

    version: int
    dataset: str
    schema: str | None
    start_ns: int
    end_ns: int | None
    limit: int | None
    stype_in: str | None
    stype_out: str
    ts_out: bool
    symbol_bytes: int
    symbols: tuple[str, ...]
    partial: tuple[str, ...]
    not_found: tuple[str, ...]
    mappings: tuple[Mapping, ...]
    _by_id: dict[int, list[tuple[dt.date, dt.date, str]]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def symbol_of(self, instrument_id: int, date: dt.date) -> str | None:
        """The symbol that `instrument_id` stood for on the UTC `date`, or None when the mappings do not say.

        When several input symbols resolved to the same instrument (ES.c.0 and ES.v.0), the first in the file names it.
        """
        if not self._by_id:
            self._by_id.update(_ids_to_symbols(self))
        return next((symbol for start, end, symbol in self._by_id.get(instrument_id, ()) if start <= date < end), None)


def _ids_to_symbols(metadata: DbnMetadata) -> dict[int, list[tuple[dt.date, dt.date, str]]]:
    table: dict[int, list[tuple[dt.date, dt.date, str]]] = {}
    id_is_input = metadata.stype_in == "instrument_id"
    for mapping in metadata.mappings:
        for interval in mapping.intervals:
            ident, symbol = (mapping.raw_symbol, interval.symbol) if id_is_input else (interval.symbol, mapping.raw_symbol)
            if len(ident) <= 10 and ident.isascii() and ident.isdigit() and symbol:
                table.setdefault(int(ident), []).append((interval.start, interval.end, symbol))
    return table


def parse_prefix(prefix: bytes, where: str) -> tuple[int, int]:
    """(version, byte length of the metadata after the prefix) of the first eight bytes. Raises BadInput."""
    if len(prefix) < PREFIX_BYTES or prefix[:3] != MAGIC:
        raise BadInput(f"{where}: not a DBN file (it starts with {prefix[:4]!r}, not {MAGIC!r})")
    version, length = prefix[3], int.from_bytes(prefix[4:8], "little")
    if version > NEWEST_VERSION:
        raise BadInput(
            f"{where}: DBN version {version}; this program reads versions 1 to {NEWEST_VERSION}: update it, or ask for an older version"
        )
    if version < 1:
        raise BadInput(f"{where}: DBN version {version} does not exist (1 to {NEWEST_VERSION} do): the file is damaged, fetch it again")
    if not FIXED_BYTES + 20 <= length <= MAX_METADATA_BYTES:
        raise BadInput(f"{where}: metadata of {length} bytes at byte 4 is not possible: the file is damaged, fetch it again")
    return version, length


def parse_metadata(version: int, body: bytes, where: str) -> DbnMetadata:
    """The metadata in `body` (what follows the eight-byte prefix). Every count is checked against the bytes left. Raises BadInput."""
    if version == 1:
        dataset, schema, start, end, limit, _, stype_in, stype_out, ts_out = _V1_FIXED.unpack_from(body)
        width = _V1_SYMBOL_BYTES
    else:
        dataset, schema, start, end, limit, stype_in, stype_out, ts_out, width = _V2_FIXED.unpack_from(body)
    cursor = _Cursor(body, FIXED_BYTES, where)
    if width == 0:
        raise cursor.fault("symbols of zero bytes")
    if schema != _NO_SCHEMA and schema >= len(SCHEMAS):
        raise cursor.fault(f"unknown schema code {schema}")
    if (stype_in != _NO_STYPE and stype_in >= len(STYPES)) or stype_out >= len(STYPES):
        raise cursor.fault(f"unknown symbol type code {stype_in} or {stype_out}")
    if ts_out > 1:
        raise cursor.fault(f"ts_out flag {ts_out}")
    if cursor.u32() != 0:
        raise cursor.fault("a schema definition, which no version has")
    symbols, partial, not_found = (tuple(cursor.strings(width)) for _ in range(3))
    mappings = tuple(_mapping(cursor, width) for _ in range(cursor.count(width + 4)))
    return DbnMetadata(
        version=version,
        dataset=_text(dataset, cursor.fault),
        schema=None if schema == _NO_SCHEMA else SCHEMAS[schema],
        start_ns=start,
        end_ns=None if end in (0, _NO_TIME) else end,
        limit=limit or None,
        stype_in=None if stype_in == _NO_STYPE else STYPES[stype_in],
        stype_out=STYPES[stype_out],
        ts_out=bool(ts_out),
        symbol_bytes=width,
        symbols=symbols,
        partial=partial,
        not_found=not_found,
        mappings=mappings,
    )


def _mapping(cursor: "_Cursor", width: int) -> Mapping:
    raw_symbol = cursor.string(width)
    intervals = [Interval(cursor.date(), cursor.date(), cursor.string(width)) for _ in range(cursor.count(width + 8))]
    return Mapping(raw_symbol, tuple(intervals))


@dataclass
class _Cursor:
    """A position in the metadata that only moves over bytes that are there."""

    body: bytes
    at: int
    where: str

    def fault(self, what: str) -> BadInput:
        return BadInput(f"{self.where}: damaged metadata before byte {PREFIX_BYTES + self.at}: {what}; fetch the file again")

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.body):
            raise self.fault(f"{size} bytes are due, {len(self.body) - self.at} are left")
        self.at += size
        return self.body[self.at - size : self.at]

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def count(self, item_bytes: int) -> int:
        """A list's length, refused before anything is allocated when so many items cannot follow."""
        count = self.u32()
        if count * item_bytes > len(self.body) - self.at:
            raise self.fault(f"a list of {count} items does not fit into the {len(self.body) - self.at} bytes left")
        return count

    def string(self, width: int) -> str:
        return _text(self.take(width), self.fault)

    def strings(self, width: int) -> list[str]:
        return [self.string(width) for _ in range(self.count(width))]

    def date(self) -> dt.date:
        number = self.u32()
        try:
            return dt.date(number // 10000, number // 100 % 100, number % 100)
        except ValueError:
            raise self.fault(f"{number} is no date of the form YYYYMMDD") from None


def _text(padded: bytes, fault: Callable[[str], BadInput]) -> str:
    try:
        return padded.split(b"\0", 1)[0].decode("utf-8")
    except UnicodeDecodeError:
        raise fault(f"{padded[:12]!r} is no text") from None


def encode_metadata(metadata: DbnMetadata) -> bytes:
    """Prefix and metadata as version 3 has them: NUL-padded to a multiple of eight bytes. Raises BadInput on too long a text."""
    m = metadata
    fixed = _V2_FIXED.pack(
        _padded(m.dataset, 16),
        _NO_SCHEMA if m.schema is None else SCHEMAS.index(m.schema),
        m.start_ns,
        _NO_TIME if m.end_ns is None else m.end_ns,
        m.limit or 0,
        _NO_STYPE if m.stype_in is None else STYPES.index(m.stype_in),
        STYPES.index(m.stype_out),
        m.ts_out,
        _SYMBOL_BYTES,
    )
    parts = [fixed, _u32(0)]
    for names in (m.symbols, m.partial, m.not_found):
        parts += [_u32(len(names)), *(_padded(name, _SYMBOL_BYTES) for name in names)]
    parts.append(_u32(len(m.mappings)))
    for mapping in m.mappings:
        parts += [_padded(mapping.raw_symbol, _SYMBOL_BYTES), _u32(len(mapping.intervals))]
        for interval in mapping.intervals:
            parts += [_date(interval.start), _date(interval.end), _padded(interval.symbol, _SYMBOL_BYTES)]
    body = b"".join(parts)
    body += b"\0" * (-len(body) % 8)
    return MAGIC + bytes([NEWEST_VERSION]) + _u32(len(body)) + body


def _u32(number: int) -> bytes:
    return number.to_bytes(4, "little")


def _date(date: dt.date) -> bytes:
    return _u32(date.year * 10000 + date.month * 100 + date.day)


def _padded(text: str, width: int) -> bytes:
    """`text` as `width` NUL-padded bytes, at least one of them NUL."""
    encoded = text.encode("utf-8")
    if len(encoded) >= width or b"\0" in encoded:
        raise BadInput(f"{text!r} does not fit into the {width - 1} bytes that DBN has for it")
    return encoded.ljust(width, b"\0")
