"""Sketches of a network's single weights, as capacities: the draws of `mast.nn.sparsify`. Needs torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mast.exchange.messages import Values
from mast.exchange.parts import Capacity, Part
from mast.exchange.vectors import Layout
from mast.nn.drawing import drawing_of
from mast.nn.factors import Kept, Mask
from mast.nn.weights import Where, choose
from mast.randomness import Key
from mast.sketches import Sketch


@dataclass
class Piece:
    """What a draw keeps of one parameter."""

    start: int  # of the parameter in x
    size: int  # of the parameter
    kept: NDArray[Any] | None  # positions in the parameter, ascending; None: all of them
    scale: Any  # what kept weights are multiplied with: a number, or one each
    values: slice  # where they are in the message

    def of(self, x: Values) -> Values:
        """The piece of x that is the parameter."""
        return x[self.start : self.start + self.size]


class WeightsPart(Part):
    """The single weights that a draw keeps, parameter by parameter, and parameters that are not sketched."""

    def __init__(self, names: Sequence[str], pieces: Sequence[Piece]) -> None:
        self.names, self.pieces = list(names), list(pieces)
        self.count = self.pieces[-1].values.stop

    def gather(self, x: Values, out: Values) -> None:
        """Copy whole parameters, pick from the others."""
        for piece in self.pieces:
            own, target = piece.of(x), out[piece.values]
            if piece.kept is None:
                target[...] = own
            elif own.dtype == out.dtype:
                np.take(own, piece.kept, out=target, mode="clip")  # "clip" writes without a buffer
            else:
                target[...] = own[piece.kept]

    def add(self, x: Values, values: Values, factor: float) -> None:
        """x += factor * values."""
        factor = x.dtype.type(factor)
        for piece in self.pieces:
            own, added = piece.of(x), factor * values[piece.values].astype(x.dtype, copy=False)
            if piece.kept is None:
                own += added
            else:
                own[piece.kept] += added

    # ---- the node's side -------------------------------------------------------------------

    def fill(self, parameters: Mapping[str, Tensor], values: Values, shift: Values | None) -> None:
        """Give the parameters the values y = v + S(x - v) of the kept x, and v elsewhere."""
        for name, piece in zip(self.names, self.pieces, strict=True):
            x, own = values[piece.values], slice(None) if piece.kept is None else piece.kept
            scale = np.asarray(piece.scale, dtype=x.dtype)
            y: Values
            if shift is None:
                y = np.zeros(piece.size, dtype=x.dtype)
                y[own] = scale * x
            else:
                y = piece.of(shift).astype(x.dtype)
                y[own] += scale * (x - y[own])
            with torch.no_grad():
                parameters[name].copy_(torch.from_numpy(y).view(parameters[name].shape))

    def collect(self, parameters: Mapping[str, Tensor], out: Values) -> None:
        """S' times the parameters' gradients, on what is kept."""
        for name, piece in zip(self.names, self.pieces, strict=True):
            gradient = parameters[name].grad
            if gradient is None:  # the loss does not depend on it
                out[piece.values] = 0
                continue
            flat = gradient.detach().to("cpu").reshape(-1).numpy()
            scale = np.asarray(piece.scale, dtype=out.dtype)
            out[piece.values] = scale * (flat if piece.kept is None else flat[piece.kept])


class Weights(Capacity):
    """A sketch of the single weights of a model.

    What is sketched, and each draw, is as in ``mast.nn.sparsify(model, sketch, where=, keep=)``:
    parameters of at least two dimensions; the others travel whole.

    >>> import mast
    >>> model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
    >>> Weights(model, mast.RandK(10)).part(Key(0)).count  # ten weights and all six biases
    16
    """

    def __init__(
        self,
        model: nn.Module,
        sketch: Sketch,
        *,
        where: Where | None = None,
        keep: Mapping[str, float] | None = None,
    ) -> None:
        self.layout = Layout(model)
        self.dim = self.layout.dim
        self.sketch = sketch
        selection = choose(model, where, keep or {})
        self.weights = selection.weights
        self.drawing = drawing_of(sketch, self.weights)
        self.stride = sketch.stride
        self.label = f"{repr(sketch).strip('<>')}, single weights"
        self._number = {w.name: i for i, w in enumerate(self.weights)}

    def part(self, key: Key) -> WeightsPart:
        """The weights that the draw keeps."""
        pieces, at = [], 0
        for name, own in self.layout.slices.items():
            kept, scale = self._kept(name, key)
            count = own.stop - own.start if kept is None else kept.size
            pieces.append(Piece(own.start, own.stop - own.start, kept, scale, slice(at, at + count)))
            at += count
        return WeightsPart(list(self.layout.slices), pieces)

    def _kept(self, name: str, key: Key) -> tuple[NDArray[Any] | None, Any]:
        number = self._number.get(name)
        if number is None:
            return None, 1.0
        factor = self.drawing.factor(number, key, _ON_CPU)
        if isinstance(factor, Mask):
            return np.flatnonzero(factor.kept.numpy()), factor.scale
        if isinstance(factor, Kept):
            return factor.indices.numpy(), factor.scales.numpy()
        scales: Any = factor
        return None, scales.scales.numpy()


_ON_CPU = torch.empty(0, dtype=torch.float64)
