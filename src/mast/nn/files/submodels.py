"""Submodels in files: safetensors with the weights, and a header that says which units they belong to.

A file is read into a model of the class that was trained: `load_submodel(path, model)` fills a copy of it.
The header has the shapes of what was cut, before and after, and what modules have to be told besides
(`SubmodelSizes`), so nothing has to be found out when a file is read. Names, shapes and
types of all tensors are compared with the header and with the model before one of them is used.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mast.errors import ArgumentError, DataError
from mast.nn.files import tensor_files
from mast.nn.tensors.weights import deep_copy, unwrapped
from mast.nn.units import UnitDraw, UnitMap
from mast.nn.units.cuts import SubmodelSizes, fit_attributes
from mast.nn.units.stand_ins import PassThrough
from mast.support import files

if TYPE_CHECKING:
    from mast.nn.sparsifier import Sparsifier
    from mast.sketches import ModelDraw

KIND, FORMAT = "submodel", 2
Shape = tuple[int, ...]


def save_submodel(module: nn.Module, path: str | Path, *, about: Mapping[str, Any] | None = None) -> Path:
    """Write the weights and buffers of a model to a file for `load_submodel`.

    `sk.save_submodel` writes the submodel of a draw, and which units it has.

    Parameters
    ----------
    module
        The model. `load_submodel` needs one of the same class and the same shapes.
    path
        Where to write; what stood there is replaced when the new file is complete.
    about
        More to remember: plain values by name, as `sk.save_submodel` gives sketch, key and density.

    >>> import mast, torch, tempfile
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = mast.nn.save_submodel(model, folder + "/model.safetensors")
    ...     again = mast.nn.load_submodel(path, torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU()))
    >>> torch.equal(again(torch.ones(1, 3)), model(torch.ones(1, 3))), again.mast_about["parameters"]
    (True, 8)
    """
    return _write(module, path, {}, about or {})


def save_draw(
    sk: Sparsifier, path: str | Path, draw: ModelDraw[Any], model: nn.Module, about: Mapping[str, Any]
) -> Path:
    """Write the submodel of a draw; see `Sparsifier.save_submodel`."""
    kept = {} if sk.unit_map is None else sk.unit_map.cut(draw).parameters
    for name, p in model.named_parameters():
        if name in kept and tuple(p.shape) != tuple(kept[name].kept_shape):
            raise ArgumentError(
                f"the model is not the submodel of this draw: its {name!r} has the shape {tuple(p.shape)}, "
                f"and the draw keeps {tuple(kept[name].kept_shape)}"
            )
    key, units = draw.key, {} if sk.unit_map is None else _units(sk.unit_map, draw)
    share = sum(kept.count for kept in draw.values()) / sum(kept.dim for kept in draw.values())
    remembered = {
        "sketch": sk.sketch.label(),
        "key": {"seed": key.seed, "step": key.step, "node": key.node},
        "density": share,
        "parameters_of_the_whole": sum(p.numel() for p in sk.model.parameters()),
    }
    return _write(model, path, units, {**remembered, **about})


def load_submodel(path: str | Path, model: nn.Module) -> nn.Module:
    """The model of a file, in `eval()` mode: a copy of `model`, cut to the file's units, with its weights.

    `model` is one of the class and size that was trained, with any weights; it stays as it is. The result's
    `mast_about` is what the file remembers: parameters, sketch, key, density, MAST's version.
    """
    header, tensors = tensor_files.read(path, KIND, FORMAT)
    try:
        about = {"mast_version": header["mast_version"], **header["about"]}
        sizes, shapes = _sizes_in(header), _shapes_in(header)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is damaged: its header is not that of a submodel ({error})") from error
    for name, (_, cut) in shapes.items():
        if name in tensors and tuple(tensors[name].shape) != cut:
            found = tuple(tensors[name].shape)
            raise DataError(
                f"{path} is damaged: its {name!r} has the shape {found}, cut to {cut} by its header"
            )
    whole = unwrapped(model)
    try:
        small = _resized(whole, sizes)
        _fill(small, tensors, shapes)
        for name, module in small.named_modules():
            own = [f"{name}.{key}" if name else key for key in (*module._parameters, *module._buffers)]
            if any(key in shapes for key in own):
                fit_attributes(module, whole.get_submodule(name))
        sizes.set_numbers(small)
    except (ArgumentError, AttributeError) as error:
        raise ArgumentError(f"the model does not fit {path}: {error}") from error
    small.mast_about = about  # type: ignore[assignment]
    return small.eval()


def parameters_of(path: Path) -> int:
    """How many parameters the submodel of a file has."""
    header, _ = tensor_files.read(path, KIND, FORMAT)
    with files.damage_refused(path):
        return int(header["about"]["parameters"])


def _write(module: nn.Module, path: str | Path, units: Mapping[str, Any], about: Mapping[str, Any]) -> Path:
    model = unwrapped(module)
    tensors = {name: t.detach().clone() for name, t in _state(model).items()}
    cut = units.get("whole_shapes", {})
    tensors |= {name: b.clone() for name, b in model.named_buffers() if name in cut}
    if cut:
        units = {**units, "shapes": {name: list(tensors[name].shape) for name in cut}}
    counts = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "nonzero": sum(int(p.count_nonzero()) for p in model.parameters()),
        "bytes": sum(t.numel() * t.element_size() for t in tensors.values()),
    }
    try:
        remembered = json.loads(json.dumps({**counts, **about}, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"about holds what JSON cannot: {error}") from error
    return tensor_files.write(path, KIND, FORMAT, {"about": remembered, **units}, tensors)


def _state(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model's state, each under the first of its names."""
    tensors: dict[int, tuple[str, Tensor]] = {}
    for name, t in model.state_dict(keep_vars=True).items():
        if not isinstance(t, Tensor):
            raise ArgumentError(f"{name!r} in the state_dict is no tensor: a model file cannot hold it")
        tensors.setdefault(id(t), (name, t))
    return dict(tensors.values())


def _units(unit_map: UnitMap, draw: UnitDraw) -> dict[str, Any]:
    """What a draw leaves of a model: units, shapes of tensors before, and what modules have to be told."""
    cut = unit_map.cut(draw)
    sizes = cut.module_sizes
    whole = dict(unit_map.skeleton.named_parameters()) | dict(unit_map.skeleton.named_buffers())
    kept = {**cut.parameters, **cut.buffers}
    return {
        "kept_units": {name: units.indices.tolist() for name, units in draw.items()},
        "whole_shapes": {
            name: list(whole[name].shape)
            for name, k in kept.items()
            if tuple(k.kept_shape) != tuple(whole[name].shape)
        },
        "numbers": {module: dict(own) for module, own in sizes.numbers.items()},
        "heads": {module: list(kept) for module, kept in sizes.heads.items()},
        "absent": {module: m.options() for module, m in sizes.absent.items()},
    }


def _sizes_in(header: Mapping[str, Any]) -> SubmodelSizes:
    """What modules have to be told, out of a header; an error if it is no such thing."""
    numbers = {str(name): dict(own) for name, own in header.get("numbers", {}).items()}
    heads = {str(name): list(kept) for name, kept in header.get("heads", {}).items()}
    absent = {str(name): PassThrough(**own) for name, own in header.get("absent", {}).items()}
    given = [
        *(n for own in numbers.values() for n in own.values()),
        *(h for own in heads.values() for h in own),
    ]
    if not all(type(n) is int and 0 <= n < 2**63 for n in given):
        raise ValueError("sizes and heads are whole numbers")
    return SubmodelSizes(numbers, heads, absent)


def _shapes_in(header: Mapping[str, Any]) -> dict[str, tuple[Shape, Shape]]:
    """The shapes of tensors before and after the cut, out of a header; an error if it is no such thing."""
    before, after = header.get("whole_shapes", {}), header.get("shapes", {})
    shapes = {str(name): (tuple(before[name]), tuple(after[name])) for name in {**before, **after}}
    for name, (whole, cut) in shapes.items():
        fits = len(whole) == len(cut) and all(type(n) is int for n in (*whole, *cut))
        if not fits or not all(1 <= n <= m for n, m in zip(cut, whole, strict=True)):
            raise ValueError(f"nothing of the shape {whole} can be cut to {cut}, as {name!r} is")
    return shapes


def _resized(whole: nn.Module, sizes: SubmodelSizes) -> nn.Module:
    """A copy of a model without absent modules and heads; its tensors are as they were."""
    small = deep_copy(whole)
    modules = dict(small.named_modules())
    for name in (*sizes.absent, *sizes.heads, *sizes.numbers):
        if name not in modules:
            raise ArgumentError(f"it has no module {name!r}")
    for name, own in sizes.numbers.items():
        for key in own:
            if type(vars(modules[name]).get(key)) is not int:
                raise ArgumentError(f"its module {name!r} has no number {key!r}")
    for name, kept in sizes.heads.items():
        attention = modules[name]
        if not isinstance(attention, nn.MultiheadAttention) or not (
            kept == sorted(set(kept)) and kept and kept[-1] < attention.num_heads
        ):
            raise ArgumentError(f"its module {name!r} has no such heads")
    sizes.replace_modules(small)
    return small


def _fill(model: nn.Module, tensors: Mapping[str, Tensor], shapes: Mapping[str, tuple[Shape, Shape]]) -> None:
    """Put the tensors of a file into a model of the same names, with the file's types and shapes."""
    state = _state(model)
    state |= {name: b for name, b in model.named_buffers() if name in shapes}
    for name in [*(n for n in tensors if n not in state), *(n for n in state if n not in tensors)]:
        raise ArgumentError(f"{'it has no' if name in tensors else 'the file has no'} {name!r}")
    for name, t in state.items():
        whole = shapes[name][0] if name in shapes else tuple(tensors[name].shape)
        if tuple(t.shape) != whole:
            raise ArgumentError(
                f"its {name!r} has the shape {tuple(t.shape)}, and the file is of a model with {whole}"
            )
    _compare_types(state, tensors)
    with torch.no_grad():
        for name, t in state.items():
            value = tensors[name]
            if t.shape != value.shape:
                t.data = value.clone()
                continue
            t.data = t.data.to(value.dtype)
            t.copy_(value)


def _compare_types(state: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """An error unless the types are those of the model, or all of one floating-point type became another."""
    pairs = {name: (t.dtype, tensors[name].dtype) for name, t in state.items()}
    counts = Counter(pairs.values())
    for name, (own, stored) in pairs.items():
        usual = max(
            (pair for pair in counts if pair[0] == own), key=lambda pair: (pair[1] == own, counts[pair])
        )
        if stored != usual[1] or not (stored == own or (own.is_floating_point and stored.is_floating_point)):
            raise ArgumentError(f"its {name!r} is of {own}, that of the file of {stored}")
