"""Time to fit a sparsifiable classifier beside scikit-learn's LogisticRegression, at equal tolerance."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import mast
from _bench import Row, best, versus
from mast.errors import DataError

TITLE = "Estimators"

FOLDER = Path(os.environ.get("MAST_DATA", Path(__file__).parents[2] / "shared" / "data"))
TOL = 1e-6  # of LogisticRegression: the largest entry of the gradient


def rows() -> Iterator[Row]:
    try:
        A, b = mast.data.load("w8a", data_dir=FOLDER if FOLDER.is_dir() else None, download=False)
    except DataError as error:
        warnings.warn(f"w8a is not here, so fitting is not measured: {error}", stacklevel=2)
        return
    ours = mast.MastClassifier(mast.PermK(4), kappa=100, random_state=0).fit(A, b)
    plain = LogisticRegression(C=1 / (len(b) * ours.alpha_), tol=TOL, max_iter=1000)
    peer, mine = best(lambda: plain.fit(A, b), lambda: ours.fit(A, b), tries=5)
    yield versus("fit exact Perm-4 on w8a (49,749 x 300)", mine, f"LogisticRegression, tol {TOL:g}", peer, 6)
    model, usual = mast.MastClassifier(random_state=0), LogisticRegression(max_iter=1000)
    peer, mine = best(lambda: usual.fit(A, b), lambda: model.fit(A, b), tries=3)
    yield versus("fit with defaults on w8a, sparse", mine, "LogisticRegression", peer, 6)
    peer, mine = best(lambda: usual.predict(A), lambda: model.predict(A), tries=9)
    yield versus("predict w8a, nothing missing", mine, "LogisticRegression", peer, 1.5)
    yield from _dense()
    yield from _many()
    scored = ours
    peer, mine = best(lambda: plain.predict(A), lambda: scored.score_sparsified(A, b, draws=100), tries=3)
    yield versus(
        "score 100 sparsified models on w8a", mine, "100 times LogisticRegression.predict", 100 * peer, 1
    )


def _dense() -> Iterator[Row]:
    """A dense table: stand-ins by default."""
    X, y = load_digits(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    model, usual = mast.MastClassifier(random_state=0).fit(X, y), LogisticRegression(max_iter=1000)
    peer, mine = best(lambda: usual.fit(X, y), lambda: model.fit(X, y), tries=5)
    yield versus("fit with defaults on digits (1,797 x 64, 10 classes)", mine, "LogisticRegression", peer, 6)
    peer, mine = best(lambda: usual.predict(X), lambda: model.predict(X), tries=20)
    yield versus("predict digits, nothing missing", mine, "LogisticRegression", peer, 1.5)
    half = np.where(np.random.default_rng(0).random(X.shape) < 0.5, np.nan, X)
    imputer = IterativeImputer(max_iter=3, random_state=0, tol=1e-1).fit(half[::4])
    peer, mine = best(lambda: usual.predict(imputer.transform(half)), lambda: model.predict(half), tries=1)
    yield versus("predict digits, half of the cells missing", mine, "IterativeImputer, 3 rounds", peer, 0.05)
    yield from _imputers("digits", half, y)
    generator = np.random.default_rng(0)
    X = generator.standard_normal((10_000, 12)) @ generator.standard_normal((12, 100)) / 3
    X += generator.standard_normal(X.shape)
    y = X @ generator.standard_normal(100) + generator.standard_normal(len(X)) > 0
    X[generator.random(X.shape) < 0.5] = np.nan
    yield from _imputers("10,000 x 100", X, y)


def _imputers(name: str, X: Any, y: Any) -> Iterator[Row]:
    """Fit and transform, and the accuracy of LogisticRegression on odd rows after it, fitted to even ones."""
    ours = mast.ConditionalImputer()
    mine = best(lambda: ours.fit(X).transform(X), tries=5)[0]
    score = _downstream(ours, X, y)
    for peer, target in ((IterativeImputer(max_iter=3, tol=0.1, random_state=0), 8), (KNNImputer(), 20)):
        theirs = best(lambda peer=peer: peer.fit(X).transform(X), tries=1)[0]
        detail = f"accuracy {score:.3f} and {_downstream(peer, X, y):.3f}"
        job = f"impute {name}, half of the cells missing"
        yield versus(job, mine, type(peer).__name__, theirs, 1 / target, detail=detail)


def _downstream(imputer: Any, X: Any, y: Any) -> float:
    few = X[:4000], y[:4000]
    rows, labels = imputer.fit(few[0][::2]).transform(few[0]), few[1]
    return LogisticRegression(max_iter=1000).fit(rows[::2], labels[::2]).score(rows[1::2], labels[1::2])


def _many() -> Iterator[Row]:
    """A million rows, at most 15 s of one core."""
    generator = np.random.default_rng(0)
    X = generator.standard_normal((1_000_000, 20)) @ generator.standard_normal((20, 20))
    y = X @ generator.standard_normal(20) + 3 * generator.standard_normal(len(X)) > 0
    model, usual = mast.MastClassifier(random_state=0), LogisticRegression(max_iter=1000)
    peer, mine = best(lambda: usual.fit(X, y), lambda: model.fit(X, y), tries=1)
    yield versus("fit with defaults on 1,000,000 x 20", mine, "LogisticRegression", peer, 6)
