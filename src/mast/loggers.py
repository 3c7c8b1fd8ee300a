"""Where the numbers of a run go while it runs: TensorBoard, MLflow, Weights & Biases, or a function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mast.errors import ArgumentError

Log = Callable[[int, Mapping[str, float]], object]  #: called with a step, and numbers by name


def logger(target: Any) -> Log:
    """A function of (step, numbers by name) that writes to what is given.

    Everything that takes ``log=`` accepts the same targets, so that this function is rarely called by hand.
    Only finite numbers are passed on: what a run could not measure is left out.

    Parameters
    ----------
    target
        A TensorBoard ``SummaryWriter``, the module ``mlflow``, a run of Weights & Biases, or any function of
        a step and a mapping from names to numbers.

    >>> seen = []
    >>> logger(lambda step, numbers: seen.append((step, numbers)))(3, {"loss": 0.5, "f": float("nan")})
    >>> seen
    [(3, {'loss': 0.5})]
    """
    write = _writer(target)

    def log(step: int, numbers: Mapping[str, float]) -> None:
        finite = {name: float(value) for name, value in numbers.items() if _finite(value)}
        if finite:
            write(int(step), finite)

    return log


def log_rows(log: Log, rows: Iterable[Mapping[str, Any]]) -> None:
    """Send rows of a trace: the step, and all other numbers."""
    for row in rows:
        log(row["step"], {name: value for name, value in row.items() if name != "step"})


def _writer(target: Any) -> Log:
    if hasattr(target, "add_scalar"):  # TensorBoard
        return lambda step, numbers: [target.add_scalar(name, n, step) for name, n in numbers.items()]
    if hasattr(target, "log_metrics"):  # MLflow
        return lambda step, numbers: target.log_metrics(dict(numbers), step=step)
    if hasattr(target, "log"):  # Weights & Biases
        return lambda step, numbers: target.log(dict(numbers), step=step)
    if callable(target):
        return lambda step, numbers: target(step, numbers)
    raise ArgumentError(
        "log must be a TensorBoard SummaryWriter, the module mlflow, a run of Weights & Biases or a function "
        f"of a step and a mapping of numbers, got {type(target).__name__}"
    )


def _finite(value: Any) -> bool:
    try:
        return not isinstance(value, str) and math.isfinite(float(value))
    except (TypeError, ValueError):
        return False
