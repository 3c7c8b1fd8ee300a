"""Drawing a mask and applying it, compiled: one pass over the weights, in pieces that stay in the cache.

Random words are addressed by coordinate, as in `mast.randomness`; these kernels only add what is
done with them. Each has a readable twin in `mast.nn.tensors.scaling`, and a test compares them bit for bit.
"""

from __future__ import annotations

from typing import Any

from numba import njit, types, uint32, uint64
from numba.core import cgutils
from numba.extending import intrinsic

from mast.randomness.kernels import derive, wide_philox, word

# Random words take time and no memory traffic, products the opposite. So the work goes in small pieces, and
# while the words of one are made, the weights of one further on are fetched: a quarter faster in all.
_PIECE = 256  # coordinates, a multiple of 4
_AHEAD = 512
_LINE = 64  # bytes


@intrinsic
def _prefetch(context: Any, array: Any, index: Any) -> Any:
    """Ask the processor for the cache line of array[index]; nothing depends on whether it obeys."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> None:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), cgutils.voidptr_t)
        number = cgutils.int32_t
        ir: Any = vars(cgutils)["ir"]
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, number, number, number])
        hint = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
        builder.call(hint, [pointer, number(0), number(3), number(1)])  # to read, keep in all caches, data

    return types.void(array, types.int64), generate


_fetch: Any = _prefetch


@njit(cache=True, nogil=True)
def draw(
    key: Any, threshold: Any, scale: Any, x: Any, v: Any, y: Any, mask: Any, start: int, stop: int
) -> None:
    """Coordinates start .. stop-1 of the mask and of y = v + S(x - v); v is None where there is no shift."""
    stream = derive(key)
    line = _LINE // x.itemsize
    for first in range(start, stop, _PIECE):
        last = min(first + _PIECE, stop)
        for i in range(first + _AHEAD, min(last + _AHEAD, stop), line):
            _fetch(x, i)
            _fetch(y, i)
            if v is not None:
                _fetch(v, i)
        piece, old, new = mask[first:last], x[first:last], y[first:last]
        _mask(stream, threshold, first, piece)
        if v is None:
            for i in range(piece.size):
                new[i] = old[i] * scale if piece[i] else x.dtype.type(0)
        else:
            base = v[first:last]
            for i in range(piece.size):
                new[i] = base[i] + (old[i] - base[i]) * scale if piece[i] else base[i]


@njit(inline="always")
def _mask(stream: Any, threshold: Any, first: Any, piece: Any) -> None:
    """Which words are below the threshold; inlined by Numba, which makes several blocks at once."""
    s0, s1, s2, s3 = stream
    blocks = piece.size >> 2
    for j in range(blocks):
        c = uint64((first >> 2) + j)
        w0, w1, w2, w3 = wide_philox(uint32(c), uint32(c >> uint64(32)), s2, s3, s0, s1)
        piece[4 * j] = uint64(w0) < threshold
        piece[4 * j + 1] = uint64(w1) < threshold
        piece[4 * j + 2] = uint64(w2) < threshold
        piece[4 * j + 3] = uint64(w3) < threshold
    for i in range(4 * blocks, piece.size):
        piece[i] = uint64(word(stream, first + i)) < threshold
