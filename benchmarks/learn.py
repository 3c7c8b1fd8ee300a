"""Time to fit a sparsifiable classifier beside scikit-learn's LogisticRegression, at equal tolerance."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression

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
    ours = mast.MastClassifier(random_state=0).fit(A, b)
    plain = LogisticRegression(C=1 / (len(b) * ours.alpha_), tol=TOL, max_iter=1000)
    peer, mine = best(lambda: plain.fit(A, b), lambda: ours.fit(A, b), tries=5)
    yield versus(
        "fit exact Perm-4 on w8a (49,749 x 300)",
        mine,
        f"LogisticRegression, tol {TOL:g}",
        peer,
        6,
        detail=f"our gradient {_gradient(ours, A, b):.0e}",
    )
    scored = mast.MastClassifier(random_state=0).fit(A, b)
    peer, mine = best(lambda: plain.predict(A), lambda: scored.score_sparsified(A, b, draws=100), tries=3)
    yield versus(
        "score 100 sparsified models on w8a", mine, "100 times LogisticRegression.predict", 100 * peer, 1
    )


def _gradient(model: mast.MastClassifier, A: object, b: np.ndarray) -> float:
    """How exact the fit is, in the terms of the peer's tolerance."""
    from mast.learn.fitting import FitPlan

    plan = FitPlan(A, None, model.sketch_, False, None, model.alpha_, True, "auto", 1, 1.0, 0)
    problem = plan.problem(np.where(b == model.classes_[1], 1.0, -1.0), model.shift_[0])
    return float(np.abs(problem.gradient(np.append(model.coef_[0], model.intercept_[0]))).max())
