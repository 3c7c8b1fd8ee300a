"""Submodels in files: safetensors with the weights, and a header that says which units they belong to.

A file is read into a model of the class that was trained: `load_submodel(path, model)` cuts a copy of it
to the units of the file and fills it. `mast.nn.export_onnx` makes files that need no class.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from mast.errors import ArgumentError, DataError
from mast.nn.files import tensor_files
from mast.nn.structure import Layers, Neurons, Space, Structure, UnitDraw, structure_of
from mast.nn.structure.branch_structures import BranchStructure
from mast.nn.tensors.weights import Batches, unwrapped
from mast.randomness import Key
from mast.sketches import DiagonalDraw, Identity

if TYPE_CHECKING:
    from mast.nn.sparsifier import Sparsifier

KIND, FORMAT = "submodel", 2


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
    return _write(module, path, {"dropped_branches": None, "kept_units": None}, about or {})


def save_draw(
    sk: Sparsifier,
    path: str | Path,
    which: int | Key | UnitDraw = 0,
    *,
    calibrate: Batches = None,
    model: nn.Module | None = None,
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Write the submodel of a draw; see `Sparsifier.save_submodel`."""
    key = which.key if isinstance(which, UnitDraw) else which if isinstance(which, Key) else Key(which)
    units: dict[str, Any] = {"dropped_branches": None, "kept_units": None}
    if sk.structure is not None:
        draw = which if isinstance(which, UnitDraw) else sk.draw(key)
        units |= _units(sk.structure, draw)
        density = sum(units.count for units in draw.values()) / sum(units.dim for units in draw.values())
    else:
        density = sk.kept(key).count / sk.dim
    remembered = {
        "sketch": sk.sketch.label(),
        "key": {"seed": key.seed, "step": key.step, "node": key.node},
        "density": density,
        "parameters_of_the_whole": sum(p.numel() for p in sk.model.parameters()),
    }
    model = sk.submodel(which, calibrate=calibrate) if model is None else model
    return _write(model, path, units, {**remembered, **(about or {})})


def load_submodel(path: str | Path, model: nn.Module) -> nn.Module:
    """The model of a file, in `eval()` mode: a copy of `model`, cut to the file's units, with its weights.

    `model` is one of the class and size that was trained, with any weights; it stays as it is. The result's
    `mast_about` is what the file remembers: parameters, sketch, key, density, MAST's version.
    """
    header, tensors = tensor_files.read(path, KIND, FORMAT)
    try:
        about = {"mast_version": header["mast_version"], **header["about"]}
        dropped, kept_units = header["dropped_branches"], header["kept_units"]
        if not isinstance(dropped, list | None) or not isinstance(kept_units, dict | None):
            raise ValueError("units are given by names")
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is damaged: its header is not that of a submodel ({error})") from error
    try:
        small = _smaller(unwrapped(model), dropped, kept_units)
        _fill(small, tensors)
    except ArgumentError as error:
        raise ArgumentError(f"the model does not fit {path}: {error}") from error
    small.mast_about = about  # type: ignore[assignment]
    return small.eval()


def parameters_of(path: Path) -> int:
    """How many parameters the submodel of a file has."""
    header, _ = tensor_files.read(path, KIND, FORMAT)
    return int(header["about"]["parameters"])


def _write(module: nn.Module, path: str | Path, units: Mapping[str, Any], about: Mapping[str, Any]) -> Path:
    model = unwrapped(module)
    tensors = {name: t.detach().clone() for name, t in _state(model).items()}
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


def _units(structure: Structure, draw: UnitDraw) -> dict[str, Any]:
    """What a draw leaves of a model, by names that do not depend on `where` and `keep`."""
    if isinstance(structure, BranchStructure):
        present = set(draw[structure.spaces[0].name].indices.tolist())
        return {"dropped_branches": [b.name for i, b in enumerate(structure.branches) if i not in present]}
    return {"kept_units": {name: units.indices.tolist() for name, units in draw.items()}}


def _smaller(
    model: nn.Module, dropped: list[str] | None, kept_units: dict[str, list[int]] | None
) -> nn.Module:
    """A copy of the model without these branches, or with these units only."""
    if dropped is None and kept_units is None:
        return copy.deepcopy(model)
    structure = structure_of(model, Neurons(Identity()) if dropped is None else Layers(Identity()))
    if isinstance(structure, BranchStructure):
        names = [branch.name for branch in structure.branches]
        present = [number for number, name in enumerate(names) if name not in (dropped or ())]
        unknown = set(dropped or ()) - set(names)
        kept_units = {structure.spaces[0].name: present}
    else:
        kept_units = kept_units or {}
        unknown = set(kept_units) - {space.name for space in structure.spaces}
    if unknown:
        raise ArgumentError(f"it has no units {min(unknown)!r}")
    draw = {
        space.name: _units_of(space, kept_units.get(space.name, range(space.units)))
        for space in structure.spaces
    }
    cut = structure.cut(UnitDraw(Key(0), draw))
    return cut.pour(cut.gather(model), cut.gather_buffers(model))


def _units_of(space: Space, numbers: Any) -> DiagonalDraw:
    """The units of a space that a file names."""
    units = np.array(numbers)
    whole = units.ndim == 1 and (units.size == 0 or units.dtype.kind == "i")
    if not whole or (
        units.size and (units[0] < 0 or units[-1] >= space.units or (np.diff(units) <= 0).any())
    ):
        raise ArgumentError(f"it has {space.units} units {space.name!r}, and the file names others")
    return DiagonalDraw(space.units, units.astype(np.int64), np.ones(units.size))


def _fill(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put the tensors of a file into a model of the same names and shapes, with the file's types."""
    state = _state(model)
    for name in [*(n for n in tensors if n not in state), *(n for n in state if n not in tensors)]:
        raise ArgumentError(f"{'it has no' if name in tensors else 'the file has no'} {name!r}")
    with torch.no_grad():
        for name, t in state.items():
            value = tensors[name]
            if t.shape != value.shape:
                raise ArgumentError(
                    f"its {name!r} has the shape {tuple(t.shape)}, that of the file {tuple(value.shape)}"
                )
            if t.dtype.is_floating_point != value.dtype.is_floating_point:
                raise ArgumentError(f"its {name!r} is of {t.dtype}, that of the file of {value.dtype}")
            t.data = t.data.to(value.dtype)
            t.copy_(value)
