"""Sketches in other forms: as people type them (``bernoulli:0.7``), and as JSON and arrays, for files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mast.errors import ArgumentError, DataError
from mast.sketches.base import Sketch
from mast.sketches.composed import Except, Grouped, Mixture
from mast.sketches.conditional import Conditional
from mast.sketches.independent import Bernoulli, Gaussian, Identity, UnscaledBernoulli
from mast.sketches.lists import Matrices, Sampled
from mast.sketches.nested import Nested
from mast.sketches.perm_k import PermK
from mast.sketches.subsets import RandK, Rolling

EXAMPLES = (
    "identity, bernoulli:0.7, unscaled:70%, randk:10, randk:10%, permk:4, permk:4:redraw, gaussian:0.5, "
    "nested:25%,50%,100%, rolling:25%, sampled:20:bernoulli:0.2"
)


def parse(text: str) -> Sketch:
    """The sketch that a text such as ``randk:10%`` names.

    >>> parse("bernoulli:70%"), parse("randk:10"), parse("randk:0.1"), parse("permk:4:redraw")
    (<Bernoulli(0.7): keeps 70 %>, <RandK(10): keeps 10 coordinates>, <RandK(0.1): keeps 10 %>,
    <PermK(4, redrawn): keeps 25 %, one of 4 blocks>)
    >>> parse("rolling:25%"), parse("sampled:20:bernoulli:.2")
    (<Rolling(0.25): keeps 25 %, a window that moves with the step>,
    <Sampled(20 draws, seed=0) of Bernoulli(0.2): keeps 20 %>)
    >>> parse("nested:.25,.5,1")
    <Nested(0.25, 0.5, 1): keeps 25 % or 50 % or 100 %, the first ones>
    """
    if not isinstance(text, str):
        raise ArgumentError(f"a sketch is spelled as text, got {text!r}; examples are {EXAMPLES}")
    name, *values = text.strip().lower().split(":")
    if name == "sampled" and len(values) > 1:
        values = [values[0], ":".join(values[1:])]
    make = FORMS.get((name, len(values)))
    if make is None:
        raise ArgumentError(f"unknown sketch {text!r}; examples are {EXAMPLES}")
    try:
        return make(*values)
    except ArgumentError:
        raise
    except ValueError:
        raise ArgumentError(f"the sketch {text!r} has a bad number; examples are {EXAMPLES}") from None


def _share(value: str) -> float:
    return float(value[:-1]) / 100 if value.endswith("%") else float(value)


def _permk(k: str, how: str) -> Sketch:
    return PermK(int(k), redraw=True) if how == "redraw" else PermK(int(k), seed=int(how))


#: what makes the sketch, by its name and the number of values behind it
FORMS: dict[tuple[str, int], Callable[..., Sketch]] = {
    ("identity", 0): Identity,
    ("bernoulli", 1): lambda keep: Bernoulli(_share(keep)),
    ("unscaled", 1): lambda keep: UnscaledBernoulli(_share(keep)),
    ("randk", 1): lambda k: RandK(int(k) if k.isdigit() else _share(k)),
    ("permk", 1): lambda k: PermK(int(k)),
    ("permk", 2): _permk,
    ("nested", 1): lambda shares: Nested([_share(share) for share in shares.split(",")]),
    ("rolling", 1): lambda k: Rolling(int(k) if k.isdigit() else _share(k)),
    ("sampled", 2): lambda n, sketch: Sampled(parse(sketch), int(n)),
    ("gaussian", 1): lambda sigma: Gaussian(float(sigma)),
}


# ---- files --------------------------------------------------------------------------------------

StoredArrays = dict[str, Any]

#: the kinds that files may name, which are checked as their constructors check
KINDS: dict[str, type[Sketch]] = {
    kind.__name__: kind
    for kind in (
        Identity, Bernoulli, UnscaledBernoulli, Gaussian, RandK, Rolling, PermK, Nested,
        Matrices, Sampled, Mixture, Grouped, Except, Conditional,
    )
}  # fmt: skip


def describe(sketch: Sketch, arrays: StoredArrays) -> dict[str, Any]:
    """The sketch as plain JSON: its kind and its arguments; numbers in lists go to `arrays` and are named."""
    name = type(sketch).__name__
    if KINDS.get(name) is not type(sketch):
        raise ArgumentError(f"a {name} cannot be written to a file: only the sketches of MAST can")
    return {"kind": name} | {key: _stored(value, arrays) for key, value in sketch.arguments().items()}


def _stored(value: Any, arrays: StoredArrays) -> Any:
    if isinstance(value, Sketch):
        return describe(value, arrays)
    if isinstance(value, np.ndarray):
        name = f"sketch{len(arrays)}"
        arrays[name] = value
        return {"array": name}
    if isinstance(value, list) and isinstance(value[0], np.ndarray):  # of many lengths: one after the other
        ends = _stored(np.cumsum([part.size for part in value]), arrays)
        return _stored(np.concatenate(value), arrays) | {"ends": ends["array"]}
    return [_stored(part, arrays) for part in value] if isinstance(value, list) else value


def rebuild(description: Any, arrays: StoredArrays, depth: int = 0) -> Sketch:
    """The sketch that `describe` described."""
    if not isinstance(description, dict) or depth > 20:
        raise DataError("the description of the sketch is damaged")
    kind: Any = KINDS.get(str(description.get("kind")))
    if kind is None:
        raise DataError(
            f"the file names a sketch of the kind {description.get('kind')!r}, which this version does not "
            "know"
        )
    values = {name: value for name, value in description.items() if name != "kind"}
    arguments = {name: _loaded(value, arrays, depth) for name, value in values.items()}
    if kind is Nested and "order" not in arguments:  # of 0.2, where there was none but this
        arguments["order"] = "random"
    try:
        sketch: Sketch = kind(**arguments)
    except TypeError as error:
        raise DataError(f"the file's {kind.__name__} is not one of this version: {error}") from None
    return sketch


def _loaded(value: Any, arrays: StoredArrays, depth: int) -> Any:
    if isinstance(value, list):
        return [_loaded(part, arrays, depth) for part in value]
    if not isinstance(value, dict):
        return value
    if "array" not in value:
        return rebuild(value, arrays, depth + 1)
    array = arrays[value["array"]]
    return np.split(array, arrays[value["ends"]][:-1]) if "ends" in value else array
