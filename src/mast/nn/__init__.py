"""Sparsified training of PyTorch models, in the user's own loop.

`sparsify(model, sketch)` makes training forward passes use y = v + S(x - v) with a new draw of the sketch for
each optimizer step; the loop, the optimizer and the checkpoints stay as they are.
"""

from __future__ import annotations

try:
    import torch  # noqa: F401
except ImportError as error:
    raise ImportError('mast.nn needs PyTorch: pip install "mast-train[nn]"') from error

from mast.nn.sparsifier import Sparsifier, sparsify

__all__ = ["Sparsifier", "sparsify"]
