"""`drawing_of`: in which way a sketch is drawn over the weights of a model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mast.errors import ArgumentError, NotDiagonalError
from mast.nn.tensors.drawing import Drawing, PerWeight, Whole
from mast.nn.tensors.lists import Listed, PerEntry, PerLayer
from mast.nn.tensors.top_share import TopDrawing, TopShare
from mast.nn.tensors.weights import Weight
from mast.sketches import Sampled, Sketch


def drawing_of(sketch: Sketch, weights: Sequence[Weight]) -> Drawing:
    """The way this sketch is drawn over these weights."""
    if not isinstance(sketch, Sketch):
        raise ArgumentError(
            f"the second argument must be a sketch such as mast.Bernoulli(0.7), got {sketch!r}"
        )
    if not sketch.diagonal:
        raise NotDiagonalError(
            f"{sketch!r} is not diagonal: S'g would mix the gradients of all parameters, which are never "
            "together in one place during a backward pass. Networks take diagonal sketches"
        )
    if isinstance(sketch, Sampled):
        inner = drawing_of(sketch.sketch, weights)
        if sketch.balanced and any(w.keep is not None for w in weights):
            raise ArgumentError(
                "a balanced list keeps all weights equally often: keep= is for lists without it"
            )
        return Whole(weights, sketch) if type(inner) is Whole else Listed(sketch, inner, weights)
    if isinstance(sketch, TopShare):
        return TopDrawing(weights, sketch)
    excepted = [w for w in weights if w.keep is not None]
    each = [sketch if w.keep is None else sketch.with_keep(w.keep) for w in weights]
    if excepted and (sketch.entry() is None or None in each):
        raise ArgumentError(
            f"keep gives {excepted[0].name!r} a keep probability of its own ({excepted[0].keep!s:.9}), which "
            f"only Bernoulli sketches can have, not {sketch!r}; keep = 1 leaves a parameter out"
        )
    if sketch.per_layer:
        return PerLayer(weights, sketch)
    if sketch.entry() is None:
        return Whole(weights, sketch)
    if any(isinstance(w.keep, np.ndarray) for w in weights):
        return PerEntry(weights, [part or sketch for part in each])
    return PerWeight(weights, [part or sketch for part in each])
