"""DSGD on quadratics and least squares with expected smoothness: often a longer step than 1/(L_f L_max).

For quadratics the sketched gradients are linear, grad f_S(x) - grad f_S(y) = S'HS (x - y), so the constant of
Gower et al. (SGD: General Analysis and Improved Rates, 2019) can be computed instead of bounded:
E|grad f_S(x) - grad f_S(x_D*)|² <= 2 Lambda (f_D(x) - f_D^inf) holds with

    Lambda = lambda_max(H_D^-½ E[(S'HS)²] H_D^-½),    H_D = E[S'HS].

E[S] = I is not needed: f_D is the mean of f_S, whatever the mean of S.
"""

from __future__ import annotations

from mast.checks import optional, positive
from mast.theory.arguments import combined, consistent, strong_convexity
from mast.theory.forms import Contraction, Words, known, noise_of
from mast.theory.guarantee import Guarantee

_WORDS = Words(
    "Theorem 3.1 of Gower et al. 2019: DSGD on a quadratic, with expected smoothness",
    ("f is a quadratic or a least-squares loss", "H_D = E[S'HS] is positive definite"),
    "g <= 1/(2 Lambda)",
    "(1 - g mu)^T r0sq + 2 g sigma²/mu",
)


def expected_smoothness(
    *, Lambda: float | None = None, mu: float | None = None, sigma_sq: float | None = None
) -> Guarantee:
    """The guarantee of DSGD (I) on a quadratic: not in the paper.

    A longer step also ends at a higher floor: of two statements the one with the smaller bound is the better.

    Parameters
    ----------
    Lambda
        The expected smoothness, see above.
    mu
        The smallest eigenvalue of H_D.
    sigma_sq
        E|grad f_S(x_D*)|²; the step size alone does not need it.

    >>> g = expected_smoothness(Lambda=20, mu=.5, sigma_sq=.1)
    >>> g.max_step_size(), g.bound(step_size=.025, T=[0, 1000], r0sq=2.0)
    (0.025, array([2.01     , 0.010...]))
    """
    Lambda, mu = positive("Lambda", Lambda), strong_convexity("mu", mu)
    sigma_sq = optional("sigma_sq", sigma_sq)
    limit = 1 / (2 * combined("Lambda", Lambda))
    consistent(mu, limit, "2 Lambda")
    return Contraction(
        **_WORDS.filled("DSGD", "strongly_convex", known(Lambda=Lambda, mu=mu, **{"sigma²": sigma_sq})),
        mu=mu,
        limit=limit,
        noise=noise_of(2.0, sigma_sq),
        noise_needs="sigma_sq",
    )
