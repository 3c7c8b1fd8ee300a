"""A cut: which slices of which tensors a draw leaves, and the small dense model they make.

All that a machine needs to train its part of a model is the skeleton, the key of the draw, and the values of
the cut: `cut.gather(x)` sends them, `cut.module(values)` is the small model with the weights y = S x,
`cut.gradient`
gives S'grad in the same order, `cut.add` brings a change home. Time, memory and bytes follow what is kept.

The order of the values: parameters as `named_parameters` gives them, each the kept entries in row-major
order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from mast.arrays import Indices
from mast.errors import ArgumentError
from mast.nn.structure.drawing import UnitDraw
from mast.nn.structure.slicing import Slice
from mast.nn.torch_private import NormBase

if TYPE_CHECKING:
    from mast.nn.structure.structures import Structure

Tensors = Mapping[str, Tensor] | nn.Module


@dataclass(frozen=True)
class Part:
    """What a cut takes of one tensor, and where that lies among the values."""

    name: str
    slice: Slice
    start: int
    scales: Tensor | None  # of the kept entries, shaped to be multiplied with them; None: 1
    along: int | None = None  # the dimension that the scales lie along, if they do

    @property
    def stop(self) -> int:
        """Where the next part starts."""
        return self.start + self.slice.count

    def of(self, values: Tensor) -> Tensor:
        """This part of the values, in its shape."""
        return values[self.start : self.stop].view(self.slice.shape)


class Cut:
    """The slices of one draw. Made by `structure.cut(draw)`."""

    def __init__(
        self, structure: Structure, draw: UnitDraw, parts: Sequence[Part], buffers: Sequence[Part]
    ) -> None:
        self.structure = structure
        self.draw = draw
        self.parts = tuple(parts)
        self.buffers = tuple(buffers)
        self.count = parts[-1].stop if parts else 0  #: how many values
        self.buffer_count = buffers[-1].stop if buffers else 0

    # ---- values ----------------------------------------------------------------------------

    def gather(self, tensors: Tensors, out: Tensor | None = None) -> Tensor:
        """The kept values of x, one after the other, in one contiguous tensor of one dimension."""
        return _gather(self.parts, tensors_of(tensors), self.count, out)

    def gather_buffers(self, tensors: Tensors) -> Tensor:
        """The kept values of the buffers (statistics of norms, and others of floating point)."""
        return _gather(self.buffers, tensors_of(tensors), self.buffer_count, None)

    def add(self, tensors: Tensors, values: Tensor, factor: float = 1.0) -> None:
        """x[kept] += factor * values, in place; nothing else of x is touched."""
        found = tensors_of(tensors)
        _check(values, self.count)
        with torch.no_grad():
            for part in self.parts:
                part.slice.add(found[part.name].detach(), part.of(values), factor)

    def put(self, tensors: Tensors, values: Tensor) -> None:
        """x[kept] = values, in place."""
        _put(self.parts, tensors_of(tensors), values, self.count)

    def put_buffers(self, tensors: Tensors, values: Tensor) -> None:
        """The same for buffers."""
        _put(self.buffers, tensors_of(tensors), values, self.buffer_count)

    def scaled(self, values: Tensor) -> Tensor:
        """S times values of x or of a gradient, in their order: the scale is on outgoing weights only."""
        _check(values, self.count)
        out = values.clone()
        for part in self.parts:
            if part.scales is not None:
                part.of(out).mul_(part.scales.to(out))
        return out

    # ---- the small model --------------------------------------------------------------------

    def module(self, values: Tensor, buffers: Tensor | None = None) -> nn.Module:
        """The small model with the weights y = S x, in training mode, made of nothing but these values.

        Its parameters lie one after the other in one piece of memory. Without `buffers`, statistics of norms
        are as in a new layer.
        """
        return self.pour(self.scaled(values.detach()), buffers)

    def pour(self, y: Tensor, buffers: Tensor | None = None) -> nn.Module:
        """The small model with these weights y, as they are."""
        _check(y, self.count)
        model = self.structure.blank(self.draw)
        named = dict(model.named_parameters())
        for part in self.parts:
            p = named[part.name]
            p.data = part.of(y).to(p.dtype)
        self._fill_buffers(model, buffers, y.device)
        self.structure.fit(model, self.draw)
        return model.train()

    def gradient(self, module: nn.Module) -> Tensor:
        """S'grad of the small model's loss, in the order of the values; 0 where there is no gradient."""
        named = dict(module.named_parameters())
        flat = torch.empty(self.count, dtype=_dtype(named.values()), device=next(iter(named.values())).device)
        for part in self.parts:
            g, own = named[part.name].grad, part.of(flat)
            if g is None:
                own.zero_()
            elif part.scales is None:
                own.copy_(g)
            else:
                torch.mul(g, part.scales.to(g), out=own) if g.dtype == own.dtype else own.copy_(
                    g * part.scales.to(g)
                )
        return flat

    def values_of(self, module: nn.Module) -> Tensor:
        """The weights y of the small model, in the order of the values."""
        named = dict(module.named_parameters())
        return torch.cat([named[part.name].detach().reshape(-1) for part in self.parts])

    def buffers_of(self, module: nn.Module) -> Tensor:
        """The small model's buffers, in the order of `gather_buffers`."""
        named = dict(module.named_buffers())
        flat = [named[part.name].detach().reshape(-1) for part in self.buffers]
        return torch.cat(flat) if flat else torch.empty(0)

    def _fill_buffers(self, model: nn.Module, values: Tensor | None, device: torch.device) -> None:
        if values is not None:
            _check(values, self.buffer_count)
        named = dict(model.named_buffers())
        for part in self.buffers:
            b = named[part.name]
            fresh = torch.empty(part.slice.shape, dtype=b.dtype, device=device)
            b.data = fresh if values is None else fresh.copy_(part.of(values))
        self._remaining(model, device, values is None)

    def _remaining(self, model: nn.Module, device: torch.device, all_of_them: bool) -> None:
        """Buffers that no values were given for: whole numbers; all if there were none."""
        given = set() if all_of_them else {part.name for part in self.buffers}
        slices = {part.name: part.slice for part in self.buffers}
        for module_name, module in model.named_modules():
            norm = isinstance(module, NormBase)
            if norm and all_of_them:
                module.num_batches_tracked = _zero(module.num_batches_tracked)
                module.reset_running_stats()
            for own, b in module._buffers.items():
                name = f"{module_name}.{own}" if module_name else own
                if b is None or name in given or (norm and all_of_them):
                    continue
                whole = self.structure.buffer(name)
                if whole is not None:
                    b.data = (slices[name].take(whole) if name in slices else whole.detach().clone()).to(
                        device
                    )
                elif own == "num_batches_tracked":
                    b.data = torch.zeros((), dtype=b.dtype, device=device)
                else:
                    raise ArgumentError(
                        f"the buffer {name!r} is needed, and only its shape is known: pass buffers= if it "
                        f"is of "
                        "floating point, or use a model with values"
                    )

    def __repr__(self) -> str:
        return f"<cut: {self.count:,} of {self.structure.count:,} values; {self.draw!r}>"


def tensors_of(tensors: Tensors) -> Mapping[str, Tensor]:
    """Parameters and buffers by name."""
    if isinstance(tensors, nn.Module):
        return dict(tensors.named_parameters()) | dict(tensors.named_buffers())
    return tensors


def _gather(parts: Sequence[Part], found: Mapping[str, Tensor], count: int, out: Tensor | None) -> Tensor:
    missing = [part.name for part in parts if part.name not in found]
    if missing:
        raise ArgumentError(f"there is no tensor {missing[0]!r} among those given")
    tensors = [found[part.name].detach() for part in parts]
    if out is None:
        device = tensors[0].device if tensors else torch.device("cpu")
        out = torch.empty(count, dtype=_dtype(tensors), device=device)
    else:
        _check(out, count)
    for part, tensor in zip(parts, tensors, strict=True):
        part.slice.take(tensor, part.of(out))
    return out


def _put(parts: Sequence[Part], found: Mapping[str, Tensor], values: Tensor, count: int) -> None:
    _check(values, count)
    with torch.no_grad():
        for part in parts:
            part.slice.put(found[part.name].detach(), part.of(values))


def _dtype(tensors: Any) -> torch.dtype:
    found = None
    for t in tensors:
        found = t.dtype if found is None else torch.promote_types(found, t.dtype)
    return found or torch.get_default_dtype()


def _check(values: Tensor, count: int) -> None:
    if values.dim() != 1 or len(values) != count or not values.is_contiguous():
        raise ArgumentError(
            f"this cut has {count} values in one contiguous dimension, got a tensor of shape "
            f"{tuple(values.shape)}"
        )


def _zero(counter: Tensor | None) -> Tensor | None:
    return None if counter is None else torch.zeros((), dtype=counter.dtype, device=counter.device)


def entries(units: Indices, run: int, offset: int) -> Indices:
    """The entries along a dimension that belong to these units."""
    if run == 1:
        return units + offset
    return (units[:, None] * run + np.arange(offset, offset + run)).reshape(-1)
