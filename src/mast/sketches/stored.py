"""Sketches as JSON and arrays, for files; and back, checked as their constructors check."""

from __future__ import annotations

from typing import Any

import numpy as np

from mast.errors import ArgumentError, DataError
from mast.sketches import (
    Bernoulli,
    Except,
    Gaussian,
    Grouped,
    Identity,
    Matrices,
    Mixture,
    PermK,
    RandK,
    Sketch,
    UnscaledBernoulli,
)

Arrays = dict[str, Any]


def describe(sketch: Sketch, arrays: Arrays) -> dict[str, Any]:
    """The sketch as plain JSON; long lists of numbers go to `arrays` and are named."""
    kind = type(sketch)
    said: dict[str, Any] = {"kind": kind.__name__}
    if kind is Identity:
        return said
    if isinstance(sketch, Bernoulli) and kind in (Bernoulli, UnscaledBernoulli):
        many = isinstance(sketch.keep, np.ndarray)
        return said | {"keep": _stored(sketch.keep, arrays) if many else float(sketch.keep)}
    if isinstance(sketch, RandK) and kind is RandK:
        return said | {"k": sketch.k}
    if isinstance(sketch, PermK) and kind is PermK:
        if sketch.blocks is None:
            return said | {"k": sketch.k, "seed": sketch.seed, "redraw": sketch.redraw}
        flat = np.concatenate(sketch.blocks)
        ends = np.cumsum([block.size for block in sketch.blocks])
        return said | {"members": _stored(flat, arrays), "ends": _stored(ends, arrays)}
    if isinstance(sketch, Gaussian) and kind is Gaussian:
        return said | {"sigma": sketch.sigma}
    if isinstance(sketch, Matrices) and kind is Matrices:
        said["matrices"] = _stored(sketch.matrices, arrays)
        return said if sketch._uniform else said | {"weights": _stored(sketch.weights, arrays)}
    if isinstance(sketch, Grouped) and kind is Grouped:
        return said | {"sketch": describe(sketch.sketch, arrays), "groups": _stored(sketch.labels, arrays)}
    if isinstance(sketch, Except) and kind is Except:
        return said | {"sketch": describe(sketch.sketch, arrays), "kept": _stored(sketch.kept, arrays)}
    if isinstance(sketch, Mixture) and kind is Mixture:
        parts = [describe(part, arrays) for part in sketch.sketches]
        return said | {"sketches": parts, "weights": _stored(sketch.weights, arrays)}
    raise ArgumentError(f"a {kind.__name__} cannot be written to a file: only the sketches of MAST can")


def rebuild(said: Any, arrays: Arrays, depth: int = 0) -> Sketch:
    """The sketch that `describe` described."""
    if not isinstance(said, dict) or depth > 20:
        raise DataError("the description of the sketch is damaged")
    kind = said.get("kind")

    def array(name: str) -> Any:
        return arrays[said[name]["array"]]

    if kind == "Identity":
        return Identity()
    if kind in ("Bernoulli", "UnscaledBernoulli"):
        keep = array("keep") if isinstance(said["keep"], dict) else said["keep"]
        return Bernoulli(keep) if kind == "Bernoulli" else UnscaledBernoulli(keep)
    if kind == "RandK":
        return RandK(said["k"])
    if kind == "PermK" and "members" in said:
        return PermK(blocks=np.split(array("members"), array("ends")[:-1]))
    if kind == "PermK":
        return PermK(said["k"], said["seed"], redraw=said["redraw"])
    if kind == "Gaussian":
        return Gaussian(said["sigma"])
    if kind == "Matrices":
        return Matrices(list(array("matrices")), array("weights") if "weights" in said else None)
    if kind == "Grouped":
        return Grouped(rebuild(said["sketch"], arrays, depth + 1), array("groups"))
    if kind == "Except":
        return Except(rebuild(said["sketch"], arrays, depth + 1), array("kept"))
    if kind == "Mixture":
        return Mixture([rebuild(s, arrays, depth + 1) for s in said["sketches"]], array("weights"))
    raise DataError(f"the file names a sketch of the kind {kind!r}, which this version does not know")


def _stored(values: Any, arrays: Arrays) -> dict[str, str]:
    name = f"sketch{len(arrays)}"
    arrays[name] = np.asarray(values)
    return {"array": name}
