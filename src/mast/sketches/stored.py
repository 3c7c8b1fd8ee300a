"""Sketches as JSON and arrays, for files; and back, checked as their constructors check."""

from __future__ import annotations

from typing import Any

import numpy as np

from mast import sketches
from mast.errors import ArgumentError, DataError
from mast.sketches.base import Sketch

StoredArrays = dict[str, Any]

#: the kinds that files may name: all that the room lists
KINDS: dict[str, type[Sketch]] = {
    name: kind
    for name, kind in vars(sketches).items()
    if isinstance(kind, type) and issubclass(kind, Sketch) and kind is not Sketch
}


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
