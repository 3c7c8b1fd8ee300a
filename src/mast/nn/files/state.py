"""The saved state of a sparsifier: seed, step, node, shift, and what has to be equal in a resumed run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from mast.errors import ArgumentError
from mast.nn.files import tensor_files
from mast.nn.tensors.selection import shifts_of
from mast.randomness import LAYOUT, Key
from mast.support import files
from mast.support.checkpoint import describe

if TYPE_CHECKING:
    from mast.nn.sparsifier import Sparsifier

FORMAT = 2  #: version of this state
FILE, KIND = "mast.safetensors", "state of a sparsifier"
_CHOICE = "choice/"  # before the names of a choice's tensors in the file


def state_of(sk: Sparsifier) -> dict[str, Any]:
    """The state: numbers, text, the tensors of the shift, and of a choice that lasts for several steps."""
    shift = None if sk.shift is None else {name: v.detach().cpu().clone() for name, v in sk.shift.items()}
    state = {**_setup(sk), "seed": sk.seed, "step": sk.step, "node": sk.node, "shift": shift}
    if sk.sorting is not None:
        state["sorting"] = sk.sorting.state()
    choice = sk.bound.state()
    return state | {"choice": choice} if choice else state


def restore(sk: Sparsifier, state: Mapping[str, Any]) -> None:
    """Continue from a state, if it was taken in the same setup."""
    setup = _setup(sk)
    if not isinstance(state, Mapping):
        raise ArgumentError(f"the state of a sparsifier is a dict, got {type(state).__name__}")
    absent = [field for field in (*setup, "seed", "step", "node", "shift") if field not in state]
    if absent:
        raise ArgumentError(f"this is not the state of a sparsifier: it has no {absent[0]!r}")
    for field, present in setup.items():
        if state[field] != present:
            difference = _first_difference(state[field], present)
            schedule = ", or set sk.sketch first if a schedule had changed it" * (field == "sketch")
            raise ArgumentError(
                f"the state was saved with another {field}: {difference}. Call sparsify() as it was called "
                f"then{schedule}"
            )
    key = Key(state["seed"], state["step"], state["node"])
    shift: Mapping[str, Tensor] | None = state["shift"]
    if (shift is None) != (sk.shift is None):
        saved, now = ("none", "one") if shift is None else ("one", "none")
        raise ArgumentError(f"the state was saved with another shift: it had {saved}, now there is {now}")
    sk.watched.refuse_inside("the draw cannot advance")
    sk.values.shift = shifts_of(sk.weights, shift)
    sk.values.key = key
    sk.values.forget_all()
    sk.bound.load_state(state.get("choice", {}))
    if sk.sorting is not None and "sorting" in state:
        sk.sorting.restore(state["sorting"])


def _setup(sk: Sparsifier) -> dict[str, Any]:
    """What has to be equal for draws to be equal."""
    return {
        "format": FORMAT,
        "layout": LAYOUT,
        "sketch": describe(sk.sketch),
        "parameters": {w.name: list(w.shape) for w in sk.weights},
        "keep": {  # a probability as it is, many as a digest
            w.name: describe(w.keep) if isinstance(w.keep, np.ndarray) else w.keep
            for w in sk.weights
            if w.keep is not None
        },
    }


def _first_difference(saved: Any, present: Any) -> str:
    for name in [*saved, *present] if isinstance(saved, dict) and isinstance(present, dict) else []:
        if saved.get(name) != present.get(name):
            return f"{name} was {saved.get(name)!r}, is {present.get(name)!r}"
    return f"it was {saved}, is {present}"


def write_state(sk: Sparsifier, folder: Path) -> None:
    """The state as one file, mast.safetensors, that knows when it was changed."""
    state = state_of(sk)
    shift: dict[str, Tensor] | None = state.pop("shift")
    choice = {_CHOICE + name: t for name, t in state.pop("choice", {}).items()}
    description = {"state": state, "shifted": shift is not None}
    tensor_files.write(folder / FILE, KIND, FORMAT, description, (shift or {}) | choice)


def read_state(sk: Sparsifier, folder: Path, node: int | None = None) -> None:
    """Continue from a file that `write_state` made, perhaps as another node."""
    if not (folder / FILE).exists():
        raise ArgumentError(
            f"the checkpoint has no {folder / FILE}: it was saved without sparsified training"
        )
    header, shift = tensor_files.read(folder / FILE, KIND, FORMAT)
    choice = {name.removeprefix(_CHOICE): shift.pop(name) for name in list(shift) if name.startswith(_CHOICE)}
    with files.damage_refused(folder / FILE):
        state = header["state"] | {"shift": shift if header["shifted"] else None, "choice": choice}
    restore(sk, state if node is None else state | {"node": node})
