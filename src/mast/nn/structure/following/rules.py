"""Which rule says what an operation does with marks.

Operations are those of ATen, which all of torch's functions and modules are made of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mast.nn.structure.following import entries, layers
from mast.nn.structure.following.entries import Rule
from mast.nn.structure.following.modes import Arguments, Options

if TYPE_CHECKING:
    from mast.nn.structure.following.watching import Watching

aten = torch.ops.aten


def follow(on: Watching, func: Any, args: Arguments, options: Options, out: Any) -> None:
    """Give the results of an operation their marks."""
    rule = RULES.get(func.overloadpacket)
    if rule is not None:
        rule(on, func, args, options, out)
    elif torch.Tag.pointwise in func.tags:
        entries.entrywise(on, func, args, options, out)
    elif func.is_view:
        entries.moved(on, func, args, options, out)
    else:
        entries.unknown(on, func, args, options, out)


def _packets(names: str) -> list[Any]:
    return [getattr(aten, name) for name in names.split() if hasattr(aten, name)]


RULES: dict[Any, Rule] = {
    **dict.fromkeys(_packets(
        "zeros ones full empty new_zeros new_ones new_full new_empty new_empty_strided "
        "empty_strided scalar_tensor "
        "empty_permuted"), entries.constants),
    **dict.fromkeys(_packets(
        "zeros_like ones_like full_like empty_like rand_like randn_like bernoulli native_dropout "
        "fill fill_ zero_ "
        "bernoulli_ uniform_ normal_ exponential_ dropout dropout_ feature_dropout alpha_dropout"
    ), entries.alike),
    **dict.fromkeys(_packets(
        "hardswish hardswish_ hardsigmoid hardsigmoid_ hardtanh hardtanh_ relu6 relu6_ "
        "leaky_relu_ elu_ celu celu_ "
        "selu selu_ mish mish_ silu_ gelu_ rrelu prelu _prelu_kernel softplus softshrink "
        "hardshrink log_sigmoid "
        "log_sigmoid_forward threshold threshold_ glu_ rrelu_with_noise clamp_ where masked_fill "
        "masked_fill_ "
        "_fused_dropout nan_to_num nan_to_num_"), entries.entrywise),
    **dict.fromkeys(_packets("view _unsafe_view _reshape_alias reshape"), entries.reshaped),
    **dict.fromkeys(_packets(
        "clone _to_copy contiguous detach detach_ alias lift_fresh lift to requires_grad_ "
    ), entries.same),
    **dict.fromkeys(_packets(
        "unsafe_split unsafe_split_with_sizes unsafe_chunk repeat roll flip pixel_shuffle pixel_unshuffle "
        "channel_shuffle split_copy tril triu narrow_copy repeat_interleave"), entries.moved),
    **dict.fromkeys(_packets("transpose_ t_ squeeze_ unsqueeze_ swapaxes_ swapdims_"), entries.turned),
    aten.copy_: entries.copied,
    aten.as_strided: entries.strided,
    aten.cat: entries.concatenated,
    aten.stack: entries.stacked,
    aten.constant_pad_nd: entries.padded,
    aten.index: entries.indexed,
    aten.index_select: entries.index_selected,
    **dict.fromkeys(_packets(
        "index_put index_put_ _unsafe_index_put index_add index_add_ index_copy index_copy_ "
    ), entries.index_written),
    **dict.fromkeys(_packets(
        "_softmax _log_softmax _safe_softmax cumsum cumprod logcumsumexp sort gather "
    ), entries.mixed(1)),
    aten.topk: entries.mixed(2),
    **dict.fromkeys(_packets(
        "sum mean amax amin prod var std var_mean std_mean logsumexp max min argmax argmin any all norm "
        "linalg_vector_norm median count_nonzero"), entries.reduced),
    **dict.fromkeys(_packets("mm addmm bmm baddbmm mv dot addmv"), layers.matrices),
    **dict.fromkeys(_packets("_grouped_mm"), layers.experts),
    aten.linear: layers.linear,
    **dict.fromkeys(_packets("convolution _convolution mkldnn_convolution"), layers.convolution),
    aten.embedding: layers.embedding,
    **dict.fromkeys(_packets("native_layer_norm _fused_rms_norm"), layers.layer_norm),
    aten.native_group_norm: layers.group_norm,
    **dict.fromkeys(_packets(
        "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm "
        "_batch_norm_with_update _batch_norm_no_update"), layers.batch_norm),
    **dict.fromkeys(_packets(
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention"), layers.attention),
    **dict.fromkeys(_packets(
        "upsample_nearest1d upsample_linear1d avg_pool1d adaptive_avg_pool1d adaptive_max_pool1d max_pool1d "
        "reflection_pad1d replication_pad1d"), entries.mixed(None, 1)),
    **dict.fromkeys(_packets(
        "upsample_nearest2d upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa "
        "_upsample_bicubic2d_aa "
        "avg_pool2d _adaptive_avg_pool2d adaptive_avg_pool2d adaptive_max_pool2d max_pool2d_with_indices "
        "max_pool2d reflection_pad2d replication_pad2d _upsample_nearest_exact2d"), entries.mixed(None, 2)),
    **dict.fromkeys(_packets(
        "upsample_nearest3d upsample_trilinear3d avg_pool3d _adaptive_avg_pool3d adaptive_max_pool3d "
        "max_pool3d_with_indices reflection_pad3d replication_pad3d"), entries.mixed(None, 3)),
    **dict.fromkeys(_packets(
        "arange linspace randint rand randn randperm eye tril_indices"
    ), entries.nothing),
}  # fmt: skip
