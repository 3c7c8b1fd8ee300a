"""The compiled LIBSVM parser: one pass over the bytes. `reference.py` says the same slowly.

Numbers are rounded correctly. Where digits and power of ten are exact in double precision, one
floating-point operation does it; otherwise 128-bit integer arithmetic, which settles nearly all
others of up to 18 digits. What remains ("hard" numbers: more digits, near the ends of the range)
is only located here; the caller converts it with Python's own routine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from mast.data.faults import (
    BAD_FEATURE,
    BAD_LABEL,
    BAD_VALUE,
    DUPLICATE,
    INDEX_BEYOND,
    INDEX_TOO_LARGE,
    INDEX_ZERO,
    MAX_INDEX,
    MAX_INDEX_DIGITS,
    MAX_NUMBER_LENGTH,
    NOT_ASCENDING,
    OK,
    TOO_LONG,
)

_EXACT, _HARD, _MALFORMED, _LONG = 0, 1, 2, 3
_POWERS = np.array([10.0**k for k in range(23)])  # 10^22 is the last power of ten that is exact
_EXACT_MANTISSA = 2**53
_MANTISSA_DIGITS = 18  # so many digits always fit into int64
_EXPONENT_CAP = 100_000  # beyond it every number is 0 or infinite; keeps the counter from overflowing

_TAB, _NEWLINE, _RETURN, _SPACE, _HASH = 9, 10, 13, 32, 35
_PLUS, _MINUS, _POINT, _ZERO, _COLON, _UPPER_E, _LOWER_E = 43, 45, 46, 48, 58, 69, 101


def _powers_of_five() -> Any:
    """The first 128 bits of 5^q for q = -342, ..., 308.

    They are cut off, except that 5^-1 to 5^-27 are rounded up: the products of these can be exact
    ties, and only so are they recognised.
    """
    rows = []
    for q in range(-_LEAST_POWER, _LARGEST_POWER + 1):
        power = 5 ** abs(q)
        if q < 0:
            bits = power.bit_length()
            power = 2 ** (bits + 127 if q >= -27 else 2 * bits + 128) // power + 1
        shift = power.bit_length() - 128
        power = power >> shift if shift >= 0 else power << -shift
        rows.append((power >> 64, power & (2**64 - 1)))
    return np.array(rows, dtype=np.uint64)


_LEAST_POWER, _LARGEST_POWER = 342, 308  # beyond these every number of 19 digits is 0 or infinite
_FIVES = _powers_of_five()
_U1, _U2, _U3, _U9, _U32, _U63 = (np.uint64(k) for k in (1, 2, 3, 9, 32, 63))
_LOW_HALF = np.uint64(2**32 - 1)
_ALL_ONES = np.uint64(2**64 - 1)
_NINE_ONES = np.uint64(2**9 - 1)  # the bits of a 64-bit product beyond the 55 that rounding looks at
_HIDDEN_BIT = np.uint64(2**52)


@njit(cache=True, nogil=True)
def count(text: Any) -> Any:
    """Upper bounds of the number of rows and of stored values."""
    lines, colons = 1, 0
    for character in text:
        lines += character == _NEWLINE
        colons += character == _COLON
    return lines, colons


@njit(inline="always")
def _is_end(text: Any, at: Any) -> Any:
    """Whether a token ends before byte `at`."""
    if at >= text.size:
        return True
    c = text[at]
    return c in (_SPACE, _NEWLINE, _TAB, _RETURN, _HASH)


@njit(cache=True, nogil=True)
def _product(x: Any, y: Any) -> Any:
    """The high and the low 64 bits of a product of two 64-bit integers."""
    x1, x0 = x >> _U32, x & _LOW_HALF
    y1, y0 = y >> _U32, y & _LOW_HALF
    middle = x1 * y0 + (x0 * y0 >> _U32)
    carry = x0 * y1 + (middle & _LOW_HALF)
    return x1 * y1 + (middle >> _U32) + (carry >> _U32), x * y


@njit(cache=True, nogil=True)
def _nearest(digits: Any, q: Any) -> Any:
    """The bits of the double nearest to digits * 10^q, or (False, 0) where this method cannot tell.

    The method of Eisel and Lemire (D. Lemire, "Number parsing at a gigabyte per second", 2021):
    `digits`, shifted to the top of 64 bits, times the first 64 bits of 5^q decides the rounding
    unless the bits below it are all ones; then the next 64 bits of 5^q are taken in too.
    """
    undecided = False, np.uint64(0)
    if q < -_LEAST_POWER or q > _LARGEST_POWER:
        return undecided
    shift = 0
    w = digits
    while w >> _U63 == 0:
        w <<= _U1
        shift += 1
    high, low = _product(w, _FIVES[q + _LEAST_POWER, 0])
    if high & _NINE_ONES == _NINE_ONES:
        more, _ = _product(w, _FIVES[q + _LEAST_POWER, 1])
        low += more
        if low < more:
            high += _U1
        if low == _ALL_ONES and not -27 <= q <= 55:
            return undecided
    top = high >> _U63
    mantissa = high >> (top + _U9)  # 54 bits: one more than a double has
    exponent = ((217706 * q) >> 16) + 63 + np.int64(top) - shift + 1023  # 217706 / 2^16 is log2(10)
    if exponent <= 0 or exponent >= 2046:  # subnormal or too large, or close to it
        return undecided
    halfway = low <= _U1 and -4 <= q <= 23 and mantissa & _U3 == _U1 and mantissa << (top + _U9) == high
    if halfway:  # exactly between two doubles: to the even one
        mantissa &= ~_U1
    mantissa += mantissa & _U1
    mantissa >>= _U1
    if mantissa >= _HIDDEN_BIT << _U1:
        mantissa = _HIDDEN_BIT
        exponent += 1
    return True, (mantissa & ~_HIDDEN_BIT) | (np.uint64(exponent) << np.uint64(52))


@njit(cache=True, nogil=True, error_model="numpy")
def _number(text: Any, start: Any) -> Any:
    """Read ``[sign] digits [. digits] [e [sign] digits]``: (kind, byte after it, value if exact)."""
    size = text.size
    at = start
    negative = False
    if at < size and text[at] in (_PLUS, _MINUS):
        negative = text[at] == _MINUS
        at += 1
    mantissa = np.int64(0)
    significant, exponent, digits = 0, 0, 0
    point = False
    while at < size:
        digit = np.int64(text[at]) - _ZERO
        if 0 <= digit <= 9:
            digits += 1
            if significant > 0 or digit > 0:
                significant += 1
            if significant <= _MANTISSA_DIGITS:
                mantissa = mantissa * 10 + digit
            exponent -= point
        elif text[at] == _POINT and not point:
            point = True
        else:
            break
        at += 1
    if digits == 0:
        return _MALFORMED, at, 0.0
    if at < size and text[at] in (_LOWER_E, _UPPER_E):
        at += 1
        down = False
        if at < size and text[at] in (_PLUS, _MINUS):
            down = text[at] == _MINUS
            at += 1
        power, power_digits = np.int64(0), 0
        while at < size and 0 <= np.int64(text[at]) - _ZERO <= 9:
            if power < _EXPONENT_CAP:
                power = power * 10 + np.int64(text[at]) - _ZERO
            power_digits += 1
            at += 1
        if power_digits == 0:
            return _MALFORMED, at, 0.0
        exponent += -power if down else power  # type: ignore[assignment]
    if not _is_end(text, at):
        return _MALFORMED, at, 0.0
    if at - start > MAX_NUMBER_LENGTH:
        return _LONG, at, 0.0
    if significant > _MANTISSA_DIGITS:
        return _HARD, at, 0.0
    value = np.float64(mantissa)
    if mantissa <= _EXACT_MANTISSA and 0 <= exponent <= 22:
        value *= _POWERS[exponent]
    elif mantissa <= _EXACT_MANTISSA and -22 <= exponent < 0:
        value /= _POWERS[-exponent]
    elif mantissa != 0:
        decided, bits = _nearest(np.uint64(mantissa), exponent)
        if not decided:
            return _HARD, at, 0.0
        value = np.uint64(bits).view(np.float64)
    return _EXACT, at, -value if negative else value


@njit(cache=True, nogil=True, error_model="numpy")
def parse(
    text: Any,
    first: Any,
    limit: Any,
    labels: Any,
    indptr: Any,
    indices: Any,
    data: Any,
    row_lines: Any,
    hard_starts: Any,
    hard_slots: Any,
) -> Any:
    """Fill the arrays from the text, stopping at the first fault.

    `first` is the smallest index (1, or 0), `limit` the largest allowed. A hard number at byte
    ``hard_starts[k]`` belongs to ``data[s]`` where ``s = hard_slots[k]``, or to ``labels[-1 - s]``
    for negative s. Returns (fault code, fault line,
    fault byte, rows, values, hard numbers, largest column + 1).
    """
    size = text.size
    at, line, rows, values, hard, width = 0, 1, 0, 0, 0, 0
    indptr[0] = 0
    while at < size:
        c = text[at]
        if c in (_SPACE, _TAB, _RETURN):
            at += 1
            continue
        if c == _NEWLINE:
            line += 1
            at += 1
            continue
        if c == _HASH:
            while at < size and text[at] != _NEWLINE:
                at += 1
            continue

        kind, end, value = _number(text, at)
        if kind == _MALFORMED:
            return BAD_LABEL, line, at, rows, values, hard, width
        if kind == _LONG:
            return TOO_LONG, line, at, rows, values, hard, width
        if kind == _HARD:
            hard_starts[hard] = at
            hard_slots[hard] = -1 - rows
            hard += 1
        labels[rows] = value
        at = end

        previous = first - 1
        while True:
            while at < size and text[at] in (_SPACE, _TAB, _RETURN):
                at += 1
            if at >= size or text[at] == _NEWLINE:
                break
            if text[at] == _HASH:
                while at < size and text[at] != _NEWLINE:
                    at += 1
                break

            token = at
            index = np.int64(0)
            while at < size and 0 <= np.int64(text[at]) - _ZERO <= 9:
                if index <= MAX_INDEX:
                    index = index * 10 + np.int64(text[at]) - _ZERO
                at += 1
            if at == token or at >= size or text[at] != _COLON:
                return BAD_FEATURE, line, token, rows, values, hard, width
            if index > MAX_INDEX or at - token > MAX_INDEX_DIGITS:
                return INDEX_TOO_LARGE, line, token, rows, values, hard, width
            if index < first:
                return INDEX_ZERO, line, token, rows, values, hard, width
            if index > limit:
                return INDEX_BEYOND, line, token, rows, values, hard, width
            if index == previous:
                return DUPLICATE, line, token, rows, values, hard, width
            if index < previous:
                return NOT_ASCENDING, line, token, rows, values, hard, width
            previous = index

            kind, end, value = _number(text, at + 1)
            if kind == _MALFORMED:
                return BAD_VALUE, line, token, rows, values, hard, width
            if kind == _LONG:
                return TOO_LONG, line, token, rows, values, hard, width
            if kind == _HARD:
                hard_starts[hard] = at + 1
                hard_slots[hard] = values
                hard += 1
            indices[values] = index - first
            data[values] = value
            values += 1
            at = end

        width = max(width, previous - first + 1)
        row_lines[rows] = line
        rows += 1
        indptr[rows] = values
    return OK, line, at, rows, values, hard, width


@njit(cache=True, nogil=True)
def gather(text: Any, starts: Any, out: Any) -> Any:
    """Copy the tokens at `starts` into `out`, a space after each; returns the length.

    With an empty `out` nothing is copied and only the length is found.
    """
    length = 0
    for start in starts:
        at = start
        while not _is_end(text, at):
            if out.size > 0:
                out[length] = text[at]
            length += 1
            at += 1
        if out.size > 0:
            out[length] = _SPACE
        length += 1
    return length
