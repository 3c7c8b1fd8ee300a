"""How to add a method: DSGD with momentum, x <- x - g m with m <- beta m + S' grad f(v + S(x - v)).

    python examples/add_a_method.py

`mast.minimize` and `mast.sweep` take such an object in the place of a name; the loop, traces, checkpoints and
resumption come with that. Inside MAST the class would be a file in src/mast/methods, a name in the list of
its __init__.py, and a line in RUNS of tests/test_run.py.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

import mast
from mast.errors import ArgumentError
from mast.methods import SingleMethod, State
from mast.methods.base import scatter


@dataclass
class Moving(State):
    """The state: all that a step remembers, as arrays and numbers. It is what a checkpoint holds."""

    m: np.ndarray = None


@dataclass
class HeavyBall(SingleMethod):
    """The fields are the options; `self.problem` is there from `prepare` on."""

    name: ClassVar[str] = "heavy_ball"
    beta: float = 0.5

    def prepare(self) -> None:
        if not 0 <= self.beta < 1:
            raise ArgumentError(f"beta must lie in [0, 1), got {self.beta}")

    def start(self, x0: np.ndarray) -> Moving:
        return Moving(x0.copy(), m=np.zeros_like(x0))

    def step(self, state: Moving, t: int, step_size: float) -> None:
        S = self.draw(t)  # a function of the seed and of t
        h = self.problem.sketched_gradient(state.x, S)
        state.m = self.beta * state.m + scatter(state.x.size, S, h)
        state.x -= step_size * state.m
        state.gradients += self.terms


if __name__ == "__main__":
    f = mast.Quadratic(np.diag([4.0, 2.0, 1.0, 0.5]), np.ones(4))
    problem = mast.Problem(f, mast.PermK(2))
    result = mast.minimize(problem, HeavyBall(beta=0.5), steps=100, step_size=0.06, x0=np.full(4, 3.0))
    print(result)
    methods = ["dsgd", HeavyBall(0.5), HeavyBall(0.8)]
    table = mast.sweep(problem, methods, [0.03, 0.06], seeds=range(3), steps=100, jobs=2)
    print(table[table["step"] == 100].groupby(["method", "step_size"])["f_D"].mean())
