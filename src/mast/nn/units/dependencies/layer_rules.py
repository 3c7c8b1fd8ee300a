"""What products, convolutions, norms and attention do with labels, and the table of all rules.

Operations are those of ATen, which all of torch's functions and modules are made of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mast.nn.units.dependencies import tensor_rules
from mast.nn.units.dependencies.graph import Arguments, Labels, Options, tensors
from mast.nn.units.dependencies.tensor_rules import Rule, no_rule

if TYPE_CHECKING:
    from mast.nn.units.dependencies.tracing import DependencyTrace

aten = torch.ops.aten


def matmul(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """Products of matrices, and what is added to them."""
    added, (a, b) = args[:-2], args[-2:]
    columns, rows = a.dim() - 1, max(b.dim() - 2, 0)
    trace.contract(trace.labels_of(a), columns, trace.labels_of(b), rows)
    left, right = trace.without_dim(trace.labels_of(a), columns), trace.without_dim(trace.labels_of(b), rows)
    if b.dim() == 1:
        parts = [left.moved(lambda array: array.squeeze(-1)).with_sizes(*a.shape[:-1])]
    else:
        parts = [left.with_sizes(*a.shape[:-1], 1), right.with_sizes(*b.shape[:-2], 1, b.shape[-1])]
    parts += [trace.operand(t) for t in tensors(added) if not trace.is_mask_of_heads(t)]
    trace.set_labels(out, trace.combine(parts, out.shape))


def linear(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """x W' + b, where it comes in one piece."""
    transposed = args[1].t()
    trace.set_labels(transposed, trace.labels_of(args[1]).moved(Tensor.t))
    matmul(trace, func, (*args[2:], args[0], transposed), options, out)


def grouped_matmul(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """Rows times one of several matrices each: the matrices stay, their rows and columns are units."""
    a, b = args[:2]
    if a.dim() != 2 or b.dim() != 3:
        no_rule(trace, func, args, options, out)
        return
    trace.coupled_along(b, [0], "chooses among them")
    trace.contract(trace.labels_of(a), 1, trace.labels_of(b), 1)
    left, right = (
        trace.without_dim(trace.labels_of(a), 1),
        trace.without_dim(trace.without_dim(trace.labels_of(b), 1), 0),
    )
    parts = [left.with_sizes(a.shape[0], 1), right.moved(lambda array: array[0, 0]).with_sizes(b.shape[2])]
    trace.set_labels(out, trace.combine(parts, out.shape))


def beside(trace: DependencyTrace, tensor: Tensor, dim: int, rank: int) -> Labels:
    """A tensor of one dimension, beside dimension `dim` of a value."""
    shape = [1] * rank
    shape[dim] = tensor.shape[0]
    return trace.labels_of(tensor).moved(lambda array: array.reshape(shape)).with_sizes(*shape)


def convolution(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """Channels are taken and made; groups of channels are kept or dropped together."""
    x, w, bias = args[0], args[1], args[2]
    transposed, groups = args[6], args[8]
    rank = x.dim()
    value = trace.coupled_along(x, range(2, rank), "acts along their dimension")
    weight = Labels(list(trace.labels_of(w).arrays), weight=trace.labels_of(w).weight)
    for array in weight.arrays:
        for d in range(2, rank):
            if trace.core(array).size(d) > 1:
                trace.couple_along(array, [d], "they are the extent of a kernel")
    rows, columns = (1, 0) if transposed else (0, 1)
    if groups > 1 and transposed:
        no_rule(trace, func, args, options, out)
        return
    if groups > 1:
        _grouped(trace, value, weight, groups)
    else:
        trace.contract(value, 1, weight, columns)
    made = trace.slices_along(weight, rows)
    shape = (1, out.shape[1], *[1] * (rank - 2))
    channels = Labels([] if made is None else [made.reshape(shape)]).with_sizes(*shape)
    parts = [trace.without_dim(value, 1).with_sizes(x.shape[0], *[1] * (rank - 1)), channels]
    for array in weight.arrays if weight.weight and made is not None else ():
        if trace.core(array).size(rows) > 1:
            trace.mark_producers(array)
    if bias is not None:
        parts.append(beside(trace, bias, 1, rank))
    trace.set_labels(out, trace.combine(parts, out.shape))


def _grouped(trace: DependencyTrace, value: Labels, weight: Labels, groups: int) -> None:
    """Each group of channels is one unit, coming in and going out."""
    where = trace.location()
    units, rows, columns = (
        trace.slices_along(value, 1),
        trace.slices_along(weight, 0),
        trace.slices_along(weight, 1),
    )
    if columns is not None:
        trace.graph.exclude(columns, f"{where} has groups of channels, which only whole can be dropped")
    if rows is None:
        trace.exclude(value, f"{where} has groups of channels")
        return
    rows = rows.reshape(groups, -1)
    trace.graph.couple(rows, rows[:, :1])
    if units is None:
        if not value.constant:
            trace.graph.exclude(rows, f"{where} takes the model's input, or values that stay")
        return
    units = units.reshape(groups, -1)
    trace.graph.couple(units, units[:, :1])
    trace.graph.couple(units[:, :1], rows[:, :1])
    trace.note_length(trace.graph.roots(rows[:, 0]))


def embedding(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Tensor) -> None:
    """Rows are chosen by the input, and stay; columns are features."""
    weight = args[0]
    labels = trace.coupled_along(weight, [0], "chooses among them by the model's input")
    arrays = []
    for array in labels.arrays:
        if trace.core(array).size(1) > 1:
            trace.mark_producers(array)
            arrays.append(trace.core(array).reshape(-1).expand(out.shape))
    trace.set_labels(out, Labels(arrays))


def layer_norm(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """Mixes all that it normalises over."""
    x, normalized = args[0], args[1]
    dims = range(x.dim() - len(normalized), x.dim())
    labels = trace.coupled_along(x, dims, "normalises over all of them")
    parts = [labels.with_sizes(*x.shape), *(trace.operand(t) for t in tensors(args[2:4]))]
    trace.set_labels(tensors(out)[0], trace.combine(parts, x.shape))


def group_norm(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """Channels of one group are normalised together."""
    x, groups = args[0], args[6]
    where = trace.location()
    labels = trace.coupled_along(x, range(2, x.dim()), "normalises over all of them")
    units = trace.slices_along(labels, 1)
    if units is not None:
        units = units.reshape(groups, -1)
        trace.graph.couple(units, units[:, :1])
        if groups == 1:
            trace.graph.exclude(units, f"{where} normalises over all of them")
        trace.note_length(trace.graph.roots(units[:, 0]))
    parts = [
        labels.with_sizes(*x.shape[:2], *[1] * (x.dim() - 2)),
        *(beside(trace, t, 1, x.dim()) for t in tensors(args[1:3])),
    ]
    result = tensors(out)[0]
    trace.set_labels(result, trace.combine(parts, x.shape))


def batch_norm(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """Each channel by itself, with its statistics."""
    x = args[0]
    others = [0, *range(2, x.dim())]
    labels = trace.coupled_along(x, others, "normalises along their dimension")
    parts = [labels.with_sizes(*(1 if d in others else n for d, n in enumerate(x.shape)))]
    parts += [beside(trace, t, 1, x.dim()) for t in tensors(args[1:5]) if t.numel() > 1]
    trace.set_labels(tensors(out)[0], trace.combine(parts, x.shape))


def attention(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """softmax(q k') v in one piece: heads by themselves."""
    q, k, v = args[:3]
    heads = q.shape[1]
    parts = []
    for t in (q, k, v):
        labels = trace.coupled_along(t, [2, 3], "sums over them")
        arrays = [array[:, :, :1, :1] for array in labels.arrays]
        if t.shape[1] != heads:
            arrays = [array.repeat_interleave(heads // t.shape[1], 1) for array in arrays]
        parts.append(Labels(arrays).with_sizes(t.shape[0], heads, 1, 1))
    for mask in tensors(args[3:], options):
        if mask.dim() > 1 and not trace.is_mask_of_heads(mask):
            last = [mask.dim() - 2, mask.dim() - 1]
            labels = trace.coupled_along(mask, last, "compares them")
            rows = labels.moved(lambda array: array[..., :1, :1])
            parts.append(rows.with_sizes(*trace.operand(mask).sizes[:-2], 1, 1))
    result = tensors(out)[0]
    labels = trace.combine(parts, (*result.shape[:2], 1, 1))
    trace.set_labels(result, Labels([array.expand(result.shape) for array in labels.arrays]))


# ---- which rule ------------------------------------------------------------------------------------

_NAMES: list[tuple[Rule, str]] = [
    (tensor_rules.constant, """
        zeros ones full empty new_zeros new_ones new_full new_empty new_empty_strided empty_strided
        scalar_tensor empty_permuted"""),
    (tensor_rules.units_like, """
        zeros_like ones_like full_like empty_like rand_like randn_like bernoulli native_dropout fill fill_
        zero_ bernoulli_ uniform_ normal_ exponential_ dropout dropout_ feature_dropout alpha_dropout"""),
    (tensor_rules.pointwise, """
        hardswish hardswish_ hardsigmoid hardsigmoid_ hardtanh hardtanh_ relu6 relu6_ leaky_relu_ elu_ celu
        celu_ selu selu_ mish mish_ silu_ gelu_ rrelu prelu _prelu_kernel softplus softshrink hardshrink
        log_sigmoid log_sigmoid_forward threshold threshold_ rrelu_with_noise clamp_ where masked_fill
        masked_fill_ _fused_dropout nan_to_num nan_to_num_"""),
    (tensor_rules.reshape, "view _unsafe_view _reshape_alias reshape"),
    (tensor_rules.copy_labels, """
        clone _to_copy contiguous detach detach_ alias lift_fresh lift to requires_grad_"""),
    (tensor_rules.move, """
        unsafe_split unsafe_split_with_sizes unsafe_chunk repeat roll flip pixel_shuffle pixel_unshuffle
        channel_shuffle split_copy tril triu narrow_copy repeat_interleave"""),
    (tensor_rules.transpose_in_place, "transpose_ t_ squeeze_ unsqueeze_ swapaxes_ swapdims_"),
    (tensor_rules.copy_into, "copy_"),
    (tensor_rules.as_strided, "as_strided"),
    (tensor_rules.glu, "glu"),
    (tensor_rules.concatenate, "cat"),
    (tensor_rules.stack, "stack"),
    (tensor_rules.pad, "constant_pad_nd"),
    (tensor_rules.index, "index"),
    (tensor_rules.index_select, "index_select"),
    (tensor_rules.index_put, """
        index_put index_put_ _unsafe_index_put index_add index_add_ index_copy index_copy_"""),
    (tensor_rules.mix_along(1), """
        _softmax _log_softmax _safe_softmax cumsum cumprod logcumsumexp sort gather"""),
    (tensor_rules.mix_along(2), "topk"),
    (tensor_rules.reduce, """
        sum mean amax amin prod var std var_mean std_mean logsumexp max min argmax argmin any all norm
        linalg_vector_norm median count_nonzero"""),
    (matmul, "mm addmm bmm baddbmm mv dot addmv"),
    (grouped_matmul, "_grouped_mm"),
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
    (tensor_rules.mix_along(None, 1), """
        upsample_nearest1d upsample_linear1d avg_pool1d adaptive_avg_pool1d adaptive_max_pool1d max_pool1d
        reflection_pad1d replication_pad1d"""),
    (tensor_rules.mix_along(None, 2), """
        upsample_nearest2d upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa
        _upsample_bicubic2d_aa avg_pool2d _adaptive_avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d
        max_pool2d_with_indices max_pool2d reflection_pad2d replication_pad2d _upsample_nearest_exact2d"""),
    (tensor_rules.mix_along(None, 3), """
        upsample_nearest3d upsample_trilinear3d avg_pool3d _adaptive_avg_pool3d adaptive_max_pool3d
        max_pool3d_with_indices reflection_pad3d replication_pad3d"""),
    (tensor_rules.no_units, "arange linspace randint rand randn randperm eye tril_indices"),
]  # fmt: skip
RULES = {getattr(aten, name): rule for rule, names in _NAMES for name in names.split() if hasattr(aten, name)}
_OF_LIBRARIES = {
    "transformers::grouped_mm_fallback": grouped_matmul
}  # where PyTorch has no _grouped_mm for it


def follow(trace: DependencyTrace, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """Give the results of an operation their labels."""
    rule = RULES.get(func.overloadpacket) or _OF_LIBRARIES.get(func.name())
    if rule is not None:
        rule(trace, func, args, options, out)
    elif torch.Tag.pointwise in func.tags:
        tensor_rules.pointwise(trace, func, args, options, out)
    elif func.is_view:
        tensor_rules.move(trace, func, args, options, out)
    else:
        tensor_rules.no_rule(trace, func, args, options, out)
