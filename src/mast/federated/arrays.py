"""A vector as named arrays of Flower's, and back."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
from flwr.app import Array, ArrayRecord

from mast.errors import ArgumentError
from mast.methods.distributed import Server
from mast.methods.distributed.messages import Values

Shapes = Mapping[str, tuple[int, ...]]  #: of the pieces of x, in their order


def checked_shapes(shapes: Mapping[str, object] | None, size: int) -> dict[str, tuple[int, ...]]:
    """The shapes, if they make up a vector of this size; by default one array, "x"."""
    if shapes is None:
        return {"x": (size,)}
    whole = {name: tuple(int(n) for n in shape) for name, shape in shapes.items()}  # type: ignore[attr-defined]
    total = sum(math.prod(shape) for shape in whole.values())
    if total != size:
        raise ArgumentError(f"the shapes hold {total} numbers, x has {size}")
    return whole


def shapes_of(server: Server) -> Mapping[str, object] | None:
    """Those of the parameters, if the server's model is a network."""
    layout = getattr(server.capacities[0], "layout", None)
    return None if layout is None else dict(layout.shapes)


def record_of(x: Values, shapes: Shapes) -> ArrayRecord:
    """The pieces of x.

    >>> record = record_of(np.arange(6.0), {"weight": (2, 2), "bias": (2,)})
    >>> record["bias"].numpy()
    array([4., 5.])
    """
    return ArrayRecord({name: Array(x[at].reshape(shapes[name])) for name, at in _places(shapes)})


def vector_of(record: ArrayRecord, shapes: Shapes, dtype: np.dtype[np.generic]) -> Values:
    """The vector that a record holds; other names or shapes are refused."""
    x = np.empty(sum(math.prod(shape) for shape in shapes.values()), dtype=dtype)
    if list(record) != list(shapes):
        raise ArgumentError(f"the arrays should be {list(shapes)}, in this order; got {list(record)}")
    for name, at in _places(shapes):
        array = record[name].numpy()
        if array.shape != shapes[name]:
            raise ArgumentError(f"the array {name!r} has shape {array.shape}, expected {shapes[name]}")
        if not np.isfinite(array).all():
            raise ArgumentError(f"the array {name!r} holds NaN or infinity")
        x[at] = array.reshape(-1)
    return x


def _places(shapes: Shapes) -> Iterator[tuple[str, slice]]:
    start = 0
    for name, shape in shapes.items():
        stop = start + math.prod(shape)
        yield name, slice(start, stop)
        start = stop
