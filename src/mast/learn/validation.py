"""What estimators accept: tables as numbers, NaN where a cell is missing, and weights of rows and seeds.

Columns of a data frame are found by their names: absent ones are missing, and unknown ones are ignored.
"""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_X_y, validate_data

from mast.errors import DataError
from mast.support.checks import (
    LARGEST_ENTRY,
    Array,
    Indices,
    check_int,
    checked_sparse,
    refuse_too_large,
    row_blocks,
)

GROUPS = "mast groups"  #: where data frames have them, by the names of the features
SHOWN = 5  #: names that a message shows


class ColumnsWarning(UserWarning):
    """A table lacks columns that the model knows, or has others that it does not know."""


class EncodedRows(np.ndarray[Any, np.dtype[np.float64]]):
    """Features that remember the column each of them comes from, until they are sliced or copied."""

    groups: Indices | None = None


def validate_table(
    estimator: Any,
    X: Any,
    y: Any = "no_validation",
    *,
    reset: bool,
    accept_sparse: bool = False,
    sample_weight: Any = None,
    **options: Any,
) -> Any:
    """`validate_data` of scikit-learn for numbers and data frames, which get an `encoder_` if they need one.

    With `reset`, the estimator takes down the columns, the encoder and the `groups_`; without, later tables
    get the same columns. The encoder learns from rows whose weight is not 0.
    """
    X = as_pandas(X)
    refuse_repeated(list(getattr(X, "columns", ())))
    if reset:
        estimator.encoder_, estimator.groups_ = _encoder_for(X), groups_of(X)
    if estimator.encoder_ is None:
        if not reset:
            X = align_columns(X, getattr(estimator, "feature_names_in_", None))
        return validate_numbers(estimator, X, y, reset=reset, accept_sparse=accept_sparse, **options)
    if reset:
        validate_data(estimator, X, skip_check_array=True)  # takes down the names of the columns
        weights = row_weights(sample_weight, X)
        estimator.groups_ = estimator.encoder_.fit(X if weights is None else X[weights > 0]).groups_
    X = estimator.encoder_.transform(X)
    X = X if accept_sparse else as_dense(X)
    return X if isinstance(y, str) else check_X_y(X, y, **_array_options(accept_sparse), **options)


def validate_numbers(
    estimator: Any,
    X: Any,
    y: Any = "no_validation",
    *,
    reset: bool,
    accept_sparse: bool = True,
    **options: Any,
) -> Any:
    """`validate_data` of scikit-learn for rows of numbers, NaN where a cell is missing."""
    if scipy.sparse.issparse(X):
        X = checked_sparse("X", X)  # before scikit-learn converts it
    refuse_repeated(list(getattr(X, "columns", ())))  # older versions of scikit-learn do not
    try:
        return validate_data(estimator, X, y, reset=reset, **_array_options(accept_sparse), **options)
    except (TypeError, ValueError):
        _explain_refusal(X, reset)
        raise


def _array_options(sparse: bool) -> dict[str, Any]:
    return {
        "accept_sparse": "csr" if sparse else False,
        "dtype": np.float64,
        "ensure_all_finite": "allow-nan",
    }


def _encoder_for(X: Any) -> Any:
    """A `TableEncoder` for a data frame with columns that hold no numbers; None for everything else."""
    if not is_frame(X):
        return None
    from mast.learn.columns import kind_of
    from mast.learn.encoder import TableEncoder  # which itself validates here

    return None if all(kind_of(column) == "number" for _, column in X.items()) else TableEncoder()


def as_dense(X: Any) -> Array:
    """The rows as an array, if that fits into memory."""
    if not scipy.sparse.issparse(X):
        return np.asarray(X)
    refuse_too_large("X as a dense array", float(X.shape[0]) * X.shape[1])
    return np.asarray(X.toarray())


def row_weights(sample_weight: Any, X: Any) -> Array | None:
    """The weights of the rows, checked; None for none."""
    if sample_weight is None:
        return None
    return np.asarray(_check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True))


def with_positive_weight(X: Any, y: Any, weights: Array | None) -> tuple[Any, Any, Array | None]:
    """The rows whose weight is not 0."""
    if weights is None or weights.all():
        return X, y, weights
    there = weights > 0
    return X[there], y[there], weights[there]


def refuse_overflow(name: str, values: Any) -> None:
    """An error if numbers are too large to be squared; NaN is none."""
    values = values.data if scipy.sparse.issparse(values) else values
    largest, least = (f.reduce(values, axis=None, initial=0.0) for f in (np.fmax, np.fmin))
    if max(largest, -least) > LARGEST_ENTRY:
        raise DataError(f"the values of {name} are so large that their squares overflow: rescale them")


def seed_of(random_state: Any) -> int:
    """The seed: 0 for None, an int itself; a generator gives the next."""
    if random_state is None:
        return 0
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool):
        return check_int("random_state", random_state, 0, 2**32 - 1)
    return int(check_random_state(random_state).randint(2**31 - 1))  # refuses what scikit-learn would


# ---- rows with missing cells ----------------------------------------------------------------------------


def rows_with_nan(X: Any) -> Indices:
    """The rows that have a missing cell."""
    sparse = scipy.sparse.issparse(X)
    values = X.data if sparse else X
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum()):  # cheaper than looking at each cell
            return np.zeros(0, dtype=np.int64)
    if not sparse:
        return np.flatnonzero(np.isnan(X).any(axis=1))
    return np.unique(np.searchsorted(X.indptr, np.flatnonzero(np.isnan(values)), side="right") - 1)


def columns_with_nan(X: Any) -> Indices:
    """The columns that have a missing cell."""
    if not scipy.sparse.issparse(X):
        return np.flatnonzero(np.isnan(X).any(axis=0))
    return np.unique(X.indices[np.isnan(X.data)]).astype(np.int64)


def with_indicators(X: Any, columns: Indices) -> Any:
    """The features, and beside them for each of these columns 1 where it is missing and 0 elsewhere."""
    if not columns.size:
        return X
    if not scipy.sparse.issparse(X):
        return np.hstack([X, np.isnan(X[:, columns])])
    marks = scipy.sparse.csr_array((np.isnan(X.data).astype(float), X.indices, X.indptr), shape=X.shape)
    return scipy.sparse.hstack([X, marks[:, columns]], format="csr")


def row_hashes(X: Any) -> NDArray[np.uint64]:
    """A number for each row that depends on its content only; zeros count nothing, stored or not."""
    d = X.shape[1]
    columns = _mixed(np.arange(1, d + 1, dtype=np.uint64)) | np.uint64(1)
    if scipy.sparse.issparse(X):
        terms = _mixed(_bits(X.data)) * columns[X.indices]
        sums = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(terms)])
        return _mixed(sums[X.indptr[1:]] - sums[X.indptr[:-1]])
    parts = (_mixed(_bits(X[part])) * columns for part in row_blocks(*X.shape))
    return _mixed(np.concatenate([part.sum(axis=1, dtype=np.uint64) for part in parts]))


def _bits(values: Array) -> NDArray[np.uint64]:
    """The bits of each number: one zero, and one NaN."""
    return np.where(np.isnan(values), np.nan, values + 0.0).view(np.uint64)


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Bits that depend on all bits of a word, and 0 for 0 (the finaliser of MurmurHash3)."""
    words = (words ^ (words >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    words = (words ^ (words >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return np.asarray(words ^ (words >> np.uint64(33)))


# ---- data frames -----------------------------------------------------------------------------------


def with_groups(X: Any, groups: Indices) -> Any:
    """A data frame that remembers the column each of its features comes from, also in other orders."""
    X.attrs[GROUPS] = dict(zip(map(str, X.columns), groups.tolist(), strict=True))
    return X


def groups_of(X: Any) -> Indices | None:
    """For each feature the number of the column it comes from, if `TableEncoder` made them; else None."""
    if not is_frame(X):
        return getattr(X, "groups", None) if hasattr(X, "dtype") else None
    known = X.attrs.get(GROUPS, {})
    if not known or not all(name in known for name in X.columns):
        return None
    return np.unique([known[name] for name in X.columns], return_inverse=True)[1]


def as_pandas(X: Any) -> Any:
    """A polars frame, lazy or not, as one of pandas; everything else as it is."""
    module, _, _ = type(X).__module__.partition(".")
    if module != "polars" or type(X).__name__ not in ("DataFrame", "LazyFrame"):
        return X
    import pandas

    X = X.collect() if hasattr(X, "collect") else X
    return pandas.DataFrame({name: _cells(X[name]) for name in X.columns})


def _cells(column: Any) -> Any:
    """The cells of a column of polars; a list of them where NumPy has no type for one."""
    nested = column.dtype.is_nested() or str(column.dtype).endswith("Int128")
    return column.to_list() if nested else column.to_numpy()


def is_frame(X: Any) -> bool:
    """Whether this is a data frame of pandas."""
    return hasattr(X, "columns") and hasattr(X, "reindex")


def align_columns(X: Any, names: Any, ignored: Collection[str] = ()) -> Any:
    """A data frame with the columns `names` in their order: NaN where one is absent, others left out.

    What is no data frame, or has no names of columns, is given back as it is. The `ignored` are not missed.
    """
    X = as_pandas(X)
    if names is None or not is_frame(X):
        return X
    known, there = list(names), list(X.columns)
    if there == known or not all(isinstance(name, str) for name in there):
        return X
    refuse_repeated(there)
    for remark in _compare_columns([name for name in known if name not in ignored], there, ignored):
        warn_of_columns(remark)
    return X.reindex(columns=known)


def warn_of_columns(remark: str) -> None:
    """Warn of the columns of a table whoever called MAST or scikit-learn."""
    warnings.warn(remark, ColumnsWarning, stacklevel=_level_of_the_caller())


def _level_of_the_caller() -> int:
    """How many calls lie between a warning and whoever called MAST or scikit-learn."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_globals["__name__"].split(".")[0] in ("mast", "sklearn", "joblib"):
        level, frame = level + 1, frame.f_back
    return level


def _compare_columns(known: Sequence[str], there: Sequence[str], ignored: Collection[str]) -> list[str]:
    """One line for columns that are absent, one for those that are unknown; an error if none is known."""
    present, ours = set(there), set(known)
    absent = [name for name in known if name not in present]
    unknown = [name for name in there if name not in ours and name not in ignored]
    if len(absent) == len(known):
        raise DataError(
            f"the table has none of the model's columns ({quote_names(known)}), "
            f"it has {quote_names(list(there))}"
        )
    remarks = []
    if absent:
        remarks.append(f"absent, so missing in every row: {quote_names(absent)}")
    if unknown:
        remarks.append(f"unknown to the model, so ignored: {quote_names(unknown)}")
    return remarks


def _explain_refusal(X: Any, first: bool) -> None:
    """An error that names the columns of a data frame which no array of numbers can be made of, if any."""
    if not hasattr(X, "dtypes") or not hasattr(X, "columns"):
        return
    odd = [str(name) for name in X.columns if not _holds_numbers(X[name])]
    if odd and first:
        raise DataError(
            f"these columns hold no numbers: {quote_names(odd)}; mast.TableEncoder makes some of them"
        )
    if odd:
        raise DataError(f"these columns held numbers in training, and now do not: {quote_names(odd)}")


def _holds_numbers(column: Any) -> bool:
    try:
        np.asarray(column, dtype=np.float64)
    except (TypeError, ValueError):
        return False
    return getattr(column.dtype, "kind", "f") not in "mM"


def refuse_repeated(names: Sequence[Any], where: str = "") -> None:
    """An error if two columns have one name."""
    for name, count in Counter(names).items():
        if count > 1:
            raise DataError(f"{where}two columns are called {name!r}")


def quote_names(names: Sequence[str], most: int = SHOWN) -> str:
    """Some names for a message, and how many there are beside."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more
