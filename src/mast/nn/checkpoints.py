"""What a resumed run needs of a sparsifier: seed, step, node, shift, and proof that the setup is the same."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from mast.errors import ArgumentError
from mast.randomness import LAYOUT, Key
from mast.sketches import Sketch

if TYPE_CHECKING:
    from mast.nn.sparsifier import Sparsifier

FORMAT = 1  #: version of this state
FILE, KIND = "mast.safetensors", "state of a sparsifier"


def state_of(sk: Sparsifier) -> dict[str, Any]:
    """The state: numbers, text, and the tensors of the shift."""
    shift = None if sk.shift is None else {name: v.detach().cpu().clone() for name, v in sk.shift.items()}
    return {**_setup(sk), "seed": sk.seed, "step": sk.step, "node": sk.node, "shift": shift}


def restore(sk: Sparsifier, state: Mapping[str, Any]) -> None:
    """Continue from a state, if it was taken in the same setup."""
    absent = [field for field in state_of(sk) if field not in state]
    if absent:
        raise ArgumentError(f"this is not the state of a sparsifier: it has no {absent[0]!r}")
    for field, here in _setup(sk).items():
        if state[field] != here:
            raise ArgumentError(
                f"the state was saved with another {field}: {_first_difference(state[field], here)}. Call "
                "sparsify() as it was called then"
            )
    key = Key(state["seed"], state["step"], state["node"])
    shift: Mapping[str, Tensor] | None = state["shift"]
    if (shift is None) != (sk.shift is None):
        saved, now = ("none", "one") if shift is None else ("one", "none")
        raise ArgumentError(f"the state was saved with another shift: it had {saved}, there is {now} here")
    sk._values.shift = None if shift is None else sk._shifts(shift)
    sk._values.forget_all()
    sk._move(key)


def _setup(sk: Sparsifier) -> dict[str, Any]:
    """What has to be equal for draws to be equal."""
    return {
        "format": FORMAT,
        "layout": LAYOUT,
        "sketch": describe(sk.sketch),
        "parameters": {w.name: list(w.shape) for w in sk.weights},
        "keep": {w.name: w.keep for w in sk.weights if w.keep is not None},
    }


def describe(sketch: Sketch) -> dict[str, Any]:
    """A sketch as plain data: equal data, equal draws. Arrays are stood for by a hash.

    >>> import mast
    >>> describe(mast.PermK(4))
    {'kind': 'PermK', 'redraw': False, 'seed': 0, 'blocks': None, 'k': 4}
    """
    attributes = {name: value for name, value in vars(sketch).items() if not name.startswith("_")}
    return {"kind": type(sketch).__name__} | {name: _plain(value) for name, value in attributes.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Sketch):
        return describe(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        digest = hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=16).hexdigest()
        return f"{value.dtype} {value.shape} {digest}"
    return value


def _first_difference(saved: Any, here: Any) -> str:
    if isinstance(saved, dict) and isinstance(here, dict):
        for name in [*saved, *here]:
            if saved.get(name) != here.get(name):
                return f"{name} was {saved.get(name)!r}, is {here.get(name)!r}"
    return f"it was {saved!r}, is {here!r}"


def write(sk: Sparsifier, folder: Path) -> None:
    """The state as one file, mast.safetensors, that knows when it was changed."""
    from mast.nn import tensor_files

    state = state_of(sk)
    shift: dict[str, Tensor] | None = state.pop("shift")
    description = {"state": state, "shifted": shift is not None}
    tensor_files.write(folder / FILE, KIND, FORMAT, description, shift or {})


def read(sk: Sparsifier, folder: Path, node: int | None = None) -> None:
    """Continue from a file that `write` made, perhaps as another node."""
    from mast.nn import tensor_files

    if not (folder / FILE).exists():
        raise ArgumentError(
            f"the checkpoint has no {folder / FILE}: it was saved without sparsified training"
        )
    said, shift = tensor_files.read(folder / FILE, KIND, FORMAT)
    state = said["state"] | {"shift": shift if said["shifted"] else None}
    restore(sk, state if node is None else state | {"node": node})
