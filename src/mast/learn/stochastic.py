"""Models of rows that come in pieces: averaged implicit stochastic gradient descent (Toulis, Airoldi 2017).

Each row is one step, with a draw of its own. A step is implicit: it takes the bend of the loss at the row
into account, so that none is too long. Columns are measured in units of their own, and the model is the
average over all steps, later ones counting more.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.sparse

from mast import randomness
from mast.arrays import Array, Indices
from mast.learn.copies import pool, replaced
from mast.learn.missing import Moments, Scaling, StandIns
from mast.randomness import Key, Purpose
from mast.sketches import Sketch

BLOCK = 8192  #: rows that are prepared at a time
DRAWS = 512  #: different draws in a block
SCALES = 4_000_000  #: entries of these draws
STAND_INS = 1 << 23  #: the same where each draw is a system of equations
SLOWER = 2000  #: steps after which steps are shorter by the square root of 2
LOSSES = {"log": (0, 0.25), "squares": (1, 1.0), "softmax": (2, 0.5)}  #: number in the kernel, largest bend


@dataclass
class Stream:
    """What is kept between pieces: the point, the sum of all points, and what is known of the columns."""

    sketch: Sketch
    seed: int
    loss: str
    fit_intercept: bool
    alpha: float | None  #: None is 1/(the weight of all rows so far)
    shift: Array  #: (outputs, features)
    coef: Array  #: where it starts, (outputs, features)
    intercept: Array
    scaling: Scaling | None = None  #: of rows with gaps
    stand_ins: StandIns | None = None
    moments: Moments | None = None  #: where stand-ins are learned from the rows as they come
    steps: int = 0
    pieces: int = 0
    weight: float = 0.0
    x: Array = field(init=False)  #: without the shift, (features and intercept, outputs)

    def __post_init__(self) -> None:
        d = self.shift.shape[1]
        self.x = np.vstack([(self.coef - self.shift).T, self.intercept])
        self.total, self.since = np.zeros_like(self.x), np.zeros(d + 1)
        self.present, self.squares = np.zeros(d), np.zeros(d)  # the weight of non-zeros; of their squares

    @property
    def l2(self) -> float:
        """The penalty."""
        return 1 / self.weight if self.alpha is None else self.alpha

    def take(self, X: Any, target: Array, weights: Array | None) -> float:
        """One pass over these rows, in random order; returns how much the loss can differ by how it moved."""
        n, before = X.shape[0], self._average()
        w = np.ones(n) if weights is None else weights
        if self.moments is not None:
            self.moments.add(X, w)
            self.stand_ins = self.moments.stand_ins(self.sketch)
        order = randomness.permutation(Key(self.seed, self.pieces), Purpose.BATCH, n)
        for start in range(0, n, BLOCK):
            rows = order[start : start + BLOCK]
            self._block(X[rows], target[rows], w[rows])
        self.pieces += 1
        squares = np.sum((self._average() - before) ** 2, axis=1)
        return LOSSES[self.loss][1] * float(squares @ np.append(self.squares / self.weight, 1.0))

    def average(self) -> tuple[Array, Array]:
        """The model: weights and intercepts."""
        point = self._average()
        return self.shift + point[:-1].T, point[-1].copy()

    def _average(self) -> Array:
        return self.total / self.since[-1] if self.steps else self.x

    def _block(self, X: Any, target: Array, w: Array) -> None:
        n, d = X.shape
        room = SCALES // d if self.stand_ins is None else max(64, STAND_INS // d**3)
        count = max(1, min(DRAWS, room, n) // 4)
        scales = pool(self.sketch, d, count, 4, Key(self.seed, self.steps))
        which = np.arange(n) % len(scales)
        if self.stand_ins is None:
            X = X if self.scaling is None else self.scaling.filled(X)
            law = np.stack([self.sketch.mean(d), self.sketch.expected_square(d)])
        else:
            X = replaced(X, scales != 0, which[:, None], self.stand_ins)
            scales, which, law = np.ones((1, d)), np.zeros(n, dtype=np.int64), np.ones((2, d))
        indptr, indices, data = _entries(X)
        owner = np.repeat(w, np.diff(indptr))
        self.weight += float(w.sum())
        self.present += np.bincount(indices, owner * (data != 0), d)
        self.squares += np.bincount(indices, owner * data**2, d)
        base = np.asarray(X @ self.shift.T)
        rows = (indptr, indices, data, target, base, w * ((self.steps + n) / self.weight))
        kernels = importlib.import_module("mast.learn.kernels")  # Numba takes a while to load
        kernels.pass_over(
            rows, (scales, which), self._steps(n, law, self.weight), (self.x, self.total, self.since)
        )
        self.steps += n

    def _steps(self, n: int, law: Array, weight: float) -> tuple[Any, ...]:
        """Step sizes, the units of the columns, and the penalty, counted in rows where a column is not 0."""
        number, bend = LOSSES[self.loss]
        mean, square = law
        share = np.maximum(self.present / weight, 1e-300)
        typical = self.squares / weight * square
        metric = np.zeros(len(self.x))
        metric[:-1] = np.divide(np.sqrt(share), typical, where=typical > 0, out=np.zeros_like(typical))
        metric[-1] = 1.0
        safe = 1 / (bend * (self.fit_intercept + float(metric[:-1] @ typical)) or 1.0)
        sizes = safe / np.sqrt(1 + (self.steps + np.arange(n)) / SLOWER)
        ridge = self.l2 * square / share
        pull = (self.l2 * mean / share)[:, None] * self.shift.T
        return number, bend, float(self.steps), sizes, metric, ridge, pull, self.fit_intercept


def _entries(X: Any) -> tuple[Indices, Indices, Array]:
    """The rows as the arrays of a CSR matrix."""
    if scipy.sparse.issparse(X):
        return X.indptr.astype(np.int64), X.indices.astype(np.int64), X.data
    n, d = X.shape
    return np.arange(0, n * d + 1, d), np.tile(np.arange(d), n), np.ascontiguousarray(X).ravel()
