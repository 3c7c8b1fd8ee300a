"""What layers of networks do with marks, and which rule says it for each operation.

Operations are those of ATen, which all of torch's functions and modules are made of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mast.nn.units.following import entries
from mast.nn.units.following.entries import Rule, unknown
from mast.nn.units.following.marks import Marks
from mast.nn.units.following.modes import Arguments, Options, tensors

if TYPE_CHECKING:
    from mast.nn.units.following.watching import Watching

aten = torch.ops.aten


def matrices(on: Watching, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """Products of matrices, and what is added to them."""
    added, (a, b) = args[:-2], args[-2:]
    columns, rows = a.dim() - 1, max(b.dim() - 2, 0)
    on.contract(on.of(a), columns, on.of(b), rows)
    left, right = on.without(on.of(a), columns), on.without(on.of(b), rows)
    if b.dim() == 1:
        parts = [left.moved(lambda layer: layer.squeeze(-1)).sized(*a.shape[:-1])]
    else:
        parts = [left.sized(*a.shape[:-1], 1), right.sized(*b.shape[:-2], 1, b.shape[-1])]
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
    on.fixed(b, [0], "chooses among them")
    on.contract(on.of(a), 1, on.of(b), 1)
    left, right = on.without(on.of(a), 1), on.without(on.without(on.of(b), 1), 0)
    parts = [left.sized(a.shape[0], 1), right.moved(lambda layer: layer[0, 0]).sized(b.shape[2])]
    on.put(out, on.combine(parts, out.shape))


def placed(on: Watching, tensor: Tensor, dim: int, rank: int) -> Marks:
    """A tensor of one dimension, beside dimension `dim` of a value."""
    shape = [1] * rank
    shape[dim] = tensor.shape[0]
    return on.of(tensor).moved(lambda layer: layer.reshape(shape)).sized(*shape)


def convolution(on: Watching, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """Channels are taken and made; groups of channels live or die together."""
    x, w, bias = args[0], args[1], args[2]
    transposed, groups = args[6], args[8]
    rank = x.dim()
    value = on.fixed(x, range(2, rank), "acts along their dimension")
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
    shape = (1, out.shape[1], *[1] * (rank - 2))
    channels = Marks([] if made is None else [made.reshape(shape)]).sized(*shape)
    parts = [on.without(value, 1).sized(x.shape[0], *[1] * (rank - 1)), channels]
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
    on.note_length(on.atoms.roots(rows[:, 0]))


def embedding(on: Watching, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """Rows are chosen by the input, and stay; columns are features."""
    weight = args[0]
    marks = on.fixed(weight, [0], "chooses among them by the model's input")
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
    marks = on.fixed(x, dims, "normalises over all of them")
    parts = [marks.sized(*x.shape), *(on.part(t) for t in tensors(args[2:4]))]
    on.put(tensors(out)[0], on.combine(parts, x.shape))


def group_norm(on: Watching, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """Channels of one group are normalised together."""
    x, groups = args[0], args[6]
    where = on.where()
    marks = on.fixed(x, range(2, x.dim()), "normalises over all of them")
    units = on.along(marks, 1)
    if units is not None:
        units = units.reshape(groups, -1)
        on.atoms.join(units, units[:, :1])
        if groups == 1:
            on.atoms.pin(units, f"{where} normalises over all of them")
        on.note_length(on.atoms.roots(units[:, 0]))
    parts = [
        marks.sized(*x.shape[:2], *[1] * (x.dim() - 2)),
        *(placed(on, t, 1, x.dim()) for t in tensors(args[1:3])),
    ]
    result = tensors(out)[0]
    on.put(result, on.combine(parts, x.shape))


def batch_norm(on: Watching, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """Each channel by itself, with its statistics."""
    x = args[0]
    others = [0, *range(2, x.dim())]
    marks = on.fixed(x, others, "normalises along their dimension")
    parts = [marks.sized(*(1 if d in others else n for d, n in enumerate(x.shape)))]
    parts += [placed(on, t, 1, x.dim()) for t in tensors(args[1:5]) if t.numel() > 1]
    on.put(tensors(out)[0], on.combine(parts, x.shape))


def attention(on: Watching, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """softmax(q k') v in one piece: heads by themselves."""
    q, k, v = args[:3]
    heads = q.shape[1]
    parts = []
    for t in (q, k, v):
        marks = on.fixed(t, [2, 3], "sums over them")
        layers = [layer[:, :, :1, :1] for layer in marks.layers]
        if t.shape[1] != heads:
            layers = [layer.repeat_interleave(heads // t.shape[1], 1) for layer in layers]
        parts.append(Marks(layers).sized(t.shape[0], heads, 1, 1))
    for mask in tensors(args[3:], options):
        if mask.dim() > 1:
            last = [mask.dim() - 2, mask.dim() - 1]
            marks = on.fixed(mask, last, "compares them")
            rows = marks.moved(lambda layer: layer[..., :1, :1])
            parts.append(rows.sized(*on.part(mask).sizes[:-2], 1, 1))
    result = tensors(out)[0]
    marks = on.combine(parts, (*result.shape[:2], 1, 1))
    on.put(result, Marks([layer.expand(result.shape) for layer in marks.layers]))


# ---- which rule ------------------------------------------------------------------------------------

_NAMES: list[tuple[Rule, str]] = [
    (entries.constants, """
        zeros ones full empty new_zeros new_ones new_full new_empty new_empty_strided empty_strided
        scalar_tensor empty_permuted"""),
    (entries.alike, """
        zeros_like ones_like full_like empty_like rand_like randn_like bernoulli native_dropout fill fill_
        zero_ bernoulli_ uniform_ normal_ exponential_ dropout dropout_ feature_dropout alpha_dropout"""),
    (entries.entrywise, """
        hardswish hardswish_ hardsigmoid hardsigmoid_ hardtanh hardtanh_ relu6 relu6_ leaky_relu_ elu_ celu
        celu_ selu selu_ mish mish_ silu_ gelu_ rrelu prelu _prelu_kernel softplus softshrink hardshrink
        log_sigmoid log_sigmoid_forward threshold threshold_ rrelu_with_noise clamp_ where masked_fill
        masked_fill_ _fused_dropout nan_to_num nan_to_num_"""),
    (entries.reshaped, "view _unsafe_view _reshape_alias reshape"),
    (entries.same, "clone _to_copy contiguous detach detach_ alias lift_fresh lift to requires_grad_"),
    (entries.moved, """
        unsafe_split unsafe_split_with_sizes unsafe_chunk repeat roll flip pixel_shuffle pixel_unshuffle
        channel_shuffle split_copy tril triu narrow_copy repeat_interleave"""),
    (entries.turned, "transpose_ t_ squeeze_ unsqueeze_ swapaxes_ swapdims_"),
    (entries.copied, "copy_"),
    (entries.strided, "as_strided"),
    (entries.concatenated, "cat"),
    (entries.stacked, "stack"),
    (entries.padded, "constant_pad_nd"),
    (entries.indexed, "index"),
    (entries.index_selected, "index_select"),
    (entries.index_written, """
        index_put index_put_ _unsafe_index_put index_add index_add_ index_copy index_copy_"""),
    (entries.mixed(1), "_softmax _log_softmax _safe_softmax cumsum cumprod logcumsumexp sort gather"),
    (entries.mixed(2), "topk"),
    (entries.reduced, """
        sum mean amax amin prod var std var_mean std_mean logsumexp max min argmax argmin any all norm
        linalg_vector_norm median count_nonzero"""),
    (matrices, "mm addmm bmm baddbmm mv dot addmv"),
    (experts, "_grouped_mm"),
    (linear, "linear"),
    (convolution, "convolution _convolution mkldnn_convolution"),
    (embedding, "embedding"),
    (layer_norm, "native_layer_norm _fused_rms_norm"),
    (group_norm, "native_group_norm"),
    (batch_norm, """
        native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm
        _batch_norm_with_update _batch_norm_no_update"""),
    (attention, """
        _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention
        _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention"""),
    (entries.mixed(None, 1), """
        upsample_nearest1d upsample_linear1d avg_pool1d adaptive_avg_pool1d adaptive_max_pool1d max_pool1d
        reflection_pad1d replication_pad1d"""),
    (entries.mixed(None, 2), """
        upsample_nearest2d upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa
        _upsample_bicubic2d_aa avg_pool2d _adaptive_avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d
        max_pool2d_with_indices max_pool2d reflection_pad2d replication_pad2d _upsample_nearest_exact2d"""),
    (entries.mixed(None, 3), """
        upsample_nearest3d upsample_trilinear3d avg_pool3d _adaptive_avg_pool3d adaptive_max_pool3d
        max_pool3d_with_indices reflection_pad3d replication_pad3d"""),
    (entries.nothing, "arange linspace randint rand randn randperm eye tril_indices"),
]  # fmt: skip
RULES = {getattr(aten, name): rule for rule, names in _NAMES for name in names.split() if hasattr(aten, name)}
_OF_LIBRARIES = {"transformers::grouped_mm_fallback": experts}  # where PyTorch has no _grouped_mm for it


def follow(on: Watching, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """Give the results of an operation their marks."""
    rule = RULES.get(func.overloadpacket) or _OF_LIBRARIES.get(func.name())
    if rule is not None:
        rule(on, func, args, options, out)
    elif torch.Tag.pointwise in func.tags:
        entries.entrywise(on, func, args, options, out)
    elif func.is_view:
        entries.moved(on, func, args, options, out)
    else:
        entries.unknown(on, func, args, options, out)
