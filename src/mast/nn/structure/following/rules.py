"""What each operation does with marks.

Operations are those of ATen, which all of torch's functions and modules are made of. One that only moves
entries is run on the layers themselves; one that acts entry by entry joins what meets; one that has no rule
pins all that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mast.nn.structure.following.atoms import ANY, WHOLE
from mast.nn.structure.following.marks import Marks, Operand

if TYPE_CHECKING:
    from mast.nn.structure.following.watching import Watching

aten = torch.ops.aten
Arguments = tuple[Any, ...]
Options = Mapping[str, Any]
Rule = Callable[["Watching", Any, Arguments, Options, Any], None]


def follow(on: Watching, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """Give the results of an operation their marks."""
    rule = RULES.get(func.overloadpacket)
    if rule is not None:
        rule(on, func, args, options, out)
    elif torch.Tag.pointwise in func.tags:
        entrywise(on, func, args, options, out)
    elif func.is_view:
        moved(on, func, args, options, out)
    else:
        unknown(on, func, args, options, out)


def tensors(*of: Any) -> list[Tensor]:
    """The tensors among arguments, also in lists."""
    found: list[Tensor] = []
    for one in of:
        if isinstance(one, Tensor):
            found.append(one)
        elif isinstance(one, list | tuple):
            found += tensors(*one)
        elif isinstance(one, dict):
            found += tensors(*one.values())
    return found


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
    on.put(out, Marks([torch.full(out.shape, ANY)], constant=True))


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
    keeps = func.overloadpacket in (aten.slice, aten.expand)
    _put_moved(
        on, marks, results, layers, marks.loose if keeps and out.dim() == args[0].dim() else frozenset()
    )


def turned(on: Watching, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """x.transpose_() and its like change the shape of x itself."""
    move = getattr(aten, func.overloadpacket.__name__.removesuffix("_"))
    marks = on.of(args[0])
    _put_moved(on, marks, [out], [[move(layer, *args[1:], **options) for layer in marks.layers]])


def reshaped(on: Watching, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """The same entries in another shape."""
    marks = on.of(args[0])
    _put_moved(on, marks, [out], [[layer.reshape(out.shape) for layer in marks.layers]])


def same(on: Watching, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """Copies and other types."""
    if isinstance(out, Tensor):
        on.put(out, on.of(args[0]))


def _put_moved(
    on: Watching,
    marks: Marks,
    results: list[Tensor],
    layers: list[list[Tensor]],
    loose: frozenset[int] = frozenset(),
) -> None:
    for result, own in zip(results, layers, strict=True):
        if not marks.constant and not marks.weight:
            own = on.tidy(own, result.shape)
        on.put(result, Marks(own, marks.constant, marks.weight, loose))


def concatenated(on: Watching, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """Units lie behind each other, or side by side along another dimension."""
    pieces = [t for t in args[0] if t.numel()]
    dim = (args[1] if len(args) > 1 else options.get("dim", 0)) % out.dim()
    rows: list[Tensor | None] = []
    rest: list[Operand] = []
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
        rest.append(Operand(on.without(marks, dim), tuple(sizes)))
        rows.append(row)
    shape = list(out.shape)
    shape[dim] = 1
    marks = on.combine(rest, shape)
    layers = [layer.expand(out.shape) for layer in marks.layers]
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
        marks = on.of(piece)
        sizes = list(on.part(piece).sizes)
        sizes.insert(dim, 1)
        parts.append(
            Operand(
                Marks([la.unsqueeze(dim) for la in marks.layers], marks.constant, marks.weight), tuple(sizes)
            )
        )
    shape = list(out.shape)
    shape[dim] = 1
    marks = on.combine(parts, shape)
    on.put(out, Marks([layer.expand(out.shape) for layer in marks.layers], marks.constant))


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
    marks = on.fixed(on.of(x), dims, x.shape, f"{on.where()} selects among them")
    numbers = [None if index is None else index.cpu() for index in indices]
    _put_moved(on, marks, [out], [[func(layer, numbers) for layer in marks.layers]])


def index_selected(on: Watching, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """x.index_select(dim, numbers)."""
    x, dim = args[0], args[1] % args[0].dim()
    marks = on.fixed(on.of(x), [dim], x.shape, f"{on.where()} selects among them")
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
    target = on.fixed(on.of(x), dims, x.shape, f"{on.where()} writes to some of them")
    if not isinstance(args[1], int) and (rest == 0 or values.dim() < rest):
        on.pin(on.of(values), f"{on.where()} writes them in some places")
        on.put(out, target)
        return
    lead = values.dim() - rest
    source = on.fixed(
        on.of(values),
        [*range(lead), *(d for d in dims if rest == x.dim())],
        values.shape,
        f"{on.where()} writes some of them",
    )
    fitted = [layer[(0,) * lead] for layer in source.layers]
    sizes = list(values.shape[lead:])
    if rest == x.dim():
        sizes[dims[0]] = 1
        fitted = [layer.narrow(dims[0], 0, 1) for layer in fitted]
    given = Operand(Marks(fitted, source.constant), tuple(sizes))
    sizes_x = [1 if d in dims else n for d, n in enumerate(x.shape)]
    narrowed = list(target.layers)
    for d in dims:
        narrowed = [layer.narrow(d, 0, 1) for layer in narrowed]
    marks = on.combine([Operand(Marks(narrowed, target.constant), tuple(sizes_x)), given], sizes_x)
    on.put(out, Marks([layer.expand(x.shape) for layer in marks.layers], marks.constant))


# ---- entries that are summed or compared -----------------------------------------------------------


def mixed(position: int | None = 1, last: int = 0) -> Rule:
    """Entries along given dimensions act on each other; the result has the same dimensions."""

    def rule(on: Watching, func: Any, args: Arguments, options: Options, out: Any) -> None:
        x = args[0]
        dims = list(range(x.dim() - last, x.dim()))
        if position is not None:
            dims = _dims(args[position] if len(args) > position else options.get("dim", -1), x.dim())
        marks = on.fixed(on.of(x), dims, x.shape, f"{on.where()} acts on all of them together")
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
    marks = on.fixed(on.of(x), dims, x.shape, f"{on.where()} sums or compares them")
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


def matrices(on: Watching, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """Products of matrices, and what is added to them."""
    added, (a, b) = args[:-2], args[-2:]
    marks_a, marks_b = on.of(a), on.of(b)
    on.contract(marks_a, a.dim() - 1, marks_b, b.dim() - 2 if b.dim() > 1 else 0)
    left = on.without(marks_a, a.dim() - 1)
    right = on.without(marks_b, b.dim() - 2 if b.dim() > 1 else 0)
    if b.dim() == 1:
        left.layers = [layer.narrow(a.dim() - 1, 0, 1).squeeze(-1) for layer in left.layers]
        parts = [Operand(left, tuple(a.shape[:-1]))]
    else:
        left.layers = [layer.narrow(a.dim() - 1, 0, 1) for layer in left.layers]
        right.layers = [layer.narrow(b.dim() - 2, 0, 1) for layer in right.layers]
        parts = [Operand(left, (*a.shape[:-1], 1)), Operand(right, (*b.shape[:-2], 1, b.shape[-1]))]
    parts += [on.part(t) for t in tensors(added)]
    on.put(out, on.combine(parts, out.shape))


def linear(on: Watching, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """x W' + b, where it comes in one piece."""
    x, w = args[0], args[1]
    on.contract(on.of(x), x.dim() - 1, on.of(w), 1)
    left = on.without(on.of(x), x.dim() - 1)
    left.layers = [layer.narrow(-1, 0, 1) for layer in left.layers]
    right = on.without(on.of(w), 1)
    right.layers = [layer.narrow(1, 0, 1).squeeze(1) for layer in right.layers]
    parts = [
        Operand(left, (*x.shape[:-1], 1)),
        Operand(right, (w.shape[0],)),
        *(on.part(t) for t in tensors(args[2:])),
    ]
    on.put(out, on.combine(parts, out.shape))


def experts(on: Watching, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """Rows times one of several matrices each: the matrices stay, their rows and columns are units."""
    a, b = args[:2]
    if a.dim() != 2 or b.dim() != 3:
        unknown(on, func, args, options, out)
        return
    on.fixed(on.of(b), [0], b.shape, f"{on.where()} chooses among them")
    on.contract(on.of(a), 1, on.of(b), 1)
    left, right = on.without(on.of(a), 1), on.without(on.of(b), 1)
    left.layers = [layer.narrow(1, 0, 1) for layer in left.layers]
    right.layers = [layer[0, 0] for layer in right.layers if layer.stride(0) == 0]
    parts = [Operand(left, (a.shape[0], 1)), Operand(right, (b.shape[2],))]
    on.put(out, on.combine(parts, out.shape))


# ---- layers of networks ---------------------------------------------------------------------------


def placed(on: Watching, tensor: Tensor, dim: int, rank: int) -> Operand:
    """A tensor of one dimension, beside dimension `dim` of a value."""
    shape = [1] * rank
    shape[dim] = tensor.shape[0]
    marks = on.of(tensor)
    return Operand(
        Marks([la.reshape(shape) for la in marks.layers], marks.constant, marks.weight), tuple(shape)
    )


def convolution(on: Watching, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """Channels are taken and made; groups of channels live or die together."""
    x, w, bias = args[0], args[1], args[2]
    transposed, groups = args[6], args[8]
    rank = x.dim()
    where = on.where()
    value = on.fixed(on.of(x), range(2, rank), x.shape, f"{where} acts along their dimension")
    weight = Marks(list(on.of(w).layers), weight=on.of(w).weight)
    for layer in weight.layers:
        for d in range(2, rank):
            if on.core(layer).size(d) > 1:
                on.fix(layer, [d], "they are the extent of a kernel")
    rows, columns = (1, 0) if transposed else (0, 1)
    if groups > 1 and transposed:
        unknown(on, func, args, options, out)
        return
    if groups > 1:
        _grouped(on, value, weight, groups)
    else:
        on.contract(value, 1, weight, columns)
    made = on.along(weight, rows)
    parts = [
        Operand(
            Marks([la.narrow(1, 0, 1) for la in on.without(value, 1).layers]), (x.shape[0], *[1] * (rank - 1))
        )
    ]
    shape = [1] * rank
    shape[1] = out.shape[1]
    if made is not None:
        if weight.weight:
            for layer in weight.layers:
                if on.core(layer).size(rows) > 1:
                    on.makes(layer)
        parts.append(Operand(Marks([made.reshape(shape)]), tuple(shape)))
    else:
        parts.append(Operand(Marks(), tuple(shape)))
    if bias is not None:
        parts.append(placed(on, bias, 1, rank))
    on.put(out, on.combine(parts, out.shape))


def _grouped(on: Watching, value: Marks, weight: Marks, groups: int) -> None:
    """Each group of channels is one unit, coming in and going out."""
    where = on.where()
    units, rows, columns = on.along(value, 1), on.along(weight, 0), on.along(weight, 1)
    if columns is not None:
        on.atoms.pin(columns, f"{where} has groups of channels, which only whole can be dropped")
    if rows is None:
        on.pin(value, f"{where} has groups of channels")
        return
    rows = rows.reshape(groups, -1)
    on.atoms.join(rows, rows[:, :1])
    if units is None:
        if not value.constant:
            on.atoms.pin(rows, f"{where} takes the model's input, or values that stay")
        return
    units = units.reshape(groups, -1)
    on.atoms.join(units, units[:, :1])
    on.atoms.join(units[:, :1], rows[:, :1])
    on.note_length(on.atoms.root[rows[:, 0]])


def embedding(on: Watching, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """Rows are chosen by the input, and stay; columns are features."""
    weight = args[0]
    marks = on.fixed(
        on.of(weight), [0], weight.shape, f"{on.where()} chooses among them by the model's input"
    )
    layers = []
    for layer in marks.layers:
        if on.core(layer).size(1) > 1:
            on.makes(layer)
            layers.append(on.core(layer).reshape(-1).expand(out.shape))
    on.put(out, Marks(layers))


def layer_norm(on: Watching, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """Mixes all that it normalises over."""
    x, normalized = args[0], args[1]
    dims = range(x.dim() - len(normalized), x.dim())
    marks = on.fixed(on.of(x), dims, x.shape, f"{on.where()} normalises over all of them")
    parts = [Operand(marks, tuple(x.shape)), *(on.part(t) for t in tensors(args[2:4]))]
    on.put(tensors(out)[0], on.combine(parts, x.shape))


def group_norm(on: Watching, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """Channels of one group are normalised together."""
    x, groups = args[0], args[6]
    where = on.where()
    marks = on.fixed(on.of(x), range(2, x.dim()), x.shape, f"{where} normalises over all of them")
    units = on.along(marks, 1)
    if units is not None:
        units = units.reshape(groups, -1)
        on.atoms.join(units, units[:, :1])
        if groups == 1:
            on.atoms.pin(units, f"{where} normalises over all of them")
        on.note_length(on.atoms.root[units[:, 0]])
    parts = [
        Operand(marks, (*x.shape[:2], *[1] * (x.dim() - 2))),
        *(placed(on, t, 1, x.dim()) for t in tensors(args[1:3])),
    ]
    result = tensors(out)[0]
    on.put(result, on.combine(parts, x.shape))


def batch_norm(on: Watching, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """Each channel by itself, with its statistics."""
    x = args[0]
    others = [0, *range(2, x.dim())]
    marks = on.fixed(on.of(x), others, x.shape, f"{on.where()} normalises along their dimension")
    parts = [Operand(marks, tuple(1 if d in others else n for d, n in enumerate(x.shape)))]
    parts += [placed(on, t, 1, x.dim()) for t in tensors(args[1:5]) if t.numel() > 1]
    on.put(tensors(out)[0], on.combine(parts, x.shape))


def attention(on: Watching, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """softmax(q k') v in one piece: heads by themselves."""
    q, k, v = args[:3]
    heads = q.shape[1]
    parts = []
    for t in (q, k, v):
        marks = on.fixed(on.of(t), [2, 3], t.shape, f"{on.where()} sums over them")
        layers = [layer[:, :, :1, :1] for layer in marks.layers]
        if t.shape[1] != heads:
            layers = [layer.repeat_interleave(heads // t.shape[1], 1) for layer in layers]
        parts.append(Operand(Marks(layers), (t.shape[0], heads, 1, 1)))
    for mask in tensors(args[3:], dict(options)):
        if mask.dim() > 1:
            marks = on.fixed(
                on.of(mask), [mask.dim() - 2, mask.dim() - 1], mask.shape, f"{on.where()} compares them"
            )
            parts.append(
                Operand(
                    Marks([la[..., :1, :1] for la in marks.layers], marks.constant),
                    (*on.part(mask).sizes[:-2], 1, 1),
                )
            )
    result = tensors(out)[0]
    marks = on.combine(parts, (*result.shape[:2], 1, 1))
    on.put(result, Marks([layer.expand(result.shape) for layer in marks.layers]))


def unknown(on: Watching, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """What has no rule keeps all of its units."""
    for t in tensors(args, dict(options)):
        on.pin(on.of(t), f"{on.where()} has no rule that says what becomes of units")


def nothing(on: Watching, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """Leaves the marks as they are."""


def _packets(names: str) -> list[Any]:
    return [getattr(aten, name) for name in names.split() if hasattr(aten, name)]


RULES: dict[Any, Rule] = {
    **dict.fromkeys(_packets(
        "zeros ones full empty new_zeros new_ones new_full new_empty new_empty_strided "
        "empty_strided scalar_tensor "
        "empty_permuted"), constants),
    **dict.fromkeys(_packets(
        "zeros_like ones_like full_like empty_like rand_like randn_like bernoulli native_dropout "
        "fill fill_ zero_ "
        "bernoulli_ uniform_ normal_ exponential_ dropout dropout_ feature_dropout alpha_dropout"), alike),
    **dict.fromkeys(_packets(
        "hardswish hardswish_ hardsigmoid hardsigmoid_ hardtanh hardtanh_ relu6 relu6_ "
        "leaky_relu_ elu_ celu celu_ "
        "selu selu_ mish mish_ silu_ gelu_ rrelu prelu _prelu_kernel softplus softshrink "
        "hardshrink log_sigmoid "
        "log_sigmoid_forward threshold threshold_ glu_ rrelu_with_noise clamp_ where masked_fill "
        "masked_fill_ "
        "_fused_dropout nan_to_num nan_to_num_"), entrywise),
    **dict.fromkeys(_packets("view _unsafe_view _reshape_alias reshape"), reshaped),
    **dict.fromkeys(_packets(
        "clone _to_copy contiguous detach detach_ alias lift_fresh lift to requires_grad_ "
    ), same),
    **dict.fromkeys(_packets(
        "unsafe_split unsafe_split_with_sizes unsafe_chunk repeat roll flip pixel_shuffle pixel_unshuffle "
        "channel_shuffle split_copy tril triu narrow_copy repeat_interleave"), moved),
    **dict.fromkeys(_packets("transpose_ t_ squeeze_ unsqueeze_ swapaxes_ swapdims_"), turned),
    aten.copy_: copied,
    aten.as_strided: strided,
    aten.cat: concatenated,
    aten.stack: stacked,
    aten.constant_pad_nd: padded,
    aten.index: indexed,
    aten.index_select: index_selected,
    **dict.fromkeys(_packets(
        "index_put index_put_ _unsafe_index_put index_add index_add_ index_copy index_copy_ "
    ), index_written),
    **dict.fromkeys(_packets(
        "_softmax _log_softmax _safe_softmax cumsum cumprod logcumsumexp sort "
    ), mixed(1)),
    aten.topk: mixed(2),
    **dict.fromkeys(_packets(
        "sum mean amax amin prod var std var_mean std_mean logsumexp max min argmax argmin any all norm "
        "linalg_vector_norm median count_nonzero"), reduced),
    **dict.fromkeys(_packets("mm addmm bmm baddbmm mv dot addmv"), matrices),
    **dict.fromkeys(_packets("_grouped_mm"), experts),
    aten.linear: linear,
    **dict.fromkeys(_packets("convolution _convolution mkldnn_convolution"), convolution),
    aten.embedding: embedding,
    **dict.fromkeys(_packets("native_layer_norm _fused_rms_norm"), layer_norm),
    aten.native_group_norm: group_norm,
    **dict.fromkeys(_packets(
        "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm "
        "_batch_norm_with_update _batch_norm_no_update"), batch_norm),
    **dict.fromkeys(_packets(
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention"), attention),
    **dict.fromkeys(_packets(
        "upsample_nearest1d upsample_linear1d avg_pool1d adaptive_avg_pool1d adaptive_max_pool1d max_pool1d "
        "reflection_pad1d replication_pad1d"), mixed(None, 1)),
    **dict.fromkeys(_packets(
        "upsample_nearest2d upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa "
        "_upsample_bicubic2d_aa "
        "avg_pool2d _adaptive_avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d max_pool2d_with_indices "
        "max_pool2d reflection_pad2d replication_pad2d _upsample_nearest_exact2d"), mixed(None, 2)),
    **dict.fromkeys(_packets(
        "upsample_nearest3d upsample_trilinear3d avg_pool3d _adaptive_avg_pool3d adaptive_max_pool3d "
        "max_pool3d_with_indices reflection_pad3d replication_pad3d"), mixed(None, 3)),
    **dict.fromkeys(_packets("arange linspace randint rand randn randperm eye tril_indices"), nothing),
}  # fmt: skip
