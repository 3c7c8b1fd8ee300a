"""Runs of `mast.minimize` in cells: what is kept of them."""

from __future__ import annotations

from typing import Any

from mast.plots import bound_along
from mast.results import Result


def measured(result: Result, Psi0: float | None = None) -> dict[str, Any]:
    """The trace as arrays. The bound is infinite where the theorem says nothing.

    Psi0 is what the theorem starts from if that is not the loss at the start.
    """
    trace = result.trace
    return {
        "step": trace["step"].to_numpy(),
        "passes": trace["passes"].to_numpy(),
        "loss": trace["f"].to_numpy(),
        "gap": trace["f_D"].to_numpy() - result.infimum,
        "gradient_sq": trace["grad_sq"].to_numpy(),
        "distance_sq": trace["dist_sq"].to_numpy(),
        "bound": bound_along(result, Psi0),
        "step_size": result.step_size,
        "status": result.status,
    }
