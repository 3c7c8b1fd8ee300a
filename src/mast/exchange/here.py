"""The engine without a wire: server and nodes in one process. What the other engines are compared with."""

from __future__ import annotations

from collections.abc import Sequence

from mast.errors import ArgumentError
from mast.exchange.parts import Worker
from mast.exchange.server import Server


def run_here(server: Server, workers: Sequence[Worker], rounds: int) -> None:
    """Rounds server.t .. rounds-1, every message handed over in memory.

    >>> import mast, numpy as np
    >>> from mast.exchange import Coordinates, ProblemWorker, Roster
    >>> problem = mast.Problem(mast.Quadratic([[2.0, 0.0], [0.0, 4.0]], [1.0, 1.0]), mast.RandK(1))
    >>> server = Server(np.zeros(2), [Coordinates(problem.sketch, 2)] * 3, Roster(7, nodes=3), step_size=0.05)
    >>> run_here(server, [ProblemWorker(problem) for _ in range(3)], rounds=20)
    >>> inside = mast.minimize(mast.Nodes([problem] * 3), "distributed", 20, 0.05, seed=7, trace=20)
    >>> bool((server.x == inside.x).all())
    True
    """
    if len(workers) != len(server.capacities):
        raise ArgumentError(f"there are {len(workers)} workers for {len(server.capacities)} nodes")
    while server.t < rounds and not server.diverged:
        answers = [workers[message.header.node].answer(message) for message in server.messages()]
        for answer in answers:
            server.absorb(answer)
        server.close()
