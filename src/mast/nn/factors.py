"""What one draw does to one parameter: a diagonal matrix, in the form that is cheapest to keep.

`multiply(u)` is S u in plain torch operations: readable, differentiable, right for any layout, type
and device. `adjoint(g)` is the same S'g with a compiled shortcut for contiguous floats on the CPU.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mast.nn.torch_private import holders

_COMPILED = (torch.float32, torch.float64)
_WORTH_KEEPING = 1 << 17  # bytes: smaller pieces of memory are recycled by the allocator itself


class Memory:
    """Memory for one parameter's gradients or masks, used again as soon as nobody holds it.

    A training loop frees a gradient and asks for an equal one at every step; for large ones the system
    takes the pages back and clears them anew each time, which costs as much as the product itself.
    """

    def __init__(self) -> None:
        self._storages: list[torch.UntypedStorage] = []  # at most two: that of this step, and of the last

    def like(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """An uninitialised tensor like this one on the CPU, perhaps of another type."""
        dtype = tensor.dtype if dtype is None else dtype
        size = tensor.numel() * dtype.itemsize
        if size < _WORTH_KEEPING or holders is None:
            return torch.empty_like(tensor, dtype=dtype)
        for storage in self._storages:
            if storage.nbytes() == size and holders(storage._cdata) == 1:
                return torch.empty(0, dtype=dtype).set_(storage, 0, tensor.shape, tensor.stride())
        fresh = torch.empty_like(tensor, dtype=dtype)
        self._storages = [*self._storages[-1:], fresh.untyped_storage()]
        return fresh


class Factor(ABC):
    """The diagonal c of S over one parameter, coordinates in row-major order."""

    @abstractmethod
    def multiply(self, u: Tensor) -> Tensor:
        """S u, differentiable in u."""

    @abstractmethod
    def _compiled(self, g: Tensor, out: Tensor) -> None:
        """S'g for contiguous floats on the CPU, written to `out`."""

    @abstractmethod
    def _at_rows(self, rows: Tensor, shape: torch.Size) -> Tensor:
        """The diagonal at some rows of a parameter of this shape, as numbers to multiply with."""

    def sparsify(self, x: Tensor, v: Tensor | None) -> Tensor:
        """v + S(x - v), differentiable in x."""
        return self.multiply(x) if v is None else v + self.multiply(x - v)

    def adjoint(self, g: Tensor, memory: Memory | None = None) -> Tensor:
        """S'g."""
        if g.is_sparse:
            return self._adjoint_sparse(g)
        if compiled(g) and not (torch.is_grad_enabled() and g.requires_grad):
            out = torch.empty_like(g) if memory is None else memory.like(g)
            self._compiled(g, out)
            return out
        return self.multiply(g)

    def _adjoint_sparse(self, g: Tensor) -> Tensor:
        """Embeddings with ``sparse=True`` have gradients that hold some rows only."""
        g = g.coalesce()
        if g.sparse_dim() != 1:
            return self.multiply(g.to_dense())
        values = g.values() * self._at_rows(g.indices()[0], g.shape).to(g.dtype)
        return torch.sparse_coo_tensor(
            g.indices(), values, g.shape, is_coalesced=True, check_invariants=False
        )


class Mask(Factor):
    """The same scale on what is kept, 0 elsewhere."""

    def __init__(self, kept: Tensor, scale: float) -> None:
        self.kept = kept
        self.scale = scale

    def multiply(self, u: Tensor) -> Tensor:
        """First the mask, exactly, then the scale, so that half precision rounds once."""
        return u * self.kept.view(u.shape) * self.scale

    def _compiled(self, g: Tensor, out: Tensor) -> None:
        from mast.nn import kernels

        flat = numbers(g)
        kernels.select(numbers(self.kept), flat.dtype.type(self.scale), flat, numbers(out))

    def _at_rows(self, rows: Tensor, shape: torch.Size) -> Tensor:
        return self.kept.view(shape)[rows].double() * self.scale


class Scales(Factor):
    """Every coordinate has a scale of its own, as with Gaussian sketches."""

    def __init__(self, scales: Tensor) -> None:
        self.scales = scales

    def multiply(self, u: Tensor) -> Tensor:
        """Coordinate by coordinate."""
        return _times(u, self.scales.view(u.shape))

    def _compiled(self, g: Tensor, out: Tensor) -> None:
        torch.mul(g, self.scales.view(g.shape).to(g.dtype), out=out)

    def _at_rows(self, rows: Tensor, shape: torch.Size) -> Tensor:
        return self.scales.view(shape)[rows]


class Kept(Factor):
    """Scales at a few coordinates, 0 elsewhere: what a draw over the whole model leaves of one parameter."""

    def __init__(self, indices: Tensor, scales: Tensor) -> None:
        self.indices = indices
        self.scales = scales

    def multiply(self, u: Tensor) -> Tensor:
        """Pick, scale and put back."""
        flat = u.reshape(-1)
        picked = _times(flat[self.indices], self.scales)
        return torch.zeros_like(flat).index_copy(0, self.indices, picked).view(u.shape)

    def _compiled(self, g: Tensor, out: Tensor) -> None:
        from mast.nn import kernels

        out.zero_()
        kernels.place(numbers(self.indices), numbers(self.scales.to(g.dtype)), numbers(g), numbers(out))

    def _at_rows(self, rows: Tensor, shape: torch.Size) -> Tensor:
        whole = torch.zeros(shape.numel(), dtype=self.scales.dtype, device=self.scales.device)
        return whole.index_copy(0, self.indices, self.scales).view(shape)[rows]


def _times(u: Tensor, scales: Tensor) -> Tensor:
    """u times scales, rounded once: in half precision the scales themselves would be off, and S biased."""
    wide = torch.promote_types(u.dtype, torch.float32)
    return (u.to(wide) * scales.to(wide)).to(u.dtype)


def compiled(*tensors: Tensor | None) -> bool:
    """Whether the compiled kernels can work on all of these."""
    for t in tensors:
        if t is not None and not (
            t.dtype in _COMPILED
            and t.device.type == "cpu"
            and t.layout == torch.strided
            and t.is_contiguous()
        ):
            return False
    return True


def numbers(tensor: Tensor) -> np.ndarray[Any, np.dtype[Any]]:
    """The tensor's memory as a flat NumPy array."""
    array: np.ndarray[Any, np.dtype[Any]] = (tensor.detach() if tensor.requires_grad else tensor).numpy()
    return array.reshape(-1)
