"""LIBSVM text to arrays and back: scikit-learn reads it, and where it fails the first bad line is named.

A line is a label and ascending index:value pairs; what follows "#" is a comment.
"""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mast.errors import ArgumentError, DataError
from mast.support.checks import checked_sparse, numbers
from mast.support.files import as_path, write

MAX_INDEX = 2**31 - 1  # indices are int32: liblinear and many others accept nothing wider
_SHOWN = 40

_FEATURE = re.compile(rb"([0-9]+):(.*)", re.DOTALL)
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_ACCEPTED = re.compile(rb"_|qid:|[+-][0-9]*:")  # by scikit-learn: 1_0 is 10, and qid:3 is skipped


class LabelledRows(NamedTuple):
    """The rows of a file: a CSR matrix with int32 indices, as wide as the largest index, and the labels."""

    A: Any
    labels: NDArray[np.float64]


def parse_libsvm(text: bytes, n_features: int | None = None, zero_based: bool = False) -> LabelledRows:
    r"""Read all rows, or raise a `DataError` that says what is wrong with the first bad line.

    >>> rows = parse_libsvm(b"+1 2:.5 3:25e-2\n-1 1:2\n")
    >>> rows.labels, rows.A.toarray()
    (array([ 1., -1.]), array([[0.  , 0.5 , 0.25],
           [2.  , 0.  , 0.  ]]))
    >>> parse_libsvm(b"1 3:1\n1 4:one\n")
    Traceback (most recent call last):
    mast.errors.DataError: line 2: found '4:one', expected index:value such as 7:0.5
    """
    import scipy.sparse
    from sklearn.datasets import load_svmlight_file

    try:
        A, labels = load_svmlight_file(io.BytesIO(text), n_features=n_features, zero_based=zero_based)
    except (ValueError, OverflowError) as error:
        _refuse_first_fault(text, n_features, zero_based)
        raise DataError(f"scikit-learn's reader refuses it: {error}") from None
    finite = np.isfinite(A.data).all() and np.isfinite(labels).all()
    if not finite or A.shape[1] > MAX_INDEX or _ACCEPTED.search(text):
        _refuse_first_fault(text, n_features, zero_based)
    width = A.shape[1] if A.nnz else n_features or 0  # without any feature it says 1
    integer = np.int32 if A.nnz <= MAX_INDEX else np.int64  # SciPy wants one type for both, liblinear int32
    parts = A.data, A.indices.astype(integer, copy=False), A.indptr.astype(integer, copy=False)
    return LabelledRows(scipy.sparse.csr_matrix(parts, shape=(labels.size, width)), labels)


def line_of(text: bytes, row: int) -> int:
    """The number of the line that holds this row."""
    return next(itertools.islice(_lines(text), row, None))[0]


def _lines(text: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """The tokens of each line that has any, with the line's number."""
    for number, line in enumerate(text.split(b"\n"), start=1):
        if tokens := line.partition(b"#")[0].split():
            yield number, tokens


def _refuse_first_fault(text: bytes, n_features: int | None, zero_based: bool) -> None:
    """Raise an error that names the first bad line and what is wrong with it, if there is one."""
    for number, tokens in _lines(text):
        fault = _label_fault(tokens[0]) or _feature_fault(tokens[1:], 0 if zero_based else 1, n_features)
        if fault:
            raise DataError(f"line {number}: {fault}{_suspicion(text) if number == 1 else ''}")


def _label_fault(token: bytes) -> str:
    if _NUMBER.fullmatch(token):
        return _size_fault(token, token)
    if _is_nan_or_infinity(token):
        return f"the label is {_show(token)}; NaN and infinity are refused"
    several = " (several labels per row are not supported)" if b"," in token else ""
    return f"found {_show(token)}, expected a number as the label{several}"


def _feature_fault(tokens: list[bytes], first: int, n_features: int | None) -> str:
    """What is wrong with the pairs of a line; `first` is the smallest index."""
    previous = first - 1
    for token in tokens:
        match = _FEATURE.fullmatch(token)
        if match is None or not _NUMBER.fullmatch(match[2]):
            return _not_a_feature(token)
        index = int(match[1]) if len(match[1].lstrip(b"0")) <= 10 else MAX_INDEX + 1
        if fault := _index_fault(index, previous, first, n_features):
            return f"found {_show(token)}{fault}"
        if fault := _size_fault(match[2], token):
            return fault
        previous = index
    return ""


def _index_fault(index: int, previous: int, first: int, n_features: int | None) -> str:
    if index > MAX_INDEX:
        return f", but an index is at most {MAX_INDEX}"
    if index < first:
        return ", but indices start at 1; zero_based=True reads a file that counts from 0"
    if n_features is not None and index - first >= n_features:
        return f", but n_features={n_features}; leave n_features out or make it large enough"
    if index - first >= MAX_INDEX:
        return f", but an index that counts from 0 is at most {MAX_INDEX - 1}"
    if index == previous:
        return ", but this index already stands in the line"
    if index < previous:
        return " after a larger index; indices of a line must ascend"
    return ""


def _size_fault(number: bytes, token: bytes) -> str:
    if math.isinf(float(number)):
        return f"found {_show(token)}, a number too large for double precision (at most 1.8e308)"
    return ""


def _not_a_feature(token: bytes) -> str:
    if token.startswith(b"qid:"):
        return f"found {_show(token)}; ranking data (qid:) is not supported"
    if _is_nan_or_infinity(token.partition(b":")[2]):
        return f"found {_show(token)}; NaN and infinity are refused"
    return f"found {_show(token)}, expected index:value such as 7:0.5"


def _is_nan_or_infinity(value: bytes) -> bool:
    return value.lower().lstrip(b"+-") in (b"nan", b"inf", b"infinity")


def _show(token: bytes) -> str:
    shown = repr(token[:_SHOWN].decode("utf-8", errors="backslashreplace"))
    return shown if len(token) <= _SHOWN else shown + "..."


def _suspicion(text: bytes) -> str:
    """A guess for files that were never LIBSVM text."""
    head = text[:1024]
    if b"\0" in head:
        return " (this looks like a binary file, not LIBSVM text)"
    if head.lstrip()[:1] == b"<":
        return " (this looks like a web page, not LIBSVM text)"
    return ""


# ---- writing --------------------------------------------------------------------------------


def save(path: str | os.PathLike[str], A: Any, b: Any) -> Path:
    """Write rows A (dense or sparse) and labels b as LIBSVM text; packed if the name ends in .gz or .bz2.

    Indices count from 1 and every number is written so that `load` gives it back bit for bit.

    >>> import tempfile; from mast.data import load
    >>> path = save(tempfile.mkdtemp() + "/mine.gz", [[0., .5], [2., 0.]], [1, -1])
    >>> load(path).A.toarray()
    array([[0. , 0.5],
           [2. , 0. ]])
    """
    import scipy.sparse

    A = checked_sparse("A", A) if scipy.sparse.issparse(A) else numbers("A", A, 2, finite=False)
    if A.ndim != 2:
        raise ArgumentError(f"A must have 2 dimensions, got shape {A.shape}")
    A = scipy.sparse.csr_matrix(A, dtype=np.float64, copy=True)
    A.sum_duplicates()
    b = numbers("b", b, 1, finite=False)
    if b.shape != A.shape[:1]:
        raise ArgumentError(f"A has {A.shape[0]} rows and b the shape {b.shape}; they must agree")
    if not (np.isfinite(A.data).all() and np.isfinite(b).all()):
        raise DataError(f"{path}: NaN and infinity are refused")
    lines = []
    for row, label in enumerate(b):
        part = slice(A.indptr[row], A.indptr[row + 1])
        pairs = zip(A.indices[part], A.data[part], strict=True)
        lines.append(" ".join([short(label), *(f"{index + 1}:{short(value)}" for index, value in pairs)]))
    text = "".join(f"{line}\n" for line in lines).encode()
    path = as_path("path", path)
    if path.suffix == ".gz":
        text = gzip.compress(text, mtime=0)
    elif path.suffix == ".bz2":
        text = bz2.compress(text)
    write(path, text)
    return path


def short(number: float) -> str:
    """A number as people write it: 1, not 1.0; -0 keeps its sign."""
    number = float(number)
    return f"{number:.0f}" if number.is_integer() and abs(number) < 1e15 else repr(number)
