"""Structured sketches: hidden units, channels, heads and residual branches of a model.

==================  =====================================================================================
`Neurons, Layers`   the sketches, over units and over residual branches
`find_units`        the units of a model, found by running it on an example
`UnitMap`           all of them; a `UnitGroup` has the units of one or several layers that are cut together
`BoundUnits`        a sketch over them: the key of a step becomes a `UnitDraw`
`UnitDraw`          one draw: the kept units of each group, and their scales
`Cut`               the slices that a draw leaves: values in, a small dense model and its gradient out
==================  =====================================================================================

As in Torch-Pruning, a dependency graph (`mast.nn.units.dependencies`) says which slices of which tensors have
to be dropped together: row u of the weight that makes unit u, its bias, its entries in a norm, and column u
of the weights that take it.
"""

from mast.nn.units.cuts import Cut
from mast.nn.units.dependencies.search import find_units
from mast.nn.units.groups import UnitDraw, UnitGroup
from mast.nn.units.sketches import Layers, Neurons, Structured, parse
from mast.nn.units.unit_map import BoundUnits, UnitMap

__all__ = [
    "BoundUnits",
    "Cut",
    "Layers",
    "Neurons",
    "Structured",
    "UnitDraw",
    "UnitGroup",
    "UnitMap",
    "find_units",
    "parse",
]
