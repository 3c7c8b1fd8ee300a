"""The area under an accuracy-density curve: one number a curve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def area(densities: Sequence[float], accuracies: Any) -> Any:
    """The mean height of the curve over the logarithm of the density, by trapezoids; over the last axis.

    >>> round(float(area([1.0, 0.5, 0.25], np.array([0.9, 0.8, 0.5]))), 9)
    0.75
    """
    x = np.log(np.asarray(densities, dtype=float))
    y = np.asarray(accuracies, dtype=float)
    heights = 0.5 * (y[..., 1:] + y[..., :-1]) * np.diff(x)
    return heights.sum(axis=-1) / (x[-1] - x[0])
