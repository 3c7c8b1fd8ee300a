"""What can be wrong with a line of LIBSVM text, and how that is said.

The compiled parser and its readable reference both stop at the first fault and
report it as a `Fault`; the sentence is made here, once, from the text itself.
"""

from __future__ import annotations

from typing import NamedTuple

OK = 0
BAD_LABEL = 1
BAD_FEATURE = 2
BAD_VALUE = 3
INDEX_ZERO = 4
INDEX_TOO_LARGE = 5
INDEX_BEYOND = 6
DUPLICATE = 7
NOT_ASCENDING = 8
TOO_LONG = 9
OVERFLOW = 10

MAX_INDEX = 2**31 - 1  # indices are int32: liblinear and many others accept nothing wider
MAX_INDEX_DIGITS = 20
MAX_NUMBER_LENGTH = 1000  # "%f" of the largest double has 317 characters

_BLANKS = b" \t\r\n"
_SHOWN = 40


class Fault(NamedTuple):
    """The first thing wrong with a text: what (one of the codes above), in which line, at which byte."""

    code: int
    line: int
    start: int


def describe(fault: Fault, text: bytes, n_features: int | None = None) -> str:
    r"""One sentence: the line, what was found there, and what would be right.

    >>> describe(Fault(BAD_VALUE, line=2, start=8), b"1 3:1\n1 4:one\n")
    "line 2: found '4:one', expected index:value such as 7:0.5"
    """
    token = _token(text, fault.start)
    return f"line {fault.line}: {_explain(fault.code, token, n_features)}{_suspicion(text, fault)}"


def _explain(code: int, token: bytes, n_features: int | None) -> str:
    found = _show(token)
    value = token.partition(b":")[2] if code != BAD_LABEL else token
    if code == BAD_LABEL:
        if _is_nan_or_infinity(value):
            return f"the label is {found}; NaN and infinity are refused"
        if b"," in token:
            return f"found {found}, expected one number as the label (several labels a row are not supported)"
        return f"found {found}, expected a number as the label"
    if code == BAD_FEATURE and token.startswith(b"qid:"):
        return f"found {found}; ranking data (qid:) is not supported"
    if code in (BAD_FEATURE, BAD_VALUE):
        if _is_nan_or_infinity(value):
            return f"found {found}; NaN and infinity are refused"
        return f"found {found}, expected index:value such as 7:0.5"
    if code == INDEX_ZERO:
        return f"found {found}, but indices start at 1; zero_based=True reads a file that counts from 0"
    if code == INDEX_TOO_LARGE:
        return f"found {found}, but an index is at most {MAX_INDEX}"
    if code == INDEX_BEYOND:
        return f"found {found}, but n_features={n_features}; leave n_features out or make it large enough"
    if code == DUPLICATE:
        return f"found {found}, but this index already stands in the line"
    if code == NOT_ASCENDING:
        return f"found {found} after a larger index; indices of a line must ascend"
    if code == TOO_LONG:
        return f"found {found}, a number of more than {MAX_NUMBER_LENGTH} characters"
    if code == OVERFLOW:
        return f"found {found}, a number too large for double precision (at most 1.8e308)"
    raise AssertionError(f"unknown fault code {code}")


def _token(text: bytes, start: int) -> bytes:
    """The characters from `start` to the next blank (all that is needed of them)."""
    window = text[start : start + MAX_NUMBER_LENGTH]
    ends = [at for blank in _BLANKS if (at := window.find(blank)) >= 0]
    return window[: min(ends, default=len(window))]


def _show(token: bytes) -> str:
    if not token:
        return "nothing"
    shown = token[:_SHOWN].decode("utf-8", errors="backslashreplace")
    return repr(shown) if len(token) <= _SHOWN else repr(shown) + "..."


def _is_nan_or_infinity(value: bytes) -> bool:
    return value.lower().lstrip(b"+-") in (b"nan", b"inf", b"infinity")


def _suspicion(text: bytes, fault: Fault) -> str:
    """A guess for files that were never LIBSVM text."""
    if fault.line > 1:
        return ""
    head = text[:1024]
    if b"\0" in head:
        return " (this looks like a binary file, not LIBSVM text)"
    if head.lstrip()[:1] == b"<":
        return " (this looks like a web page, not LIBSVM text)"
    return ""
