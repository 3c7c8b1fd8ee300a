"""Conditional: dropped features are replaced by their regression on the kept ones.

Features a have the mean 0 and the covariance C. A mask M keeps the set o and drops m. T_M is the identity on
o, and C_mo C_oo^-1 from o to m: what is dropped becomes its conditional mean, were the features Gaussian. A
linear model x answers x'T_M a = (T_M'x)'a, so S = T_M', a matrix that is 0 on the rows m.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mast.errors import ArgumentError
from mast.randomness import Key
from mast.sketches.base import Sketch
from mast.sketches.constants import Constants
from mast.sketches.draws import DiagonalDraw, Draw, MatrixDraw
from mast.sketches.estimates import mean_over, moments_of
from mast.sketches.independent import Bernoulli
from mast.support.checks import Array, Indices, frozen, numbers

BoolArray = NDArray[np.bool_]


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
        self.fixed_dim = self.masks.check(len(self.covariance))

    @cached_property
    def precision(self) -> Array:
        """The inverse of the covariance."""
        return frozen(np.linalg.inv(self.covariance))

    def apply_masks(self, masks: BoolArray, weights: Array) -> Array:
        """T_M'w for each mask (a row of `masks`) and each row w of `weights`: (masks, weights, features).

        On the kept o this is C_oo^-1 (C w)_o, which also is w_o - Q_om Q_mm^-1 w_m with Q = C^-1: each mask
        costs one system of equations, in the kept or in the dropped features, whichever are fewer.
        """
        w, Cw = np.ascontiguousarray(weights.T), self.covariance @ weights.T
        out = np.empty((*masks.shape, len(weights)))
        few, many = _cheaper(masks)
        if few.size:
            out[few] = _solve(self.covariance, masks[few], Cw[None])
        if many.size:
            solved = _solve(self.precision, ~masks[many], w[None])
            moved = np.swapaxes(np.swapaxes(solved, 1, 2) @ self.precision, 1, 2)
            out[many] = np.where(masks[many, :, None], w - moved, 0.0)
        return out.transpose(0, 2, 1)

    def answers(self, masks: BoolArray, rows: Array, weights: Array) -> Array:
        """w'T_M a for each row a with its mask, and each row w of `weights`: (rows, weights).

        That is a_o'C_oo^-1 (C w)_o, or a_o'w_o - (Q a)_m'Q_mm^-1 w_m: one system with one right-hand side.
        """
        there, out = rows * masks, np.empty((len(rows), len(weights)))
        few, many = _cheaper(masks)
        if few.size:
            solved = _solve(self.covariance, masks[few], there[few, :, None])
            out[few] = solved[:, :, 0] @ (self.covariance @ weights.T)
        if many.size:
            known = there[many]
            solved = _solve(self.precision, ~masks[many], (known @ self.precision)[:, :, None])
            out[many] = (known - solved[:, :, 0]) @ weights.T
        return out

    def fill(self, masks: BoolArray, rows: Array) -> Array:
        """T_M a for each row a and its mask: what it drops is replaced by its regression on the rest."""
        there = rows * masks  # a choice between two numbers would take longer
        out, (few, many) = np.empty_like(there), _cheaper(masks)
        if few.size:  # C_mo C_oo^-1 a_o
            kept, known = masks[few], there[few]
            solved = _solve(self.covariance, kept, known[:, :, None])
            out[few] = known + (solved[:, :, 0] @ self.covariance) * ~kept
        if many.size:  # -Q_mm^-1 (Q a)_m
            known = there[many]
            solved = _solve(self.precision, ~masks[many], (known @ self.precision)[:, :, None])
            out[many] = known - solved[:, :, 0]
        return out

    def variances(self, masks: BoolArray, weights: Array) -> Array:
        """The variance of w'a given what each mask keeps of a, for each row w of `weights`: (masks, weights).

        That is w_m'Q_mm^-1 w_m, or what C_oo^-1 leaves of w'C w.
        """
        w, Cw = np.ascontiguousarray(weights.T), self.covariance @ weights.T
        out = np.empty((len(masks), len(weights)))
        few, many = _cheaper(masks)
        if few.size:
            explained = np.einsum("pdw,dw->pw", _solve(self.covariance, masks[few], Cw[None]), Cw)
            out[few] = np.maximum(np.einsum("dw,dw->w", w, Cw) - explained, 0.0)
        if many.size:
            out[many] = np.einsum("pdw,dw->pw", _solve(self.precision, ~masks[many], w[None]), w)
        return out

    def unexplained(self, masks: BoolArray, weights: Array) -> Array:
        """The sum of the covariances that are left given what each mask keeps, times `weights`."""
        from mast.sketches.kernels import inverse_sum

        few, many = _cheaper(masks)
        left = np.zeros_like(self.covariance)
        if few.size:
            C = self.covariance
            left += weights[few].sum() * C - C @ inverse_sum(C, masks[few], weights[few]) @ C
        if many.size:
            left += inverse_sum(self.precision, ~masks[many], weights[many])
        return left

    # ---- what a sketch says ----------------------------------------------------------------

    def sample(self, d: int, key: Key) -> Draw:
        """The S of the mask that `key` draws."""
        return self._of(self.masks.sample(self.check(d), key))

    def _of(self, draw: Draw) -> Draw:
        assert isinstance(draw, DiagonalDraw)
        mask = draw.diagonal() != 0
        return MatrixDraw(self.apply_masks(mask[None], np.eye(draw.dim))[0].T)

    def outcomes(self, d: int) -> Iterator[tuple[float, Draw]] | None:
        """One for each mask."""
        inner = self.masks.outcomes(self.check(d))
        return None if inner is None else ((p, self._of(draw)) for p, draw in inner)

    def support_size(self, d: int) -> int | None:
        """As many as there are masks."""
        return self.masks.support_size(self.check(d))

    def constants(self, d: int) -> Constants:
        """The extreme eigenvalues of E[S'S], which may be below 1, and the largest that S'S ever has."""
        known = moments_of(self, self.check(d))
        eigenvalues = np.linalg.eigvalsh(known.square)
        least = max(float(eigenvalues[0]), 0.0)
        return Constants(float(eigenvalues[-1]), least, known.largest, known.draws > 0, unbiased=False)

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


def _cheaper(masks: BoolArray) -> tuple[Indices, Indices]:
    """The masks that keep less than half of all features, and the others; by the size of their system."""
    kept, d = masks.sum(axis=1), masks.shape[1]
    order = np.argsort(kept, kind="stable")
    few = 2 * kept[order] < d
    return order[few], order[~few]


def _solve(G: Array, chosen: BoolArray, right: Array) -> Array:
    """For each mask c the y with G_cc y_c = right_c, and 0 elsewhere: (masks, features, columns).

    `right` is one matrix for each mask, or a single one for all of them, of shape (1, features, columns).
    """
    from mast.sketches.kernels import solve_within  # Numba takes a while to load

    out = np.zeros((*chosen.shape, right.shape[2]))
    solve_within(G, chosen, np.ascontiguousarray(right), out)
    return out
