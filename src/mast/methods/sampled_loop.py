"""The compiled loop of `dsgd_sampled`, with what it needs made ready once."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from mast.arrays import Array
from mast.objectives import LinearModel
from mast.objectives.losses import HalfSquare, LogLoss
from mast.objectives.penalties import Ridge, Saturating
from mast.problem import Problem
from mast.sketches.laws import Kind, UnitArrays


@dataclass
class SampledLoop:
    """Steps of `dsgd_sampled` on a linear model, for sketches that have `units`."""

    f: LinearModel
    units: UnitArrays
    shift: Array
    base: Array  # A v
    code: tuple[int, float, float]  # of the loss, the l2 and the other penalty's weight
    batch_size: int
    averaged: bool  # over all sketches

    @staticmethod
    def of(problem: Problem, f: LinearModel, batch_size: int, averaged: bool) -> SampledLoop | None:
        """The loop for this problem; None where only the slow steps can run."""
        units = problem.sketch.units(problem.dim)
        code = _code(f)
        if units is None or code is None or (averaged and not _one_of(units)):
            return None
        base = f.design.times(problem.shift)
        loop = SampledLoop(f, units, problem.shift, base, code, batch_size, averaged)
        loop.run(np.zeros(f.dim), 0, 0, np.empty(0))  # compile now, so that no clock sees it
        return loop

    def run(self, x: Array, seed: int, t: int, step_sizes: Array) -> None:
        """Steps t, t+1, ..., in place."""
        kernels: Any = importlib.import_module("mast.methods.kernels")  # Numba takes a while to load
        f, u = self.f, self.units
        words = np.array([seed & 0xFFFFFFFF, seed >> 32], dtype=np.uint32)
        rows: tuple[Any, ...] = (f.indptr, f.indices, f.data, f.labels, f.rates)
        model: tuple[Any, ...] = (*self.code, self.shift, self.base)
        if self.averaged:
            K = float(u.scales[0])
            kernels.averaged_steps(
                *rows, *model, u.unit_of, u.scales.size, K, words, t, step_sizes, self.batch_size, x
            )
        elif u.kind is Kind.MASK and np.array_equal(u.unit_of, np.arange(f.dim)):
            masks = (u.scales, u.thresholds)
            kernels.masked_steps(*rows, *model, *masks, words, t, step_sizes, self.batch_size, x)
        else:
            sketch = (int(u.kind), u.k, u.unit_of, u.members, u.start, u.scales, u.thresholds)
            kernels.sampled_steps(*rows, *model, *sketch, words, t, step_sizes, self.batch_size, x)


def _code(f: LinearModel) -> tuple[int, float, float] | None:
    """How the kernels name the loss and the penalty; None for one they do not know."""
    losses = {LogLoss: 0, HalfSquare: 1}
    if type(f.loss) not in losses:
        return None
    if isinstance(f.penalty, Ridge):
        return losses[type(f.loss)], f.penalty.l2, 0.0
    if isinstance(f.penalty, Saturating):
        return losses[type(f.loss)], 0.0, f.penalty.weight
    return None


def _one_of(units: UnitArrays) -> bool:
    """Whether exactly one unit survives, so that all sketches can be averaged in one go."""
    return units.kind in (Kind.ALL, Kind.BLOCK) or (units.kind is Kind.SUBSET and units.k == 1)
