"""Linear models: exact f_D against one gradient of f, its minimiser against a peer's, and one draw."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

import mast
from mast.bench import Row, best, seconds

NAME = "w8a"


def rows() -> Iterator[Row]:
    loaded = _load()
    if loaded is None:
        print(f"linear: {NAME} is not here, so its rows are left out; set MAST_DATA", file=sys.stderr)
    else:
        yield from _gradients(*loaded)
        yield from _minimisers(*loaded)
        yield from _one_draw(*loaded)
    yield from _growth()


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
    for sketch, target in ((mast.PermK(10), 4.0), (mast.RandK(1), 6.0)):
        plain, shifted = mast.Problem(f, sketch), mast.Problem(f, sketch, v)
        full, ours, moved = best(
            peer, lambda p=plain: p.gradient(x), lambda p=shifted: p.gradient(x), tries=15
        )
        name = repr(sketch).split(":")[0].strip("<")
        yield Row(
            f"exact gradient of f_D, {name}, {NAME}",
            "one SciPy gradient of f",
            ours / full,
            target,
            detail=f"{seconds(ours)} against {seconds(full)}",
        )
        yield Row(
            f"the same with a shift, {name}",  # no two rows are equal then, so none are merged
            "one SciPy gradient of f",
            moved / full,
            target,
            detail=f"{seconds(moved)} against {seconds(full)}",
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
        yield Row(
            f"minimiser of f_D, PermK(10){name}, {NAME}, |grad|² = {g @ g:.0e}",
            f"scikit-learn newton-cg on f, |grad|² = {reached @ reached:.0e}",
            took / peer_time,
            4.0,
            detail=f"{seconds(took)} against {seconds(peer_time)}",
        )


def _one_draw(A: Any, b: Any) -> Iterator[Row]:
    f = mast.Logistic(A, b, kappa=100)
    x, v = np.random.default_rng(0).normal(size=f.dim) / 10, np.zeros(f.dim)
    v.setflags(write=False)
    for sketch in (mast.PermK(10), mast.Bernoulli(0.1)):
        draw = sketch.draw(f.dim, seed=1)
        peer = _peer_gradient(A[:, draw.indices], b, f.l2, x[draw.indices])
        full, ours = best(peer, lambda d=draw: f.sketched_gradient(x, d, v), tries=25)
        yield Row(
            f"gradient of one draw, {repr(sketch).split(':')[0].strip('<')}, {NAME}",
            "one SciPy gradient on the kept columns",
            ours / full,
            1.5,
            detail=f"{seconds(ours)} against {seconds(full)}",
        )


def _growth() -> Iterator[Row]:
    """Exponents: how the exact gradient's time grows when one size grows and the others stay."""

    def problem(n: int, row: int, K: int) -> Callable[[], Any]:
        rng = np.random.default_rng(0)
        d = 4096
        columns = rng.integers(0, d, size=(n, row)).ravel()
        A = scipy.sparse.csr_matrix(
            (rng.normal(size=n * row), columns, np.arange(0, n * row + 1, row)), (n, d)
        )
        exact = mast.Problem(
            mast.Logistic(A, np.where(rng.random(n) < 0.5, 1, -1), l2=0.1), mast.PermK(K)
        ).exact
        x = rng.normal(size=d) / 100
        return lambda: exact.gradient(x)

    for name, sizes, factor in (
        ("n", [(n, 16, 64) for n in (16_000, 64_000, 256_000)], 4),
        ("non-zeros a row", [(32_000, row, 64) for row in (8, 32, 128)], 4),
        ("K", [(64_000, 16, K) for K in (4, 32, 256)], 8),
    ):
        times = _processor_times([problem(*size) for size in sizes])
        exponent = np.polyfit(np.arange(3) * np.log(factor), np.log(times), 1)[0]
        yield Row(
            f"growth of the exact gradient with {name}: exponent",
            "linear",
            float(exponent),
            1.05,
            detail=f"{', '.join(map(seconds, times))} of processor time, each size {factor} times the last",
        )


def _processor_times(jobs: list[Callable[[], Any]], tries: int = 9) -> list[float]:
    """As `best`, in processor time: on a busy machine long runs are interrupted and short ones are not."""
    times = [float("inf")] * len(jobs)
    for _ in range(tries):
        for i, job in enumerate(jobs):
            start = time.process_time()
            job()
            times[i] = min(times[i], time.process_time() - start)
    return times
