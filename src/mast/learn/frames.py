"""Tables whose columns have names: found by their names, absent ones missing, unknown ones ignored."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from mast.errors import DataError

SHOWN = 5  #: names that a message shows


class ColumnsWarning(UserWarning):
    """A table lacks columns that the model knows, or has others that it does not know."""


def aligned(X: Any, names: Any) -> Any:
    """A data frame with the columns `names` in their order: NaN where one is absent, others left out.

    What is no data frame, or has no names of columns, is given back as it is.
    """
    if names is None or not hasattr(X, "reindex") or not hasattr(X, "columns"):
        return X
    known, there = list(names), list(X.columns)
    if there == known or not all(isinstance(name, str) for name in there):
        return X
    remarks = compare(known, there)
    for remark in remarks:
        warnings.warn(remark, ColumnsWarning, stacklevel=4)
    return X.reindex(columns=known)


def compare(known: Sequence[str], there: Sequence[str], ignore: Sequence[str] = ()) -> list[str]:
    """One line for columns that are absent, one for those that are unknown; an error if none is known."""
    present, ours = set(there), set(known)
    absent = [name for name in known if name not in present]
    unknown = [name for name in there if name not in ours and name not in ignore]
    if len(absent) == len(known):
        raise DataError(
            f"the table has none of the model's columns ({shown(known)}), it has {shown(list(there))}"
        )
    remarks = []
    if absent:
        remarks.append(f"absent, so missing in every row: {shown(absent)}")
    if unknown:
        remarks.append(f"unknown to the model, so ignored: {shown(unknown)}")
    return remarks


def shown(names: Sequence[str]) -> str:
    """Some names for a message, and how many there are beside."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(repr, names[:SHOWN])) + more
