"""What each kind of module does with units: one rule a kind, and which kinds have one."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

from torch import Tensor, fx, nn

from mast.nn.structure.carried import Value
from mast.nn.structure.flow import Flow, ModuleRule
from mast.nn.structure.functions import ENTRYWISE
from mast.nn.structure.shapes import Arguments, Options, first, flattened
from mast.nn.structure.spaces import Role

_CONVOLUTIONS: dict[Any, int] = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}
_TRANSPOSED: dict[Any, int] = {nn.ConvTranspose1d: 1, nn.ConvTranspose2d: 2, nn.ConvTranspose3d: 3}
_ENTRYWISE = (
    nn.Identity, nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Mish, nn.ELU, nn.CELU, nn.SELU, nn.LeakyReLU,
    nn.RReLU,
    nn.Sigmoid, nn.LogSigmoid, nn.Tanh, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Hardshrink,
    nn.Softshrink,
    nn.Softplus, nn.Softsign, nn.Tanhshrink, nn.Threshold,
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
)  # fmt: skip
_SPATIAL: dict[Any, int] = {
    nn.MaxPool1d: 1, nn.MaxPool2d: 2, nn.MaxPool3d: 3, nn.AvgPool1d: 1, nn.AvgPool2d: 2, nn.AvgPool3d: 3,
    nn.AdaptiveAvgPool1d: 1, nn.AdaptiveAvgPool2d: 2, nn.AdaptiveAvgPool3d: 3,
    nn.AdaptiveMaxPool1d: 1, nn.AdaptiveMaxPool2d: 2, nn.AdaptiveMaxPool3d: 3,
    nn.LPPool1d: 1, nn.LPPool2d: 2,
    nn.ZeroPad1d: 1, nn.ZeroPad2d: 2, nn.ZeroPad3d: 3, nn.ConstantPad1d: 1, nn.ConstantPad2d: 2,
    nn.ReflectionPad1d: 1, nn.ReflectionPad2d: 2, nn.ReplicationPad1d: 1, nn.ReplicationPad2d: 2,
    nn.Upsample: 0, nn.UpsamplingNearest2d: 2, nn.UpsamplingBilinear2d: 2,
}  # fmt: skip
_BATCH_NORMS: dict[Any, int] = {
    nn.BatchNorm1d: 1, nn.BatchNorm2d: 2, nn.BatchNorm3d: 3, nn.SyncBatchNorm: 0,
    nn.InstanceNorm1d: 1, nn.InstanceNorm2d: 2, nn.InstanceNorm3d: 3,
}  # fmt: skip


def named(name: str, module: nn.Module) -> str:
    """How messages call a module."""
    return f"the module {name!r} ({type(module).__name__})"


def kind(module: nn.Module) -> type[nn.Module]:
    """The class that decides what a module does: a subclass with its parent's forward counts as that."""
    for base in type(module).__mro__:
        if base in RULES and type(module).forward is base.forward:
            return base
    return type(module)


def is_entrywise(module: nn.Module) -> bool:
    """Whether a module acts on each entry by itself."""
    return kind(module) in _ENTRYWISE


def rule_for(module: nn.Module) -> ModuleRule | None:
    """The rule of a module, if there is one."""
    return RULES.get(kind(module))


def linear(flow: Flow, name: str, module: nn.Module, args: Arguments, options: Options) -> Value:
    """Rows produce, columns consume."""
    assert isinstance(module, nn.Linear)
    value, where = first(args, options), named(name, module)
    flow.consume(where, value, module.weight, 1, -1)
    return flow.produce(where, [(module.weight, 0), (module.bias, 0)], value.rank, -1)


def convolution(flow: Flow, name: str, module: nn.Module, args: Arguments, options: Options) -> Value:
    """Output channels produce, input channels consume; a depthwise one passes units through."""
    spatial = _CONVOLUTIONS.get(kind(module)) or _TRANSPOSED[kind(module)]
    conv = cast(Any, module)
    value, where, dim = first(args, options), named(name, module), -spatial - 1
    rows, columns = (1, 0) if kind(module) in _TRANSPOSED else (0, 1)
    if conv.groups == 1:
        flow.consume(where, value, conv.weight, columns, dim)
        return flow.produce(where, [(conv.weight, rows), (conv.bias, 0)], spatial + 2, dim)
    if conv.groups == conv.in_channels == conv.out_channels and rows == 0:
        if value.joint is not None and (value.dim, value.run) != (dim, 1):
            return flow.refuse(where, value, "takes the units along another dimension than they lie in")
        return flow.pass_through(where, value, [(conv.weight, 0), (conv.bias, 0)])
    flow.pin(value, f"{where} has {conv.groups} groups of channels, which only whole could be dropped")
    flow._pin_parameters(module, f"{where} has {conv.groups} groups of channels")
    return Value(rank=spatial + 2)


def batch_norm(flow: Flow, name: str, module: nn.Module, args: Arguments, options: Options) -> Value:
    """Each channel by itself, with its statistics."""
    norm, value, where = cast(Any, module), first(args, options), named(name, module)
    spatial = _BATCH_NORMS[kind(module)]
    right = {-spatial - 1} if spatial else {value.dim}
    if kind(module) is nn.BatchNorm1d and value.rank != 3:  # (N, C): which no InstanceNorm1d takes
        right = {-1} if value.rank == 2 else {-1, -2}
    if value.joint is not None and value.dim not in right:
        return flow.refuse(where, value, "normalises along another dimension than the units lie in")
    if value.joint is not None:
        run = flow.run(value, norm.num_features)
        if run is None:
            return flow.refuse(where, value, "normalises along another dimension than the units lie in")
        value.joint.root().modules[name, run] = None
    return flow.pass_through(
        where,
        value,
        [(norm.weight, 0), (norm.bias, 0), (norm.running_mean, 0), (norm.running_var, 0)],
    )


def group_norm(flow: Flow, name: str, module: nn.Module, args: Arguments, options: Options) -> Value:
    """Channels of a group are normalised together: they live or die together."""
    assert isinstance(module, nn.GroupNorm)
    value, where = first(args, options), named(name, module)
    if value.joint is not None:
        run = flow.run(value, module.num_channels)
        if run != 1 or (value.dim == -1 and (value.rank or 2) > 2):
            return flow.refuse(where, value, "normalises along another dimension than the units lie in")
        value.joint.coarsen(module.num_channels // module.num_groups)
        value.joint.root().modules[name, run] = None
        if module.num_groups == 1:
            value.joint.pin(f"{where} normalises over all of them")
    return flow.pass_through(where, value, [(module.weight, 0), (module.bias, 0)])


def layer_norm(flow: Flow, name: str, module: nn.Module, args: Arguments, options: Options) -> Value:
    """Mixes all units that it normalises over."""
    value, where, norm = first(args, options), named(name, module), cast(Any, module)
    flow._pin_parameters(module, f"{where} normalises over them")
    if value.joint is not None and -value.dim <= len(norm.normalized_shape):
        return flow.pin(value, f"{where} normalises over all of them")
    return value


def entrywise(flow: Flow, name: str, module: nn.Module, args: Arguments, options: Options) -> Value:
    """Each entry by itself."""
    return first(args, options)


def prelu(flow: Flow, name: str, module: nn.Module, args: Arguments, options: Options) -> Value:
    """One slope for all, or one a unit."""
    assert isinstance(module, nn.PReLU)
    value = first(args, options)
    if module.num_parameters == 1:
        flow._pin_parameters(module, "one slope for all")
        return value
    return flow.pass_through(named(name, module), value, [(module.weight, 0)])


def spatial(flow: Flow, name: str, module: nn.Module, args: Arguments, options: Options) -> Value:
    """Acts within each channel."""
    value, where = first(args, options), named(name, module)
    dims = _SPATIAL[kind(module)]
    if value.joint is not None and (
        value.run != 1 or value.dim > -dims - 1 or (not dims and value.dim == -1)
    ):
        return flow.refuse(where, value, "acts along the dimension the units lie in")
    if getattr(module, "return_indices", False):
        return flow.refuse(where, value, "returns indices")
    return value


def flatten(flow: Flow, name: str, module: nn.Module, args: Arguments, options: Options) -> Value:
    """As the function."""
    assert isinstance(module, nn.Flatten)
    return flattened(flow, named(name, module), first(args, options), module.start_dim, module.end_dim)


def embedding(flow: Flow, name: str, module: nn.Module, args: Arguments, options: Options) -> Value:
    """Its features are the model's input; they stay."""
    flow._pin_parameters(module, f"{named(name, module)} is an input of the model")
    return Value()


def attention(flow: Flow, name: str, module: nn.Module, args: Arguments, options: Options) -> Any:
    """Heads are units: their rows of the three input projections, their columns of the output projection."""
    assert isinstance(module, nn.MultiheadAttention)
    where = named(name, module)
    for value in (*args, *options.values()):
        if isinstance(value, Value):
            flow.pin(value, f"{where} takes them")
    heads(flow, where, module)
    users = [] if flow._node is None else list(flow._node.users)
    plain = all(u.target is operator.getitem and (u.args[1] == 0 or not u.users) for u in users)
    if not plain:  # attention weights are averaged over heads: a submodel would average over fewer
        joint = flow.ledger.dimensions[flow.name_of(module.out_proj.weight), 1][0]
        joint.pin(f"the attention weights of {where} are used")
    return (Value(rank=3), Value())


def heads(flow: Flow, where: str, module: nn.MultiheadAttention) -> None:
    """The space of the heads of one attention module."""
    if not module._qkv_same_embed_dim or module.bias_k is not None or module.add_zero_attn:
        flow._pin_parameters(module, f"{where} has kdim, vdim, add_bias_kv or add_zero_attn")
        return
    joint = flow.ledger.fresh(module.num_heads)
    width = module.embed_dim
    for tensor in (module.in_proj_weight, module.in_proj_bias):
        for part in range(3):
            if tensor is not None:
                flow.ledger.attach(
                    joint, flow.name_of(tensor), 0, Role.PRODUCES, where, module.head_dim, part * width
                )
    out: Tensor = module.out_proj.weight
    flow.ledger.attach(joint, flow.name_of(out), 1, Role.CONSUMES, where, module.head_dim)
    wide: list[tuple[Tensor | None, int]] = [(module.in_proj_weight, 1), (out, 0), (module.out_proj.bias, 0)]
    for t, dim in wide:
        if t is not None:
            flow.ledger.pin_dimension(flow.name_of(t), dim, t.shape[dim], f"{where} keeps its width")


def encoder_layer(flow: Flow, name: str, module: nn.Module, args: Arguments, options: Options) -> Value:
    """The heads and the hidden units of the feed-forward part; the width is normalised over, and stays."""
    assert isinstance(module, nn.TransformerEncoderLayer)
    where = named(name, module)
    flow.pin(first(args, options), f"{where} normalises over all of them")
    inner = f"{name}.self_attn" if name else "self_attn"
    heads(flow, named(inner, module.self_attn), module.self_attn)
    first_part, second = module.linear1, module.linear2
    flow.consume(where, Value(), first_part.weight, 1, -1)
    hidden = flow.produce(where, [(first_part.weight, 0), (first_part.bias, 0)], 3, -1)
    if not _acts_on_each(module.activation):
        flow.pin(hidden, f"the activation of {where} is not known to act on each unit by itself")
    flow.consume(where, hidden, second.weight, 1, -1)
    for p in (second.weight, second.bias):
        if p is not None:
            flow.ledger.pin_dimension(flow.name_of(p), 0, p.shape[0], f"{where} normalises over all of them")
    for norm in (module.norm1, module.norm2):
        flow._pin_parameters(norm, f"{where} normalises over all of them")
    return Value(rank=3)


def _acts_on_each(activation: Any) -> bool:
    """Whether a module or function is known to act on each entry by itself."""
    if isinstance(activation, nn.Module):
        return is_entrywise(activation)
    if activation in ENTRYWISE:
        return True
    try:
        nodes = list(fx.Tracer().trace(activation).nodes)
    except Exception:  # whatever a function does with a stand-in for a tensor
        return False
    return all(node.op in ("placeholder", "output") or node.target in ENTRYWISE for node in nodes)


def encoder(flow: Flow, name: str, module: nn.Module, args: Arguments, options: Options) -> Value:
    """Its layers."""
    assert isinstance(module, nn.TransformerEncoder)
    value = first(args, options)
    for number in range(len(module.layers)):
        own = f"{name}.layers.{number}" if name else f"layers.{number}"
        value = flow._module(own, [value], {})
    if module.norm is not None:
        value = flow._module(f"{name}.norm" if name else "norm", [value], {})
    return value


Rule = Callable[[Flow, str, nn.Module, Arguments, Options], Any]
RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: linear,
    **dict.fromkeys((*_CONVOLUTIONS, *_TRANSPOSED), convolution),
    **dict.fromkeys(_BATCH_NORMS, batch_norm),
    nn.GroupNorm: group_norm,
    nn.LayerNorm: layer_norm,
    nn.RMSNorm: layer_norm,
    **dict.fromkeys(_ENTRYWISE, entrywise),
    nn.PReLU: prelu,
    **dict.fromkeys(_SPATIAL, spatial),
    nn.Flatten: flatten,
    nn.Embedding: embedding,
    nn.EmbeddingBag: embedding,
    nn.MultiheadAttention: attention,
    nn.TransformerEncoderLayer: encoder_layer,
    nn.TransformerEncoder: encoder,
}
