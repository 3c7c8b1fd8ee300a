"""Constructor parameters, checked when `fit` reads them, as scikit-learn wants it."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from mast.errors import ArgumentError
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
