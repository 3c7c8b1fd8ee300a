"""What operations do with marks that move entries, combine them entry by entry, or sum them.

An operation that only moves entries is run on the layers themselves; one that acts entry by entry joins what
meets; one that has no rule pins all that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mast.nn.units.following.marks import ANY, WHOLE, Marks, repeating, span
from mast.nn.units.following.modes import Arguments, Options, tensors

if TYPE_CHECKING:
    from mast.nn.units.following.watching import Watching

aten = torch.ops.aten
Rule = Callable[["Watching", Any, Arguments, Options, Any], None]


def unknown(on: Watching, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """What has no rule keeps all of its units."""
    for t in tensors(args, options):
        marks = on.of(t)
        for layer in marks.layers if marks.weight else ():
            on.makes(layer)  # so that the table of units lists it
        on.pin(marks, f"{on.where()} has no rule that says what becomes of units")


def nothing(on: Watching, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """Leaves the marks as they are."""


# ---- entries that meet ---------------------------------------------------------------------------


def entrywise(on: Watching, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """Values that meet entry by entry."""
    given = [t for t in tensors(args, options) if t.numel() > 1]
    results = [t for t in tensors(out) if t.numel() > 1]
    if results:
        if (
            func.overloadpacket.__name__.endswith("_")
            and on.of(args[0]).constant
            and _filled(on, args[0], given[1:])
        ):
            return
        marks = on.combine([on.part(t) for t in given], results[0].shape)
        for result in results:
            on.put(result, marks)


def _filled(on: Watching, target: Tensor, sources: list[Tensor]) -> bool:
    """Whether entries of zeros() and the like took the marks of what was written into them."""
    own = on.of(target)
    layers = [layer for source in sources for layer in on.of(source).layers]
    if len(own.layers) != 1 or len(layers) != 1 or 0 in own.layers[0].stride():
        return False
    own.layers[0].copy_(layers[0].expand(target.shape))
    return True


def copied(on: Watching, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """y.copy_(x) writes x over y."""
    target, source = args[0], args[1]
    if on.of(target).constant and _filled(on, target, [source]):
        return
    if on.of(target).layers:
        entrywise(on, func, args, options, out)
    else:
        on.put(target, on.combine([on.part(source)], target.shape))


def constants(on: Watching, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """zeros(), full() and their like are numbers that fit beside any units."""
    loose = on.atoms.new_lengths(out.shape)
    on.put(out, Marks([torch.full(out.shape, ANY)], constant=True, loose=loose))


def alike(on: Watching, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """zeros_like(x), bernoulli(x) and their like have the units of x."""
    marks = on.of(args[0])
    for result in tensors(out):
        on.put(result, Marks(list(marks.layers), constant=marks.constant))


# ---- entries that move ---------------------------------------------------------------------------


def moved(on: Watching, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """The layers move as the entries do."""
    marks = on.of(args[0])
    results = tensors(out)
    layers: list[list[Tensor]] = [[] for _ in results]
    for layer in marks.layers:
        for found, own in zip(tensors(func(layer, *args[1:], **options)), layers, strict=True):
            own.append(found)
    keeps = func.overloadpacket in (aten.slice, aten.expand) and out.dim() == args[0].dim()
    _put_moved(on, marks, results, layers, marks.loose if keeps else {})


def turned(on: Watching, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """x.transpose_() and its like change the shape of x itself."""
    move = getattr(aten, func.overloadpacket.__name__.removesuffix("_"))
    marks = on.of(args[0])
    _put_moved(on, marks, [out], [[move(layer, *args[1:], **options) for layer in marks.layers]])


def reshaped(on: Watching, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """The same entries in another shape."""
    marks = on.of(args[0])
    layers = [layer.reshape(out.shape) for layer in marks.layers]
    if marks.weight:  # which is told by its strides along which dimensions a layer repeats itself
        layers = [repeating(layer) for layer in layers]
    _put_moved(on, marks, [out], [layers])


def same(on: Watching, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """Copies and other types."""
    if isinstance(out, Tensor):
        on.put(out, on.of(args[0]))


def _put_moved(
    on: Watching,
    marks: Marks,
    results: list[Tensor],
    layers: list[list[Tensor]],
    loose: Mapping[int, int | None] | None = None,
) -> None:
    for result, own in zip(results, layers, strict=True):
        if not marks.constant and not marks.weight:
            own = on.tidy(own, result.shape)
        on.put(result, Marks(own, marks.constant, marks.weight, loose or {}))


def concatenated(on: Watching, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """Units lie behind each other, or side by side along another dimension."""
    pieces = [t for t in args[0] if t.numel()]
    dim = (args[1] if len(args) > 1 else options.get("dim", 0)) % out.dim()
    # Where one piece has units across, such as heads, what lies along `dim` in another is within such units.
    across = {d for p in pieces for layer in on.without(on.of(p), dim).layers for d in span(on.core(layer))}
    for layer in (layer for piece in pieces for layer in on.of(piece).layers):
        if dim in span(on.core(layer)) and across & span(on.core(layer)):
            on.fix(layer, [dim], f"{on.where()} puts them beside others")
    rows: list[Tensor | None] = []
    rest: list[Marks] = []
    for piece in pieces:
        marks, row = on.of(piece), None
        for layer in marks.layers:
            if marks.weight:
                on.makes(layer)
            core = on.core(layer)
            if core.size(dim) > 1:
                row = core if row is None else row
        sizes = list(on.part(piece).sizes)
        sizes[dim] = 1
        rest.append(on.without(marks, dim).sized(*sizes))
        rows.append(row)
    shape = list(out.shape)
    shape[dim] = 1
    marks = on.combine(rest, shape).moved(lambda layer: layer.expand(out.shape))
    layers = marks.layers
    if any(row is not None for row in rows):
        vary = {d for row in rows if row is not None for d in range(out.dim()) if row.size(d) > 1} - {dim}
        whole = []
        for piece, row in zip(pieces, rows, strict=True):
            size = [n if d == dim or d in vary else 1 for d, n in enumerate(piece.shape)]
            stays = ANY if on.of(piece).constant else WHOLE
            whole.append(torch.full(size, stays) if row is None else row.expand(size))
        layers += on.tidy([torch.cat(whole, dim).expand(out.shape)], out.shape)
    on.put(out, Marks(layers, weight=all(on.of(p).weight for p in pieces), constant=marks.constant))


def stacked(on: Watching, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """Values of one shape along a new dimension: they have the same units."""
    dim = (args[1] if len(args) > 1 else options.get("dim", 0)) % out.dim()
    parts = []
    for piece in args[0]:
        sizes = list(on.part(piece).sizes)
        sizes.insert(dim, 1)
        parts.append(on.of(piece).moved(lambda layer: layer.unsqueeze(dim)).sized(*sizes))
    shape = list(out.shape)
    shape[dim] = 1
    on.put(out, on.combine(parts, shape).moved(lambda layer: layer.expand(out.shape)))


def padded(on: Watching, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """Constants around a value."""
    x, pad = args[0], args[1]
    layers = []
    for layer in on.of(x).layers:
        core = on.core(layer)
        for i in range(0, len(pad), 2):
            d = x.dim() - 1 - i // 2
            if core.size(d) > 1:
                amounts = [0] * len(pad)
                amounts[i], amounts[i + 1] = pad[i], pad[i + 1]
                core = torch.constant_pad_nd(core, amounts, ANY)
        layers.append(core.expand(out.shape))
    on.put(out, Marks(layers, on.of(x).constant))


def strided(on: Watching, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """as_strided(): the layers lie in memory as the value does only if it is contiguous."""
    marks = on.of(args[0])
    if not args[0].is_contiguous():
        unknown(on, func, args, options, out)
        return
    _put_moved(on, marks, [out], [[func(layer.contiguous(), *args[1:], **options) for layer in marks.layers]])


def indexed(on: Watching, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """x[numbers]: along dimensions that are selected from, all entries stay."""
    x, indices = args[0], list(args[1])
    dims: list[int] = []
    d = 0
    for index in indices:
        width = 1 if index is None or index.dtype not in (torch.bool, torch.uint8) else index.dim()
        dims += [] if index is None else range(d, d + width)
        d += width
        if index is not None:
            on.pin(on.of(index), f"{on.where()} selects by them")
    marks = on.fixed(x, dims, "selects among them")
    numbers = [None if index is None else index.cpu() for index in indices]
    _put_moved(on, marks, [out], [[func(layer, numbers) for layer in marks.layers]])


def index_selected(on: Watching, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """x.index_select(dim, numbers)."""
    x, dim = args[0], args[1] % args[0].dim()
    marks = on.fixed(x, [dim], "selects among them")
    _put_moved(on, marks, [out], [[func(layer, dim, args[2].cpu()) for layer in marks.layers]])


def index_written(on: Watching, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """x.index_put_(numbers, values) along the first dimensions, x.index_add_(dim, numbers, values)."""
    x = args[0]
    if isinstance(args[1], int):
        dims, values = [args[1] % x.dim()], args[3]
        rest = x.dim()
    else:
        dims = [d for d, index in enumerate(args[1]) if index is not None]
        values = args[2]
        rest = x.dim() - len(args[1]) if all(i is not None for i in args[1]) else 0
    target = on.fixed(x, dims, "writes to some of them")
    if not isinstance(args[1], int) and (rest == 0 or values.dim() < rest):
        on.pin(on.of(values), f"{on.where()} writes them in some places")
        on.put(out, target)
        return
    lead = values.dim() - rest
    own_dims = [*range(lead), *(d for d in dims if rest == x.dim())]
    source = on.fixed(values, own_dims, "writes some of them")
    fitted = [layer[(0,) * lead] for layer in source.layers]
    sizes = list(values.shape[lead:])
    if rest == x.dim():
        sizes[dims[0]] = 1
        fitted = [layer.narrow(dims[0], 0, 1) for layer in fitted]
    given = Marks(fitted, source.constant).sized(*sizes)
    sizes_x = [1 if d in dims else n for d, n in enumerate(x.shape)]
    one = tuple(slice(0, 1) if d in dims else slice(None) for d in range(x.dim()))
    own = Marks([layer[one] for layer in target.layers], target.constant)
    marks = on.combine([own.sized(*sizes_x), given], sizes_x)
    on.put(out, marks.moved(lambda layer: layer.expand(x.shape)))


# ---- entries that are summed or compared -----------------------------------------------------------


def mixed(position: int | None = 1, last: int = 0) -> Rule:
    """Entries along given dimensions act on each other; the result has the same dimensions."""

    def rule(on: Watching, func: Any, args: Arguments, options: Options, out: Any) -> None:
        x = args[0]
        dims = list(range(x.dim() - last, x.dim()))
        if position is not None:
            dims = _dims(args[position] if len(args) > position else options.get("dim", -1), x.dim())
        marks = on.fixed(x, dims, "acts on all of them together")
        for result in tensors(out):
            layers = [on.core(layer) for layer in marks.layers]
            on.put(result, Marks([core.expand(result.shape) for core in layers]))

    return rule


def reduced(on: Watching, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """Sums, means, maxima."""
    x = args[0]
    second = args[1] if len(args) > 1 else options.get("dim")
    if isinstance(second, Tensor):  # the larger one of two
        entrywise(on, func, args, options, out)
        return
    if second is None or isinstance(second, bool) or second == []:
        on.pin(on.of(x), f"{on.where()} takes all of them together")
        return
    if func.overloadpacket is aten.linalg_vector_norm:
        second = args[2] if len(args) > 2 else options.get("dim")
    dims = _dims(second, x.dim())
    marks = on.fixed(x, dims, "sums or compares them")
    for result in tensors(out):
        layers = []
        for layer in marks.layers:
            core = on.core(layer)
            if result.dim() != x.dim():
                core = core.reshape([n for d, n in enumerate(core.shape) if d not in dims])
            layers.append(core.expand(result.shape))
        on.put(result, Marks(layers))


def _dims(dims: Any, rank: int) -> list[int]:
    return [d % rank for d in ([dims] if isinstance(dims, int) else dims)]
