"""Exact second moments of sketched gradients, where f is a quadratic: what expected smoothness is made of."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg

from mast.errors import MastError
from mast.objectives import LeastSquares, Quadratic
from mast.problem import Problem
from mast.sketches import IndependentLaw
from mast.support.checks import Array
from mast.theory import Guarantee, expected_smoothness

LARGEST = 500  # dimensions: the eigenvalues of a matrix take their cube
OUTCOMES = 256  # draws of a support that is enumerated


class GradientMoments(NamedTuple):
    """H_D = E[S'HS], E[(S'HS)²], and E|grad f_S(x_D*)|² (None where it was not asked for)."""

    curvature: Array
    square: Array
    sigma_sq: float | None


def by_expected_smoothness(problem: Problem, noise: bool) -> Guarantee | None:
    """The statement with expected smoothness, where it can be computed; `noise` for a bound with it."""
    if not isinstance(problem.objective, Quadratic | LeastSquares) or problem.dim > LARGEST:
        return None
    try:
        moments = gradient_moments(problem, noise)
    except MastError:  # a sketch whose support is too large, an f_D without minimiser
        return None
    if moments is None:
        return None
    mu = float(scipy.linalg.eigvalsh(moments.curvature)[0])
    if mu <= 1e-12 * float(np.trace(moments.curvature)):
        return None
    Lambda = float(scipy.linalg.eigh(moments.square, moments.curvature, eigvals_only=True)[-1])
    return expected_smoothness(Lambda=Lambda, mu=mu, sigma_sq=moments.sigma_sq)


def gradient_moments(problem: Problem, noise: bool = True) -> GradientMoments | None:
    """In closed form for independent coordinates, by enumeration for small supports, else None."""
    law = problem.sketch.law(problem.dim)
    if isinstance(law, IndependentLaw) and law.labels is None and not law.noise and law.unbiased:
        return _independent(problem, np.broadcast_to(1 / np.asarray(law.keep), problem.dim), noise)
    size = problem.sketch.support_size(problem.dim)
    if size is None or size > OUTCOMES:
        return None
    H = problem.objective.hessian(problem.shift)
    x, g = problem.minimizer() if noise else None, problem.objective.gradient(problem.shift)
    curvature, square, sigma_sq = np.zeros_like(H), np.zeros_like(H), 0.0
    for probability, draw in problem.sketch.support(problem.dim) or []:
        S = draw.matrix()
        sketched = S.T @ H @ S
        curvature += probability * sketched
        square += probability * (sketched @ sketched)
        if x is not None:
            sigma_sq += probability * float(np.sum((S.T @ g + sketched @ (x - problem.shift)) ** 2))
    return GradientMoments(curvature, square, sigma_sq if noise else None)


def _independent(problem: Problem, scales: Array, noise: bool) -> GradientMoments:
    """Entries c_i that are s_i with probability 1/s_i, else 0: E[c_i^k] = s_i^(k-1)."""
    H, s = problem.objective.hessian(problem.shift), scales
    diagonal = np.diag(H)
    curvature = H.copy()
    np.fill_diagonal(curvature, s * diagonal)
    # Entry ij of E[SHS²HS] is the sum over k of H_ik H_kj E[c_i c_k² c_j]: for i, j and k different that is
    # s_k, and there is more where k is i or j.
    square = (H * s) @ H
    more = (s * (s - 1) * diagonal)[:, None] * H
    square += more + more.T
    np.fill_diagonal(square, s * (H**2 @ s) + s**2 * (s - 1) * diagonal**2)
    if not noise:
        return GradientMoments(curvature, square, None)
    u = problem.minimizer() - problem.shift
    rest = problem.objective.gradient(problem.shift) + H @ u - diagonal * u  # the mean without c_i
    variance = H**2 @ (u**2 * (s - 1)) - diagonal**2 * u**2 * (s - 1)
    each = s * (rest**2 + variance) + 2 * s**2 * diagonal * u * rest + s**3 * (diagonal * u) ** 2
    return GradientMoments(curvature, square, float(each.sum()))
