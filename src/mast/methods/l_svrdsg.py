"""L-SVRDSG (Algorithm 3): loopless variance reduction over a finite support. Theorems 17 and 19."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mast import theory
from mast.methods.base import State, annotated, constants_of, gap_of, regime_of
from mast.methods.finite_support import FiniteSupportMethod
from mast.support.checks import Array, check_choice, check_probability


@dataclass
class LSVRDSGState(State):
    """The point x, the reference point w, and the mean gradient hhat at w."""

    w: Array = None  # type: ignore[assignment]
    hhat: Array = None  # type: ignore[assignment]


@dataclass
class LSVRDSG(FiniteSupportMethod):
    """h = grad f_S(x) - grad f_S(w) + hhat; with probability p, w becomes the x of before the step.

    Parameters
    ----------
    p
        Probability of a refresh; 1/N by default.
    b
        Size of the batch whose mean gradient at w is hhat; all N by default.
    batch
        With b < N: "fresh" draws a new batch at every step (b more gradients per step), "kept"
        keeps the batch of the last refresh, as the paper prints it, and needs a smaller step size.
    """

    name: ClassVar[str] = "l_svrdsg"
    p: float = None  # type: ignore[assignment]
    b: int = None  # type: ignore[assignment]
    batch: str = "fresh"

    def prepare(self) -> None:
        """Fill in the defaults."""
        super().prepare()
        check_choice("batch", self.batch, ("fresh", "kept"))
        self.p = check_probability("p", 1 / self.N if self.p is None else self.p)
        self.b = self.batch_of("b", self.b)
        self.fresh = self.batch == "fresh" and self.b < self.N
        self.cost = self.terms if self.b == self.N else self.b * self.terms

    def start(self, x0: Array) -> LSVRDSGState:
        """w = x0, and its mean gradient."""
        hhat = self.mean_gradient(x0, self.key(0, index=1), self.b)
        return LSVRDSGState(x0.copy(), gradients=self.cost, w=x0.copy(), hhat=hhat)

    def step(self, state: LSVRDSGState, t: int, step_size: float) -> None:
        """One sketch at two points; a refresh now and then."""
        if self.fresh:
            state.hhat = self.mean_gradient(state.w, self.key(t), self.b)
            state.gradients += self.cost
        S = self.one(self.key(t))
        h = self.difference(state.x, state.w, S) + state.hhat
        before = state.x
        state.x = before - step_size * h
        state.gradients += 2 * self.terms
        if self.coin(t, self.p):
            state.w = before
            if not self.fresh:
                state.hhat = self.mean_gradient(before, self.key(t), self.b)
                state.gradients += self.cost

    def guarantee(self, regime: str | None = None, effort: str = "exact") -> theory.Guarantee:
        """Theorem 17 or 19, for the kind of batch."""
        gap, source = gap_of(self.over, effort)
        batches: dict[str, Any] = {"N": self.N, "b": self.b, "p": self.p, "batch": self.batch}
        regime = regime_of(self.over, regime)
        return annotated(
            theory.l_svrdsg(regime, **batches, gap=gap, **constants_of(self.over)), self.over, source
        )
