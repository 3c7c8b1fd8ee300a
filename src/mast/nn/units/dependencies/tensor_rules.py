"""What pointwise operations, views, indexing and reductions do with labels.

An operation that only moves entries is run on the labels themselves; one that acts entry by entry couples the
slices that meet; one without a rule excludes all that it is given.

A rule is told of an operation after it has run: `func` of ATen, its arguments, its options, and its result.
It asks the trace for the labels of the arguments, and sets those of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mast.nn.units.dependencies.graph import (
    ANY,
    INPUT,
    Arguments,
    Labels,
    Options,
    reexpanded,
    tensors,
    varying_dims,
)

if TYPE_CHECKING:
    from mast.nn.units.dependencies.tracing import DependencyTrace

aten = torch.ops.aten
Rule = Callable[["DependencyTrace", Any, Arguments, Options, Any], None]


def no_rule(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """An operation without a rule: its units are excluded."""
    for t in tensors(args, options):
        labels = trace.labels_of(t)
        for array in labels.arrays if labels.weight else ():
            trace.mark_producers(array)  # so that the table of units lists it
        trace.exclude(labels, f"{trace.location()} has no rule that says what becomes of units")


def no_units(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """Values that are not made of the model's tensors have no labels."""


# ---- pointwise ---------------------------------------------------------------------------


def pointwise(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """Values that meet entry by entry."""
    given = [t for t in tensors(args, options) if t.numel() > 1]
    results = [t for t in tensors(out) if t.numel() > 1]
    if results:
        if (
            func.overloadpacket.__name__.endswith("_")
            and trace.labels_of(args[0]).constant
            and _filled(trace, args[0], given[1:])
        ):
            return
        labels = trace.combine([trace.operand(t) for t in given], results[0].shape)
        for result in results:
            trace.set_labels(result, labels)


def _filled(trace: DependencyTrace, target: Tensor, sources: list[Tensor]) -> bool:
    """Whether entries of zeros() and the like took the labels of what was written into them."""
    own = trace.labels_of(target)
    arrays = [array for source in sources for array in trace.labels_of(source).arrays]
    if len(own.arrays) != 1 or len(arrays) != 1 or 0 in own.arrays[0].stride():
        return False
    own.arrays[0].copy_(arrays[0].expand(target.shape))
    return True


def copy_into(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """y.copy_(x) writes x over y."""
    target, source = args[0], args[1]
    if trace.labels_of(target).constant and _filled(trace, target, [source]):
        return
    if trace.labels_of(target).arrays:
        pointwise(trace, func, args, options, out)
    else:
        trace.set_labels(target, trace.combine([trace.operand(source)], target.shape))


def constant(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """zeros(), full() and their like are numbers that fit beside any units."""
    lengths = trace.graph.new_lengths(out.shape)
    trace.set_labels(out, Labels([torch.full(out.shape, ANY)], constant=True, constant_lengths=lengths))


def units_like(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """zeros_like(x), bernoulli(x) and their like have the units of x."""
    labels = trace.labels_of(args[0])
    for result in tensors(out):
        trace.set_labels(result, Labels(list(labels.arrays), constant=labels.constant))


# ---- views and copies ---------------------------------------------------------------------------


def move(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """Views and the like: the labels move as the entries do."""
    labels = trace.labels_of(args[0])
    keeps = func.overloadpacket in (aten.slice, aten.expand) and out.dim() == args[0].dim()
    lengths = labels.constant_lengths if keeps else {}
    _move_labels(trace, labels, out, lambda array: func(array, *args[1:], **options), lengths)


def transpose_in_place(
    trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Any
) -> None:
    """x.transpose_() and its like change the shape of x itself."""
    move = getattr(aten, func.overloadpacket.__name__.removesuffix("_"))
    _move_labels(trace, trace.labels_of(args[0]), out, lambda array: move(array, *args[1:], **options))


def reshape(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """The same entries in another shape."""
    labels = trace.labels_of(args[0])

    def reshaped(array: Tensor) -> Tensor:
        # The labels of a weight repeat themselves where their stride is 0.
        return reexpanded(array.reshape(out.shape)) if labels.weight else array.reshape(out.shape)

    _move_labels(trace, labels, out, reshaped)


def copy_labels(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """Copies and other types."""
    if isinstance(out, Tensor):
        trace.set_labels(out, trace.labels_of(args[0]))


def _move_labels(
    trace: DependencyTrace,
    labels: Labels,
    out: Any,
    move: Callable[[Tensor], Any],
    constant_lengths: Mapping[int, int | None] | None = None,
) -> None:
    """Give the results of an operation the labels, moved as it moves entries."""
    moved = [tensors(move(array)) for array in labels.arrays]
    for number, result in enumerate(tensors(out)):
        own = [found[number] for found in moved]
        if not labels.constant and not labels.weight:
            own = trace.distinct(own, result.shape)
        trace.set_labels(result, Labels(own, labels.constant, labels.weight, constant_lengths or {}))


def glu(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """The first half along a dimension, times the sigmoid of the second: it splits, then multiplies."""
    x, dim = args[0], args[1] if len(args) > 1 else options.get("dim", -1)
    split = x, x.shape[dim] // 2, dim
    halves = aten.split.Tensor(*split)
    move(trace, aten.split.Tensor, split, {}, halves)
    pointwise(trace, aten.mul.Tensor, halves, {}, out)


def concatenate(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """Units lie behind each other, or side by side along another dimension."""
    pieces = [t for t in args[0] if t.numel()]
    dim = (args[1] if len(args) > 1 else options.get("dim", 0)) % out.dim()
    # Where one piece has units across, such as heads, what lies along `dim` in another is within such units.
    across = {
        d
        for p in pieces
        for array in trace.without_dim(trace.labels_of(p), dim).arrays
        for d in varying_dims(trace.core(array))
    }
    for array in (array for piece in pieces for array in trace.labels_of(piece).arrays):
        if dim in varying_dims(trace.core(array)) and across & varying_dims(trace.core(array)):
            trace.couple_along(array, [dim], f"{trace.location()} puts them beside others")
    rows: list[Tensor | None] = []
    rest: list[Labels] = []
    for piece in pieces:
        labels, row = trace.labels_of(piece), None
        for array in labels.arrays:
            if labels.weight:
                trace.mark_producers(array)
            core = trace.core(array)
            if core.size(dim) > 1:
                row = core if row is None else row
        sizes = list(trace.operand(piece).sizes)
        sizes[dim] = 1
        rest.append(trace.without_dim(labels, dim).with_sizes(*sizes))
        rows.append(row)
    shape = list(out.shape)
    shape[dim] = 1
    labels = trace.combine(rest, shape).moved(lambda array: array.expand(out.shape))
    arrays = labels.arrays
    if any(row is not None for row in rows):
        vary = {d for row in rows if row is not None for d in range(out.dim()) if row.size(d) > 1} - {dim}
        whole = []
        for piece, row in zip(pieces, rows, strict=True):
            size = [n if d == dim or d in vary else 1 for d, n in enumerate(piece.shape)]
            stays = ANY if trace.labels_of(piece).constant else INPUT
            whole.append(torch.full(size, stays) if row is None else row.expand(size))
        arrays += trace.distinct([torch.cat(whole, dim).expand(out.shape)], out.shape)
    trace.set_labels(
        out, Labels(arrays, weight=all(trace.labels_of(p).weight for p in pieces), constant=labels.constant)
    )


def stack(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """Values of one shape along a new dimension: they have the same units."""
    dim = (args[1] if len(args) > 1 else options.get("dim", 0)) % out.dim()
    parts = []
    for piece in args[0]:
        sizes = list(trace.operand(piece).sizes)
        sizes.insert(dim, 1)
        parts.append(trace.labels_of(piece).moved(lambda array: array.unsqueeze(dim)).with_sizes(*sizes))
    shape = list(out.shape)
    shape[dim] = 1
    trace.set_labels(out, trace.combine(parts, shape).moved(lambda array: array.expand(out.shape)))


def pad(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """Constants around a value."""
    x, pad = args[0], args[1]
    arrays = []
    for array in trace.labels_of(x).arrays:
        core = trace.core(array)
        for i in range(0, len(pad), 2):
            d = x.dim() - 1 - i // 2
            if core.size(d) > 1:
                amounts = [0] * len(pad)
                amounts[i], amounts[i + 1] = pad[i], pad[i + 1]
                core = torch.constant_pad_nd(core, amounts, ANY)
        arrays.append(core.expand(out.shape))
    trace.set_labels(out, Labels(arrays, trace.labels_of(x).constant))


def as_strided(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """as_strided(): the arrays lie in memory as the value does only if it is contiguous."""
    if not args[0].is_contiguous():
        no_rule(trace, func, args, options, out)
        return
    labels = trace.labels_of(args[0])
    _move_labels(trace, labels, out, lambda array: func(array.contiguous(), *args[1:], **options))


def index(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """x[numbers]: along dimensions that are selected from, all entries stay."""
    x, indices = args[0], list(args[1])
    dims: list[int] = []
    d = 0
    for index in indices:
        width = 1 if index is None or index.dtype not in (torch.bool, torch.uint8) else index.dim()
        dims += [] if index is None else range(d, d + width)
        d += width
        if index is not None:
            trace.exclude(trace.labels_of(index), f"{trace.location()} selects by them")
    labels = trace.coupled_along(x, dims, "selects among them")
    numbers = [None if index is None else index.cpu() for index in indices]
    _move_labels(trace, labels, out, lambda array: func(array, numbers))


def index_select(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """x.index_select(dim, numbers)."""
    x, dim = args[0], args[1] % args[0].dim()
    labels = trace.coupled_along(x, [dim], "selects among them")
    _move_labels(trace, labels, out, lambda array: func(array, dim, args[2].cpu()))


def index_put(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """x.index_put_(numbers, values) along the first dimensions, x.index_add_(dim, numbers, values)."""
    x = args[0]
    if isinstance(args[1], int):
        dims, values = [args[1] % x.dim()], args[3]
        rest = x.dim()
    else:
        dims = [d for d, index in enumerate(args[1]) if index is not None]
        values = args[2]
        rest = x.dim() - len(args[1]) if all(i is not None for i in args[1]) else 0
    target = trace.coupled_along(x, dims, "writes to some of them")
    if not isinstance(args[1], int) and (rest == 0 or values.dim() < rest):
        trace.exclude(trace.labels_of(values), f"{trace.location()} writes them in some places")
        trace.set_labels(out, target)
        return
    lead = values.dim() - rest
    own_dims = [*range(lead), *(d for d in dims if rest == x.dim())]
    source = trace.coupled_along(values, own_dims, "writes some of them")
    fitted = [array[(0,) * lead] for array in source.arrays]
    sizes = list(values.shape[lead:])
    if rest == x.dim():
        sizes[dims[0]] = 1
        fitted = [array.narrow(dims[0], 0, 1) for array in fitted]
    given = Labels(fitted, source.constant).with_sizes(*sizes)
    sizes_x = [1 if d in dims else n for d, n in enumerate(x.shape)]
    one = tuple(slice(0, 1) if d in dims else slice(None) for d in range(x.dim()))
    own = Labels([array[one] for array in target.arrays], target.constant)
    labels = trace.combine([own.with_sizes(*sizes_x), given], sizes_x)
    trace.set_labels(out, labels.moved(lambda array: array.expand(x.shape)))


# ---- reductions -----------------------------------------------------------


def mix_along(position: int | None = 1, last: int = 0) -> Rule:
    """Entries along given dimensions act on each other; the result has the same dimensions."""

    def rule(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Any) -> None:
        x = args[0]
        dims = list(range(x.dim() - last, x.dim()))
        if position is not None:
            dims = _dims(args[position] if len(args) > position else options.get("dim", -1), x.dim())
        _mix(trace, x, dims, "acts on all of them together", out)

    return rule


def _mix(trace: DependencyTrace, x: Tensor, dims: list[int], verb: str, out: Any) -> None:
    """Couple what lies along these dimensions, which the results may be without."""
    labels = trace.coupled_along(x, dims, verb)
    for result in tensors(out):
        cores = [trace.core(array) for array in labels.arrays]
        if result.dim() != x.dim():
            cores = [core.reshape([n for d, n in enumerate(core.shape) if d not in dims]) for core in cores]
        trace.set_labels(result, Labels([core.expand(result.shape) for core in cores]))


def reduce(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """Sums, means, maxima."""
    x = args[0]
    second = args[1] if len(args) > 1 else options.get("dim")
    if isinstance(second, Tensor):  # the larger one of two
        pointwise(trace, func, args, options, out)
        return
    if second is None or isinstance(second, bool) or second == []:
        trace.exclude(trace.labels_of(x), f"{trace.location()} takes all of them together")
        return
    if func.overloadpacket is aten.linalg_vector_norm:
        second = args[2] if len(args) > 2 else options.get("dim")
    _mix(trace, x, _dims(second, x.dim()), "sums or compares them", out)


def _dims(dims: Any, rank: int) -> list[int]:
    return [d % rank for d in ([dims] if isinstance(dims, int) else dims)]
