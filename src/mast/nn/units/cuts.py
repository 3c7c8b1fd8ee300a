"""A cut: what a draw leaves of a model's tensors, and the small dense model that it makes.

All that a machine needs to train its part of a model is the skeleton, the key of the draw, and the values of
the cut: `cut.gather(x)` sends them, `cut.module(values)` is the small model with the weights y = S x,
`cut.gradient` gives S'grad in the same order, `cut.add` brings a change home. Time, memory and bytes follow
what is kept.

The order of the values: parameters as `named_parameters` gives them, each the kept entries in row-major
order.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from mast.errors import ArgumentError
from mast.nn.tensors.torch_private import ConvTranspose, NormBase
from mast.nn.tensors.weights import deep_copy
from mast.nn.units.configurations import adapt_configuration, refuse_saving
from mast.nn.units.groups import UnitDraw
from mast.nn.units.stand_ins import HeadsAttention, PassThrough, replace_module
from mast.sketches.draws import DiagonalDraw, Draw, ModelDraw

if TYPE_CHECKING:
    from mast.nn.units.dependencies.residual import Branch
    from mast.nn.units.unit_map import UnitMap

Tensors = Mapping[str, Tensor] | nn.Module


class Cut:
    """What one draw keeps of the parameters and of the buffers. Made by `unit_map.cut(draw)`.

    Of hidden units these are rows of producers and columns of consumers, with the scales on the columns; of
    branches, all tensors but those of dropped ones.
    """

    def __init__(self, unit_map: UnitMap, draw: UnitDraw) -> None:
        self.unit_map = unit_map
        self.draw = draw

    @cached_property
    def units(self) -> list[DiagonalDraw]:
        """The units of each group in the small model."""
        return self.unit_map.present(self.draw)

    @cached_property
    def parameters(self) -> ModelDraw[Draw]:
        """What is kept of each parameter."""
        return self._kept(self.unit_map.parameters)

    @cached_property
    def buffers(self) -> ModelDraw[Draw]:
        """What is kept of each buffer of floating point, such as the statistics of norms."""
        return self._kept(self.unit_map.buffers)

    @property
    def count(self) -> int:
        """How many values of parameters are kept."""
        return self.parameters.count

    @cached_property
    def dropped_branches(self) -> list[Branch]:
        """The residual branches that the draw drops."""
        if not self.unit_map.branches:
            return []
        kept = set(self.draw[self.unit_map.groups[0].name].indices.tolist())
        return [branch for i, branch in enumerate(self.unit_map.branches) if i not in kept]

    @cached_property
    def module_sizes(self) -> SubmodelSizes:
        """What modules have to be told: lengths, heads that are left, and which stand in for dropped ones."""
        kept = {g.name: units for g, units in zip(self.unit_map.groups, self.units, strict=True)}
        numbers: dict[str, dict[str, int]] = {}
        for length in self.unit_map.lengths:
            dropped = sum(run * (kept[g].dim - kept[g].count) for g, run in length.runs if g in kept)
            numbers.setdefault(length.module, {})[length.attribute] = length.before - dropped
        heads = {name: kept[g].indices.tolist() for name, g in self.unit_map.heads.items()}
        absent = {name: m for branch in self.dropped_branches for name, m in branch.modules}
        return SubmodelSizes(numbers, heads, absent)

    @cached_property
    def _gone(self) -> set[str]:
        """The tensors that no module holds any more, because of dropped branches."""
        absent = tuple(name for branch in self.dropped_branches for name, _ in branch.modules)
        if not absent:
            return set()
        held: set[int] = set()
        for name, module in self.unit_map.skeleton.named_modules():
            if not f"{name}.".startswith(tuple(f"{m}." for m in absent)):
                held |= {id(t) for t in (*module._parameters.values(), *module._buffers.values())}
        return {name for name, t in tensors_of(self.unit_map.skeleton).items() if id(t) not in held}

    def _kept(self, names: Sequence[str]) -> ModelDraw[Draw]:
        left = [name for name in names if name not in self._gone]
        return ModelDraw({name: self.unit_map.kept(name, self.units) for name in left})

    # ---- values ----------------------------------------------------------------------------

    def gather(self, tensors: Tensors) -> Tensor:
        """The kept values of x, one after the other, in one contiguous tensor of one dimension."""
        return _gather(self.parameters, tensors)

    def gather_buffers(self, tensors: Tensors) -> Tensor:
        """The kept values of the buffers."""
        return _gather(self.buffers, tensors)

    def add(self, tensors: Tensors, values: Tensor, factor: float = 1.0) -> None:
        """x[kept] += factor * values, in place; nothing else of x is touched."""
        self.parameters.check(values)
        with torch.no_grad():
            self.parameters.add(_detached(tensors), values, factor)

    def place(self, tensors: Tensors, values: Tensor) -> None:
        """x[kept] = values, in place."""
        self.parameters.check(values)
        with torch.no_grad():
            self.parameters.place(_detached(tensors), values)

    def place_buffers(self, tensors: Tensors, values: Tensor) -> None:
        """The same for buffers."""
        self.buffers.check(values)
        with torch.no_grad():
            self.buffers.place(_detached(tensors), values)

    def scaled(self, values: Tensor) -> Tensor:
        """S times values of x or of a gradient, in their order: the scale is on outgoing weights only."""
        self.parameters.check(values)
        out = values.clone()
        self.parameters.scale(out)
        return out

    # ---- the small model --------------------------------------------------------------------

    def module(self, values: Tensor, buffers: Tensor | None = None) -> nn.Module:
        """The small model with the weights y = S x, in training mode, made of nothing but these values.

        Its parameters lie one after the other in one piece of memory. Without `buffers`, statistics of norms
        are as in a new layer.
        """
        return self.pour(self.scaled(values.detach()), buffers)

    def module_of(self, model: nn.Module) -> nn.Module:
        """The small model with the weights y = S x and the kept buffers of a model, in its types."""
        return self.pour(self.scaled(self.gather(model)), self.gather_buffers(model), model)

    def pour(self, y: Tensor, buffers: Tensor | None = None, like: nn.Module | None = None) -> nn.Module:
        """The small model with these weights y, as they are.

        Its tensors have the types of those of `like`, and are trained if they are trained there; by default
        this is the model whose units were found.
        """
        self.parameters.check(y)
        if buffers is not None:
            self.buffers.check(buffers)
        skeleton = self.unit_map.skeleton
        types = tensors_of(skeleton) | ({} if like is None else tensors_of(like))
        known = {name: b for name, b in self.unit_map.source.named_buffers() if not b.is_meta}

        def made(name: str, t: Tensor) -> Tensor:
            if name in self._gone:
                return t
            if name in self.parameters:
                own: Tensor = self.parameters.of(y, name)
                return own.to(types[name].dtype)
            return self._buffer(name, types[name], buffers, known.get(name), y.device)

        model = copy_with(skeleton, made)
        for name, p in model.named_parameters():
            if p.requires_grad != types[name].requires_grad:  # torch.vmap refuses to be told
                p.requires_grad_(types[name].requires_grad)
        for module in model.modules():
            if buffers is None and isinstance(module, NormBase):
                module.reset_running_stats()
        self.module_sizes.replace_modules(model)
        self.fit(model)
        return model.train()

    def _buffer(
        self, name: str, like: Tensor, values: Tensor | None, whole: Tensor | None, device: torch.device
    ) -> Tensor:
        """The given values; room for those of a new norm, or the model's own, where none are given."""
        owner, _, key = name.rpartition(".")
        new_norm = values is None and isinstance(self.unit_map.skeleton.get_submodule(owner), NormBase)
        kept = self.buffers.get(name)
        if kept is not None and values is not None:
            own: Tensor = self.buffers.of(values, name)
            return own.to(device, like.dtype, copy=True)
        if new_norm or (whole is None and key == "num_batches_tracked"):
            shape = like.shape if kept is None else kept.kept_shape
            return torch.zeros(shape, dtype=like.dtype, device=device)
        if whole is None:
            raise ArgumentError(
                f"the buffer {name!r} is needed, and only its shape is known: pass buffers= if it is "
                "of floating point, or use a model with values"
            )
        return (whole.detach().clone() if kept is None else kept.gather(whole)).to(device)

    def fit(self, model: nn.Module) -> None:
        """Adapt the modules of a small model, which has the values of this cut, to their sizes."""
        for name, kept in self.module_sizes.heads.items():
            cast(HeadsAttention, model.get_submodule(name)).kept = list(kept)
        for name, before in self.unit_map.resized.items():
            fit_attributes(model.get_submodule(name), before)
        self.module_sizes.set_numbers(model)

    def adapt_configuration(self, small: nn.Module) -> None:
        """Let the configuration of a small model say its sizes, if it is one of transformers."""
        if not self.unit_map.branches:
            adapt_configuration(small, [(kept.dim, kept.count) for kept in self.units])
        elif self._gone:
            refuse_saving(small, "branches were taken out of this submodel")

    def gradient(self, module: nn.Module) -> Tensor:
        """S'grad of the small model's loss, in the order of the values; 0 where there is no gradient."""
        named = dict(module.named_parameters())
        flat = _empty(self.count, named.values()).zero_()
        for name in self.parameters:
            g = named[name].grad
            if g is not None:
                self.parameters.of(flat, name).copy_(g)
        self.parameters.scale(flat)
        return flat

    def buffers_of(self, module: nn.Module) -> Tensor:
        """The small model's buffers, in the order of `gather_buffers`."""
        named = dict(module.named_buffers())
        flat = [named[name].detach().reshape(-1) for name in self.buffers]
        return torch.cat(flat) if flat else torch.empty(0)

    def __repr__(self) -> str:
        whole = sum(self.unit_map.shapes[name].numel() for name in self.unit_map.parameters)
        return f"<cut: {self.count:,} of {whole:,} values; {self.draw!r}>"


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _detached(tensors: Tensors) -> Mapping[str, Tensor]:
    named = tensors_of(tensors) if isinstance(tensors, nn.Module) else tensors
    return {name: t.detach() for name, t in named.items()}


def _gather(kept: ModelDraw[Draw], tensors: Tensors) -> Tensor:
    found = _detached(tensors)
    missing = [name for name in kept if name not in found]
    if missing:
        raise ArgumentError(f"there is no tensor {missing[0]!r} among those given")
    gathered: Tensor = kept.gather(found, _empty(kept.count, [found[name] for name in kept]))
    return gathered


def _empty(count: int, like: Iterable[Tensor]) -> Tensor:
    """Room for values of these tensors, in a type that holds all of them."""
    tensors = list(like)
    if not tensors:
        return torch.empty(count)
    dtype = functools.reduce(torch.promote_types, [t.dtype for t in tensors])
    return torch.empty(count, dtype=dtype, device=tensors[0].device)


# ---- modules of the small model ----------------------------------------------------------------------


def copy_with(model: nn.Module, made: Callable[[str, Tensor], Tensor]) -> nn.Module:
    """A copy with other parameters and buffers, each made of its name and the old one.

    What is shared stays shared.

    >>> copy_with(nn.Linear(3, 2), lambda name, t: torch.zeros(len(name))).bias.shape
    torch.Size([4])
    """
    memo: dict[int, Any] = {
        id(p): nn.Parameter(made(name, p), p.requires_grad) for name, p in model.named_parameters()
    }
    return deep_copy(model, memo | {id(b): made(name, b) for name, b in model.named_buffers()})


@dataclass(frozen=True)
class SubmodelSizes:
    """What the modules of a small model have to be told, besides the shapes of their tensors."""

    numbers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # lengths, by module and attribute
    heads: Mapping[str, Sequence[int]] = field(default_factory=dict)  # kept ones, by nn.MultiheadAttention
    absent: Mapping[str, PassThrough] = field(default_factory=dict)  # what stands in for modules

    def set_numbers(self, model: nn.Module) -> None:
        """Write the lengths into a model's modules."""
        for module, own in self.numbers.items():
            for name, value in own.items():
                setattr(model.get_submodule(module), name, value)

    def replace_modules(self, model: nn.Module) -> None:
        """Put attention with the kept heads, and the stand-ins for absent modules, into a model."""
        for name, kept in self.heads.items():
            attention = HeadsAttention(cast(nn.MultiheadAttention, model.get_submodule(name)))
            attention.kept = list(kept)
            replace_module(model, name, attention)
        for name, stand_in in self.absent.items():
            replace_module(model, name, copy.deepcopy(stand_in).train(model.training))


def fit_attributes(module: nn.Module, shaped: nn.Module) -> None:
    """Let the attributes of a module say what its tensors are; `shaped` is the module before."""
    own, before = cast(Any, module), cast(Any, shaped)
    if isinstance(module, nn.Linear):
        own.out_features, own.in_features = module.weight.shape
    elif isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        own.out_channels = module.weight.shape[0]
        if before.groups > 1:
            own.groups = own.out_channels * before.groups // before.out_channels
        own.in_channels = module.weight.shape[1] * own.groups
    elif isinstance(module, ConvTranspose):
        if before.groups == 1:
            own.in_channels, own.out_channels = module.weight.shape[:2]
    elif isinstance(module, nn.PReLU):
        own.num_parameters = len(module.weight)
    elif isinstance(module, nn.Embedding):
        own.embedding_dim = module.weight.shape[1]
    elif isinstance(module, nn.RNNCellBase):
        own.hidden_size, own.input_size = module.weight_hh.shape[1], module.weight_ih.shape[1]
    elif isinstance(module, nn.RNNBase):
        own.hidden_size, own.input_size = own.weight_hh_l0.shape[1], own.weight_ih_l0.shape[1]
        own._flat_weights = [getattr(module, name) for name in own._flat_weights_names]
    elif is_conv1d(module):
        own.nx, own.nf = own.weight.shape
    elif isinstance(module, NormBase):
        tensor = module.weight if module.weight is not None else module.running_mean
        if tensor is not None:
            own.num_features = len(tensor)
    elif isinstance(module, nn.GroupNorm) and module.weight is not None:
        own.num_channels = len(module.weight)
        own.num_groups = own.num_channels * before.num_groups // before.num_channels


def is_conv1d(module: nn.Module) -> bool:
    """Whether it is the Conv1D of transformers: a Linear with its weight transposed."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")
