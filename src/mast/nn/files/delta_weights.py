"""One parameter's share of a delta: which coordinates are kept, and the numbers x - v there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mast.errors import ArgumentError, DataError
from mast.nn.tensors.bound import bind
from mast.nn.tensors.sparsified import multiply
from mast.nn.tensors.weights import Place, Weight
from mast.randomness import Key
from mast.sketches.draws import DiagonalDraw, Draw, GridDraw
from mast.sketches.formats import describe, rebuild
from mast.support.checks import Array

if TYPE_CHECKING:
    from mast.nn.sparsifier import Sparsifier

_LISTS = ("units", "indices", "scales")  # what says which coordinates are kept, if the key does not


def type_name(dtype: torch.dtype) -> str:
    """The name of a type, without "torch."."""
    return str(dtype).removeprefix("torch.")


#: the types of numbers that a file can hold, by name
DTYPES = {type_name(t): t for t in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}


@dataclass(frozen=True)
class WeightChange:
    """The kept numbers of one parameter."""

    name: str
    dtype: torch.dtype
    keep: float | Array | None  # its own keep probability, if it has one
    kept: Draw
    values: Tensor

    def difference(self, scale: bool | float) -> Tensor:
        """x - v where it was kept and 0 elsewhere, times S if True, times a number if it is one."""
        u = torch.zeros(self.kept.shape, dtype=self.dtype)
        self.kept.place(u, self.values)
        if isinstance(scale, bool):
            return multiply(self.kept, u) if scale else u
        return u.mul_(scale)

    def stored(self, listed: bool, dtype: torch.dtype | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What the header says of it, and what the file holds; if `listed`, also what is kept."""
        rounded = self.values if dtype is None else self.values.to(dtype)
        if not torch.isfinite(rounded).all():
            raise ArgumentError(
                f"x - v holds NaN or infinity in {self.name!r}"
                + ("" if dtype is None else f", as numbers of type {dtype}")
            )
        entry: dict[str, Any] = {"name": self.name, "shape": list(self.kept.shape)}
        entry["dtype"] = type_name(self.dtype)
        if self.keep is not None and not isinstance(self.keep, np.ndarray):
            entry["keep"] = self.keep
        tensors = {f"values/{self.name}": rounded}
        if listed and isinstance(self.kept, GridDraw):  # the scales of units, 0 for dropped ones
            wide = torch.promote_types(self.dtype, torch.float32)
            tensors[f"units/{self.name}"] = torch.from_numpy(self.kept.compact_diagonal()).to(wide)
        elif listed:
            tensors[f"indices/{self.name}"] = torch.from_numpy(self.kept.positions).to(self._index_type)
            scales = self.kept.each_scale()
            if (scales == scales[:1]).all():
                one = self.kept.factors if isinstance(self.kept.factors, float) else 1.0
                entry["scale"] = float(scales[0]) if scales.size else one
            else:
                tensors[f"scales/{self.name}"] = torch.from_numpy(scales.copy())
        return entry, tensors

    @property
    def _index_type(self) -> torch.dtype:
        return torch.int32 if math.prod(self.kept.shape) < 1 << 31 else torch.int64

    @property
    def index_bytes(self) -> int:
        """How much its indices would take."""
        return self.values.numel() * self._index_type.itemsize


def changes_of(sk: Sparsifier, key: Key) -> list[WeightChange]:
    """The kept changes of one draw, on the CPU."""
    changes = []
    for i, w in enumerate(sk.weights):
        x = w.parameter.detach()
        v = sk.values.shift_of(i, x)
        difference = (x if v is None else x - v).cpu()
        kept = sk.bound.kept(i, key, difference)
        values = kept.gather(difference).reshape(-1)
        changes.append(WeightChange(w.name, x.dtype, w.keep, kept, values))
    return changes


def rebuilt(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> list[WeightChange]:
    """The changes that a file holds, checked."""
    nowhere = Place({}, (), -1)  # a file has no model
    weights = [
        Weight(entry["name"], torch.Size(entry["shape"]), nowhere, entry.get("keep"))
        for entry in about["weights"]
    ]
    bound, needed = None, {f"{kind}/{w.name}" for kind in ("values", *_LISTS) for w in weights}
    if about["sketch"] is not None:
        arrays = {n.removeprefix("sketch/"): t.numpy() for n, t in tensors.items() if n.startswith("sketch/")}
        sketch, used = rebuild(about["sketch"], arrays), dict[str, Array]()
        bound = bind(sketch, weights)
        describe(sketch, used)
        needed = {f"values/{w.name}" for w in weights} | {f"sketch/{name}" for name in used}
    for name in tensors:
        if name not in needed and not name.startswith("whole/"):
            raise DataError(f"it has a tensor {name!r} that belongs to nothing")
    key = Key(**about["key"])
    changes = []
    for i, (w, entry) in enumerate(zip(weights, about["weights"], strict=True)):
        dtype = DTYPES[entry["dtype"]]
        like = torch.empty(0, dtype=dtype)
        kept = _listed(w, entry, tensors) if bound is None else bound.kept(i, key, like)
        values = tensors[f"values/{w.name}"]
        if values.shape != (kept.count,) or values.dtype not in DTYPES.values():
            found = f"{tuple(values.shape)} of {values.dtype}"
            raise DataError(f"{w.name!r} keeps {kept.count} numbers, the file has a tensor {found}")
        changes.append(WeightChange(w.name, dtype, w.keep, kept, values))
    return changes


def _listed(w: Weight, entry: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Draw:
    """What is kept of a parameter whose indices, or units, are in the file."""
    wide = torch.promote_types(DTYPES[entry["dtype"]], torch.float32)
    if f"units/{w.name}" in tensors:
        return _grid(w, tensors[f"units/{w.name}"], wide)
    indices = tensors[f"indices/{w.name}"]
    listed = indices.ndim == 1 and indices.dtype in (torch.int32, torch.int64)
    ascending = listed and bool((indices.diff() > 0).all())
    if not ascending or (indices.numel() and not (indices[0] >= 0 and indices[-1] < w.count)):
        raise DataError(f"the indices of {w.name!r} are not those of {w.count} coordinates")
    if "scale" in entry:
        return DiagonalDraw(w.shape, indices.long().numpy(), float(entry["scale"]))
    scales = tensors[f"scales/{w.name}"]
    if scales.shape != indices.shape or not scales.is_floating_point():
        found = f"{tuple(scales.shape)} of {scales.dtype}"
        raise DataError(f"{w.name!r} has scales {found} for {indices.numel()} coordinates")
    return DiagonalDraw(w.shape, indices.long().numpy(), scales.to(wide).numpy())


def _grid(w: Weight, units: Tensor, dtype: torch.dtype) -> GridDraw:
    along = [d for d, n in enumerate(units.shape) if n != 1] or [0]
    fits = units.dim() == len(w.shape) and all(n in (1, m) for n, m in zip(units.shape, w.shape, strict=True))
    if not fits or len(along) != 1 or units.dtype != dtype:
        raise DataError(f"the units of {w.name!r} do not fit its shape and type")
    scales = units.reshape(-1).numpy()
    kept = np.flatnonzero(scales)
    return GridDraw(w.shape, {along[0]: kept}, {along[0]: scales[kept]})
