"""What kind of file is this: told from its first bytes, never from its name."""

import re

from lob.errors import BadInput
from store.dbn_metadata import MAGIC
from store.streams import Stream

_RTYPES = {
    0x00: "trades", 0x01: "mbp-1", 0x0A: "mbp-10", 0x11: "ohlcv (old)", 0x12: "status", 0x13: "definition", 0x14: "imbalance",
    0x15: "error", 0x16: "symbol-mapping", 0x17: "system", 0x18: "statistics", 0x20: "ohlcv-1s", 0x21: "ohlcv-1m", 0x22: "ohlcv-1h",
    0x23: "ohlcv-1d", 0x24: "ohlcv-eod", 0xA0: "mbo", 0xB1: "cmbp-1", 0xC0: "cbbo-1s", 0xC1: "cbbo-1m", 0xC2: "tcbbo",
    0xC3: "bbo-1s", 0xC4: "bbo-1m",
}  # fmt: skip
_LOBSTER_ROW = re.compile(rb"\d{1,5}(\.\d{1,9})?[,;][1-7][,;]\d+[,;]\d+[,;]-?\d+[,;](-1|1)([,;].*)?")
FORMATS = ("dbn", "csv-databento", "csv-ohlcv")
"""The kinds that can be read."""


def rtype_name(rtype: int) -> str:
    """The schema that a DBN record type belongs to, with the number when nobody knows it."""
    return _RTYPES.get(rtype, f"unknown ({rtype:#04x})")


def kind_of(head: bytes) -> str:
    """One of FORMATS, or "empty", "dbz", "dbn-fragment", "parquet", "lobster", "utf-16", "binary", of the first (decompressed) bytes."""
    if not head:
        return "empty"
    if head[:3] == MAGIC:
        return "dbn"
    if head[:3] == b"DBZ" or (head[1:4] == b"\x2a\x4d\x18" and head[8:11] == b"DBZ"):
        return "dbz"
    if head[:4] == b"PAR1":
        return "parquet"
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    if _is_text(head):
        first = head.removeprefix(b"\xef\xbb\xbf").splitlines()[0] if head.strip() else b""
        if _is_databento_header(first):
            return "csv-databento"
        return "lobster" if _LOBSTER_ROW.fullmatch(first.strip()) else "csv-ohlcv"
    return "dbn-fragment" if _is_chain_of_records(head) else "binary"


def _is_databento_header(line: bytes) -> bool:
    """Whether the first line names the columns of Databento's records, but not of its bars."""
    names = {name.strip(b' "') for name in re.split(rb"[,;\t|]", line.lower())}
    return b"bid_px_00" in names or ({b"ts_event", b"rtype"} <= names and b"open" not in names)


def _is_text(head: bytes) -> bool:
    if any(byte < 9 or 13 < byte < 32 for byte in set(head)):
        return False
    try:
        # The head may end inside a character of up to four bytes.
        head[: len(head) - 3 if len(head) > 64 else None].decode("utf-8", "strict")
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return True


def _is_chain_of_records(head: bytes) -> bool:
    """Whether the first four records (or all, in a shorter file) have a possible length and a known type."""
    at = 0
    for _ in range(4):
        if at + 16 > len(head):
            return at == len(head) and at > 0
        if head[at] < 4 or head[at + 1] not in _RTYPES:
            return False
        at += head[at] * 4
    return True


_REFUSALS = {
    "empty": "the file is empty (0 bytes): fetch it again",
    "dbz": "a DBZ file, the format before DBN: convert it with a `dbn` tool that still reads DBZ, or fetch it again as DBN",
    "dbn-fragment": "DBN records without metadata (a fragment), so schema and symbols are unknown: fetch the whole file",
    "parquet": "a Parquet file: sources are DBN or CSV",
    "lobster": "looks like a LOBSTER message file, which goes in with its order book file: name that after it",
    "utf-16": "text in UTF-16: save it as UTF-8",
    "binary": "not a DBN file and not UTF-8 text: sources are DBN (plain or zstd) or CSV (plain, gzip or zstd)",
}


def refuse_unless_readable(stream: Stream) -> str:
    """The stream's kind, one of FORMATS. Raises BadInput with the remedy for every other kind."""
    kind = kind_of(stream.head)
    if kind not in FORMATS:
        raise BadInput(f"{stream.path}: {_REFUSALS[kind]}")
    return kind


def refuse_unless_dbn(stream: Stream) -> None:
    """Raises BadInput unless the stream is DBN."""
    if refuse_unless_readable(stream) != "dbn":
        raise BadInput(f"{stream.path}: text, not DBN: if it is a CSV, read it as one")


def refuse_unless_csv(stream: Stream) -> None:
    """Raises BadInput unless the stream is a CSV that can be read."""
    if refuse_unless_readable(stream) == "dbn":
        raise BadInput(f"{stream.path}: a DBN file, not a CSV")
