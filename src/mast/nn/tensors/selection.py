"""Which parameters of a model are sketched, for all others the reason why not, and their shift."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from mast.errors import ArgumentError
from mast.nn.tensors.torch_private import Conv, NormBase
from mast.nn.tensors.weights import (
    Keep,
    Shift,
    Weight,
    Where,
    name_index,
    refuse_sharded,
    registered,
    unwrapped,
)
from mast.support.checks import Array, vector

_LAYERS = (
    nn.Linear, nn.Bilinear, Conv, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention, nn.Embedding,
    nn.EmbeddingBag,
)  # fmt: skip
_NORMS = (NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
# What authors of layers call a weight: "weight", "in_proj", "w1"; not "cls_token", "layer_scale", "A_log".
_NAMES_OF_WEIGHTS = re.compile(r"(^|_)(weights?|kernel|proj|w\d*)(_|$)", re.IGNORECASE)


#: the weights to sketch, and the reason why not for each other parameter
Selection = tuple[list[Weight], dict[str, str]]


def choose(model: nn.Module, where: Where | None, keep: Mapping[str, Keep]) -> Selection:
    """The weights to sketch: those that `where` names, else the trainable weights of layers."""
    shares = {pattern: probabilities(pattern, share) for pattern, share in check_mapping(keep).items()}
    names = [name for name, _ in model.named_parameters()]
    check_keep(shares, names)
    wanted = predicate(model, where)
    places = {id(p): place for place, p in registered(model)}
    factors = _factors(model)
    weights, others = list[Weight](), dict[str, str]()
    for name, p in model.named_parameters():
        reason = _unfit(name, p, explicit=where is not None and wanted(name, p)) or (
            "" if wanted(name, p) else _why_not(p, where)
        )
        matching = [share for pattern, share in shares.items() if fnmatch.fnmatchcase(name, pattern)]
        probability = matching[-1] if matching else None  # general patterns come first, exceptions after
        if isinstance(probability, np.ndarray) and probability.size != p.numel():
            raise ArgumentError(
                f"keep has {probability.size} probabilities for {p.numel()} entries of {name!r}"
            )
        if not reason and _is_one(probability):
            reason = "keep = 1"
        if reason:
            others[name] = reason
        elif id(p) in factors:
            raise ArgumentError(
                f"the parameter {name!r} is a factor of a parametrized weight ({factors[id(p)]}): a sketch "
                "of it is none of the weight that is computed with. Remove the parametrization before "
                f"sparsify(), or leave the parameter out with keep={{{name!r}: 1}}"
            )
        else:
            weights.append(Weight(name, p.shape, places[id(p)], probability))
    for pattern, share in shares.items():
        matched = fnmatch.filter(names, pattern)
        if not _is_one(share) and not any(w.name in matched for w in weights):
            raise ArgumentError(
                f"keep: {pattern!r} matches only parameters that are not sketched ({some(matched)}): name "
                "them in where= as well"
            )
    if not weights:
        reasons = "; ".join(sorted(set(others.values()))) or "it has none at all"
        raise ArgumentError(f"the model has no parameter to sketch ({reasons})")
    refuse_equal_codes([w.name for w in weights])
    return weights, others


def predicate(model: nn.Module, where: Where | None) -> Callable[[str, nn.Parameter], bool]:
    """`where` as a function of a parameter's name and the parameter."""
    if where is None:
        weights = {id(p) for module in model.modules() for p in _weights_of_layer(module)}
        return lambda name, p: id(p) in weights and p.requires_grad and p.is_floating_point()
    if callable(where):
        return where
    if not isinstance(where, Iterable):
        raise ArgumentError(
            f"where is a name pattern, several, or a function of name and parameter, got {where!r}"
        )
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
    reason = "empty" if p.numel() == 0 else ""
    if not p.is_floating_point():
        reason = f"{str(p.dtype).removeprefix('torch.')}, not floating point"
    if reason and explicit:
        raise ArgumentError(f"the parameter {name!r} cannot be sketched: it is {reason}")
    return reason


def _why_not(p: nn.Parameter, where: Where | None) -> str:
    if where is not None:
        return "not named by where"
    if p.ndim < 2:
        return "a vector or a number: only weights of two or more dimensions are sketched"
    return "frozen" if not p.requires_grad else "not the weight of a layer; where= can name it"


def probabilities(pattern: str, share: Any) -> float | Array:
    """One probability, or one for each entry of a weight, flattened."""
    if isinstance(share, Tensor):
        share = share.detach().cpu().numpy()
    try:
        if np.ndim(share) == 0:
            return float(share)
        each = np.asarray(share, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        raise ArgumentError(f"keep[{pattern!r}] is a probability in (0, 1], got {share!r}") from None
    return vector(f"keep[{pattern!r}]", each)


def _is_one(share: float | Array | None) -> bool:
    return not isinstance(share, np.ndarray) and share == 1


def check_mapping(keep: Any) -> Mapping[str, Any]:
    """Refuse names without their probabilities."""
    if not isinstance(keep, Mapping) or not all(isinstance(name, str) for name in keep):
        raise ArgumentError(f"keep is a dict of names and probabilities, such as {{name: 1}}; got {keep!r}")
    return keep


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


_SHIFT = 'shift is None, "init", a model, or a mapping from names to tensors'


def shifts_of(weights: Sequence[Weight], shift: Shift) -> dict[str, Tensor] | None:
    """v by name, checked, in copies that are where the weights are."""
    if shift is None:
        return None
    if isinstance(shift, str):
        if shift != "init":
            raise ArgumentError(f"{_SHIFT}, got {shift!r}")
        return {w.name: w.parameter.detach().clone() for w in weights}
    tensors = unwrapped(shift).state_dict() if isinstance(shift, nn.Module) else shift
    if not isinstance(tensors, Mapping):
        raise ArgumentError(f"{_SHIFT}, got {type(shift).__name__}")
    shifts = {}
    for w in weights:
        v = tensors.get(w.name)
        if not isinstance(v, Tensor):
            raise ArgumentError(f"the shift has no tensor for the sketched parameter {w.name!r}")
        if v.shape != w.shape:
            raise ArgumentError(
                f"the shift of {w.name!r} has shape {tuple(v.shape)}, the parameter {tuple(w.shape)}"
            )
        if not torch.isfinite(v).all():
            raise ArgumentError(f"the shift of {w.name!r} holds NaN or infinity")
        shifts[w.name] = v.detach().to(w.parameter, copy=True)
    return shifts
