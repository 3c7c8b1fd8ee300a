"""What a draw keeps of a tensor: which entries, and the scales on them. One object for all rooms.

A vector, a weight, the slices of a small model and the values of a message are all "some entries of a
tensor, times their scales". `Kept` says which ones, in the form that is cheapest to store:

- `Everything`: all entries, with one scale, or with scales that broadcast.
- `Mask`: one true or false per entry, and one scale.
- `Entries`: a list of positions, row by row, and their scales. A diagonal draw over a vector is one.
- `Grid`: some rows, some columns (or slices along any dimensions), and scales along them.

The operations are `gather`, `place`, `add` and `scale`, on NumPy arrays and on torch tensors alike. Their
readable form is indexing by `entries`, which works for any array. Where it pays, the work is done by one
compiled pass of `kernels` over the memory, with the same bits and without temporary arrays.

What is kept of a whole model is a mapping from names to `Kept`: `KeptTensors`.
"""

from mast.sketches.kept.base import Kept
from mast.sketches.kept.forms import Entries, Everything, Grid, KeptTensors, Mask

__all__ = ["Entries", "Everything", "Grid", "Kept", "KeptTensors", "Mask"]
