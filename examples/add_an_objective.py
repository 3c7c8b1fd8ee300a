"""How to add an objective: robust regression with Huber's loss, quadratic near 0 and linear beyond.

    python examples/add_an_objective.py

Inside MAST this class would be a file in src/mast/objectives.
"""

import numpy as np

import mast


class Huber(mast.Objective):
    """The mean of Huber's loss of the residuals A x - b, and l2/2 |x|²."""

    convex = True

    def __init__(self, A: np.ndarray, b: np.ndarray, l2: float = 0.0) -> None:
        self.A, self.b, self.l2 = A, b, l2
        self.terms, self.dim = A.shape  # each row is a term, so that methods may sample rows

    def value_and_gradient(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        x = self._point(x)
        r = self.A @ x - self.b
        small = np.abs(r) <= 1
        loss = np.where(small, r**2 / 2, np.abs(r) - 0.5).mean()
        slope = np.clip(r, -1, 1)
        return loss + self.l2 / 2 * (x @ x), self.A.T @ slope / self.terms + self.l2 * x

    def term_gradient(self, x: np.ndarray, rows: np.ndarray) -> np.ndarray:  # for dsgd_sampled
        slope = np.clip(self.A[rows] @ x - self.b[rows], -1, 1)
        return self.A[rows].T @ slope / len(rows) + self.l2 * x

    @property
    def smoothness(self) -> float:  # L_f: what step sizes are made of
        return np.linalg.norm(self.A, 2) ** 2 / self.terms + self.l2

    @property
    def strong_convexity(self) -> float:  # mu_f
        return self.l2

    @property
    def term_smoothness(self) -> np.ndarray:  # L_fi
        return (self.A**2).sum(axis=1) + self.l2


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    A = rng.normal(size=(200, 6))
    b = A @ np.arange(6.0) + rng.standard_t(1, size=200)  # noise with wild outliers
    problem = mast.Problem(Huber(A, b, l2=0.01), mast.Bernoulli(0.7))  # 64 sketches: f_D is exact
    result = mast.minimize(problem, "gd", steps=200)
    print(result)
    print("x:", result.x.round(2))
