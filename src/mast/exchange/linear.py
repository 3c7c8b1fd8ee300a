"""A node with a linear model, or any other objective of `mast.objectives`: the worker of a `Problem`."""

from __future__ import annotations

import numpy as np

from mast.errors import ArgumentError
from mast.exchange.messages import Header, Values
from mast.exchange.parts import Coordinates, CoordinatesPart, Part, Worker
from mast.methods.distributed import node_answer
from mast.problem import Problem


class ProblemWorker(Worker):
    """The node of a `Problem`: its data, its sketch, and the shift that all nodes share.

    The margins A v at the shift are computed once; a round costs what its draw keeps.

    >>> import mast
    >>> from mast.exchange import Header, Kind, Message
    >>> f = mast.Quadratic([[2.0, 0.0], [0.0, 4.0]], [1.0, 1.0])
    >>> worker = ProblemWorker(mast.Problem(f, mast.Identity()))
    >>> message = Message.of(Header(Kind.VALUES, 0, mast.randomness.Key(seed=0), 2), [1.0, 1.0])
    >>> worker.answer(message).values
    array([1., 3.])
    """

    def __init__(self, problem: Problem, run: int = 0) -> None:
        if not isinstance(problem, Problem):
            raise ArgumentError(f"a node has one Problem, got {type(problem).__name__}")
        super().__init__(Coordinates(problem.sketch, problem.dim), run)
        self.problem = problem
        self.room = problem.shift.copy()

    def gradients(self, part: Part, values: Values, header: Header, out: Values) -> None:
        """`mast.methods.distributed.node_answer`."""
        assert isinstance(part, CoordinatesPart)
        wide = values.astype(np.float64, copy=False)
        out[...] = node_answer(self.problem, part.draw, wide, header.step_size, header.local_steps, self.room)
