"""DSGD (Algorithm 1, II): a sketch and a minibatch of terms per step. Theorems 4, 12 and 13."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from mast import randomness, theory
from mast.errors import ArgumentError, MastError
from mast.methods.base import (
    SingleMethod,
    State,
    annotated,
    constants_of,
    gap_of,
    refuse_dependent,
    regime_of,
    scatter,
)
from mast.objectives import LinearModel
from mast.objectives.design import csr_arrays
from mast.objectives.losses import HalfSquare, LogLoss, Ridge, Saturating
from mast.problem import Problem
from mast.randomness import Purpose
from mast.sketches import Draw
from mast.support.checks import Array, Indices, check_choice, check_int


@dataclass
class DSGDSampled(SingleMethod):
    """x <- x - g S' grad f_B(v + S(x - v)): f_B is the mean of `batch_size` terms, without replacement.

    With ``sketches="all"`` the gradient is averaged over all sketches of the support.
    """

    name: ClassVar[str] = "dsgd_sampled"
    batch_size: int = 1
    sketches: str = "one"

    def prepare(self) -> None:
        """Check the options; find out whether the compiled loop can be used."""
        check_choice("sketches", self.sketches, ("one", "all"))
        f = self.problem.objective
        self.batch_size = check_int("batch_size", self.batch_size, 1, f.terms)
        self.loop = compiled_loop(self.problem, self.batch_size, self.sketches == "all")
        if self.sketches == "all" and self.loop is None:
            _ = self.support  # refuse here, not at the first step

    @cached_property
    def support(self) -> list[tuple[float, Draw]]:
        """All sketches, with their probabilities."""
        support = self.problem.sketch.support(self.problem.dim)
        if support is None:
            raise ArgumentError(f'sketches="all" needs a finite support: {self.problem.sketch!r} has none')
        return support

    def rows(self, t: int) -> Indices:
        """The terms of step t."""
        return randomness.permutation(self.key(t), Purpose.BATCH, self.terms, 0, self.batch_size)

    def step(self, state: State, t: int, step_size: float) -> None:
        """One step, readably: what the compiled loop must equal."""
        rows = self.rows(t) if self.problem.objective.terms > 1 else None
        if self.sketches == "one":
            S = self.draw(t)
            S.add(state.x, self.problem.sketched_gradient(state.x, S, rows), -step_size)
        else:
            h = np.zeros(self.problem.dim)
            for probability, S in self.support:
                h += probability * scatter(h.size, S, self.problem.sketched_gradient(state.x, S, rows))
            state.x -= step_size * h
        state.gradients += self.batch_size

    def advance(self, state: State, t: int, step_sizes: Array) -> None:
        """The compiled loop where there is one."""
        if self.loop is None:
            super().advance(state, t, step_sizes)
            return
        self.loop(state.x, self.seed, t, step_sizes)
        state.gradients += self.batch_size * step_sizes.size

    def guarantee(self, regime: str | None = None, effort: str = "exact") -> theory.Guarantee:
        """Theorem 12, 13 or 4, with the constants of sampling terms."""
        f = self.problem.objective
        if self.sketches == "one":
            refuse_dependent([self.problem.sketch])
        gap, source = gap_of(self.problem, effort)
        numbers = constants_of(self.problem)
        terms_gap = None
        if effort != "none":
            with contextlib.suppress(MastError):
                terms_gap = max(f.infimum() - float(f.term_infima().mean()), 0.0)
        sampling = theory.sampling_constants(
            L_fi=f.term_smoothness,
            batch_size=self.batch_size,
            sketches=self.sketches,
            L_f=f.smoothness,
            L_D=numbers["L_D"],
            L_max=numbers["L_max"],
            terms_gap=terms_gap,
        )
        regime = regime_of(self.problem, regime)
        statement = theory.dsgd_inexact(regime, **sampling._asdict(), gap=gap, **numbers)
        return annotated(statement, self.problem, source)


# ---- the compiled loop, for linear models and sketches that have `units` ---------------------------


def compiled_loop(problem: Problem, batch_size: int, averaged: bool) -> Callable[..., None] | None:
    """Steps t, t+1, ... by the kernels, as a function of (x, seed, t, step sizes) that changes x.

    None where only the slow steps can run. What the kernels need is made ready once, as plain tuples: Numba's
    cache on disk would look for classes where they were once defined.
    """
    from mast.sketches.compiled import DrawKind, unit_arrays  # Numba takes a while to load

    f, units = problem.objective, unit_arrays(problem.sketch, problem.dim)
    if not isinstance(f, LinearModel) or units is None or type(f.loss) not in _LOSSES:
        return None
    if not isinstance(f.penalty, Ridge | Saturating) or (averaged and not units.single):
        return None
    penalty = (f.penalty.l2, 0.0) if isinstance(f.penalty, Ridge) else (0.0, f.penalty.weight)
    rows = (*csr_arrays(f.design.csr), f.labels, f.rates)
    terms = (*rows, _LOSSES[type(f.loss)], *penalty, problem.shift, f.design.matrix @ problem.shift)
    masked = units.kind is DrawKind.MASK and np.array_equal(units.unit_of, np.arange(f.dim))
    kernel = "averaged_steps" if averaged else "masked_steps" if masked else "sampled_steps"
    loop = partial(_take_steps, kernel, terms, (int(units.kind), *units[1:]), batch_size)
    loop(np.zeros(f.dim), 0, 0, np.empty(0))  # compile now, so that no clock sees it
    return loop


def _take_steps(
    kernel: str,
    terms: tuple[Any, ...],
    units: tuple[Any, ...],
    batch_size: int,
    x: Array,
    seed: int,
    t: int,
    step_sizes: Array,
) -> None:
    kernels = importlib.import_module("mast.methods.kernels")  # Numba takes a while to load
    words = np.array([seed & 0xFFFFFFFF, seed >> 32], dtype=np.uint32)
    labels = terms[3]
    steps = (words, t, step_sizes, batch_size, *randomness.feistel_sides(labels.size))
    getattr(kernels, kernel)(terms, units, steps, x)


_LOSSES = {LogLoss: 0, HalfSquare: 1}
