"""The numbers that statements need, gathered from a problem: constants, regime, and the gap."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mast.errors import ArgumentError, MastError, NoGuaranteeError, NotExactError
from mast.objectives import Objective, Quadratic
from mast.problem import AbstractProblem, Problem
from mast.sketches import Sampled, Sketch
from mast.support.arrays import Array
from mast.theory import NO_STATEMENT, Guarantee

EXACT = "the gap is exact"
SHARP = "the gap is f_D^inf - E f_S^inf, which is sharper and exact here"
BOUND = "the gap is not known: Theorem 1's upper bound of it is used"
LOWER = "f^inf is replaced by a lower bound of f, so the gap is an upper bound"
SKIPPED = "the gap was not computed, so there is a step size but no bound"
ABSENT = "the gap could not be bounded, so there is a step size but no bound"
ESTIMATED = "the sketch's constants are estimated from draws, L_max is the largest that was seen"


@dataclass(frozen=True)
class Gap:
    """f_D^inf - f^inf or what stands for it, and which of them it is."""

    value: float | None
    source: str
    estimated: bool = False  # whether the constants of a sketch are
    deviation: float = 0.0  # how far the mean of a list of draws is from I

    def mark(self, guarantee: Guarantee) -> Guarantee:
        """The guarantee with a word on where its gap, and estimated constants, come from."""
        notes = [self.source] * (self.source != EXACT) + [ESTIMATED] * self.estimated
        if self.deviation:
            notes.append(
                f"f_D is the mean over a list of draws, whose mean S is off I by up to {self.deviation:.3g}; "
                "the constants are those of the list"
            )
        return replace(guarantee, assumptions=(*guarantee.assumptions, *notes))


def constants_of(problem: Problem, gap: Gap) -> dict[str, Any]:
    """L_f, mu_f, L_D, mu_D, L_max and gap, by the names that the statements take."""
    f = problem.objective
    c = problem.sketch.constants(problem.dim)
    return {
        "L_f": f.smoothness,
        "mu_f": f.strong_convexity,
        "L_D": c.L_D,
        "mu_D": c.mu_D,
        "L_max": c.L_max,
        "gap": gap.value,
    }


def deviation_of(sketch: Sketch, dim: int) -> float:
    """How far the mean of a list of draws is from I: the largest entry of the difference."""
    if not isinstance(sketch, Sampled):
        return 0.0
    off = float(np.abs(sketch.mean(dim) - 1).max())
    return off if off > 1e-9 else 0.0


def refuse_dependent(sketches: Sequence[Sketch]) -> None:
    """An error if draws of different steps depend on each other: no statement covers those."""
    if not all(sketch.independent for sketch in sketches):
        raise NoGuaranteeError(NO_STATEMENT["dependent_draws"])


def regime_of(problem: AbstractProblem, regime: str | None = None) -> str:
    """The regime asked for, or the strongest that holds."""
    if regime is not None:
        return regime
    if problem.strong_convexity > 0:
        return "strongly_convex"
    return "convex" if all(p.objective.convex for p in problem.problems) else "nonconvex"


def gap_of(problem: AbstractProblem, effort: str = "exact", sharp: bool = False) -> Gap:
    """f_D^inf - mean_i f_i^inf: exact where f_D is, else bounded by Theorem 1.

    `effort` is "exact", "quick" (exact only where that takes no patience) or "none".

    With `sharp` (DSGD with exact sketched gradients only), E f_S^inf takes the place of f^inf where
    it can be had: it is f_D^inf itself if f_D splits into blocks.
    """
    gap = _gap(problem, effort, sharp)
    return replace(
        gap,
        estimated=any(p.sketch.constants(p.dim).estimated for p in problem.problems),
        deviation=max(deviation_of(p.sketch, p.dim) for p in problem.problems),
    )


def _gap(problem: AbstractProblem, effort: str, sharp: bool) -> Gap:
    if effort == "none":
        return Gap(None, SKIPPED)
    if sharp and isinstance(problem, Problem) and problem.objective.convex:
        law = problem.sketch.law(problem.dim)
        blocks = None if law is None else law.separable()
        if blocks is not None and (blocks[0] >= 0).all():  # a coordinate that always survives ties them
            return Gap(0.0, SHARP)
        if isinstance(problem.objective, Quadratic):
            lower = _mean_of_infima(problem, problem.objective)
            if lower is not None:
                return Gap(max(problem.infimum() - lower, 0.0), SHARP)
    objectives = [p.objective for p in problem.problems]
    try:
        infima = [f.infimum() for f in objectives]
    except MastError:
        return Gap(None, ABSENT)
    if not np.isfinite(infima).all():
        return Gap(None, ABSENT)
    source = EXACT if all(f.infimum_exact for f in objectives) else LOWER
    if effort == "exact" or problem.cheap:
        with contextlib.suppress(NotExactError, ArgumentError):
            if problem.exact.infimum_exact:
                return Gap(max(problem.infimum() - float(np.mean(infima)), 0.0), source)
    if not all(p.sketch.constants(p.dim).unbiased for p in problem.problems):
        return Gap(None, ABSENT)  # Theorem 1 needs E[S] = I
    return _by_theorem_1(problem, infima)


def _by_theorem_1(problem: AbstractProblem, infima: list[float]) -> Gap:
    """f_D^inf <= f_D(x) <= f(x) + (L_D - 1) L_f/2 |x - v|² at any x, here at f's minimiser or at v."""
    total = 0.0
    for p, infimum in zip(problem.problems, infima, strict=True):
        L_D = p.sketch.constants(p.dim).L_D
        x = _best_known(p.objective, problem)
        distance = float(np.sum((x - p.shift) ** 2))
        total += p.objective.value(x) + (L_D - 1) * p.objective.smoothness / 2 * distance - infimum
    return Gap(max(total / len(problem.problems), 0.0), BOUND)


def _best_known(objective: Objective, problem: AbstractProblem) -> Array:
    if len(problem.problems) == 1 and objective.convex:
        with contextlib.suppress(MastError):
            return objective.minimizer()
    return problem.shift


def _mean_of_infima(problem: Problem, objective: Quadratic) -> float | None:
    """E f_S^inf of a quadratic over a small support."""
    size = problem.sketch.support_size(problem.dim)
    if size is None or size > 256:
        return None
    g, f_v = objective.gradient(problem.shift), objective.value(problem.shift)
    total = 0.0
    for probability, draw in problem.sketch.support(problem.dim) or []:
        S = draw.matrix()
        infimum = Quadratic(S.T @ objective.H @ S, -(S.T @ g), f_v).infimum()  # in u = x - v
        if not math.isfinite(infimum):
            return None
        total += probability * infimum
    return total
