"""A Gaussian of many features: a few factors that they share, and noise of each feature's own.

The covariance is L L' + Psi, L the loadings (features, factors) and Psi diagonal (factor analysis). What is
there says z = A^-1 L_o' Psi_o^-1 a_o of the factors, with A = I + L_o' Psi_o^-1 L_o, and what is not becomes
L_m z: by Woodbury's identity this is the regression on what is there, in d k² operations for each row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mast import randomness
from mast.learn.missing import Masks, row_hashes, unique_masks
from mast.randomness import Key
from mast.support.checks import Array, Indices

ENTRIES = 1 << 22  #: numbers that are held at a time
LARGEST = 1 << 25  #: numbers that are held at a time while factors are fitted
RANKS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)  #: that are tried first
ROWS = 2000  #: of training rows, with which ranks are tried
HELD_OUT = 4  #: one of HELD_OUT rows is held out then
PATTERNS = 16  #: of hidden cells in them
ITERATIONS = 8  #: to find the leading directions
STEPS = 3  #: of the EM algorithm
LEAST_NOISE = 0.01  #: of a feature's variance, that is its own


@dataclass(frozen=True)
class Factors:
    """Features of mean 0 whose covariance is loadings loadings' + diag(noise)."""

    loadings: Array  #: (features, factors)
    noise: Array  #: the variances of what is a feature's own, above 0

    @property
    def covariance(self) -> Array:
        """The covariance of all features."""
        return self.loadings @ self.loadings.T + np.diag(self.noise)

    def fill(self, masks: Masks, rows: Array) -> Array:
        """Each row a, where its mask drops a feature with the regression of that on the rest."""
        out = np.where(masks, rows, 0.0)
        patterns, which = unique_masks(masks)
        evidence = (out / self.noise) @ self.loadings
        step = max(1, ENTRIES // max(1, self.loadings.shape[1]) ** 2)
        order = np.argsort(which, kind="stable")
        for start in range(0, len(rows), step):
            part = order[start : start + step]
            first, last = which[part[0]], which[part[-1]]
            left = self.factor_covariance(patterns[first : last + 1])
            z = np.einsum("rij,rj->ri", left[which[part] - first], evidence[part])
            out[part] = np.where(masks[part], out[part], z @ self.loadings.T)
        return out

    def answers(self, masks: Masks, rows: Array, weights: Array) -> Array:
        """w'a for each row a that is filled by its mask, and each row w of `weights`: (rows, weights)."""
        return self.fill(masks, rows) @ weights.T

    def apply_masks(self, masks: Masks, weights: Array) -> Array:
        """The weights that serve what each mask keeps: (masks, weights, features)."""
        lost = np.where(masks[:, None, :], 0.0, weights)
        moved = (lost @ self.loadings) @ self.factor_covariance(masks)
        served = weights + moved @ (self.loadings / self.noise[:, None]).T
        return np.where(masks[:, None, :], served, 0.0)

    def variances(self, masks: Masks, weights: Array) -> Array:
        """The variance of w'a given what each mask keeps of a, for each row w of `weights`."""
        lost = np.where(masks[:, None, :], 0.0, weights)
        common = lost @ self.loadings
        shared = np.einsum("pwi,pij,pwj->pw", common, self.factor_covariance(masks), common)
        return np.asarray((lost**2) @ self.noise + shared)

    def factor_covariance(self, masks: Masks) -> Array:
        """The covariance of the factors given what each mask keeps: (masks, factors, factors)."""
        scaled = self.loadings / np.sqrt(self.noise)[:, None]
        return np.asarray(np.linalg.inv(np.eye(scaled.shape[1]) + outer_sums(masks.astype(float), scaled)))


def outer_sums(weights: Array, vectors: Array) -> Array:
    """The sums over j of weights[i, j] v_j v_j', as (i, k, k): one product of matrices with the halves."""
    k = vectors.shape[1]
    upper = np.triu_indices(k)
    total = np.zeros((len(weights), upper[0].size))
    step = max(1, ENTRIES // max(1, upper[0].size))
    for start in range(0, len(vectors), step):
        part = vectors[start : start + step]
        total += weights[:, start : start + step] @ (part[:, upper[0]] * part[:, upper[1]])
    out = np.empty((len(weights), k, k))
    out[:, upper[0], upper[1]] = total
    out[:, upper[1], upper[0]] = total
    return out


# ---- fitting ------------------------------------------------------------------------------------


def fit_factors(X: Array, weights: Array | None, rank: int | None = None) -> Factors:
    """Factors of columns that have the mean 0 and the variance 1 where they are there, and NaN elsewhere.

    By EM (Rubin and Thayer, 1982) from the leading directions of the covariance. A rank of None is chosen:
    some rows are held out, half of their cells are hidden, and the rank that predicts those best is taken.
    """
    w = np.ones(len(X)) if weights is None else weights * (len(X) / weights.sum())
    observed = ~np.isnan(X)
    known = np.where(observed, X, 0.0)
    rank = choose_rank(X, w) if rank is None else min(rank, *X.shape)
    return _maximised(known, observed, w, _start(*_leading(known, observed, w, rank), rank))


def choose_rank(X: Array, w: Array) -> int:
    """The number of factors that predicts hidden cells of rows which were held out best."""
    numbers = row_hashes(X)
    some = np.argsort(numbers, kind="stable")[:ROWS]
    X, w, numbers = X[some], w[some], numbers[some]
    held = numbers % np.uint64(HELD_OUT) == 0
    if min(held.sum(), (~held).sum()) < 2:
        return 0
    patterns = randomness.bernoulli(Key(0), randomness.threshold(0.5), 0, PATTERNS * X.shape[1])
    pattern = (numbers[held] // np.uint64(HELD_OUT) % np.uint64(PATTERNS)).astype(np.int64)
    observed = ~np.isnan(X)
    known = np.where(observed, X, 0.0)
    shown = patterns.reshape(PATTERNS, -1)[pattern] & observed[held]
    hidden = (observed[held] & ~shown) * w[held, None]
    most = min(RANKS[-1], int((~held).sum()) // 2, X.shape[1] // 2)
    values, vectors = _leading(known[~held], observed[~held], w[~held], most)
    errors: dict[int, float] = {}

    def error(rank: int) -> float:
        if rank not in errors:
            guess = _start(values, vectors, rank).fill(shown, known[held])
            errors[rank] = float((hidden * (guess - known[held]) ** 2).sum())
        return errors[rank]

    for rank in (rank for rank in RANKS if rank <= most):
        error(rank)
        if len(errors) > 4 and min(list(errors.values())[-3:]) > min(errors.values()):
            break
    while True:  # between the neighbours of the best
        best, tried = min(errors, key=error), sorted(errors)
        place = tried.index(best)
        below, above = tried[max(place - 1, 0)], tried[min(place + 1, len(tried) - 1)]
        if above - below <= max(2, best // 16):
            return best
        for rank in ((below + best) // 2, (best + above + 1) // 2):
            error(rank)


def _leading(known: Array, observed: Masks, w: Array, rank: int) -> tuple[Array, Array]:
    """The leading eigenvalues and eigenvectors of the covariance, by subspace iteration from rows.

    A product of two columns is divided by the chance that both are there.
    """
    share = np.maximum(w @ observed / w.sum(), 1 / len(w))
    scaled = known / share
    weighted, own = scaled * (w / w.sum())[:, None], (1 / share - 1)[:, None]

    def product(B: Array) -> Array:
        return np.asarray(weighted.T @ (scaled @ B) - own * B)

    first = np.argsort(row_hashes(known), kind="stable")[:rank]
    basis = np.linalg.qr(scaled[first].T)[0]
    for _ in range(ITERATIONS):
        basis = np.linalg.qr(product(basis))[0]
    values, turn = np.linalg.eigh(basis.T @ product(basis))
    return values[::-1], (basis @ turn)[:, ::-1]


def _start(values: Array, vectors: Array, rank: int) -> Factors:
    """Probabilistic principal components (Tipping and Bishop, 1999), with noise of each feature's own."""
    d, values = len(vectors), values[:rank]
    noise = max((d - float(values.sum())) / max(d - rank, 1), LEAST_NOISE)
    loadings = vectors[:, :rank] * np.sqrt(np.maximum(values - noise, 0.0))
    return Factors(loadings, np.maximum(1 - (loadings**2).sum(axis=1), LEAST_NOISE))


def _maximised(known: Array, observed: Masks, w: Array, start: Factors) -> Factors:
    """Some steps of the EM algorithm."""
    rank, model = start.loadings.shape[1], start
    if not observed.all():  # then each row and each feature has a matrix of its own
        most = LARGEST // max(rank, 1) ** 2
        some = np.argsort(row_hashes(known), kind="stable")[:most]
        known, observed, w = known[some], observed[some], w[some]
        if known.shape[1] > most:
            return model
    if not rank:
        return model
    patterns, which = unique_masks(observed)
    counts, squares = w @ observed, w @ known**2
    there = observed.astype(float) * w[:, None]
    for _ in range(STEPS):
        second = model.factor_covariance(patterns)
        z = np.einsum("rij,rj->ri", second[which], (known / model.noise) @ model.loadings)
        crossed = (known * w[:, None]).T @ z
        if len(patterns) == 1:
            sums = (w.sum() * second[0] + (z.T * w) @ z)[None] * patterns[0][:, None, None]
        else:
            sums = outer_sums(there.T, z) + _open_sums(there, which, second)
        loadings = np.linalg.solve(sums + np.eye(rank), crossed[:, :, None])[:, :, 0]
        left = squares - 2 * (loadings * crossed).sum(axis=1) + 1.0  # as if one row more had been seen
        left += np.einsum("di,dij,dj->d", loadings, np.broadcast_to(sums, (len(left), rank, rank)), loadings)
        model = Factors(loadings, np.maximum(left / (counts + 1.0), LEAST_NOISE))
    return model


def _open_sums(there: Array, which: Indices, covariances: Array) -> Array:
    """For each feature, the sum of the covariances of the factors over the rows that have it."""
    k = covariances.shape[1]
    by_pattern = np.zeros((len(covariances), there.shape[1]))
    np.add.at(by_pattern, which, there)
    return np.asarray((by_pattern.T @ covariances.reshape(len(covariances), -1)).reshape(-1, k, k))
