"""Sketches: the distributions of the random matrix S. One file per family; this list is all of them."""

from mast.sketches.base import Sketch
from mast.sketches.composed import Except, Grouped, Mixture
from mast.sketches.conditional import Conditional
from mast.sketches.draws import DiagonalDraw, Draw, MatrixDraw, ModelDraw
from mast.sketches.estimates import ESTIMATE_DRAWS, SUPPORT_LIMIT
from mast.sketches.formats import parse
from mast.sketches.independent import Bernoulli, Gaussian, Identity, UnscaledBernoulli
from mast.sketches.laws import Constants, IndependentLaw, Law, SubsetLaw
from mast.sketches.lists import Matrices, Sampled
from mast.sketches.nested import Nested
from mast.sketches.perm_k import PermK
from mast.sketches.subsets import RandK, Rolling

__all__ = [
    "ESTIMATE_DRAWS",
    "SUPPORT_LIMIT",
    "Bernoulli",
    "Conditional",
    "Constants",
    "DiagonalDraw",
    "Draw",
    "Except",
    "Gaussian",
    "Grouped",
    "Identity",
    "IndependentLaw",
    "Law",
    "Matrices",
    "MatrixDraw",
    "Mixture",
    "ModelDraw",
    "Nested",
    "PermK",
    "RandK",
    "Rolling",
    "Sampled",
    "Sketch",
    "SubsetLaw",
    "UnscaledBernoulli",
    "parse",
]
