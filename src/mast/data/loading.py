"""`load`: a name or a path to a sparse matrix and labels. `fetch`: a name to a file."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mast.data import libsvm, lookup
from mast.data.catalogue import SETS
from mast.data.libsvm import short
from mast.data.unpack import read, unpack
from mast.errors import ArgumentError, DataError
from mast.support import files
from mast.support.checks import check_int, refuse_too_wide

Labels: TypeAlias = Literal["binary", "raw"] | tuple[float, float]

_LOG = logging.getLogger("mast.data")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NAMED = 10  # labels in a message


class Loaded(tuple[Any, NDArray[np.float64]]):
    """A data set: the pair ``A, b``, which also remembers where it came from.

    `labels` is the pair (negative, positive) of labels in the file that became -1 and +1, or
    None if they were kept as they were; `path` is the file.
    """

    labels: tuple[float, float] | None
    path: Path

    @property
    def A(self) -> Any:
        """The rows, a SciPy CSR matrix."""
        return self[0]

    @property
    def b(self) -> NDArray[np.float64]:
        """One label per row."""
        return self[1]

    def __repr__(self) -> str:
        rows, features = self.A.shape
        mapping = "labels as in the file"
        if self.labels is not None:
            mapping = "labels {} -> -1, {} -> +1".format(*map(short, self.labels))
        return f"<{self.path.name}: {rows} rows, {features} features, {self.A.nnz} values; {mapping}>"


def load(
    name_or_path: str | os.PathLike[str],
    n_features: int | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    labels: Labels = "binary",
    zero_based: bool = False,
    download: bool = True,
) -> Loaded:
    """Read a data set in LIBSVM format: ``A, b = load("a1a")``.

    Parameters
    ----------
    name_or_path
        A file (LIBSVM text, also gzip or bzip2), or the name of a set: it is looked for in
        `data_dir`, in ``$MAST_DATA``, in the user's cache and among the embedded sets, then
        downloaded into the cache. A set found by its name must have the right checksum; a file
        given by a path with a folder in it (``./a1a``) is read as it is.
    n_features
        The number of columns. Without it, what the catalogue states of a set found by its name, so that its
        training and test rows fit; and the largest index in a file given by its path.
    data_dir
        The folder to search first.
    labels
        "binary": there are two labels, of whatever value; the larger becomes +1, the other -1.
        If there is one only, it must be -1 or +1. "raw": keep the numbers, for regression.
        A pair ``(negative, positive)``: these two and no other, for parts of a set that may
        hold one class only.
    zero_based
        Indices count from 0, as scikit-learn's `dump_svmlight_file` writes them, and not from 1.
    download
        False: never use the network.

    Returns
    -------
    Loaded
        A pair ``A, b``: a SciPy CSR matrix of float64 with int32 indices, and a float64 array.
        Zeros written in the file are stored. How labels were mapped is in its `repr`, in its
        attribute `labels`, and logged to "mast.data" (level INFO).

    Raises
    ------
    DataError
        If the set is absent, or the file damaged: the message names the file, the line and what
        was found there. Refused are NaN and infinity, indices that do not ascend, numbers beyond
        double precision, ranking data (qid:), and files without rows. Blank lines and what
        follows "#" are skipped.

    Examples
    --------
    >>> A, b = load("a1a")
    >>> A.shape, b[:4]
    ((1605, 123), array([-1., -1., -1., -1.]))
    >>> load("a1a", n_features=130)
    <a1a.gz: 1605 rows, 130 features, 22249 values; labels -1 -> -1, 1 -> +1>
    """
    pair = _pair(labels)
    if n_features is not None:
        n_features = check_int("n_features", n_features, 1, libsvm.MAX_INDEX)
    file = lookup.find(name_or_path, data_dir)
    if file is None:
        file = _download(os.fspath(name_or_path), data_dir, download)
    text = unpack(read(file.path), str(file.path))
    if file.name is not None:
        lookup.verify_checksum(file.name, file.path, text)
        if n_features is None and file.name in SETS:
            n_features = SETS[file.name].features
    text = text.removeprefix(_BYTE_ORDER_MARK)
    A, numbers = _parsed(text, file.path, n_features, zero_based)
    _refuse_empty(file.path, *A.shape)
    refuse_too_wide(A.shape[1], f"{file.path}: ")
    if labels != "raw":
        pair = pair or _two(np.unique(numbers), file.path)
        numbers = _signs(numbers, pair, file.path, lambda row: libsvm.line_of(text, row))
    loaded = Loaded((A, numbers))
    loaded.labels, loaded.path = pair, file.path
    _LOG.info("%r from %s", loaded, file.path)
    return loaded


def fetch(name: str, data_dir: str | os.PathLike[str] | None = None, *, download: bool = True) -> Path:
    """The file of a set, brought here if it is not: found as `load` does, or downloaded, and verified.

    With `data_dir` the file ends up there: copied if another folder has it, downloaded if not.

    >>> fetch("a1a").name
    'a1a.gz'
    """
    if data_dir is not None:
        files.make_folder(files.as_path("data_dir", data_dir).expanduser())
    file = lookup.find(name, data_dir)
    if file is None:
        file = _download(name, data_dir, download, into_data_dir=True)
    raw = read(file.path)
    if file.name is not None:
        lookup.verify_checksum(file.name, file.path, unpack(raw, str(file.path)))
    if data_dir is None or file.where in ("data_dir", "path"):
        return file.path
    return _copy(raw, file, Path(data_dir).expanduser())


def available(data_dir: str | os.PathLike[str] | None = None) -> dict[str, str]:
    """Where each known set is now: "data_dir", "MAST_DATA", "cached", "embedded" or "absent".

    >>> available()["a1a"] != "absent"
    True
    """
    places = dict.fromkeys(SETS, "absent")
    for where, folder in reversed(lookup.folders(data_dir).items()):  # the first one that has a set wins
        places |= {name: where for name in SETS if lookup.there(folder, name) is not None}
    return places


def _download(
    name: str, data_dir: str | os.PathLike[str] | None, allowed: bool, into_data_dir: bool = False
) -> lookup.FoundFile:
    if name not in SETS or not allowed:
        raise lookup.absent(name, data_dir)
    from mast.data.download import Unreachable, download

    folder = Path(data_dir).expanduser() if data_dir is not None and into_data_dir else lookup.cache()
    try:
        path = download(SETS[name], folder)
    except Unreachable as error:
        raise lookup.absent(name, data_dir, str(error)) from error
    _LOG.info("%s: downloaded from %s to %s", name, SETS[name].address, path)
    return lookup.FoundFile(path, "data_dir" if into_data_dir else "cached", name)


def _copy(raw: bytes, file: lookup.FoundFile, folder: Path) -> Path:
    target = folder / file.path.name
    files.write(target, raw)
    if file.name is not None:
        recorded = lookup.recorded_checksum(file.path.parent, file.name)
        if recorded is not None:
            lookup.record_checksum(folder, file.name, recorded)
    return target


def _parsed(text: bytes, path: Path, n_features: int | None, zero_based: bool) -> libsvm.LabelledRows:
    """The rows of a text; errors name the file."""
    try:
        return libsvm.parse_libsvm(text, n_features, zero_based)
    except DataError as error:
        raise DataError(f"{path}, {error}") from None
    except MemoryError as error:
        raise DataError(f"{path}: too large for this machine's memory") from error


def _refuse_empty(path: str | os.PathLike[str], rows: int, features: int) -> None:
    if not rows:
        raise DataError(f"{path}: there are no rows in it, expected lines such as '+1 3:0.5 7:1'")
    if not features:
        raise DataError(f"{path}: no row has a feature, so their number is unknown; give n_features")


# ---- labels ---------------------------------------------------------------------------------


def _pair(labels: Labels) -> tuple[float, float] | None:
    """The pair (negative, positive) that is asked for, None for "binary" and "raw"; others are refused."""
    if isinstance(labels, str) and labels in ("binary", "raw"):
        return None
    if isinstance(labels, tuple | list) and len(labels) == 2:
        try:
            negative, positive = map(float, labels)
        except (TypeError, ValueError):
            negative = positive = math.nan
        if math.isfinite(negative) and math.isfinite(positive) and negative != positive:
            return negative, positive
    raise ArgumentError(f"labels={labels!r}, expected 'binary', 'raw' or a pair (negative, positive)")


def _signs(
    numbers: NDArray[np.float64], pair: tuple[float, float], path: Path, line_of: Callable[[int], int]
) -> NDArray[np.float64]:
    """Labels as -1 and +1."""
    strange = np.flatnonzero(~np.isin(numbers, pair))
    if strange.size:
        row = int(strange[0])
        wanted = ", ".join(map(short, pair))
        raise DataError(
            f"{path}, line {line_of(row)}: the label is {short(numbers[row])}, but labels=({wanted})"
        )
    return np.where(numbers == pair[1], 1.0, -1.0)


def _two(distinct: NDArray[np.float64], path: Path) -> tuple[float, float]:
    """The negative and the positive one of the labels in a file."""
    if distinct.size == 2:
        return float(distinct[0]), float(distinct[1])
    if distinct.size == 1:
        if abs(distinct[0]) == 1:
            return -1.0, 1.0
        raise DataError(
            f"{path}: every label is {short(distinct[0])}, so which class that is cannot be known; "
            "pass labels=(negative, positive), or labels='raw' to keep the numbers"
        )
    named = ", ".join(map(short, distinct[:_NAMED]))
    more = f", ... ({distinct.size} in all)" if distinct.size > _NAMED else ""
    raise DataError(
        f"{path}: found the labels {named}{more}, expected two classes; "
        "labels='raw' keeps the numbers, for regression"
    )
