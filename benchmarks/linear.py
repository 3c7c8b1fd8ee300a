"""Linear models: exact f_D against one gradient of f, its minimiser against a peer's, and one draw."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

import mast
from _bench import Row, bandwidth, best, versus

TITLE = "Linear models"

NAME = "w8a"


def rows() -> Iterator[Row]:
    loaded = _load()
    if loaded is None:
        print(f"linear: {NAME} is not here, so its rows are left out; set MAST_DATA", file=sys.stderr)
    else:
        yield from _gradients(*loaded)
        yield from _minimisers(*loaded)
        yield from _one_draw(*loaded)


def _load() -> tuple[Any, Any] | None:
    beside = Path(__file__).parents[2] / "shared" / "data"
    folder = Path(os.environ.get("MAST_DATA", beside))
    for place in (folder, folder / "libsvm"):
        if list(place.glob(f"{NAME}*")):
            A, b = mast.data.load(NAME, data_dir=place)
            return A, b
    return None


def _peer_gradient(A: Any, b: Any, l2: float, x: Any) -> Callable[[], Any]:
    """One full gradient of logistic regression, as well as SciPy can: with a stored transpose."""
    A = scipy.sparse.csr_matrix(A)
    T = A.T.tocsr()

    def gradient() -> Any:
        with np.errstate(over="ignore"):
            return T @ (-b / (1 + np.exp(b * (A @ x)))) / b.size + l2 * x

    return gradient


def _gradients(A: Any, b: Any) -> Iterator[Row]:
    rng = np.random.default_rng(0)
    x, v = rng.normal(size=A.shape[1]) / 10, rng.normal(size=A.shape[1]) / 10
    f = mast.Logistic(A, b, kappa=100)
    peer = _peer_gradient(A, b, f.l2, x)
    moved_bytes = 2 * A.nnz * 12 + 4 * 8 * b.size  # A once forward and once backward, margins and slopes
    physics = {"limit": moved_bytes / bandwidth(), "limit_of": "memory"}
    for sketch, target in ((mast.PermK(10), 4.0), (mast.RandK(1), 6.0)):
        plain, shifted = mast.Problem(f, sketch), mast.Problem(f, sketch, v)
        full, ours, moved = best(
            peer, lambda p=plain: p.gradient(x), lambda p=shifted: p.gradient(x), tries=15
        )
        name = repr(sketch).split(":")[0].strip("<")
        yield versus(
            f"exact gradient of f_D, {name}, {NAME}",
            ours,
            "one SciPy gradient of f",
            full,
            target,
            detail="equal rows are merged",
        )
        yield versus(
            f"the same with a shift, {name}", moved, "one SciPy gradient of f", full, target, **physics
        )


def _minimisers(A: Any, b: Any) -> Iterator[Row]:
    from sklearn.linear_model import LogisticRegression

    kappa = 100
    f = mast.Logistic(A, b, kappa=kappa)
    v = np.random.default_rng(0).normal(size=f.dim) / 10
    peer = LogisticRegression(
        C=1 / (f.l2 * f.terms), solver="newton-cg", fit_intercept=False, tol=1e-10, max_iter=1000
    )

    def theirs() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it cannot reach such a tolerance, and says so
            return peer.fit(A, b)

    def ours(shift: Any) -> mast.Problem:
        problem = mast.Problem(f, mast.PermK(10), shift)
        problem.minimizer()
        return problem

    peer_time, plain, moved = best(theirs, lambda: ours(None), lambda: ours(v), tries=3)
    reached = f.gradient(peer.coef_[0])
    for took, shift, name in ((plain, None, ""), (moved, v, " with a shift")):
        problem = ours(shift)
        g = problem.gradient(problem.minimizer())
        yield versus(
            f"minimiser of f_D, PermK(10){name}, {NAME}, |grad|² = {g @ g:.0e}",
            took,
            f"scikit-learn newton-cg on f, |grad|² = {reached @ reached:.0e}",
            peer_time,
            4.0,
        )


def _one_draw(A: Any, b: Any) -> Iterator[Row]:
    f = mast.Logistic(A, b, kappa=100)
    x = np.random.default_rng(0).normal(size=f.dim) / 10
    for sketch in (mast.PermK(10), mast.Bernoulli(0.1)):
        draw = sketch.draw(f.dim, seed=1)
        peer = _peer_gradient(A[:, draw.indices], b, f.l2, x[draw.indices])
        problem = mast.Problem(f, sketch)
        full, ours = best(peer, lambda p=problem, d=draw: p.sketched_gradient(x, d), tries=25)
        yield versus(
            f"gradient of one draw, {repr(sketch).split(':')[0].strip('<')}, {NAME}",
            ours,
            "one SciPy gradient on the kept columns",
            full,
            1.5,
        )
