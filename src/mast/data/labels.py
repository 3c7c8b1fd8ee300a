"""Which label is -1 and which is +1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mast.errors import ArgumentError, DataError

Labels: TypeAlias = Literal["binary", "raw"] | tuple[float, float]

_NAMED = 10


def check(labels: Labels) -> None:
    """Refuse anything but "binary", "raw" or a pair of different numbers."""
    if isinstance(labels, str):
        if labels in ("binary", "raw"):
            return
    elif isinstance(labels, (tuple, list)) and len(labels) == 2:
        try:
            low, high = float(labels[0]), float(labels[1])
        except (TypeError, ValueError):
            low = high = np.nan
        if np.isfinite(low) and np.isfinite(high) and low != high:
            return
    raise ArgumentError(f"labels={labels!r}, expected 'binary', 'raw' or a pair (negative, positive)")


def to_signs(
    numbers: NDArray[np.float64], labels: Labels, name: str, line_of: Callable[[int], int]
) -> tuple[NDArray[np.float64], tuple[float, float] | None]:
    """Labels as -1/+1, and the pair (negative, positive) they were in the file; unchanged and None if raw.

    `name` and `line_of` (the line of a row) are for messages.

    >>> to_signs(np.array([2., 1.]), "binary", "mine", lambda row: row + 1)
    (array([ 1., -1.]), (1.0, 2.0))
    """
    if isinstance(labels, str) and labels == "raw":
        return numbers, None
    if isinstance(labels, str):
        negative, positive = _two(np.unique(numbers), name)
    else:
        negative, positive = float(labels[0]), float(labels[1])
        strange = np.flatnonzero((numbers != negative) & (numbers != positive))
        if strange.size:
            row = int(strange[0])
            raise DataError(
                f"{name}, line {line_of(row)}: the label is {short(numbers[row])}, but labels="
                f"({short(negative)}, {short(positive)})"
            )
    return np.where(numbers == positive, 1.0, -1.0), (negative, positive)


def _two(distinct: NDArray[np.float64], name: str) -> tuple[float, float]:
    if distinct.size == 2:
        return float(distinct[0]), float(distinct[1])
    if distinct.size == 1:
        if abs(distinct[0]) == 1:
            return -1.0, 1.0
        raise DataError(
            f"{name}: every label is {short(distinct[0])}, so which class that is cannot be known; "
            "pass labels=(negative, positive), or labels='raw' to keep the numbers"
        )
    named = ", ".join(short(label) for label in distinct[:_NAMED])
    more = f", ... ({distinct.size} in all)" if distinct.size > _NAMED else ""
    raise DataError(
        f"{name}: found the labels {named}{more}, expected two classes; "
        "labels='raw' keeps the numbers, for regression"
    )


def short(label: float) -> str:
    """A label as people write it: 1, not 1.0."""
    label = float(label)
    return str(int(label)) if label.is_integer() and abs(label) < 1e15 else repr(label)
