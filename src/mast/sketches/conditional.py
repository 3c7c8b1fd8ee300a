"""Conditional: dropped features are replaced by their regression on the kept ones.

Features a have the mean 0 and the covariance C. A mask M keeps the set o and drops m. T_M is the identity on
o, and C_mo C_oo^-1 from o to m: what is dropped becomes its conditional mean, were the features Gaussian. A
linear model x answers x'T_M a = (T_M'x)'a, so S = T_M', a matrix that is 0 on the rows m.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mast.errors import ArgumentError
from mast.randomness import Key
from mast.sketches.base import Sketch
from mast.sketches.draws import DiagonalDraw, Draw, MatrixDraw
from mast.sketches.estimates import mean_over
from mast.sketches.independent import Bernoulli
from mast.support.checks import Array, frozen, numbers


class Conditional(Sketch):
    """S = T_M': the weights of dropped features move to the kept ones that predict them.

    E[S] is not I in general: `bias` says how far it is, `constants` are those of E[S'S] and of the largest
    S'S, and what needs E[S] = I (Theorem 1 and its gap) does not apply. They are exact where all masks
    can be listed, and else estimated.

    Parameters
    ----------
    covariance
        C, symmetric and positive definite: of the features, in the training data.
    keep
        The probability that a feature is there, for all or for each; or a diagonal sketch, whose masks are
        used and whose scales are not.

    >>> import numpy as np, mast
    >>> twins = mast.Conditional([[1.0, 0.9], [0.9, 1.0]], keep=0.5)
    >>> twins.apply_masks(np.array([[True, False]]), np.eye(2))[0].T  # the weight of the second moves
    array([[1. , 0.9],
           [0. , 0. ]])
    >>> round(twins.bias(2), 3), round(twins.constants(2).L_max, 3)
    (0.5, 1.81)
    """

    unbiased = False
    diagonal = False

    def __init__(self, covariance: ArrayLike, keep: ArrayLike | Sketch) -> None:
        C = numbers("covariance", covariance, 2)
        units = np.sqrt(np.maximum(np.diag(C), 0.0))
        if C.shape[0] != C.shape[1] or (np.abs(C - C.T) > 1e-8 * np.outer(units, units)).any():
            raise ArgumentError(f"covariance must be a symmetric matrix, got one of shape {C.shape}")
        self.covariance: Array = frozen((C + C.T) / 2)
        try:
            np.linalg.cholesky(self.covariance)
        except np.linalg.LinAlgError:
            raise ArgumentError(
                "covariance must be positive definite: shrink it, as scikit-learn's LedoitWolf does"
            ) from None
        self.masks = keep if isinstance(keep, Sketch) else Bernoulli(keep)
        if not self.masks.diagonal:
            raise ArgumentError(f"keep must be a probability or a diagonal sketch, got {keep!r}")
        self._fixed_dim = self.masks.check(len(self.covariance))

    def stand_ins(self, mask: NDArray[np.bool_]) -> Array:
        """T_M of one mask."""
        T, kept, dropped = np.diag(mask.astype(float)), np.flatnonzero(mask), np.flatnonzero(~mask)
        C = self.covariance[kept]
        T[np.ix_(dropped, kept)] = np.linalg.solve(C[:, kept], C[:, dropped]).T
        return T

    def apply_masks(self, masks: NDArray[np.bool_], weights: Array) -> Array:
        """T_M'w for each mask (a row of `masks`) and each row w of `weights`: (masks, weights, features)."""
        return np.stack([weights @ self.stand_ins(mask) for mask in masks])

    def fill(self, masks: NDArray[np.bool_], rows: Array) -> Array:
        """T_M a for each row a and its mask: what it drops is replaced by its regression on the rest."""
        return np.stack([self.stand_ins(mask) @ row for mask, row in zip(masks, rows, strict=True)])

    def answers(self, masks: NDArray[np.bool_], rows: Array, weights: Array) -> Array:
        """w'T_M a for each row a with its mask, and each row w of `weights`: (rows, weights)."""
        return np.asarray(self.fill(masks, rows) @ weights.T)

    def sample(self, d: int, key: Key) -> Draw:
        """The S of the mask that `key` draws."""
        return self._of(self.masks.sample(self.check(d), key))

    def _of(self, draw: Draw) -> Draw:
        assert isinstance(draw, DiagonalDraw)
        return MatrixDraw(self.stand_ins(draw.diagonal() != 0).T)

    def outcomes(self, d: int) -> Iterator[tuple[float, Draw]] | None:
        """One for each mask."""
        inner = self.masks.outcomes(self.check(d))
        return None if inner is None else ((p, self._of(draw)) for p, draw in inner)

    def support_size(self, d: int) -> int | None:
        """As many as there are masks."""
        return self.masks.support_size(self.check(d))

    def bias(self, d: int) -> float:
        """The largest entry of |E[S] - I|: 0 would make S unbiased."""
        mean = mean_over(self, self.check(d), lambda draw: draw.matrix())
        return float(np.abs(mean - np.eye(d)).max())

    def arguments(self) -> dict[str, Any]:
        """The covariance, and the sketch of the masks."""
        return {"covariance": self.covariance, "keep": self.masks}

    def label(self) -> str:
        """Of how many features, and what draws the masks."""
        return f"Conditional({len(self.covariance)} features) of {self.masks.label()}"
