"""Small data and every linear model on them: one line here, and the suites run on it."""

import numpy as np
import scipy.sparse

import mast

D = 6  # as the sketches' samples have
N = 17


def data(seed=0, n=N, d=D, share=0.6):
    """Rows with zeros; one row and one column empty, two rows equal."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(n, d)) * (rng.random((n, d)) < share)
    if n > 8:
        A[3] = 0.0
        A[7] = A[8]
    if d > 4:
        A[:, 4] = 0.0
    return A, np.where(rng.random(n) < 0.5, 1.0, -1.0)


WEIGHTS = np.random.default_rng(1).random(N) + 0.1

MODELS = {
    "logistic": lambda A, b: mast.Logistic(A, b, l2=0.1),
    "logistic, weighted": lambda A, b: mast.Logistic(A, b, kappa=50, sample_weight=WEIGHTS),
    "least squares": lambda A, b: mast.LeastSquares(A, b + np.linspace(0, 1, len(b)), l2=0.1),
    "least squares, weighted": lambda A, b: mast.LeastSquares(A, b, kappa=20, sample_weight=WEIGHTS),
    "non-convex": lambda A, b: mast.NonconvexLogistic(A, b, 0.1),
    "non-convex, weighted": lambda A, b: mast.NonconvexLogistic(A, b, 0.05, sample_weight=WEIGHTS),
}
CONVEX = [name for name in MODELS if not name.startswith("non")]


def halves(sketches, models):
    """Every (sketch, model), in both formats, shifted in one of them by turns."""
    return [
        (sketch, model, form, shifted)
        for i, sketch in enumerate(sketches)
        for j, model in enumerate(models)
        for form, shifted in (("dense", (i + j) % 2 == 0), ("csr", (i + j) % 2 == 1))
    ]


FORMATS = {
    "dense": lambda A: A,
    "csr": scipy.sparse.csr_matrix,
}
