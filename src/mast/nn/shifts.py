"""The shift v of a sparsified model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from mast.errors import ArgumentError
from mast.nn.weights import Weight

#: what a shift may be: nothing, "init", or tensors by name
Shift = None | str | Mapping[str, Tensor]


def shifts_of(weights: Sequence[Weight], shift: Shift) -> dict[str, Tensor] | None:
    """v by name, checked, in copies that are where the weights are."""
    if shift is None:
        return None
    if isinstance(shift, str):
        if shift != "init":
            raise ArgumentError(f'shift is None, "init", or a mapping from names to tensors, got {shift!r}')
        return {w.name: w.parameter.detach().clone() for w in weights}
    shifts = {}
    for w in weights:
        v = shift.get(w.name)
        if v is None:
            raise ArgumentError(f"the shift has no tensor for the sketched parameter {w.name!r}")
        if v.shape != w.shape:
            raise ArgumentError(
                f"the shift of {w.name!r} has shape {tuple(v.shape)}, the parameter {tuple(w.shape)}"
            )
        if not torch.isfinite(v).all():
            raise ArgumentError(f"the shift of {w.name!r} holds NaN or infinity")
        shifts[w.name] = v.detach().to(w.parameter, copy=True)
    return shifts
