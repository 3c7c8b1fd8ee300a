"""Data frames: columns are found by their names, absent ones are missing, unknown ones ignored."""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from mast.errors import DataError
from mast.support.arrays import Indices

GROUPS = "mast groups"  #: where data frames have them, by the names of the features
SHOWN = 5  #: names that a message shows


class ColumnsWarning(UserWarning):
    """A table lacks columns that the model knows, or has others that it does not know."""


class EncodedRows(np.ndarray[Any, np.dtype[np.float64]]):
    """Features that remember the column each of them comes from, until they are sliced or copied."""

    groups: Indices | None = None


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
    """A polars frame as one of pandas; everything else as it is."""
    if not is_polars(X):
        return X
    import pandas

    X = X.collect() if hasattr(X, "collect") else X
    return pandas.DataFrame({name: X[name].to_numpy() for name in X.columns})


def is_polars(X: Any) -> bool:
    """Whether this is a data frame of polars, lazy or not."""
    module, _, _ = type(X).__module__.partition(".")
    return module == "polars" and type(X).__name__ in ("DataFrame", "LazyFrame")


def is_frame(X: Any) -> bool:
    """Whether this is a data frame of pandas."""
    return hasattr(X, "columns") and hasattr(X, "reindex")


def aligned(X: Any, names: Any, ignored: Collection[str] = ()) -> Any:
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
    for remark in compare([name for name in known if name not in ignored], there, ignored):
        tell(remark)
    return X.reindex(columns=known)


def tell(remark: str) -> None:
    """Warn of the columns of a table whoever called MAST or scikit-learn."""
    warnings.warn(remark, ColumnsWarning, stacklevel=_level_of_the_caller())


def _level_of_the_caller() -> int:
    """How many calls lie between a warning and whoever called MAST or scikit-learn."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_globals["__name__"].split(".")[0] in ("mast", "sklearn", "joblib"):
        level, frame = level + 1, frame.f_back
    return level


def compare(
    known: Sequence[str], there: Sequence[str], ignore: Collection[str] = (), where: str = ""
) -> list[str]:
    """One line for columns that are absent, one for those that are unknown; an error if none is known."""
    present, ours = set(there), set(known)
    absent = [name for name in known if name not in present]
    unknown = [name for name in there if name not in ours and name not in ignore]
    if len(absent) == len(known):
        raise DataError(
            f"{where}the table has none of the model's columns ({shown(known)}), it has {shown(list(there))}"
        )
    remarks = []
    if absent:
        remarks.append(f"absent, so missing in every row: {shown(absent)}")
    if unknown:
        remarks.append(f"unknown to the model, so ignored: {shown(unknown)}")
    return remarks


def explain_refusal(X: Any, first: bool = False) -> None:
    """An error that names the columns of a data frame which no array of numbers can be made of, if any."""
    if not hasattr(X, "dtypes") or not hasattr(X, "columns"):
        return
    odd = [str(name) for name in X.columns if not _holds_numbers(X[name])]
    if odd:
        if first:
            raise DataError(
                f"these columns hold no numbers: {shown(odd)}; mast.TableEncoder makes some of them"
            )
        raise DataError(f"these columns held numbers in training, and now do not: {shown(odd)}")


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


def shown(names: Sequence[str], most: int = SHOWN) -> str:
    """Some names for a message, and how many there are beside."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(repr, names[:most])) + more
