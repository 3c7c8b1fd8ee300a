"""Sketches as people type them: ``bernoulli:0.7``, ``randk:10%``, ``permk:4``."""

from __future__ import annotations

from mast.errors import ArgumentError
from mast.sketches.base import Sketch
from mast.sketches.bernoulli import Bernoulli, UnscaledBernoulli
from mast.sketches.gaussian import Gaussian
from mast.sketches.identity import Identity
from mast.sketches.perm_k import PermK
from mast.sketches.rand_k import RandK

EXAMPLES = "identity, bernoulli:0.7, unscaled:70%, randk:10, randk:10%, permk:4, permk:4:redraw, gaussian:0.5"


def parse(text: str) -> Sketch:
    """The sketch that a text such as ``randk:10%`` names.

    >>> parse("bernoulli:70%"), parse("randk:10"), parse("randk:0.1"), parse("permk:4:redraw")
    (<Bernoulli(0.7): keeps 70 %>, <RandK(10): keeps 10 coordinates>, <RandK(0.1): keeps 10 %>,
    <PermK(4, redrawn): keeps 25 %, one of 4 blocks>)
    """
    if not isinstance(text, str):
        raise ArgumentError(f"a sketch is spelled as text, got {text!r}; examples are {EXAMPLES}")
    name, *values = text.strip().lower().split(":")
    try:
        if name == "identity" and not values:
            return Identity()
        if name == "permk" and len(values) == 2 and values[1] == "redraw":
            return PermK(int(values[0]), redraw=True)
        if name == "permk" and len(values) == 2:
            return PermK(int(values[0]), seed=int(values[1]))
        if len(values) == 1:
            return _of_one_number(name, values[0])
    except ValueError as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"the sketch {text!r} has a bad number; examples are {EXAMPLES}") from None
    raise ArgumentError(f"unknown sketch {text!r}; examples are {EXAMPLES}")


def _of_one_number(name: str, value: str) -> Sketch:
    if name == "bernoulli":
        return Bernoulli(_share(value))
    if name == "unscaled":
        return UnscaledBernoulli(_share(value))
    if name == "randk":
        return RandK(int(value)) if value.isdigit() else RandK(_share(value))
    if name == "permk":
        return PermK(int(value))
    if name == "gaussian":
        return Gaussian(float(value))
    raise ArgumentError(f"unknown sketch {name!r}; examples are {EXAMPLES}")


def _share(value: str) -> float:
    return float(value[:-1]) / 100 if value.endswith("%") else float(value)
