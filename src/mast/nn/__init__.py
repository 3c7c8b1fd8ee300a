"""Sparsified training of PyTorch models, in the user's own loop.

`sparsify(model, sketch)` makes training forward passes use y = v + S(x - v) with a new draw of the sketch for
each optimizer step; the loop, the optimizer and the checkpoints stay as they are.

===========================================  ===============================================================
`sparsify`                                   in place; returns the handle `sk`
`sk.sample`, `sk.submodel`, `sk.report`      one draw explicitly, a plain sparse copy, quality by density
`Neurons`, `Layers`                          sketches over hidden units and residual branches: smaller models
`sk.optimizer`, `sk.small`, `RowOptimizer`   training on submodels: time follows what is kept
`elastic`                                    a pretrained network in every size: sorted, then sparsified
`sort_units`                                 the units of a network, most important first
`find_units`, `Cut`                          a model's units, and the slices that a draw leaves of its tensors
`parse`                                      sketches as people type them: ``neurons:.25``
`Average`                                    several draws per step: `backward(closure)` fills `.grad`
`advise`                                     the step sizes that a sketch allows, from measured curvature
`keep_probabilities`, `TopShare`             what to keep how often; one chosen cut, by magnitude or curvature
`scale_start`                                fresh weights whose sketched outputs keep their size
`validate`                                   the traps in a model and its optimizer, with their fixes
`save_delta`, `apply_delta`                  sparse files beside one base model
`save_submodel`, `load_submodel`             submodels in files, read into a model of the user's class
`measure`, `sizes`                           what models and files cost: bytes, operations, time
`recalibrate`                                BatchNorm statistics for a submodel
`mast.nn.lightning`, `mast.nn.transformers`  callbacks for the two trainers
===========================================  ===============================================================
"""

from __future__ import annotations

import importlib
from types import ModuleType

from mast.errors import MissingExtraError

try:
    import torch  # noqa: F401
except ImportError as error:
    raise MissingExtraError('mast.nn needs PyTorch: pip install "mast-train[nn]"') from error

from mast.nn.advice import advise
from mast.nn.costs import measure, sizes
from mast.nn.factory import elastic, sparsify
from mast.nn.files.deltas import apply_delta, read_delta, save_delta
from mast.nn.files.submodels import load_submodel, save_submodel
from mast.nn.sorting import sort_units
from mast.nn.sparsifier import Sparsifier
from mast.nn.start import keep_probabilities, scale_start
from mast.nn.submodels import recalibrate
from mast.nn.tensors.top_share import TopShare
from mast.nn.training import Average, RowOptimizer
from mast.nn.units import Cut, Layers, Neurons, find_units, parse
from mast.nn.validation import validate

__all__ = [
    "Average", "Cut", "Layers", "Neurons",
    "RowOptimizer", "Sparsifier", "TopShare", "advise", "apply_delta", "elastic", "find_units",
    "keep_probabilities", "load_submodel", "measure", "parse", "read_delta", "recalibrate", "save_delta",
    "save_submodel", "scale_start", "sizes", "sort_units", "sparsify", "validate",
]  # fmt: skip


def __getattr__(name: str) -> ModuleType:
    if name in ("lightning", "transformers"):  # imported when first used: they need libraries of their own
        return importlib.import_module(f"mast.nn.{name}")
    raise AttributeError(f"module 'mast.nn' has no attribute {name!r}")
