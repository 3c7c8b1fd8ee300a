"""Methods: how the gradient of f_D is estimated at each step. One file each; this list is all of them."""

from __future__ import annotations

from typing import Any

from mast.errors import ArgumentError
from mast.methods.agd import AGD
from mast.methods.base import Method, SingleMethod, State, make
from mast.methods.dcgd import DCGD
from mast.methods.distributed import Distributed
from mast.methods.dsgd import DSGD
from mast.methods.dsgd_sampled import DSGDSampled
from mast.methods.gd import GD
from mast.methods.gdci import GDCI
from mast.methods.ist_naive import ISTNaive
from mast.methods.l_svrdsg import LSVRDSG
from mast.methods.s_page import SPAGE
from mast.problem import AbstractProblem
from mast.theory import Guarantee

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (GD, AGD, DSGD, DSGDSampled, LSVRDSG, SPAGE, Distributed, GDCI, DCGD, ISTNaive)
}


def guarantee(
    problem: AbstractProblem, method: str | Method = "dsgd", regime: str | None = None, **options: Any
) -> Guarantee:
    """What theory promises for a method on a problem, with the constants gathered from the problem.

    The gap is exact where f_D is, sharper where it can be, and Theorem 1's bound elsewhere; the
    guarantee's `assumptions` say which.

    >>> import mast
    >>> problem = mast.Problem(mast.Quadratic([[2.0, 1.0], [1.0, 2.0]], [3.0, 3.0]), mast.Bernoulli(0.5))
    >>> round(1 / mast.guarantee(problem, "dsgd").max_step_size(), 12)
    12.0
    """
    if not isinstance(problem, AbstractProblem):
        raise ArgumentError(f"guarantee takes a Problem or Nodes, got {type(problem).__name__}")
    return make(method, options).bind(problem, 0).guarantee(regime)


__all__ = ["METHODS", "Guarantee", "Method", "SingleMethod", "State", "guarantee", "make"]
