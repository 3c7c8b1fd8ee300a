"""TableEncoder: a data frame as numbers, in which what is missing stays missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import pandas
import scipy.sparse
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.validation import _check_feature_names_in, check_array, check_is_fitted, validate_data

from mast.errors import ArgumentError, DataError
from mast.learn.columns import CategoryColumn, Column, learn_column
from mast.learn.validation import (
    EncodedRows,
    align_columns,
    as_pandas,
    is_frame,
    quote_names,
    refuse_repeated,
    warn_of_columns,
    with_groups,
)
from mast.support.checks import Array, Indices, row_blocks

WIDE = 1000  #: tables with more features than this, most of them 0, become sparse matrices
DENSITY = 0.25  #: the share of features that are not 0 in a complete row, from which on they stay dense


class TableEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """A data frame with numbers, texts, categories, booleans and dates as an array of numbers.

    What is missing stays missing: a blank cell is NaN in all features of its column. So is a category that
    was not there in training, of which a warning tells, and a column that a later frame does not have.

    - **Numbers** are standardised by the mean and the standard deviation of the cells that are there.
      Durations are numbers of days.
    - **Dates** are one number, the days since 1970, standardised. Texts are dates if one format reads all of
      them; days come before months where dots separate them, or where it cannot be otherwise.
    - **Categories**, other texts and booleans have one feature, 0 or 1, for each of their values. Where there
      are more than ten values, those in fewer than five rows, or in less than a thousandth of the rows, are
      one feature together, and so is what goes beyond a hundred features.
    - **Identifiers** are left out: texts that are all different, and integers that are all different and
      either follow each other or are called id, in frames of at least 20 rows. A warning names them.
    - **Empty and constant columns** are left out, and texts whose values are all rare.

    Parameters
    ----------
    ids
        ``"auto"`` finds identifiers as above; a list of columns leaves out these and finds none; None or an
        empty list keeps everything.

    Attributes
    ----------
    columns_ : what was learned of each column that is used.
    dropped_ : the columns that are left out, and why.
    groups_ : for each feature the number of the column it comes from. `MastClassifier` and `MastRegressor`
        that follow in a pipeline drop the features of one column together; after
        ``set_output(transform="pandas")`` too, but not after "polars", whose frames keep no notes.
    n_features_in_, feature_names_in_ : the columns of the frame.

    The result is a dense array, and a sparse matrix where there are more than 1,000 features of which a
    complete row has less than a quarter. Names of features are those of the columns, and ``column_value``.

    Examples
    --------
    >>> import mast, pandas
    >>> frame = pandas.DataFrame({
    ...     "age": [20, None, 40], "job": ["cook", "nurse", None], "since": ["2020-01-01", "2020-01-03", None]
    ... })
    >>> encoder = mast.TableEncoder().set_output(transform="pandas").fit(frame)
    >>> encoder.transform(frame)
       age  job_cook  job_nurse  since
    0 -1.0       1.0        0.0   -1.0
    1  NaN       0.0        1.0    1.0
    2  1.0       NaN        NaN    NaN
    >>> encoder.groups_
    array([0, 1, 1, 2])
    """

    n_features_in_: int

    def __init__(self, ids: str | Sequence[str] | None = "auto") -> None:
        self.ids = ids

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn what becomes of each column.

        Parameters
        ----------
        X
            A data frame of pandas or polars, or an array.
        y
            Not used.
        """
        frame = self._frame(X, first=True)
        named = list(frame.columns)
        chosen = self._chosen_ids(named)
        self.columns_: list[Column] = []
        self.dropped_: dict[str, str] = dict.fromkeys(chosen, "named by ids")
        find_ids = self.ids == "auto" and is_frame(as_pandas(X))
        for name, column in frame.items():
            if name in self.dropped_:
                continue
            learned = learn_column(column, find_ids)
            if isinstance(learned, str):
                self.dropped_[str(name)] = learned
            else:
                self.columns_.append(learned)
        if not self.columns_:
            why = "; ".join(f"{name!r} is {reason}" for name, reason in list(self.dropped_.items())[:3])
            raise DataError(f"no column is left to learn from{f' ({why})' if why else ''}")
        self._warn_of_dropped()
        return self

    def _chosen_ids(self, names: list[str]) -> list[str]:
        """The columns that the parameter names."""
        if self.ids is None or (isinstance(self.ids, str) and self.ids == "auto"):
            return []
        if isinstance(self.ids, str) or not all(isinstance(name, str) for name in self.ids):
            raise ArgumentError(f'ids must be "auto", None, or a list of columns\' names, got {self.ids!r}')
        unknown = [name for name in self.ids if name not in names]
        if unknown:
            raise ArgumentError(f"ids names columns that are not there: {quote_names(unknown)}")
        return list(self.ids)

    def _warn_of_dropped(self) -> None:
        """Warn of columns that are left out by a guess; a constant one says nothing, and is no guess."""
        odd = {name: why for name, why in self.dropped_.items() if why not in ("constant", "named by ids")}
        if odd:
            why = "; ".join(f"{name!r} is {reason}" for name, reason in list(odd.items())[:5])
            more = f"; and {len(odd) - 5} more" if len(odd) > 5 else ""
            warn_of_columns(f"left out: {why}{more}. TableEncoder(ids=...) decides otherwise on identifiers")

    def transform(self, X: Any) -> Any:
        """The features of the rows, NaN where a cell is missing, unseen, or its column absent."""
        check_is_fitted(self)
        frame = self._frame(X, first=False)
        unseen: dict[str, list[str]] = {}
        values: list[Any] = []
        for part in self.columns_:
            encoded, unknown = part.apply(frame[part.name])
            values.append(encoded)
            if unknown:
                unseen[part.name] = unknown
        if unseen:
            some = [f"{name} {quote_names(texts, 2)}" for name, texts in unseen.items()]
            more = f"; and {len(some) - 5} more columns" if len(some) > 5 else ""
            warn_of_columns(f"unseen in training, so missing: {'; '.join(some[:5])}{more}")
        if self._is_sparse():
            return self._sparse(values)
        dense = self._dense(values, len(frame))
        if _get_output_config("transform", self)["dense"] != "pandas":
            return dense
        framed = pandas.DataFrame(np.asarray(dense), frame.index, self.get_feature_names_out())
        return with_groups(framed, self.groups_)

    def _frame(self, X: Any, first: bool) -> pandas.DataFrame:
        """The table as a frame whose columns have the names that features have."""
        X = as_pandas(X)
        if not is_frame(X):
            accepted = {"ensure_all_finite": "allow-nan", "ensure_min_samples": 2 if first else 1}
            rows = check_array(X, dtype=None, **accepted)
            if rows.dtype.kind == "U" and not hasattr(X, "dtype"):  # lists with numbers and texts
                rows = check_array(X, dtype=object, **accepted)
            X = rows
            validate_data(self, X, skip_check_array=True, reset=first)
            return pandas.DataFrame(X, columns=self._column_names()).infer_objects()
        if first:
            refuse_repeated(list(X.columns))
        else:
            X = align_columns(X, getattr(self, "feature_names_in_", None), self.dropped_)
        validate_data(self, X, skip_check_array=True, reset=first)
        if len(X) < (2 if first else 1) or not X.shape[1]:
            raise DataError(f"a table needs rows and columns, this one has {X.shape[0]} and {X.shape[1]}")
        return X if hasattr(self, "feature_names_in_") else X.set_axis(self._column_names(), axis=1)

    def _column_names(self) -> list[str]:
        return [str(name) for name in _check_feature_names_in(self)]

    # ---- features ----------------------------------------------------------------------------------

    @property
    def groups_(self) -> Indices:
        """For each feature the number of the column it comes from."""
        check_is_fitted(self)
        return np.repeat(np.arange(len(self.columns_)), [len(part.features) for part in self.columns_])

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """The names of the features: ``column``, and ``column_value`` for categories."""
        check_is_fitted(self)
        _check_feature_names_in(self, input_features)
        seen: Counter[str] = Counter()
        names = []
        for name in (name for part in self.columns_ for name in part.features):
            seen[name] += 1
            names.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
        return np.array(names, dtype=object)

    def _is_sparse(self) -> bool:
        width = len(self.groups_)
        framed = _get_output_config("transform", self)["dense"] != "default"  # frames are dense
        return width > WIDE and len(self.columns_) < DENSITY * width and not framed

    def _dense(self, values: list[Any], rows: int) -> EncodedRows:
        groups = self.groups_
        out = np.zeros((rows, len(groups)))
        for block in row_blocks(rows, len(groups)):  # some rows at a time, so that they stay in the cache
            _write_features(out[block], self.columns_, [encoded[block] for encoded in values])
        marked = out.view(EncodedRows)
        marked.groups = groups
        return marked

    def _sparse(self, values: list[Any]) -> Any:
        blocks = []
        for part, encoded in zip(self.columns_, values, strict=True):
            width = len(part.features)
            blocks.append(_one_hot(encoded, width) if isinstance(part, CategoryColumn) else encoded[:, None])
        stacked = scipy.sparse.hstack([scipy.sparse.csr_array(block) for block in blocks], format="csr")
        stacked.groups = self.groups_
        return stacked

    def missing_shares(self, X: Any) -> Array:
        """The share of the columns that is missing in each row of features, as `transform` gives them."""
        first = np.searchsorted(self.groups_, np.arange(len(self.columns_)))  # one feature of each column
        cells = X[:, first].toarray() if scipy.sparse.issparse(X) else np.asarray(X[:, first])
        return np.asarray(np.isnan(cells).mean(axis=1))


def _write_features(out: Array, columns: list[Column], values: list[Any]) -> None:
    """Write the features of some rows over zeros."""
    begin, rows = 0, np.arange(len(out))
    for part, encoded in zip(columns, values, strict=True):
        end = begin + len(part.features)
        if isinstance(part, CategoryColumn):
            there = encoded >= 0
            out[rows[there], begin + encoded[there]] = 1.0
            out[~there, begin:end] = np.nan
        else:
            out[:, begin] = encoded
        begin = end


def _one_hot(codes: Indices, width: int) -> Any:
    """A one in each row, NaN in all columns where the code is -1."""
    known, absent = np.flatnonzero(codes >= 0), np.flatnonzero(codes < 0)
    rows = np.concatenate([known, np.repeat(absent, width)])
    columns = np.concatenate([codes[known], np.tile(np.arange(width), absent.size)])
    cells = np.concatenate([np.ones(known.size), np.full(absent.size * width, np.nan)])
    return scipy.sparse.csr_array((cells, (rows, columns)), shape=(len(codes), width))
