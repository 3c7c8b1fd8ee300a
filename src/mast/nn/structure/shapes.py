"""Functions that change the shape of a value: where its units are afterwards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mast.nn.structure.carried import Product, Size, Value, sizes_in
from mast.nn.structure.flow import Flow

Arguments = list[Any]
Options = dict[str, Any]


def first(args: Arguments, options: Options) -> Value:
    """The value that a function or module is called with."""
    found = args[0] if args else next(iter(options.values()), None)
    return found if isinstance(found, Value) else Value()


def flatten(flow: Flow, where: str, args: Arguments, options: Options) -> Any:
    """torch.flatten(x, start_dim=0, end_dim=-1)."""
    start = args[1] if len(args) > 1 else options.get("start_dim", 0)
    end = args[2] if len(args) > 2 else options.get("end_dim", -1)
    return flattened(flow, where, first(args, options), start, end)


def flattened(flow: Flow, where: str, value: Value, start: int, end: int) -> Value:
    """Units stay together if their dimension is the outermost of those that become one."""
    rank = value.rank
    if value.joint is None:
        known = isinstance(start, int) and isinstance(end, int)
        if rank is None and known and start >= 0 and end == -1:
            return Value(rank=start + 1)
        return Value(rank=rank - (end % rank - start % rank) if known and rank else None)
    outermost, innermost = from_end(rank, start), from_end(rank, end)
    if outermost is None or innermost is None:
        return flow.refuse(where, value, "flattens a value whose number of dimensions is not known")
    removed = innermost - outermost
    rank = None if rank is None else rank - removed
    if innermost < value.dim:
        return replace(value, rank=rank)
    if outermost > value.dim:
        return replace(value, dim=value.dim + removed, rank=rank)
    if outermost == value.dim:
        return replace(value, dim=innermost, run=value.run if removed == 0 else None, rank=rank)
    return flow.refuse(where, value, "flattens units that are not outermost, so that they are scattered")


def reshape(flow: Flow, where: str, args: Arguments, options: Options) -> Any:
    """x.view(x.size(0), -1) and its like; sizes that are written as numbers would not fit a smaller model."""
    value = first(args, options)
    shape = args[1:] if len(args) > 1 else list(options.values())[-1:]
    if len(shape) == 1 and isinstance(shape[0], list | tuple | Size):
        shape = list(shape[0]) if isinstance(shape[0], list | tuple) else [shape[0]]
    if value.joint is None:
        _sizes_elsewhere(flow, where, value, shape)
        return Value(rank=len(shape))
    if value.rank is None or (len(shape) == 1 and isinstance(shape[0], Size)):
        return flow.refuse(where, value, "reshapes a value whose number of dimensions is not known")
    position = value.rank + value.dim
    same = 0
    while same < len(shape) and _keeps(where, shape[same], value, same):
        same += 1
    grows = any(size.changes for size in sizes_in(shape[same:]))
    if same > position and not grows:  # what follows the units is reshaped
        return replace(value, dim=position - len(shape), rank=len(shape))
    rest = shape[-1] == -1 or _is_rest(shape[-1], value)
    batch = same == position or (position == 1 and shape[0] == -1 and shape[-1] != -1)
    if batch and len(shape) == position + 1 and rest:
        return replace(value, dim=-1, run=None if value.dim != -1 else value.run, rank=len(shape))
    return flow.refuse(
        where,
        value,
        "has sizes that a smaller model would not fit: write torch.flatten(x, 1) or x.view(x.size(0), -1)",
    )


def permute(flow: Flow, where: str, args: Arguments, options: Options) -> Any:
    """The units move with their dimension."""
    value = first(args, options)
    order = args[1:] if len(args) > 1 else list(options.values())[-1:]
    if len(order) == 1 and isinstance(order[0], list | tuple):
        order = list(order[0])
    rank = len(order)
    if value.joint is None:
        return Value(rank=rank)
    new = [d % rank for d in order].index(rank + value.dim)
    return replace(value, dim=new - rank, rank=rank)


def unsqueeze(flow: Flow, where: str, args: Arguments, options: Options) -> Any:
    """A dimension of length 1 is put in."""
    value = first(args, options)
    dim = args[1] if len(args) > 1 else options.get("dim")
    rank = None if value.rank is None else value.rank + 1
    place = from_end(rank, dim)
    if value.joint is None or place is None:
        if value.joint is None:
            return Value(rank=rank)
        return flow.refuse(where, value, "reshapes a value whose number of dimensions is not known")
    return replace(value, dim=value.dim if value.dim > place else value.dim - 1, rank=rank)


def squeeze(flow: Flow, where: str, args: Arguments, options: Options) -> Any:
    """A named dimension is taken out: one whose length is not 1 would have no reason to be named."""
    value = first(args, options)
    dim = args[1] if len(args) > 1 else options.get("dim")
    place = from_end(value.rank, dim)
    if value.joint is None:
        return Value()
    if place is None or place == value.dim:
        return flow.refuse(where, value, "takes out dimensions that are not known")
    rank = None if value.rank is None else value.rank - 1
    return replace(value, dim=value.dim if value.dim > place else value.dim + 1, rank=rank)


def select(flow: Flow, where: str, value: Value, index: tuple[Any, ...]) -> Value:
    """x[...]: the units stay if all of them are taken."""
    plain = all(i is None or isinstance(i, int | slice) for i in index)
    if not plain or value.rank is None:
        return flow.refuse(where, value, "selects along dimensions that are not known")
    units, position, before = value.rank + value.dim, 0, 0  # dimensions of x gone through; of the result
    new = None
    for i in index:
        if i is None:
            before += 1
            continue
        if position == units:
            if i != slice(None):
                return flow.refuse(where, value, "selects some of the units")
            new = before
        before += not isinstance(i, int)
        position += 1
    rank = before + value.rank - position
    new = before + units - position if new is None else new
    return replace(value, dim=new - rank, rank=rank)


def transpose(flow: Flow, where: str, args: Arguments, options: Options) -> Any:
    """Two dimensions change places."""
    value = first(args, options)
    if value.joint is None:
        return Value(rank=value.rank)
    names = [a for a in (*args[1:], *options.values()) if isinstance(a, int)]
    dims = [from_end(value.rank, d) for d in names]
    if len(dims) != 2 or None in dims:
        return flow.refuse(where, value, "transposes a value whose number of dimensions is not known")
    a, b = dims
    assert a is not None
    assert b is not None
    return replace(value, dim=b if value.dim == a else a if value.dim == b else value.dim)


def from_end(rank: int | None, dim: Any) -> int | None:
    """A dimension counted from the end, if that is known."""
    if not isinstance(dim, int):
        return None
    if dim < 0:
        return dim
    return None if rank is None else dim - rank


def _keeps(where: str, entry: Any, value: Value, position: int) -> bool:
    """Whether this entry of a new shape is the old length at the same position."""
    if not isinstance(entry, Size) or entry.dim is None or value.rank is None:
        return False
    source = entry.value
    if value.joint is not None and value.rank + value.dim == position:
        if source.joint is None or not entry.of_units or source.run != value.run:
            return False
        if source.joint.root().size != value.joint.root().size:
            return False
        value.joint.join(source.joint, where)  # one length for both: they have to be cut alike
        return True
    if entry.dim == position == 0:
        return True  # the batch
    return source.rank == value.rank and entry.dim % value.rank == position


def _is_rest(entry: Any, value: Value) -> bool:
    """Whether this is the product of the lengths from the units to the end."""
    if not isinstance(entry, Product | Size) or value.rank is None or value.joint is None:
        return False
    dims = []
    for size in sizes_in(entry):
        source = size.value
        if size.dim is None or source.rank != value.rank:
            return False
        dims.append(size.dim % value.rank)
        if size.of_units and (source.joint is None or source.joint.root() is not value.joint.root()):
            return False
    return sorted(dims) == list(range(value.rank + value.dim, value.rank)) and value.run == 1


def _sizes_elsewhere(flow: Flow, where: str, value: Value, shape: list[Any]) -> None:
    for entry in sizes_in(shape):
        if entry.changes:
            flow.refuse(where, entry.value, "gives another value their number as a size")
