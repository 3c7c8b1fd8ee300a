"""What a node can hold of a network: single weights as in `mast.nn.sparsify`, or a smaller dense model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mast.methods.distributed.messages import Values
from mast.methods.distributed.nodes import Capacity, Part
from mast.nn.drawing import PerWeight, drawing_of
from mast.nn.nodes.layout import Layout
from mast.nn.scaling import compiled, numbers
from mast.nn.structure.cuts import Cut
from mast.nn.structure.sketches import Structured
from mast.nn.structure.structures import structure_of
from mast.nn.weights import Where, choose
from mast.randomness import Key, Purpose
from mast.sketches import Sketch
from mast.sketches.kept import Entries, KeptTensors

_WORTH_KEEPING = 1 << 14  # positions
_ON_CPU = torch.empty(0, dtype=torch.float64)


# ---- single weights ------------------------------------------------------------------------------------


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

    def __init__(self, names: Sequence[str], pieces: Sequence[Piece], rooms: list[NDArray[Any]]) -> None:
        self.names, self.pieces = list(names), list(pieces)
        self._rooms = rooms  # memory that the capacity lends to one part after the other
        self.count = self.pieces[-1].values.stop

    def gather(self, x: Values, out: Values | None = None) -> Values:
        """Copy whole parameters, pick from the others."""
        out = np.empty(self.count, dtype=x.dtype) if out is None else out
        for piece in self.pieces:
            own, target = piece.of(x), out[piece.values]
            if piece.kept is None:
                target[...] = own
            else:
                _kernels().gather(own, piece.kept, target)
        return out

    def add(self, x: Values, values: Values, factor: float) -> None:
        """x += factor * values."""
        factor = x.dtype.type(factor)
        for piece in self.pieces:
            own, added = piece.of(x), values[piece.values].astype(x.dtype, copy=False)
            if piece.kept is None:
                own += factor * added
            else:
                _kernels().add(own, piece.kept, added, factor)

    def release(self) -> None:
        """Give the memory of long lists of positions back."""
        for piece in self.pieces:
            if piece.kept is not None and piece.kept.base is not None and piece.kept.size > _WORTH_KEEPING:
                self._rooms.append(piece.kept.base)
        self.pieces = []

    # ---- the node's side -------------------------------------------------------------------

    def fill(self, parameters: Mapping[str, Tensor], values: Values, shift: Values | None) -> None:
        """Give the parameters the values y = v + S(x - v) of the kept x, and v elsewhere."""
        for name, piece in zip(self.names, self.pieces, strict=True):
            x = values[piece.values]
            scale = np.asarray(piece.scale, dtype=x.dtype)
            parameter = parameters[name].detach()
            if shift is None and piece.kept is not None and not scale.ndim and compiled(parameter):
                parameter.zero_()
                y = numbers(parameter)
                _kernels().place_scaled(y, piece.kept, y.dtype.type(piece.scale), x)
            else:
                whole = torch.from_numpy(_filled(piece, x, scale, shift))
                parameter.copy_(whole.view(parameter.shape))
            torch.autograd.graph.increment_version(parameter)

    def collect(self, parameters: Mapping[str, Tensor], out: Values) -> None:
        """S' times the parameters' gradients, on what is kept."""
        for name, piece in zip(self.names, self.pieces, strict=True):
            gradient, own = parameters[name].grad, out[piece.values]
            if gradient is None:  # the loss does not depend on it
                own[...] = 0
                continue
            scale = np.asarray(piece.scale, dtype=out.dtype)
            if piece.kept is not None and not scale.ndim and compiled(gradient):
                _kernels().gather_scaled(numbers(gradient), piece.kept, scale[()], own)
            else:
                flat = gradient.detach().to("cpu", torch.float64).reshape(-1).numpy()
                own[...] = scale * (flat if piece.kept is None else flat[piece.kept]).astype(out.dtype)


def _filled(piece: Piece, x: Values, scale: Values, shift: Values | None) -> Values:
    """The parameter y = v + S(x - v) as a vector."""
    own = slice(None) if piece.kept is None else piece.kept
    y: Values
    if shift is None:
        y = np.zeros(piece.size, dtype=x.dtype)
        y[own] = scale * x
    else:
        y = piece.of(shift).astype(x.dtype)
        y[own] += scale * (x - y[own])
    return y


def _kernels() -> ModuleType:
    """The compiled half, imported when first needed."""
    from mast.nn.nodes import kernels

    return kernels


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
        self._rooms: list[NDArray[Any]] = []
        self._number = {w.name: i for i, w in enumerate(self.weights)}

    def part(self, key: Key) -> WeightsPart:
        """The weights that the draw keeps."""
        pieces, at = [], 0
        for name, own in self.layout.slices.items():
            kept, scale = self._kept(name, key)
            count = own.stop - own.start if kept is None else kept.size
            pieces.append(Piece(own.start, own.stop - own.start, kept, scale, slice(at, at + count)))
            at += count
        return WeightsPart(list(self.layout.slices), pieces, self._rooms)

    def _kept(self, name: str, key: Key) -> tuple[NDArray[Any] | None, Any]:
        number = self._number.get(name)
        if number is None:
            return None, 1.0
        if isinstance(self.drawing, PerWeight) and not self.drawing.entries[number].sigma:
            return self._masked(self.drawing, number, key)
        kept = self.drawing.kept(number, key, _ON_CPU)
        if isinstance(kept, Entries):
            return kept.indices, kept.scales
        return None, kept.each_scale()

    def _masked(self, drawing: PerWeight, number: int, key: Key) -> tuple[NDArray[Any], float]:
        """The positions that a mask keeps, without the mask; `drawing.kept` is the readable form."""
        entry = drawing.entries[number]
        words = drawing._key(number, key).words(Purpose.MASK)
        kernels, n = _kernels(), drawing.counts[number]
        room = self._room(n + kernels.ROOM, np.uint32 if n < 1 << 32 else np.int64)
        count = int(kernels.kept_positions(words, np.uint64(entry.threshold), n, room))
        return room[:count], entry.scale

    def _room(self, size: int, kind: Any) -> NDArray[Any]:
        """Memory for positions: that of a part which is gone, or new, which comes as it is filled."""
        for i, room in enumerate(self._rooms):
            if room.size == size and room.dtype == kind:
                return self._rooms.pop(i)
        return np.empty(size, dtype=kind)


# ---- whole units ---------------------------------------------------------------------------------------


class UnitsPart(Part):
    """The slices that a draw leaves of the trainable parameters, in the order of `mast.nn.structure.Cut`."""

    def __init__(self, capacity: Units, cut: Cut) -> None:
        self.capacity, self.cut = capacity, cut
        slices = capacity.layout.slices
        self.kept = KeptTensors({name: kept for name, kept in cut.parameters.items() if name in slices})
        self.whole = len(self.kept) == len(cut.parameters)  # no parameter is frozen
        self.count = self.kept.count

    def gather(self, x: Values, out: Values | None = None) -> Values:
        """Rows and columns, copied one after the other."""
        out = np.empty(self.count, dtype=x.dtype) if out is None else out
        self.kept.gather(self.capacity.tensors(x), torch.from_numpy(out))
        return out

    def add(self, x: Values, values: Values, factor: float) -> None:
        """x += factor * values on the kept rows and columns."""
        source = torch.from_numpy(values if values.flags.writeable else values.copy())
        self.kept.add(self.capacity.tensors(x), source, factor)

    # ---- the node's side -------------------------------------------------------------------

    def module(self, values: Values, frozen: Mapping[str, Tensor]) -> nn.Module:
        """The small model in training mode, with the weights S x; frozen parameters are the node's own."""
        sent = torch.from_numpy(values)
        if self.whole:
            return self.cut.module(sent)
        full = sent.new_empty(self.cut.count)
        for name, kept in self.cut.parameters.items():
            small = self.cut.parameters.of(full, name)
            if name in self.kept:
                small.copy_(self.kept.of(sent, name))
            else:
                kept.gather(frozen[name].to(full), small)
        return self.cut.module(full)

    def collect(self, module: nn.Module, out: Values) -> None:
        """S' times the small model's gradients, without those of frozen parameters."""
        gradient = self.cut.gradient(module)
        if self.whole:
            torch.from_numpy(out).copy_(gradient)
            return
        trained = [gradient[self.cut.parameters.slices[name]] for name in self.kept]
        torch.from_numpy(out).copy_(torch.cat(trained))


class Units(Capacity):
    """A sketch of whole units of a model (`mast.nn.Neurons`, `mast.nn.Layers`); values are not needed.

    A node of this capacity needs the model's skeleton only: it may be on the meta device.

    >>> import mast
    >>> model = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> Units(model, mast.nn.Neurons(mast.RandK(2))).part(Key(0)).count  # 2 x 10 + 2, and 2 x 2 + 2
    28
    """

    def __init__(
        self,
        model: nn.Module,
        sketch: Structured,
        *,
        where: Where | None = None,
        keep: Mapping[str, float] | None = None,
    ) -> None:
        self.layout = Layout(model)
        self.dim = self.layout.dim
        self.structure = structure_of(model, sketch, keep, where)
        self.drawing = self.structure.drawing(sketch)
        self.stride = sketch.stride
        self.label = repr(sketch).strip("<>")
        self._views: tuple[Any, dict[str, Tensor]] = (None, {})

    def part(self, key: Key) -> UnitsPart:
        """The slices that the draw leaves."""
        return UnitsPart(self, self.structure.cut(self.drawing.draw(key)))

    def tensors(self, x: Values) -> dict[str, Tensor]:
        """The pieces of x as tensors, remembered for the vector that was asked for last."""
        address = (x.__array_interface__["data"][0], x.dtype)
        if self._views[0] != address:
            self._views = (address, self.layout.tensors(x))
        return self._views[1]
