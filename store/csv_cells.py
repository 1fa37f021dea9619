"""The cells of a CSV, as bytes, to exact integers: prices in 1e-9, whole numbers, nanoseconds, single characters, places of text.

One compiled function walks a block of lines. Nothing passes through a float: `4365.25` becomes 4365250000000 digit by digit, and what is
finer than 1e-9 or larger than 64 bits is a fault. The scalar functions return (value, code); code 0 is success.
"""

import numpy as np

from lob.jit import kernel_cpu, scalar

SKIP, PRICE, WHOLE, CHAR, TEXT, MOMENT, DATE, CLOCK = range(8)
"""What a column holds. MOMENT is a date with an optional clock and zone, or a whole number of `unit_ns` since 1970."""

YEAR_FIRST, MONTH_FIRST, DAY_FIRST = range(3)
"""How a date with separators is written."""

UNDEFINED_TIME = -1
"""2^64 - 1, DBN's undefined time, as the int64 of the same bits."""

OK, EMPTY, NOT_A_NUMBER, TOO_FINE, TOO_LARGE, NOT_A_CHAR, NOT_A_TIME, WRONG_COUNT, BAD_QUOTE, OUT_OF_RANGE, TOO_LONG, NO_SUCH_DATE = range(
    12
)
REASONS = {
    EMPTY: "is empty",
    NOT_A_NUMBER: "is not a number",
    TOO_FINE: "is finer than the column can hold (prices have nine decimals, counts none)",
    TOO_LARGE: "is too large for 64 bits",
    NOT_A_CHAR: "is not a single character",
    NOT_A_TIME: "is not a time of the file's form",
    BAD_QUOTE: "has a quotation mark that does not close the cell",
    OUT_OF_RANGE: "is outside the column's range",
    TOO_LONG: "is longer than 65,535 bytes",
    NO_SUCH_DATE: "is not a date or time of day that exists between 1970 and 2261",
}

_MAX = 2**63 - 1
_DAY_NS = 86_400 * 10**9
_UNDEFINED_HIGH, _UNDEFINED_LOW = divmod(2**64 - 1, 10**10)
_MINUS, _PLUS, _POINT, _COLON, _SPACE, _TAB, _QUOTE = 45, 43, 46, 58, 32, 9, 34
_NEWLINE, _RETURN, _SLASH, _UPPER_T, _UPPER_Z, _LOWER_E, _UPPER_E = 10, 13, 47, 84, 90, 101, 69


@scalar
def parse_decimal(data, start, end, scale):
    """(decimal text of data[start:end] times 10^scale as int64, code): sign, point and exponent are read, trailing zeros do not count."""
    i = start
    negative = False
    if i < end and (data[i] == _MINUS or data[i] == _PLUS):
        negative = data[i] == _MINUS
        i += 1
    value, pending, fraction, digits = 0, 0, 0, 0
    after_point = False
    while i < end:
        c = int(data[i])
        if c == _POINT and not after_point:
            after_point = True
        elif 48 <= c <= 57:
            digits += 1
            if after_point:
                fraction += 1
            if c == 48:
                if value != 0:
                    pending += 1
            else:
                # Zeros are only multiplied in once a digit follows: 1.10000000000000000000 is not too large.
                while pending >= 0:
                    if value > _MAX // 10:
                        return 0, (TOO_FINE if fraction > scale else TOO_LARGE)
                    value *= 10
                    pending -= 1
                pending = 0
                if value > _MAX - (c - 48):
                    return 0, (TOO_FINE if fraction > scale else TOO_LARGE)
                value += c - 48
        else:
            break
        i += 1
    if digits == 0:
        return 0, NOT_A_NUMBER
    exponent = 0
    if i < end and (data[i] == _LOWER_E or data[i] == _UPPER_E):
        i += 1
        down = False
        if i < end and (data[i] == _MINUS or data[i] == _PLUS):
            down = data[i] == _MINUS
            i += 1
        if i == end or end - i > 4:
            return 0, NOT_A_NUMBER
        while i < end:
            c = int(data[i])
            if c < 48 or c > 57:
                return 0, NOT_A_NUMBER
            exponent = exponent * 10 + c - 48
            i += 1
        if down:
            exponent = -exponent
    if i != end:
        return 0, NOT_A_NUMBER
    if value == 0:
        return 0, OK
    shift = scale + exponent + pending - fraction
    if shift < 0:
        return 0, TOO_FINE
    while shift > 0:
        if value > _MAX // 10:
            return 0, TOO_LARGE
        value *= 10
        shift -= 1
    return (-value if negative else value), OK


@scalar
def _digits(data, start, end, most):
    """(number, end) of the run of at most `most` decimal digits at `start`; the end is `start` when there is none."""
    value, i = 0, start
    while i < end and i - start < most:
        c = int(data[i])
        if c < 48 or c > 57:
            break
        value = value * 10 + c - 48
        i += 1
    return value, i


@scalar
def days_since_1970(year, month, day):
    """Days from 1970-01-01 to a Gregorian date, or -1 when there is no such date from 1970 to 2261."""
    if year < 1970 or year > 2261 or month < 1 or month > 12 or day < 1:
        return -1
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    longest = 31
    if month == 2:
        longest = 29 if leap else 28
    elif month == 4 or month == 6 or month == 9 or month == 11:
        longest = 30
    if day > longest:
        return -1
    # Hinnant, "chrono-compatible low-level date algorithms": years that begin in March put the leap day last.
    y = year - 1 if month <= 2 else year
    era = y // 400
    of_era = y - era * 400
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@scalar
def _parse_date(data, start, end, order):
    """(days since 1970, end of the date, code) of `2023-09-24`, `2023/9/24`, `2023.09.24`, `20230924` or, by `order`, `09/24/2023`."""
    first, i = _digits(data, start, end, 8)
    if i - start == 8:
        year, month, day = first // 10000, first // 100 % 100, first % 100
    else:
        if i == start or i == end:  # noqa: SIM109  (numba)
            return 0, i, NOT_A_TIME
        separator = int(data[i])
        if separator != _MINUS and separator != _SLASH and separator != _POINT:
            return 0, i, NOT_A_TIME
        second, j = _digits(data, i + 1, end, 2)
        if j == i + 1 or j == end or data[j] != separator:
            return 0, i, NOT_A_TIME
        third, k = _digits(data, j + 1, end, 4)
        year_width = i - start if order == YEAR_FIRST else k - j - 1
        if k == j + 1 or year_width != 4:
            return 0, i, NOT_A_TIME
        i = k
        if order == YEAR_FIRST:
            year, month, day = first, second, third
        elif order == MONTH_FIRST:
            year, month, day = third, first, second
        else:
            year, month, day = third, second, first
    days = days_since_1970(year, month, day)
    return days, i, (OK if days >= 0 else NO_SUCH_DATE)


@scalar
def _parse_clock(data, start, end):
    """(ns since midnight, end of the clock, code) of `18:00`, `18:00:00`, `18:00:00.123456789`, `1800` or `180000`."""
    hour, i = _digits(data, start, end, 6)
    width = i - start
    minute, second, fraction = 0, 0, 0
    if width == 6:
        hour, minute, second = hour // 10000, hour // 100 % 100, hour % 100
    elif width == 4:
        hour, minute = hour // 100, hour % 100
    elif width == 1 or width == 2:
        if i == end or data[i] != _COLON:
            return 0, i, NOT_A_TIME
        minute, j = _digits(data, i + 1, end, 2)
        if j - i != 3:
            return 0, i, NOT_A_TIME
        i = j
        if i < end and data[i] == _COLON:
            second, j = _digits(data, i + 1, end, 2)
            if j - i != 3:
                return 0, i, NOT_A_TIME
            i = j
    else:
        return 0, i, NOT_A_TIME
    if i < end and data[i] == _POINT:
        fraction, j = _digits(data, i + 1, end, 9)
        if j == i + 1:
            return 0, i, NOT_A_TIME
        for _ in range(9 - (j - i - 1)):
            fraction *= 10
        while j < end and data[j] == 48:
            j += 1
        i = j
    if hour > 23 or minute > 59 or second > 59:
        return 0, i, NO_SUCH_DATE
    return (hour * 3600 + minute * 60 + second) * 10**9 + fraction, i, OK


@scalar
def parse_moment(data, start, end, order):
    """(ns since 1970, whether a zone was named, code): UTC when one was (`Z`, `UTC`, `+00:00`, `-0500`), else local time."""
    days, i, code = _parse_date(data, start, end, order)
    if code != OK:
        return 0, False, code
    ns = days * _DAY_NS
    if i == end:
        return ns, False, OK
    if data[i] != _UPPER_T and data[i] != _SPACE:
        return 0, False, NOT_A_TIME
    while i < end and (data[i] == _UPPER_T or data[i] == _SPACE):
        i += 1
    clock, i, code = _parse_clock(data, i, end)
    if code != OK:
        return 0, False, code
    ns += clock
    while i < end and data[i] == _SPACE:
        i += 1
    if i == end:
        return ns, False, OK
    if data[i] == _UPPER_Z and i + 1 == end:
        return ns, True, OK
    if i + 3 == end and data[i] == 85 and data[i + 1] == 84 and data[i + 2] == 67:
        return ns, True, OK
    if data[i] != _PLUS and data[i] != _MINUS:
        return 0, False, NOT_A_TIME
    west = data[i] == _MINUS
    hours, j = _digits(data, i + 1, end, 2)
    if j - i != 3:
        return 0, False, NOT_A_TIME
    minutes = 0
    if j < end:
        if data[j] == _COLON:
            j += 1
        minutes, k = _digits(data, j, end, 2)
        if k - j != 2 or k != end:
            return 0, False, NOT_A_TIME
    if hours > 23 or minutes > 59:
        return 0, False, NO_SUCH_DATE
    offset = (hours * 60 + minutes) * 60 * 10**9
    ns = ns + offset if west else ns - offset
    if ns < 0:
        return 0, False, NO_SUCH_DATE
    return ns, True, OK


@scalar
def _parse_epoch(data, start, end, unit_ns):
    """(ns, code) of a whole number of `unit_ns` since 1970; 18446744073709551615 is DBN's undefined time."""
    if end - start == 20:
        high, i = _digits(data, start, start + 10, 10)
        low, j = _digits(data, start + 10, end, 10)
        if i != start + 10 or j != end:
            return 0, NOT_A_TIME
        if high == _UNDEFINED_HIGH and low == _UNDEFINED_LOW:
            return UNDEFINED_TIME, OK
        return 0, TOO_LARGE
    value, i = _digits(data, start, end, 19)
    if i != end or i == start or value < 0:
        return 0, NOT_A_TIME
    if value > _MAX // unit_ns:
        return 0, TOO_LARGE
    return value * unit_ns, OK


@scalar
def _parse_cell(data, start, end, kind, order, unit_ns, low, high):
    """(value, whether a zone was named, code) of one cell that is not empty."""
    if kind == PRICE:
        value, code = parse_decimal(data, start, end, 9)
        return value, False, code
    if kind == WHOLE:
        value, code = parse_decimal(data, start, end, 0)
        if code == OK and (value < low or value > high):
            code = OUT_OF_RANGE
        return value, False, code
    if kind == CHAR:
        return int(data[start]), False, (OK if end - start == 1 else NOT_A_CHAR)
    if kind == TEXT:
        return start * 65536 + (end - start), False, (OK if end - start < 65536 else TOO_LONG)
    if kind == MOMENT:
        if unit_ns > 0:
            value, code = _parse_epoch(data, start, end, unit_ns)
            return value, True, code
        return parse_moment(data, start, end, order)
    if kind == DATE:
        days, i, code = _parse_date(data, start, end, order)
        return days * _DAY_NS, False, (NOT_A_TIME if code == OK and i != end else code)
    ns, i, code = _parse_clock(data, start, end)
    return ns, False, (NOT_A_TIME if code == OK and i != end else code)


@kernel_cpu
def parse_lines(data, begin, end, delimiter, order, columns, values, zoned, lines, line, fault):
    """Parses whole lines of data[begin:end] (uint8) until `values` is full, a fault, or no whole line is left.

    `columns` int64[C, 6] has one row a column: kind, unit_ns, lowest, highest, whether it may be empty, the value then. Results go to
    `values` int64[N, C], `zoned` bool[N] (a MOMENT named its zone) and `lines` int64[N] (1-based; `line` is the number of the first).
    Returns (rows, where the next line begins, its number). A fault fills `fault` int64[5]: code, line, column, start and end of the cell
    (of the line and the number of cells found, for a wrong count).
    """
    row, at = 0, begin
    room, width = values.shape
    while row < room:
        stop = at
        while stop < end and data[stop] != _NEWLINE:
            stop += 1
        if stop == end:
            break
        last = stop
        if last > at and data[last - 1] == _RETURN:
            last -= 1
        first = at
        while first < last and (data[first] == _SPACE or data[first] == _TAB) and data[first] != delimiter:
            first += 1
        if first == last:
            at, line = stop + 1, line + 1
            continue
        cell, column = at, 0
        zoned[row] = False
        more = True
        while more:
            a = cell
            while a < last and (data[a] == _SPACE or data[a] == _TAB) and data[a] != delimiter:
                a += 1
            if a < last and data[a] == _QUOTE:
                a += 1
                b = a
                while b < last and data[b] != _QUOTE:
                    b += 1
                cell = b + 1
                while cell < last and (data[cell] == _SPACE or data[cell] == _TAB) and data[cell] != delimiter:
                    cell += 1
                if b == last or (cell < last and data[cell] != delimiter):
                    fault[0], fault[1], fault[2], fault[3], fault[4] = BAD_QUOTE, line, column, a - 1, min(cell + 1, last)
                    return row, at, line
            else:
                b = a
                while b < last and data[b] != delimiter:
                    b += 1
                cell = b
                while b > a and (data[b - 1] == _SPACE or data[b - 1] == _TAB):
                    b -= 1
            more = cell < last
            cell += 1
            if column < width and columns[column, 0] != SKIP:
                if a == b:
                    value, named, code = columns[column, 5], False, (OK if columns[column, 4] != 0 else EMPTY)
                else:
                    value, named, code = _parse_cell(
                        data, a, b, columns[column, 0], order, columns[column, 1], columns[column, 2], columns[column, 3]
                    )
                if code != OK and fault[0] == OK:
                    fault[0], fault[1], fault[2], fault[3], fault[4] = code, line, column, a, b
                values[row, column] = value
                if named:
                    zoned[row] = True
            column += 1
        # A delimiter too many shifts the cells after it: the count is what is wrong then, not the cell that no longer fits.
        if column != width:
            fault[0], fault[1], fault[2], fault[3], fault[4] = WRONG_COUNT, line, column, at, last
        if fault[0] != OK:
            return row, at, line
        lines[row] = line
        row += 1
        at, line = stop + 1, line + 1
    return row, at, line


def empty_fault() -> np.ndarray:
    """A fresh `fault` array: code OK."""
    return np.zeros(5, np.int64)
