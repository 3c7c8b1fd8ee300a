"""Sparse deltas: one base model, and a small file for each submodel v + S(x - v) of it.

A delta file holds, for every sketched parameter, the numbers x - v where S keeps them, unscaled. Where they
belong, and the scale of S, follow from the draw's key and the sketch, which are in the header. A sketch that
cannot be spelled there has its indices beside the numbers, a structured one the scales of its units.

Everything else in the model's `state_dict` (biases, norms, BatchNorm's statistics) is not sparse. It is
written whole, as it is after training, unless a base was named and has the same.
The header knows a digest of each tensor of the base that the file relies on, so a wrong base is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from mast.errors import ArgumentError, DataError
from mast.nn.files import tensor_files
from mast.nn.files.delta_weights import DTYPES, WeightChange, changes_of, rebuilt, type_name
from mast.nn.files.tensor_files import digest
from mast.nn.tensors.weights import deep_copy, unwrapped
from mast.randomness import LAYOUT, Key
from mast.sketches import Sketch
from mast.sketches.formats import describe
from mast.support.checks import check_positive

if TYPE_CHECKING:
    from mast.nn.sparsifier import Sparsifier

KIND, FORMAT = "delta", 2


def save_delta(
    sk: Sparsifier,
    path: str | Path,
    *,
    seed: int | None = None,
    key: Key | None = None,
    member: int | None = None,
    base: nn.Module | Mapping[str, Tensor] | None = None,
    scale: bool = True,
    rescale: float | None = None,
    indices: bool | None = None,
    dtype: torch.dtype | None = None,
) -> Path:
    """Write one submodel as a sparse delta to the shift v: `apply_delta(base, path)` gives v + S(x - v).

    Parameters
    ----------
    sk
        The handle that `sparsify` returned. Without a shift, v is 0 and the file needs no values of a base.
    path
        Where to write; what stood there is replaced when the new file is complete.
    seed, key
        Which draw: (seed, step 0, node 0), that of `sk.submodel(seed)`, or any key. By default seed 0.
    member
        Instead of seed or key, the number of a draw of a list: that of ``sk.submodel(member=...)``.
    base
        The base model or its `state_dict`. With it, parameters that are not sketched and buffers
        are written only if they differ from it; without it, all of them are.
    scale
        False: applying gives v + M(x - v) with the mask M of S instead of S itself. The
        deltas of the blocks of a Perm-K partition then sum to x - v.
    rescale
        A number r in place of the scale of S: applying gives v + r M(x - v). A sketch that keeps a
        share p has the scale 1/p; a smaller r often serves a delta better that was not trained under the
        sketch (DAREx).
    indices
        True: write the kept coordinates. False: insist that they follow from the key. None: the smaller.
    dtype
        Round the numbers to this type, such as `torch.bfloat16`, also those of tensors that are written
        whole; None keeps them exactly.

    >>> import mast, torch, tempfile
    >>> model = torch.nn.Linear(4, 2)
    >>> sk = mast.nn.sparsify(model, mast.RandK(3))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = mast.nn.save_delta(sk, folder + "/7.delta", seed=7)
    ...     sub = mast.nn.apply_delta(torch.nn.Linear(4, 2), path)
    >>> torch.equal(sub.weight, sk.submodel(7).weight), int((sub.weight != 0).sum())
    (True, 3)
    """
    if sum(name is not None for name in (seed, key, member)) > 1:
        raise ArgumentError("a draw is named by seed, by key or by member, not by both of two")
    if member is not None:
        key = sk.member_key(member)
    key = Key(0 if seed is None else seed) if key is None else key
    if not isinstance(key, Key):
        raise ArgumentError(f"key is a mast.Key, got {key!r}; a number is a seed")
    sk.watched.check("save_delta() cannot be called")
    factor = _factor(scale, rescale)
    if dtype is not None and dtype not in DTYPES.values():
        raise ArgumentError(f"dtype must be torch.{', torch.'.join(DTYPES)} or None, got {dtype!r}")
    parts = changes_of(sk, key)
    whole, digests, aliases = _others(sk, base)
    rounded = {name: t.dtype for name, t in whole.items() if dtype is not None and _shrinks(t, dtype)}
    sketch, arrays = (None, {}) if indices else _stored_sketch(sk, parts)
    if sketch is None and indices is False:
        raise ArgumentError(
            f"what {sk.sketch!r} keeps here does not follow from the key in less room: leave indices=None"
        )
    tensors = {f"sketch/{name}": torch.tensor(array) for name, array in arrays.items()}
    tensors |= {f"whole/{n}": _rounded(n, t, dtype) if n in rounded else t for n, t in whole.items()}
    entries = []
    for part in parts:
        entry, own = part.stored(sketch is None, dtype)
        entries.append(entry)
        tensors |= own
    description = {
        "layout": LAYOUT,
        "key": {"seed": key.seed, "step": key.step, "node": key.node},
        "member": member,
        "label": sk.sketch.label(),
        "sketch": sketch,
        "scale": factor,
        "shift": sk.shift is not None,
        "kept": sum(part.values.numel() for part in parts),
        "dim": sk.dim,
        "weights": entries,
        "base": digests,
        "aliases": aliases,
        "rounded": {name: type_name(before) for name, before in rounded.items()},
    }
    return tensor_files.write(path, KIND, FORMAT, description, tensors)


def apply_delta(model: nn.Module, path: str | Path, *, in_place: bool = False) -> nn.Module:
    """A copy of the base model with the delta of a file applied: v + S(x - v). A wrong base is refused.

    The base stays as it is, for the next file; `in_place=True` changes it instead.

    >>> import mast, torch, tempfile
    >>> base = torch.nn.Linear(4, 2)
    >>> sk = mast.nn.sparsify(torch.nn.Linear(4, 2), mast.PermK(4), shift=base.state_dict())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = mast.nn.save_delta(sk, folder + "/7.delta", seed=7)
    ...     sub = mast.nn.apply_delta(base, path)
    >>> torch.equal(sub.weight, sk.submodel(7).weight), int((sub.weight != base.weight).sum())
    (True, 2)
    """
    return read_delta(path).apply(model, in_place=in_place)


@dataclass(frozen=True)
class Delta:
    """What a delta file holds. Made by `read_delta`."""

    path: Path
    about: dict[str, Any]  # the header: key, sketch, scale, what was kept
    parts: list[WeightChange]
    whole: dict[str, Tensor]  # what is not sparse, by name

    def differences(self) -> dict[str, Tensor]:
        """What is added to v, by parameter: S(x - v), M(x - v) with scale=False, r M(x - v) with rescale."""
        return {part.name: part.difference(self.about["scale"]) for part in self.parts}

    def apply(self, model: nn.Module, *, in_place: bool = False) -> nn.Module:
        """The base with this delta; see `apply_delta`."""
        model = unwrapped(model)
        if difference := self._difference(model.state_dict(keep_vars=True)):
            raise ArgumentError(f"the model is not the base of {self.path}: {difference}")
        model = model if in_place else deep_copy(model)
        state = model.state_dict(keep_vars=True)
        with torch.no_grad():
            for name, change in self.differences().items():
                v = state[name].detach().cpu() if self.about["shift"] else None
                state[name].copy_(change if v is None else v + change)
            for name, tensor in self.whole.items():
                state[name].copy_(tensor)
        return model

    def _difference(self, state: Mapping[str, Tensor]) -> str | None:
        """In what the model of a state differs from the base, if it does."""
        expected = {part.name: (torch.Size(part.kept.shape), part.dtype) for part in self.parts}
        expected |= {name: (t.shape, t.dtype) for name, t in self.whole.items()}
        digests, aliases = self.about["base"], self.about["aliases"]
        known = {**expected, **digests, **aliases}
        for name in [*(n for n in known if n not in state), *(n for n in state if n not in known)]:
            return f"it {'has no' if name in known else 'has another tensor,'} {name!r}"
        for name, form in expected.items():
            there = (state[name].shape, state[name].dtype)
            if there != form:
                return f"its {name!r} is {_form(*there)}, that of the base {_form(*form)}"
        wrong = [name for name, expected_digest in digests.items() if digest(state[name]) != expected_digest]
        if wrong:
            more = f" and {len(wrong) - 1} more of {len(digests)}" if len(wrong) > 1 else ""
            return f"it has other values in {wrong[0]!r}{more}. A delta fits the weights that were the shift"
        for name, first in aliases.items():
            if state[name] is not state[first]:
                return f"there {name!r} and {first!r} were one tensor"
        return None


def read_delta(path: str | Path) -> Delta:
    """Read a delta file without a model; damaged and foreign files are refused."""
    about, tensors = tensor_files.read(path, KIND, FORMAT)
    if about.get("layout") != LAYOUT:
        raise DataError(
            f"{path} was written with version {about.get('layout')} of the layout of draws, this is version "
            f"{LAYOUT}: the key would give other coordinates"
        )
    try:
        parts = rebuilt(about, tensors)
        whole = {name.removeprefix("whole/"): t for name, t in tensors.items() if name.startswith("whole/")}
        fit = all(isinstance(about[name], dict) for name in ("base", "aliases", "key"))
        scaled = isinstance(about["scale"], bool) or math.isfinite(float(about["scale"]))
        if not fit or not scaled or not isinstance(about["shift"], bool):
            raise DataError("its header is not that of a delta")
        for name, before in about.get("rounded", {}).items():
            if whole[name].dtype not in DTYPES.values():
                raise DataError(f"{name!r} is a tensor of {whole[name].dtype}")
            whole[name] = whole[name].to(DTYPES[before])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, MemoryError) as error:
        raise DataError(f"{path} is damaged: its parts do not fit together ({error})") from error
    return Delta(Path(path), about, parts, whole)


def _factor(scale: bool, rescale: float | None) -> bool | float:
    """What the kept numbers are multiplied with: the scale of S (True), nothing (False), or a number."""
    if rescale is None:
        return bool(scale)
    if not scale:
        raise ArgumentError(
            "scale=False leaves the numbers as they are, and rescale multiplies them: give one"
        )
    return check_positive("rescale", rescale)


def _shrinks(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether a tensor has numbers that the type makes smaller."""
    return type_name(tensor.dtype) in DTYPES and tensor.element_size() > dtype.itemsize


def _rounded(name: str, tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    small = tensor.detach().to(dtype)
    if not torch.isfinite(small).all() and torch.isfinite(tensor).all():
        raise ArgumentError(f"{name!r} holds infinity as numbers of type {dtype}")
    return small


def _others(
    sk: Sparsifier, base: nn.Module | Mapping[str, Tensor] | None
) -> tuple[dict[str, Tensor], dict[str, str], dict[str, str]]:
    """What is not sketched and has to be written; digests of the base; second names of tensors."""
    sketched = {w.name for w in sk.weights}
    reference = base.state_dict() if isinstance(base, nn.Module) else {} if base is None else base
    if not isinstance(reference, Mapping) or not all(isinstance(t, Tensor) for t in reference.values()):
        raise ArgumentError(f"base is a model, or a mapping from names to tensors, got {base!r}")
    whole, digests, aliases = {}, {}, {}
    first: dict[int, str] = {id(w.parameter): w.name for w in sk.weights}
    for name, t in sk.model.state_dict(keep_vars=True).items():
        if not isinstance(t, Tensor):
            raise ArgumentError(f"{name!r} in the model's state_dict is no tensor: a delta cannot hold it")
        if first.setdefault(id(t), name) != name:
            aliases[name] = first[id(t)]
        elif name in sketched:
            if sk.shift is not None:
                digests[name] = digest(sk.shift[name].to(t.dtype))
                if name in reference and digest(reference[name]) != digests[name]:
                    raise ArgumentError(
                        f"base has other values in {name!r} than the shift that sparsify() was given"
                    )
        elif name in reference and digest(reference[name]) == digest(t):
            digests[name] = digest(t)
        else:
            whole[name] = t
    return whole, digests, aliases


def _stored_sketch(sk: Sparsifier, parts: list[WeightChange]) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """The sketch as JSON and arrays, if it has such a form over plain coordinates that is the smaller one."""
    arrays: dict[str, Any] = {}
    if not isinstance(sk.sketch, Sketch) or sk.unit_map is not None:
        return None, {}
    if any(isinstance(w.keep, np.ndarray) for w in sk.weights):
        return None, {}
    try:
        sketch = describe(sk.sketch, arrays)
    except ArgumentError:  # a sketch of the user's own
        return None, {}
    smaller = sum(array.nbytes for array in arrays.values()) <= sum(part.index_bytes for part in parts)
    return (sketch, arrays) if smaller else (None, {})


def _form(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"{' x '.join(map(str, shape)) or 'a scalar'} of {type_name(dtype)}"
