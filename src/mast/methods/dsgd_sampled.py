"""DSGD (Algorithm 1, II): a sketch and a minibatch of terms a step. Theorems 4, 12 and 13."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from mast import randomness, theory
from mast.arrays import Array, Indices
from mast.checks import choice, whole
from mast.errors import ArgumentError, MastError
from mast.methods.base import SingleMethod, State, spread
from mast.methods.constants import constants_of, gap_of, regime_of
from mast.methods.sampled_loop import SampledLoop
from mast.objectives import LinearModel
from mast.randomness import Purpose
from mast.sketches import Draw


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
        choice("sketches", self.sketches, ("one", "all"))
        f = self.problem.objective
        self.batch_size = whole("batch_size", self.batch_size, 1, f.terms)
        self.loop = None
        if isinstance(f, LinearModel):
            self.loop = SampledLoop.of(self.problem, f, self.batch_size, self.sketches == "all")
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
        f, v = self.problem.objective, self.problem.shift
        rows = self.rows(t) if f.terms > 1 else None
        if self.sketches == "one":
            S = self.draw(t)
            S.kept.add(state.x, f.sketched_gradient(state.x, S, v, rows), -step_size)
        else:
            h = np.zeros(self.problem.dim)
            for probability, S in self.support:
                h += probability * spread(h.size, S, f.sketched_gradient(state.x, S, v, rows))
            state.x -= step_size * h
        state.gradients += self.batch_size

    def advance(self, state: State, t: int, step_sizes: Array) -> None:
        """The compiled loop where there is one."""
        if self.loop is None:
            super().advance(state, t, step_sizes)
            return
        self.loop.run(state.x, self.seed, t, step_sizes)
        state.gradients += self.batch_size * step_sizes.size

    def guarantee(self, regime: str | None = None, effort: str = "exact") -> theory.Guarantee:
        """Theorem 12, 13 or 4, with the constants of sampling terms."""
        f = self.problem.objective
        gap = gap_of(self.problem, effort)
        numbers = constants_of(self.problem, gap)
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
        return gap.mark(theory.dsgd_inexact(regime_of(self.problem, regime), **sampling._asdict(), **numbers))
