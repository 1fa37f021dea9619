"""Mutations of bytes, of lines and cells of text, and the compressed forms of a file. Each draws from the generator that it is given."""

import gzip

import numpy as np
import zstandard

BOMB_BYTES = 96 << 20
"""What a bomb of some kilobytes unpacks to: larger than what a reader may hold, small enough to be walked through."""

GARBAGE = (
    b"\xff\xff\xff\xff", b"\x00" * 8, b"\x7f" * 3, b",", b"\n", b'"', b"\r", b"\r\n", b"-", b"9" * 25, b"\x28\xb5\x2f\xfd", b"\x1f\x8b",
    b"DBN\x03", b"DBZ", b"PAR1", b"ARROW1\0\0", b"\xc3\x28", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xff\xfe", b"\xff\xff\xff\x7f",
    b"\x00\x00\x00\x80", b"\xff" * 8, b"\xfe" + b"\xff" * 6 + b"\x7f", b"\x1a", b"\x0b", b"\xe2\x80\xa8",
)  # fmt: skip

CELLS = (
    "", " ", "\t", "\0", "-", "+", ".", "NaN", "inf", "-inf", "null", "1e308", "1e-308", "-1e-400", "1e9999", "1e99999", "0", "-0", "00",
    "1", "-1", "0.0000000001", "0.1", "4800.25", "4800250000000", "9223372036854775807", "-9223372036854775808", "9223372036854775808",
    "9223372036.854775807", "9223372036.854775808", "-9223372036.854775809", "18446744073709551615", "18446744073709551616", "4294967295",
    "4294967296", "65535", "65536", "255", "256", "128", "-128", "2147483647", "-2147483649", "0x10", "1_000", "\uff11\uff12",
    "٣", "²", "1.5.2",
    "--1", "+-1", '"', '""', '"a', 'a"b', '"1,2"', "1,2", "1;2", "A", "é", "\u65e5\u672c", "\u2028", "\x1b[31m", "0000-00-00",
    "1969-12-31T23:59:59Z",
    "1970-01-01", "1970-01-01T00:00:00Z", "2261-12-31T23:59:59Z", "2262-04-11T23:47:16.854775807Z", "2262-04-12", "9999-12-31T23:59:60Z",
    "2024-02-30", "2023-03-12 02:30", "2023-11-05 01:30", "2023-11-05 01:30:00", "2024-03-05T14:30:00+14:00", "2024-03-05T14:30:00-99:99",
    "2024-03-05T24:00:00Z", "03/05/2024 14:30", "20240305", "202403051430", "1709649000", "1709649000000", "1709649000000000",
    "1709649000000000000", "9999999999999999999", "0000000000000000001", "T", "Z", "UTC", "b'x'", "=cmd()", "%s", "../../etc/passwd",
    "x" * 300, "9" * 400, "9" * 5000, "0" * 70000, "x" * 70000,
)  # fmt: skip

NAMES = (
    "", " ", ".", "..", "/", "../../x", "A/B", "a\nb", "\r", "\x1b[31mred", "é" * 10, "x" * 70, "é" * 40, "%2F", "a=b", "=",
    "*", "?", "[a]",
    "'", '"', "'; drop table x; --", "ESH4", "ES", "ESZ9", "ES.c.0", "ESH4 ", "esh4", "UD:1V: VT 2821913", "__quality",
    "\u2028", "~", "-", "\x7f",
)  # fmt: skip


def pick(rng: np.random.Generator, choices):
    """One of a sequence."""
    return choices[int(rng.integers(len(choices)))]


def bytes_changed(data: bytes, rng: np.random.Generator) -> bytes:
    """One flipped bit, or up to four flips, cuts, insertions, repeats, swaps and extremes; half near the start, where the counts are."""
    changed = bytearray(data)
    if len(changed) == 0 or rng.random() < 0.3:
        if changed:
            changed[rng.integers(0, len(changed))] ^= 1 << int(rng.integers(0, 8))
        return bytes(changed)
    for _ in range(rng.integers(1, 5)):
        at = int(rng.integers(0, len(changed) + 1 if rng.random() < 0.5 else min(len(changed), 400) + 1))
        size = int(rng.integers(1, 2 + len(changed) // int(pick(rng, (2, 8, 64)))))
        match rng.integers(0, 9):
            case 0:
                changed[at : at + 1] = bytes([int(rng.integers(0, 256))])
            case 1:
                changed = changed[:at]
            case 2:
                del changed[at : at + size]
            case 3:
                changed[at:at] = pick(rng, GARBAGE)
            case 4:
                chosen = pick(rng, GARBAGE)
                changed[at : at + len(chosen)] = chosen
            case 5:
                changed[at:at] = changed[at : at + size]
            case 6:
                other = int(rng.integers(0, len(changed) + 1))
                changed[at : at + size], changed[other : other + size] = changed[other : other + size], changed[at : at + size]
            case 7:
                width = int(pick(rng, (1, 2, 4, 8)))
                limits = (0, 1, 2 ** (8 * width - 1) - 1, 2 ** (8 * width - 1), 2 ** (8 * width) - 1, len(changed))
                changed[at : at + width] = (pick(rng, limits) % 2 ** (8 * width)).to_bytes(width, "little")
            case _:
                changed[at:] = rng.integers(0, 256, int(rng.integers(0, 64)), np.uint8).tobytes()
    return bytes(changed)


def text_changed(text: bytes, rng: np.random.Generator, delimiter: bytes = b",") -> bytes:
    """Lines and cells of a table: replaced, emptied, doubled, taken out, swapped, of another delimiter, line end, width or encoding."""
    lines = text.split(b"\n")
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(0, len(lines)))
        match rng.integers(0, 14):
            case 0 | 1 | 2 | 3:
                cells = lines[at].split(delimiter)
                cells[int(rng.integers(0, len(cells)))] = pick(rng, CELLS).encode()
                lines[at] = delimiter.join(cells)
            case 4:
                lines.insert(at, lines[at])
            case 5:
                del lines[at : at + int(rng.integers(1, 4))]
                lines = lines or [b""]
            case 6:
                other = int(rng.integers(0, len(lines)))
                lines[at], lines[other] = lines[other], lines[at]
            case 7:
                cells = lines[at].split(delimiter)
                cells.insert(int(rng.integers(0, len(cells) + 1)), pick(rng, CELLS).encode())
                lines[at] = delimiter.join(cells)
            case 8:
                cells = lines[at].split(delimiter)
                del cells[int(rng.integers(0, len(cells)))]
                lines[at] = delimiter.join(cells)
            case 9:  # a column emptied, repeated or of one value, in every line
                column, value = int(rng.integers(0, 8)), pick(rng, CELLS[:90]).encode()
                for i in range(int(rng.integers(0, 2)), len(lines)):
                    cells = lines[i].split(delimiter)
                    if column < len(cells):
                        cells[column] = value
                        lines[i] = delimiter.join(cells)
            case 10:
                other_mark = pick(rng, (b";", b"\t", b"|", b" ", b",", b":", b"\0"))
                lines = [line.replace(delimiter, other_mark) if rng.random() < 0.9 else line for line in lines]
                delimiter = other_mark
            case 11:
                ends = pick(rng, ((b"\r", b""), (b"\r",), (b"\r\r", b""), (b" ",), (delimiter,)))
                lines = [line + pick(rng, ends) for line in lines]
            case 12:
                lines[at] = bytes_changed(lines[at], rng)
            case _:
                lines[at:at] = [pick(rng, (b"", b" ", b"#", b"\xef\xbb\xbf", b"sep=;", b"\0", b"x" * 66_000))] * int(pick(rng, (1, 2, 50)))
    return pick(rng, (b"\n",) * 8 + (b"\r\n", b"\r")).join(lines)


def packed(data: bytes, rng: np.random.Generator) -> bytes:
    """The bytes as they are, or compressed in one of the ways that a reader meets."""
    match rng.integers(0, 10):
        case 0 | 1:
            return zstandard.ZstdCompressor(level=1, write_checksum=bool(rng.integers(2))).compress(data)
        case 2:  # two frames, a skippable one between, the content's size not stated
            half = len(data) // 2
            compressor = zstandard.ZstdCompressor(level=1, write_content_size=False)
            return compressor.compress(data[:half]) + b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + compressor.compress(data[half:])
        case 3:
            return gzip.compress(data, 1, mtime=0)
        case 4:
            half = len(data) // 2
            return gzip.compress(data[:half], 1, mtime=0) + gzip.compress(data[half:], 1, mtime=0)
        case _:
            return data


def bomb(start: bytes, rng: np.random.Generator) -> bytes:
    """Some kilobytes that unpack to `start` and then BOMB_BYTES of one byte or one short line."""
    unit = pick(rng, (b"\0", b"\n", b" ", b"x", b",", b"9", b'"', b"1,2,3\n", b"\xff", b"\r\n"))
    block = unit * ((1 << 20) // len(unit))
    if rng.random() < 0.5:
        packer = zstandard.ZstdCompressor(level=1, write_content_size=False).compressobj()
        return packer.compress(start) + b"".join(packer.compress(block) for _ in range(BOMB_BYTES >> 20)) + packer.flush()
    return gzip.compress(start, 1, mtime=0) + gzip.compress(block, 1, mtime=0) * (BOMB_BYTES >> 20)
