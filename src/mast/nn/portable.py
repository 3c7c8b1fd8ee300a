"""Models in files that need no training code: safetensors for the weights, JSON for what is computed.

`save_submodel` follows the forward pass once (torch.fx, with the modules of torch.nn as units) and writes it
as a list of calls by name. `load_submodel` makes plain modules from it, in any process that
has MAST. A file holds names from fixed lists, numbers and tensors, never code: nothing of it is evaluated.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mast.errors import ArgumentError, DataError, MastError
from mast.nn import tensor_files
from mast.nn.delta_parts import kept
from mast.nn.portable_program import Program, find, program_of
from mast.nn.portable_tracing import described
from mast.nn.structure import UnitDraw
from mast.nn.wrappers import unwrapped
from mast.randomness import Key

if TYPE_CHECKING:
    from mast.nn.sparsifier import Sparsifier

KIND, FORMAT = "submodel", 1


def save_submodel(
    module: nn.Module,
    path: str | Path,
    *,
    example: Any = None,
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model to a file from which `load_submodel` makes it again, without the code that defined it.

    The model is written as it computes in `eval()` mode. Arguments of its forward that have defaults keep
    them. What cannot be written (other functions than those of torch, forward passes
    that depend on the values of their inputs, hooks) is refused, by the module's name.

    Parameters
    ----------
    module
        The model, such as `sk.submodel(seed)`.
    path
        Where to write; what stood there is replaced when the new file is complete.
    example
        An input, or a tuple of inputs. With it, the file's model is run before it is written, and has to
        give the same output bit for bit.
    about
        More to remember: plain values by name, as `sk.save_submodel` gives sketch, key and density.

    >>> import mast, torch, tempfile
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = mast.nn.save_submodel(model, folder + "/small.safetensors")
    ...     again = mast.nn.load_submodel(path)
    >>> torch.equal(again(torch.ones(1, 3)), model(torch.ones(1, 3))), again.mast_about["parameters"]
    (True, 8)
    """
    model = copy.deepcopy(unwrapped(module)).eval()
    said = described(model)
    tensors, aliases, strides = _tensors(model, said)
    remembered = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "nonzero": sum(int(p.count_nonzero()) for p in model.parameters()),
        "bytes": sum(t.numel() * t.element_size() for t in tensors.values()),
        **(about or {}),
    }
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    description = {
        "about": _plain(remembered),
        "model": said,
        "parameters": [name for name in tensors if name in parameters],
        "aliases": aliases,
        "strides": strides,
    }
    again = _made(description, tensors)
    if example is not None:
        _compare(model, again, example if isinstance(example, tuple) else (example,))
    return tensor_files.write(path, KIND, FORMAT, description, tensors)


def load_submodel(path: str | Path) -> nn.Module:
    """The model of a file, in `eval()` mode; its outputs are those of the saved one, bit for bit.

    Its `mast_about` is what the file remembers: parameters, sketch, key, density, MAST's version.
    """
    description, tensors = tensor_files.read(path, KIND, FORMAT)
    try:
        model = _made(description, tensors)
    except (MastError, KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise DataError(f"{path} is damaged: its parts do not fit together ({error})") from error
    except (RecursionError, MemoryError) as error:
        raise DataError(f"{path} is damaged: its parts are too large ({type(error).__name__})") from error
    model.mast_about = {"mast_version": description["mast_version"], **description["about"]}  # type: ignore[assignment]
    return model


def _tensors(
    model: nn.Module, said: Mapping[str, Any]
) -> tuple[dict[str, Tensor], dict[str, str], dict[str, list[int]]]:
    """What the file holds: all tensors of the state, once each; their second names; unusual layouts."""
    state = dict(model.state_dict(keep_vars=True))
    for name, t in state.items():
        if not isinstance(t, Tensor):
            raise ArgumentError(f"{name!r} in the state_dict is no tensor: a model file cannot hold it")
    for path in said.get("tensors", []):  # buffers that are not in the state, and constants of the code
        state.setdefault(path, find(model, path))
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    strides: dict[str, list[int]] = {}
    first: dict[int, str] = {}
    for name, t in state.items():
        if first.setdefault(id(t), name) != name:
            aliases[name] = first[id(t)]
            continue
        tensors[name] = t.detach().cpu().contiguous().clone()
        if not t.is_contiguous():
            strides[name] = list(t.stride())
    return tensors, aliases, strides


def _made(description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
    """The model of a description, its tensors in place."""
    strides, aliases = description["strides"], description["aliases"]
    parameters = set(description["parameters"])
    placed: dict[str, Tensor] = {}
    for name, t in tensors.items():
        own = t
        if name in strides:
            own = torch.empty_strided(t.shape, [int(s) for s in strides[name]], dtype=t.dtype)
            if own.untyped_storage().nbytes() > 2 * t.untyped_storage().nbytes():
                raise DataError(f"the layout of {name!r} does not fit its shape")
            own.copy_(t)
        floating = own.is_floating_point() or own.is_complex()
        placed[name] = nn.Parameter(own, requires_grad=floating) if name in parameters else own
    placed |= {name: placed[other] for name, other in aliases.items()}
    model = program_of(description["model"], placed)
    absent, extra = _fit(model, placed)
    if absent or extra:
        raise DataError(f"{'no values for' if absent else 'no place for'} {min(absent or extra)!r}")
    return model.eval()


def _fit(model: nn.Module, placed: Mapping[str, Tensor]) -> tuple[set[str], set[str]]:
    """Put tensors into modules; the names without values, and the values without a place."""
    names = set(model.state_dict(keep_vars=True))
    own = model.mast_own if isinstance(model, Program) else set()
    for name in names - own:
        if name not in placed:
            continue
        owner, _, attribute = name.rpartition(".")
        holder = model.get_submodule(owner)
        there = getattr(holder, attribute)
        if there.shape != placed[name].shape or isinstance(there, nn.Parameter) != isinstance(
            placed[name], nn.Parameter
        ):
            raise DataError(f"{name!r} has the shape {tuple(placed[name].shape)}, not {tuple(there.shape)}")
        setattr(holder, attribute, placed[name])
    return names - set(placed), set(placed) - names - own


def _compare(model: nn.Module, again: nn.Module, example: tuple[Any, ...]) -> None:
    """Refuse to write a file whose model computes something else."""
    devices = {t.device for t in model.state_dict().values()}
    with torch.no_grad():
        expected = model(*example)
        found = again.to(next(iter(devices))) if len(devices) == 1 else again
        if not _equal(expected, found(*example)):
            raise ArgumentError(
                f"the model that would be read from the file does not give the output of this "
                f"{type(model).__name__}: its forward pass depends on more than its inputs"
            )


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return (
            isinstance(b, Tensor)
            and a.dtype == b.dtype
            and torch.equal(a.isnan(), b.isnan())
            and torch.equal(a.nan_to_num(), b.nan_to_num())
        )
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    return bool(a == b)


def _plain(about: Mapping[str, Any]) -> dict[str, Any]:
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(about), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"about holds what JSON cannot: {error}") from error
    return plain


def save_draw(
    sk: Sparsifier,
    path: str | Path,
    which: int | Key | UnitDraw = 0,
    *,
    calibrate: Iterable[Any] | None = None,
    example: Any = None,
    about: Mapping[str, Any] | None = None,
) -> Path:
    """Write the submodel of a draw; the file remembers sketch, key and the share that was kept."""
    key = which.key if isinstance(which, UnitDraw) else which if isinstance(which, Key) else Key(which)
    if sk.structure is not None:
        draw = (which if isinstance(which, UnitDraw) else sk.draw(key)).kept.values()
        density = sum(k.units.size for k in draw) / sum(k.of for k in draw)
    else:
        density = sum(kept(f, sk.weights[i].shape).numel() for i, f in enumerate(sk.factors(key).values()))
        density /= sk.dim
    remembered = {
        "sketch": sk.sketch._label(),
        "key": {"seed": key.seed, "step": key.step, "node": key.node},
        "density": density,
        "parameters_of_the_whole": sum(p.numel() for p in sk.model.parameters()),
    }
    model = sk.submodel(which, calibrate=calibrate)
    return save_submodel(model, path, example=example, about={**remembered, **(about or {})})
