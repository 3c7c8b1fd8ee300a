"""Plans without a closed form: the fewest iterations, and their step size, found numerically."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from mast.errors import NoGuaranteeError

Array = NDArray[np.float64]

MOST_ITERATIONS = 2**200


def best_step_size(value: Callable[[Array], Array], limit: float) -> tuple[float, float]:
    """The step size in (0, limit] with the smallest bound, and that bound.

    A logarithmic grid over thirty decades below the limit, then rounds that zoom in on the
    best point. The bounds here have one valley, so the zoom ends at its bottom.

    >>> step, least = best_step_size(lambda g: 1 / g + 4 * g, limit=10.0)
    >>> round(step, 6), round(least, 6)
    (0.5, 4.0)
    """
    steps = limit * np.logspace(-30, 0, 481)
    for _ in range(10):
        steps = steps[steps > 0]
        bounds = np.nan_to_num(value(steps), nan=np.inf)
        best = int(np.argmin(bounds))
        step, least = float(steps[best]), float(bounds[best])
        low, high = steps[max(best - 1, 0)], steps[min(best + 1, len(steps) - 1)]
        steps = np.geomspace(low, high, 33)
    return step, least


def fewest_iterations(
    value: Callable[[Array, float], Array], limit: Callable[[float], float], target: float
) -> tuple[float, int]:
    """The smallest T for which some allowed step size brings the bound to the target, with that step size.

    The best bound falls as T grows, so T is doubled until the target is met and then bisected.

    >>> fewest_iterations(lambda g, T: 1 / (g * T) + 4 * g, limit=lambda T: 10.0, target=0.5)[1]
    64
    """

    def attempt(T: int) -> tuple[float, float]:
        return best_step_size(lambda steps: value(steps, float(T)), limit(float(T)))

    low, high = 0, 1
    step, least = attempt(high)
    while not least <= target:
        low, high = high, 2 * high
        if high > MOST_ITERATIONS:
            raise NoGuaranteeError(f"no plan with fewer than 2^200 iterations reaches {target:g}")
        step, least = attempt(high)
    while high - low > 1 + (high >> 50):
        middle = (low + high) // 2
        candidate, least = attempt(middle)
        if least <= target:
            high, step = middle, candidate
        else:
            low = middle
    return step, high
