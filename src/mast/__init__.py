"""MAST: train once, run sparse.

MAST replaces ``min f(x)`` by ``min f_D(x) = E f(v + S(x - v))``, where S is a random
sketch that drops and rescales weights and v is a pretrained model, or 0. Its minimiser
is a model whose sparsified versions work.

Names are imported when they are first used, so that ``import mast`` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0"

# room -> the names that live in it. This is the list of what `mast` offers.
_ROOMS = {
    "sketches": (  # the distribution of S
        *("Identity", "Bernoulli", "UnscaledBernoulli", "RandK", "PermK", "Gaussian", "Matrices"),
        *("Grouped", "Mixture", "Except", "Nested", "Rolling", "Sampled", "Sketch"),
    ),
    # f, and f_D
    "objectives": ("Objective", "Quadratic", "Function", "Logistic", "LeastSquares", "NonconvexLogistic"),
    "problem": ("Problem", "Nodes"),
    # runs and what theory says of them
    "run": ("minimize",),
    "sweeps": ("sweep",),
    "methods": ("guarantee",),
    "advice": ("advise",),
    "allocation": ("keep_probabilities",),
    # scikit-learn estimators
    "learn": (
        *("ConditionalImputer", "MaskedTraining", "MastClassifier", "MastRegressor", "MissingDisplay"),
        *("TableEncoder", "make_missing_scorer"),
    ),
    "errors": ("MastError",),
    "randomness": ("Key",),  # the name of a draw
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}
_MODULES = ("cluster", "data", "errors", "federated", "nn", "sketches", "theory")
#: what may be reached as an attribute too, and is for those who extend MAST
_INNER = ("learn", "methods", "objectives", "problem", "randomness", "run")
_UNLISTED = {"Conditional": "sketches", "Result": "results"}

__all__ = sorted([*_ROOM_OF, *_MODULES, "__version__"])

if TYPE_CHECKING:
    from mast import data, errors, nn, objectives, problem, randomness, sketches, theory
    from mast.advice import advise
    from mast.allocation import keep_probabilities
    from mast.errors import MastError
    from mast.learn import (
        ConditionalImputer,
        MaskedTraining,
        MastClassifier,
        MastRegressor,
        MissingDisplay,
        TableEncoder,
        make_missing_scorer,
    )
    from mast.methods import guarantee
    from mast.objectives import Function, LeastSquares, Logistic, NonconvexLogistic, Objective, Quadratic
    from mast.problem import Nodes, Problem
    from mast.randomness import Key
    from mast.results import Result
    from mast.run import minimize
    from mast.sketches import (
        Bernoulli,
        Conditional,
        Except,
        Gaussian,
        Grouped,
        Identity,
        Matrices,
        Mixture,
        Nested,
        PermK,
        RandK,
        Rolling,
        Sampled,
        Sketch,
        UnscaledBernoulli,
    )
    from mast.sweeps import sweep


def __getattr__(name: str) -> Any:
    room = _ROOM_OF.get(name) or _UNLISTED.get(name)
    if room is not None:
        value = getattr(importlib.import_module(f"mast.{room}"), name)
        globals()[name] = value
        return value
    if name in _MODULES or name in _INNER:
        return importlib.import_module(f"mast.{name}")
    raise AttributeError(f"module 'mast' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
