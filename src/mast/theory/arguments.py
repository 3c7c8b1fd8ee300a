"""What a statement may be given: every number is checked, with a message that says what would be right."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mast.errors import ArgumentError, BiasedSketchError, NoGuaranteeError
from mast.support import checks
from mast.support.checks import check_choice, check_number, check_positive

Array = NDArray[np.float64]

ROUNDING = 1e-12
"""Relative slack in comparisons with a limit, so that a step size computed as the limit is not above it."""

NO_STATEMENT = {
    "local_steps": (
        "no theorem covers local steps: between two averages the nodes move along different functions, "
        "and the method is no longer gradient descent on f_D. Use local_steps=1 for a guarantee."
    ),
    "infinite_L_max": (
        "L_max is infinite: the sketch is unbounded (a Gaussian, for instance), and no step size is safe for "
        "every draw. Truncate the sketch so that L_max is finite, or run exact gradient descent on f_D with "
        "step size 1/(L_f L_D), which does not use L_max."
    ),
    "dependent_draws": (
        "no theorem covers draws that depend on those of the steps before: a window that moves with the step "
        "(Rolling) is unbiased at each step, and not independent of the last. Use independent draws for a "
        "guarantee, or choose the step size yourself."
    ),
    "biased_sketch": (
        "the statements that compare f_D with f (Theorem 1 and its kin) need E[S] = I. An unbiased sketch "
        "has E[S'S] >= I, that is L_D >= mu_D >= 1. Rescale the sketch (Bernoulli divides what it keeps by "
        "the keep probability), or give the constants of an unbiased one."
    ),
}
"""Why a case has no guarantee, by name: what a run can report where its guarantee is None."""


def unbiased(name: str, value: Any) -> float:
    """L_D, mu_D or L_max of an unbiased sketch: at least 1."""
    result = check_positive(name, value) if name != "L_max" else bounded_sketch(name, value)
    if result < 1 - 1e-9:
        raise BiasedSketchError(f"{name} = {result:g} is below 1: {NO_STATEMENT['biased_sketch']}")
    return result


def bounded_sketch(name: str, value: Any) -> float:
    """L_max, which has to be finite."""
    if isinstance(value, int | float | np.floating) and value == math.inf:
        raise NoGuaranteeError(NO_STATEMENT["infinite_L_max"])
    return check_positive(name, value)


def always_kept(name: str, value: Any) -> float:
    """mu_D of a strongly convex f_D: above 0."""
    if check_number(name, value) == 0:
        raise NoGuaranteeError(
            f"{name} = 0: some coordinates are never kept, so f_D is not strongly convex. Use the regime "
            "'convex', or a sketch that keeps every coordinate at times."
        )
    return check_positive(name, value)


def strong_convexity(name: str, value: Any) -> float:
    """mu_f of a strongly convex f: above 0."""
    mu = check_number(name, value)
    if mu <= 0:
        hint = "Use the regime 'convex' for a function that is convex and no more"
        raise ArgumentError(f"{name} must be a positive number, got {value!r}. {hint}")
    return mu


def per_node(name: str, value: Any, M: int, check: Any = check_positive) -> Array:
    """One checked number per node; a single number stands for all M nodes."""
    if value is None:
        raise ArgumentError(f"{name} is missing: pass {name}=..., one value per node")
    array = np.asarray(value)
    if array.ndim > 1 or array.size not in (1, M):
        raise ArgumentError(f"{name} must have one value or {M} (one per node), and has shape {array.shape}")
    numeric = array.dtype.kind in "fiu" and array.size  # every check is a range: the extremes decide
    for entry in [array.min().item(), array.max().item()] if numeric else array.ravel().tolist():
        check(name, entry)
    return np.full(M, array, dtype=np.float64)


def check_count(name: str, value: Any, least: int, most: int | None = None) -> int:
    """A whole number within the limits; also as a float, such as the N that a division gives."""
    result = check_number(name, value)
    return checks.check_int(name, int(result) if result.is_integer() else value, least, most)


def values(name: str, value: Any) -> Array:
    """A nonnegative number or an array of them, as a float array; infinity passes, NaN does not."""
    if value is None:
        raise ArgumentError(f"{name} is missing: pass {name}=...")
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError(f"{name} must be a number or an array of numbers, not {value!r}") from None
    if np.isnan(array).any():
        raise ArgumentError(f"{name} holds NaN")
    if (array < 0).any():
        raise ArgumentError(f"{name} must not be negative, and holds {float(array.min()):g}")
    return array


def iteration_counts(value: Any) -> Array:
    """T, or several of them: finite and nonnegative."""
    array = values("T", value)
    if np.isinf(array).any():
        raise ArgumentError("T must be finite")
    return array


def regime_of(value: str, algorithm: str, without: dict[str, str] | None = None) -> str:
    """The regime, refused where the algorithm has no statement for it."""
    check_choice("regime", value, ("strongly_convex", "convex", "nonconvex"))
    if without and value in without:
        raise NoGuaranteeError(f"{algorithm} has no statement for the regime {value!r}: {without[value]}")
    return value


def combined(formula: str, value: float) -> float:
    """A product of constants, refused where it left the range of floating point."""
    if not 1e-300 < value < 1e300:
        raise ArgumentError(
            f"{formula} = {value:g} is outside the range of floating point: measure f in other units, "
            "so that its smoothness is nearer 1"
        )
    return value


def consistent(mu: float, limit: float, formula: str) -> None:
    """Refuse constants that no function has: strong convexity above the smoothness that bounds the step."""
    if mu * limit > 1 + 1e-9:
        raise ArgumentError(
            f"the strong convexity {mu:g} of f_D exceeds {formula} = {1 / limit:g}: "
            "no function and sketch have these constants"
        )
