"""S on tensors: sparsified weights and sketched gradients, from what a draw keeps of a parameter.

`multiply(kept, u)` is S u in plain torch operations: readable, differentiable, right for any layout, type
and device. `adjoint(kept, g)` is the same S'g with a compiled shortcut for contiguous floats on the CPU.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mast.nn.tensors.torch_private import holders
from mast.sketches.draws import DiagonalDraw, Draw, FullDraw, GridDraw, MaskDraw

_COMPILED = (torch.float32, torch.float64)
_WORTH_KEEPING = 1 << 17  # bytes: smaller pieces of memory are recycled by the allocator itself


def multiply(kept: Draw, u: Tensor) -> Tensor:
    """S u, differentiable in u."""
    if isinstance(
        kept, MaskDraw
    ):  # first the mask, exactly, then the scale, so that half precision rounds once
        return u * _tensor(kept.mask, u).view(u.shape) * kept.scales
    if isinstance(kept, DiagonalDraw):
        flat, indices = u.reshape(-1), _tensor(kept.positions, u)
        picked = times(flat[indices], wide(kept.scales, u))
        return torch.zeros_like(flat).index_copy(0, indices, picked).view(u.shape)
    return times(u, _spread(kept, u))


def sparsify(kept: Draw, x: Tensor, v: Tensor | None) -> Tensor:
    """v + S(x - v), differentiable in x."""
    return multiply(kept, x) if v is None else v + multiply(kept, x - v)


def sparsify_into(kept: Draw, x: Tensor, v: Tensor | None, y: Tensor) -> None:
    """The same into y, by one product without a temporary tensor where it can be."""
    if v is None and isinstance(kept, GridDraw | FullDraw) and x.dtype in _COMPILED:
        torch.mul(x, _spread(kept, x), out=y)
    else:
        y.copy_(sparsify(kept, x, v))


def replace_entries(before: DiagonalDraw, kept: DiagonalDraw, x: Tensor, v: Tensor | None, y: Tensor) -> None:
    """The same into y, which holds that of the draw `before`: that is undone where it had kept something."""
    from mast.sketches.draws import kernels as draw_kernels

    old, new, base = numbers(x), numbers(y), None if v is None else numbers(v)
    draw_kernels.copy(new, before.indices, base)
    draw_kernels.sparsify_entries(new, kept.indices, _scales_of(kept, old.dtype), old, base)


def adjoint(kept: Draw, g: Tensor, memory: Memory | None = None) -> Tensor:
    """S'g, in memory that is used again if it is given."""
    if g.is_sparse:
        return _adjoint_sparse(kept, g)
    if not compiled(g) or (torch.is_grad_enabled() and g.requires_grad):
        return multiply(kept, g)
    out = torch.empty_like(g) if memory is None else memory.like(g)
    from mast.sketches.draws import kernels as draw_kernels

    flat = numbers(g)
    if isinstance(kept, MaskDraw):
        draw_kernels.select(numbers(_tensor(kept.mask, g)), flat.dtype.type(kept.scales), flat, numbers(out))
    elif isinstance(kept, DiagonalDraw):
        out.zero_()
        draw_kernels.sparsify_entries(numbers(out), kept.indices, _scales_of(kept, flat.dtype), flat, None)
    else:
        torch.mul(g, _spread(kept, g).to(g.dtype), out=out)
    return out


def _adjoint_sparse(kept: Draw, g: Tensor) -> Tensor:
    """Embeddings with ``sparse=True`` have gradients that hold some rows only."""
    g = g.coalesce()
    if g.sparse_dim() != 1:
        return multiply(kept, g.to_dense())
    rows = g.indices()[0]
    if isinstance(kept, MaskDraw):
        scales = _tensor(kept.mask, g).view(g.shape)[rows].double() * kept.scales
    elif isinstance(kept, DiagonalDraw):
        scales = multiply(kept, torch.ones(g.shape, dtype=torch.float64, device=g.device))[rows]
    else:
        scales = _spread(kept, g).expand(g.shape)[rows]
    values = g.values() * scales.to(g.dtype)
    return torch.sparse_coo_tensor(g.indices(), values, g.shape, is_coalesced=True, check_invariants=False)


def _spread(kept: Draw, u: Tensor) -> Tensor:
    """All scales, 0 where an entry is dropped, in a shape that broadcasts."""
    return wide(kept.spread() if isinstance(kept, GridDraw) else kept.factors, u)


def wide(scales: Any, u: Tensor) -> Tensor:
    """Scales as a tensor where u is, at least in single precision."""
    return torch.as_tensor(scales, dtype=torch.promote_types(u.dtype, torch.float32), device=u.device)


def times(u: Tensor, scales: Tensor) -> Tensor:
    """u times scales, rounded once: in half precision the scales themselves would be off, and S biased."""
    return (u.to(scales.dtype) * scales).to(u.dtype)


def _scales_of(kept: DiagonalDraw, dtype: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """One scale for each kept entry, in this precision."""
    scales = np.asarray(kept.scales, dtype=dtype)
    return scales if scales.ndim else np.broadcast_to(scales, kept.count)


def _tensor(numbers_there: Any, like: Tensor) -> Tensor:
    """An array, a number or a tensor, as a tensor on the device of another."""
    return torch.as_tensor(numbers_there, device=like.device)


class Memory:
    """Memory for one parameter's gradients or masks, used again as soon as nobody holds it.

    A training loop frees a gradient and asks for an equal one at every step; for large ones the system
    takes the pages back and clears them anew each time, which costs as much as the product itself.
    """

    def __init__(self) -> None:
        self._storages: list[torch.UntypedStorage] = []  # at most two: that of this step, and of the last
        self._lock = threading.Lock()

    def like(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """An uninitialised tensor like this one on the CPU, perhaps of another type."""
        dtype = tensor.dtype if dtype is None else dtype
        size = tensor.numel() * dtype.itemsize
        if size < _WORTH_KEEPING or holders is None:
            return torch.empty_like(tensor, dtype=dtype)
        with self._lock:  # threads that go backward at the same time must not find the same piece
            for storage in self._storages:
                if storage.nbytes() == size and holders(storage._cdata) == 1:
                    return torch.empty(0, dtype=dtype).set_(storage, 0, tensor.shape, tensor.stride())
            fresh = torch.empty_like(tensor, dtype=dtype)
            self._storages = [*self._storages[-1:], fresh.untyped_storage()]
        return fresh


def compiled(*tensors: Tensor | None) -> bool:
    """Whether the compiled kernels can work on all of these."""
    return all(
        t.dtype in _COMPILED and t.device.type == "cpu" and t.layout == torch.strided and t.is_contiguous()
        for t in tensors
        if t is not None
    )


def numbers(tensor: Tensor) -> np.ndarray[Any, np.dtype[Any]]:
    """The tensor's memory as a flat NumPy array."""
    array: np.ndarray[Any, np.dtype[Any]] = (tensor.detach() if tensor.requires_grad else tensor).numpy()
    return array.reshape(-1)
