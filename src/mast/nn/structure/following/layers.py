"""What layers of networks do with marks: products of matrices, convolutions, norms, attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from mast.nn.structure.following.entries import unknown
from mast.nn.structure.following.marks import Marks, Operand
from mast.nn.structure.following.modes import Arguments, Options, tensors

if TYPE_CHECKING:
    from mast.nn.structure.following.watching import Watching


def matrices(on: Watching, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """Products of matrices, and what is added to them."""
    added, (a, b) = args[:-2], args[-2:]
    columns, rows = a.dim() - 1, max(b.dim() - 2, 0)
    on.contract(on.of(a), columns, on.of(b), rows)
    left, right = on.without(on.of(a), columns), on.without(on.of(b), rows)
    if b.dim() == 1:
        parts = [Operand(left.moved(lambda layer: layer.squeeze(-1)), tuple(a.shape[:-1]))]
    else:
        parts = [Operand(left, (*a.shape[:-1], 1)), Operand(right, (*b.shape[:-2], 1, b.shape[-1]))]
    parts += [on.part(t) for t in tensors(added)]
    on.put(out, on.combine(parts, out.shape))


def linear(on: Watching, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """x W' + b, where it comes in one piece."""
    transposed = args[1].t()
    on.put(transposed, on.of(args[1]).moved(Tensor.t))
    matrices(on, func, (*args[2:], args[0], transposed), options, out)


def experts(on: Watching, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """Rows times one of several matrices each: the matrices stay, their rows and columns are units."""
    a, b = args[:2]
    if a.dim() != 2 or b.dim() != 3:
        unknown(on, func, args, options, out)
        return
    on.fixed(on.of(b), [0], b.shape, f"{on.where()} chooses among them")
    on.contract(on.of(a), 1, on.of(b), 1)
    left, right = on.without(on.of(a), 1), on.without(on.without(on.of(b), 1), 0)
    parts = [Operand(left, (a.shape[0], 1)), Operand(right.moved(lambda la: la[0, 0]), (b.shape[2],))]
    on.put(out, on.combine(parts, out.shape))


def placed(on: Watching, tensor: Tensor, dim: int, rank: int) -> Operand:
    """A tensor of one dimension, beside dimension `dim` of a value."""
    shape = [1] * rank
    shape[dim] = tensor.shape[0]
    return Operand(on.of(tensor).moved(lambda layer: layer.reshape(shape)), tuple(shape))


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
    parts = [Operand(on.without(value, 1), (x.shape[0], *[1] * (rank - 1)))]
    shape = (1, out.shape[1], *[1] * (rank - 2))
    parts.append(Operand(Marks([] if made is None else [made.reshape(shape)]), shape))
    for layer in weight.layers if weight.weight and made is not None else ():
        if on.core(layer).size(rows) > 1:
            on.makes(layer)
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
    for mask in tensors(args[3:], options):
        if mask.dim() > 1:
            last = [mask.dim() - 2, mask.dim() - 1]
            marks = on.fixed(on.of(mask), last, mask.shape, f"{on.where()} compares them")
            parts.append(
                Operand(marks.moved(lambda layer: layer[..., :1, :1]), (*on.part(mask).sizes[:-2], 1, 1))
            )
    result = tensors(out)[0]
    marks = on.combine(parts, (*result.shape[:2], 1, 1))
    on.put(result, Marks([layer.expand(result.shape) for layer in marks.layers]))
