"""Constructor parameters, checked when `fit` reads them, as scikit-learn wants it."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from mast.errors import ArgumentError
from mast.randomness import whole
from mast.sketches import PermK, Sketch, parse


def sketch_from(value: Any) -> Sketch:
    """A sketch, from itself, a text or None.

    >>> sketch_from(None), sketch_from("bernoulli:0.7")
    (<PermK(4, seed=0): keeps 25 %, one of 4 blocks>, <Bernoulli(0.7): keeps 70 %>)
    """
    if value is None:
        return PermK(4)
    if isinstance(value, str):
        return parse(value)
    if not isinstance(value, Sketch):
        raise ArgumentError(
            f'sketch must be a sketch, a text such as "bernoulli:0.7", or None; got {value!r}'
        )
    return value


def seed_from(random_state: Any) -> int:
    """A seed: an int is one itself; a generator, or None for NumPy's global one, gives the next."""
    generator = check_random_state(random_state)  # refuses what scikit-learn would
    if isinstance(random_state, (int, np.integer)) and not isinstance(random_state, bool):
        return int(random_state)
    return int(generator.randint(2**31 - 1))


def number(name: str, value: Any, above: float | None = None, at_least: float | None = None) -> float:
    """A finite number with a lower limit."""
    try:
        checked = float(value)
    except (TypeError, ValueError):
        checked = np.nan
    fits = bool(np.isfinite(checked)) and not isinstance(value, (bool, str))
    fits = fits and (above is None or checked > above) and (at_least is None or checked >= at_least)
    if not fits:
        limit = f"above {above:g}" if above is not None else f"of at least {at_least:g}"
        raise ArgumentError(f"{name} must be a finite number {limit}, got {value!r}")
    return checked


def at_least_one(name: str, value: Any) -> int:
    """A whole number of at least 1."""
    count = whole(name, value)
    if count < 1:
        raise ArgumentError(f"{name} must be at least 1, got {value!r}")
    return count
