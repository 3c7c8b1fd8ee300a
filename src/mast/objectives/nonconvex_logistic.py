"""NonconvexLogistic: the mean log-loss plus a penalty that saturates; the usual non-convex test problem."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mast.objectives.linear import LinearModel
from mast.objectives.losses import LogLoss, Saturating
from mast.support.checks import Array, check_optional


class NonconvexLogistic(LinearModel):
    """mean_i w_i log(1 + exp(-b_i a_i'x)) + weight sum_j x_j²/(1 + x_j²).

    Parameters
    ----------
    A, b
        The data, one observation per row (an array or any SciPy sparse matrix), and labels -1 or +1.
    weight
        The strength of the penalty.
    sample_weight
        Non-negative weights of the rows; only their proportions matter (they are scaled to mean 1).

    Its `infimum()` is the lower bound 0 (`infimum_exact` is False), and there is no `minimizer()`.

    >>> import mast
    >>> f = mast.NonconvexLogistic([[1.0, 0.0], [0.0, 2.0]], [1, -1], weight=0.1)
    >>> round(f.value([1.0, -1.0]), 9), f.infimum(), f.infimum_exact, round(f.smoothness, 12)
    (0.320094849, 0.0, False, 0.7)
    """

    loss = LogLoss()
    convex = False
    infimum_exact = False

    def __init__(
        self, A: Any, b: ArrayLike, weight: float, *, sample_weight: ArrayLike | None = None
    ) -> None:
        super().__init__(A, b, sample_weight)
        self.weight = check_optional("weight", weight) or 0.0
        self.penalty = Saturating(self.weight)

    def term_infima(self) -> Array:
        """Zeros: lower bounds, as `infimum()` is."""
        return np.zeros(self.terms)

    def infimum(self) -> float:
        """0, a lower bound."""
        return 0.0
