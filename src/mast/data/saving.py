"""Writes a data set as LIBSVM text, whole or not at all."""

from __future__ import annotations

import bz2
import gzip
import os
from pathlib import Path
from typing import Any

import numpy as np

from mast.data.labels import short
from mast.errors import ArgumentError, DataError
from mast.files import write


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

    A = scipy.sparse.csr_matrix(A, dtype=np.float64)
    A.sum_duplicates()
    b = np.asarray(b, dtype=np.float64)
    if b.shape != A.shape[:1]:
        raise ArgumentError(f"A has {A.shape[0]} rows and b the shape {b.shape}; they must agree")
    if not (np.isfinite(A.data).all() and np.isfinite(b).all()):
        raise DataError(f"{path}: NaN and infinity are refused")
    lines = []
    for row, label in enumerate(b):
        part = slice(A.indptr[row], A.indptr[row + 1])
        pairs = zip(A.indices[part], A.data[part], strict=True)
        lines.append(" ".join([short(label), *(f"{index + 1}:{_number(value)}" for index, value in pairs)]))
    text = "".join(f"{line}\n" for line in lines).encode()
    path = Path(path)
    if path.suffix == ".gz":
        text = gzip.compress(text, mtime=0)
    elif path.suffix == ".bz2":
        text = bz2.compress(text)
    write(path, text)
    return path


def _number(value: float) -> str:
    # -0.0 is not 0: keep its sign.
    return "-0" if value == 0 and np.signbit(value) else short(value)
