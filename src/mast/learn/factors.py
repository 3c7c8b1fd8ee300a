"""A Gaussian of many features: a few factors that they share, and noise of each feature's own.

The covariance is L L' + Psi, L the loadings (features, factors) and Psi diagonal (factor analysis). What is
there says z = A^-1 L_o' Psi_o^-1 a_o of the factors, with A = I + L_o' Psi_o^-1 L_o, and what is not becomes
L_m z: by Woodbury's identity this is the regression on what is there, in d k² operations for each row.
"""

from __future__ import annotations

import numpy as np

from mast import randomness
from mast.learn.gaussian import FeatureGaussian, Masks, unique_masks
from mast.learn.validation import row_hashes
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


class FactorGaussian(FeatureGaussian):
    """Features whose covariance is loadings loadings' + diag(noise)."""

    def __init__(self, mean: Array, loadings: Array, noise: Array) -> None:
        self.mean = mean
        self.loadings = loadings  #: (features, factors)
        self.noise = noise  #: the variances of what is a feature's own, above 0
        self.rank = loadings.shape[1]

    @property
    def covariance(self) -> Array:
        """The covariance of all features."""
        return self.loadings @ self.loadings.T + np.diag(self.noise)

    def padded(self, count: int) -> FeatureGaussian:
        """The same with `count` features more, which say nothing of the others and have the mean 0."""
        loadings = np.pad(self.loadings, ((0, count), (0, 0)))
        return FactorGaussian(np.pad(self.mean, (0, count)), loadings, np.append(self.noise, np.ones(count)))

    def regress(self, masks: Masks, rows: Array) -> Array:
        """Centred rows, each with its mask: what it drops is replaced by its regression on the rest."""
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
        """w'a for each centred row a that `regress` fills, and each row w of `weights`: (rows, weights)."""
        return self.regress(masks, rows) @ weights.T

    def served_weights(self, masks: Masks, weights: Array) -> Array:
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


def fit_factors(X: Array, weights: Array | None, rank: int | None = None) -> FactorGaussian:
    """A Gaussian with factors, from rows that may hold NaN.

    By EM (Rubin and Thayer, 1982) from the leading directions of the covariance. A rank of None is chosen:
    some rows are held out, half of their cells are hidden, and the rank that predicts those best is taken.
    """
    mean, deviation = column_moments(X, weights)
    X = (X - mean) / deviation
    w = np.ones(len(X)) if weights is None else weights * (len(X) / weights.sum())
    observed = ~np.isnan(X)
    known = np.where(observed, X, 0.0)
    rank = choose_rank(X, w) if rank is None else min(rank, *X.shape)
    start = _principal_components(*_leading_eigenvectors(known, observed, w, rank), rank)
    found = _em_factors(known, observed, w, start)
    return FactorGaussian(mean, found.loadings * deviation[:, None], found.noise * deviation**2)


def column_moments(X: Array, weights: Array | None) -> tuple[Array, Array]:
    """The mean and the standard deviation of each column of X, which may hold NaN.

    A column without any value has the mean 0; the deviation is 1 where there is none.
    """
    w = np.ones(len(X)) if weights is None else weights
    observed = ~np.isnan(X)
    total = np.maximum(w @ observed, 1e-300)
    mean = w @ np.where(observed, X, 0.0) / total
    deviation = np.sqrt(w @ np.where(observed, X - mean, 0.0) ** 2 / total)
    return mean, np.where(deviation > 1e-12 * np.abs(mean), deviation, 1.0)


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
    values, vectors = _leading_eigenvectors(known[~held], observed[~held], w[~held], most)
    errors: dict[int, float] = {}

    def error(rank: int) -> float:
        if rank not in errors:
            guess = _principal_components(values, vectors, rank).regress(shown, known[held])
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


def _leading_eigenvectors(known: Array, observed: Masks, w: Array, rank: int) -> tuple[Array, Array]:
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


def _principal_components(values: Array, vectors: Array, rank: int) -> FactorGaussian:
    """Probabilistic principal components (Tipping and Bishop, 1999), with noise of each feature's own."""
    d, values = len(vectors), values[:rank]
    noise = max((d - float(values.sum())) / max(d - rank, 1), LEAST_NOISE)
    loadings = vectors[:, :rank] * np.sqrt(np.maximum(values - noise, 0.0))
    noise_left = np.maximum(1 - (loadings**2).sum(axis=1), LEAST_NOISE)
    return FactorGaussian(np.zeros(d), loadings, noise_left)


def _em_factors(known: Array, observed: Masks, w: Array, start: FactorGaussian) -> FactorGaussian:
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
            sums = outer_sums(there.T, z) + _covariance_sums(there, which, second)
        loadings = np.linalg.solve(sums + np.eye(rank), crossed[:, :, None])[:, :, 0]
        left = squares - 2 * (loadings * crossed).sum(axis=1) + 1.0  # as if one row more had been seen
        left += np.einsum("di,dij,dj->d", loadings, np.broadcast_to(sums, (len(left), rank, rank)), loadings)
        noise = np.maximum(left / (counts + 1.0), LEAST_NOISE)
        model = FactorGaussian(start.mean, loadings, noise)
    return model


def _covariance_sums(there: Array, which: Indices, covariances: Array) -> Array:
    """For each feature, the sum of the covariances of the factors over the rows that have it."""
    k = covariances.shape[1]
    by_pattern = np.zeros((len(covariances), there.shape[1]))
    np.add.at(by_pattern, which, there)
    return np.asarray((by_pattern.T @ covariances.reshape(len(covariances), -1)).reshape(-1, k, k))
