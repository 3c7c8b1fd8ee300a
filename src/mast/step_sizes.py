"""Step sizes of a run: a number, the theory's, or a schedule, and a warning above what theory allows."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np

from mast.arrays import Array
from mast.checks import nonnegative, positive
from mast.errors import ArgumentError, MastError, StepSizeWarning
from mast.methods import Method

StepSize = float | str | Callable[[int], float]


def step_sizes_of(
    method: Method, step_size: StepSize, steps: int, regime: str | None = None
) -> tuple[Callable[[int, int], Array], float | Callable[[int], float]]:
    """The step sizes of steps t .. t+count-1 as a function of (t, count), and what was chosen."""
    if callable(step_size):
        rule = step_size
        if steps > 0:
            _warn_above(method, nonnegative("the schedule's first step size", rule(0)), steps, regime)
        return lambda t, count: _sizes(rule, t, count), step_size
    if isinstance(step_size, str):
        if step_size != "theory":
            raise ArgumentError(f'step_size must be "theory", a number or a function, got {step_size!r}')
        size = method.default_step_size(steps, regime)
    else:
        size = positive("step_size", step_size)
        _warn_above(method, size, steps, regime)
    return (lambda t, count: np.full(count, size)), size


def _sizes(rule: Callable[[int], float], t: int, count: int) -> Array:
    return np.array(
        [nonnegative(f"the schedule's step size at step {t + i}", rule(t + i)) for i in range(count)]
    )


def _warn_above(method: Method, size: float, steps: int, regime: str | None) -> None:
    """Say so if a step size is above what theory allows."""
    try:
        limit = method.default_step_size(steps, regime)
    except MastError:
        return  # there is no limit; the result's note says why
    if size > limit * (1 + 1e-9):
        text = f"step size {size:.4g} is {size / limit:.3g} times the limit {limit:.4g} of {method.name}"
        warnings.warn(f"{text}: the run has no guarantee", StepSizeWarning, stacklevel=4)
