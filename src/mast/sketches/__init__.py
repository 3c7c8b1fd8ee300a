"""Sketches: the distributions of the random matrix S. One file each; this list is all of them."""

from mast.sketches.base import Sketch
from mast.sketches.bernoulli import Bernoulli, UnscaledBernoulli
from mast.sketches.conditional import Conditional
from mast.sketches.draws import Constants, DiagonalDraw, Draw, MatrixDraw
from mast.sketches.estimates import ESTIMATE_DRAWS, SUPPORT_LIMIT
from mast.sketches.excepting import Except
from mast.sketches.gaussian import Gaussian
from mast.sketches.grouped import Grouped
from mast.sketches.identity import Identity
from mast.sketches.laws import Law
from mast.sketches.matrices import Matrices
from mast.sketches.mixture import Mixture
from mast.sketches.nested import Nested
from mast.sketches.parsing import parse
from mast.sketches.perm_k import PermK
from mast.sketches.rand_k import RandK
from mast.sketches.rolling import Rolling
from mast.sketches.sampled import Sampled

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
    "Law",
    "Matrices",
    "MatrixDraw",
    "Mixture",
    "Nested",
    "PermK",
    "RandK",
    "Rolling",
    "Sampled",
    "Sketch",
    "UnscaledBernoulli",
    "parse",
]
