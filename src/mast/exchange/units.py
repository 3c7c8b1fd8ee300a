"""Sketches of a network's whole units, as capacities: a node holds a smaller dense model. Needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mast.exchange.messages import Values
from mast.exchange.parts import Capacity, Part
from mast.exchange.vectors import Layout
from mast.nn.structure.cuts import Cut
from mast.nn.structure.sketches import Structured
from mast.nn.structure.structures import structure_of
from mast.nn.weights import Where
from mast.randomness import Key


class UnitsPart(Part):
    """The slices that a draw leaves of the trainable parameters, in the order of `mast.nn.structure.Cut`."""

    def __init__(self, capacity: Units, cut: Cut) -> None:
        self.capacity, self.cut = capacity, cut
        slices = capacity.layout.slices
        self.pieces = [piece for piece in cut.parts if piece.name in slices]
        self.whole = len(self.pieces) == len(cut.parts)  # no parameter is frozen
        self.count = sum(piece.slice.count for piece in self.pieces)

    def gather(self, x: Values, out: Values) -> None:
        """Rows and columns, copied one after the other."""
        tensors = self.capacity.tensors(x)
        target, at = torch.from_numpy(out), 0
        for piece in self.pieces:
            own = target[at : at + piece.slice.count].view(piece.slice.shape)
            piece.slice.take(tensors[piece.name], own)
            at += piece.slice.count

    def add(self, x: Values, values: Values, factor: float) -> None:
        """x += factor * values on the kept rows and columns."""
        tensors = self.capacity.tensors(x)
        source, at = torch.from_numpy(values if values.flags.writeable else values.copy()), 0
        for piece in self.pieces:
            own = source[at : at + piece.slice.count].view(piece.slice.shape)
            piece.slice.add(tensors[piece.name], own, factor)
            at += piece.slice.count

    # ---- the node's side -------------------------------------------------------------------

    def module(self, values: Values, frozen: Mapping[str, Tensor]) -> nn.Module:
        """The small model in training mode, with the weights S x; frozen parameters are the node's own."""
        sent = torch.from_numpy(values)
        if self.whole:
            return self.cut.module(sent)
        full, at = sent.new_empty(self.cut.count), 0
        for piece in self.cut.parts:
            own = piece.of(full)
            if piece.name in frozen:
                piece.slice.take(frozen[piece.name].to(full), own)
            else:
                own.copy_(sent[at : at + piece.slice.count].view(piece.slice.shape))
                at += piece.slice.count
        return self.cut.module(full)

    def collect(self, module: nn.Module, out: Values) -> None:
        """S' times the small model's gradients, without those of frozen parameters."""
        gradient = self.cut.gradient(module)
        if self.whole:
            torch.from_numpy(out).copy_(gradient)
            return
        kept = [gradient[piece.start : piece.stop] for piece in self.pieces]
        torch.from_numpy(out).copy_(torch.cat(kept))


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
