"""What a draw keeps of a tensor: which entries, and the scales on them. One object for all rooms.

A vector, a weight, the slices of a small model and the values of a message are all "some entries of a
tensor, times their scales". A `Draw` says which ones, in the form that is cheapest to store:

- `FullDraw`: all entries, with one scale, or with scales that broadcast.
- `MaskDraw`: one true or false per entry, and one scale.
- `DiagonalDraw`: a list of positions, row by row, and their scales. Sketches of vectors draw these.
- `GridDraw`: some rows, some columns (or slices along any dimensions), and scales along them.

All of them are a diagonal S; `MatrixDraw` is any other S, which keeps all entries of a vector and mixes them.

The operations are `gather`, `place`, `add` and `scale`, on NumPy arrays and on torch tensors alike. Their
readable form is indexing by `entries`, which works for any array. Where it pays, the work is done by one
compiled pass of `kernels` over the memory, with the same bits and without temporary arrays.

What is kept of a whole model is a mapping from names to draws: `ModelDraw`.
"""

from mast.sketches.draws.base import DiagonalDraw, Draw, MatrixDraw, equal_scales
from mast.sketches.draws.tensors import FullDraw, GridDraw, MaskDraw, ModelDraw

__all__ = [
    "DiagonalDraw",
    "Draw",
    "FullDraw",
    "GridDraw",
    "MaskDraw",
    "MatrixDraw",
    "ModelDraw",
    "equal_scales",
]
