"""Objectives: the functions f that are minimised. One file each; this list is all of them."""

from mast.objectives.base import Objective
from mast.objectives.combined import Mean, Sketched, mean
from mast.objectives.function import Function
from mast.objectives.quadratic import Quadratic

__all__ = ["Function", "Mean", "Objective", "Quadratic", "Sketched", "mean"]
