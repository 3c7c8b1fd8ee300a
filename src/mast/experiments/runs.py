"""What a cell keeps of a run of `mast.minimize`: measurements, and the bound of the theorem along them."""

from __future__ import annotations

from typing import Any

import numpy as np

from mast.results import Result


def measured(result: Result, Psi0: float | None = None) -> dict[str, Any]:
    """The trace as arrays. The bound is infinite where the theorem says nothing.

    Psi0 is what the theorem starts from if that is not the loss at the start.
    """
    trace, size = result.trace, result.step_size
    assert isinstance(size, float)
    step, start = trace["step"].to_numpy(), trace.iloc[0]
    bound = np.full(step.size, np.inf)
    if result.guarantee is not None:
        delta0 = float(start["f_D"]) - result.infimum
        known = {"r0sq": float(start["dist_sq"]), "delta0": delta0, "Psi0": delta0 if Psi0 is None else Psi0}
        with np.errstate(divide="ignore"):
            bound = np.asarray(result.guarantee.bound(size, step, **known), dtype=np.float64)
    return {
        "step": step,
        "passes": trace["passes"].to_numpy(),
        "loss": trace["f"].to_numpy(),
        "gap": trace["f_D"].to_numpy() - result.infimum,
        "gradient_sq": trace["grad_sq"].to_numpy(),
        "distance_sq": trace["dist_sq"].to_numpy(),
        "bound": bound,
        "step_size": size,
        "status": result.status,
    }
