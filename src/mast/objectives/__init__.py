"""Objectives: the functions f that are minimised. One file each; this list is all of them."""

from mast.objectives.base import Objective
from mast.objectives.combined import Mean, Sketched, mean
from mast.objectives.function import Function
from mast.objectives.least_squares import LeastSquares
from mast.objectives.linear import LinearModel
from mast.objectives.logistic import Logistic
from mast.objectives.nonconvex_logistic import NonconvexLogistic
from mast.objectives.quadratic import Quadratic

__all__ = [
    "Function",
    "LeastSquares",
    "LinearModel",
    "Logistic",
    "Mean",
    "NonconvexLogistic",
    "Objective",
    "Quadratic",
    "Sketched",
    "mean",
]
