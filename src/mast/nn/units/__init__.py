"""Structured sketches: hidden units, channels, heads and residual branches of a model.

==================  =====================================================================================
`Neurons, Layers`   the sketches, over units and over residual branches
`structure_of`      a model's unit spaces: which slices of which tensors belong to one unit
`UnitDraw`          one draw: the kept units of each space, and their scales
`Cut`               the slices that a draw leaves: values in, a small dense model and its gradient out
==================  =====================================================================================

What belongs to one unit is found by running the model on an example (`mast.nn.units.following`), which
is guessed from the model's layers if a user gives none.
"""

from mast.nn.units.attention import HeadsAttention
from mast.nn.units.cuts import Cut
from mast.nn.units.drawing import Axis, Space, UnitDraw
from mast.nn.units.sketches import Layers, Neurons, Structured, parse
from mast.nn.units.structures import Structure, structure_of

__all__ = [
    "Axis",
    "Cut",
    "HeadsAttention",
    "Layers",
    "Neurons",
    "Space",
    "Structure",
    "Structured",
    "UnitDraw",
    "parse",
    "structure_of",
]
