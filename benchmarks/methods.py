"""Steps of the methods: against scikit-learn, against NumPy loops, against SciPy's gradients."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import scipy.sparse
from sklearn.linear_model import SGDClassifier

import mast
from _bench import Row, best, versus
from mast.methods import make

TITLE = "Methods"

DATA = Path(os.environ.get("MAST_DATA", Path(__file__).parents[2] / "shared" / "data"))
STEPS = 300_000

MEMORY = """
import resource, numpy as np, scipy.sparse, mast
d, n = 10**6, 2000
rng = np.random.default_rng(0)
A = scipy.sparse.random(n, d, 1e-5, format="csr", random_state=0)
f = mast.Logistic(A, np.where(rng.random(n) < .5, -1., 1.), l2=0.0)
problem = mast.Problem(f, mast.PermK(1000))
mast.minimize(problem, "dsgd_sampled", 10, 1e-3, trace=10)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
mast.minimize(problem, "dsgd_sampled", 10**5, 1e-3)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
"""


def rows() -> Iterator[Row]:
    A, b = mast.data.load("a5a" if (DATA / "libsvm" / "a5a.gz").exists() else "a1a", data_dir=DATA)
    f = mast.Logistic(A, b, kappa=100)
    yield from _sampled(f)
    if (DATA / "libsvm" / "w8a.gz").exists():
        A, b = mast.data.load("w8a", data_dir=DATA)
        yield _exact(mast.Logistic(A, b, kappa=100))
    yield _extras(f)
    yield _memory()


def _sampled(f: mast.Logistic) -> Iterator[Row]:
    """Steps a second of the compiled loop, against samples a second of scikit-learn's SGD."""
    epochs = 20
    csr = f.design.csr
    A = scipy.sparse.csr_matrix(
        (csr.data, csr.indices.astype(np.int32), csr.indptr.astype(np.int32)), shape=(f.terms, f.dim)
    )

    def sgd() -> None:
        SGDClassifier(loss="log_loss", alpha=1e-3, max_iter=epochs, tol=None, fit_intercept=False).fit(
            A, f.labels
        )

    for sketch, share in ((mast.PermK(10), 0.35), (mast.Bernoulli(0.5), 0.15)):  # of the peer's speed
        method = make("dsgd_sampled", {}).bind(mast.Problem(f, sketch), 0)
        state = method.start(np.zeros(f.dim))
        sizes = np.full(STEPS, 1e-4)
        ours, theirs = best(lambda m=method, s=state, g=sizes: m.advance(s, 0, g), sgd)
        rate, peer = STEPS / ours, f.terms * epochs / theirs
        yield versus(
            f"dsgd_sampled, {type(sketch).__name__}: a step",
            1 / rate,
            "SGDClassifier: a sample",
            1 / peer,
            1 / share,
            detail=f"{rate / 1e6:.2f} million a second against {peer / 1e6:.2f}",
        )
    method = make("dsgd_sampled", {}).bind(mast.Problem(f, mast.PermK(10)), 0)
    state = method.start(np.zeros(f.dim))
    ours, loop = best(
        lambda: method.advance(state, 0, np.full(STEPS, 1e-4)), lambda: numpy_loop(f, 3000, 1e-4), tries=3
    )
    yield versus(
        "dsgd_sampled, PermK: the same step", ours / STEPS, "the same as a NumPy loop", loop / 3000, 1 / 15
    )


def numpy_loop(f: mast.Logistic, steps: int, g: float) -> np.ndarray:
    """One block of ten, one row a step, as one would write it with NumPy."""
    generator = np.random.default_rng(0)
    blocks = np.array_split(generator.permutation(f.dim), 10)
    masks = [np.isin(np.arange(f.dim), block) for block in blocks]
    x, A = np.zeros(f.dim), f.design.csr
    l2 = f.strong_convexity
    for _ in range(steps):
        k, i = generator.integers(10), generator.integers(f.terms)
        row = slice(A.indptr[i], A.indptr[i + 1])
        kept = masks[k][A.indices[row]]
        columns, values = A.indices[row][kept], A.data[row][kept]
        margin = f.labels[i] * 10 * (values @ x[columns])
        factor = -f.labels[i] / (1 + np.exp(margin))
        x[blocks[k]] -= g * 100 * l2 * x[blocks[k]]
        x[columns] -= g * 10 * factor * values
    return x


def _exact(f: mast.Logistic) -> Row:
    """A step of dsgd (I) against SciPy's gradient on the columns that it keeps."""
    problem = mast.Problem(f, mast.PermK(10))
    method = make("dsgd", {}).bind(problem, 0)
    state = method.start(np.zeros(f.dim))
    A = scipy.sparse.csr_matrix(
        (f.design.csr.data, f.design.csr.indices, f.design.csr.indptr), shape=(f.terms, f.dim)
    )
    kept = [A[:, block].tocsr() for block in problem.sketch.partition(f.dim)]
    transposed = [part.T.tocsr() for part in kept]
    xs = [np.full(part.shape[1], 0.01) for part in kept]

    def scipy_gradients() -> None:
        for part, turned, x in zip(kept, transposed, xs, strict=True):
            slopes = -f.labels / (1 + np.exp(f.labels * (10 * (part @ x))))
            _ = turned @ slopes / f.terms + f.strong_convexity * x

    steps = np.full(10, 1e-6)
    ours, peer = best(lambda: method.advance(state, 0, steps), scipy_gradients)
    return versus(
        "dsgd, PermK(10), w8a: a step", ours / 10, "SciPy's gradient of the kept columns", peer / 10, 1.5
    )


def _extras(f: mast.Logistic) -> Row:
    problem = mast.Problem(f, mast.PermK(10))
    problem.minimizer()
    steps = 10_000_000
    with tempfile.TemporaryDirectory() as folder:
        number = iter(range(100))

        def full() -> None:
            mast.minimize(problem, "dsgd_sampled", steps, checkpoint=Path(folder) / f"run{next(number)}")

        def bare() -> None:
            mast.minimize(problem, "dsgd_sampled", steps, trace=steps)

        ours, peer = best(full, bare, tries=4)
    return versus("a run of 10^7 steps with trace and checkpoint", ours, "without", peer, 1.1)


def _memory() -> Row:
    printed = subprocess.run([sys.executable, "-c", MEMORY], check=True, capture_output=True, text=True)
    grown = float(printed.stdout)
    return versus(
        "memory of a run, d = 10^6, 10^5 steps, beyond that of a run of 10 steps",
        grown,
        "ten vectors of d numbers",
        10 * 8e6,
        1.0,
        unit="B",
    )
