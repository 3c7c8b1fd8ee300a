"""Pictures of runs. matplotlib is the extra `plots`, imported here only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mast.errors import ArgumentError, optional_module

if TYPE_CHECKING:
    import matplotlib.axes

    from mast.run import Result

# Okabe and Ito's colours, which people with any colour vision can tell apart
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")

LABELS = {
    "f": r"$f(x)$",
    "f_D": r"$f_D(x) - f_D^{\inf}$",
    "grad_sq": r"$\|\nabla f_D(x)\|^2$",
    "dist_sq": r"$\|x - x_D^\star\|^2$",
}
BOUNDED = {"strongly_convex": "dist_sq", "convex": "f_D", "nonconvex": "grad_sq"}


def pyplot() -> Any:
    """matplotlib.pyplot, or an error that says how to get it."""
    return optional_module("matplotlib.pyplot", "pictures need matplotlib", "plots")


def plot_result(result: Result, column: str | None, ax: matplotlib.axes.Axes | None) -> matplotlib.axes.Axes:
    """The curve of a run on log-log axes, with the bound of its guarantee where there is one."""
    guarantee = result.guarantee
    bounded = BOUNDED[guarantee.regime] if guarantee is not None else None
    column = column or bounded or "f_D"
    if column not in LABELS:
        raise ArgumentError(f"column must be one of {', '.join(LABELS)}, got {column!r}")
    if ax is None:
        _, ax = pyplot().subplots(figsize=(6, 4), layout="constrained")
    trace = result.trace
    values = trace[column].to_numpy(dtype=float)
    if column == "f_D":
        values = values - result.infimum
    ax.plot(trace["step"] + 1, values, color=COLOURS[0], label=result.method)
    bound = _bound(result, trace) if column == bounded else None
    if bound is not None and np.isfinite(bound).any():
        ax.plot(trace["step"] + 1, bound, color=COLOURS[1], linestyle="--", label="bound of the theory")
    if np.nanmax(values, initial=0.0) > 0:
        ax.set_yscale("log")
    ax.set_xscale("log")
    ax.set_xlabel("step + 1")
    ax.set_ylabel(LABELS[column])
    size = f"step size {result.step_size:.3g}" if isinstance(result.step_size, float) else "a schedule"
    ax.set_title(f"{result.method}, {size}: {result.status}")
    ax.legend()
    return ax


def _bound(result: Result, trace: Any) -> Any:
    """The guarantee's bound along the run, from its measured start; None where it cannot be had."""
    assert result.guarantee is not None
    if not isinstance(result.step_size, float):
        return None
    start = trace.iloc[0]
    known = {
        "r0sq": float(start["dist_sq"]),
        "delta0": float(start["f_D"]) - result.infimum,
        "Psi0": float(start["f_D"]) - result.infimum if result.guarantee.regime == "nonconvex" else None,
        "D0": None,
        "sigma_sq": None,
    }
    try:
        return result.guarantee.bound(result.step_size, trace["step"].to_numpy(), **known)
    except ArgumentError:
        return None
