"""Which parameters of a model are sketched, every place where it looks them up, and their shift v."""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from mast.arrays import Array, vector
from mast.errors import ArgumentError, MastError
from mast.nn.tensors.torch_private import Conv, NormBase

_LAYERS = (
    nn.Linear, nn.Bilinear, Conv, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention, nn.Embedding,
    nn.EmbeddingBag,
)  # fmt: skip
_NORMS = (NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
# What authors of layers call a weight: "weight", "in_proj", "w1"; not "cls_token", "layer_scale", "A_log".
_NAMES_OF_WEIGHTS = re.compile(r"(^|_)(weights?|kernel|proj|w\d*)(_|$)", re.IGNORECASE)
_DEEP = 3  # how many dicts and lists may lie around a parameter

#: what `where` may be: a pattern, patterns, or a function of a parameter's name and the parameter
Where = str | Sequence[str] | Callable[[str, nn.Parameter], bool]
#: what `calibrate` may be: batches; False, if there is nothing to say about their absence
Batches = Iterable[Any] | Literal[False] | None
#: what a parameter's keep may be: one probability, or one for each entry
Keep = float | Array | Tensor
#: what a shift may be: nothing, "init", or tensors by name
Shift = None | str | Mapping[str, Tensor]


@dataclass
class Place:
    """One place where a module finds a parameter: an attribute, or an entry of dicts and lists below one."""

    attributes: dict[str, Any]  # of the module
    path: tuple[Any, ...]  # the attribute's name, then keys
    number: int  # of the weight

    def get(self) -> Any:
        """What stands there now."""
        try:
            return self._container()[self.path[-1]]
        except (KeyError, IndexError):
            raise MastError(
                f"the sketched parameter {self.path[-1]!r} is no longer where it was when sparsify() was "
                "called: its module was pruned, parametrized or sharded since. Call sk.remove() first, "
                "change the model, then call sparsify() again"
            ) from None

    def put(self, value: Any) -> None:
        """Replace it."""
        self._container()[self.path[-1]] = value

    def _container(self) -> Any:
        container: Any = self.attributes
        for key in self.path[:-1]:
            container = container[key]
        return container


@dataclass
class Weight:
    """One sketched parameter."""

    name: str
    shape: torch.Size
    place: Place  # where its owner keeps it
    keep: float | Array | None = None  # its own keep probability, or one for each entry, if it has any

    @property
    def parameter(self) -> Tensor:
        """The parameter, looked up, because models may be given new ones."""
        tensor: Tensor = self.place.get()
        return tensor

    @property
    def count(self) -> int:
        """How many coordinates it has."""
        return self.shape.numel()

    @property
    def index(self) -> int:
        """The number that stands for its name in the key of a draw."""
        return name_index(self.name)


@dataclass
class Selection:
    """The sketched weights, and for all others the reason why not."""

    weights: list[Weight] = field(default_factory=list)
    others: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, p: Tensor, place: Place, keep: float | Array | None) -> None:
        """One more weight to sketch."""
        place.number = len(self.weights)
        self.weights.append(Weight(name, p.shape, place, keep))

    @property
    def dim(self) -> int:
        """How many coordinates are sketched."""
        return sum(w.count for w in self.weights)


def name_index(name: str) -> int:
    """32 bits that stand for a parameter's name: part of the layout of draws.

    >>> name_index("fc.weight")
    4033983789
    """
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside of DistributedDataParallel; an error for what cannot be sparsified."""
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"the first argument must be an nn.Module, got {type(model).__name__}")
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return unwrapped(model.module)
    if isinstance(model, nn.DataParallel):
        raise ArgumentError(
            "nn.DataParallel copies the model in every forward pass: use DistributedDataParallel"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise ArgumentError("a TorchScript module cannot be sparsified: pass the original nn.Module")
    for module in model.modules():
        if type(module).__name__ == "FullyShardedDataParallel":
            raise ArgumentError(
                "FSDP shards parameters, so no process holds a whole weight to sketch: use "
                "DistributedDataParallel"
            )
        if type(module).__name__ == "OptimizedModule":
            raise ArgumentError("the model is compiled: sparsify the original; training then runs uncompiled")
    return model


def choose(model: nn.Module, where: Where | None, keep: Mapping[str, Keep]) -> Selection:
    """The weights to sketch: those that `where` names, else the trainable weights of layers."""
    keep = {pattern: _probabilities(pattern, share) for pattern, share in keep.items()}
    wanted = predicate(model, where)
    places = {id(p): place for place, p in registered(model)}
    factors = _factors(model)
    selection = Selection()
    for name, p in model.named_parameters():
        reason = _unfit(name, p, explicit=where is not None and wanted(name, p)) or (
            "" if wanted(name, p) else _why_not(p, where)
        )
        probability = _keep_probability(name, keep)
        if isinstance(probability, np.ndarray) and probability.size != p.numel():
            raise ArgumentError(
                f"keep has {probability.size} probabilities for {p.numel()} entries of {name!r}"
            )
        if not reason and _is_one(probability):
            reason = "keep = 1"
        if reason:
            selection.others[name] = reason
        elif id(p) in factors:
            raise ArgumentError(
                f"the parameter {name!r} is a factor of a parametrized weight ({factors[id(p)]}): a sketch "
                "of it is none of the weight that is computed with. Remove the parametrization before "
                f"sparsify(), or leave the parameter out with keep={{{name!r}: 1}}"
            )
        else:
            selection.add(name, p, places[id(p)], probability)
    _check(selection, keep, [name for name, _ in model.named_parameters()])
    return selection


def find(model: nn.Module, weights: Sequence[Weight]) -> dict[nn.Module, list[Place]]:
    """Every place that holds one of the weights, registered or in a plain attribute, by the module it is in.

    Recurrent layers keep a list of their parameters beside the registered ones, and so do some
    models; a tuple cannot be replaced, and is refused.
    """
    number = {id(w.parameter): i for i, w in enumerate(weights)}
    places: dict[nn.Module, list[Place]] = {}
    for owner_name, owner in model.named_modules():
        for name, value in vars(owner).items():
            if name in ("_modules", "_buffers", "_compiled_call_impl"):
                continue
            for path, p, replaceable in _inside((name,), value):
                if id(p) not in number:
                    continue
                if not replaceable:
                    raise ArgumentError(
                        f"the module {owner_name or 'at the root'!r} also keeps the parameter "
                        f"{weights[number[id(p)]].name!r} in its attribute {name!r}, in a tuple, where it "
                        "cannot be replaced: make that a list or an nn.ParameterList"
                    )
                places.setdefault(owner, []).append(Place(vars(owner), path, number[id(p)]))
    return places


def _inside(
    path: tuple[Any, ...], value: Any, replaceable: bool = True
) -> Iterator[tuple[tuple[Any, ...], Tensor, bool]]:
    """The tensors in an attribute, through dicts, lists and tuples, and whether each can be replaced."""
    if isinstance(value, Tensor):
        yield path, value, replaceable
    elif len(path) <= _DEEP and isinstance(value, dict | list | tuple):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in entries:
            if isinstance(item, Tensor | dict | list | tuple):
                yield from _inside((*path, key), item, not isinstance(value, tuple))


def registered(model: nn.Module) -> Iterator[tuple[Place, nn.Parameter]]:
    """Each parameter once, where it is registered first."""
    seen: set[int] = set()
    for module in model.modules():
        for name, p in module._parameters.items():
            if p is not None and id(p) not in seen:
                seen.add(id(p))
                yield Place(vars(module), ("_parameters", name), -1), p


def predicate(model: nn.Module, where: Where | None) -> Callable[[str, nn.Parameter], bool]:
    """`where` as a function of a parameter's name and the parameter."""
    if where is None:
        weights = {id(p) for module in model.modules() for p in _weights_of_layer(module)}
        return lambda name, p: id(p) in weights and p.requires_grad and p.is_floating_point()
    if callable(where):
        return where
    patterns = [where] if isinstance(where, str) else list(where)
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if not isinstance(pattern, str) or not fnmatch.filter(names, pattern):
            raise ArgumentError(f"where: {pattern!r} matches none of the parameters {some(names)}")
    return lambda name, p: any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _weights_of_layer(module: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters of a module, of at least two dimensions, that multiply what comes in.

    Those of torch's linear, convolutional, recurrent, attention and embedding layers, and in layers of other
    authors what is named as a weight. Tokens, tables of positions, scales of branches and norms are none.
    """
    layer = isinstance(module, (*_LAYERS, parametrize.ParametrizationList))
    if isinstance(module, _NORMS) or (not layer and "norm" in type(module).__name__.lower()):
        return
    for name, p in module._parameters.items():
        if p is not None and not isinstance(p, nn.parameter.UninitializedParameter) and p.ndim < 2:
            continue
        named = "weight" in name or "original" in name if layer else _NAMES_OF_WEIGHTS.search(name)
        if p is not None and named:
            yield p


def _factors(model: nn.Module) -> dict[int, str]:
    """The parameters that a parametrization computes a weight from, by identity, with its kind."""
    factors: dict[int, str] = {}
    for module in model.modules():
        if isinstance(module, parametrize.ParametrizationList):
            kind = ", ".join(type(part).__name__.strip("_") for part in module)
            factors |= {id(p): kind for p in module._parameters.values()}
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, WeightNorm | SpectralNorm):
                names = [f"{hook.name}{end}" for end in ("_g", "_v", "_orig")]
                owned = [module._parameters[name] for name in names if name in module._parameters]
                factors |= {id(p): type(hook).__name__ for p in owned}
    return factors


def _unfit(name: str, p: nn.Parameter, explicit: bool) -> str:
    """Why this parameter cannot be sketched, if so: an error if it was asked for, or can be repaired."""
    if isinstance(p, nn.parameter.UninitializedParameter):
        raise ArgumentError(
            f"the parameter {name!r} has no shape yet: run one forward pass before sparsify()"
        )
    if p.is_meta:
        raise ArgumentError(f"the parameter {name!r} is on the meta device: materialise the model first")
    refuse_sharded(name, p)
    reason = ""
    if not p.is_floating_point():
        reason = f"{str(p.dtype).removeprefix('torch.')}, not floating point"
    elif p.numel() == 0:
        reason = "empty"
    if reason and explicit:
        raise ArgumentError(f"the parameter {name!r} cannot be sketched: it is {reason}")
    return reason


def refuse_sharded(name: str, p: Tensor) -> None:
    """An error for a parameter of which this process holds a part only."""
    if hasattr(p, "device_mesh"):
        raise ArgumentError(
            f"the parameter {name!r} is a sharded DTensor (FSDP or tensor parallelism): each process holds "
            "a part of it, so a draw of the whole weight cannot be applied. Use DistributedDataParallel, "
            "whose processes hold whole weights"
        )


def _why_not(p: nn.Parameter, where: Where | None) -> str:
    if where is not None:
        return "not named by where"
    if p.ndim < 2:
        return "a vector or a number: only weights of two or more dimensions are sketched"
    return "frozen" if not p.requires_grad else "not the weight of a layer; where= can name it"


def _probabilities(pattern: str, share: Any) -> float | Array:
    """One probability, or one for each entry of a weight, flattened."""
    if isinstance(share, Tensor):
        share = share.detach().cpu().numpy()
    if np.ndim(share) == 0:
        return float(share)
    return vector(f"keep[{pattern!r}]", np.asarray(share, dtype=np.float64).reshape(-1))


def _is_one(share: float | Array | None) -> bool:
    return not isinstance(share, np.ndarray) and share == 1


def _keep_probability(name: str, keep: Mapping[str, Any]) -> float | Array | None:
    """That of the last pattern that matches the name: general patterns come first, exceptions after."""
    matching = [share for pattern, share in keep.items() if fnmatch.fnmatchcase(name, pattern)]
    return matching[-1] if matching else None


def _check(selection: Selection, keep: Mapping[str, Any], names: list[str]) -> None:
    check_keep(keep, names)
    for pattern, share in keep.items():
        matched = fnmatch.filter(names, pattern)
        if not _is_one(share) and not any(w.name in matched for w in selection.weights):
            raise ArgumentError(
                f"keep: {pattern!r} matches only parameters that are not sketched ({some(matched)}): name "
                "them in where= as well"
            )
    if not selection.weights:
        reasons = "; ".join(sorted(set(selection.others.values()))) or "it has none at all"
        raise ArgumentError(f"the model has no parameter to sketch ({reasons})")
    refuse_equal_codes([w.name for w in selection.weights])


def check_keep(keep: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse what is no probability, and patterns that match nothing."""
    for pattern, share in keep.items():
        if not ((0 < np.asarray(share)) & (np.asarray(share) <= 1)).all():
            raise ArgumentError(f"keep[{pattern!r}] is a probability in (0, 1], got {share!r}")
        if not fnmatch.filter(names, pattern):
            raise ArgumentError(f"keep: {pattern!r} matches none of the parameters {some(names)}")


def refuse_equal_codes(names: Sequence[str]) -> None:
    """Refuse names whose draws would be the same."""
    by_index: dict[int, str] = {}
    for name in names:
        other = by_index.setdefault(name_index(name), name)
        if other != name:
            raise ArgumentError(f"the names {other!r} and {name!r} share one 32-bit code: rename one of them")


def some(names: Sequence[str]) -> str:
    """The first few names, for a message."""
    return ", ".join(names[:6]) + (f", ... ({len(names)} in all)" if len(names) > 6 else "")


def shifts_of(weights: Sequence[Weight], shift: Shift) -> dict[str, Tensor] | None:
    """v by name, checked, in copies that are where the weights are."""
    if shift is None:
        return None
    if isinstance(shift, str):
        if shift != "init":
            raise ArgumentError(f'shift is None, "init", or a mapping from names to tensors, got {shift!r}')
        return {w.name: w.parameter.detach().clone() for w in weights}
    shifts = {}
    for w in weights:
        v = shift.get(w.name)
        if v is None:
            raise ArgumentError(f"the shift has no tensor for the sketched parameter {w.name!r}")
        if v.shape != w.shape:
            raise ArgumentError(
                f"the shift of {w.name!r} has shape {tuple(v.shape)}, the parameter {tuple(w.shape)}"
            )
        if not torch.isfinite(v).all():
            raise ArgumentError(f"the shift of {w.name!r} holds NaN or infinity")
        shifts[w.name] = v.detach().to(w.parameter, copy=True)
    return shifts
