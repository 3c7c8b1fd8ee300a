"""One parameter's share of a delta: which coordinates are kept, and the numbers x - v there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mast.errors import ArgumentError, DataError
from mast.nn.drawing import Drawing, PerWeight, Whole, drawing_of
from mast.nn.factors import Factor, Kept, Mask
from mast.nn.structure.drawing import Spread
from mast.nn.weights import Place, Weight
from mast.randomness import Key
from mast.sketches.stored import rebuild

if TYPE_CHECKING:
    from mast.nn.sparsifier import Sparsifier

_DTYPES = {
    str(t).removeprefix("torch."): t for t in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}


@dataclass(frozen=True)
class Part:
    """The kept numbers of one parameter."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    keep: float | None  # its own keep probability, if it has one
    factor: Factor
    values: Tensor

    def difference(self, scaled: bool) -> Tensor:
        """x - v where it was kept and 0 elsewhere, times S if scaled."""
        flat = torch.zeros(self.shape.numel(), dtype=self.dtype)
        flat[kept(self.factor, self.shape)] = self.values.to(self.dtype)
        u = flat.view(self.shape)
        return self.factor.multiply(u) if scaled else u

    def description(self, with_scale: bool) -> dict[str, Any]:
        """What the header says of it; the scale too, if it is the same everywhere and no sketch tells it."""
        said: dict[str, Any] = {"name": self.name, "shape": list(self.shape)}
        said["dtype"] = str(self.dtype).removeprefix("torch.")
        if self.keep is not None:
            said["keep"] = self.keep
        if (
            with_scale
            and not isinstance(self.factor, Spread)
            and (scale := one_scale(self.factor, self.shape)) is not None
        ):
            said["scale"] = scale
        return said

    def tensors(self, with_indices: bool, dtype: torch.dtype | None) -> dict[str, Tensor]:
        """What the file holds of it."""
        if dtype is not None and dtype not in _DTYPES.values():
            raise ArgumentError(f"dtype must be one of {', '.join(_DTYPES)}, got {dtype}")
        rounded = self.values if dtype is None else self.values.to(dtype)
        if not torch.isfinite(rounded).all():
            raise ArgumentError(
                f"x - v holds NaN or infinity in {self.name!r}"
                + ("" if dtype is None else f", as numbers of type {dtype}")
            )
        found = {f"values/{self.name}": rounded}
        if with_indices and isinstance(self.factor, Spread):
            found[f"units/{self.name}"] = self.factor.scales
        elif with_indices:
            found[f"indices/{self.name}"] = kept(self.factor, self.shape).to(self._index_type)
            if one_scale(self.factor, self.shape) is None:
                found[f"scales/{self.name}"] = scales(self.factor, self.shape)
        return found

    @property
    def _index_type(self) -> torch.dtype:
        return torch.int32 if self.shape.numel() < 1 << 31 else torch.int64

    @property
    def index_bytes(self) -> int:
        """How much its indices would take."""
        if isinstance(self.factor, Spread):
            return self.factor.scales.numel() * self.factor.scales.element_size()
        return self.values.numel() * self._index_type.itemsize


def parts_of(sk: Sparsifier, key: Key) -> list[Part]:
    """The parts of one draw, on the CPU."""
    parts = []
    for i, w in enumerate(sk.weights):
        x = w.parameter.detach()
        v = sk._values.v(i, x)
        difference = (x if v is None else x - v).cpu()
        factor = sk.drawing.factor(i, key, difference)
        values = difference.reshape(-1)[kept(factor, w.shape)]
        parts.append(Part(w.name, w.shape, x.dtype, w.keep, factor, values))
    return parts


def rebuilt(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> list[Part]:
    """The parts of a file, checked."""
    said = about["weights"]
    shapes = [torch.Size(w["shape"]) for w in said]
    places = [Place({}, (), i) for i in range(len(said))]
    offsets = np.cumsum([0] + [shape.numel() for shape in shapes])
    weights = [
        Weight(w["name"], shape, place, int(offset), w.get("keep"))
        for w, shape, place, offset in zip(said, shapes, places, offsets[:-1], strict=True)
    ]
    drawing = None
    if about["sketch"] is not None:
        arrays = {n.removeprefix("sketch/"): t.numpy() for n, t in tensors.items() if n.startswith("sketch/")}
        drawing = drawing_of(rebuild(about["sketch"], arrays), weights)
    key = Key(**about["key"])
    parts = []
    for i, (w, entry) in enumerate(zip(weights, said, strict=True)):
        dtype = _DTYPES[entry["dtype"]]
        like = torch.empty(0, dtype=dtype)
        factor = _listed(w, entry, tensors) if drawing is None else drawing.factor(i, key, like)
        values = tensors[f"values/{w.name}"]
        if values.shape != kept(factor, w.shape).shape or values.dtype not in _DTYPES.values():
            raise DataError(
                f"{w.name!r} keeps {kept(factor, w.shape).numel()} numbers, the file has {values.numel()}"
            )
        parts.append(Part(w.name, w.shape, dtype, w.keep, factor, values))
    return parts


def _listed(w: Weight, entry: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Factor:
    """The factor of a parameter whose indices, or units, are in the file."""
    if f"units/{w.name}" in tensors:
        return _spread(w, tensors[f"units/{w.name}"])
    indices = tensors[f"indices/{w.name}"].long()
    ascending = indices.ndim == 1 and bool((indices.diff() > 0).all())
    if not ascending or (indices.numel() and not (indices[0] >= 0 and indices[-1] < w.count)):
        raise DataError(f"the indices of {w.name!r} are not those of {w.count} coordinates")
    wide = torch.promote_types(_DTYPES[entry["dtype"]], torch.float32)
    if "scale" in entry:
        return Kept(indices, torch.full(indices.shape, float(entry["scale"]), dtype=wide))
    own = tensors[f"scales/{w.name}"]
    if own.shape != indices.shape:
        raise DataError(f"{w.name!r} has {own.numel()} scales for {indices.numel()} coordinates")
    return Kept(indices, own.to(wide))


def _spread(w: Weight, units: Tensor) -> Factor:
    fits = units.dim() == len(w.shape) and all(n in (1, m) for n, m in zip(units.shape, w.shape, strict=True))
    if not fits or not units.is_floating_point():
        raise DataError(f"the units of {w.name!r} do not fit its shape")
    return Spread(units)


def coordinates(drawing: Drawing) -> str:
    """Whether a draw is one over plain coordinates, which key and sketch alone decide."""
    return "plain" if type(drawing) in (PerWeight, Whole) else "structured"


def kept(factor: Factor, shape: torch.Size) -> Tensor:
    """The coordinates that a factor keeps, ascending."""
    if isinstance(factor, Mask):
        return factor.kept.reshape(-1).nonzero()[:, 0]
    if isinstance(factor, Kept):
        return factor.indices.cpu()
    return _diagonal(factor, shape).nonzero()[:, 0]


def scales(factor: Factor, shape: torch.Size) -> Tensor:
    """The scales at the coordinates that a factor keeps."""
    if isinstance(factor, Kept):
        return factor.scales.cpu()
    return _diagonal(factor, shape)[kept(factor, shape)]


def one_scale(factor: Factor, shape: torch.Size) -> float | None:
    """The scale, if all kept coordinates have the same."""
    if isinstance(factor, Mask):
        return factor.scale
    own = scales(factor, shape)
    if own.numel() and not bool((own == own[0]).all()):
        return None
    return float(own[0]) if own.numel() else 1.0


def _diagonal(factor: Factor, shape: torch.Size) -> Tensor:
    """All scales, written out."""
    return factor.multiply(torch.ones(shape, dtype=torch.float64)).reshape(-1)
