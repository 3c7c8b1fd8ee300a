"""Methods: how the gradient of f_D is estimated at each step. One file each; this list is all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mast.errors import ArgumentError
from mast.methods.agd import AGD
from mast.methods.base import Method, SingleMethod, State
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


def make(method: str | Method, options: Mapping[str, Any]) -> Method:
    """A method by its name and options, or the one that was made already.

    An unknown name or option is refused with what is known, and so is an option without a default that
    is not given.
    """
    if isinstance(method, Method):
        if options:
            raise ArgumentError(
                f"{', '.join(options)}: give the options of a method to its constructor, "
                f"{type(method).__name__}(...), or pass its name"
            )
        return method
    if isinstance(method, type) and issubclass(method, Method):
        raise ArgumentError(f"pass a method, {method.__name__}(...) with its options, not its class")
    if not isinstance(method, str) or method not in METHODS:
        raise ArgumentError(f"unknown method {method!r}; the methods are {', '.join(METHODS)}")
    known = METHODS[method].parameters()
    unknown = sorted(set(options) - set(known))
    if unknown:
        takes = ", ".join(known) or "none"
        raise ArgumentError(f"{method} has no option {', '.join(unknown)}; its options are: {takes}")
    missing = [name for name, required in known.items() if required and name not in options]
    if missing:
        raise ArgumentError(f"{method} needs a value for {', '.join(missing)}: pass {missing[0]}=...")
    return METHODS[method](**options)


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
