"""For researchers: minimise the expected loss of sparsified models; compare with plain model and bound.

    python examples/researcher.py        a few seconds

A logistic model of a1a (which comes with the package) is pruned at random: one of ten blocks of its weights
is kept, scaled by ten. The usual way is to train the plain model and prune it. MAST minimises f_D, the mean
loss over the pruned models, exactly or by a method with a guarantee, whose curve is compared with its bound.
"""

import numpy as np

import mast

STEPS = 4000


def main() -> None:
    A, b = mast.data.load("a1a")
    rows = np.arange(len(b)) % 4 > 0  # three quarters to train on, the rest to test on
    f = mast.Logistic(A[rows], b[rows], kappa=100)
    sketch = mast.PermK(10, seed=0)
    problem = mast.Problem(f, sketch)

    def accuracies(x: np.ndarray) -> np.ndarray:
        """Of each of the ten sparsified models, on test rows."""
        cuts = [draw.apply(x) for _, draw in sketch.support(f.dim)]
        return np.array([np.mean(np.where(A[~rows] @ cut > 0, 1, -1) == b[~rows]) for cut in cuts])

    solution = problem.minimizer()
    guarantee = mast.guarantee(problem, "dsgd")
    run = mast.minimize(problem, "dsgd", steps=STEPS)  # at the largest step size that the theorem allows
    bound = guarantee.bound(run.step_size, run.trace["step"].to_numpy(), r0sq=solution @ solution)
    print(f"{guarantee.statement}; step size {run.step_size:.4f}")
    print(f"below its bound at every step: {bool((run.trace['dist_sq'] <= bound * (1 + 1e-9)).all())}\n")

    models = {
        "plain, exact": f.minimizer(),
        "MAST, exact": solution,
        f"MAST, {STEPS:,} steps of DSGD": run.x,
    }
    print(f"{'':28} {'f':>6} {'f_D':>6}   accuracy of a tenth: mean, worst")
    for name, x in models.items():
        cut = accuracies(x)
        print(f"{name:28} {f.value(x):6.3f} {problem.value(x):6.3f}   {cut.mean():.3f}, {cut.min():.3f}")


if __name__ == "__main__":
    main()
